# SPDX-License-Identifier: MIT
"""What is refused by a ctl file, with which errno, and that nothing happened."""
import array
import fcntl
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import NOBODY, Machine, Skip, check, equal

# What is written to a running process's ctl, and the answer.
REFUSED = [
    ('nonsense\n', 'EINVAL'),
    ('\n', 'EINVAL'),
    (' \t \n', 'EINVAL'),
    ('freeze\nthaw\n', 'EINVAL'),
    ('freeze\n\n', 'EINVAL'),
    ('freeze\0\n', 'EINVAL'),
    ('\0', 'EINVAL'),
    (b'\x7fELF\x02\x01\x01', 'EINVAL'),
    (bytes(range(256)), 'EINVAL'),
    (b'fr\xc3\xa9eze\n', 'EINVAL'),
    ('Freeze\n', 'EINVAL'),
    ('freez\n', 'EINVAL'),
    ('freezes\n', 'EINVAL'),
    ('freeze thaw\n', 'EINVAL'),
    ('freeze 1\n', 'EINVAL'),
    ('freeze timeout\n', 'EINVAL'),
    ('freeze timeout=\n', 'EINVAL'),
    ('freeze timeout=0\n', 'EINVAL'),
    ('freeze timeout=-1\n', 'EINVAL'),
    ('freeze timeout=1.5\n', 'EINVAL'),
    ('freeze timeout=99999999999999999999\n', 'EINVAL'),
    ('freeze timeout=1 timeout=2\n', 'EINVAL'),
    ('freeze gpu=0:1\n', 'EINVAL'),
    ('thaw gpu=0\n', 'EINVAL'),
    ('thaw gpu=0:\n', 'EINVAL'),
    ('thaw gpu=a:b\n', 'EINVAL'),
    ('thaw gpu=0:1 gpu=0:2\n', 'EINVAL'),
    ('thaw gpu=99:0\n', 'EINVAL'),
    ('cancel now\n', 'EINVAL'),
    ('x' * 4097, 'E2BIG'),
    ('freeze ' + ' ' * 5000, 'E2BIG'),
    ('cancel\n', 'EBUSY'),
]

# The same for the root's ctl.
REFUSED_AT_ROOT = [
    ('freeze\n', 'EINVAL'),
    ('freeze abc\n', 'EINVAL'),
    ('freeze 0\n', 'EINVAL'),
    ('freeze 1x\n', 'EINVAL'),
    ('freeze -1\n', 'EINVAL'),
    ('freeze 4294967297\n', 'EINVAL'),
    ('nonsense 1\n', 'EINVAL'),
    ('freeze 999999999\n', 'ESRCH'),
    ('freeze ' + ' '.join(str(n) for n in range(1, 600)), 'E2BIG'),
    ('x' * 5000, 'E2BIG'),
]


def test_refused():
    with Machine() as machine:
        demo = machine.ready_demo()
        for text, expected in REFUSED:
            equal(machine.write(demo.pid, text), expected, repr(text[:40]))
            words = machine.error(demo.pid)
            check(words.startswith(expected + ': ') and len(words) > len(expected) + 5, words)
            equal(machine.state(demo.pid), 'running', repr(text[:40]))
        for text, expected in REFUSED_AT_ROOT:
            equal(machine.write(None, text), expected, repr(text[:40]))
        check('state' not in machine.read('events'), 'no state has changed')
        for line in machine.read('events').splitlines():
            check(line.isprintable(), repr(line))
        demo.wait_ticks()


def test_accepted_forms():
    with Machine() as machine:
        demo = machine.ready_demo()
        for text in ('freeze', 'thaw\n', '  freeze  \n', '\tthaw\t', 'freeze timeout=60\n',
                     'thaw timeout=60 gpu=0:0\n', 'freeze\n', 'thaw timeout=604800'):
            equal(machine.write(demo.pid, text), 'ok', repr(text))
        for flags in (os.O_TRUNC, os.O_APPEND, os.O_APPEND | os.O_TRUNC):
            equal(machine.write(demo.pid, 'freeze', flags), 'ok')
            equal(machine.write(demo.pid, 'thaw', flags), 'ok')
        padded = 'freeze' + ' ' * 4089
        equal(len(padded), 4095)
        equal(machine.write(demo.pid, padded + '\n'), 'ok', '4096 bytes')
        machine.must(demo.pid, 'thaw')
        fd = os.open(machine.ctl(demo.pid), os.O_WRONLY)
        for verb in (b'freeze\n', b'thaw\n', b'freeze\n', b'thaw\n'):
            equal(os.write(fd, verb), len(verb), 'several verbs through one descriptor')
        os.close(fd)
        equal(machine.error(demo.pid), 'ok')
        demo.wait_ticks()


