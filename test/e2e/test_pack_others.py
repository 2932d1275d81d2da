# SPDX-License-Identifier: MIT
"""Packing beside other things: several that are cancelled at once, a file that is damaged, a lack
of memory, more files than descriptors, and what is left alone."""
import os
import resource
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, check, equal, same_for_both, wait_for
from pieces import Pieces, noise

HELD_MSEC = 1500


def packed_bytes(machine, pid):
    return int(machine.status(pid)['packed_bytes'])


def frozen(machine, count, *kinds):
    """Programs whose files the worker has registered."""
    several = [Pieces(machine, *kinds) for _ in range(count)]
    for pieces in several:
        pieces.freeze()
        machine.wait_status(pieces.pid, 'pinned', 'yes')
    return several


def hold(machine, *more):
    """The worker takes its time to give up files, for which whoever packs them waits."""
    machine.faults(f'cuMemHostUnregister {vmm.ROLES["worker"]} delay_ms={HELD_MSEC}', *more)


def start(machine, pieces, verb='pack'):
    equal(machine.write(pieces.pid, verb, os.O_NONBLOCK), 'ok')


def is_cancelled(machine, pieces):
    equal(machine.status(pieces.pid)['packing'], 'no')
    check('cancelled' in machine.error(pieces.pid), machine.error(pieces.pid))
    equal(machine.state(pieces.pid), 'frozen')
    pieces.check_files()


def test_cancel_of_several():
    """Each packed by a write of its own: all have ended when the one who cancels is answered."""
    same_for_both('which verbs are cancelled')
    with vmm.machine() as machine:
        several = frozen(machine, 3, f'0:{4 * MIB}')
        hold(machine)
        for pieces in several:
            start(machine, pieces)
        for pieces in several:
            status = machine.status(pieces.pid)
            equal(status['packing'], 'yes')
            check('cancel' in status['verbs'].split(), status['verbs'])
        pids = ' '.join(str(pieces.pid) for pieces in several)
        equal(machine.writer(None, f'cancel {pids}').result(), 'ok')
        for pieces in several:
            is_cancelled(machine, pieces)
            check('cancel' not in machine.status(pieces.pid)['verbs'], 'nothing to cancel')
        equal(machine.writer(None, f'cancel {pids}').result(), 'EBUSY')
        machine.faults()
        equal(machine.writer(None, f'pack {pids}').result(), 'ok')
        for pieces in several:
            equal(packed_bytes(machine, pieces.pid), 4 * MIB)
            pieces.thaw()


def test_cancel_of_both():
    """One is being packed, and another one thawed."""
    same_for_both('which verbs are cancelled')
    with vmm.machine() as machine:
        packing, thawing = frozen(machine, 2, f'0:{4 * MIB}')
        rule, phase = vendor.step('thaw', f'delay_ms={HELD_MSEC}', thawing.pid)
        hold(machine, rule)
        start(machine, thawing, 'thaw')
        machine.wait_status(thawing.pid, 'phase', phase)
        start(machine, packing)
        equal(machine.writer(None, f'cancel {packing.pid} {thawing.pid}').result(), 'ok')
        is_cancelled(machine, packing)
        is_cancelled(machine, thawing)
        machine.faults()
        for pieces in packing, thawing:
            pieces.thaw()


def registered(machine):
    """How many files of the store the worker has mapped."""
    (worker,) = [pid for pid, comm in machine.helpers() if comm == 'gpucr-worker']
    maps = harness.read_file(f'/proc/{worker}/maps').split('\n')
    return len([line for line in maps
                if ' rw-s ' in line and f'{machine.runtime}/store/' in line])


def test_registered():
    """However early it is packed, the worker has given up its files, and gets none again."""
    same_for_both('which files are registered')
    with vmm.machine() as machine:
        pieces = Pieces(machine, *[f'0:{2 * MIB}'] * 8)
        for delay in 0, 0, 20, 50, 50:
            machine.faults(f'cuMemHostRegister_v2 {vmm.ROLES["worker"]} delay_ms={delay}')
            pieces.freeze()
            machine.must(pieces.pid, 'pack')
            equal(registered(machine), 0, 'files that are registered')
            equal(machine.status(pieces.pid)['pinned'], 'no')
            pieces.thaw()


