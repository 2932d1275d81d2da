# SPDX-License-Identifier: MIT
"""The fast engine when somebody dies, or has enough, in the middle of any call of the driver: the
worker, the control helper, the program, the daemon, the one who wrote the verb."""
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import check, equal, needs_cuda, same_for_both, wait_for

SMALL = ('--bytes', '4M', '--buffers', 2, '--own-vmm', 1, '--tick', 40)
DELAY_MSEC = 300 * harness.SLOW


def in_turns(calls, role, incident):
    """What happens in which call: usually one of the three in each, in turns, and each in one call at
    least."""
    incidents = ['death', 'death of the daemon', 'cancel']
    if vendor.HIP and role == 'worker':
        del incidents[2]  # with CUDA only
    first = incidents.index(incident) % len(calls)
    return harness.few(calls[first::len(incidents)], calls)


def each_call(machine, demo, role, verb, incident):
    """The calls of a verb, one after the other, with the program where the verb can begin."""
    machine.must(demo.pid, vmm.other(verb))
    for call in in_turns(vmm.calls(machine, demo, role, verb), role, incident):
        machine.wait_status(demo.pid, 'verb', '-')
        machine.must(demo.pid, vmm.other(verb))
        machine.watch_faults()
        yield call
        machine.faults()
        vmm.recover(machine, demo)


def check_state(machine, demo, verb, result, words):
    machine.wait_status(demo.pid, 'verb', '-', 2 * harness.PATIENCE_SEC)
    before, after = ('running', 'frozen') if verb == 'freeze' else ('frozen', 'running')
    state = machine.state(demo.pid)
    equal(state, after if result == 'ok' else before,
          f'{words}: {result}: {machine.error(demo.pid)}')


def helper_dies(role, verb):
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        vmm.cycle(machine, demo)
        for call in each_call(machine, demo, role, verb, 'death'):
            machine.faults(f'{call} {vmm.ROLES[role]} times=1 action=kill')
            result = machine.write(demo.pid, verb)
            check(result in ('ok', 'EIO', 'ENODEV', 'ENOMEM'), f'{call}: {result}')
            check_state(machine, demo, verb, result, f'{role} killed in {call}')


def test_worker_dies_in_freeze():
    helper_dies('worker', 'freeze')


def test_worker_dies_in_thaw():
    helper_dies('worker', 'thaw')


