# SPDX-License-Identifier: MIT
"""An exchange in which one of the two does not answer, or somebody else wants the VRAM: the other
one is not held for that, and whoever has to come back finds his place."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
import vendor
import vmm
from harness import MIB, check, equal, wait_for
from test_exchange import (FIT, FITTING, LARGE, LARGE_BYTES, LARGER, NO_FIT, check_states, exchange, pair,
                           swap)

# Long enough to stop the program before the call begins, where no lock is held.
DELAY = f'delay_ms={1500 * harness.SLOW}'
HAND_OVER = f'cuMemExportToShareableHandle thread=gpucr-agent nth=2 {DELAY}'
RECEIVE = f'cuMemImportFromShareableHandle thread=gpucr-agent nth=2 {DELAY}'
RESTORE = f'cuCheckpointProcessRestore nth=1 {DELAY}'
UNLOCK = f'cuCheckpointProcessUnlock nth=1 {DELAY}'
FINISH = f'cuMemcpyHtoD thread=gpucr-agent nth=1 {DELAY}'
CONTEXT_BYTES = 40 * MIB


def stop_in_exchange(machine, running, frozen, stuck, rule, more=''):
    """One of the two is stopped in the middle of what it is asked for; the writer waits."""
    machine.watch_faults()
    machine.faults(f'{rule} pid={stuck.pid}')
    writer = machine.writer(frozen.pid, swap(running) + more)
    machine.wait_faulted()
    machine.stop_process(stuck.pid)
    machine.faults()
    return writer


def check_no_answer(way):
    """@way: how the exchange comes to an end. The other one is as before while the first one is
    still stopped, and then that one too."""
    with vmm.machine(**FIT) as machine:
        running, frozen = pair(machine, *FITTING)
        both = (running, frozen, 'frozen', HAND_OVER), (frozen, running, 'running', RECEIVE)
        # Of the ways other than the deadline each is usually tried with one of the two.
        of_one = {'deadline': both, 'cancel': both[:1], 'killed': both[1:]}
        for stuck, other, state, rule in harness.few(of_one[way], both):
            more = f' timeout={5 * harness.SLOW}' if way == 'deadline' else ''
            writer = stop_in_exchange(machine, running, frozen, stuck, rule, more)
            if way == 'killed':
                writer.signal(signal.SIGKILL)
            elif way == 'cancel':
                cancel = machine.writer(other.pid, 'cancel')
            else:
                equal(writer.result(), 'ETIMEDOUT')
            machine.wait_status(other.pid, 'verb', '-')
            equal(machine.state(other.pid), state, machine.error(other.pid))
            if other is running:
                other.wait_ticks(2)
            os.kill(stuck.pid, signal.SIGCONT)
            if way == 'cancel':
                equal(cancel.result(), 'ok')
                equal(writer.result(), 'ECANCELED')
            check_states(machine, running, frozen)
        exchange(machine, running, frozen)


def test_no_answer_until_the_deadline():
    check_no_answer('deadline')


def test_no_answer_and_cancelled():
    check_no_answer('cancel')


def test_no_answer_and_writer_killed():
    check_no_answer('killed')


def check_stays_frozen(machine, running, frozen, rule, words):
    """What was frozen cannot come back beside the other one, and is not held for that."""
    writer = stop_in_exchange(machine, running, frozen, frozen, rule)
    wait_for(lambda: machine.status(running.pid)['phase'] == 'vote', 'the freeze to be out')
    cancel = machine.writer(frozen.pid, 'cancel')
    machine.wait_status(running.pid, 'verb', '-')
    equal(machine.state(running.pid), 'frozen', machine.error(running.pid))
    check('stays frozen, its bytes in the store' in machine.error(running.pid) and
          words in machine.error(running.pid), machine.error(running.pid))
    os.kill(frozen.pid, signal.SIGCONT)
    equal(cancel.result(), 'EIO')  # not all is as it was
    check(writer.result() in ('ENOMEM', 'ETIMEDOUT'), writer.result())
    machine.must(running.pid, 'thaw')
    check_states(machine, running, frozen)


def test_no_answer_and_no_room():
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGE)
        check_stays_frozen(machine, running, frozen, RECEIVE, 'MiB')
        exchange(machine, running, frozen)
        equal(vmm.check_files(machine, running), LARGE_BYTES)


def test_no_answer_of_the_driver():
    """Nobody takes VRAM while the driver restores: it could not try again."""
    harness.needs_cuda('a restore by the driver')
    with vmm.machine(**FIT) as machine:
        running, frozen = pair(machine, *FITTING)
        check_stays_frozen(machine, running, frozen, RESTORE, 'does not let go')
        exchange(machine, running, frozen)


def test_no_answer_and_no_worker():
    """There is no room for a second worker; the first one's turn is for others, but it has its VRAM."""
    harness.needs_cuda('a restore by the driver')
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGER)
        check_stays_frozen(machine, running, frozen, UNLOCK, 'MiB')
        exchange(machine, running, frozen)


