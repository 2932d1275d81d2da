#!/bin/sh
# SPDX-License-Identifier: MIT
# gpucr against a folder that looks like a mount: what it writes where, what it says and how it
# ends; and its completion. usage: test_gpucr.sh PATH-OF-GPUCR PATH-OF-COMPLETION
set -u

# A shell cannot take back what is ignored where it is started, as nohup(1) does.
if [ -z "${GPUCR_TEST_SIGNALS:-}" ] && env --default-signal true 2>/dev/null; then
    GPUCR_TEST_SIGNALS=default exec env --default-signal "$0" "$@"
fi

gpucr=$1
completion=$2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export GPUCR_MOUNT="$work/a mount"
failures=0
count=0

mkdir "$GPUCR_MOUNT"
: >"$GPUCR_MOUNT/ctl"

# A process directory: make_process ID
make_process() {
    mkdir -p "$GPUCR_MOUNT/$1"
    rm -f "$GPUCR_MOUNT/$1/ctl"
    : >"$GPUCR_MOUNT/$1/ctl"
    echo ok >"$GPUCR_MOUNT/$1/error"
    printf 'state running\nengine vmm\n' >"$GPUCR_MOUNT/$1/status"
}

# Run gpucr and keep what came of it: run ARGUMENT...
run() {
    "$gpucr" "$@" >"$work/out" 2>"$work/err"
    status=$?
}

check() {
    count=$((count + 1))
    if [ "$2" != "$3" ]; then
        failures=$((failures + 1))
        printf 'FAIL: %s: expected "%s", found "%s"\n' "$1" "$2" "$3"
    fi
}

# Does the file have this text? check_has WHAT TEXT FILE
check_has() {
    count=$((count + 1))
    if ! grep -q -F -e "$2" "$3"; then
        failures=$((failures + 1))
        printf 'FAIL: %s: no "%s" in: %s\n' "$1" "$2" "$(cat "$3")"
    fi
}

make_process 123
make_process 456
make_process training

run freeze 123
check 'freeze one: status' 0 "$status"
check 'freeze one: ctl' 'freeze' "$(cat "$GPUCR_MOUNT/123/ctl")"
check 'freeze one: quiet' '' "$(cat "$work/out" "$work/err")"

make_process 123
run thaw gpu=0:1 timeout=30 123
check 'arguments: status' 0 "$status"
check 'arguments: ctl' 'thaw gpu=0:1 timeout=30' "$(cat "$GPUCR_MOUNT/123/ctl")"

make_process 123
run freeze 123 timeout=5 456
check 'several: status' 0 "$status"
check 'several: root ctl' 'freeze timeout=5 123 456' "$(cat "$GPUCR_MOUNT/ctl")"
check 'several: own ctl' '' "$(cat "$GPUCR_MOUNT/123/ctl" "$GPUCR_MOUNT/456/ctl")"

run thaw training
check 'by name: status' 0 "$status"
check 'by name: ctl' 'thaw' "$(cat "$GPUCR_MOUNT/training/ctl")"

make_process 123
run dump leave name=training-2 tcp=close 123
check 'dump: status' 0 "$status"
check 'dump: ctl' 'dump leave name=training-2 tcp=close' "$(cat "$GPUCR_MOUNT/123/ctl")"
check 'dump: name' training-2 "$(cat "$work/out" "$work/err")"

# Where no name was asked for: with `leave` the place is beside the process, else instead of it.
make_process 123
make_process train-123-77
make_process train-123-7
# Another user's, empty.
make_process zz-123-77
printf 'pid 123\nstart_ticks 77\n' >"$GPUCR_MOUNT/123/status"
printf 'state dumped\npid 123\nstart_ticks 77\n' >"$GPUCR_MOUNT/train-123-77/status"
printf 'state incoming\npid -\nstart_ticks -\n' >"$GPUCR_MOUNT/zz-123-77/status"
run dump leave 123
check 'dump leave: name' train-123-77 "$(cat "$work/out" "$work/err")"
make_process place
ln -s place "$GPUCR_MOUNT/124"
printf 'pid 124\nstart_ticks 77\n' >"$GPUCR_MOUNT/place/status"
run dump 124
check 'dump: status' 0 "$status"
check 'dump: name of the link' place "$(cat "$work/out" "$work/err")"
rm -r "$GPUCR_MOUNT/124" "$GPUCR_MOUNT/place" \
    "$GPUCR_MOUNT/train-123-77" "$GPUCR_MOUNT/train-123-7" "$GPUCR_MOUNT/zz-123-77"
