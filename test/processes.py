# SPDX-License-Identifier: MIT
"""Processes: whether they live, wait or have ended, whose children they are, and what they hang in."""
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

from files import read_file
from tested import PATIENCE_SEC

NOBODY = 65534
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)  # by the tests themselves
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_us(number, prepare=None):
    """For preexec_fn: a program that ends when the test does, even if that is killed."""
    def prepare_child():
        if prepare:
            prepare()
        LIBC.prctl(PR_SET_PDEATHSIG, number)

    return prepare_child


def become(uid):
    """For a child: it is this user from now on, with no other groups."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def is_root():
    return os.geteuid() == 0


def is_alive(pid):
    """It exists and is no zombie."""
    try:
        with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as stat:
            return stat.read().rpartition(')')[2].split()[0] not in 'ZX'
    except OSError:
        return False


def wait_end(popen, seconds=None):
    """popen.wait(seconds), which would look at it only twenty times a second. Returns its status."""
    if popen.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # somebody else has waited for it
            fd = os.pidfd_open(popen.pid)
            try:
                poller = select.poll()
                poller.register(fd, select.POLLIN)
                if not poller.poll(1000 * (seconds or PATIENCE_SEC)):
                    raise subprocess.TimeoutExpired(popen.args, seconds or PATIENCE_SEC)
            finally:
                os.close(fd)
    return popen.wait()


def end_or_kill(popen):
    """It is told to end, and killed if it does not; nobody reads what it says any more."""
    popen.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(10)
    popen.kill()
    popen.wait()
    popen.stdout.close()


def try_kill(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def unique():
    """For names in what PID namespaces share: cgroups, /dev, units."""
    return f'{os.getpid()}-{os.urandom(4).hex()}'


def sleeps(pid):
    """All its threads wait for something."""
    for thread in os.listdir(f'/proc/{pid}/task'):
        try:
            state = read_file(f'/proc/{pid}/task/{thread}/stat').rpartition(')')[2].split()[0]
        except FileNotFoundError:
            continue
        if state not in 'SIZ':
            return False
    return True


def children_of(pid):
    """The children that all threads of a process have made."""
    found = []
    for task in os.listdir(f'/proc/{pid}/task'):
        with contextlib.suppress(OSError):  # threads end
            found += read_file(f'/proc/{pid}/task/{task}/children').split()
    return [int(child) for child in found]


def show_threads(pid):
    """Where every thread of a process that hangs is."""
    for task in sorted(os.listdir(f'/proc/{pid}/task')):
        with contextlib.suppress(OSError):
            where = read_file(f'/proc/{pid}/task/{task}/wchan')
            call = read_file(f'/proc/{pid}/task/{task}/syscall').split()[:3]
            sys.stderr.write(f'thread {task}: {where} {" ".join(call)}\n')
    sys.stderr.flush()
    if shutil.which('gdb'):
        subprocess.run(['gdb', '-p', str(pid), '-batch', '-ex', 'thread apply all bt 12'],
                       stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.DEVNULL,
                       check=False, timeout=60)
