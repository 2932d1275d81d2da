# SPDX-License-Identifier: MIT
"""Programs that call functions which no table knows, and programs with a host memory pool: what can be
frozen is, and what cannot says why."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import check, equal, wait_for


def start(machine, what):
    program = machine.ready_demo(command=[*vendor.RUN, f'{harness.BUILD}/test/e2e/later', what])
    wait_for(lambda: machine.status(program.pid)['registered'] == 'yes', 'its library')
    return program


def test_harmless_function():
    """It is named, gets the driver's handle before and after freezes, and costs nothing."""
    with vmm.machine() as machine:
        program = start(machine, 'asks')
        status = machine.status(program.pid)
        equal([status['engine'], status['engine_reason'], status['unknown_functions']],
              ['vmm', '-', 'cuSimMemGetDevice'])
        vmm.survive(machine, program, 'vmm')


def test_function_that_may_bind():
    """The other engine's, and named twice."""
    with vmm.machine() as machine:
        program = start(machine, 'binds')
        status = machine.status(program.pid)
        equal([status['engine'], status['unknown_functions']], ['driver', 'cuSimMemBind'])
        check('cuSimMemBind' in status['engine_reason'], status['engine_reason'])
        vmm.survive(machine, program, 'driver')


def test_none():
    """Looking one up is nothing."""
    with vmm.machine() as machine:
        program = start(machine, 'nothing')
        equal(machine.status(program.pid)['unknown_functions'], '-')


def refused_until_told(what, words):
    with vmm.machine() as machine:
        program = start(machine, what)
        equal(machine.write(program.pid, 'freeze'), 'EOPNOTSUPP')
        check(words in machine.error(program.pid), machine.error(program.pid))
        program.wait_ticks()
        os.kill(program.pid, signal.SIGUSR1)
        program.wait_ticks()
        vmm.survive(machine, program, 'vmm')


def test_host_pool():
    refused_until_told('pool', 'a memory pool in host memory')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
