# SPDX-License-Identifier: MIT
"""Packing is no oracle: root of a container learns nothing of others' memory by what is shared with
his, and others nothing of his."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import Machine, Skip, check, equal, is_root, same_for_both, wait_for

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


if __name__ == '__main__':
    harness.main(globals())
