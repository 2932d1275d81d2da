# SPDX-License-Identifier: MIT
"""What is kept of a process that runs again (-o keep=): only what has changed is copied."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import MIB, check, equal, wait_for


def kept_in_all(machine):
    for line in machine.read('status').split('\n'):
        if line.startswith('kept_bytes '):
            return int(line.split()[1])
    return None


def kept(machine, pid):
    return int(machine.status(pid)['kept_bytes'])


def test_cycles():
    """Ten times over, while the program changes its memory: right bytes in the files, and back."""
    with vmm.machine(options=',keep=256M') as machine:
        demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 4, '--tick', 3)
        equal(kept(machine, demo.pid), 0)
        for _ in range(10):
            machine.must(demo.pid, 'freeze')
            equal(kept(machine, demo.pid), 0)
            vmm.check_files(machine, demo)
            machine.must(demo.pid, 'thaw')
            equal(kept(machine, demo.pid), 24 * MIB)
            demo.wait_ticks()
        check(kept_in_all(machine) >= 24 * MIB, 'kept_bytes')
        demo.end()
        wait_for(lambda: kept_in_all(machine) == 0, 'what is kept to go')


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
