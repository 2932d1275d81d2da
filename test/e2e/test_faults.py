# SPDX-License-Identifier: MIT
"""Something fails at each step of a freeze and a thaw: the driver, the helper, the program. Nothing
may be lost: the process is where it was, or can be brought there."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import Machine, check, equal, wait_for

CALL = {'lock': 'cuCheckpointProcessLock', 'checkpoint': 'cuCheckpointProcessCheckpoint',
        'restore': 'cuCheckpointProcessRestore', 'unlock': 'cuCheckpointProcessUnlock'}
VERB = {'lock': 'freeze', 'checkpoint': 'freeze', 'restore': 'thaw', 'unlock': 'thaw'}
FROM = {'freeze': 'running', 'thaw': 'frozen'}


def bring_to(machine, demo, verb):
    """To where the verb starts from."""
    machine.faults()
    machine.wait_status(demo.pid, 'verb', '-')
    machine.must(demo.pid, 'thaw' if verb == 'freeze' else 'freeze')


def must_cycle(machine, demo):
    """Nothing is left behind: it can be frozen and thawed, and its data is right."""
    machine.faults()
    machine.wait_status(demo.pid, 'verb', '-')
    machine.must(demo.pid, 'freeze')
    wait_for(lambda: machine.used() == 0, 'the GPU to be empty')
    machine.must(demo.pid, 'thaw')
    demo.wait_ticks()
    equal(os.listdir(f'{machine.runtime}/processes'), [])


def kill_helpers(machine, number=signal.SIGKILL):
    """All helpers that run now; at least one."""
    helpers = wait_for(machine.helpers, 'a helper')
    for pid, _ in helpers:
        harness.try_kill(pid, number)
    return [pid for pid, _ in helpers]


def test_driver_errors():
    with Machine() as machine:
        demo = machine.ready_demo()
        for step, expected in (('lock', 'EIO'), ('checkpoint', 'EIO')):
            for place in ('', 'where=caller'):
                machine.faults(f'{CALL[step]} error=CUDA_ERROR_UNKNOWN {place}')
                equal(machine.write(demo.pid, 'freeze'), expected, step)
                equal(machine.state(demo.pid), 'running', step)
                check('CUDA_ERROR_UNKNOWN' in machine.error(demo.pid), machine.error(demo.pid))
                demo.wait_ticks()
        # On the way back the driver stumbles too, a few times.
        machine.faults(f'{CALL["checkpoint"]} error=CUDA_ERROR_UNKNOWN',
                       f'{CALL["unlock"]} error=CUDA_ERROR_UNKNOWN times=3')
        equal(machine.write(demo.pid, 'freeze'), 'EIO')
        equal(machine.state(demo.pid), 'running')
        demo.wait_ticks()
        must_cycle(machine, demo)


def test_driver_errors_of_unlock():
    """Once restored, the program goes on, however often the driver has to be asked."""
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        machine.faults(f'{CALL["unlock"]} error=CUDA_ERROR_UNKNOWN times=3')
        equal(machine.write(demo.pid, 'thaw'), 'ok')
        demo.wait_ticks()
        # It never works: then it stays frozen, and a later thaw finds it intact.
        machine.must(demo.pid, 'freeze')
        machine.faults(f'{CALL["unlock"]} error=CUDA_ERROR_UNKNOWN')
        equal(machine.write(demo.pid, 'thaw'), 'EIO')
        equal(machine.state(demo.pid), 'frozen')
        equal(machine.used(), 0)
        machine.must_recover(demo)


def test_driver_error_of_restore():
    """The driver cannot repeat a restore that failed, so the state says failed."""
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        machine.faults(f'{CALL["restore"]} error=CUDA_ERROR_UNKNOWN times=1')
        equal(machine.write(demo.pid, 'thaw'), 'EIO')
        equal(machine.state(demo.pid), 'failed')
        words = machine.error(demo.pid)
        check('CUDA_ERROR_UNKNOWN' in words and 'end it' in words, words)
        equal(machine.write(demo.pid, 'freeze'), 'EBUSY')
        # Here it was only pretended: trying again is allowed, and works.
        machine.must_recover(demo)


def test_helper_killed():
    """The driver finishes what it has begun inside the target; another helper goes on."""
    with Machine() as machine:
        demo = machine.ready_demo()
        for step, call in CALL.items():
            bring_to(machine, demo, VERB[step])
            machine.faults(f'{call} delay_ms=700')
            writer = machine.writer(demo.pid, VERB[step])
            machine.wait_status(demo.pid, 'phase', step)
            kill_helpers(machine)
            result = writer.result()
            check(result in ('ok', 'EIO'), f'{step}: {result}')
            state = machine.state(demo.pid)
            goal = 'frozen' if VERB[step] == 'freeze' else 'running'
            equal(state, goal if result == 'ok' else FROM[VERB[step]], f'{step}: {result}')
            if state == 'running':
                demo.wait_ticks()
        must_cycle(machine, demo)


def test_helpers_killed_again_and_again():
    """The one that replaces a dead one dies too."""
    with Machine() as machine:
        demo = machine.ready_demo()
        for deaths in (2, 3, 4):
            for verb in ('freeze', 'thaw'):
                bring_to(machine, demo, verb)
                machine.faults(*[f'{call} delay_ms=100' for call in CALL.values()])
                writer = machine.writer(demo.pid, verb)
                killed = set()
                while len(killed) < deaths and writer.is_waiting():
                    for pid, _ in machine.helpers():
                        if pid not in killed:
                            killed.add(pid)
                            harness.try_kill(pid, signal.SIGKILL)
                result = writer.result()
                check(result in ('ok', 'EIO'), f'{verb}: {result}')
                machine.wait_status(demo.pid, 'verb', '-')
                check(machine.state(demo.pid) in ('running', 'frozen'), machine.state(demo.pid))
        machine.faults()
        machine.must(demo.pid, 'thaw')
        must_cycle(machine, demo)


def test_helper_stopped():
    """A helper that does not answer: the deadline answers the writer, another helper goes on."""
    with Machine() as machine:
        demo = machine.ready_demo()
        for step, call in CALL.items():
            verb = VERB[step]
            bring_to(machine, demo, verb)
            machine.watch_faults()
            machine.hold_at(call)
            writer = machine.writer(demo.pid, f'{verb} timeout=2')
            machine.wait_status(demo.pid, 'phase', step)
            # A helper that is only being started cannot be stopped yet.
            machine.wait_faulted()
            kill_helpers(machine, signal.SIGSTOP)
            machine.let_go()
            result = writer.result()
            # An unlock that has begun cannot be taken back: the thaw may succeed late.
            check(result == 'ETIMEDOUT' or (step == 'unlock' and result == 'ok'),
                  f'{step}: {result}')
            # The spare helper may be stopped too, and is waited for before another is taken.
            machine.wait_status(demo.pid, 'verb', '-', 4 * harness.PATIENCE_SEC)
            check(machine.state(demo.pid) in ('running', 'frozen'), machine.state(demo.pid))
            if machine.state(demo.pid) == 'running':
                demo.wait_ticks()
        must_cycle(machine, demo)


def test_helper_that_cannot_start():
    with Machine(worker_idle=1) as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        machine.faults('cuInit comm=gpucr-control error=CUDA_ERROR_UNKNOWN')
        for pid, _ in machine.helpers():
            harness.try_kill(pid, signal.SIGKILL)
        wait_for(lambda: not machine.helpers(), 'the helpers to go')
        result = machine.write(demo.pid, 'thaw')
        check(result in ('EIO', 'ENODEV'), result)
        check('cuInit' in machine.error(demo.pid), machine.error(demo.pid))
        equal(machine.state(demo.pid), 'frozen')
        check('vram_total_bytes' in machine.read('gpus', 0, 'status'), 'the GPUs are still shown')
        machine.must_recover(demo)


def test_no_helper_comes_up_for_a_while():
    """The way back must not be given up for that."""
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.faults('cuCheckpointProcessCheckpoint delay_ms=500')
        writer = machine.writer(demo.pid, 'freeze')
        machine.wait_status(demo.pid, 'phase', 'checkpoint')
        machine.faults('cuInit comm=gpucr-control error=CUDA_ERROR_UNKNOWN')
        kill_helpers(machine)
        machine.wait_status(demo.pid, 'phase', 'rollback')
        machine.faults()
        equal(writer.result(), 'EIO')
        equal(machine.state(demo.pid), 'running')
        must_cycle(machine, demo)


def test_target_killed():
    """In the middle of each call: ESRCH, the directory goes, and so does its VRAM."""
    with Machine() as machine:
        for step, call in CALL.items():
            demo = machine.ready_demo()
            bring_to(machine, demo, VERB[step])
            machine.faults(f'{call} delay_ms=2000')
            events = machine.events()
            writer = machine.writer(demo.pid, VERB[step])
            machine.wait_status(demo.pid, 'phase', step)
            demo.end(signal.SIGKILL)
            equal(writer.result(), 'ESRCH', step)
            check(writer.seconds < 2 * harness.SLOW, 'it is told at once')
            events.wait(f' {demo.pid} .*gone ended')
            events.wait(f' {demo.pid} .*verb {VERB[step]} ESRCH')
            events.close()
            check(not os.path.lexists(machine.path(demo.pid)), 'its directory')
            machine.faults()
            wait_for(lambda: machine.used() == 0, 'its VRAM to be free')
            equal(os.listdir(f'{machine.runtime}/processes'), [])


def test_target_killed_while_frozen():
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        events = machine.events()
        demo.end(signal.SIGKILL)
        events.wait(f' {demo.pid} .*gone ended')
        events.close()
        equal(machine.pids(), [])
        equal(harness.parse_keys(machine.read('status'))['held_bytes'], '0')
        wait_for(lambda: os.listdir(f'{machine.runtime}/processes') == [], 'its record to go')


def test_target_dies_by_the_call():
    """The driver's call ends the program (seen with one driver version)."""
    with Machine() as machine:
        for step, call in CALL.items():
            demo = machine.ready_demo()
            bring_to(machine, demo, VERB[step])
            machine.faults(f'{call} action=kill')
            demo.is_to_end = True
            equal(machine.write(demo.pid, VERB[step]), 'ESRCH', step)
            wait_for(lambda: not os.path.lexists(machine.path(demo.pid)), 'its directory to go')
            machine.faults()


def test_one_of_a_group_is_killed():
    with Machine() as machine:
        demos = [machine.ready_demo() for _ in range(3)]
        machine.faults('cuCheckpointProcessCheckpoint delay_ms=1000')
        writer = machine.writer(None, 'freeze ' + ' '.join(str(demo.pid) for demo in demos))
        machine.wait_status(demos[1].pid, 'phase', 'checkpoint')
        demos[1].end(signal.SIGKILL)
        equal(writer.result(), 'ESRCH')
        for demo in (demos[0], demos[2]):
            equal(machine.state(demo.pid), 'running')
            demo.wait_ticks()
        demos[2].end()
        must_cycle(machine, demos[0])


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
