# SPDX-License-Identifier: MIT
"""A user polls the root's `events` with all the files that he may have open: what makes an event does
not wait for that, and one poller of another user is woken all the same."""
import os
import resource
import select
import statistics
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import NOBODY, SLOW, Machine, check, equal, same_for_both
from users import User, need_root

OTHER = NOBODY - 1
POLLERS = 4000
ROUNDS = 15
TRIES = 3  # what else runs here may take the time of one of them
# For a directory that is made and removed, which is two events. On two busy CPUs; it was 0.1 s when who made
# an event notified all pollers, and looked for each of them in the list of all.
EVENTS_SEC = 0.03 * SLOW
WAKE_SEC = 0.1 * SLOW


def several_users():
    same_for_both('how pollers are notified')
    need_root()


def open_at_end(machine):
    """A descriptor of the root's `events`, all of which has been read."""
    fd = os.open(machine.path('events'), os.O_RDONLY)
    while os.read(fd, 1 << 20):
        pass
    return fd


def polls(machine, count=POLLERS):
    """A user who is woken by each event, and waits again for the next one with all descriptors."""
    def work(ready):
        epoll = select.epoll()
        for _ in range(count):
            epoll.register(open_at_end(machine), select.EPOLLIN | select.EPOLLET)
        ready()
        while True:
            epoll.poll(maxevents=count)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < count + 100:
        raise harness.Skip(f'{count} open files are needed, and {most} are allowed')
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return User(machine, NOBODY, work)


def make_events(machine, round_number):
    """How long that takes."""
    path = machine.path(f'of-another-{round_number}')
    began = time.monotonic()
    os.mkdir(path)
    os.rmdir(path)
    return time.monotonic() - began


def words_of(times):
    return f'median {statistics.median(times):.4f} s, worst {max(times):.4f} s'


def measure(machine):
    times = []
    for number in range(ROUNDS):
        times.append(make_events(machine, number))
        time.sleep(0.4)  # the pollers come back
    return times


def test_events_are_made():
    several_users()
    with Machine() as machine:

        def alone(ready):
            print(f'alone: {words_of(measure(machine))}', file=sys.stderr)
            ready()

        def disturbed(ready):
            medians = []
            while len(medians) < TRIES and min(medians, default=EVENTS_SEC) >= EVENTS_SEC:
                times = measure(machine)
                print(f'disturbed: {words_of(times)}', file=sys.stderr)
                medians.append(statistics.median(times))
            check(min(medians) < EVENTS_SEC, f'medians of the events: {medians}')
            ready()
        User(machine, OTHER, alone).ends_well('events without pollers')
        attacker = polls(machine)
        User(machine, OTHER, disturbed).ends_well('events with pollers')
        check(not attacker.is_over(), 'the pollers have ended')


def wake(machine, poll, number):
    """After which time an event that another process makes wakes the poller."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        time.sleep(0.4)  # the poller waits by then, and the others have come back
        os.write(writer, struct.pack('d', time.monotonic()))
        os.mkdir(machine.path(f'of-another-{number}'))
        os._exit(0)
    check(poll.poll(5000 * SLOW), 'no event')
    woken = time.monotonic()
    began = struct.unpack('d', os.read(reader, 8))[0]
    os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)
    return woken - began


def test_a_poller_is_woken():
    """Others' pollers come before those of one user that are left."""
    several_users()
    with Machine() as machine:
        attacker = polls(machine)

        def work(ready):
            fd = open_at_end(machine)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            times = []
            for number in range(ROUNDS):
                equal(poll.poll(0), [], 'nothing to read')
                times.append(wake(machine, poll, number))
                while os.read(fd, 1 << 20):
                    pass
            print(f'woken after: {words_of(times)}', file=sys.stderr)
            check(statistics.median(times) < WAKE_SEC, words_of(times))
            ready()
        User(machine, OTHER, work).ends_well('the other poller')
        check(not attacker.is_over(), 'the pollers have ended')


if __name__ == '__main__':
    harness.main(globals())
