# SPDX-License-Identifier: MIT
"""CRIU does as root what its images say: nobody but root may have written those that are restored,
and what is refused is refused before anything is started."""
import os
import shutil
import signal
import stat
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
import users
import vendor
from harness import (NOBODY, check, equal, error_of, is_alive, same_for_both, try_kill,
                     wait_for)

OTHER = NOBODY - 1


def as_user(call, uid=NOBODY, gid=None):
    """The name of the errno that it fails with in a process of that user."""
    return users.answer(lambda: error_of(call), uid, gid)


def share_gpu(machine):
    """Makes the GPU anybody's."""
    for top, _, files in os.walk(machine.simulator):
        os.chmod(top, 0o1777)
        for file in files:
            os.chmod(f'{top}/{file}', 0o666)


def users_program(machine, **options):
    """On a machine whose GPU is anybody's."""
    share_gpu(machine)
    return dump.program(machine, uid=NOBODY, **options)


# Without it CRIU dumps no process of another user.
with open('/proc/self/status', encoding='utf-8') as status:
    HAS_RESOURCE = bool(int(status.read().split('CapEff:')[1].split()[0], 16) >> 24 & 1)


def dumped_of_user(machine):
    """A user's process that the user has dumped; where CRIU cannot do that, one of root's in a
    place that is the user's."""
    if HAS_RESOURCE:
        one = users_program(machine)
        start = machine.status(one.pid)['start_ticks']
        equal(write_as(machine, one.pid, 'dump', OTHER), 'EACCES')
        equal(write_as(machine, one.pid, 'dump'), 'ok', machine.error(one.pid))
        one.wait_gone()
        return one, f'gpucr-demo-{one.pid}-{start}'
    one = dump.program(machine)
    name = dump.dumped(machine, one)
    machine.stop()
    place = f'{machine.runtime}/store/incoming-{name}'
    os.chown(place, NOBODY, NOBODY)
    for top, _, files in os.walk(f'{place}/snapshot'):
        for path in [top, *[f'{top}/{file}' for file in files]]:
            os.chown(path, NOBODY if '/vram' in path else 0, NOBODY)
    machine.start()
    return one, name


def write_as(machine, name, verb, uid=NOBODY):
    return machine.writer(name, verb, uid=uid).result()


def taken_out(machine, one, uid=0):
    """A dump as files elsewhere, which belong to a user; the program lives no more."""
    name = dump.dumped(machine, one)
    copy = f'{machine.directory}/copy'
    shutil.copytree(machine.path(name, 'snapshot'), copy)
    os.rmdir(machine.path(name))
    for top, _, files in os.walk(copy):
        os.chmod(top, 0o700)
        os.chown(top, uid, uid)
        for file in files:
            os.chmod(f'{top}/{file}', 0o600)
            os.chown(f'{top}/{file}', uid, uid)
    return copy


def put_in(machine, name, copy, uid=0):
    """As cp does."""
    user = {'user': uid, 'group': uid, 'extra_groups': []} if uid else {}
    subprocess.run(['mkdir', machine.path(name)], check=True, **user)
    subprocess.run(['cp', '-r', f'{copy}/.', machine.path(name, 'snapshot')], check=True, **user)
    equal(machine.state(name), 'incoming')


def refused(machine, name, expected, words, verb='thaw', uid=0):
    """Before anything was started."""
    machine.restores.set('')
    state = machine.state(name)
    equal(write_as(machine, name, verb, uid) if uid else machine.write(name, verb), expected,
          machine.error(name))
    check(words in machine.error(name) and '\n' not in machine.error(name), machine.error(name))
    equal(machine.state(name), state)
    check(not machine.restores.has('ran'), 'CRIU has been started')


