# SPDX-License-Identifier: MIT
"""Legacy CUDA IPC between programs with the library, one of which is frozen: the other one waits, and
is not held up itself; and as many pieces as they like."""
import functools
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import stranger
import vmm
from harness import Skip, check, equal, is_root, needs_cuda, wait_for
from sharer import BLOCK, Sharer

BLOCKS = 3000
INVALID_VALUE = 1
# It used to be told that there was no such memory after 30 s.
LONG_SEC = 32


def start(machine, bytes_=BLOCK, count=1):
    """An exporter, an importer, and the file with the handles."""
    exporter, importer = Sharer(machine), Sharer(machine)
    exporter.must(f'alloc {bytes_} {count}')
    exporter.must('fill 0 11')
    path = f'{machine.directory}/handles'
    exporter.must(f'give 0 {count} {path}')
    return exporter, importer, path


def cycle(machine, *sharers):
    for sharer in sharers:
        machine.must(sharer.pid, 'freeze')
        machine.must(sharer.pid, 'thaw')


def waits(sharer, tick, seconds=0.5 * harness.SLOW):
    time.sleep(seconds)
    check(not sharer.is_done(tick), 'it waits')


def opens(importer, tick):
    result, piece = importer.end(tick)
    equal(result, 0, 'the open')
    equal(importer.must(f'check {piece} 11'), 1, 'the memory')
    return piece


def test_exporter_is_frozen():
    """For long. The importer waits, and is frozen and thawed in between as any program."""
    with vmm.machine() as machine:
        exporter, importer, path = start(machine)
        machine.must(exporter.pid, 'freeze')
        tick = importer.begin(f'open 1 {path}')
        waits(importer, tick)
        since = time.monotonic()
        while time.monotonic() < since + LONG_SEC:
            cycle(machine, importer)
            waits(importer, tick, 4)
        # Frozen as the other one comes back, it gets it when it is thawed.
        machine.must(importer.pid, 'freeze')
        machine.must(exporter.pid, 'thaw')
        waits(importer, tick)
        # It has nothing of it yet, so that the exporter is free to go.
        cycle(machine, exporter)
        machine.must(importer.pid, 'thaw')
        piece = opens(importer, tick)
        for sharer in exporter, importer:
            equal(machine.write(sharer.pid, 'freeze'), 'EOPNOTSUPP')
        importer.must(f'free {piece}')
        cycle(machine, importer)
        wait_for(lambda: machine.write(exporter.pid, 'freeze') == 'ok', 'the exporter to know')


def test_exporter_ends():
    """Frozen, while another one waits for it: then there is no such memory."""
    with vmm.machine() as machine:
        exporter, importer, path = start(machine)
        machine.must(exporter.pid, 'freeze')
        tick = importer.begin(f'open 1 {path}')
        waits(importer, tick)
        exporter.demo.end(signal.SIGKILL)
        equal(importer.end(tick, seconds=5 * harness.SLOW)[0], INVALID_VALUE)
        equal(importer.ask(f'open 1 {path}')[0], INVALID_VALUE)
        cycle(machine, importer)


def test_freeze_that_is_rolled_back():
    """It is opened in the middle of the exporter's freeze, which fails then."""
    with vmm.machine() as machine:
        exporter, importer, path = start(machine)
        for fault in ('cuMemUnmap', 'cuMemRelease'):
            machine.watch_faults()
            machine.faults(f'{fault} pid={exporter.pid} times=1 delay_ms={1500 * harness.SLOW} '
                           f'error=CUDA_ERROR_UNKNOWN')
            writer = machine.writer(exporter.pid, 'freeze')
            machine.wait_faulted()
            tick = importer.begin(f'open 1 {path}')
            waits(importer, tick)
            check(writer.is_waiting(), 'it is in the middle')
            check(writer.result() != 'ok', 'the freeze')
            machine.faults()
            importer.must(f'free {opens(importer, tick)}')
            equal(exporter.must('check 0 11'), 1)


