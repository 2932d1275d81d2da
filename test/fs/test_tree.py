# SPDX-License-Identifier: MIT
"""The shape of the mount: names, modes, owners, what stands in the files, and that looking is
harmless."""
import os
import re
import select
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import MIB, NOBODY, Failure, Machine, Skip, check, equal, same_for_both, wait_for

ROOT = {'ctl': 0o222, 'status': 0o444, 'error': 0o444, 'events': 0o444, 'metrics': 0o444}
PROCESS = {'ctl': 0o200, 'status': 0o400, 'error': 0o400, 'events': 0o400, 'maps': 0o400,
           'criu.log': 0o400}
DIRECTORIES = ['snapshot']
GPU = {'uuid': 0o444, 'name': 0o444, 'status': 0o444}
STATUS_KEYS = ('pid ns_pid start_ticks comm uid cgroup state state_since_usec verbs verb phase '
               'verb_elapsed_usec control_pending engine engine_reason unknown_functions registered '
               'answers gpus vram_bytes '
               'kept_vram_bytes unreturned_vram_bytes held_bytes packed_bytes packed_to_bytes '
               'shared_bytes zero_bytes packing idle_ms wanted_usec kept_bytes pool_bytes '
               'pool_ready_bytes pinned generation '
               'last_freeze_usec last_freeze_bytes last_freeze_copied_bytes '
               'last_freeze_digests last_freeze_gate_usec '
               'last_freeze_handover_usec last_freeze_copy_usec last_freeze_control_usec '
               'last_thaw_usec last_thaw_bytes last_thaw_copy_usec last_thaw_control_usec '
               'last_thaw_handover_usec last_thaw_map_usec members').split()


