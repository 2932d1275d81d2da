#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""criu-glue, by the tool criu_tool: what programs have open.
usage: test_criu_opens.py PATH-OF-CRIU_TOOL [TEST...]"""
import os
import pty
import resource
import signal
import socket
import subprocess
import sys
import time

from criu_place import MIB, Place, Skip, check, children, end, run, wait_for


class Opens:
    """The answer of the tool."""

    def __init__(self, place, *arguments):
        self.text = place.tool('opens', *map(str, arguments))
        first, *lines = self.text.split('\n')
        self.number, _, self.words = first.partition(' ')
        self.lines = lines

    def rows(self, kind):
        return [line[len(kind) + 1:] for line in self.lines if line.startswith(kind + ' ')]

    def flag(self, name):
        return int(self.rows(name)[0])


def harmless(place, *arguments):
    opens = Opens(place, *arguments)
    check(opens.number == '0', opens.number, opens.words)
    return opens


REFUSED = {
    # name: program, errno, words
    'io_uring': ('r = libc.syscall(425, 8, ctypes.create_string_buffer(120))', 'EOPNOTSUPP',
                 'io_uring'),
    'userfaultfd': ('r = libc.syscall(323, 1)', 'EOPNOTSUPP', 'userfaultfd'),
    'perf': ('r = libc.syscall(298, (ctypes.c_uint32 * 28)(1, 112), 0, -1, -1, 0)', 'EOPNOTSUPP',
             'perf'),
    'bpf': ('r = libc.syscall(321, 0, (ctypes.c_uint32 * 20)(2, 4, 4, 16), 80)', 'EOPNOTSUPP',
            'BPF'),
    'landlock': ('r = libc.syscall(444, ctypes.create_string_buffer(b"\\1", 8), 8, 0)',
                 'EOPNOTSUPP', 'landlock'),
    'pidfd': ('r = os.pidfd_open(os.getppid())', 'EBUSY', f'pidfd of process {os.getpid()}'),
    'device': ('r = os.open("/dev/fuse", os.O_RDWR)', 'EOPNOTSUPP', '/dev/fuse (10:229)'),
    'disk': ('d = sys.argv[1] + ".disk"\nos.mknod(d, 0o60600, os.makedev(7, 250))\n'
             'r = os.open(d, os.O_PATH)', 'EOPNOTSUPP', '.disk, which'),
    'vsock': ('s = socket.socket(40, 1)\nr = s.fileno()', 'EOPNOTSUPP', 'AF_VSOCK'),
    'shm': ('r = libc.shmget(0, 4096, 0o1600)\nlibc.shmat.restype = ctypes.c_void_p\n'
            'libc.shmat(r, None, 0)\nlibc.shmctl(r, 0, None)', 'EOPNOTSUPP', 'System V'),
    'mqueue': ('r = libc.mq_open(b"/gpucr-test", 0o102, 0o600, None)\n'
               'libc.mq_unlink(b"/gpucr-test")', 'EOPNOTSUPP', 'mount'),
    'tcp': ('s = socket.socket()\ns.bind(("127.0.0.1", 0))\ns.listen()\n'
            'c = socket.create_connection(s.getsockname())\nr = c.fileno()', 'EBUSY',
            'tcp=close or tcp=keep'),
    'ghost': ('f = open(sys.argv[1] + ".big", "w+b")\nf.write(b"a" * (2 << 20))\nf.flush()\n'
              'os.unlink(sys.argv[1] + ".big")\nr = f.fileno()', 'EFBIG', 'counter.big'),
    'mapped_ghost': ('f = open(sys.argv[1] + ".big", "w+b")\nf.write(b"a" * (2 << 20))\n'
                     'f.flush()\nm = mmap.mmap(f.fileno(), 4096)\nr = 0\n'
                     'os.unlink(sys.argv[1] + ".big")\nf.close()', 'EFBIG', 'counter.big'),  # Python keeps one
    'traced': ('p = os.fork()\nif p == 0:\n  r = libc.ptrace(16, os.getppid(), 0, 0)\n'
               '  assert r == 0\n  os.waitpid(os.getppid(), 0x40000000)\n'
               '  libc.ptrace(7, os.getppid(), 0, 0)\n  open(sys.argv[1] + ".traced", "w")\n'
               '  time.sleep(1000)\n'
               'while not os.path.exists(sys.argv[1] + ".traced"): time.sleep(0.01)\nr = 0',
               'EBUSY', 'end the debugger'),
    'network': ('r = libc.unshare(0x40000000)', 'EOPNOTSUPP', 'network namespace'),
    'user': ('r = libc.unshare(0x10000000)', 'EOPNOTSUPP', 'user namespace'),
    'unix': ('a, b = socket.socketpair()\nr = a.fileno()\nif os.fork() == 0:\n'
             '  a.close()\n  time.sleep(1000)\nb.close()', 'EBUSY',
             'connected to a program outside'),
}


def test_refused(place):
    """Each is found, with its words, and no process without it has them."""
    for name, (code, number, words) in REFUSED.items():
        with Place() as other:
            code = 'import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n' + code
            code += '\nif r < 0:\n  open(sys.argv[1], "w").write("no")\n  time.sleep(1000)\n'
            try:
                pid = other.program(code)
            except AssertionError:
                print('not here:', name)
                continue
            with open(f'{other.path}/counter') as file:
                if file.read() == 'no':
                    print('not here:', name)
                    other.pids += children(pid)
                    continue
            # first: a tracer keeps what it traces from being waited for
            other.pids = children(pid) + other.pids
            opens = Opens(other, pid, f'ghost={MIB}')
            check(opens.number == number and words in opens.words, name, opens.text)
            check(f'process {pid} ' in opens.words, opens.words)
            found = opens.rows('refused')
            check(len(found) == (2 if name == 'mapped_ghost' else 1), name, found)


def test_plain(place):
    code = 'import select\nr, w = os.pipe()\ne = select.epoll()\na, b = socket.socketpair()\n' \
        'm, s = os.openpty()\nf = os.memfd_create("x")\nos.ftruncate(f, 8 << 20)\n' \
        'x = mmap.mmap(-1, 1 << 20)\nd = os.open("/tmp", 0)\nu = os.open("/dev/urandom", 0)\n' \
        'n = socket.socket(16, 3, 0)\np = os.pidfd_open(os.getpid())\n'
    pid = place.program(code)
    opens = harmless(place, pid)
    check(not opens.rows('external'), opens.text)
    check(not any(opens.flag(name) for name in ('shell_job', 'file_locks', 'link_remap', 'ghost',
                                                'ext_unix_sockets', 'lost')), opens.text)
    files = {line.split(' ', 2)[2]: line for line in opens.rows('file')}
    counter = files[f'{place.path}/counter']
    check('mapped=0 append=0' in counter, counter)
    program = os.readlink(f'/proc/{pid}/exe')
    check('mapped=1' in files[program], files[program])
    library, = [path for path in files if '/libc.so' in path or '/libc-2' in path]
    check('mapped=1' in files[library], files[library])
    check(list(files) == sorted(files), 'not in order')


def test_stdio(place):
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    master, slave = pty.openpty()
    pid = place.program(stdin=slave, stdout=writer, stderr=theirs, leader=False)
    opens = harmless(place, pid)
    status = os.fstat(slave)
    tty = f'tty[{status.st_rdev:x}:{status.st_dev:x}]'
    inode = os.fstat(theirs.fileno()).st_ino
    wanted = {f'{pid} 0 {tty} {tty} stdio=1 writer=1',
              f'{pid} 1 pipe:[{os.fstat(writer).st_ino}] - stdio=1 writer=1',
              f'{pid} 2 socket:[{inode}] unix[{inode}] stdio=1 writer=1'}
    check(set(opens.rows('external')) == wanted, opens.text)
    check(opens.flag('shell_job') == 1, opens.text)
    for fd in (reader, writer, master, slave, ours, theirs):
        fd.close() if isinstance(fd, socket.socket) else os.close(fd)


def test_tree(place):
    """What is between processes of the tree is no obstacle, if the tree is whole."""
    code = 'a, b = socket.socketpair()\nr, w = os.pipe()\np = os.pidfd_open(os.getpid())\n' \
        'f = open(sys.argv[1] + ".lock", "w")\nfcntl.flock(f, fcntl.LOCK_EX)\n' \
        'if os.fork() == 0:\n  a.close(); os.close(r)\n  time.sleep(1000)\n' \
        'b.close(); os.close(w); os.close(p)\n'
    pid = place.program(code)
    child, = children(pid)
    place.pids.append(child)
    opens = harmless(place, pid, child)
    check(not opens.rows('external') and opens.flag('file_locks') == 1, opens.text)
    opens = Opens(place, pid)
    check(opens.number == 'EBUSY' and 'unix socket' in opens.words, opens.text)
    check(len(opens.rows('external')) == 1 and 'pipe:[' in opens.rows('external')[0], opens.text)
    # the lock and the pidfd are the parent's, and the child has them too
    opens = Opens(place, child)
    words = opens.rows('refused')
    check(any(f'file lock that process {pid}' in line for line in words), opens.text)
    check(any(f'pidfd of process {pid}' in line for line in words), opens.text)


def test_options(place):
    """What CRIU has to be told, and what that allows."""
    code, _, _ = REFUSED['ghost']
    pid = place.program(code + '\n')
    opens = harmless(place, pid, f'ghost={8 * MIB}')
    check(2 * MIB <= opens.flag('ghost') < 3 * MIB, opens.text)
    with Place() as other:
        pid = other.program(REFUSED['tcp'][0] + '\n')
        harmless(other, pid, 'tcp=keep')
        release = [int(part) for part in os.uname().release.split('.')[:2]]
        opens = Opens(other, pid, 'tcp=keep', 'version=40101')
        check((opens.number == 'EOPNOTSUPP') == (release >= [6, 16]), opens.text)
        harmless(other, pid, 'tcp=keep', 'version=40200')
    with Place() as other:
        pid = other.program('f = open(sys.argv[1] + ".a", "a")\nos.link(f.name, f.name + "b")\n'
                            'os.unlink(f.name)\ng = open(sys.argv[1] + ".log", "a")\n')
        opens = harmless(other, pid, 'may_link')
        check(opens.flag('link_remap') == 1, opens.text)
        check(any('append=1' in line and line.endswith('counter.log') for line in
                  opens.rows('file')), opens.text)
        # a mount of ours: the device of all of that
        opens = Opens(other, pid, 'may_link', f'mount={os.stat(other.path).st_dev}')
        check(opens.number == 'EBUSY' and 'is on this mount' in opens.words, opens.text)
    with Place() as other:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        server.bind(f'{other.path}/socket')
        pid = other.program(f's = socket.socket(1, 2)\ns.connect("{other.path}/socket")\n')
        opens = harmless(other, pid)
        check(opens.flag('ext_unix_sockets') == 1 and not opens.rows('external'), opens.text)
        server.close()


def test_lost_name(place):
    """CRIU would make a name as root: only in a directory that is root's, whoever asks."""
    def refused(opens):
        check(opens.number == 'EOPNOTSUPP' and 'has lost the name' in opens.words and
              not opens.flag('link_remap'), opens.text)

    with Place() as other:
        home = other.directory('home/d')
        pid = other.program(f'f = open("{home}/x", "w")\nos.link(f.name, "{home}/../y")\n'
                            'os.unlink(f.name)\n')
        refused(Opens(other, pid))
        check(harmless(other, pid, 'may_link').flag('link_remap') == 1)
        os.chmod(home, 0o777)
        refused(Opens(other, pid, 'may_link'))
        os.chmod(home, 0o1777)
        harmless(other, pid, 'may_link')
        if os.geteuid() == 0:
            os.chown(os.path.dirname(home), 65534, -1)
            refused(Opens(other, pid, 'may_link'))
            os.chown(os.path.dirname(home), 0, -1)
        os.rmdir(home)
        refused(Opens(other, pid, 'may_link'))
        os.symlink('/etc', home)
        refused(Opens(other, pid, 'may_link'))
        os.unlink(home)


