# SPDX-License-Identifier: MIT
"""The daemon dies in a dump: with the next one everything runs or is frozen, or is in the place and
nowhere else."""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import vendor
from harness import check, equal, is_alive, same_for_both, wait_for


def origin(machine, name):
    return f'{machine.runtime}/store/incoming-{name}/origin'


def final_state(machine, one):
    machine.wait_status(one.pid, 'verb', '-')
    return machine.state(one.pid)


def goes_on(machine, *programs):
    """Frozen or running, and not stopped; then it is dumped and comes back."""
    for one in programs:
        state = final_state(machine, one)
        if vendor.HIP and state == 'running':
            machine.wait_status(one.pid, 'engine', vendor.ENGINE)
        check(state in ('frozen', 'running'), f'{one.pid} is {state}: {machine.error(one.pid)}')
        check(dump.threads_state(one.pid) != 'T', f'{one.pid} is stopped')
        if state == 'frozen':
            machine.must(one.pid, 'thaw')
    dump.as_before(machine, *programs)


def test_while_it_freezes():
    with dump.machine() as machine:
        one = dump.program(machine)
        steps = {'lock': 'cuCheckpointProcessLock', 'checkpoint': 'cuCheckpointProcessCheckpoint'}
        if vendor.HIP:
            steps = {'handover': f'cuMemUnmap {vendor.AGENT}',
                     'copy': 'cuMemcpyDtoHAsync comm=gpucr-worker nth=1'}
        for phase, call in steps.items():
            machine.faults(f'{call} delay_ms=700')
            machine.writer(one.pid, 'dump')
            machine.wait_status(one.pid, 'phase', phase)
            dump.kill_daemon(machine)
            machine.faults()
            machine.start()
            goes_on(machine, one)


def test_while_criu_works():
    """Before it has begun, and when it holds the tree: it is ended, and the tree goes
    on, with the library that was parked."""
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        for mode, event in (('wait', 'pid'), ('hang', 'pid'), ('wait-after', 'done')):
            machine.criu.set(mode)
            machine.writer(one.pid, 'dump')
            criu = machine.criu.wait(event)
            dump.kill_daemon(machine)
            if mode == 'wait-after':
                equal(dump.threads_state(one.pid), 't')
            check(is_alive(criu), 'criu goes on without the daemon')
            machine.start()
            check(not is_alive(criu), 'criu has been ended')
            machine.criu.set()
            goes_on(machine, one)
        name = dump.dumped(machine, one)
        machine.must(name, 'thaw')
        one.wait_ticks()


@contextlib.contextmanager
def silent_descriptor():
    """A process of root's that has, by the number by which CRIU has its images, a file of a filesystem
    that does not answer (test/fs/unflushed.c)."""
    with tempfile.TemporaryDirectory() as directory:
        filesystem = subprocess.Popen([f'{harness.BUILD}/test/fs/unflushed', directory],
                                      stdout=subprocess.PIPE, text=True)
        equal(filesystem.stdout.readline(), 'mounted\n')
        holder = subprocess.Popen(['sh', '-c', 'exec 3<"$0" && exec sleep 1000', f'{directory}/file'])
        try:
            wait_for(lambda: os.path.lexists(f'/proc/{holder.pid}/fd/3'), 'its descriptor')
            yield
        finally:
            filesystem.terminate()
            filesystem.wait()
            filesystem.stdout.close()
            holder.kill()
            holder.wait()


def test_beside_a_silent_filesystem():
    """The next daemon looks for CRIU among root's processes, and waits for none of their filesystems."""
    same_for_both('how a CRIU that works is found')
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        machine.criu.set('wait')
        machine.writer(one.pid, 'dump')
        criu = machine.criu.wait()
        dump.kill_daemon(machine)
        with silent_descriptor():
            machine.start()
            check(not is_alive(criu), 'criu has been ended')
            machine.criu.set()
            goes_on(machine, one)


def test_a_tree_of_several():
    with dump.machine(wrapped=True) as machine:
        root, programs = dump.launcher(machine)
        machine.criu.set('wait-after')
        machine.writer(root.pid, 'dump')
        machine.criu.wait('done')
        dump.kill_daemon(machine)
        machine.start()
        machine.criu.set()
        check(dump.threads_state(root.pid) != 'T', 'the shell is stopped')
        goes_on(machine, *programs)