def counting_helper_dies(verb):
    """On AMD it makes no calls, and tells what is in use: it dies when it is to."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        vmm.cycle(machine, demo)
        for delay_msec in 0, 10, 50, 200:
            machine.must(demo.pid, vmm.other(verb))
            # One may be ending by itself.
            pids = [pid for pid, comm in machine.helpers() if comm == 'gpucr-control' and
                    harness.try_kill(pid, signal.SIGSTOP)]
            writer = machine.writer(demo.pid, verb)
            time.sleep(delay_msec / 1000)
            for pid in pids:
                harness.try_kill(pid, signal.SIGKILL)
            result = writer.result()
            check(result in ('ok', 'EIO'), f'{verb}: {result}')
            check_state(machine, demo, verb, result, f'killed after {delay_msec} ms')


def test_control_helper_dies_in_freeze():
    if vendor.HIP:
        counting_helper_dies('freeze')
    else:
        helper_dies('control', 'freeze')


def test_control_helper_dies_in_thaw():
    if vendor.HIP:
        counting_helper_dies('thaw')
    else:
        helper_dies('control', 'thaw')


def test_worker_dies_after_the_call():
    """What it had done is done: descriptors and memory go with it."""
    same_for_both('what dies with a worker')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        for verb, calls in (('freeze', ('cuMemImportFromShareableHandle', 'cuMemcpyDtoHAsync',
                                        'cuEventSynchronize', 'cuMemRelease')),
                            ('thaw', ('cuMemCreate', 'cuMemcpyHtoDAsync', 'cuEventSynchronize',
                                      'cuMemExportToShareableHandle', 'cuMemRelease'))):
            for call in calls:
                machine.must(demo.pid, vmm.other(verb))
                machine.faults(f'{call} comm=gpucr-worker times=1 action=kill when=after')
                result = machine.write(demo.pid, verb)
                machine.faults()
                check_state(machine, demo, verb, result, f'worker killed after {call}')
                vmm.recover(machine, demo)


def program_dies(verb):
    with vmm.machine(worker_idle=1) as machine:
        demo = vmm.demo(machine, *SMALL)
        machine.must(demo.pid, vmm.other(verb))
        calls = vmm.calls(machine, demo, 'program', verb)
        demo.end(signal.SIGKILL)
        for call in in_turns(calls, 'program', 'death'):
            demo = vmm.demo(machine, *SMALL)
            machine.must(demo.pid, vmm.other(verb))
            machine.faults(f'{call} {vmm.ROLES["program"]} action=kill')
            demo.is_to_end = True
            result = machine.write(demo.pid, verb)
            machine.faults()
            if result == 'ok':  # that call was not needed this time
                demo.end(signal.SIGKILL)
            else:
                equal(result, 'ESRCH', call)
            wait_for(lambda: not os.path.lexists(machine.path(demo.pid)), 'its directory to go')
            equal(os.listdir(f'{machine.runtime}/processes'), [])
        equal(vmm.idle(machine), 0, 'VRAM in use')
        equal(machine.status_of_all()['held_bytes'], '0')
        equal(sorted(os.listdir(f'{machine.runtime}/store')), ['pool'], 'files left in the store')


def test_program_dies_in_freeze():
    program_dies('freeze')


def test_program_dies_in_thaw():
    program_dies('thaw')


def test_program_dies_while_others_work_on_it():
    """In the calls of the worker and of the control helper."""
    with vmm.machine(worker_idle=1) as machine:
        for verb, role, call in (('freeze', 'worker', 'cuMemcpyDtoHAsync'),
                                 ('freeze', 'control', 'cuCheckpointProcessCheckpoint'),
                                 ('thaw', 'worker', 'cuMemcpyHtoDAsync'),
                                 ('thaw', 'worker', 'cuMemExportToShareableHandle'),
                                 ('thaw', 'control', 'cuCheckpointProcessRestore')):
            if vendor.HIP and role == 'control':
                continue
            demo = vmm.demo(machine, *SMALL)
            machine.must(demo.pid, vmm.other(verb))
            machine.watch_faults()
            machine.faults(f'{call} {vmm.ROLES[role]} times=1 delay_ms={DELAY_MSEC}')
            writer = machine.writer(demo.pid, verb)
            machine.wait_faulted()
            demo.end(signal.SIGKILL)
            equal(writer.result(), 'ESRCH', call)
            machine.faults()
            wait_for(lambda: not os.path.lexists(machine.path(demo.pid)), 'its directory to go')
        equal(vmm.idle(machine), 0, 'VRAM in use')


def cancelled(role, verb):
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        for call in each_call(machine, demo, role, verb, 'cancel'):
            machine.faults(f'{call} {vmm.ROLES[role]} times=1 delay_ms={DELAY_MSEC}')
            writer = machine.writer(demo.pid, verb)
            wait_for(lambda: machine.faulted() or not writer.is_waiting(), 'the call')
            machine.write(demo.pid, 'cancel')
            result = writer.result()
            check(result in ('ok', 'ECANCELED'), f'{call}: {result}')
            check_state(machine, demo, verb, result, f'cancelled in {call}')


def test_cancel_in_the_programs_calls():
    cancelled('program', 'freeze')
    cancelled('program', 'thaw')


def test_cancel_in_the_workers_freeze():
    same_for_both('cancel while a worker is asked')
    cancelled('worker', 'freeze')


def test_cancel_in_the_workers_thaw():
    same_for_both('cancel while a worker is asked')
    cancelled('worker', 'thaw')


def test_cancel_in_the_control_helpers_calls():
    needs_cuda('calls of a driver for control state')
    cancelled('control', 'freeze')
    cancelled('control', 'thaw')


def test_writer_killed():
    """As good as a cancel, at any step."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        for verb, role, call in (('freeze', 'program', 'cuMemUnmap'),
                                 ('freeze', 'worker', 'cuMemcpyDtoHAsync'),
                                 ('thaw', 'worker', 'cuMemcpyHtoDAsync'),
                                 ('thaw', 'program', 'cuMemMap')):
            machine.must(demo.pid, vmm.other(verb))
            machine.watch_faults()
            machine.faults(f'{call} {vmm.ROLES[role]} times=1 delay_ms={DELAY_MSEC}')
            writer = machine.writer(demo.pid, verb)
            machine.wait_faulted()
            writer.signal(signal.SIGKILL)
            equal(writer.result(), 'killed')
            machine.faults()
            vmm.recover(machine, demo)


