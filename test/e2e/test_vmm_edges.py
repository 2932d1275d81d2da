# SPDX-License-Identifier: MIT
"""The fast engine where two things happen at the same moment: what was asked for is done and the
answer is lost, a process ends while the last one votes."""
import contextlib
import ctypes
import os
import re
import resource
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import library
import vendor
import vmm
from harness import check, equal, needs_cuda, same_for_both, wait_for
from library import Library
from test_not_lost import REPLACED

SMALL = ('--bytes', '4M', '--buffers', 2, '--tick', 5)
ENOMEM, EIO = 12, 5
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
PTRACE_O_TRACEEXIT, PTRACE_EVENT_EXIT = 0x40, 6
WAIT_FOR_THREADS = 0x40000000  # __WALL
GENERATION = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


def ptrace(request, tid, data=None):
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    call.restype = ctypes.c_long
    if call(request, tid, None, data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def held(machine, name):
    """A thread of the daemon."""
    tasks = f'/proc/{machine.daemon.pid}/task'
    tids = [int(tid) for tid in os.listdir(tasks)
            if harness.read_file(f'{tasks}/{tid}/comm') == f'{name}\n']
    equal(len(tids), 1, name)
    ptrace(PTRACE_SEIZE, tids[0])
    ptrace(PTRACE_INTERRUPT, tids[0])
    os.waitpid(tids[0], WAIT_FOR_THREADS)
    try:
        yield
    finally:
        ptrace(PTRACE_DETACH, tids[0])


def test_a_process_ends_when_the_last_one_votes():
    """Whoever votes last is the first to see it."""
    with vmm.machine(gpus=2) as machine:
        first = vmm.demo(machine, *SMALL)
        second = vmm.demo(machine, *SMALL, env={vendor.VISIBLE: '1'})
        machine.watch_faults()
        machine.slow('freeze', 2000 * harness.SLOW, second.pid)
        writer = machine.writer(None, f'freeze {first.pid} {second.pid}')
        machine.wait_faulted()
        machine.wait_status(first.pid, 'phase', 'vote')
        # It hears of ends first.
        with held(machine, 'gpucrfs-loop'):
            check(writer.is_waiting(), 'the second one has not voted')
            first.is_to_end = True
            first.popen.kill()
            equal(writer.result(), 'ESRCH')
        machine.faults()
        wait_for(lambda: machine.pids() == [second.pid], 'the first one to go')
        vmm.recover(machine, second)
        vmm.cycle(machine, second)


def cycle(machine, played):
    machine.must(played.pid, 'freeze')
    machine.must(played.pid, 'thaw')
    played.demo.wait_ticks()


def check_runs(machine, played):
    equal(machine.state(played.pid), 'running')
    equal(os.listdir(f'{machine.runtime}/processes'), [])
    played.demo.wait_ticks()
    cycle(machine, played)


def test_finished_and_not_answered():
    """The program has lost its connection just then: it goes on with its memory."""
    for phase in (library.RUNNING, library.GATED):
        with vmm.machine() as machine:
            played = Library(machine)
            machine.must(played.pid, 'freeze')
            played.on[library.FINISH] = lambda library_, _: library_.lose(phase)
            equal(machine.write(played.pid, 'thaw'), 'ok')
            check_runs(machine, played)


def fail_incoming(library_, sequence):
    """The library answers a request with an error, in the phase INCOMING."""
    library_.set_phase(library.INCOMING)
    library_.answer(sequence, EIO, 'it failed')


def test_finished_while_it_is_let_go():
    """FINISH fails, and is done all the same."""
    with vmm.machine() as machine:
        played = Library(machine)
        machine.must(played.pid, 'freeze')
        played.on[library.FINISH] = fail_incoming
        played.on[library.LET_GO] = lambda library_, _: library_.lose(library.RUNNING)
        equal(machine.write(played.pid, 'thaw'), 'ok')
        check_runs(machine, played)


def test_the_gate_does_not_open_at_once():
    """It has its memory: it must not be checkpointed with it, and the gate opens in the end."""
    with vmm.machine() as machine:
        played = Library(machine)
        machine.must(played.pid, 'freeze')
        machine.watch_faults()
        machine.faults('cuCheckpointProcessCheckpoint')

        def fail(library_, sequence):
            library_.answer(sequence, ENOMEM, 'it failed')

        played.on[library.GATE_OPEN] = fail
        equal(machine.write(played.pid, 'thaw'), 'ok')
        equal(machine.faulted(), [])
        machine.faults()
        check_runs(machine, played)


def test_finish_fails():
    """Nothing has been done: it stays frozen, to be thawed later."""
    with vmm.machine() as machine:
        played = Library(machine)
        machine.must(played.pid, 'freeze')
        played.on[library.FINISH] = fail_incoming
        equal(machine.write(played.pid, 'thaw'), 'EIO')
        equal(machine.state(played.pid), 'frozen')
        equal(played.phase, library.OUT)
        machine.must(played.pid, 'thaw')
        check_runs(machine, played)


def test_taken_back_before_the_checkpoint():
    """Alone for too long it has its memory again, and so the driver must not checkpoint it."""
    with vmm.machine() as machine:
        played = Library(machine)
        machine.watch_faults()
        machine.faults('cuCheckpointProcessCheckpoint')

        def hand_over(library_, sequence):
            library_.set_phase(library.RUNNING)
            library_.answer(sequence, phase=library.HANDED)
            library_.lose(library.RUNNING)

        played.on[library.HAND_OVER] = hand_over
        equal(machine.write(played.pid, 'freeze'), 'EIO')
        equal(machine.faulted(), [])
        machine.faults()
        check_runs(machine, played)


def test_taken_back_instead_of_committed():
    with vmm.machine() as machine:
        played = Library(machine)
        played.on[library.COMMIT] = lambda library_, _: library_.lose(library.RUNNING)
        equal(machine.write(played.pid, 'freeze data'), 'EIO')
        check_runs(machine, played)


def check_gone(machine, played):
    wait_for(lambda: not os.path.lexists(machine.path(played.pid)), 'its directory to go')
    wait_for(lambda: not os.listdir(f'{machine.runtime}/processes'), 'its record to go')
    wait_for(lambda: os.listdir(f'{machine.runtime}/store') == ['pool'],
             f"the store to be empty: {os.listdir(f'{machine.runtime}/store')}")


def test_killed_in_the_commit():
    """Its bytes are in the store and not published yet."""
    with vmm.machine() as machine:
        played = Library(machine)

        def die(library_, _):
            with held(machine, 'gpucrfs-task'):
                library_.demo.end(signal.SIGKILL)
                wait_for(lambda: not os.path.lexists(machine.path(played.pid)), 'it to go')

        played.on[library.COMMIT] = die
        equal(machine.write(played.pid, 'freeze'), 'ESRCH')
        check_gone(machine, played)


def test_killed_after_it_failed():
    """What could not be taken back is kept for as long as the program lives."""
    with vmm.machine() as machine:
        played = Library(machine)

        def hand_over(library_, sequence):
            library_.set_phase(library.HANDED)
            library_.answer(sequence, EIO, 'it failed')

        def fail(library_, sequence):
            library_.answer(sequence, EIO, 'it failed again')

        played.on[library.HAND_OVER] = hand_over
        played.on[library.TAKE_BACK] = fail
        equal(machine.write(played.pid, 'freeze'), 'EIO')
        equal(machine.state(played.pid), 'failed')
        equal(len(os.listdir(f'{machine.runtime}/store')), 2)
        played.demo.end(signal.SIGKILL)
        check_gone(machine, played)


def test_thaw_of_one_that_cannot_come_back():
    """Also after another daemon has found it: the writer is not told that it runs."""
    needs_cuda('a restore by the driver, which can lose the process')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        machine.must(demo.pid, 'freeze')
        machine.faults('cuCheckpointProcessRestore error=CUDA_ERROR_OUT_OF_MEMORY')
        equal(machine.write(demo.pid, 'thaw'), 'EIO')
        for _ in range(2):
            equal(machine.state(demo.pid), 'failed')
            machine.stop()
            machine.start()
            equal(machine.state(demo.pid), 'failed')
            equal(machine.write(demo.pid, 'thaw'), 'EIO')
        demo.is_to_end = True


def test_thaw_of_one_that_is_found_frozen():
    """A daemon that could write no record, and one that could not ask the driver."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        machine.must(demo.pid, 'freeze')
        machine.daemon.kill()
        machine.daemon.wait()
        records = f'{machine.runtime}/processes'
        record = next(f'{records}/{name}' for name in os.listdir(records) if name[0] != '.')
        text = harness.read_file(record)
        check('\nstate frozen\n' in text, text)
        with open(record, 'w', encoding='utf-8') as file:
            file.write(text.replace('\nstate frozen\n', '\nstate freezing\n'))
        # On AMD there is only the library to be asked.
        machine.faults(f'cuCheckpointProcessGetState {vmm.ROLES["control"]} error=999')
        machine.start()
        machine.wait_status(demo.pid, 'state', 'frozen' if vendor.HIP else 'failed')
        machine.faults()
        machine.must(demo.pid, 'thaw')
        equal(machine.state(demo.pid), 'running')
        vmm.recover(machine, demo)
        vmm.cycle(machine, demo)


def test_full_of_what_was_removed_just_now():
    """The room is there as soon as the pool's thread and the worker have let go."""
    same_for_both('room in the store')
    with vmm.machine(options=',store_size=48M') as machine:
        demo = vmm.demo(machine, '--bytes', '32M', '--buffers', 1, '--tick', 5)
        for _ in range(5):
            machine.must(demo.pid, 'freeze')
            machine.wait_status(demo.pid, 'pinned', 'yes')
            machine.must(demo.pid, 'thaw')
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def fail(machine, words):
    """Certain calls of a daemon that was started by start_failing() fail from now on."""
    with open(f'{machine.directory}/failing', 'w', encoding='utf-8') as file:
        file.write(words)


def start_failing(machine, words):
    fail(machine, words)
    machine.start(env={'LD_PRELOAD': f'{harness.BUILD}/test/e2e/libfailing.so',
                       'GPUCR_TEST_FAILING': f'{machine.directory}/failing'})


def test_a_start_that_can_watch_nobody():
    """The record and the bytes of a frozen process stay, until it can be listed."""
    same_for_both('a daemon that starts')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, *SMALL)
        machine.must(demo.pid, 'freeze')
        machine.daemon.kill()
        machine.daemon.wait()
        start_failing(machine, 'watch')
        equal(machine.pids(), [])
        equal(len([name for name in os.listdir(f'{machine.runtime}/processes')
                   if not name.startswith('.')]), 1)
        equal(len(os.listdir(f'{machine.runtime}/store')), 2)
        fail(machine, '')
        wait_for(lambda: machine.pids() == [demo.pid], 'it to be found')
        machine.wait_status(demo.pid, 'state', 'frozen')
        vmm.check_files(machine, demo)
        vmm.recover(machine, demo)
        vmm.cycle(machine, demo)


