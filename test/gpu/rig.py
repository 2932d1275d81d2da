# SPDX-License-Identifier: MIT
"""What test_gpu.py works with: a daemon and its mount, programs on the GPU and what they print,
the GPU's own figures, verbs written with a time limit.

Whatever touches the mount is done in a child process, because a daemon that hangs would hang it.
"""
import ctypes
import errno
import os
import pickle
import re
import select
import shutil
import signal
import subprocess
import sys
import time

MIB = 1 << 20
HERE = os.path.dirname(os.path.realpath(__file__))
# What a file operation on the mount may take, and a program's start.
LOOK_SEC = 15
START_SEC = 120


class Failure(Exception):
    """A check that the rest of its part depends on has failed."""


class Stuck(Failure):
    """Something has not ended in time."""


def errno_name(number):
    if number == errno.EOPNOTSUPP:
        return "EOPNOTSUPP"  # not its other name, ENOTSUP
    return errno.errorcode.get(number, str(number)) if number else "success"


class Task:
    """function() in a child process. Its value, or its errno if it raised OSError."""

    def __init__(self, function):
        reader, writer = os.pipe()
        sys.stdout.flush()
        self.started = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            self._run(function, reader, writer)
        os.close(writer)
        self.reader = reader
        self.ended = False

    @staticmethod
    def _run(function, reader, writer):
        try:
            os.close(reader)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            try:
                answer = (0, function())
            except OSError as error:
                answer = (error.errno, None)
            with os.fdopen(writer, "wb") as stream:
                stream.write(pickle.dumps(answer))
        finally:
            os._exit(0)

    def wait(self, timeout):
        """(errno, value); errno is None if a signal ended it. Stuck after @timeout."""
        data = b""
        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.reader], [], [], left)[0]:
                self.kill()
                raise Stuck(f"no answer after {timeout:.0f} s")
            piece = os.read(self.reader, 65536)
            if not piece:
                break
            data += piece
        os.close(self.reader)
        os.waitpid(self.pid, 0)
        self.ended = True
        return pickle.loads(data) if data else (None, None)

    def kill(self, number=signal.SIGKILL):
        if not self.ended:
            os.kill(self.pid, number)
            if number == signal.SIGKILL:
                # It may stay in the kernel until the daemon has gone: not waited for.
                self.ended = True
                os.close(self.reader)


def guarded(function, timeout=LOOK_SEC):
    number, value = Task(function).wait(timeout)
    if number is None:
        raise Stuck("a child process was ended by a signal")
    if number:
        raise OSError(number, os.strerror(number))
    return value


def write_verb(path, verb):
    """(errno, seconds) of one write(2)."""
    fd = os.open(path, os.O_WRONLY)
    started = time.monotonic()
    number = 0
    try:
        os.write(fd, verb.encode())
    except OSError as error:
        number = error.errno
    return number, time.monotonic() - started


def read_text(path):
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def process_stat(pid):
    """(comm, state, ppid), None if it has ended."""
    try:
        text = read_text(f"/proc/{pid}/stat")
    except OSError:
        return None
    comm, rest = text[text.index("(") + 1:].rsplit(")", 1)
    words = rest.split()
    return comm, words[0], int(words[1])


def is_alive(pid):
    stat = process_stat(pid)
    return stat is not None and stat[1] not in "ZX"


def wait_until(condition, timeout, what):
    """Look again and again until condition() is true; its value."""
    until = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise Stuck(f"{what}: not after {timeout:.0f} s")
        time.sleep(0.02)


