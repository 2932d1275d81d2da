#!/bin/sh
# SPDX-License-Identifier: MIT
# run.sh NAME FILE... [-lLIBRARY...]: build the fuzz target fuzz_NAME.c with FILEs and let it run for
# a few seconds.
# CLANG names the compiler, GPUCR_TEST_FUZZ_SEC the seconds. An input that fails is kept in the
# current directory.
set -eu

source=$(cd "$(dirname "$0")/../.." && pwd)
name=$1
shift
clang=${CLANG:-clang}
seconds=${GPUCR_TEST_FUZZ_SEC:-6}
sanitizers=fuzzer,address,undefined

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

for file; do
	case $file in
	-l*) set -- "$@" "$file" ;;
	*) set -- "$@" "$source/$file" ;;
	esac
	shift
done
"$clang" -std=gnu11 -D_GNU_SOURCE -I"$source" -g -O1 -Wall -Wextra -Wno-unused-parameter \
	-Wno-missing-field-initializers -Wno-unused-variable -fsanitize=$sanitizers -fno-sanitize-recover=all \
	-o "$directory/target" "$source/test/fuzz/fuzz_$name.c" "$@"

mkdir "$directory/found"
TMPDIR=$directory "$directory/target" -max_total_time="$seconds" -max_len=70000 -len_control=20 \
	-artifact_prefix="fuzz-$name-" -print_final_stats=1 -verbosity=0 \
	"$directory/found" "$source/test/fuzz/corpus/$name" || exit 1 # libFuzzer's own code is 77