def test_no_answer_after_the_decision():
    """Who was frozen for that one is not busy for longer than some time after the deadline: it is
    frozen then, as it was to be, and neither of the two is lost. The other one, once it goes on,
    runs; or it ends, which nothing depends on."""
    harness.needs_cuda('managed memory')
    with vmm.machine(**FIT) as machine:
        running, frozen = pair(machine, *FITTING, *vendor.MANAGED)
        writer = stop_in_exchange(machine, running, frozen, frozen, FINISH,
                                  f' timeout={5 * harness.SLOW}')
        equal(writer.result(), 'ETIMEDOUT')
        machine.wait_status(running.pid, 'verb', '-')
        equal(machine.state(running.pid), 'frozen', machine.error(running.pid))
        check(f'it stays frozen: process {frozen.pid}' in machine.log(), machine.log())
        os.kill(frozen.pid, signal.SIGCONT)
        machine.wait_status(frozen.pid, 'verb', '-')
        equal(machine.state(frozen.pid), 'running', machine.error(frozen.pid))
        frozen.wait_ticks(2)
        exchange(machine, frozen, running)
        writer = stop_in_exchange(machine, running, frozen, frozen, FINISH,
                                  f' timeout={5 * harness.SLOW}')
        equal(writer.result(), 'ETIMEDOUT')
        machine.wait_status(running.pid, 'verb', '-')
        frozen.end(signal.SIGKILL)
        wait_for(lambda: frozen.pid not in machine.pids(), 'it to be gone')
        equal(machine.state(running.pid), 'frozen', machine.error(running.pid))
        machine.must(running.pid, 'thaw')
        running.wait_ticks(2)


def test_turn_is_kept():
    """Until it is decided nobody else is thawed on their GPU: whoever goes back needs it. The third
    one fits beside either of the two, but leaves nothing of what a restore has to find."""
    harness.needs_cuda('what has to be free beside the contents')
    with vmm.machine(vram='270M') as machine:
        third = vmm.demo(machine, '--bytes', '46M')
        machine.must(third.pid, 'freeze data')
        running, frozen = pair(machine, *LARGE)
        machine.watch_faults()
        machine.faults(f'cuMemMap thread=gpucr-agent pid={frozen.pid} nth=1 delay_ms=1500 '
                       'error=CUDA_ERROR_UNKNOWN')
        writer = machine.writer(frozen.pid, swap(running))
        machine.wait_faulted()
        queued = machine.writer(third.pid, 'thaw')
        equal(writer.result(), 'EIO')
        machine.faults()
        check_states(machine, running, frozen)
        equal(queued.result(), 'ok')
        third.wait_ticks(2)


def test_turn_is_kept_for_long():
    """The driver's checkpoint cannot be stopped, however long it takes."""
    harness.needs_cuda('a checkpoint by the driver')
    with vmm.machine(vram='270M') as machine:
        third = vmm.demo(machine, '--bytes', '46M')
        machine.must(third.pid, 'freeze data')
        running, frozen = pair(machine, *LARGE)
        phase = machine.slow('freeze', 4000 * harness.SLOW, running.pid)
        writer = machine.writer(frozen.pid, swap(running))
        machine.wait_status(running.pid, 'phase', phase)
        queued = machine.writer(third.pid, 'thaw')
        machine.wait_status(third.pid, 'phase', 'admission')
        machine.must(frozen.pid, 'cancel')
        equal(writer.result(), 'ECANCELED')
        machine.faults()
        check_states(machine, running, frozen)
        equal(queued.result(), 'ok')
        third.wait_ticks(2)


