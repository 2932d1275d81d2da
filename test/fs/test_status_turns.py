# SPDX-License-Identifier: MIT
"""A user who has many places opens `status` in many threads, as fast as he can: others read theirs
all the while."""
import errno
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import (NOBODY, SLOW, Machine, Skip, check, equal, is_root, same_for_both, wait_for)
from users import User

OTHER = NOBODY - 1
PLACES = 128  # what one user may have
THREADS = 100
TRIES = 3
# On two busy CPUs. Without turns it is some seconds, with a pid namespace or without.
MEDIAN_SEC = 0.4 * SLOW
WORST_SEC = 1.5 * SLOW


def several_users():
    same_for_both('in which order texts are written')
    if not is_root():
        raise Skip('several users are needed')


def make_places(machine, uid):
    def make(ready):
        for index in range(PLACES):
            os.mkdir(machine.path(f'of-{uid}-{index}'))
        ready()
    user = User(machine, uid, make)
    user.ends_well('the places')


def opens(machine, uid=NOBODY, apart=False, threads=THREADS, until=(), name='status'):
    """Until it is killed, or one of these errors comes."""
    def work(ready):
        unknown = []

        def bother():
            while not unknown:
                try:
                    os.close(os.open(machine.path(name), os.O_RDONLY))
                except OSError as error:
                    if error.errno not in until:
                        unknown.append(error)
                    return
        started = [threading.Thread(target=bother) for _ in range(threads)]
        for thread in started:
            thread.start()
        ready()
        for thread in started:
            thread.join()
        if unknown:
            raise unknown[0]
    return User(machine, uid, work, apart)


def measure(read, count):
    times = []
    for _ in range(count):
        began = time.monotonic()
        check(read(), 'an empty text')
        times.append(time.monotonic() - began)
        time.sleep(0.02)
    return times


def words_of(times):
    return f'median {statistics.median(times):.3f} s, worst {max(times):.3f} s'


def is_not_kept(machine, read, words, **attack):
    """@read is not kept waiting by the attack."""
    before = measure(read, 10)
    user = opens(machine, **attack)
    time.sleep(0.3)  # all of them are at it
    during = measure(read, harness.few(12, 40))
    check(not user.is_over(), 'the attack has ended')
    user.finish()
    words = f'{words}: undisturbed {words_of(before)}; disturbed {words_of(during)}'
    print(words, file=sys.stderr)
    check(statistics.median(during) < MEDIAN_SEC and max(during) < WORST_SEC, words)


def open_files(machine, uid):
    """How many are counted for this user."""
    for line in machine.read('status').splitlines():
        words = line.split()
        if words[:2] == ['user', str(uid)]:
            return int(words[words.index('open_files') + 1].split('/')[0])
    return 0


def test_root_reads_on():
    several_users()
    with Machine() as machine:
        demo = machine.ready_demo('--bytes', '1M', '--tick', '200')
        make_places(machine, NOBODY)
        # With all tests: each text with each attack.
        names = [f'{demo.pid}/status', 'status', 'metrics', 'gpus/0/status']
        attacks = (False, True)
        for name, apart in harness.few(list(zip(names, 2 * attacks)),
                                       [(name, apart) for name in names for apart in attacks]):
            is_not_kept(machine, lambda: machine.read(name),
                        name + apart * ', attack from a pid namespace', apart=apart)
        # Root of a container is a user like any other. The places are not its own: it may not have any.
        is_not_kept(machine, lambda: machine.read(demo.pid, 'status'),
                    'status, attack of root of a container', uid=0, apart=True)
        wait_for(lambda: not open_files(machine, NOBODY), 'the opens of what was killed to be over')


def test_another_user_reads_on():
    """So does one who is limited himself."""
    several_users()
    with Machine() as machine:
        demo = machine.ready_demo(uid=OTHER)
        make_places(machine, NOBODY)

        def victim(ready):
            ready()
            times = measure(lambda: harness.read_file(machine.path(demo.pid, 'status')),
                            harness.few(15, 60))
            check(statistics.median(times) < MEDIAN_SEC and max(times) < WORST_SEC, words_of(times))
        for apart in False, True:
            attacker = opens(machine, apart=apart)
            user = User(machine, OTHER, victim)
            user.ends_well('the other user')
            check(not attacker.is_over(), 'the attack has ended')
            attacker.finish()


