# SPDX-License-Identifier: MIT
"""For tests of criu-glue, by the tool criu_tool: a directory, and programs that are dumped and
restored."""
import contextlib
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import harness
import launcher

harness.go_apart()  # before anybody asks for our pid
TOOL = os.path.abspath(sys.argv[1])
LAUNCH = f'{harness.BUILD}/backend/cuda/gpucr-launch'
GUARD = f'{harness.BUILD}/backend/cuda/libgpucr-criu-guard.so'
AS_CRIU = f'{harness.BUILD}/test/unit/criu/libas-criu.so'
PIDNS = f'{harness.BUILD}/backend/cuda/gpucr-pidns'
PATIENCE_SEC = 60
LISTENERS = []  # a child of ours that is none of the restored
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

    def fake(self, script, version='4.1.1', is_criu=False):
        """With @is_criu the guard takes it for CRIU."""
        path = f'{self.path}/fake-criu'
        again = f'''[ "$as_criu" ] ||
    as_criu=1 LD_PRELOAD="$LD_PRELOAD {AS_CRIU}" exec /bin/sh "$0" "$@"
''' if is_criu else ''
        with open(path, 'w') as file:
            file.write('#!/bin/sh\n' + again +
                       f'[ "$1" = --version ] && echo "Version: {version}" && exit 0\n'
                       'cd /proc/self/fd/4\n' + script + '\n')
        os.chmod(path, 0o755)
        return f'criu={path}'

    def program(self, code='', leader=True, **others):
        """A program that counts in a file: itself, and the file."""
        counter = f'{self.path}/counter'
        # That of an earlier one would say that this one is ready.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(counter)
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


def children(pid):
    with open(f'/proc/{pid}/task/{pid}/children') as file:
        return [int(child) for child in file.read().split()]


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


def gone(pid):
    try:
        with open(f'/proc/{pid}/stat') as file:
            return file.read().rpartition(')')[2].split()[0] in 'ZX'
    except (FileNotFoundError, ProcessLookupError):
        return True


def run(tests, prepare=lambda: None):
    """Run those that the command line names, or all of them; the exit status. With
    GPUCR_TEST_LAUNCH every CRIU is started by gpucr-launch."""
    with contextlib.ExitStack() as stack:
        if os.environ.get('GPUCR_TEST_LAUNCH'):
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix='criu.'))
            listener = stack.enter_context(launcher.Listener(directory, LAUNCH))
            os.environ[launcher.VARIABLE] = listener.socket
            LISTENERS.append(listener.popen.pid)
        return run_all(tests, prepare)


def run_all(tests, prepare):
    failed = 0
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a program leaves behind is ours to end
    try:
        prepare()
    except Skip as reason:
        print('skipped:', reason)
        return SKIPPED
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in sys.argv[2:] or [name for name in tests if name.startswith('test_')]:
        try:
            with Place() as place:
                try:
                    tests[name](place)
                except AssertionError:
                    log = f'{place.path}/images/criu.log'
                    if os.path.exists(log):
                        with open(log, errors='replace') as file:
                            print(''.join(file.readlines()[-25:]))
                    raise
            print('ok', name, flush=True)
        except Skip as reason:
            print('skipped', name, reason, flush=True)
        except Exception:  # whatever it was, the others are worth running
            traceback.print_exc()
            print('FAILED', name, flush=True)
            failed += 1
    return 1 if failed else 0
