# SPDX-License-Identifier: MIT
"""Quotas of connections, open files and their texts. What a user lets go of is counted no longer,
however that comes about."""
import contextlib
import os
import resource
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import MIB, become, check, equal, error_of, wait_for
from quota import (ALICE, BOB, FIRST_SUBUID, as_often_as, by, connect, count_open, counts,
                   holding, make_place, need_root, others_work, small_demo, user_machine,
                   wait_count, wait_nothing, why)


def test_connections():
    """Registered or not: they are dropped beyond the limit, and come back."""
    need_root()
    with user_machine(',user_connections=10') as machine:
        machine.start()
        demos = [machine.ready_demo(uid=ALICE) for _ in range(3)]
        for demo in demos:
            machine.wait_status(demo.pid, 'registered', 'yes')
        equal(counts(machine)['connections'], 3)

        def connect_many(expected):
            peers = [connect(machine) for _ in range(40)]
            wait_for(lambda: count_open(peers) <= expected, 'the others to be dropped')
            by.kept = peers
            return count_open(peers)

        with holding() as take:
            equal(take(ALICE, lambda: connect_many(7)).found, 7)
            equal(take(FIRST_SUBUID + 3, lambda: connect_many(0)).found, 0)
            equal(take(BOB, lambda: connect_many(10)).found, 10)
            equal(counts(machine)['connections'], 10)
            check(f'user {ALICE} has 10 connections to the socket' in machine.log(), 'the log')
            late = machine.ready_demo()
            machine.wait_status(late.pid, 'registered', 'yes')
        wait_count(machine, 'connections', 3)
        wait_nothing(machine, BOB)
        for demo in demos:
            demo.end(signal.SIGKILL)
        wait_nothing(machine)


def test_open_files():
    """Of one file and of all kinds, until they are closed, by whatever."""
    need_root()
    with user_machine(',user_open_files=50') as machine, holding() as take:
        machine.start()
        demo = machine.ready_demo(uid=ALICE)
        machine.wait_status(demo.pid, 'registered', 'yes')
        path = make_place(machine, 'place', size=4096)
        names = [path, machine.path('status'), machine.path('gpus'), machine.ctl(),
                 machine.path(demo.pid, 'events'), machine.path(demo.pid, 'maps'),
                 machine.path('place')]
        first = take(ALICE, lambda: as_often_as(
            40, lambda: os.open(names[len(os.listdir('/proc/self/fd')) % len(names)],
                                os.O_RDONLY if 'ctl' not in
                                names[len(os.listdir('/proc/self/fd')) % len(names)]
                                else os.O_WRONLY)))
        equal(first.found[0], 40)
        wait_count(machine, 'open_files', 40)
        # What fails is not counted.
        for call in (lambda: os.open(machine.path('status'), os.O_WRONLY),
                     lambda: os.open(machine.path('place', 'none'), os.O_RDONLY),
                     lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY),
                     lambda: os.open(machine.path('place', 'snapshot'), os.O_RDWR),
                     lambda: os.open(machine.path('new'), os.O_RDWR | os.O_CREAT),
                     lambda: os.open(machine.ctl(demo.pid), os.O_RDONLY)):
            check(by(ALICE, lambda: as_often_as(30, call))[0] == 0, 'it fails')
        wait_count(machine, 'open_files', 40)
        second = take(FIRST_SUBUID, lambda: as_often_as(
            40, lambda: os.open(machine.path('metrics'), os.O_RDONLY)))
        equal(second.found, [10, ['EMFILE']])
        equal(take(BOB, lambda: as_often_as(
            50, lambda: os.open(machine.path('metrics'), os.O_RDONLY))).found, [50, []])
        equal(error_of(lambda: os.close(os.open(path, os.O_RDONLY))), 'ok', 'root')
        equal(machine.writer(demo.pid, 'freeze', uid=ALICE).result(), 'EMFILE')
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        check(why(machine).startswith('EMFILE: '), why(machine))
        # Killed; and an unlinked one.
        os.unlink(path)
        first.let_go(signal.SIGKILL)
        wait_count(machine, 'open_files', 10)
        second.let_go(signal.SIGKILL)
        wait_count(machine, 'open_files', 0)
        equal(by(ALICE, lambda: as_often_as(
            60, lambda: os.open(machine.path('metrics'), os.O_RDONLY)))[0], 50)
        wait_count(machine, 'open_files', 0)