def test_a_worker_that_hangs():
    """The deadline passes, the worker is done away with, nothing is lost."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        for verb, call in (('freeze', 'cuMemImportFromShareableHandle'),
                           ('freeze', 'cuMemcpyDtoHAsync'), ('thaw', 'cuMemCreate'),
                           ('thaw', 'cuMemcpyHtoDAsync'), ('thaw', 'cuMemExportToShareableHandle')):
            machine.must(demo.pid, vmm.other(verb))
            machine.faults(f'{call} comm=gpucr-worker action=hang')
            result = machine.write(demo.pid, f'{verb} timeout=1')
            machine.faults()
            equal(result, 'ETIMEDOUT', call)
            check_state(machine, demo, verb, result, call)
            vmm.recover(machine, demo)


def test_the_program_is_slow():
    """A call in it takes longer than the deadline: the writer has its answer, nothing is lost."""
    same_for_both('deadlines')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        for verb, call in (('freeze', 'cuMemUnmap'), ('thaw', 'cuMemMap')):
            machine.must(demo.pid, vmm.other(verb))
            machine.faults(f'{call} {vmm.ROLES["program"]} times=1 delay_ms={1500 * harness.SLOW}')
            result = machine.write(demo.pid, f'{verb} timeout={harness.SLOW}')
            machine.faults()
            check(result in ('ok', 'ETIMEDOUT'), f'{call}: {result}')
            # Past the last point of return the thaw is carried through all the same.
            vmm.recover(machine, demo)


def test_others_get_the_worker_of_a_thaw_that_is_cancelled():
    """Also while a call in its program, which is to map its memory, does not end."""
    same_for_both('who has a worker')
    with vmm.machine() as machine:
        slow, other = vmm.demo(machine, *SMALL), vmm.demo(machine, *SMALL)
        machine.must(slow.pid, 'freeze')
        machine.faults(f'cuMemMap {vmm.ROLES["program"]} times=1 delay_ms={8000 * harness.SLOW}')
        machine.watch_faults()
        thaw = machine.writer(slow.pid, 'thaw')
        machine.wait_faulted()
        cancel = machine.writer(slow.pid, 'cancel')
        begun = time.monotonic()
        machine.must(other.pid, 'freeze timeout=6')
        check(time.monotonic() - begun < 6 * harness.SLOW, 'it waited for the worker')
        equal(thaw.result(), 'ECANCELED')
        equal(cancel.result(), 'ok')
        equal(machine.state(slow.pid), 'frozen')
        machine.faults()
        machine.must(other.pid, 'thaw')
        vmm.recover(machine, slow)


def kill_daemon(machine):
    machine.daemon.kill()
    machine.daemon.wait()


def daemon_dies(role, verb):
    """Killed in each call of the verb, and started again: it goes on from where the program is."""
    # With room for what the workers of those that were killed hold until their calls return.
    with vmm.machine(vram='2G') as machine:
        demo = vmm.demo(machine, *SMALL)
        for call in each_call(machine, demo, role, verb, 'death of the daemon'):
            # What the control helper has asked for is done in the program, whoever dies meanwhile.
            where = '' if call.startswith('cuCheckpointProcess') and 'Get' not in call else \
                vmm.ROLES[role]
            machine.faults(f'{call} {where} times=1 delay_ms={DELAY_MSEC}')
            writer = machine.writer(demo.pid, verb)
            wait_for(lambda: machine.faulted() or not writer.is_waiting(), 'the call')
            kill_daemon(machine)
            check(writer.result() in ('ok', 'ENOTCONN', 'ECONNABORTED', 'EIO', 'killed'),
                  f'{call}: {writer.result()}')
            machine.faults()
            machine.start()
            wait_for(lambda: machine.status(demo.pid).get('verb') == '-' and
                     machine.state(demo.pid) in ('running', 'frozen'),
                     f'the end of its recovery after {call}', 2 * harness.PATIENCE_SEC)
            if machine.state(demo.pid) == 'running':
                wait_for(lambda: machine.status(demo.pid)['engine'] == vendor.ENGINE, 'its library')
                demo.wait_ticks(2)


def test_daemon_dies_in_the_programs_freeze():
    daemon_dies('program', 'freeze')


def test_daemon_dies_in_the_programs_thaw():
    daemon_dies('program', 'thaw')


def test_daemon_dies_in_the_workers_freeze():
    daemon_dies('worker', 'freeze')


def test_daemon_dies_in_the_workers_thaw():
    daemon_dies('worker', 'thaw')


def test_daemon_dies_in_the_control_helpers_freeze():
    needs_cuda('calls of a driver for control state')
    daemon_dies('control', 'freeze')


def test_daemon_dies_in_the_control_helpers_thaw():
    needs_cuda('calls of a driver for control state')
    daemon_dies('control', 'thaw')


def test_daemon_dies_with_frozen_programs():
    with vmm.machine(vram='512M') as machine:
        demos = [vmm.demo(machine, '--bytes', '6M', '--buffers', 3) for _ in range(3)]
        machine.must(demos[0].pid, 'freeze')
        machine.must(demos[1].pid, 'freeze data')
        for _ in range(3):
            kill_daemon(machine)
            demos[2].wait_ticks()
            machine.start()
            equal([machine.state(demo.pid) for demo in demos], ['frozen', 'frozen', 'running'])
        vmm.check_files(machine, demos[0])
        vmm.check_files(machine, demos[1])
        for demo in demos[:2]:
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
        demos[2].wait_ticks()
        wait_for(lambda: machine.status(demos[2].pid)['engine'] == vendor.ENGINE, 'its library')
        vmm.cycle(machine, demos[2])


def test_freeze_before_the_library_has_come_back():
    """The driver engine would take memory that it can never restore."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        vmm.cycle(machine, demo)
        for _ in range(3):
            kill_daemon(machine)
            machine.start()
            machine.must(demo.pid, 'freeze')
            equal(machine.status(demo.pid)['engine'], vendor.ENGINE)
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()