make_process training
run thaw pid=new stdio=/var/log/training.log training
check 'thaw of a place: status' 0 "$status"
check 'thaw of a place: ctl' 'thaw pid=new stdio=/var/log/training.log' \
    "$(cat "$GPUCR_MOUNT/training/ctl")"

# Ids alone stand in the root's ctl.
make_process 123
make_process training
: >"$GPUCR_MOUNT/ctl"
for others in '123 training' 'training 123' 'training 456 123'; do
    # shellcheck disable=SC2086
    run thaw $others
    check "a name among $others: status" 2 "$status"
    check_has "a name among $others: words" 'training: a name stands alone' "$work/err"
    check "a name among $others: ctl" '' \
        "$(cat "$GPUCR_MOUNT/ctl" "$GPUCR_MOUNT/123/ctl" "$GPUCR_MOUNT/training/ctl")"
done

# A failed write(2), with and without words of the process.
rm "$GPUCR_MOUNT/123/ctl"
ln -s /dev/full "$GPUCR_MOUNT/123/ctl"
run freeze 123
check 'failure: status' 1 "$status"
check 'failure: words' 'gpucr: freeze 123: No space left on device' "$(cat "$work/err")"
echo 'the store is full: 3 GiB needed, 1 GiB there' >"$GPUCR_MOUNT/123/error"
run freeze 123
check 'failure: status' 1 "$status"
check 'failure: words of error' \
    'gpucr: freeze 123: the store is full: 3 GiB needed, 1 GiB there' "$(cat "$work/err")"

# Several: those that have failed since are named by the root's events.
rm "$GPUCR_MOUNT/ctl"
ln -s /dev/full "$GPUCR_MOUNT/ctl"
echo 'T 123 - verb freeze EIO an old failure' >"$GPUCR_MOUNT/events"
run freeze 123 456
check 'failure of several: status' 1 "$status"
check 'failure of several: words' 'gpucr: freeze 123 456: No space left on device' \
    "$(cat "$work/err")"
# Refused as a whole: in the root's own words.
echo 'ESRCH: there is no process 456' >"$GPUCR_MOUNT/error"
run freeze 123 456
check 'refusal of several: status' 1 "$status"
check 'refusal of several: words' 'gpucr: freeze: ESRCH: there is no process 456' \
    "$(cat "$work/err")"
echo ok >"$GPUCR_MOUNT/error"
run freeze 123 456
check 'several, and no words' 'gpucr: freeze 123 456: No space left on device' "$(cat "$work/err")"
rm "$GPUCR_MOUNT/ctl"
: >"$GPUCR_MOUNT/ctl"

