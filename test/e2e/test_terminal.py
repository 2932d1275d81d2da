# SPDX-License-Identifier: MIT
"""dump and thaw of what was started in a terminal: a job of a shell, which is the leader of the
session and stays outside; a leader itself; and one whose terminal is gone. And a thaw that comes
before the parent has waited for what the dump has ended."""
import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import vendor
from harness import check, equal, read_file, same_for_both, wait_for

DEMO = ' '.join(str(word) for word in [*vendor.RUN, *vendor.DEMO, *dump.SMALL])


class Session:
    """A program that leads a session of its own with a terminal of its own."""

    def __init__(self, machine, command):
        self.machine = machine
        self.master, slave = pty.openpty()
        self.text = b''
        self.popen = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd='/',
            env={**machine.env, 'PS1': '$ ', 'TERM': 'dumb'}, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.pid = None
        machine.others.append(self)

    def type(self, line):
        os.write(self.master, line.encode() + b'\n')

    def read_until(self, condition, words):
        deadline = time.monotonic() + harness.PATIENCE_SEC
        while not condition(self.text):
            check(time.monotonic() < deadline, f'{words}: {self.text}')
            if select.select([self.master], [], [], 0.1)[0]:
                self.text += os.read(self.master, 65536)

    def start(self):
        """Until gpucr-demo ticks; its pid."""
        self.read_until(lambda text: text.count(b' ok\r\n') > 1, 'ticks')
        words = self.text.decode().split('pid ')[1].split()[0]
        self.pid = int(words)
        return self.pid

    def close(self):
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    # as harness.Demo, for Machine.finish()
    def finish(self):
        self.close()
        for pid in {self.pid, self.popen.pid} - {None}:
            harness.try_kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(1)


def shell(machine):
    return Session(machine, ['bash', '--norc', '--noprofile', '--noediting', '-i'])


def wait_free(pid):
    """Children of this process that nobody else waits for are collected."""
    def is_free():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return not os.path.exists(f'/proc/{pid}')
    wait_for(is_free, f'process {pid} to be gone')


def ticks_until_killed(machine, name, pid):
    """The process of a place that was thawed writes its ticks into the log, and is killed."""
    log = f'{machine.runtime}/stdio/{name}.log'
    wait_for(lambda: read_file(log).count(' ok') > 2, f'ticks in {log}')
    os.kill(pid, signal.SIGKILL)
    wait_free(pid)


def goes_on(machine, name, pid):
    """Thawed, it writes into the log, and is what it was, also after another dump and thaw."""
    machine.must(name, 'thaw')
    log = f'{machine.runtime}/stdio/{name}.log'
    wait_for(lambda: read_file(log).count(' ok') > 2, f'ticks in {log}')
    check('wrong' not in read_file(log), read_file(log))
    machine.must(pid, 'freeze')
    machine.must(pid, 'thaw')
    machine.must(pid, 'dump name=again')
    wait_free(pid)
    machine.must('again', 'thaw')
    ticks_until_killed(machine, 'again', pid)


def test_job_of_a_shell():
    """In the background, in the foreground, and without job control."""
    same_for_both('what a program has open')
    with dump.machine() as machine:
        for name, before, after in (('back', '', ' &'), ('front', '', ''), ('plain', 'set +m', ' &')):
            session = shell(machine)
            if before:
                session.type(before)
            session.type(DEMO + after)
            pid = session.start()
            check(os.getsid(pid) == session.popen.pid, 'it is of the session of the shell')
            equal(os.getpgid(pid) == pid, name != 'plain')
            machine.must(pid, f'dump name={name}')
            wait_free(pid)
            # The shell is as it was, and goes away.
            session.type('echo still-$((40 + 2))')
            session.read_until(lambda text: b'still-42' in text, 'the shell')
            session.finish()
            goes_on(machine, name, pid)


def test_leader_of_the_session():
    """It has the terminal as its controlling one, and nothing of the session is outside."""
    same_for_both('what a program has open')
    with dump.machine() as machine:
        session = Session(machine, DEMO.split())
        pid = session.start()
        equal(os.getsid(pid), pid)
        machine.must(pid, 'dump name=leader')
        session.popen.wait()
        session.close()
        machine.must('leader', 'thaw')
        equal(os.getsid(pid), pid)
        fields = read_file(f'/proc/{pid}/stat').rpartition(') ')[2].split()
        check(fields[4] != '0', 'it has a controlling terminal')
        equal(int(fields[5]), pid)  # and is its foreground group
        ticks_until_killed(machine, 'leader', pid)


def test_terminal_is_gone():
    """It was hung up, and the program ignores that."""
    same_for_both('what a program has open')
    with dump.machine() as machine:
        session = shell(machine)
        session.type(f"trap '' HUP; exec 2>/dev/null; {DEMO} > {machine.directory}/out &")
        wait_for(lambda: os.path.exists(f'{machine.directory}/out') and
                 read_file(f'{machine.directory}/out').count(' ok') > 1, 'ticks')
        pid = session.pid = int(read_file(f'{machine.directory}/out').split()[1])
        check('/dev/pts/' in os.readlink(f'/proc/{pid}/fd/0') or
              os.readlink(f'/proc/{pid}/fd/0') == '/dev/null', 'its input')
        session.close()
        session.popen.wait()
        machine.must(pid, 'dump name=gone')
        wait_free(pid)
        machine.must('gone', 'thaw')
        count = read_file(f'{machine.directory}/out').count(' ok')
        wait_for(lambda: read_file(f'{machine.directory}/out').count(' ok') > count + 2, 'ticks')


def test_parent_that_waits_late():
    """The thaw waits for the parent, which then waits for what has ended."""
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'dump name=late')
        # Ended, and not waited for: this process is the parent.
        wait_for(lambda: dump.threads_state(one.pid) == 'Z', 'its end')
        writer = machine.writer('late', 'thaw')
        wait_for(lambda: machine.state('late') == 'restoring', 'the thaw to begin')
        equal(dump.threads_state(one.pid), 'Z')
        one.popen.wait()
        equal(writer.result(), 'ok')
        one.wait_ticks()


def test_parent_that_never_waits():
    """Refused after a while, and said whose fault it is; cancel does not wait for that."""
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'dump name=never')
        wait_for(lambda: dump.threads_state(one.pid) == 'Z', 'its end')
        writer = machine.writer('never', 'thaw')
        wait_for(lambda: machine.state('never') == 'restoring', 'the thaw to begin')
        machine.must('never', 'cancel')
        equal(writer.result(), 'ECANCELED')
        equal(machine.write('never', 'thaw'), 'EBUSY')
        words = machine.error('never')
        check(f'its parent {os.getpid()}' in words and 'has not waited for it' in words, words)
        one.wait_gone()
        machine.must('never', 'thaw')
        one.wait_ticks()


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
