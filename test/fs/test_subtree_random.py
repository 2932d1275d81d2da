# SPDX-License-Identifier: MIT
"""Some thousand operations, in an order of chance, on a snapshot of the mount and on a plain
directory of a tmpfs: after each of them both have to be the same. GPUCR_TEST_SEED repeats one."""
import ctypes
import errno
import os
import random
import shutil
import stat
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import Machine, check, equal

SEED = int(os.environ.get('GPUCR_TEST_SEED', '0')) or random.randrange(1, 1 << 32)
STEPS = harness.few(900, 3000) // harness.SLOW
SPAN = 5 << 20  # files are not longer
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
PUNCH = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
KEEP_SIZE = 1
HERE = -100  # AT_FDCWD
OPEN_MAX = 12


def called(result):
    if result:
        raise OSError(ctypes.get_errno(), 'call')
    return 'ok'


class Side:
    """One of the two: its directory, and its files that are open."""

    def __init__(self, root):
        self.root = root
        self.files = []

    def path(self, name):
        return f'{self.root}/{name}'

    def open(self, name, flags):
        if os.path.isdir(self.path(name)):
            raise IsADirectoryError(errno.EISDIR, 'not in this test')
        self.files.append(os.open(self.path(name), flags, 0o640))
        return 'ok'

    def close(self, index):
        return os.close(self.files.pop(index))

    def read(self, index, size, offset):
        return os.pread(self.files[index], size, offset)

    def write(self, index, data, offset):
        return os.pwrite(self.files[index], data, offset)

    def append(self, name, data):
        with open(self.path(name), 'ab', buffering=0) as file:
            return file.write(data)

    def ftruncate(self, index, size):
        return os.ftruncate(self.files[index], size)

    def truncate(self, name, size):
        return os.truncate(self.path(name), size)

    def allocate(self, index, mode, offset, size):
        return called(LIBC.fallocate(self.files[index], mode, offset, size))

    def seek(self, index, offset, whence):
        """Where data and holes are may differ by what the kernel makes in one go; their bytes not."""
        end = os.fstat(self.files[index]).st_size
        try:
            found = os.lseek(self.files[index], offset, whence)
        except OSError:
            if offset >= end or whence == os.SEEK_HOLE:
                raise
            found = end
        if whence == os.SEEK_HOLE:
            return offset <= found <= end
        rest = os.pread(self.files[index], found - offset, offset)
        return not any(rest)

    def fstat(self, index):
        status = os.fstat(self.files[index])
        return [status.st_size, oct(status.st_mode)]

    def stat(self, name):
        status = os.lstat(self.path(name))
        return [oct(status.st_mode), stat.S_ISREG(status.st_mode) and status.st_size]

    def listing(self, name):
        return sorted(os.listdir(self.path(name)))

    def mkdir(self, name):
        return os.mkdir(self.path(name), 0o750)

    def rmdir(self, name):
        return os.rmdir(self.path(name))

    def unlink(self, name):
        return os.unlink(self.path(name))

    def chmod(self, name, mode):
        return os.chmod(self.path(name), mode)

    def utime(self, name, seconds):
        os.utime(self.path(name), (seconds, seconds))
        return os.stat(self.path(name)).st_mtime_ns

    def rename(self, old, new, flags):
        return called(LIBC.renameat2(HERE, self.path(old).encode(), HERE, self.path(new).encode(),
                                     flags))

    def contents(self):
        found = {}
        for path, _, names in os.walk(self.root):
            for name in names:
                with open(f'{path}/{name}', 'rb') as file:
                    found[os.path.relpath(f'{path}/{name}', self.root)] = file.read()
        return found


def short(result):
    return f'{len(result)} bytes, {result[:20]}...' if isinstance(result, bytes) else result


