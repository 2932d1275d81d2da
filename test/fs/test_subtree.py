# SPDX-License-Identifier: MIT
"""The snapshot of a frozen process as an ordinary tree: what cp, rsync, tar and others do to it in
both directions, what verbs do to those, and that it is as any file system is."""
import filecmp
import os
import shutil
import stat
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, NOBODY, Machine, check, equal, error_of, same_for_both, wait_for


def snapshot(machine, pid, *names):
    return machine.path(pid, 'snapshot', *names)


def run(*command):
    found = subprocess.run(command, capture_output=True, check=False,
                           timeout=3 * harness.PATIENCE_SEC)
    equal(found.returncode, 0, f'{command}: {found.stderr.decode()}')
    return found.stdout.decode()


def frozen_demo(machine, *arguments, **options):
    demo = machine.ready_demo(*arguments, **options)
    machine.wait_status(demo.pid, 'engine', vendor.ENGINE)
    machine.must(demo.pid, 'freeze')
    return demo


def goes_on(machine, demo):
    """It has been thawed, and all of its memory is right."""
    machine.must(demo.pid, 'thaw')
    demo.wait_ticks()
    vmm.cycle(machine, demo)


def room(machine):
    return int(machine.status_of_all()['store_free_bytes'])


def used(machine):
    return int(machine.status_of_all()['store_used_bytes'])


def tree(directory):
    """What there is below it: path to kind, mode, owner, size and, of files, modification time."""
    found = {}
    for path, directories, names in os.walk(directory):
        for name in directories + names:
            status = os.lstat(f'{path}/{name}')
            is_file = stat.S_ISREG(status.st_mode)
            found[os.path.relpath(f'{path}/{name}', directory)] = (
                oct(status.st_mode), status.st_uid, status.st_gid,
                status.st_size if is_file else 0, status.st_mtime_ns if is_file else 0)
    return found


def same(left, right, what):
    equal(tree(left), tree(right), what)
    for path, status in tree(left).items():
        if stat.S_ISREG(int(status[0], 8)):
            check(filecmp.cmp(f'{left}/{path}', f'{right}/{path}', shallow=False),
                  f'{what}: {path} differs')


def remove_all(directory):
    for name in os.listdir(directory):
        path = f'{directory}/{name}'
        (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)


def pack(*options):
    def copy(source, target):
        with subprocess.Popen(['tar', '--format=posix', *options, '-C', source, '-c', '.'],
                              stdout=subprocess.PIPE) as packer:
            unpacker = subprocess.run(['tar', '-C', target, '-x', '-p'], stdin=packer.stdout,
                                      capture_output=True, check=False)
        equal([packer.returncode, unpacker.returncode], [0, 0], unpacker.stderr.decode())
    return copy


def tool(*command):
    return lambda source, target: run(*command, f'{source}/.', f'{target}/')


WAYS = {
    'cp -a': tool('cp', '-a'),
    'cp --sparse=always': tool('cp', '-a', '--sparse=always'),
    'rsync -a': tool('rsync', '-a'),
    'rsync --inplace': tool('rsync', '-a', '--inplace'),
    'rsync --sparse': tool('rsync', '-a', '--sparse'),
    'rsync -X --partial': tool('rsync', '-aX', '--partial'),
    'tar': pack(),
    'tar -S': pack('-S'),
}


def make_sparse(directory):
    os.mkdir(directory)
    with open(f'{directory}/sparse', 'wb') as file:
        file.truncate(9 * MIB + 5)
        file.seek(5 * MIB)
        file.write(b'x' * 4096)
    os.utime(file.name, ns=(10 ** 18 + 1, 10 ** 18 + 123456789))
    os.chmod(file.name, 0o640)


def test_out_and_in_again():
    """Each tool takes a copy, and brings it back into an empty snapshot; the program goes on."""
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine, '--bytes', '4M', '--buffers', '3')
        place = snapshot(machine, demo.pid)
        for number, (name, copy) in enumerate(WAYS.items()):
            out = f'{machine.directory}/out-{number}'
            os.mkdir(out)
            make_sparse(f'{place}/more')
            copy(place, out)
            same(place, out, f'{name} out')
            remove_all(place)
            equal(os.listdir(place), [], name)
            copy(out, place)
            same(out, place, f'{name} in')
            if 'sparse' in name or '-S' in name:
                check(os.stat(f'{place}/more/sparse').st_blocks * 512 <= 4 * MIB,
                      f'{name}: {os.stat(f"{place}/more/sparse").st_blocks} blocks')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks(2)
            machine.must(demo.pid, 'freeze')
            equal(sorted(os.listdir(place)), ['digests', 'manifest', 'vram'], 'of an earlier freeze')
            shutil.rmtree(out)
        goes_on(machine, demo)


