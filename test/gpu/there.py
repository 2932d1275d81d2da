# SPDX-License-Identifier: MIT
"""Parts of test_gpu.py in which whole processes are dumped, copied, and restored: by gpucrfs, and
as it is done without it. DumpParts is the part of Suite that has them."""
import collections
import contextlib
import ctypes
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from rig import (HERE, MIB, Bare, Failure, Program, Stuck, Task, errno_name, guarded,
                 is_alive, read_text, wait_until)

PR_SET_CHILD_SUBREAPER = 36
# What one step may take; all of them together are bounded by --limit.
STEP_SEC = 120
LOG_LINES = 60
PHASE_LOOK_SEC = 0.005
# What is worth knowing about a process that CRIU does not take.
TELLING = re.compile(r"/dev/|memfd|anon_inode|anon_hugepage|\(deleted\)|/SYSV|io_uring")

PARALLEL_COPY = """cd "$1" && find . -type d -print0 | xargs -0 -I{} mkdir -p "$2/{}" &&
find . -type f -print0 | xargs -0 -P 8 -I{} cp -a {} "$2/{}" """
# As gpucr-migrate does.
SEVERAL_COPY = """cd "$1" && { find . -type f -size +16M -print0 |
xargs -0 -P 4 -I{} rsync -a --inplace --relative {} "$2/"; rsync -a --inplace ./ "$2/"; }"""


class Detached(Program):
    """A program that CRIU can take: of a session of its own, with its output in files. When it
    comes back it is nobody's child, or ours."""

    session = True

    def check(self):
        self.look()
        if self.problem:
            raise Failure(f"{self.name} {self.problem}; {self.error_words()}")
        if not is_alive(self.pid):
            raise Failure(f"{self.name} has ended after {self.word} {self.count}; "
                          f"{self.error_words()}")

    def reap(self):
        self.process.poll()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def is_gone(self):
        self.reap()
        return not os.path.exists(f"/proc/{self.pid}")

    def wait_gone(self, timeout=30):
        wait_until(self.is_gone, timeout, f"{self.name} has gone")

    def stop(self, timeout=15):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        try:
            self.wait_gone(timeout)
        except Stuck:
            return False
        self.output.close()
        return True


class Way:
    """What one way took: seconds of each step, and bytes."""

    def __init__(self, suite, name):
        self.suite = suite
        self.name = name
        self.seconds = {}
        self.bytes = {}
        self.started = time.time()
        self.begun = None
        self.problem = None
        self.phases = {}

    @contextlib.contextmanager
    def step(self, name):
        started = time.monotonic()
        self.begun = self.begun or started
        yield
        self.add(name, time.monotonic() - started)

    def add(self, name, seconds):
        self.seconds[name] = self.seconds.get(name, 0) + seconds
        self.suite.results.say(f"     {self.name}: {name} {seconds:.3f} s")

    def end(self):
        self.add("end to end", time.monotonic() - self.begun)

    def sum(self, *names):
        found = [self.seconds.get(name) for name in names]
        return None if None in found else sum(found)


def bytes_below(directory):
    """Sizes of all files, and what they take."""
    size = taken = 0
    for where, _, names in os.walk(directory):
        for name in names:
            stat = os.lstat(os.path.join(where, name))
            size += stat.st_size
            taken += stat.st_blocks * 512
    return size, taken


def run_command(command, seconds, environment=None):
    """Failure with its words unless it succeeds in time."""
    # Not run(): what hangs in the kernel is not waited for after its end.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace",
                               env=environment)
    try:
        words, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Stuck(f"{command[0]}: not after {seconds} s") from None
    if process.returncode:
        raise Failure(f"{command[0]}: exit status {process.returncode}: {words.strip()[-600:]}")
    return words


