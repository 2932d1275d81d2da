# SPDX-License-Identifier: MIT
"""Places for snapshots from elsewhere: made with mkdir, filled with cp and rsync, and removed."""
import os
import signal
import stat
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import MIB, NOBODY, Machine, Skip, check, equal, same_for_both, wait_for
from test_subtree import WAYS, error_of, fill, frozen_demo, goes_on, remove_all, room, same


def as_nobody(script, *arguments):
    """What a Python script of another user prints."""
    head = 'import os, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n'
    tries = '''
def tried(call, *arguments):
    try:
        call(*arguments)
        print('ok')
    except OSError as error:
        print(os.strerror(error.errno))
'''
    found = subprocess.run([sys.executable, '-c', head + tries + script, *arguments],
                           capture_output=True, check=False, text=True)
    equal([found.returncode, found.stderr], [0, ''])
    return found.stdout.split('\n')[:-1]


def test_one():
    same_for_both('places')
    with Machine() as machine:
        path = machine.path('from-host2')
        os.mkdir(path)
        equal(oct(os.stat(path).st_mode), oct(stat.S_IFDIR | 0o700))
        equal(os.stat(path).st_uid, os.geteuid())
        check('from-host2' in os.listdir(machine.mountpoint), 'it is listed')
        equal(sorted(os.listdir(path)), ['criu.log', 'ctl', 'error', 'events', 'snapshot', 'status'])
        status = machine.status('from-host2')
        equal([status['name'], status['uid'], status['state'], status['verbs'],
               status['held_bytes']],
              ['from-host2', str(os.geteuid()), 'incoming', 'thaw drop', '0'])
        equal([status['verb'], status['phase'], status['verb_elapsed_usec'], status['pid'],
               status['start_ticks']], ['-', '-', '0', '-', '-'], 'nothing was dumped there')
        equal(machine.error('from-host2'), 'ok')
        with open(f'{path}/snapshot/file', 'wb') as file:
            file.write(b'x' * 3 * MIB)
        held = machine.status('from-host2')['held_bytes']
        check(3 * MIB <= int(held) <= 4 * MIB, 'held_bytes')
        equal(machine.read('status').splitlines()[-1].split(),
              ['from-host2', str(os.geteuid()), '-', 'incoming', '0', held], 'in the table')
        for verb, result in {'thaw': 'EOPNOTSUPP', 'freeze': 'EBUSY', 'cancel': 'EBUSY',
                             'drop x': 'EINVAL', 'jump': 'EINVAL'}.items():
            equal(machine.write('from-host2', verb), result, verb)
            check(machine.error('from-host2').startswith(f'{result}: '), verb)
        check('CPU side' not in machine.error('from-host2'), 'the last one')
        for name in 'x' * 65, '1x', '.x', '-x', 'a b', 'ä':
            equal(error_of(lambda: os.mkdir(machine.path(name))), 'EINVAL', name)
        for name in 'from-host2', 'ctl', 'gpus', 'self', 'status':
            equal(error_of(lambda: os.mkdir(machine.path(name))), 'EEXIST', name)
        equal(error_of(lambda: os.rename(path, machine.path('other'))), 'EPERM')
        equal(error_of(lambda: os.chmod(path, 0o755)), 'EPERM')
        for name in 'gpus', 'ctl', 'self':
            check(error_of(lambda: os.rmdir(machine.path(name))) in ('EPERM', 'ENOTDIR'), name)
        os.mkdir(machine.path('x' * 64))
        os.rmdir(machine.path('x' * 64))
        fd = os.open(f'{path}/snapshot/file', os.O_RDONLY)
        machine.must('from-host2', 'drop')
        check(not os.path.lexists(path) and 'from-host2' not in os.listdir(machine.mountpoint),
              'it is gone')
        equal(len(os.pread(fd, 4 * MIB, 0)), 3 * MIB, 'still open')
        os.close(fd)
        wait_for(lambda: machine.status_of_all()['store_used_bytes'] == '0', 'all to be free')
        check('from-host2 - gone dropped' in machine.read('events'), machine.read('events'))
        os.mkdir(path)
        equal(os.listdir(f'{path}/snapshot'), [], 'a new one')
        os.rmdir(path)


def test_from_one_to_another():
    """A snapshot goes out into an incoming place, and comes back from there, by every tool."""
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine, '--bytes', '12M', '--buffers', '3')
        place = machine.path(demo.pid, 'snapshot')
        for number, (name, copy) in enumerate(WAYS.items()):
            other = machine.path(f'n{number}', 'snapshot')
            os.mkdir(machine.path(f'n{number}'))
            copy(place, other)
            same(place, other, f'{name} out')
            if number % 2:
                remove_all(place)
                copy(other, place)
                same(other, place, f'{name} in')
            os.rmdir(machine.path(f'n{number}'))
        os.mkdir(machine.path('other'))
        path = f'{place}/vram/{os.listdir(f"{place}/vram")[0]}'
        equal(error_of(lambda: os.rename(path, machine.path('other', 'snapshot', 'x'))), 'EXDEV')
        goes_on(machine, demo)
        equal(os.listdir(machine.path('other', 'snapshot')), [])
        os.rmdir(machine.path('other'))