def test_what_a_user_brings():
    same_for_both('whose the images are')
    with restore.machine() as machine:
        one = dump.program(machine)
        copy = taken_out(machine, one, NOBODY)
        put_in(machine, 'users', copy, NOBODY)
        refused(machine, 'users', 'EPERM', 'only root', uid=NOBODY)
        refused(machine, 'users', 'EPERM', 'belongs to user')
        refused(machine, 'users', 'EPERM', 'belongs to user', verb='thaw unverified pid=new')
        equal(write_as(machine, 'users', 'thaw', OTHER), 'EACCES')
        # One file after the other becomes root's: all of them have to be.
        snapshot = machine.path('users', 'snapshot')
        images = [f'criu/{file}' for file in sorted(os.listdir(f'{snapshot}/criu'))]
        for path in '', 'manifest', 'digests', 'criu', *images[:-1]:
            os.chown(f'{snapshot}/{path}', 0, 0)
        refused(machine, 'users', 'EPERM', f'{images[-1]} belongs to user')
        os.chown(f'{snapshot}/{images[-1]}', 0, 0)
        for path in '', 'manifest', 'digests', 'criu', images[0]:
            mode = stat.S_IMODE(os.stat(f'{snapshot}/{path}').st_mode)
            for bit in 0o020, 0o002:
                os.chmod(f'{snapshot}/{path}', mode | bit)
                refused(machine, 'users', 'EPERM', 'written to by others')
            os.chmod(f'{snapshot}/{path}', mode)
        # Now they are root's, who may have it made, and nobody else.
        refused(machine, 'users', 'EPERM', 'only root', uid=NOBODY)
        restore.thaws(machine, one, 'users')


def test_links():
    """In the place of a paper or an image, or of their directory."""
    same_for_both('links')
    with restore.machine() as machine:
        one = dump.program(machine)
        copy = taken_out(machine, one)
        put_in(machine, 'it', copy)
        snapshot = machine.path('it', 'snapshot')
        image = next(file for file in os.listdir(f'{copy}/criu') if file.startswith('core-'))
        for path in 'manifest', 'digests', 'criu', f'criu/{image}':
            aside = f'{snapshot}/aside'
            os.rename(f'{snapshot}/{path}', aside)
            for target in (aside, f'{copy}/{path}'):
                if error_of(lambda: os.symlink(target, f'{snapshot}/{path}')) == 'ok':
                    result = machine.write('it', 'thaw')
                    check(result in ('EPERM', 'EIO'), f'{path}: {result}: {machine.error("it")}')
                    check(not machine.restores.has('ran'), 'CRIU has been started')
                    os.unlink(f'{snapshot}/{path}')
            os.rename(aside, f'{snapshot}/{path}')
        restore.thaws(machine, one, 'it')