def check_found_later(machine, pid, state):
    """A daemon starts that can watch nobody at first: @pid is recovered when it can."""
    machine.daemon.kill()
    machine.daemon.wait()
    start_failing(machine, 'watch')
    equal(machine.pids(), [])
    machine.faults()
    fail(machine, '')
    wait_for(lambda: machine.pids() == [pid], 'it to be found')
    machine.wait_status(pid, 'state', state)
    machine.wait_status(pid, 'verb', '-')


def test_the_driver_has_those_whom_the_start_could_not_watch():
    """No library says that such a process is frozen: only its record does."""
    needs_cuda('the engine `driver`')
    for env, verb in (({'GPUCR_PRELOAD_VMM': '0'}, 'freeze'), ({'GPUCR_PRELOAD': ''}, 'freeze unseen')):
        with vmm.machine() as machine:
            demo = machine.demo('--bytes', '4M', env=env).wait_ready()
            machine.must(demo.pid, verb)
            check_found_later(machine, demo.pid, 'frozen')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()


def wait_refused(machine):
    """Until a record could not be read, see failing.c."""
    path = f'{machine.directory}/failing.refused'
    wait_for(lambda: os.path.exists(path), 'a record to be refused')
    os.unlink(path)


def test_no_descriptor_for_those_whom_the_start_could_not_watch():
    """The process can be listed, and then its record cannot be read."""
    needs_cuda('the engine `driver`')
    with vmm.machine() as machine:
        demo = machine.demo('--bytes', '4M', env={'GPUCR_PRELOAD_VMM': '0'}).wait_ready()
        machine.must(demo.pid, 'freeze')
        machine.daemon.kill()
        machine.daemon.wait()
        start_failing(machine, 'watch')
        # The pass reads it, and the recovery reads it again.
        fail(machine, 'record=2')
        wait_refused(machine)
        fail(machine, '')
        # Until then the scan may take it out of the list again.
        wait_for(lambda: ' was left frozen ' in machine.log(), 'it to be found')
        machine.wait_status(demo.pid, 'state', 'frozen')
        machine.wait_status(demo.pid, 'verb', '-')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_no_descriptor_for_the_record_of_one_that_is_listed():
    """Once it has been recovered, it leaves the list with its GPU, as others do."""
    needs_cuda('a Python program on the GPU')
    if harness.SANITIZER == 'thread':
        return  # its runtime cannot be loaded into a Python that runs
    with vmm.machine() as machine:
        demo = machine.demo(command=[*vendor.RUN, sys.executable, '-c', REPLACED])
        demo.output.wait(lambda lines: lines == ['[0, 0, 0, 0]'], 'its memory')
        machine.wait_status(demo.pid, 'engine', vendor.ENGINE)
        machine.must(demo.pid, 'freeze')
        machine.daemon.kill()
        machine.daemon.wait()
        # It is read for its GPUs, to have a spare, to be listed, and at last to be recovered.
        start_failing(machine, 'record=4')
        check('cannot be read (Too many open files)' in machine.log(), machine.log())
        fail(machine, '')
        machine.wait_status(demo.pid, 'state', 'frozen')
        machine.wait_status(demo.pid, 'verb', '-')
        machine.must(demo.pid, 'thaw')
        os.kill(demo.pid, signal.SIGUSR1)
        wait_for(lambda: machine.pids() == [], 'its end in the list')