def test_second_rsync():
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine)
        place = snapshot(machine, demo.pid)
        out = f'{machine.directory}/out'
        run('rsync', '-a', f'{place}/', f'{out}/')
        equal(run('rsync', '-ai', f'{place}/', f'{out}/'), '', 'out')
        equal(run('rsync', '-ai', f'{out}/', f'{place}/'), '', 'in')
        goes_on(machine, demo)


def test_attributes():
    same_for_both('the file system')
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine)
        place = snapshot(machine, demo.pid)
        path = f'{place}/file'
        umask = os.umask(0o027)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        os.mkdir(f'{place}/directory', 0o777)
        os.umask(umask)
        equal(error_of(lambda: os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)), 'EEXIST')
        equal(oct(os.stat(path).st_mode), oct(stat.S_IFREG | 0o640))
        equal(oct(os.stat(f'{place}/directory').st_mode), oct(stat.S_IFDIR | 0o750))
        os.fchmod(fd, 0o604)
        os.utime(fd, ns=(5, 7))
        status = os.stat(path)
        equal([oct(status.st_mode), status.st_atime_ns, status.st_mtime_ns],
              [oct(stat.S_IFREG | 0o604), 5, 7])
        os.utime(path)
        check(os.stat(path).st_mtime_ns > 10 ** 18, 'now')
        os.chmod(place, 0o711)
        os.utime(place, ns=(11, 13))
        equal([oct(os.stat(place).st_mode), os.stat(place).st_mtime_ns],
              [oct(stat.S_IFDIR | 0o711), 13])
        # Bits of a set-user-ID program are for no file here: a write would have to clear them.
        os.fchmod(fd, 0o6755)
        equal(oct(os.fstat(fd).st_mode), oct(stat.S_IFREG | 0o755))
        os.chmod(path, 0o4755)
        equal(oct(os.stat(path).st_mode), oct(stat.S_IFREG | 0o755))
        other = os.open(path + '2', os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o6777)
        equal(os.fstat(other).st_mode & 0o6000, 0)
        os.close(other)
        os.chmod(path + '2', 0o2644)
        equal(oct(os.stat(path + '2').st_mode), oct(stat.S_IFREG | 0o644))
        os.chmod(f'{place}/directory', 0o2750)
        equal(oct(os.stat(f'{place}/directory').st_mode), oct(stat.S_IFDIR | 0o2750))
        check(os.statvfs(place).f_flag & os.ST_NOSUID, 'the mount is not nosuid')
        os.unlink(path + '2')
        if harness.is_root():
            os.chown(path, NOBODY, NOBODY)
            equal([os.stat(path).st_uid, os.fstat(fd).st_gid], [NOBODY, NOBODY])
        inode = os.stat(path).st_ino
        os.rename(path, f'{place}/directory/other')
        equal(os.stat(f'{place}/directory/other').st_ino, inode)
        equal([entry.inode() for entry in os.scandir(f'{place}/directory')], [inode])
        os.unlink(f'{place}/directory/other')
        os.pwrite(fd, b'yes', 0)
        equal([os.fstat(fd).st_size, os.pread(fd, 9, 0)], [3, b'yes'], 'removed and open')
        os.ftruncate(fd, 1)
        equal(os.pread(fd, 9, 0), b'y')
        os.close(fd)
        equal(error_of(lambda: os.getxattr(path, 'user.x')), 'ENOENT')
        with open(path, 'wb'):
            pass
        equal(error_of(lambda: os.setxattr(path, 'user.x', b'1')), 'EOPNOTSUPP')
        with open(path, 'ab') as one, open(path, 'ab') as other:
            for word in b'a', b'bb', b'ccc':
                one.write(word)
                one.flush()
                other.write(word)
                other.flush()
        with open(path, 'rb') as file:
            equal(file.read(), b'aabbbbcccccc')
        os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
        equal(os.stat(path).st_size, 0)
        goes_on(machine, demo)


def make(path, is_directory, mode):
    if is_directory:
        os.mkdir(path)
    else:
        with open(path, 'wb') as file:
            file.write(b'123')
    os.chmod(path, mode)