def test_stopped_before_the_library_has_come_back():
    """It says so, and not that the program has none."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        vmm.cycle(machine, demo)
        kill_daemon(machine)
        machine.stop_process(demo.pid)
        machine.start()
        equal(machine.write(demo.pid, 'freeze timeout=1'), 'ETIMEDOUT')
        writer = machine.writer(demo.pid, 'freeze')
        machine.wait_status(demo.pid, 'verb', 'freeze')
        machine.must(demo.pid, 'cancel')
        equal(writer.result(), 'ECANCELED')
        equal(machine.state(demo.pid), 'running')
        os.kill(demo.pid, signal.SIGCONT)
        demo.wait_ticks()
        vmm.cycle(machine, demo)


def test_library_that_does_not_come_back():
    """Another daemon than the one that it looks for: it reads in the program what was done."""
    with vmm.machine() as machine:
        handed, untouched = vmm.demo(machine, *SMALL), vmm.demo(machine, *SMALL)
        vmm.cycle(machine, handed)
        kill_daemon(machine)
        known = machine.runtime
        machine.runtime += '-of-another'
        machine.start()
        for demo in (handed, untouched) if vendor.HIP else (handed,):
            equal(machine.status(demo.pid)['engine'], 'none' if vendor.HIP else 'driver')
            equal(machine.write(demo.pid, 'freeze'), 'EOPNOTSUPP')
            check(('has not connected' if vendor.HIP else 'handed over') in machine.error(demo.pid),
                  machine.error(demo.pid))
            equal(machine.state(demo.pid), 'running')
            demo.wait_ticks()
        if not vendor.HIP:
            vmm.cycle(machine, untouched)
        machine.stop()
        machine.runtime = known
        machine.start()
        vmm.cycle(machine, handed)


def test_daemon_dies_and_stays_away():
    """Gated, a program goes on at once; with its memory handed over, after a while."""
    waiting = ('idle', 'cuCtxSynchronize') if vendor.HIP else ('program', 'cuEventQuery')
    with vmm.machine() as machine:
        for role, call in (waiting, ('worker', 'cuMemcpyDtoHAsync')):
            demo = vmm.demo(machine, *SMALL)
            machine.watch_faults()
            machine.faults(f'{call} {vmm.ROLES[role]} times=1 delay_ms={2 * DELAY_MSEC}')
            writer = machine.writer(demo.pid, 'freeze data')
            machine.wait_faulted()
            kill_daemon(machine)
            writer.result()
            machine.faults()
            begun = time.monotonic()
            demo.wait_ticks(3, 40 * harness.SLOW)
            if role == 'worker':
                check(time.monotonic() - begun > 5, 'it waited for another daemon')
            machine.start()
            wait_for(lambda: machine.status(demo.pid)['engine'] == vendor.ENGINE, 'its library')
            machine.wait_status(demo.pid, 'verb', '-')
            equal(machine.state(demo.pid), 'running')
            vmm.cycle(machine, demo)
            demo.end()


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
