# SPDX-License-Identifier: MIT
"""gpucrfs on a real GPU and driver: freezing, thawing, and everything that may go wrong.

Started by test/gpu/run. Prints a line for each check, then what gpucr-bench printed, then
`N passed, N failed`. The exit status is 0 if nothing failed.
"""
import argparse
import errno
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time

from amd import AmdParts
from ending import EndingParts
from fast import GIB, FastParts
from idle import IdleParts
from probes import ProbeParts
from rig import (MIB, Failure, Rig, Stuck, errno_name, finish_verb, guarded, is_alive,
                 process_stat, wait_until)
from serving import ServingParts
from there import DumpParts

# How much VRAM may still be in use by others than the frozen process: a control helper is seen
# with 3 MiB (580.159).
BASELINE_MARGIN = 32 * MIB
# And a worker's context, which it has for a minute after a verb, with 522 MiB.
WORKER_MARGIN = 600 * MIB


class Sizes:
    """What the checks use, by machine and patience."""

    def __init__(self, options):
        self.demo = 256 * MIB if options.sim else 4 * GIB
        self.small = 32 * MIB if options.sim else 256 * MIB
        self.left_free = 128 * MIB if options.sim else 2 * GIB
        self.layers = 8
        self.dump_layers = 40 if options.full else 16  # 400 MB each
        self.cycles = 20 if options.full else 2 if options.quick else 6
        self.freeze_kills = [50, 200, 500, 1000, 2000] if options.full else [200, 1000]
        self.thaw_kills = [50, 200, 350, 500, 1000] if options.full else [50, 200]
        self.successors = 10 if options.full else 3
        self.kinds = 2 if options.quick else 10
        self.torch_cycles = 5 if options.quick else 100
        self.managed_cycles = 3 if options.quick else 20
        self.array_cycles = 2 if options.quick else 10
        self.worker_kills = [20, 100] if options.quick else [2, 10, 30, 60, 100, 150, 250]


class Results:
    def __init__(self, path, limit):
        self.started = time.monotonic()
        self.limit = limit
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self.part = "start"
        self.log = open(path, "w", encoding="utf-8", buffering=1)

    def seconds(self):
        return time.monotonic() - self.started

    def is_late(self):
        """Nothing new, and no further round."""
        return self.seconds() > self.limit

    def say(self, words):
        line = f"{time.strftime('%H:%M:%S')} {self.seconds():6.1f} {words}"
        print(line, flush=True)
        self.log.write(line + "\n")

    def check(self, good, name, detail=""):
        """Count and print one check; whether it was good."""
        if good:
            self.passed += 1
        else:
            self.failed += 1
        self.say(f"{'PASS' if good else 'FAIL'} {self.part}: {name}"
                 + (f" ({detail})" if detail else ""))
        return good

    def need(self, good, name, detail=""):
        """A check without which the part makes no sense."""
        if not self.check(good, name, detail):
            raise Failure(f"given up after: {name}")

    def skip(self, name, why):
        self.skipped += 1
        self.say(f"SKIP {self.part}: {name} ({why})")


def has_torch_for_rocm():
    """PyTorch for NVIDIA's GPUs is of no use on AMD's."""
    command = "import sys, torch; sys.exit(not torch.version.hip or not torch.cuda.is_available())"
    try:
        return not subprocess.run([sys.executable, "-c", command], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  timeout=120, check=False).returncode
    except subprocess.TimeoutExpired:
        return False


