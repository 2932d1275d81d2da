# SPDX-License-Identifier: MIT
"""What has been restored is the process again: its names, its verbs, its end; and nothing is left
of the place, in the store, the cgroups and the daemon."""
import os
import pty
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
import vendor
from harness import BUILD, MIB, check, equal, error_of, read_file, same_for_both, wait_for


def accounts(machine):
    return {key: machine.status_of_all()[key] for key in ('store_used_bytes', 'held_bytes')}


def descriptors(machine):
    return len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))


def test_all_verbs_afterwards():
    """Both names take freeze, thaw and dump; at its end both go."""
    with dump.machine() as machine:
        one = dump.program(machine)
        before = accounts(machine)
        name = dump.dumped(machine, one)
        held = int(machine.status(name)['held_bytes'])
        check(held >= 6 * MIB, f'{held} are held')
        equal(machine.status_of_all()['held_bytes'], '0')
        machine.must(name, 'thaw')
        restore.check_on(machine, one, name)
        wait_for(lambda: accounts(machine) == before, f'the account to be {before} again')
        equal(sorted(os.listdir(machine.path(name))), sorted(os.listdir(machine.path(one.pid))))
        for target in name, one.pid:
            machine.must(target, 'freeze')
            equal(machine.state(one.pid), 'frozen')
            equal(machine.status(name)['held_bytes'], machine.status(one.pid)['held_bytes'])
            machine.must(target, 'thaw')
            one.wait_ticks(2)
        equal(error_of(lambda: os.rmdir(machine.path(name))), 'EBUSY')
        machine.must(name, 'dump name=other')
        one.wait_gone()
        equal(machine.state('other'), 'dumped')
        wait_for(lambda: not os.path.lexists(machine.path(name)), 'the first name to be gone')
        wait_for(lambda: not restore.cgroup_of(name), 'its cgroup to be gone')
        equal(os.readlink(machine.path(one.pid)), 'other')
        restore.thaws(machine, one, 'other')
        restore.ends(machine, one, 'other')
        wait_for(lambda: accounts(machine) == before, f'the account to be {before} again')


def test_frozen_when_dumped():
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        name = dump.dumped(machine, one)
        restore.thaws(machine, one, name)
        restore.ends(machine, one, name)


def test_dumped_at_once():
    """CRIU dumps it as soon as the library has closed its socket: the library finds out all the same that
    it was restored."""
    with dump.machine() as machine:
        one = dump.program(machine, env={'LD_PRELOAD': f'{BUILD}/test/e2e/libslow_close.so'})
        name = dump.dumped(machine, one)
        machine.must(name, 'thaw')
        restore.check_on(machine, one, name)


def test_new_pids():
    """Its own pid is another's: refused, and pid=new makes it all the same."""
    with dump.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        taker = restore.fork_as(one.pid)
        try:
            equal(taker, one.pid)
            equal(machine.write(name, 'thaw'), 'EBUSY')
            check(f'pid {one.pid}' in machine.error(name), machine.error(name))
            equal(machine.state(name), 'dumped')
            # Still the log of the dump.
            check('Dumping finished' in machine.read(name, 'criu.log'), 'criu was not started')
            machine.must(name, 'thaw pid=new')
            equal(machine.state(name), 'running')
            pid = int(machine.status(name)['pid'])
            check(pid != one.pid, f'{pid} is another')
            one.pid, first = pid, one.pid
            restore.check_on(machine, one, name)
            check(not os.path.lexists(machine.path(first)), 'the first one has no directory')
            for _ in range(2):
                machine.must(pid, 'freeze')
                machine.must(name, 'thaw')
                one.wait_ticks(2)
            init = int(harness.parse_keys(read_file(f'/proc/{pid}/status').replace(':\t', ' '))
                       ['PPid'])
            check(len(read_file(f'/proc/{init}/status').split('NSpid:')[1].split('\n')[0].split())
                  == 2, 'its parent is the init of its namespace')
            for member in init, pid:
                mounted = read_file(f'/proc/{member}/mountinfo')
                check(f' {machine.mountpoint} ' not in mounted and
                      f' {machine.runtime}/store ' not in mounted, 'the daemon may unmount them')
            restore.ends(machine, one, name)
            wait_for(lambda: one.reap() or not harness.is_alive(init), 'the end of its init')
        finally:
            os.kill(taker, signal.SIGKILL)
            one.reap()


def test_nonblocking_and_second_writer():
    same_for_both('who writes to ctl')
    with dump.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        equal(machine.write(name, 'thaw', os.O_NONBLOCK), 'ok')
        # Whoever comes meanwhile waits for the same; who comes later finds it running.
        equal(machine.write(name, 'thaw'), 'ok')
        restore.check_on(machine, one, name)
        name = dump.dumped(machine, one)
        writers = [machine.writer(name, 'thaw') for _ in range(4)]
        for writer in writers:
            equal(writer.result(), 'ok')
        restore.check_on(machine, one, name)


def test_cycles_leak_nothing():
    with dump.machine() as machine:
        one = dump.program(machine)
        before = None
        for number in range(harness.few(9, 8 if vendor.HIP else 20)):
            # The last one's name is its as long as it lives.
            name = dump.dumped(machine, one, f'dump name=it-{number}')
            machine.must(name, 'thaw')
            one.wait_ticks(1)
            equal(restore.processes_of(one), {one.pid})
            if number == 3:
                before = descriptors(machine)
        after = descriptors(machine)
        check(after <= before + 3, f'{before} descriptors, and cycles later {after}')
        restore.ends(machine, one, name)
        equal(os.listdir(f'{machine.runtime}/processes'), [])
        wait_for(lambda: not restore.in_store(machine, r'incoming-|\d|\.'), 'an empty store')


