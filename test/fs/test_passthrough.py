# SPDX-License-Identifier: MIT
"""Large files of a snapshot are read by the kernel itself, and nobody sees a difference: with who
writes at the same time, with verbs, with names that change, and when the daemon is gone."""
import ctypes
import mmap
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import MIB, NOBODY, Machine, Skip, check, equal, error_of, is_root, wait_for
from mapping import Mapping

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16  # linux/falloc.h
ARGUMENTS = ('--bytes', '8M', '--buffers', '1', '--tick', 20)


def passing_machine(**options):
    """A machine whose kernel reads for itself."""
    machine = Machine(vmm=True, **options)
    if machine.status_of_all()['passthrough'] != 'yes':
        machine.stop()
        machine.finish()
        raise Skip(f'Linux {os.uname().release} does not, or not for us')
    return machine


class Frozen:
    """A frozen program and its largest file."""

    def __init__(self, machine, uid=None):
        self.machine = machine
        self.demo = machine.ready_demo(*ARGUMENTS, uid=uid)
        self.pid = self.demo.pid
        machine.wait_status(self.pid, 'engine', vendor.ENGINE)
        machine.must(self.pid, 'freeze')
        self.directory = machine.path(self.pid, 'snapshot', 'vram')
        self.path = max((f'{self.directory}/{name}' for name in os.listdir(self.directory)),
                        key=lambda path: os.stat(path).st_size)
        self.size = os.stat(self.path).st_size
        with open(self.path, 'rb') as file:
            self.bytes = file.read()
        equal(len(self.bytes), self.size)
        check(any(self.bytes), 'the demo has written something')

    def thaw(self):
        self.machine.must(self.pid, 'thaw')
        self.demo.wait_ticks()


def passes_through(fd):
    """Where it does, it can be mapped."""
    try:
        mmap.mmap(fd, 1, mmap.MAP_SHARED, mmap.PROT_READ).close()
        return True
    except OSError as error:
        equal(harness.name_of(error.errno), 'ENODEV')
        return False


def test_without_the_daemon():
    """It is stopped, then killed: what is open is read on."""
    with passing_machine() as machine:
        frozen = Frozen(machine)
        fd = os.open(frozen.path, os.O_RDONLY)
        mapping = mmap.mmap(fd, frozen.size, mmap.MAP_SHARED, mmap.PROT_READ)
        machine.daemon.send_signal(signal.SIGSTOP)
        try:
            check(os.pread(fd, frozen.size, 0) == frozen.bytes, 'while the daemon is stopped')
            check(mapping[:] == frozen.bytes, 'the mapping')
            equal(os.pread(fd, 10, frozen.size), b'')
            equal(os.pread(fd, 10, frozen.size - 3), frozen.bytes[-3:])
        finally:
            machine.daemon.send_signal(signal.SIGCONT)
        machine.daemon.kill()
        machine.daemon.wait()
        check(os.pread(fd, frozen.size, 0) == frozen.bytes, 'without a daemon')
        machine.start()
        machine.wait_status(frozen.pid, 'state', 'frozen')
        # The next daemon does not know who may have it mapped: no holes in what has none.
        with harness.open_both(frozen.path) as file:
            harness.LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64,
                                               ctypes.c_int64]
            equal(harness.LIBC.fallocate(file.fileno(), PUNCH_HOLE | KEEP_SIZE, 0, 4 * MIB), 0)
            equal(os.pread(file.fileno(), 4 * MIB, 0), bytes(4 * MIB))
            check(os.fstat(file.fileno()).st_blocks * 512 >= frozen.size, 'it is all there')
            equal(os.pwrite(file.fileno(), frozen.bytes[:4 * MIB], 0), 4 * MIB)
        # Nor who else reads it, when it has let another one pass.
        with open(frozen.path, 'rb') as file:
            check(passes_through(file.fileno()), 'it does not pass')
            frozen.thaw()
        wait_for(lambda: used(machine) == 0, 'its removal')
        check(os.pread(fd, frozen.size, 0) == frozen.bytes, 'who read before')
        os.close(fd)
        check(mapping[:] == frozen.bytes, 'after the thaw')
        mapping.close()


def test_where_not():
    """Not for files that are used again, nor where it is not wanted; small files never."""
    for options in (',pool=64M', ',keep=64M', ',nopassthrough'):
        with Machine(vmm=True, options=options) as machine:
            equal(machine.status_of_all()['passthrough'], 'no', options)
            frozen = Frozen(machine)
            with open(frozen.path, 'rb', buffering=0) as file:
                check(not passes_through(file.fileno()), options)
                check(file.read() == frozen.bytes, options)
            frozen.thaw()
    with passing_machine() as machine:
        frozen = Frozen(machine)
        for name, expected in (('manifest', False), ('digests', False),
                               (f'vram/{os.path.basename(frozen.path)}', True)):
            with open(machine.path(frozen.pid, 'snapshot', name), 'rb') as file:
                equal(passes_through(file.fileno()), expected, name)
        frozen.thaw()