class Suite(FastParts, DumpParts, EndingParts, AmdParts, IdleParts, ProbeParts, ServingParts):
    def __init__(self, options):
        self.options = options
        self.sizes = Sizes(options)
        self.results = Results(os.path.join(options.output, "test.log"), options.limit)
        self.rig = Rig(options)
        self.daemon = self.rig.daemon
        self.gpu = self.rig.gpu
        self.bench_text = ""
        self.last_words = []
        self.has_torch = not options.sim and importlib.util.find_spec("torch") is not None \
            and (not options.hip or has_torch_for_rocm())

    # ---- what the parts are made of

    def verb(self, program, verb, expected=0, name=None, timeout=120):
        """Write a verb and check its errno; whether it was as expected."""
        number, seconds = self.daemon.verb(program.pid, verb, timeout)
        detail = f"{errno_name(number)}, {seconds:.3f} s"
        if number != expected:
            detail += f", expected {errno_name(expected)}; {self.error_text(program)}"
        return self.results.check(number == expected, name or f"{verb} {program.name}", detail)

    def need_verb(self, program, verb, name=None):
        if not self.verb(program, verb, 0, name):
            raise Failure(f"{verb} did not work")

    def error_text(self, program):
        try:
            return self.daemon.text(program.pid, "error").strip()
        except (OSError, Stuck) as error:
            return f"error: {error}"

    def check_state(self, program, expected):
        state = self.daemon.state(program.pid)
        return self.results.check(state == expected, f"{program.name} is {expected}",
                                  "" if state == expected else f"state {state}")

    def is_quiet(self, programs, seconds):
        """Nobody prints anything for so long, as frozen programs should."""
        time.sleep(0.05)
        for program in programs:
            program.look()
        before = [program.count for program in programs]
        time.sleep(seconds)
        for program in programs:
            program.check()
        return [program.count for program in programs] == before

    def check_no_vram(self, program, baseline):
        pids = self.gpu.pids()
        used = self.gpu.used()
        vram = self.daemon.keys(program.pid, "status").get("vram_bytes")
        margin = BASELINE_MARGIN + (WORKER_MARGIN if self.daemon.helpers("gpucr-worker") else 0)
        good = program.pid not in pids and vram == "0" and used <= baseline + margin
        self.results.check(good, f"{program.name} uses no VRAM",
                           f"in use {used // MIB} MiB, before it started {baseline // MIB} MiB, "
                           f"vram_bytes {vram}")

    def check_goes_on(self, program, more=3, name=None):
        """It prints its next numbers, each right and none left out."""
        before = program.count
        try:
            program.wait_more(more, 60)
            good, detail = True, f"{program.word} {before} to {program.count}"
        except Failure as failure:
            good, detail = False, str(failure)
        self.results.need(good, name or f"{program.name} goes on", detail)

    def freeze_and_thaw(self, program, baseline):
        if self.options.hip:
            self.freeze_and_thaw_data(program, "freeze")
            return
        self.need_verb(program, "freeze")
        self.check_state(program, "frozen")
        self.check_no_vram(program, baseline)
        self.results.check(self.is_quiet([program], 1.5), f"{program.name} is silent while frozen",
                           f"{program.word} {program.count}")
        self.need_verb(program, "thaw")
        self.check_state(program, "running")
        self.check_goes_on(program, 8)

    # ---- the parts

    def part_demo(self):
        """one program: state, VRAM, silence, and going on right"""
        baseline = self.gpu.used()
        demo = self.rig.demo(self.sizes.demo)
        demo.wait_for(3)
        self.results.check(demo.pid in self.gpu.pids(), "its VRAM is seen",
                           f"{self.gpu.used() // MIB} MiB in use")
        if self.options.hip:
            self.check_engine(demo, self.fast_engine)
        self.freeze_and_thaw(demo, baseline)
        self.need_verb(demo, "freeze", "freeze again")
        self.need_verb(demo, "freeze", "freeze of what is frozen")
        self.need_verb(demo, "thaw", "thaw again")
        self.check_goes_on(demo)

    def part_transformer(self):
        """the same with PyTorch and a CUDA graph"""
        if not self.has_torch:
            self.results.skip("transformer", "no torch here")
            return
        baseline = self.gpu.used()
        program = self.transformer(self.sizes.layers, preload=True)
        program.wait_for(10)
        self.check_registered(program)
        self.freeze_and_thaw(program, baseline)
        self.freeze_and_thaw(program, baseline)

    def transformer(self, layers, preload):
        return self.rig.script("transformer", "--layers", str(layers), word="step",
                               preload=preload)

    def check_registered(self, program):
        value = self.daemon.keys(program.pid, "status").get("registered")
        self.results.check(value == "yes", f"{program.name} is registered", f"registered {value}")

    def part_cycles(self):
        """two programs at once, again and again"""
        first = self.rig.demo(self.sizes.small * 4, preload=True)
        if self.has_torch:
            second = self.transformer(self.sizes.layers // 2, preload=False)
        else:
            second = self.rig.demo(self.sizes.small, buffers=3, name="demo2")
        both = [first, second]
        for program in both:
            program.wait_for(3)
        self.check_registered(first)
        for verb_all in (self.verb_each, self.verb_root):
            cycles = max(1, self.sizes.cycles // 2)
            for cycle in range(1, cycles + 1):
                self.one_cycle(both, verb_all, cycle)
            self.results.check(True, f"{cycles} cycles, {verb_all.__doc__}",
                               ", ".join(f"{p.name} at {p.word} {p.count}" for p in both))

    def verb_each(self, programs, verb):
        """a writer for each"""
        tasks = [self.daemon.begin(program.pid, verb) for program in programs]
        return [finish_verb(task) for task in tasks]

    def verb_root(self, programs, verb):
        """one writer to the root's ctl"""
        pids = " ".join(str(program.pid) for program in programs)
        return [self.daemon.verb(None, f"{verb} {pids}")]

    def one_cycle(self, programs, verb_all, cycle):
        for verb in ("freeze", "thaw"):
            answers = verb_all(programs, verb)
            if any(number for number, _ in answers):
                words = "; ".join(self.error_text(program) for program in programs)
                self.results.need(False, f"{verb} in cycle {cycle}",
                                  f"{[errno_name(number) for number, _ in answers]} {words}")
            if verb == "freeze" and not self.is_quiet(programs, 0.2):
                self.results.need(False, f"silence in cycle {cycle}")
        for program in programs:
            program.wait_more(2, 60)

    def part_full(self):
        """a thaw into a GPU that has too little VRAM left"""
        demo = self.rig.demo(self.sizes.demo)
        demo.wait_for(3)
        self.need_verb(demo, "freeze")
        size = self.gpu.free() - self.sizes.left_free
        filler = self.rig.demo(size, buffers=16, tick=1000, name="filler")
        filler.wait_for(1)
        self.results.say(f"     full: the filler has {size // MIB} MiB, "
                         f"{self.gpu.free() // MIB} MiB are free")
        for attempt in ("thaw without room", "and again"):
            self.verb(demo, "thaw", errno.ENOMEM, attempt)
            self.check_state(demo, "frozen")
        words = self.error_text(demo)
        numbers = [int(number) for number in re.findall(r"(\d+) MiB", words)]
        # Free and needed; needed and free where there is no driver's part to be taken into account.
        good = "ENOMEM" in words and len(numbers) >= 2 and \
            (numbers[0] > numbers[1] if self.options.hip else numbers[1] > numbers[0])
        self.results.check(good, "error says how much is missing", words)
        self.check_goes_on(filler, 2)
        filler.stop()
        wait_until(lambda: self.gpu.free() > self.sizes.demo + self.sizes.left_free, 30,
                   "the filler's VRAM is free again")
        self.need_verb(demo, "thaw", "thaw with room")
        self.check_goes_on(demo)

    def part_refuse(self):
        """what the driver cannot freeze, and what is no GPU process"""
        self.refuse_managed()
        self.refuse_stopped()
        self.list_forked()
        self.list_nvidia_smi()

    def refuse_managed(self):
        if self.options.preload:
            self.results.skip("managed memory", "with the preload library it is no obstacle")
            return
        demo = self.rig.demo(64 * MIB, "--managed", "1", buffers=1, name="managed")
        demo.wait_for(3)
        self.verb(demo, "freeze", errno.EOPNOTSUPP, "freeze with managed memory")
        self.check_state(demo, "running")
        self.check_goes_on(demo)

    def refuse_stopped(self):
        demo = self.rig.demo(self.sizes.small, name="stopped")
        demo.wait_for(3)
        os.kill(demo.pid, signal.SIGSTOP)
        wait_until(lambda: process_stat(demo.pid)[1] == "T", 10, "it has stopped")
        self.verb(demo, "freeze", errno.EOPNOTSUPP, "freeze of a stopped process", timeout=30)
        os.kill(demo.pid, signal.SIGCONT)
        self.check_goes_on(demo)
        self.need_verb(demo, "freeze", "freeze after SIGCONT")
        self.need_verb(demo, "thaw", "thaw after SIGCONT")
        self.check_goes_on(demo)

    def list_forked(self):
        program = self.rig.script("forked")
        program.wait_for(3)
        child = program.extra["child"]
        self.results.check(program.pid in self.daemon.listed(), "a CUDA process is listed")
        self.results.check(child not in self.daemon.listed(), "its forked child is not listed")
        self.need_verb(program, "freeze", "freeze with a forked child")
        self.results.check(is_alive(child), "the child lives on")
        self.need_verb(program, "thaw", "thaw with a forked child")
        self.check_goes_on(program)
        self.results.check(child not in self.daemon.listed(), "nor is the child listed now")

    def list_nvidia_smi(self):
        if self.options.sim:
            self.results.skip("nvidia-smi", "simulated")
            return
        with open(os.path.join(self.rig.work, "900-nvidia-smi.log"), "wb") as log:
            watcher = subprocess.Popen(["nvidia-smi", "-l", "1"], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, cwd=self.rig.work)
        self.rig.others.append(watcher)
        until = time.monotonic() + 3
        seen = False
        while time.monotonic() < until and not seen:
            seen = watcher.pid in self.daemon.listed()
            time.sleep(0.2)
        found = guarded(lambda: os.path.exists(self.daemon.path(watcher.pid)))
        self.results.check(not seen and not found and watcher.poll() is None,
                           "nvidia-smi -l 1 is not listed", f"listed {seen}, found {found}")
        watcher.terminate()
        watcher.wait(10)

    def part_interrupt(self):
        """SIGINT to the writer in the middle of a freeze"""
        self.rig.slow_down(1500)
        demo = self.rig.demo(self.sizes.demo)
        demo.wait_for(3)
        for shell, milliseconds in (("sh", 500), ("bash", 900)):
            name = f"SIGINT to {shell} after {milliseconds} ms"
            command = f"echo freeze > {self.daemon.path(demo.pid, 'ctl')}"
            started = time.monotonic()
            with open(os.path.join(self.rig.work, f"901-{shell}.log"), "wb") as log:
                # In a session of its own: nobody else is to be interrupted.
                writer = subprocess.Popen([shell, "-c", command], stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log, start_new_session=True)
            self.rig.others.append(writer)
            time.sleep(milliseconds / 1000)
            ended_before = writer.poll() is not None
            writer.send_signal(signal.SIGINT)
            writer.wait(60)
            seconds = time.monotonic() - started
            state = self.daemon.final_state(demo.pid)
            self.results.check(not ended_before and state == "running", name,
                               f"status {writer.returncode} after {seconds:.2f} s, {state}; "
                               + self.error_text(demo))
            if state == "frozen":
                self.need_verb(demo, "thaw")
            self.check_goes_on(demo)
        self.need_verb(demo, "freeze", "freeze afterwards")
        self.need_verb(demo, "thaw", "thaw afterwards")
        self.check_goes_on(demo)

    def part_kill(self):
        """control helpers killed in the middle of a verb"""
        self.rig.slow_down(1500)
        demo = self.rig.demo(self.sizes.demo)
        demo.wait_for(3)
        for freeze_msec, thaw_msec in zip(self.sizes.freeze_kills, self.sizes.thaw_kills):
            self.kill_helpers(demo, "freeze", "frozen", freeze_msec)
            self.kill_helpers(demo, "thaw", "running", thaw_msec)
            self.check_goes_on(demo)

    def kill_helpers(self, demo, verb, goal, milliseconds, helper="gpucr-control"):
        """Afterwards the process is where the verb was to bring it, or where it was."""
        task = self.daemon.begin(demo.pid, verb)
        time.sleep(max(0, task.started + milliseconds / 1000 - time.monotonic()))
        helpers = self.daemon.helpers(helper)
        for pid in helpers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        number, seconds = finish_verb(task)
        state = self.daemon.final_state(demo.pid)
        good = number in (0, errno.EIO) and state in ("running", "frozen") \
            and (number or state == goal)
        self.results.need(good and self.behaves(demo, state),
                          f"{len(helpers)} {helper} killed {milliseconds} ms into a {verb}",
                          f"{errno_name(number)} after {seconds:.3f} s, {state}"
                          + (f"; {self.error_text(demo)}" if number else ""))
        if state != goal:
            self.need_verb(demo, verb, f"{verb} after that")

    def behaves(self, program, state):
        """Does the program do what a process in this state should?"""
        if state == "frozen":
            return self.is_quiet([program], 0.5)
        program.wait_more(2, 60)
        return True

    def part_daemon(self):
        """the daemon killed: in a freeze, in a thaw, and with a frozen process"""
        self.rig.slow_down(1500)
        demo = self.rig.demo(self.sizes.demo)
        demo.wait_for(3)
        self.kill_daemon(demo, "freeze", 500)
        self.kill_daemon(demo, "thaw", 250)
        self.rig.slow_down(0)
        self.bring(demo, "freeze", "frozen")
        for successor in range(1, self.sizes.successors + 1):
            self.daemon.kill()
            self.daemon.start()
            state = self.daemon.final_state(demo.pid)
            if state != "frozen":
                self.results.need(False, f"successor {successor} finds it frozen", str(state))
        self.results.check(True, f"{self.sizes.successors} daemons in turn find it frozen")
        self.need_verb(demo, "thaw", "thaw by the last of them")
        self.check_goes_on(demo)

    def bring(self, demo, verb, goal):
        if self.daemon.final_state(demo.pid) != goal:
            self.need_verb(demo, verb)

    def kill_daemon(self, demo, verb, milliseconds):
        """Afterwards a new daemon runs and so does the process, checked."""
        if verb == "thaw":
            self.bring(demo, "freeze", "frozen")
        task = self.daemon.begin(demo.pid, verb)
        time.sleep(max(0, task.started + milliseconds / 1000 - time.monotonic()))
        self.daemon.kill()
        number, seconds = finish_verb(task)
        self.daemon.start()
        ready = time.monotonic() - task.started
        state = self.daemon.final_state(demo.pid)
        self.results.need(state in ("running", "frozen") and self.behaves(demo, state),
                          f"daemon killed {milliseconds} ms into a {verb}",
                          f"writer: {errno_name(number)} after {seconds:.3f} s; the next one "
                          f"answers after {ready:.1f} s, {state}")
        self.bring(demo, "thaw", "running")
        self.check_goes_on(demo)
        self.need_verb(demo, "freeze", f"freeze after a daemon killed in a {verb}")
        self.need_verb(demo, "thaw", f"thaw after a daemon killed in a {verb}")
        self.check_goes_on(demo)

    # ---- all of them

    # The most telling first: when the time is up, the last ones are left out.
    PARTS = ["demo", "transformer", "bench", "torch", "managed", "arrays", "kinds", "data",
             "pack", "spill", "swap", "servers", "exchange", "files", "verify", "digest", "store",
             "dump-small", "dump", "worker", "two", "ending", "main-thread", "probes",
             "sanitizer", "steps", "cycles", "full", "refuse", "interrupt", "kill", "daemon"]
    # Those that mean something on an AMD GPU, dumps last: nobody knows how they go there.
    HIP_PARTS = ["demo", "again", "without", "data", "kinds", "files", "verify", "transformer",
                 "bench", "torch", "arrays", "store", "worker", "two", "steps",
                 "cycles", "full", "daemon", "dump-amd"]

    @classmethod
    def method_of(cls, part):
        return getattr(cls, "part_" + part.replace("-", "_"))

    def run_part(self, name):
        self.results.part = name
        method = self.method_of(name)
        if self.results.is_late():
            self.results.skip("not started", f"the {self.options.limit} s are over")
            return
        self.results.say(f"---- {name}: {method.__doc__}")
        try:
            method(self)
        except (Failure, OSError, subprocess.SubprocessError, KeyError, ValueError) as problem:
            self.results.check(False, "carried out", f"{type(problem).__name__}: {problem}")
        self.rig.slow_down(0)
        left = self.rig.stop_programs()
        if left:
            self.results.check(False, "its programs end", ", ".join(left))
        self.revive()

    def revive(self):
        """The next part is to find a daemon, whatever this one did to it."""
        self.daemon.more = ""
        if self.daemon.process.poll() is None:
            try:
                self.daemon.text("status")
                return
            except (OSError, Stuck):
                self.daemon.kill()
        self.results.check(False, "the daemon is well afterwards",
                           f"status {self.daemon.process.returncode}")
        self.daemon.unmount()
        self.daemon.start()

    def finish(self):
        self.results.part = "end"
        self.rig.stop_programs()
        self.results.check(self.daemon.stop(), "the daemon ends when asked to")
        self.results.check(self.daemon.unmount(), "nothing stays mounted")
        self.rig.keep_logs(self.options.output)
        if self.bench_text:
            print("\n" + self.bench_text)
        for words in self.last_words:
            print("\n" + words)
            self.results.log.write(words + "\n")
        words = f"{self.results.passed} passed, {self.results.failed} failed"
        if self.results.skipped:
            words += f", {self.results.skipped} skipped"
        print("\n" + words, flush=True)
        self.results.log.write(words + "\n")

    def run(self):
        try:
            self.daemon.start()
            self.results.say(f"{self.gpu.name}, {self.gpu.used() // MIB} MiB in use")
            for part in self.options.only:
                self.run_part(part)
        except (Failure, OSError) as problem:
            self.results.check(False, "set up", str(problem))
        except KeyboardInterrupt:
            self.results.check(False, "carried out", "the time is up, or it was interrupted")
        finally:
            signal.alarm(0)
            self.finish()
        return 1 if self.results.failed or not self.results.passed else 0


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.RawTextHelpFormatter,
        epilog="parts:\n" + "\n".join(f"  {name:12} {Suite.method_of(name).__doc__}"
                                      for name in dict.fromkeys(Suite.PARTS + Suite.HIP_PARTS)))
    parser.add_argument("--build", required=True, help="the build directory")
    parser.add_argument("--hip", action="store_true", help="on an AMD GPU")
    parser.add_argument("--managed", help="the program made from managed.c (not with --hip)")
    parser.add_argument("--digest-rate",
                        help="the program made from digest_rate.c (not with --hip)")
    parser.add_argument("--ending", metavar="FILE[,FILE]",
                        help="the programs made from ending.c and, with nvcc, from ending.cu")
    parser.add_argument("--main-ends", metavar="FILE",
                        help="the library made from test/e2e/main_ends.c")
    parser.add_argument("--probes", metavar="FILE", help="the program made from probes.c")
    parser.add_argument("--export-tables", metavar="FILE",
                        help="the library made from export_tables.c")
    parser.add_argument("--work", required=True, help="an empty directory to work in")
    parser.add_argument("--output", required=True, help="where logs and tables go")
    parser.add_argument("--sim", action="store_true", help="use the simulated GPU")
    parser.add_argument("--quick", action="store_true", help="a few checks of each kind")
    parser.add_argument("--full", action="store_true", help="larger sizes, more repetitions")
    parser.add_argument("--preload", action="store_true",
                        help="all programs have the preload library")
    parser.add_argument("--limit", type=int, default=430,
                        help="start nothing new after SEC (430); all ends half a minute later")
    parser.add_argument("--bench", metavar="OPTIONS",
                        help="gpucr-bench with these instead of what is usual here")
    parser.add_argument("--only", help="PART[,PART]... (default: all)")
    options = parser.parse_args()
    parts = Suite.HIP_PARTS if options.hip else Suite.PARTS
    options.only = options.only.split(",") if options.only else parts
    for part in options.only:
        if part not in parts:
            parser.error(f"there is no part '{part}'")
    if options.hip:
        # Without it nothing can be frozen there.
        options.preload = True
    elif not all((options.managed, options.digest_rate, options.ending, options.main_ends,
                  options.probes, options.export_tables)):
        parser.error("--managed, --digest-rate, --ending, --main-ends, --probes and "
                     "--export-tables are needed")
    options.vram = 2 * GIB
    return options


def interrupted(_number, _frame):
    raise KeyboardInterrupt


def main():
    options = parse_arguments()
    # Not as inherited: who starts us in the background may have SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, interrupted)
    signal.alarm(options.limit + 30)
    return Suite(options).run()


if __name__ == "__main__":
    sys.exit(main())
