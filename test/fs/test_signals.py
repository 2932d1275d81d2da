# SPDX-License-Identifier: MIT
"""Signals to a writer that waits: those that mean "stop" cancel the verb, all others do not."""
import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import Machine, Skip, check, equal, wait_for
from programs import WRITE_CALL

DELAY_MS = 1500
STOPPING = ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGALRM', 'SIGKILL')
HARMLESS = ('SIGCHLD', 'SIGURG', 'SIGVTALRM', 'SIGPROF', 'SIGUSR1', 'SIGUSR2', 'SIGWINCH', 'SIGIO')


def slow(machine):
    machine.faults(f'cuCheckpointProcessCheckpoint delay_ms={DELAY_MS}')


@contextlib.contextmanager
def slow_demo():
    """A machine, and a program there whose checkpoint takes long."""
    with Machine() as machine:
        demo = machine.ready_demo()
        slow(machine)
        yield machine, demo


def wait_checkpoint(machine, demo):
    machine.wait_status(demo.pid, 'phase', 'checkpoint')


def must_run_on(machine, demo, words):
    """The freeze was rolled back, and a next one works."""
    machine.wait_status(demo.pid, 'verb', '-')
    equal(machine.state(demo.pid), 'running', words)
    demo.wait_ticks()


def no_core_dump():
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def test_stopping_signals():
    """The default action: the writer dies of it, and the process runs on."""
    with slow_demo() as (machine, demo):
        for name in STOPPING:
            writer = machine.writer(demo.pid, 'freeze', prepare=no_core_dump)
            wait_checkpoint(machine, demo)
            writer.signal(getattr(signal, name))
            equal(writer.result(), 'killed', name)
            must_run_on(machine, demo, name)
            check(machine.error(demo.pid).startswith('EINTR: '), machine.error(demo.pid))
        machine.faults()
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')


def test_stopping_signals_with_a_handler():
    """A writer that catches the signal is told EINTR."""
    with slow_demo() as (machine, demo):
        for name in STOPPING[:-1]:
            writer = machine.writer(demo.pid, 'freeze',
                                    prepare=lambda: catch(getattr(signal, name)))
            wait_checkpoint(machine, demo)
            writer.signal(getattr(signal, name))
            equal(writer.result(), 'EINTR', name)
            must_run_on(machine, demo, name)


def catch(number):
    """Python would try the call again after a handler that returns; one that raises ends it."""
    def handler(*_):
        raise InterruptedError(4, 'EINTR')
    signal.signal(number, handler)


def test_harmless_signals():
    with slow_demo() as (machine, demo):

        def prepare():
            for name in HARMLESS:
                signal.signal(getattr(signal, name), lambda *_: None)

        writer = machine.writer(demo.pid, 'freeze', prepare=prepare)
        wait_checkpoint(machine, demo)
        while writer.is_waiting():
            for name in HARMLESS:
                if writer.is_waiting():
                    writer.signal(getattr(signal, name))
            time.sleep(0.01)
        equal(writer.result(), 'ok')
        equal(machine.state(demo.pid), 'frozen')
        machine.must_recover(demo)


def test_ignored_and_blocked_signals():
    with slow_demo() as (machine, demo):

        def ignore():
            for name in STOPPING[:-1]:
                signal.signal(getattr(signal, name), signal.SIG_IGN)

        def block():
            signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, n) for n in STOPPING[:-1]])

        for prepare in (ignore, block):
            writer = machine.writer(demo.pid, 'freeze', prepare=prepare)
            wait_checkpoint(machine, demo)
            for name in STOPPING[:-1]:
                writer.signal(getattr(signal, name))
            equal(writer.result(), 'ok', prepare.__name__)
            machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_harmless_first_then_stopping():
    """FUSE tells of an interruption once: what comes later is seen all the same."""
    with slow_demo() as (machine, demo):
        writer = machine.writer(demo.pid, 'freeze',
                                prepare=lambda: signal.signal(signal.SIGURG, lambda *_: None))
        wait_checkpoint(machine, demo)
        writer.signal(signal.SIGURG)
        time.sleep(0.2)  # a moment between the two, not a wait for anything
        writer.signal(signal.SIGTERM)
        equal(writer.result(), 'killed')
        must_run_on(machine, demo, 'SIGTERM after SIGURG')


def test_stopped_and_continued():
    with slow_demo() as (machine, demo):
        writer = machine.writer(demo.pid, 'freeze')
        wait_checkpoint(machine, demo)
        writer.signal(signal.SIGSTOP)
        writer.signal(signal.SIGCONT)
        equal(writer.result(), 'ok')
        machine.must_recover(demo)


