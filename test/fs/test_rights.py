# SPDX-License-Identifier: MIT
"""Descriptors that are handed on: both who has opened a file and who writes have to be permitted.
The attacks are played for real, with set-user-ID programs and pid namespaces."""
import array
import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import (LIBC, NOBODY, Machine, Skip, become, check, equal, error_of, name_of,
                     same_for_both, wait_for)
from processes import sleeps
from users import child, need_root, opened, read_as, write_by

OTHER = NOBODY - 1
CLONE_NEWPID = 0x20000000


def by_vector(fd, data):
    return os.writev(fd, [data[:3], data[3:]])


def by_splice(fd, data):
    read_end, write_end = os.pipe()
    os.write(write_end, data)
    return os.splice(read_end, fd, len(data))


def by_sendfile(fd, data):
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return os.sendfile(fd, file.fileno(), 0, len(data))


def by_aio(fd, data):
    """io_submit(2)."""
    numbers = {'x86_64': (206, 208, 209), 'aarch64': (0, 4, 2)}[os.uname().machine]
    context = ctypes.c_ulong(0)
    check(not LIBC.syscall(numbers[0], 1, ctypes.byref(context)), 'io_setup')
    buffer = ctypes.create_string_buffer(data, len(data))
    # struct iocb: data, key and flags, opcode (1 is a write), fd, buffer, bytes, offset
    block = array.array('Q', [0, 0, 1 | fd << 32, ctypes.addressof(buffer), len(data), 0, 0, 0])
    address = ctypes.c_void_p(block.buffer_info()[0])
    check(LIBC.syscall(numbers[2], context, 1, ctypes.byref(address)) == 1, 'io_submit')
    done = array.array('q', [0] * 4)
    events = ctypes.c_void_p(done.buffer_info()[0])
    check(LIBC.syscall(numbers[1], context, 1, 1, events, None) == 1, 'io_getevents')
    if done[2] < 0:
        raise OSError(-done[2], 'aio')
    return done[2]


WAYS = {'write': None, 'writev': by_vector, 'splice': by_splice, 'sendfile': by_sendfile,
        'aio': by_aio}


@contextlib.contextmanager
def two_users(**options):
    """A program of root's, and one of NOBODY's."""
    with Machine(**options) as machine:
        mine = machine.ready_demo()
        theirs = machine.ready_demo(uid=NOBODY)
        yield machine, mine, theirs


def set_user_id_program(machine):
    """As sudo does with its prompt, it writes as root what a user has told it."""
    directory = f'{machine.directory}/bin'
    if os.statvfs(machine.directory).f_flag & os.ST_NOSUID:
        raise Skip('no set-user-ID programs here')
    os.mkdir(directory)
    path = shutil.copy('/usr/bin/printf', directory)
    os.chown(path, 0, 0)
    os.chmod(path, 0o4755)
    return path


def run_as(uid, fd, *arguments):
    """Its standard output is @fd: the words that it says about that."""
    return subprocess.run(arguments, stdout=fd, stderr=subprocess.PIPE, check=False, text=True,
                          user=uid, group=uid, extra_groups=[], env={'LC_ALL': 'C'}).stderr


def test_set_user_id_program():
    """It writes as root the words of a user, who has opened the root's ctl."""
    need_root()
    with two_users() as (machine, mine, theirs):
        program = set_user_id_program(machine)
        for flags in 0, os.O_NONBLOCK, os.O_APPEND:
            fd = opened(machine.ctl(), NOBODY, os.O_WRONLY | flags)
            words = run_as(NOBODY, fd, program, f'freeze {mine.pid}')
            check('not permitted' in words, words)
            equal(machine.state(mine.pid), 'running')
            os.close(fd)
        # It is root indeed: what the user may, it does.
        fd = opened(machine.ctl(), NOBODY)
        equal(run_as(NOBODY, fd, program, f'freeze {theirs.pid}'), '')
        equal(machine.state(theirs.pid), 'frozen')
        equal(run_as(NOBODY, fd, program, f'thaw {theirs.pid}'), '')
        os.close(fd)


