# SPDX-License-Identifier: MIT
"""Programs without the preload library that may share GPU memory: nobody can see whether they do,
and a freeze of one that does would be its end."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import Machine, check, equal, needs_cuda, wait_for
from sharer import BLOCK, FD, PROGRAM, Sharer

OTHER_UID = 4711


def library(machine, name):
    """A file of that name, to be mapped."""
    os.makedirs(os.path.dirname(f'{machine.directory}/{name}'), exist_ok=True)
    with open(f'{machine.directory}/{name}', 'wb') as file:
        file.write(bytes(4096))
    return file.name


def start(machine, name='libnccl.so.2', **options):
    """One that has a piece of memory, and the library mapped if it is named; of a tree of its own."""
    sharer = Sharer(machine, preloaded=False,
                    command=['sh', '-c', '"$@" & wait', 'sh', *vendor.RUN, PROGRAM], **options)
    sharer.must(f'alloc {BLOCK} 1')
    sharer.must('fill 0 3')
    if name:
        sharer.must(f'map {library(machine, name)}')
    return sharer


def end(sharer):
    """The process itself, and its parent with it."""
    os.kill(sharer.pid, signal.SIGKILL)
    sharer.demo.end()


def refused(machine, sharer, others, name='libnccl.so.2', verb='freeze'):
    equal(machine.write(sharer.pid, verb), 'EOPNOTSUPP')
    words = machine.error(sharer.pid)
    check(name in words and 'unseen' in words, words)
    check(any(f'process {other.pid} ' in words for other in others), words)
    equal(machine.state(sharer.pid), 'running')
    equal(sharer.must('check 0 3'), 1)


def cycle(machine, sharer, verb='freeze'):
    machine.must(sharer.pid, verb)
    equal(machine.state(sharer.pid), 'frozen')
    machine.must(sharer.pid, 'thaw')
    equal(sharer.must('check 0 3'), 1)


def test_two_ranks():
    """They share, as ranks of NCCL do; the simulator loses them as the driver does."""
    needs_cuda('programs without the library')
    with Machine() as machine:
        one, two = start(machine), start(machine)
        piece = one.must(f'create {BLOCK} {FD}')
        fd = one.must(f'export {piece} {FD}')
        two.must(f'import {one.pid} {fd} {BLOCK}')
        refused(machine, one, [two])
        refused(machine, two, [one])
        for verb in 'freeze', 'dump', 'dump leave':
            equal(machine.write(None, f'{verb} {one.pid} {two.pid}') if verb == 'freeze'
                  else machine.write(one.pid, verb), 'EOPNOTSUPP', verb)
            for rank in one, two:
                equal(machine.state(rank.pid), 'running')
                equal(rank.must('check 0 3'), 1)


def test_the_writer_says_so():
    needs_cuda('programs without the library')
    with Machine() as machine:
        one, two = start(machine), start(machine)
        refused(machine, one, [two])
        cycle(machine, one, 'freeze unseen')
        machine.must(None, f'freeze unseen {one.pid} {two.pid}')
        machine.must(None, f'thaw {one.pid} {two.pid}')
        for rank in one, two:
            equal(rank.must('check 0 3'), 1)
        for text in 'freeze unseen=1', 'freeze unseen unseen', 'thaw unseen':
            equal(machine.write(one.pid, text), 'EINVAL', text)


def test_who_does_not_count():
    """One alone, one with another library, one of another user, and one that has ended."""
    needs_cuda('programs without the library')
    with Machine() as machine:
        one = start(machine)
        cycle(machine, one)
        two = start(machine, 'libnvshmem_host.so.3')
        cycle(machine, one)
        cycle(machine, two)
        three = start(machine, None)
        cycle(machine, one)
        three.must(f'map {library(machine, "libnccl-net.so")}')
        refused(machine, one, [three])
        refused(machine, three, [one], 'libnccl-net.so')
        end(three)
        cycle(machine, one)


def test_names():
    needs_cuda('programs without the library')
    with Machine() as machine:
        for name in ('libnvshmem_host.so.3', 'libmscclpp.so.0', 'libuct_cuda-1a2b.so.0',
                     'mca_btl_smcuda.so'):
            one, two = start(machine, name), start(machine, name)
            refused(machine, one, [two], name)
            end(one)
            end(two)
        # Its bytes are shown on a terminal.
        one, two = start(machine, 'libnccl\x1b[2J.so'), start(machine)
        refused(machine, one, [two], 'libnccl?[2J.so')
        # Names that only look so.
        end(one)
        three, four = start(machine, 'shm/nccl-1'), start(machine, 'libnccl.so.d/x')
        cycle(machine, three)
        cycle(machine, four)


def test_segments_of_one_linked_in():
    """NCCL that is part of the program: what it has mapped of /dev/shm says so."""
    needs_cuda('programs without the library')
    with Machine() as machine:
        one, two = start(machine, None), start(machine, None)
        path = f'/dev/shm/nccl-gpucr{harness.unique()}'
        with open(path, 'wb') as file:
            file.write(bytes(4096))
        try:
            one.must(f'map {path}')
            two.must(f'map {path}')
        finally:
            os.unlink(path)
        refused(machine, one, [two], 'nccl-gpucr')


def test_a_library_that_sees():
    """Of two, one runs with the preload library: what it shares with the other, it has seen."""
    needs_cuda('programs without the library')
    with Machine() as machine:
        one = start(machine)
        seen = Sharer(machine)
        seen.must(f'map {library(machine, "libnccl.so.2")}')
        wait_for(lambda: 'without' not in machine.status(seen.pid)['engine_reason'], 'its library')
        piece = seen.must(f'create {BLOCK} {FD}')
        cycle(machine, one)
        machine.must(seen.pid, 'freeze')
        machine.must(seen.pid, 'thaw')
        seen.must(f'export {piece} {FD}')
        refused(machine, one, [seen])
        seen.must(f'free {piece}')
        cycle(machine, one)


def test_begins_before_lock():
    """The library is mapped when the freeze has looked, and before the process is locked."""
    needs_cuda('programs without the library')
    with Machine() as machine:
        one, two = start(machine, None), start(machine)
        machine.watch_faults()
        machine.faults(f'cuCheckpointProcessLock pid={one.pid} times=1 '
                       f'delay_ms={2000 * harness.SLOW}')
        writer = machine.writer(one.pid, 'freeze')
        machine.wait_faulted()
        one.must(f'map {library(machine, "libnccl.so.2")}')
        check(writer.is_waiting(), 'it is locked only now')
        equal(writer.result(), 'EOPNOTSUPP')
        refused(machine, one, [two])


def test_launcher():
    """Two ranks of one launcher: written to that, or to both, it is all or none."""
    needs_cuda('programs without the library')
    with Machine() as machine:
        lines = [f'{machine.directory}/rank-{number}' for number in range(2)]
        for path in lines:
            os.mkfifo(path)
        script = ' '.join(f'"$@" {path} >> {path}.out &' for path in lines)
        launcher = subprocess.Popen(['sh', '-c', f'{script} wait', 'sh', *vendor.RUN, PROGRAM],
                                    env={**machine.env, 'GPUCR_PRELOAD': ''},
                                    stdin=subprocess.DEVNULL)
        writers = [os.open(path, os.O_RDWR) for path in lines]

        def pids():
            with open(f'/proc/{launcher.pid}/task/{launcher.pid}/children',
                      encoding='utf-8') as file:
                return [int(pid) for pid in file.read().split()]

        try:
            for number, fd in enumerate(writers):
                os.write(fd, f'map {library(machine, "libnccl.so.2")}\n'.encode())
                path = f'{lines[number]}.out'
                harness.wait_for(lambda: os.path.exists(path) and
                                 'tick 2 ok' in harness.read_file(path), 'the rank')
            equal(machine.write(launcher.pid, 'freeze'), 'EOPNOTSUPP')
            words = ''.join(machine.error(pid) for pid in pids())
            check('libnccl' in words and 'unseen' in words, words)
            for pid in pids():
                equal(machine.state(pid), 'running')
            machine.must(launcher.pid, 'freeze unseen')
            for pid in pids():
                equal(machine.state(pid), 'frozen')
            machine.must(launcher.pid, 'thaw')
        finally:
            for pid in [*pids(), launcher.pid]:
                harness.try_kill(pid, signal.SIGKILL)
            launcher.wait()
            for fd in writers:
                os.close(fd)


def test_users():
    """Another user's processes are no matter, unless one is below the other: a parent in common may
    be an init, which has adopted both."""
    needs_cuda('programs without the library')
    if not harness.is_root():
        raise harness.Skip('needs root')
    with Machine() as machine:
        one = start(machine)
        other = start(machine, uid=OTHER_UID)
        cycle(machine, one)
        cycle(machine, other)
        # Children of one process, which are of two users.
        sibling = Sharer(machine, preloaded=False)
        sibling.must(f'map {library(machine, "libnccl.so.2")}')
        another = Sharer(machine, preloaded=False, uid=OTHER_UID)
        another.must(f'map {library(machine, "libnccl.so.2")}')
        end(one)
        end(other)
        machine.must(sibling.pid, 'freeze')
        machine.must(sibling.pid, 'thaw')
        third = Sharer(machine, preloaded=False)
        third.must(f'map {library(machine, "libnccl.so.2")}')
        equal(machine.write(sibling.pid, 'freeze'), 'EOPNOTSUPP')
        check(f'process {third.pid} ' in machine.error(sibling.pid), machine.error(sibling.pid))


if __name__ == '__main__':
    harness.main(globals())