def test_contents(place):
    """What goes into the images of files without a name, each once."""
    code = 'f = open(sys.argv[1] + ".big", "w+b")\nf.write(b"a" * (3 << 20))\nf.flush()\n' \
        'os.unlink(f.name)\ng = os.dup(f.fileno())\n' \
        'x = os.memfd_create("x")\nos.ftruncate(x, 64 << 20)\nos.pwrite(x, b"a" * (5 << 20), 0)\n' \
        'm = mmap.mmap(x, 5 << 20)\nif os.fork() == 0:\n  time.sleep(1000)\n'
    pid = place.program(code)
    place.pids += children(pid)
    opens = harmless(place, pid, *children(pid), f'ghost={8 * MIB}')
    check(8 * MIB <= opens.flag('contents') < 9 * MIB, opens.text)


def test_namespace(place):
    """In another pid namespace: by the init of it."""
    program = subprocess.Popen(['unshare', '--pid', '--fork', '--kill-child', 'sleep', '1000'],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    place.pids.append(program.pid)
    init, = wait_for(lambda: program.poll() is not None or children(program.pid), 'its init')
    opens = Opens(place, init)
    check(opens.number == 'EOPNOTSUPP' and 'container' in opens.words, opens.text)


def program_with(place, descriptors, code):
    """A program that can have so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < descriptors:
        raise Skip(f'only {hard} descriptors')
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        return place.program(code)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many(place):
    """Thousands of descriptors and hundreds of threads; more findings than the list has."""
    code = 'import threading\n' \
        'for i in range(300): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n' \
        'x = []\nfor i in range(1200):\n  r, w = os.pipe()\n  os.close(r)\n  x.append(w)\n' \
        'for i in range(1500): x.append(os.dup(x[0]))\n' \
        'x.append(os.pidfd_open(os.getppid()))\n'
    pid = program_with(place, 4000, code)
    opens = Opens(place, pid)
    check(opens.number == 'EBUSY' and 'pidfd' in opens.words, opens.number, opens.words)
    check(opens.flag('lost') > 0 and len(opens.rows('external')) == 1023,
          opens.flag('lost'), len(opens.rows('external')))


def test_long_paths(place):
    """The list of a user's files does not fill the memory of who makes it."""
    code = 'd = sys.argv[1] + ".d"\nos.mkdir(d)\nos.chdir(d)\n' \
        'for i in range(14): os.mkdir("d" * 250), os.chdir("d" * 250)\n' \
        'open("0", "w").close()\n' \
        'for i in range(1, 9601):\n  os.link("0", str(i))\n  os.open(str(i), 0)\n' \
        'os.chdir("/")\n'
    opens = Opens(place, program_with(place, 9700, code))
    check(opens.number == 'E2BIG' and 'too many' in opens.words, opens.number, opens.words)
    check(not opens.rows('file'), 'files')


def test_many_sockets(place):
    """The kernel's table of them, which has those of all users, is not read for each."""
    code = 'x = []\nfor i in range(2000):\n  s = socket.socket()\n' \
        '  s.bind((f"127.0.{i // 250 + 1}.{i % 250 + 1}", 0))\n  s.listen()\n  x.append(s)\n' \
        'c = socket.create_connection(x[-1].getsockname())\n'
    pid = program_with(place, 2100, code)
    begun = time.monotonic()
    opens = Opens(place, pid)
    taken = time.monotonic() - begun
    check(opens.number == 'EBUSY' and 'tcp=close' in opens.words, opens.number, opens.words)
    check(taken < 3, f'it took {taken} s')


def test_gone(place):
    pid = place.program()
    end(pid)
    check(Opens(place, pid).number == 'ESRCH')
    place.pids.clear()
    os.unlink(f'{place.path}/counter')
    pid = place.program()
    harmless(place, pid, 2 ** 22 - 1)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    check(Opens(place, pid).number == 'ESRCH', 'a zombie')


def prepare():
    if os.getuid() != 0:
        raise Skip('this needs root')


if __name__ == '__main__':
    sys.exit(run(globals(), prepare))
