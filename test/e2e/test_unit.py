# SPDX-License-Identifier: MIT
"""The daemon as systemd runs it by gpucrfs.service: all that it does it can do with the rights that it
has there, and no restored program inherits their want."""
import os
import re
import stat
import subprocess
import sys
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [TESTS, f'{TESTS}/fs']
import dump
import harness
import holding
import restore
import systemd
import test_passthrough
import test_pressure_disk
from harness import BUILD, check, equal, same_for_both, wait_for
from test_launch import ours, rights

# A call that the unit refuses ends whoever makes it: then the list is known to suffice.
STRICT = 'SystemCallErrorNumber=kill\n'
EXPOSURE_MAX = 50  # tenths


def capabilities():
    """Of the unit file, as /proc/PID/status has them."""
    names = []
    for line in harness.read_file(f'{BUILD}/tools/{systemd.UNIT}').split('\n'):
        if line.startswith('CapabilityBoundingSet='):
            names += line.partition('=')[2].split()
    listed = subprocess.run(['systemd-analyze', 'capability'], capture_output=True, text=True,
                            check=True).stdout
    numbers = {words[0].upper(): int(words[1]) for words in map(str.split, listed.split('\n')[1:])
               if len(words) == 2 and words[1].isdigit()}
    return f'{sum(1 << numbers[name] for name in names):016x}'


def check_restricted(machine):
    found = rights(machine.daemon.pid)
    equal((found['Seccomp'], found['NoNewPrivs'], found['CapBnd']), ('2', '1', capabilities()))


def test_exposure():
    same_for_both('unit files')
    if not os.access(systemd.SYSTEMD, os.X_OK):
        raise harness.Skip('this needs systemd-analyze')
    words = subprocess.run(
        ['systemd-analyze', 'security', '--offline=true', '--no-pager',
         f'{BUILD}/tools/{systemd.UNIT}'], capture_output=True, text=True, check=False).stdout
    found = re.search(r'exposure level for \S+: (\d+)\.(\d)', words)
    check(found, words)
    exposure = int(found.group(1)) * 10 + int(found.group(2))
    check(exposure <= EXPOSURE_MAX, words)


def test_dump_and_restore():
    """With CRIU as it is started there; what is restored has every right that it had, and its own
    cgroup, and outlives the daemon."""
    same_for_both('rights')
    with systemd.Manager() as manager, dump.machine(start=False) as machine:
        systemd.start(manager, machine, STRICT)
        check_restricted(machine)
        one = dump.program(machine)
        equal(rights(one.pid), ours())
        name = dump.dumped(machine, one)
        machine.must(name, 'thaw')
        restore.check_on(machine, one, name)
        equal(rights(one.pid), ours())
        check(f'gpucr-{name}' in harness.read_file(f'/proc/{one.pid}/cgroup'), 'its cgroup')
        score = harness.read_file(f'/proc/{one.pid}/oom_score_adj').strip()
        equal(score, harness.read_file('/proc/self/oom_score_adj').strip())
        machine.must(one.pid, 'freeze')
        machine.must(one.pid, 'thaw')
        manager.ctl('restart', systemd.UNIT, must=True)
        machine.daemon = systemd.Service(manager)
        wait_for(machine.answers, 'the mount')
        one.wait_ticks()
        wait_for(lambda: one.pid in machine.pids(), 'its directory')
        name = dump.dumped(machine, one)
        machine.must(name, 'thaw pid=new')
        one.pid = int(machine.status(name)['pid'])
        restore.check_on(machine, one, name)
        equal(rights(one.pid), ours())
        wait_for(lambda: 'gpucrfs-criu@' not in manager.ctl('list-units', '--no-legend'),
                 'the units of CRIU to be gone')
        restore.ends(machine, one, name)


