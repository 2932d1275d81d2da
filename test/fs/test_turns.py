# SPDX-License-Identifier: MIT
"""A user whose requests below a `snapshot` take long, and who has many: others are answered all the
while, and all of his are done in the end. Root of a container is such a user, too."""
import ctypes
import errno
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import (LIBC, MIB, NOBODY, PR_SET_PDEATHSIG, SLOW, Machine, Skip, become, check, equal, is_root,
                     same_for_both, wait_for)

OTHER = NOBODY - 1
THREADS = 32  # more than the mount has
PUNCHED = harness.few(24, 96) * MIB
PIECE = 256 * 1024
STORE = f',store_size={(THREADS + 8) * PUNCHED + 256 * MIB}'  # with room for what others do
DEPTH_MAX = 32
KEEP_SIZE, PUNCH = 1, 3
CLONE_NEWPID = 0x20000000
CONTAINED = ['unshare', '--pid', '--fork', '--kill-child', *vendor.RUN, *vendor.DEMO]
ENTRIES = harness.few(2000, 4000)  # of each directory that is listed
LISTERS = harness.few(250, 600)


def fallocate(fd, mode, offset, length):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    if libc.fallocate(fd, mode, offset, length):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Child:
    """A process of a user that does some work; ends as the work does, 0 if it went well."""

    def __init__(self, machine, uid, work):
        machine.others.append(self)
        self.status = None
        reader, writer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.close(reader)
                become(uid)
                work(lambda: os.write(writer, b'.'))
                code = 0
            except BaseException as error:  # whatever it is, the parent has to know
                print(f'the child: {error!r}', flush=True)
            os._exit(code)
        os.close(writer)
        self.reader = reader

    def wait_ready(self):
        check(os.read(self.reader, 1), 'the child')

    def is_over(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def wait(self):
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
        equal(self.status, 0, 'status of the child')

    def finish(self):
        if not self.is_over():
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self.reader)


def make_place(machine, name):
    """Its snapshot, with a directory in it."""
    os.mkdir(f'{machine.mountpoint}/{name}')
    os.mkdir(f'{machine.mountpoint}/{name}/snapshot/d')
    return f'{machine.mountpoint}/{name}/snapshot/d'


