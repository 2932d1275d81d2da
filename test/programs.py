# SPDX-License-Identifier: MIT
"""What a test starts beside the daemon, or follows: demo programs, writers of verbs, events."""
import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time

import vendor
from checking import Failure, check, name_of, wait_for
from files import read_file
from processes import HANDLED, become, end_with_us, is_alive, sleeps, try_kill, wait_end
from tested import PATIENCE_SEC, SLOW

WRITE_CALL = '1' if os.uname().machine == 'x86_64' else '64'  # write(2) in /proc/PID/syscall


class Output:
    """Reads a program's output line by line on a thread."""

    def __init__(self, pipe):
        self.lines = []
        self.changed = threading.Condition()
        self.ended = False
        self.pipe = pipe
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.pipe:
            with self.changed:
                self.lines.append(line.rstrip('\n'))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait(self, condition, words, seconds=None):
        """Wait until condition(lines) is true."""
        deadline = time.monotonic() + (seconds or PATIENCE_SEC)
        with self.changed:
            while not condition(self.lines):
                left = deadline - time.monotonic()
                if self.ended:
                    raise Failure(f'its output ended before: {words}; {self.lines[-5:]}')
                if left <= 0:
                    raise Failure(f'waited in vain for: {words}; {self.lines[-5:]}')
                self.changed.wait(left)


class Demo:
    """gpucr-demo: ticks, each of which says that all bytes in VRAM are right."""

    def __init__(self, machine, arguments, env=None, uid=None, command=None, **options):
        def prepare():
            if uid is not None:
                become(uid)

        program = command or [*vendor.RUN, *vendor.DEMO]
        self.machine = machine
        self.errors = open(f'{machine.directory}/demo-{len(machine.demos)}', 'w+', encoding='utf-8')
        self.popen = subprocess.Popen(program + [str(a) for a in arguments],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=self.errors, text=True,
                                      env={**machine.env, **(env or {})},
                                      preexec_fn=end_with_us(signal.SIGKILL, prepare), **options)
        self.output = Output(self.popen.stdout)
        self.pid = self.popen.pid
        self.is_to_end = False

    def wait_ready(self, ticks=1):
        self.output.wait(lambda lines: len(lines) > ticks, 'the first tick')
        check(self.output.lines[0].startswith('pid '), self.output.lines[0])
        self.pid = int(self.output.lines[0].split()[1])
        return self

    def ticks(self):
        """The number of the last tick; everything up to it must be right and without a gap."""
        lines = list(self.output.lines)
        for number, line in enumerate(lines[1:], 1):
            if line != f'tick {number} ok':
                raise Failure(f'demo {self.pid}: line {number + 1} is {line!r}')
        return len(lines) - 1

    def wait_ticks(self, more=3, seconds=None):
        """Wait for this many further ticks."""
        goal = self.ticks() + more
        self.output.wait(lambda lines: len(lines) - 1 >= goal, f'tick {goal} of {self.pid}',
                         seconds)
        return self.ticks()

    def wait_standstill(self):
        """It is held up in the driver: after the line that was on its way nothing comes."""
        last = -1
        while last != self.ticks():
            last = self.ticks()
            time.sleep(0.25 * SLOW)
        return last

    def is_running(self):
        return self.popen.poll() is None

    def end(self, number=signal.SIGTERM):
        self.is_to_end = True
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        try:
            wait_end(self.popen)
        except subprocess.TimeoutExpired:
            raise Failure(f'demo {self.pid} does not end') from None

    def words(self):
        return read_file(self.errors.name)

    def finish(self):
        self.is_to_end = True
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        if self.pid != self.popen.pid and is_alive(self.pid):
            try_kill(self.pid, signal.SIGKILL)
        self.output.thread.join(1)
        self.errors.close()


class Writer:
    """A process that writes once to a ctl file and tells how that went."""

    def __init__(self, path, text, flags=0, prepare=None, uid=None):
        read_end, write_end = os.pipe()
        self.started = time.monotonic()
        self.daemon_pid = None
        # Until the child has handlers of its own, it must not run ours.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        self.pid = os.fork()
        if not self.pid:
            self._child(path, text, flags, prepare, uid, write_end, mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_end)
        self.pipe = read_end
        self.number = None
        self.seconds = None

    @staticmethod
    def _child(path, text, flags, prepare, uid, pipe, mask):
        number = 255
        try:
            for signal_number in HANDLED:
                signal.signal(signal_number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if uid is not None:
                become(uid)
            if prepare:
                prepare()
            data = text if isinstance(text, bytes) else text.encode()
            fd = os.open(path, os.O_WRONLY | flags)
            number = 0 if os.write(fd, data) == len(data) else 254
        except OSError as error:
            number = error.errno
        finally:
            try:  # a handler of prepare's may raise something even here
                os.write(pipe, bytes([number]))
            finally:
                os._exit(0)

    def is_waiting(self):
        """It has not been answered yet."""
        return self.number is None and not select.select([self.pipe], [], [], 0)[0]

    def wait_waiting(self):
        """Wait until its write has come to the daemon, and the daemon has looked at it."""
        def is_in_write():
            try:
                return read_file(f'/proc/{self.pid}/syscall').split()[0] == WRITE_CALL
            except (OSError, IndexError):
                return 'fuse' in read_file(f'/proc/{self.pid}/wchan')

        wait_for(is_in_write, f'the writer {self.pid} to be waiting')
        time.sleep(0.02 * SLOW)  # the way from there to the daemon cannot be seen
        # Who was woken by it and has no processor yet is not asleep. Others may work all the time.
        until = time.monotonic() + SLOW
        while self.daemon_pid and not sleeps(self.daemon_pid) and time.monotonic() < until:
            time.sleep(0.01)
        return self

    def result(self, seconds=None):
        """Its errno's name, 'ok', or 'killed'."""
        if self.number is None:
            if not select.select([self.pipe], [], [], seconds or PATIENCE_SEC)[0]:
                raise Failure(f'the writer {self.pid} waits for ever')
            self.seconds = time.monotonic() - self.started
            byte = os.read(self.pipe, 1)
            os.close(self.pipe)
            os.waitpid(self.pid, 0)
            self.number = byte[0] if byte else -1
        return 'killed' if self.number < 0 else name_of(self.number)

    def signal(self, number):
        os.kill(self.pid, number)

    def finish(self):
        if self.number is None:
            try_kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(Failure):
                self.result(2)


class Events:
    """An events file, followed with poll(2)."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY)
        self.text = ''
        self.poller = select.poll()
        self.poller.register(self.fd, select.POLLIN)

    def read(self):
        while True:
            data = os.read(self.fd, 65536)
            if not data:
                return self.text
            self.text += data.decode(errors='replace')

    def lines(self):
        return self.read().split('\n')[:-1]

    def wait(self, pattern, seconds=None, start=0):
        """Wait for a line, from number `start` on, in which the pattern is found."""
        deadline = time.monotonic() + (seconds or PATIENCE_SEC)
        while True:
            for line in self.lines()[start:]:
                if re.search(pattern, line):
                    return line
            left = deadline - time.monotonic()
            if left <= 0 or not self.poller.poll(left * 1000):
                raise Failure(f'no event {pattern!r} in:\n{self.text}')

    def close(self):
        os.close(self.fd)
