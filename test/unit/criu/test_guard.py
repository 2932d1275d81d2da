#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The guard in CRIU: who has got the pid of the root of a dumped tree is not traced, and no namespace
of a user namespace of its own is entered."""
import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import harness
from harness import BUILD, check, equal

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
GUARD = f'{BUILD}/backend/cuda/libgpucr-criu-guard.so'
AS_CRIU = f'{BUILD}/test/unit/criu/libas-criu.so'
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

# The same, enters a namespace.
ENTERER = '''
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
done = libc.setns(os.open(sys.argv[1], os.O_RDONLY), 0)
print(ctypes.get_errno() if done else 0)
'''
OWN = "gpucr-criu-guard: the tree has a user namespace of its own\n"


@contextlib.contextmanager
def program(**options):
    with subprocess.Popen(['sleep', '1000'], **options) as child:
        try:
            yield child.pid, os.pidfd_open(child.pid)
        finally:
            child.kill()


def attach(pid, root, pidfd):
    """The errno of a tracer with the guard, which was told of this root (None: the guard has ended it),
    and the words."""
    done = subprocess.run([sys.executable, '-c', TRACER, str(pid)], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[pidfd],
                          env={'LD_PRELOAD': GUARD, 'GPUCR_CRIU_ROOT': f'{root}:{pidfd}'})
    return None if done.returncode else int(done.stdout), done.stderr


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
    """CRIU ends at a process that is none of the tree."""
    with program() as (pid, _), program() as (root, pidfd):
        done = attach(pid, root, pidfd)
        equal(done[0], None)
        check('is none of the tree' in done[1], done[1])


def enter(pid, name, env):
    done = subprocess.run([sys.executable, '-c', ENTERER, f'/proc/{pid}/ns/{name}'], check=True,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={'LD_PRELOAD': GUARD, **env})
    return int(done.stdout), done.stderr


def unshare(*kinds):
    if harness.LIBC.unshare(sum(kinds)):
        raise OSError(errno.ENOSYS, 'unshare')  # none that a test expects


def test_namespaces():
    dump = {'GPUCR_CRIU_ROOT': '1:9'}
    try:
        with program(preexec_fn=lambda: unshare(CLONE_NEWUSER, CLONE_NEWNS)) as (pid, _):
            for name in 'user', 'mnt':
                equal(enter(pid, name, dump), (errno.EPERM, OWN), name)
                check(OWN not in enter(pid, name, {})[1], 'a restore has no such process')
    except subprocess.SubprocessError as reason:
        raise harness.Skip('there are no user namespaces') from reason
    if harness.is_root():
        with program(preexec_fn=lambda: unshare(CLONE_NEWNS)) as (pid, _):
            equal(enter(pid, 'mnt', dump), (0, ''), 'which root has made')
            equal(enter(pid, 'net', dump), (0, ''), 'ours')
    # What is no namespace, and ours, which the kernel does not let us enter.
    equal(enter(os.getpid(), '../status', dump)[0], errno.EPERM)
    equal(enter(os.getpid(), 'user', dump), (errno.EINVAL, ''))


def run_as(action, directory, script, *arguments, **env):
    """A program that is called as the daemon calls CRIU, with the guard: (status, words, complaints)."""
    with open(f'{directory}/{action}', 'w', encoding='utf-8') as file:
        file.write(script)
    done = subprocess.run([sys.executable, action, *arguments], cwd=directory, check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={'LD_PRELOAD': f'{GUARD} {AS_CRIU}', **env})
    return done.returncode, done.stdout, done.stderr


def test_role():
    """CRIU's start reads the root, but with an owner it dumps nothing."""
    arguments = f'/proc/{os.getpid()}/status',  # no namespace
    with tempfile.TemporaryDirectory() as directory:
        equal(run_as('dump', directory, ENTERER, *arguments, GPUCR_CRIU_ROOT='1:9'),
              (0, f'{errno.EPERM}\n', OWN))
        equal(run_as('restore', directory, ENTERER, *arguments,
                     GPUCR_CRIU_OWNER='4001:4001:0:4001', GPUCR_CRIU_ROOT='1:9'),
              (0, f'{errno.EINVAL}\n', ''))


def test_wrong_root():
    """CRIU does not run at all."""
    with tempfile.TemporaryDirectory() as directory:
        for root in '', 'x', '1', '1:', '0:1', '-1:1', '1:2x':
            equal(run_as('dump', directory, 'print("ran")', GPUCR_CRIU_ROOT=root),
                  (1, '', f'gpucr-criu-guard: the root of the tree is not known: {root}\n'))


if __name__ == '__main__':
    harness.main(globals())
