# SPDX-License-Identifier: MIT
"""The fast engine when a call of the driver fails, in each of the three that make calls: nothing is
lost. Which calls there are is found out by watching a verb that goes well."""
import os
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, check, equal, wait_for

SMALL = ('--bytes', '4M', '--buffers', 2, '--own-vmm', 1, '--tick', 40)
# In which call the work of the GPUs is waited for.
WAITING = ('idle', 'cuCtxSynchronize') if vendor.HIP else ('program', 'cuCtxRecordEvent')
UNFINISHED = ('ETIMEDOUT', 'GPU 0 has not finished')
REACHED = {'freeze': ('running', 'frozen'), 'thaw': ('frozen', 'running')}  # it failed, it worked


def bring_to(machine, demo, verb):
    """Where the verb can begin."""
    machine.must(demo.pid, vmm.other(verb))


def check_reached(machine, demo, verb, result, words):
    machine.wait_status(demo.pid, 'verb', '-')
    failed, worked = REACHED[verb]
    if words.startswith('cuCheckpointProcessRestore ') and machine.state(demo.pid) == 'failed':
        return  # for all we know the driver has lost it
    equal(machine.state(demo.pid), worked if result == 'ok' else failed,
          f'{words}: {result}: {machine.error(demo.pid)}')
    if machine.state(demo.pid) == 'running':
        equal(machine.status(demo.pid)['held_bytes'], '0', words)


def fail_each(role, verb, *arguments, gpus=1):
    """The first call of each entry point fails once: the verb fails, or does without it."""
    with vmm.machine(gpus=gpus) as machine:
        demo = vmm.demo(machine, *SMALL, *arguments)
        bring_to(machine, demo, vmm.other(verb))
        vmm.cycle(machine, demo)
        bring_to(machine, demo, verb)
        calls = vmm.calls(machine, demo, role, verb)
        check(len(calls) >= 3, f'calls of {role}: {calls}')
        failures = 0
        for call in calls:
            bring_to(machine, demo, verb)
            machine.watch_faults()
            machine.faults(f'{call} {vmm.ROLES[role]} times=1 error=CUDA_ERROR_UNKNOWN')
            result = machine.write(demo.pid, verb)
            hit = machine.faulted()
            machine.faults()
            words = f'{call} in the {role} fails in {verb}'
            check(result in ('ok', 'EIO', 'EOPNOTSUPP', 'ENOMEM', 'ENODEV'), f'{words}: {result}')
            check_reached(machine, demo, verb, result, words)
            check(hit or result == 'ok', f'{words}: {result} without a fault')
            failures += result != 'ok'
            vmm.recover(machine, demo)
        check(failures >= 2, f'{role}, {verb}: {failures} of {len(calls)} mattered')
        vmm.cycle(machine, demo)


def test_program_fails_in_freeze():
    fail_each('program', 'freeze')
    if vendor.HIP:
        fail_each('idle', 'freeze')


def test_program_fails_in_thaw():
    fail_each('program', 'thaw')


def test_worker_fails_in_freeze():
    fail_each('worker', 'freeze')


def test_worker_fails_in_thaw():
    fail_each('worker', 'thaw')


