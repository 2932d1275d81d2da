# SPDX-License-Identifier: MIT
"""The files that a library gets for managed memory: whatever it does with them, they are not the
store's, and nothing that its program has written is lost."""
import contextlib
import ctypes
import errno
import fcntl
import os
import re
import resource
import signal
import stat
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import users
import vmm
from harness import MIB, check, equal, same_for_both, wait_for
from library import FILES, FINISH, LIST, OUT, Library
from mapping import Mapping
from stuck import StuckWrite
from test_lying_library import MANAGED, gpu_uuid, lists
from test_vmm_managed import WRITES, Writers, kill_daemon

ALICE, BOB = 4001, 4002
STORE = 600 * MIB
QUOTA = 16 * MIB
SIZE = 4 * MIB
PUNCH_HOLE, KEEP_SIZE = 2, 1
FALLOCATE = harness.LIBC.fallocate
FALLOCATE.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
# fs/engine/emptying.h: for root, whose a library is here by default, for a user, and for all users
EMPTYING_MAX, EMPTYING_USER_MAX, EMPTYING_ALL_MAX = 16, 2, 64


def as_user(work):
    """The number that it returns as one who is not root."""
    return int(users.answer(work, ALICE))


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


def counted(machine):
    """Bytes of the store, of the one who is not root."""
    found = re.search(rf'^user {ALICE} .*?store_bytes (\d+)', machine.read('status'), re.M)
    return int(found.group(1)) if found else 0


def read_bytes(path):
    with open(path, 'rb') as file:
        return file.read()


def lying(machine, size=SIZE, **options):
    """It has managed memory, and keeps the files that it gets."""
    library = Library(machine, **options)
    library.kept = []
    library.on[LIST] = again(library, lists((1 << 40, size, 1, gpu_uuid(machine), MANAGED)))
    # Its table says that it has some.
    os.pwrite(library.page, (7).to_bytes(8, 'little') + (0).to_bytes(8, 'little') +
              size.to_bytes(8, 'little') + (1).to_bytes(4, 'little'), 16)
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


def wait_empty(library):
    """The verb's end does not wait for that."""
    wait_for(lambda: not sum(os.fstat(fd).st_size for fd in files(library)), 'its files to be cut')
    equal(sum(os.fstat(fd).st_blocks for fd in files(library)), 0)


@contextlib.contextmanager
def stuck_writes(machine, library):
    """From when it has a file for managed memory on, each time."""
    writes = []

    def write_and_stick(library_, sequence):
        library.on[FILES] = write_and_stick
        if library.phase != OUT:
            os.pwrite(files(library)[-1], content(SIZE)[:SIZE], 0)
        writes.append(StuckWrite(machine.directory, files(library)[-1], ALICE))
        library.answer(sequence)

    library.on[FILES] = write_and_stick
    try:
        yield writes
    finally:
        for write in writes:
            write.end()
        library.on.pop(FILES, None)


