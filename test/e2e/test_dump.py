# SPDX-License-Identifier: MIT
"""dump and thaw of whole processes, with a real CRIU."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import vmm
from harness import check, equal


def test_there_and_back():
    """A program is dumped, ends, and goes on where it was."""
    with dump.machine() as machine:
        one = dump.program(machine)
        for _ in range(2):
            one.wait_ticks(2)
            name = dump.dumped(machine, one)
            equal(os.readlink(machine.path(one.pid)), name)
            equal(sorted(os.listdir(machine.path(name, 'snapshot'))),
                  ['criu', 'digests', 'files', 'manifest', 'vram'])
            check('Dumping finished successfully' in machine.read(name, 'criu.log'), 'its log')
            machine.must(name, 'thaw')
            check('Restore finished successfully' in machine.read(name, 'criu.log'), 'its log')
            one.wait_ticks(2)
            equal(machine.state(one.pid), 'running')
            equal(os.readlink(machine.path(one.pid)), name)


def test_packed():
    """What is packed is dumped as it was: nobody sees that it has been."""
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        machine.must(one.pid, 'pack')
        check(int(machine.status(one.pid)['packed_bytes']) > 0, 'it is packed')
        files = {entry.name: entry.stat().st_mtime_ns
                 for entry in os.scandir(machine.path(one.pid, 'snapshot', 'vram'))}
        name = dump.dumped(machine, one)
        equal({entry.name: entry.stat().st_mtime_ns
               for entry in os.scandir(machine.path(name, 'snapshot', 'vram'))}, files)
        machine.must(name, 'thaw')
        one.wait_ticks(2)


def test_packed_and_damaged():
    """It cannot be unpacked, and so not dumped: nothing has ended, and what is not damaged stays."""
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        machine.must(one.pid, 'pack')
        packed = machine.status(one.pid)['packed_bytes']
        path = next(os.path.join(directory, names[0])
                    for directory, _, names in os.walk(f'{machine.runtime}/store')
                    if names and os.path.basename(directory).startswith('packed-'))
        os.rename(path, f'{path}-away')
        for _ in range(2):
            equal(machine.write(one.pid, 'dump'), 'EIO')
            check('cannot be unpacked' in machine.error(one.pid), machine.error(one.pid))
            equal(machine.state(one.pid), 'frozen')
        os.rename(f'{path}-away', path)
        machine.must(one.pid, 'pack')
        equal(machine.status(one.pid)['packed_bytes'], packed)
        name = dump.dumped(machine, one)
        machine.must(name, 'thaw')
        one.wait_ticks(2)


def test_cancelled_as_it_unpacks():
    """Whatever it has come to: all is there, and it can be dumped."""
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        machine.must(one.pid, 'pack')
        machine.write(one.pid, 'dump', os.O_NONBLOCK)
        equal(machine.writer(one.pid, 'cancel').result(), 'ok')
        equal(machine.state(one.pid), 'frozen')
        check('cancelled' in machine.error(one.pid), machine.error(one.pid))
        name = dump.dumped(machine, one)
        machine.must(name, 'thaw')
        one.wait_ticks(2)


def test_makes_room():
    """What is frozen is packed for what a dump needs, and for what of its own is to be unpacked."""
    with dump.machine(vram='512M', options=',store_size=128M') as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        machine.must(one.pid, 'pack')
        other = vmm.demo(machine, '--bytes', '96M', '--buffers', 4)
        machine.must(other.pid, 'freeze')
        equal(machine.status(other.pid)['packed_bytes'], '0')
        name = dump.dumped(machine, one)
        # As much as was needed; the rest may have had no room left.
        check(machine.status(other.pid)['packed_bytes'] != '0', 'it was packed')
        equal(vmm.check_files(machine, other), 96 * harness.MIB)
        machine.must(name, 'thaw')
        one.wait_ticks(2)
        machine.must(other.pid, 'thaw')
        other.wait_ticks(2)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
