# SPDX-License-Identifier: MIT
"""What the daemon keeps of CRIU for each process and place goes with them, also if no daemon runs when
they do; and only then."""
import ctypes
import errno
import os
import shutil
import signal
import stat
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
from harness import LIBC, NOBODY, check, equal, read_file, same_for_both, wait_for

LOGS_MAX = 16  # of a user: see gpucrfs-dump(7)
PIDFD_GETFD = 438


def kept(machine):
    directory = f'{machine.runtime}/criu'
    return sorted(name for name in os.listdir(directory)
                  if not name.startswith('plugins')) if os.path.isdir(directory) else []


def kill_daemon(machine):
    machine.daemon.kill()
    machine.daemon.wait()


def end(one):
    os.kill(one.pid, signal.SIGKILL)
    one.wait_gone()


def subject(machine, one):
    return f'process-{one.pid}-{machine.status(one.pid)["start_ticks"]}'


def test_restored_and_ended_without_a_daemon():
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        equal(kept(machine), [f'place-{name}'])
        restore.thaws(machine, one, name)
        equal(kept(machine), [f'place-{name}'])
        kill_daemon(machine)
        end(one)
        restore.start(machine)
        equal(kept(machine), [])


def test_dumped_and_ended_without_a_daemon():
    """A dump that left it running, or has failed."""
    with restore.machine() as machine:
        ending, living = dump.program(machine), dump.program(machine, name='living')
        for one in ending, living:
            machine.must(one.pid, f'dump leave name=left-{one.pid}')
        equal(kept(machine), sorted(subject(machine, one) for one in (ending, living)))
        stays = subject(machine, living)
        log = read_file(f'{machine.runtime}/criu/{stays}/criu.log')
        check(log, 'a log')
        kill_daemon(machine)
        end(ending)
        restore.start(machine)
        equal(kept(machine), [stays])
        equal(read_file(f'{machine.runtime}/criu/{stays}/criu.log'), log)
        end(living)
        wait_for(lambda: not kept(machine), 'the rest to go')


def test_names_in_it():
    """CRIU writes names of files as programs have chosen them; whoever reads its log on a terminal, or an
    error that comes from it, gets none of what controls that."""
    with dump.machine() as machine:
        path = f'{machine.directory}/\x1b[2J\x9b\r\x07name'

        def hold():
            os.set_inheritable(os.open(path, os.O_RDWR | os.O_CREAT), True)

        one = dump.program(machine, prepare=hold)
        machine.must(one.pid, 'dump leave')
        with open(f'{machine.runtime}/criu/{subject(machine, one)}/criu.log', 'rb') as file:
            check(b'\x1b[2J' in file.read(), 'CRIU does not name the file')
        log = machine.read(one.pid, 'criu.log')
        check('?[2J?' in log and 'name' in log, 'the name is not in the log')
        check(all(line.replace('\t', '').isprintable() for line in log.split('\n')), 'the log')


def test_places_that_stay():
    """A dumped program's is there as long as the place; so are those that are none of ours."""
    with restore.machine() as machine:
        one, other = dump.program(machine), dump.program(machine, name='other')
        names = [dump.dumped(machine, program) for program in (one, other)]
        foreign = ['place', 'place-', 'process-1', f'process-0{os.getpid()}-1', 'of-mine']
        for name in foreign:
            os.mkdir(f'{machine.runtime}/criu/{name}', 0o700)
        with open(f'{machine.runtime}/criu/place-/mine', 'w', encoding='utf-8'):
            pass
        kill_daemon(machine)
        restore.start(machine)
        equal(kept(machine), sorted(foreign + [f'place-{name}' for name in names]))
        log = read_file(machine.path(names[0], 'criu.log'))
        check(log, 'a log')
        os.rmdir(machine.path(names[1]))
        restore.thaws(machine, one, names[0])
        equal(kept(machine), sorted(foreign + [f'place-{names[0]}']))
        for name in foreign:
            for file in os.listdir(f'{machine.runtime}/criu/{name}'):
                os.unlink(f'{machine.runtime}/criu/{name}/{file}')
            os.rmdir(f'{machine.runtime}/criu/{name}')
        restore.ends(machine, one, names[0])
        wait_for(lambda: not kept(machine), 'all to go')


def test_the_store_is_lost_without_a_daemon():
    """With its places, of which nothing else is left."""
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        kill_daemon(machine)
        shutil.rmtree(f'{machine.runtime}/store/incoming-{name}')
        restore.start(machine)
        equal(kept(machine), [])