class Walk:
    """What to do next. @access: how files are opened for writing."""

    def __init__(self, sides, access):
        self.sides = sides
        self.access = access
        self.chance = random.Random(SEED)
        self.done = []

    def both(self, what, *arguments):
        results = []
        for side in self.sides:
            try:
                results.append(getattr(side, what)(*arguments))
            except OSError as error:
                results.append(harness.name_of(error.errno))
        shown = [f'{len(a)} bytes' if isinstance(a, bytes) else a for a in arguments]
        self.done.append(f'{what} {shown}')
        check(results[0] == results[1], f'GPUCR_TEST_SEED={SEED}: {self.done[-6:]}: '
              f'{[short(result) for result in results]}')

    def name(self):
        directory = self.chance.choice(['', '', 'a/', 'a/', 'b/', 'a/b/'])
        return directory + self.chance.choice('abcdef')

    def offset(self):
        return self.chance.choice([0, 1, 4095, 4096, 1 << 20, 2 << 20, self.chance.randrange(SPAN)])

    def size(self):
        return self.chance.choice([1, 4096, 5000, 1 << 20, self.chance.randrange(1, 2 << 20)])

    def data(self):
        return bytes([self.chance.randrange(256)]) * self.size()

    def flags(self):
        return self.chance.choice([os.O_RDONLY, self.access, self.access | os.O_CREAT,
                                   self.access | os.O_CREAT | os.O_TRUNC,
                                   self.access | os.O_CREAT | os.O_EXCL])

    def step(self):
        count = len(self.sides[0].files)
        index = self.chance.randrange(count) if count else None
        steps = [('open', self.name(), self.flags()), ('truncate', self.name(), self.offset()),
                 ('append', self.name(), self.data()[:9000]), ('stat', self.name()),
                 ('mkdir', self.name()), ('rmdir', self.name()), ('unlink', self.name()),
                 ('chmod', self.name(), self.chance.choice([0o700, 0o755])),
                 ('utime', self.name(), self.chance.randrange(1 << 30)),
                 ('listing', self.chance.choice(['.', 'a', 'a/b']))]
        steps += [('rename', self.name(), self.name(), flags) for flags in (0, 0, 1, 2)]
        if index is not None:
            steps += 2 * [('read', index, self.size(), self.offset()),
                          ('write', index, self.data(), self.offset()),
                          ('ftruncate', index, self.offset()), ('fstat', index),
                          ('allocate', index, PUNCH, self.offset(), self.size()),
                          ('allocate', index, self.chance.choice([0, KEEP_SIZE]), self.offset(),
                           self.size()),
                          ('seek', index, self.offset(), os.SEEK_DATA),
                          ('seek', index, self.offset(), os.SEEK_HOLE)]
        if count >= OPEN_MAX:
            steps = [('close', index)]
        self.both(*self.chance.choice(steps))


def the_same_as_any_file_system(access, options):
    with Machine(vmm=True, options=options) as machine:
        demo = machine.ready_demo()
        machine.wait_status(demo.pid, 'engine', vendor.ENGINE)
        machine.must(demo.pid, 'freeze')
        plain = f'{machine.directory}/plain'
        place = machine.path(demo.pid, 'snapshot', 'random')
        os.mkdir(plain, 0o755)
        os.mkdir(place, 0o755)
        sides = [Side(place), Side(plain)]
        walk = Walk(sides, access)
        before = int(machine.status_of_all()['store_free_bytes'])
        for number in range(STEPS):
            walk.step()
            if number % 200 == 0:
                equal([side.listing('.') for side in sides[:1]],
                      [side.listing('.') for side in sides[1:]])
                equal(sides[0].contents() == sides[1].contents(), True, f'{SEED}: contents')
        equal(sides[0].contents() == sides[1].contents(), True, f'{SEED}: contents')
        for side in sides:
            for fd in side.files:
                os.close(fd)
        shutil.rmtree(place)
        harness.wait_for(lambda: int(machine.status_of_all()['store_free_bytes']) == before,
                         'the room that it took')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_the_same_as_any_file_system():
    the_same_as_any_file_system(os.O_RDWR, ',nopassthrough')


def test_the_same_where_the_kernel_reads():
    """Who may read and write is refused while somebody reads; so others write."""
    the_same_as_any_file_system(os.O_WRONLY, '')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
