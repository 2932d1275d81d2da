#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The guard in CRIU at a dump: a process outside the tree shares the descriptors or the memory of one
inside, and changes them while CRIU works with them as root.
usage: test_guard_dump.py PATH-OF-SWAPS_DESCRIPTORS PATH-OF-WRITES_ARGUMENTS PATH-OF-CHANGES_PROGRAM
       PATH-OF-PROGRAM_OF_ROOT [TEST...]"""
import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import criu
import harness
from harness import BUILD, NOBODY, Skip, check, children_of, equal, is_alive, try_kill, wait_for

GUARD = f'{BUILD}/backend/cuda/libgpucr-criu-guard.so'
SECRET = b'of root\n'
ROUNDS = 6
# In CRIU's place. A call's errno is printed, or 0.
BEGIN = '''
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
top, pid = sys.argv[1:3]
process = os.open(f'/proc/{pid}', os.O_PATH)
root = os.open('/', os.O_PATH)
def tried(call):
    try:
        call()
        return 0
    except OSError as error:
        return error.errno
def opened(name, flags=os.O_RDWR, fd=process):
    return tried(lambda: os.close(os.open(name, flags, dir_fd=fd)))
'''


# In CRIU's place, too: what ptrace(2) ends with. Of a request the data is a word of zeros.
TRACES = BEGIN + '''
import signal, time
SEIZE, INTERRUPT, CONT, DETACH, SETSIGMASK, PEEK, POKE = 0x4206, 0x4207, 7, 17, 0x420b, 2, 5
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
root, thread, child, other, pipe = map(int, sys.argv[2:])
def traced(request, pid, address=None, data=None):
    ctypes.set_errno(0)
    libc.ptrace(request, pid, address, data)
    return ctypes.get_errno()
def stop(pid):
    done = traced(SEIZE, pid) or traced(INTERRUPT, pid)
    os.waitpid(pid, 0x40000000)
    return done
def mask(pid):
    return traced(SETSIGMASK, pid, 8, ctypes.cast(ctypes.create_string_buffer(8), ctypes.c_void_p))
def write(pid):
    """As CRIU begins in a process."""
    address = next(int(line.split('-')[0], 16) for line in open(f'/proc/{pid}/maps') if 'rw-p' in line)
    word = libc.ptrace(PEEK, pid, address, None)
    return traced(POKE, pid, address, word)
def say(*numbers):
    print(*numbers, flush=True)
signal.alarm(60)
'''
# With a child, and a thread that executes another program for a line, or ends. Then there is another
# child for each line.
PROGRAM = '''
import os, sys, threading, time
child = os.fork()
while not child:
    time.sleep(1000)
def wait():
    print(threading.get_native_id(), child, flush=True)
    if sys.stdin.readline() != 'end\\n':
        os.execv('/bin/sleep', ['sleep', '1000'])
thread = threading.Thread(target=wait)
thread.start()
thread.join()
for line in sys.stdin:
    if not os.fork():
        time.sleep(1000)
'''


@contextlib.contextmanager
def directory():
    if not harness.is_root():
        raise Skip('several users are needed')
    top = tempfile.mkdtemp(prefix='gpucr-guard-')
    os.chmod(top, 0o755)
    try:
        with open(f'{top}/secret', 'wb') as file:
            file.write(SECRET)
        os.chmod(f'{top}/secret', 0o600)
        yield top
    finally:
        shutil.rmtree(top)


@contextlib.contextmanager
def program(*fds):
    """A user's program, with these descriptors."""
    with subprocess.Popen(['sleep', '1000'], pass_fds=fds, user=NOBODY, group=NOBODY) as child:
        try:
            yield child.pid, os.pidfd_open(child.pid)
        finally:
            child.kill()


def numbers(top, pid, pidfd, script, is_dump=True):
    """What the script's calls end with, in order."""
    env = {'LD_PRELOAD': GUARD, **({'GPUCR_CRIU_ROOT': f'{pid}:{pidfd}'} if is_dump else {})}
    done = subprocess.run([sys.executable, '-c', BEGIN + script, top, str(pid)], check=True, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, pass_fds=[pidfd])
    return [errno.errorcode.get(int(word), 'ok') for word in done.stdout.split()]


