# SPDX-License-Identifier: MIT
"""Files that the worker has registered with the driver: copied to and from without the ring."""
import ctypes
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import check, equal, same_for_both, wait_for

PUNCH_HOLE, KEEP_SIZE = 2, 1
FALLOCATE = harness.LIBC.fallocate
FALLOCATE.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
SIZE = ('--bytes', '16M', '--buffers', '4')


def workers(machine):
    return [pid for pid, comm in machine.helpers() if comm == 'gpucr-worker']


def pinned(machine):
    """Paths of the store's files that the worker has mapped whole, and whether they are linked."""
    found = {}
    for pid in workers(machine):
        try:
            with open(f'/proc/{pid}/maps', encoding='utf-8') as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            if ' rw-s ' in line and f'{machine.runtime}/store/' in line:
                path = line[line.index('/'):]
                found[path.removesuffix(' (deleted)')] = not path.endswith(' (deleted)')
    return found


def wait_pinned(machine, count):
    wait_for(lambda: len(pinned(machine)) == count and all(pinned(machine).values()),
             f'{count} files registered')


def cycle(machine, demo, verb='freeze'):
    machine.must(demo.pid, verb)
    vmm.check_files(machine, demo)
    machine.must(demo.pid, 'thaw')
    demo.wait_ticks(2)


def test_cycles():
    with vmm.machine(options=',pool=64M') as machine:
        demo = vmm.demo(machine, *SIZE)
        cycle(machine, demo)
        for _ in range(5):
            wait_pinned(machine, 4)
            cycle(machine, demo)
            cycle(machine, demo, 'freeze data')


def test_holes():
    """Where its owner has made holes, a registration would take memory that nobody counts; blocks
    beyond the end of the file are none of it."""
    same_for_both('which files are registered')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SIZE)
        machine.must(demo.pid, 'freeze')
        wait_pinned(machine, 4)
        root = machine.path(demo.pid, 'snapshot', 'vram')
        name = sorted(os.listdir(root))[0]
        path = f'{root}/{name}'
        size = os.stat(path).st_size
        with open(path, 'r+b') as file:
            # The blocks beyond the end first: there are never too few.
            equal(FALLOCATE(file.fileno(), KEEP_SIZE, size, size), 0)
            equal(FALLOCATE(file.fileno(), PUNCH_HOLE | KEEP_SIZE, 0, size), 0)
        check(os.stat(path).st_blocks * 512 >= size, 'blocks')
        wait_pinned(machine, 3)
        equal(machine.write(demo.pid, 'thaw'), 'EIO')
        wait_pinned(machine, 3)
        time.sleep(1)  # several looks of the sampler
        wait_pinned(machine, 3)
        # Nor does the thaw read them in a way that would take memory.
        equal(os.stat(path).st_blocks * 512, size)


def test_frozen_ones_are_ready():
    """Without a pool too: what is frozen stays where it is until the thaw."""
    same_for_both('which files are registered')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SIZE)
        for _ in range(3):
            machine.must(demo.pid, 'freeze')
            wait_pinned(machine, 4)
            vmm.check_files(machine, demo)
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks(2)
            wait_for(lambda: not pinned(machine), 'nothing of it to be held')


def test_given_up_when_it_ends():
    same_for_both('which files are registered')
    with vmm.machine(options=',pool=64M') as machine:
        demo = vmm.demo(machine, *SIZE)
        cycle(machine, demo)
        wait_pinned(machine, 4)
        demo.end()
        wait_for(lambda: not pinned(machine), 'nothing of it to be held')


def test_another_worker():
    """One that is started anew registers anew."""
    with vmm.machine(options=',pool=64M', worker_idle=2) as machine:
        demo = vmm.demo(machine, *SIZE)
        cycle(machine, demo)
        wait_pinned(machine, 4)
        wait_for(lambda: not workers(machine), 'the worker to end')
        cycle(machine, demo)
        wait_pinned(machine, 4)
        cycle(machine, demo)


def test_registering_fails():
    """The driver does not register them: everything goes through the ring, a worker's first."""
    with vmm.machine(options=',pool=64M') as machine:
        demo = vmm.demo(machine, *SIZE)
        machine.watch_faults()
        machine.faults('cuMemHostRegister nth=2 times=1000 error=CUDA_ERROR_OUT_OF_MEMORY')
        cycle(machine, demo)
        machine.wait_faulted()
        for _ in range(3):
            cycle(machine, demo)
        machine.faults()
        cycle(machine, demo)


def test_two_programs_on_two_gpus():
    with vmm.machine(gpus=2, options=',pool=256M') as machine:
        both = vmm.demo(machine, '--gpus', '2', *SIZE)
        one = vmm.demo(machine, *SIZE)
        for _ in range(3):
            for demo in (both, one):
                machine.must(demo.pid, 'freeze')
            if not vendor.HIP:  # where workers end with the freeze
                wait_for(lambda: sum(pinned(machine).values()) >= 8, 'files registered')
            for demo in (both, one):
                vmm.check_files(machine, demo)
                machine.must(demo.pid, 'thaw')
                demo.wait_ticks(2)


if __name__ == '__main__':
    harness.main(globals())