def contexts(size, context_bytes=CONTEXT_BYTES):
    return vmm.machine(vram=f'{size}M', env={'GPUCR_SIM_CONTEXT_BYTES': str(context_bytes)})


def workers(machine):
    return {pid for pid, comm in machine.helpers() if comm == 'gpucr-worker'}


def check_workers_go(size, **options):
    """A thaw for which there is room only where our idle workers have their contexts."""
    with contexts(size) as machine:
        large = machine.ready_demo('--bytes', '60M', **options)
        if not options:
            machine.wait_status(large.pid, 'engine', vendor.ENGINE)
        machine.must(large.pid, 'freeze')
        running, frozen = pair(machine, '--bytes', '12M')
        machine.slow('freeze', 500, running.pid)  # or the first worker would do
        exchange(machine, running, frozen)
        machine.faults()
        before = workers(machine)
        machine.must(large.pid, 'thaw')
        check(not before <= workers(machine), f'{before} are there still')
        large.wait_ticks(2)


def test_second_worker_goes():
    check_workers_go(250 if vendor.HIP else 272)


def test_workers_go_for_the_driver():
    harness.needs_cuda('there is no engine driver')
    check_workers_go(240, env={'GPUCR_PRELOAD_VMM': '0'})


def test_place_of_a_worker():
    """The first worker has ended to make room for what the driver restores. Until that is there no
    other takes its place: with its context a restore would fail, and could not be tried again."""
    harness.needs_cuda('a restore by the driver')
    with contexts(365, 80 * MIB) as machine:
        third = vmm.demo(machine, '--bytes', '12M')
        frozen = vmm.demo(machine, '--bytes', '36M')
        machine.must(frozen.pid, 'freeze')
        running = vmm.demo(machine, '--bytes', '12M')
        machine.watch_faults()
        machine.faults(f'cuCheckpointProcessCheckpoint pid={running.pid} nth=1 delay_ms=500',
                       f'cuCheckpointProcessRestore pid={frozen.pid} nth=1 delay_ms=1500')
        writer = machine.writer(frozen.pid, swap(running))
        machine.wait_faulted(2)
        equal(len(workers(machine)), 1, 'the first one has ended')
        other = machine.writer(third.pid, 'freeze')
        machine.wait_status(third.pid, 'phase', 'worker')
        equal(writer.result(), 'ok')
        machine.faults()
        check_states(machine, frozen, running)
        # The second worker may still have been at work when this one had its turn.
        if other.result() != 'ok':
            equal(other.result(), 'ENOMEM', machine.error(third.pid))
            third.wait_ticks(2)
            machine.must(third.pid, 'freeze')
        equal(machine.state(third.pid), 'frozen')


def test_daemon_dies():
    """When both are out: the one that ran is in VRAM again, and both are told."""
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGE)
        machine.expects_clean_exit = False
        phase = machine.slow('thaw', 1500, frozen.pid)
        machine.writer(frozen.pid, swap(running))
        machine.wait_status(running.pid, 'phase', 'vote')
        machine.wait_status(frozen.pid, 'phase', phase)
        machine.daemon.kill()
        machine.daemon.wait()
        machine.faults()
        machine.start()
        machine.wait_status(running.pid, 'state', 'running')
        check_states(machine, running, frozen)
        words = 'an earlier daemon ended in the middle of its exchange with process'
        check(f'{words} {running.pid}; thaw tries again' in machine.error(frozen.pid),
              machine.error(frozen.pid))
        check(f'freeze ECANCELED {words} {frozen.pid}: it was frozen for that, and is thawed again'
              in machine.read(running.pid, 'events'), machine.read(running.pid, 'events'))
        exchange(machine, running, frozen)


def kill_daemon(machine):
    machine.expects_clean_exit = False
    machine.daemon.kill()
    machine.daemon.wait()


def check_comes_back(machine, running, other):
    """It was frozen for one that is not in VRAM, and has been told so."""
    machine.wait_status(running.pid, 'state', 'running')
    machine.wait_status(running.pid, 'verb', '-')
    check(f'with process {other.pid}: it was frozen for that, and is thawed again'
          in machine.read(running.pid, 'events'), machine.read(running.pid, 'events'))
    running.wait_ticks(2)