def memory(size):
    fd = os.memfd_create('test')
    os.ftruncate(fd, size)
    return fd


def test_memory():
    """Nothing but new memory is opened for writing."""
    with directory() as top:
        named = os.open(f'{top}/secret', os.O_PATH)
        new, used = memory(0), memory(1)
        script = f'''
for fd in {new}, {used}, {named}:
    print(opened(f'fd/{{fd}}'), opened(f'fd/{{fd}}', os.O_WRONLY | os.O_TRUNC))
'''
        with program(named, new, used) as (pid, pidfd):
            equal(numbers(top, pid, pidfd, script), ['ok', 'ok', *['EPERM'] * 4])
            with open(f'{top}/secret', 'rb') as file:
                equal(file.read(), SECRET)
            equal(set(numbers(top, pid, pidfd, script, is_dump=False)), {'ok'})
        for fd in named, new, used:
            os.close(fd)


def test_mappings():
    with directory() as top, program() as (pid, pidfd):
        script = '''
name = os.listdir(f'/proc/{pid}/map_files')[0]
print(opened(f'map_files/{name}'), opened(f'map_files/{name}', os.O_RDONLY))
'''
        equal(numbers(top, pid, pidfd, script), ['EPERM', 'ok'])


def test_refused_mapping():
    """For CRIU, EPERM would be a reason to open the path as root."""
    with directory() as top, program() as (pid, pidfd):
        script = f'''
os.rename(f'{{top}}/secret', f'{{top}}/7f00-7f10')
os.chmod(f'{{top}}/7f00-7f10', 0o644)
place = os.open(top, os.O_PATH)
os.seteuid({NOBODY})
print(opened('7f00-7f10', os.O_RDONLY | os.O_NOATIME, place))
os.seteuid(0)
os.rename(f'{{top}}/7f00-7f10', f'{{top}}/secret')
'''
        equal(numbers(top, pid, pidfd, script), ['EACCES'])
        equal(numbers(top, pid, pidfd, script, is_dump=False), ['EPERM'])


def test_names():
    """CRIU makes names only where no user could have changed the path."""
    with directory() as top, program() as (pid, pidfd):
        os.mkdir(f'{top}/roots')
        os.mkdir(f'{top}/users')
        os.chown(f'{top}/users', NOBODY, NOBODY)
        os.mkdir(f'{top}/users/below')
        os.symlink(f'{top}/roots', f'{top}/link')
        script = '''
def linked(path):
    return tried(lambda: os.link(f'{top[1:]}/secret', f'{top[1:]}/{path}', src_dir_fd=root, dst_dir_fd=root))
for path in 'roots/name', 'users/name', 'users/below/name', 'link/name', 'roots/../name', 'name':
    print(linked(path))
'''
        equal(numbers(top, pid, pidfd, script), ['ok', 'EPERM', 'EPERM', 'ENOTDIR', 'EPERM', 'ok'])
        equal(os.listdir(f'{top}/users'), ['below'])


def test_connection():
    """Who has a dumped connection too cannot listen at another's port meanwhile."""
    script = '''
import socket, struct
TCP_REPAIR = 19
others = socket.create_server(('0.0.0.0', 0))
server = socket.create_server(('127.0.0.1', 0))
def repaired(one):
    return tried(lambda: one.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1))
def disconnect(one):
    libc.connect(one.fileno(), struct.pack('H14x', socket.AF_UNSPEC), 16)
def bound(one):
    return tried(lambda: one.bind(('127.0.0.1', others.getsockname()[1])))
def accepted():
    return tried(lambda: socket.create_connection(server.getsockname()).close())
one = socket.create_connection(server.getsockname())
reuse = one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
print(repaired(one), reuse != one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) and 1 or 0)
disconnect(one)
print(bound(one))
two = socket.create_connection(server.getsockname())
disconnect(two)
print(repaired(two), repaired(server), accepted(), two.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR))
'''
    with directory() as top, program() as (pid, pidfd):
        equal(numbers(top, pid, pidfd, script),
              ['ok', 'ok', 'EADDRINUSE', 'EPERM', 'EPERM', 'ok', 'ok'])
        equal(numbers(top, pid, pidfd, script, is_dump=False)[:3], ['ok', 'EPERM', 'ok'])