def test_texts_are_right():
    """Each of many opens has its own text; what a caller sees does not depend on the others."""
    several_users()
    with Machine() as machine:
        demo = machine.ready_demo(uid=OTHER)
        make_places(machine, NOBODY)

        def ids(text):
            return {line.split()[0] for line in text.split('\n\n')[1].splitlines()[1:]}

        def read_many(expected):
            def work(ready):
                wrong = []

                def read():
                    for _ in range(harness.few(2, 5)):
                        found = ids(machine.read('status'))
                        if found != expected:
                            wrong.append(found)
                started = [threading.Thread(target=read) for _ in range(40)]
                for thread in started:
                    thread.start()
                for thread in started:
                    thread.join()
                check(not wrong, f'{wrong[:1]}')
                ready()
            return work
        places = {f'of-{NOBODY}-{index}' for index in range(PLACES)}
        users = []
        for uid, apart, expected in ((NOBODY, False, places | {str(demo.pid)}),
                                     (OTHER, False, places | {str(demo.pid)}),
                                     (NOBODY, True, places), (OTHER, True, set()),
                                     (0, True, set())):
            users.append(User(machine, uid, read_many(expected), apart))
        for user in users:
            user.ends_well('all that read')


def test_an_interrupted_open():
    """One that waits ends with EINTR, soon, and nothing is left of it."""
    several_users()
    with Machine() as machine:
        make_places(machine, NOBODY)
        attacker = opens(machine, threads=400)

        def work(ready):
            def handler(*_):
                raise InterruptedError(errno.EINTR, 'EINTR')
            signal.signal(signal.SIGALRM, handler)
            interrupted = 0
            # How many of them wait for so long depends on what else the machine does.
            deadline = time.monotonic() + 30 * SLOW
            while interrupted < 10 and time.monotonic() < deadline:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.05))
                began = time.monotonic()
                try:
                    try:
                        os.close(os.open(machine.path('status'), os.O_RDONLY))
                    finally:  # the signal may come before this is done
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except InterruptedError:
                    interrupted += 1
                took_sec = time.monotonic() - began
                check(took_sec < WORST_SEC, f'it took {took_sec} s')
            equal(interrupted, 10, 'interrupted opens')
            ready()
        user = User(machine, NOBODY, work)
        user.ends_well('the interrupted opens')
        attacker.finish()
        wait_for(lambda: not open_files(machine, NOBODY), 'the opens to be counted no longer')


def looks_up(machine, name, threads=200):
    """A user who looks a file of the root up all the time."""
    def work(ready):
        def bother():
            while True:
                os.stat(machine.path(name))
        for _ in range(threads):
            threading.Thread(target=bother, daemon=True).start()
        ready()
        time.sleep(1000)
    return User(machine, NOBODY, work)


def count_opens(machine, name, flags):
    """How often it can be opened in a while, beside such a user."""
    user = looks_up(machine, name)
    time.sleep(0.5 * SLOW)
    until = time.monotonic() + 4 * SLOW
    count = 0
    while time.monotonic() < until:
        os.close(os.open(machine.path(name), flags))
        count += 1
    user.finish()
    return count


def test_look_ups_of_ctl():
    """Each of them leads to another inode, and the kernel repeats them until no other one of the same
    name comes between: a user who makes many does not keep others from opening it."""
    several_users()
    with Machine() as machine:
        counts = []

        def is_as_fast():
            """What else runs here may take the time of one of the two."""
            status = count_opens(machine, 'status', os.O_RDONLY)
            ctl = count_opens(machine, 'ctl', os.O_WRONLY)
            counts.append((ctl, status))
            return ctl >= status / 4

        check(any(is_as_fast() for _ in range(TRIES)), f'opens of ctl, and of status: {counts}')


ENDS = (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT, errno.ENODEV, errno.EINTR)


def test_the_daemon_ends():
    """Opens that wait are answered."""
    several_users()
    with Machine() as machine:
        make_places(machine, NOBODY)
        users = [opens(machine, threads=100, until=ENDS),
                 opens(machine, threads=50, until=ENDS, apart=True)]
        time.sleep(0.3)
        began = time.monotonic()
        equal(machine.stop(), 0)
        took_sec = time.monotonic() - began
        check(took_sec < 10 * SLOW, f'the end takes {took_sec} s')
        for user in users:
            user.ends_well('the opens')


def test_the_mount_goes():
    several_users()
    with Machine() as machine:
        make_places(machine, NOBODY)
        user = opens(machine, threads=100, until=ENDS)
        time.sleep(0.3)
        subprocess.run(['umount', '-l', machine.mountpoint], check=True)
        user.ends_well('the opens')
        equal(machine.daemon.wait(30 * SLOW), 0)


if __name__ == '__main__':
    harness.main(globals())
