# SPDX-License-Identifier: MIT
"""A terminal for programs that draw on one: a pty, and what stands on its screen. It knows what
ncurses writes for TERM=xterm and vt100, and fails on anything else."""
import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import harness
from harness import Failure

CONTROL = re.compile(r'\x1b\[([?>]?)([0-9;]*)([@-~])|\x1b[()][0-9A-Za-z]|\x1b[=>78MDE]')
SIZE = struct.Struct('HHHH')


class Screen:
    """Lines of characters, and a cursor; attributes and colours are not kept."""

    def __init__(self, lines, columns):
        self.line = self.column = 0
        self.text = ''  # what is not understood yet: a sequence that has only begun
        self.resize(lines, columns)

    def resize(self, lines, columns):
        self.lines, self.columns = lines, columns
        self.cells = [[' '] * columns for _ in range(lines)]
        self.top, self.bottom = 0, lines - 1
        self.line, self.column = min(self.line, lines - 1), min(self.column, columns - 1)

    def shown(self):
        return [''.join(cells).rstrip() for cells in self.cells]

    def feed(self, text):
        self.text += text
        while self.text:
            if self.text[0] != '\x1b':
                self._put(self.text[0])
                self.text = self.text[1:]
                continue
            match = CONTROL.match(self.text)
            if not match:
                if len(self.text) > 20:
                    raise Failure(f'not known: {self.text[:20]!r}')
                return
            self.text = self.text[match.end():]
            if match.group(0) == '\x1bM':
                self._scroll_back()
            elif match.group(3) and not match.group(1):
                self._control(match.group(3), [int(n or 0) for n in match.group(2).split(';')])

    def _put(self, letter):
        if letter == '\r':
            self.column = 0
        elif letter == '\n':
            if self.line == self.bottom:
                self._scroll(self.top, 1)
            else:
                self.line = min(self.line + 1, self.lines - 1)
        elif letter == '\b':
            self.column = max(self.column - 1, 0)
        elif letter == '\t':
            self.column = min(self.column // 8 * 8 + 8, self.columns - 1)
        elif letter >= ' ':
            if self.column < self.columns:
                self.cells[self.line][self.column] = self.last = letter
            self.column += 1

    def _scroll(self, first, count):
        for _ in range(count):
            self.cells.insert(self.bottom + 1, [' '] * self.columns)
            del self.cells[first]

    def _scroll_back(self, count=1):
        for _ in range(count):
            self.cells.insert(self.line, [' '] * self.columns)
            del self.cells[self.bottom + 1]

    def _erase(self, line, first, end):
        for column in range(first, min(end, self.columns)):
            self.cells[line][column] = ' '

    def _control(self, what, numbers):
        count = max(numbers[0], 1)
        cells = self.cells[self.line]
        if what == 'H':
            line, column = (numbers + [1])[:2]
            self.line = min(max(line, 1), self.lines) - 1
            self.column = min(max(column, 1), self.columns) - 1
        elif what == 'A':
            self.line = max(self.line - count, 0)
        elif what == 'B':
            self.line = min(self.line + count, self.lines - 1)
        elif what == 'C':
            self.column = min(self.column + count, self.columns - 1)
        elif what == 'D':
            self.column = max(self.column - count, 0)
        elif what == 'G':
            self.column = min(count, self.columns) - 1
        elif what == 'd':
            self.line = min(count, self.lines) - 1
        elif what == 'J':
            if numbers[0] == 2:
                self.resize(self.lines, self.columns)
            else:
                self._erase(self.line, self.column, self.columns)
                for line in range(self.line + 1, self.lines):
                    self._erase(line, 0, self.columns)
        elif what == 'K':
            first, end = ((self.column, self.columns), (0, self.column + 1))[numbers[0]]
            self._erase(self.line, first, end)
        elif what == 'X':
            self._erase(self.line, self.column, self.column + count)
        elif what == 'b':
            for _ in range(count):
                self._put(self.last)
        elif what == 'P':
            del cells[self.column:self.column + count]
            cells += [' '] * (self.columns - len(cells))
        elif what == '@':
            cells[self.column:self.column] = [' '] * count
            del cells[self.columns:]
        elif what == 'L':
            self._scroll_back(count)
        elif what == 'M':
            self._scroll(self.line, count)
        elif what == 'S':
            self._scroll(self.top, count)
        elif what == 'r':
            first, end = (numbers + [self.lines])[:2]
            self.top, self.bottom = max(first, 1) - 1, (end or self.lines) - 1
        elif what not in 'mhlt':
            raise Failure(f'not known: {what} {numbers}')


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command, env, lines=24, columns=80):
        self.master, slave = pty.openpty()
        self.screen = Screen(lines, columns)
        self.decoder = codecs.getincrementaldecoder('utf-8')('replace')
        self.all = b''
        self._set_size(lines, columns)
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        self.popen = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
            preexec_fn=harness.end_with_us(
                signal.SIGKILL, lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        os.close(self.slave)
        os.close(self.master)

    def _set_size(self, lines, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, SIZE.pack(lines, columns, 0, 0))

    def resize(self, lines, columns):
        """All has to be drawn anew."""
        self.screen.resize(lines, columns)
        self._set_size(lines, columns)

    def _read(self, seconds):
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        data = os.read(self.master, 65536)
        self.all += data
        self.screen.feed(self.decoder.decode(data))
        return True

    def wait(self, condition, words):
        """Until condition(lines on the screen) is true."""
        deadline = time.monotonic() + harness.PATIENCE_SEC
        while not condition(self.screen.shown()):
            left = deadline - time.monotonic()
            if left <= 0 or (not self._read(min(left, 0.1)) and self.popen.poll() is not None):
                shown = '\n'.join(self.screen.shown())
                raise Failure(f'waited in vain for {words}, status {self.popen.poll()}:\n{shown}')

    def keys(self, text):
        os.write(self.master, text.encode())

    def end(self):
        """Its exit status, when it has ended; the terminal has to be as it was."""
        deadline = time.monotonic() + harness.PATIENCE_SEC
        while self.popen.poll() is None:
            self._read(0.02)
            if time.monotonic() > deadline:
                raise Failure('it does not end')
        while self._read(0):
            pass
        if termios.tcgetattr(self.slave) != self.before:
            raise Failure('the settings of the terminal are not what they were')
        return self.popen.returncode