def test_goal_reached_already():
    with Machine() as machine:
        demo = machine.ready_demo()
        equal(machine.write(demo.pid, 'thaw'), 'ok')
        machine.must(demo.pid, 'freeze')
        generation = machine.status(demo.pid)['generation']
        equal(machine.write(demo.pid, 'freeze'), 'ok')
        equal(machine.write(demo.pid, 'freeze', os.O_NONBLOCK), 'ok')
        equal(machine.status(demo.pid)['generation'], generation, 'not frozen again')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_wrong_state_is_told():
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.slow('freeze', 2000)
        writer = machine.writer(demo.pid, 'freeze')
        machine.wait_status(demo.pid, 'state', 'freezing')
        equal(machine.write(demo.pid, 'thaw'), 'EBUSY')
        words = machine.error(demo.pid)
        check('freezing' in words, words)
        equal(writer.result(), 'ok')
        machine.faults()
        equal(machine.write(demo.pid, 'cancel'), 'EBUSY')
        words = machine.error(demo.pid)
        check('frozen' in words, words)
        machine.must(demo.pid, 'thaw')


def test_error_is_forgotten_after_success():
    with Machine() as machine:
        demo = machine.ready_demo()
        equal(machine.write(demo.pid, 'bogus'), 'EINVAL')
        check('bogus' in machine.error(demo.pid), machine.error(demo.pid))
        machine.must(demo.pid, 'freeze')
        equal(machine.error(demo.pid), 'ok')
        machine.must(demo.pid, 'thaw')


def send_descriptor(connection, fd):
    connection.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))])


def receive_descriptor(connection):
    _, parts, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(4))
    return array.array('i', parts[0][2])[0]


def test_judged_by_who_writes():
    """Root opens the file and hands the descriptor to somebody else."""
    if not harness.is_root():
        raise Skip('only root can become another user')
    with Machine() as machine:
        demo = machine.ready_demo()
        theirs = machine.ready_demo(uid=NOBODY)
        ours, other = socket.socketpair()

        def child():
            ours.close()
            harness.become(NOBODY)
            answers = []
            for _ in range(3):
                fd = receive_descriptor(other)
                text = b'freeze' if len(answers) < 2 else f'freeze {demo.pid}'.encode()
                try:
                    os.write(fd, text)
                    answers.append('ok')
                except OSError as error:
                    answers.append(harness.name_of(error.errno))
            other.send(' '.join(answers).encode())

        pid = os.fork()
        if not pid:
            try:
                child()
            finally:
                os._exit(0)
        other.close()
        ours.settimeout(harness.PATIENCE_SEC)
        for path in (machine.ctl(demo.pid), machine.ctl(theirs.pid), machine.ctl()):
            fd = os.open(path, os.O_WRONLY)
            send_descriptor(ours, fd)
            os.close(fd)
        answers = ours.recv(100).decode()
        os.waitpid(pid, 0)
        equal(answers, 'EPERM ok EPERM')
        check('another user' in machine.error(demo.pid), machine.error(demo.pid))
        equal(machine.state(demo.pid), 'running')
        machine.must(theirs.pid, 'thaw')


def test_nonblocking():
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.slow('freeze', 1000)
        events = machine.events(demo.pid)
        equal(machine.write(demo.pid, 'freeze', os.O_NONBLOCK), 'ok')
        equal(machine.state(demo.pid), 'freezing', 'accepted, not done')
        equal(machine.write(demo.pid, 'nonsense', os.O_NONBLOCK), 'EINVAL')
        events.wait('verb freeze ok')
        events.close()
        equal(machine.state(demo.pid), 'frozen')
        machine.faults()
        # The flag counts that the descriptor has when it is written to.
        fd = os.open(machine.ctl(demo.pid), os.O_WRONLY)
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
        os.write(fd, b'thaw')
        os.close(fd)
        machine.wait_status(demo.pid, 'state', 'running')
        demo.wait_ticks()


def test_a_thread_is_no_process():
    with Machine() as machine:
        demo = machine.ready_demo()
        thread = next(int(name) for name in os.listdir(f'/proc/{demo.pid}/task')
                      if int(name) != demo.pid)
        check(thread != demo.pid, 'the demo has threads')
        equal(machine.write(None, f'freeze {thread}'), 'EOPNOTSUPP')
        check(f'thread of process {demo.pid}' in machine.read('error'), machine.read('error'))
        equal(machine.state(demo.pid), 'running')


def test_what_cannot_be_frozen():
    with Machine() as machine:
        if not vendor.HIP:
            managed = machine.ready_demo('--managed', 1)
            equal(machine.write(managed.pid, 'freeze'), 'EOPNOTSUPP')
            check('managed' in machine.error(managed.pid), machine.error(managed.pid))
            equal(machine.state(managed.pid), 'running')
            managed.wait_ticks()

        stopped = machine.ready_demo()
        os.kill(stopped.pid, 19)
        harness.wait_for(lambda: harness.read_file(f'/proc/{stopped.pid}/stat').rpartition(')')[2]
                         .split()[0] == 'T', 'it has stopped')
        equal(machine.write(stopped.pid, 'freeze'), 'EOPNOTSUPP')
        check('stopped' in machine.error(stopped.pid), machine.error(stopped.pid))
        os.kill(stopped.pid, 18)
        stopped.wait_ticks()
        machine.must(stopped.pid, 'freeze')
        machine.must(stopped.pid, 'thaw')


if __name__ == '__main__':
    harness.main(globals())
