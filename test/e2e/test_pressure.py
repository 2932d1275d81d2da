# SPDX-License-Identifier: MIT
"""A store that is too full: what is frozen is packed for what is to be frozen, and after some time
by itself. No byte of anybody's is lost, and the store is never larger than it may be."""
import contextlib
import os
import random
import re
import signal
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import MIB, check, equal, same_for_both, wait_for
from pieces import Pieces, noise

TURNS = int(os.environ.get('GPUCR_TEST_TURNS', 30 if harness.SLOW == 1 else 12))


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
            with contextlib.suppress(OSError):  # there is no daemon just now
                most[0] = max(most[0], root(machine, 'store_used_bytes'))
            looks[0] += 1
            is_over.wait(0.0005)

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
                is_over.wait(0.002)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            with never_larger(self.machine):
                yield
        finally:
            is_over.set()
            thread.join()
        check(self.most <= self.limit, f'{self.most} of {self.limit} on the disk')


def test_figures():
    """What the root's status says of what is packed."""
    same_for_both('the store')
    with vmm.machine(options=',store_size=128M') as machine:
        equal(root(machine, 'store_reserve_bytes'), 8 * MIB)
        equal(root(machine, 'store_free_bytes'), 120 * MIB)
        first, second = [program(machine, 4 * MIB, text('same', 4 * MIB)) for _ in range(2)]
        for pieces in first, second:
            pieces.freeze()
            machine.must(pieces.pid, 'pack')
        equal(root(machine, 'packed_bytes'), 8 * MIB)
        equal(root(machine, 'shared_bytes'), 4 * MIB)
        check(0 < root(machine, 'packed_to_bytes') < MIB, root(machine, 'packed_to_bytes'))
        first.thaw()
        equal((root(machine, 'packed_bytes'), root(machine, 'shared_bytes')), (4 * MIB, 0))
        second.thaw()
        equal(root(machine, 'packed_to_bytes'), 0)


def test_after_some_time():
    """Once for each freeze, also when the program is stopped; not what runs."""
    same_for_both('the store')
    with vmm.machine(options=',pack_after=1') as machine:
        first, second, running = [program(machine, 4 * MIB, text(seed, 4 * MIB))
                                  for seed in range(3)]
        events = machine.events(first.pid)
        for pieces in first, second:
            pieces.freeze()
        machine.stop_process(second.pid)
        for pieces in first, second:
            wait_packed(machine, pieces)
            pieces.check_files()
        os.kill(second.pid, signal.SIGCONT)
        equal(packed(machine, running), 0)
        # Who unpacks it then wants it so.
        machine.must(first.pid, 'unpack')
        second.thaw()
        second.freeze()
        wait_packed(machine, second)
        equal(packed(machine, first), 0)
        equal(len([line for line in events.lines() if ' verb pack ' in line]), 1)
        first.check_files()
        first.thaw()
        second.thaw()


def test_interrupted():
    """Somebody has a file open: it is tried again, until nobody has."""
    same_for_both('the store')
    with vmm.machine(options=',pack_after=2') as machine:
        if machine.status_of_all()['passthrough'] == 'no':
            raise harness.Skip('the kernel does not read files of the store itself')
        pieces = program(machine, 4 * MIB, text(1, 4 * MIB))
        events = machine.events(pieces.pid)
        pieces.freeze()
        with open(pieces.file(0), 'rb'):
            for turn in range(2):
                events.wait(' verb pack EBUSY', start=len(events.lines()) if turn else 0)
            equal(packed(machine, pieces), 0)
        wait_packed(machine, pieces)
        pieces.check_files()
        pieces.thaw()


def test_after_a_restart():
    """The record knows since when."""
    same_for_both('the store')
    with vmm.machine() as machine:
        pieces = program(machine, 4 * MIB, text(1, 4 * MIB))
        pieces.freeze()
        machine.daemon.kill()
        machine.daemon.wait()
        machine.options += ',pack_after=1'
        machine.start()
        wait_packed(machine, pieces)
        pieces.check_files()
        pieces.thaw()


def test_makes_room():
    """The longest frozen first, and no more than is needed; all have their bytes."""
    with vmm.machine(options=',store_size=100M') as machine:
        first, second, third, fourth = [program(machine, 22 * MIB, text(seed, 22 * MIB))
                                        for seed in range(4)]
        with never_larger(machine):
            for pieces in second, first, third:
                pieces.freeze()
            equal(packed(machine, first), 0)
            fourth.freeze()
            equal(packed(machine, second), 22 * MIB)
            equal(packed(machine, third), 0)
            for pieces in first, second, third, fourth:
                pieces.check_files()
            for pieces in second, fourth, third, first:
                pieces.thaw()


