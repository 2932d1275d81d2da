# SPDX-License-Identifier: MIT
"""What the tests of the daemon share: a daemon on the simulated GPU, demo programs, writers.

A test file holds functions named test_*, and ends with harness.main(globals()). Each test makes
a Machine: a temporary directory with its own simulated GPU, runtime directory and mountpoint, so
that tests run side by side. A Machine cleans up after itself whatever happens; when a test fails
it first prints what the daemon, the mount and the programs said.

Waiting is on events or on a condition with a deadline; a deadline that passes is a failure.
"""
import array
import contextlib
import ctypes
import errno
import fcntl
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import dispositions
import vendor

dispositions.reset()

BUILD = os.environ.get('GPUCR_TEST_BUILD', '')
SOURCE = os.path.dirname(os.path.abspath(__file__))
SANITIZER = os.environ.get('GPUCR_TEST_SANITIZER', 'none')
# Sanitizers make everything slower; so does a machine that runs other tests at the same time.
SLOW = 1 if SANITIZER == 'none' else 5
PATIENCE_SEC = 40 if SLOW == 1 else 100
REPORT = re.compile(r'ERROR: \w+Sanitizer|runtime error:|WARNING: \w+Sanitizer')
MIB = 1 << 20
NOBODY = 65534
SKIPPED = 77
# Exit statuses of tests that are not run for a reason of the vendor's; a file's are 0 and 77.
NOT_HERE, ONCE = 78, 79
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)  # by the tests themselves
WRITE_CALL = '1' if os.uname().machine == 'x86_64' else '64'  # write(2) in /proc/PID/syscall
TEST_SEC = 240 * SLOW


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_us(number, prepare=None):
    """For preexec_fn: a program that ends when the test does, even if that is killed."""
    def prepare_child():
        if prepare:
            prepare()
        LIBC.prctl(PR_SET_PDEATHSIG, number)

    return prepare_child


class Failure(Exception):
    """The test found something wrong."""


class Skip(Exception):
    """Something that the test needs is not on this machine."""


class NotHere(Skip):
    """The test is not for this vendor's GPUs."""


class OnceIsEnough(Skip):
    """The test finds out the same with another vendor's GPUs, or with a sanitizer."""


def needs_cuda(what):
    """The rest of the test makes use of something that there is on NVIDIA GPUs only."""
    if vendor.HIP:
        raise NotHere(f'not on AMD: {what}')


def same_for_both(what):
    """The test looks at something that knows nothing of vendors. With GPUCR_TEST_ALL it is run
    for each all the same."""
    if vendor.HIP and not os.environ.get('GPUCR_TEST_ALL'):
        raise OnceIsEnough(f'runs with CUDA: {what}')


def check(condition, words):
    if not condition:
        raise Failure(words)


def equal(found, expected, words=''):
    if found != expected:
        raise Failure(f'{words + ": " if words else ""}found {found!r}, expected {expected!r}')


def wait_for(condition, words, seconds=None):
    """Returns what the condition returned when it was true at last."""
    deadline = time.monotonic() + (seconds or PATIENCE_SEC)
    pause_sec = 0.002
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure(f'waited in vain for: {words}')
        time.sleep(pause_sec)
        pause_sec = min(1.5 * pause_sec, 0.025)  # to look takes the time of processors, too


def soon(what, call, bound_sec):
    """What the call returns; a failure if that takes longer, or for ever. It has a thread of its own."""
    done = []
    began = time.monotonic()

    def run():
        try:
            done.append((call(), None))
        except BaseException as error:  # pylint: disable=broad-except
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(bound_sec)
    check(done, f'{what} takes more than {bound_sec} s')
    print(f'{what}: {time.monotonic() - began:.2f} s', file=sys.stderr)
    if done[0][1]:
        raise done[0][1]
    return done[0][0]


def open_both(path):
    """For reading and writing; whoever has just closed it may not have been heard of yet."""
    def attempt():
        try:
            return open(path, 'r+b', buffering=0)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return None

    return wait_for(attempt, f'{path} to be closed')


def name_of(number):
    """As the daemon names it: Python knows EOPNOTSUPP as ENOTSUP."""
    if not number:
        return 'ok'
    return 'EOPNOTSUPP' if number == errno.EOPNOTSUPP else errno.errorcode.get(number, str(number))


