# SPDX-License-Identifier: MIT
"""snapshot/vram of a frozen process: the files are the VRAM's bytes, for cp, cmp, dd, tar and find;
and what becomes of them when they are open and the process goes on."""
import errno
import mmap
import os
import re
import stat
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import (MIB, NOBODY, Machine, Skip, check, equal, error_of, needs_cuda,
                     same_for_both, wait_for)

NAME = re.compile(r'gpu\d-[0-9a-f]+|gpu\d-unmapped-\d+|managed-[0-9a-f]+')


def vram(machine, pid, *names):
    return machine.path(pid, 'snapshot', 'vram', *names)


def files(machine, pid):
    """Paths and sizes, in order."""
    directory = vram(machine, pid)
    return {name: os.stat(f'{directory}/{name}').st_size for name in sorted(os.listdir(directory))}


def store(machine, pid):
    """Where the daemon itself keeps them."""
    status = machine.status(pid)
    name = f'{pid}-{status["start_ticks"]}-{status["generation"]}'
    if harness.is_root():
        return f'{machine.runtime}/store/{name}/snapshot/vram'
    (found,) = [path for path in os.listdir('/dev/shm')
                if path.startswith(f'gpucrfs-{os.getuid()}-') and
                os.path.exists(f'/dev/shm/{path}/{name}')]
    return f'/dev/shm/{found}/{name}/snapshot/vram'


def room(machine):
    """What is free, with what only packing gets."""
    status = os.statvfs(machine.mountpoint)
    return status.f_bfree * status.f_frsize


def size_of(machine):
    status = os.statvfs(machine.mountpoint)
    return status.f_blocks * status.f_frsize


def run(*command):
    found = subprocess.run(command, capture_output=True, check=False, timeout=harness.PATIENCE_SEC)
    equal(found.returncode, 0, f'{command}: {found.stderr.decode()}')
    return found.stdout


def frozen_demo(machine, *arguments):
    demo = machine.ready_demo(*arguments)
    machine.wait_status(demo.pid, 'engine', vendor.ENGINE)
    machine.must(demo.pid, 'freeze')
    equal(machine.state(demo.pid), 'frozen')
    return demo


def check_directory(path):
    status = os.lstat(path)
    check(stat.S_ISDIR(status.st_mode), path)
    equal(oct(stat.S_IMODE(status.st_mode)), oct(0o700), path)
    equal(status.st_uid, os.geteuid())


def test_files():
    with Machine(vmm=True) as machine:
        demo = machine.ready_demo('--bytes', '24M', '--buffers', '3')
        check_directory(machine.path(demo.pid, 'snapshot'))
        equal(os.listdir(machine.path(demo.pid, 'snapshot')), [], 'it runs')
        check(not os.path.lexists(vram(machine, demo.pid)), 'it runs')

        machine.wait_status(demo.pid, 'engine', vendor.ENGINE)
        machine.must(demo.pid, 'freeze')
        for name in 'snapshot', 'snapshot/vram':
            check_directory(machine.path(demo.pid, name))
        equal(sorted(os.listdir(machine.path(demo.pid, 'snapshot'))), ['digests', 'manifest', 'vram'])
        check(not os.path.lexists(vram(machine, demo.pid, 'gpu0-1')), 'no such name')
        found = files(machine, demo.pid)
        check(len(found) >= 3 and sum(found.values()) >= 24 * MIB, str(found))
        inodes = set()
        for name, size in found.items():
            check(NAME.fullmatch(name), name)
            status = os.lstat(vram(machine, demo.pid, name))
            check(stat.S_ISREG(status.st_mode) and status.st_nlink == 1, name)
            equal(oct(stat.S_IMODE(status.st_mode)), oct(0o600), name)
            equal(status.st_uid, os.geteuid())
            check(size and size % 4096 == 0, f'{name}: {size}')
            equal(status.st_size, size)
            check(0 <= status.st_blocks * 512 <= size, f'{name}: {status.st_blocks} blocks')
            original = os.stat(f'{store(machine, demo.pid)}/{name}')
            equal([status.st_blocks, status.st_mtime_ns],
                  [original.st_blocks, original.st_mtime_ns])
            inodes.add(status.st_ino)
        equal(len(inodes), len(found), 'inode numbers')
        for name in ('', '.x', 'gpu0', 'gpu0-', f'{list(found)[0]}0', 'x' * 200):
            check(not name or not os.path.lexists(vram(machine, demo.pid, name)), name)
        machine.must(demo.pid, 'thaw')
        equal(os.listdir(machine.path(demo.pid, 'snapshot')), [])
        for name in found:
            check(not os.path.lexists(vram(machine, demo.pid, name)), name)
        demo.wait_ticks()


def test_driver_engine_has_none():
    needs_cuda('the engine of the driver alone')
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        equal(os.listdir(machine.path(demo.pid, 'snapshot')), [])
        machine.must(demo.pid, 'thaw')


