# SPDX-License-Identifier: MIT
"""Whose a process is: the mount gives a user no process into which the kernel does not let the user's
other processes look (ptrace(2))."""
import concurrent.futures
import errno
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import (BUILD, LIBC, NOBODY, SLOW, Machine, Skip, become, check, equal, error_of, name_of,
                     same_for_both, wait_for)
from users import GPU_PROGRAM, child, need_root, opened, read_as, write_by

UNDUMPABLE = GPU_PROGRAM + """
sys.stdin.readline()
print(ctypes.CDLL(None).prctl(4, 0), flush=True)
sys.stdin.readline()
"""


def test_process_that_is_not_his_any_more():
    """One that has become undumpable is root's, whatever its user id: PR_SET_DUMPABLE is 4."""
    need_root()
    same_for_both('whose a process is')
    if harness.SANITIZER == 'thread':
        return  # its runtime cannot be loaded into a Python that runs
    with Machine() as machine:
        library = f'{machine.env["GPUCR_SIM_LIBDIR"]}/libcuda.so.1'
        with subprocess.Popen([sys.executable, '-c', UNDUMPABLE, library], text=True, bufsize=1,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              env=machine.env) as program:
            try:
                equal(program.stdout.readline(), '0 0\n')
                path = machine.path(program.pid, 'events')
                wait_for(lambda: os.path.exists(path), 'its directory')
                equal(os.stat(path).st_uid, NOBODY)
                fd, roots = opened(path, NOBODY, os.O_RDONLY), os.open(path, os.O_RDONLY)
                ctl = opened(machine.ctl(program.pid), NOBODY)

                def read():
                    return [error_of(lambda: os.pread(one, 100, 0)) for one in (fd, roots)]

                equal(read(), ['ok'] * 2)
                program.stdin.write('\n')
                equal(program.stdout.readline(), '0\n')
                equal(os.stat(path).st_uid, 0)
                equal(read(), ['EPERM', 'ok'])
                equal(machine.writer(program.pid, 'freeze', uid=NOBODY).result(), 'EACCES')
                equal(machine.writer(None, f'freeze {program.pid}', uid=NOBODY).result(), 'EPERM')
                equal(write_by(ctl, 'freeze', NOBODY), 'EPERM')
                # Nor are its last events his once it has ended.
                program.kill()
                program.wait()
                equal(read(), ['EPERM', 'ok'])
                os.close(ctl)
                os.close(fd)
                os.close(roots)
            finally:
                program.kill()



def test_more_rights_than_the_user():
    """The kernel lets no other process of a user look into one with capabilities or a second
    identity: the mount gives her no more."""
    need_root()
    same_for_both('whose a process is')
    setpriv = ['setpriv', f'--reuid={NOBODY}', f'--regid={NOBODY}', '--clear-groups']
    with vmm.machine() as machine:
        own = vmm.demo(machine, command=[*setpriv, *vendor.RUN, *vendor.DEMO])
        capable = vmm.demo(machine, command=[*setpriv, '--inh-caps=+sys_nice',
                                             '--ambient-caps=+sys_nice', *vendor.RUN, *vendor.DEMO])
        for demo, owner in (own, NOBODY), (capable, 0):
            for name in ('', 'ctl', 'snapshot'):
                equal(os.stat(machine.path(demo.pid, name)).st_uid, owner, name)
        with open(machine.ctl(capable.pid), 'wb', buffering=0) as roots:
            equal(write_by(roots.fileno(), 'freeze', NOBODY), 'EPERM')
        equal(machine.state(capable.pid), 'running')
        equal(write_by(opened(machine.ctl(own.pid), NOBODY), 'freeze', NOBODY), 'ok')
        machine.must(own.pid, 'thaw')
        machine.must(capable.pid, 'freeze')
        path = machine.path(capable.pid, 'snapshot', 'vram')
        file = f'{path}/{os.listdir(path)[0]}'
        equal(os.stat(file).st_uid, 0)
        equal(name_of(child(lambda: os.close(os.open(file, os.O_RDONLY)),
                            lambda: become(NOBODY))), 'EACCES')
        machine.must(capable.pid, 'thaw')


GROUP = 12345


def group_user(group=NOBODY):
    """For prepare of child(): NOBODY, of this group."""
    def become_it():
        os.setgroups([])
        os.setgid(group)
        os.setuid(NOBODY)
    return become_it


def outcome(call, prepare):
    return name_of(child(lambda: call() and 0, prepare))


def texts(machine, pid, prepare):
    """How opens of a process's files end."""
    found = {outcome(lambda: os.open(machine.path(pid, name), os.O_RDONLY), prepare)
             for name in ('status', 'maps', 'error', 'events', 'criu.log')}
    equal(len(found), 1, f'one answer of {found}')
    return found.pop()