def look_at(pid):
    """What it has open and mapped that is no ordinary file, each once with its count."""
    found = collections.Counter()
    unix = {words[6]: " ".join(words[4:6] + words[7:]) for words in
            (line.split() for line in read_text(f"/proc/{pid}/net/unix").splitlines())
            if len(words) > 6}
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/{pid}/fd/{number}")
            inode = re.sub(r"\D", "", link) if link.startswith("socket:") else None
            # Type and state as in /proc/net/unix.
            found["open   " + re.sub(r"\[\d+\]", "[...]", link)
                  + (f" unix {unix[inode]}" if inode in unix else "")] += 1
    for line in read_text(f"/proc/{pid}/maps").splitlines():
        words = line.split(None, 5)
        if len(words) > 5 and TELLING.search(words[5]):
            found[f"mapped {words[1]} {words[5]}"] += 1
    threads = len(os.listdir(f"/proc/{pid}/task"))
    return [f"{threads} threads"] + [f"{count:4} {what}" for what, count in sorted(found.items())]


class DumpParts:
    # ---- what they are made of

    def find_criu(self):
        """None if there is none that works, which is said. The daemon is started with it."""
        sys.path.insert(0, os.path.dirname(HERE))
        os.environ["GPUCR_TEST_BUILD"] = self.options.build
        os.environ["GPUCR_TEST_SANITIZER"] = "none"
        import criu  # pylint: disable=import-outside-toplevel # wants that environment
        import harness  # pylint: disable=import-outside-toplevel
        try:
            found = criu.find()
        except harness.Skip as skip:
            self.results.skip("dump", str(skip))
            return None
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.rig.environment.update(found.env)
        self.results.say(f"     {self.results.part}: {found.program} {found.env or ''}")
        self.daemon.restart(f"criu={found.program}")
        return found

    def detached(self, name, command, preload, word="tick"):
        environment = self.rig.program_environment(preload)
        program = Detached(self.rig, name, self.rig.wrapper() + command, environment, word)
        self.rig.programs.append(program)
        program.wait_for(3)
        return program

    def detached_demo(self, name, size, preload, *arguments):
        return self.detached(name, [self.rig.tool("gpucr-demo"), "--bytes", str(size),
                                    "--buffers", "8", "--tick", "50", *arguments], preload)

    def detached_subject(self, name, preload):
        """PyTorch; where that is not, the demo."""
        if not self.has_torch:
            return self.detached_demo(name, self.sizes.demo, preload)
        return self.detached_torch(name, self.sizes.dump_layers, preload)

    def detached_torch(self, name, layers, preload):
        return self.detached(name, [sys.executable, os.path.join(HERE, "transformer.py"),
                                    "--layers", str(layers), "--pause", "0.02"], preload, "step")

    @contextlib.contextmanager
    def bare_tmpfs(self):
        """A directory that is a tmpfs of its own, with huge pages where that can be."""
        where = os.path.join(self.rig.work, "bare")
        os.makedirs(where, exist_ok=True)
        for options in "size=100%,huge=always", "size=100%":
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "bare", where],
                                  check=False, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=30)
            if not done.returncode:
                break
        else:
            self.results.say(f"     in /dev/shm: {done.stderr.strip()}")
            with self.shared_memory() as where:
                yield where
            return
        try:
            yield where
        finally:
            subprocess.run(["umount", "-l", where], check=False, timeout=30)

    @staticmethod
    @contextlib.contextmanager
    def shared_memory():
        """Where nothing can be mounted."""
        where = tempfile.mkdtemp(prefix="gpucr-gpu.", dir="/dev/shm")
        try:
            yield where
        finally:
            shutil.rmtree(where)

    def copy_command(self):
        """rsync, where one is that finds its libraries and GPUCR_TEST_COPY does not say `cp`;
        `several`: four of them at once; or `parallel`: eight cp at once, a file each."""
        way = os.environ.get("GPUCR_TEST_COPY", "rsync")
        if way == "parallel":
            return ["sh", "-c", PARALLEL_COPY, "parallel"]
        if way in ("rsync", "several") and shutil.which("rsync"):
            done = subprocess.run(["rsync", "--version"], check=False, capture_output=True,
                                  stdin=subprocess.DEVNULL, timeout=30)
            if not done.returncode:
                return (["rsync", "-a", "--inplace"] if way == "rsync" else
                        ["sh", "-c", SEVERAL_COPY, "several"])
        return ["cp", "-a", "--sparse=always"]

    def copy(self, source, target):
        command = self.copy_command()
        if command[0] == "sh":
            run_command([*command, source, target], STEP_SEC)
            return
        dot = "." if command[0] == "cp" else ""
        run_command([*command, f"{source}/{dot}", f"{target}/"], STEP_SEC)

    def write_to(self, name, verb):
        """A verb that has to succeed; its phases and how long each was seen."""
        look = Task(lambda: self.phases(name)) if verb.startswith("dump") else None
        number, seconds = self.daemon.verb(name, verb, STEP_SEC)
        try:
            _, phases = look.wait(15) if look else (0, {})
        except Stuck:
            phases = {}
        if number:
            raise Failure(f"{verb}: {errno_name(number)} after {seconds:.3f} s; "
                          f"{self.error_of(name)}")
        return phases or {}

    def phases(self, name):
        path = self.daemon.path(name, "status")
        found = {}
        until = time.monotonic() + STEP_SEC
        seen = None
        last = time.monotonic()
        while time.monotonic() < until:
            try:
                keys = dict(line.split(" ", 1) for line in read_text(path).splitlines())
            except (OSError, ValueError):
                break
            phase = keys.get("phase", "-")
            now = time.monotonic()
            if phase == "-" and (found or "phase" not in keys):
                break
            if phase != "-":
                found[phase] = found.get(phase, 0) + (now - last if seen else 0)
                seen = phase
            last = now
            time.sleep(PHASE_LOOK_SEC)
        return found

    def error_of(self, name):
        try:
            return self.daemon.text(name, "error").strip()
        except (OSError, Stuck) as error:
            return f"error: {error}"

    def say_lines(self, title, lines):
        self.results.say(f"     ---- {title}")
        for line in lines:
            self.results.say(f"     | {line}")

    def explain(self, program, since, directory):
        """After a failure: the newest log of CRIU, that of the daemon, and what the process has
        open."""
        logs = []
        for top in os.path.join(self.daemon.runtime, "criu"), directory:
            for where, _, names in os.walk(top):
                logs += [os.path.join(where, name) for name in names if name.endswith(".log")]
        logs = [path for path in logs if os.path.getmtime(path) >= since]
        if logs:
            newest = max(logs, key=os.path.getmtime)
            text = read_text(newest)
            number = self.rig.next_number()
            kept = os.path.join(self.options.output, f"{number:03d}-{self.results.part}-criu.log")
            with open(kept, "w", encoding="utf-8") as out:
                out.write(text)
            self.say_lines(newest, text.splitlines()[-LOG_LINES:])
            self.say_lines("its errors and warnings",
                           [line for line in text.splitlines()
                            if "Error" in line or "Warn" in line][-LOG_LINES:])
        self.say_lines("the daemon", read_text(self.daemon.log).splitlines()[-LOG_LINES:])
        if program and is_alive(program.pid):
            with contextlib.suppress(OSError):
                self.say_lines(f"{program.name} has", look_at(program.pid))
            # Once more as CRIU has seen it: one of ours is running again.
            with contextlib.suppress(OSError, Failure):
                if self.daemon.keys(program.pid, "status")["engine"] == "vmm":
                    self.look_while_parked(program)

    # ---- there and back

    def copy_by_way_of(self, way, name, bare):
        """Out of the mount, and into it again."""
        there = os.path.join(bare, name)
        snapshot = self.daemon.path(name, "snapshot")
        os.mkdir(there)
        with way.step("copy out"):
            self.copy(snapshot, there)
        self.note_bytes(way, there)
        with way.step("drop"):
            self.write_to(name, "drop")
        guarded(lambda: os.mkdir(self.daemon.path(name)))
        with way.step("copy in"):
            self.copy(there, snapshot)
        shutil.rmtree(there)
        return name

    def copy_directly(self, way, name):
        """From one place to another one, as to another host's mount."""
        second = f"there-{self.rig.next_number()}"
        snapshot = self.daemon.path(name, "snapshot")
        guarded(lambda: os.mkdir(self.daemon.path(second)))
        self.note_bytes(way, snapshot)
        with way.step("copy"):
            self.copy(snapshot, self.daemon.path(second, "snapshot"))
        with way.step("drop"):
            self.write_to(name, "drop")
        return second

    @staticmethod
    def note_bytes(way, directory):
        for part in ("criu", "vram"):
            way.bytes[part], way.bytes[part + " taken"] = bytes_below(os.path.join(directory, part))
        way.bytes["all"], way.bytes["all taken"] = bytes_below(directory)

    def dump_and_thaw(self, program, way, bare):
        """By gpucrfs: dumped, copied to another place, directly or (with @bare) by way of a
        directory there, in which it goes on."""
        name = f"there-{self.rig.next_number()}"
        program.check()
        with way.step("dump"):
            phases = self.write_to(program.pid, f"dump name={name}")
        with way.step("its end"):
            program.wait_gone()
        if phases:
            self.results.say("     phases as seen: " + ", ".join(
                f"{phase} {seconds:.3f} s" for phase, seconds in phases.items()))
        way.phases = phases
        name = self.copy_by_way_of(way, name, bare) if bare else self.copy_directly(way, name)
        program.look()
        before = program.count
        with way.step("thaw"):
            self.write_to(name, "thaw")
        with way.step("first step"):
            program.wait_for(before + 1, 60)
        way.end()
        self.say_events(name)
        self.check_goes_on(program, 3, f"{program.name} is there again and goes on")

    def say_events(self, name):
        with contextlib.suppress(OSError, Stuck):
            self.say_lines("events of the place",
                           self.daemon.text(name, "events").splitlines()[-12:])

    def checkpoint_and_restore(self, program, way, bare, found):
        """Without gpucrfs: the driver's checkpoint, whose bytes go to host memory of the process;
        CRIU, which takes them with the rest; and the way back."""
        first, second = (os.path.join(bare, name) for name in ("images", "copy"))
        for directory in (first, second):
            os.mkdir(directory)
        peer = Bare(self.rig)
        options = ["--ghost-limit", str(256 * MIB), "--link-remap", "--file-locks",
                   "--manage-cgroups=ignore"]
        program.check()
        with way.step("checkpoint"):
            self.ask(peer, "freeze", program.pid)
        with way.step("criu dump"):
            found.dump(program.pid, first, *options, seconds=STEP_SEC)
            program.wait_gone()
        way.bytes["all"], way.bytes["all taken"] = bytes_below(first)
        with way.step("copy"):
            self.copy(first, second)
        shutil.rmtree(first)
        program.look()
        before = program.count
        with way.step("criu restore"):
            pid = found.restore(second, *options[2:], seconds=STEP_SEC)
        if pid != program.pid:
            raise Failure(f"CRIU restored {pid}, not {program.pid}")
        with way.step("restore"):
            self.ask(peer, "thaw", program.pid)
        with way.step("first step"):
            program.wait_for(before + 1, 60)
        way.end()
        peer.close()
        self.check_goes_on(program, 3, f"{program.name} is there again and goes on")

    @staticmethod
    def ask(peer, verb, pid):
        answer = peer.call(verb, pid, STEP_SEC)
        if not answer.startswith("ok"):
            raise Failure(f"{verb} by the driver: {answer}")

    def one_way(self, way, bare, start, carry_out):
        """What fails here is told, and does not end the part."""
        program = None
        try:
            program = start(way.name)
            self.results.say(f"     {way.name}: {self.gpu.used() // MIB} MiB of VRAM in use")
            carry_out(program)
        except Exception as problem:  # pylint: disable=broad-except # also those of test/criu.py
            way.problem = f"{type(problem).__name__}: {problem}"
            self.results.check(False, f"{way.name}, all of it", way.problem)
            self.explain(program, way.started, bare)
        if program:
            self.rig.programs.remove(program)
            self.results.check(program.stop(), f"{program.name} ends when it is killed")

    # ---- the parts

    def part_dump_small(self):
        """dump and thaw of whole programs by way of a copy: three times there and back"""
        if not self.find_criu():
            return
        size = self.sizes.small * 4
        kinds = [("registered", "vmm", self.detached_demo), ("plain", "driver", self.detached_demo)]
        if self.has_torch:
            kinds.append(("torch", "vmm", lambda name, _, preload: self.detached_torch(
                name, 2, preload)))
        for kind, engine, start in kinds:
            if self.results.is_late():
                self.results.skip(kind, "the time is up")
                continue
            with self.bare_tmpfs() as bare:
                self.one_way(
                    Way(self, kind), bare,
                    lambda name, engine=engine, start=start: start(name, size, engine == "vmm"),
                    lambda program, engine=engine, bare=bare:
                    self.there_three_times(program, engine, bare))
        self.refuse_to_dump_managed()

    def refuse_to_dump_managed(self):
        program = self.detached("managed", [self.options.managed], True)
        self.verb(program, "dump", errno.EOPNOTSUPP, "dump with managed memory")
        self.check_goes_on(program)

    def there_three_times(self, program, engine, bare):
        self.check_engine(program, engine)
        self.look_while_parked(program)
        for _ in range(3):
            way = Way(self, program.name)
            self.dump_and_thaw(program, way, bare)
            self.results.say(f"     {program.name}: bytes {way.bytes}")
        self.results.check(True, f"{program.name}: three times there and back",
                           f"{program.word} {program.count}")

    def look_while_parked(self, program):
        self.write_to(program.pid, "freeze park")
        self.say_lines(f"{program.name}, frozen and parked, has", look_at(program.pid))
        self.write_to(program.pid, "thaw")
        self.check_goes_on(program)

    def part_dump(self):
        """a program with much VRAM by way of a copy, beside the driver's checkpoint with CRIU"""
        found = self.find_criu()
        if not found:
            return
        self.results.say(f"     copies are made by {' '.join(self.copy_command())}")
        ours, peers = Way(self, "gpucrfs"), Way(self, "without")
        with self.bare_tmpfs() as bare:
            self.one_way(ours, bare, lambda name: self.detached_subject(name, True),
                         lambda program: self.dump_and_thaw(program, ours, None))
        with self.bare_tmpfs() as bare:
            self.one_way(peers, bare, lambda name: self.detached_subject(name, False),
                         lambda program: self.checkpoint_and_restore(program, peers, bare, found))
        self.report(ours, peers)

    def report(self, ours, peers):
        """The table, which is printed last, and all figures for programs."""
        seconds = [
            ("out of the GPU, into files", ours.sum("dump", "its end"),
             peers.sum("checkpoint", "criu dump")),
            ("copy", ours.sum("copy", "drop"), peers.sum("copy")),
            ("back, to the first step", ours.sum("thaw", "first step"),
             peers.sum("criu restore", "restore", "first step")),
            ("end to end", ours.sum("end to end"), peers.sum("end to end")),
            ("end to end without the copy", ours.sum("dump", "its end", "thaw", "first step"),
             peers.sum("checkpoint", "criu dump", "criu restore", "restore", "first step")),
        ]
        lines = [f"| {self.results.part} | gpucrfs | without | without / gpucrfs |",
                 "| --- | ---: | ---: | ---: |"]
        for name, *pair in seconds:
            lines.append(table_row(f"{name}, s", pair, "{:.3f}"))
        for name in ("criu", "vram", "all"):
            lines.append(table_row(f"bytes of {name}, GB",
                                   [way.bytes[name] / 1e9 if name in way.bytes else None
                                    for way in (ours, peers)], "{:.3f}"))
        for way in (ours, peers):
            words = ", ".join(f"{name} {value:.3f}" for name, value in way.seconds.items())
            lines.append(f"\n{way.name}: {words} s" + (f"; {way.problem}" if way.problem else ""))
        if ours.phases:
            lines.append("phases of the dump as seen: " + ", ".join(
                f"{name} {value:.3f}" for name, value in ours.phases.items()) + " s")
        self.last_words.append("\n".join(lines))
        record = {"gpu": self.gpu.name, "copy": self.copy_command(),
                  "subject": f"transformer.py --layers {self.sizes.dump_layers}"
                  if self.has_torch else f"gpucr-demo --bytes {self.sizes.demo}"}
        for way in (ours, peers):
            record[way.name] = {"seconds": way.seconds, "bytes": way.bytes,
                                "phases": way.phases, "problem": way.problem}
        path = os.path.join(self.options.output, "dump.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump(record, out, indent=2)
            out.write("\n")


def table_row(name, pair, form):
    words = ["-" if value is None else form.format(value) for value in pair]
    known = None not in pair and pair[0]
    return f"| {name} | {words[0]} | {words[1]} | {f'{pair[1] / pair[0]:.2f}' if known else '-'} |"
