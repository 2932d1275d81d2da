# SPDX-License-Identifier: MIT
"""Programs that share GPU memory: no engine freezes them, and as soon as they share nothing any more
every engine does. The driver would checkpoint them, and never be able to restore them."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import Machine, check, equal, needs_cuda
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


# ---- handles of other kinds, and their ends

def test_fabric_handles():
    """One that was asked for does no harm, and memory with one comes and goes as other memory; one
    that was made does, until the memory is gone."""
    needs_cuda('fabric handles')
    for options in {'vmm': True}, {'vmm': False}:
        with Machine(env={'GPUCR_SIM_FABRIC': '1'}, **options) as machine:
            sharer = Sharer(machine)
            piece = sharer.must(f'create {BLOCK} {FABRIC | FD}')
            sharer.must(f'fill {piece} 21')
            cycle(machine, sharer, piece, 21)
            if options['vmm']:
                machine.must(sharer.pid, 'freeze')
                equal(len(os.listdir(machine.path(sharer.pid, 'snapshot', 'vram'))), 1, 'files')
                machine.must(sharer.pid, 'thaw')
            other = sharer.must(f'create {BLOCK} {FABRIC}')
            cycle(machine, sharer, piece, 21)
            # What a thaw by the fast engine has brought back has none.
            result = sharer.ask(f'export {other} {FABRIC}')[0]
            equal(result != 0, options['vmm'], 'the export')
            third = sharer.must(f'create {BLOCK} {FABRIC}')
            sharer.must(f'export {third} {FABRIC}')
            refused(machine, sharer, 'fabric handle')
            goes_on(machine, sharer, piece, 21)
            sharer.must(f'free {third}')
            sharer.must(f'free {other}')
            cycle(machine, sharer, piece, 21)


def test_no_fabric_here():
    """Then the program hears what the driver says."""
    needs_cuda('fabric handles')
    with Machine(vmm=True) as machine:
        sharer = Sharer(machine)
        equal(sharer.ask(f'create {BLOCK} {FABRIC | FD}')[0], 801)


def test_ends_with_the_memory():
    """A descriptor that was given away and closed may be imported all the same; so it counts as long
    as the memory is there."""
    with Machine(vmm=True) as machine:
        sharer = Sharer(machine)
        piece = sharer.must(f'create {BLOCK} {FD}')
        sharer.must(f'fill {piece} 2')
        other = sharer.must(f'create {BLOCK} {FD}')
        fd = sharer.must(f'export {other} {FD}')
        refused(machine, sharer, 'shares GPU memory')
        sharer.must(f'close {fd}')
        refused(machine, sharer, 'shares GPU memory')
        sharer.must(f'free {other}')
        cycle(machine, sharer, piece, 2)


def test_ends_with_the_event():
    with Machine(vmm=True) as machine:
        sharer = Sharer(machine)
        piece = sharer.must(f'alloc {BLOCK} 1')
        sharer.must(f'fill {piece} 4')
        sharer.must('event')
        refused(machine, sharer, 'event')
        sharer.must('forget')
        cycle(machine, sharer, piece, 4)


if __name__ == '__main__':
    harness.main(globals())
