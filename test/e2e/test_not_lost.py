# SPDX-License-Identifier: MIT
"""What fails for a moment, or happens at the same time, leaves no process where no verb helps it."""
import contextlib
import os
import re
import resource
import signal
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import check, equal, same_for_both, wait_for

LOOKERS = 3
BEGINNINGS = 15


def kill_daemon(machine):
    machine.daemon.kill()
    machine.daemon.wait()


@contextlib.contextmanager
def looking(machine, pid):
    """All the time, as whoever types its name does."""
    over = threading.Event()

    def look():
        while not over.is_set():
            with contextlib.suppress(OSError):
                os.stat(machine.path(pid, 'status'))

    threads = [threading.Thread(target=look) for _ in range(LOOKERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


# Has a child on the GPU, and then becomes a program on the GPU itself.
PARENT = '''
import os, signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
signal.sigwait([signal.SIGUSR1])
os.execv(sys.argv[1], sys.argv[1:])
'''


def test_looked_for_as_it_begins():
    """A launcher that begins to use a GPU while it is looked for keeps its place in the table."""
    same_for_both('the table of processes')
    with vmm.machine() as machine:
        for _ in range(BEGINNINGS):
            with contextlib.ExitStack() as stack:
                program = machine.demo('--bytes', '1M', '--buffers', 1, '--tick', 10,
                                       command=[*vendor.RUN, sys.executable, '-c', PARENT,
                                                *vendor.DEMO])
                children = f'/proc/{program.pid}/task/{program.pid}/children'
                wait_for(lambda: any(child in map(str, machine.pids())
                                     for child in harness.read_file(children).split()),
                         'the child')
                child = int(harness.read_file(children).split()[0])
                stack.callback(os.kill, child, 9)
                with looking(machine, program.pid):
                    os.kill(program.pid, signal.SIGUSR1)
                    program.wait_ready()
                    machine.wait_status(program.pid, 'engine', vendor.ENGINE)
                events = harness.read_file(machine.path('events'))
                gone = re.findall(rf'^\S+ {program.pid} - gone .*$', events, re.MULTILINE)
                equal(gone, [], 'while it lives')
                program.end()


def test_store_cannot_be_read_once():
    """A frozen process whose files the new daemon could not open is thawed when it can."""
    with vmm.machine() as machine:
        program = vmm.demo(machine)
        machine.must(program.pid, 'freeze')
        kill_daemon(machine)
        [name] = [name for name in os.listdir(f'{machine.runtime}/store')
                  if name.startswith(f'{program.pid}-')]
        directory = f'{machine.runtime}/store/{name}'
        mode = os.stat(directory).st_mode & 0o7777
        os.chmod(directory, 0o755)
        machine.start()
        equal(machine.state(program.pid), 'frozen')
        equal(machine.write(program.pid, 'thaw'), 'EIO')
        equal(machine.state(program.pid), 'frozen')
        os.chmod(directory, mode)
        machine.must(program.pid, 'thaw')
        program.wait_ticks()


def test_all_descriptors_are_used():
    """A program at its soft limit speaks to the next daemon all the same."""
    with vmm.machine() as machine:
        program = vmm.demo(machine)
        soft, hard = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (3, hard))
        kill_daemon(machine)
        machine.start()
        machine.wait_status(program.pid, 'engine', vendor.ENGINE)
        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (soft, hard))
        machine.must(program.pid, 'freeze')
        machine.must(program.pid, 'thaw')
        program.wait_ticks()


if __name__ == '__main__':
    harness.main(globals())