def emptying():
    """The processes that wait to empty files."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            if harness.read_file(f'/proc/{pid}/comm') == 'gpucr-empty\n':
                found.append(pid)
    return found


def hold_locks(most, **options):
    with machine_with_store() as machine:
        library = lying(machine, **options)
        honest = vmm.demo(machine, '--bytes', '64M', '--buffers', 2)
        with stuck_writes(machine, library) as writes:
            since = time.monotonic()
            answers = []
            for turn in range(40):
                del library.kept[:]
                verb = 'thaw' if turn % 2 else 'freeze'
                answers.append(machine.write(library.pid, f'{verb} timeout=30'))
                if answers[-1] != 'ok':
                    break
            check(answers[:-1] == ['ok'] * most and answers[-1] == 'EBUSY', answers)
            check('hold up' in machine.error(library.pid), machine.error(library.pid))
            check(time.monotonic() - since < 60 * harness.SLOW, 'how long it took')
            equal(len(writes), most)
            # The last of them may not have its name yet.
            wait_for(lambda: len(emptying()) == most, 'processes that wait to empty files')
            machine.must(honest.pid, 'freeze')
            machine.must(honest.pid, 'thaw')
        wait_for(lambda: not emptying(), 'the files to be emptied')
        library.on[FILES] = check_all if machine.state(library.pid) == 'frozen' else write_all
        del library.kept[:]
        machine.must(library.pid, 'thaw' if machine.state(library.pid) == 'frozen' else 'freeze')
        wait_empty(library)


def test_lock_is_held():
    """Of the file that it has, for ever: no verb waits for it, and how many are held is limited."""
    hold_locks(EMPTYING_MAX)


def test_lock_is_held_by_root_of_a_container():
    """Who is a user like any other."""
    hold_locks(EMPTYING_USER_MAX, contained=True)


def test_many_locks_are_held_at_once():
    """By verbs of one user that were under way together: no other user's verb is refused, and his own
    files wait for two processes."""
    size = 64 << 10
    with machine_with_store(vram='64G') as machine:
        honest = lying(machine, uid=BOB)
        honest.kept = None  # It closes them.
        machine.must(honest.pid, 'freeze')
        held = []
        libraries = [lying(machine, size, connections=1, uid=ALICE)
                     for _ in range(EMPTYING_ALL_MAX + 1)]
        for library in libraries:
            library.on[FILES] = lambda library, sequence: held.append((library, sequence))
        writers = [machine.writer(library.pid, 'freeze timeout=300') for library in libraries]
        writes = []
        try:
            wait_for(lambda: len(held) == len(libraries), 'all to have their files')
            for library, sequence in held:
                writes.append(StuckWrite(machine.directory, files(library)[-1], ALICE))
                library.answer(sequence)
            for writer in writers:
                equal(writer.result(60 * harness.SLOW), 'ok')
            wait_for(lambda: len(emptying()) >= EMPTYING_USER_MAX, 'processes that empty files')
            machine.must(honest.pid, 'thaw')
            machine.must(honest.pid, 'freeze')
            equal(len(emptying()), EMPTYING_USER_MAX)
            equal(machine.write(libraries[0].pid, 'thaw'), 'EBUSY')
        finally:
            for write in writes:
                write.end()
        for library in libraries:
            wait_empty(library)
        del libraries[0].kept[:]
        machine.must(libraries[0].pid, 'thaw')
        machine.must(honest.pid, 'thaw')


def test_daemon_ends_while_a_lock_is_held():
    """At once, killed or not; the next one finds what was frozen."""
    for number in signal.SIGKILL, signal.SIGTERM:
        with machine_with_store() as machine:
            library = lying(machine)
            with stuck_writes(machine, library):
                machine.must(library.pid, 'freeze')
                wait_for(emptying, 'the process that empties its files')
                os.kill(machine.daemon.pid, number)
                machine.daemon.wait(timeout=10 * harness.SLOW)
                machine.expects_clean_exit = True
                if number == signal.SIGKILL:
                    machine.start()
                    equal(machine.state(library.pid), 'frozen')


def test_lease_of_root():
    """Not while a verb needs the files: it would wait until the kernel ends the lease."""
    leases = []

    def write_and_lease(library, sequence):
        os.pwrite(files(library)[-1], content(SIZE)[:SIZE], 0)
        leases.extend(lease(fd) for fd in files(library))
        library.answer(sequence)

    with machine_with_store() as machine:
        library = lying(machine)
        library.on[FILES] = write_and_lease
        machine.must(library.pid, 'freeze')
        check(leases and not any(leases), leases)


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
            wait_empty(library)
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
        wait_empty(library)
        del library.kept[:]
        library.on[FILES] = check_all
        machine.must(library.pid, 'thaw')
        check(files(library), 'files')
        wait_empty(library)


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
        library.on[FINISH] = cut_and_fail
        equal(machine.write(library.pid, 'thaw'), 'EIO')
        equal(machine.state(library.pid), 'frozen')
        equal(library.phase, OUT)
        del library.kept[:]
        library.on[FILES] = check_all
        machine.must(library.pid, 'thaw')


def test_many_files():
    """Each file keeps a descriptor of the daemon: no process is frozen that needs more than its
    user's part of them."""
    harness.needs_cuda('managed memory')
    limit = 512
    with vmm.machine(start=False) as machine:
        machine.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        library = Library(machine, uid=ALICE)
        uuid = gpu_uuid(machine)
        library.on[LIST] = again(library, lists(
            *[((1 << 40) + index * 2 * MIB, 4096, index + 1, uuid, MANAGED)
              for index in range(limit)]))
        equal(machine.write(library.pid, 'freeze'), 'ENFILE', machine.error(library.pid))
        check('user_descriptors' in machine.error(library.pid), machine.error(library.pid))
        equal(machine.state(library.pid), 'running')
        open_now = len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))
        check(open_now < limit // 4, f'{open_now} descriptors are open')


def with_many_files(machine, uuid, count, uid):
    """A library that lists so many pieces of managed memory."""
    library = Library(machine, uid=uid, connections=1)
    library.on[LIST] = again(library, lists(
        *[((1 << 40) + index * 2 * MIB, 4096, index + 1, uuid, MANAGED)
          for index in range(count)]))
    return library


def of_verbs(machine, uid):
    """How many descriptors the user's verbs have."""
    found = re.search(rf'^user {uid} .* descriptors (\d+)', machine.read('status'), re.M)
    return int(found.group(1)) if found else 0


def test_many_files_of_one_user():
    """His thaws, to which his libraries do not answer, leave other users theirs."""
    harness.needs_cuda('managed memory')
    if os.geteuid():
        raise harness.Skip('there are users for root only')
    limit, count, most = 1024, 64, 3
    with vmm.machine(start=False) as machine:
        machine.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        uuid = gpu_uuid(machine)
        libraries = [with_many_files(machine, uuid, count, ALICE) for _ in range(8)]
        other = with_many_files(machine, uuid, count, BOB)
        for library in libraries:
            machine.must(library.pid, 'freeze data')
        equal(of_verbs(machine, ALICE), 0)
        writers = []
        for library in libraries:
            library.on[FILES] = lambda library_, sequence: None
            writers.append(machine.writer(library.pid, 'thaw timeout=600', uid=ALICE))
            wait_for(lambda writer=writers[-1], library=library:
                     not writer.is_waiting() or FILES not in library.on, 'a thaw')
        others_verbs = [machine.write(other.pid, verb) for verb in ('freeze data', 'thaw')]
        equal(others_verbs, ['ok', 'ok'], machine.error(other.pid))
        equal(of_verbs(machine, BOB), 0)
        equal(of_verbs(machine, ALICE), most * 2 * count)
        check(all(writer.is_waiting() for writer in writers[:most]), 'silent thaws')
        for library, writer in list(zip(libraries, writers))[most:]:
            equal(writer.result(10 * harness.SLOW), 'ENFILE', machine.error(library.pid))
            check('user_descriptors' in machine.error(library.pid), machine.error(library.pid))
            equal(machine.state(library.pid), 'frozen')
        # When these have ended, there is room again, and one that was refused is thawed.
        for library in libraries[:most]:
            library.demo.end()
        wait_for(lambda: not of_verbs(machine, ALICE), 'the silent thaws to end')
        libraries[-1].on.pop(FILES)
        machine.must(libraries[-1].pid, 'thaw')
        equal(of_verbs(machine, ALICE), 0)


def fails_with(content_of):
    """FINISH, after these bytes have been written to the file."""
    def fail(library, sequence):
        os.pwrite(files(library)[-1], content_of(), 0)
        library.answer(sequence, errno.EIO, 'it is said')
    return fail


def punch_and_use(machine, pid, name):
    """What a user does with his frozen process: a hole in its file, and another file instead."""
    root = machine.path(pid, 'snapshot')

    def work():
        path, = (f'{root}/vram/{name}' for name in os.listdir(f'{root}/vram'))
        with harness.open_both(path) as file:
            equal(FALLOCATE(file.fileno(), PUNCH_HOLE | KEEP_SIZE, 0, SIZE), 0)
        written = 0
        with contextlib.suppress(OSError), open(f'{root}/{name}', 'wb', buffering=0) as file:
            while written < SIZE:
                written += file.write(b'x' * MIB)
        return written

    return as_user(work)


def test_changes_that_come_back_count():
    """A thaw that fails writes them into a file in which its user has made holes since the freeze:
    they count like what he writes himself, and not more than he may have."""
    with machine_with_store() as machine:
        at_first = store_free(machine)
        library = lying(machine, uid=ALICE)
        library.on[FILES] = write_all
        machine.must(library.pid, 'freeze')
        written = []
        for turn in range(2 * QUOTA // SIZE):
            written.append(punch_and_use(machine, library.pid, f'more{turn}'))
            del library.kept[:]
            library.on[FINISH] = fails_with(lambda: os.urandom(SIZE))
            equal(machine.write(library.pid, 'thaw unverified'), 'EIO')
            equal(machine.state(library.pid), 'frozen', machine.error(library.pid))
            used = at_first - store_free(machine)
            counts = counted(machine)
            check(used <= counts <= QUOTA, f'{turn}: {used} bytes, {counts} of them counted; '
                  f'written {written}')
        check('cannot be copied' in machine.error(library.pid), machine.error(library.pid))
        # When there is room again, the changes are kept.
        root = machine.path(library.pid, 'snapshot')
        for turn in range(len(written)):
            os.unlink(f'{root}/more{turn}')
        changed = os.urandom(SIZE)
        del library.kept[:]
        library.on[FINISH] = fails_with(lambda: changed)
        equal(machine.write(library.pid, 'thaw unverified'), 'EIO')
        path, = (f'{root}/vram/{name}' for name in os.listdir(f'{root}/vram'))
        check(read_bytes(path) == changed, 'the changes')
        check(at_first - store_free(machine) <= counted(machine), 'what counts')


def test_changes_that_do_not_come_back():
    """Without room for them the store's files are those of the freeze: no thaw takes these for all
    that the program has had."""
    def look(library_, sequence):
        found.append(os.pread(files(library_)[-1], SIZE, 0))
        library_.answer(sequence)

    with machine_with_store() as machine:
        library = lying(machine, uid=ALICE)
        machine.must(library.pid, 'freeze')  # all zeros, which take no room
        root = machine.path(library.pid, 'snapshot')

        def fill_up():
            with contextlib.suppress(OSError), open(f'{root}/more', 'wb', buffering=0) as file:
                while file.write(bytes(MIB)):
                    pass
            return 0

        equal(as_user(fill_up), 0)
        del library.kept[:]
        library.on[FINISH] = fails_with(lambda: content(SIZE)[:SIZE])
        equal(machine.write(library.pid, 'thaw'), 'EIO')
        check('cannot be copied' in machine.error(library.pid), machine.error(library.pid))
        found = []
        for verb in 'thaw', 'dump':
            library.on[FILES] = look
            equal(machine.write(library.pid, verb), 'EIO', verb)
            check('manifest' in machine.error(library.pid), machine.error(library.pid))
            equal(machine.state(library.pid), 'frozen', machine.error(library.pid))
        equal([found, os.path.exists(f'{root}/manifest')], [[], False])
        del library.kept[:]
        machine.must(library.pid, 'thaw unverified')
        equal(len(found), 1)


def test_mapped_files_in_place_of_the_metadata():
    """A user moves what he has mapped to names that a thaw which fails writes: its memory does not
    outlive it uncounted."""
    with machine_with_store() as machine:
        if machine.status_of_all()['passthrough'] != 'yes':
            raise harness.Skip('the kernel maps no file of the mount past the daemon')
        at_first = store_free(machine)
        library = lying(machine, uid=ALICE)
        library.on[FILES] = write_all
        machine.must(library.pid, 'freeze')
        root = machine.path(library.pid, 'snapshot')
        equal(as_user(lambda: os.mkdir(f'{root}/d') or 0), 0)
        mappings = []

        def put():
            with open(f'{root}/d/big', 'wb', buffering=0) as file:
                return file.write(b'x' * MIB)

        for name in '.digests.new', '.manifest.new':
            equal(as_user(put), MIB)
            mappings.append(Mapping(f'{root}/d/big'))
            equal(as_user(lambda name=name: os.rename(f'{root}/d/big', f'{root}/{name}') or 0), 0)
            del library.kept[:]
            library.on[FINISH] = fails_with(lambda: content(SIZE)[:SIZE])
            equal(machine.write(library.pid, 'thaw'), 'EIO')
            equal(machine.state(library.pid), 'frozen', machine.error(library.pid))
            used = at_first - store_free(machine)
            check(used <= counted(machine), f'{name}: {used} bytes, {counted(machine)} counted')
        names = sorted(os.listdir(root))
        del library.kept[:]
        machine.must(library.pid, 'thaw')
        wait_for(lambda: counted(machine) == 0 and at_first == store_free(machine),
                 'all to be free, mapped or not')
        # These names are his own.
        equal(names, ['.digests.new', '.manifest.new', 'd', 'digests', 'manifest', 'vram'])
        for mapping in mappings:
            mapping.close()


def test_no_holes_where_a_user_may_have_mapped():
    """Zeros come back as zeros: reading holes through a mapping would take memory again."""
    with machine_with_store() as machine:
        if machine.status_of_all()['passthrough'] != 'yes':
            raise harness.Skip('the kernel maps no file of the mount past the daemon')
        library = lying(machine, uid=ALICE)
        library.on[FILES] = write_all
        machine.must(library.pid, 'freeze')
        root = machine.path(library.pid, 'snapshot', 'vram')
        path, = (f'{root}/{name}' for name in os.listdir(root))
        for is_open, expected in (False, 0), (True, SIZE):
            file = open(path, 'rb') if is_open else None
            del library.kept[:]
            library.on[FINISH] = fails_with(lambda: bytes(SIZE))
            equal(machine.write(library.pid, 'thaw unverified'), 'EIO')
            check(read_bytes(path) == bytes(SIZE), 'zeros')
            equal(os.stat(path).st_blocks * 512, expected, f'open: {is_open}')
            del library.kept[:]
            library.on[FINISH] = fails_with(lambda: content(SIZE)[:SIZE])
            equal(machine.write(library.pid, 'thaw unverified'), 'EIO')
            equal(os.stat(path).st_blocks * 512, SIZE)
            if file:
                file.close()


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