def nothing_is_told(verb):
    """On AMD it makes no calls: it reads what KFD tells, of which a part is not there."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        vmm.cycle(machine, demo)
        for name in ('topology', 'proc', f'proc/{demo.pid}'):
            path = f'{machine.simulator}/sys/class/kfd/kfd/{name}'
            bring_to(machine, demo, verb)
            os.rename(path, f'{machine.directory}/away')
            result = machine.write(demo.pid, verb)
            shutil.rmtree(path, ignore_errors=True)
            os.rename(f'{machine.directory}/away', path)
            equal(result, 'ok', f'{verb} without {name}: {machine.error(demo.pid)}')
            check_reached(machine, demo, verb, result, name)
            vmm.recover(machine, demo)
        vmm.cycle(machine, demo)


def test_control_fails_in_freeze():
    if vendor.HIP:
        nothing_is_told('freeze')
    else:
        fail_each('control', 'freeze')


def test_control_fails_in_thaw():
    if vendor.HIP:
        nothing_is_told('thaw')
    else:
        fail_each('control', 'thaw')


def test_two_workers_fail():
    """One of two GPUs fails: the other one's memory goes back too."""
    with vmm.machine(gpus=2) as machine:
        demo = vmm.demo(machine, '--gpus', 2, *SMALL)
        for verb, call in (('freeze', 'cuMemcpyDtoHAsync'),
                           ('freeze', 'cuMemImportFromShareableHandle'), ('thaw', 'cuMemCreate'),
                           ('thaw', 'cuMemcpyHtoDAsync'), ('thaw', 'cuMemExportToShareableHandle')):
            bring_to(machine, demo, verb)
            machine.faults(f'{call} comm=gpucr-worker nth=2 error=CUDA_ERROR_UNKNOWN')
            result = machine.write(demo.pid, verb)
            machine.faults()
            check(result in ('ok', 'EIO', 'ENOMEM'), result)
            check_reached(machine, demo, verb, result, call)
            vmm.recover(machine, demo)


def test_a_later_call_fails():
    """Some of the memory has been moved already when one fails."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '10M', '--buffers', 5, '--own-vmm', 2, '--tick', 40)
        cases = (('freeze', 'program', 'cuMemExportToShareableHandle'),
                 ('freeze', 'program', 'cuMemUnmap'), ('freeze', 'program', 'cuMemRelease'),
                 ('freeze', 'worker', 'cuMemImportFromShareableHandle'),
                 ('freeze', 'worker', 'cuMemcpyDtoHAsync'),
                 ('thaw', 'worker', 'cuMemCreate'), ('thaw', 'worker', 'cuMemcpyHtoDAsync'),
                 ('thaw', 'worker', 'cuMemExportToShareableHandle'),
                 ('thaw', 'program', 'cuMemImportFromShareableHandle'),
                 ('thaw', 'program', 'cuMemMap'), ('thaw', 'program', 'cuMemSetAccess'))
        for round_number in range(2):  # in the second one all handles were imported
            # Usually each of them in one of the two, in turns.
            for verb, role, call in harness.few(cases[round_number::2], cases):
                bring_to(machine, demo, verb)
                machine.faults(f'{call} {vmm.ROLES[role]} nth=3 error=CUDA_ERROR_UNKNOWN')
                result = machine.write(demo.pid, verb)
                machine.faults()
                check_reached(machine, demo, verb, result, f'{call}, round {round_number}')
                vmm.recover(machine, demo)


def test_access_that_fails_and_then_the_unmap():
    """What stays mapped is not forgotten: the driver could never restore the program with it."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        for nth, unmaps in ((1, 1), (3, 1), (1, 2)):
            for freeze in ('freeze', 'freeze data'):
                machine.must(demo.pid, freeze)
                machine.watch_faults()
                machine.faults(f'cuMemSetAccess {vmm.ROLES["program"]} nth={nth} error=CUDA_ERROR_UNKNOWN',
                               f'cuMemUnmap {vmm.ROLES["program"]} times={unmaps} error=CUDA_ERROR_UNKNOWN')
                result = machine.write(demo.pid, 'thaw')
                hit = machine.faulted()
                machine.faults()
                equal(result, 'EIO', f'{hit}')
                check(len(hit) > unmaps, f'{hit}')
                check_reached(machine, demo, 'thaw', result, f'access {nth}, {unmaps} unmaps')
                vmm.recover(machine, demo)