def tables(machine):
    return [os.path.join(directory, name)
            for directory, _, names in os.walk(f'{machine.runtime}/store') for name in names
            if os.path.basename(directory).startswith('packed-')]


def test_one_file():
    """What goes wrong with it is told by its name, and the others are unpacked."""
    with vmm.machine() as machine:
        pieces = Pieces(machine, *[f'0:{4 * MIB}'] * 3)
        pieces.freeze()
        machine.must(pieces.pid, 'pack')
        path = tables(machine)[1]
        os.rename(path, f'{path}-away')
        equal(machine.write(pieces.pid, 'unpack'), 'EIO')
        error = machine.error(pieces.pid)
        (index,) = [index for index in range(3) if f'vram/{pieces.name(index)} ' in error]
        check('cannot be unpacked' in error, error)
        equal(packed_bytes(machine, pieces.pid), 4 * MIB, 'the one')
        equal(harness.error_of(lambda: harness.read_file(pieces.file(index))), 'EIO')
        os.rename(f'{path}-away', path)
        pieces.check_files()
        machine.must(pieces.pid, 'unpack')
        equal(packed_bytes(machine, pieces.pid), 0)
        pieces.thaw()


def test_no_memory():
    """For threads, or what they need: said as it is, and nothing has changed."""
    same_for_both('threads of the daemon')
    if harness.SANITIZER != 'none':
        raise harness.Skip('a sanitizer needs more memory than anybody has')
    with vmm.machine() as machine:
        (pieces,) = frozen(machine, 1, f'0:{4 * MIB}')
        limit = resource.prlimit(machine.daemon.pid, resource.RLIMIT_AS)
        resource.prlimit(machine.daemon.pid, resource.RLIMIT_AS, (MIB, limit[1]))
        equal(machine.write(pieces.pid, 'pack'), 'ENOMEM')
        check('memory' in machine.error(pieces.pid), machine.error(pieces.pid))
        resource.prlimit(machine.daemon.pid, resource.RLIMIT_AS, limit)
        equal(packed_bytes(machine, pieces.pid), 0)
        machine.must(pieces.pid, 'pack')
        equal(packed_bytes(machine, pieces.pid), 4 * MIB)
        pieces.check_files()
        pieces.thaw()


def test_many_files():
    """More than the daemon may have descriptors: packed, read, unpacked and thawed."""
    same_for_both('files of the store')
    # With room for as many as the threads of one verb have open at once.
    count, room = harness.few((60, 40), (150, 80))
    with vmm.machine(vram='512M') as machine:
        pieces = Pieces(machine, *[f'0:{2 * MIB}'] * count)
        pieces.freeze()
        before = resource.prlimit(machine.daemon.pid, resource.RLIMIT_NOFILE)
        limit = len(os.listdir(f'/proc/{machine.daemon.pid}/fd')) + room
        resource.prlimit(machine.daemon.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        for _ in range(harness.few(1, 2)):
            machine.must(pieces.pid, 'pack')
            equal(packed_bytes(machine, pieces.pid), 2 * MIB * count)
            pieces.check_files()
            maps = harness.read_file(f'/proc/{machine.daemon.pid}/maps')
            check(maps.count('/packed-') < 10, 'tables that are mapped')
            machine.must(pieces.pid, 'unpack')
            equal(packed_bytes(machine, pieces.pid), 0)
            pieces.check_files()
        machine.must(pieces.pid, 'pack')
        resource.prlimit(machine.daemon.pid, resource.RLIMIT_NOFILE, before)
        pieces.thaw()
        wait_for(lambda: int(machine.status_of_all()['store_used_bytes']) == 0, 'an empty store')


def test_unpack_of_nothing():
    """What was never packed is kept for the next freeze as if nobody had asked."""
    with vmm.machine(options=',keep=64M') as machine:
        pieces = Pieces(machine, f'0:{6 * MIB}')
        for copied in 6 * MIB, 65536:
            pieces.freeze()
            machine.must(pieces.pid, 'unpack')
            pieces.check_files()
            pieces.wait_closed()
            equal(int(machine.status(pieces.pid)['last_freeze_copied_bytes']), copied)
            pieces.thaw()
            pieces.put(0, noise('more', 100), 300000)


if __name__ == '__main__':
    harness.main(globals())