def test_handles_given_out():
    """That nobody has opened are no obstacle for a freeze. A dump is refused, since they could not be
    opened elsewhere; who waits for one goes on waiting."""
    needs_cuda('a dump of a process alone')
    with dump.machine() as machine:
        exporter = Sharer(machine, program=functools.partial(dump.Program, machine))
        importer = Sharer(machine)
        exporter.must(f'alloc {BLOCK} 1')
        exporter.must('fill 0 11')
        path = f'{machine.directory}/handles'
        exporter.must(f'give 0 1 {path}')
        cycle(machine, exporter)
        machine.must(exporter.pid, 'freeze')
        tick = importer.begin(f'open 1 {path}')
        waits(importer, tick)
        equal(machine.write(exporter.pid, 'dump leave'), 'EOPNOTSUPP')
        equal(machine.state(exporter.pid), 'frozen')
        waits(importer, tick)
        machine.must(exporter.pid, 'thaw')
        importer.must(f'free {opens(importer, tick)}')


def test_many_pieces():
    """With one descriptor for all."""
    with vmm.machine(vram='16G') as machine:
        exporter, importer, path = start(machine, BLOCK, BLOCKS)
        exporter.must(f'fill {BLOCKS - 1} 11')
        before = exporter.must('fds'), importer.must('fds')
        result, first = importer.ask(f'open {BLOCKS} {path}', seconds=100 * harness.SLOW)
        equal([result, first], [0, 0], 'the opens')
        equal(importer.must(f'check {BLOCKS - 1} 11'), 1)
        after = exporter.must('fds'), importer.must('fds')
        equal([after[0] - before[0], after[1] - before[1]], [1, 1], 'descriptors')
        # All but one are closed: still shared, and then not any more.
        for piece in range(1, 40):
            importer.must(f'free {piece}')
        equal(machine.write(exporter.pid, 'freeze'), 'EOPNOTSUPP')
        importer.demo.end(signal.SIGKILL)
        wait_for(lambda: exporter.must('fds') == before[0], 'the connection to end')
        equal(exporter.must('check 0 11'), 1)


def test_closed_one_by_one():
    """The exporter knows what is open when, and the descriptor goes with the last."""
    with vmm.machine() as machine:
        exporter, importer, path = start(machine, BLOCK, 5)
        before = importer.must('fds')
        importer.must(f'open 5 {path}')
        for piece in range(4):
            importer.must(f'free {piece}')
            equal(machine.write(exporter.pid, 'freeze'), 'EOPNOTSUPP')
        importer.must('free 4')
        equal(importer.must('fds'), before)
        wait_for(lambda: machine.write(exporter.pid, 'freeze') == 'ok', 'the exporter to know')
        machine.must(exporter.pid, 'thaw')
        importer.must(f'open 5 {path}')
        equal(importer.must('check 5 11'), 1)


def test_stranger():
    """Another user's descriptors, whose close(2) waits for ever, do not keep an exporter from answering
    others."""
    if not is_root():
        raise Skip('several users are needed')
    stranger.needs_refusal()
    with vmm.machine() as machine:
        before = stranger.names_of('gpucr-ipc-')
        exporter, importer, path = start(machine)

        def send(report):
            stranger.send(lambda: [name for name in stranger.names_of('gpucr-ipc-')
                                   if name not in before], report)

        with stranger.stranger(send) as reported:
            found = b''

            def has_sent():
                nonlocal found
                found += reported()
                return b'.' in found

            wait_for(has_sent, 'the stranger')
            piece = opens(importer, importer.begin(f'open 1 {path}'))
            check(b'r' in found and b't' not in found, f'it takes descriptors: {found}')
            importer.must(f'free {piece}')
            wait_for(lambda: machine.write(exporter.pid, 'freeze') == 'ok', 'the exporter to know')
            machine.must(exporter.pid, 'thaw')


if __name__ == '__main__':
    harness.main(globals())