def test_with_keep_and_pool():
    """What has been restored keeps its bytes and lends its files as others do; those that a place
    has too are nobody's to write to."""
    with dump.machine(options=',keep=64M,pool=64M') as machine:
        one = dump.program(machine)
        two = dump.program(machine, name='two')
        for _ in range(3):
            name = dump.dumped(machine, one)
            machine.must(name, 'thaw')
            one.wait_ticks(1)
            machine.must(one.pid, 'freeze')
            machine.must(two.pid, 'freeze')
            machine.must(one.pid, 'thaw')
            machine.must(two.pid, 'thaw')
            one.wait_ticks(1)
            two.wait_ticks(1)
        # A place with links of its own, beside a process that goes on with the same files.
        machine.must(one.pid, 'dump leave name=copy')
        machine.must(one.pid, 'thaw')
        for _ in range(3):
            one.wait_ticks(2)
            machine.must(one.pid, 'freeze')
            machine.must(one.pid, 'thaw')
        os.kill(one.pid, signal.SIGKILL)
        one.wait_gone()
        wait_for(lambda: 'copy' in os.listdir(machine.mountpoint) and
                 machine.state('copy') == 'dumped', 'the copy')
        ticks = one.ticks()
        machine.must('copy', 'thaw')
        equal(machine.state('copy'), 'running')
        # It goes on at the moment of the dump: the same ticks once more, all with the right bytes.
        wait_for(lambda: len(one.lines()) > ticks + 4, 'more ticks')
        check(all(line.endswith(' ok') for line in one.lines()[1:]), one.lines())


def test_tree():
    """A tree whose root uses no GPU, with two that do."""
    with dump.machine() as machine:
        demo = f'{" ".join(vendor.RUN + vendor.DEMO)} --bytes 4M --buffers 2'
        one = dump.Program(machine, command=[
            'sh', '-c', f'{demo} --tick 50 & {demo} --tick 50 > {machine.directory}/second & '
            'wait; true'])
        second = f'{machine.directory}/second'
        wait_for(lambda: len(one.lines()) > 1 and os.path.exists(second) and
                 read_file(second).count('\n') > 1, 'both')
        root = one.root
        equal(machine.write(root, 'dump name=tree'), 'ok')
        wait_for(lambda: one.reap() or not os.path.exists(f'/proc/{root}'), 'its end')
        equal(machine.state('tree'), 'dumped')
        before = read_file(second).count('\n')
        machine.must('tree', 'thaw')
        one.wait_ticks(2)
        wait_for(lambda: read_file(second).count('\n') > before + 2, 'the second one')
        equal(os.readlink(machine.path(root)), 'tree')
        machine.must('tree', 'freeze')
        machine.must('tree', 'thaw')
        one.wait_ticks(2)
        members = restore.processes_of(one)
        one.pid = root
        for pid in members - {root} | {int(read_file(second).split()[1])}:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: one.reap() or not os.path.lexists(machine.path('tree')), 'the end')
        wait_for(lambda: not restore.cgroup_of('tree'), 'the end of its cgroup')


def test_stdio():
    """What it writes after the thaw arrives where root says, behind what was there."""
    same_for_both('what a program has open')
    with dump.machine() as machine:
        target = f'{machine.directory}/pipe.out'
        with open(target, 'w', encoding='ascii') as file:
            file.write('before\n')
        pid = dump.with_output(machine, 'piped', *os.pipe())
        try:
            machine.must('piped', f'thaw stdio={target}')
            wait_for(lambda: read_file(target).count(' ok\n') > 2, 'its ticks')
            check(read_file(target).startswith('before\n'), 'what was there is overwritten')
        finally:
            harness.try_kill(pid, signal.SIGKILL)


def outside(machine, name, kind):
    """gpucr-demo whose output is a terminal or a socket, dumped; its pid."""
    if kind == 'terminal':
        ours, its = pty.openpty()
    else:
        first, second = socket.socketpair()
        ours, its = first.detach(), second.detach()
    return dump.with_output(machine, name, ours, its)


def test_log_of_terminals_and_sockets():
    same_for_both('what a program has open')
    with dump.machine() as machine:
        one = dump.program(machine)  # whose reap() is used
        for kind in 'terminal', 'socket':
            pid = outside(machine, kind, kind)
            machine.must(kind, 'thaw')
            log = f'{machine.runtime}/stdio/{kind}.log'
            try:
                wait_for(lambda: read_file(log).count(' ok') > 3, f'ticks in {log}')
                machine.must(pid, 'freeze')
                machine.must(pid, 'thaw')
                count = read_file(log).count(' ok')
                wait_for(lambda: read_file(log).count(' ok') > count + 2, f'more ticks in {log}')
                equal(os.stat(log).st_mode & 0o777, 0o600)
                if kind == 'terminal':
                    machine.must(kind, 'dump name=twice')
                    wait_for(lambda: one.reap() or not os.path.exists(f'/proc/{pid}'), 'its end')
                    machine.must('twice', 'thaw')
                    log = f'{machine.runtime}/stdio/twice.log'
                    wait_for(lambda: read_file(log).count(' ok') > 3, f'ticks in {log}')
            finally:
                harness.try_kill(pid, signal.SIGKILL)
            wait_for(lambda: one.reap() or not restore.cgroup_of(kind), 'the end of the cgroup')
        wait_for(lambda: 'gpucr-drain' not in [read_file(f'/proc/{pid}/comm').strip()
                                               for pid in drains(machine)], 'the end of the drains')


def drains(machine):
    """Programs that write into the logs of this machine."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if os.readlink(f'/proc/{pid}/fd/0').startswith(f'{machine.runtime}/stdio/'):
                found.append(pid)
        except OSError:
            pass
    return found


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