class Program:
    """A program that prints `pid N` and then numbered lines, `tick K ok` or `step K ok`."""

    session = False  # of its own

    def __init__(self, rig, name, command, environment, word="tick"):
        self.name = name
        self.word = word
        self.count = 0
        self.extra = {}
        self.problem = None
        self.said_pid = False
        self.partial = b""
        self.path = os.path.join(rig.work, f"{rig.next_number():03d}-{name}.log")
        self.error_path = self.path + ".err"
        with open(self.path, "ab") as out, open(self.error_path, "ab") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, env=environment, cwd=rig.work,
                                            start_new_session=self.session)
        self.pid = self.process.pid
        self.output = open(self.path, "rb")

    def look(self):
        *lines, self.partial = (self.partial + self.output.read()).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace"))

    def _take(self, line):
        if self.problem:
            return
        if not self.said_pid:
            self.said_pid = True
            if line != f"pid {self.pid}":
                self.problem = f"said '{line}', expected 'pid {self.pid}'"
        elif line == f"{self.word} {self.count + 1} ok":
            self.count += 1
        elif re.fullmatch(r"[a-z]+ \d+", line):
            key, value = line.split()
            self.extra[key] = int(value)
        else:
            self.problem = f"said '{line}', expected '{self.word} {self.count + 1} ok'"

    def error_words(self):
        return read_text(self.error_path).strip()[:300]

    def check(self):
        """Raise Failure if it has ended or said anything but its next number."""
        self.look()
        if self.problem:
            raise Failure(f"{self.name} {self.problem}; {self.error_words()}")
        if self.process.poll() is not None:
            raise Failure(f"{self.name} ended with status {self.process.returncode} after "
                          f"{self.word} {self.count}; {self.error_words()}")

    def wait_for(self, number, timeout=START_SEC):
        def reached():
            self.check()
            return self.count >= number
        wait_until(reached, timeout, f"{self.name}: {self.word} {number}, at {self.count}")

    def wait_more(self, number, timeout=START_SEC):
        self.look()
        self.wait_for(self.count + number, timeout)

    def stop(self, timeout=15):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                try:
                    self.process.wait(timeout)
                except subprocess.TimeoutExpired:
                    return False
        self.output.close()
        return True