def test_removed_and_known():
    """What has been removed has attributes for who has it open or stands in it, as elsewhere."""
    same_for_both('files')
    with Machine() as machine:
        os.mkdir(machine.path('place'))
        os.makedirs(machine.path('place', 'snapshot'), exist_ok=True)
        for is_directory in True, False:
            path = machine.path('place', 'snapshot', 'one')
            remove = os.rmdir if is_directory else os.unlink
            make(path, is_directory, 0o750)
            before = os.lstat(path)
            fd = os.open(path, os.O_RDONLY if is_directory else os.O_PATH)
            remove(path)
            # Another of the same name is another.
            make(path, is_directory, 0o700)
            after = os.fstat(fd)
            for field in 'st_mode', 'st_uid', 'st_gid', 'st_size', 'st_mtime_ns', 'st_ino':
                equal(getattr(after, field), getattr(before, field), field)
            equal(after.st_nlink, 0)
            if is_directory:
                os.fchmod(fd, 0o711)
                os.utime(fd, (1, 2))
                after = os.fstat(fd)
                equal(oct(stat.S_IMODE(after.st_mode)), oct(0o711))
                equal((after.st_atime, after.st_mtime), (1, 2))
                if harness.is_root():
                    os.fchown(fd, NOBODY, NOBODY)
                    equal(os.fstat(fd).st_uid, NOBODY)
            os.close(fd)
            equal(oct(stat.S_IMODE(os.lstat(path).st_mode)), oct(0o700))
            remove(path)


def test_depth():
    same_for_both('the file system')
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine)
        path = snapshot(machine, demo.pid)
        top = f'{path}/d'
        made = 0
        while True:
            path += '/d'
            result = error_of(lambda: os.mkdir(path))
            if result != 'ok':
                break
            made += 1
        equal([made, result], [32, 'ENAMETOOLONG'])
        other = snapshot(machine, demo.pid, 'e')
        os.makedirs(f'{other}/f')
        equal(error_of(lambda: os.rename(f'{snapshot(machine, demo.pid)}/d', f'{other}/f/d')),
              'ENAMETOOLONG')
        os.rename(f'{top}/d', f'{other}/d')
        with open(f'{other}/d/file', 'wb') as file:
            file.write(b'1' * MIB)
        goes_on(machine, demo)
        wait_for(lambda: used(machine) == 0, 'all to be free')


def test_a_verb_wins():
    """Who writes gets EBUSY when a thaw begins, for ever; who reads what was frozen."""
    same_for_both('the file system')
    with Machine(vmm=True, options=',nopassthrough') as machine:
        demo = frozen_demo(machine, '--bytes', '16M', '--buffers', '2')
        place = snapshot(machine, demo.pid)
        name, size = max(vmm.files(machine, demo.pid).items(), key=lambda item: item[1])
        reader = os.open(f'{place}/vram/{name}', os.O_RDONLY)
        expected = os.pread(reader, size, 0)
        writer = os.open(f'{place}/vram/{name}', os.O_RDWR)
        mine = os.open(f'{place}/mine', os.O_CREAT | os.O_WRONLY)
        os.write(mine, b'first')
        # A thaw that fails: the process stays frozen, and so does the answer to who has it open.
        machine.faults(f'cuMemCreate {vmm.ROLES["worker"]} delay_ms=60000')
        machine.watch_faults()
        thaw = machine.writer(demo.pid, 'thaw')
        machine.wait_faulted()
        busy = {
            'write': lambda: os.write(mine, b'second'),
            'write to a file of VRAM': lambda: os.pwrite(writer, b'x', 0),
            'truncate': lambda: os.ftruncate(writer, 0),
            'open': lambda: os.open(f'{place}/mine', os.O_WRONLY),
            'create': lambda: os.open(f'{place}/other', os.O_CREAT | os.O_WRONLY),
            'unlink': lambda: os.unlink(f'{place}/vram/{name}'),
            'rename': lambda: os.rename(f'{place}/vram', f'{place}/v'),
            'mkdir': lambda: os.mkdir(f'{place}/d'),
            'chmod': lambda: os.chmod(f'{place}/vram', 0o755),
        }
        for what, attempt in busy.items():
            equal(error_of(attempt), 'EBUSY', what)
        check(os.pread(writer, size, 0) == expected, 'reading goes on')
        os.close(os.open(f'{place}/mine', os.O_RDONLY))
        canceller = machine.writer(demo.pid, 'cancel')
        equal([canceller.result(), thaw.result()], ['ok', 'ECANCELED'])
        machine.faults()
        machine.wait_status(demo.pid, 'verb', '-')
        equal(machine.state(demo.pid), 'frozen')
        equal(error_of(lambda: os.write(mine, b'second')), 'EBUSY', 'for ever')
        with open(f'{place}/mine', 'r+b') as file:
            equal(file.read(), b'first')
            file.write(b', second')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()
        check(os.pread(reader, size, 0) == expected, 'after the thaw')
        check(error_of(lambda: os.pwrite(writer, b'x', 0)) in ('EBUSY', 'ESTALE'), 'gone')
        for fd in reader, writer, mine:
            os.close(fd)
        wait_for(lambda: used(machine) == 0, 'all to be free')