def test_managed_memory_of_those_whom_the_start_could_not_watch():
    """The daemon before died while their memory was held: only a daemon gives it back."""
    needs_cuda('managed memory')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '4M', '--buffers', 2, *vendor.MANAGED)
        machine.watch_faults()
        machine.hold_at('cuMemExportToShareableHandle thread=gpucr-agent error=CUDA_ERROR_UNKNOWN')
        machine.writer(demo.pid, 'freeze')
        machine.wait_faulted()
        machine.daemon.kill()
        machine.daemon.wait()
        machine.let_go()
        check_found_later(machine, demo.pid, 'running')
        demo.wait_ticks()
        wait_for(lambda: machine.status(demo.pid)['engine'] == vendor.ENGINE, 'its library')
        vmm.cycle(machine, demo)


def test_store_is_lost_before_vram_is_given_up():
    """The program has not heard that it may give its VRAM up, and VRAM has all of its bytes."""
    needs_cuda('a library that waits for the next daemon')
    with vmm.machine(start=False) as machine:
        start_failing(machine, 'commit')
        demo = vmm.demo(machine, '--bytes', '4M', '--buffers', 2, *vendor.MANAGED)
        machine.writer(demo.pid, 'freeze')
        machine.wait_status(demo.pid, 'phase', 'commit')
        machine.daemon.kill()
        machine.daemon.wait()
        for name in os.listdir(f'{machine.runtime}/store'):
            if name.startswith(f'{demo.pid}-'):
                shutil.rmtree(f'{machine.runtime}/store/{name}')
        machine.start()
        machine.wait_status(demo.pid, 'state', 'running')
        demo.wait_ticks()
        wait_for(lambda: machine.status(demo.pid)['engine'] == vendor.ENGINE, 'its library')
        vmm.cycle(machine, demo)