def error_of(call):
    """The name of the errno that it fails with; 'ok' if it does not."""
    try:
        call()
    except OSError as error:
        return name_of(error.errno)
    return 'ok'


def is_root():
    return os.geteuid() == 0


def is_alive(pid):
    """It exists and is no zombie."""
    try:
        with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as stat:
            return stat.read().rpartition(')')[2].split()[0] not in 'ZX'
    except OSError:
        return False


def mounts():
    """Mountpoints and types, as /proc/self/mounts has them."""
    with open('/proc/self/mounts', encoding='utf-8', errors='replace') as lines:
        return [(line.split()[1], line.split()[2]) for line in lines]


def wait_end(popen, seconds=None):
    """popen.wait(seconds), which would look at it only twenty times a second. Returns its status."""
    if popen.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # somebody else has waited for it
            fd = os.pidfd_open(popen.pid)
            try:
                poller = select.poll()
                poller.register(fd, select.POLLIN)
                if not poller.poll(1000 * (seconds or PATIENCE_SEC)):
                    raise subprocess.TimeoutExpired(popen.args, seconds or PATIENCE_SEC)
            finally:
                os.close(fd)
    return popen.wait()


def try_kill(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def unique():
    """For names in what PID namespaces share: cgroups, /dev, units."""
    return f'{os.getpid()}-{os.urandom(4).hex()}'


def read_file(path):
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read()


def parse_keys(text):
    """`key value` lines, up to the first empty line."""
    keys = {}
    for line in text.split('\n'):
        if not line:
            break
        key, _, value = line.partition(' ')
        keys[key] = value
    return keys


class Output:
    """Reads a program's output line by line on a thread."""

    def __init__(self, pipe):
        self.lines = []
        self.changed = threading.Condition()
        self.ended = False
        self.pipe = pipe
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.pipe:
            with self.changed:
                self.lines.append(line.rstrip('\n'))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait(self, condition, words, seconds=None):
        """Wait until condition(lines) is true."""
        deadline = time.monotonic() + (seconds or PATIENCE_SEC)
        with self.changed:
            while not condition(self.lines):
                left = deadline - time.monotonic()
                if self.ended:
                    raise Failure(f'its output ended before: {words}; {self.lines[-5:]}')
                if left <= 0:
                    raise Failure(f'waited in vain for: {words}; {self.lines[-5:]}')
                self.changed.wait(left)


class Demo:
    """gpucr-demo: ticks, each of which says that all bytes in VRAM are right."""

    def __init__(self, machine, arguments, env=None, uid=None, command=None, **options):
        def become():
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)

        program = command or [*vendor.RUN, *vendor.DEMO]
        self.machine = machine
        self.errors = open(f'{machine.directory}/demo-{len(machine.demos)}', 'w+', encoding='utf-8')
        self.popen = subprocess.Popen(program + [str(a) for a in arguments],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=self.errors, text=True,
                                      env={**machine.env, **(env or {})},
                                      preexec_fn=end_with_us(signal.SIGKILL, become), **options)
        self.output = Output(self.popen.stdout)
        self.pid = self.popen.pid
        self.is_to_end = False

    def wait_ready(self, ticks=1):
        self.output.wait(lambda lines: len(lines) > ticks, 'the first tick')
        check(self.output.lines[0].startswith('pid '), self.output.lines[0])
        self.pid = int(self.output.lines[0].split()[1])
        return self

    def ticks(self):
        """The number of the last tick; everything up to it must be right and without a gap."""
        lines = list(self.output.lines)
        for number, line in enumerate(lines[1:], 1):
            if line != f'tick {number} ok':
                raise Failure(f'demo {self.pid}: line {number + 1} is {line!r}')
        return len(lines) - 1

    def wait_ticks(self, more=3, seconds=None):
        """Wait for this many further ticks."""
        goal = self.ticks() + more
        self.output.wait(lambda lines: len(lines) - 1 >= goal, f'tick {goal} of {self.pid}',
                         seconds)
        return self.ticks()

    def wait_standstill(self):
        """It is held up in the driver: after the line that was on its way nothing comes."""
        last = -1
        while last != self.ticks():
            last = self.ticks()
            time.sleep(0.25 * SLOW)
        return last

    def is_running(self):
        return self.popen.poll() is None

    def end(self, number=signal.SIGTERM):
        self.is_to_end = True
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        try:
            wait_end(self.popen)
        except subprocess.TimeoutExpired:
            raise Failure(f'demo {self.pid} does not end') from None

    def words(self):
        return read_file(self.errors.name)

    def finish(self):
        self.is_to_end = True
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        if self.pid != self.popen.pid and is_alive(self.pid):
            try_kill(self.pid, signal.SIGKILL)
        self.output.thread.join(1)
        self.errors.close()


