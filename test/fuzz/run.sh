#!/bin/sh
# SPDX-License-Identifier: MIT
# run.sh NAME FILE... [^FILE...] [-IDIRECTORY...] [-lLIBRARY...]: build the fuzz target fuzz_NAME.c
# with FILEs and let it run for a few seconds. A FILE that ends with / is a directory: all C files
# there that are no programs by themselves, less those that are named with a ^.
# CLANG names the compiler, GPUCR_TEST_FUZZ_SEC the seconds. An input that fails is kept in the
# current directory.
set -eu

source=$(cd "$(dirname "$0")/../.." && pwd)
name=$1
shift
clang=${CLANG:-clang}
seconds=${GPUCR_TEST_FUZZ_SEC:-3}
sanitizers=fuzzer,address,undefined
# What runs for seconds takes longer to compile than to run.
optimize=-O1
[ "$seconds" -gt 10 ] || optimize=-O0

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

if ! command -v "$clang" >/dev/null; then
	echo "skipped: $clang is not installed"
	exit 77
fi
cat >"$directory/probe.c" <<'END'
int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size);
int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size)
{
	return 0;
}
END
if ! "$clang" -fsanitize=$sanitizers -o "$directory/probe" "$directory/probe.c" 2>/dev/null ||
	! "$directory/probe" -runs=1 2>/dev/null; then
	echo "skipped: $clang has no libFuzzer"
	exit 77
fi

# Each file by itself, some at a time; ccache keeps what does not change, where it is installed.
compiler="$clang"
! command -v ccache >/dev/null || compiler="ccache $clang"
flags="-I$source"
libraries=
files=test/fuzz/fuzz_$name.c
without=
for argument; do
	case $argument in
	-l*) libraries="$libraries $argument" ;;
	-I*) flags="$flags $argument" ;;
	^*) without="$without ${argument#^}" ;;
	*/) files="$files $(cd "$source" && grep -L '^int main(' "$argument"*.c || true)" ;;
	*) files="$files $argument" ;;
	esac
done
for file in $files; do
	case " $without " in
	*" $file "*) ;;
	*) echo "$file" ;;
	esac
done >"$directory/files"
# Variables that only clean up are used, whatever this compiler says.
# shellcheck disable=SC2016 # sh is to expand it
(cd "$source" && xargs -P "$(nproc)" -I FILE sh -c '
	object=$1/$(echo "$2" | tr / _).o
	shift 2
	exec "$@" -o "$object" -c "FILE"' sh "$directory" FILE \
	$compiler -std=gnu11 -D_GNU_SOURCE $flags -g1 $optimize -Wall -Wextra -Wno-unused-parameter \
	-Wno-missing-field-initializers -Wno-unused-variable -fsanitize=$sanitizers \
	-fno-sanitize-recover=all) <"$directory/files"
# shellcheck disable=SC2086 # these are lists
"$clang" -fsanitize=$sanitizers -o "$directory/target" "$directory"/*.o $libraries

mkdir "$directory/found"
TMPDIR=$directory "$directory/target" -max_total_time="$seconds" -max_len=70000 -len_control=20 \
	-artifact_prefix="fuzz-$name-" -print_final_stats=1 -verbosity=0 \
	"$directory/found" "$source/test/fuzz/corpus/$name" || exit 1 # libFuzzer's own code is 77
