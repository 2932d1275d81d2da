# SPDX-License-Identifier: MIT
"""For the tests of a store that is too full: programs, and what watches the store and the disk."""
import contextlib
import os
import random
import threading

import harness
import vmm
from harness import MIB, check, wait_for
from pieces import Pieces, noise

TURNS = int(os.environ.get('GPUCR_TEST_TURNS', harness.few(20, 30) if harness.SLOW == 1 else 12))


def text(seed, size):
    """Bytes that become less than a tenth, no two chunks the same."""
    block = noise(seed, 48)
    return b''.join(block + index.to_bytes(8, 'little') + b'.' * 968
                    for index in range(-(-size // 1024)))[:size]


def program(machine, size, content, uid=None):
    """One with a single allocation."""
    pieces = Pieces(machine, f'0:{size}', uid=uid)
    pieces.put(0, content)
    return pieces


def packed(machine, pieces):
    return int(machine.status(pieces.pid)['packed_bytes'])


def kept(machine, pieces):
    return int(machine.status(pieces.pid)['kept_bytes'])


def root(machine, key):
    return int(machine.status_of_all()[key])


def wait_packed(machine, pieces):
    wait_for(lambda: packed(machine, pieces) == len(pieces.contents[0]) and
             machine.status(pieces.pid)['packing'] == 'no', f'{pieces.pid} to be packed')


@contextlib.contextmanager
def never_larger(machine):
    """What the store has in it, as it counts it and as its file system does, is looked at all the
    time."""
    store = f'{machine.runtime}/store'
    size = root(machine, 'store_bytes')
    is_over, most, looks = threading.Event(), [0], [0]

    def look():
        while not is_over.is_set():
            found = os.statvfs(store)
            most[0] = max(most[0], (found.f_blocks - found.f_bfree) * found.f_frsize)
            if looks[0] % 10 == 0:  # to ask the daemon takes it as long as many looks
                with contextlib.suppress(OSError):  # there is no daemon just now
                    most[0] = max(most[0], root(machine, 'store_used_bytes'))
            looks[0] += 1
            is_over.wait(0.003)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    check(looks[0] and most[0] <= size, f'{most[0]} of {size}')


class Disk:
    """A machine with a directory to which packed bytes may go."""

    def __init__(self, options, limit=1 << 40, **more):
        self.machine = vmm.machine(options=options, start=False, **more)
        self.path = f'{self.machine.directory}/disk'
        self.limit = limit
        os.mkdir(self.path, 0o700)
        self.machine.options += f',spill={self.path},spill_size={limit // MIB}M'
        self.most = 0

    def bytes(self):
        return sum(self.of_file(os.path.join(top, file)) for top, _, files in os.walk(self.path)
                   for file in files)

    @staticmethod
    def of_file(path):
        """What it takes, unless it has just gone."""
        try:
            return os.stat(path).st_blocks * 512
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def never_larger(self):
        is_over = threading.Event()

        def look():
            while not is_over.is_set():
                self.most = max(self.most, self.bytes())
                is_over.wait(0.01)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            with never_larger(self.machine):
                yield
        finally:
            is_over.set()
            thread.join()
        check(self.most <= self.limit, f'{self.most} of {self.limit} on the disk')


def verbs_at_random(new_machine, first, watch):
    """What everybody has is compared, and the store is looked at all the time."""
    chance = random.Random(11)
    with new_machine as machine:
        programs = [program(machine, 2 * MIB * size, first(size, 2 * MIB * size))
                    for size in (2, 4, 6, 8, 10)]
        with watch(machine):
            # All of them at once are more than the store holds.
            for pieces in programs:
                result = machine.write(pieces.pid, 'freeze')
                check(result in ('ok', 'ENOSPC'), f'freeze: {result}')
            for turn in range(TURNS):
                pieces = chance.choice(programs)
                verb = chance.choice(('freeze', 'freeze', 'thaw', 'pack', 'unpack'))
                result = machine.write(pieces.pid, verb, chance.choice((0, 0, os.O_NONBLOCK)))
                check(result in ('ok', 'EBUSY', 'ENOSPC', 'ECANCELED'), f'{verb}: {result}')
                if machine.state(pieces.pid) == 'running' and turn % 3 == 0:
                    size = len(pieces.contents[0])
                    pieces.put(0, chance.choice((text, noise))(turn, size // 2), size // 4)
                if turn % 10 == 9:
                    for other in programs:
                        machine.wait_status(other.pid, 'verb', '-')
                        if machine.state(other.pid) == 'frozen':
                            other.check_files()
                        else:
                            other.check()
            for pieces in programs:
                machine.wait_status(pieces.pid, 'verb', '-')
                if machine.state(pieces.pid) == 'frozen':
                    pieces.thaw()
                pieces.check()