def make_passed(path, size):
    """A file without holes, which the kernel may read by itself; then it never gets any."""
    with open(path, 'xb', buffering=0) as file:
        for _ in range(size // MIB):
            file.write(b'x' * MIB)
    with open(path, 'rb', buffering=0) as file:
        file.read(1)


def in_threads(count, work):
    errors = []

    def run(index):
        try:
            work(index)
        except Exception as error:
            errors.append(error)
    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def several_users():
    if not is_root():
        raise Skip('several users are needed')


def punches(machine, seconds):
    """Each a file of its own: the kernel asks for one change of a file at a time."""
    def work(ready):
        directory = make_place(machine, 'mallory')
        for index in range(THREADS):
            make_passed(f'{directory}/{index}', PUNCHED)
        ready()
        end = time.monotonic() + seconds

        def punch(index):
            fd = os.open(f'{directory}/{index}', os.O_WRONLY)
            while time.monotonic() < end:
                fallocate(fd, PUNCH, 0, PUNCHED)
            os.close(fd)
        in_threads(THREADS, punch)
    return work


def test_others_are_answered():
    several_users()
    with Machine(options=STORE) as machine:
        def work(ready):
            path = f'{make_place(machine, "other")}/file'
            ready()
            while not os.path.exists(f'{machine.directory}/end'):
                began = time.monotonic()
                with open(path, 'wb', buffering=0) as file:
                    file.write(b'y' * 4096)
                os.rename(path, f'{path}.new')
                times.write(f'{time.monotonic() - began}\n')
                time.sleep(0.01)
            times.flush()
        with open(f'{machine.directory}/times', 'w+', encoding='utf-8') as times:
            other = Child(machine, OTHER, work)
            other.wait_ready()
            mallory = Child(machine, NOBODY, punches(machine, 1.5))
            mallory.wait_ready()
            ours = []
            while not mallory.is_over():
                began = time.monotonic()
                os.listdir(f'{machine.mountpoint}/gpus')
                ours.append(time.monotonic() - began)
                time.sleep(0.01)
            with open(f'{machine.directory}/end', 'w', encoding='utf-8'):
                pass
            mallory.wait()
            other.wait()
            times.seek(0)
            theirs = [float(line) for line in times]
        check(statistics.median(ours) < 0.05 * SLOW, f'listings took {sorted(ours)[-20:]}')
        check(statistics.median(theirs) < 0.15 * SLOW, f'writes took {sorted(theirs)[-20:]}')


def test_renames_do_not_wait():
    """While one goes from one directory to another, the kernel keeps both locked, and the root is one
    of them for all."""
    several_users()
    with Machine(options=STORE) as machine:
        def rename(ready):
            ready()
            os.read(go, 1)
            directory = f'{machine.mountpoint}/mallory/snapshot/d'
            # Of one that is being changed the kernel waits for the change.
            with open(f'{directory}/renamed', 'xb'):
                pass
            while not os.path.exists(f'{machine.directory}/end'):
                equal(harness.error_of(lambda: os.rename(f'{directory}/renamed',
                                                         f'{machine.mountpoint}/renamed')), 'EPERM')
        go, going = os.pipe()
        renamer = Child(machine, NOBODY, rename)
        renamer.wait_ready()
        mallory = Child(machine, NOBODY, punches(machine, 3))
        mallory.wait_ready()
        time.sleep(0.3)

        def make():
            os.mkdir(f'{machine.mountpoint}/ours')
            os.rmdir(f'{machine.mountpoint}/ours')
        alone = time_taken('those in the root without renames', make, 1)
        os.write(going, b'.')
        median = time_taken('those in the root', make, 1)
        with open(f'{machine.directory}/end', 'w', encoding='utf-8'):
            pass
        renamer.wait()
        mallory.wait()
        # The second on a machine that is busy with something else.
        check(median < max(0.05 * SLOW, 3 * alone), f'{median} s, and {alone} s without')
        os.close(go)
        os.close(going)


def test_all_are_done():
    """Of requests that have waited, each has its own bytes and its own answer."""
    several_users()
    with Machine(options=f',store_size={1200 * MIB}') as machine:
        def work(ready):
            directory = make_place(machine, 'many')
            make_passed(f'{directory}/file', 128 * MIB)
            punched = os.open(f'{directory}/file', os.O_WRONLY)

            def write(index):
                if index % 8 == 0:
                    fallocate(punched, PUNCH, 0, 128 * MIB)
                    return
                path = f'{directory}/{index}'
                with open(path, 'x+b', buffering=0) as file:
                    for offset in range(0, MIB, PIECE):
                        check(os.pwrite(file.fileno(), bytes([index % 251 + 1]) * PIECE, offset) ==
                              PIECE, path)
                os.mkdir(f'{path}.directory')
                os.rename(path, f'{path}.directory/file')
                equal(os.stat(f'{path}.directory/file').st_size, MIB)
                with open(f'{path}.directory/file', 'rb', buffering=0) as file:
                    check(file.read(MIB) == bytes([index % 251 + 1]) * MIB, path)
            in_threads(harness.few(80, 200), write)
            with open(f'{directory}/file', 'rb', buffering=0) as file:
                while piece := file.read(MIB):
                    check(not any(piece), 'what was punched')
            ready()
        child = Child(machine, NOBODY, work)
        child.wait_ready()
        child.wait()


def test_steps():
    """A long fallocate(2) is done in steps, and one that cannot be done changes nothing."""
    size = 200 * MIB
    with Machine(options=f',store_size={500 * MIB}') as machine:
        directory = make_place(machine, 'steps')
        fd = os.open(f'{directory}/file', os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b'a' * 100, 0)
        for mode in 0, KEEP_SIZE:
            try:
                fallocate(fd, mode, 0, 520 * MIB)
                check(False, 'there is no room for that')
            except OSError as error:
                equal(error.errno, errno.ENOSPC)
            equal(os.fstat(fd).st_size, 100)
            check(os.fstat(fd).st_blocks * 512 <= 2 * MIB, 'blocks')
        fallocate(fd, KEEP_SIZE, MIB, size - MIB)
        equal(os.fstat(fd).st_size, 100)
        check(os.fstat(fd).st_blocks * 512 >= size - MIB, 'blocks')
        fallocate(fd, 0, MIB, size - MIB)
        equal(os.fstat(fd).st_size, size)
        os.pwrite(fd, b'b' * MIB, size - MIB)
        # From within a page, and far past the end.
        fallocate(fd, PUNCH, 50, (1 << 62) - 50)
        equal(os.fstat(fd).st_size, size)
        check(os.fstat(fd).st_blocks * 512 <= 2 * MIB, 'blocks')
        equal(os.pread(fd, 100, 0), b'a' * 50 + bytes(50))
        check(not any(os.pread(fd, MIB, size - MIB)), 'what was punched')
        os.close(fd)


def test_passed_file_gets_no_holes():
    """Neither where it is punched nor before what is allocated."""
    with Machine(options=f',store_size={600 * MIB}') as machine:
        path = f'{make_place(machine, "passed")}/file'
        make_passed(path, 100 * MIB)
        fd = os.open(path, os.O_RDWR)
        fallocate(fd, PUNCH, 10, 100 * MIB - 20)
        check(os.fstat(fd).st_blocks * 512 >= 100 * MIB, 'blocks')
        equal(os.pread(fd, 12, 0), b'x' * 10 + bytes(2))
        equal(os.pread(fd, 100, 100 * MIB - 12), bytes(2) + b'x' * 10)
        fallocate(fd, 0, 300 * MIB, MIB)
        equal(os.fstat(fd).st_size, 301 * MIB)
        check(os.fstat(fd).st_blocks * 512 >= 300 * MIB, 'blocks')
        os.close(fd)


def deepest(path):
    return max((root.count('/') for root, _, _ in os.walk(path)), default=0) - path.count('/')


def test_moves_keep_the_depth():
    """Directories are made in what is measured while it is moved."""
    with Machine() as machine:
        top = make_place(machine, 'deep')
        low = '/'.join([top] + ['l'] * (DEPTH_MAX - 8))
        os.makedirs(low)
        end = time.monotonic() + 1

        def make(index):
            while time.monotonic() < end:
                for place in f'{top}/m', f'{low}/m':
                    try:
                        os.makedirs('/'.join([place] + ['x'] * (1 + index)))
                    except OSError as error:
                        check(error.errno in (errno.ENAMETOOLONG, errno.ENOENT, errno.EEXIST,
                                              errno.EBUSY, errno.ESTALE), str(error))

        def move(_):
            there = False
            while time.monotonic() < end:
                places = [f'{top}/m', f'{low}/m']
                try:
                    os.rename(places[there], places[not there])
                except OSError as error:
                    check(error.errno in (errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTEMPTY,
                                          errno.EBUSY, errno.ESTALE), str(error))
                there = not there
        in_threads(12, lambda index: make(index) if index < 8 else move(index))
        store = f'{machine.runtime}/store'
        for name in os.listdir(store):
            if 'deep' in name:
                found = deepest(f'{store}/{name}/snapshot')
                check(DEPTH_MAX - 8 < found <= DEPTH_MAX, f'{found} levels')


def memory(machine, key):
    for line in harness.read_file(f'/proc/{machine.daemon.pid}/status').splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def in_store(machine, place):
    """Its directory `d`. What is made there is made as a user could, without the daemon's work."""
    store = f'{machine.runtime}/store'
    names = [name for name in os.listdir(store) if place in name]
    equal(len(names), 1, f'{place} in the store')
    return f'{store}/{names[0]}/snapshot/d'


def make_entries(directory, count, more=''):
    for index in range(count):
        os.close(os.open(f'{directory}/{index:06}{more}', os.O_CREAT | os.O_WRONLY))


# With a sanitizer, fewer: 16 listings of them are still more than is allowed below.
VERY_MANY = 20000 if SLOW == 1 else 13000


def test_listing_of_very_many():
    """One that is too long for its user is refused before the daemon has the memory for it."""
    several_users()
    with Machine(options=',store_size=600M,user_text=1M') as machine:
        def work(ready):
            directory = make_place(machine, 'names')
            ready()
            os.read(go, 1)
            refused = []

            def read(_):
                try:
                    os.listdir(directory)
                except OSError as error:
                    refused.append(error.errno)
            in_threads(16, read)
            equal(refused, [errno.EDQUOT] * 16)
        go, going = os.pipe()
        child = Child(machine, NOBODY, work)
        child.wait_ready()
        make_entries(in_store(machine, 'names'), VERY_MANY, 'n' * 245)
        before = memory(machine, 'VmRSS')
        with open(f'/proc/{machine.daemon.pid}/clear_refs', 'w', encoding='utf-8') as peak:
            peak.write('5')  # the peak is what there is now
        os.write(going, b'.')
        child.wait()
        more = memory(machine, 'VmHWM') - before
        # A sanitizer has much of its own.
        check(more < (16 if SLOW == 1 else 40) * MIB, f'{more >> 20} MiB')
        os.close(go)
        os.close(going)


def listings(directory, end):
    """The daemon reads all entries for each. One that is refused is tried again: a user has too much
    open, or root of a container was not looked at in time."""
    def work(ready):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        ready()

        def list_it(_):
            while not os.path.exists(end):
                try:
                    os.close(os.open('.', os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd))
                except OSError as error:
                    check(error.errno in (errno.EDQUOT, errno.ENOENT), str(error))
        in_threads(LISTERS, list_it)
    return work


def time_taken(what, call, seconds):
    """By a call, the median."""
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        call()
        times.append(time.monotonic() - began)
        time.sleep(0.005)
    median = statistics.median(times)
    print(f'{what}: {len(times)}, median {median:.3f} s, at most {max(times):.3f} s', file=sys.stderr)
    return median


def enter_container_of(pid):
    """As root that starts a program there; there is no user namespace."""
    fd = os.open(f'/proc/{pid}/ns/pid', os.O_RDONLY)
    check(not LIBC.setns(fd, CLONE_NEWPID), 'setns')
    os.close(fd)
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xff)
    LIBC.prctl(PR_SET_PDEATHSIG, 9)


