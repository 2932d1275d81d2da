#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""criu-glue, by the tool criu_tool: with a CRIU that is a script ("fake"), or the real one ("real");
and without any: what programs have open ("opens").
usage: test_criu.py fake|real|opens PATH-OF-CRIU_TOOL [TEST...]

The real one is that of test/criu.py.
"""
import ctypes
import os
import pty
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import criu
import harness

TOOL = os.path.abspath(sys.argv[2])
PIDNS = f'{harness.BUILD}/backend/cuda/gpucr-pidns'
PATIENCE_SEC = 60
SKIPPED = 77
MIB = 1 << 20
LIBC = ctypes.CDLL(None)
PR_SET_CHILD_SUBREAPER = 36


class Skip(Exception):
    """This cannot be tested here."""


def check(condition, *words):
    if not condition:
        raise AssertionError(' '.join(str(word) for word in words) or 'not so')


def wait_for(condition, what):
    until = time.monotonic() + PATIENCE_SEC
    while True:
        value = condition()
        if value:
            return value
        check(time.monotonic() < until, 'waited in vain for', what)
        time.sleep(0.01)


class Place:
    """A directory, and programs that end with it."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix='criu.')
        self.pids = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.pids:
            end(pid)
        shutil.rmtree(self.path)

    def directory(self, name):
        path = f'{self.path}/{name}'
        os.makedirs(path, exist_ok=True)
        return path

    def tool(self, *arguments, pass_fds=(), environment=None):
        done = subprocess.run([TOOL, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              timeout=PATIENCE_SEC, pass_fds=pass_fds, check=True,
                              env=environment or os.environ, errors='replace')
        return done.stdout.rstrip('\n')

    def criu(self, action, *arguments, expect='0', **others):
        """Words of the tool's answer, whose number has to be the expected one."""
        if not any(argument.startswith('images=') for argument in arguments):
            arguments += (f'images={self.directory("images")}',)
        until = time.monotonic() + PATIENCE_SEC
        while True:
            answer = self.tool(action, f'libdir={self.directory("plugins")}', *arguments, **others)
            number, _, words = answer.partition(' ')
            # somebody else has the pid for now
            if number != 'EBUSY' or 'another has' not in words or time.monotonic() > until:
                break
            time.sleep(0.5)
        check(number == expect, f'expected {expect}, not', answer)
        check(all(character >= ' ' for character in words), 'control characters:', repr(words))
        return words

    def fake(self, script, version='4.1.1'):
        path = f'{self.path}/fake-criu'
        with open(path, 'w') as file:
            file.write(f'#!/bin/sh\n[ "$1" = --version ] && echo "Version: {version}" && exit 0\n'
                       'for a; do case $a in --log-file=*) log=${a#*=};; esac; done\n'
                       'cd /proc/self/fd/4\n' + script + '\n')
        os.chmod(path, 0o755)
        return f'criu={path}'

    def program(self, code='', leader=True, **others):
        """A program that counts in a file: itself, and the file."""
        counter = f'{self.path}/counter'
        for name in ('stdin', 'stdout', 'stderr'):
            others.setdefault(name, subprocess.DEVNULL)
        program = subprocess.Popen(
            [sys.executable, '-c', PRELUDE + code + COUNT, counter], start_new_session=leader,
            cwd='/', **others)
        self.pids.append(program.pid)
        wait_for(lambda: program.poll() is not None or os.path.exists(counter) and
                 os.path.getsize(counter), 'the program')
        check(program.poll() is None, 'the program has ended')
        return program.pid

    def count(self):
        with open(f'{self.path}/counter') as file:
            return int(file.read() or 0)

    def check_counts(self):
        before = self.count()
        wait_for(lambda: self.count() > before, 'the program to count')

    def cycle(self, pid, *arguments, restore=(), **others):
        """Dump with the end of the program, restore, and it goes on where it was."""
        self.criu('dump', f'pid={pid}', *arguments)
        for ended in self.pids:  # those that the root has left are ours now
            os.waitpid(ended, 0)
        before = self.count()
        answer = self.criu('restore', *arguments, *restore, **others)
        check(answer == str(pid), answer)
        wait_for(lambda: self.count() > before, 'the program to count')
        check(self.count() < before + 100000, 'counted on meanwhile')


PRELUDE = 'import os,sys,time,socket,fcntl,mmap\n'
COUNT = '''
counter = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
n = 0
while True:
    n += 1
    os.pwrite(counter, b"%9d" % n, 0)
    time.sleep(0.01)
'''


def parent_of(pid):
    try:
        with open(f'/proc/{pid}/stat') as file:
            return int(file.read().rpartition(')')[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def is_ours(pid):
    """A pid that was free between a dump and a restore may be anybody's."""
    while pid > 1:
        pid = parent_of(pid)
        if pid == os.getpid():
            return True
    return False


def end(pid):
    try:
        if is_ours(pid):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def cgroup2_mount():
    """Where cgroups can be made, or Skip."""
    with open('/proc/self/mountinfo') as file:
        for line in file:
            fields = line.split()
            if fields[fields.index('-') + 1] == 'cgroup2' and 'ro' not in fields[5].split(','):
                return fields[4]
    raise Skip('no cgroup2 that may be written')


# ---- a script for CRIU ----

def fake_versions(place):
    for version, expect in (('4.0', '0'), ('4.1.1', '0'), ('10.2', '0'), ('3.19', 'EOPNOTSUPP'),
                            ('', 'EOPNOTSUPP'), ('four', 'EOPNOTSUPP')):
        answer = place.tool('find', place.fake('', version)[5:])
        check(answer.startswith(expect + ' '), version, answer)
        check(expect == '0' or 'install CRIU 4.0' in answer, answer)
    check(place.tool('find', f'{place.path}/none').startswith('EOPNOTSUPP '))
    broken = f'{place.path}/broken'
    with open(broken, 'w') as file:
        file.write('#!/no/such/program\n')
    os.chmod(broken, 0o755)
    check('cannot be started' in place.tool('find', broken))
    with open(broken, 'w') as file:
        file.write('#!/bin/sh\necho "Version: 4.1"\nexit 1\n')
    check('does not run here' in place.tool('find', broken))


def fake_path(place):
    os.rename(place.fake('')[5:], place.directory('bin') + '/criu')
    environment = dict(os.environ, PATH=f'relative:{place.path}:{place.path}/bin:/usr/bin:/bin')
    answer = place.tool('find', environment=environment)
    check(answer == f'0 {place.path}/bin/criu\n40101', answer)


def fake_arguments(place):
    script = place.fake('for a; do echo "$a"; done >arguments; env >environment; '
                        'ls -l /proc/self/fd >fds; ls /proc/$$/fd >numbers; cat /proc/self/fd/5 '
                        '>inherited; echo 77 >criu.pid; grep SigIgn /proc/$$/status >signals')
    environment = dict(os.environ, LD_PRELOAD='', CRIU_CONFIG_FILE='/x', CRIU_FAULT='130')
    words = place.criu('dump', script, 'pid=12', 'running', 'tcp=keep', 'shell_job', 'file_locks',
                       'ext_unix_sockets', 'link_remap', 'ghost=5000000', 'external=unix[5]',
                       'external=file[a:b]', environment=environment)
    check(words == 'done', words)
    images = f'{place.path}/images'
    with open(f'{images}/arguments') as file:
        given = file.read().split('\n')[:-1]
    for wanted in ('dump', '--no-default-config', '-v4', '--log-file=criu.log', '--tree=12',
                   f'--libdir={place.path}/plugins', '--leave-running', '--tcp-established',
                   '--shell-job', '--file-locks', '--ext-unix-sk', '--link-remap',
                   '--ghost-limit=5000000', '--manage-cgroups=ignore', '--external=unix[5]', '--external=file[a:b]',
                   '--images-dir=/proc/self/fd/3', '--work-dir=/proc/self/fd/4'):
        check(wanted in given, wanted, given)
    with open(f'{images}/environment') as file:
        names = [line.split('=')[0] for line in file]
    check('CRIU_FAULT' in names and 'LD_PRELOAD' not in names and 'CRIU_CONFIG_FILE' not in names)
    with open(f'{images}/signals') as file:
        check(int(file.read().split()[1], 16) >> (signal.SIGXFSZ - 1) & 1, 'SIGXFSZ is not ignored')

    # Descriptors of a restore, whatever their numbers were.
    with open(f'{place.path}/text', 'w') as file:
        file.write('inherited text')
    fd = os.open(f'{place.path}/text', os.O_RDONLY)
    words = place.criu('restore', script, 'stopped', 'tcp=close', f'inherit={fd}:pipe:[9]',
                       pass_fds=(fd,))
    os.close(fd)
    check(words == '77', words)
    with open(f'{images}/arguments') as file:
        given = file.read().split('\n')[:-1]
    for wanted in ('restore', '--restore-detached', '--pidfile=criu.pid', '--leave-stopped',
                   '--tcp-close', 'fd[5]:pipe:[9]'):
        check(wanted in given, wanted, given)
    with open(f'{images}/inherited') as file:
        check(file.read() == 'inherited text')
    with open(f'{images}/numbers') as file:
        numbers = {int(line) for line in file}
    check({0, 1, 2, 3, 4, 5} <= numbers and not numbers & {6, 7, 8, 9}, numbers)


def fake_failures(place):
    line = '(00.1) Error (criu/a.c:1): '
    words = place.criu('dump', 'pid=1', place.fake(f'echo "{line}Strange thing" >$log; exit 1'),
                       expect='EIO')
    check(words == 'criu: Strange thing', words)
    words = place.criu('dump', 'pid=1', place.fake(
        f'echo "{line}Some file locks are hold by dumping tasks!" >$log; exit 1'), expect='EBUSY')
    check('file locks' in words, words)
    # a log of an earlier run is not this one's
    words = place.criu('dump', 'pid=1', place.fake('exit 3'), expect='EIO')
    check('exit status 3' in words, words)
    words = place.criu('dump', 'pid=1', place.fake('kill -SEGV $$'), expect='EIO')
    check('signal 11' in words, words)
    words = place.criu('dump', 'pid=1', place.fake('echo "no library" >&2; exit 127'), expect='EIO')
    check(words == 'criu: no library', words)
    # more than is kept of what it prints does not hold it up
    place.criu('dump', 'pid=1', place.fake('head -c 200000 /dev/zero; exit 0'))
    place.criu('dump', 'pid=1', place.fake(
        'head -c 300000 /dev/zero >$log; printf "\\n(00.1) Error (criu/a.c:1): a\\033\\001b\\n" '
        '>>$log; exit 1'), expect='EIO')
    words = place.criu('restore', place.fake('echo x >criu.pid'), expect='EIO')
    check('pid' in words, words)
    place.criu('restore', place.fake('exit 0'), expect='ENOENT')


def fake_options(place):
    script = place.fake('exit 0')
    place.criu('dump', script, expect='EINVAL')
    place.criu('dump', script, 'pid=1', 'log=../x', expect='EINVAL')
    place.criu('dump', script, 'pid=1', 'inherit=0:x', expect='EINVAL')
    place.criu('restore', script, 'running', expect='EINVAL')
    answer = place.tool('dump', script, 'pid=1', f'images={place.path}', 'libdir=/no/such')
    check(answer.startswith('EINVAL '), answer)


def fake_cancel(place):
    # It fails at its next write, by itself.
    script = place.fake('trap "" XFSZ; while echo x >>image; do sleep 0.01; done; exit 1')
    words = place.criu('dump', script, 'pid=1', 'cancel_usec=300000', expect='ECANCELED')
    check('stopped' in words, words)
    # It does not answer, and is killed; so is one that hangs in a restore, with what it made.
    script = place.fake('echo $$ >me; exec sleep 1000')
    place.criu('dump', script, 'pid=1', 'cancel_usec=300000', 'grace_usec=1000', expect='ECANCELED')
    script = place.fake('(echo $$ >/dev/null; sleep 1001 & echo $! >grandchild; wait) & '
                        'echo $! >child; sleep 1002')
    place.criu('restore', script, 'cancel_usec=500000', expect='ECANCELED')
    for name in ('child', 'grandchild'):
        with open(f'{place.path}/images/{name}') as file:
            pid = int(file.read())
        wait_for(lambda: gone(pid), name)


def gone(pid):
    try:
        with open(f'/proc/{pid}/stat') as file:
            return file.read().rpartition(')')[2].split()[0] in 'ZX'
    except (FileNotFoundError, ProcessLookupError):
        return True


# ---- what programs have open ----

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


def opens_refused(place):
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


def children(pid):
    with open(f'/proc/{pid}/task/{pid}/children') as file:
        return [int(child) for child in file.read().split()]


def opens_plain(place):
    code = 'import select\nr, w = os.pipe()\ne = select.epoll()\na, b = socket.socketpair()\n' \
        'm, s = os.openpty()\nf = os.memfd_create("x")\nos.ftruncate(f, 8 << 20)\n' \
        'x = mmap.mmap(-1, 1 << 20)\nd = os.open("/tmp", 0)\nu = os.open("/dev/urandom", 0)\n' \
        'n = socket.socket(16, 3, 0)\np = os.pidfd_open(os.getpid())\n'
    pid = place.program(code)
    opens = harmless(place, pid)
    check(not opens.rows('external'), opens.text)
    check(not any(opens.flag(name) for name in ('shell_job', 'file_locks', 'link_remap', 'ghost',
                                                'ext_unix_sockets', 'lost')), opens.text)
    files = {line.split('] ')[1]: line for line in opens.rows('file')}
    counter = files[f'{place.path}/counter']
    check(counter.startswith('9 ') and 'mapped=0' in counter and '[]' in counter, counter)
    program = os.readlink(f'/proc/{pid}/exe')
    check(f'{os.path.getsize(program)} {os.stat(program).st_mtime_ns} mapped=1' in files[program],
          files[program])
    library, = [path for path in files if '/libc.so' in path or '/libc-2' in path]
    notes = subprocess.run(['readelf', '-n', library], capture_output=True, text=True, check=True)
    wanted = notes.stdout.partition('Build ID: ')[2].split()[0]
    check(f'[{wanted}]' in files[library], files[library], wanted)
    check(list(files) == sorted(files), 'not in order')


def opens_stdio(place):
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


def opens_tree(place):
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


def opens_options(place):
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
        opens = harmless(other, pid)
        check(opens.flag('link_remap') == 1, opens.text)
        check(any('append=1' in line and line.endswith('counter.log') for line in
                  opens.rows('file')), opens.text)
        # a mount of ours: the device of all of that
        opens = Opens(other, pid, f'mount={os.stat(other.path).st_dev}')
        check(opens.number == 'EBUSY' and 'is on this mount' in opens.words, opens.text)
    with Place() as other:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        server.bind(f'{other.path}/socket')
        pid = other.program(f's = socket.socket(1, 2)\ns.connect("{other.path}/socket")\n')
        opens = harmless(other, pid)
        check(opens.flag('ext_unix_sockets') == 1 and not opens.rows('external'), opens.text)
        server.close()


def opens_namespace(place):
    """In another pid namespace: by the init of it."""
    program = subprocess.Popen(['unshare', '--pid', '--fork', '--kill-child', 'sleep', '1000'],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    place.pids.append(program.pid)
    init, = wait_for(lambda: program.poll() is not None or children(program.pid), 'its init')
    opens = Opens(place, init)
    check(opens.number == 'EOPNOTSUPP' and 'container' in opens.words, opens.text)


def opens_many(place):
    """Thousands of descriptors and hundreds of threads; more findings than the list has."""
    code = 'import threading\n' \
        'for i in range(300): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n' \
        'x = []\nfor i in range(1200):\n  r, w = os.pipe()\n  os.close(r)\n  x.append(w)\n' \
        'for i in range(1500): x.append(os.dup(x[0]))\n' \
        'x.append(os.pidfd_open(os.getppid()))\n'
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit < 4000:
        raise Skip(f'only {limit} descriptors')
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4000, limit))
    try:
        pid = place.program(code)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, soft)
    opens = Opens(place, pid)
    check(opens.number == 'EBUSY' and 'pidfd' in opens.words, opens.number, opens.words)
    check(opens.flag('lost') > 0 and len(opens.rows('external')) == 1023,
          opens.flag('lost'), len(opens.rows('external')))


def opens_gone(place):
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


# ---- the real one ----

def prepare_real():
    try:
        found = criu.find()
    except harness.Skip as skip:
        raise Skip(str(skip)) from None
    os.environ.update(found.env)
    with Place() as place:
        answer = place.tool('find', found.program)
        check(answer.startswith('0 '), answer)
        Place.real = 'criu=' + answer.split('\n')[0][2:]


def real_plain(place):
    place.cycle(place.program(), Place.real)


def real_leave(place):
    pid = place.program()
    place.criu('dump', Place.real, f'pid={pid}', 'running')
    place.check_counts()
    place.criu('dump', Place.real, f'pid={pid}', 'stopped')
    with open(f'/proc/{pid}/stat') as file:
        check(file.read().rpartition(')')[2].split()[0] == 'T')
    os.kill(pid, signal.SIGCONT)
    place.check_counts()


def real_pipe(place):
    """stdout is a pipe to the outside; what stands for it afterwards is a file."""
    reader, writer = os.pipe()
    code = 'import threading\n' \
        'def talk():\n  while True:\n    os.write(1, b"word\\n"); time.sleep(0.01)\n' \
        'threading.Thread(target=talk).start()\n'
    pid = place.program(code, stdout=writer)
    key = f'pipe:[{os.fstat(writer).st_ino}]'
    os.close(writer)
    log = os.open(f'{place.path}/log', os.O_RDWR | os.O_CREAT | os.O_APPEND)
    place.cycle(pid, Place.real, restore=(f'inherit={log}:{key}',), pass_fds=(log,))
    wait_for(lambda: os.fstat(log).st_size > 50, 'words in the log')
    os.close(log)
    os.close(reader)


def real_terminal(place):
    master, slave = pty.openpty()
    status = os.stat(os.ttyname(slave))
    pid = place.program(stdin=slave, stdout=slave, stderr=slave)
    key = f'tty[{status.st_rdev:x}:{status.st_dev:x}]'
    words = place.criu('dump', Place.real, f'pid={pid}', 'running', expect='EBUSY')
    check('terminal' in words, words)
    others = pty.openpty()
    place.cycle(pid, Place.real, f'external={key}', restore=(f'inherit={others[1]}:{key}',),
                pass_fds=(others[1],))
    check(os.readlink(f'/proc/{pid}/fd/1') == os.ttyname(others[1]))
    for fd in (master, slave, *others):
        os.close(fd)


def real_ghost(place):
    code = 'f = open(sys.argv[1] + ".big", "w+b")\nf.write(b"a" * (2 << 20))\nf.flush()\n' \
        'os.unlink(sys.argv[1] + ".big")\n'
    pid = place.program(code)
    words = place.criu('dump', Place.real, f'pid={pid}', expect='EFBIG')
    check('unlinked' in words and 'counter.big' in words, words)
    place.check_counts()
    place.cycle(pid, Place.real, f'ghost={4 * MIB}')
    sizes = [os.stat(f'/proc/{pid}/fd/{fd}').st_size for fd in os.listdir(f'/proc/{pid}/fd')]
    check(2 * MIB in sizes, sizes)


def real_lock(place):
    lock = f'{place.path}/lock'
    pid = place.program(f'f = open({lock!r}, "w")\nfcntl.flock(f, fcntl.LOCK_EX)\n')
    words = place.criu('dump', Place.real, f'pid={pid}', expect='EBUSY')
    check('file locks' in words, words)
    place.cycle(pid, Place.real, 'file_locks')
    check(subprocess.run(['flock', '-n', lock, 'true'], check=False).returncode == 1, 'lost')


def real_unix(place):
    """A stream socket as stdout, as the journal gives; a file afterwards does not stand for it."""
    ours, theirs = socket.socketpair()
    pid = place.program('os.write(1, b"before")\n', stdout=theirs)
    inode = os.fstat(theirs.fileno()).st_ino
    theirs.close()
    words = place.criu('dump', Place.real, f'pid={pid}', expect='EBUSY')
    check('unix socket' in words, words)
    place.check_counts()
    other, given = socket.socketpair()
    place.cycle(pid, Place.real, f'external=unix[{inode}]', pass_fds=(given.fileno(),),
                restore=(f'inherit={given.fileno()}:socket:[{inode}]',))
    for a in (ours, other, given):
        a.close()


def real_shell(place):
    pid = place.program(leader=False)
    words = place.criu('dump', Place.real, f'pid={pid}', expect='EBUSY')
    check('shell-job' in words, words)
    place.cycle(pid, Place.real, 'shell_job')


def real_log(place):
    """A file that is only appended to may have grown meanwhile; others may not."""
    log = f'{place.path}/log'
    pid = place.program(f'f = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n')
    place.criu('dump', Place.real, f'pid={pid}')
    os.waitpid(pid, 0)
    with open(log, 'a') as file:
        file.write('more')
    place.criu('restore', Place.real)
    place.check_counts()
    end(pid)
    pid = place.program(f'f = os.open({log!r}, os.O_WRONLY)\n')
    place.criu('dump', Place.real, f'pid={pid}')
    os.waitpid(pid, 0)
    with open(log, 'a') as file:
        file.write('more')
    words = place.criu('restore', Place.real, expect='ESTALE')
    check('bring the old one back' in words and log[1:] in words, words)
    wait_for(lambda: gone(pid) or not is_ours(pid), 'the end of what was restored')
    end(pid)
    os.truncate(log, 4)
    place.criu('restore', Place.real)
    place.check_counts()


def real_tree(place):
    code = 'if os.fork() == 0:\n  os.fork()\n  while True: time.sleep(0.01)\n'
    pid = place.program(code)

    def below(parent):
        with open(f'/proc/{parent}/task/{parent}/children') as file:
            return [int(child) for child in file.read().split()]

    child, = below(pid)
    grandchild, = wait_for(lambda: below(child), 'the grandchild')
    place.pids += [child, grandchild]
    place.cycle(pid, Place.real)
    check(below(pid) == [child] and below(child) == [grandchild])
    os.kill(grandchild, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)


def real_cgroup(place):
    """What is restored is in the cgroup that it is given; the old one is not made again."""
    mount = cgroup2_mount()
    old, new = (f'{mount}/gpucr-test-{name}-{os.getpid()}' for name in ('old', 'new'))
    pid = place.program('if os.fork() == 0:\n  while True: time.sleep(0.01)\n')
    child, = children(pid)
    place.pids.append(child)
    try:
        for directory in (old, new):
            os.mkdir(directory)
        for member in (pid, child):
            with open(f'{old}/cgroup.procs', 'w') as file:
                file.write(str(member))
        place.criu('dump', Place.real, f'pid={pid}')
        for ended in place.pids:
            os.waitpid(ended, 0)
        os.rmdir(old)
        procs = os.open(f'{new}/cgroup.procs', os.O_WRONLY)
        answer = place.criu('restore', Place.real, f'cgroup={procs}', pass_fds=(procs,))
        check(answer == str(pid), answer)
        with open(f'{new}/cgroup.procs') as file:
            check({int(line) for line in file} == {pid, child})
        check(not os.path.exists(old), 'the old cgroup has been made again')
        place.check_counts()
        for member in place.pids:
            end(member)
        # One that is gone: nothing is started.
        os.rmdir(new)
        words = place.criu('restore', Place.real, f'cgroup={procs}', expect='EIO',
                           pass_fds=(procs,))
        os.close(procs)
        check('cgroup of its own' in words, words)
    finally:
        for member in place.pids:
            end(member)
        for directory in (old, new):
            if os.path.exists(directory):
                os.rmdir(directory)


def take_pid(pid):
    """Another process has this pid from now on; None if it was not to be had."""
    for _ in range(50):
        try:
            with open('/proc/sys/kernel/ns_last_pid', 'w') as file:
                file.write(str(pid - 1))
        except OSError as reason:
            raise Skip(f'pids cannot be chosen: {reason}') from reason
        other = subprocess.Popen(['sleep', '1000'])
        if other.pid == pid:
            return other
        other.kill()
        other.wait()
    raise Skip(f'pid {pid} was not to be had')


def outer_pids(init):
    """Of all below this init: pids inside the namespace, by those outside."""
    found = {}
    waiting = [init]
    while waiting:
        pid = waiting.pop()
        with open(f'/proc/{pid}/status') as file:
            inner = [line.split() for line in file if line.startswith('NSpid:')][0]
        found[pid] = int(inner[-1])
        waiting += children(pid)
    return found


def real_pidns(place):
    """Its pid is taken: it goes on in a pid namespace of its own, which ends with it."""
    pid = place.program('p = os.fork()\nif p == 0:\n  while True: time.sleep(0.01)\n')
    child, = children(pid)
    place.pids.append(child)
    pidns = f'pidns={PIDNS}'
    place.criu('dump', Place.real, f'pid={pid}')
    for ended in place.pids:
        os.waitpid(ended, 0)
    other = take_pid(pid)
    try:
        before = place.count()
        root, init = map(int, place.criu('restore', Place.real, pidns).split())
        place.pids += [init]
        check(root not in (pid, init), root, pid)
        place.check_counts()
        check(before <= place.count() < before + 100000, 'begun anew')
        inner = outer_pids(init)
        check(set(inner.values()) == {1, pid, child}, inner)
        check(inner[root] == pid)
        # The /proc that it has is that of its namespace.
        with open(f'/proc/{root}/root/proc/1/comm') as file:
            check(file.read() == 'gpucr-pidns\n')
        check(other.poll() is None)
        check(os.listdir(f'/proc/{init}/fd') != [] and
              {os.readlink(f'/proc/{init}/fd/{fd}') for fd in os.listdir(f'/proc/{init}/fd')}
              == {'/dev/null'}, 'the init holds files')
        # Its end, and that of its child: nobody is left, and the init ends.
        os.kill(root, signal.SIGKILL)
        grandchild, = [outer for outer, number in inner.items() if number == child]
        wait_for(lambda: parent_of(grandchild) == init, 'the child to be given to the init')
        check(not gone(init), 'the init has ended too early')
        os.kill(grandchild, signal.SIGKILL)
        wait_for(lambda: gone(init), 'the end of the init')
        check(os.waitpid(init, 0) == (init, 0))

        # Its init is killed: everything ends.
        root, init = map(int, place.criu('restore', Place.real, pidns).split())
        inner = outer_pids(init)
        os.kill(init, signal.SIGKILL)
        os.waitpid(init, 0)
        check(all(gone(outer) for outer in inner), 'something is left')

        # Without it the pid is missed.
        answer = place.tool('restore', Place.real, f'libdir={place.directory("plugins")}',
                            f'images={place.directory("images")}')
        check(answer.startswith('EBUSY '), answer)
    finally:
        other.kill()
        other.wait()


def real_pidns_cancelled(place):
    """Stopped at many moments: nothing is left, or everything is there."""
    pid = place.program(f'x = bytearray(b"a" * {20 * MIB})\n'
                        'if os.fork() == 0:\n  while True: time.sleep(0.01)\n')
    child, = children(pid)
    place.pids.append(child)
    place.criu('dump', Place.real, f'pid={pid}')
    for ended in place.pids:
        os.waitpid(ended, 0)
    cancelled = 0
    for moment in range(12):
        answer = place.tool('restore', Place.real, f'cancel_usec={moment * 25000}',
                            f'pidns={PIDNS}', f'libdir={place.directory("plugins")}',
                            f'images={place.directory("images")}')
        if answer.startswith('0 '):
            root, init = map(int, answer.split()[1:])
            place.check_counts()
            check(set(outer_pids(init).values()) == {1, pid, child})
            os.kill(init, signal.SIGKILL)
            os.waitpid(init, 0)
            check(gone(root))
        else:
            check(answer == 'ECANCELED criu was stopped', answer)
            cancelled += 1
            # An init that has been killed is ours to wait for, like all that is left.
            wait_for(lambda: not any(map(left_of_restore, children(os.getpid()))),
                     'the end of what was begun')
    check(cancelled, 'never in the middle')


def left_of_restore(pid):
    """A child of ours that runs; one that has ended is waited for."""
    if gone(pid):
        os.waitpid(pid, 0)
        return False
    return True


def real_pidns_stopped(place):
    """One whose session's leader is outside, left stopped; nobody has to be asked for its pid."""
    pid = place.program(leader=False)
    place.criu('dump', Place.real, f'pid={pid}', 'shell_job')
    os.waitpid(pid, 0)
    root, init = map(int, place.criu('restore', Place.real, 'shell_job', 'stopped',
                                     f'pidns={PIDNS}').split())
    place.pids.append(init)
    check(outer_pids(init) == {init: 1, root: pid})
    with open(f'/proc/{root}/stat') as file:
        check(file.read().rpartition(')')[2].split()[0] in 'Tt')
    os.kill(root, signal.SIGCONT)
    place.check_counts()
    os.kill(root, signal.SIGKILL)
    wait_for(lambda: gone(init), 'the end of the init')


def real_pidns_mounts(place):
    """The images are in the daemon's store: the namespace does not keep that mounted."""
    points = [place.directory('images'), place.directory('a b\\c')]
    pid = place.program()
    mounted = []
    try:
        for point in points:
            subprocess.run(['mount', '-t', 'tmpfs', 'gpucrfs', point], check=True)
            mounted.append(point)
        place.criu('dump', Place.real, f'pid={pid}')
        os.waitpid(pid, 0)
        root, init = map(int, place.criu('restore', Place.real, f'pidns={PIDNS}').split())
        place.pids.append(init)
        place.check_counts()
        for member in (init, root):
            with open(f'/proc/{member}/mountinfo') as file:
                check(not any(' - tmpfs gpucrfs ' in line for line in file), 'still mounted')
        with open('/proc/self/mountinfo') as file:
            check(sum(' - tmpfs gpucrfs ' in line and place.path in line for line in file) == 2)
    finally:
        for point in mounted:
            subprocess.run(['umount', point], check=True)


def real_pidns_fails(place):
    """What CRIU says about a failure is heard, and nothing is left."""
    pid = place.program()
    place.criu('dump', Place.real, f'pid={pid}')
    os.waitpid(pid, 0)
    core = f'{place.path}/images/core-{pid}.img'
    os.truncate(core, 10)
    answer = place.tool('restore', Place.real, f'pidns={PIDNS}',
                        f'libdir={place.directory("plugins")}',
                        f'images={place.directory("images")}')
    check(answer.startswith('EIO criu: ') or answer.startswith('EIO '), answer)
    check('gpucr-pidns' not in answer, answer)
    wait_for(lambda: not any(map(left_of_restore, children(os.getpid()))), 'its end')
    answer = place.tool('restore', Place.real, f'pidns={place.path}/none',
                        f'libdir={place.directory("plugins")}',
                        f'images={place.directory("images")}')
    check(answer.startswith('EIO ') and 'cannot be started' in answer, answer)


def real_cancel(place):
    """Cancelled at many moments of a dump: the program goes on each time, and can be dumped."""
    pid = place.program(f'x = bytearray(b"a" * {20 * MIB})\n')
    cancelled = 0
    for tenth in range(12):
        answer = place.tool('dump', Place.real, f'pid={pid}', 'running',
                            f'cancel_usec={tenth * 20000}', f'libdir={place.directory("plugins")}',
                            f'images={place.directory("images")}')
        check(answer in ('0 done', 'ECANCELED criu was stopped'), answer)
        cancelled += answer != '0 done'
        place.check_counts()
        with open(f'/proc/{pid}/status') as file:
            check('TracerPid:\t0\n' in file.read())
        with open(f'/proc/{pid}/maps') as file:
            check('CRIUMFD' not in file.read(), 'its code is still there')
    check(cancelled, 'never in the middle')
    place.cycle(pid, Place.real)


def real_killed(place):
    """CRIU waits in the middle of a dump, its code in the program, and is killed."""
    pid = place.program(f'x = bytearray(b"a" * {20 * MIB})\n')
    images = place.directory('images')
    # its image of the memory is a pipe that nobody reads from: it stops there
    os.mkfifo(f'{images}/pages-1.img')
    answer = place.tool('dump', Place.real, f'pid={pid}', 'running', f'images={images}',
                        f'libdir={place.directory("plugins")}', 'kill_usec=2000000')
    check(answer == 'ECANCELED criu was stopped', answer)
    place.check_counts()
    with open(f'/proc/{pid}/status') as file:
        check('TracerPid:\t0\n' in file.read())
    os.unlink(f'{images}/pages-1.img')
    place.cycle(pid, Place.real)


def real_tcp(place):
    """A connection: kept, with the other end waiting meanwhile; and closed."""
    code = 's = socket.create_connection(("127.0.0.1", {}))\n' \
        'import threading\ndef talk():\n  try:\n    while True:\n      s.sendall(s.recv(4))\n' \
        '  except OSError: open(sys.argv[1] + ".closed", "w")\n' \
        'threading.Thread(target=talk).start()\n'
    server = socket.socket()
    server.bind(('127.0.0.1', 0))
    server.listen()
    server.settimeout(PATIENCE_SEC)
    pid = place.program(code.format(server.getsockname()[1]))
    ours, _ = server.accept()
    ours.settimeout(PATIENCE_SEC)
    answer = place.tool('dump', Place.real, f'pid={pid}', f'images={place.directory("images")}',
                        f'libdir={place.directory("plugins")}', 'tcp=keep', 'running')
    if answer.startswith('EOPNOTSUPP '):
        check('newer' in answer or 'install' in answer, answer)
        place.check_counts()
        raise Skip(answer)
    place.criu('dump', Place.real, f'pid={pid}', expect='EBUSY')
    place.cycle(pid, Place.real, 'tcp=keep')
    ours.sendall(b'ping')
    check(ours.recv(4) == b'ping')
    place.cycle(pid, Place.real, 'tcp=close')
    wait_for(lambda: os.path.exists(f'{place.path}/counter.closed'), 'the connection to be closed')
    ours.close()
    server.close()


def real_restore_cancelled(place):
    """Stopped at many moments of a restore: all of the tree is there, or nothing of it."""
    pid = place.program(f'x = bytearray(b"a" * {20 * MIB})\n'
                        'if os.fork() == 0:\n  while True: time.sleep(0.01)\n')
    child, = children(pid)
    place.pids.append(child)
    place.criu('dump', Place.real, f'pid={pid}')
    for ended in place.pids:
        os.waitpid(ended, 0)
    cancelled = 0
    for moment in range(10):
        answer = place.tool('restore', Place.real, f'cancel_usec={30000 + moment * 25000}',
                            f'libdir={place.directory("plugins")}',
                            f'images={place.directory("images")}')
        if answer.startswith('0 '):
            place.check_counts()
            end(child) if children(pid) == [child] else check(False, 'a child is missing')
        else:
            check(answer == 'ECANCELED criu was stopped' or answer.startswith('EBUSY '), answer)
            cancelled += answer.startswith('ECANCELED')
            wait_for(lambda: all(gone(task) or not is_ours(task) for task in (pid, child)),
                     'the end of both')
        end(pid)
        end(child)
    check(cancelled, 'never in the middle')
    place.criu('restore', Place.real)
    place.check_counts()


def real_opens(place):
    """With what was found, and with nothing else, it is dumped and restored."""
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    code = REFUSED['ghost'][0] + '\nl = open(sys.argv[1] + ".lock", "w")\n' \
        'fcntl.flock(l, fcntl.LOCK_EX)\n' + 'os.write(1, b"x"); os.write(2, b"y")\n'
    pid = place.program(code, stdout=writer, stderr=theirs, leader=False)
    version = place.tool('find', Place.real[5:]).split('\n')[1]
    opens = harmless(place, pid, f'version={version}', f'ghost={64 * MIB}')
    arguments = [name for name in ('shell_job', 'file_locks', 'link_remap', 'ext_unix_sockets')
                 if opens.flag(name)] + [f'ghost={opens.flag("ghost")}']
    check(arguments[:2] == ['shell_job', 'file_locks'], arguments)
    log = os.open(f'{place.path}/log', os.O_RDWR | os.O_CREAT)
    other, given = socket.socketpair()
    dump, restore = [], []
    for row in opens.rows('external'):
        _, _, key, option, _, _ = row.split()
        dump += [] if option == '-' else [f'external={option}']
        restore.append(f'inherit={given.fileno() if key.startswith("socket") else log}:{key}')
    check(len(restore) == 2, opens.text)
    place.cycle(pid, Place.real, *arguments, *dump, restore=restore, pass_fds=(log, given.fileno()))
    check(os.readlink(f'/proc/{pid}/fd/1') == f'{place.path}/log')
    for fd in (reader, writer, log):
        os.close(fd)
    for end_of_pair in (ours, theirs, other, given):
        end_of_pair.close()


def main():
    kind = sys.argv[1]
    failed = 0
    skipped = []
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a program leaves behind is ours to end
    try:
        if kind == 'real':
            prepare_real()
        if kind == 'opens' and os.getuid() != 0:
            raise Skip('this needs root')
    except Skip as reason:
        print('skipped:', reason)
        return SKIPPED
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wanted = sys.argv[3:] or [name for name in globals() if name.startswith(kind + '_')]
    for name in wanted:
        try:
            with Place() as place:
                try:
                    globals()[name](place)
                except AssertionError:
                    for log in ('images/criu.log',):
                        if os.path.exists(f'{place.path}/{log}'):
                            with open(f'{place.path}/{log}', errors='replace') as file:
                                print(''.join(file.readlines()[-25:]))
                    raise
            print('ok', name, flush=True)
        except Skip as reason:
            skipped.append(name)
            print('skipped', name, reason, flush=True)
        except Exception:  # whatever it was, the others are worth running
            traceback.print_exc()
            print('FAILED', name, flush=True)
            failed += 1
    return 1 if failed else 0


sys.exit(main())
