# SPDX-License-Identifier: MIT
"""A simulated machine: its GPUs and their faults, the daemon, its mount, and the programs on it."""
import array
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import vendor
from checking import Failure, equal, name_of, wait_for
from files import mounts, parse_keys, read_file
from processes import children_of, end_with_us, is_root, show_threads, wait_end
from programs import Demo, Events, Writer
from skipping import Skip
from tested import BUILD, REPORT, SANITIZER, SLOW, sanitizer_environment

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
        self.build = BUILD  # of the daemon
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
        return [f'{self.build}/fs/gpucrfs', '-f', '-o', f'sim,runtime_dir={self.runtime}{self.options}',
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

    def must_recover(self, demo):
        """Without faults it is thawed, and goes on with all of its memory."""
        self.faults()
        self.must(demo.pid, 'thaw')
        demo.wait_ticks()

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
        defaults = {'--bytes': '8M', '--buffers': '4', '--tick': '50'}
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

    def demo_with_pid(self, pid, *arguments, **options):
        """A program that gets this number, which is free; by root only."""
        for _ in range(50):
            with open('/proc/sys/kernel/ns_last_pid', 'w', encoding='ascii') as file:
                file.write(str(pid - 1))
            demo = self.demo(*arguments, **options)
            if demo.pid == pid:
                return demo.wait_ready()
            demo.end()
        raise Skip(f'no program gets the number {pid}')

    def has_library(self, command=None, env=None, **_):
        """Is a program that is started so to be served by the fast engine?"""
        env = {**self.env, **(env or {})}
        return not (env.get('GPUCR_PRELOAD') == '' or env['GPUCR_PRELOAD_VMM'] == '0' or
                    (command and ('--no-vmm' in command or vendor.RUN[0] not in command)))

    def stop_process(self, pid):
        """SIGSTOP, but not while it holds the mutex that all users of the simulator share, or the
        lock on the file that has it (see backend/sim/shared.c): nobody stops in a lock of the real
        driver, which is the kernel's."""
        state_path = os.path.join(self.simulator, vendor.STATE)

        def is_stopped():
            with contextlib.suppress(OSError):
                return all(read_file(f'/proc/{pid}/task/{task}/stat').rpartition(')')[2].split()[0]
                           in 'TtDZ' for task in os.listdir(f'/proc/{pid}/task'))
            return True

        def holds_lock():
            with open(state_path, 'rb') as state:
                word = int.from_bytes(state.read(12)[8:], sys.byteorder)  # of a robust mutex: FUTEX_TID_MASK
            if os.path.exists(f'/proc/{pid}/task/{word & 0x3fffffff}'):
                return True
            # 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF
            inode = os.stat(f'{state_path}.lock').st_ino
            return any(fields[1] == 'FLOCK' and fields[4] == str(pid) and
                       fields[5].endswith(f':{inode}')
                       for fields in map(str.split, read_file('/proc/locks').splitlines()))

        while True:
            os.kill(pid, signal.SIGSTOP)
            wait_for(is_stopped, f'{pid} to be stopped')
            if not holds_lock():
                return
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01 * SLOW)

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

    def hold_at(self, *rules):
        """Let each such call stand still until let_go()."""
        os.makedirs(self.simulator, exist_ok=True)
        with open(f'{self.simulator}/hold', 'w', encoding='utf-8') as file:
            os.chmod(file.name, 0o644)
        self.faults(*[f'{rule} action=hold' for rule in rules])

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
        if self.daemon and self.daemon.poll() is None and self.is_in_verb():
            pids = [self.daemon.pid]
            with contextlib.suppress(OSError):
                pids += children_of(self.daemon.pid)
            for pid in pids:
                with contextlib.suppress(OSError):
                    section(f'threads of {pid}', read_file(f'/proc/{pid}/comm'))
                    sys.stderr.flush()
                    show_threads(pid)
        sys.stderr.flush()

    def is_in_verb(self):
        """Is a verb under way for a program of the test? It may be what a test has waited for."""
        for demo in self.demos[:6]:
            with contextlib.suppress(OSError, Failure):
                if self.status(demo.pid)['verb'] != '-':
                    return True
        return False

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
