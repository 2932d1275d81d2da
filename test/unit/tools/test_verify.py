#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""gpucr-verify: every change of a snapshot is found and named, and every right copy is right.
usage: test_verify.py PATH-OF-GPUCR-VERIFY PATH-OF-MAKE-SNAPSHOT SOURCE-ROOT
"""
import os
import pty
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from amount import few  # pylint: disable=wrong-import-position

VERIFY, MAKE, ROOT = (os.path.abspath(path) for path in sys.argv[1:4])
KIB, MIB, CHUNK = 1 << 10, 1 << 20, 1 << 16
GENERATION = '0f8fad5b-d9cb-469f-a165-70867728950e'
OTHER = '7c9e6679-7425-40de-944b-e07fc1f90ae7'
# A sanitizer finds in the first ones what there is.
CHANGES = few(500, 2000) if os.environ.get('GPUCR_TEST_SANITIZER', 'none') == 'none' else 500
AT_ONCE = 250  # snapshots in one run of gpucr-verify

# Every kind of memory; sizes that are whole chunks and not, data at the ends and in the middle.
EXTENTS = {
    'device:0:7f3a40000000:2097152:1': [(0, 3), (70000, 65536), (2 * MIB - 5, 5)],
    'device:1:7f3a40400000:4194304:2': [],
    'device:1:0:2097152:3': [(MIB, 30000)],
    'managed:0:7f3b00000000:4096:4': [(0, 4096)],
    'managed:0:7f3b00001000:4096:5': [(0, 4096)],
    'managed:1:7f3b00010000:69632:6': [(0, 69632)],
    'managed:1:7f3b00100000:204800:7': [(5000, 150000)],
}
NAMES = subprocess.run([MAKE, '--name', *EXTENTS], check=True, capture_output=True,
                       text=True).stdout.split()
SIZES = {name: int(extent.split(':')[3]) for name, extent in zip(NAMES, EXTENTS)}
DEVICE, HOLE, UNMAPPED, MANAGED, PEER, ODD, LONG = (f'vram/{name}' for name in NAMES)

work = None


def check(condition, words):
    if not condition:
        raise AssertionError(words)


def make(name, generation=GENERATION, seed=1, extents=None, words=()):
    """A snapshot of pseudo-random contents; returns its path."""
    directory = os.path.join(work, name)
    extents = EXTENTS if extents is None else extents
    names = subprocess.run([MAKE, '--name', *extents], check=True, capture_output=True,
                           text=True).stdout.split()
    source = random.Random(seed)
    os.makedirs(os.path.join(directory, 'vram'), exist_ok=True)
    for file, (extent, pieces) in zip(names, extents.items()):
        with open(os.path.join(directory, 'vram', file), 'wb') as stream:
            stream.truncate(int(extent.split(':')[3]))
            for offset, size in pieces:
                stream.seek(offset)
                stream.write(source.randbytes(size))
    subprocess.run([MAKE, directory, generation, *words, *extents], check=True)
    return directory


def verify(*arguments, status=0):
    """Returns the lines of standard output and standard error."""
    done = subprocess.run([VERIFY, *arguments], capture_output=True, text=True, errors='replace',
                          check=False, timeout=600)
    check(done.returncode == status,
          f'{arguments[:5]}: status {done.returncode}, not {status}: {done.stdout}{done.stderr}')
    return done.stdout.splitlines(), done.stderr.splitlines()


def finds(directory, *expected, status=1):
    """These lines and no others; returns them. A line may be a pattern."""
    out, err = verify(directory, status=status)
    lines = out + err
    check(len(lines) == len(expected) and
          all(re.fullmatch(pattern, line) for pattern, line in zip(expected, lines)),
          f'found {lines}, expected {expected}')
    return lines


def is_right(directory):
    out, err = verify(directory)
    check(out == [f'all right: {len(SIZES)} files, {sum(SIZES.values())} bytes'] and not err,
          f'{out} {err}')


def change(path, offset, byte=None):
    with open(path, 'r+b') as stream:
        stream.seek(offset)
        old = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([old ^ 0xff if byte is None else byte]))
    return old


def copy_sparse(source, target):
    """Into a new file, whatever the target was linked to."""
    if os.path.lexists(target):
        os.unlink(target)
    with open(source, 'rb') as stream, open(target, 'wb') as copy:
        size = os.fstat(stream.fileno()).st_size
        copy.truncate(size)
        offset = 0
        while offset < size:
            try:
                offset = os.lseek(stream.fileno(), offset, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(stream.fileno(), offset, os.SEEK_HOLE)
            os.pwrite(copy.fileno(), os.pread(stream.fileno(), end - offset, offset), offset)
            offset = end


def copy_snapshot(source, name):
    directory = os.path.join(work, name)
    os.makedirs(os.path.join(directory, 'vram'))
    for file in ('manifest', 'digests', *(f'vram/{file}' for file in SIZES)):
        copy_sparse(os.path.join(source, file), os.path.join(directory, file))
    return directory


# ---- the tests

def test_arguments():
    """Options as the manual and the completion have them; what is none."""
    out, _ = verify('--help')
    listed = re.findall(r'(?<![\w-])--?[a-z]+', '\n'.join(out))
    check(listed == ['-j', '--jobs', '-q', '--quiet', '--progress', '--help', '--version'], listed)
    with open(os.path.join(ROOT, 'man', 'gpucr-verify.1.scd'), encoding='utf-8') as stream:
        documented = re.findall(r'\*(--?[a-z]+)\*',
                                ' '.join(re.findall(r'^\*-.*$', stream.read(), re.M)))
    check(documented == listed, f'documented {documented}')
    with open(os.path.join(ROOT, 'tools/completions/gpucr-verify'), encoding='utf-8') as stream:
        words = re.search(r"-W '([^']*)'", stream.read()).group(1).split()
    check(sorted(words) == sorted(listed), f'completed {words}')
    check(verify('--version')[0][0].startswith('gpucr-verify '), '--version')
    for wrong in ([], ['--nonsense', '.'], ['-j', '0', '.'], ['-j', 'x', '.'], ['-j', '257', '.'],
                  ['--jobs=', '.'], ['-q']):
        verify(*wrong, status=2)


def test_right():
    directory = make('right')
    is_right(directory)
    for threads in ('1', '2', '3', '16', '256'):
        verify('-q', '-j', threads, directory)
    check(verify('--quiet', directory, directory) == ([], []), '-q says something')
    out, _ = verify(directory, make('empty', extents={}))
    check(out[0].startswith(directory + ': all right: ') and
          out[1] == f'{work}/empty: all right: 0 files, 0 bytes', out)
    os.rmdir(os.path.join(work, 'empty', 'vram'))
    verify(os.path.join(work, 'empty'))
    # Another file beside them is not looked at.
    os.mkdir(os.path.join(directory, 'criu'))
    is_right(directory)
    os.symlink('right', os.path.join(work, 'link'))
    is_right(os.path.join(work, 'link'))


def test_changes():
    """Hundreds of single bytes: each is found, in the right place, and nothing else is."""
    base = make('base')
    source = random.Random(2)
    sizes = {f'vram/{name}': size for name, size in SIZES.items()}
    for file in ('manifest', 'digests'):
        sizes[file] = os.stat(os.path.join(base, file)).st_size
    directories = [os.path.join(work, f'changed-{i}') for i in range(AT_ONCE)]
    for directory in directories:
        os.makedirs(os.path.join(directory, 'vram'))
        for file in sizes:
            os.link(os.path.join(base, file), os.path.join(directory, file))
    seen = dict.fromkeys(sizes, 0)
    for _ in range(CHANGES // AT_ONCE):
        expected = []
        changed = []
        for directory in directories:
            file = source.choice(['manifest', 'digests', source.choice(list(sizes))])
            path = os.path.join(directory, file)
            offset = source.randrange(sizes[file])
            copy_sparse(os.path.join(base, file), path)
            old = change(path, offset)
            change(path, offset, (old + source.randrange(1, 256)) % 256)
            seen[file] += 1
            changed.append(file)
            start = f'{directory}: {file}: '
            expected.append(start + f'chunk at {offset // CHUNK * CHUNK} differs'
                            if file.startswith('vram/') else start)
        out, err = verify('-q', *directories, status=1)
        check(not err and len(out) == AT_ONCE, f'{len(out)} lines, {err}')
        for line, start in zip(out, expected):
            check(line == start if start.endswith(' differs') else line.startswith(start),
                  f'found {line}, expected {start}')
        for directory, file in zip(directories, changed):
            os.unlink(os.path.join(directory, file))
            os.link(os.path.join(base, file), os.path.join(directory, file))
        verify('-q', *directories)
    check(min(seen.values()) > CHANGES // 100, f'not all files were changed: {seen}')


def test_mixed():
    """Files of two snapshots, and of one in the wrong place."""
    first = make('first')
    again = make('again', OTHER)  # the same bytes of another freeze
    later = make('later', OTHER, seed=3)

    mixed = copy_snapshot(first, 'mixed-digests')
    copy_sparse(os.path.join(again, 'digests'), os.path.join(mixed, 'digests'))
    finds(mixed, rf'digests: it is of another generation \({OTHER}\) than the manifest '
                 rf'\({GENERATION}\); what is in vram/ is not checked')
    mixed = copy_snapshot(first, 'mixed-manifest')
    copy_sparse(os.path.join(later, 'manifest'), os.path.join(mixed, 'manifest'))
    finds(mixed, 'digests: it is of another generation .*')
    copy_sparse(os.path.join(later, 'digests'), os.path.join(mixed, 'digests'))
    wrong = finds(mixed, *['vram/.*: chunks? at .* differs?'] * 7)
    check({line.split(':')[0] for line in wrong} == {DEVICE, UNMAPPED, MANAGED, PEER, ODD, LONG},
          wrong)
    small = make('small', OTHER, extents=dict(list(EXTENTS.items())[:2]))
    mixed = copy_snapshot(first, 'mixed-lengths')
    copy_sparse(os.path.join(small, 'digests'), os.path.join(mixed, 'digests'))
    finds(mixed, 'digests: it is of another generation .*')
    copy_sparse(os.path.join(small, 'manifest'), os.path.join(mixed, 'manifest'))
    finds(mixed, *['vram/.*: it is not in the manifest'] * 5)

    mixed = copy_snapshot(first, 'mixed-vram')
    copy_sparse(os.path.join(later, PEER), os.path.join(mixed, PEER))
    finds(mixed, f'{PEER}: chunk at 0 differs')

    mixed = copy_snapshot(first, 'swapped')
    os.rename(os.path.join(mixed, MANAGED), os.path.join(mixed, 'x'))
    os.rename(os.path.join(mixed, PEER), os.path.join(mixed, MANAGED))
    os.rename(os.path.join(mixed, 'x'), os.path.join(mixed, PEER))
    finds(mixed, f'{MANAGED}: chunk at 0 differs', f'{PEER}: chunk at 0 differs')
    copy_sparse(os.path.join(first, UNMAPPED), os.path.join(mixed, DEVICE))
    copy_sparse(os.path.join(first, DEVICE), os.path.join(mixed, UNMAPPED))
    finds(mixed, *[f'{DEVICE}: chunks? at .*'] * 3, *[f'{UNMAPPED}: chunks? at .*'] * 3,
          f'{MANAGED}: chunk at 0 differs', f'{PEER}: chunk at 0 differs')


def test_lengths():
    base = make('lengths')
    for file, size in ((DEVICE, 2 * MIB), (HOLE, 4 * MIB), (ODD, 69632), (MANAGED, 4096)):
        for length in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, size - 1, size + 1, size + CHUNK,
                       1 << 40):
            if length == size:
                continue
            os.truncate(os.path.join(base, file), length)
            finds(base, f'{file}: it is {length} bytes long, not {size}')
            shutil.rmtree(base)
            base = make('lengths')
    # What a short file has is checked all the same.
    os.truncate(os.path.join(base, DEVICE), MIB)
    change(os.path.join(base, DEVICE), 70001)
    finds(base, f'{DEVICE}: it is .*', f'{DEVICE}: chunk at {CHUNK} differs')
    # And the beginning of a long one.
    os.truncate(os.path.join(base, DEVICE), 3 * MIB)
    finds(base, f'{DEVICE}: it is .*', f'{DEVICE}: chunk at {CHUNK} differs',
          f'{DEVICE}: chunk at {2 * MIB - CHUNK} differs')
    for file in ('manifest', 'digests'):
        path = os.path.join(base, file)
        size = os.stat(path).st_size
        with open(path, 'rb') as stream:
            whole = stream.read()
        for length in [0, 1, 63, 64, size // 2, size - 36, size - 1, size + 1, size + 16, 1 << 40]:
            os.truncate(path, length)
            out, err = verify(base, status=1)
            check(out[0].startswith(f'{file}: ') and not err, f'{file} {length}: {out}')
            os.truncate(path, 0)
            with open(path, 'wb') as stream:
                stream.write(whole)


def finds_other_kinds(base, name, end=''):
    """The file is moved away, and what is there in its place is found: nothing, a link, a pipe."""
    path = os.path.join(base, name)
    os.rename(path, os.path.join(work, 'away'))
    finds(base, f'{name}: it is missing{end}')
    os.symlink(os.path.join(work, 'away'), path)
    finds(base, f'{name}: it is a symbolic link{end}')
    os.unlink(path)
    os.mkfifo(path)
    finds(base, f'{name}: it is not a regular file{end}')
    os.unlink(path)


def test_missing_and_extra():
    base = make('kinds')
    path = os.path.join(base, PEER)
    finds_other_kinds(base, PEER)
    os.mkdir(path)
    finds(base, f'{PEER}: it is not a regular file')
    os.rmdir(path)
    os.link(os.path.join(work, 'away'), path)
    is_right(base)

    extra = os.path.join(base, 'vram', '.gpu0-7f3a40000000.Qh3mZk')
    os.link(path, extra)
    finds(base, r'vram/\.gpu0-7f3a40000000\.Qh3mZk: it is not in the manifest')
    os.rename(extra, os.path.join(base, 'vram', 'a\n\x1b[2Jb'))
    finds(base, r'vram/a\?\?\[2Jb: it is not in the manifest')
    os.rename(os.path.join(base, 'vram', 'a\n\x1b[2Jb'), os.path.join(base, 'vram', NAMES[0] + '0'))
    os.mkdir(os.path.join(base, 'vram', 'more'))
    verify(base, status=1)
    out, _ = verify(base, status=1)
    check(sorted(out) == [f'{DEVICE}0: it is not in the manifest',
                          'vram/more: it is not in the manifest'], out)
    os.rmdir(os.path.join(base, 'vram', 'more'))
    os.unlink(os.path.join(base, f'{DEVICE}0'))

    os.rename(os.path.join(base, 'vram'), os.path.join(base, 'real'))
    finds(base, 'vram/: it is missing')
    os.symlink('real', os.path.join(base, 'vram'))
    finds(base, 'vram/: it is not a directory')
    os.unlink(os.path.join(base, 'vram'))
    os.link(os.path.join(base, 'manifest'), os.path.join(base, 'vram'))
    finds(base, 'vram/: it is not a directory')
    os.unlink(os.path.join(base, 'vram'))
    os.rename(os.path.join(base, 'real'), os.path.join(base, 'vram'))
    is_right(base)

    for file in ('manifest', 'digests'):
        path = os.path.join(base, file)
        finds_other_kinds(base, file, '; .*')
        os.rename(os.path.join(work, 'away'), path)
    is_right(base)


def test_images():
    """What CRIU has written of a dumped process, to the last byte."""
    images = {'core-1.img': b'core' * 500, 'inventory.img': b'', 'pages-1.img': bytes(70000) + b'p'}

    def put(directory, contents):
        os.makedirs(os.path.join(directory, 'criu'), exist_ok=True)
        for name, data in contents.items():
            with open(os.path.join(directory, 'criu', name), 'wb') as stream:
                stream.write(data)

    base = os.path.join(work, 'dumped')
    put(base, images)
    make('dumped')
    size = sum(SIZES.values()) + sum(len(data) for data in images.values())
    out, err = verify(base)
    check(out == [f'all right: {len(SIZES) + len(images)} files, {size} bytes'] and not err, out)

    source = random.Random(7)
    for name, data in images.items():
        path = os.path.join(base, 'criu', name)
        for _ in range(50 if data else 0):
            offset = source.randrange(len(data))
            old = change(path, offset)
            finds(base, f'criu/{name}: it differs')
            change(path, offset, old)
        os.truncate(path, len(data) + 1)
        finds(base, f'criu/{name}: it is {len(data) + 1} bytes long, not {len(data)}')
        os.truncate(path, len(data))
        os.rename(path, os.path.join(work, 'away'))
        finds(base, f'criu/{name}: it is missing')
        os.symlink(os.path.join(work, 'away'), path)
        finds(base, f'criu/{name}: it is a symbolic link')
        os.unlink(path)
        os.rename(os.path.join(work, 'away'), path)
    put(base, {'core-2.img': b'another task'})
    finds(base, r'criu/core-2\.img: it is not in the manifest')
    os.unlink(os.path.join(base, 'criu', 'core-2.img'))
    os.rename(os.path.join(base, 'criu'), os.path.join(base, 'away'))
    finds(base, 'criu/: it is missing')
    os.symlink('away', os.path.join(base, 'criu'))
    finds(base, 'criu/: it is not a directory')
    os.unlink(os.path.join(base, 'criu'))
    os.rename(os.path.join(base, 'away'), os.path.join(base, 'criu'))
    verify(base)

    # One that was only frozen has none.
    frozen = make('frozen')
    is_right(frozen)
    put(frozen, {'core-1.img': b'core'})
    finds(frozen, r'criu/core-1\.img: it is not in the manifest')


def make_tree(name, words=(), extents=None, others=((4712, OTHER),)):
    """A dumped tree: its root, and GPU processes below it."""
    directory = os.path.join(work, name)
    os.makedirs(os.path.join(directory, 'criu'))
    with open(os.path.join(directory, 'criu', 'core-1.img'), 'wb') as stream:
        stream.write(b'core')
    for pid, generation in others:
        make(f'{name}/processes/{pid}', generation, seed=pid, words=[f'pid:{pid}'])
    make(name, extents=extents, words=[*words, *(f'process:{pid}:4711:{generation}'
                                                 for pid, generation in others)])
    return directory


def test_tree():
    """The snapshots of a tree's other processes: each as by itself, and the ones that belong."""
    base = make_tree('tree', words=['process:4720:4711'])
    size = 2 * sum(SIZES.values()) + 4
    right = [f'all right: {2 * len(SIZES) + 1} files, {size} bytes']
    check(verify(base) == (right, []), verify(base))
    within = os.path.join(base, 'processes', '4712')

    # What is wrong in one is told with the way to it.
    change(os.path.join(within, PEER), 17)
    finds(base, f'processes/4712/{PEER}: chunk at 0 differs')
    out, _ = verify(base, base, status=1)
    check(out == [f'{base}: processes/4712/{PEER}: chunk at 0 differs'] * 2, out)
    change(os.path.join(base, PEER), 17)
    finds(base, f'{PEER}: chunk at 0 differs', f'processes/4712/{PEER}: chunk at 0 differs')
    change(os.path.join(base, PEER), 17)
    change(os.path.join(within, PEER), 17)
    for file in ('manifest', 'digests', PEER):
        path = os.path.join(within, file)
        os.rename(path, os.path.join(work, 'away'))
        finds(base, f'processes/4712/{file}: it is missing.*')
        os.rename(os.path.join(work, 'away'), path)
    for offset in (5, 500, 1500):
        change(os.path.join(within, 'manifest'), offset)
        finds(base, 'processes/4712/manifest: it has been changed.*; nothing else there is checked')
        change(os.path.join(within, 'manifest'), offset)
    check(verify(base)[0] == right, 'not as before')

    # Another one in its place: of another freeze, of another process, a tree.
    os.rename(within, os.path.join(work, 'away'))
    finds(base, 'processes/4712/: it is missing')
    os.symlink(os.path.join(work, 'away'), within)
    finds(base, 'processes/4712/: it is not a directory')
    os.unlink(within)
    make('tree/processes/4712', GENERATION, seed=4712, words=['pid:4712'])
    finds(base, r'processes/4712/manifest: it is of another generation \(0f8f.*\) than the tree '
                r'\(7c9e.*\)')
    shutil.rmtree(within)
    make('tree/processes/4712', OTHER, seed=4712, words=['pid:4713'])
    finds(base, 'processes/4712/manifest: it is of process 4713, not 4712')
    shutil.rmtree(within)
    shutil.move(make_tree('inner', words=['pid:4712'], others=()), within)
    finds(base, 'processes/4712/manifest: it has a tree of its own',
          'processes/4712/manifest: it is of another generation .*')
    shutil.rmtree(within)
    os.rename(os.path.join(work, 'away'), within)

    # One too many, and none of them.
    os.mkdir(os.path.join(base, 'processes', '4720'))
    finds(base, 'processes/4720: it is not in the manifest')
    os.rmdir(os.path.join(base, 'processes', '4720'))
    os.mkdir(os.path.join(base, 'processes', '04712'))
    finds(base, 'processes/04712: it is not in the manifest')
    os.rmdir(os.path.join(base, 'processes', '04712'))
    os.rename(os.path.join(base, 'processes'), os.path.join(base, 'away'))
    finds(base, 'processes/: it is missing')
    os.symlink('away', os.path.join(base, 'processes'))
    finds(base, 'processes/: it is not a directory')
    os.unlink(os.path.join(base, 'processes'))
    os.rename(os.path.join(base, 'away'), os.path.join(base, 'processes'))
    check(verify(base)[0] == right, 'not as before')

    # A process that was only frozen has none of it.
    frozen = make('frozen-alone')
    os.makedirs(os.path.join(frozen, 'processes'))
    is_right(frozen)
    os.mkdir(os.path.join(frozen, 'processes', '4712'))
    finds(frozen, 'processes/4712: it is not in the manifest')