class Bare:
    """The driver's own checkpoint, in a process of its own: gpucr-bench's peer."""

    def __init__(self, rig):
        program = os.path.join(rig.options.build, "tools", "gpucr-bench")
        self.process = subprocess.Popen(rig.wrapper() + [program, "--role", "peer"],
                                        env=rig.program_environment(False),
                                        cwd=rig.work, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        rig.others.append(self.process)
        if self._line(START_SEC) != "ok":
            raise Failure("the peer does not start")

    def _line(self, timeout):
        line = b""
        until = time.monotonic() + timeout
        while not line.endswith(b"\n"):
            left = max(0, until - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                raise Stuck(f"bare: no answer after {timeout:.0f} s")
            piece = os.read(self.process.stdout.fileno(), 256)
            if not piece:
                raise Failure("bare has ended")
            line += piece
        return line.decode().strip()

    def call(self, verb, pid, timeout):
        """What it answers: `ok usec N` or `error WORDS`."""
        os.write(self.process.stdin.fileno(), f"{verb} {pid}\n".encode())
        return self._line(timeout)

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


class SimulatedGpu:
    """The GPU's figures as the mount has them: there is no nvidia-smi."""

    def __init__(self, rig):
        self.rig = rig
        self.name = "simulated"

    def _status(self):
        return self.rig.daemon.keys("gpus/0/status")

    def used(self):
        return int(self._status()["vram_used_bytes"])

    def free(self):
        return int(self._status()["vram_free_bytes"])

    def pids(self):
        return [int(pid) for pid in self._status()["pids"].split() if pid != "-"]


class NvidiaGpu:
    """The GPU's figures as nvidia-smi has them."""

    def __init__(self, rig):
        self.rig = rig
        self.name = self._ask("--query-gpu=name,driver_version", "--id=0").replace(",", ", driver")

    def _ask(self, *arguments):
        done = subprocess.run(["nvidia-smi", *arguments, "--format=csv,noheader,nounits"],
                              capture_output=True, timeout=60, check=False, text=True,
                              stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Failure(f"nvidia-smi: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout.strip()

    def used(self):
        return int(self._ask("--query-gpu=memory.used", "--id=0")) * MIB

    def free(self):
        return int(self._ask("--query-gpu=memory.free", "--id=0")) * MIB

    def pids(self):
        lines = self._ask("--query-compute-apps=pid,used_memory").splitlines()
        return [int(line.split(",")[0]) for line in lines if line.strip()]


class AmdGpu:
    """The figures of the first AMD GPU, as the kernel's driver has them in sysfs; so does the
    simulator."""

    def __init__(self, rig):
        self.sysfs = "/sys"
        self.library = None
        if rig.options.sim:
            self.sysfs = os.path.join(rig.simulator, "sys")
            os.environ.update({name: value for name, value in rig.environment.items()
                               if name.startswith("GPUCR_SIM_")})
            self.library = ctypes.CDLL(os.path.join(rig.environment["GPUCR_SIM_LIBDIR"],
                                                    "libamdhip64.so"))
        self.refresh()
        self.node = self._first_node()
        self.name = self._text(self.node, "name") or "an AMD GPU"
        version = self._text("module/amdgpu/version")
        if version:
            self.name += f", driver {version}"

    def _text(self, *names):
        try:
            return read_text(os.path.join(self.sysfs, *names)).strip()
        except OSError:
            return ""

    def refresh(self):
        """The simulator's files know nothing of programs that were killed."""
        if self.library and self.library.hipSimRefreshSysfs():
            raise Failure("the simulator does not write its sysfs")

    def _first_node(self):
        """Processors are nodes too, which have no SIMDs."""
        nodes = "class/kfd/kfd/topology/nodes"
        try:
            numbers = sorted(int(name) for name in os.listdir(os.path.join(self.sysfs, nodes)))
        except OSError as error:
            raise Failure(f"KFD shows nothing: {error}") from None
        for number in numbers:
            node = f"{nodes}/{number}"
            properties = dict(line.split() for line in
                              self._text(node, "properties").splitlines() if line.count(" ") == 1)
            if int(properties.get("simd_count", 0)):
                self.gpu_id = self._text(node, "gpu_id")
                self.device = f"class/drm/renderD{properties.get('drm_render_minor')}/device"
                return node
        raise Failure("KFD shows no GPU")

    def _memory(self, what):
        self.refresh()
        text = self._text(self.device, f"mem_info_vram_{what}")
        if not text:
            raise Failure(f"{self.device} does not tell its memory")
        return int(text)

    def used(self):
        return self._memory("used")

    def free(self):
        return self._memory("total") - self.used()

    def pids(self):
        """Of this GPU, as far as the kernel tells us: those with VRAM in use."""
        processes = "class/kfd/kfd/proc"
        self.refresh()
        try:
            names = os.listdir(os.path.join(self.sysfs, processes))
        except OSError:
            return []
        return [int(name) for name in names
                if int(self._text(processes, name, f"vram_{self.gpu_id}") or 0)]


class Daemon:
    def __init__(self, rig):
        self.rig = rig
        self.mount = os.path.join(rig.work, "mnt")
        self.runtime = os.path.join(rig.work, "run")
        self.log = os.path.join(rig.work, "daemon.log")
        self.process = None
        self.more = ""  # options besides, as "pool=1G"
        os.makedirs(self.mount, mode=0o700)
        os.makedirs(self.runtime, mode=0o755)

    def start(self):
        options = f"runtime_dir={self.runtime}" + (",sim" if self.rig.options.sim else "") \
            + ("," + self.more if self.more else "")
        program = os.path.join(self.rig.options.build, "fs", "gpucrfs")
        with open(self.log, "ab") as log:
            log.write(f"---- daemon started at {time.strftime('%H:%M:%S')}\n".encode())
            self.process = subprocess.Popen([program, "-f", "-o", options, self.mount],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=self.rig.environment, cwd=self.rig.work)

        def answers():
            if self.process.poll() is not None:
                raise Failure(f"the daemon ended with status {self.process.returncode}: "
                              + read_text(self.log)[-500:])
            try:
                return "ctl" in guarded(lambda: os.listdir(self.mount))
            except OSError:
                return False
        wait_until(answers, 60, "the mount answers")

    def kill(self):
        self.process.kill()
        self.process.wait(30)

    def stop(self):
        """True if it went when it was asked to."""
        if not self.process or self.process.poll() is not None:
            return True
        self.process.terminate()
        try:
            self.process.wait(30)
            return self.process.returncode == 0
        except subprocess.TimeoutExpired:
            self.process.kill()
            return False

    def restart(self, more=""):
        """Anew, with other options."""
        if not self.stop():
            raise Failure("the daemon does not end when asked to")
        self.more = more
        self.start()

    def unmount(self):
        """True if it was not mounted any more."""
        if not any(line.split()[1] == self.mount for line in
                   read_text("/proc/self/mounts").splitlines()):
            return True
        subprocess.run(["umount", "-l", self.mount], check=False, timeout=30)
        return False

    def helpers(self, program="gpucr-control"):
        """Pids of our helpers that run this."""
        found = []
        for name in os.listdir("/proc"):
            stat = process_stat(name) if name.isdigit() else None
            if stat and stat[2] == self.process.pid and stat[1] != "Z" and \
                    stat[0].startswith(program):
                found.append(int(name))
        return found

    def path(self, *names):
        return os.path.join(self.mount, *[str(name) for name in names])

    def text(self, *names):
        return guarded(lambda: read_text(self.path(*names)))

    def keys(self, *names):
        lines = [line.partition(" ") for line in self.text(*names).splitlines()]
        return {key: value for key, _, value in lines}

    def state(self, pid):
        return self.keys(pid, "status").get("state")

    def listed(self):
        return [int(name) for name in guarded(lambda: os.listdir(self.mount)) if name.isdigit()]

    def begin(self, name, verb):
        """A verb that is being written; .wait() gives (errno, (errno of write, seconds))."""
        path = self.path(name, "ctl") if name else self.path("ctl")
        return Task(lambda: write_verb(path, verb))

    def verb(self, name, verb, timeout=120):
        """(errno, seconds) of a verb, written as a user would."""
        return finish_verb(self.begin(name, verb), timeout)

    def final_state(self, pid, timeout=120):
        """The state, once no verb is under way."""
        def found():
            state = self.state(pid)
            return state if state not in ("freezing", "thawing") else None
        return wait_until(found, timeout, f"the end of the verb of {pid}")


def finish_verb(task, timeout=120):
    number, value = task.wait(timeout)
    if number is None:
        return errno.EINTR, time.monotonic() - task.started
    if number:
        return number, time.monotonic() - task.started
    return value


class Rig:
    def __init__(self, options):
        self.options = options
        self.work = options.work
        self.number = 0
        self.programs = []
        self.others = []
        self.environment = dict(os.environ)
        self.environment.update(
            GPUCR_HELPER_DIR=os.path.join(options.build, "backend", "cuda"),
            GPUCR_SIM_LIBDIR=os.path.join(options.build, "backend", "sim"),
            GPUCR_SOCKET=os.path.join(options.work, "run", "socket"))
        if options.sim:
            self.simulator = os.path.join(options.work, "sim")
            os.mkdir(self.simulator, 0o700)
            self.environment.update(GPUCR_SIM_DIR=self.simulator, GPUCR_SIM_GPUS="2",
                                    GPUCR_SIM_VRAM=str(options.vram))
            if options.hip:
                self.environment.update(GPUCR_SIM_GPUS="0", GPUCR_SIM_HIP_GPUS="2")
        self.daemon = Daemon(self)
        if options.hip:
            self.gpu = AmdGpu(self)
        else:
            self.gpu = SimulatedGpu(self) if options.sim else NvidiaGpu(self)

    def next_number(self):
        self.number += 1
        return self.number

    def wrapper(self):
        run = os.path.join(self.options.build, "tools", "gpucr-run")
        return [run, "--sim"] if self.options.sim else [run]

    def program_environment(self, preload):
        if preload:
            return self.environment
        return dict(self.environment, GPUCR_PRELOAD="")

    def start(self, name, command, word="tick", preload=False, **variables):
        environment = self.program_environment(preload or self.options.preload)
        program = Program(self, name, self.wrapper() + command, {**environment, **variables}, word)
        self.programs.append(program)
        return program

    def tool(self, name):
        return os.path.join(self.options.build, "tools", name)

    def demo(self, size, *arguments, buffers=8, tick=100, name="demo", preload=False, **variables):
        command = [self.tool("gpucr-demo"), "--bytes", str(size), "--buffers", str(buffers),
                   "--tick", str(tick), *(["--hip"] if self.options.hip else []), *arguments]
        return self.start(name, command, preload=preload, **variables)

    def script(self, script, *arguments, name=None, word="tick", preload=False, **variables):
        command = [sys.executable, os.path.join(HERE, script + ".py"), *arguments]
        return self.start(name or script, command, word, preload, **variables)

    def slow_down(self, milliseconds):
        """Simulator only: let each Checkpoint and half as long each Restore take this long more."""
        if not self.options.sim:
            return
        path = os.path.join(self.simulator, "faults")
        with open(path + ".new", "w", encoding="utf-8") as rules:
            if milliseconds:
                rules.write(f"cuCheckpointProcessCheckpoint delay_ms={milliseconds}\n"
                            f"cuCheckpointProcessRestore delay_ms={milliseconds // 2}\n")
        os.rename(path + ".new", path)

    def stop_programs(self):
        """End what was started for one part; the names of those that could not be ended."""
        left = [program.name for program in self.programs if not program.stop()]
        self.programs = []
        for process in self.others:
            if process.poll() is None:
                process.kill()
                process.wait(30)
        self.others = []
        return left

    def keep_logs(self, directory, bytes_max=8 * MIB):
        """What the programs and the daemon said, in two files."""
        shutil.copy(self.daemon.log, os.path.join(directory, "daemon.log"))
        with open(os.path.join(directory, "programs.log"), "wb") as out:
            for name in sorted(os.listdir(self.work)):
                if not re.match(r"\d{3}-", name):
                    continue
                with open(os.path.join(self.work, name), "rb") as log:
                    data = log.read()
                if data and out.tell() < bytes_max:
                    out.write(f"==== {name}\n".encode() + data[-64 * 1024:])
