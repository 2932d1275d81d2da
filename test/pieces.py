# SPDX-License-Identifier: MIT
"""A program whose memory changes only when it is told to (test/e2e/pieces.c), and what it has to
have: byte by byte."""
import contextlib
import os
import random
import re

import harness
import vendor
from harness import check, equal, wait_for

PROGRAM = [*vendor.RUN, f'{harness.BUILD}/test/e2e/pieces']


def noise(seed, size):
    """Bytes without zeros in a row; others for each seed."""
    return random.Random(seed).randbytes(size)


class Pieces:
    """kinds are '0:BYTES' (of GPU 0, in units of 2 MiB) or 'managed:BYTES'. All are noise at
    first. It runs as user `uid`, or as we do."""

    def __init__(self, machine, *kinds, uid=None):
        self.machine = machine
        self.exchange = f'{machine.directory}/exchange-{len(machine.demos)}'
        os.mkfifo(f'{self.exchange}.lines')
        with open(self.exchange, 'wb'):
            pass
        for path in self.exchange, f'{self.exchange}.lines':
            os.chown(path, -1 if uid is None else uid, -1)
        # Opened for both, so that it is there at once, and the program never sees an end.
        self.lines = os.open(f'{self.exchange}.lines', os.O_RDWR)
        self.demo = machine.ready_demo(command=[*PROGRAM, f'{self.exchange}.lines', *kinds],
                                       uid=uid)
        self.pid = self.demo.pid
        self.kinds = [kind.partition(':')[0] for kind in kinds]
        self.contents = [bytearray(int(kind.partition(':')[2])) for kind in kinds]
        self.used = {}  # VRAM in use after the last freeze: the workers' own, and that of others
        self.addresses = [int(found, 16) for found in
                          re.findall(r'piece \d+ address 0x([0-9a-f]+)', self.demo.words())]
        equal(len(self.addresses), len(kinds), 'pieces')
        machine.wait_status(self.pid, 'engine', vendor.ENGINE)
        for index, content in enumerate(self.contents):
            self.put(index, noise(index, len(content)))

    def _tell(self, line):
        ticks = self.demo.ticks()
        os.write(self.lines, f'{line}\n'.encode())
        self.demo.output.wait(lambda lines: len(lines) - 1 > ticks, line)

    def set_dumpable(self, dumpable):
        """A process that is not dumpable is root's."""
        self._tell(f'dumpable {int(dumpable)}')

    def put(self, index, data, offset=0):
        """Change its memory."""
        with open(self.exchange, 'wb') as file:
            file.write(data)
        self._tell(f'load {index} {offset} {self.exchange}')
        self.contents[index][offset:offset + len(data)] = data

    def check(self):
        """It runs, and all of its memory is what it has to be."""
        for index, content in enumerate(self.contents):
            self._tell(f'save {index} {self.exchange}')
            with open(self.exchange, 'rb') as file:
                check(file.read() == content, f'the memory of piece {index}')

    def name(self, index):
        """Of its file."""
        kind = self.kinds[index]
        return f'{kind if kind == "managed" else "gpu" + kind}-{self.addresses[index]:x}'

    def path(self, *parts):
        return self.machine.path(self.pid, 'snapshot', *parts)

    def file(self, index):
        return self.path('vram', self.name(index))

    def check_files(self):
        """It is frozen, and its files are what its memory is."""
        equal(sorted(os.listdir(self.path('vram'))),
              sorted(self.name(index) for index in range(len(self.kinds))))
        for index, content in enumerate(self.contents):
            with open(self.file(index), 'rb') as file:
                check(file.read() == content, f'the file of piece {index}')

    def wait_closed(self):
        """Until the daemon has no file open for a reader: it is told some time after close(2), and
        an open file is not kept for the next freeze."""
        directory = f'/proc/{self.machine.daemon.pid}/fd'

        def is_open():
            for fd in os.listdir(directory):
                with contextlib.suppress(OSError):
                    if '/snapshot/vram/' in os.readlink(f'{directory}/{fd}'):
                        return True
            return False

        wait_for(lambda: not is_open(), 'the files to be closed')

    def freeze(self, verb='freeze'):
        self.machine.must(self.pid, verb)
        for kind in set(self.kinds) - {'managed'}:
            self.used[int(kind)] = self.machine.used(int(kind))

    def thaw(self, verb='thaw'):
        """With its memory as it was."""
        self.machine.must(self.pid, verb)
        self.check()
