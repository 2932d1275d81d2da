# SPDX-License-Identifier: MIT
"""A user's process gets a user namespace, and in it a mount namespace, when the daemon has looked at
it and before CRIU holds it. CRIU does nothing there as root."""
import contextlib
import glob
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import vendor
from harness import LIBC, NOBODY, Skip, check, read_file, same_for_both, wait_for
from test_restore_files import with_limits
from test_restore_whose import HAS_RESOURCE, share_gpu

IN_CREATE, IN_NONBLOCK = 0x100, 0o4000
PR_SET_NAME, MS_BIND = 15, 0x1000
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000

# Uses a GPU until it gets a signal. Then a directory of root's is its /tmp, where CRIU would make a
# directory to look below a mount that lies on another one. What it has open and mapped in the end is
# of its new mounts.
PROGRAM = f"""
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
stage, secret = sys.argv[1:]

def must(result):
    if result:
        raise OSError(ctypes.get_errno(), stage)

def become(stage):
    os.execv(sys.executable, [sys.executable, '-c', sys.orig_argv[2], stage, secret])

def put(name, text):
    with open(f'/proc/self/{{name}}', 'w') as file:
        file.write(text)

if stage == 'use':
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    print('pid', os.getpid())
    print('tick 1 ok', flush=True)
    signal.sigwait([signal.SIGUSR1])
    become('enter')
if stage == 'enter':
    uid, gid = os.getuid(), os.getgid()
    must(libc.unshare({CLONE_NEWUSER | CLONE_NEWNS}))
    put('setgroups', 'deny')
    put('uid_map', f'0 {{uid}} 1')
    put('gid_map', f'0 {{gid}} 1')
    must(libc.mount(b'none', b'/mnt', b'tmpfs', 0, None))
    os.mkdir('/mnt/above')
    must(libc.mount(b'none', b'/mnt/above', b'tmpfs', 0, None))
    must(libc.mount(secret.encode(), b'/tmp', None, {MS_BIND}, None))
    become('stay')
for fd in range(3):
    os.dup2(os.open('/dev/null', os.O_RDWR), fd)
os.closerange(3, 1000)
libc.prctl({PR_SET_NAME}, b'entered', 0, 0, 0)
while True:
    signal.pause()
"""


def made_in(watch):
    """What has been made in the watched directory; empty: nothing."""
    with contextlib.suppress(BlockingIOError):
        return os.read(watch, 4096)
    return b''


def test_mounts():
    same_for_both('what CRIU enters')
    if not harness.is_root():
        raise Skip('several users are needed')
    with dump.machine(wrapped=True) as machine:
        if not HAS_RESOURCE:
            with_limits(machine, machine.criu.directory)
        share_gpu(machine)
        secret = f'{machine.directory}/secret'
        os.mkdir(secret, 0o755)
        watch = LIBC.inotify_init1(IN_NONBLOCK)
        check(LIBC.inotify_add_watch(watch, secret.encode(), IN_CREATE) >= 0, 'inotify')
        one = dump.Program(machine, uid=NOBODY, env={'LD_LIBRARY_PATH': vendor.LIBRARIES},
                           command=[sys.executable, '-c', PROGRAM, 'use', secret]).wait_ready()
        machine.criu.set('wait')
        writer = machine.writer(one.pid, 'dump', uid=NOBODY)
        machine.criu.wait()
        os.kill(one.pid, signal.SIGUSR1)
        wait_for(lambda: read_file(f'/proc/{one.pid}/comm') in ('entered\n', '') or one.words(),
                 'its namespaces')
        if 'Operation not permitted' in one.words() or 'No space left' in one.words():
            raise Skip(f'users make no user namespaces here: {one.words()}')
        machine.criu.go()
        result = writer.result()
        log = ''.join(read_file(path) for path in glob.glob(f'{machine.runtime}/criu/*/criu.log'))
        made = made_in(watch)
        os.close(watch)
        check(not made, f'CRIU has made {made}')
        check(result != 'ok', 'it was dumped')
        check("Can't setns" in log, 'CRIU has not come to its namespaces')
        dump.nothing_left(machine)


if __name__ == '__main__':
    harness.main(globals())