def test_full_to_the_brim():
    """Of what cannot become less there is as much as fits: then it is refused, and all goes on."""
    same_for_both('the store')
    with vmm.machine(options=',store_size=64M') as machine:
        large = program(machine, 54 * MIB, noise(1, 54 * MIB))
        other = program(machine, 8 * MIB, noise(2, 8 * MIB))
        with never_larger(machine):
            large.freeze()
            for _ in range(2):
                equal(machine.write(other.pid, 'freeze'), 'ENOSPC')
                check('the store is full: 14 MiB more' in machine.error(other.pid),
                      machine.error(other.pid))
                equal(machine.state(other.pid), 'running')
                other.check()
            # Once is enough: nothing was gained.
            equal(packed(machine, large), 54 * MIB)
            lines = machine.events(large.pid).lines()
            equal(len([line for line in lines if ' verb pack ' in line]), 1, 'packed again')
            large.check_files()
            large.thaw()
            other.freeze()
            other.thaw()


def test_kept_goes_last():
    """What is frozen is packed before what is kept goes, and that goes before it is refused."""
    same_for_both('the store')
    with vmm.machine(options=',store_size=100M,keep=100M') as machine:
        running = program(machine, 22 * MIB, noise(1, 22 * MIB))
        frozen = program(machine, 22 * MIB, text(2, 22 * MIB))
        third, fourth = [program(machine, 22 * MIB, noise(seed, 22 * MIB)) for seed in (3, 4)]
        running.freeze()
        running.thaw()
        frozen.freeze()
        third.freeze()
        equal((kept(machine, running), packed(machine, frozen)), (22 * MIB, 0))
        with never_larger(machine):
            fourth.freeze()
            equal((kept(machine, running), packed(machine, frozen)), (22 * MIB, 22 * MIB))
            equal(machine.write(running.pid, 'freeze'), 'ok')
            for pieces in frozen, third, fourth, running:
                pieces.check_files()
        for pieces in running, frozen, third, fourth:
            pieces.thaw()


def test_kept_goes():
    """It does when nothing is left to be packed."""
    same_for_both('the store')
    with vmm.machine(options=',store_size=100M,keep=100M') as machine:
        first, second, third, fourth = [program(machine, 22 * MIB, noise(seed, 22 * MIB))
                                        for seed in range(4)]
        first.freeze()
        first.thaw()
        second.freeze()
        third.freeze()
        equal(kept(machine, first), 22 * MIB)
        fourth.freeze()
        equal(kept(machine, first), 0)
        for pieces in second, third, fourth:
            pieces.check_files()
            pieces.thaw()


def test_held_by_the_worker():
    """The driver gives up the files of the last thaw one by one, and takes longer for all of them
    than anybody waits in vain: what becomes free meanwhile is progress."""
    same_for_both('the store')
    pieces_count, msec = 8, 500
    with vmm.machine(options=',store_size=64M,keep=0,pool=0') as machine:
        first = Pieces(machine, *[f'0:{5 * MIB}'] * pieces_count)
        second = program(machine, 40 * MIB, noise(2, 40 * MIB))
        first.freeze()
        machine.wait_status(first.pid, 'pinned', 'yes')
        machine.faults(f'cuMemHostUnregister {vmm.ROLES["worker"]} delay_ms={msec}')
        first.thaw()
        second.freeze()
        machine.faults()
        second.check_files()
        second.thaw()


def test_several_at_once():
    """They do not count on the same room; and those that give it thaw and die meanwhile."""
    same_for_both('the store')
    with vmm.machine(vram='512M', options=',store_size=128M') as machine:
        olds = [program(machine, 16 * MIB, text(seed, 16 * MIB)) for seed in range(5)]
        news = [program(machine, 16 * MIB, text(seed, 16 * MIB)) for seed in range(5, 9)]
        with never_larger(machine):
            for pieces in olds:
                pieces.freeze()
            writers = [machine.writer(pieces.pid, 'freeze') for pieces in news]
            equal([writer.result() for writer in writers], ['ok'] * len(news))
            for pieces in olds + news:
                pieces.check_files()
            for pieces in news:
                pieces.thaw()
            # A worker may have files that are gone for a moment.
            verb = 'unpack ' + ' '.join(str(pieces.pid) for pieces in olds)
            wait_for(lambda: machine.write(None, verb) == 'ok', 'the room')
            writers = [machine.writer(pieces.pid, 'freeze') for pieces in news[:2]]
            machine.must(olds[0].pid, 'thaw')
            olds[1].demo.end()
            equal([writer.result() for writer in writers], ['ok'] * 2)
            olds[0].check()
            for pieces in olds[2:] + news[:2]:
                pieces.check_files()
                pieces.thaw()