@contextlib.contextmanager
def attacked(*command, cwd=None):
    """The two processes of swaps_descriptors or writes_arguments."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, cwd=cwd) as child:
        pids = []
        try:
            pids = [int(child.stdout.readline()) for _ in range(2)]
            equal(pids[1], child.pid)
            yield pids[1]
        finally:
            for pid in pids:
                try_kill(pid, 9)
            child.kill()


def dumped(images, pid):
    """CRIU's exit status, and what it says."""
    real = criu.find()
    os.mkdir(images)
    pidfd = os.pidfd_open(pid)
    env = {**os.environ, **real.env, 'LD_PRELOAD': GUARD, 'GPUCR_CRIU_ROOT': f'{pid}:{pidfd}'}
    done = subprocess.run(
        ['timeout', '-s', 'KILL', str(criu.SECONDS), real.program, 'dump', '--no-default-config',
         '--libdir', real.empty, '-D', images, '-t', str(pid)], check=False, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, pass_fds=[pidfd])
    os.close(pidfd)
    return done.returncode, done.stdout.decode(errors='replace')


def test_real_criu():
    """It writes its code into memory of the process, and not into root's file."""
    with directory() as top:
        for number in range(ROUNDS):
            with attacked(SWAPS_DESCRIPTORS, f'{top}/secret', str(NOBODY)) as pid:
                status, words = dumped(f'{top}/images-{number}', pid)
            with open(f'{top}/secret', 'rb') as file:
                found = file.read()
            check(found == SECRET, f'round {number}: {len(found)} bytes')
            check(status != 127, words)


def test_arguments():
    """CRIU does not take the place of its own list from memory in which others write."""
    with directory() as top:
        for number in range(ROUNDS):
            with attacked(WRITES_ARGUMENTS, str(NOBODY)) as pid:
                status, words = dumped(f'{top}/images-{number}', pid)
            check(status in (0, 1), f'round {number}: {status}: {words}')


@contextlib.contextmanager
def tracing(script):
    """The program's pid, what the script's calls in CRIU's place end with, and that one's exit status
    and words. The script knows the program, its thread, its child, and a process outside the tree."""
    with directory() as top, program() as (other, _):
        with subprocess.Popen([sys.executable, '-c', PROGRAM], stdin=subprocess.PIPE, text=True,
                              stdout=subprocess.PIPE, user=NOBODY, group=NOBODY) as root:
            thread, child = root.stdout.readline().split()
            pidfd, pipe = os.pidfd_open(root.pid), root.stdin.fileno()
            try:
                done = subprocess.run(
                    [sys.executable, '-c', TRACES + script, top,
                     *map(str, (root.pid, thread, child, other, pipe))],
                    check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    env={'LD_PRELOAD': GUARD, 'GPUCR_CRIU_ROOT': f'{root.pid}:{pidfd}'},
                    pass_fds=[pidfd, pipe])
                words = [errno.errorcode.get(int(word), 'ok') for word in done.stdout.split()]
                yield root.pid, words, done.returncode, done.stderr
            finally:
                os.close(pidfd)
                for pid in children_of(root.pid):
                    try_kill(pid, 9)
                root.kill()


def test_none_of_the_tree():
    """A number that was a thread's: CRIU ends, and does nothing with the process that has it now."""
    with tracing('say(stop(root), stop(thread), stop(child)); stop(other); say(0)') as (
            _, words, status, error):
        equal([words, status], [['ok'] * 3, 1], error)
        check('is none of the tree' in error, error)