def test_interval_timers():
    """Timers that fire all the time, as a profiler's do."""
    with slow_demo() as (machine, demo):

        def prepare():
            for name, timer in (('SIGVTALRM', signal.ITIMER_VIRTUAL),
                                ('SIGPROF', signal.ITIMER_PROF)):
                signal.signal(getattr(signal, name), lambda *_: None)
                signal.setitimer(timer, 0.001, 0.001)
            threading.Thread(target=burn, daemon=True).start()

        def burn():
            while True:
                sum(range(1000))

        writer = machine.writer(demo.pid, 'freeze', prepare=prepare)
        equal(writer.result(), 'ok')
        machine.must_recover(demo)


THREADED = '''
import os, signal, sys, threading, time
path, mode = sys.argv[1:]
signal.signal(signal.SIGURG, lambda *_: None)
answers = []
def write():
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, b'freeze')
        answers.append('ok')
    except OSError as error:
        answers.append(str(error))
if mode == 'handled':
    signal.signal(signal.SIGTERM, lambda *_: None)
thread = threading.Thread(target=write)
thread.start()
while thread.is_alive():
    signal.pthread_kill(thread.ident, signal.SIGURG)
    time.sleep(0.005)
print(*answers)
'''


def test_thread_with_preemption_signals():
    """Go interrupts its threads with SIGURG, whatever they do."""
    with slow_demo() as (machine, demo):
        for mode in ('plain', 'handled'):
            writer = subprocess.Popen([sys.executable, '-c', THREADED, machine.ctl(demo.pid), mode],
                                      stdout=subprocess.PIPE, text=True)
            wait_checkpoint(machine, demo)
            if mode == 'handled':
                # The program's main thread takes it: no business of the thread that writes.
                writer.send_signal(signal.SIGTERM)
            equal(writer.communicate(timeout=harness.PATIENCE_SEC)[0], 'ok\n', mode)
            machine.must(demo.pid, 'thaw')
        writer = subprocess.Popen([sys.executable, '-c', THREADED, machine.ctl(demo.pid), 'plain'],
                                  stdout=subprocess.DEVNULL)
        wait_checkpoint(machine, demo)
        writer.send_signal(signal.SIGTERM)
        equal(writer.wait(harness.PATIENCE_SEC), -signal.SIGTERM)
        must_run_on(machine, demo, 'a program of several threads is ended')


def shells():
    found = [shell for shell in ('dash', 'bash') if shutil.which(shell)]
    if not found:
        raise Skip('neither dash nor bash')
    return found


def test_shell_with_children():
    """SIGCHLD in a shell whose background job ends meanwhile."""
    with slow_demo() as (machine, demo):
        for shell in shells():
            for trap in ('', 'trap "echo trapped" CHLD; '):
                if trap and shell == 'dash':
                    continue
                script = f'{trap}sleep 0.3 & sleep 0.5 & echo freeze >{machine.ctl(demo.pid)}'
                found = subprocess.run([shell, '-c', script], capture_output=True, text=True,
                                       check=False, timeout=harness.PATIENCE_SEC)
                equal((found.returncode, found.stderr), (0, ''), f'{shell} {trap}')
                equal(machine.state(demo.pid), 'frozen')
                machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_timeout_program():
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.faults('cuCheckpointProcessCheckpoint delay_ms=2500')
        for shell in shells():
            found = subprocess.run(['timeout', '1', shell, '-c',
                                    f'echo freeze > {machine.ctl(demo.pid)}'], check=False,
                                   capture_output=True, timeout=harness.PATIENCE_SEC)
            equal(found.returncode, 124, f'timeout 1 {shell}')
            must_run_on(machine, demo, shell)


def test_control_c():
    """Ctrl-C at a terminal, where shell and job get SIGINT."""
    with slow_demo() as (machine, demo):
        for shell in shells():
            pid, terminal = pty.fork()
            if not pid:
                os.execvp(shell, [shell, '-c', f'echo freeze > {machine.ctl(demo.pid)}; exit 0'])
            wait_checkpoint(machine, demo)
            os.write(terminal, b'\x03')
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            check(status in (-signal.SIGINT, 130), f'{shell} ended with {status}')
            os.close(terminal)
            must_run_on(machine, demo, shell)


def test_hang_up_of_the_terminal():
    with slow_demo() as (machine, demo):
        pid, terminal = pty.fork()
        if not pid:
            os.execvp('sh', ['sh', '-c', f'echo freeze > {machine.ctl(demo.pid)}'])
        wait_checkpoint(machine, demo)
        os.close(terminal)
        os.waitpid(pid, 0)
        must_run_on(machine, demo, 'hang-up')


