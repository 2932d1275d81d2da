# SPDX-License-Identifier: MIT
"""Whose a dump is whose processes change their user in the middle of it, and its log. See
test/unit/image/test_dump_owner.c for several users, and for what changes while CRIU works."""
import os
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
from harness import BUILD, NOBODY, Skip, check, equal, error_of, is_root, same_for_both, wait_for
from test_dump_rights import Secret, as_user

READS_MAX = 24
REFUSALS = 'may not read', 'belongs to another user', 'has changed its user'


def need_root():
    same_for_both('whose a dump is')
    if not is_root():
        raise Skip('several users are needed')


def test_root_for_a_moment():
    """The root of the tree is root's just when its rights are read. What it holds open it could not
    read as its user, so no dump of it is his, whichever read that is."""
    need_root()
    if os.statvfs('/tmp').f_flag & os.ST_NOSUID:
        raise Skip('/tmp has no set-user-ID programs')
    with dump.machine() as machine:
        machine.stop()
        os.chmod(machine.directory, 0o755)
        orders = f'{machine.directory}/racing'
        program = f'{BUILD}/test/e2e/changing'
        other = shutil.copy(program, f'{machine.directory}/other')
        os.chown(other, 0, 0)
        os.chmod(other, 0o4755)
        machine.start(env={'LD_PRELOAD': f'{BUILD}/test/e2e/libracing.so',
                           'GPUCR_TEST_RACING': orders})
        secret = Secret(machine)
        one = dump.Program(machine, *dump.SMALL, uid=NOBODY,
                           command=[program, 'root', secret.path, other, *dump.RUN]).wait_ready()
        os.unlink(secret.path)
        wait_for(lambda: os.path.exists(machine.path(one.root)), 'the root of the tree')
        said = set()
        for number in range(1, READS_MAX + 1):
            with open(f'{orders}.new', 'w', encoding='utf-8') as file:
                file.write(f'{one.root} {number} {number}')
            os.rename(file.name, orders)
            writer = machine.writer(one.root, f'dump name=stolen{number}', uid=NOBODY)
            result = writer.result()
            words = f'{result}: {machine.error(one.pid)}'
            found = [refusal for refusal in REFUSALS if refusal in words]
            # EACCES: that read was of the owner of ctl, which the user could not even open.
            check(result == 'EACCES' or (result == 'EPERM' and found), f'read {number}: {words}')
            said.update(found)
            dump.nothing_left(machine)
        os.unlink(orders)
        check(len(said) > 1, f'the race was never run: {said}')
        one.wait_ticks()


def test_link():
    """CRIU makes a name for a file that has lost its own, by the path that it was opened by: not
    where somebody else than root says what that is."""
    need_root()
    with dump.machine() as machine:
        os.chmod(machine.directory, 0o755)
        home, target = f'{machine.directory}/home', f'{machine.directory}/etc'

        def lose():
            fd = os.open(f'{home}/d/x', os.O_RDWR | os.O_CREAT, 0o755)
            os.link(f'{home}/d/x', f'{home}/kept')
            os.unlink(f'{home}/d/x')
            os.rmdir(f'{home}/d')
            os.symlink(target, f'{home}/d')
            os.set_inheritable(fd, True)

        os.mkdir(target)
        for path in home, f'{home}/d':
            os.mkdir(path)
            os.chown(path, NOBODY, NOBODY)
        # The second is root's own program, with a file that lies in a user's directory.
        for uid, writers in (NOBODY, (NOBODY, None)), (None, (None,)):
            one = dump.Program(machine, *dump.SMALL, uid=uid, name=f'by-{uid}',
                               prepare=lose).wait_ready()
            for writer in writers:
                equal(machine.writer(one.pid, 'dump name=own', uid=writer).result(), 'EOPNOTSUPP')
                check('has lost the name' in machine.error(one.pid), machine.error(one.pid))
                one.wait_ticks()
            equal(os.listdir(target), [])
            dump.nothing_left(machine)
            os.unlink(f'{home}/d')
            os.unlink(f'{home}/kept')
            os.mkdir(f'{home}/d')
            os.chown(f'{home}/d', NOBODY, NOBODY)


def test_firewall():
    """CRIU holds back packets of the machine until the thaw, which is root's: so is that."""
    need_root()
    with dump.machine() as machine:
        os.chmod(machine.directory, 0o755)
        one = dump.Program(machine, *dump.SMALL, uid=NOBODY).wait_ready()
        equal(machine.writer(one.pid, 'dump tcp=keep', uid=NOBODY).result(), 'EPERM')
        check('only root may write tcp=keep' in machine.error(one.pid), machine.error(one.pid))
        one.wait_ticks()
        dump.nothing_left(machine)


def test_whose_log():
    """CRIU's log of root's dump names what is open, which its user need not know. It is root's
    until that is known to be nothing; his own dump's is his."""
    need_root()
    with dump.machine(wrapped=True) as machine:
        os.chmod(machine.directory, 0o755)
        one = dump.Program(machine, *dump.SMALL, uid=NOBODY).wait_ready()
        path = machine.path(one.pid, 'criu.log')

        def fail(uid):
            machine.criu.set('fail-after')
            # Where CRIU may dump no other user's process, it fails by itself.
            check(machine.writer(one.pid, 'dump', uid=uid).result() != 'ok', 'it was to fail')

        def readable():
            return as_user(lambda: error_of(lambda: open(path, 'rb').close()))

        fail(NOBODY)
        equal([os.stat(path).st_uid, readable()], [NOBODY, 'ok'])
        check(harness.read_file(path), 'there is a log')
        fail(None)
        equal([os.stat(path).st_uid, readable()], [0, 'EACCES'])
        check(harness.read_file(path), 'root reads it')
        fail(NOBODY)
        equal([os.stat(path).st_uid, readable()], [NOBODY, 'ok'])
        dump.as_before(machine, one)


