# SPDX-License-Identifier: MIT
"""Managed memory of a program whose threads write to it all the time: no write is lost. For that
they are stopped for a moment; they, and those who wait for them, must not notice."""
import contextlib
import ctypes
import errno
import mmap
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [TESTS, f'{TESTS}/fs']
import harness
import vendor
import vmm
from harness import BUILD, Skip, check, equal, needs_cuda, same_for_both, wait_for
from test_passthrough import Mapping

CYCLES = harness.few(3, 10)
WRITES = 'thread=gpucr-agent'


class Writers:
    """test/e2e/writers.c and its FIFOs."""

    def __init__(self, machine, program=f'{BUILD}/test/e2e/writers', arguments=(), **options):
        self.machine = machine
        paths = [f'{machine.directory}/{name}-{len(machine.demos)}' for name in ('in', 'out')]
        for path in paths:
            os.mkfifo(path)
            os.chmod(path, 0o666)
        self.fifos = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in paths]
        self.demo = machine.demo(
            command=[*vendor.RUN, program, *paths, *arguments],
            **options)
        self.demo.wait_ready()
        self.pid = self.demo.pid
        machine.wait_status(self.pid, 'engine', vendor.ENGINE)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for fifo in self.fifos:
            os.close(fifo)

    def wait_ticks(self, more=3):
        self.demo.wait_ticks(more)

    def say(self, text):
        os.write(self.fifos[0], text)

    def hear(self, seconds=harness.PATIENCE_SEC):
        """What comes back, b'' if nothing does."""
        if not select.select([self.fifos[1]], [], [], seconds)[0]:
            return b''
        return os.read(self.fifos[1], 64)

    def threads(self):
        """Thread ids and states; threads that come and go may be missing."""
        found = {}
        for tid in os.listdir(f'/proc/{self.pid}/task'):
            with contextlib.suppress(OSError):
                fields = harness.read_file(f'/proc/{self.pid}/task/{tid}/stat')
                found[int(tid)] = fields.rpartition(')')[2].split()[0]
        return found

    def is_stopped(self):
        fields = harness.read_file(f'/proc/{self.pid}/stat').rpartition(')')[2].split()
        return fields[0] == 't'

    def name(self, tid):
        """Of a thread, '' if it has gone."""
        with contextlib.suppress(OSError):
            return harness.read_file(f'/proc/{self.pid}/task/{tid}/comm').strip()
        return ''

    def tracers(self):
        """Who holds any of them, us excepted."""
        found = set()
        for tid in self.threads():
            with contextlib.suppress(OSError):
                lines = harness.read_file(f'/proc/{self.pid}/task/{tid}/status').split('\n')
                found.update(line.split()[1] for line in lines if line.startswith('TracerPid:'))
        return found - {'0', str(os.getpid())}

    def check_free(self):
        """Nobody holds any of its threads."""
        equal(self.tracers(), set(), 'tracers')
        states = self.threads()
        check(not set(states.values()) & set('tT'), f'states of its threads: {states}')


def test_cycles():
    with vmm.machine() as machine, Writers(machine) as writers:
        for cycle in range(CYCLES):
            machine.must(writers.pid, 'freeze')
            writers.check_free()
            if cycle == 0:
                writers.demo.wait_standstill()
            machine.must(writers.pid, 'thaw')
            writers.check_free()
            writers.wait_ticks(1)
        writers.say(b'after')
        equal(writers.hear(), b'after')


def test_files_that_others_have_mapped():
    """They are emptied when they are gone, under whoever maps them. The program has its memory."""
    needs_cuda('managed memory, with which no freeze is possible')
    with vmm.machine() as machine:
        if machine.status_of_all()['passthrough'] != 'yes':
            raise harness.Skip('files cannot be mapped here')
        demo = vmm.demo(machine, '--buffers', 1, '--managed', 2, '--bytes', '4M')
        for _ in range(3):
            machine.must(demo.pid, 'freeze')
            directory = machine.path(demo.pid, 'snapshot', 'vram')
            mappings = [Mapping(f'{directory}/{name}') for name in os.listdir(directory)
                        if name.startswith('managed')]
            check(mappings, os.listdir(directory))
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks(3)
            for mapping in mappings:
                mapping.close()