def test_frozen_by_one_engine_and_by_the_other():
    """Thawed by the one that froze it last, also if no descriptor is left for a new generation."""
    with vmm.machine(start=False) as machine:
        start_failing(machine, '')
        played = Library(machine)
        if vendor.HIP:
            cycle(machine, played)
        played.set_flags(0)
        machine.wait_status(played.pid, 'engine', 'none' if vendor.HIP else 'driver')
        if vendor.HIP:
            equal(machine.write(played.pid, 'freeze'), 'EOPNOTSUPP')
        else:
            cycle(machine, played)
        before = machine.status(played.pid)['generation']
        played.set_flags(library.PAGE_VMM)
        machine.wait_status(played.pid, 'engine', vendor.ENGINE)
        fail(machine, 'uuid')
        machine.must(played.pid, 'freeze')
        status = machine.status(played.pid)
        equal(status['engine'], vendor.ENGINE)
        check(GENERATION.fullmatch(status['generation']), status['generation'])
        check(status['generation'] != before, before)
        machine.must(played.pid, 'thaw')
        equal(played.phase, library.RUNNING)
        check_runs(machine, played)


def pinned_files(machine):
    """How many files of the store our worker has registered."""
    worker = next(pid for pid, comm in machine.helpers() if comm == 'gpucr-worker')
    return len(set(re.findall(r' (\S*/store/\S+)', harness.read_file(f'/proc/{worker}/maps'))))


def test_more_files_than_descriptors():
    """All of them are registered, though the daemon cannot have them all open."""
    same_for_both('which files are registered')
    count = 100
    with vmm.machine(vram='512M', options=',pool=512M') as machine:
        demo = vmm.demo(machine, *SMALL)
        vmm.cycle(machine, demo)
        demo.end()
        limit = len(os.listdir(f'/proc/{machine.daemon.pid}/fd')) + 80
        resource.prlimit(machine.daemon.pid, resource.RLIMIT_NOFILE, (limit, limit))
        many = vmm.demo(machine, '--bytes', f'{2 * count}M', '--buffers', count)
        wait_for(lambda: machine.status(many.pid)['pinned'] == 'yes', 'it to be registered')
        check(pinned_files(machine) >= count, f'{pinned_files(machine)} files')


