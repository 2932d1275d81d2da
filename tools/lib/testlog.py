# SPDX-License-Identifier: MIT
"""Sum up one `meson test` run for tools/check.

testlog.py --failed LOG
testlog.py BUILD LOG LOG-ALONE EXPECTED-SKIPS COUNTS-FILE SKIPS-FILE

A LOG is meson's testlog.json. With --failed: prints the names of the tests that failed, as meson
test takes them. Else LOG-ALONE is that of a second run of these, one at a time; it need not be
there. A test that failed beside others and passed alone is called unsteady: it has found either
that the machine was too busy for it or a fault that comes seldom, and its output tells which. It
counts as passed, and as failed where GPUCR_CHECK_UNSTEADY=fail: there its cause is to be found.

Prints a line per test, the output of those that failed and the reason of those that skipped;
writes `PASSED FAILED SKIPPED` to COUNTS-FILE, and adds a line to SKIPS-FILE for each test that
skipped, with its reason. Where CI=true, a skip that EXPECTED-SKIPS does not have is a failure.
"""
import fnmatch
import json
import os
import sys

OUTPUT_LINES_MAX = 200


def read_expected(path, build):
    """The patterns of this build: lines of `BUILD-PATTERN TEST-PATTERN`, # starts a comment."""
    patterns = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            words = line.split("#")[0].split()
            if len(words) == 2 and fnmatch.fnmatchcase(build, words[0]):
                patterns.append(words[1])
    return patterns


def output_of(test):
    text = (test.get("stdout") or "") + (test.get("stderr") or "")
    return [line for line in text.splitlines() if line.strip()]


def short_name(name):
    """`gpucrfs:fs+slow / status` is `fs/status`, as meson test wants it less the project."""
    suite, _, test = name.rpartition(" / ")
    suite = suite.split(":")[-1].split("+")[0]
    return f"{suite}/{test}" if suite else test


def is_expected(name, patterns):
    """With one suite only, meson leaves its name out: patterns may do without it too."""
    test = name.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(name, p) or fnmatch.fnmatchcase(test, p) for p in patterns)


def read_log(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as log:
        return [json.loads(line) for line in log if line.strip()]


def passed(test):
    return test["result"] in ("OK", "EXPECTEDFAIL")


def print_failed(path):
    for test in read_log(path):
        if not passed(test) and test["result"] != "SKIP":
            print(test["name"].rpartition(" / ")[2])


def main():
    if sys.argv[1] == "--failed":
        print_failed(sys.argv[2])
        return
    build, log_path, alone_path, expected_path, counts_path, skips_path = sys.argv[1:]
    in_ci = os.environ.get("CI") == "true"
    is_strict = os.environ.get("GPUCR_CHECK_UNSTEADY") == "fail"
    expected = read_expected(expected_path, build)
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    failures = []
    skips = []

    with open(counts_path, "w", encoding="utf-8"):
        pass
    passed_alone = {test["name"] for test in read_log(alone_path) if passed(test)}
    for test in sorted(read_log(log_path), key=lambda test: test["name"]):
        name = short_name(test["name"])
        words = ""
        if passed(test):
            result = "ok"
        elif test["result"] == "SKIP":
            result = "skipped"
            reason = (output_of(test) or ["no reason given"])[-1].strip()
            words = ": " + reason
            skips.append(f"{build}: {name}: {reason}")
            if in_ci and not is_expected(name, expected):
                result = "FAILED"
                words = ": skipped, which is not expected here" + words
        else:
            result = "FAILED"
            words = f": {test['result'].lower()}, status {test['returncode']}"
            if test["name"] in passed_alone:
                result = "FAILED" if is_strict else "ok"
                words = f": UNSTEADY, passed alone after{words}"
        # One of the same name may have been run alone, too, though it had passed.
        if result == "FAILED" or "UNSTEADY" in words:
            failures.append((name, test))
        counts[result] += 1
        print(f"{result:8} {build}: {name}{words} ({test['duration']:.1f} s)")

    for name, test in failures:
        lines = output_of(test)
        print(f"\n--- {build}: {name}: output", end="")
        print(f", the last {OUTPUT_LINES_MAX} lines" if len(lines) > OUTPUT_LINES_MAX else "")
        print("\n".join(lines[-OUTPUT_LINES_MAX:]))
        print(f"--- end of {name}")

    with open(skips_path, "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in skips)
    with open(counts_path, "w", encoding="utf-8") as file:
        print(counts["ok"], counts["FAILED"], counts["skipped"], file=file)


main()