# Starts a program when it is told to.
STARTER = """
import os, signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
subprocess.Popen(['/bin/sh', '-c', sys.argv[1]], preexec_fn=lambda: signal.pthread_sigmask(
    signal.SIG_UNBLOCK, [signal.SIGUSR1]))
signal.sigwait([signal.SIGUSR1])
subprocess.Popen([sys.argv[2], '1000'])
while True:
    signal.pause()
"""


def test_log_of_others_rights():
    """A process of the tree executes a set-user-ID program before CRIU holds it. The log, in which CRIU
    tells where that has its memory, is not the user's; not even if CRIU fails."""
    need_root()
    if os.statvfs('/tmp').f_flag & os.ST_NOSUID:
        raise Skip('/tmp has no set-user-ID programs')
    with dump.machine(wrapped=True) as machine:
        os.chmod(machine.directory, 0o755)
        other = shutil.copy('/bin/sleep', f'{machine.directory}/other')
        os.chmod(other, 0o4755)
        for name in 'one.out', 'one.err':
            with open(f'{machine.directory}/{name}', 'w', encoding='utf-8') as file:
                os.fchown(file.fileno(), NOBODY, -1)
        root = dump.Program(machine, dump.demo_in_shell(machine, 'one'), other, name='starter',
                            command=[sys.executable, '-c', STARTER], uid=NOBODY)
        one = dump.Program.below(root, 'one').wait_ready()
        path = machine.path(root.pid, 'criu.log')

        def readable():
            return as_user(lambda: error_of(lambda: open(path, 'rb').close()))

        machine.criu.set('wait')
        writer = machine.writer(root.pid, 'dump', uid=NOBODY)
        machine.criu.wait()
        os.kill(root.pid, signal.SIGUSR1)
        children = f'/proc/{root.pid}/task/{root.pid}/children'
        wait_for(lambda: any(harness.read_file(f'/proc/{pid}/comm') == 'other\n'
                             for pid in harness.read_file(children).split()), 'the other program')
        machine.criu.go()
        # Where CRIU may dump no other user's process, it fails by itself.
        check(writer.result() != 'ok', 'it was to fail')
        equal([os.stat(path).st_uid, readable()], [0, 'EACCES'])
        check(harness.read_file(path), 'there is a log')
        machine.criu.set()
        dump.as_before(machine, one)


# With a child that does nothing; who ends is reaped at once, or not before its parent looks.
PARENT = """
import os, signal, sys, time
if sys.argv[1] == 'reaped':
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = os.fork()
if not child:
    time.sleep(100000)
with open(sys.argv[2], 'w') as file:
    file.write(str(child))
if not os.fork():
    os.execv('/bin/sh', ['sh', '-c', sys.argv[3]])
while True:
    time.sleep(1000)
"""


def test_killed_when_criu_has_dumped_it():
    """Its memory is in the images, and nobody can look any more with which rights it ran."""
    same_for_both('what CRIU has written')
    for how in 'reaped', 'zombie':
        with dump.machine(wrapped=True) as machine:
            number = f'{machine.directory}/child'
            root = dump.Program(machine, how, number, dump.demo_in_shell(machine, 'one'), name='parent',
                                command=[sys.executable, '-c', PARENT])
            one = dump.Program.below(root, 'one').wait_ready()
            child = int(harness.read_file(number))
            machine.criu.set('wait-after')
            writer = machine.writer(root.pid, 'dump')
            machine.criu.wait('done')
            os.kill(child, signal.SIGKILL)
            wait_for(lambda: not harness.is_alive(child), 'its end')
            machine.criu.go()
            equal(writer.result(), 'EBUSY', how)
            words = machine.error(one.pid)
            check(f'{child} of the tree has ended since CRIU dumped it' in words, words)
            machine.criu.set()
            dump.as_before(machine, one)
            if how == 'reaped':
                machine.must(root.pid, 'dump')


def test_other_rights_in_the_image():
    """What CRIU has a process tell about itself is in memory that others of its user can change."""
    same_for_both('what CRIU has written')
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        # uid, gid, and so on to fsgid, in creds_entry.
        ids = b''.join(bytes([number << 3, 0]) for number in range(1, 9))
        for old, new, what in ((ids, bytes([8, 5]) + ids[2:], 'user or group ids'),
                               (ids, ids[:-2] + bytes([64, 5]), 'user or group ids'),
                               (ids, ids[:-2] + bytes([64, 128]), None)):
            machine.criu.set('wait-after')
            writer = machine.writer(one.pid, 'dump')
            pid = machine.criu.wait()
            machine.criu.wait('done')
            path = f'/proc/{pid}/fd/3/core-{one.pid}.img'
            with open(path, 'r+b') as image:
                bytes_ = image.read()
                equal(bytes_.count(old), 1, 'the ids of a process of root')
                image.seek(bytes_.index(old))
                image.write(new)
            machine.criu.go()
            equal(writer.result(), 'EPERM' if what else 'EIO')
            check(not what or f'has other {what} in CRIU' in machine.error(one.pid),
                  machine.error(one.pid))
            machine.criu.set()
            dump.as_before(machine, one)
        dump.dumped(machine, one)


if __name__ == '__main__':
    harness.main(globals())
