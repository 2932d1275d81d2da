# SPDX-License-Identifier: MIT
"""The files that a library gets for managed memory: whatever it does with them, they are not the
store's, and nothing that its program has written is lost."""
import contextlib
import errno
import fcntl
import os
import stat
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import MIB, check, equal, same_for_both
from library import FILES, LIST, OUT, SETTLE, Library
from test_lying_library import MANAGED, gpu_uuid, lists
from test_vmm_managed import WRITES, Writers, kill_daemon

ALICE = 4001
STORE = 600 * MIB
QUOTA = 16 * MIB
SIZE = 4 * MIB


def as_user(work):
    """Of one who is not root, with all the descriptors that we have; what it returns."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.setgroups([])
        os.setgid(ALICE)
        os.setuid(ALICE)
        os.write(writer, str(work()).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as answer:
        return int(answer.read())


def fill(fd):
    """Write past the end for as long as there is room; how many bytes."""
    written = 0
    try:
        while written < STORE:
            written += os.pwrite(fd, b'x' * MIB, written)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    return written


def lease(fd):
    """1: it could be taken."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return 1
    return 0


def store_free(machine):
    figures = os.statvfs(f'{machine.runtime}/store')
    return figures.f_bfree * figures.f_frsize


def lying(machine):
    """It has managed memory, and keeps the files that it gets."""
    library = Library(machine)
    library.kept = []
    library.on[LIST] = again(library, lists((1 << 40, SIZE, 1, gpu_uuid(machine), MANAGED)))
    # Its table says that it has some.
    os.pwrite(library.page, (7).to_bytes(8, 'little') + (0).to_bytes(8, 'little') +
              SIZE.to_bytes(8, 'little') + (1).to_bytes(4, 'little'), 16)
    return library


def again(library, answer):
    def answer_each(lying_, sequence):
        library.on[LIST] = answer_each
        answer(lying_, sequence)
    return answer_each


def files(library):
    """Of those that it keeps."""
    return [fd for fd in library.kept if stat.S_ISREG(os.fstat(fd).st_mode)]


def is_of_store(machine, fd):
    return os.fstat(fd).st_dev == os.stat(f'{machine.runtime}/store').st_dev


def machine_with_store(**options):
    harness.needs_cuda('managed memory')
    if os.geteuid():
        raise harness.Skip('a store with a mount of its own is root\'s')
    return vmm.machine(options=f',store_size={STORE},user_store={QUOTA}', **options)


def test_descriptor_is_kept():
    """It takes nothing of the store: not while its program is frozen, and not afterwards."""
    with machine_with_store() as machine:
        library = lying(machine)
        honest = vmm.demo(machine, '--bytes', '64M', '--buffers', 2)
        for verb in ('freeze', 'thaw'):
            del library.kept[:]
            machine.must(library.pid, verb)
            kept = files(library)
            check(kept, f'{verb}: files')
            before = store_free(machine)
            for fd in kept:
                check(not is_of_store(machine, fd), f'{verb}: a file of the store')
                most = as_user(lambda fd=fd: fill(fd))
                check(most <= SIZE, f'{verb}: {most} bytes')
                equal(as_user(lambda fd=fd: lease(fd)), 0, 'lease')
            check(store_free(machine) >= before, f'{verb}: room in the store')
        machine.must(library.pid, 'freeze')
        machine.must(honest.pid, 'freeze')
        machine.must(honest.pid, 'thaw')


def test_nothing_stays_in_it():
    """What the daemon has put into one that is kept does not stay in memory."""
    with machine_with_store() as machine:
        library = lying(machine)
        library.on[FILES] = write_all
        machine.must(library.pid, 'freeze')
        equal(sum(os.fstat(fd).st_blocks for fd in files(library)), 0, 'after the freeze')
        del library.kept[:]
        library.on[FILES] = check_all
        machine.must(library.pid, 'thaw')
        check(files(library), 'files')
        equal(sum(os.fstat(fd).st_blocks for fd in files(library)), 0, 'after the thaw')


def content(size):
    return bytes(range(1, 252)) * (size // 251 + 1)


def write_all(library, sequence):
    os.pwrite(files(library)[-1], content(SIZE)[:SIZE], 0)
    library.answer(sequence)


def check_all(library, sequence):
    same = os.pread(files(library)[-1], SIZE, 0) == content(SIZE)[:SIZE]
    library.answer(sequence, 0 if same else errno.EIO, 'other bytes')


def test_file_that_is_cut():
    """A freeze fails, and what is in the store is what it was."""
    def cut(library_, sequence):
        for fd in files(library_):
            os.ftruncate(fd, 0)
        library_.answer(sequence)

    def cut_and_fail(library_, sequence):
        for fd in files(library_):
            os.ftruncate(fd, 0)
        library_.answer(sequence, errno.EIO, 'it is said')

    with machine_with_store() as machine:
        library = lying(machine)
        library.on[FILES] = cut
        equal(machine.write(library.pid, 'freeze'), 'EIO')
        check('cut' in machine.error(library.pid), machine.error(library.pid))
        equal(machine.state(library.pid), 'running')
        del library.kept[:]
        library.on[FILES] = write_all
        machine.must(library.pid, 'freeze')
        del library.kept[:]
        library.on[SETTLE] = cut_and_fail
        equal(machine.write(library.pid, 'thaw'), 'EIO')
        equal(machine.state(library.pid), 'frozen')
        equal(library.phase, OUT)
        del library.kept[:]
        library.on[FILES] = check_all
        machine.must(library.pid, 'thaw')


def test_daemon_is_killed_as_bytes_come_back():
    """What a system call got while they did is in no other file than the library's."""
    same_for_both('how threads are stopped')
    with vmm.machine() as machine, Writers(machine) as writers:
        machine.must(writers.pid, 'freeze data')
        writers.say(b'new words')
        equal(writers.hear(0.2), b'')
        machine.faults(f'cuMemcpyHtoD {WRITES} nth=1 delay_ms=3000 error=CUDA_ERROR_UNKNOWN')
        machine.writer(writers.pid, 'thaw')
        machine.wait_status(writers.pid, 'phase', 'map')
        harness.wait_for(lambda: writers.is_stopped() or writers.tracers(), 'the halt')
        kill_daemon(machine)
        machine.faults()
        machine.start()
        machine.wait_status(writers.pid, 'verb', '-')
        if machine.state(writers.pid) != 'running':
            machine.must(writers.pid, 'thaw')
        equal(writers.hear(), b'new words')
        writers.wait_ticks(1)


if __name__ == '__main__':
    harness.main(globals())
