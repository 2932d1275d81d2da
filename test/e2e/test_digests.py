# SPDX-License-Identifier: MIT
"""Snapshots can be trusted: what comes back is what was frozen, byte by byte, or the thaw fails and
the process stays frozen; and what has not changed is not new for who keeps copies."""
import contextlib
import os
import shutil
import stat
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, check, equal, error_of, needs_cuda, same_for_both, wait_for
from pieces import Pieces, noise

CHUNK = 65536
HEADER_BYTES = 64
PIECE = 2 * MIB  # what the store counts in, and holes are made of
# The helper cannot have its kernel: it makes the digests on the host.
NO_KERNEL = 'cuModuleLoadData comm=gpucr-worker error=CUDA_ERROR_INVALID_PTX'


def run(*command, status=0):
    found = subprocess.run(command, capture_output=True, check=False,
                           timeout=3 * harness.PATIENCE_SEC)
    equal(found.returncode, status, f'{command}: {found.stdout.decode()}{found.stderr.decode()}')
    return found.stdout.decode()


def verify(path, status=0):
    return run(f'{harness.BUILD}/tools/gpucr-verify', path, status=status)


def room(machine):
    return int(machine.status_of_all()['store_free_bytes'])


def check_maker(machine, pieces, host):
    equal(machine.status(pieces.pid)['last_freeze_digests'], 'host' if host else 'gpu')


def flip(path, at):
    """Change one byte; a second time it is as before."""
    with harness.open_both(path) as file:
        byte = os.pread(file.fileno(), 1, at)
        equal(os.pwrite(file.fileno(), bytes([byte[0] ^ 0x20]), at), 1)


@contextlib.contextmanager
def flipped(path, at):
    flip(path, at)
    yield
    flip(path, at)


def tree(pieces):
    """All bytes of its snapshot, by path."""
    found = {}
    for path, _, names in os.walk(pieces.path()):
        for name in names:
            with open(f'{path}/{name}', 'rb') as file:
                found[f'{path}/{name}'] = file.read()
    return found


def refuse(pieces, *words):
    """A thaw is EIO and changes nothing: not the state, not a file, not the VRAM in use."""
    machine = pieces.machine
    before = tree(pieces)
    equal(machine.write(pieces.pid, 'thaw'), 'EIO', str(words))
    error = machine.error(pieces.pid)
    for word in words:
        check(word in error, f'{word!r} in {error!r}')
    equal(machine.state(pieces.pid), 'frozen')
    check(tree(pieces) == before, f'the files, after {error}')
    wait_for(lambda: all(machine.used(gpu) <= used for gpu, used in pieces.used.items()),
             f'no more than {pieces.used} bytes of VRAM in use, after {error}')
    return error


def refuse_byte(pieces, index, at):
    """One byte of a file in vram/ is another."""
    with flipped(pieces.file(index), at):
        refuse(pieces, f'vram/{pieces.name(index)} is not what was frozen',
               f'at offset {at // CHUNK * CHUNK} is another')


