# SPDX-License-Identifier: MIT
"""The daemon dies, or is told to go, at any moment: the next one finds everything and goes on."""
import ctypes
import os
import signal
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import Machine, check, equal, same_for_both, wait_for

# Calls by the phase in which they are made, what verb that is of, and what becomes of the process
# if the daemon dies there: what the driver has checkpointed is frozen, what is merely locked goes
# on. A helper that had not yet called the driver when the daemon died does so no more.
CALL = {'lock': 'cuCheckpointProcessLock', 'checkpoint': 'cuCheckpointProcessCheckpoint',
        'restore': 'cuCheckpointProcessRestore', 'unlock': 'cuCheckpointProcessUnlock'}
VERB = {'lock': 'freeze', 'checkpoint': 'freeze', 'restore': 'thaw', 'unlock': 'thaw'}
AFTER = {'lock': ('running',), 'checkpoint': ('frozen', 'running'),
         'restore': ('running', 'frozen'), 'unlock': ('running',)}
if vendor.HIP:
    CALL = {'handover': f'cuMemUnmap {vendor.AGENT}',
            'copy': 'cuMemcpyDtoHAsync comm=gpucr-worker nth=1', 'map': f'cuMemMap {vendor.AGENT}'}
    VERB = {'handover': 'freeze', 'copy': 'freeze', 'map': 'thaw'}
    AFTER = {step: ('running', 'frozen') for step in CALL}
SYS_PIDFD_GETFD = 438


def records(machine):
    """And not their spares."""
    return [name for name in os.listdir(f'{machine.runtime}/processes') if not name.startswith('.')]


def kill_daemon(machine):
    machine.daemon.kill()
    machine.daemon.wait()
    check((machine.mountpoint, 'fuse.gpucrfs') in harness.mounts(), 'a stale mount is left')


def final_state(machine, pid):
    machine.wait_status(pid, 'verb', '-')
    state = machine.state(pid)
    if vendor.HIP and state == 'running':
        machine.wait_status(pid, 'engine', vendor.ENGINE)
    return state


def test_killed_with_a_frozen_process():
    with Machine() as machine:
        frozen, running = machine.ready_demo(), machine.ready_demo()
        machine.must(frozen.pid, 'freeze')
        before = machine.status(frozen.pid)
        kill_daemon(machine)
        running.wait_ticks()
        machine.start()
        after = machine.status(frozen.pid)
        for key in ('state', 'generation', 'held_bytes', 'gpus', 'start_ticks'):
            equal(after[key], before[key], key)
        equal(final_state(machine, running.pid), 'running')
        equal(sorted(machine.pids()), sorted([frozen.pid, running.pid]))
        machine.must(frozen.pid, 'thaw')
        frozen.wait_ticks()
        equal(records(machine), [])
        machine.must(running.pid, 'freeze')
        machine.must(running.pid, 'thaw')


def test_killed_while_it_starts_a_helper():
    """The child has the daemon's descriptors for a moment: the mount is stale only after that."""
    same_for_both('the connection to the kernel')
    with Machine() as machine:
        def is_connection(fd):
            return os.readlink(f'/proc/{machine.daemon.pid}/fd/{fd}') == '/dev/fuse'

        pidfd = os.pidfd_open(machine.daemon.pid)
        numbers = [int(fd) for fd in os.listdir(f'/proc/{machine.daemon.pid}/fd')
                   if is_connection(fd)]
        held = [ctypes.CDLL(None).syscall(SYS_PIDFD_GETFD, pidfd, number, 0) for number in numbers]
        os.close(pidfd)
        if -1 in held:
            raise harness.Skip('pidfd_getfd is not allowed')
        kill_daemon(machine)
        threading.Timer(0.3 * harness.SLOW, lambda: [os.close(fd) for fd in held]).start()
        machine.start()


def test_killed_in_a_verb():
    """At each of the driver's calls. The driver finishes it; the new daemon finds out how."""
    with Machine() as machine:
        demo = machine.ready_demo()
        for step, call in CALL.items():
            machine.must(demo.pid, 'thaw' if VERB[step] == 'freeze' else 'freeze')
            machine.hold_at(call)
            writer = machine.writer(demo.pid, VERB[step])
            machine.wait_status(demo.pid, 'phase', step)
            kill_daemon(machine)
            machine.let_go()
            check(writer.result() in ('ENOTCONN', 'ECONNABORTED', 'EIO', 'killed'),
                  f'{step}: {writer.result()}')
            machine.start()
            state = final_state(machine, demo.pid)
            check(state in AFTER[step], f'{step}: {state}')
            equal(len(records(machine)), 1 if state == 'frozen' else 0, step)
            if state == 'frozen':
                machine.must(demo.pid, 'thaw')
            demo.wait_ticks()


def test_killed_while_the_process_ends():
    with Machine() as machine:
        demos = [machine.ready_demo() for _ in range(2)]
        for demo in demos:
            machine.must(demo.pid, 'freeze')
        kill_daemon(machine)
        demos[0].end(signal.SIGKILL)
        machine.start()
        equal(machine.pids(), [demos[1].pid])
        equal(len(records(machine)), 1)
        machine.must(demos[1].pid, 'thaw')


