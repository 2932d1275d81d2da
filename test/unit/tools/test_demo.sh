#!/bin/sh
# SPDX-License-Identifier: MIT
# gpucr-demo on the simulated GPU: that it ticks, that it finds a changed byte, that it ends as it
# should. usage: test_demo.sh PATH-OF-GPUCR-RUN PATH-OF-GPUCR-DEMO [--hip]
set -u

# A shell cannot take back what is ignored where it is started, as nohup(1) does.
if [ -z "${GPUCR_TEST_SIGNALS:-}" ] && env --default-signal true 2>/dev/null; then
    GPUCR_TEST_SIGNALS=default exec env --default-signal "$0" "$@"
fi

run=$1
demo=$2
hip=${3-}
alloc='cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY'
device='cuDeviceGet: CUDA_ERROR_INVALID_DEVICE'
if [ -n "$hip" ]; then
    alloc='hipMalloc: hipErrorOutOfMemory'
    device='hipDeviceGet: hipErrorInvalidDevice'
fi
work=$(mktemp -d) || exit 1
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null; rm -rf "$work"' EXIT
export GPUCR_SIM_DIR="$work/sim" GPUCR_SIM_VRAM=256M
export GPUCR_PRELOAD=
mkdir "$GPUCR_SIM_DIR"
failures=0

fail() {
    failures=$((failures + 1))
    printf 'FAIL: %s; output:\n' "$1"
    cat "$work/out" "$work/err"
}

# Run it and keep what came of it: demo STATUS-EXPECTED ARGUMENT...
demo() {
    expected=$1
    shift
    "$run" --sim "$demo" ${hip:+"$hip"} "$@" >"$work/out" 2>"$work/err"
    status=$?
    [ "$status" -eq "$expected" ] || fail "gpucr-demo $*: status $status, expected $expected"
}

# The output is `pid N` and then this many ticks, none left out: ticks_to NUMBER
ticks_to() {
    awk -v last="$1" 'NR == 1 { if (!/^pid [0-9]+$/) bad = 1; next }
        $0 != "tick " (NR - 1) " ok" { bad = 1 }
        END { exit bad || NR != last + 1 }' "$work/out" || fail "ticks 1 to $1 expected"
}

has_error() {
    grep -q -F -e "$1" "$work/err" || fail "no '$1' on stderr"
}

# Wait until the output has this line, or the program has ended.
wait_for_line() {
    until grep -q -x -e "$1" "$work/out"; do
        kill -0 "$pid" 2>/dev/null || break
    done
    grep -q -x -e "$1" "$work/out" || fail "no line '$1'"
}

demo 0 --bytes 16M --ticks 5 --tick 1
ticks_to 5
[ "$failures" -eq 0 ] || exit 1
# Sizes that are no multiple of anything, and more ticks than a buffer has blocks.
demo 0 --bytes 10000003 --buffers 3 --ticks 12 --tick 0
ticks_to 12
demo 0 --bytes 8 --buffers 2 --ticks 3 --tick 0
ticks_to 3
demo 0 --bytes 8M --buffers 2 --managed 2 --ticks 3 --tick 0
ticks_to 3

demo 0 --bytes 10M --buffers 2 --own-vmm 2 --pitch 2 --async 2 --managed 1 --blocks 50 \
    --block-bytes 5000 --ticks 13 --tick 0
ticks_to 13
demo 0 --bytes 4M --buffers 2 --threads 4 --capture 1 --children 2 --clone --ticks 20 --tick 1
ticks_to 20
demo 0 --bytes 4M --buffers 2 --spin 2 --children 1 --fork-at 3 --ticks 5 --tick 1
ticks_to 5
demo 0 --bytes 12K --buffers 2 --managed 1 --ticks 1 --list
grep -q -x 'buffer 1 device gpu 0 address 0x[0-9a-f]* bytes 6144 seed 0x3c6ef372' "$work/err" ||
    fail 'no description of buffer 1'
grep -q '^buffer 2 managed gpu 0 ' "$work/err" || fail 'no description of buffer 2'

demo 1 --bytes 1G --buffers 1
has_error "$alloc"
demo 1 --gpu 99
has_error "$device"
demo 2 --bytes 12Q
has_error '--bytes'
demo 2 --bytes -1
demo 2 --bytes 99999999999999999999
demo 2 --buffers 0
demo 2 --frobnicate
demo 2 stray
demo 0 --help

# Two GPUs, in a machine of their own.
GPUCR_SIM_DIR="$work/sim2" GPUCR_SIM_GPUS=2 GPUCR_SIM_HIP_GPUS=2
export GPUCR_SIM_GPUS GPUCR_SIM_HIP_GPUS
mkdir "$GPUCR_SIM_DIR"
demo 0 --bytes 10M --buffers 3 --own-vmm 2 --managed 2 --async 2 --gpus 2 --threads 2 --ticks 8 --tick 0
ticks_to 8
demo 1 --gpus 3
has_error "$device"
GPUCR_SIM_DIR="$work/sim"

# SIGTERM ends it at once and well.
"$run" --sim "$demo" ${hip:+"$hip"} --bytes 4M --tick 100000 >"$work/out" 2>"$work/err" &
pid=$!
wait_for_line 'tick 1 ok'
kill -TERM "$pid"
wait "$pid"
status=$?
pid=
[ "$status" -eq 0 ] || fail "SIGTERM: status $status"

# One byte of VRAM changes behind its back; the simulator's physical memory is in files.
"$run" --sim "$demo" ${hip:+"$hip"} --bytes 4M --buffers 1 --tick 1 >"$work/out" 2>"$work/err" &
pid=$!
wait_for_line 'tick 3 ok'
memory=$(find "$GPUCR_SIM_DIR" -path '*/memory/*' -type f -size 8192)
[ -n "$memory" ] || fail 'the simulator has no file of 4 MiB'
# Again and again, for the kernel that changes this word may just be at it.
while kill -0 "$pid" 2>/dev/null; do
    for file in $memory; do
        printf '\252\125\252\125' | dd of="$file" bs=4 seek=1000000 conv=notrunc 2>/dev/null
    done
done
wait "$pid"
status=$?
pid=
[ "$status" -eq 1 ] || fail "a changed byte: status $status"
has_error 'buffer 0 (4194304 bytes of device memory'
has_error '1 of 1048576 words differ, the first at byte 4000000: expected 0x'
has_error ', found 0x'

[ "$failures" -eq 0 ]
