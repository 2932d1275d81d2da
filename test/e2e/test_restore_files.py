#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Root thaws the program of a user, who changes directories of its files under CRIU's hands: CRIU
opens, makes and removes files, and makes sockets, with the rights of the program's owner."""
import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import stat
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
import users
from harness import BUILD, LIBC, NOBODY, check, equal, same_for_both, wait_for
from test_restore_whose import HAS_RESOURCE, share_gpu, users_program

FD = 77
AT_FDCWD = -100
FAN_REPORT_NAMES = 0x200 | 0x400 | 0x800
FAN_MARK_ADD = 1
FAN_OPEN, FAN_EVENT_ON_CHILD = 0x20, 0x08000000
F_GETOWNER_UIDS = 17
IN_ATTRIB, IN_CLOSE_NOWRITE = 0x4, 0x10
SYS_PIDFD_GETFD = 438
WORDS = 'root keeps this to itself'

# Stands for CRIU: CRIU with one more library, before the daemon's.
CRIU = '''#!/bin/sh
LD_PRELOAD="{library}:$LD_PRELOAD"
exec {directory}/root/loader --library-path {directory}/root/lib {directory}/root/criu "$@"
'''


@contextlib.contextmanager
def machines():
    """A machine on which root's CRIU can dump a user's processes, with a directory of root's and
    one of the user's. Yields it and the two."""
    same_for_both('whose rights files are opened with')
    if not harness.is_root():
        raise harness.Skip('several users are needed')
    with restore.machine() as machine:
        if not HAS_RESOURCE:
            with_limits(machine, machine.restores.directory)
        os.chmod(machine.directory, 0o755)
        secret, users = f'{machine.directory}/secret', f'{machine.directory}/users'
        os.mkdir(secret, 0o755)
        with open(f'{secret}/f', 'w', encoding='ascii') as file:
            file.write(WORDS)
        os.chmod(f'{secret}/f', 0o600)
        os.mkdir(users, 0o755)
        os.chown(users, NOBODY, NOBODY)
        yield machine, secret, users


def with_limits(machine, folder):
    """The daemon starts anew with a CRIU that need not be able to do everything."""
    program = next(word[5:] for word in machine.options.split(',') if word.startswith('criu='))
    with open(program, encoding='utf-8') as file:
        text = file.read()
    real = restore.criu.find().program
    directory = os.path.dirname(real)
    if not os.path.exists(f'{directory}/root/loader'):
        raise harness.Skip('CRIU dumps no process of another user here')
    path = f'{folder}/criu-with-limits'
    with open(path, 'w', encoding='utf-8') as file:
        file.write(CRIU.format(library=f'{BUILD}/test/e2e/liblimits.so', directory=directory))
    os.chmod(path, 0o755)
    with open(program, 'w', encoding='utf-8') as file:
        file.write(text.replace(real, path))


def dumped(machine, prepare):
    """A user's program, for which @prepare has opened something, dumped by the user."""
    one = users_program(machine, prepare=prepare)
    equal(machine.writer(one.pid, 'dump name=users', uid=NOBODY).result(), 'ok',
          machine.error(one.pid))
    one.wait_gone()
    return one


def keep(fd):
    """Lets the program have it."""
    os.dup2(fd, FD)
    os.set_inheritable(FD, True)
    os.close(fd)


def make_file(path, text=WORDS, mode=0o600):
    """Of the same length and mode as root's, which CRIU compares."""
    with open(path, 'w', encoding='ascii') as file:
        file.write(text)
    os.chmod(path, mode)


def swap(directory, target):
    os.rename(directory, f'{directory}.old')
    os.symlink(target, directory)


def swap_back(directory):
    os.unlink(directory)
    os.rename(f'{directory}.old', directory)


def swap_at(path, event, directory, target):
    """The pid of a process of the user's that swaps the directory when this event comes to the path."""
    fd = LIBC.inotify_init()
    check(LIBC.inotify_add_watch(fd, path.encode(), event) >= 0, 'inotify')
    pid = os.fork()
    if not pid:
        try:
            harness.become(NOBODY)
            os.read(fd, 4096)
            swap(directory, target)
        finally:
            os._exit(0)
    os.close(fd)
    return pid


@contextlib.contextmanager
def swapper(directory, target):
    """The user swaps the directory when the daemon has read and closed its file f."""
    swap_at(f'{directory}/f', IN_CLOSE_NOWRITE, directory, target)
    try:
        yield
    finally:
        wait_for(lambda: os.path.islink(directory), 'the directory to be swapped')


def as_user(call):
    equal(users.child(call, lambda: harness.become(NOBODY)), 0)