def test_place_of_a_living_process():
    """The log of `dump leave` goes with its place, unless it is that of another dump."""
    with restore.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'dump leave name=first')
        equal(kept(machine), [subject(machine, one)])
        machine.must(one.pid, 'dump leave name=second')
        os.rmdir(machine.path('first'))
        equal(kept(machine), [subject(machine, one)])
        check(machine.read(one.pid, 'criu.log'), 'the log of the second dump')
        os.rmdir(machine.path('second'))
        equal(kept(machine), [])
        equal(machine.read(one.pid, 'criu.log'), '')
        machine.must(one.pid, 'dump leave name=third')
        equal(kept(machine), [subject(machine, one)])
        # The place goes while no daemon runs.
        kill_daemon(machine)
        shutil.rmtree(f'{machine.runtime}/store/incoming-third')
        restore.start(machine)
        equal(kept(machine), [])


def test_number_of_a_users_logs():
    """A user has so many, whatever he dumps; others keep theirs, and so does a dump under way."""
    same_for_both('what CRIU leaves behind')
    with dump.machine(wrapped=True, vram='1G') as machine:
        os.chmod(machine.directory, 0o755)
        other, slow, *those = [
            dump.Program(machine, *dump.SMALL, uid=NOBODY - 1 if number == 0 else NOBODY,
                         name=f'program-{number}').wait_ready() for number in range(LOGS_MAX + 4)]
        machine.criu.set('fail')
        equal(machine.writer(other.pid, 'dump', uid=NOBODY - 1).result(), 'EIO')
        machine.criu.set('wait')
        waiting = machine.writer(slow.pid, 'dump leave', uid=NOBODY)
        machine.criu.wait()
        machine.criu.set('fail')
        for number, one in enumerate(those):
            equal(machine.writer(one.pid, 'dump', uid=NOBODY).result(), 'EIO')
            named = [subject(machine, program)
                     for program in [other, slow, *those[max(0, number + 4 - LOGS_MAX):number + 1]]]
            # On a busy machine the logs of two dumps may be finished in the other order.
            # With that of the other user, and that of the dump under way.
            check(len(kept(machine)) <= LOGS_MAX + 2, kept(machine))
            check(set(named) <= set(kept(machine)), f'gone, of {len(named)}: '
                  f'{[named.index(name) for name in named if name not in kept(machine)]}')
        machine.criu.go()
        waiting.result()
        # With the daemon the locks of its dumps have gone: nothing changes in that.
        kill_daemon(machine)
        restore.start(machine)
        equal(machine.writer(slow.pid, 'dump', uid=NOBODY).result(), 'EIO')
        check(subject(machine, slow) in kept(machine), 'the newest is gone')
        check(len(kept(machine)) <= LOGS_MAX + 1, kept(machine))
        check(subject(machine, other) in kept(machine), "another user's is gone")


class Thief(threading.Thread):
    """Takes each descriptor that CRIU's code in a process has there."""

    def __init__(self, pid):
        super().__init__()
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.ends = False
        self.taken = []

    def is_traced(self):
        return '\nTracerPid:\t0\n' not in read_file(f'/proc/{self.pid}/status')

    def run(self):
        known = set(os.listdir(f'/proc/{self.pid}/fd'))
        while not self.ends:
            now = set(os.listdir(f'/proc/{self.pid}/fd'))
            # Its library's connection must not be kept open.
            for number in now - known if self.is_traced() else ():
                fd = LIBC.syscall(PIDFD_GETFD, self.pidfd, ctypes.c_int(int(number)), 0)
                if fd >= 0:
                    self.taken.append(fd)
            known = now

    def finish(self):
        self.ends = True
        self.join()
        for fd in [self.pidfd, *self.taken]:
            os.close(fd)


def test_stolen_descriptor():
    """What another process of the same user takes from a process that is being dumped is no file of
    root's, and CRIU's log does not grow by it."""
    same_for_both('what CRIU lends to a dumped process')
    with dump.machine() as machine:
        one = dump.program(machine)
        sockets = 0
        for number in range(20):
            thief = Thief(one.pid)
            thief.start()
            try:
                machine.must(one.pid, f'dump leave name=copy-{number}')
                path = f'{machine.runtime}/criu/{subject(machine, one)}/criu.log'
                before = os.stat(path)
                for fd in thief.taken:
                    mode = os.fstat(fd).st_mode
                    name = os.readlink(f'/proc/self/fd/{fd}')
                    check(not stat.S_ISREG(mode) or not name.startswith(machine.runtime),
                          f'{name} was taken')
                    if stat.S_ISSOCK(mode):
                        sockets += 1
                        try:
                            os.write(fd, b'stolen\n')
                        except OSError as error:
                            check(error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN), error)
                        else:
                            check(False, f'{name} takes what is written')
                equal(os.stat(path).st_size, before.st_size, 'bytes of the log')
            finally:
                thief.finish()
            os.rmdir(machine.path(f'copy-{number}'))
            if sockets >= 4:
                break
        check(sockets, 'nothing was taken')


if __name__ == '__main__':
    harness.main(globals())