# Of a launcher: those of the processes below it. What is written to ctl makes the event.
make_process 700
printf 'state running\nmembers 123 456\n' >"$GPUCR_MOUNT/700/status"
echo 'EINVAL: of an earlier write' >"$GPUCR_MOUNT/700/error"
rm "$GPUCR_MOUNT/700/ctl"
ln -s /dev/full "$GPUCR_MOUNT/700/ctl"
mkdir "$work/bin"
cat >"$work/bin/cat" <<END
#!/bin/sh
[ \$# -gt 0 ] || printf '%s\n' 'T 456 - verb freeze ENOSPC' \\
    'T 9 - verb freeze EIO' >>"$GPUCR_MOUNT/events"
PATH=\${PATH#*:}
exec cat "\$@"
END
chmod +x "$work/bin/cat"
echo 'ENOSPC: no room' >"$GPUCR_MOUNT/456/error"
PATH="$work/bin:$PATH" run freeze 700
check 'failure of a launcher: status' 1 "$status"
check 'failure of a launcher: words' 'gpucr: freeze 456: ENOSPC: no room' "$(cat "$work/err")"
echo ok >"$GPUCR_MOUNT/456/error"
PATH="$work/bin:$PATH" run freeze 700
check 'failure of a launcher, whose words have gone' 'gpucr: freeze 456: ENOSPC' "$(cat "$work/err")"
rm -r "$GPUCR_MOUNT/700"

# A ctl that cannot even be opened: then `error` is about something else.
rm "$GPUCR_MOUNT/123/ctl"
mkdir "$GPUCR_MOUNT/123/ctl"
run freeze 123
check 'open: status' 1 "$status"
check 'open: words' 'gpucr: freeze 123: Is a directory' "$(cat "$work/err")"
rmdir "$GPUCR_MOUNT/123/ctl"
make_process 123

run freeze 999999999
check 'no process: status' 1 "$status"
check_has 'no process: words' '999999999: no such process' "$work/err"
run freeze $$
check 'no GPU: status' 1 "$status"
check_has 'no GPU: words' "$$: this process uses no GPU" "$work/err"
run freeze
check 'no id: status' 2 "$status"
check_has 'no id: words' 'which process?' "$work/err"
run freeze trainin
check 'no such name: status' 2 "$status"
check_has 'no such name: words' 'trainin' "$work/err"
run freeze "123
thaw"
check 'newline: status' 2 "$status"
for path in ../123 /etc/passwd training/ 12/3; do
    run thaw 123 "$path"
    check "path $path: status" 2 "$status"
    check_has "path $path: words" "$path" "$work/err"
done
# Somebody has made places that are called like words of the verbs.
for words in 'freeze data' 'freeze park' 'freeze unseen' 'thaw data' 'thaw trusted' 'thaw unverified' \
    'dump leave name=x' 'dump supervised name=x' 'dump unseen name=x'; do
    name=${words#* }
    name=${name% *}
    make_process "$name"
    make_process 123
    # shellcheck disable=SC2086 # several words
    run $words 123
    check "place $name: status of $words" 0 "$status"
    check "place $name: ctl of $words" "$words" "$(cat "$GPUCR_MOUNT/123/ctl")"
    check "place $name: its ctl" '' "$(cat "$GPUCR_MOUNT/$name/ctl")"
    rm -r "${GPUCR_MOUNT:?}/$name"
done
make_process 123
make_process data
run freeze data 123 456
check 'place data: status of several' 0 "$status"
check 'place data: root ctl' 'freeze data 123 456' "$(cat "$GPUCR_MOUNT/ctl")"
: >"$GPUCR_MOUNT/ctl"
run thaw data ./data
check 'place data by ./: status' 0 "$status"
check 'place data by ./: ctl' 'thaw data' "$(cat "$GPUCR_MOUNT/data/ctl")"
make_process data
run drop data
check 'place data, no word of the verb: status' 0 "$status"
check 'place data, no word of the verb: ctl' 'drop' "$(cat "$GPUCR_MOUNT/data/ctl")"
run status ./data
check 'status of place data' 0 "$status"
rm -r "$GPUCR_MOUNT/data"
run thaw ./data
check 'no place: status' 2 "$status"
check_has 'no place: words' './data' "$work/err"
run freeze ../123
check 'path: status' 2 "$status"
check 'path: ctl' '' "$(cat "$GPUCR_MOUNT/123/ctl")"
run --frobnicate
check 'bad option: status' 2 "$status"
run
check 'nothing: status' 2 "$status"

run --help
check 'help: status' 0 "$status"
check_has 'help: text' 'Usage: gpucr VERB' "$work/out"
run --version
check 'version: status' 0 "$status"
check_has 'version: text' 'gpucr ' "$work/out"

run status 123
check 'status: status' 0 "$status"
check_has 'status: text' 'engine vmm' "$work/out"

cat >"$GPUCR_MOUNT/status" <<'END'
version 1
processes 2

id       user   comm             state         vram_bytes     held_bytes
123      1000   train            running      17179869184              0
456      0      serve            frozen                 0     1073741824
host2    1000   -                incoming               0     2147483648
training-789-12345 0 -           dumped                 0     3221225472
END
run ls
check 'ls: status' 0 "$status"
check 'ls: lines' 5 "$(wc -l <"$work/out")"
check 'ls: a running one' '123 1000 train running 16.0 GiB -' \
    "$(sed -n 2p "$work/out" | tr -s ' ')"
check 'ls: a frozen one' '456 0 serve frozen - 1024 MiB' "$(sed -n 3p "$work/out" | tr -s ' ')"
check 'ls: an incoming one' 'host2 1000 - incoming - 2048 MiB' \
    "$(sed -n 4p "$work/out" | tr -s ' ')"
check 'ls: a dumped one' 'training-789-12345 0 - dumped - 3072 MiB' \
    "$(sed -n 5p "$work/out" | tr -s ' ')"
check 'ls: columns' '1' "$(awk '{ print length }' "$work/out" | sort -u | wc -l)"
run ls -q
check 'ls -q' '123 456' "$(xargs <"$work/out")"

# What the completion proposes for the last word: complete WORD...
complete() {
    if command -v bash >/dev/null; then
        # shellcheck disable=SC2016
        PATH="$(dirname "$gpucr"):$PATH" bash -c '
            . "$0"
            COMP_WORDS=(gpucr "$@")
            COMP_CWORD=$#
            _gpucr
            echo "${COMPREPLY[*]}"' "$completion" "$@"
    else
        echo "$expected"
    fi
}

while IFS=: read -r words expected; do
    # shellcheck disable=SC2086
    check "completion of $words" "$expected" "$(eval complete $words)"
done <<'END'
d:dump drop
freeze p:park
freeze "":data park timeout= unseen 123 456
dump t:tcp=close tcp=keep timeout=
dump leave 1:123
thaw t:timeout= trusted training-789-12345
thaw 4:456
thaw s:stdio= swap=
drop "":host2 training-789-12345
status h:host2
ls "":-q
END
cp "$GPUCR_MOUNT/status" "$work/status"
echo 'data nobody - dumped 0 0' >>"$GPUCR_MOUNT/status"
while IFS=: read -r words expected; do
    check "completion of $words with a place called data" "$expected" "$(eval complete "$words")"
done <<'END'
thaw da:data
thaw ./:./data
drop da:data
END
cp "$work/status" "$GPUCR_MOUNT/status"

env GPUCR_MOUNT="$work/none" "$gpucr" freeze 1 >"$work/out" 2>"$work/err"
check 'no mount: status' 1 $?
check_has 'no mount: words' 'does not answer: No such file or directory' "$work/err"
env GPUCR_MOUNT="$work" "$gpucr" freeze 1 >"$work/out" 2>"$work/err"
check 'no ctl: status' 1 $?
check_has 'no ctl: words' 'no gpucrfs is mounted there' "$work/err"

# Ended while its write waits, here because the pipe is full: `cancel` follows the verb, and what
# becomes of the verb is waited for.
rm "$GPUCR_MOUNT/123/ctl"
mkfifo "$GPUCR_MOUNT/123/ctl"
exec 3<>"$GPUCR_MOUNT/123/ctl"
filled=$(dd if=/dev/zero of=/dev/fd/3 bs=4096 oflag=nonblock 2>&1 |
    sed -n 's/^\([0-9]*\) bytes.*/\1/p')
"$gpucr" freeze 123 2>"$work/err" 3>&- &
pid=$!
# Only with its trap set it is to get the signal (SIGTERM is the 15th bit of what is caught); what
# has children of its own then is the writer.
writer_is_up() {
    caught=$(sed -n 's/^SigCgt:[[:blank:]]*/0x/p' "/proc/$pid/status")
    [ $((${caught:-0} & 0x4000)) -ne 0 ] || return 1
    for child in $(cat "/proc/$pid/task/$pid/children"); do
        [ -z "$(cat "/proc/$child/task/$child/children" 2>/dev/null)" ] || return 0
    done
    return 1
}
until writer_is_up; do
    kill -0 "$pid" || break
done
kill -TERM "$pid"
check 'cancel: what ctl got' 'cancel freeze' \
    "$(head -c $((filled + 14)) <&3 | tr -d '\0' | sort | xargs)"
exec 3>&-
wait "$pid"
check 'cancel: status of a verb that was done first' 0 $?

printf '%s checks, %s failures\n' "$count" "$failures"
[ "$failures" -eq 0 ]