def refused(machine, one, words):
    """The thaw fails for this reason, and nothing lives of it."""
    result = machine.write('users', 'thaw')
    check(result != 'ok', 'it was thawed')
    check(words in machine.error('users'), machine.error('users'))
    one.wait_gone()
    restore.check_back(machine, one, 'users', may_have_cgroup=True)
    return result


def must_fail(machine, verb):
    """The message of the verb, which fails."""
    check(machine.write('users', verb) != 'ok', verb)
    return machine.error('users')


def link_of(one):
    return os.readlink(f'/proc/{one.pid}/fd/{FD}')


def test_swapped_directory():
    """The file is root's in the moment in which CRIU opens it."""
    with machines() as (machine, secret, users):
        def prepare():
            os.mkdir(f'{users}/d')
            make_file(f'{users}/d/f')
            keep(os.open(f'{users}/d/f', os.O_RDWR))

        one = dumped(machine, prepare)
        with swapper(f'{users}/d', secret):
            equal(refused(machine, one, 'may not open one of its files'), 'EACCES')
        as_user(lambda: swap_back(f'{users}/d'))
        restore.thaws(machine, one, 'users')
        equal(link_of(one), f'{users}/d/f')


def test_swapped_directory_without_access():
    """Also a descriptor by which nothing can be read or written: none needs rights to the file
    itself for that."""
    with machines() as (machine, secret, users):
        os.chmod(secret, 0o700)

        def prepare():
            os.mkdir(f'{users}/d')
            make_file(f'{users}/d/f')
            keep(os.open(f'{users}/d/f', os.O_PATH))

        one = dumped(machine, prepare)
        with swapper(f'{users}/d', secret):
            refused(machine, one, 'may not open one of its files')
        as_user(lambda: swap_back(f'{users}/d'))
        restore.thaws(machine, one, 'users')
        equal(link_of(one), f'{users}/d/f')


def test_messages_tell_nothing_of_others():
    """The user reads why root's thaw has failed: nothing of files that he could not see himself."""
    with machines() as (machine, secret, users):
        make_file(f'{secret}/f', text='x' * 12345)
        make_file(f'{secret}/readable', text='x' * 12345, mode=0o644)
        os.chmod(secret, 0o700)

        def prepare():
            os.mkdir(f'{users}/d')
            for name in 'f', 'readable', 'none':
                make_file(f'{users}/d/{name}')
            keep(os.open(f'{users}/d/f', os.O_RDONLY))
            for name in 'readable', 'none':
                os.set_inheritable(os.open(f'{users}/d/{name}', os.O_RDONLY), True)

        one = dumped(machine, prepare)
        as_user(lambda: swap(f'{users}/d', secret))
        refused(machine, one, 'Permission denied')
        words = machine.error('users')
        check('12345' not in words and 'is not there' not in words, words)
        check('long' in must_fail(machine, 'thaw trusted'), machine.error('users'))
        as_user(lambda: swap_back(f'{users}/d'))
        restore.thaws(machine, one, 'users')


def test_tree_of_several():
    """Root's tree, with a process of the user."""
    with machines() as (machine, secret, users):
        share_gpu(machine)
        os.mkdir(f'{users}/d')
        make_file(f'{users}/d/f')
        for path in 'd', 'd/f':
            os.chown(f'{users}/{path}', NOBODY, NOBODY)
        demo = dump.demo_in_shell(machine, 'member')
        user = f'setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups'
        root = dump.Program(machine, name='root', command=[
            'sh', '-c', f'(exec 9<>{users}/d/f; exec {user} {demo}) & wait'])
        one = dump.Program.below(root, 'member').wait_ready()
        for program in root, one:  # root's, which are opened with the rights of the user
            for suffix in 'out', 'err':
                os.chmod(f'{program.path}.{suffix}', 0o666)
        machine.must(root.root, 'dump name=users')
        one.wait_gone()
        with swapper(f'{users}/d', secret):
            refused(machine, one, 'may not open one of its files')
        as_user(lambda: swap_back(f'{users}/d'))
        machine.must('users', 'thaw')
        one.wait_ticks(2)
        equal(os.readlink(f'/proc/{one.pid}/fd/9'), f'{users}/d/f')