def test_opened_by_a_user():
    """Root writes by it, in each way there is."""
    need_root()
    with two_users() as (machine, mine, theirs):
        fd = opened(machine.ctl(), NOBODY)
        for way, call in WAYS.items():
            equal(write_by(fd, f'freeze {mine.pid}', call=call), 'EPERM', way)
            equal(write_by(fd, f'freeze {mine.pid} {theirs.pid}', call=call), 'EPERM', way)
            equal(machine.state(mine.pid), 'running')
            equal(write_by(fd, f'freeze {theirs.pid}', call=call), 'ok', way)
            equal(write_by(fd, f'thaw {theirs.pid}', call=call), 'ok', way)
        # A descriptor that root makes of it by opening the file again is root's own.
        again = os.open(f'/proc/self/fd/{fd}', os.O_WRONLY)
        equal(write_by(again, f'freeze {mine.pid}'), 'ok')
        equal(write_by(fd, f'thaw {mine.pid}'), 'EPERM')
        equal(write_by(fd, f'cancel {mine.pid}'), 'EPERM')
        equal(write_by(fd, f'thaw swap={mine.pid} {theirs.pid}'), 'EPERM')
        equal(write_by(again, f'thaw {mine.pid}'), 'ok')
        # Nor does another user get more.
        equal(write_by(fd, f'freeze {theirs.pid}', OTHER), 'EPERM')
        equal(write_by(fd, f'freeze {theirs.pid}', NOBODY), 'ok')
        # A path that root has made, reopened by the user, is the user's.
        plain = os.open(machine.ctl(), os.O_PATH)
        reopened = opened(f'/proc/self/fd/{plain}', NOBODY)
        equal(write_by(reopened, f'freeze {mine.pid}'), 'EPERM')
        for one in fd, again, plain, reopened:
            os.close(one)


def test_opened_by_root():
    """A user inherits it."""
    need_root()
    with two_users() as (machine, mine, theirs):
        root, of_mine, of_theirs = [os.open(machine.ctl(pid), os.O_WRONLY)
                                    for pid in (None, mine.pid, theirs.pid)]
        equal(write_by(root, f'freeze {mine.pid}', NOBODY), 'EPERM')
        equal(write_by(of_mine, 'freeze', NOBODY), 'EPERM')
        equal(write_by(of_theirs, 'freeze', OTHER), 'EPERM')
        equal(write_by(of_theirs, 'freeze', NOBODY), 'ok')
        equal(write_by(root, f'thaw {theirs.pid}', NOBODY), 'ok')
        equal([machine.state(mine.pid), machine.state(theirs.pid)], ['running'] * 2)
        for fd in root, of_mine, of_theirs:
            os.close(fd)


def in_new_namespace():
    """The process that goes on is in a pid namespace of its own, as root, as in a container."""
    if LIBC.unshare(CLONE_NEWPID):
        raise OSError(errno.ENOSYS, 'unshare')
    pid = os.fork()
    if pid:
        status = os.waitpid(pid, 0)[1]
        os._exit(os.waitstatus_to_exitcode(status) & 0xff)


def contained(call):
    """child() of a process in a pid namespace of its own."""
    return child(call, in_new_namespace)


def need_namespaces():
    need_root()
    if contained(lambda: 0):
        raise Skip('no pid namespace can be made')


def test_pid_namespaces():
    """Whichever of the two is in a container, only its own processes are there."""
    need_namespaces()
    with two_users() as (machine, mine, _):
        fd = opened(machine.ctl(), prepare=in_new_namespace)
        equal(write_by(fd, f'freeze {mine.pid}'), 'ESRCH', 'opened in a container')
        os.close(fd)
        fd = os.open(machine.ctl(), os.O_WRONLY)
        equal(write_by(fd, f'freeze {mine.pid}', prepare=in_new_namespace), 'ESRCH',
              'written in a container')
        equal(write_by(fd, f'freeze {mine.pid}'), 'ok')
        equal(write_by(fd, f'thaw {mine.pid}'), 'ok')
        os.close(fd)