def test_daemon_dies_while_it_comes_back():
    """The thaw has failed, and the other one was on its way back. So for the next daemon too."""
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGE)
        slow = (f'cuMemImportFromShareableHandle thread=gpucr-agent pid={running.pid} '
                f'delay_ms={300 * harness.SLOW}')
        machine.faults(slow, f'cuMemMap thread=gpucr-agent pid={frozen.pid} nth=1 '
                             'error=CUDA_ERROR_UNKNOWN')
        machine.writer(frozen.pid, swap(running))
        machine.wait_status(running.pid, 'phase', 'map')
        machine.wait_status(frozen.pid, 'verb', '-')
        kill_daemon(machine)
        machine.faults(slow)
        machine.start()
        machine.wait_status(running.pid, 'phase', 'map')
        kill_daemon(machine)
        machine.faults()
        machine.start()
        check_comes_back(machine, running, frozen)
        check_states(machine, running, frozen)
        exchange(machine, running, frozen)
        # It stays frozen now, also when the other one has gone out by itself.
        machine.must(frozen.pid, 'freeze')
        kill_daemon(machine)
        machine.start()
        for demo in (running, frozen):
            machine.wait_status(demo.pid, 'verb', '-')
            equal(machine.state(demo.pid), 'frozen')
            equal(machine.error(demo.pid), 'ok')


def die_in_thaw(machine):
    """Both are out, and there is no daemon."""
    running, frozen = pair(machine, *LARGE)
    phase = machine.slow('thaw', 1500, frozen.pid)
    machine.writer(frozen.pid, swap(running))
    machine.wait_status(running.pid, 'phase', 'vote')
    machine.wait_status(frozen.pid, 'phase', phase)
    kill_daemon(machine)
    machine.faults()
    return running, frozen


def test_daemon_dies_and_the_other_one():
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = die_in_thaw(machine)
        frozen.end(signal.SIGKILL)
        machine.start()
        check_comes_back(machine, running, frozen)


def test_daemon_dies_and_one_is_late():
    """It answers long after the mount is there."""
    for late in (0, 1):
        with vmm.machine(**NO_FIT) as machine:
            both = die_in_thaw(machine)
            pids = [demo.pid for demo in both]
            machine.stop_process(pids[late])
            machine.start()
            equal(machine.status(pids[late])['verb'], 'recover')
            os.kill(pids[late], signal.SIGCONT)
            check_comes_back(machine, *both)
            check_states(machine, *both)


def test_daemon_dies_and_one_cannot_be_watched():
    """The next one can list it only after the mount is there; or neither of the two."""
    for late in (0, 1, None):
        with vmm.machine(**NO_FIT) as machine:
            both = die_in_thaw(machine)
            failing = f'{machine.directory}/failing'
            with open(failing, 'w', encoding='utf-8') as file:
                file.write('watch' if late is None else f'watch={both[late].pid}')
            machine.start(env={'LD_PRELOAD': f'{harness.BUILD}/test/e2e/libfailing.so',
                               'GPUCR_TEST_FAILING': failing})
            for number, demo in enumerate(both):
                equal(demo.pid in machine.pids(), late not in (None, number))
            os.unlink(failing)
            # Before it is recovered it is taken for one that runs.
            wait_for(lambda: len(machine.pids()) == 2 and
                     'thawed again' in machine.read(both[0].pid, 'events'), 'both exchanges to be finished')
            check_comes_back(machine, *both)
            check_states(machine, *both)
            exchange(machine, *both)


def test_daemon_dies_before_anything():
    """The one to be frozen still runs: it goes on, and the other one is told."""
    with vmm.machine(**NO_FIT) as machine:
        running, frozen = pair(machine, *LARGE)
        machine.expects_clean_exit = False
        phase = machine.slow('freeze', 1500, running.pid)
        machine.writer(frozen.pid, swap(running))
        machine.wait_status(running.pid, 'phase', phase)
        machine.daemon.kill()
        machine.daemon.wait()
        machine.faults()
        machine.start()
        wait_for(lambda: machine.status(running.pid)['engine'] == vendor.ENGINE, 'its library')
        check_states(machine, running, frozen)
        check('in the middle of its exchange' in machine.error(frozen.pid),
              machine.error(frozen.pid))
        exchange(machine, running, frozen)
        # What is over is not told again.
        machine.stop()
        machine.start()
        machine.wait_status(frozen.pid, 'engine', vendor.ENGINE)
        equal(machine.state(running.pid), 'frozen')
        equal(machine.error(running.pid), 'ok')


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