def test_deleted_file():
    """CRIU makes it again where it was, under its name for a moment: not in root's directory."""
    with machines() as (machine, secret, users):
        def prepare():
            os.mkdir(f'{users}/d')
            make_file(f'{users}/d/x')
            keep(os.open(f'{users}/d/x', os.O_RDWR))
            os.unlink(f'{users}/d/x')

        one = dumped(machine, prepare)
        before = os.stat(secret)
        as_user(lambda: swap(f'{users}/d', secret))
        equal(refused(machine, one, 'may not make a deleted file again'), 'EACCES')
        equal([os.listdir(secret), os.stat(secret).st_mtime_ns], [['f'], before.st_mtime_ns])
        as_user(lambda: swap_back(f'{users}/d'))
        restore.thaws(machine, one, 'users')
        equal([link_of(one), os.listdir(f'{users}/d')], [f'{users}/d/x (deleted)', []])


def test_socket():
    """CRIU removes a socket's old name, makes it again, and sets its owner and mode."""
    with machines() as (machine, secret, users):
        def prepare():
            os.mkdir(f'{users}/d')
            one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            one.bind(f'{users}/d/s')
            keep(one.detach())

        one = dumped(machine, prepare)
        before = os.stat(secret)
        as_user(lambda: swap(f'{users}/d', secret))
        refused(machine, one, 'may not make the name of its socket again')
        equal([os.listdir(secret), os.stat(secret).st_mtime_ns], [['f'], before.st_mtime_ns])
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as roots:
            roots.bind(f'{secret}/s')
        equal(refused(machine, one, 'is taken'), 'EADDRINUSE')
        equal([sorted(os.listdir(secret)), os.stat(f'{secret}/s').st_uid], [['f', 's'], 0])
        as_user(lambda: swap_back(f'{users}/d'))
        restore.thaws(machine, one, 'users')
        found = os.stat(f'{users}/d/s')
        equal([stat.S_ISSOCK(found.st_mode), found.st_uid], [True, NOBODY])


def test_watched_directory():
    """A program learns of no directory that its owner may not read who opens what in it."""
    with machines() as (machine, secret, users):
        def prepare():
            os.mkdir(f'{users}/d')
            fd = LIBC.fanotify_init(FAN_REPORT_NAMES, os.O_RDONLY)
            check(fd >= 0, 'fanotify_init')
            check(not LIBC.fanotify_mark(fd, FAN_MARK_ADD, ctypes.c_uint64(
                FAN_OPEN | FAN_EVENT_ON_CHILD), AT_FDCWD, f'{users}/d'.encode()), 'fanotify_mark')
            keep(fd)

        os.chmod(secret, 0o700)
        one = dumped(machine, prepare)
        as_user(lambda: swap(f'{users}/d', secret))
        equal(refused(machine, one, 'may not watch one of its files'), 'EACCES')
        as_user(lambda: swap_back(f'{users}/d'))
        restore.thaws(machine, one, 'users')
        equal(link_of(one), 'anon_inode:[fanotify]')


def test_lease():
    """A lease is for a file of the owner's, and its signals are sent with the owner's ids."""
    with machines() as (machine, secret, users):
        def prepare():
            os.mkdir(f'{users}/d')
            make_file(f'{users}/d/f', mode=0o644)
            fd = os.open(f'{users}/d/f', os.O_RDONLY)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            # A lease takes the process itself for the one that gets the signals, if there is none.
            fcntl.fcntl(fd, fcntl.F_SETOWN, 0)
            keep(fd)

        os.chmod(f'{secret}/f', 0o644)
        one = dumped(machine, prepare)
        as_user(lambda: swap(f'{users}/d', secret))
        equal(refused(machine, one, 'has a lease on a file that is not'), 'EACCES')
        as_user(lambda: swap_back(f'{users}/d'))
        restore.thaws(machine, one, 'users')
        pidfd = os.pidfd_open(one.pid)
        fd = LIBC.syscall(SYS_PIDFD_GETFD, pidfd, FD, 0)
        check(fd >= 0, 'pidfd_getfd')
        ids = fcntl.fcntl(fd, F_GETOWNER_UIDS, bytes(8))
        equal(struct.unpack('2I', ids), (NOBODY, NOBODY))
        os.close(fd)
        os.close(pidfd)


def test_current_directory():
    """A program gets no current directory that its owner may not enter."""
    with machines() as (machine, secret, users):
        os.chmod(secret, 0o700)

        def prepare():
            os.mkdir(f'{users}/d')
            os.chmod(f'{users}/d', 0o700)
            os.chdir(f'{users}/d')

        one = dumped(machine, prepare)
        os.rename(f'{users}/d', f'{users}/d.old')
        os.rename(secret, f'{users}/d')
        refused(machine, one, 'may not open one of its files')
        os.rename(f'{users}/d', secret)
        as_user(lambda: os.rename(f'{users}/d.old', f'{users}/d'))
        restore.thaws(machine, one, 'users')
        equal(os.readlink(f'/proc/{one.pid}/cwd'), f'{users}/d')


