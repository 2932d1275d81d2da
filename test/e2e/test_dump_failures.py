# SPDX-License-Identifier: MIT
"""dump that fails: the program goes on as before, and nothing is left of it."""
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
from harness import MIB, check, equal, is_alive, same_for_both, wait_for


def fails(machine, one, expected, verb='dump'):
    result = machine.write(one.pid, verb)
    equal(result, expected, machine.error(one.pid))
    check(machine.error(one.pid).startswith(f'{expected}: '), machine.error(one.pid))
    dump.as_before(machine, one)
    return machine.error(one.pid)


def test_criu_fails():
    """At once, in the middle, with nothing done, by a signal, and in the end with the tree held.
    Then it can be dumped all the same."""
    words = {'fail': 'it was told to fail', 'nothing': 'has not loaded', 'killed': 'signal 9',
             'refuse': 'exited with', 'truncate': 'pstree.img',
             'damage': 'core-'}
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        # Helpers that a way back needs stay for a while.
        machine.criu.set('fail')
        fails(machine, one, 'EIO')
        descriptors = dump.descriptors(machine)
        for mode, said in words.items():
            machine.criu.set(mode)
            found = fails(machine, one, 'EIO')
            check(said in found, f'{mode}: {found}')
        machine.criu.set('full')
        result = machine.write(one.pid, 'dump')
        check(result in ('EFBIG', 'EIO', 'ENOSPC'), f'{result}: {machine.error(one.pid)}')
        dump.as_before(machine, one)
        try:
            wait_for(lambda: len(dump.descriptors(machine)) <= len(descriptors), 'descriptors', 5)
        except harness.Failure:
            equal(dump.descriptors(machine), descriptors)
        machine.criu.set()
        name = dump.dumped(machine, one)
        machine.must(name, 'thaw')
        one.wait_ticks()


def test_frozen_stays_frozen():
    """Of a process that was frozen before."""
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        for mode in ('fail', 'refuse'):
            machine.criu.set(mode)
            equal(machine.write(one.pid, 'dump'), 'EIO')
            equal(machine.state(one.pid), 'frozen')
            dump.nothing_left(machine)
            check(dump.threads_state(one.pid) != 'T', 'it is not stopped')
        machine.must(one.pid, 'thaw')
        dump.as_before(machine, one)


def test_criu_fails_too_late():
    """It has been told that the dump stands: the place is the process, whatever becomes of CRIU."""
    same_for_both('what CRIU answers')
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        for mode in ('fail-after', 'killed-after'):
            machine.criu.set(mode)
            machine.must(dump.dumped(machine, one), 'thaw')
            one.wait_ticks(1)
        machine.criu.set()


def test_criu_is_killed_at_the_end():
    """When the dump stands, and before CRIU has ended any process: the tree has gone on since, and
    would be thrown back to the dump. So it goes on for good, and there is no place."""
    same_for_both('what becomes of CRIU')
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        machine.criu.set('killed-at-end')
        equal(machine.write(one.pid, 'dump'), 'EIO')
        check('goes on' in machine.error(one.pid), machine.error(one.pid))
        dump.as_before(machine, one)
        machine.criu.set()
        machine.must(dump.dumped(machine, one), 'thaw')
        one.wait_ticks(1)


def test_parent_sees_nothing():
    """A parent outside, which would stop with it, is not told that it was stopped."""
    same_for_both('a tree that is stopped')
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        machine.criu.set('wait-after')
        writer = machine.writer(one.pid, 'dump')
        machine.criu.wait('done')
        equal(dump.threads_state(one.pid), 't')
        equal(os.waitid(os.P_PID, one.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT), None)
        machine.write(one.pid, 'cancel')
        equal(writer.result(), 'ECANCELED')
        equal(os.waitid(os.P_PID, one.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG), None)
        machine.criu.set()
        dump.as_before(machine, one)


def test_criu_hangs():
    """The deadline ends it; so does a signal to the writer."""
    same_for_both('deadlines')
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        machine.criu.set('hang')
        fails(machine, one, 'ETIMEDOUT', 'dump timeout=2')


def test_stopped_at_any_moment():
    """`cancel`, and a signal to the writer: whatever it says is true."""
    with dump.machine() as machine:
        one = dump.program(machine)
        one.wait_ticks(1)
        for number in range(12):
            before = one.ticks()
            writer = machine.writer(one.pid, 'dump').wait_waiting()
            time.sleep(0.04 * number)
            if number % 2:
                writer.signal(signal.SIGTERM)
            elif is_alive(one.pid):
                machine.write(one.pid, 'cancel')
            writer.result()
            wait_for(lambda: not is_alive(one.pid) or
                     machine.status(one.pid).get('verb') == '-', 'the end of the verb')
            if dump.places(machine):
                one.wait_gone()
                machine.must(dump.places(machine)[0], 'thaw')
                one.wait_ticks(1)
                break
            equal(machine.state(one.pid), 'running')
            wait_for(lambda: one.ticks() > before, 'a tick')
            dump.nothing_left(machine)
        one.wait_ticks()