def test_tools_copy_them():
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine, '--bytes', '24M', '--buffers', '3')
        source = vram(machine, demo.pid)
        original = store(machine, demo.pid)
        found = files(machine, demo.pid)
        run('cp', '-r', source, f'{machine.directory}/copy')
        run('cp', '-a', '--sparse=always', source, f'{machine.directory}/sparse')
        for name in found:
            run('cmp', f'{source}/{name}', f'{original}/{name}')
            run('cmp', f'{machine.directory}/copy/{name}', f'{original}/{name}')
            run('cmp', f'{machine.directory}/sparse/{name}', f'{original}/{name}')
            equal(os.stat(f'{machine.directory}/sparse/{name}').st_mtime_ns,
                  os.stat(f'{source}/{name}').st_mtime_ns)
        run('tar', '-C', machine.path(demo.pid), '-cSf', f'{machine.directory}/tar', 'snapshot')
        run('tar', '-C', machine.directory, '-xf', f'{machine.directory}/tar')
        run('diff', '-r', f'{machine.directory}/snapshot/vram', original)
        name, size = max(found.items(), key=lambda item: item[1])
        with open(f'{original}/{name}', 'rb') as file:
            expected = file.read()
        equal(len(expected), size)
        check(any(expected), 'the demo has written something')
        for block in ('4K', '1M', '3M', '12345'):
            check(run('dd', f'if={source}/{name}', f'bs={block}', 'status=none') == expected,
                  f'dd bs={block}')
        check(run('tail', '-c', '100000', f'{source}/{name}') == expected[-100000:], 'tail')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_reading_anywhere():
    same_for_both('how files are read')
    with Machine(vmm=True, options=',nopassthrough') as machine:
        demo = frozen_demo(machine)
        name, size = max(files(machine, demo.pid).items(), key=lambda item: item[1])
        with open(f'{store(machine, demo.pid)}/{name}', 'rb') as file:
            expected = file.read()
        fd = os.open(vram(machine, demo.pid, name), os.O_RDONLY)
        for offset, length in ((0, 1), (1, 4096), (4095, 2), (size - 1, 1), (size - 1, 5000),
                               (size, 1), (size + 4096, 10), (12345, 1000001), (0, size)):
            check(os.pread(fd, length, offset) == expected[offset:offset + length],
                  f'{length} at {offset}')
        equal(os.lseek(fd, 0, os.SEEK_END), size)
        equal(os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_SET))
        equal(os.lseek(fd, 0, os.SEEK_HOLE), size)
        equal(error_of(lambda: os.lseek(fd, size, os.SEEK_DATA)), 'ENXIO')
        equal(error_of(lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)), 'ENODEV')
        os.close(fd)
        # Control files have no holes.
        fd = os.open(machine.path('events'), os.O_RDONLY)
        size = os.fstat(fd).st_size
        equal(os.lseek(fd, 3, os.SEEK_DATA), 3)
        equal(os.lseek(fd, 3, os.SEEK_HOLE), size)
        equal(error_of(lambda: os.lseek(fd, size, os.SEEK_DATA)), 'ENXIO')
        os.close(fd)
        machine.must(demo.pid, 'thaw')


def test_open_across_thaws():
    """What is open stays as it was; its room comes back when it is closed."""
    with Machine(vmm=True, options=',store_size=64M') as machine:
        demo = frozen_demo(machine, '--bytes', '16M', '--buffers', '2', '--tick', 2)
        name, size = max(files(machine, demo.pid).items(), key=lambda item: item[1])
        with open(f'{store(machine, demo.pid)}/{name}', 'rb') as file:
            expected = file.read()
        path = vram(machine, demo.pid, name)
        fd = os.open(path, os.O_RDONLY)
        equal(os.read(fd, 1000), expected[:1000])
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()
        equal(error_of(lambda: os.open(path, os.O_RDONLY)), 'ENOENT')
        check(os.pread(fd, size, 0) == expected, 'after the thaw')
        wait_for(lambda: room(machine) == 64 * MIB - size, 'the rest to be free')
        machine.must(demo.pid, 'freeze')
        check(os.pread(fd, size, 0) == expected, 'after another freeze')
        with open(f'{store(machine, demo.pid)}/{name}', 'rb') as file:
            check(file.read() != expected, 'the demo changes its memory')
        equal(os.fstat(fd).st_size, size)
        before = room(machine)
        os.close(fd)
        wait_for(lambda: room(machine) == before + size, 'its room')
        machine.must(demo.pid, 'thaw')
        wait_for(lambda: room(machine) == 64 * MIB, 'all to be free')
        # Also when the process ends.
        machine.must(demo.pid, 'freeze')
        fd = os.open(path, os.O_RDONLY)
        data = os.pread(fd, size, 0)
        demo.end(9)
        wait_for(lambda: not os.path.lexists(machine.path(demo.pid)), 'it to go')
        check(os.pread(fd, size, 0) == data, 'after its end')
        os.close(fd)
        wait_for(lambda: room(machine) == 64 * MIB, 'all to be free')


