# SPDX-License-Identifier: MIT
"""Programs whose main thread ends while other threads go on: /proc then shows nothing of what the
process has open and mapped, its state is that of a zombie, and it lives (test/e2e/main_ends.c)."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import (BUILD, NOBODY, Demo, Machine, check, equal, is_alive, is_root, same_for_both,
                     wait_for)


def start(machine, becomes=None):
    """gpucr-demo, which is listed, and the file at which its main thread ends."""
    end = f'{machine.directory}/end'
    env = {'LD_PRELOAD': f'{BUILD}/test/e2e/libmain_ends.so', 'GPUCR_TEST_MAIN_ENDS': end}
    if becomes is not None:
        env['GPUCR_TEST_MAIN_UID'] = str(becomes)
    os.chmod(machine.directory, 0o755)
    demo = Demo(machine, ['--bytes', '6M', '--buffers', 2, '--tick', 50], env=env)
    machine.demos.append(demo)
    demo.wait_ready()
    # A look at a process whose main thread has ended does not find what it has open.
    wait_for(lambda: demo.pid in machine.pids(), 'it to be listed')
    return demo, end


def end_main_thread(demo, end):
    with open(end, 'w', encoding='utf-8'):
        pass
    wait_for(lambda: not is_alive(demo.pid), 'the end of the main thread')


def frozen_without_main_thread(machine):
    """A program whose main thread has ended while it was frozen."""
    demo, end = start(machine)
    machine.must(demo.pid, 'freeze')
    end_main_thread(demo, end)
    return demo


def test_while_it_is_frozen():
    """Nothing of it is lost."""
    for vmm in (True, False):
        with Machine(vmm=vmm) as machine:
            demo, end = start(machine)
            machine.must(demo.pid, 'freeze')
            demo.wait_standstill()
            end_main_thread(demo, end)
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
            equal(machine.state(demo.pid), 'running')


def test_while_nobody_serves():
    """The next daemon finds it frozen."""
    for vmm in (True, False):
        with Machine(vmm=vmm) as machine:
            demo, end = start(machine)
            machine.must(demo.pid, 'freeze')
            machine.stop(signal.SIGKILL)
            end_main_thread(demo, end)
            machine.start()
            equal(machine.state(demo.pid), 'frozen')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()


def test_driver_knows_it_no_more_and_nobody_serves():
    """Its maps are empty, as those of no program are: it has not replaced its program, and keeps its
    bytes."""
    same_for_both('what the driver knows of a process')
    with Machine(vmm=True) as machine:
        demo, end = start(machine)
        machine.must(demo.pid, 'freeze')
        machine.stop(signal.SIGKILL)
        end_main_thread(demo, end)
        # Its library does not connect to the next daemon, which finds no page.
        os.kill(demo.pid, signal.SIGSTOP)
        machine.faults('cuCheckpointProcessGetState where=caller error=3 times=1000')
        machine.start()
        machine.wait_status(demo.pid, 'verb', '-')
        check(machine.write(demo.pid, 'thaw timeout=2') != 'ok', 'it was to fail')
        equal(machine.state(demo.pid), 'frozen')
        machine.faults()
        os.kill(demo.pid, signal.SIGCONT)
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_thread_ends_as_the_driver_looks():
    """The driver is asked by another thread: to it, an id that nobody has is an error like any other."""
    same_for_both('by which thread the driver finds a process')
    for vmm in (True, False):
        with Machine(vmm=vmm) as machine:
            demo = frozen_without_main_thread(machine)
            # The first look at it is by the main thread; so is the first Restore.
            machine.watch_faults()
            machine.faults('cuCheckpointProcessRestore where=caller nth=2 error=304',
                           'cuCheckpointProcessGetState where=caller nth=4 error=304')
            machine.must(demo.pid, 'thaw')
            equal(sorted(call for _, _, call in machine.faulted()),
                  ['cuCheckpointProcessGetState', 'cuCheckpointProcessRestore'])
            machine.faults()
            demo.wait_ticks()


def test_no_thread_is_found():
    """The program is not given up: the next thaw finds one."""
    same_for_both('by which thread the driver finds a process')
    for vmm in (True, False):
        with Machine(vmm=vmm) as machine:
            demo = frozen_without_main_thread(machine)
            machine.faults('cuCheckpointProcessRestore where=caller error=304',
                           'cuCheckpointProcessGetState where=caller nth=3 times=1000 error=304')
            equal(machine.write(demo.pid, 'thaw timeout=2'), 'EIO')
            check('did not find' in machine.error(demo.pid), machine.error(demo.pid))
            machine.must_recover(demo)
            equal(machine.state(demo.pid), 'running')


def test_found_and_refused():
    """The driver cannot restore it, and that is not taken for a thread that was not found."""
    same_for_both('by which thread the driver finds a process')
    with Machine() as machine:
        demo = frozen_without_main_thread(machine)
        machine.faults('cuCheckpointProcessRestore where=caller error=304')
        equal(machine.write(demo.pid, 'thaw timeout=2'), 'EIO')
        check('cannot try again' in machine.error(demo.pid), machine.error(demo.pid))
        equal(machine.state(demo.pid), 'failed')


def test_refused():
    """What it shares with others cannot be seen."""
    for vmm in (True, False):
        with Machine(vmm=vmm) as machine:
            demo, end = start(machine)
            end_main_thread(demo, end)
            equal(machine.write(demo.pid, 'freeze'), 'EOPNOTSUPP')
            check('main thread' in machine.error(demo.pid), machine.error(demo.pid))
            demo.wait_ticks()


def test_whose_it_is():
    """Having given up root's rights it is root's, as its main thread was: its user's other processes
    have no right to it."""
    same_for_both('whose a process is')
    if not is_root():
        raise harness.Skip('several users are needed')
    with Machine() as machine:
        demo, end = start(machine, becomes=NOBODY)
        path = machine.path(demo.pid, 'status')
        for frozen in False, True:
            if frozen:
                end_main_thread(demo, end)
            equal(os.stat(path).st_uid, 0)
            equal(machine.writer(demo.pid, 'pack', uid=NOBODY).result(), 'EACCES')
            equal(machine.writer(None, f'pack {demo.pid}', uid=NOBODY).result(), 'EPERM')
            if not frozen:
                machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


if __name__ == '__main__':
    harness.main(globals())
