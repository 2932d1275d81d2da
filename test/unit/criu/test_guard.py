#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The guard in CRIU: who has got the pid of the root of a dumped tree is not traced."""
import contextlib
import errno
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import harness
from harness import BUILD, equal

GUARD = f'{BUILD}/backend/cuda/libgpucr-criu-guard.so'
# In CRIU's place: attaches to a process as it does.
TRACER = '''
import ctypes, sys
PTRACE_SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
done = libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None)
print(ctypes.get_errno() if done else 0)
'''


@contextlib.contextmanager
def program():
    with subprocess.Popen(['sleep', '1000']) as child:
        try:
            yield child.pid, os.pidfd_open(child.pid)
        finally:
            child.kill()


def attach(pid, root, pidfd):
    """The errno of a tracer with the guard, which was told of this root."""
    done = subprocess.run([sys.executable, '-c', TRACER, str(pid)], check=True, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[pidfd],
                          env={'LD_PRELOAD': GUARD, 'GPUCR_CRIU_ROOT': f'{root}:{pidfd}'})
    return int(done.stdout), done.stderr


def test_root():
    with program() as (pid, pidfd):
        equal(attach(pid, pid, pidfd), (0, ''))


def test_pid_of_another():
    with program() as (pid, _):
        with program() as (ended, pidfd):
            os.kill(ended, signal.SIGKILL)
        equal(attach(pid, pid, pidfd),
              (errno.ESRCH, f"gpucr-criu-guard: process {pid} has ended, and its pid is another's\n"))
        with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
            equal(file.read().split()[2], 'S', 'it goes on')


def test_others():
    """CRIU looks at the other processes of the tree itself."""
    with program() as (pid, _), program() as (root, _):
        with program() as (ended, pidfd):
            os.kill(ended, signal.SIGKILL)
        equal(attach(pid, root, pidfd)[0], 0)


if __name__ == '__main__':
    harness.main(globals())
