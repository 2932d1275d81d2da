# SPDX-License-Identifier: MIT
"""Preload libraries that do not answer in the middle of a verb. Others wait for one of them at most,
however many of them one user has, and whatever size they claim."""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
import vmm
from harness import MIB, check, equal, wait_for
from library import HAND_OVER, LIST, Library
from test_lying_library import MANAGED, device, gpu_uuid, lists

ATTACKER, OTHER = 65533, 65532
SILENT = 4
GIB = 1 << 30
CLAIMED_GIB = 10
# One process is waited for 10 seconds; the rest is the time of an honest verb.
BOUND_SEC = 10 + 7 * harness.SLOW


def silent_library(machine, extents, **options):
    """Lists @extents whenever it is asked, and is silent as soon as it is to hand them over."""
    library = Library(machine, connections=1, **options)
    answer = lists(*extents)

    def again(library, sequence):
        library.on[LIST] = again
        answer(library, sequence)
    library.on[LIST] = again
    library.on[HAND_OVER] = lambda library, sequence: None
    return library


def is_silent(library):
    return HAND_OVER in library.asked


def check_in_time(machine, demo, verb, uid, bound_sec=BOUND_SEC):
    writer = machine.writer(demo.pid, verb, uid=uid)
    equal(writer.result(4 * bound_sec), 'ok', machine.error(demo.pid))
    check(writer.seconds < bound_sec, f'{verb}: {writer.seconds} s')


def end(libraries):
    for library in libraries:
        library.demo.end()


def begin_silent_freezes(machine, uid):
    """Freezes that @uid writes on the attacker's silent libraries, of which one has the worker."""
    extents = device(gpu_uuid(machine), 1, 2 * MIB)
    libraries = [silent_library(machine, extents, uid=ATTACKER) for _ in range(SILENT)]
    writers = [machine.writer(library.pid, 'freeze timeout=600', uid=uid) for library in libraries]
    wait_for(lambda: any(map(is_silent, libraries)), 'one of them to be silent')
    wait_for(lambda: all(machine.status(library.pid).get('phase') in ('worker', 'handover')
                         for library in libraries), 'all to wait for the worker')
    return libraries, writers


def check_many(verb, uid, others_uid):
    """Verbs that @uid writes, on processes of one user. Meanwhile @others_uid writes one on a process
    of another user."""
    with vmm.machine(vram='1G') as machine:
        honest = vmm.demo(machine, '--bytes', '4M', '--buffers', 1, uid=OTHER)
        if verb == 'thaw':
            machine.must(honest.pid, 'freeze')
        libraries, writers = begin_silent_freezes(machine, uid)
        check_in_time(machine, honest, verb, others_uid)
        check(sum(map(is_silent, libraries)) < SILENT, 'all had their turns before')
        check(all(writer.is_waiting() for writer in writers), 'verbs of silent libraries')
        end(libraries)
        honest.wait_ticks(0 if verb == 'freeze' else 2)


def test_many_in_a_freeze():
    check_many('freeze', ATTACKER, OTHER)


def test_many_in_a_thaw():
    check_many('thaw', ATTACKER, OTHER)


def test_many_for_root():
    """Root writes them all: then the users of the processes count."""
    check_many('freeze', None, None)


def frozen_demos(machine, count, uid):
    demos = [vmm.demo(machine, '--bytes', '4M', '--buffers', 1, uid=uid) for _ in range(count)]
    for demo in demos:
        machine.must(demo.pid, 'freeze')
    return demos


def begin_thaws(machine, demos):
    """The driver's restore does not end in them."""
    machine.watch_faults()
    machine.faults(*(f'cuCheckpointProcessRestore pid={demo.pid} action=hang' for demo in demos))
    return [machine.writer(demo.pid, 'thaw timeout=600', uid=ATTACKER) for demo in demos]


def test_many_thaws():
    """The admission goes round among users, too."""
    harness.needs_cuda('a restore by the driver')
    with vmm.machine(vram='1G') as machine:
        honest, = frozen_demos(machine, 1, OTHER)
        demos = frozen_demos(machine, 6, ATTACKER)
        writers = begin_thaws(machine, demos)
        machine.wait_faulted()
        check_in_time(machine, honest, 'thaw', OTHER)
        check(all(writer.is_waiting() for writer in writers), 'verbs of silent programs')
        machine.faults()
        for demo in demos:
            demo.end()


def test_thaws_among_freezes():
    """A thaw that waits for the worker has the admission meanwhile: it goes ahead of its user's
    freezes, however many there are."""
    harness.needs_cuda('a restore by the driver')
    with vmm.machine(vram='1G') as machine:
        honest, = frozen_demos(machine, 1, OTHER)
        demos = frozen_demos(machine, 2, ATTACKER)
        libraries, writers = begin_silent_freezes(machine, ATTACKER)
        thaws = begin_thaws(machine, demos)
        wait_for(lambda: machine.status_of_all()['admissions'] != '-', 'a thaw to be admitted')
        # Two turns at the worker, and what is left to a verb that has waited for one.
        check_in_time(machine, honest, 'thaw', OTHER, BOUND_SEC + 13)
        check(all(writer.is_waiting() for writer in writers + thaws), 'verbs that are not answered')
        machine.faults()
        end(libraries)
        for demo in demos:
            demo.end()


def check_claim(extra, words):
    """A library lists much more than its program has, and is silent."""
    with vmm.machine(vram=f'{4 * CLAIMED_GIB}G') as machine:
        honest = vmm.demo(machine, '--bytes', '4M', '--buffers', 1, uid=OTHER)
        uuid = gpu_uuid(machine)
        library = silent_library(machine, extra(uuid), uid=ATTACKER)
        writer = machine.writer(library.pid, 'freeze timeout=600', uid=ATTACKER)
        wait_for(lambda: is_silent(library) or not writer.is_waiting(), 'it to be silent')
        check(writer.is_waiting(), machine.error(library.pid))
        since = time.monotonic()
        check_in_time(machine, honest, 'freeze', OTHER)
        check(time.monotonic() - since < BOUND_SEC, words)
        end([library])


def test_claims_device_memory():
    check_claim(lambda uuid: device(uuid, CLAIMED_GIB, GIB), 'device memory')


def test_claims_managed_memory():
    """Of managed memory counts what its library has written to the files."""
    harness.needs_cuda('managed memory')
    check_claim(lambda uuid: device(uuid, 1, 2 * MIB) +
                [((1 << 42) + index * GIB, GIB, index + 2, uuid, MANAGED)
                 for index in range(CLAIMED_GIB)], 'managed memory')


def test_time_after_a_thaw():
    """The driver counts what a thaw has given for no process: it is nevertheless the process's, and
    gives it time."""
    harness.needs_cuda('a checkpoint by the driver')
    with vmm.machine(vram='4G') as machine:
        demo = vmm.demo(machine, '--bytes', '1536M', '--buffers', 1)
        vmm.cycle(machine, demo)
        machine.faults(f'cuCheckpointProcessCheckpoint pid={demo.pid} delay_ms=10700')
        machine.must(demo.pid, 'freeze timeout=600')
        check('does not answer' not in machine.log(), machine.log())


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
