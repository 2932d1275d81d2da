# SPDX-License-Identifier: MIT
"""A store that is too full, and a disk: packed bytes move there for what is to be frozen. No byte of
anybody's is lost, and neither is ever larger than it may be."""
import os
import random
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import holding
import vmm
from harness import MIB, check, equal, same_for_both, wait_for
from pieces import noise
from pressure import Disk, program, root, verbs_at_random

# Four programs are a little more than fits into the store.
SIZE, STORE = 22 * MIB, '100M'
# Where that does not matter.
LITTLE, LITTLE_STORE = harness.few((8 * MIB, '34M'), (SIZE, STORE))
LEAST = 20 * MIB  # so much has to go to the disk at least


def test_to_the_disk():
    """The bytes of the longest frozen, of what cannot become less; nobody loses any."""
    disk = Disk(f',store_size={STORE},keep={STORE}', vram='1G')
    with disk.machine as machine:
        machine.start()
        running, first, second, third, fourth = [program(machine, SIZE, noise(seed, SIZE))
                                                 for seed in range(5)]
        with disk.never_larger():
            running.freeze()
            running.thaw()
            for pieces in first, second, third:
                pieces.freeze()
            equal((root(machine, 'spilled_bytes'), disk.bytes()), (0, 0))
            fourth.freeze()
            running.freeze()
            check(root(machine, 'spilled_bytes') >= LEAST, root(machine, 'spilled_bytes'))
            check(disk.bytes() >= LEAST, disk.bytes())
            for pieces in first, second, third, fourth, running:
                pieces.check_files()
            machine.stop()
            machine.start()
            for pieces in first, second, third, fourth, running:
                machine.wait_status(pieces.pid, 'verb', '-')
                pieces.check_files()
                pieces.thaw()
        equal(root(machine, 'spilled_bytes'), 0)
        wait_for(lambda: not disk.bytes(), 'the disk to be empty')


def test_several_to_the_disk():
    """At once: what one of them moves is not taken for nothing left by the other."""
    same_for_both('the store')
    disk = Disk(f',store_size={STORE}', vram='1G')
    with disk.machine as machine:
        machine.start()
        programs = [program(machine, SIZE, noise(seed, SIZE)) for seed in range(5)]
        with disk.never_larger():
            for pieces in programs[:3]:
                pieces.freeze()
            writers = [machine.writer(pieces.pid, 'freeze') for pieces in programs[3:]]
            equal([writer.result() for writer in writers], ['ok'] * 2)
            for pieces in programs:
                pieces.check_files()
            for pieces in programs:
                pieces.thaw()


def test_disk_is_full():
    """Then it is refused, with the figures of both, and all goes on."""
    same_for_both('the store')
    disk = Disk(',store_size=32M', limit=6 * MIB)
    with disk.machine as machine:
        machine.start()
        large = program(machine, 20 * MIB, noise(1, 20 * MIB))
        other = program(machine, 14 * MIB, noise(2, 14 * MIB))
        with disk.never_larger():
            large.freeze()
            equal(machine.write(other.pid, 'freeze'), 'ENOSPC')
            check('the store is full' in machine.error(other.pid), machine.error(other.pid))
            check('spill' in machine.error(other.pid) or 'disk' in machine.error(other.pid),
                  machine.error(other.pid))
            equal(machine.state(other.pid), 'running')
            other.check()
            large.check_files()
            large.thaw()
            other.freeze()
            other.thaw()


def of_user(machine, uid, key):
    """What a user has of something that is limited, as root sees it; 0: he has nothing at all."""
    line = re.search(rf'^user {uid} .*\b{key} (\d+)/', machine.read('status'), re.MULTILINE)
    return int(line[1]) if line else 0


