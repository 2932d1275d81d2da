# SPDX-License-Identifier: MIT
"""What is kept of a process that runs again (-o keep=): only what has changed is copied."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, check, equal, error_of, same_for_both, wait_for
from library import CONNECTING
from pieces import Pieces, noise

CHUNK = 65536


def kept_in_all(machine):
    return int(machine.status_of_all()['kept_bytes'])


def kept(machine, pid):
    return int(machine.status(pid)['kept_bytes'])


def check_none(machine, pieces, words):
    equal(kept(machine, pieces.pid), 0, words)
    equal(os.listdir(pieces.path()), [], words)


def test_cycles():
    """Ten times over, while the program changes its memory: right bytes in the files, and back."""
    with vmm.machine(options=',keep=256M') as machine:
        demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 4, '--tick', 3)
        equal(kept(machine, demo.pid), 0)
        for _ in range(10):
            machine.must(demo.pid, 'freeze')
            equal(kept(machine, demo.pid), 0)
            vmm.check_files(machine, demo)
            machine.must(demo.pid, 'thaw')
            equal(kept(machine, demo.pid), 24 * MIB)
            demo.wait_ticks()
        check(kept_in_all(machine) >= 24 * MIB, 'kept_bytes')
        demo.end()
        wait_for(lambda: kept_in_all(machine) == 0, 'what is kept to go')


def test_another_program():
    """The process becomes another program by execve(2): nothing is kept of the first one for it,
    since how much of it is copied would tell what the first one had."""
    with vmm.machine(options=',keep=256M') as machine:
        path = f'{machine.directory}/another'
        with open(path, 'w', encoding='ascii') as file:
            file.write(f'#!/bin/sh\nunset LD_PRELOAD\nexec {" ".join(vendor.RUN)} '
                       f'{" ".join(vendor.DEMO)} --bytes 24M --buffers 4 --tick 50\n')
        os.chmod(path, 0o755)
        demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 4, '--tick', 3,
                        env={'LD_PRELOAD': CONNECTING, 'GPUCR_TEST_NEXT': path})
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        equal(kept(machine, demo.pid), 24 * MIB)
        count = demo.output.lines.count('tick 1 ok')
        os.kill(demo.pid, signal.SIGUSR1)
        wait_for(lambda: demo.output.lines.count('tick 1 ok') > count, 'the other program')
        machine.wait_status(demo.pid, 'engine', vendor.ENGINE)
        machine.must(demo.pid, 'freeze')
        equal(int(machine.status(demo.pid)['last_freeze_copied_bytes']), 24 * MIB)
        machine.must(demo.pid, 'thaw')
        machine.demos.remove(demo)  # its output is that of two programs
        demo.popen.kill()
        demo.popen.wait()


def only_what_has_changed(options):
    """To the chunk: what is copied, the files afterwards, and the program."""
    with vmm.machine(vram='512M', gpus=2, options=options) as machine:
        pieces = Pieces(machine, f'0:{6 * MIB}', f'1:{4 * MIB}', f'0:{2 * MIB}')

        def copied(*changes):
            for index, offset, data in changes:
                pieces.put(index, data, offset)
            pieces.freeze()
            pieces.check_files()
            pieces.wait_closed()
            status = machine.status(pieces.pid)
            pieces.thaw()
            equal(int(status['last_freeze_bytes']), 12 * MIB)
            return int(status['last_freeze_copied_bytes'])

        equal(copied(), 12 * MIB, 'the first time')
        equal(copied(), 0, 'nothing has changed')
        equal(copied((0, 5, b'x')), CHUNK)
        equal(copied((0, 6 * MIB - 1, b'x'), (1, 0, b'x'), (2, CHUNK - 1, b'xx')), 4 * CHUNK)
        equal(copied((0, 0, pieces.contents[0])), 0, 'the same bytes again')
        equal(copied((1, MIB, noise('new', MIB))), MIB)
        equal(copied((1, 0, bytes(2 * MIB))), 0, 'zeros')
        equal(copied((1, MIB, b'x')), CHUNK, 'a hole gets bytes')
        # Without what is kept, everything.
        pieces.freeze()
        pieces.thaw('thaw unverified')
        equal(copied(), 12 * MIB)
        equal(copied(), 0)


def test_only_what_has_changed():
    only_what_has_changed(',keep=256M')


def test_only_what_has_changed_with_a_pool():
    same_for_both('the pool of the store')
    only_what_has_changed(',keep=256M,pool=64M')


def test_failed_freeze():
    """What it may have left half written is not taken for what it was; digests made on the host."""
    with vmm.machine(options=',keep=256M') as machine:
        no_kernel = 'cuModuleLoadData comm=gpucr-worker error=CUDA_ERROR_INVALID_PTX'
        machine.faults(no_kernel)
        pieces = Pieces(machine, f'0:{6 * MIB}', f'0:{4 * MIB}')
        pieces.freeze()
        pieces.thaw()
        for turn in range(4):
            pieces.put(0, noise(f'{turn}', 3 * MIB), turn * 1000)
            fails = 'cuMemcpyDtoHAsync comm=gpucr-worker nth=1' if vendor.HIP else \
                'cuCheckpointProcessCheckpoint times=1'
            machine.faults(no_kernel, f'{fails} error=CUDA_ERROR_UNKNOWN')
            equal(machine.write(pieces.pid, 'freeze'), 'EIO')
            equal(machine.state(pieces.pid), 'running')
            pieces.check()
            pieces.put(1, b'x', turn)
            machine.faults(no_kernel)
            pieces.freeze()
            equal(machine.status(pieces.pid)['last_freeze_digests'], 'host')
            pieces.check_files()
            pieces.thaw()


def test_shown_while_it_runs():
    """snapshot/ is what was frozen last, and nobody can change it."""
    same_for_both('files of the store')
    with vmm.machine(options=',keep=256M') as machine:
        pieces = Pieces(machine, f'0:{4 * MIB}', f'0:{2 * MIB}')
        pieces.freeze()
        frozen = [bytes(content) for content in pieces.contents]
        pieces.thaw()
        equal(sorted(os.listdir(pieces.path())), ['digests', 'manifest', 'vram'])
        for index in range(2):
            pieces.put(index, noise('new', 1000), MIB)
            with open(pieces.file(index), 'rb') as file:
                check(file.read() == frozen[index], f'what is kept of piece {index}')
        path = pieces.file(0)
        for call in (lambda: os.open(path, os.O_RDWR), lambda: os.truncate(path, 0),
                     lambda: os.unlink(path), lambda: os.rename(path, pieces.path('other')),
                     lambda: os.mkdir(pieces.path('directory')), lambda: os.chmod(path, 0o644),
                     lambda: os.utime(path),
                     lambda: os.open(pieces.path('new'), os.O_WRONLY | os.O_CREAT)):
            equal(error_of(call), 'EBUSY')
        equal(kept(machine, pieces.pid), 6 * MIB)
        pieces.freeze()
        pieces.check_files()
        pieces.thaw()


def test_read_through_the_next_freeze():
    """Whoever has a file open goes on with its bytes; the freeze writes another file then."""
    same_for_both('files of the store')
    with vmm.machine(options=',keep=256M') as machine:
        pieces = Pieces(machine, f'0:{4 * MIB}', f'0:{4 * MIB}')
        for turn in range(3):
            pieces.freeze()
            pieces.thaw()
            frozen = bytes(pieces.contents[0])
            with open(pieces.file(0), 'rb', buffering=0) as file:
                check(file.read(4096) == frozen[:4096], 'while it runs')
                for index in range(2):
                    pieces.put(index, noise(f'{turn}', 4 * MIB))
                pieces.freeze()
                pieces.check_files()
                check(os.pread(file.fileno(), 4 * MIB, 0) == frozen, 'while it is frozen')
                pieces.thaw()
                check(os.pread(file.fileno(), 4 * MIB, 0) == frozen, 'while it runs again')


def test_goes_when_the_store_is_short():
    """The oldest first, and not all of them; a freeze that needs the room is not refused."""
    same_for_both('room in the store')
    with vmm.machine(vram='512M', options=',store_size=128M,keep=128M') as machine:
        first, second, third = [Pieces(machine, f'0:{16 * MIB}') for _ in range(3)]
        for pieces in second, first, third:
            pieces.freeze()
            pieces.thaw()
        equal([kept(machine, pieces.pid) for pieces in (first, second, third)], [16 * MIB] * 3)
        # What is free lacks less than one of them has; each has 6 MiB of metadata.
        big = Pieces(machine, *[f'0:{size * MIB}' for size in (18, 18, 18, 18)])
        big.freeze()
        big.check_files()
        check_none(machine, second, 'the oldest')
        equal(kept(machine, third.pid), 16 * MIB, 'the newest')
        # Who comes back is no longer the oldest: neither is there a place for big itself.
        equal(machine.write(third.pid, 'freeze'), 'ok')
        third.check_files()
        machine.must(big.pid, 'thaw')
        big.check()
        third.thaw()
        for pieces in first, second, third, big:
            pieces.freeze()
            pieces.check_files()
            pieces.thaw()


def test_limit():
    """What is larger than the limit is not kept; and the oldest makes place for the next."""
    same_for_both('room in the store')
    with vmm.machine(vram='512M', options=',keep=64M') as machine:
        large = Pieces(machine, f'0:{34 * MIB}', f'0:{34 * MIB}')
        small = [Pieces(machine, f'0:{20 * MIB}') for _ in range(3)]
        for pieces in small[0], small[1], large:
            pieces.freeze()
            pieces.thaw()
        check_none(machine, large, 'larger than the limit')
        equal([kept(machine, pieces.pid) for pieces in small], [20 * MIB, 20 * MIB, 0])
        small[2].freeze()
        small[2].thaw()
        equal([kept(machine, pieces.pid) for pieces in small], [0, 20 * MIB, 20 * MIB])
        check(kept_in_all(machine) <= 64 * MIB, 'the limit')
        check_none(machine, small[0], 'the oldest')


def test_not_kept():
    """Files that somebody could have changed, and those of managed memory, are not kept."""
    same_for_both('what the store keeps')
    with vmm.machine(vram='512M', options=',keep=256M') as machine:
        pieces = Pieces(machine, f'0:{4 * MIB}')
        pieces.freeze()
        pieces.thaw('thaw unverified')
        check_none(machine, pieces, 'unverified')
        pieces.freeze()
        with open(pieces.path('note'), 'w', encoding='utf-8') as file:
            file.write('mine')
        pieces.thaw()
        check_none(machine, pieces, 'written to')
        pieces.freeze()
        check(not os.path.lexists(pieces.path('note')), 'the note has been frozen')
        pieces.thaw()
        equal(kept(machine, pieces.pid), 4 * MIB)
        managed = Pieces(machine, f'0:{4 * MIB}', f'managed:{2 * MIB}')
        managed.freeze()
        managed.thaw()
        check_none(machine, managed, 'managed memory')
        equal(kept(machine, pieces.pid), 4 * MIB)


def test_writers_are_kept_out():
    """Who has a file open for writing when it is thawed cannot change what is kept."""
    same_for_both('files of the store')
    with vmm.machine(options=',keep=256M') as machine:
        pieces = Pieces(machine, f'0:{4 * MIB}', f'0:{2 * MIB}')
        pieces.freeze()
        fd = os.open(pieces.file(0), os.O_RDWR)
        byte = os.pread(fd, 1, MIB)
        os.pwrite(fd, byte, MIB)
        pieces.thaw()
        for _ in range(2):
            check(error_of(lambda: os.pwrite(fd, b'x', MIB)) in ('EBUSY', 'ESTALE'), 'a write')
            pieces.freeze()
            pieces.check_files()
            pieces.thaw()
        os.close(fd)


def test_daemon_killed():
    """The next one throws away what was kept; the program goes on and can be frozen."""
    with vmm.machine(options=',keep=256M', worker_idle=1) as machine:
        pieces = Pieces(machine, f'0:{4 * MIB}', f'0:{2 * MIB}')
        machine.expects_clean_exit = False
        for _ in range(2):
            pieces.freeze()
            pieces.thaw()
            equal(kept(machine, pieces.pid), 6 * MIB)
            machine.daemon.kill()
            machine.daemon.wait()
            pieces.check()
            wait_for(lambda: not machine.answers(), 'the mount to be stale')
            machine.start()
            machine.wait_status(pieces.pid, 'engine', vendor.ENGINE)
            equal(machine.state(pieces.pid), 'running')
            check_none(machine, pieces, 'of the daemon before')
            wait_for(lambda: machine.status_of_all()['store_used_bytes'] == '0', 'the sweep')
            pieces.put(0, noise('after', 5), MIB)
        pieces.freeze()
        pieces.check_files()
        pieces.thaw()


def test_process_ends():
    """Running or killed, nothing is kept of who has ended."""
    same_for_both('what the store keeps')
    with vmm.machine(options=',keep=256M') as machine:
        for number in signal.SIGTERM, signal.SIGKILL:
            pieces = Pieces(machine, f'0:{4 * MIB}')
            pieces.freeze()
            pieces.thaw()
            equal(kept_in_all(machine) // MIB >= 4, True)
            pieces.demo.end(number)
            wait_for(lambda: kept_in_all(machine) == 0, 'what is kept to go')
            wait_for(lambda: machine.status_of_all()['store_used_bytes'] == '0', 'its room')


def test_memory_comes_and_goes():
    """Allocations that are new, gone, or at the place of another; the others are used again."""
    with vmm.machine(vram='512M', options=',keep=256M') as machine:
        demo = vmm.demo(machine, '--bytes', '12M', '--buffers', 2, '--own-vmm', 3, '--tick', 2)
        for _ in range(8):
            machine.must(demo.pid, 'freeze')
            vmm.check_files(machine, demo)
            machine.must(demo.pid, 'thaw')
            check(kept(machine, demo.pid) > 0, 'kept')
            demo.wait_ticks(5)


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
