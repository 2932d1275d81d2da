# SPDX-License-Identifier: MIT
"""Thaws of packed programs: on whatever GPU, with managed memory, and with something damaged: all
of it comes back, or nothing."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, check, equal, needs_cuda
from pieces import Pieces, noise


def content(seed, size):
    """A third is noise, a third packs well, and a third is zeros."""
    part = size // 3 // 65536 * 65536
    line = noise(seed, 100)
    return noise(seed + 1, part) + (line * (part // 100 + 1))[:part] + bytes(size - 2 * part)


def packed(machine, *kinds):
    """A program that is frozen, and packed."""
    pieces = Pieces(machine, *kinds)
    for index, old in enumerate(pieces.contents):
        pieces.put(index, content(index, len(old)))
    pieces.freeze()
    machine.must(pieces.pid, 'pack')
    check(int(machine.status(pieces.pid)['packed_bytes']) > 0, 'nothing is packed')
    return pieces


def segments(machine):
    """Files with packed chunks."""
    directory = f'{machine.runtime}/store/packs/{os.getuid()}'
    return [f'{directory}/{name}' for name in os.listdir(directory)]


def tables(machine):
    """Files that say which chunks are packed."""
    return [os.path.join(directory, name)
            for directory, _, names in os.walk(f'{machine.runtime}/store') for name in names
            if os.path.basename(directory).startswith('packed-')]


def stays(machine, pieces, *words):
    """It is not thawed, but frozen, and its error says why."""
    for verb in 'thaw', 'thaw':
        equal(machine.write(pieces.pid, verb), 'EIO')
        equal(machine.state(pieces.pid), 'frozen')
        check(int(machine.status(pieces.pid)['packed_bytes']) > 0, 'it was unpacked')
        found = machine.error(pieces.pid)
        check(any(word in found for word in words), found)


def test_gpus():
    """Of two GPUs, each to the other one."""
    with vmm.machine(gpus=2) as machine:
        pieces = packed(machine, f'0:{6 * MIB}', f'1:{4 * MIB}', f'0:{2 * MIB}')
        if vendor.HIP:
            pieces.thaw()
            return
        pieces.thaw('thaw gpu=0:1 gpu=1:0')
        pieces.freeze()
        machine.must(pieces.pid, 'pack')
        pieces.thaw('thaw gpu=0:1 gpu=1:0')


def test_managed():
    """Managed memory, which the program itself brings in from its files."""
    needs_cuda('managed memory')
    with vmm.machine() as machine:
        pieces = packed(machine, f'0:{4 * MIB}', f'managed:{4 * MIB}')
        pieces.check_files()
        pieces.thaw()


def test_kept():
    """What the store keeps of the last freeze is never what was packed."""
    with vmm.machine(options=',keep=64M') as machine:
        pieces = packed(machine, f'0:{6 * MIB}', f'0:{4 * MIB}')
        for turn in range(3):
            pieces.thaw()
            pieces.put(turn % 2, noise(turn, 100000), 300000)
            pieces.freeze()
            pieces.check_files()
            if turn != 1:
                machine.must(pieces.pid, 'pack')
                pieces.check_files()
        pieces.thaw()


def test_changed_chunks():
    """Packed chunks that somebody has changed."""
    with vmm.machine() as machine:
        pieces = packed(machine, f'0:{6 * MIB}')
        (path,) = segments(machine)
        with open(path, 'r+b') as file:
            right = file.read(4 * MIB)
            file.seek(0)
            file.write(bytes(byte ^ 0xff for byte in right[:65536]))
            file.flush()
            stays(machine, pieces, 'is not what was frozen', 'damaged')
            file.seek(0)
            file.write(right[:65536])
        pieces.check_files()
        pieces.thaw()


def test_changed_tables():
    """Tables, and segments, that are not what they were, or are not there."""
    with vmm.machine() as machine:
        pieces = packed(machine, f'0:{6 * MIB}')
        (path,) = tables(machine)
        os.rename(path, f'{path}-away')
        stays(machine, pieces, 'is not what was frozen')
        os.rename(f'{path}-away', path)
        with open(path, 'r+b') as file:
            file.write(b'g')
            file.flush()
            stays(machine, pieces, 'damaged')
            file.seek(0)
            file.write(b'G')
        (path,) = segments(machine)
        os.rename(path, f'{path}-away')
        stays(machine, pieces, 'cannot be read')
        os.rename(f'{path}-away', path)
        pieces.thaw()


if __name__ == '__main__':
    harness.main(globals())
