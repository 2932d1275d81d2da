# SPDX-License-Identifier: MIT
"""A dump of a tree in which a process does not let itself be looked at (test/fs/held.c), or has a file
open that a filesystem of its user's does not give the bytes of: it ends, as `cancel` and the daemon's
end do, and nothing has happened to the tree."""
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
from harness import NOBODY, check, equal, needs_cuda, read_file, same_for_both, wait_for
from stuck import StuckWrite


def children(pid):
    return [int(child) for child in read_file(f'/proc/{pid}/task/{pid}/children').split()]


@contextlib.contextmanager
def tree(how):
    """A shell that has started a GPU process, and one that is held so."""
    needs_cuda('what is held has nothing to do with the GPU')
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        directory = f'{machine.directory}/held'
        os.mkdir(directory)
        with open(f'{directory}.device', 'w', encoding='utf-8') as file:
            file.write('device')
        held = f'{harness.BUILD}/test/fs/held {how} {directory} {directory}.device > {directory}.out'
        root = dump.Program(machine, name='shell', command=[
            'sh', '-c', f"{dump.demo_in_shell(machine, 'one')} & exec {held}"])
        one = dump.Program.below(root, 'one').wait_ready()
        try:
            # The shell is the filesystem now.
            wait_for(lambda: os.path.exists(f'{directory}.out') and read_file(f'{directory}.out'),
                     'the process that is to be held')
            pid = int(read_file(f'{directory}.out').split()[0])
            check(pid in children(root.pid), 'it is in the tree')
            os.kill(pid, signal.SIGUSR2)
            wait_for(lambda: 'held' in read_file(f'{directory}.out'), 'it to be held')
            yield machine, root, one
            check(os.path.exists(f'/proc/{pid}/status'), 'it has been ended')
        finally:
            os.kill(root.pid, signal.SIGTERM)  # lets go
            with contextlib.suppress(subprocess.TimeoutExpired):
                harness.wait_end(root.popen, 10)
            subprocess.run(['umount', '-l', directory], check=False, stderr=subprocess.DEVNULL)


def goes_on(machine, one):
    dump.as_before(machine, one)
    one.wait_ticks()


def test_in_exec():
    """The tree cannot even be listed."""
    with tree('exec') as (machine, root, one):
        equal(machine.write(root.pid, 'dump'), 'ETIMEDOUT', machine.error(root.pid))
        goes_on(machine, one)


def test_cancel():
    """Its files cannot be seen: `cancel` ends that too."""
    with tree('lock') as (machine, root, one):
        writer = machine.writer(root.pid, 'dump')
        machine.wait_status(one.pid, 'verb', 'dump')
        time.sleep(1)  # it is in the look by then
        check(writer.is_waiting(), 'nothing is in the way of the dump')
        machine.write(root.pid, 'cancel')
        check(writer.result(20) in ('EINTR', 'ECANCELED', 'ETIMEDOUT'), writer.result())
        goes_on(machine, one)


def test_deadline():
    with tree('lock') as (machine, root, one):
        result = machine.writer(root.pid, 'dump').result(100)
        equal(result, 'ETIMEDOUT', machine.error(root.pid))
        goes_on(machine, one)


def test_sigterm():
    with tree('lock') as (machine, root, one):
        writer = machine.writer(root.pid, 'dump')
        machine.wait_status(one.pid, 'verb', 'dump')
        time.sleep(1)
        check(writer.is_waiting(), 'nothing is in the way of the dump')
        equal(machine.stop(seconds=30), 0)
        check(writer.result(20) != 'ok', 'it cannot have been dumped')
        one.wait_ticks()


@contextlib.contextmanager
def unread_file():
    """The path of a file whose reads are never answered, on a FUSE filesystem outside all trees."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as target:
        os.chmod(directory, 0o755)
        write = StuckWrite(directory, target.fileno(), NOBODY)
        try:
            yield write.source()
        finally:
            write.end()


def test_file_that_is_not_read():
    """Its digest waits for ever, and so does CRIU, which looks whether the file is a program. The dump's
    end, and that of the daemon, do not."""
    needs_cuda('what is held has nothing to do with the GPU')
    same_for_both('digests of open files')
    if not harness.is_root():
        raise harness.Skip('another user is needed')

    def hold():
        os.set_inheritable(os.open(path, os.O_RDONLY), True)

    with unread_file() as path, dump.machine() as machine:
        one = dump.Program(machine, *dump.SMALL, name='one', prepare=hold).wait_ready()
        for verb, end in (('dump timeout=3', 'ETIMEDOUT'), ('dump', 'ECANCELED')):
            writer = machine.writer(one.pid, verb)
            machine.wait_status(one.pid, 'phase', 'criu')
            time.sleep(1)  # both wait by then
            if end == 'ECANCELED':
                machine.must(one.pid, 'cancel')
            equal(writer.result(30), end, machine.error(one.pid))
            goes_on(machine, one)
        writer = machine.writer(one.pid, 'dump')
        machine.wait_status(one.pid, 'phase', 'criu')
        time.sleep(1)
        equal(machine.stop(seconds=30), 0)
        check(writer.result(20) != 'ok', 'it cannot have been dumped')
        one.wait_ticks()


if __name__ == '__main__':
    harness.main(globals())
