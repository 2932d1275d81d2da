# SPDX-License-Identifier: MIT
"""Runs the test functions of a file, each in a process of its own, all in a PID namespace of theirs."""
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import vendor
from checking import Failure
from processes import HANDLED, is_root, try_kill
from skipping import NotHere, OnceIsEnough, Skip
from tested import SLOW

SKIPPED = 77
# Exit statuses of tests that are not run for a reason of the vendor's; a file's are 0 and 77.
NOT_HERE, ONCE = 78, 79
TEST_SEC = 240 * SLOW


def run_test(name, test):
    """In a process of its own; its exit status says how it went."""
    begun = time.monotonic()
    status = 1

    def give_up(number, _):
        raise Failure(f'signal {number}: it took too long')

    signal.signal(signal.SIGTERM, give_up)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TEST_SEC)
    try:
        test()
        status, word = 0, 'ok'
    except Skip as skip:
        status = {NotHere: NOT_HERE, OnceIsEnough: ONCE}.get(type(skip), SKIPPED)
        word = f'skipped: {skip}'
    except Exception:  # pylint: disable=broad-except
        word = 'FAILED'
        traceback.print_exc()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f'{name}: {word} ({time.monotonic() - begun:.1f} s; of the CPU '
          f'{sum(one.ru_utime + one.ru_stime for one in used):.1f} s)', flush=True)
    return status


def start_test(name, test):
    """Returns its pid and a file with its output."""
    output = tempfile.TemporaryFile()
    pid = os.fork()
    if not pid:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            status = run_test(name, test)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return pid, output


def go_apart():
    """Into a PID namespace of this file's own. A daemon looks at all processes that it sees: there
    those of other tests, which may be many, or hold up all that look at them, are not among them;
    and nobody else takes a PID that is to be restored. Not with GPUCR_TEST_APART=no."""
    command = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc']
    where = os.environ.get('GPUCR_TEST_APART')
    if where == 'in':
        lead()
    elif where != 'no' and is_root() and not subprocess.run([*command, 'true'], stdin=subprocess.DEVNULL, check=False,
                                          stderr=subprocess.DEVNULL).returncode:
        os.environ['GPUCR_TEST_APART'] = 'in'
        os.execvp(command[0], [*command, sys.executable, *sys.orig_argv[1:]])


def lead():
    """What the namespace has to have: a first process, which waits for all that have lost their
    parents. Returns in its child."""
    del os.environ['GPUCR_TEST_APART']
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setsid()  # CRIU wants to see the leader of a session
        return
    for number in HANDLED:
        signal.signal(number, lambda number, _: try_kill(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    pid = 0
    while pid != child:
        pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def main(names, at_once=1):
    """Run the test functions of a file (those named on the command line, or all)."""
    go_apart()
    wanted = sys.argv[1:]
    tests = [(name, test) for name, test in names.items()
             if name.startswith('test_') and callable(test) and (not wanted or name in wanted)]
    running = {}
    statuses = []

    def pass_on(number, _):
        for pid in running:
            try_kill(pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    while tests or running:
        while tests and len(running) < at_once:
            pid, output = start_test(*tests.pop(0))
            running[pid] = output
        pid, status = os.wait()
        output = running.pop(pid)
        output.seek(0)
        sys.stdout.write(output.read().decode(errors='replace'))
        sys.stdout.flush()
        statuses.append(os.waitstatus_to_exitcode(status))
    if vendor.HIP:
        print(f'of {len(statuses)} tests {statuses.count(NOT_HERE)} are not for AMD, and '
              f'{statuses.count(ONCE)} run with CUDA only', flush=True)
    skipped = (SKIPPED, NOT_HERE, ONCE)
    if any(status not in (0, *skipped) for status in statuses):
        sys.exit(1)
    sys.exit(SKIPPED if statuses and all(status in skipped for status in statuses) else 0)