def test_launcher():
    """A root without a GPU: only the others have bytes."""
    base = make_tree('launcher', words=['launcher'], extents={}, others=((4712, OTHER),
                                                                         (4713, GENERATION)))
    os.rmdir(os.path.join(base, 'vram'))
    out, err = verify(base)
    check(out == [f'all right: {2 * len(SIZES) + 1} files, {2 * sum(SIZES.values()) + 4} bytes'] and
          not err, f'{out} {err}')
    change(os.path.join(base, 'processes/4713', DEVICE), 17)
    finds(base, f'processes/4713/{DEVICE}: chunk at 0 differs')
    shutil.rmtree(os.path.join(base, 'processes/4712'))
    finds(base, 'processes/4712/: it is missing', f'processes/4713/{DEVICE}: chunk at 0 differs')
    os.unlink(os.path.join(base, 'digests'))
    finds(base, 'digests: it is missing; .*', 'processes/4712/: it is missing',
          f'processes/4713/{DEVICE}: chunk at 0 differs')


def test_not_readable():
    """What cannot be told is not said to be wrong."""
    base = make('unread')
    verify(os.path.join(work, 'nowhere'), status=2)
    verify(os.path.join(base, 'manifest'), status=2)
    # One of several: the others are checked all the same.
    out, err = verify(base, os.path.join(work, 'nowhere'), base, status=2)
    check(len(out) == 2 and len(err) == 1 and 'nowhere' in err[0], f'{out} {err}')

    path = os.path.join(base, 'manifest')
    with open(path, encoding='utf-8') as stream:
        text = stream.read()
    for old, new, status, words in (
            ('"version": 1', '"version": 2', 2, 'version: 2 is not known'),
            ('"xxh3-128"', '"sha-256"', 2, 'hash: sha-256 is not known'),
            (NAMES[0], '../../etc/passwd', 1, 'allocations[0].file: it is not ' + NAMES[0]),
            ('"bytes": 4096', '"bytes": 8192', 1, 'is there too'),
            ('"pid": 4711', '"pid": 4711, "pid": 1', 1, 'duplicate')):
        check(old in text, old)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text.replace(old, new, 1))
        subprocess.run([MAKE, '--seal', path], check=True)
        out, err = verify(base, status=status)
        check(words in (err if status == 2 else out)[0], f'{out} {err}')
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text)
    is_right(base)

    if os.geteuid():
        os.chmod(os.path.join(base, PEER), 0)
        out, err = verify(base, status=2)
        check(not out and PEER in err[0], f'{out} {err}')
        os.chmod(os.path.join(base, PEER), 0o600)