def test_stopped_in_each_phase():
    """While it freezes, while CRIU works, and when CRIU is through with it."""
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        for mode, event in (('wait', 'pid'), ('wait-after', 'done')):
            for by_signal in (False, True):
                machine.criu.set(mode)
                writer = machine.writer(one.pid, 'dump')
                machine.criu.wait(event)
                if by_signal:
                    writer.signal(signal.SIGTERM)
                else:
                    canceller = machine.writer(one.pid, 'cancel').wait_waiting()
                machine.criu.go()
                check(writer.result() in ('EINTR', 'ECANCELED', 'killed'), writer.result())
                if not by_signal:
                    equal(canceller.result(), 'ok')
                machine.wait_status(one.pid, 'verb', '-')
                dump.as_before(machine, one)
        machine.criu.set()
        phase = machine.slow('freeze', 500)
        writer = machine.writer(one.pid, 'dump')
        machine.wait_status(one.pid, 'phase', phase)
        equal(machine.write(one.pid, 'cancel'), 'ok')
        equal(writer.result(), 'ECANCELED')
        machine.faults()
        dump.as_before(machine, one)


def test_second_verb():
    """Another verb is refused, the same one joins, another dump does not."""
    same_for_both('who writes to ctl')
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        machine.criu.set('wait')
        writer = machine.writer(one.pid, 'dump')
        machine.criu.wait()
        equal(machine.write(one.pid, 'thaw'), 'EBUSY')
        equal(machine.write(one.pid, 'freeze'), 'EBUSY')
        equal(machine.write(one.pid, 'dump leave'), 'EBUSY')
        equal(machine.status(one.pid)['phase'], 'criu')
        # The name is taken as long as something is made under it.
        start = machine.status(one.pid)['start_ticks']
        equal(harness.error_of(lambda: os.mkdir(machine.path(f'gpucr-demo-{one.pid}-{start}'))),
              'EEXIST')
        joined = machine.writer(one.pid, 'dump').wait_waiting()
        machine.criu.go()
        equal([writer.result(), joined.result()], ['ok', 'ok'])
        one.wait_gone()
        machine.must(dump.places(machine)[0], 'thaw')
        one.wait_ticks()


def test_name_taken_in_the_last_moment():
    """What is decided fails all the same: nothing is gone yet."""
    same_for_both('names of places')
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        other = f'{machine.runtime}/store/incoming-name'
        machine.criu.set('wait')
        writer = machine.writer(one.pid, 'dump name=name')
        machine.criu.wait()
        os.mkdir(other)
        machine.criu.go()
        equal(writer.result(), 'EEXIST')
        os.rmdir(other)
        machine.criu.set()
        dump.as_before(machine, one)
        dump.dumped(machine, one, 'dump name=name')


def test_daemon_is_told_to_end():
    """It takes the dump back before it goes."""
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        machine.criu.set('wait')
        writer = machine.writer(one.pid, 'dump')
        machine.criu.wait()
        equal(machine.stop(), 0)
        check(writer.result() != 'ok', 'it was taken back')
        one.wait_ticks()
        machine.criu.set()
        machine.start()
        dump.as_before(machine, one)
        dump.dumped(machine, one)


def test_killed_in_the_middle():
    with dump.machine(wrapped=True) as machine:
        one = dump.program(machine)
        machine.criu.set('wait')
        writer = machine.writer(one.pid, 'dump')
        machine.criu.wait()
        os.kill(one.pid, signal.SIGKILL)
        machine.criu.go()
        equal(writer.result(), 'ESRCH')
        one.wait_gone()
        wait_for(lambda: not os.path.exists(machine.path(one.pid)), 'its end in the mount')
        dump.nothing_left(machine)
        wait_for(lambda: int(machine.status_of_all()['store_used_bytes']) == 0, 'an empty store')
        equal(os.listdir(f'{machine.runtime}/processes'), [], 'records')


MEMORY = """
import os, sys, time
memory = bytearray(os.urandom(1 << 20) * 48)
if not os.fork():
    time.sleep(100000)
os.system(sys.argv[1])
"""


def test_no_room():
    """Memory that two processes share by a fork is written for each, and is asked for before
    anybody is frozen."""
    same_for_both('room in the store')
    with dump.machine(options=',store_size=112M') as machine:
        root = dump.Program(machine, dump.demo_in_shell(machine, 'one'), name='memory',
                            command=[sys.executable, '-c', MEMORY])
        one = dump.Program.below(root, 'one').wait_ready()
        generation = machine.status(one.pid)['generation']
        equal(machine.write(root.pid, 'dump'), 'ENOSPC')
        check('no room for the' in machine.error(one.pid), machine.error(one.pid))
        equal(machine.status(one.pid)['generation'], generation, 'it was not frozen')
        dump.as_before(machine, one)
        # Without that memory there is room, also for the second time.
        for name in ('first', 'second'):
            machine.must(one.pid, f'dump leave name={name}')
            machine.must(one.pid, 'thaw')
            machine.must(name, 'drop')
        one.wait_ticks()


def test_store_full_in_the_middle():
    """What was promised is not there: somebody else has taken it."""
    same_for_both('room in the store')
    with dump.machine(wrapped=True) as machine:
        root = dump.Program(machine, dump.demo_in_shell(machine, 'one'), name='memory',
                            command=[sys.executable, '-c', MEMORY])
        one = dump.Program.below(root, 'one').wait_ready()
        machine.criu.set('wait')
        store = f'{machine.runtime}/store'
        if not os.path.ismount(store):
            raise harness.Skip('the store is no file system of its own')
        writer = machine.writer(root.pid, 'dump')
        machine.criu.wait()
        used = os.statvfs(store)
        size = (used.f_blocks - used.f_bfree) * used.f_frsize + MIB // 4
        subprocess.run(['mount', '-o', f'remount,size={size}', store], check=True)
        machine.criu.go()
        check(writer.result() != 'ok', 'the store is full')
        machine.wait_status(one.pid, 'verb', '-')
        subprocess.run(['mount', '-o', 'remount,size=1G', store], check=True)
        machine.criu.set()
        dump.as_before(machine, one)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
