# SPDX-License-Identifier: MIT
"""What the daemon has open is for itself: every descriptor is closed by exec(3), in every state of its
programs, and a helper has those that are meant for it and what it opens itself."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import Machine, check, equal, read_file, wait_for

CLOSED_BY_EXEC = 0o2000000  # O_CLOEXEC, as fdinfo has it
STANDARD = 0, 1, 2


def descriptors(pid):
    """(number, what it is, closed by exec) of a process."""
    found = []
    names = []
    with contextlib.suppress(FileNotFoundError):  # a helper may have ended meanwhile
        names = os.listdir(f'/proc/{pid}/fd')
    for name in names:
        try:
            link = os.readlink(f'/proc/{pid}/fd/{name}')
            flags = harness.parse_keys(read_file(f'/proc/{pid}/fdinfo/{name}').replace(':\t', ' '))
        except OSError:
            continue  # closed meanwhile
        found.append((int(name), link, bool(int(flags['flags'], 8) & CLOSED_BY_EXEC)))
    return found


def check_daemon(machine, when):
    leaks = [one for one in descriptors(machine.daemon.pid) if one[0] not in STANDARD and not one[2]]
    equal(leaks, [], f'{when}: the daemon leaks')


def inodes(pid):
    return {link for number, link, _ in descriptors(pid) if number not in STANDARD}


def check_helpers(machine, when):
    """A helper shares with the daemon nothing but what it has been sent: files of the store, and the
    memory into which it writes digests."""
    for pid, comm in machine.helpers():
        shared = {link for link in inodes(machine.daemon.pid) & inodes(pid)
                  if not link.startswith(('anon_inode:', '/dev/'))}
        others = [link for link in shared if not link.startswith((f'{machine.runtime}/store/', '/memfd:gpucr-digests'))]
        equal(others, [], f'{when}: {comm} has the daemon\'s')
        check(not [link for _, link, _ in descriptors(pid)
                   if link.startswith((f'{machine.runtime}/lock', '/dev/fuse'))],
              f'{when}: {comm} has the lock or the mount')


def look(machine, when):
    check_daemon(machine, when)
    check_helpers(machine, when)


def life(vmm):
    with Machine(vmm=vmm) as machine:
        look(machine, 'at first')
        demos = [machine.ready_demo(), machine.ready_demo()]
        events = machine.events(demos[0].pid)
        look(machine, 'with programs')
        for verb in 'freeze', 'thaw':
            phase = machine.slow(verb, 700, demos[0].pid)
            writer = machine.writer(demos[0].pid, verb)
            machine.wait_status(demos[0].pid, 'phase', phase)
            wait_for(machine.helpers, 'a helper')
            look(machine, f'during {verb}')
            equal(writer.result(), 'ok')
            look(machine, f'after {verb}')
        machine.faults()
        machine.must(demos[1].pid, 'freeze')
        if vmm or vendor.HIP:
            machine.must(demos[1].pid, 'pack')
            look(machine, 'packed')
        machine.stop()
        machine.start()
        look(machine, 'the next daemon')
        machine.must(demos[1].pid, 'thaw')
        demos[1].wait_ticks()
        look(machine, 'at last')
        events.close()


def test_fast_engine():
    life(vmm=True)


def test_drivers_engine():
    harness.needs_cuda('the driver\'s engine')
    life(vmm=False)


if __name__ == '__main__':
    harness.main(globals())