def test_places_in_a_container():
    """Root there has the number of root here, and is not it."""
    need_namespaces()
    same_for_both('places')
    with Machine() as machine:
        path = machine.path('roots')
        os.mkdir(path)
        os.mkdir(machine.path('users'))
        equal(name_of(child(lambda: become(NOBODY) or os.mkdir(machine.path('own')))), 'ok')
        fd = os.open(machine.ctl('roots'), os.O_WRONLY)

        def seen():
            return sum(1 << bit for bit, name in enumerate(('roots', 'users', 'own'))
                       if name in os.listdir(machine.mountpoint))

        def shown():
            return sum(1 << bit for bit, name in enumerate(('roots', 'users', 'own'))
                       if f'\n{name} ' in machine.read('status'))

        equal([seen(), shown()], [7, 7])
        equal([contained(seen), contained(shown)], [0, 0])
        equal([contained(lambda: become(NOBODY) or call()) for call in (seen, shown)], [4, 4])
        for call in (lambda: os.stat(path), lambda: os.rmdir(path), lambda: os.listdir(path),
                     lambda: os.open(f'{path}/ctl', os.O_WRONLY),
                     lambda: os.open(f'{path}/snapshot/x', os.O_WRONLY | os.O_CREAT)):
            equal(name_of(contained(call)), 'ENOENT')
        equal(name_of(contained(lambda: os.mkdir(machine.path('another')))), 'EPERM')
        directory = os.open(path, os.O_PATH)
        equal(name_of(contained(lambda: os.open('ctl', os.O_WRONLY, dir_fd=directory))), 'ENOENT')
        for verb in 'thaw', 'cancel', 'drop':
            equal(write_by(fd, verb, prepare=in_new_namespace), 'EPERM')
        equal(machine.state('roots'), 'incoming')
        equal(contained(lambda: become(NOBODY) or len(os.listdir(machine.path('own')))), 6)
        os.close(fd)
        os.close(directory)


def flood(path, text, times):
    """Bad writes of NOBODY's."""
    def write_them():
        become(NOBODY)
        fd = os.open(path, os.O_WRONLY)
        for _ in range(times):
            equal(error_of(lambda: os.write(fd, text)), 'EINVAL')

    equal(name_of(child(write_them)), 'ok')


def waits_of(pid):
    """How often a process has waited for something."""
    return int(re.search(r'^voluntary_ctxt_switches:\s*(\d+)', harness.read_file(f'/proc/{pid}/status'),
                         re.MULTILINE)[1])


def test_refusals_wake_nobody_else():
    """Who follows the root's events is not woken by writes that are refused, which are not in them."""
    need_root()
    same_for_both('events')
    with two_users() as (machine, mine, theirs):
        ready, told = os.pipe()
        follower = os.fork()
        if not follower:
            harness.end_with_us(signal.SIGKILL)()
            events = machine.events()
            events.read()
            os.write(told, b'x')
            events.poller.poll()
            os._exit(0)
        try:
            os.read(ready, 1)
            wait_for(lambda: sleeps(follower), 'it to follow')
            before = waits_of(follower)
            flood(machine.ctl(theirs.pid), b'nonsense', 500)
            woken = waits_of(follower) - before
            check(woken < 50, f'it was woken {woken} times')
        finally:
            os.kill(follower, signal.SIGKILL)
            os.waitpid(follower, 0)


def make_and_drop(path, times):
    def make_them():
        become(NOBODY)
        for _ in range(times):
            os.mkdir(path)
            os.rmdir(path)

    equal(name_of(child(make_them)), 'ok')


def test_history_of_others():
    """What a user does, right or wrong, does not push what others have done out of the root's
    events; and fills neither these nor the log with words of his."""
    need_root()
    same_for_both('events')
    with two_users() as (machine, mine, theirs):
        machine.must(mine.pid, 'freeze')
        machine.must(mine.pid, 'thaw')
        history = [line for line in machine.read('events').splitlines()
                   if line.split()[1] == str(mine.pid)]
        check(len(history) > 5, str(history))
        text = b'secret ' * 20
        for path in machine.ctl(), machine.ctl(theirs.pid):
            before = os.stat(machine.path('events')).st_size
            flood(path, text, harness.few(1500, 8000))
            equal(os.stat(machine.path('events')).st_size, before, f'of {path}')
        check(machine.error(theirs.pid).startswith('EINVAL: '), 'their own words')
        check('verb - EINVAL ' in machine.read(theirs.pid, 'events'), 'their own events')
        lines = [line for line in machine.log().splitlines() if 'EINVAL' in line]
        check(0 < len(lines) < 1000, f'{len(lines)} lines in the log')
        sizes = set()
        for _ in range(25):
            make_and_drop(machine.path('p' * 64), 200)
            sizes.add(os.stat(machine.path('events')).st_size)
        check(max(sizes) <= 1 << 20 and list(sizes) != sorted(sizes), 'lines have been cut')
        events = machine.read('events').splitlines()
        equal([line for line in events if line.split()[1] == str(mine.pid)], history)
        check(all(line.count('Z ') == 1 and line.split()[2] == '-' for line in events
                  if 'p' * 64 in line), 'whole lines')
        machine.must(mine.pid, 'freeze')
        machine.must(mine.pid, 'thaw')
        check(machine.read('events').splitlines()[-1].endswith('verb thaw ok'), 'it goes on')


