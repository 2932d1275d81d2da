# SPDX-License-Identifier: MIT
"""Programs whose libraries would go around the preload library: opened with RTLD_DEEPBIND they do not,
and where that cannot be prevented the process is known to be one of the other engine's."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, check, equal, wait_for

HERE = f'{harness.BUILD}/test/e2e'


def start(machine, plugin, *arguments, env=None):
    program = machine.demo(command=[*vendor.RUN, f'{HERE}/deepbind', f'{HERE}/libdeepbind-{plugin}.so',
                                    *arguments], env=env)
    return program.wait_ready()


def test_found():
    """Its dlsym, and cuGetProcAddress found by it, are ours."""
    with vmm.machine() as machine:
        program = start(machine, 'found')
        wait_for(lambda: machine.status(program.pid)['engine'] == 'vmm', 'engine vmm')
        equal(machine.status(program.pid)['engine_reason'], '-')
        machine.must(program.pid, 'freeze')
        equal(sum(os.stat(path).st_size for path in
                  (machine.path(program.pid, 'snapshot', 'vram', name) for name in
                   os.listdir(machine.path(program.pid, 'snapshot', 'vram')))), 8 * MIB)
        machine.must(program.pid, 'thaw')
        vmm.survive(machine, program, 'vmm')


def test_linked():
    """It is linked with libcuda."""
    with vmm.machine() as machine:
        program = start(machine, 'linked')
        wait_for(lambda: machine.status(program.pid)['engine'] == 'vmm', 'engine vmm')
        vmm.survive(machine, program, 'vmm')


def test_flag_kept():
    """The gate is incomplete, and the status says of what."""
    with vmm.machine() as machine:
        program = start(machine, 'linked', env={'GPUCR_PRELOAD_DEEPBIND': '1'})
        # Its library has not even seen cuInit.
        equal(machine.status(program.pid)['engine'], 'driver')
        vmm.survive(machine, program, 'driver')
        program = start(machine, 'found', env={'GPUCR_PRELOAD_DEEPBIND': '1'})
        equal(machine.status(program.pid)['engine'], 'driver')
        vmm.survive(machine, program, 'driver')


def test_name_space():
    with vmm.machine() as machine:
        program = start(machine, 'found', f'{HERE}/libdeepbind-helper.so')
        wait_for(lambda: 'dlmopen: libdeepbind-helper.so' in
                 machine.status(program.pid)['engine_reason'], 'the reason')
        status = machine.status(program.pid)
        equal(status['engine'], 'driver')
        check('gate is incomplete' in status['engine_reason'], status['engine_reason'])


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