def frozen_in_container(machine):
    machine.demo(command=CONTAINED).output.wait(lambda lines: len(lines) > 1, 'the first tick')
    pid = wait_for(lambda: next((pid for pid in machine.pids() if
                                 machine.status(pid)['engine'] == vendor.ENGINE), 0), 'the program')
    machine.must(pid, 'freeze')
    return pid


def test_root_of_container():
    """Below what is frozen of his, where entries have no limit, he is a user like others."""
    same_for_both('whose requests wait')
    several_users()
    with Machine(vmm=True) as machine:
        pid = frozen_in_container(machine)
        end = f'{machine.directory}/end'
        directory = machine.path(pid, 'snapshot', 'd')
        os.mkdir(directory)
        make_entries(in_store(machine, str(pid)), 2 * ENTRIES)

        def work(ready):
            enter_container_of(pid)
            listings(directory, end)(ready)
        mallory = Child(machine, 0, work)
        mallory.wait_ready()
        time.sleep(0.3)
        median = time_taken('those of others', lambda: os.stat(machine.path(pid)), 1)
        with open(end, 'w', encoding='utf-8'):
            pass
        mallory.wait()
        machine.must(pid, 'thaw')
        check(median < 0.05 * SLOW, f'{median} s')


def test_a_fourth_user():
    """Three have all turns, and hundreds of requests each in line: they come before none of his."""
    several_users()
    with Machine() as machine:
        end = f'{machine.directory}/end'
        go, going = os.pipe()
        measured, measuring = os.pipe()

        def measure(ready):
            path = f'{make_place(machine, "fourth")}/file'
            with open(path, 'xb'):
                ready()
            os.read(measured, 1)
            median = time_taken('those of the fourth', lambda: os.stat(path), 1)
            check(median < 0.25 * SLOW, f'{median} s')
        fourth = Child(machine, NOBODY - 4, measure)
        fourth.wait_ready()

        def attack(number):
            def work(ready):
                directory = make_place(machine, f'place{number}')
                ready()
                os.read(go, 1)
                listings(directory, end)(ready)
            return work
        others = [Child(machine, NOBODY - number, attack(number)) for number in range(1, 4)]
        for number, other in enumerate(others, 1):
            other.wait_ready()
            make_entries(in_store(machine, f'place{number}'), ENTRIES)
        os.write(going, b'...')
        for other in others:
            other.wait_ready()
        time.sleep(0.3)
        os.write(measuring, b'.')
        wait_for(fourth.is_over, 'the fourth')
        with open(end, 'w', encoding='utf-8'):
            pass
        for child in fourth, *others:
            child.wait()
        for fd in go, going, measured, measuring:
            os.close(fd)


if __name__ == '__main__':
    harness.main(globals())
