# SPDX-License-Identifier: MIT
"""Who has a process dumped or restored is root of this machine, by whoever's descriptor: not in a
container, not in a user namespace, not without CAP_SYS_ADMIN. The file of stdio= is opened with no more rights
than theirs."""
import ctypes
import errno
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
from harness import LIBC, NOBODY, check, equal, same_for_both
from test_restore_whose import dumped_of_user
from users import opened, write_by

CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
DAC_OVERRIDE, DAC_READ_SEARCH, SYS_ADMIN = 1, 2, 21


def as_user():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def must(result, what):
    if result:
        raise OSError(errno.ENOSYS, what)  # none that a test expects


def in_container():
    must(LIBC.unshare(CLONE_NEWPID), 'unshare')
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)


def in_user_namespace():
    """In which root is root, and has all capabilities."""
    must(LIBC.unshare(CLONE_NEWUSER), 'unshare')
    for name, text in ('setgroups', 'deny'), ('uid_map', '0 0 1'), ('gid_map', '0 0 1'):
        with open(f'/proc/self/{name}', 'w', encoding='ascii') as file:
            file.write(text)


def without(*capabilities):
    """For root that has fewer of them: capget(2) and capset(2) of version 3."""
    def drop():
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        data = (ctypes.c_uint32 * 6)()
        must(LIBC.capget(header, data), 'capget')
        for capability in capabilities:
            data[0] &= ~(1 << capability)
        must(LIBC.capset(header, data), 'capset')

    return drop


def plain():
    """Root as it is."""


def thaw(fd, prepare, text='thaw'):
    return write_by(fd, text, prepare=prepare)


def refused(machine, name, fd, prepare, text='thaw'):
    """Before anything was started."""
    machine.restores.set('')
    equal(thaw(fd, prepare, text), 'EPERM', prepare.__name__)
    equal(machine.state(name), 'dumped')
    check(not machine.restores.has('ran'), 'CRIU has been started')


def test_who_is_no_root_here():
    """Opened by one of them and written by root, or the other way around."""
    same_for_both('who has a process restored')
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        path = machine.ctl(name)
        roots = os.open(path, os.O_WRONLY)
        no_admin = without(SYS_ADMIN)
        for prepare in as_user, in_container, in_user_namespace, no_admin:
            refused(machine, name, roots, prepare)
            refused(machine, name, roots, prepare, f'thaw stdio={machine.directory}/x')
            refused(machine, name, roots, prepare, f'thaw pid={os.getpid()}')
        # A container finds no place; the user namespace has none of its owner's rights.
        for prepare in in_user_namespace, no_admin:
            fd = opened(path, prepare=prepare)
            refused(machine, name, fd, plain)
            check('CAP_SYS_ADMIN' in machine.error(name), machine.error(name))
            os.close(fd)
        check(not os.path.exists(f'{machine.directory}/x'), 'the file has been made')
        equal(thaw(roots, plain), 'ok')
        restore.check_on(machine, one, name)
        os.close(roots)


def test_opened_by_a_user():
    """Root writes to the user's place, by a descriptor that the user has opened."""
    same_for_both('who has a process restored')
    with restore.machine() as machine:
        one, name = dumped_of_user(machine)
        fd = opened(machine.ctl(name), prepare=as_user)
        target = f'{machine.directory}/secret'
        for text in 'thaw', f'thaw stdio={target}', f'thaw pid={os.getpid()}':
            refused(machine, name, fd, plain, text)
            check('only root' in machine.error(name), machine.error(name))
        check(not os.path.exists(target), 'the file has been made')
        os.close(fd)
        restore.thaws(machine, one, name)


def test_who_may_dump():
    """Without allow_user_dumps no user has CRIU run; with it, only on the user's own processes."""
    same_for_both('who has a process dumped')

    def dump_refused(machine, one, fd, prepare):
        machine.criu.set('wait')  # it says that it has been started
        equal(thaw(fd, prepare, 'dump'), 'EPERM', prepare.__name__)
        equal(machine.state(one.pid), 'running')
        check('only root' in machine.error(one.pid), machine.error(one.pid))
        check(not os.path.exists(machine.criu.path('pid')), 'CRIU has been started')

    def dump_runs_criu(machine, fd, prepare):
        """A CRIU that fails, since not every machine's can dump a program of a user's."""
        machine.criu.set('fail')
        equal(thaw(fd, prepare, 'dump'), 'EIO')
        check(os.path.exists(machine.criu.path('pid')), 'CRIU has been started')

    with dump.machine(wrapped=True, users_dump=False) as machine:
        one = dump.Program(machine, *dump.SMALL, uid=NOBODY).wait_ready()
        path = machine.ctl(one.pid)
        roots, users = os.open(path, os.O_WRONLY), opened(path, prepare=as_user)
        for fd, prepare in ((users, as_user), (users, plain), (roots, as_user),
                            (roots, in_container), (roots, in_user_namespace),
                            (roots, without(SYS_ADMIN))):
            dump_refused(machine, one, fd, prepare)
        equal(thaw(users, as_user, 'freeze'), 'ok')
        equal(thaw(users, as_user), 'ok')
        dump_runs_criu(machine, roots, plain)
        os.close(users)
        os.close(roots)
    with dump.machine(wrapped=True) as machine:
        one = dump.Program(machine, *dump.SMALL, uid=NOBODY).wait_ready()
        users = opened(machine.ctl(one.pid), prepare=as_user)
        dump_runs_criu(machine, users, as_user)
        os.close(users)


def test_stdio_with_few_rights():
    """Root that may not go past modes does not do so by the daemon."""
    same_for_both('whose rights stdio= is opened with')
    with restore.machine() as machine:
        read_end, write_end = os.pipe()
        one = dump.Program(machine, *dump.SMALL, stdin=read_end).wait_ready()
        os.close(read_end)
        name = dump.dumped(machine, one)
        os.close(write_end)
        directory = f'{machine.directory}/users'
        os.mkdir(directory, 0o700)
        os.chown(directory, NOBODY, NOBODY)
        few = without(DAC_OVERRIDE, DAC_READ_SEARCH)
        text = f'thaw stdio={directory}/file'
        roots = os.open(machine.ctl(name), os.O_WRONLY)
        of_few = opened(machine.ctl(name), prepare=few)
        for fd, writer in (roots, few), (of_few, plain), (of_few, few):
            equal(thaw(fd, writer, text), 'EACCES', machine.error(name))
            check(f'stdio={directory}/file: ' in machine.error(name), machine.error(name))
            equal([machine.state(name), os.listdir(directory)], ['dumped', []])
        equal(thaw(roots, plain, text), 'ok', machine.error(name))
        equal(os.listdir(directory), ['file'])
        restore.check_on(machine, one, name)
        os.close(roots)
        os.close(of_few)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