def test_words_in_events():
    """Everybody reads the root's: names and results. The words stand in the owner's."""
    same_for_both('events')
    with Machine() as machine:
        demo = machine.ready_demo()
        os.mkdir(machine.path('place'))
        machine.failing('freeze')
        equal(machine.write(demo.pid, 'freeze'), 'EIO')
        machine.faults()
        equal(machine.write(demo.pid, 'thaw stdio=/secret'), 'EINVAL')
        equal(machine.write('place', 'thaw'), 'EOPNOTSUPP')
        equal(machine.write('place', 'jump'), 'EINVAL')
        equal(machine.write(None, 'jump 1'), 'EINVAL')
        found = [line.split(' ', 1)[1] for line in machine.read('events').splitlines()
                 if ' verb ' in line]
        generation = found[0].split()[1]
        equal(found, [f'{demo.pid} {generation} verb freeze EIO',
                      f'{demo.pid} {generation} verb thaw EINVAL', 'place - verb thaw EOPNOTSUPP',
                      'place - verb - EINVAL', '- - verb - EINVAL'])
        for path in demo.pid, 'place':
            for line in machine.read(path, 'events').splitlines():
                check(' verb ' not in line or len(line.split()) > 7, line)


def test_error_of_the_root():
    """Each user's own."""
    need_root()
    same_for_both('whose words they are')
    with two_users() as (machine, mine, theirs):
        path = machine.path('error')
        equal([machine.read('error'), read_as(NOBODY, path)], ['ok\n'] * 2)
        fd = opened(machine.ctl(), NOBODY)
        equal(write_by(fd, f'freeze {mine.pid}', NOBODY), 'EPERM')
        equal(read_as(NOBODY, path), f'EPERM: process {mine.pid} belongs to another user\n')
        equal([machine.read('error'), read_as(OTHER, path)], ['ok\n'] * 2)
        # Root has written the words of a user.
        equal(write_by(fd, 'jump 1'), 'EINVAL')
        check(read_as(NOBODY, path).startswith('EINVAL: '), read_as(NOBODY, path))
        equal(machine.read('error'), 'ok\n')
        equal(machine.write(None, 'freeze 0'), 'EINVAL')
        check(machine.read('error').startswith('EINVAL: '), machine.read('error'))
        shown = f'{machine.directory}/shown'

        def show():
            with open(shown, 'w', encoding='utf-8') as file:
                file.write(machine.read('error'))

        equal(name_of(contained(show)), 'ok')
        equal(harness.read_file(shown), '', 'in a container')
        equal(write_by(fd, f'freeze {theirs.pid}', NOBODY), 'ok')
        equal(write_by(fd, f'thaw {theirs.pid}', NOBODY), 'ok')
        equal(read_as(NOBODY, path), 'ok\n')
        os.close(fd)


def own_and_write(fd, uid):
    """Each way in which an open file is changed: whether that is permitted to this user."""
    calls = (lambda: os.pwrite(fd, b'y', 0), lambda: os.ftruncate(fd, 5),
             lambda: os.posix_fallocate(fd, 0, 10))

    def change(call):
        def do_it():
            become(uid) if uid else None
            call()
        return do_it

    found = {name_of(child(change(call))) for call in calls}
    equal(len(found), 1, f'one answer of {found}')
    return found.pop()