def test_statfs():
    same_for_both('the file system')
    with Machine(vmm=True, options=',store_size=128M') as machine:
        equal([size_of(machine), room(machine)], [128 * MIB, 128 * MIB])
        equal(os.statvfs(machine.mountpoint).f_bavail * 4096, 120 * MIB, 'for who writes')
        demo = frozen_demo(machine, '--bytes', '24M', '--buffers', '3')
        held = sum(files(machine, demo.pid).values())
        check(128 * MIB - held - 8 * MIB <= room(machine) <= 128 * MIB - held, room(machine))
        check(b'128M' in run('df', '-h', machine.mountpoint), 'df')
        machine.must(demo.pid, 'thaw')
        wait_for(lambda: room(machine) == 128 * MIB, 'it to be free')


def test_links_and_devices():
    """What has no place in a snapshot; and a process that has none has nothing to change."""
    same_for_both('the file system')
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine)
        directory = vram(machine, demo.pid)
        path = f'{directory}/{os.listdir(directory)[0]}'
        attempts = {
            'link': lambda: os.link(path, path + '0'),
            'symlink': lambda: os.symlink('x', path + '0'),
            'fifo': lambda: os.mkfifo(path + '0'),
            'device': lambda: os.mknod(path + '0', stat.S_IFCHR | 0o600, os.makedev(1, 3)),
        }
        for what, attempt in attempts.items():
            equal(error_of(attempt), 'EPERM', what)
        equal(error_of(lambda: os.rename(path, machine.path('x'))), 'EPERM')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()
        for attempt in (lambda: os.mkdir(machine.path(demo.pid, 'snapshot', 'x')),
                        lambda: os.chmod(machine.path(demo.pid, 'snapshot'), 0o755),
                        lambda: os.mkdir(machine.path(demo.pid, 'x')),
                        lambda: os.unlink(machine.path(demo.pid, 'status'))):
            equal(error_of(attempt), 'EPERM')


def test_others_see_nothing():
    same_for_both('whose files are')
    if not harness.is_root():
        raise Skip('only root can become another user')
    with Machine(vmm=True) as machine:
        mine = frozen_demo(machine)
        theirs = machine.ready_demo(uid=NOBODY)
        machine.wait_status(theirs.pid, 'engine', vendor.ENGINE)
        machine.must(theirs.pid, 'freeze')
        (name,) = os.listdir(vram(machine, theirs.pid))[:1]
        equal(os.stat(vram(machine, theirs.pid, name)).st_uid, NOBODY)
        script = '''
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        print(len(os.listdir(path)) if os.path.isdir(path) else len(open(path, 'rb').read(4096)))
    except OSError as error:
        print(os.strerror(error.errno))
'''
        found = run(sys.executable, '-c', script, vram(machine, theirs.pid, name),
                    vram(machine, mine.pid), vram(machine, mine.pid, name),
                    store(machine, theirs.pid))
        lines = found.decode().splitlines()
        equal(lines[0], '4096', 'their own')
        equal(set(lines[1:]), {os.strerror(errno.EACCES)}, 'what is not theirs')
        machine.must(None, f'thaw {mine.pid} {theirs.pid}')


def test_readers_while_it_thaws_and_freezes():
    """Readers never see bytes of two freezes, nor a reason to wait."""
    same_for_both('how files are read')
    with Machine(vmm=True) as machine:
        demo = frozen_demo(machine, '--bytes', '6M', '--buffers', '2', '--tick', 2)
        script = '''
import hashlib, os, sys
directory, goal = sys.argv[1], int(sys.argv[2])
done = 0
while done < goal:
    try:
        for name in os.listdir(directory):
            with open(f'{directory}/{name}', 'rb', buffering=0) as file:
                first = hashlib.md5()
                while piece := file.read(1 << 20):
                    first.update(piece)
                file.seek(0)
                second = hashlib.md5()
                while piece := file.read(77777):
                    second.update(piece)
                if first.digest() != second.digest():
                    sys.exit('the bytes have changed')
                done += 1
    except OSError as error:
        if error.errno not in (2, 3, 116):
            raise
'''
        goal = harness.few(20, 40) if harness.SLOW == 1 else 10
        readers = [subprocess.Popen([sys.executable, '-c', script, vram(machine, demo.pid),
                                     str(goal)], stderr=subprocess.PIPE, text=True)
                   for _ in range(2)]
        machine.others += [Reader(reader) for reader in readers]
        while any(reader.poll() is None for reader in readers):
            machine.must(demo.pid, 'thaw')
            machine.must(demo.pid, 'freeze')
        for reader in readers:
            equal(reader.wait(), 0, reader.stderr.read())
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


class Reader:
    """A program that is ended with the machine."""

    def __init__(self, popen):
        self.popen = popen

    def finish(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self.popen.stderr.close()


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