def is_readable(mapping):
    """False: SIGBUS."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        bytes(mapping[:])
        os._exit(0)
    return not os.waitpid(pid, 0)[1]


def test_mapping_outlives():
    """What a mapping shows is never used for others. It keeps the memory of a file that is gone as
    long as the file is open, which counts; by itself it keeps none."""
    with passing_machine() as machine:
        frozen = Frozen(machine, uid=NOBODY if is_root() else None)
        other = Frozen(machine)
        reader = os.open(frozen.path, os.O_RDONLY)
        mapping, closed = Mapping(frozen.path), Mapping(other.path)
        check(is_readable(closed), 'its file is there')
        for _ in range(3):
            machine.must(None, f'thaw {frozen.pid} {other.pid}')
            frozen.demo.wait_ticks()
            machine.must(None, f'freeze {frozen.pid} {other.pid}')
            check(mapping[:] == frozen.bytes, 'the mapping')
        machine.must(None, f'thaw {frozen.pid} {other.pid}')
        frozen.demo.end()
        other.demo.end()
        wait_for(lambda: used(machine) < 2 * frozen.size, 'the rest to be removed')
        check(used(machine) >= frozen.size and resident(machine) >= frozen.size, 'it does not count')
        check(mapping[:] == frozen.bytes, 'the mapping after its end')
        check(not is_readable(closed), 'its file is gone')
        os.close(reader)
        wait_for(lambda: used(machine) == 0 and resident(machine) == 0, 'all to be free')
        check(not is_readable(mapping), 'its file is gone')
        mapping.close()
        closed.close()


def test_reader_then_writer():
    """Who writes comes to the daemon, also while the kernel reads by itself."""
    with passing_machine() as machine:
        frozen = Frozen(machine)
        reader = os.open(frozen.path, os.O_RDONLY)
        # Who may both could map it, and write to it behind the daemon's back.
        equal(error_of(lambda: os.open(frozen.path, os.O_RDWR)), 'EBUSY')
        equal(error_of(lambda: os.open(frozen.path, os.O_RDWR | os.O_TRUNC)), 'EBUSY')
        equal(os.fstat(reader).st_size, frozen.size)
        writers = [os.open(frozen.path, os.O_WRONLY) for _ in range(2)]
        for writer in writers:
            equal(error_of(lambda: mmap.mmap(writer, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)),
                  'EACCES')
        for number, writer in enumerate(writers):
            equal(os.pwrite(writer, b'written', 70000 * number), 7)
            equal(os.pread(reader, 7, 70000 * number), b'written')
        late = os.open(frozen.path, os.O_RDONLY)
        check(passes_through(late), 'as long as one does, all do')
        os.close(reader)
        equal(os.pread(late, 7, 70000), b'written')
        # Its end moves under it, by a descriptor and without one.
        os.ftruncate(writers[1], frozen.size - 4096)
        equal(os.pread(late, 10, frozen.size - 4096), b'')
        os.truncate(frozen.path, frozen.size)
        equal(os.pread(late, 10, frozen.size - 4096), bytes(10))
        equal(os.fstat(late).st_size, frozen.size)
        # A verb ends all writing; these stay closed to it.
        equal(machine.write(frozen.pid, 'thaw'), 'EIO', 'it was changed')
        equal(error_of(lambda: os.pwrite(writers[0], b'x', 0)), 'EBUSY')
        fd = os.open(frozen.path, os.O_WRONLY)
        equal(os.write(fd, frozen.bytes), frozen.size)
        equal(os.pread(late, 7, 70000), frozen.bytes[70000:70007])
        for fd in (late, fd, *writers):
            os.close(fd)
        # Nobody reads it any more, or will not in a moment.
        harness.open_both(frozen.path).close()
        frozen.thaw()


def used(machine):
    return int(machine.status_of_all()['store_used_bytes'])


def resident(machine):
    status = os.statvfs(f'{machine.runtime}/store')
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def test_holes():
    """A mapping fills holes, and nobody counts: what has any is not passed through, and what was
    once gets none."""
    with passing_machine(options=',store_size=256M') as machine:
        os.makedirs(machine.path('place', 'snapshot', 'in'))
        path = machine.path('place', 'snapshot', 'in', 'file')
        with open(path, 'wb') as file:
            file.truncate(100 * MIB)
            file.seek(50 * MIB)
            file.write(b'x' * MIB)
        with open(path, 'rb') as file:
            check(not passes_through(file.fileno()), 'it has holes')
        os.remove(path)
        with open(path, 'wb') as file:
            file.write(b'x' * 4 * MIB)
        machine.wait_status('place', 'held_bytes', str(4 * MIB))
        passes_anew(path)  # it has none
        mapping = Mapping(path)
        harness.open_both(path).close()
        # Beyond its end, in its midst, and past it by a write.
        os.truncate(path, 20 * MIB)
        fd = os.open(path, os.O_RDWR)
        libc = harness.LIBC
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        equal(libc.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 1000, 3 * MIB), 0)
        equal(os.pwrite(fd, b'end', 30 * MIB - 3), 3)
        check(os.fstat(fd).st_blocks * 512 >= 30 * MIB, 'it is all there')
        data = os.pread(fd, 30 * MIB, 0)
        check(data == b'x' * 1000 + bytes(3 * MIB) + b'x' * (MIB - 1000) +
              bytes(26 * MIB - 3) + b'end', 'its bytes')
        equal(machine.status('place')['held_bytes'], str(30 * MIB))
        check(used(machine) >= 30 * MIB, used(machine))
        check(mapping[:2000] == b'x' * 1000 + bytes(1000), 'the mapping')
        # What has no room is refused, and nothing is changed.
        equal(error_of(lambda: os.ftruncate(fd, 400 * MIB)), 'ENOSPC')
        equal(error_of(lambda: os.pwrite(fd, b'x', 400 * MIB)), 'ENOSPC')
        equal(libc.fallocate(fd, ZERO_RANGE, 60 * MIB, MIB), -1)
        equal(os.fstat(fd).st_size, 30 * MIB)
        check(resident(machine) <= used(machine), f'{resident(machine)} of {used(machine)}')
        os.close(fd)
        wait_for(lambda: 30 * MIB <= used(machine) <= 34 * MIB, 'what was promised to be given back')
        mapping.close()
        machine.must('place', 'drop')
        wait_for(lambda: used(machine) == 0 and resident(machine) == 0, 'all to be free')


def passes_anew(path):
    """Once the last that had it open otherwise is known to have closed it."""
    def is_passed():
        with open(path, 'rb') as file:
            return passes_through(file.fileno())

    wait_for(is_passed, f'{path} to be passed through')


def test_writer_then_reader():
    """Then the daemon answers until the last has closed it."""
    with passing_machine() as machine:
        frozen = Frozen(machine)
        both = harness.open_both(frozen.path)
        writer = os.dup(both.fileno())
        both.close()
        readers = [os.open(frozen.path, os.O_RDONLY)]
        check(not passes_through(readers[0]), 'beside who writes')
        os.pwrite(writer, b'new', 10)
        equal(os.pread(readers[0], 3, 10), b'new')
        os.close(writer)
        readers.append(os.open(frozen.path, os.O_RDONLY))
        check(not passes_through(readers[1]), 'the first one still reads')
        for fd in readers:
            check(os.pread(fd, 100, 0) == frozen.bytes[:10] + b'new' + frozen.bytes[13:100], 'both')
            os.close(fd)
        passes_anew(frozen.path)
        with harness.open_both(frozen.path) as file:
            file.write(frozen.bytes[:13])
        frozen.thaw()


def test_names_that_change():
    """Another file is put in its place, or there is none any more."""
    with passing_machine() as machine:
        frozen = Frozen(machine)
        old = os.open(frozen.path, os.O_RDONLY)
        with open(f'{frozen.directory}/.new', 'wb') as file:
            file.write(bytes(frozen.size))
        hidden = os.open(f'{frozen.directory}/.new', os.O_RDONLY)
        os.rename(f'{frozen.directory}/.new', frozen.path)
        new = os.open(frozen.path, os.O_RDONLY)
        check(os.pread(old, frozen.size, 0) == frozen.bytes, 'what is open')
        for fd in hidden, new:
            equal(os.pread(fd, frozen.size, 0).count(0), frozen.size)
        os.unlink(frozen.path)
        check(os.pread(old, frozen.size, 0) == frozen.bytes, 'what is open')
        equal(error_of(lambda: os.open(frozen.path, os.O_RDONLY)), 'ENOENT')
        with open(frozen.path, 'wb') as file:
            file.write(frozen.bytes)
        with open(frozen.path, 'rb') as file:
            check(file.read() == frozen.bytes, 'what was put there')
        for fd in old, hidden, new:
            os.close(fd)
        frozen.thaw()


def test_many_opens():
    """Of the same files and of others, by several processes at once: never an error."""
    with passing_machine() as machine:
        frozen = [Frozen(machine) for _ in range(2)]
        children = []
        for number in range(6):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    for turn in range(150):
                        one = frozen[(number + turn) % 2]
                        flags = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)[(number * turn) % 3]
                        fd = os.open(one.path, flags)
                        at = turn * 4099 % one.size
                        status = 0 if flags or os.pread(fd, 999, at) == one.bytes[at:at + 999] else 2
                        os.close(fd)
                        if status:
                            break
                finally:
                    os._exit(status)
            children.append(pid)
        for pid in children:
            equal(os.waitpid(pid, 0)[1], 0, 'a child')
        for one in frozen:
            one.thaw()
        wait_for(lambda: used(machine) == 0 and resident(machine) == 0, 'all to be free')
        check(machine.log().count('fuse:') == 0, machine.log())


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