def test_restart():
    """It outlives the daemon, however that ends."""
    same_for_both('places')
    with Machine() as machine:
        if machine.status_of_all()['store_survives_restart'] == 'yes' or not harness.is_root():
            restarts = signal.SIGTERM, signal.SIGKILL
        else:
            restarts = signal.SIGTERM,
        os.mkdir(machine.path('left'))
        path = machine.path('left', 'snapshot', 'file')
        with open(path, 'wb') as file:
            file.write(b'1234' * MIB)
        os.chmod(path, 0o640)
        os.utime(path, (5, 7))
        expected = os.stat(path)
        # What was taken in advance for the writer goes back when the file is closed, a little later.
        wait_for(lambda: machine.status_of_all()['store_used_bytes'] == str(4 * MIB), 'its room')
        used = str(4 * MIB)
        for number in restarts:
            machine.expects_clean_exit = False
            machine.stop(number)
            subprocess.run(['umount', '-l', machine.mountpoint], check=False,
                           stderr=subprocess.DEVNULL)
            machine.start()
            found = os.stat(path)
            equal([found.st_size, found.st_mode, found.st_mtime_ns, found.st_uid, found.st_ino],
                  [expected.st_size, expected.st_mode, expected.st_mtime_ns, expected.st_uid,
                   expected.st_ino])
            with open(path, 'rb') as file:
                check(file.read() == b'1234' * MIB, 'its bytes')
            equal(machine.status_of_all()['store_used_bytes'], used)
            equal(machine.status('left')['state'], 'incoming')
        os.rmdir(machine.path('left'))
        wait_for(lambda: machine.status_of_all()['store_used_bytes'] == '0', 'all to be free')
        machine.expects_clean_exit = True


def test_users():
    same_for_both('places')
    if not harness.is_root():
        raise Skip('only root can become another user')
    with Machine() as machine:
        os.mkdir(machine.path('mine'))
        theirs = machine.path('theirs')
        equal(as_nobody('''
mount = sys.argv[1]
tried(os.mkdir, f'{mount}/theirs')
print(sorted(set(os.listdir(mount)) & {'mine', 'theirs'}))
tried(os.listdir, f'{mount}/mine')
tried(os.rmdir, f'{mount}/mine')
tried(open, f'{mount}/mine/ctl', 'w')
tried(open, f'{mount}/new', 'w')
open(f'{mount}/theirs/snapshot/file', 'w').write('x')
tried(os.chmod, f'{mount}/theirs/snapshot/file', 0o644)
tried(os.chown, f'{mount}/theirs/snapshot/file', 0, 0)
''', machine.mountpoint), ['ok', "['theirs']", 'Permission denied', 'Operation not permitted',
                           'Permission denied', 'Operation not permitted', 'ok',
                           'Operation not permitted'])
        for name in '', 'status', 'snapshot', 'snapshot/file':
            equal(os.stat(f'{theirs}/{name}').st_uid, NOBODY, name)
        check('theirs' in os.listdir(machine.mountpoint), 'root sees all')
        equal(as_nobody("tried(os.rmdir, sys.argv[1])", theirs), ['ok'])
        os.rmdir(machine.path('mine'))


def test_many():
    """There is an end to them; those that are gone do not count."""
    same_for_both('places')
    with Machine() as machine:
        names = [f'n{number}' for number in range(1024)]
        for name in names:
            os.mkdir(machine.path(name))
        equal(error_of(lambda: os.mkdir(machine.path('more'))), 'ENOSPC')
        os.rmdir(machine.path('n7'))
        os.mkdir(machine.path('more'))
        for name in set(os.listdir(machine.mountpoint)) & {'more', *names}:
            os.rmdir(machine.path(name))


def test_full():
    """What somebody brings takes nothing from those who are frozen."""
    same_for_both('places')
    with Machine(vmm=True, options=',store_size=64M') as machine:
        demo = frozen_demo(machine)
        os.mkdir(machine.path('large'))
        free = room(machine)
        size = fill(machine.path('large', 'snapshot', 'file'))
        check(free - 4 * MIB <= size <= free, f'{size} of {free}')
        goes = machine.path(demo.pid, 'snapshot', 'more')
        with open(goes, 'wb', buffering=0) as file:
            # After the room that was reserved for its metadata, and is not needed.
            equal(error_of(lambda: [file.write(b'x' * MIB) for _ in range(16)]), 'ENOSPC')
        os.unlink(goes)
        machine.must('large', 'drop')
        wait_for(lambda: room(machine) == free, 'its room')
        goes_on(machine, demo)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