def test_many_lines():
    """Neighbours are one line, and there are not too many."""
    size = 640 * CHUNK
    base = make('lines', extents={f'managed:0:7f3a40000000:{size}:1': [(0, size)]})
    path = os.path.join(base, 'vram', 'managed-7f3a40000000')
    for chunk in (0, 2, 3, 4, 250, 255, 256, 257, 639):  # 256: another thread's piece
        change(path, chunk * CHUNK + 17)
    finds(base, *(f'vram/managed-7f3a40000000: {words}' for words in (
        'chunk at 0 differs', f'chunks at {2 * CHUNK} to {4 * CHUNK} differ',
        f'chunk at {250 * CHUNK} differs', f'chunks at {255 * CHUNK} to {257 * CHUNK} differ',
        f'chunk at {639 * CHUNK} differs')))
    for chunk in range(1, 640, 2):
        change(path, chunk * CHUNK + 18)
    out, _ = verify(base, status=1)
    check(len(out) == 101, f'{len(out)} lines')
    check(verify('-j', '1', base, status=1)[0] == out, 'with one thread it is another')
    told = 0
    for line in out[:100]:
        first, last = re.search(r' at (\d+)(?: to (\d+))? differ', line).groups()
        told += (int(last or first) - int(first)) // CHUNK + 1
    rest = int(re.fullmatch(r'vram/managed-7f3a40000000: (\d+) more chunks differ',
                            out[100]).group(1))
    differing = {0, 2, 4, 250, 256} | set(range(1, 640, 2))
    check(told + rest == len(differing), f'{told} and {rest} of {len(differing)}')


