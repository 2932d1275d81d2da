# SPDX-License-Identifier: MIT
"""Programs that share GPU memory when they are told to (test/e2e/sharer.c)."""
import os
import re

import harness
import vendor
from harness import equal

PROGRAM = f'{harness.BUILD}/test/e2e/sharer'
FD, FABRIC = 1, 8  # CU_MEM_HANDLE_TYPE_*
BLOCK = 2 << 20


class Sharer:
    """One such program; without a library if not @preloaded. @program(...) starts another kind than
    Machine.demo()."""

    def __init__(self, machine, preloaded=True, command=None, program=None, **options):
        self.lines_path = f'{machine.directory}/lines-{len(machine.demos)}-{len(machine.others)}'
        os.mkfifo(self.lines_path)
        # Opened for both, so that it is there at once, and the program never sees an end.
        self.lines = os.open(self.lines_path, os.O_RDWR)
        if not preloaded:
            options['env'] = {'GPUCR_PRELOAD': ''}
        self.demo = (program or machine.demo)(self.lines_path,
                                              command=command or [*vendor.RUN, PROGRAM],
                                              **options).wait_ready()
        self.machine = machine
        self.pid = self.demo.pid

    def begin(self, line):
        """The number of the tick when it will have been done."""
        tick = self.demo.ticks() + 1
        os.write(self.lines, f'{line}\n'.encode())
        return tick

    def is_done(self, tick):
        return self.demo.ticks() >= tick

    def end(self, tick, seconds=None):
        """The driver's result, and the value."""
        harness.wait_for(lambda: self.is_done(tick), f'tick {tick}', seconds)
        found = re.search(rf'^did {tick} (-?\d+) (-?\d+)$', self.demo.words(), re.MULTILINE)
        return int(found.group(1)), int(found.group(2))

    def ask(self, line, seconds=None):
        return self.end(self.begin(line), seconds)

    def must(self, line):
        """The value."""
        result, value = self.ask(line)
        equal(result, 0, line)
        return value