def verb_by(machine, pid, verb, prepare):
    """By the process's ctl and by the root's; opened and written by the same."""
    def write(name, text):
        def do_it():
            os.write(os.open(name, os.O_WRONLY), text.encode())
        return outcome(do_it, prepare)

    return [write(machine.ctl(pid), verb), write(machine.ctl(), f'{verb} {pid}')]


def test_other_group(**options):
    """The kernel compares the groups too: a server that has its user's id and a group of its own
    (sudo -g) is no other process's of that user."""
    need_root()
    same_for_both('whose a process is')
    with vmm.machine(**options) as machine:
        demo = vmm.demo(machine, command=['setpriv', f'--reuid={NOBODY}', f'--regid={GROUP}',
                                          '--clear-groups', *vendor.RUN, *vendor.DEMO])
        equal(os.stat(machine.path(demo.pid)).st_uid, NOBODY)
        user, member = group_user(), group_user(GROUP)
        equal(verb_by(machine, demo.pid, 'freeze', user), ['EPERM', 'EPERM'])
        words = read_as(NOBODY, machine.path('error'))
        check(f'process {demo.pid} has group {GROUP}' in words and str(NOBODY) in words, words)
        equal([texts(machine, demo.pid, user), texts(machine, demo.pid, member)], ['EACCES', 'ok'])
        # Neither the opener nor the writer may be of another group.
        for opener, writer in (user, member), (member, user), (None, user):
            fd = opened(machine.ctl(demo.pid), prepare=opener)
            equal(write_by(fd, 'freeze', prepare=writer), 'EPERM')
            os.close(fd)
        equal(machine.state(demo.pid), 'running')
        equal(verb_by(machine, demo.pid, 'freeze', member)[0], 'ok')
        snapshot = machine.path(demo.pid, 'snapshot')
        file = f'{snapshot}/vram/{os.listdir(f"{snapshot}/vram")[0]}'
        for call in (lambda: os.open(file, os.O_RDONLY), lambda: os.open(file, os.O_RDWR),
                     lambda: os.listdir(f'{snapshot}/vram'), lambda: os.listdir(snapshot),
                     lambda: os.open(f'{snapshot}/new', os.O_WRONLY | os.O_CREAT)):
            equal([outcome(call, user), outcome(call, member), name_of(child(lambda: call() and 0))],
                  ['EACCES', 'ok', 'ok'])
        equal(outcome(lambda: os.unlink(file), user), 'EACCES')
        equal(outcome(lambda: os.truncate(file, 0), user), 'EACCES')
        equal(verb_by(machine, demo.pid, 'thaw', user), ['EPERM', 'EPERM'])
        equal(verb_by(machine, demo.pid, 'thaw', member)[0], 'ok')


# A user namespace with a map that is written by its maker: the id inside, and who makes it.
APART = """
import ctypes, os, sys
inside, maker, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
os.setgroups([])
if maker:
    os.setgid(maker)
    os.setuid(maker)
    ctypes.CDLL(None).prctl(4, 1)
pid = os.getpid()
made, mapped = os.pipe(), os.pipe()
if not os.fork():
    os.read(made[0], 1)
    for name, text in ('setgroups', 'deny'), ('uid_map', f'{inside} 65534 1'), ('gid_map', f'{inside} 65534 1'):
        with open(f'/proc/{pid}/{name}', 'w') as file:
            file.write(text)
    os.write(mapped[1], b'x')
    os._exit(0)
if ctypes.CDLL(None).unshare(0x10000000):
    sys.exit('no user namespace can be made')
os.write(made[1], b'x')
os.read(mapped[0], 1)
os.wait()
os.setresgid(inside, inside, inside)
os.setresuid(inside, inside, inside)
os.execvp(command[0], command)
"""


def enter_user_namespace(pid, inside):
    """For prepare of child()."""
    def enter():
        fd = os.open(f'/proc/{pid}/ns/user', os.O_RDONLY)
        os.setgroups([])
        if LIBC.setns(fd, 0x10000000):
            raise OSError(errno.EPERM, 'setns')
        os.setresgid(inside, inside, inside)
        os.setresuid(inside, inside, inside)
    return enter


def need_user_namespaces():
    need_root()
    same_for_both('whose a process is')
    if child(lambda: LIBC.unshare(0x10000000) and errno.ENOSYS, group_user()):
        raise Skip('no user namespace can be made')


def apart(machine, inside, maker):
    return machine.ready_demo(command=[sys.executable, '-c', APART, str(inside), str(maker),
                                       *vendor.RUN, *vendor.DEMO])