def test_copies_are_right():
    """cp -a takes it all out: gpucr-verify finds nothing, and finds a byte that is changed."""
    with vmm.machine(vram='512M') as machine:
        demo = vmm.demo(machine, '--bytes', '12M', '--buffers', 3, '--own-vmm', 2, *vendor.MANAGED,
                        '--pitch', 1, '--blocks', 3, '--block-bytes', '1500K', '--tick', 5)
        for cycle in range(2):
            machine.must(demo.pid, 'freeze')
            place = machine.path(demo.pid, 'snapshot')
            copy = f'{machine.directory}/copy-{cycle}'
            run('cp', '-a', *['--sparse=always'] * cycle, place, copy)
            equal(sorted(os.listdir(copy)), ['digests', 'manifest', 'vram'])
            check('all right' in verify(copy), 'the copy')
            check('all right' in verify(place), 'where it is')
            with open(f'{copy}/digests', 'rb') as file:
                magic, version, chunk, generation, count = struct.unpack(
                    '<8sII40sQ', file.read(HEADER_BYTES))
            equal([magic, version, chunk], [b'GCRDIGST', 1, CHUNK])
            equal(generation.rstrip(b'\0').decode(), machine.status(demo.pid)['generation'])
            sizes = vmm.files(machine, demo.pid)
            equal(count, sum(-(-size // CHUNK) for size in sizes.values()))
            equal(os.stat(f'{copy}/digests').st_size, HEADER_BYTES + 16 * count)
            name, size = max(sizes.items(), key=lambda item: item[1])
            with flipped(f'{copy}/vram/{name}', size // 2):
                check(f'vram/{name}: chunk at {size // 2 // CHUNK * CHUNK} differs' in
                      verify(copy, 1), 'a byte of the copy')
            check('all right' in verify(copy), 'the copy as it was')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
        check('generation' in verify_mixed(machine.directory), 'two freezes mixed')


def verify_mixed(directory):
    """The metadata of two freezes."""
    shutil.copy(f'{directory}/copy-0/digests', f'{directory}/copy-1/digests')
    return verify(f'{directory}/copy-1', 1)


def holes(path):
    """Where its holes begin and end."""
    found = []
    with open(path, 'rb') as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at < size:
            start = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            try:
                at = os.lseek(file.fileno(), start, os.SEEK_DATA) if start < size else size
            except OSError:
                at = size
            if start < size:
                found.append((start, at))
    return found


def zeros(host):
    with vmm.machine(worker_idle=1) as machine:
        if host:
            machine.faults(NO_KERNEL)
        free = room(machine)
        pieces = Pieces(machine, f'0:{6 * MIB}', f'0:{10 * MIB}', f'0:{4 * MIB}')
        pieces.put(0, bytes(6 * MIB))
        pieces.put(1, bytes(4 * MIB), 2 * MIB)
        pieces.put(1, bytes(2 * MIB), 8 * MIB)
        pieces.put(2, bytes(2 * MIB), MIB)  # of no piece all
        pieces.freeze()
        pieces.check_files()
        expected = [[(0, 6 * MIB)], [(2 * MIB, 6 * MIB), (8 * MIB, 10 * MIB)], []]
        data = [0, 4 * MIB, 4 * MIB]
        for index in range(3):
            equal(holes(pieces.file(index)), expected[index], f'piece {index}')
            equal(os.stat(pieces.file(index)).st_blocks * 512, data[index], f'piece {index}')
        metadata = free - room(machine) - sum(data)  # with a table of the daemon's own
        check(0 < metadata <= 3 * PIECE, f'the store has {metadata} bytes more than its files')
        run('cp', '-a', pieces.path(), f'{machine.directory}/copy')
        verify(f'{machine.directory}/copy')
        equal(vmm.idle(machine), vmm.kept(machine), 'VRAM in use')
        # A hole is covered as well.
        for index, at in (0, 5 * MIB), (1, 10 * MIB - 1), (1, 2 * MIB):
            refuse_byte(pieces, index, at)
        pieces.thaw()
        # What was zeros has bytes, and the other way round.
        pieces.put(0, b'\1', 3 * MIB)
        pieces.put(1, noise('new', 2 * MIB), 8 * MIB)
        pieces.put(2, bytes(4 * MIB))
        pieces.freeze()
        pieces.check_files()
        equal([holes(pieces.file(index)) for index in range(3)],
              [[(0, 2 * MIB), (4 * MIB, 6 * MIB)], [(2 * MIB, 6 * MIB)], [(0, 4 * MIB)]])
        verify(pieces.path())
        pieces.thaw()
        check_maker(machine, pieces, host)


def test_zeros():
    zeros(False)


def test_zeros_on_the_host():
    same_for_both('which pages of a file are holes')
    zeros(True)


def refuse_metadata(pieces, turn):
    """Each region of manifest and digests; usually each in one of the tests, in turns."""
    step = 4 if vendor.HIP else 5
    digests_size = os.stat(pieces.path('digests')).st_size
    places = (0, 7, 8, 12, 16, 51, 55, 56, 63, HEADER_BYTES, HEADER_BYTES + 16, digests_size // 2,
              digests_size - 1)
    for at in harness.few(places[turn::step], places):
        with flipped(pieces.path('digests'), at):
            refuse(pieces, 'digests')
    size = os.stat(pieces.path('manifest')).st_size
    places = (0, 1, 20, size // 3, size // 2, size - 40, size - 2, size - 1)
    for at in harness.few(places[turn::step], places):
        with flipped(pieces.path('manifest'), at):
            refuse(pieces, 'manifest')


def changed_bytes(turn, *kinds, gpus=1, host=False, verb='freeze'):
    """One byte is another, wherever it is; then it is as it was, and all is well."""
    # On AMD none is left of a freeze, and refuse() waits for those of its thaw.
    with vmm.machine(gpus=gpus, worker_idle=0 if vendor.HIP else 1) as machine:
        if host:
            machine.faults(NO_KERNEL)
        pieces = Pieces(machine, *kinds)
        pieces.freeze(verb)
        pieces.check_files()
        left = [vmm.idle(machine, index) for index in range(gpus)]
        if verb == 'freeze':
            equal(sum(left), machine.kept(pieces.pid), 'VRAM in use')
        for index, content in enumerate(pieces.contents):
            for at in 0, len(content) // 2, len(content) - 1:
                refuse_byte(pieces, index, at)
        refuse_metadata(pieces, turn)
        equal([vmm.idle(machine, index) for index in range(gpus)], left, 'VRAM in use')
        verify(pieces.path())
        pieces.thaw()
        pieces.put(0, b'another', 12345)
        pieces.freeze(verb)
        refuse_byte(pieces, 0, 12345)
        pieces.thaw()
        check_maker(machine, pieces, host)


def test_changed_bytes():
    changed_bytes(0, f'0:{6 * MIB}', f'0:{2 * MIB}', f'0:{4 * MIB}')


def test_changed_bytes_on_the_host():
    changed_bytes(1, f'0:{6 * MIB}', f'0:{2 * MIB}', host=True)


def test_changed_bytes_of_data():
    changed_bytes(2, f'0:{4 * MIB}', f'0:{2 * MIB}', verb='freeze data')


def test_changed_bytes_of_two_gpus():
    changed_bytes(3, f'0:{4 * MIB}', f'1:{2 * MIB}', f'0:{2 * MIB}', f'1:{6 * MIB}', gpus=2)


def test_changed_bytes_of_managed_memory():
    needs_cuda('managed memory, with which no freeze is possible')
    changed_bytes(4, f'0:{2 * MIB}', f'managed:{4 * MIB}', f'managed:{100 * 4096}')


def test_several_are_refused_together():
    """All or none: one has a byte that is another, and both stay frozen."""
    with vmm.machine(worker_idle=1) as machine:
        first = Pieces(machine, f'0:{4 * MIB}')
        second = Pieces(machine, f'0:{4 * MIB}')
        both = f'{first.pid} {second.pid}'
        machine.must(None, f'freeze {both}')
        with flipped(second.file(0), 3 * MIB):
            equal(machine.write(None, f'thaw {both}'), 'EIO')
            for pieces in first, second:
                equal(machine.state(pieces.pid), 'frozen')
            equal(vmm.idle(machine), vmm.kept(machine), 'VRAM in use')
            refuse(second, second.name(0), f'offset {3 * MIB} ')
            first.thaw()
            first.freeze()
        machine.must(None, f'thaw {both}')
        first.check()
        second.check()


def test_unverified():
    """Who edits a file on purpose gets what was edited, and the next freeze has it."""
    with vmm.machine(worker_idle=1) as machine:
        second = '0' if vendor.HIP else 'managed'
        pieces = Pieces(machine, f'0:{4 * MIB}', f'{second}:{2 * MIB}', f'0:{2 * MIB}')
        pieces.freeze()
        for index, at in (0, MIB), (1, 77), (2, 2 * MIB - 3):
            with open(pieces.file(index), 'r+b') as file:
                file.seek(at)
                file.write(b'new')
            pieces.contents[index][at:at + 3] = b'new'
        refuse(pieces)
        pieces.thaw('thaw unverified')
        pieces.freeze()
        pieces.check_files()
        verify(pieces.path())
        pieces.thaw()
        # Sizes have to be right all the same; there need not be metadata.
        pieces.freeze()
        for index in range(3):
            size = len(pieces.contents[index])
            os.truncate(pieces.file(index), size + 1)
            equal(machine.write(pieces.pid, 'thaw unverified'), 'EIO')
            check(pieces.name(index) in machine.error(pieces.pid), machine.error(pieces.pid))
            os.truncate(pieces.file(index), size)
        os.unlink(pieces.path('manifest'))
        os.unlink(pieces.path('digests'))
        refuse(pieces, 'manifest')
        pieces.thaw('thaw unverified')
        pieces.freeze()
        verify(pieces.path())
        pieces.thaw()


def test_a_program_notices():
    """The edited bytes are the program's: it finds a wrong word."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '8M', '--buffers', 2, '--tick', 5)
        machine.must(demo.pid, 'freeze')
        buffer = vmm.buffers(demo)[1]
        flip(machine.path(demo.pid, 'snapshot', 'vram', f'gpu0-{buffer.address:x}'), 3 * MIB + 8)
        equal(machine.write(demo.pid, 'thaw'), 'EIO')
        check(demo.is_running(), 'it waits')
        demo.is_to_end = True
        # It may have ended before the verb has.
        check(machine.write(demo.pid, 'thaw unverified') in ('ok', 'ESRCH'), 'the thaw')
        equal(demo.popen.wait(harness.PATIENCE_SEC), 1)
        words = demo.words()
        check(f'buffer {buffer.number}: 1 of ' in words and f'at byte {3 * MIB + 8}:' in words,
              words)


def exchange(pieces, left, right):
    aside = pieces.path('aside')
    os.rename(pieces.path(left), aside)
    os.rename(pieces.path(right), pieces.path(left))
    os.rename(aside, pieces.path(right))


def test_files_of_others():
    """Each of them is right in its place: exchanged, or of an earlier freeze, it is not."""
    same_for_both('metadata and files')
    with vmm.machine(gpus=2, worker_idle=1) as machine:
        pieces = Pieces(machine, f'0:{4 * MIB}', f'0:{4 * MIB}', f'1:{4 * MIB}', f'0:{2 * MIB}')
        earlier = f'{machine.directory}/earlier'
        pieces.freeze()
        shutil.copytree(pieces.path(), earlier)
        pieces.thaw()
        pieces.put(0, b'one chunk only', 2 * MIB + 5)
        pieces.freeze()
        copy = f'{machine.directory}/copy'
        shutil.copytree(pieces.path(), copy)
        for left, right in (0, 1), (0, 2), (1, 2):
            names = f'vram/{pieces.name(left)}', f'vram/{pieces.name(right)}'
            exchange(pieces, *names)
            error = refuse(pieces, 'at offset 0 is another')
            check(any(name in error for name in names), error)
            exchange(pieces, *names)
        # A file of the earlier freeze: other bytes in one place.
        shutil.copy(f'{earlier}/vram/{pieces.name(0)}', pieces.file(0))
        refuse(pieces, f'vram/{pieces.name(0)} ', f'at offset {2 * MIB} is another')
        # One file of its metadata, or both: they fit its files, but are of another freeze.
        for names in ['manifest'], ['digests'], ['manifest', 'digests']:
            for name in names:
                shutil.copy(f'{earlier}/{name}', pieces.path(name))
            refuse(pieces, names[0], 'generation')
            for name in names:
                shutil.copy(f'{copy}/{name}', pieces.path(name))
        shutil.copy(f'{copy}/vram/{pieces.name(0)}', pieces.file(0))
        # What is the same in both freezes may come from either.
        shutil.copy(f'{earlier}/vram/{pieces.name(1)}', pieces.file(1))
        verify(pieces.path())
        pieces.thaw()
        # A program like it: its files are as long, its metadata is of that one.
        other = Pieces(machine, f'0:{4 * MIB}')
        other.freeze()
        pieces.freeze()
        for name in 'manifest', 'digests':
            shutil.copy(pieces.path(name), f'{machine.directory}/{name}')
            shutil.copy(other.path(name), pieces.path(name))
            refuse(pieces, name)
            shutil.copy(f'{machine.directory}/{name}', pieces.path(name))
        pieces.thaw()
        other.thaw()


def test_shapes():
    """Files that are too short, too long, missing, or no files; and what does no harm."""
    same_for_both('metadata and files')
    with vmm.machine(worker_idle=1) as machine:
        pieces = Pieces(machine, f'0:{4 * MIB}', f'managed:{2 * MIB}')
        pieces.freeze()
        aside = pieces.path('aside')
        names = ['manifest', 'digests'] + [f'vram/{pieces.name(index)}' for index in range(2)]
        for number, name in enumerate(names):
            path = pieces.path(name)
            with open(path, 'rb') as file:
                content = file.read()
            sizes = 0, len(content) - 1, len(content) + 1, len(content) + 2 * PIECE
            # Of each usually two, in turns.
            for size in harness.few(sizes[(number + number // 2) % 2::2], sizes):
                os.truncate(path, size)
                refuse(pieces, os.path.basename(name))
                with open(path, 'wb') as file:
                    file.write(content)
            os.rename(path, aside)
            refuse(pieces, os.path.basename(name))
            os.mkdir(path)
            refuse(pieces, os.path.basename(name))
            os.rmdir(path)
            for make in (lambda: os.mkfifo(path), lambda: os.symlink(aside, path),
                         lambda: os.link(aside, path),
                         lambda: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))):
                equal(error_of(make), 'EPERM', name)
            check(not os.path.lexists(path), name)
            os.rename(aside, path)
        # Others beside them are nobody's business.
        os.mkdir(pieces.path('vram', 'mine'))
        for name in 'notes', 'vram/gpu0-1', 'vram/managed-2000', 'vram/.hidden', 'vram/mine/file':
            shutil.copyfile('/proc/self/status', pieces.path(name))
        equal(vmm.idle(machine), vmm.kept(machine), 'VRAM in use')
        pieces.thaw()
        equal(os.listdir(pieces.path()), [])


def rsync(pieces, copy):
    """Names of the files that it has transferred."""
    # Two freezes may be in one second.
    lines = run('rsync', '-ai', '--modify-window=-1', f'{pieces.path()}/', copy)
    return {line.split()[1].rpartition('/')[2] for line in lines.splitlines()
            if line.startswith('>f')}


def times(pieces):
    return {name: os.stat(pieces.path('vram', name)).st_mtime_ns
            for name in os.listdir(pieces.path('vram'))}


def changed_files(options):
    """A copy is kept up to date: only files whose memory has changed are new."""
    if not shutil.which('rsync'):
        raise harness.Skip('there is no rsync')
    with vmm.machine(gpus=2, worker_idle=1, options=options) as machine:
        pieces = Pieces(machine, f'0:{4 * MIB}', f'0:{6 * MIB}', f'1:{2 * MIB}', f'0:{2 * MIB}',
                        f'1:{4 * MIB}')
        names = [pieces.name(index) for index in range(5)]
        copy = f'{machine.directory}/copy'
        pieces.freeze()
        before = times(pieces)
        equal(rsync(pieces, copy), {'manifest', 'digests', *names})
        for changed in harness.few(([], [1], [], [2, 4]), ([], [], [1], [], [2, 4], [0], [])):
            pieces.thaw()
            for index in changed:
                pieces.put(index, noise(f'{before}', 3), len(pieces.contents[index]) - 3)
            pieces.freeze()
            now = times(pieces)
            equal({name for name in names if now[name] != before[name]},
                  {names[index] for index in changed}, f'new times when {changed} have changed')
            check(all(now[name] >= before[name] for name in names), 'times go on')
            before = now
            equal(rsync(pieces, copy) - {'manifest', 'digests'},
                  {names[index] for index in changed}, f'transferred when {changed} have changed')
            verify(copy)
        # There and back again is a change of nothing.
        pieces.thaw()
        content = bytes(pieces.contents[0])
        pieces.put(0, noise('other', 4 * MIB))
        pieces.put(0, content)
        pieces.freeze()
        equal(times(pieces), before)
        # What was written to and thawed by force is new.
        flip(pieces.file(3), 5)
        pieces.contents[3][5] ^= 0x20
        pieces.thaw('thaw unverified')
        pieces.freeze()
        check(times(pieces)[names[3]] > before[names[3]], 'the file that was edited')
        equal(rsync(pieces, copy) - {'manifest', 'digests'}, {names[3]})
        verify(copy)
        pieces.thaw()


def test_changed_files():
    changed_files('')


def test_changed_files_with_what_is_kept():
    same_for_both('what the store keeps')
    changed_files(',keep=256M')


def test_metadata_before_the_turn():
    """A user may have written a manifest that takes long to read: no other thaw waits for that, so a
    false one is refused while thaws that were begun before still wait for the GPU's turn."""
    needs_cuda('the thaw is held in the driver\'s Restore')
    with vmm.machine() as machine:
        holding, waiting, other = (vmm.demo(machine, '--bytes', '4M', '--buffers', 1)
                                   for _ in range(3))
        for demo in (holding, waiting, other):
            machine.must(demo.pid, 'freeze')
        manifest = machine.path(other.pid, 'snapshot', 'manifest')
        flip(manifest, 20)
        phase = machine.hold('thaw', holding.pid)
        writers = [machine.writer(holding.pid, 'thaw')]
        machine.wait_status(holding.pid, 'phase', phase)
        writers.append(machine.writer(waiting.pid, 'thaw'))
        machine.wait_status(waiting.pid, 'phase', 'admission')
        refused = machine.writer(other.pid, 'thaw').result()
        waits = machine.status(waiting.pid)['phase']
        machine.let_go()
        equal(refused, 'EIO', machine.error(other.pid))
        equal(waits, 'admission', 'of the thaw that was begun before')
        check('manifest: ' in machine.error(other.pid), machine.error(other.pid))
        for writer in writers:
            equal(writer.result(), 'ok')
        flip(manifest, 20)
        machine.must(other.pid, 'thaw')


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