def test_touching_is_wanting():
    """A thread that sleeps as what it has touched is away wants the GPU as one at the gate does."""
    with vmm.machine() as machine, Writers(machine, arguments=['quiet']) as writers:
        writers.wait_ticks(1)
        events = machine.events()
        for _ in range(2):
            start = len(events.lines())
            machine.must(writers.pid, 'freeze data')
            events.wait(rf' {writers.pid} \S+ wanted$', start=start)
            machine.must(writers.pid, 'thaw')
            equal(machine.status(writers.pid)['wanted_usec'], '0')
            writers.wait_ticks(1)
        events.close()


def test_names_of_others():
    """A program that is called nearly as threads of the driver's or the library's are."""
    same_for_both('how threads are stopped')
    with vmm.machine() as machine:
        for name in ('cuda-worker', 'cuda0', 'gpucr-demo'):
            program = f'{machine.directory}/{name}'
            shutil.copy(f'{BUILD}/test/e2e/writers', program)
            with Writers(machine, program) as writers:
                for _ in range(harness.few(1, 2)):
                    vmm.cycle(machine, writers)
                writers.check_free()
                writers.demo.end(signal.SIGKILL)


def test_thaw_at_once():
    """Not everybody sleeps on the memory yet when it comes back."""
    with vmm.machine() as machine, Writers(machine) as writers:
        for _ in range(CYCLES // 2 + 1):
            machine.must(writers.pid, 'freeze')
            machine.must(writers.pid, 'thaw')
        writers.wait_ticks(2)


def test_system_call_that_waits():
    """What a read(2) gets while the memory is away, is there afterwards."""
    same_for_both('how threads are stopped')
    with vmm.machine() as machine, Writers(machine) as writers:
        for number in range(harness.few(3, 5)):
            words = b'number %d' % number
            machine.must(writers.pid, 'freeze')
            writers.say(words)
            equal(writers.hear(0.2), b'', 'nothing comes out of memory that is away')
            machine.must(writers.pid, 'thaw')
            equal(writers.hear(), words)
            writers.wait_ticks(1)


def test_signals():
    """They wake whoever sleeps on the memory, also while it comes back."""
    same_for_both('how threads are stopped')
    with vmm.machine() as machine, Writers(machine, arguments=['signals']) as writers:
        for _ in range(CYCLES):
            machine.must(writers.pid, 'freeze')
            machine.must(writers.pid, 'thaw')
            writers.wait_ticks(1)
        writers.check_free()


def sleeping_reader(writers):
    """The thread that is in read(2) and sleeps on the memory there."""
    for tid in writers.threads():
        with contextlib.suppress(OSError):
            if harness.read_file(f'/proc/{writers.pid}/task/{tid}/syscall').startswith('0 ') and \
                    harness.read_file(f'/proc/{writers.pid}/task/{tid}/wchan') == \
                    'handle_userfault':
                return tid
    return None


def test_signal_in_a_system_call():
    """Who sleeps on the memory in the kernel runs in circles there once it has a signal."""
    same_for_both('how threads are stopped')
    if os.uname().machine != 'x86_64':
        raise Skip('the number of read(2)')
    with vmm.machine() as machine, Writers(machine) as writers:
        for signals in ([signal.SIGUSR1], [signal.SIGSTOP, signal.SIGCONT]):
            machine.must(writers.pid, 'freeze')
            writers.say(b'hello')
            wait_for(lambda: sleeping_reader(writers), 'the read(2)')
            tid = sleeping_reader(writers)
            for number in signals:
                if number == signal.SIGUSR1:
                    ctypes.CDLL(None).syscall(TGKILL_CALL, writers.pid, tid, int(number))
                else:
                    os.kill(writers.pid, number)
            machine.must(writers.pid, 'thaw')
            equal(writers.hear(), b'hello')
            writers.wait_ticks(1)
            writers.check_free()


def test_way_back_that_fails():
    """What came back without its contents is not taken for what it was."""
    with vmm.machine() as machine, Writers(machine) as writers:
        for nth in range(1, 4):
            machine.must(writers.pid, 'freeze data')
            machine.faults(f'cuMemcpyHtoD {WRITES} nth={nth} error=CUDA_ERROR_UNKNOWN',
                           f'cuMemFree {WRITES} nth=1 error=CUDA_ERROR_UNKNOWN')
            equal(machine.write(writers.pid, 'thaw'), 'EIO')
            machine.faults()
            machine.must(writers.pid, 'thaw')
            writers.wait_ticks(1)


def test_driver_fails_on_the_way_back():
    """The driver does not take the process back: what a system call wrote meanwhile is in no other file
    than the library's, and is kept."""
    same_for_both('how threads are stopped')
    with vmm.machine() as machine, Writers(machine) as writers:
        machine.must(writers.pid, 'freeze')
        writers.say(b'new words')
        equal(writers.hear(0.2), b'')
        machine.faults(f'cuMemcpyHtoD {WRITES} nth=1 error=CUDA_ERROR_UNKNOWN',
                       'cuCheckpointProcessCheckpoint error=CUDA_ERROR_UNKNOWN')
        # The way back lasts for as long as fs/engine/driver_control.c hopes for the driver.
        equal(machine.write(writers.pid, 'thaw timeout=300'), 'EIO')
        machine.faults()
        machine.must(writers.pid, 'thaw')
        equal(writers.hear(), b'new words')
        writers.wait_ticks(1)


def kill_daemon(machine):
    machine.expects_clean_exit = False
    machine.stop(signal.SIGKILL)
    subprocess.run(['umount', '-l', machine.mountpoint], check=False)


def test_without_daemon_and_store():
    """Taken, not yet given up: it waits for a daemon that can stop its threads."""
    needs_cuda('control state')
    with vmm.machine() as machine, Writers(machine) as writers:
        machine.faults('cuCheckpointProcessLock where=caller delay_ms=3000')
        machine.writer(writers.pid, 'freeze')
        machine.wait_status(writers.pid, 'phase', 'lock')
        kill_daemon(machine)
        machine.faults()
        for name in os.listdir(f'{machine.runtime}/store'):
            if os.path.isdir(f'{machine.runtime}/store/{name}'):
                shutil.rmtree(f'{machine.runtime}/store/{name}')
        time.sleep(11)  # longer than the library waits with memory that is not managed
        writers.demo.wait_standstill()
        machine.start()
        machine.wait_status(writers.pid, 'state', 'running')
        writers.wait_ticks()


def test_several_at_once():
    with vmm.machine() as machine, Writers(machine) as one, Writers(machine) as other:
        for _ in range(harness.few(2, 3)):
            machine.must(None, f'freeze {one.pid} {other.pid}')
            machine.must(None, f'thaw {one.pid} {other.pid}')
            one.wait_ticks(1)
            other.wait_ticks(1)


def test_failures():
    """Each call of the driver fails once on the way out and on the way back in."""
    number = 0
    with vmm.machine() as machine, Writers(machine) as writers:
        vmm.cycle(machine, writers)
        for verb in ('freeze', 'thaw'):
            for call in ('cuMemAllocManaged', 'cuMemFree', 'cuMemcpyDtoH', 'cuMemcpyHtoD'):
                number += 1
                # One of the three usually, in turns.
                for nth in harness.few((1, 4, 8)[number % 3:][:1], (1, 4, 8)):
                    machine.must(writers.pid, vmm.other(verb))
                    machine.faults(f'{call} {WRITES} nth={nth} error=CUDA_ERROR_UNKNOWN')
                    result = machine.write(writers.pid, verb)
                    machine.faults()
                    check(result in ('ok', 'EIO', 'EOPNOTSUPP'), f'{call}, {nth}: {result}')
                    writers.check_free()
                    machine.wait_status(writers.pid, 'verb', '-')
                    machine.must(writers.pid, 'thaw')
                    writers.wait_ticks(1)


PTRACE_CONT = 7
PTRACE_DETACH = 17
PTRACE_SYSCALL = 24
PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207
WALL = 0x40000000
PTRACE_CALL = 101  # on x86_64
TGKILL_CALL = 234
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38


def ptrace(request, tid):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return libc.ptrace(request, tid, None, None)


def test_debugger():
    """One is attached: refused, and nothing has happened."""
    same_for_both('how threads are stopped')
    with vmm.machine() as machine, Writers(machine) as writers:
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(writer, b'ok' if ptrace(PTRACE_SEIZE, writers.pid) == 0 else b'no')
            signal.pause()
        answer = os.read(reader, 2)
        try:
            if answer != b'ok':
                raise Skip('no privilege for ptrace')
            equal(machine.write(writers.pid, 'freeze'), 'EOPNOTSUPP')
            check('debugger' in machine.error(writers.pid), machine.error(writers.pid))
            equal(machine.state(writers.pid), 'running')
            writers.wait_ticks()
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        vmm.cycle(machine, writers)


def forbid_ptrace():
    """ptrace(2) is EPERM from here on, as with Yama's ptrace_scope."""
    class Instruction(ctypes.Structure):
        _fields_ = [('code', ctypes.c_uint16), ('if_true', ctypes.c_uint8),
                    ('if_false', ctypes.c_uint8), ('value', ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [('count', ctypes.c_uint16), ('filter', ctypes.POINTER(Instruction))]

    instructions = (Instruction * 4)((0x20, 0, 0, 0),               # load the call's number
                                     (0x15, 0, 1, PTRACE_CALL),
                                     (0x06, 0, 0, 0x50000 | errno.EPERM),
                                     (0x06, 0, 0, 0x7fff0000))      # allow
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(Program(4, instructions)), 0, 0)


def test_daemon_without_privilege():
    """It may not stop anybody: a program with managed memory is refused."""
    same_for_both('how threads are stopped')
    if os.uname().machine != 'x86_64':
        raise Skip('the filter is for x86_64')
    # What looks for leaks uses ptrace(2) itself.
    env = {'ASAN_OPTIONS': 'verify_asan_link_order=0:detect_leaks=0'}
    with vmm.machine(start=False, env=env) as machine:
        machine.start(preexec_fn=forbid_ptrace)
        with Writers(machine) as writers:
            equal(machine.write(writers.pid, 'freeze'), 'EOPNOTSUPP')
            check('CAP_SYS_PTRACE' in machine.error(writers.pid), machine.error(writers.pid))
            writers.check_free()
            writers.wait_ticks()


def catch_halt(machine, writers):
    """Begin a freeze and return in the moment in which its threads are stopped."""
    while True:
        verb = machine.writer(writers.pid, 'freeze')
        while verb.is_waiting():
            if writers.is_stopped():
                return verb
        equal(verb.result(), 'ok', 'nothing was seen of it')
        machine.must(writers.pid, 'thaw')


def test_deaths_in_the_halt():
    """The program, or the daemon, is killed at any point around the moment."""
    same_for_both('how threads are stopped')
    for victim in ('program', 'daemon'):
        for _ in range(harness.few(1, 3)):
            with vmm.machine() as machine, Writers(machine) as writers:
                verb = catch_halt(machine, writers)
                if victim == 'program':
                    writers.demo.end(signal.SIGKILL)
                    equal(verb.result(), 'ESRCH')
                    wait_for(lambda: writers.pid not in machine.pids(), 'it to go')
                    continue
                kill_daemon(machine)
                wait_for(lambda: not writers.tracers(), 'it to be let go')
                machine.start()
                machine.wait_status(writers.pid, 'verb', '-')
                if machine.state(writers.pid) != 'running':
                    # Killed in the very step: there is no knowing, and it is not let run on.
                    if machine.write(writers.pid, 'thaw') != 'ok':
                        check('may lack' in machine.error(writers.pid), machine.error(writers.pid))
                        writers.demo.is_to_end = True
                        continue
                writers.wait_ticks()
                writers.check_free()
                vmm.cycle(machine, writers)


def catch_helper(writers):
    """Its threads are stopped: the helper that has done it."""
    (tracer,) = wait_for(writers.tracers, 'them to be stopped')
    (line,) = [line for line in harness.read_file(f'/proc/{tracer}/status').split('\n')
               if line.startswith('Tgid:')]
    pid = int(line.split()[1])
    equal(harness.read_file(f'/proc/{pid}/comm'), 'gpucr-halt\n')
    return pid


def check_stopped(writers, helper):
    """All of them but the library's and the driver's, and without a daemon."""
    for tid, state in writers.threads().items():
        name = writers.name(tid)
        check(state in 'tD' or name.startswith(('gpucr-', 'cuda')) or harness.SANITIZER == 'thread',
              f'{name} is {state}')
    check(harness.is_alive(helper), 'the helper has ended')


def check_unharmed(machine, writers, helper):
    """A next daemon has come: every word is right, and nobody is left that stops anything."""
    machine.wait_status(writers.pid, 'verb', '-')
    if machine.state(writers.pid) != 'running':
        machine.must(writers.pid, 'thaw')
    writers.wait_ticks()
    wait_for(lambda: not harness.is_alive(helper), 'the helper to end')
    writers.check_free()


def kill_daemon_and_disturb(machine, helper):
    """With what else comes to a helper when the daemon's terminal or service ends."""
    kill_daemon(machine)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(helper, number)


def test_daemon_dies_while_memory_comes_back():
    with vmm.machine() as machine, Writers(machine) as writers:
        for nth in harness.few((1, 5), (1, 3, 5, 1)):
            machine.must(writers.pid, 'freeze')
            machine.watch_faults()
            machine.faults(f'cuMemcpyHtoD {WRITES} nth={nth} delay_ms={1500 * harness.SLOW}')
            machine.writer(writers.pid, 'thaw')
            machine.wait_faulted()
            helper = catch_helper(writers)
            kill_daemon_and_disturb(machine, helper)
            time.sleep(0.5)
            check_stopped(writers, helper)
            machine.faults()
            machine.start()
            check_unharmed(machine, writers, helper)
        vmm.cycle(machine, writers)


def page_of(pid):
    """What the library shows of itself (struct gcr_page)."""
    for name in os.listdir(f'/proc/{pid}/fd'):
        with contextlib.suppress(OSError):
            if os.readlink(f'/proc/{pid}/fd/{name}').startswith('/memfd:gpucr-page'):
                with open(f'/proc/{pid}/fd/{name}', 'rb') as file:
                    return mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)
    raise Skip('its page is not to be had')


IS_MOVING = 248  # in struct gcr_page


def of_page(page, where):
    return struct.unpack_from('I', page, where)[0]


def go_on_until_moving(verb, page, tid, calls):
    """From system call to system call. False: the verb has ended before."""
    seen = 0
    equal(ptrace(PTRACE_INTERRUPT, tid), 0)
    while verb.is_waiting():
        if not os.waitpid(tid, WALL | os.WNOHANG)[0]:
            time.sleep(0.0001)
            continue
        seen += of_page(page, IS_MOVING)
        if seen >= calls:
            return True
        equal(ptrace(PTRACE_SYSCALL, tid), 0)
    equal(ptrace(PTRACE_INTERRUPT, tid), 0)
    os.waitpid(tid, WALL)
    return False


def catch_agent(machine, writers, page, tid, calls):
    """Stop the library's thread in the midst of taking memory, `calls` stops at system calls after
    it has said so, or less if it is through by then."""
    while True:
        if ptrace(PTRACE_SEIZE, tid) < 0:
            raise Skip('no privilege for ptrace')
        verb = machine.writer(writers.pid, 'freeze')
        # There is nothing else to see of it earlier.
        while verb.is_waiting() and not writers.is_stopped():
            pass
        if go_on_until_moving(verb, page, tid, calls):
            return
        equal(ptrace(PTRACE_DETACH, tid), 0)
        check(verb.result() == 'ok' or machine.is_sanitizers_doing(writers.pid, verb.result()),
              machine.error(writers.pid))
        machine.must(writers.pid, 'thaw')
        calls //= 2


def test_daemon_dies_while_memory_is_taken():
    same_for_both('how threads are stopped')
    with vmm.machine() as machine, Writers(machine) as writers:
        page = page_of(writers.pid)
        # It connects before its thread has its name.
        tid = wait_for(lambda: next((tid for tid in writers.threads()
                                     if writers.name(tid) == 'gpucr-agent'), None), 'its agent')
        for calls in harness.few((10, 60), (1, 10, 40, 80)):
            catch_agent(machine, writers, page, tid, calls)
            helper = catch_helper(writers)
            kill_daemon_and_disturb(machine, helper)
            time.sleep(0.5)
            check_stopped(writers, helper)
            machine.start()
            equal(ptrace(PTRACE_DETACH, tid), 0)
            check_unharmed(machine, writers, helper)
        vmm.cycle(machine, writers)


def test_job_control():
    """Stopped and continued again and again by somebody else meanwhile: refused or done."""
    same_for_both('how threads are stopped')
    with vmm.machine() as machine, Writers(machine) as writers:
        verbs = 0
        while verbs < harness.few(3, 10):
            verb = machine.writer(writers.pid, 'freeze')
            while verb.is_waiting():
                harness.try_kill(writers.pid, signal.SIGSTOP)
                harness.try_kill(writers.pid, signal.SIGCONT)
                time.sleep(0.001)
            result = verb.result()
            check(result in ('ok', 'EOPNOTSUPP', 'EBUSY') or
                  machine.is_sanitizers_doing(writers.pid, result), machine.error(writers.pid))
            machine.must(writers.pid, 'thaw')
            verbs += 1
            writers.wait_ticks(1)
        vmm.cycle(machine, writers)
        os.kill(writers.pid, signal.SIGSTOP)
        wait_for(lambda: set(writers.threads().values()) <= set('TD'), 'it to stop')
        equal(machine.write(writers.pid, 'freeze'), 'EOPNOTSUPP')
        os.kill(writers.pid, signal.SIGCONT)
        writers.wait_ticks()


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
