# SPDX-License-Identifier: MIT
"""The filesystem of the runtime directory is full, whoever has filled it: what is frozen can be thawed,
also by a next daemon."""
import contextlib
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import Machine, Skip, check, equal, is_root


@contextlib.contextmanager
def small_runtime(**options):
    """A machine whose runtime directory is a filesystem of 8 MiB."""
    if not is_root():
        raise Skip('only root can mount a small filesystem')
    with Machine(start=False, **options) as machine:
        os.mkdir(machine.runtime, 0o755)
        done = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=8m,mode=755', 'none', machine.runtime],
                              check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise Skip(f'a small filesystem cannot be mounted: {done.stderr.strip()}')
        try:
            yield machine.start()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(f'{machine.runtime}/filler')
            if machine.daemon and machine.daemon.poll() is None:
                machine.stop()
            subprocess.run(['umount', '-R', '-l', machine.runtime], check=True)


def fill(machine):
    """To the last byte."""
    with open(f'{machine.runtime}/filler', 'ab', buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
    now = os.statvfs(machine.runtime)
    equal(now.f_bfree, 0, 'free blocks of the runtime directory')


def thaw_on_full(vmm, kill):
    with small_runtime(vmm=vmm) as machine:
        one = machine.ready_demo()
        other = machine.ready_demo()
        machine.must(one.pid, 'freeze')
        fill(machine)
        # There is no room for its record, so it is not frozen.
        check(machine.write(other.pid, 'freeze') == 'ENOSPC', machine.error(other.pid))
        equal(machine.state(other.pid), 'running')
        other.wait_ticks(2)
        if kill:
            machine.daemon.kill()
            machine.daemon.wait()
            machine.start()
            machine.wait_status(one.pid, 'state', 'frozen')
        machine.must(one.pid, 'thaw')
        one.wait_ticks(2)
        os.unlink(f'{machine.runtime}/filler')
        machine.must(other.pid, 'freeze')
        fill(machine)
        machine.must(other.pid, 'thaw')
        other.wait_ticks(2)
        equal(os.listdir(f'{machine.runtime}/processes'), [])


def test_thaw():
    thaw_on_full(vmm=False, kill=False)


def test_thaw_by_the_next_daemon():
    thaw_on_full(vmm=False, kill=True)


def test_thaw_vmm():
    thaw_on_full(vmm=True, kill=False)


def test_thaw_vmm_by_the_next_daemon():
    thaw_on_full(vmm=True, kill=True)


def test_failed_thaw():
    """The driver refuses the thaw: the process is rolled back, and thawed later."""
    harness.same_for_both('a thaw that the driver refuses')
    with small_runtime() as machine:
        one = machine.ready_demo()
        machine.must(one.pid, 'freeze')
        fill(machine)
        machine.faults('cuCheckpointProcessRestore error=CUDA_ERROR_OUT_OF_MEMORY')
        check(machine.write(one.pid, 'thaw') != 'ok', 'it was thawed')
        machine.faults()
        machine.must(one.pid, 'thaw')
        one.wait_ticks(2)


def test_killed_in_a_verb():
    """In the middle of a thaw, and of a freeze for whose record there was room: the next daemon ends
    either without room, and another thaw succeeds."""
    harness.same_for_both('the calls of the driver')
    with small_runtime() as machine:
        one = machine.ready_demo()
        for verb, call, phase in (('freeze', 'cuCheckpointProcessCheckpoint', 'checkpoint'),
                                  ('thaw', 'cuCheckpointProcessRestore', 'restore')):
            machine.must(one.pid, 'thaw' if verb == 'freeze' else 'freeze')
            machine.hold_at(call)
            writer = machine.writer(one.pid, verb)
            machine.wait_status(one.pid, 'phase', phase)
            fill(machine)
            machine.daemon.kill()
            machine.daemon.wait()
            machine.let_go()
            writer.result()
            machine.start()
            machine.wait_status(one.pid, 'verb', '-')
            check(machine.state(one.pid) in ('running', 'frozen'), machine.state(one.pid))
            machine.must(one.pid, 'thaw')
            one.wait_ticks(2)
            os.unlink(f'{machine.runtime}/filler')


def test_cancelled_freeze():
    """A freeze that is given up when there is no room any more."""
    harness.same_for_both('the calls of the driver')
    with small_runtime() as machine:
        one = machine.ready_demo()
        machine.hold_at('cuCheckpointProcessCheckpoint')
        writer = machine.writer(one.pid, 'freeze')
        machine.wait_status(one.pid, 'phase', 'checkpoint')
        fill(machine)
        cancel = machine.writer(one.pid, 'cancel')
        check(cancel.is_waiting(), 'the driver is waited for')
        machine.let_go()
        # The driver may have been through before the daemon heard of it.
        check(writer.result() in ('ECANCELED', 'ok'), machine.error(one.pid))
        cancel.result()
        machine.must(one.pid, 'thaw')
        one.wait_ticks(2)
        equal(os.listdir(f'{machine.runtime}/processes'), [])


if __name__ == '__main__':
    harness.main(globals())
