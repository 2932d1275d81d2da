# SPDX-License-Identifier: MIT
"""What the tests of the fast engine share: programs it serves, and what their memory has to be."""
import ctypes
import errno
import os
import re
import subprocess
import time

import harness
import vendor
from harness import Failure, check, equal

WORDS = f'{harness.BUILD}/test/e2e/libgcr-test-words.so'
MULTIPLIER = 2654435761
MASK = 0xffffffff
PART_WORDS = 1 << 18
GRANULE = 2 << 20
SEGMENT_MAX = 20 << 20
HELD_BYTES = 1 << 20  # cuMemAlloc of more than this is the engine's, the rest stays with the driver
BUFFER = re.compile(r'buffer (\d+) (\S+) gpu (\d+) address 0x([0-9a-f]+) bytes (\d+)'
                    r' seed 0x([0-9a-f]+)')


class Buffer:
    """One line of gpucr-demo --list."""

    def __init__(self, match):
        self.number = int(match.group(1))
        self.kind = match.group(2)
        self.gpu = int(match.group(3))
        self.address = int(match.group(4), 16)
        self.bytes = int(match.group(5))
        self.seed = int(match.group(6), 16)
        self.parts = (self.bytes // 4 + PART_WORDS - 1) // PART_WORDS

    def is_moved(self):
        """It is the engine's, not the driver's."""
        return self.kind in ('managed', 'own-vmm') or (
            self.kind in ('device', 'pitch') and self.bytes > HELD_BYTES)

    def remade(self):
        """How much may not be there just now, or be zero: the program makes its own segments anew."""
        return min(-(-self.bytes // 3 // GRANULE) * GRANULE, SEGMENT_MAX) \
            if self.kind == 'own-vmm' else 0

    def added(self, part, ticks):
        """What the first ticks have added to the words of a part. With --capture the first buffer
        gets it twice. The tick that follows may have changed its part already, in part."""
        values = [sum(tick * MULTIPLIER for tick in range(part + 1, last + 1, self.parts))
                  for last in (ticks, ticks + 1)]
        if self.number == 0:
            values += [2 * values[0], values[0] + values[1], 2 * values[1]]
        return [value & MASK for value in values]

    def check(self, data, start, ticks):
        """data are its bytes from `start`, a multiple of a part."""
        words = ctypes.CDLL(WORDS).gcr_test_words_right
        words.restype = ctypes.c_size_t
        words.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint32,
                          ctypes.c_uint32]
        for first in range(0, len(data) // 4, PART_WORDS):
            piece = data[4 * first:4 * (first + PART_WORDS)]
            index = start // 4 + first
            part = index // PART_WORDS
            right = [words(piece, len(piece) // 4, index, self.seed, added)
                     for added in self.added(part, ticks)]
            if self.remade() and not any(piece):
                continue
            check(len(piece) // 4 in right, f'buffer {self.number}, part {part}: words are right '
                                            f'up to {max(right)} of {len(piece) // 4}')


def machine(**options):
    """A Machine whose programs are made for the engine."""
    return harness.Machine(vmm=True, **options)


def buffers(demo):
    return [Buffer(match) for match in map(BUFFER.match, demo.words().split('\n')) if match]


def demo(machine, *arguments, **options):
    """A program that the fast engine serves, ticking."""
    program = machine.ready_demo('--list', *arguments, **options)
    harness.wait_for(lambda: machine.status(program.pid).get('engine') == vendor.ENGINE,
                     f'the engine of {program.pid}: {machine.status(program.pid)}')
    return program


def files(machine, pid):
    """The files of a frozen program: name to size."""
    directory = machine.path(pid, 'snapshot', 'vram')
    return {name: os.stat(f'{directory}/{name}').st_size for name in os.listdir(directory)}


def check_files(machine, program):
    """Byte by byte what the program wrote; returns how many bytes were compared."""
    ticks = program.wait_standstill()
    spans = []
    for name, size in files(machine, program.pid).items():
        match = re.fullmatch(r'(?:gpu\d+|managed)-(?:unmapped-\d+|([0-9a-f]+))', name)
        check(match, f'the name of {name}')
        if match.group(1):
            spans.append((int(match.group(1), 16), size, name))
    compared = 0
    for buffer in buffers(program):
        if not buffer.is_moved():
            continue
        covered = 0
        for address, size, name in spans:
            start = max(address, buffer.address)
            end = min(address + size, buffer.address + buffer.bytes)
            if start >= end:
                continue
            with open(machine.path(program.pid, 'snapshot', 'vram', name), 'rb') as file:
                file.seek(start - address)
                data = file.read(end - start)
            equal(len(data), end - start, name)
            buffer.check(data, start - buffer.address, ticks)
            covered += end - start
        check(buffer.bytes - buffer.remade() <= covered <= buffer.bytes,
              f'{covered} bytes of buffer {buffer.number} ({buffer.kind}) in files')
        compared += covered
    return compared


def idle(machine, index=0):
    """Wait until our own workers have ended and say what is in use then."""
    harness.wait_for(lambda: not any(comm == 'gpucr-worker' for _, comm in machine.helpers()),
                     'the workers to end')
    readings = [-1, -2]

    def is_steady():
        # A reader who would have to wait long for the GPU is given what was known before.
        readings.append(machine.used(index))
        time.sleep(0.2)
        return readings[-1] == readings[-2] == readings[-3]
    harness.wait_for(is_steady, f'steady VRAM, {readings}')
    return readings[-1]


def kept(machine, index=0):
    """What the frozen programs of one GPU keep in VRAM: on NVIDIA nothing."""
    return machine.kept(*[pid for pid in machine.pids() if is_frozen(machine, pid) and
                          machine.status(pid)['gpus'] == str(index)])


def freeze_without_us(machine, pid):
    """The driver's own Lock, Checkpoint and, if it is refused, Unlock; what it answers."""
    done = subprocess.run([*vendor.RUN, f'{harness.BUILD}/tools/gpucr-bench', '--role', 'peer'],
                          input=f'freeze {pid}\n', env={**machine.env, 'GPUCR_PRELOAD': ''},
                          capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def cycle(machine, program, freeze='freeze'):
    machine.must(program.pid, freeze)
    machine.must(program.pid, 'thaw')
    program.wait_ticks()


def take_turns(machine, running, frozen):
    """The one that runs is frozen, and the frozen one is thawed."""
    machine.must(running.pid, 'freeze')
    machine.must(frozen.pid, 'thaw')
    frozen.wait_ticks()


def repeat_verbs(machine, program):
    """Each verb twice: the second one has nothing to do."""
    for verb in 'freeze', 'freeze', 'thaw', 'thaw':
        machine.must(program.pid, verb)
    program.wait_ticks()


def survive(machine, program, engine):
    """Frozen and thawed in the middle, its memory is what it was: the program looks."""
    for _ in range(2):
        machine.must(program.pid, 'freeze')
        equal(machine.status(program.pid)['engine'], engine)
        program.wait_standstill()
        machine.must(program.pid, 'thaw')
        program.wait_ticks()


def is_frozen(machine, pid):
    return machine.state(pid) == 'frozen'


def recover(machine, program):
    """Wherever it is now: the verb ends, the program ends up ticking, and can do it again."""
    machine.wait_status(program.pid, 'verb', '-')
    state = machine.state(program.pid)
    if state not in ('running', 'frozen', 'failed'):
        raise Failure(f'{program.pid} is {state}: {machine.error(program.pid)}')
    if state != 'running':
        machine.must(program.pid, 'thaw')
    program.wait_ticks(2)
    return state


# Who makes which calls: rules of injected faults that single out one of the three; on AMD the
# program has another thread that waits for the GPUs.
ROLES = {
    'program': 'thread=gpucr-agent',
    'idle': 'thread=gpucr-idle',
    'worker': 'comm=gpucr-worker',
    'control': 'comm=gpucr-control where=caller',
}


def calls(machine, program, role, verb):
    """The entry points that a role calls during a verb, in the order of their first calls."""
    machine.watch_faults()
    machine.faults(f'* {ROLES[role]}')
    machine.must(program.pid, verb)
    machine.faults()
    # The simulator's HIP makes CUDA's calls.
    return list(dict.fromkeys(call for _, _, call in machine.faulted()
                              if not vendor.HIP or call.startswith('hip')))


def other(verb):
    return 'thaw' if verb == 'freeze' else 'freeze'


def name(number):
    return errno.errorcode[number]