def test_what_is_missing():
    """A thaw that does not find its files fails, and goes on when they are back."""
    same_for_both('metadata and files')
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine)
        place = snapshot(machine, demo.pid)
        name = os.listdir(f'{place}/vram')[0]
        os.rename(f'{place}/vram/{name}', f'{place}/{name}')
        equal(machine.write(demo.pid, 'thaw'), 'EIO')
        equal(machine.state(demo.pid), 'frozen')
        os.rename(f'{place}/{name}', f'{place}/vram/{name}')
        os.rename(f'{place}/vram', f'{place}/ram')
        equal(machine.write(demo.pid, 'thaw'), 'EIO')
        check('vram is gone' in machine.error(demo.pid), machine.error(demo.pid))
        # Also for the daemon that comes next.
        if machine.status_of_all()['store_survives_restart'] == 'yes':
            machine.stop()
            machine.start()
            equal(machine.write(demo.pid, 'thaw'), 'EIO')
        os.rename(f'{place}/ram', f'{place}/vram')
        goes_on(machine, demo)


def fill(path):
    """Write until nothing fits any more; how many bytes there are then."""
    found = subprocess.run(['dd', 'if=/dev/urandom', f'of={path}', 'bs=1M'], capture_output=True,
                           check=False, timeout=3 * harness.PATIENCE_SEC)
    check(b'No space left' in found.stderr, found.stderr.decode())
    return os.stat(path).st_size


def test_full_store():
    with Machine(vmm=True, options=',store_size=64M') as machine:
        demo = frozen_demo(machine, '--bytes', '16M', '--buffers', '2')
        place = snapshot(machine, demo.pid)
        free = room(machine)
        size = fill(f'{place}/full')
        # The room that was reserved for its metadata, and is not needed, can be written to, too.
        check(free - 4 * MIB <= size <= free + 4 * MIB, f'{size} of {free}')
        check(room(machine) <= 4 * MIB, room(machine))
        # What is there can still be written over, and is not lost.
        name = max(vmm.files(machine, demo.pid).items(), key=lambda item: item[1])[0]
        with open(f'{place}/vram/{name}', 'r+b') as file:
            data = file.read(MIB)
            file.seek(0)
            file.write(data)
        second = harness.MIB * 8
        big = f'{machine.directory}/big'
        with open(big, 'wb') as file:
            file.write(os.urandom(second))
        found = subprocess.run(['rsync', '--sparse', big, f'{place}/big'], capture_output=True,
                               check=False)
        check(found.returncode != 0 and b'No space left' in found.stderr, found.stderr.decode())
        equal(sorted(os.listdir(place)), ['digests', 'full', 'manifest', 'vram'])
        other = machine.ready_demo('--bytes', '16M', '--buffers', '2')
        machine.wait_status(other.pid, 'engine', vendor.ENGINE)
        equal(machine.write(other.pid, 'freeze'), 'ENOSPC')
        other.wait_ticks()
        # To make room for it, what is frozen was packed.
        packed = room(machine)
        fd = os.open(f'{place}/full', os.O_RDONLY)
        os.unlink(f'{place}/full')
        check(room(machine) <= packed, 'it is still open')
        equal(len(os.pread(fd, 5 * MIB, 0)), 5 * MIB)
        os.close(fd)
        wait_for(lambda: room(machine) >= free, 'its room')
        machine.must(other.pid, 'freeze')
        machine.must(None, f'thaw {demo.pid} {other.pid}')
        demo.wait_ticks()
        other.wait_ticks()
        wait_for(lambda: used(machine) == 0, 'all to be free')


def test_reader_and_writer():
    """Of one file at once, with holes made and filled and the end moved."""
    same_for_both('the file system')
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine)
        path = snapshot(machine, demo.pid, 'file')
        with open(path, 'wb') as file:
            file.write(b'\1' * 4 * MIB)
        script = '''
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print('ready', flush=True)
while os.fstat(fd).st_size:
    for offset in range(0, 4 << 20, 1 << 20):
        if set(os.pread(fd, 1 << 20, offset)) - {0, 1, 2}:
            sys.exit('wrong bytes')
'''
        reader = subprocess.Popen([sys.executable, '-c', script, path], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        equal(reader.stdout.readline(), 'ready\n')
        for turn in range(harness.few(90, 300) // harness.SLOW):
            with open(path, 'r+b', buffering=0) as file:
                if turn % 3 == 0:
                    file.truncate(turn % 4 * MIB + 1)
                    file.truncate(4 * MIB)
                elif turn % 3 == 1:
                    run('fallocate', '-p', '-o', str(turn % 4 * MIB), '-l', str(MIB + 4096), path)
                else:
                    os.pwrite(file.fileno(), b'\2' * 3 * MIB, turn % 2 * MIB)
        os.truncate(path, 0)
        equal(reader.wait(harness.PATIENCE_SEC), 0)
        reader.stdout.close()
        reader.stderr.close()
        goes_on(machine, demo)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