def whole_life(vmm, options=''):
    with systemd.Manager() as manager, \
            harness.Machine(start=False, vmm=vmm, options=options) as machine:
        spill = f'{machine.directory}/spill'
        os.mkdir(spill, 0o700)
        machine.options += f',spill={spill}'
        systemd.start(manager, machine, STRICT)
        check_restricted(machine)
        demos = [machine.ready_demo(), machine.ready_demo(uid=harness.NOBODY)]
        for demo in demos:
            machine.must(demo.pid, 'freeze')
            equal(machine.state(demo.pid), 'frozen')
        if vmm:
            machine.must(demos[0].pid, 'pack')
            machine.must(demos[1].pid, 'pack')
            machine.must(demos[1].pid, 'unpack')
        for name in os.listdir(machine.path(demos[0].pid)):
            path = machine.path(demos[0].pid, name)
            if stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.R_OK) and name != 'ctl':
                with open(path, 'rb') as file:
                    file.read(64)
        # The bytes of both go on with another daemon.
        manager.ctl('restart', systemd.UNIT, must=True)
        machine.daemon = systemd.Service(manager)
        wait_for(machine.answers, 'the mount')
        for demo in demos:
            equal(machine.state(demo.pid), 'frozen')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
        if vmm:
            machine.must(demos[0].pid, 'freeze')
            machine.must(demos[0].pid, f'thaw swap={demos[1].pid}')
            machine.must(demos[1].pid, 'thaw')
        machine.failing('freeze', demos[0].pid)
        check(machine.write(demos[0].pid, 'freeze') != 'ok', 'the fault')
        machine.faults()
        demos[0].wait_ticks()
        equal(manager.show('NRestarts'), '0')


def test_whole_life():
    same_for_both('rights')
    whole_life(vmm=True)


def test_whole_life_of_drivers_engine():
    same_for_both('rights')
    whole_life(vmm=False)


def run_by_unit(test):
    """Another test, whose daemons are the unit's."""
    same_for_both('rights')
    with systemd.Manager() as manager:
        direct = harness.Machine.start
        harness.Machine.start = lambda machine, env=None: systemd.start(manager, machine, STRICT, env)
        try:
            test()
        finally:
            harness.Machine.start = direct
        equal(manager.show('NRestarts'), '0')


def test_spilling():
    """What goes to a disk and comes back."""
    run_by_unit(test_pressure_disk.test_to_the_disk)


def test_removed_files_that_are_mapped():
    run_by_unit(test_passthrough.test_mapping_outlives)


def test_watchdog():
    """A daemon in which a request is held up is ended and started once more; what is frozen stays."""
    same_for_both('the watchdog')
    with systemd.Manager() as manager, harness.Machine(start=False, vmm=True) as machine:
        held = holding.Holding(machine.directory)
        systemd.start(manager, machine, 'WatchdogSec=3\nRestartSec=1\n', held.env)
        machine.expects_clean_exit = False
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        first = machine.daemon
        time.sleep(4)
        check(first.poll() is None, 'ended although all is well')
        held.set(True, 0)
        held.ask(machine)
        time.sleep(0.5)
        held.set(True, holding.LEGAL_SEC + 10)
        wait_for(lambda: not harness.is_alive(first.pid), 'its end')
        held.set(False, 0)
        check('is held up in the daemon' in machine.log(), machine.log())
        wait_for(lambda: manager.show('NRestarts') == '1' and
                 manager.show('ActiveState') == 'active', 'the next daemon')
        machine.daemon = systemd.Service(manager)
        wait_for(machine.answers, 'the mount')
        equal(machine.state(demo.pid), 'frozen')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_stop_in_verb():
    """A verb is rolled back before the service has stopped; one that does not return in the time of
    TimeoutStopSec= costs nothing either."""
    same_for_both('the end')
    with systemd.Manager() as manager, harness.Machine(start=False) as machine:
        systemd.start(manager, machine, 'TimeoutStopSec=4\n')
        machine.expects_clean_exit = False
        demo = machine.ready_demo()
        phase = machine.slow('freeze', 1000, demo.pid)
        writer = machine.writer(demo.pid, 'freeze').wait_waiting()
        machine.wait_status(demo.pid, 'phase', phase)
        begun = time.monotonic()
        manager.ctl('stop', systemd.UNIT, must=True)
        check(time.monotonic() - begun < 4, 'it was killed')
        check(writer.result() in ('ECANCELED', 'EINTR', 'ENOTCONN', 'ECONNABORTED'), writer.result())
        equal(manager.show('Result'), 'success')
        demo.wait_ticks()

        machine.start()
        wait_for(lambda: demo.pid in machine.pids(), 'its directory')
        phase = machine.slow('freeze', 9000, demo.pid)
        writer = machine.writer(demo.pid, 'freeze').wait_waiting()
        machine.wait_status(demo.pid, 'phase', phase)
        manager.ctl('stop', systemd.UNIT)
        equal(manager.show('Result'), 'timeout')
        check(writer.result() != 'ok', 'the freeze has ended')
        machine.faults()
        machine.start()
        wait_for(lambda: demo.pid in machine.pids() and
                 machine.state(demo.pid) in ('running', 'frozen'), 'its recovery', 60)
        if machine.state(demo.pid) == 'frozen':
            machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


if __name__ == '__main__':
    systemd.enter()
    harness.main(globals())
