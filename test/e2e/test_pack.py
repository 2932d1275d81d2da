# SPDX-License-Identifier: MIT
"""Packed snapshots: less memory, the same bytes, whatever comes between."""
import os
import random
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import MIB, check, equal, wait_for
from pieces import Pieces, noise

CHUNK = 65536
KEYS = ('packed_bytes', 'packed_to_bytes', 'shared_bytes', 'zero_bytes')


def text(seed, size):
    """Bytes that become less than half, no two chunks the same."""
    block = noise(seed, 1024)
    return b''.join(block + index.to_bytes(8, 'little') + bytes(range(256)) * 4 +
                    b'.' * (2040 - 1024) for index in range(-(-size // 3072)))[:size]


def figures(machine, pid):
    status = machine.status(pid)
    return tuple(int(status[key]) for key in KEYS)


def used(machine):
    return int(machine.status_of_all()['store_used_bytes'])


def fill(pieces, *contents):
    for index, content in enumerate(contents):
        pieces.put(index, content)


def blocks(pieces):
    return [(stat.st_size, stat.st_blocks, stat.st_mtime_ns)
            for stat in (os.stat(pieces.file(index)) for index in range(len(pieces.contents)))]


def test_figures():
    """Of known contents; the files read as before, and the store has room again."""
    with vmm.machine() as machine:
        pieces = Pieces(machine, f'0:{4 * MIB}', f'0:{4 * MIB}', f'0:{4 * MIB}')
        first = noise('first', 4 * MIB)
        fill(pieces, first, first[:2 * MIB] + bytes(MIB) + text('second', MIB), bytes(4 * MIB))
        pieces.freeze()
        before, as_it_was = used(machine), blocks(pieces)
        equal(figures(machine, pieces.pid), (0, 0, 0, 0))
        check('pack unpack' in machine.status(pieces.pid)['verbs'], 'the verbs')
        machine.must(pieces.pid, 'pack')
        packed, to, shared, zero = figures(machine, pieces.pid)
        equal(packed, 8 * MIB, 'zeros are holes already')
        equal((shared, zero), (2 * MIB, MIB))
        check(4 * MIB < to <= 4 * MIB + MIB // 2, f'packed to {to}')
        equal(machine.status(pieces.pid)['packing'], 'no')
        check(used(machine) <= before - 3 * MIB, f'the store has {used(machine)} of {before}')
        equal(blocks(pieces), as_it_was)
        pieces.check_files()
        machine.must(pieces.pid, 'pack')
        equal(figures(machine, pieces.pid), (packed, to, shared, zero), 'nothing is left to do')
        machine.must(pieces.pid, 'unpack')
        equal(figures(machine, pieces.pid), (0, 0, 0, 0))
        equal(blocks(pieces), as_it_was)
        pieces.check_files()
        machine.must(pieces.pid, 'unpack')
        machine.must(pieces.pid, 'pack')
        pieces.thaw()
        equal(figures(machine, pieces.pid), (0, 0, 0, 0))
        wait_for(lambda: used(machine) == 0, 'the store to be empty')


def test_replicas():
    """Of the same user: stored once. The one that was packed first goes, the other one stays."""
    with vmm.machine() as machine:
        replicas = [Pieces(machine, f'0:{6 * MIB}', f'0:{2 * MIB}') for _ in range(2)]
        contents = noise('weights', 6 * MIB), text('cache', 2 * MIB)
        for pieces in replicas:
            fill(pieces, *contents)
            pieces.freeze()
        machine.must(replicas[0].pid, 'pack')
        alone = used(machine)
        machine.must(replicas[1].pid, 'pack')
        equal(figures(machine, replicas[1].pid), (8 * MIB, 0, 8 * MIB, 0))
        check(used(machine) <= alone - 7 * MIB, f'{used(machine)} after {alone}')
        for pieces in replicas:
            pieces.check_files()
        replicas[0].thaw()
        replicas[1].check_files()
        replicas[0].freeze()
        equal(machine.writer(None, f'pack {replicas[0].pid} {replicas[1].pid}').result(), 'ok')
        equal(figures(machine, replicas[0].pid), (8 * MIB, 0, 8 * MIB, 0))
        replicas[1].demo.end()
        replicas[0].check_files()
        replicas[0].thaw()


def test_reads_and_writes():
    """Of root, at random, against a copy; what was written is what comes back."""
    chance = random.Random(5)
    with vmm.machine() as machine:
        pieces = Pieces(machine, f'0:{8 * MIB}')
        fill(pieces, noise(1, 2 * MIB) + text(2, 3 * MIB) + bytes(MIB) + text(3, 2 * MIB))
        pieces.freeze()
        machine.must(pieces.pid, 'pack')
        content = pieces.contents[0]
        for turn in range(60):
            with open(pieces.file(0), 'r+b', buffering=0) as file:
                size = chance.choice((1, 4096, CHUNK, 300000))
                offset = chance.randrange(len(content) - size)
                equal(os.pread(file.fileno(), size, offset), content[offset:offset + size])
                if turn % 3 == 0:
                    data = chance.randbytes(size)
                    equal(os.pwrite(file.fileno(), data, offset), size)
                    content[offset:offset + size] = data
            if turn % 15 == 0:
                machine.must(pieces.pid, 'pack')
        pieces.check_files()
        machine.must(pieces.pid, 'pack')
        equal(figures(machine, pieces.pid)[0], 8 * MIB)
        pieces.check_files()
        equal(machine.write(pieces.pid, 'thaw'), 'EIO')
        pieces.check_files()
        pieces.thaw('thaw unverified')


def test_just_read():
    """Where the kernel reads the files themselves: who has closed them is in nobody's way."""
    with vmm.machine() as machine:
        pieces = Pieces(machine, *[f'0:{4 * MIB}'] * 8)
        fill(pieces, *[text(seed, 4 * MIB) for seed in range(8)])
        pieces.freeze()
        for _ in range(3):
            pieces.check_files()
            machine.must(pieces.pid, 'pack')
            equal(figures(machine, pieces.pid)[0], 32 * MIB)
            pieces.check_files()
            machine.must(pieces.pid, 'unpack')
        pieces.thaw()


def start_to_pack(machine, pieces, verb='pack'):
    machine.write(pieces.pid, verb, os.O_NONBLOCK)


def test_in_the_middle():
    """A thaw, a cancel and a signal come while it is being packed."""
    with vmm.machine() as machine:
        pieces = Pieces(machine, f'0:{12 * MIB}', f'0:{12 * MIB}')
        fill(pieces, noise(1, 12 * MIB), text(2, 12 * MIB))
        pieces.freeze()
        start_to_pack(machine, pieces)
        pieces.thaw()
        equal(machine.error(pieces.pid), 'ok')
        for verb in 'pack', 'unpack':
            pieces.freeze()
            if verb == 'unpack':
                machine.must(pieces.pid, 'pack')
            start_to_pack(machine, pieces, verb)
            check(machine.writer(pieces.pid, 'cancel').result() in ('ok', 'EBUSY'), 'cancel')
            equal(machine.status(pieces.pid)['packing'], 'no')
            pieces.check_files()
            writer = machine.writer(pieces.pid, verb)
            wait_for(lambda: machine.status(pieces.pid)['packing'] == 'yes' or
                     not writer.is_waiting(), f'{verb} to begin')
            writer.signal(signal.SIGINT)
            check(writer.result() in ('ok', 'EINTR', 'killed'), 'the writer')
            wait_for(lambda: machine.status(pieces.pid)['packing'] == 'no', 'the end of it')
            pieces.check_files()
            equal(machine.state(pieces.pid), 'frozen')
            start_to_pack(machine, pieces, verb)
            pieces.thaw()


def test_daemon_is_killed():
    """As it packs, as it unpacks, and when all is packed: the next one has every byte."""
    with vmm.machine() as machine:
        pieces = Pieces(machine, f'0:{10 * MIB}', f'0:{10 * MIB}')
        fill(pieces, noise(1, 10 * MIB), text(2, 4 * MIB) + noise(1, 6 * MIB))
        pieces.freeze()
        for verb in 'pack', 'unpack', 'pack':
            start_to_pack(machine, pieces, verb)
            if verb == 'pack':
                wait_for(lambda: figures(machine, pieces.pid)[0], 'a first packed piece')
            machine.daemon.kill()
            machine.daemon.wait()
            machine.start()
            machine.wait_status(pieces.pid, 'verb', '-')
            equal(machine.state(pieces.pid), 'frozen')
            pieces.check_files()
        machine.must(pieces.pid, 'pack')
        packed = figures(machine, pieces.pid)
        equal(packed[0], 20 * MIB)
        # What the process itself shows as shared is what was there when it was packed, which may be
        # its own other file: how much that is depends on what had been unpacked again.
        equal(int(machine.status_of_all()['shared_bytes']), 6 * MIB)
        check(packed[2] in (6 * MIB, 8 * MIB, 10 * MIB, 12 * MIB), packed)
        machine.stop()
        machine.start()
        machine.wait_status(pieces.pid, 'verb', '-')
        equal(figures(machine, pieces.pid), packed)
        pieces.check_files()
        pieces.thaw()
        wait_for(lambda: used(machine) == 0, 'the store to be empty')
        pieces.demo.end()
        machine.stop()


def test_full():
    """There is no room to pack, and then none to unpack: all is as it was."""
    with vmm.machine(options=',store_size=40M') as machine:
        pieces, other = Pieces(machine, f'0:{8 * MIB}'), Pieces(machine, f'0:{22 * MIB}')
        fill(pieces, noise(1, 2 * MIB) + text(2, 6 * MIB))
        pieces.freeze()
        machine.must(pieces.pid, 'pack')
        check(figures(machine, pieces.pid)[1] < 4 * MIB, 'it is packed')
        other.freeze()
        equal(machine.write(pieces.pid, 'unpack'), 'ENOSPC')
        check('full' in machine.error(pieces.pid), machine.error(pieces.pid))
        check(figures(machine, pieces.pid)[0] > 0, 'some is packed still')
        pieces.check_files()
        other.check_files()
        # Nor is there any for one more piece of the other one's, until it gives some back.
        check(machine.write(other.pid, 'pack') in ('ok', 'ENOSPC'), 'pack')
        other.check_files()
        other.thaw()
        machine.must(pieces.pid, 'unpack')
        pieces.check_files()
        pieces.thaw()


def test_refused():
    """What is not frozen, what has no files, and what is no option."""
    with vmm.machine() as machine:
        pieces = Pieces(machine, f'0:{2 * MIB}')
        for verb in 'pack', 'unpack':
            equal(machine.write(pieces.pid, verb), 'EBUSY')
            check('frozen' in machine.error(pieces.pid), machine.error(pieces.pid))
            equal(machine.write(pieces.pid, f'{verb} data'), 'EINVAL')
        pieces.freeze()
        machine.must(pieces.pid, 'pack timeout=60')
        equal(machine.write(pieces.pid, 'cancel'), 'EBUSY')
        pieces.thaw()
        os.mkdir(machine.path('empty'))
        equal(machine.write('empty', 'pack'), 'EBUSY')
        check('pack is for' in machine.error('empty'), machine.error('empty'))


if __name__ == '__main__':
    harness.main(globals())