def test_open_and_die():
    """Opens that wait for the GPUs' figures, of programs that are killed meanwhile."""
    need_root()
    with user_machine() as machine:
        machine.start()
        for _ in range(60):
            def open_one():
                for _ in range(20):
                    os.open(machine.path('status'), os.O_RDONLY)

            pid = os.fork()
            if not pid:
                become(ALICE)
                open_one()
                os._exit(0)
            time.sleep(0.002)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        wait_nothing(machine)


def test_text():
    """1,200 open logs of some size do not fill the memory of the daemon."""
    need_root()
    with user_machine(',user_text=2M,user_open_files=5000') as machine, holding() as take:
        machine.start()
        make_place(machine, 'place')
        equal(by(ALICE, lambda: [os.mkdir(machine.path('place', 'snapshot', f'{number:02}' + 'n' * 200))
                                 for number in range(30)]), [None] * 30)
        for path in machine.path('metrics'), machine.path('place', 'snapshot'):
            found = take(ALICE, lambda: as_often_as(1200, lambda: os.open(path, os.O_RDONLY)))
            count, errors = found.found
            check(100 < count < 1000 and errors == ['EDQUOT'], f'{path}: {found.found}')
            check(MIB < counts(machine)['text_bytes'] <= 2 * MIB, str(counts(machine)))
            check(why(machine).startswith(f'EDQUOT: user {ALICE} has 1 MiB of bytes of text'),
                  why(machine))
            check('gpucrfs_users' in machine.read('metrics'), 'root reads')
            check(by(BOB, lambda: len(machine.read('metrics'))) > 1000, 'others read')
            found.let_go()
            wait_count(machine, 'text_bytes', 0)


def test_descriptors_of_all():
    """All users together leave some to the daemon and to root."""
    need_root()
    with user_machine(',user_open_files=0') as machine, holding() as take:
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (400, 800))

        machine.start(preexec_fn=limit)
        demo, bobs = small_demo(machine), small_demo(machine, BOB)
        for program in demo, bobs:
            machine.wait_status(program.pid, 'registered', 'yes')
        path = make_place(machine, 'place')
        found = take(ALICE, lambda: as_often_as(900, lambda: os.open(path, os.O_RDONLY)))
        # A quarter of 800 is the reserve.
        check(450 < found.found[0] < 600 and found.found[1] == ['ENFILE'], str(found.found))
        descriptors = len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))
        check(descriptors <= 610, f'{descriptors} descriptors')
        equal(take(BOB, lambda: as_often_as(
            10, lambda: os.open(machine.path('metrics'), os.O_RDONLY))).found, [0, ['ENFILE']])
        equal(by(BOB, lambda: error_of(lambda: os.mkdir(machine.path('bobs')))), 'ENFILE')
        for program in demo, bobs:
            machine.must(program.pid, 'freeze')
            machine.must(program.pid, 'thaw')
        check(str(demo.pid) in os.listdir(machine.mountpoint), 'ls')
        late = small_demo(machine)
        machine.wait_status(late.pid, 'registered', 'yes')
        found.let_go()
        wait_for(lambda: len(os.listdir(f'/proc/{machine.daemon.pid}/fd')) < 150, 'few again')
        others_work(machine, bobs)


def test_descriptors_with_holes():
    """Root's descriptors count, too, whatever their numbers are."""
    need_root()
    with user_machine(',user_open_files=0') as machine, holding() as take:
        machine.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (400, 800)))
        path = make_place(machine, 'place')

        def open_some(times):
            return as_often_as(times, lambda: os.open(path, os.O_RDONLY))

        first = take(ALICE, lambda: open_some(900))
        equal(first.found[1], ['ENFILE'])
        equal(take(0, lambda: open_some(120)).found, [120, []])
        first.let_go()
        wait_count(machine, 'open_files', 0)
        # The lowest numbers are free, and root has the highest ones.
        found = take(ALICE, lambda: open_some(900)).found
        check(found[1] == ['ENFILE'] and found[0] < first.found[0] - 100,
              f'{found} after {first.found}')
        descriptors = len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))
        check(descriptors <= 610, f'{descriptors} descriptors')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