def test_one_of_two_is_interrupted():
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.watch_faults()
        machine.faults('cuCheckpointProcessCheckpoint where=caller action=stop times=1')
        first = machine.writer(demo.pid, 'freeze', prepare=lambda: catch(signal.SIGINT))
        wait_checkpoint(machine, demo)
        second = machine.writer(demo.pid, 'freeze', prepare=lambda: catch(signal.SIGINT))
        second.wait_waiting()
        machine.wait_faulted()
        first.signal(signal.SIGINT)
        # It need not wait for the others.
        equal(first.result(), 'EINTR')
        equal(machine.state(demo.pid), 'freezing')
        os.kill(machine.faulted()[0][0], signal.SIGCONT)
        equal(second.result(), 'ok')
        equal(machine.state(demo.pid), 'frozen')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()

        # And when the last that wants it is gone, it is cancelled.
        slow(machine)
        writers = [machine.writer(demo.pid, 'freeze', prepare=lambda: catch(signal.SIGINT))
                   for _ in range(3)]
        wait_checkpoint(machine, demo)
        # All three have come before the first one goes.
        for writer in writers:
            writer.wait_waiting()
        for writer in writers:
            writer.signal(signal.SIGINT)
        equal([writer.result() for writer in writers], ['EINTR'] * 3)
        must_run_on(machine, demo, 'all three were interrupted')


def processor_sec(pid):
    """What a process has used of the processors: fields 14 and 15 of its stat."""
    fields = harness.read_file(f'/proc/{pid}/stat').rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def crowd_of_writers(path, count):
    """A process with so many threads that write `freeze`, and have got a signal that stops none of
    them. It ends when all of them have been answered."""
    def write():
        # With one descriptor for all they would wait for each other.
        with open(path, 'wb', buffering=0) as ctl:
            ctl.write(b'freeze')

    def is_in_write(thread):
        text = harness.read_file(f'/proc/self/task/{thread.native_id}/syscall')
        return text.split()[0] == WRITE_CALL

    ready, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        equal(os.read(ready, 1), b'x', 'the writers')
        os.close(ready)
        return pid
    status = 1
    try:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        threading.stack_size(128 << 10)
        threads = [threading.Thread(target=write) for _ in range(count)]
        for thread in threads:
            thread.start()
        wait_for(lambda: all(map(is_in_write, threads)), 'all of them to wait')
        for thread in threads:
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
        os.write(told, b'x')
        for thread in threads:
            thread.join()
        status = 0
    finally:
        os._exit(status)


def test_many_that_wait_on():
    """The daemon looks for further signals to those whose first one stops nothing: so often that it
    is not kept busy by a user with many of them. Others are heard at once."""
    with Machine() as machine:
        demo = machine.ready_demo()
        phase = machine.hold('freeze')
        first = machine.writer(demo.pid, 'freeze')
        machine.wait_status(demo.pid, 'phase', phase)
        crowd = crowd_of_writers(machine.ctl(demo.pid), 2000)
        time.sleep(harness.SLOW)  # until the daemon has heard of all of them
        used, began = processor_sec(machine.daemon.pid), time.monotonic()
        time.sleep(2)
        share = (processor_sec(machine.daemon.pid) - used) / (time.monotonic() - began)
        check(share < 0.2, f'the daemon uses {share:.2f} of a processor')
        joined = machine.writer(demo.pid, 'freeze', prepare=lambda: catch(signal.SIGTERM))
        joined.wait_waiting()
        joined.signal(signal.SIGTERM)
        began = time.monotonic()
        equal(joined.result(), 'EINTR')
        check(time.monotonic() - began < 0.5 * harness.SLOW, 'it was heard at once')
        machine.let_go()
        equal(first.result(), 'ok')
        equal(os.waitpid(crowd, 0)[1], 0, 'all of them were answered')
        equal(machine.state(demo.pid), 'frozen')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_nonblocking_writer_may_go():
    with slow_demo() as (machine, demo):
        equal(machine.writer(demo.pid, 'freeze', flags=os.O_NONBLOCK).result(), 'ok')
        # Who joins and is interrupted does not stop what somebody else has asked for.
        joined = machine.writer(demo.pid, 'freeze', prepare=lambda: catch(signal.SIGTERM))
        joined.wait_waiting()
        joined.signal(signal.SIGTERM)
        equal(joined.result(), 'EINTR')
        machine.wait_status(demo.pid, 'state', 'frozen')
        machine.must_recover(demo)


def test_cancel_writer_may_be_interrupted():
    with slow_demo() as (machine, demo):
        freeze = machine.writer(demo.pid, 'freeze')
        wait_checkpoint(machine, demo)
        cancel = machine.writer(demo.pid, 'cancel', prepare=lambda: catch(signal.SIGINT))
        cancel.wait_waiting()
        cancel.signal(signal.SIGINT)
        equal(cancel.result(), 'EINTR')
        equal(freeze.result(), 'ECANCELED')
        must_run_on(machine, demo, 'the cancel is under way')


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