def test_stopped():
    """By cancel, a signal and the deadline: it runs on, and what was begun goes on."""
    same_for_both('the store')
    with vmm.machine(options=',store_size=100M') as machine:
        olds = [program(machine, 40 * MIB, text(seed, 40 * MIB)) for seed in range(2)]
        new = program(machine, 16 * MIB, text(3, 16 * MIB))
        for pieces in olds:
            pieces.freeze()
        for turn in range(6):
            writer = machine.writer(new.pid, 'freeze')
            if turn % 2:
                wait_for(lambda: machine.status(new.pid)['phase'] in ('room', '-'), 'the phase')
            if turn % 3 == 0:
                check(machine.writer(new.pid, 'cancel').result() in ('ok', 'EBUSY'), 'cancel')
            elif writer.is_waiting():
                writer.signal(signal.SIGINT)
            result = writer.result()
            check(result in ('ok', 'ECANCELED', 'EINTR', 'killed'), result)
            machine.wait_status(new.pid, 'verb', '-')
            if machine.state(new.pid) == 'frozen':
                new.thaw()
            new.check()
            for pieces in olds:
                wait_for(lambda: machine.status(pieces.pid)['packing'] == 'no', 'packing')
                pieces.check_files()
                machine.write(pieces.pid, 'unpack')
        for pieces in olds:
            pieces.thaw()


def test_who_writes():
    """A file that a user writes finds no room, at once; nobody is packed for it."""
    same_for_both('the store')
    with vmm.machine(options=',store_size=64M') as machine:
        pieces = program(machine, 40 * MIB, text(1, 40 * MIB))
        pieces.freeze()
        with open(pieces.path('file'), 'wb', buffering=0) as file:
            equal(harness.error_of(lambda: [file.write(bytes(b'x' * MIB)) for _ in range(64)]),
                  'ENOSPC')
        equal(packed(machine, pieces), 0)
        os.unlink(pieces.path('file'))
        pieces.check_files()
        pieces.thaw()


def test_to_the_disk():
    """The bytes of the longest frozen, of what cannot become less; nobody loses any."""
    disk = Disk(',store_size=100M,keep=100M', vram='1G')
    with disk.machine as machine:
        machine.start()
        running, first, second, third, fourth = [program(machine, 22 * MIB, noise(seed, 22 * MIB))
                                                 for seed in range(5)]
        with disk.never_larger():
            running.freeze()
            running.thaw()
            for pieces in first, second, third:
                pieces.freeze()
            equal((root(machine, 'spilled_bytes'), disk.bytes()), (0, 0))
            fourth.freeze()
            running.freeze()
            check(root(machine, 'spilled_bytes') >= 20 * MIB, root(machine, 'spilled_bytes'))
            check(disk.bytes() >= 20 * MIB, disk.bytes())
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
    disk = Disk(',store_size=100M', vram='1G')
    with disk.machine as machine:
        machine.start()
        programs = [program(machine, 22 * MIB, noise(seed, 22 * MIB)) for seed in range(5)]
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
    disk = Disk(',store_size=64M', limit=16 * MIB)
    with disk.machine as machine:
        machine.start()
        large = program(machine, 50 * MIB, noise(1, 50 * MIB))
        other = program(machine, 30 * MIB, noise(2, 30 * MIB))
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
    alice, bob, limit = 4001, 4002, 100 * MIB
    disk = Disk(f',store_size=100M,user_store=0,user_spill={limit // MIB}M', vram='1G')
    with disk.machine as machine:
        machine.start()
        bobs = program(machine, 22 * MIB, noise(0, 22 * MIB), uid=bob)
        programs = [program(machine, 22 * MIB, noise(seed, 22 * MIB), uid=alice)
                    for seed in range(1, 11)]
        with disk.never_larger():
            bobs.freeze()
            frozen = [bobs]
            for pieces in programs:
                if machine.write(pieces.pid, 'freeze') != 'ok':
                    break
                frozen.append(pieces)
            check(pieces not in frozen, 'it is never refused')
            check(re.search(rf'the store is full.*user {alice} has \d+ MiB of packed bytes on the '
                            r'disk.*limit of 100 MiB \(user_spill', machine.error(pieces.pid)),
                  machine.error(pieces.pid))
            equal(machine.state(pieces.pid), 'running')
            pieces.check()
            held = [of_user(machine, uid, 'spill_bytes') for uid in (alice, bob)]
            check(all(20 * MIB < found <= limit for found in held), held)
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


def test_killed_on_the_way():
    """To the disk, and as others are packed: the next daemon has every byte."""
    same_for_both('the store')
    chance = random.Random(3)
    disk = Disk(',store_size=100M', vram='1G')
    with disk.machine as machine:
        machine.start()
        programs = [program(machine, 22 * MIB, noise(seed, 22 * MIB)) for seed in range(5)]
        for turn in range(5):
            for pieces in programs[:3]:
                pieces.freeze()
            for pieces in programs[3:]:
                machine.write(pieces.pid, 'freeze', os.O_NONBLOCK)
            wanted = chance.choice((1, 10 * MIB, 30 * MIB))
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


def test_random():
    machine = vmm.machine(options=',store_size=80M,keep=40M,pack_after=1')
    verbs_at_random(machine, text, never_larger)


def test_random_with_a_disk():
    disk = Disk(',store_size=64M,keep=40M', limit=24 * MIB)
    disk.machine.start()
    verbs_at_random(disk.machine, noise, lambda _: disk.never_larger())
    check(disk.most, 'nothing went there')


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


if __name__ == '__main__':
    harness.main(globals())