def test_calls_that_fail_again_and_again():
    """The way back needs them too. When they work again, so does a thaw."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        for verb, role, call in (
                # First: what was imported on a way back is not exported again.
                ('freeze', 'program', 'cuMemExportToShareableHandle'),
                ('freeze', 'worker', 'cuMemImportFromShareableHandle'),
                ('freeze', 'worker', 'cuMemcpyDtoHAsync'), ('freeze', 'worker', 'cuEventSynchronize'),
                ('freeze', *WAITING), ('freeze', 'program', 'cuMemUnmap'),
                ('thaw', 'worker', 'cuMemCreate'), ('thaw', 'worker', 'cuMemcpyHtoDAsync'),
                ('thaw', 'worker', 'cuMemExportToShareableHandle'),
                ('thaw', 'program', 'cuMemImportFromShareableHandle'),
                ('thaw', 'program', 'cuMemMap'), ('thaw', 'program', 'cuMemSetAccess'),
                ('freeze', 'control', 'cuCheckpointProcessLock'),
                ('freeze', 'control', 'cuCheckpointProcessCheckpoint'),
                ('thaw', 'control', 'cuCheckpointProcessRestore')):
            if vendor.HIP and role == 'control':
                continue
            bring_to(machine, demo, verb)
            machine.watch_faults()
            machine.faults(f'{call} {vmm.ROLES[role]} error=CUDA_ERROR_UNKNOWN')
            result = machine.write(demo.pid, verb)
            check(result not in ('ok', 'ETIMEDOUT') and machine.faulted(),
                  f'{call} in the {role}: {result}')
            machine.faults()
            machine.wait_status(demo.pid, 'verb', '-')
            state = machine.state(demo.pid)
            check(state in (REACHED[verb][0], 'failed'), f'{call} in the {role}: {state}')
            if state != 'running':
                machine.must(demo.pid, 'thaw')
            demo.wait_ticks(2)
        vmm.cycle(machine, demo)


def test_driver_that_does_not_answer():
    """Nothing was handed over or locked: the program goes on, whatever the driver's helper does."""
    def hold(number):
        for pid, comm in machine.helpers():
            if vendor.HIP and comm == 'gpucr-control':
                harness.try_kill(pid, number)

    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--spin', 2, '--tick', 20)
        demo.wait_ticks(3)
        writer = machine.writer(demo.pid, 'freeze')
        machine.wait_status(demo.pid, 'phase', 'gate')
        hold(signal.SIGSTOP)
        machine.faults(f'cuCheckpointProcessGetState {vmm.ROLES["control"]} action=hang')
        machine.watch_faults()
        machine.must(demo.pid, 'cancel')
        equal(writer.result(), 'ECANCELED')
        equal(machine.state(demo.pid), 'running')
        demo.wait_ticks()
        check(not machine.faulted(), 'the driver was asked')
        machine.faults()
        hold(signal.SIGCONT)
        os.kill(demo.pid, signal.SIGUSR1)
        vmm.cycle(machine, demo)


def test_contexts_that_cannot_be_asked_after():
    """Their work is waited for all the same. Where GPUs are asked after and not contexts, no number
    of them is no answer; one that has been begun to wait for is waited for until it is done."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--spin', 3, '--tick', 20)
        demo.wait_ticks(4)
        for call, answer, words in (
                ('cuDeviceGetCount', *(('EIO', '') if vendor.HIP else UNFINISHED)),
                ('cuDevicePrimaryCtxGetState', *UNFINISHED)):
            machine.watch_faults()
            machine.faults(f'{call} {vmm.ROLES[WAITING[0]]} error=CUDA_ERROR_UNKNOWN')
            equal(machine.write(demo.pid, f'freeze data timeout={harness.SLOW}'), answer, call)
            check(words in machine.error(demo.pid), machine.error(demo.pid))
            equal(machine.state(demo.pid), 'running')
            check(machine.faulted(), call)
            machine.faults()
            demo.wait_ticks(2)
        os.kill(demo.pid, signal.SIGUSR1)
        vmm.cycle(machine, demo)


def test_worker_that_cannot_start():
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        for call in ('cuInit', 'cuDevicePrimaryCtxRetain', 'cuStreamCreate'):
            machine.faults(f'{call} comm=gpucr-worker error=CUDA_ERROR_UNKNOWN')
            result = machine.write(demo.pid, 'freeze')
            check(result in ('EIO', 'ENODEV', 'ok'), f'{call}: {result}')
            check_reached(machine, demo, 'freeze', result, call)
            machine.faults()
            vmm.recover(machine, demo)
            for pid, comm in machine.helpers():
                if comm == 'gpucr-worker':
                    harness.try_kill(pid, signal.SIGKILL)
            wait_for(lambda: not any(comm == 'gpucr-worker' for _, comm in machine.helpers()),
                     'the worker to end')
            demo.wait_ticks()
        vmm.cycle(machine, demo)


def workers(machine):
    return [pid for pid, comm in machine.helpers() if comm == 'gpucr-worker']


def test_worker_that_starts_slowly():
    """Its context takes longer than one look at the verb's deadline: the same worker is waited for."""
    with vmm.machine(worker_idle=1) as machine:
        demo = vmm.demo(machine, *SMALL)
        machine.faults('cuDevicePrimaryCtxRetain comm=gpucr-worker delay_ms=2500')
        for verb in ('freeze', 'thaw'):
            wait_for(lambda: not workers(machine), 'the worker to end')
            machine.must(demo.pid, f'{verb} timeout={30 * harness.SLOW}')
            if not vendor.HIP:  # where one that has had VRAM is not kept
                equal(len(workers(machine)), 1)
        demo.wait_ticks()


