# SPDX-License-Identifier: MIT
"""Programs that work in a green context: both engines freeze them, and the fast one when the work of
their green streams is done, not before."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import check, equal, wait_for

PROGRAM = f'{harness.BUILD}/test/e2e/green'
NOT_FINISHED = 'a green context of GPU 0 has not finished its work'


def start(machine, *arguments):
    program = machine.ready_demo(command=[*vendor.RUN, PROGRAM, *arguments])
    wait_for(lambda: machine.status(program.pid)['engine'] == 'vmm', 'its engine')
    return program


def survive(machine, program, engine='vmm', cycles=3):
    for _ in range(cycles):
        machine.must(program.pid, 'freeze')
        equal(machine.status(program.pid)['engine'], engine)
        program.wait_standstill()
        machine.must(program.pid, 'thaw')
        program.wait_ticks()


def test_cycles():
    with vmm.machine() as machine:
        program = start(machine)
        survive(machine, program)
        os.kill(program.pid, signal.SIGUSR2)
        program.wait_ticks()
        survive(machine, program)


def test_driver():
    """Without the library, by the driver alone."""
    with harness.Machine() as machine:
        program = machine.ready_demo(command=[PROGRAM])
        survive(machine, program, 'driver')


def test_driver_with_library():
    """The library has no say in it either."""
    with vmm.machine() as machine:
        program = machine.ready_demo(command=[*vendor.RUN, '--no-vmm', PROGRAM])
        survive(machine, program, 'driver')


def test_waits_for_kernel():
    with vmm.machine() as machine:
        program = start(machine, 'spin')
        writer = machine.writer(program.pid, 'freeze')
        machine.wait_status(program.pid, 'phase', 'gate')
        os.kill(program.pid, signal.SIGUSR1)
        equal(writer.result(), 'ok')
        program.wait_standstill()
        machine.must(program.pid, 'thaw')
        program.wait_ticks()
        survive(machine, program)


def refused_at_deadline(machine, program):
    for _ in range(2):
        equal(machine.write(program.pid, f'freeze timeout={2 * harness.SLOW}'), 'ETIMEDOUT')
        check(NOT_FINISHED in machine.error(program.pid), machine.error(program.pid))
        equal(machine.state(program.pid), 'running')
        program.wait_ticks()


def test_kernel_that_never_ends():
    with vmm.machine() as machine:
        program = start(machine, 'spin')
        refused_at_deadline(machine, program)
        os.kill(program.pid, signal.SIGUSR1)
        survive(machine, program)


def test_destroyed_while_its_kernel_runs():
    with vmm.machine() as machine:
        program = start(machine, 'spin')
        os.kill(program.pid, signal.SIGUSR2)
        program.wait_ticks()
        refused_at_deadline(machine, program)
        os.kill(program.pid, signal.SIGUSR1)
        survive(machine, program)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
