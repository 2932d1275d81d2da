# SPDX-License-Identifier: MIT
"""thaw gpu=OLD:NEW where the context of the program does not go along, or has gone there before in a
thaw that was undone: its memory and its context are on one GPU, whatever comes first, and no byte is
lost."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, Machine, check, equal, needs_cuda

MOVE = 'thaw gpu=0:1'
HOME, AWAY = '0', '1'
DELAY_MSEC = 300 * harness.SLOW
KINDS = {
    'plain': ('--bytes', '6M', '--buffers', 2, '--tick', 40),
    'managed': ('--bytes', '6M', '--buffers', 2, '--managed', 1, '--own-vmm', 1, '--tick', 40),
}
# What a program calls for managed memory only.
MANAGED_CALLS = ('cuMemAllocManaged', 'cuMemFree', 'cuMemcpyHtoD', 'cuMemcpyDtoH')
# Why it is not thawed at once: where its context is, and that it comes there just then.
WORDS = ('context has stayed', 'an earlier daemon had begun')


def machine_of_two(**options):
    needs_cuda('gpu=OLD:NEW')
    return vmm.machine(gpus=2, vram='256M', **options)


def check_is_on(machine, demo, gpu):
    """It runs there, with all of its memory: a freeze finds it, and what it has is right."""
    machine.wait_status(demo.pid, 'gpus', gpu)
    demo.wait_ticks(2)
    machine.must(demo.pid, 'freeze')
    check(vmm.check_files(machine, demo) > 0, 'bytes compared')
    machine.must(demo.pid, 'thaw')
    machine.wait_status(demo.pid, 'gpus', gpu)
    demo.wait_ticks(2)


def refuses_to_move(machine, demo):
    equal(machine.write(demo.pid, MOVE), 'EOPNOTSUPP')
    check('context has stayed on GPU 0' in machine.error(demo.pid), machine.error(demo.pid))
    equal(machine.state(demo.pid), 'frozen')


def test_its_context_has_stayed():
    """freeze data leaves it where it is, and memory of another GPU would be of no use to it."""
    for arguments in KINDS.values():
        with machine_of_two(options=',keep=64M') as machine:
            demo = vmm.demo(machine, '--gpu', 0, *arguments)
            other = vmm.demo(machine, '--gpu', 0, *KINDS['plain'])
            vmm.cycle(machine, demo)
            machine.must(demo.pid, 'freeze data')
            refuses_to_move(machine, demo)
            machine.must(demo.pid, 'pack')
            refuses_to_move(machine, demo)
            machine.must(demo.pid, 'thaw gpu=1:1')
            check_is_on(machine, demo, HOME)
            # The same, for another one that is thawed.
            machine.must(other.pid, 'freeze')
            machine.must(other.pid, f'thaw swap={demo.pid} data')
            refuses_to_move(machine, demo)
            machine.must(demo.pid, 'thaw')
            check_is_on(machine, demo, HOME)
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, MOVE)
            check_is_on(machine, demo, AWAY)
            machine.must(demo.pid, 'freeze data')
            machine.must(demo.pid, 'thaw')
            check_is_on(machine, demo, AWAY)


def bring_home(machine, demo):
    """Frozen, on GPU 0. Whoever calls has checked where it is just before."""
    machine.wait_status(demo.pid, 'verb', '-')
    if machine.state(demo.pid) != 'running':
        machine.must(demo.pid, 'thaw')
    if machine.status(demo.pid)['gpus'] != HOME:
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw gpu=1:0')
        machine.wait_status(demo.pid, 'gpus', HOME)
        demo.wait_ticks(2)
        if harness.ALL:  # else the bytes of the next freeze are compared before its thaw
            check_is_on(machine, demo, HOME)
    machine.must(demo.pid, 'freeze')


def ways(number):
    """Where it is asked to go afterwards, by which verb: in turns; both with GPUCR_TEST_ALL."""
    both = (('thaw', HOME), (MOVE, AWAY))
    return harness.few((both[number % 2],), both)


def calls_of_move(machine, demo, role):
    machine.watch_faults()
    machine.faults(f'* {vmm.ROLES[role]}')
    machine.must(demo.pid, MOVE)
    machine.faults()
    calls = list(dict.fromkeys(call for _, _, call in machine.faulted()))
    bring_home(machine, demo)
    return calls


def is_undone(role, kind):
    """It goes where it is asked to go then, with its memory and its context."""
    undone = 0
    with machine_of_two(options=',keep=64M') as machine:
        demo = vmm.demo(machine, '--gpu', 0, *KINDS[kind])
        machine.must(demo.pid, 'freeze')
        for number, call in enumerate(calls_of_move(machine, demo, role)):
            # For all we know the driver has lost it then; and without its advice the demo ends.
            if call in ('cuCheckpointProcessRestore', 'cuMemAdvise'):
                continue
            # Usually every other call of those that are tried with the plain kind, too.
            if kind == 'managed' and number % 2 and not call.startswith(MANAGED_CALLS) and not harness.ALL:
                continue
            for verb, gpu in ways(number // 2 if kind == 'managed' else number):
                machine.faults(f'{call} {vmm.ROLES[role]} times=1 error=CUDA_ERROR_UNKNOWN')
                result = machine.write(demo.pid, MOVE)
                machine.faults()
                machine.wait_status(demo.pid, 'verb', '-')
                if result == 'ok':
                    check_is_on(machine, demo, AWAY)
                else:
                    equal(machine.state(demo.pid), 'frozen', f'{call}: {machine.error(demo.pid)}')
                    vmm.check_files(machine, demo)
                    machine.must(demo.pid, verb)
                    check_is_on(machine, demo, gpu)
                    undone += 1
                bring_home(machine, demo)
    check(undone, f'{role}: nothing was undone')


def test_the_program_fails():
    is_undone('program', 'plain')


def test_the_program_with_managed_memory_fails():
    is_undone('program', 'managed')


def test_a_worker_fails():
    is_undone('worker', 'plain')


def test_the_control_helper_fails():
    is_undone('control', 'plain')


def test_undone_twice():
    """Where it is does not depend on how often."""
    call = f'cuMemImportFromShareableHandle {vmm.ROLES["program"]} times=1 error=CUDA_ERROR_UNKNOWN'
    with machine_of_two() as machine:
        demo = vmm.demo(machine, '--gpu', 0, *KINDS['plain'])
        for verbs, gpu in (((MOVE, MOVE), HOME), ((MOVE, MOVE, MOVE), AWAY), ((MOVE, 'thaw'), HOME),
                           ((MOVE, 'thaw', MOVE), AWAY)):
            machine.must(demo.pid, 'freeze')
            for verb in verbs:
                machine.faults(call)
                equal(machine.write(demo.pid, verb), 'EIO')
                equal(machine.state(demo.pid), 'frozen')
            machine.faults()
            machine.must(demo.pid, 'thaw' if gpu == HOME else MOVE)
            check_is_on(machine, demo, gpu)
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw gpu=1:0' if gpu == AWAY else 'thaw')


def test_without_vmm():
    """The driver alone, whose Restore is done and undone."""
    needs_cuda('gpu=OLD:NEW')
    with Machine(gpus=2) as machine:
        demo = machine.ready_demo('--gpu', 0, env={'GPUCR_PRELOAD_VMM': '0'})
        for verb, gpu in (('thaw', HOME), (MOVE, AWAY)):
            machine.must(demo.pid, 'freeze')
            machine.watch_faults()
            machine.faults(f'cuCheckpointProcessRestore when=after times=1 delay_ms={DELAY_MSEC}')
            writer = machine.writer(demo.pid, MOVE)
            machine.wait_faulted()
            machine.must(demo.pid, 'cancel')
            writer.result()
            machine.faults()
            machine.wait_status(demo.pid, 'verb', '-')
            equal(machine.state(demo.pid), 'frozen', machine.error(demo.pid))
            machine.must(demo.pid, verb)
            machine.wait_status(demo.pid, 'gpus', gpu)
            demo.wait_ticks()
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw gpu=1:0' if gpu == AWAY else 'thaw')


def daemon_dies(role, when):
    """The next one finds out whether the Restore was made."""
    with machine_of_two() as machine:
        demo = vmm.demo(machine, '--gpu', 0, *KINDS['plain'])
        machine.must(demo.pid, 'freeze')
        for number, call in enumerate(calls_of_move(machine, demo, role)):
            for verb, gpu in ways(number):
                machine.watch_faults()
                machine.faults(f'{call} {vmm.ROLES[role]} times=1 when={when} delay_ms={DELAY_MSEC}')
                writer = machine.writer(demo.pid, MOVE)
                machine.wait_faulted()
                machine.daemon.kill()
                machine.daemon.wait()
                writer.result()
                machine.faults()
                machine.start()
                machine.wait_status(demo.pid, 'verb', '-')
                state = machine.state(demo.pid)
                check(state in ('running', 'frozen'), f'{call}: {state}: {machine.error(demo.pid)}')
                if state == 'frozen':
                    vmm.check_files(machine, demo)
                    # With its context on the other one it is thawed there, or not at all.
                    if machine.write(demo.pid, verb) != 'ok':
                        check(any(words in machine.error(demo.pid) for words in WORDS),
                              machine.error(demo.pid))
                        machine.must(demo.pid, 'thaw')
                machine.wait_status(demo.pid, 'engine', vendor.ENGINE)
                check_is_on(machine, demo, machine.status(demo.pid)['gpus'])
                bring_home(machine, demo)


def test_the_daemon_dies_in_a_restore():
    daemon_dies('control', 'after')


def test_the_daemon_dies_before_a_restore():
    daemon_dies('control', 'before')


def test_the_daemon_dies_while_it_is_mapped():
    daemon_dies('program', 'after')


def test_the_daemon_dies_after_it_was_undone():
    """What the driver has moved stands in the record."""
    with machine_of_two() as machine:
        demo = vmm.demo(machine, '--gpu', 0, *KINDS['plain'])
        for verb, gpu in (('thaw', HOME), (MOVE, AWAY)):
            machine.must(demo.pid, 'freeze')
            machine.faults(f'cuMemImportFromShareableHandle {vmm.ROLES["program"]} times=1 '
                           'error=CUDA_ERROR_UNKNOWN')
            equal(machine.write(demo.pid, MOVE), 'EIO')
            machine.faults()
            machine.daemon.kill()
            machine.daemon.wait()
            machine.start()
            machine.wait_status(demo.pid, 'verb', '-')
            equal(machine.state(demo.pid), 'frozen')
            equal(vmm.check_files(machine, demo), 6 * MIB)
            machine.must(demo.pid, verb)
            check_is_on(machine, demo, gpu)
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw gpu=1:0' if gpu == AWAY else 'thaw')


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