def test_own_children():
    """CRIU tries the kernel with children of its own, before it attaches to anything."""
    with tracing('''
child = os.fork()
if not child:
    libc.ptrace(0, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
os.waitpid(child, 0)
say(mask(child), traced(DETACH, child))
''') as (_, words, status, error):
        equal([words, status], [['ok', 'ok'], 0], error)


def test_number_again():
    """CRIU lets a thread go, and attaches to a child of the tree that has got its number."""
    with tracing('''
stop(root); stop(thread); write(root)
say(mask(thread), traced(DETACH, thread), traced(CONT, root))
os.write(pipe, b'end' + bytes([10]))
while os.path.exists(f'/proc/{root}/task/{thread}'):
    pass
for _ in range(50):
    with open('/proc/sys/kernel/ns_last_pid', 'w') as file:
        file.write(str(thread - 1))
    os.write(pipe, b'fork' + bytes([10]))
    time.sleep(0.05)
    if os.path.exists(f'/proc/{thread}'):
        break
say(stop(thread), mask(thread))
''') as (_, words, status, error):
        equal([words, status], [['ok'] * 4 + ['EPERM'], 0], error)


def test_child_as_a_thread():
    """Only what CRIU has written to as to a process is run: a child of the tree is no thread."""
    with tracing('''
stop(root); stop(thread); stop(child)
say(mask(root), mask(thread), mask(child))
say(write(root), mask(root), mask(thread), mask(child))
say(write(child), mask(child))
''') as (_, words, status, error):
        equal([words[:3], words[3:7], words[7:]],
              [['EPERM'] * 3, ['ok'] * 3 + ['EPERM'], ['ok'] * 2], error)
        equal(status, 0)


def test_thread_executes():
    """A thread that is not the leader executes another program: it has the leader's number then, and
    is let go as it is, or is killed, if CRIU has changed the process already."""
    for is_written in False, True:
        with tracing(f'''
stop(root); stop(thread)
if {is_written}:
    write(root)
traced(CONT, root); traced(CONT, thread)
os.write(pipe, b'go on' + bytes([10]))
os.waitpid(root, 0x40000000)
say(mask(root))
say(traced(CONT, root), traced(DETACH, root))
''') as (pid, words, status, error):
            equal([words, status], [['ESRCH', 'ESRCH', 'ESRCH' if is_written else 'ok'], 0], error)
            check('executed another program' in error, error)
            if is_written:
                wait_for(lambda pid=pid: not is_alive(pid), 'its end')
            else:
                equal(exe_of(pid), os.path.realpath('/bin/sleep'))


def exe_of(pid):
    with contextlib.suppress(OSError):
        return os.readlink(f'/proc/{pid}/exe')


def test_other_program():
    """What CRIU keeps of a program is not put into another one, of root's."""
    with directory() as top:
        program_of_root = f'{top}/program'
        shutil.copyfile(PROGRAM_OF_ROOT, program_of_root)
        os.chmod(program_of_root, 0o4755)
        os.mkdir(f'{top}/of-root')  # the program's directory
        killed = 0
        for number in range(10 * ROUNDS):
            with attacked(CHANGES_PROGRAM, str(NOBODY), program_of_root, cwd=f'{top}/of-root') as pid:
                killed += 'executed another program' in dumped(f'{top}/images-{number}', pid)[1]
                wait_for(lambda pid=pid: not is_alive(pid) or exe_of(pid) != program_of_root,
                         'the end of the program')
            equal(os.listdir(f'{top}/of-root'), [], f'round {number}: root has made this')
            if killed == ROUNDS:
                return
        if not killed:
            raise Skip('the attacker was always too late')


if __name__ == '__main__':
    SWAPS_DESCRIPTORS, WRITES_ARGUMENTS, CHANGES_PROGRAM, PROGRAM_OF_ROOT = (
        os.path.abspath(sys.argv.pop(1)) for _ in range(4))
    harness.main(globals())