def test_copies():
    """What real programs make of it."""
    base = make('original')
    total = sum(SIZES.values())

    def stored(directory):
        return sum(os.stat(os.path.join(directory, 'vram', name)).st_blocks * 512
                   for name in SIZES)

    copies = {
        'cp': 'cp -r original cp',
        'cp-sparse': 'cp -r --sparse=always original cp-sparse',
        'cp-full': 'cp -r --sparse=never original cp-full',
        'cp-archive': 'cp -a original cp-archive',
        'tar': 'mkdir tar && tar -C original -c . | tar -C tar -x',
        'tar-sparse': 'mkdir tar-sparse && tar -C original -cS . | tar -C tar-sparse -x',
    }
    if shutil.which('rsync'):
        copies.update({
            'rsync': 'rsync -a original/ rsync',
            'rsync-sparse': 'rsync -aS original/ rsync-sparse',
            'rsync-inplace': 'cp -r original rsync-inplace && rm rsync-inplace/digests && '
                             f'truncate -s 7 rsync-inplace/{LONG} && '
                             'rsync -a --inplace -c original/ rsync-inplace',
        })
    for name, command in copies.items():
        subprocess.run(command, shell=True, cwd=work, check=True)
        is_right(os.path.join(work, name))
    check(stored(os.path.join(work, 'cp-full')) >= total, 'nothing is written out')
    check(stored(os.path.join(work, 'cp-sparse')) < total // 4, 'nothing is sparse')
    # And it is not for want of looking: a byte in what was a hole.
    for name in copies:
        change(os.path.join(work, name, HOLE), 3 * MIB + 5)
        finds(os.path.join(work, name), f'{HOLE}: chunk at {3 * MIB} differs')
    # Zeros where there was data, as a hole and written out.
    with open(os.path.join(base, DEVICE), 'r+b') as stream:
        stream.seek(CHUNK)
        stream.write(bytes(CHUNK))
    subprocess.run(f'cp --sparse=always original/{DEVICE} sparse && mv sparse original/{DEVICE}',
                   shell=True, cwd=work, check=True)
    finds(base, f'{DEVICE}: chunk at {CHUNK} differs')


def test_holes():
    """Data and holes in every order, at the borders of chunks and of what a thread takes."""
    size = 40 * MIB
    piece = 16 * MIB
    borders = (0, 4096, CHUNK, 2 * CHUNK, piece - CHUNK, piece, piece + CHUNK, 2 * piece - 1,
               2 * piece, size - CHUNK, size - 4096)
    source = random.Random(5)
    for seed in range(8):
        data = [(offset, source.choice((1, 4096, 5000, CHUNK, 3 * CHUNK)))
                for offset in borders if source.random() < 0.5]
        data = [(offset, min(length, size - offset)) for offset, length in data]
        name = f'holes-{seed}'
        base = make(name, seed=seed, extents={f'device:0:7f3b40000000:{size}:2': data,
                                              f'managed:0:7f3a40000000:{size - 4096}:1': []})
        for threads in ('1', '3'):
            verify('-q', '-j', threads, base)
        path = os.path.join(base, 'vram', 'gpu0-7f3b40000000')
        offset = source.choice([offset + source.choice((0, 1, 4095, 4096, CHUNK - 1))
                                for offset in borders[:-1]])
        change(path, offset)
        finds(base, f'vram/gpu0-7f3b40000000: chunk at {offset // CHUNK * CHUNK} differs')


def test_odd_directories():
    """What somebody has called a directory does nothing to a terminal."""
    base = make('odd')
    odd = os.path.join(work, 'a\n\x1b[2Jb')
    shutil.copytree(base, odd)
    shown = os.path.join(work, 'a??[2Jb')
    out, err = verify('--progress', base, odd)
    check(len(out) == 2 and out[1].startswith(f'{shown}: all right: '), out)
    check(any(line.startswith(f'{shown}: 100 % of ') for line in err), err)
    _, err = verify(f'{odd}/none', base, status=2)
    check(err == [f'gpucr-verify: {shown}/none: No such file or directory'], err)


def test_progress():
    size = 64 * MIB
    base = make('progress', extents={f'device:0:7f3a40000000:{size}:1': [(0, size)]})
    out, err = verify('--progress', base)
    check(len(out) == 1 and re.fullmatch(r'100 % of 0\.1 GB, \d+\.\d GB/s', err[-1]), err)
    check(verify(base)[1] == [], 'it tells a file how far it is')
    master, slave = pty.openpty()
    done = subprocess.run([VERIFY, base], stdout=subprocess.DEVNULL, stderr=slave, check=False)
    os.write(slave, b'end')
    text = ''
    while not text.endswith('end'):
        text += os.read(master, 65536).decode()
    check(done.returncode == 0 and '\n' not in text, repr(text))
    if text != 'end':
        check(re.fullmatch(r'(\r\d+ % of [^\r]*\x1b\[K)+\r\x1b\[Kend', text), repr(text))
    os.close(master)
    os.close(slave)


def main():
    global work
    failed = False
    for name, test in list(globals().items()):
        if not name.startswith('test_') or (sys.argv[4:] and name not in sys.argv[4:]):
            continue
        with tempfile.TemporaryDirectory(prefix='gcr-verify-') as work:
            try:
                test()
                print(f'{name}: ok', flush=True)
            except Exception:  # pylint: disable=broad-except
                traceback.print_exc()
                print(f'{name}: FAILED', flush=True)
                failed = True
    sys.exit(1 if failed else 0)


main()