def inodes(directory):
    return {entry.inode() for entry in os.scandir(directory)}


def test_a_worker_that_takes_its_time_to_end():
    """For as long as it may write to files, they are not used again."""
    same_for_both('files of the store')
    with vmm.machine(options=',pool=64M') as machine:
        demo = vmm.demo(machine, *SMALL)
        vmm.cycle(machine, demo)
        worker = next(pid for pid, comm in machine.helpers() if comm == 'gpucr-worker')
        store = f'{machine.runtime}/store'
        machine.watch_faults()
        machine.faults(f'cuEventSynchronize {vmm.ROLES["worker"]} delay_ms=60000')
        writer = machine.writer(demo.pid, 'freeze')
        machine.wait_faulted()
        snapshot = next(name for name in os.listdir(store) if name[0].isdigit())
        written = inodes(f'{store}/{snapshot}/snapshot/vram')
        ptrace(PTRACE_SEIZE, worker, PTRACE_O_TRACEEXIT)
        canceller = machine.writer(demo.pid, 'cancel')
        _, status = os.waitpid(worker, WAIT_FOR_THREADS)
        equal(status >> 8, signal.SIGTRAP | PTRACE_EVENT_EXIT << 8)
        equal(canceller.result(), 'ok')
        equal(writer.result(), 'ECANCELED')
        check(not written & inodes(f'{store}/pool'), 'files that are written to are in the pool')
        ptrace(PTRACE_DETACH, worker)
        machine.faults()
        vmm.recover(machine, demo)
        vmm.cycle(machine, demo)


def test_committed_later():
    """A library that could not be told is told when it can be."""
    with vmm.machine() as machine:
        played = Library(machine)

        def fail(library_, sequence):
            library_.answer(sequence, EIO, 'it failed')

        played.on[library.COMMIT] = fail
        machine.must(played.pid, 'freeze data')
        wait_for(lambda: played.phase == library.OUT, 'the commit')
        machine.must(played.pid, 'thaw')
        check_runs(machine, played)


def test_taken_back_after_the_freeze():
    """It could not be told of the commit, and runs: that is what it is said to do."""
    with vmm.machine() as machine:
        played = Library(machine)

        def fail(library_, sequence):
            library_.on[library.COMMIT] = lambda again, _: again.lose(library.RUNNING)
            library_.answer(sequence, EIO, 'it failed')

        played.on[library.COMMIT] = fail
        machine.must(played.pid, 'freeze data')
        machine.wait_status(played.pid, 'state', 'running')
        wait_for(lambda: os.listdir(f'{machine.runtime}/store') == ['pool'], 'the store to be empty')
        check_runs(machine, played)


def test_library_that_cannot_list_now():
    """What the pool would need is asked for until it is known."""
    same_for_both('the pool of the store')
    with vmm.machine(options=',pool=16M') as machine:
        played = Library(machine)

        def fail(library_, sequence):
            library_.on[library.LIST] = lambda again, _: None
            library_.answer(sequence, EIO, 'not now')

        played.on[library.LIST] = fail
        wait_for(lambda: played.asked.count(library.LIST) >= 3, 'the third time')
        machine.must(played.pid, 'freeze data')
        machine.must(played.pid, 'thaw')


def test_refused_by_the_driver_before():
    """Who has been refused once is refused for ever, whatever the reason was; nothing is lost."""
    needs_cuda('a checkpoint by the driver, which can refuse it')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--managed', 1, '--buffers', 1, '--bytes', '3M')
        check('NOT_SUPPORTED' in vmm.freeze_without_us(machine, demo.pid), 'the first refusal')
        demo.wait_ticks()
        for _ in range(2):
            equal(machine.write(demo.pid, 'freeze'), 'EIO')
            check('UNKNOWN' in machine.error(demo.pid), machine.error(demo.pid))
            equal(machine.state(demo.pid), 'running')
            demo.wait_ticks()
        vmm.cycle(machine, demo, 'freeze data')
        plain = machine.ready_demo('--managed', 1,
                                   command=[*vendor.RUN, '--no-vmm', *vendor.DEMO])
        for words in ('managed memory', 'before'):
            equal(machine.write(plain.pid, 'freeze'), 'EOPNOTSUPP')
            check(words in machine.error(plain.pid), machine.error(plain.pid))
            plain.wait_ticks()


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