def test_of_roots():
    """What root has opened for the program is opened for no other than a trusted one: the images say
    how it was open, and those who write them ask the program."""
    with machines() as (machine, secret, _):
        os.chmod(f'{secret}/f', 0o644)
        fds = [os.open(f'{secret}/f', os.O_RDWR)]
        os.set_inheritable(fds[0], True)
        one = dumped(machine, lambda: keep(fds[0]))
        os.close(fds[0])
        refused(machine, one, 'may not open one of its files (thaw trusted opens them as root)')
        machine.must('users', 'thaw trusted')
        one.wait_ticks()
        equal(link_of(one), f'{secret}/f')


@contextlib.contextmanager
def path_watcher(directory, target):
    """The user swaps the directory when a socket in it has been made and given its owner."""
    pid = swap_at(directory, IN_ATTRIB, directory, target)
    try:
        yield
    finally:
        # A thaw that fails before has made no socket.
        harness.try_kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_message_on_its_way():
    """CRIU sends it again to the socket that it now finds by name, and not as root."""
    with machines() as (machine, secret, users):
        def prepare():
            os.mkdir(f'{users}/d')
            ends = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
            ends[0].bind(f'{users}/d/s')
            ends[1].connect(f'{users}/d/s')
            ends[1].send(WORDS.encode())
            # CRIU makes the others in between, which takes a while.
            for number in range(100):
                other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                other.bind(f'{users}/{number}')
                ends.insert(1, other)
            for number, end in enumerate(ends):
                os.dup2(end.detach(), FD + 50 + number)
                os.set_inheritable(FD + 50 + number, True)

        one = dumped(machine, prepare)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as roots:
            roots.bind(f'{secret}/s')
            os.chmod(f'{secret}/s', 0o777)
            roots.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            roots.setblocking(False)
            for _ in range(8):  # The user is often too early, and the thaw fails.
                with path_watcher(f'{users}/d', secret):
                    result = machine.write('users', 'thaw')
                if result == 'ok':
                    break
                if os.path.islink(f'{users}/d'):
                    as_user(lambda: swap_back(f'{users}/d'))
                elif not os.path.exists(f'{users}/d'):  # killed in the middle
                    os.rename(f'{users}/d.old', f'{users}/d')
                # What CRIU had made is a child of this process, which keeps its pid until then.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)
            with contextlib.suppress(BlockingIOError):
                words, told, *_ = roots.recvmsg(100, 100)
                equal([words, struct.unpack('3I', told[0][2])[1:]],
                      [WORDS.encode(), (NOBODY, NOBODY)])


def peer_of(fd):
    """The ids of the other end of a socket, as the kernel tells them."""
    return struct.unpack('3i', fd.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:]


def test_sockets_are_the_users():
    """Nobody takes a restored program for root because CRIU, which is root, has made its sockets."""
    with machines() as (machine, _, users):
        def prepare():
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(f'{users}/socket')
                listening.listen()
                keep(listening.detach())
            os.chmod(f'{users}/socket', 0o777)
            for number, end in enumerate(socket.socketpair()):
                os.dup2(end.detach(), FD + 1 + number)
                os.set_inheritable(FD + 1 + number, True)

        def peers(pid, listening):
            found = []
            if listening:
                with socket.socket(socket.AF_UNIX) as one:
                    one.connect(f'{users}/socket')
                    found.append(peer_of(one))
            pidfd = os.pidfd_open(pid)
            for number in FD + 1, FD + 2:
                fd = LIBC.syscall(SYS_PIDFD_GETFD, pidfd, number, 0)
                check(fd >= 0, 'pidfd_getfd')
                with socket.socket(fileno=fd) as end:
                    found.append(peer_of(end))
            os.close(pidfd)
            return found

        one = users_program(machine, prepare=prepare)
        # Nobody accepts a connection, and CRIU dumps none that waits for that.
        equal(peers(one.pid, False), [(NOBODY, NOBODY)] * 2)
        equal(machine.writer(one.pid, 'dump name=users', uid=NOBODY).result(), 'ok',
              machine.error(one.pid))
        one.wait_gone()
        machine.must('users', 'thaw')
        one.wait_ticks()
        equal(peers(one.pid, True), [(NOBODY, NOBODY)] * 3)


def test_own_without_rights():
    """The user's own file that he could open before he took its mode away."""
    with machines() as (machine, _, users):
        def prepare():
            make_file(f'{users}/f')
            keep(os.open(f'{users}/f', os.O_RDWR))
            os.chmod(f'{users}/f', 0)

        one = dumped(machine, prepare)
        restore.thaws(machine, one, 'users')
        equal(link_of(one), f'{users}/f')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
