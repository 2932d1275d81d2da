#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""gpucr-drain: the log has a limit and keeps the last words, whatever the program does that writes;
and no program loses its pipe's reader because the drain is killed."""
import contextlib
import os
import re
import resource
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import harness
from harness import BUILD, check, equal, read_file, wait_for

LIMIT, KEPT = 1 << 20, 512 << 10  # fs/image/drain.h
CUT = '[gpucr-drain: '
NOBODY = 65534


class Drain:
    """With a log, and sources of its own. The write ends are ours."""

    def __init__(self, directory, sources=1, log=None):
        self.log = log or f'{directory}/log'
        pipes = [os.pipe() for _ in range(sources)]
        self.ends = [end for _, end in pipes]
        reads = [end for end, _ in pipes]
        log_fd = os.open(self.log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        pid = os.fork()
        if not pid:
            os.setsid()
            for number, fd in enumerate([log_fd, *reads]):
                os.dup2(fd, number + 100)
            for number in range(1 + sources):
                os.dup2(number + 100, number)
            os.closerange(1 + sources, 300)
            os.execv(f'{BUILD}/backend/cuda/gpucr-drain', ['gpucr-drain'])
        self.session = pid
        equal(os.waitpid(pid, 0)[1], 0)
        for fd in [log_fd, *reads]:
            os.close(fd)

    def pids(self):
        """Of its processes: the keeper, and the one that reads."""
        found = []
        for pid in filter(str.isdigit, os.listdir('/proc')):
            with contextlib.suppress(OSError):
                fields = read_file(f'/proc/{pid}/stat').rpartition(') ')[2].split()
                if int(fields[3]) == self.session and fields[0] not in 'ZX':
                    found.append((int(pid), int(fields[1])))
        return found

    def reader(self):
        pids = self.pids()
        parents = {parent for _, parent in pids}
        return next(pid for pid, _ in pids if pid not in parents)

    def write(self, text, source=0):
        """As a program that does not look at how much was taken."""
        data = text.encode()
        while data:
            data = data[os.write(self.ends[source], data):]

    def text(self):
        return read_file(self.log)

    def ends_now(self):
        for end in self.ends:
            os.close(end)
        wait_for(lambda: not self.pids(), 'the end of the drain')


@contextlib.contextmanager
def drain(**options):
    with tempfile.TemporaryDirectory(prefix='gpucrfs-drain-') as directory:
        yield Drain(directory, **options)


def test_all_arrives():
    with drain(sources=3) as one:
        for number in range(3):
            one.write(f'from {number}\n', number)
        wait_for(lambda: sorted(one.text().split('\n')) == ['', *(f'from {n}' for n in range(3))],
                 'three lines')
        one.ends_now()


def test_limit():
    """A program that never stops writing gets on, and the log has its last words."""
    with drain() as one:
        largest = 0
        for number in range(80):
            one.write(''.join(f'line {number}.{i} {"x" * 80}\n' for i in range(1000)))
            largest = max(largest, os.stat(one.log).st_size)
        one.write('the last line\n')
        wait_for(lambda: one.text().endswith('the last line\n'), 'the last line')
        text = one.text()
        check(KEPT - 200 < len(text) <= LIMIT and largest <= LIMIT, (len(text), largest))
        equal(text.count(CUT), 1)
        check(text.startswith(CUT), text[:200])
        check(all(re.fullmatch(r'line \d+\.\d+ x{80}', line) for line in text.split('\n')[1:-2]), 'torn lines')
        one.ends_now()


def test_one_endless_line():
    with drain() as one:
        one.write('y' * (3 * LIMIT))
        wait_for(lambda: os.stat(one.log).st_size > KEPT, 'the rest of it')
        check(os.stat(one.log).st_size <= LIMIT, os.stat(one.log).st_size)
        one.ends_now()


def test_log_that_is_there():
    """An earlier restore's log of the same name counts."""
    with tempfile.TemporaryDirectory(prefix='gpucrfs-drain-') as directory:
        with open(f'{directory}/log', 'w', encoding='utf-8') as file:
            file.write('old\n' * (LIMIT // 4))
        one = Drain(directory)
        one.write('new\n')
        wait_for(lambda: one.text().endswith('new\n'), 'the new line')
        check(os.stat(one.log).st_size <= LIMIT, os.stat(one.log).st_size)
        one.ends_now()


def test_killed():
    """The one that reads is started again; the writer gets no SIGPIPE and does not hang."""
    with drain() as one:
        for number in range(5):
            wait_for(lambda: len(one.pids()) == 2, 'both processes')
            os.kill(one.reader(), signal.SIGKILL)
            for _ in range(100):
                one.write('z' * 4000 + '\n')
            one.write(f'after {number}\n')
            wait_for(lambda n=number: f'after {n}\n' in one.text(), 'what was written after it')
        # Without its keeper it drains all the same.
        wait_for(lambda: len(one.pids()) == 2, 'both processes')
        reader = one.reader()
        keeper = next(pid for pid, _ in one.pids() if pid != reader)
        os.kill(keeper, signal.SIGKILL)
        one.write('without\n')
        wait_for(lambda: 'without\n' in one.text(), 'the words')
        one.ends_now()


def test_told_to_end():
    """A service that is stopped sends SIGTERM to all; the restored program goes on."""
    with drain() as one:
        wait_for(lambda: len(one.pids()) == 2, 'both processes')
        for pid, _ in one.pids():
            for number in signal.SIGTERM, signal.SIGHUP, signal.SIGINT:
                os.kill(pid, number)
        one.write('still\n')
        wait_for(lambda: 'still\n' in one.text(), 'the words')
        one.ends_now()


def test_full_disk():
    with drain(log='/dev/full') as one:
        one.write('w' * LIMIT)
        one.ends_now()


def test_limit_of_file_sizes():
    """Of who has started the daemon: the program gets on, and the drain is not started again and again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with drain() as one:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            wait_for(lambda: len(one.pids()) == 2, 'both processes')
            reader = one.reader()
            one.write('x' * (300 << 10))
            equal(len(one.text()), 4096)
            equal(one.reader(), reader)
            one.ends_now()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_reader_of_the_log():
    """A user who may read it cannot hold it: a lock on it is no matter."""
    import fcntl  # pylint: disable=import-outside-toplevel
    with drain() as one:
        with open(one.log, encoding='utf-8') as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            fcntl.lockf(file, fcntl.LOCK_SH)
            one.write('v' * (2 * LIMIT))
            check(os.stat(one.log).st_size <= LIMIT, os.stat(one.log).st_size)
        one.ends_now()


def test_that_cannot_start():
    """It says so, by its status: nobody would read what the program writes."""
    if os.geteuid():
        return
    program = os.open(f'{BUILD}/backend/cuda/gpucr-drain', os.O_RDONLY)
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        os.setresuid(*[NOBODY] * 3)
        os.execve(program, ['gpucr-drain'], dict(os.environ))
    equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 1)
    os.close(program)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