def sleeps(pid):
    """All its threads wait for something."""
    for thread in os.listdir(f'/proc/{pid}/task'):
        try:
            state = read_file(f'/proc/{pid}/task/{thread}/stat').rpartition(')')[2].split()[0]
        except FileNotFoundError:
            continue
        if state not in 'SIZ':
            return False
    return True


class Writer:
    """A process that writes once to a ctl file and tells how that went."""

    def __init__(self, path, text, flags=0, prepare=None, uid=None):
        read_end, write_end = os.pipe()
        self.started = time.monotonic()
        self.daemon_pid = None
        # Until the child has handlers of its own, it must not run ours.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        self.pid = os.fork()
        if not self.pid:
            self._child(path, text, flags, prepare, uid, write_end, mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_end)
        self.pipe = read_end
        self.number = None
        self.seconds = None

    @staticmethod
    def _child(path, text, flags, prepare, uid, pipe, mask):
        number = 255
        try:
            for signal_number in HANDLED:
                signal.signal(signal_number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            if prepare:
                prepare()
            data = text if isinstance(text, bytes) else text.encode()
            fd = os.open(path, os.O_WRONLY | flags)
            number = 0 if os.write(fd, data) == len(data) else 254
        except OSError as error:
            number = error.errno
        finally:
            try:  # a handler of prepare's may raise something even here
                os.write(pipe, bytes([number]))
            finally:
                os._exit(0)

    def is_waiting(self):
        """It has not been answered yet."""
        return self.number is None and not select.select([self.pipe], [], [], 0)[0]

    def wait_waiting(self):
        """Wait until its write has come to the daemon, and the daemon has looked at it."""
        def is_in_write():
            try:
                return read_file(f'/proc/{self.pid}/syscall').split()[0] == WRITE_CALL
            except (OSError, IndexError):
                return 'fuse' in read_file(f'/proc/{self.pid}/wchan')

        wait_for(is_in_write, f'the writer {self.pid} to be waiting')
        time.sleep(0.02 * SLOW)  # the way from there to the daemon cannot be seen
        # Who was woken by it and has no processor yet is not asleep. Others may work all the time.
        until = time.monotonic() + SLOW
        while self.daemon_pid and not sleeps(self.daemon_pid) and time.monotonic() < until:
            time.sleep(0.01)
        return self

    def result(self, seconds=None):
        """Its errno's name, 'ok', or 'killed'."""
        if self.number is None:
            if not select.select([self.pipe], [], [], seconds or PATIENCE_SEC)[0]:
                raise Failure(f'the writer {self.pid} waits for ever')
            self.seconds = time.monotonic() - self.started
            byte = os.read(self.pipe, 1)
            os.close(self.pipe)
            os.waitpid(self.pid, 0)
            self.number = byte[0] if byte else -1
        return 'killed' if self.number < 0 else name_of(self.number)

    def signal(self, number):
        os.kill(self.pid, number)

    def finish(self):
        if self.number is None:
            try_kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(Failure):
                self.result(2)


class Events:
    """An events file, followed with poll(2)."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY)
        self.text = ''
        self.poller = select.poll()
        self.poller.register(self.fd, select.POLLIN)

    def read(self):
        while True:
            data = os.read(self.fd, 65536)
            if not data:
                return self.text
            self.text += data.decode(errors='replace')

    def lines(self):
        return self.read().split('\n')[:-1]

    def wait(self, pattern, seconds=None, start=0):
        """Wait for a line, from number `start` on, in which the pattern is found."""
        deadline = time.monotonic() + (seconds or PATIENCE_SEC)
        while True:
            for line in self.lines()[start:]:
                if re.search(pattern, line):
                    return line
            left = deadline - time.monotonic()
            if left <= 0 or not self.poller.poll(left * 1000):
                raise Failure(f'no event {pattern!r} in:\n{self.text}')

    def close(self):
        os.close(self.fd)


class Machine:
    """
    A simulated GPU, a daemon that serves it, and the programs that run on it. Those that run with
    our library get the driver engine, unless @vmm; on AMD there is no such engine, and all get the
    fast one. @others: how many GPUs of the other vendor there are.
    """

    def __init__(self, vram='256M', gpus=1, options='', start=True, env=None, worker_idle=60,
                 vmm=False, others=0):
        if not os.access('/dev/fuse', os.R_OK | os.W_OK):
            raise Skip('/dev/fuse cannot be opened')
        if not BUILD:
            raise Skip('GPUCR_TEST_BUILD does not name the build folder')
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-test-')
        os.chmod(self.directory, 0o755)
        self.mountpoint = f'{self.directory}/mnt'
        self.runtime = f'{self.directory}/run'
        self.simulator = f'{self.directory}/sim'
        self.log_path = f'{self.directory}/log'
        if vendor.HIP and not vmm:  # a worker takes VRAM too, where a test may expect none
            worker_idle = 0
        self.options = f',worker_idle={worker_idle}{options}'
        os.mkdir(self.mountpoint)
        self.env = {
            **os.environ,
            'GPUCR_HELPER_DIR': f'{BUILD}/backend/cuda',
            'GPUCR_SIM_LIBDIR': f'{BUILD}/backend/sim',
            'GPUCR_SIM_DIR': self.simulator,
            'GPUCR_SIM_VRAM': vram,
            **vendor.gpus(gpus, others),
            'GPUCR_SOCKET': f'{self.runtime}/socket',
            'GPUCR_PRELOAD_VMM': '1' if vmm or vendor.HIP else '0',
            **sanitizer_environment(),
            **(env or {}),
        }
        self.demos = []
        self.others = []
        self.daemon = None
        self.expects_clean_exit = True
        if start:
            try:
                self.start()
            except BaseException:
                self.show()
                self.finish()
                raise

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        failed = kind is not None and not issubclass(kind, Skip)
        problems = []
        if failed:
            self.show()
        else:
            problems = self.last_checks()
        problems += self.finish()
        if problems and not failed:
            raise Failure('; '.join(problems))

    # The daemon

    def command(self, *more):
        return [f'{BUILD}/fs/gpucrfs', '-f', '-o', f'sim,runtime_dir={self.runtime}{self.options}',
                *more, self.mountpoint]

    def start(self, env=None, preexec_fn=None):
        """Start the daemon and wait until the mount answers."""
        with open(self.log_path, 'a', encoding='utf-8') as log:
            self.daemon = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                           stderr=log, env={**self.env, **(env or {})},
                                           preexec_fn=end_with_us(signal.SIGTERM, preexec_fn),
                                           start_new_session=True)
        wait_for(lambda: self.answers() or self.daemon.poll() is not None, 'the mount')
        if self.daemon.poll() is not None:
            raise Failure(f'the daemon ended with {self.daemon.returncode}:\n{self.log()}')
        return self

    def answers(self):
        if (self.mountpoint, 'fuse.gpucrfs') not in mounts():
            return False
        try:
            return 'ctl' in os.listdir(self.mountpoint)
        except OSError:
            return False

    def stop(self, number=signal.SIGTERM, seconds=None):
        """End the daemon; returns its exit status."""
        self.daemon.send_signal(number)
        try:
            return wait_end(self.daemon, seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f'the daemon does not end on signal {number}') from None

    def log(self):
        return read_file(self.log_path)

    # The mount

    def path(self, *parts):
        return '/'.join([self.mountpoint, *[str(part) for part in parts]])

    def read(self, *parts):
        return read_file(self.path(*parts))

    def status(self, pid):
        return parse_keys(self.read(pid, 'status'))

    def status_of_all(self):
        return parse_keys(self.read('status'))

    def state(self, pid):
        return self.status(pid)['state']

    def gpu(self, index=0):
        return parse_keys(self.read('gpus', index, 'status'))

    def used(self, index=0):
        return int(self.gpu(index)['vram_used_bytes'])

    def kept(self, *pids):
        """What of frozen processes stays in VRAM: on AMD queues and contexts."""
        return sum(int(self.status(pid)['kept_vram_bytes']) for pid in pids) if vendor.HIP else 0

    def check_used(self, expected, index=0, words='VRAM in use'):
        """By programs. What the daemon says of a GPU may be a tenth of a second old; and on AMD our
        workers have come into use, and go when they are idle."""
        found = []

        def is_so():
            found[:] = [self.used(index)]
            return found == [expected]
        try:
            wait_for(is_so, words)
        except Failure:
            equal(found[0], expected, words)

    def free(self, index=0):
        return int(self.gpu(index)['vram_free_bytes'])

    def error(self, pid):
        return self.read(pid, 'error').rstrip('\n')

    def pids(self):
        return sorted(int(name) for name in os.listdir(self.mountpoint) if name.isdigit())

    def ctl(self, pid=None):
        return self.path(pid, 'ctl') if pid else self.path('ctl')

    def write(self, pid, text, flags=0):
        """One write; returns 'ok' or the name of its errno."""
        data = text if isinstance(text, bytes) else text.encode()
        try:
            fd = os.open(self.ctl(pid), os.O_WRONLY | flags)
        except OSError as error:
            return name_of(error.errno)
        try:
            return 'ok' if os.write(fd, data) == len(data) else 'short'
        except OSError as error:
            return name_of(error.errno)
        finally:
            os.close(fd)

    def is_sanitizers_doing(self, pid, result):
        """A thread may be stopped with a lock of ThreadSanitizer's that the agent waits for, or
        be in what that does for it, and not stop in time."""
        words = ('let go too early', 'were to be stopped', 'does not stop', 'could not be stopped')
        return SANITIZER == 'thread' and pid and result in ('EIO', 'EBUSY') and \
            any(some in self.error(pid) for some in words)

    def must(self, pid, text):
        result = self.write(pid, text)
        for _ in range(10):
            if not self.is_sanitizers_doing(pid, result):
                break
            result = self.write(pid, text)
        if result != 'ok':
            words = self.error(pid) if pid else self.read('error') + self.read('events')
            raise Failure(f'{text!r} to {pid or "the root"}: {result}: {words}')

    def writer(self, pid, text, **arguments):
        """Write from a process of its own."""
        writer = Writer(self.ctl(pid), text, **arguments)
        writer.daemon_pid = self.daemon and self.daemon.pid
        self.others.append(writer)
        return writer

    def events(self, pid=None):
        events = Events(self.path(pid, 'events') if pid else self.path('events'))
        return events

    def wait_status(self, pid, key, value, seconds=None):
        wait_for(lambda: self.status(pid).get(key) == value, f'{key} {value} of {pid}', seconds)

    # Programs

    def demo(self, *arguments, **options):
        defaults = {'--bytes': '8M', '--buffers': '4', '--tick': '20'}
        given = list(arguments)
        for name, value in defaults.items():
            if name not in given:
                given += [name, value]
        # All of its memory is summed up at every tick: with shorter ones that is all a processor does.
        at = given.index('--tick') + 1
        if 5 <= int(given[at]) < 20:
            given[at] = 20
        demo = Demo(self, given, **options)
        self.demos.append(demo)
        return demo

    def ready_demo(self, *arguments, **options):
        demo = self.demo(*arguments, **options).wait_ready()
        # Its library may register after the first tick; what is no demo has its own engine.
        if self.daemon and self.daemon.poll() is None and self.has_library(**options) and \
                (vendor.HIP or not options.get('command')):
            self.wait_status(demo.pid, 'engine', vendor.ENGINE)
        return demo

    def has_library(self, command=None, env=None, **_):
        """Is a program that is started so to be served by the fast engine?"""
        env = {**self.env, **(env or {})}
        return not (env.get('GPUCR_PRELOAD') == '' or env['GPUCR_PRELOAD_VMM'] == '0' or
                    (command and ('--no-vmm' in command or vendor.RUN[0] not in command)))

    def stop_process(self, pid):
        """SIGSTOP, but not while it holds the mutex that all users of the simulator share (see
        backend/sim/shared.h): nobody stops in a lock of the real driver, which is the kernel's."""
        def is_stopped():
            with contextlib.suppress(OSError):
                return all(read_file(f'/proc/{pid}/task/{task}/stat').rpartition(')')[2].split()[0]
                           in 'TtDZ' for task in os.listdir(f'/proc/{pid}/task'))
            return True

        while True:
            os.kill(pid, signal.SIGSTOP)
            wait_for(is_stopped, f'{pid} to be stopped')
            with open(f'{self.simulator}/state', 'rb') as state:
                word = int.from_bytes(state.read(12)[8:], sys.byteorder)  # of a robust mutex: FUTEX_TID_MASK
            if not os.path.exists(f'/proc/{pid}/task/{word & 0x3fffffff}'):
                return
            os.kill(pid, signal.SIGCONT)

    def faults(self, *rules):
        """Replace the rules of injected faults."""
        os.makedirs(self.simulator, exist_ok=True)
        with open(f'{self.simulator}/faults.new', 'w', encoding='utf-8') as file:
            file.write('\n'.join(map(vendor.rule, rules)) + '\n')
        os.chmod(file.name, 0o644)
        os.rename(file.name, f'{self.simulator}/faults')

    def slow(self, verb, msec, pid=None):
        """Let each such verb stand still once for a while, in the phase that is returned."""
        rule, phase = vendor.step(verb, f'delay_ms={msec}', pid)
        self.faults(rule)
        return phase

    def hold(self, verb, pid=None):
        """Let each such verb stand still until let_go(), in the phase that is returned."""
        rule, phase = vendor.step(verb, '', pid)
        self.hold_at(rule)
        return phase

    def hold_at(self, rule):
        """Let each such call stand still until let_go()."""
        os.makedirs(self.simulator, exist_ok=True)
        with open(f'{self.simulator}/hold', 'w', encoding='utf-8') as file:
            os.chmod(file.name, 0o644)
        self.faults(f'{rule} action=hold')

    def let_go(self):
        """The end of hold() and hold_at()."""
        os.unlink(f'{self.simulator}/hold')
        self.faults()

    def failing(self, verb, pid=None, more=''):
        """Let each such verb fail with EIO, and be rolled back."""
        self.faults(vendor.step(verb, f'error=CUDA_ERROR_UNKNOWN {more}', pid)[0])

    def watch_faults(self):
        """From now on the calls that a rule applies to are listed; what was listed is forgotten."""
        os.makedirs(self.simulator, exist_ok=True)
        with open(f'{self.simulator}/faults.log', 'w', encoding='utf-8') as file:
            os.chmod(file.name, 0o666)

    def faulted(self):
        """These calls: (pid, comm, entry point)."""
        with contextlib.suppress(OSError):
            lines = read_file(f'{self.simulator}/faults.log').split('\n')[:-1]
            return [(int(pid), vendor.comm(comm), call)
                    for pid, comm, call in (line.split() for line in lines)]
        return []

    def wait_faulted(self, count=1, seconds=None):
        wait_for(lambda: len(self.faulted()) >= count, f'{count} calls with faults', seconds)

    def lookers(self):
        """The daemon's children that look at other processes."""
        with contextlib.suppress(OSError):
            threads = os.listdir(f'/proc/{self.daemon.pid}/task')
            children = [int(pid) for thread in threads for pid in
                        read_file(f'/proc/{self.daemon.pid}/task/{thread}/children').split()]
            return [pid for pid in children if read_file(f'/proc/{pid}/comm') == 'gpucr-look\n']
        return []

    def helpers(self):
        """The daemon's children that have to do with GPUs: pids by name."""
        children = []
        for name in os.listdir('/proc'):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError):
                fields = read_file(f'/proc/{name}/stat')
                comm = fields[fields.index('(') + 1:fields.rindex(')')]
                state, parent = fields.rpartition(')')[2].split()[:2]
                # With the daemon's name it is only just being started, and the daemon waits for it.
                if int(parent) == self.daemon.pid and state not in 'ZX' and \
                        comm.startswith('gpucr-') and \
                        comm not in ('gpucr-look', 'gpucr-receive'):
                    children.append((int(name), vendor.comm(comm)))
        return sorted(children)

    # The end

    def last_checks(self):
        problems = []
        for demo in self.demos:
            try:
                demo.ticks()
            except Failure as failure:
                problems.append(str(failure))
            if not demo.is_to_end and not demo.is_running():
                problems.append(f'demo {demo.pid} has ended: {demo.words().strip()}')
        return problems

    def show(self):
        """Everything that may explain a failure, on stderr."""
        def section(title, text):
            sys.stderr.write(f'--- {title}\n{text.rstrip()}\n')

        def show_file(*parts):
            done = {}

            def read():
                try:
                    done['text'] = self.read(*parts)
                except OSError as error:
                    done['text'] = str(error)

            thread = threading.Thread(target=read, daemon=True)
            thread.start()
            thread.join(3)
            section('/'.join(str(part) for part in parts), done.get('text', '(does not answer)'))

        with contextlib.suppress(OSError):
            section('daemon', self.log())
        if self.daemon and self.daemon.poll() is None:
            show_file('status')
            show_file('events')
            show_file('gpus', 0, 'status')
        else:
            section('daemon ended with', str(self.daemon and self.daemon.returncode))
        for demo in self.demos:
            section(f'demo {demo.pid}', '\n'.join(demo.output.lines[-3:]) + '\n' + demo.words())
            if self.daemon and self.daemon.poll() is None and len(self.demos) < 6:
                show_file(demo.pid, 'status')
                show_file(demo.pid, 'error')
        sys.stderr.flush()

    def stop_at_end(self):
        if self.daemon is None:
            return []
        if self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            try:
                wait_end(self.daemon, 30 * SLOW)
            except subprocess.TimeoutExpired:
                show_threads(self.daemon.pid)
                self.daemon.kill()
                self.daemon.wait()
                return ['the daemon did not end on SIGTERM']
        if self.expects_clean_exit and self.daemon.returncode:
            return [f'the daemon ended with status {self.daemon.returncode}']
        return []

    def finish(self):
        """End everything and clean up; returns what went wrong."""
        for other in self.others:
            other.finish()
        for demo in self.demos:
            demo.finish()
        problems = self.stop_at_end()
        if any(path == self.mountpoint for path, _ in mounts()):
            if self.expects_clean_exit and self.daemon is not None:
                problems.append('the mount was left behind')
            subprocess.run(['umount', '-l', self.mountpoint], check=False,
                           stdin=subprocess.DEVNULL)
        store = f'{self.runtime}/store'
        if any(path == store for path, _ in mounts()):
            # A daemon that was killed cannot take it away, nor one that leaves a process frozen.
            subprocess.run(['umount', '-l', store], check=False, stdin=subprocess.DEVNULL)
        with contextlib.suppress(OSError):
            reports = [line for line in self.log().split('\n') if REPORT.search(line)]
            if reports:
                sys.stderr.write(self.log())
                problems.append(f'sanitizer: {reports[0]}')
        for demo in self.demos:
            if REPORT.search(demo.words()):
                sys.stderr.write(demo.words())
                problems.append('sanitizer report of a demo')
        unprotect(self.mountpoint)
        shutil.rmtree(self.directory, ignore_errors=True)
        return problems


FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL = 0x80086601, 0x40086602, 0x10


def flags_of(path, change=None):
    """Those of chattr(1), 0 where there are none; @change makes new ones of them."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return 0
    try:
        flags = array.array('i', [0])
        fcntl.ioctl(fd, FS_IOC_GETFLAGS, flags)
        if change:
            fcntl.ioctl(fd, FS_IOC_SETFLAGS, array.array('i', [change(flags[0])]))
        return flags[0]
    except OSError:
        return 0
    finally:
        os.close(fd)


def unprotect(mountpoint):
    """What a daemon that was killed has left of it can be removed."""
    with contextlib.suppress(OSError):
        if is_root():
            flags_of(mountpoint, lambda flags: flags & ~FS_IMMUTABLE_FL)
        os.chmod(mountpoint, 0o755)


def show_threads(pid):
    """Where every thread of a process that hangs is."""
    for task in sorted(os.listdir(f'/proc/{pid}/task')):
        with contextlib.suppress(OSError):
            where = read_file(f'/proc/{pid}/task/{task}/wchan')
            sys.stderr.write(f'thread {task}: {where}\n')
    if shutil.which('gdb'):
        subprocess.run(['gdb', '-p', str(pid), '-batch', '-ex', 'thread apply all bt 12'],
                       stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.DEVNULL,
                       check=False)


def sanitizer_environment():
    """Options for instrumented programs: reports go to stderr, and one ends the program."""
    if SANITIZER == 'none':
        return {}
    return {
        # gpucr-run preloads a library of ours before the sanitizer's.
        'ASAN_OPTIONS': 'verify_asan_link_order=0:detect_leaks=1:abort_on_error=0',
        'UBSAN_OPTIONS': 'print_stacktrace=1',
        'LSAN_OPTIONS': f'suppressions={SOURCE}/lsan.supp:print_suppressions=0',
        'TSAN_OPTIONS': f'suppressions={SOURCE}/tsan.supp:second_deadlock_stack=1:'
                        'atexit_sleep_ms=50',
    }


def run_test(name, test):
    """In a process of its own; its exit status says how it went."""
    begun = time.monotonic()
    status = 1

    def give_up(number, _):
        raise Failure(f'signal {number}: it took too long')

    signal.signal(signal.SIGTERM, give_up)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TEST_SEC)
    try:
        test()
        status, word = 0, 'ok'
    except Skip as skip:
        status = {NotHere: NOT_HERE, OnceIsEnough: ONCE}.get(type(skip), SKIPPED)
        word = f'skipped: {skip}'
    except Exception:  # pylint: disable=broad-except
        word = 'FAILED'
        traceback.print_exc()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f'{name}: {word} ({time.monotonic() - begun:.1f} s; of the CPU '
          f'{sum(one.ru_utime + one.ru_stime for one in used):.1f} s)', flush=True)
    return status


def start_test(name, test):
    """Returns its pid and a file with its output."""
    output = tempfile.TemporaryFile()
    pid = os.fork()
    if not pid:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            status = run_test(name, test)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return pid, output


def go_apart():
    """Into a PID namespace of this file's own. A daemon looks at all processes that it sees: there
    those of other tests, which may be many, or hold up all that look at them, are not among them;
    and nobody else takes a PID that is to be restored. Not with GPUCR_TEST_APART=no."""
    command = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc']
    where = os.environ.get('GPUCR_TEST_APART')
    if where == 'in':
        lead()
    elif where != 'no' and is_root() and not subprocess.run([*command, 'true'], stdin=subprocess.DEVNULL, check=False,
                                          stderr=subprocess.DEVNULL).returncode:
        os.environ['GPUCR_TEST_APART'] = 'in'
        os.execvp(command[0], [*command, sys.executable, *sys.orig_argv[1:]])


def lead():
    """What the namespace has to have: a first process, which waits for all that have lost their
    parents. Returns in its child."""
    del os.environ['GPUCR_TEST_APART']
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setsid()  # CRIU wants to see the leader of a session
        return
    for number in HANDLED:
        signal.signal(number, lambda number, _: try_kill(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    pid = 0
    while pid != child:
        pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def main(names, at_once=1):
    """Run the test functions of a file (those named on the command line, or all)."""
    go_apart()
    wanted = sys.argv[1:]
    tests = [(name, test) for name, test in names.items()
             if name.startswith('test_') and callable(test) and (not wanted or name in wanted)]
    running = {}
    statuses = []

    def pass_on(number, _):
        for pid in running:
            try_kill(pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    while tests or running:
        while tests and len(running) < at_once:
            pid, output = start_test(*tests.pop(0))
            running[pid] = output
        pid, status = os.wait()
        output = running.pop(pid)
        output.seek(0)
        sys.stdout.write(output.read().decode(errors='replace'))
        sys.stdout.flush()
        statuses.append(os.waitstatus_to_exitcode(status))
    if vendor.HIP:
        print(f'of {len(statuses)} tests {statuses.count(NOT_HERE)} are not for AMD, and '
              f'{statuses.count(ONCE)} run with CUDA only', flush=True)
    skipped = (SKIPPED, NOT_HERE, ONCE)
    if any(status not in (0, *skipped) for status in statuses):
        sys.exit(1)
    sys.exit(SKIPPED if statuses and all(status in skipped for status in statuses) else 0)