def publish(machine, one, word):
    """As a daemon leaves it that dies between publishing the place and the end of the tree: by
    `leave` both are there."""
    machine.must(one.root, 'dump leave name=place')
    dump.kill_daemon(machine)
    with open(origin(machine, 'place'), encoding='utf-8') as file:
        words = file.read().split()
    equal(words[0], 'dumped')
    with open(origin(machine, 'place'), 'w', encoding='utf-8') as file:
        file.write(f"{word} {' '.join(words[1:])}\n")
    return words[1:]


def stop(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda pid=pid: dump.threads_state(pid) == 'T', f'{pid} to be stopped')


def test_published_and_not_ended():
    """The next daemon ends the tree before it does anything else: it must not run twice."""
    with dump.machine() as machine:
        root, programs = dump.launcher(machine)
        publish(machine, programs[0], 'ending')
        stop(root.pid, *[one.pid for one in programs])
        ticks = [one.ticks() for one in programs]
        machine.start()
        check(not is_alive(root.pid) and not any(is_alive(one.pid) for one in programs), 'alive')
        equal([one.ticks() for one in programs], ticks)
        for one in (*programs, root):
            one.wait_gone()
        wait_for(lambda: not os.listdir(f'{machine.runtime}/processes'), 'no record')
        equal(machine.state('place'), 'dumped')
        check(harness.read_file(origin(machine, 'place')).startswith('dumped '), 'origin')
        machine.must('place', 'thaw')
        for one in programs:
            one.wait_ticks()


def test_killed_as_it_publishes():
    """The place is there, and CRIU has no answer. It ends the tree, which would otherwise run on until
    the next daemon ends it, and change files that the place needs as they are."""
    with dump.machine(start=False) as machine:
        dying = f'{machine.directory}/dying'
        machine.start(env={'LD_PRELOAD': f'{harness.BUILD}/test/e2e/libdying.so',
                           'GPUCR_TEST_DYING': dying})
        root, programs = dump.launcher(machine)
        with open(dying, 'w', encoding='utf-8'):
            machine.writer(root.pid, 'dump name=place')
            equal(harness.wait_end(machine.daemon), -signal.SIGKILL)
        for one in (*programs, root):
            one.wait_gone()
        machine.start()
        equal(machine.state('place'), 'dumped')
        check(harness.read_file(origin(machine, 'place')).startswith('dumped '), 'origin')
        machine.must('place', 'thaw')
        for one in programs:
            one.wait_ticks()


def test_published_and_others_have_the_pid():
    """Who has the root's pid but another start time is left alone."""
    same_for_both('what a place remembers')
    with dump.machine() as machine:
        one = dump.program(machine)
        _, ticks, _ = publish(machine, one, 'ending')
        with open(origin(machine, 'place'), 'w', encoding='utf-8') as file:
            file.write(f'ending {one.pid} {int(ticks) - 1}\n')
        machine.start()
        check(harness.read_file(origin(machine, 'place')).startswith('dumped '), 'origin')
        goes_on_beside_place(machine, one)


def goes_on_beside_place(machine, one):
    equal(final_state(machine, one), 'frozen')
    machine.must(one.pid, 'thaw')
    one.wait_ticks()
    equal(machine.state('place'), 'dumped')


def test_left_and_stopped():
    """Of a dump that leaves it, whose daemon died before it had continued it."""
    same_for_both('a tree that is stopped')
    with dump.machine() as machine:
        one = dump.program(machine)
        publish(machine, one, 'staying')
        stop(one.pid)
        machine.start()
        check(dump.threads_state(one.pid) != 'T', 'it is stopped')
        check(harness.read_file(origin(machine, 'place')).startswith('dumped '), 'origin')
        goes_on_beside_place(machine, one)


def test_at_many_moments():
    """Wherever it is: with the next daemon there is one of it, and it goes on."""
    with dump.machine() as machine:
        one = dump.program(machine)
        for number in range(10):
            machine.writer(one.pid, 'dump name=place').wait_waiting()
            time.sleep(0.05 * number)
            dump.kill_daemon(machine)
            machine.start()
            if 'place' in dump.places(machine):
                check(not is_alive(one.pid), 'it is in the place and alive')
                one.wait_gone()
                machine.must('place', 'thaw')
                one.wait_ticks()
                break
            goes_on(machine, one)
        one.wait_ticks()


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
