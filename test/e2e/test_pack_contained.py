# SPDX-License-Identifier: MIT
"""Packing is no oracle: root of a container learns nothing of others' memory by what is shared with
his, and others nothing of his. Nor does a program that is root's for a moment."""
import os
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [TESTS, f'{TESTS}/fs']
import harness
import vendor
import vmm
from harness import MIB, Machine, Skip, check, equal, is_root, same_for_both, wait_for
from pieces import Pieces
from quota import ALICE, counts

CONTAINED = ['unshare', '--pid', '--fork', '--kill-child', *vendor.RUN, *vendor.DEMO]


def frozen(machine, command=None):
    """One more program with the same bytes; its pid out here."""
    before = set(machine.pids())
    demo = machine.demo('--tick', '600000', command=command)
    demo.output.wait(lambda lines: len(lines) > 1, 'the first tick')
    pid = wait_for(lambda: next((pid for pid in machine.pids()
                                 if pid not in before and
                                 machine.status(pid)['engine'] == vendor.ENGINE), 0),
                   'the program to be listed with its library')
    machine.must(pid, 'freeze')
    return pid


def shared(machine, pid):
    machine.must(pid, 'pack')
    status = machine.status(pid)
    check(int(status['packed_bytes']), 'it is packed')
    return int(status['shared_bytes'])


def test_same_bytes():
    same_for_both('whose chunks are shared')
    if not is_root():
        raise Skip('a pid namespace is needed')
    with Machine(vmm=True) as machine:
        first = frozen(machine)
        guess = frozen(machine, CONTAINED)
        second = frozen(machine)
        third = frozen(machine, CONTAINED)
        own = shared(machine, first)
        equal(shared(machine, guess), 0, 'root of a container, who guesses')
        check(shared(machine, second) > own, 'outside they are the same user')
        equal(shared(machine, third), 0, 'another container')
        equal(machine.status_of_all()['shared_bytes'],
              str(sum(int(machine.status(pid)['shared_bytes']) for pid in (first, second))))
        for pid in first, guess, second, third:
            machine.must(pid, 'thaw')


def freeze_as_roots(machine, pieces):
    """Its user writes the verb. It is not dumpable, and so root's, while its files are made. Without
    `data` it would not be locked for the user."""
    machine.watch_faults()
    machine.hold_at(f'cuEventQuery {vmm.ROLES["program"]} times=1')
    writer = machine.writer(pieces.pid, 'freeze data', uid=ALICE)
    machine.wait_faulted()
    pieces.set_dumpable(False)
    machine.let_go()
    equal(writer.result(), 'ok')
    pieces.set_dumpable(True)
    equal(os.stat(pieces.path('vram')).st_uid, 0)
    equal(os.stat(machine.path(pieces.pid, 'ctl')).st_uid, ALICE)


def test_roots_for_a_moment():
    """It shares nothing with what is root's, and counts for its user."""
    same_for_both('whose chunks are shared')
    if not is_root():
        raise Skip('two users are needed')
    with Machine(vmm=True) as machine:
        roots, first, second = [Pieces(machine, f'0:{4 * MIB}', uid=uid) for uid in (None, ALICE, ALICE)]
        roots.freeze()
        own = shared(machine, roots.pid)
        freeze_as_roots(machine, first)
        check(counts(machine)['store_bytes'] >= 4 * MIB, 'it counts for its user')
        machine.stop()
        machine.start()
        check(counts(machine)['store_bytes'] >= 4 * MIB, 'so it does after a restart')
        equal(machine.writer(first.pid, 'pack', uid=ALICE).result(), 'ok')
        equal(shared(machine, first.pid), own, 'shared with root')
        second.freeze()
        check(shared(machine, second.pid) > own, 'with its own user it does share')
        for pieces in roots, first, second:
            pieces.thaw()


if __name__ == '__main__':
    harness.main(globals())
