# SPDX-License-Identifier: MIT
"""Programs that share GPU memory: no engine freezes them, and as soon as they share nothing any more
every engine does. The driver would checkpoint them, and never be able to restore them."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import Machine, check, equal, needs_cuda, wait_for
from sharer import BLOCK, FABRIC, FD, Sharer

DELAY_MSEC = 2000 * harness.SLOW


def goes_on(machine, sharer, piece, seed):
    """It runs, and its memory is what it was."""
    equal(machine.state(sharer.pid), 'running')
    equal(sharer.must(f'check {piece} {seed}'), 1, 'its memory')


def refused(machine, sharer, words):
    equal(machine.write(sharer.pid, 'freeze'), 'EOPNOTSUPP')
    check(words in machine.error(sharer.pid), machine.error(sharer.pid))


def cycle(machine, sharer, piece, seed):
    machine.must(sharer.pid, 'freeze')
    machine.must(sharer.pid, 'thaw')
    goes_on(machine, sharer, piece, seed)


# ---- the driver engine

def test_driver_engine_obeys_obstacles():
    """An event that others may have: the page says it in words, not as memory that is shared."""
    needs_cuda('an engine without the library')
    with Machine() as machine:
        sharer = Sharer(machine)
        piece = sharer.must(f'alloc {BLOCK} 1')
        sharer.must(f'fill {piece} 7')
        equal(machine.status(sharer.pid)['engine'], 'driver')
        sharer.must('event')
        refused(machine, sharer, 'event')
        goes_on(machine, sharer, piece, 7)
        sharer.must('forget')
        cycle(machine, sharer, piece, 7)


def begins_to_share(share):
    """Looked at, and not locked yet: then a program shares memory, by share(owner, other, piece)."""
    needs_cuda('an engine without the library')
    with Machine() as machine:
        owner, other = Sharer(machine), Sharer(machine)
        piece = owner.must(f'create {BLOCK} {FD}')
        owner.must(f'fill {piece} 5')
        machine.watch_faults()
        machine.faults(f'cuCheckpointProcessLock pid={owner.pid} times=1 delay_ms={DELAY_MSEC}')
        writer = machine.writer(owner.pid, 'freeze')
        machine.wait_faulted()
        share(owner, other, piece)
        check(writer.is_waiting(), 'it is locked only now')
        equal(writer.result(), 'EOPNOTSUPP')
        check('shares GPU memory' in machine.error(owner.pid), machine.error(owner.pid))
        goes_on(machine, owner, piece, 5)
        # What the driver has checkpointed with this could not be restored.
        refused(machine, owner, 'shares GPU memory')
        return owner, other


def by_descriptor(owner, other, piece):
    fd = owner.must(f'export {piece} {FD}')
    there = other.must(f'import {owner.pid} {fd} {BLOCK}')
    equal(other.must(f'check {there} 5'), 1)


def test_begins_to_share_before_lock():
    begins_to_share(by_descriptor)


def test_begins_to_import_before_lock():
    """The one that is frozen is the one that takes it."""
    def share(importer, owner, _):
        piece = owner.must(f'create {BLOCK} {FD}')
        fd = owner.must(f'export {piece} {FD}')
        importer.must(f'import {owner.pid} {fd} {BLOCK}')

    begins_to_share(share)


def test_locked_in_the_middle_of_a_call():
    """A call that shares has been made, and its thread has not come so far as to count it."""
    needs_cuda('an engine without the library')
    with Machine() as machine:
        owner = Sharer(machine)
        piece = owner.must(f'create {BLOCK} {FD}')
        owner.must(f'fill {piece} 5')
        machine.watch_faults()
        # The driver is through with it, and locks the process before anybody knows the result.
        machine.faults(f'cuMemExportToShareableHandle pid={owner.pid} when=late '
                       f'delay_ms={4 * DELAY_MSEC}')
        tick = owner.begin(f'export {piece} {FD}')
        machine.wait_faulted()
        equal(machine.write(owner.pid, 'freeze'), 'EOPNOTSUPP')
        check('shares GPU memory' in machine.error(owner.pid), machine.error(owner.pid))
        check(not owner.is_done(tick), 'it is in the middle of it')
        equal(owner.end(tick)[0], 0)
        machine.faults()
        goes_on(machine, owner, piece, 5)


def test_a_share_that_fails_is_none():
    with Machine() as machine:
        sharer = Sharer(machine)
        piece = sharer.must(f'create {BLOCK} {FD}')
        sharer.must(f'fill {piece} 9')
        machine.faults('cuMemExportToShareableHandle error=CUDA_ERROR_UNKNOWN',
                       'cuIpcGetEventHandle error=CUDA_ERROR_UNKNOWN')
        check(sharer.ask(f'export {piece} {FD}')[0] != 0, 'the export')
        check(sharer.ask('event')[0] != 0, 'the event')
        machine.faults()
        cycle(machine, sharer, piece, 9)


if __name__ == '__main__':
    harness.main(globals())