def test_no_vram_for_the_worker():
    """Its context does not fit: the freeze fails, or does without it; nothing is lost."""
    with vmm.machine(vram='64M') as machine:
        demo = vmm.demo(machine, '--bytes', '40M', '--buffers', 2, '--tick', 40)
        result = machine.write(demo.pid, 'freeze')
        check(result in ('ok', 'ENOMEM', 'EIO', 'ENODEV'), result)
        check_reached(machine, demo, 'freeze', result, 'no room for the context')
        vmm.recover(machine, demo)


def test_vram_taken_meanwhile():
    """By another program while it was frozen, at each size: still frozen, later it works."""
    with vmm.machine(vram='256M', worker_idle=1) as machine:
        demo = vmm.demo(machine, '--bytes', '8M', '--buffers', 4)
        machine.must(demo.pid, 'freeze')
        # No room for the worker's context, for the memory, or for the control state, which on AMD
        # has stayed.
        for size in (218, 210, 204, 198) if vendor.HIP else (230, 212, 200, 160):
            vmm.idle(machine)
            other = machine.ready_demo('--bytes', f'{size}M', '--buffers', 1, '--tick', 200,
                                       env={'GPUCR_PRELOAD_VMM': '0'})
            equal(machine.write(demo.pid, 'thaw'), 'ENOMEM', f'{size} MiB taken')
            equal(machine.state(demo.pid), 'frozen')
            equal(vmm.check_files(machine, demo), 8 * MIB)
            other.wait_ticks(1)
            other.end()
            wait_for(lambda: other.pid not in machine.pids(), 'it to go')
        if vendor.HIP:  # nothing of what did not fit is in use
            equal(vmm.idle(machine), vmm.kept(machine), 'VRAM in use')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_vram_taken_before_a_roll_back():
    """One of two cannot be frozen; when the other is to go back, the room of its control state is
    somebody else's: it is failed, and says so; a thaw brings it back."""
    if vendor.HIP:
        raise harness.Skip('the control state of AMD stays')
    with vmm.machine(vram='256M') as machine:
        good = vmm.demo(machine, *SMALL)
        # The driver alone freezes it: it takes no worker from the good one.
        bad = machine.ready_demo('--bytes', '4M', env={'GPUCR_PRELOAD_VMM': '0'})
        machine.faults(f'cuCheckpointProcessCheckpoint pid={bad.pid} delay_ms={3000 * harness.SLOW}'
                       ' error=CUDA_ERROR_UNKNOWN')
        writer = machine.writer(None, f'freeze {good.pid} {bad.pid}')
        wait_for(lambda: machine.status(good.pid)['phase'] == 'vote', 'the good one to be copied')
        thief = machine.ready_demo('--bytes', '160M', '--buffers', 1, '--tick', 200,
                                   env={'GPUCR_PRELOAD_VMM': '0'})
        equal(writer.result(), 'EIO')
        equal(machine.state(bad.pid), 'running')
        bad.wait_ticks()
        equal(machine.state(good.pid), 'failed')
        words = machine.error(good.pid)
        check('thaw tries again' in words and 'frozen' not in words and 'MiB free' in words, words)
        thief.end()
        wait_for(lambda: thief.pid not in machine.pids(), 'it to go')
        machine.must_recover(good)


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
