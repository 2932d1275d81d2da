# SPDX-License-Identifier: MIT
"""thaw swap=PID: one process comes back while another one goes out. Whatever fails, is cancelled or
dies in the middle: nothing is lost, and both are where they were, or where they were to go."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, check, equal, same_for_both, wait_for

FIT = {'vram': '256M'}
FITTING = ('--bytes', '24M', '--buffers', 6, '--own-vmm', 1, '--tick', 60)
# Two of these do not fit, and a third of one does beside the other.
NO_FIT = {'vram': '256M'}
LARGE = ('--bytes', '130M', '--buffers', 10, '--tick', 200)
LARGE_BYTES = 130 * MIB
# And here not even the contexts of two workers do.
LARGER = ('--bytes', '144M', '--buffers', 9, '--tick', 200)
NOBODY = 65534


def pair(machine, *arguments):
    """One that runs and one that is frozen."""
    frozen = vmm.demo(machine, *arguments)
    machine.must(frozen.pid, 'freeze')
    return vmm.demo(machine, *arguments), frozen


def swap(running):
    return f'thaw swap={running.pid}'


def check_states(machine, running, frozen):
    for demo in (running, frozen):
        machine.wait_status(demo.pid, 'verb', '-')
    equal(machine.state(running.pid), 'running', machine.error(running.pid))
    equal(machine.state(frozen.pid), 'frozen', machine.error(frozen.pid))
    running.wait_ticks(2)


def exchange(machine, running, frozen, more=''):
    machine.must(frozen.pid, swap(running) + more)
    check_states(machine, frozen, running)


def test_back_and_forth():
    with vmm.machine(**FIT) as machine:
        running, frozen = pair(machine, *FITTING)
        for number in range(harness.few(4, 10)):
            exchange(machine, running, frozen, ' data' if number % 3 == 2 else '')
            vmm.check_files(machine, running)
            running, frozen = frozen, running
        workers = [comm for _, comm in machine.helpers() if comm == 'gpucr-worker']
        check(len(workers) == 2 or vendor.HIP, f'{len(workers)} workers')
        # What is there already succeeds; the root's ctl takes it too.
        machine.must(running.pid, swap(frozen))
        machine.must(None, f'thaw {frozen.pid} swap={running.pid} timeout=60')
        check_states(machine, frozen, running)


def test_too_large_for_both():
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGE)
        equal(machine.write(frozen.pid, 'thaw'), 'ENOMEM')
        for _ in range(harness.few(1, 2)):
            exchange(machine, running, frozen)
            equal(vmm.check_files(machine, running), LARGE_BYTES)
            running, frozen = frozen, running


def test_no_room_for_two_workers():
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGER)
        fail(machine, running, frozen, ['cuMemExportToShareableHandle comm=gpucr-worker nth=2 '
                                        'times=1 error=CUDA_ERROR_UNKNOWN'])
        for _ in range(harness.few(1, 2)):
            exchange(machine, running, frozen)
            running, frozen = frozen, running


def test_refused():
    with vmm.machine(**FIT) as machine:
        running, frozen = pair(machine, *FITTING)
        other = vmm.demo(machine, '--bytes', '4M')
        for pid, text, result in (
                (frozen.pid, f'thaw swap={frozen.pid}', 'EINVAL'),
                (frozen.pid, f'thaw swap={running.pid} swap={other.pid}', 'EINVAL'),
                (frozen.pid, 'thaw swap=', 'EINVAL'), (frozen.pid, 'thaw data', 'EINVAL'),
                (frozen.pid, f'freeze swap={running.pid}', 'EINVAL'),
                (None, f'thaw {frozen.pid} {other.pid} swap={running.pid}', 'EINVAL'),
                (frozen.pid, 'thaw swap=4194303', 'ESRCH'),
                (other.pid, swap(running), 'EBUSY')):
            equal(machine.write(pid, text), result, text)
        machine.must(other.pid, 'freeze')
        equal(machine.write(frozen.pid, swap(other)), 'EBUSY')
        if not vendor.HIP:
            slow = machine.ready_demo('--bytes', '4M', env={'GPUCR_PRELOAD_VMM': '0'})
            equal(machine.write(frozen.pid, swap(slow)), 'EOPNOTSUPP')
            check('freeze, then thaw' in machine.error(frozen.pid), machine.error(frozen.pid))
        machine.must(other.pid, 'thaw')
        check_states(machine, running, frozen)


def test_failed():
    """Neither of the two may have failed: what that one needs, only a thaw of its own finds out."""
    harness.needs_cuda('a restore by the driver, which can fail for good')
    with vmm.machine(**FIT) as machine:
        running, frozen = pair(machine, *FITTING)
        failed = vmm.demo(machine, '--bytes', '4M')
        machine.must(failed.pid, 'freeze')
        machine.faults('cuCheckpointProcessRestore error=CUDA_ERROR_OUT_OF_MEMORY')
        equal(machine.write(failed.pid, 'thaw'), 'EIO')
        machine.faults()
        equal(machine.state(failed.pid), 'failed')
        before = len(machine.read('events').split('\n'))
        for demo, other in ((frozen, failed), (failed, running)):
            equal(machine.write(demo.pid, swap(other)), 'EBUSY')
            check(f'process {failed.pid} is failed; thaw it alone' in machine.error(demo.pid),
                  machine.error(demo.pid))
        check(not any(' state ' in line for line in machine.read('events').split('\n')[before - 1:]),
              'nothing has begun')
        check_states(machine, running, frozen)
        exchange(machine, running, frozen)
        failed.end(signal.SIGKILL)


def test_of_another_user():
    """Who may not freeze one of the two exchanges neither."""
    if not harness.is_root():
        raise harness.Skip('only root can become another user')
    same_for_both('who may write')
    with vmm.machine(**FIT) as machine:
        ours = vmm.demo(machine, *FITTING)
        theirs = vmm.demo(machine, *FITTING, uid=NOBODY)
        machine.must(theirs.pid, 'freeze')
        equal(machine.writer(theirs.pid, swap(ours), uid=NOBODY).result(), 'EPERM')
        check_states(machine, ours, theirs)
        exchange(machine, ours, theirs)


def fail(machine, running, frozen, rules):
    """Both are as before."""
    machine.watch_faults()
    machine.faults(*rules)
    result = machine.write(frozen.pid, swap(running))
    check(machine.faulted(), f'{rules}: not reached: {result}: {machine.error(frozen.pid)}')
    machine.faults()
    check(result not in ('ok', 'EINVAL', 'EBUSY'), f'{rules}: {result}')
    # A rule about workers is one about each: that of the way back too.
    if machine.state(running.pid) == 'frozen' and 'comm=gpucr-worker' in rules[0]:
        check('stays frozen' in machine.error(running.pid), machine.error(running.pid))
        machine.must(running.pid, 'thaw')
    check_states(machine, running, frozen)


def test_failures():
    """Of either, at any step. Where both do not fit, what the thaw does with its memory comes after
    the commit of the freeze, which is taken back. Each is usually tried in one of the two cases, in
    turns."""
    unknown = 'error=CUDA_ERROR_UNKNOWN'
    for number, (options, arguments) in enumerate(((FIT, FITTING), (NO_FIT, LARGE))):
        with vmm.machine(**options) as machine:
            running, frozen = pair(machine, *arguments)
            rules = [
                f'cuMemExportToShareableHandle thread=gpucr-agent pid={running.pid} nth=2',
                'cuMemImportFromShareableHandle comm=gpucr-worker nth=3',
                'cuMemcpyDtoHAsync comm=gpucr-worker',
                'cuMemCreate comm=gpucr-worker nth=2', 'cuMemMap comm=gpucr-worker nth=3',
                'cuMemcpyHtoDAsync comm=gpucr-worker nth=2',
                'cuMemExportToShareableHandle comm=gpucr-worker nth=2 times=1',
                f'cuMemImportFromShareableHandle thread=gpucr-agent pid={frozen.pid}',
                f'cuMemMap thread=gpucr-agent pid={frozen.pid} nth=2']
            if not vendor.HIP:
                rules += ['cuCheckpointProcessCheckpoint where=caller times=1']
            # On AMD the other way round.
            for rule in harness.few(rules[(number + vendor.HIP) % 2::2], rules):
                fail(machine, running, frozen, [f'{rule} {unknown}'])
            exchange(machine, running, frozen)


def test_cannot_be_taken_back():
    """The one that was frozen for it cannot be thawed either. Its bytes are there: later it can."""
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGE)
        machine.faults('cuMemImportFromShareableHandle thread=gpucr-agent error=CUDA_ERROR_UNKNOWN')
        equal(machine.write(frozen.pid, swap(running)), 'EIO')
        machine.faults()
        for demo in (running, frozen):
            equal(machine.state(demo.pid), 'frozen', machine.error(demo.pid))
        check('stays frozen, its bytes in the store' in machine.error(running.pid),
              machine.error(running.pid))
        equal(vmm.check_files(machine, running), LARGE_BYTES)
        machine.must(running.pid, 'thaw')
        check_states(machine, running, frozen)


def test_cancelled_and_joined():
    for options, arguments in ((FIT, FITTING), (NO_FIT, LARGE)):
        with vmm.machine(**options) as machine:
            running, frozen = pair(machine, *arguments)
            for verb, slow, told in (('freeze', running, frozen), ('thaw', frozen, running)):
                phase = machine.slow(verb, 1500, slow.pid)
                writers = [machine.writer(frozen.pid, swap(running)) for _ in range(2)]
                for writer in writers:
                    writer.wait_waiting()
                machine.wait_status(slow.pid, 'phase', phase)
                equal(machine.write(running.pid, 'freeze'), 'EBUSY')
                machine.must(told.pid, 'cancel')
                for writer in writers:
                    equal(writer.result(), 'ECANCELED')
                machine.faults()
                check_states(machine, running, frozen)
            exchange(machine, running, frozen)


def test_process_dies():
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGE)
        phase = machine.slow('freeze', 1500, running.pid)
        writer = machine.writer(frozen.pid, swap(running))
        machine.wait_status(running.pid, 'phase', phase)
        running.end(signal.SIGKILL)
        equal(writer.result(), 'ok')  # there is room now
        machine.faults()
        running, frozen = vmm.demo(machine, '--bytes', '4M'), frozen
        frozen.wait_ticks(2)
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGE)
        phase = machine.slow('thaw', 1500, frozen.pid)
        writer = machine.writer(frozen.pid, swap(running))
        machine.wait_status(frozen.pid, 'phase', phase)
        frozen.end(signal.SIGKILL)
        equal(writer.result(), 'ESRCH')
        machine.wait_status(running.pid, 'verb', '-')
        equal(machine.state(running.pid), 'running', machine.error(running.pid))
        running.wait_ticks(2)


def test_daemon_dies():
    """The next one recovers each of the two by itself."""
    for verb in ('freeze', 'thaw'):
        with vmm.machine(**FIT) as machine:
            running, frozen = pair(machine, *FITTING)
            machine.expects_clean_exit = False
            phase = machine.slow(verb, 1500, (running if verb == 'freeze' else frozen).pid)
            machine.writer(frozen.pid, swap(running))
            machine.wait_status((running if verb == 'freeze' else frozen).pid, 'phase', phase)
            machine.daemon.kill()
            machine.daemon.wait()
            machine.faults()
            machine.start()
            for demo in (running, frozen):
                wait_for(lambda: machine.status(demo.pid).get('engine') == vendor.ENGINE,
                         'its library')
                vmm.recover(machine, demo)
            machine.must(running.pid, 'freeze')
            exchange(machine, frozen, running)


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