def test_what_a_user_has_dumped():
    """It is the user's to drop, and its VRAM is his to read. What CRIU writes is read and written by root
    alone: CRIU reads as root, while others can still change what it reads. Only root has it thawed:
    CRIU would open as root what the user has put in the place of its files."""
    with restore.machine() as machine:
        one, name = dumped_of_user(machine)
        snapshot = machine.path(name, 'snapshot')
        image = next(file for file in os.listdir(f'{snapshot}/criu') if file.startswith('core-'))
        vram = os.listdir(f'{snapshot}/vram')[0]
        for path in 'manifest', 'digests', f'criu/{image}', 'files', f'vram/{vram}':
            is_his = path in ('digests', f'vram/{vram}')
            equal(as_user(lambda: open(f'{snapshot}/{path}', 'rb').read(1)),
                  'ok' if is_his else 'EACCES', path)
            for gid in OTHER, NOBODY:
                equal(as_user(lambda: open(f'{snapshot}/{path}', 'rb').read(1), OTHER, gid),
                      'EACCES', path)
        for path in 'manifest', 'digests', f'criu/{image}':
            check(as_user(lambda: open(f'{snapshot}/{path}', 'r+b').close()) in ('EACCES', 'EPERM'),
                  path)
            for call in (lambda: os.truncate(f'{snapshot}/{path}', 0),
                         lambda: os.unlink(f'{snapshot}/{path}'),
                         lambda: os.rename(f'{snapshot}/{path}', f'{snapshot}/x'),
                         lambda: os.rename(f'{snapshot}/vram/{vram}', f'{snapshot}/{path}'),
                         lambda: os.chmod(f'{snapshot}/{path}', 0o666),
                         lambda: os.chown(f'{snapshot}/{path}', NOBODY, NOBODY)):
                check(as_user(call) in ('EACCES', 'EPERM', 'EXDEV'), f'{path}: {as_user(call)}')
        for call in (lambda: os.rename(f'{snapshot}/criu', f'{snapshot}/x'),
                     lambda: os.mkdir(f'{snapshot}/criu/x'),
                     lambda: os.rename(snapshot, machine.path(name, 'x')),
                     lambda: os.rmdir(snapshot),
                     lambda: os.chmod(snapshot, 0o777)):
            check(as_user(call) in ('EACCES', 'EPERM', 'EXDEV'), as_user(call))
        equal(write_as(machine, name, 'thaw', OTHER), 'EACCES')
        equal(as_user(lambda: os.rmdir(machine.path(name)), OTHER), 'EPERM')
        equal(write_as(machine, name, f'thaw stdio={machine.directory}/x'), 'EPERM')
        equal(write_as(machine, name, f'thaw pid={os.getpid()}'), 'EPERM')
        # After a restart of the daemon too.
        machine.stop()
        machine.start()
        equal(write_as(machine, name, 'thaw'), 'EPERM')
        equal(machine.state(name), 'dumped')
        machine.must(name, 'thaw')
        restore.check_on(machine, one, name)
        if HAS_RESOURCE:
            equal(write_as(machine, name, 'freeze', OTHER), 'EACCES')
            equal(write_as(machine, name, 'freeze'), 'ok')
            equal(write_as(machine, name, 'thaw'), 'ok')
            one.wait_ticks(2)
            with open(f'/proc/{one.pid}/status', encoding='utf-8') as file:
                check(f'Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}' in file.read(), 'it is the user\'s')
        os.kill(one.pid, 9)
        one.wait_gone()


def test_dropped_by_its_user():
    same_for_both('whose a place is')
    with restore.machine() as machine:
        one, name = dumped_of_user(machine)
        equal(as_user(lambda: os.rmdir(machine.path(name))), 'ok')
        wait_for(lambda: not os.path.lexists(machine.path(one.pid)), 'both names to be gone')


def number_used_again(command=None):
    """A process that CRIU has restored ends before it is taken into the table, and another user's
    gets its number."""
    with restore.machine(cgroups=False) as machine:
        one = dump.Program(machine, command=command).wait_ready() if command \
            else dump.program(machine)
        equal(machine.write(one.root, 'dump name=place'), 'ok')
        wait_for(lambda: one.reap() or not os.path.exists(f'/proc/{one.root}'), 'its end')
        restore.fail(machine, 'cgroup hold')
        writer = machine.writer('place', 'thaw')
        restore.wait_held(machine)
        pid = one.pid
        os.kill(pid, signal.SIGKILL)
        if one.root != pid:
            os.kill(one.root, signal.SIGCONT)  # it is to wait for its child
        wait_for(lambda: one.reap() or not os.path.exists(f'/proc/{pid}'), 'its end')
        restore.fork_as(pid, NOBODY)
        try:
            restore.fail(machine, 'cgroup')
            equal(writer.result(), 'EIO')
            check('has ended' in machine.error('place'), machine.error('place'))
            equal(machine.state('place'), 'dumped')
            check(str(pid) not in os.listdir(machine.mountpoint), 'it is in the table')
            check(is_alive(pid), 'it is not ours to end')
            equal(restore.processes_of(one), set())
        finally:
            try_kill(pid, signal.SIGKILL)
            wait_for(lambda: one.reap() or not os.path.exists(f'/proc/{pid}'), 'its end')
        machine.must('place', 'thaw')
        one.wait_ticks(2)


def test_number_of_the_root_used_again():
    same_for_both('pids')
    number_used_again()


def test_number_of_a_member_used_again():
    same_for_both('pids')
    demo = f'{" ".join(vendor.RUN + vendor.DEMO)} --bytes 4M --buffers 2'
    number_used_again(['sh', '-c', f'{demo} --tick 50; sleep 1000'])


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