def test_thawed_by_somebody_else_meanwhile():
    """The records are not believed blindly: the driver is asked, or the library."""
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        kill_daemon(machine)
        saved = {name: harness.read_file(f'{machine.runtime}/processes/{name}')
                 for name in records(machine)}
        machine.start()
        machine.must(demo.pid, 'thaw')
        kill_daemon(machine)
        for name, text in saved.items():
            with open(f'{machine.runtime}/processes/{name}', 'w', encoding='utf-8') as record:
                record.write(text)
            os.chmod(record.name, 0o600)
        machine.start()
        equal(final_state(machine, demo.pid), 'running')
        equal(records(machine), [])
        demo.wait_ticks()


def test_garbage_among_the_records():
    same_for_both('records have no vendor')
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        kill_daemon(machine)
        for name, text in (('1-1', ''), ('2-2', 'gpucrfs-record 1\n'), ('junk', 'x' * 100000),
                           ('3-3', 'gpucrfs-record 1\npid 3\n\0\0'), ('.hidden', '')):
            with open(f'{machine.runtime}/processes/{name}', 'w', encoding='utf-8') as record:
                record.write(text)
            os.chmod(record.name, 0o600)
        os.mkdir(f'{machine.runtime}/processes/4-4')
        os.symlink('/etc/passwd', f'{machine.runtime}/processes/5-5')
        machine.start()
        equal(machine.pids(), [demo.pid])
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()
        check('cannot be read' in machine.log(), machine.log())


def test_told_to_go_with_a_frozen_process():
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        equal(machine.stop(), 0)
        check((machine.mountpoint, 'fuse.gpucrfs') not in harness.mounts(), 'it has unmounted')
        equal(len(records(machine)), 1)
        machine.start()
        equal(machine.state(demo.pid), 'frozen')
        machine.check_used(machine.kept(demo.pid))
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_told_to_go_in_a_verb():
    """It is rolled back, or ends, before the daemon goes."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        for step, call in CALL.items():
            with Machine() as machine:
                demo = machine.ready_demo()
                if VERB[step] == 'thaw':
                    machine.must(demo.pid, 'freeze')
                machine.hold_at(call)
                writer = machine.writer(demo.pid, VERB[step])
                machine.wait_status(demo.pid, 'phase', step)
                machine.daemon.send_signal(number)
                wait_for(lambda m=machine: 'stopping' in m.log(), 'the daemon to have heard')
                machine.let_go()
                equal(harness.wait_end(machine.daemon), 0)
                result = writer.result()
                machine.start()
                state = final_state(machine, demo.pid)
                expected = {'ok': {'freeze': 'frozen', 'thaw': 'running'},
                            'ECANCELED': {'freeze': 'running', 'thaw': 'frozen'}}
                check(result in expected, f'{step}: {result}')
                equal(state, expected[result][VERB[step]], f'{step}: {result}')
                equal(len(records(machine)), 1 if state == 'frozen' else 0, step)
                if state == 'frozen':
                    machine.must(demo.pid, 'thaw')
                demo.wait_ticks()
        if harness.SLOW > 1 or vendor.HIP:
            break


def test_unmounted_by_hand():
    """umount, also lazily with a verb under way: the daemon ends in order."""
    same_for_both('a mount that goes')
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        equal(os.spawnlp(os.P_WAIT, 'umount', 'umount', machine.mountpoint), 0)
        equal(machine.daemon.wait(harness.PATIENCE_SEC), 0)
        machine.start()
        machine.must(demo.pid, 'thaw')
        machine.slow('freeze', 1000)
        machine.write(demo.pid, 'freeze', os.O_NONBLOCK)
        equal(os.spawnlp(os.P_WAIT, 'umount', 'umount', '-l', machine.mountpoint), 0)
        equal(machine.daemon.wait(harness.PATIENCE_SEC), 0)
        machine.faults()
        machine.start()
        state = final_state(machine, demo.pid)
        check(state in ('running', 'frozen'), state)
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_helpers_end_with_the_daemon():
    with Machine(vmm=vendor.HIP) as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        helpers = wait_for(machine.helpers, 'the spare helper, on AMD a worker')
        kill_daemon(machine)
        wait_for(lambda: not any(harness.is_alive(pid) for pid, _ in helpers), 'helpers to end')
        machine.start()
        machine.must(demo.pid, 'thaw')
        helpers = machine.helpers()
        equal(machine.stop(), 0)
        check(not any(harness.is_alive(pid) for pid, _ in helpers), 'no helper is left')


def test_many_frozen_processes_recovered():
    same_for_both('how many there are')
    with Machine(vram='1G') as machine:
        demos = [machine.demo('--bytes', '2M') for _ in range(12)]
        for demo in demos:
            demo.wait_ready()
        machine.must(None, 'freeze timeout=60 ' + ' '.join(str(demo.pid) for demo in demos))
        kill_daemon(machine)
        machine.start()
        for demo in demos:
            equal(final_state(machine, demo.pid), 'frozen')
        machine.must(None, 'thaw timeout=60 ' + ' '.join(str(demo.pid) for demo in demos))
        for demo in demos:
            demo.wait_ticks()


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
