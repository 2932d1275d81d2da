# SPDX-License-Identifier: MIT
"""A store that is too full: what is frozen is packed for what is to be frozen, and after some time
by itself. No byte of anybody's is lost, and the store is never larger than it may be."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import MIB, check, equal, needs_cuda, same_for_both, wait_for
from pieces import Pieces, noise
from pressure import kept, never_larger, packed, program, root, text, verbs_at_random, wait_packed


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


def test_removals_that_take_long():
    """Those of others are waited for only briefly: then there is packed."""
    same_for_both('reclaiming')
    if os.geteuid():
        raise harness.Skip("a store with a mount of its own is root's")
    with vmm.machine(options=',store_size=64M') as machine:
        first = program(machine, 32 * MIB, text(1, 32 * MIB))
        second = program(machine, 32 * MIB, text(2, 32 * MIB))
        os.mkdir(machine.path('many'))
        machine.must(first.pid, 'freeze')
        for number in range(600000):
            os.mknod(f'{machine.runtime}/store/incoming-many/snapshot/{number}')
        os.rmdir(machine.path('many'))
        machine.must(second.pid, 'freeze')
        check(any(name.startswith('.gone-') for name in os.listdir(f'{machine.runtime}/store')),
              'it has waited for all of them')
        check(packed(machine, first), 'what is packed')


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


def test_claim_of_a_freeze_that_fails():
    """What was packed for it is for others when it fails before it takes any."""
    needs_cuda('the calls of its checks')
    with vmm.machine(vram='512M', options=',store_size=100M') as machine:
        first = program(machine, 60 * MIB, text(1, 60 * MIB))
        failing = program(machine, 60 * MIB, text(2, 60 * MIB))
        other = program(machine, 40 * MIB, noise(3, 40 * MIB))
        first.freeze()
        # The first look succeeds; the one after the wait for room does not.
        machine.faults('cuCheckpointProcessGetState where=caller nth=2 times=40 error=304')
        equal(machine.write(failing.pid, 'freeze'), 'EIO')
        machine.faults()
        check(packed(machine, first), 'it has waited for room')
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
    store, old, young = harness.few((36, 14 * MIB, 6 * MIB), (100, 40 * MIB, 16 * MIB))
    with vmm.machine(options=f',store_size={store}M') as machine:
        olds = [program(machine, old, text(seed, old)) for seed in range(2)]
        new = program(machine, young, text(3, young))
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
    with vmm.machine(options=',store_size=32M') as machine:
        pieces = program(machine, 20 * MIB, text(1, 20 * MIB))
        pieces.freeze()
        with open(pieces.path('file'), 'wb', buffering=0) as file:
            equal(harness.error_of(lambda: [file.write(bytes(b'x' * MIB)) for _ in range(32)]),
                  'ENOSPC')
        equal(packed(machine, pieces), 0)
        os.unlink(pieces.path('file'))
        pieces.check_files()
        pieces.thaw()


def test_random():
    machine = vmm.machine(options=',store_size=80M,keep=40M,pack_after=1')
    verbs_at_random(machine, text, never_larger)


if __name__ == '__main__':
    harness.main(globals())