def test_disk_of_a_user():
    """Nobody gets more of the disk than one user may have, and others get theirs."""
    same_for_both('the store')
    if not harness.is_root():
        raise harness.Skip('several users are needed')
    if harness.SLOW > 1:
        raise harness.Skip('it takes long, and what it reaches others do')
    alice, bob, carol, limit = 4001, 4002, 4003, 100 * MIB
    disk = Disk(f',store_size={STORE},user_store=0,user_spill={limit // MIB}M', vram='1G')
    with disk.machine as machine:
        machine.start()
        bobs = program(machine, SIZE, noise(0, SIZE), uid=bob)
        programs = (program(machine, SIZE, noise(seed, SIZE), uid=alice)
                    for seed in range(1, 11))
        with disk.never_larger():
            bobs.freeze()
            frozen = [bobs]
            for pieces in programs:
                if machine.write(pieces.pid, 'freeze') != 'ok':
                    break
                frozen.append(pieces)
            check(pieces not in frozen, 'it is never refused')
            check(re.search(rf'the store is full.*user {alice} has \d+ MiB of packed bytes on the '
                            rf'disk.*limit of {limit // MIB} MiB \(user_spill', machine.error(pieces.pid)),
                  machine.error(pieces.pid))
            equal(machine.state(pieces.pid), 'running')
            pieces.check()
            # Who has nothing there learns nothing of what others have.
            carols = program(machine, SIZE, noise(20, SIZE), uid=carol)
            equal(machine.writer(carols.pid, 'freeze', uid=carol).result(), 'ENOSPC')
            error = machine.error(carols.pid)
            check('what others have packed may take no more of the disk' in error, error)
            check(str(alice) not in error and f'{limit // MIB} MiB (user_spill' not in error, error)
            carols.check()
            held = [of_user(machine, uid, 'spill_bytes') for uid in (alice, bob)]
            check(all(LEAST < found <= limit for found in held), held)
            equal((sum(held), sum(held)), (disk.bytes(), root(machine, 'spilled_bytes')))
            machine.stop()
            machine.start()
            for pieces in frozen:
                machine.wait_status(pieces.pid, 'verb', '-')
            equal([of_user(machine, uid, 'spill_bytes') for uid in (alice, bob)], held)
            for pieces in frozen:
                pieces.check_files()
                pieces.thaw()
        wait_for(lambda: not disk.bytes(), 'the disk to be empty')
        wait_for(lambda: not any(of_user(machine, uid, 'spill_bytes') for uid in (alice, bob)),
                 'nothing to be counted')


def test_disk_that_does_not_answer():
    """Who waits for it is refused in time, and nobody else waits. When it answers, all goes on."""
    same_for_both('the store')
    disk = Disk(f',store_size={LITTLE_STORE}', vram='1G')
    held = holding.Holding(disk.machine.directory, disk.path)
    with disk.machine as machine:
        machine.start(env=held.env)
        first, second, third, fourth, fifth = [program(machine, LITTLE, noise(seed, LITTLE))
                                               for seed in range(5)]
        with disk.never_larger():
            for pieces in first, second, third:
                pieces.freeze()
            held.set(False, 0, is_disk_held=True)
            writer = machine.writer(fourth.pid, 'freeze').wait_waiting()
            wait_for(held.held_writes, 'the disk to be written to')
            began = time.monotonic()
            equal(machine.write(fifth.pid, 'freeze'), 'ENOSPC')
            print(f'refused after {time.monotonic() - began:.1f} s: {machine.error(fifth.pid)}',
                  file=sys.stderr)
            check('the disk of spill= does not answer' in machine.error(fifth.pid),
                  machine.error(fifth.pid))
            equal(machine.state(fifth.pid), 'running')
            fifth.check()
            began = time.monotonic()
            first.thaw()
            print(f'a thaw took {time.monotonic() - began:.1f} s', file=sys.stderr)
            check(writer.is_waiting(), 'it has been answered')
            held.set(False, 0)
            equal(writer.result(), 'ok')
            for pieces in second, third, fourth:
                pieces.check_files()
                pieces.thaw()
            fifth.freeze()
            fifth.thaw()


def test_killed_on_the_way():
    """To the disk, and as others are packed: the next daemon has every byte."""
    same_for_both('the store')
    chance = random.Random(3)
    disk = Disk(f',store_size={LITTLE_STORE}', vram='1G')
    with disk.machine as machine:
        machine.start()
        programs = [program(machine, LITTLE, noise(seed, LITTLE)) for seed in range(5)]
        for _ in range(harness.few(3, 5)):
            for pieces in programs[:3]:
                pieces.freeze()
            for pieces in programs[3:]:
                machine.write(pieces.pid, 'freeze', os.O_NONBLOCK)
            wanted = chance.choice((1, LITTLE // 2, LITTLE * 4 // 3))
            wait_for(lambda: disk.bytes() >= wanted or vmm.is_frozen(machine, programs[4].pid),
                     'bytes on the disk')
            machine.daemon.kill()
            machine.daemon.wait()
            machine.start()
            for pieces in programs:
                machine.wait_status(pieces.pid, 'verb', '-')
                if vmm.is_frozen(machine, pieces.pid):
                    pieces.check_files()
            for pieces in programs:
                if vmm.is_frozen(machine, pieces.pid):
                    pieces.thaw()
                else:
                    pieces.check()
        machine.stop()
        equal(disk.bytes(), 0)


def test_random_with_a_disk():
    disk = Disk(',store_size=64M,keep=40M', limit=24 * MIB)
    disk.machine.start()
    verbs_at_random(disk.machine, noise, lambda _: disk.never_larger())
    check(disk.most, 'nothing went there')


if __name__ == '__main__':
    harness.main(globals())
