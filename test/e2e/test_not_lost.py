# SPDX-License-Identifier: MIT
"""What fails for a moment, or happens at the same time, leaves no process where no verb helps it."""
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import check, equal, needs_cuda, same_for_both, wait_for

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


# Has VRAM, and becomes another program at a signal.
REPLACED = '''
import ctypes, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
cuda = ctypes.CDLL('libcuda.so.1')
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
results = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
           cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(memory), 8 << 20)]
print(results, flush=True)
signal.sigwait([signal.SIGUSR1])
os.execv('/bin/sleep', ['sleep', '1000'])
'''


def test_other_program_after_execve():
    """What was frozen of the old one is of no use: the first verb removes it."""
    needs_cuda('the state of a process')
    if harness.SANITIZER == 'thread':
        return  # its runtime cannot be loaded into a Python that runs
    with vmm.machine() as machine:
        with subprocess.Popen([*vendor.RUN, sys.executable, '-c', REPLACED], env=machine.env,
                              stdout=subprocess.PIPE, text=True) as program:
            try:
                equal(program.stdout.readline(), '[0, 0, 0, 0]\n')
                machine.wait_status(program.pid, 'engine', vendor.ENGINE)
                machine.must(program.pid, 'freeze')
                check(int(machine.status(program.pid)['held_bytes']) >= 8 * harness.MIB, 'it holds VRAM')
                program.send_signal(signal.SIGUSR1)
                wait_for(lambda: harness.read_file(f'/proc/{program.pid}/comm') == 'sleep\n',
                         'the other program')
                words = []

                def is_over():
                    result = machine.write(program.pid, 'thaw')
                    try:
                        words.append(f'{result}: {machine.error(program.pid)}')
                    except OSError:  # it has left the list since
                        words.append('has replaced its program')
                    return result == 'ESRCH'

                # Its connection is seen to have ended a moment later.
                wait_for(is_over, f'the end of the old program: {words}')
                check('has replaced its program' in words[-1], words[-1])
                wait_for(lambda: int(machine.status_of_all()['store_used_bytes']) == 0,
                         'an empty store')
                equal(os.listdir(f'{machine.runtime}/processes'), [], 'records')
                wait_for(lambda: program.pid not in machine.pids(), 'its end in the list')
            finally:
                program.kill()


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