def test_chown_ends_writers():
    """Who has lost a file does not go on writing to it by what was opened before."""
    need_root()
    same_for_both('places')
    with Machine() as machine:
        place = machine.path('place')
        snapshot = f'{place}/snapshot'
        path = f'{snapshot}/manifest'

        def make():
            become(NOBODY)
            os.mkdir(place)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o660))

        equal(name_of(child(make)), 'ok')
        former = opened(path, NOBODY, os.O_RDWR)
        roots = os.open(path, os.O_RDWR)
        equal([own_and_write(fd, NOBODY) for fd in (former, roots)], ['ok'] * 2)
        # Nothing has changed, and what leaves the owner what he had.
        os.chown(path, NOBODY, NOBODY)
        os.chmod(path, 0o600)
        equal(own_and_write(former, NOBODY), 'ok')
        subprocess.run(['chown', '-R', '0:0', snapshot], check=True)
        with open(path, 'rb') as file:
            before = file.read()
        equal([own_and_write(former, uid) for uid in (NOBODY, 0)], ['EPERM'] * 2)
        equal(name_of(child(lambda: by_aio(former, b'z') and 0)), 'EPERM')
        with open(path, 'rb') as file:
            equal(file.read(), before)
        equal(os.pread(former, 100, 0), before, 'it can be read on')
        equal(own_and_write(roots, 0), 'ok')
        # Given back, it is his as before.
        os.chown(path, NOBODY, NOBODY)
        equal(own_and_write(former, NOBODY), 'ok')
        os.chmod(path, 0o400)
        equal(own_and_write(former, NOBODY), 'EPERM')
        # What the owner does himself is as elsewhere.
        os.chown(snapshot, NOBODY, NOBODY)
        equal(name_of(child(lambda: become(NOBODY) or os.chmod(path, 0o600))), 'ok')
        last = opened(path, NOBODY, os.O_RDWR)
        equal(name_of(child(lambda: become(NOBODY) or os.chmod(path, 0o400))), 'ok')
        equal(own_and_write(last, NOBODY), 'ok')
        for fd in former, roots, last:
            os.close(fd)


def leased(path, flags, prepare):
    """A descriptor with a lease on the file, taken after prepare(); None: the kernel grants none."""
    ours, theirs = socket.socketpair()

    def take_it():
        prepare()
        fd = os.open(path, flags)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        socket.send_fds(theirs, [b'x'], [fd])

    with ours, theirs:
        return None if child(take_it) else socket.recv_fds(ours, 1, 1)[1][0]


def enter_container():
    """Root of a pid namespace: in there is a child, which goes on."""
    if LIBC.unshare(CLONE_NEWPID):
        raise OSError(errno.EPERM, 'unshare')
    pid = os.fork()
    if pid:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_leases():
    """What keeps others from opening a file, for as long as fs.lease-break-time, keeps nobody from
    opening those of a process and of a place, nor root of a container others from root's."""
    need_root()
    same_for_both('who opens a file')
    with Machine() as machine:
        demo = machine.ready_demo(uid=NOBODY)
        equal(name_of(child(lambda: become(NOBODY) or os.mkdir(machine.path('place')))), 'ok')
        names = [(lambda: become(NOBODY), where, name) for where in (demo.pid, 'place')
                 for name in ('ctl', 'status', 'error', 'events', 'criu.log')]
        names += [(lambda: become(NOBODY), demo.pid, 'maps'), (enter_container, '.', 'status'),
                  (enter_container, '.', 'metrics')]
        for prepare, where, name in names:
            path = machine.path(where, name)
            flags = os.O_WRONLY if name == 'ctl' else os.O_RDONLY
            number = os.stat(path).st_ino
            fd = leased(path, flags, prepare)
            if fd is None:
                raise Skip('the kernel grants no lease here')
            try:
                # Without O_NONBLOCK it would wait.
                equal(error_of(lambda: os.close(os.open(path, flags | os.O_NONBLOCK))), 'ok', path)
                equal([os.fstat(fd).st_ino, os.stat(path).st_ino], [number] * 2, path)
            finally:
                os.close(fd)


def test_cancel_of_others():
    """Who has one of several processes does not stop what root does with all."""
    need_root()
    with Machine() as machine:
        mine, other = [machine.ready_demo(uid=uid) for uid in (NOBODY, NOBODY - 1)]
        wait_for(lambda: {mine.pid, other.pid} <= set(machine.pids()), 'both to be listed')

        def cancel(program, verb, uid=NOBODY):
            machine.faults(f'cuCheckpointProcessCheckpoint pid={mine.pid} delay_ms={800 * harness.SLOW}')
            group = machine.writer(None, verb)
            wait_for(lambda: machine.state(program.pid) == 'freezing', 'it to begin')
            answer = machine.writer(program.pid, 'cancel', uid=uid).result()
            return answer, group.result()

        equal(cancel(mine, f'freeze {mine.pid} {other.pid}'), ('EPERM', 'ok'))
        machine.must(None, f'thaw {mine.pid} {other.pid}')
        equal(cancel(mine, f'freeze {mine.pid} {other.pid}', uid=0), ('ok', 'ECANCELED'))
        # Of his process alone he may.
        equal(cancel(mine, f'freeze {mine.pid}'), ('ok', 'ECANCELED'))
        for program in mine, other:
            program.wait_ticks()


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
