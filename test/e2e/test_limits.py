# SPDX-License-Identifier: MIT
"""Stack limits: small while a process is frozen, exactly the program's own when it goes on."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import BUILD, MIB, Machine, check, equal, needs_cuda, wait_for

# What a context is accounted at with the default limit of 1024 bytes; half of it is for stacks.
CONTEXT_BYTES = 64 * MIB
STACK_BYTES = CONTEXT_BYTES // 2
# test/e2e/stacks.c has one with 1024 and one with 784 bytes.
OWN_BYTES = STACK_BYTES + STACK_BYTES * 784 // 1024
AGENT = 'thread=gpucr-agent'


def make_machine(vram='1G'):
    return Machine(vram=vram, vmm=True, env={'GPUCR_SIM_CONTEXT_BYTES': '64M'})


def start(machine):
    if vendor.HIP:
        return vmm.demo(machine)
    program = machine.demo(command=[*vendor.RUN, f'{BUILD}/test/e2e/stacks'])
    program.wait_ready()
    machine.wait_status(program.pid, 'engine', vendor.ENGINE)
    return program


def start_cycled(machine):
    """One that has been frozen and thawed: the worker is there. And the VRAM in use then."""
    program = start(machine)
    vmm.cycle(machine, program)
    return program, machine.used()


def take_room(machine, used):
    """Somebody takes half of what the stacks had."""
    wait_for(lambda: machine.used() == used - OWN_BYTES, 'the VRAM of the stacks to be free')
    room = machine.free() - OWN_BYTES // 2 - CONTEXT_BYTES
    return machine.ready_demo('--bytes', f'{room // MIB}M', '--buffers', 1)


def test_exact_after_every_cycle():
    needs_cuda('stack limits that a freeze changes')
    with make_machine() as machine:
        program, used = start_cycled(machine)
        for _ in range(5):
            machine.must(program.pid, 'freeze')
            machine.must(program.pid, 'thaw')
            equal(machine.used(), used, 'VRAM in use')
            program.wait_ticks(2)


def test_small_while_it_is_out():
    needs_cuda('stack limits that a freeze changes')
    with make_machine() as machine:
        program, used = start_cycled(machine)
        machine.faults(f'cuCheckpointProcessCheckpoint delay_ms={1500 * harness.SLOW}')
        writer = machine.writer(program.pid, 'freeze')
        machine.wait_status(program.pid, 'phase', 'checkpoint')
        wait_for(lambda: machine.used() == used - OWN_BYTES, 'the VRAM of the stacks to be free')
        check(writer.is_waiting(), 'it is in the checkpoint')
        equal(writer.result(), 'ok')
        machine.must(program.pid, 'thaw')
        equal(machine.used(), used, 'VRAM in use')
        program.wait_ticks()


def test_not_for_data():
    """What stays in VRAM stays as it is."""
    with make_machine() as machine:
        program = start(machine)
        machine.faults(f'cuCtxSetLimit {AGENT} error=CUDA_ERROR_UNKNOWN action=kill')
        for verb in ['freeze data'] + ['freeze'] * vendor.HIP:
            vmm.cycle(machine, program, verb)


def test_one_that_cannot_be_shrunk():
    needs_cuda('stack limits that a freeze changes')
    with make_machine() as machine:
        program = start(machine)
        for number in 1, 2:
            machine.faults(f'cuCtxSetLimit {AGENT} nth={number} error=CUDA_ERROR_UNKNOWN')
            vmm.cycle(machine, program)


def test_cannot_be_set_back():
    """Whichever of the two it is: frozen still, and the next thaw does it."""
    needs_cuda('stack limits that a freeze changes')
    with make_machine() as machine:
        program = start(machine)
        for number in 1, 2:
            for error, errno in (('OUT_OF_MEMORY', 'ENOMEM'), ('UNKNOWN', 'EIO')):
                machine.faults()
                machine.must(program.pid, 'freeze')
                generation = machine.status(program.pid)['generation']
                stood = program.wait_standstill()
                machine.faults(f'cuCtxSetLimit {AGENT} nth={number} error=CUDA_ERROR_{error}')
                equal(machine.write(program.pid, 'thaw'), errno)
                words = machine.error(program.pid)
                check('stack' in words, words)
                status = machine.status(program.pid)
                equal([status['state'], status['generation']], ['frozen', generation])
                equal(program.ticks(), stood)
                machine.must(program.pid, 'thaw')
                program.wait_ticks()


def test_room_taken_in_the_middle_of_a_thaw():
    """Between the driver's restore and the end somebody else takes what the stacks had."""
    needs_cuda('stack limits that a freeze changes')
    with make_machine(vram='512M') as machine:
        program, used = start_cycled(machine)
        machine.must(program.pid, 'freeze')
        machine.faults(f'cuMemImportFromShareableHandle {AGENT} nth=1 '
                       f'delay_ms={4000 * harness.SLOW}')
        writer = machine.writer(program.pid, 'thaw')
        machine.wait_status(program.pid, 'phase', 'map')
        thief = take_room(machine, used)
        equal(writer.result(), 'ENOMEM')
        words = machine.error(program.pid)
        check('too little free memory for the stacks' in words, words)
        equal(machine.state(program.pid), 'frozen')
        thief.wait_ticks()
        equal(machine.write(program.pid, 'thaw'), 'ENOMEM')
        thief.end()
        machine.must(program.pid, 'thaw')
        program.wait_ticks()


def test_a_freeze_that_is_rolled_back():
    needs_cuda('stack limits that a freeze changes')
    with make_machine() as machine:
        program = start(machine)
        machine.faults('cuCheckpointProcessCheckpoint error=CUDA_ERROR_UNKNOWN')
        equal(machine.write(program.pid, 'freeze'), 'EIO')
        equal(machine.state(program.pid), 'running')
        program.wait_ticks()


def test_room_taken_before_a_roll_back():
    needs_cuda('stack limits that a freeze changes')
    with make_machine(vram='512M') as machine:
        program, used = start_cycled(machine)
        machine.faults(f'cuCheckpointProcessLock delay_ms={4000 * harness.SLOW} '
                       'error=CUDA_ERROR_UNKNOWN')
        writer = machine.writer(program.pid, 'freeze')
        machine.wait_status(program.pid, 'phase', 'lock')
        thief = take_room(machine, used)
        equal(writer.result(), 'EIO')
        words = machine.error(program.pid)
        check('too little free memory for the stacks' in words, words)
        equal(machine.state(program.pid), 'failed')
        thief.wait_ticks()
        thief.end()
        machine.faults()
        machine.must(program.pid, 'thaw')
        equal(machine.state(program.pid), 'running')
        program.wait_ticks()


def test_the_daemon_dies():
    """Nobody comes: the library sets the limits back by itself."""
    needs_cuda('stack limits that a freeze changes')
    with make_machine() as machine:
        program = start(machine)
        machine.faults(f'cuCheckpointProcessLock delay_ms={4000 * harness.SLOW} '
                       'error=CUDA_ERROR_UNKNOWN')
        machine.writer(program.pid, 'freeze')
        machine.wait_status(program.pid, 'phase', 'lock')
        machine.expects_clean_exit = False
        machine.stop(signal.SIGKILL)
        program.wait_ticks(seconds=30 * harness.SLOW)


if __name__ == '__main__':
    harness.main(globals())