def mode_of(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_root():
    with Machine(gpus=3) as machine:
        equal(sorted(os.listdir(machine.mountpoint)),
              ['ctl', 'error', 'events', 'gpus', 'metrics', 'self', 'status'])
        for name, mode in ROOT.items():
            status = os.lstat(machine.path(name))
            equal(oct(stat.S_IMODE(status.st_mode)), oct(mode), name)
            check(stat.S_ISREG(status.st_mode), name)
            equal(status.st_uid, os.geteuid(), name)
        equal(oct(mode_of(machine.mountpoint)), oct(0o1777))
        equal(oct(mode_of(machine.path('gpus'))), oct(0o555))
        equal(os.readlink(machine.path('self')), str(os.getpid()))
        equal(os.stat(machine.path('status')).st_size, 0)
        check(os.statvfs(machine.mountpoint).f_namemax == 255, 'statfs')

        equal(sorted(os.listdir(machine.path('gpus'))), ['0', '1', '2'])
        uuids = set()
        for index in range(3):
            equal(sorted(os.listdir(machine.path('gpus', index))), sorted(GPU))
            for name, mode in GPU.items():
                equal(oct(mode_of(machine.path('gpus', index, name))), oct(mode))
            uuid = machine.read('gpus', index, 'uuid')
            check(re.fullmatch(r'GPU-[0-9a-f]{16}\n' if vendor.HIP else
                               r'GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n', uuid), uuid)
            uuids.add(uuid)
            equal(machine.read('gpus', index, 'name'),
                  'Simulated AMD GPU\n' if vendor.HIP else 'Simulated GPU\n')
            equal(machine.gpu(index), {
                'vendor': 'amd' if vendor.HIP else 'nvidia',
                'architecture': 'gfx90a' if vendor.HIP else '9.0',
                'minor': str(index + (128 if vendor.HIP else 0)), 'mig': 'off',
                'vram_total_bytes': str(256 * MIB),
                'vram_used_bytes': '0', 'vram_free_bytes': str(256 * MIB),
                'vram_processes_bytes': '0', 'held_bytes': '0', 'pids': '-'})
        equal(len(uuids), 3, 'different UUIDs')
        for name in ('3', '00', '01', '-1', 'x', '4294967296'):
            check(not os.path.exists(machine.path('gpus', name)), f'gpus/{name}')


def test_root_status():
    with Machine(gpus=2) as machine:
        text = machine.read('status')
        keys = harness.parse_keys(text)
        equal(keys['backend'], vendor.NAME)
        equal(keys['gpus'], '2')
        equal(keys['simulator'], 'yes')
        equal(keys['processes'], '0')
        equal(keys['held_bytes'], '0')
        check(re.fullmatch(r'\d+\.\d+\.\d+', keys['version']), keys['version'])
        check(re.fullmatch(r'[\d.]+', keys['driver_version']), keys['driver_version'])

        demo = machine.ready_demo()
        wait_for(lambda: int(machine.status(demo.pid)['vram_bytes']), 'its VRAM')
        table = machine.read('status').partition('\n\n')[2].splitlines()
        equal(table[0].split(), ['id', 'user', 'comm', 'state', 'vram_bytes', 'held_bytes'])
        row = table[1].split()
        equal(row[:4], [str(demo.pid), str(os.geteuid()), 'gpucr-demo', 'running'])
        check(int(row[4]) >= 8 * MIB, table[1])
        equal(row[5], '0')
        machine.must(demo.pid, 'freeze')
        row = machine.read('status').partition('\n\n')[2].splitlines()[1].split()
        equal(row[3:5], ['frozen', str(machine.kept(demo.pid))])
        check(int(row[5]) >= 8 * MIB, str(row))
        machine.must(demo.pid, 'thaw')


def test_process_directory():
    with Machine() as machine:
        demo = machine.ready_demo()
        directory = machine.path(demo.pid)
        equal(oct(mode_of(directory)), oct(0o700))
        equal(os.stat(directory).st_uid, os.geteuid())
        equal(sorted(os.listdir(directory)), sorted([*PROCESS, *DIRECTORIES]))
        for name, mode in PROCESS.items():
            equal(oct(mode_of(machine.path(demo.pid, name))), oct(mode), name)
        equal(machine.read(demo.pid, 'error'), 'ok\n')
        equal(machine.read(demo.pid, 'ctl'), '', 'reading ctl gives end of file')

        wait_for(lambda: int(machine.status(demo.pid)['vram_bytes']), 'its VRAM')
        status = machine.status(demo.pid)
        equal(list(status), STATUS_KEYS)
        equal(status['pid'], str(demo.pid))
        equal(status['comm'], 'gpucr-demo')
        equal(status['state'], 'running')
        equal(status['verbs'], 'freeze dump')
        equal(status['gpus'], '0')
        equal(status['engine'], vendor.ENGINE if vendor.HIP else 'driver')
        equal([status['held_bytes'], status['kept_vram_bytes']], ['0', '0'])
        equal(status['generation'], '-')
        check(int(status['vram_bytes']) >= 8 * MIB, status['vram_bytes'])
        ticks = harness.read_file(f'/proc/{demo.pid}/stat').rpartition(')')[2].split()[19]
        equal(status['start_ticks'], ticks)
        maps = machine.read(demo.pid, 'maps').split()
        equal(len(maps), 6)
        equal(maps[:3], ['-', '0', 'driver'])


def test_comm_cannot_forge_lines():
    same_for_both('names and texts')
    with Machine() as machine:
        name = f'{machine.directory}/a b\nstate x'
        os.symlink(f'{harness.BUILD}/tools/gpucr-demo', name)
        demo = machine.ready_demo(command=[*vendor.RUN, name, *vendor.MODE])
        equal(machine.status(demo.pid)['comm'], 'a?b?state?x')
        equal(machine.state(demo.pid), 'running')


def test_grep_is_harmless():
    same_for_both('names and texts')
    with Machine() as machine:
        demo = machine.ready_demo()
        # That it has been found is told when its library has registered, or it is looked up.
        equal(machine.state(demo.pid), 'running')
        before = machine.read('events').count('\n')
        found = subprocess.run(['grep', '-r', 'running', machine.mountpoint], check=False,
                               capture_output=True, text=True, timeout=harness.PATIENCE_SEC)
        check(f'{demo.pid}/status:state running' in found.stdout, found.stdout + found.stderr)
        for command in (['find', machine.mountpoint, '-type', 'f', '-exec', 'cat', '{}', '+'],
                        ['ls', '-lR', machine.mountpoint], ['du', '-a', machine.mountpoint],
                        ['tar', '-cf', '/dev/null', '-C', machine.mountpoint, '.']):
            subprocess.run(command, check=False, capture_output=True,
                           timeout=harness.PATIENCE_SEC)
        equal(machine.state(demo.pid), 'running')
        equal(machine.read('events').count('\n'), before, 'events after looking')
        demo.wait_ticks()


def test_nothing_can_be_made():
    same_for_both('names and texts')
    with Machine() as machine:
        demo = machine.ready_demo()
        pid = demo.pid
        attempts = {
            'mkdir': lambda: os.mkdir(machine.path(pid, 'x')),
            'unlink ctl': lambda: os.unlink(machine.path(pid, 'ctl')),
            'unlink at the root': lambda: os.unlink(machine.path('status')),
            'rmdir': lambda: os.rmdir(machine.path(pid)),
            'rename onto ctl': lambda: os.rename(machine.path(pid, 'status'),
                                                 machine.path(pid, 'ctl')),
            'create': lambda: os.close(os.open(machine.path('x'), os.O_CREAT | os.O_WRONLY)),
            'create below': lambda: os.close(os.open(machine.path(pid, 'x'),
                                                     os.O_CREAT | os.O_WRONLY)),
            'symlink': lambda: os.symlink('a', machine.path('x')),
            'link': lambda: os.link(machine.path(pid, 'status'), machine.path(pid, 'x')),
            'mknod': lambda: os.mknod(machine.path('x'), 0o600 | stat.S_IFREG),
            'chmod': lambda: os.chmod(machine.path(pid, 'status'), 0o666),
            'chown': lambda: os.chown(machine.path(pid, 'status'), 0, 1),
            'truncate': lambda: os.truncate(machine.path(pid, 'status'), 0),
            'write to status': lambda: os.open(machine.path(pid, 'status'), os.O_WRONLY),
            'append to events': lambda: os.open(machine.path('events'), os.O_WRONLY | os.O_APPEND),
        }
        for what, attempt in attempts.items():
            try:
                attempt()
            except OSError as error:
                check(harness.name_of(error.errno) in ('EPERM', 'EACCES'),
                      f'{what}: {harness.name_of(error.errno)}')
                check(not harness.is_root() or harness.name_of(error.errno) == 'EPERM',
                      f'{what}: {harness.name_of(error.errno)}')
            else:
                raise Failure(f'{what} succeeded')
        equal(sorted(os.listdir(machine.path(pid))), sorted([*PROCESS, *DIRECTORIES]))


def test_names_that_are_no_process():
    same_for_both('names and texts')
    with Machine() as machine:
        demo = machine.ready_demo()
        thread = next(name for name in os.listdir(f'/proc/{demo.pid}/task')
                      if int(name) != demo.pid)
        sleeper = subprocess.Popen(['sleep', '1000'])
        try:
            for name in ('1', '0', f'0{demo.pid}', f'+{demo.pid}', f'{demo.pid}x', '99999999999',
                         '-1', 'x', thread, str(sleeper.pid), str(machine.daemon.pid),
                         'x' * 255):
                if name == '1' and harness.is_root():
                    continue  # the launcher of everything
                check(not os.path.lexists(machine.path(name)), f'{name} exists')
            try:
                os.lstat(machine.path('x' * 300))
                raise Failure('a name of 300 bytes exists')
            except OSError as error:
                check(harness.name_of(error.errno) in ('ENAMETOOLONG', 'ENOENT'), str(error))
        finally:
            sleeper.kill()
            sleeper.wait()


def test_a_process_appears_and_goes():
    with Machine() as machine:
        events = machine.events()
        demo = machine.ready_demo()
        # Looked up by name at once, listed by a scan that the listing itself makes.
        equal(machine.state(demo.pid), 'running')
        check(demo.pid in machine.pids(), 'it is listed')
        events.wait(fr'Z {demo.pid} - found gpucr-demo$', 1 * harness.SLOW)
        status = os.open(machine.path(demo.pid, 'status'), os.O_RDONLY)
        demo.end()
        events.wait(fr'Z {demo.pid} - gone ended$')
        check(not os.path.lexists(machine.path(demo.pid)), 'it has gone')
        equal(machine.pids(), [])
        check(os.read(status, 10000).startswith(b'pid '), 'an open file keeps its text')
        os.close(status)
        events.close()


def test_directory_of_a_number_used_again():
    """Who stands in the directory of a process that has ended is not in that of the next one with its
    number, which may be another user's (gpucr-migrate relies on it)."""
    if not harness.is_root():
        raise Skip('only root can become another user')
    with Machine() as machine:
        first = machine.ready_demo(uid=NOBODY)
        directory = os.open(machine.path(first.pid), os.O_RDONLY | os.O_DIRECTORY)
        ctl = os.open('ctl', os.O_WRONLY | os.O_APPEND, dir_fd=directory)
        events = machine.events()
        first.end()
        second = machine.demo_with_pid(first.pid)
        equal(harness.error_of(lambda: os.write(ctl, b'freeze\n')), 'ESRCH')
        events.wait(f'{first.pid} - gone ended$', harness.PATIENCE_SEC)  # names stay until then
        events.close()
        for _ in 'before', 'after':  # the new one has been looked up
            for name in [*PROCESS, *DIRECTORIES]:
                found = harness.error_of(lambda name=name: os.stat(name, dir_fd=directory))
                check(found in ('ENOENT', 'ESRCH'), f'{name}: {found}')
            equal(harness.error_of(lambda: os.write(ctl, b'freeze\n')), 'ESRCH')
            equal(machine.status(second.pid)['state'], 'running')
        os.close(ctl)
        os.close(directory)


def test_found_without_being_looked_for():
    """Nobody looks it up or lists: the watch on the device file finds it."""
    with Machine() as machine:
        events = machine.events()
        demo = machine.ready_demo()
        events.wait(fr'Z {demo.pid} - found gpucr-demo$', 2 * harness.SLOW)
        events.close()


def test_events_file():
    same_for_both('names and texts')
    with Machine() as machine:
        demo = machine.ready_demo()
        path = machine.path(demo.pid, 'events')
        for name in (path, machine.path('events')):
            status = os.stat(name)
            equal(status.st_size, len(harness.read_file(name)), 'true size')
            check(abs(status.st_mtime - time.time()) < 60 * harness.SLOW, 'true mtime')
        before = os.stat(path)
        fd = os.open(path, os.O_RDONLY)
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        check(poller.poll(0), 'unread text makes it readable')
        os.read(fd, 65536)
        check(not poller.poll(0), 'read to the end')
        machine.must(demo.pid, 'freeze')
        check(poller.poll(harness.PATIENCE_SEC * 1000), 'poll wakes')
        text = os.read(fd, 65536).decode()
        for line in text.splitlines():
            check(re.match(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \d+ \S+ (state|verb) ', line),
                  line)
        check('state running freezing' in text and 'state freezing frozen' in text, text)
        after = os.stat(path)
        check(after.st_size > before.st_size and after.st_mtime > before.st_mtime,
              'size and mtime grow')
        os.lseek(fd, 0, os.SEEK_SET)
        check(b' found ' in os.read(fd, 65536), 'it can be read again from the start')
        os.close(fd)
        machine.must(demo.pid, 'thaw')


def test_two_readers_of_events():
    same_for_both('names and texts')
    with Machine() as machine:
        demo = machine.ready_demo()
        readers = [machine.events(demo.pid) for _ in range(3)]
        for reader in readers:
            reader.read()
        machine.must(demo.pid, 'freeze')
        for reader in readers:
            reader.wait('verb freeze ok')
            reader.close()
        machine.must(demo.pid, 'thaw')


def test_tail_follows_events():
    same_for_both('names and texts')
    with Machine() as machine:
        demo = machine.ready_demo()
        tail = subprocess.Popen(['tail', '-n', '+1', '-f', machine.path('events')],
                                stdout=subprocess.PIPE, text=True, env=machine.env)
        try:
            output = harness.Output(tail.stdout)
            output.wait(lambda lines: any('found' in line for line in lines), 'the first lines')
            machine.must(demo.pid, 'freeze')
            output.wait(lambda lines: any('verb freeze ok' in line for line in lines),
                        'the new lines')
            machine.must(demo.pid, 'thaw')
        finally:
            tail.kill()
            tail.wait()


def test_a_status_is_one_moment():
    """A reader that reads byte by byte sees the text of its open."""
    same_for_both('names and texts')
    with Machine() as machine:
        demo = machine.ready_demo()
        fd = os.open(machine.path(demo.pid, 'status'), os.O_RDONLY)
        text = os.read(fd, 40)
        machine.must(demo.pid, 'freeze')
        while True:
            more = os.read(fd, 40)
            if not more:
                break
            text += more
        os.close(fd)
        equal(harness.parse_keys(text.decode())['state'], 'running')
        machine.must(demo.pid, 'thaw')


def test_others_see_no_more_than_the_names():
    same_for_both('names and texts')
    if not harness.is_root():
        raise Skip('only root can become another user')
    with Machine() as machine:
        mine = machine.ready_demo()
        theirs = machine.ready_demo(uid=NOBODY)
        equal(os.stat(machine.path(theirs.pid)).st_uid, NOBODY)
        equal(machine.status(theirs.pid)['uid'], str(NOBODY))
        script = '''
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
mnt, mine, theirs = sys.argv[1:]
def result(call):
    try:
        call()
        return 'ok'
    except OSError as error:
        return os.strerror(error.errno)
for name in ('ctl', 'status', 'error', 'events', 'maps'):
    flags = os.O_WRONLY if name == 'ctl' else os.O_RDONLY
    print(name, result(lambda: os.open(f'{mnt}/{mine}/{name}', flags)),
          result(lambda: os.open(f'{mnt}/{theirs}/{name}', flags)), sep=':')
print('list', result(lambda: os.listdir(f'{mnt}/{mine}')),
      result(lambda: os.listdir(f'{mnt}/{theirs}')), sep=':')
print('root', result(lambda: os.listdir(mnt)), result(lambda: open(f'{mnt}/status').read()),
      sep=':')
'''
        found = subprocess.run([sys.executable, '-c', script, machine.mountpoint, str(mine.pid),
                                str(theirs.pid)], capture_output=True, text=True, check=False,
                               cwd='/')
        expected = [f'{name}:Permission denied:ok'
                    for name in ('ctl', 'status', 'error', 'events', 'maps', 'list')]
        equal(found.stdout.splitlines(), expected + ['root:ok:ok'], found.stderr)
        equal(machine.writer(mine.pid, 'freeze', uid=NOBODY).result(), 'EACCES')
        equal(machine.state(mine.pid), 'running')
        equal(machine.writer(theirs.pid, 'freeze', uid=NOBODY).result(), 'ok')
        equal(machine.state(theirs.pid), 'frozen')
        equal(machine.writer(theirs.pid, 'thaw', uid=NOBODY).result(), 'ok')
        theirs.wait_ticks()
        # The root's ctl is everybody's to open, and judged by whose processes are named.
        equal(machine.writer(None, f'freeze {theirs.pid} {mine.pid}', uid=NOBODY).result(), 'EPERM')
        equal([machine.state(mine.pid), machine.state(theirs.pid)], ['running', 'running'])
        equal(machine.writer(None, f'freeze {theirs.pid}', uid=NOBODY).result(), 'ok')
        machine.must(None, f'thaw {theirs.pid}')


if __name__ == '__main__':
    harness.main(globals())