def test_user_namespaces_of_roots(**options):
    """The kernel lets no process outside look into one that root has put there (PrivateUsers=),
    whatever its user; and none inside into one outside."""
    need_user_namespaces()
    with Machine(**options) as machine:
        theirs = machine.ready_demo(uid=NOBODY)
        for inside in NOBODY, 0:
            demo = apart(machine, inside, 0)
            equal(os.stat(machine.path(demo.pid)).st_uid, NOBODY)
            user, resident = group_user(), enter_user_namespace(demo.pid, inside)
            equal(verb_by(machine, demo.pid, 'freeze', user), ['EPERM', 'EPERM'])
            words = read_as(NOBODY, machine.path('error'))
            name = os.readlink(f'/proc/{demo.pid}/ns/user')
            check(name in words, f'{name} in {words}')
            equal([texts(machine, demo.pid, user), texts(machine, demo.pid, resident)], ['EACCES', 'ok'])
            equal(outcome(lambda: os.listdir(machine.path(demo.pid, 'snapshot')), user), 'EACCES')
            # No verb is under way that could be cancelled.
            equal(verb_by(machine, demo.pid, 'cancel', resident), ['EBUSY', 'EBUSY'])
            equal(verb_by(machine, theirs.pid, 'cancel', resident), ['EPERM', 'EPERM'])
            equal(verb_by(machine, theirs.pid, 'cancel', user), ['EBUSY', 'EBUSY'])
            equal([texts(machine, theirs.pid, one) for one in (user, resident)], ['ok', 'EACCES'])


def test_user_namespaces_of_his_own(**options):
    """Who has made it has all rights in it."""
    need_user_namespaces()
    with Machine(**options) as machine:
        theirs = machine.ready_demo(uid=NOBODY)
        for inside in NOBODY, 0:
            demo = apart(machine, inside, NOBODY)
            user = group_user()
            # Nor does he lose what he has outside.
            resident = enter_user_namespace(demo.pid, inside)
            equal(verb_by(machine, theirs.pid, 'cancel', resident), ['EBUSY', 'EBUSY'])
            equal(texts(machine, theirs.pid, resident), 'ok')
            equal(texts(machine, demo.pid, user), 'ok')
            for prepare in user, enter_user_namespace(demo.pid, inside):
                equal(verb_by(machine, demo.pid, 'cancel', prepare), ['EBUSY', 'EBUSY'])
                equal(outcome(lambda: os.listdir(machine.path(demo.pid, 'snapshot')), prepare), 'ok')


def test_user_namespaces_side_by_side(**options):
    """Two of his own making (two containers of his): none is above the other, and he is above both."""
    need_user_namespaces()
    with Machine(**options) as machine:
        demo, other = apart(machine, 0, NOBODY), apart(machine, 0, NOBODY)
        resident = enter_user_namespace(other.pid, 0)
        equal(verb_by(machine, demo.pid, 'cancel', resident), ['EBUSY', 'EBUSY'])
        equal(texts(machine, demo.pid, resident), 'ok')
        equal(outcome(lambda: os.listdir(machine.path(demo.pid, 'snapshot')), resident), 'ok')


OLDER = f'{BUILD}/test/fs/libolder.so'


def test_older_kernel():
    """The same before Linux 6.11: helpers look at the processes."""
    need_root()
    if SLOW > 1:
        raise Skip('no library is preloaded beside a sanitizer')
    for test in (test_other_group, test_user_namespaces_of_roots, test_user_namespaces_of_his_own,
                 test_user_namespaces_side_by_side):
        test(env={'LD_PRELOAD': OLDER})


def open_again(fd):
    """By an O_PATH descriptor, until the file is gone."""
    while True:
        try:
            os.close(os.open(f'/proc/self/fd/{fd}', os.O_RDONLY))
            return 0
        except OSError as error:
            if error.errno != errno.EACCES:
                raise


def test_snapshot_of_an_ended_process():
    """What the kernel would say of a process that is no more, nobody knows: its snapshot, as long as
    that is there, is nobody's but root's."""
    need_root()
    same_for_both('whose a process is')
    with vmm.machine() as machine:
        user = group_user()
        for _ in range(5):
            demo = vmm.demo(machine, command=['setpriv', f'--reuid={NOBODY}', f'--regid={GROUP}',
                                              '--clear-groups', *vendor.RUN, *vendor.DEMO])
            machine.must(demo.pid, 'freeze')
            directory = machine.path(demo.pid, 'snapshot', 'vram')
            fd = opened(f'{directory}/{os.listdir(directory)[0]}', flags=os.O_PATH, prepare=user)
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                opens = [pool.submit(child, lambda: open_again(fd), user) for _ in range(4)]
                machine.daemon.send_signal(signal.SIGSTOP)
                demo.end(signal.SIGKILL)
                machine.daemon.send_signal(signal.SIGCONT)
                found = {name_of(one.result()) for one in opens}
            os.close(fd)
            check(found <= {'ESRCH', 'ESTALE'}, f'opens after the end: {found}')


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
