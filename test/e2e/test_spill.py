# SPDX-License-Identifier: MIT
"""Packed bytes on a disk: they read and thaw as from the store, with any daemon that comes later,
and not while the disk is away. Segments are moved here while no daemon runs, as one leaves them."""
import contextlib
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import MIB, check, equal, wait_for
from pieces import Pieces, noise


@contextlib.contextmanager
def machine_with_disk():
    """Its directory for packed bytes is machine.disk."""
    with vmm.machine(start=False) as machine:
        machine.disk = f'{machine.directory}/disk'
        os.mkdir(machine.disk, 0o700)
        machine.without = machine.options
        machine.options += f',spill={machine.disk}'
        machine.start()
        yield machine


def packed(machine):
    """A program that is frozen, and packed."""
    pieces = Pieces(machine, f'0:{6 * MIB}', f'0:{4 * MIB}')
    pieces.put(0, b'packs well' * 300000)
    pieces.freeze()
    machine.must(pieces.pid, 'pack')
    return pieces


def segments(machine):
    directory = f'{machine.runtime}/store/packs/{os.getuid()}'
    return [f'{directory}/{name}' for name in os.listdir(directory) if name.isdigit()]


def on_disk(machine):
    """The files there."""
    return [os.path.join(directory, name)
            for directory, _, names in os.walk(machine.disk) for name in names]


def move(machine):
    """All segments, between the death of a daemon and the start of another one."""
    home = os.readlink(f'{machine.runtime}/store/packs/spill')
    machine.stop(signal.SIGKILL)
    directory = f'{home}/{os.getuid()}'
    os.makedirs(directory, 0o700, exist_ok=True)
    for path in segments(machine):
        target = f'{directory}/{os.path.basename(path)}-0123456789abcdef'
        subprocess.run(['cp', '--sparse=always', path, target], check=True)
        os.symlink(target, f'{path}-new')
        os.rename(f'{path}-new', path)
        check(os.path.islink(path) and os.stat(path).st_size == 256 * MIB, path)
    return home


def wait_left(machine):
    """Nothing is left on the disk."""
    wait_for(lambda: not on_disk(machine), 'the disk to be empty')


def test_thaw():
    """It comes from the disk, which gets its bytes back; with the option, and without."""
    for is_on in True, False:
        with machine_with_disk() as machine:
            pieces = packed(machine)
            move(machine)
            if not is_on:
                machine.options = machine.without
            machine.start()
            wait_for(lambda: machine.state(pieces.pid) == 'frozen', 'the program to be frozen')
            equal(len(on_disk(machine)), 1)
            pieces.check_files()
            pieces.thaw()
            wait_left(machine)
            # What it has now is packed and thawed as ever.
            pieces.put(1, noise(7, 100000), 5000)
            pieces.freeze()
            machine.must(pieces.pid, 'pack')
            pieces.check_files()
            pieces.thaw()
            equal(machine.stop(), 0)
            equal(os.listdir(machine.disk), [])


def test_unpack():
    with machine_with_disk() as machine:
        pieces = packed(machine)
        move(machine)
        machine.start()
        wait_for(lambda: machine.state(pieces.pid) == 'frozen', 'the program to be frozen')
        machine.must(pieces.pid, 'unpack')
        wait_left(machine)
        pieces.check_files()
        pieces.thaw()


def test_away():
    """The disk is not there for a while: the program stays frozen, and nothing is lost."""
    with machine_with_disk() as machine:
        pieces = packed(machine)
        move(machine)
        os.rename(machine.disk, f'{machine.disk}-away')
        machine.start()
        wait_for(lambda: machine.state(pieces.pid) == 'frozen', 'the program to be frozen')
        check('cannot be read now' in machine.log(), machine.log())
        for _ in range(2):
            equal(machine.write(pieces.pid, 'thaw'), 'EIO')
            equal(machine.state(pieces.pid), 'frozen')
        try:
            pieces.check_files()
            check(False, 'it was read')
        except OSError as error:
            equal(harness.name_of(error.errno), 'EIO')
        equal(machine.stop(), 0)
        os.rename(f'{machine.disk}-away', machine.disk)
        machine.start()
        wait_for(lambda: machine.state(pieces.pid) == 'frozen', 'the program to be frozen')
        pieces.check_files()
        pieces.thaw()
        wait_left(machine)


def damage(path, offset):
    """Change a byte, or change it back."""
    with open(path, 'r+b') as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_damaged():
    """The disk has changed a byte of what is not compressed: it is not taken for what it was, and
    what is not lost is there."""
    with machine_with_disk() as machine:
        pieces = packed(machine)
        move(machine)
        path, = on_disk(machine)
        with open(path, 'rb') as file:
            data = os.lseek(file.fileno(), 0, os.SEEK_DATA)
            # In the last chunk.
            offset = os.lseek(file.fileno(), data, os.SEEK_HOLE) - 100
        damage(path, offset)
        machine.start()
        wait_for(lambda: machine.state(pieces.pid) == 'frozen', 'the program to be frozen')
        try:
            pieces.check_files()
            check(False, 'it was read')
        except OSError as error:
            equal(harness.name_of(error.errno), 'EIO')
        for verb in 'thaw', 'unpack', 'thaw':
            equal(machine.write(pieces.pid, verb), 'EIO', verb)
            equal(machine.state(pieces.pid), 'frozen')
            with open(machine.path(pieces.pid, 'error'), encoding='utf-8') as file:
                words = file.read()
            check(any(pieces.name(index) in words for index in range(2)), words)
        damage(path, offset)
        pieces.check_files()
        pieces.thaw()
        wait_left(machine)


def test_ends():
    """The program is killed: the disk gets its bytes back."""
    with machine_with_disk() as machine:
        pieces = packed(machine)
        home = move(machine)
        # And what a daemon had begun to copy is no segment.
        with open(f'{home}/{os.getuid()}/77-0123456789abcdef', 'wb') as file:
            file.write(b'half')
        machine.start()
        equal(len(on_disk(machine)), 1)
        pieces.demo.end(signal.SIGKILL)
        wait_left(machine)


def test_refused():
    """Directories that cannot be used: the daemon says so, and does not start."""
    with vmm.machine(start=False) as machine:
        base = machine.directory
        os.mkdir(f'{base}/open')
        os.chmod(f'{base}/open', 0o777)
        with open(f'{base}/file', 'wb'):
            pass
        os.mkdir(f'{base}/disk', 0o700)
        os.symlink(os.path.dirname(machine.mountpoint), f'{base}/link')
        below = f'{base}/link/{os.path.basename(machine.mountpoint)}'
        for options, words in ((f'spill={base}/open', 'others can write to it'),
                               (f'spill={base}/file', 'Not a directory'),
                               (f'spill={base}/not/there', 'No such file'),
                               (f'spill={machine.mountpoint}', 'in the mountpoint'),
                               (f'spill={below}', 'in the mountpoint'),
                               ('spill_size=1G', 'without spill=DIR'),
                               ('user_spill=50%', 'without spill=DIR'),
                               (f'spill={base}/disk,user_spill=101%', 'no size'),
                               (f'spill={base}/disk,spill_size=1', 'at least 2M'),
                               (f'spill={base}/disk,spill_size=lots', 'no size')):
            command = machine.command('-o', options)
            found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                   text=True, check=False, env=machine.env)
            equal(found.returncode, 1, options)
            check(words in found.stderr, found.stderr)


if __name__ == '__main__':
    harness.main(globals())
