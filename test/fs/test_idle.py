# SPDX-License-Identifier: MIT
"""Very many GPU processes and nobody who asks for anything: the daemon sleeps, and no helper of
its own stays."""
import mmap
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import Machine, check, equal, wait_for

PROCESSES = harness.few(150, 1000) if harness.SLOW == 1 else 200
SECONDS = 3
USEC_MOST = 20000
# What is done for each of them is seen with fewer, too.
USEC_OF_ALL = USEC_MOST * PROCESSES // 1000 if harness.SLOW == 1 else USEC_MOST


def cpu_usec(pid):
    """Of all its threads."""
    return sum(int(harness.read_file(f'/proc/{pid}/task/{task}/schedstat').split()[0])
               for task in os.listdir(f'/proc/{pid}/task')) // 1000


class Holders:
    """Processes that have the device file open and mapped, as GPU processes do."""

    def __init__(self, machine, count):
        self.pids = []
        ready, write_end = os.pipe()
        for _ in range(count):
            pid = os.fork()
            if not pid:
                self._child(machine, write_end)
            self.pids.append(pid)
        left = count
        while left:
            left -= len(os.read(ready, left))
        os.close(ready)
        os.close(write_end)

    @staticmethod
    def _child(machine, pipe):
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            fd = os.open(f'{machine.simulator}/nvidia-uvm', os.O_RDWR)
            mapping = mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            os.write(pipe, b'x')
            while mapping:
                signal.pause()
        finally:
            os._exit(1)

    def end(self):
        for pid in self.pids:
            harness.try_kill(pid, signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)
        self.pids = []


def prepare_device(machine):
    """One page, so that it can be mapped."""
    wait_for(lambda: os.path.exists(f'{machine.simulator}/nvidia-uvm'), 'the device file')
    os.truncate(f'{machine.simulator}/nvidia-uvm', 4096)


def quietest(machine, most):
    """Microseconds used in a few seconds; the best of several, as other tests may ask /proc."""
    best = None
    for _ in range(5):
        begun = cpu_usec(machine.daemon.pid)
        time.sleep(SECONDS)  # what is measured is that nothing happens meanwhile
        used = cpu_usec(machine.daemon.pid) - begun
        best = used if best is None else min(best, used)
        if best <= most:
            break
    return best


def test_many_processes():
    with Machine(worker_idle=1) as machine:
        prepare_device(machine)
        holders = Holders(machine, PROCESSES)
        try:
            wait_for(lambda: len(machine.pids()) == PROCESSES, 'all in the list')
            equal(machine.pids(), sorted(holders.pids))
            rows = machine.read('status').partition('\n\n')[2].splitlines()[1:]
            equal(len(rows), PROCESSES)
            equal(machine.state(holders.pids[PROCESSES // 2]), 'running')
            wait_for(lambda: not machine.helpers(), 'the helpers to go')
            used = quietest(machine, USEC_OF_ALL)
            check(used <= USEC_OF_ALL, f'{used} microseconds in {SECONDS} s')
            demo = machine.ready_demo()
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
            demo.end()
        finally:
            holders.end()
        wait_for(lambda: machine.pids() == [], 'all to have gone')
        events = machine.read('events')
        equal(events.count(' gone '), PROCESSES + 1)
        check(len(os.listdir(f'/proc/{machine.daemon.pid}/fd')) < 60, 'descriptors are given back')


def test_idle_helpers_go():
    with Machine(worker_idle=1) as machine:
        demo = machine.ready_demo()
        machine.gpu()
        wait_for(machine.helpers, 'a helper')
        wait_for(lambda: not machine.helpers(), 'the helpers to go')
        # One stays ready for the thaw of a frozen process.
        machine.must(demo.pid, 'freeze')
        time.sleep(2)  # longer than helpers may be idle
        equal([name for _, name in machine.helpers()], ['gpucr-control'])
        machine.must(demo.pid, 'thaw')
        wait_for(lambda: not machine.helpers(), 'the helpers to go')
        used = quietest(machine, USEC_MOST)
        check(used <= USEC_MOST, f'{used} microseconds in {SECONDS} s')


def test_who_only_opens_the_device():
    """NVML users open it too, but map nothing: they are no GPU processes."""
    with Machine() as machine:
        prepare_device(machine)
        fd = os.open(f'{machine.simulator}/nvidia-uvm', os.O_RDWR)
        equal(machine.pids(), [])
        mapping = mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        equal(machine.pids(), [os.getpid()])
        mapping.close()
        os.close(fd)
        wait_for(lambda: machine.pids() == [], 'us to be gone')


if __name__ == '__main__':
    harness.main(globals())
