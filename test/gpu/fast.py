# SPDX-License-Identifier: MIT
"""Parts of test_gpu.py that are about the engine `vmm`: all their programs have the preload
library. FastParts is the half of Suite that has them."""
import contextlib
import errno
import importlib.util
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

from rig import HERE, MIB, Bare, Failure, errno_name, finish_verb, guarded, wait_until

GIB = 1 << 30
# What a context, with all that a program of PyTorch has besides its data, may have in VRAM.
CONTEXT_BYTES = 1200 * MIB
# How much longer a step may take with the preload library, and the noise beyond which nothing is
# said of it: parts of the time without.
STEP_LONGER = 0.005
STEP_NOISE_MAX = 0.01
# Pairs of programs with and without the library, some 18 s each.
STEP_PAIRS_MIN = 4
STEP_PAIRS_MAX = 8


class FastParts:
    # ---- what they are made of

    @property
    def fast_engine(self):
        return "hip" if self.options.hip else "vmm"

    def check_engine(self, program, expected=None):
        expected = expected or self.fast_engine

        def look():
            keys = self.daemon.keys(program.pid, "status")
            return keys if keys.get("engine") == expected else None
        try:
            keys = wait_until(look, 10, f"{program.name} has the engine {expected}")
            self.results.check(True, f"{program.name} has the engine {keys['engine']}")
        except Failure as failure:
            reason = self.daemon.keys(program.pid, "status").get("engine_reason")
            self.results.need(False, f"{program.name} has the engine {expected}",
                              f"{failure}; {reason}")

    def fast_demo(self, *arguments, size=None, buffers=8, name="demo", tick=100):
        demo = self.rig.demo(size or self.sizes.demo, *arguments, buffers=buffers, name=name,
                             tick=tick, preload=True)
        demo.wait_for(3)
        return demo

    def many_cycles(self, programs, count, verb="freeze"):
        """All at once, again and again, each checked by itself in every cycle."""
        times = {"freeze": [], "thaw": []}
        for cycle in range(1, count + 1):
            if self.results.is_late():
                self.results.skip(f"cycles {cycle} to {count}", "the time is up")
                return
            for its_verb in (verb, "thaw"):
                tasks = [self.daemon.begin(program.pid, its_verb) for program in programs]
                answers = [finish_verb(task) for task in tasks]
                if any(number for number, _ in answers):
                    words = "; ".join(self.error_text(program) for program in programs)
                    self.results.need(False, f"{its_verb} in cycle {cycle}",
                                      f"{[errno_name(number) for number, _ in answers]} {words}")
                times[its_verb.split()[0]] += [seconds for _, seconds in answers]
                if its_verb != "thaw" and cycle % 10 == 1 and not self.is_quiet(programs, 0.3):
                    self.results.need(False, f"silence in cycle {cycle}")
            for program in programs:
                program.wait_more(2, 60)
        freeze, thaw = (f"{statistics.median(values):.3f} s" for values in times.values())
        self.results.check(True, f"{count} cycles, right in each",
                           f"medians: freeze {freeze}, thaw {thaw}; "
                           + ", ".join(f"{p.name} at {p.word} {p.count}" for p in programs))

    # ---- the parts

    def part_bench(self):
        """gpucr-bench: what it prints comes at the end"""
        options = self.options
        command = [self.rig.tool("gpucr-bench"), "--progress",
                   "--json", os.path.join(options.output, "bench.json")]
        left = max(30, int(options.limit - self.results.seconds()))
        if options.hip:
            command += ["--hip"]
        if options.sim:
            command += ["--sim", "--runs", "2"]
        if options.bench is not None:
            command += shlex.split(options.bench)
        elif options.full and not options.sim:
            command += ["--sizes", "1G,16G,40G", "--runs", "5", "--slow-runs", "3"]
            if self.has_torch:
                program = os.path.join(HERE, "transformer.py")
                command += ["--command", f"{shlex.quote(sys.executable)} {shlex.quote(program)} "
                            "--layers 16", "--ready", "step 3 ok", "--check", " ok"]
        elif not options.sim:
            size, runs = ("1G", "1") if options.quick else ("16G", "3")
            command += ["--sizes", size, "--runs", runs, "--slow-runs", "1",
                        "--rows", "hip,refreeze,copy" if options.hip else "bare,vmm,data"]
        limit = left if options.full or options.bench is not None else min(left, 150)
        command += ["--limit", str(limit)]
        # By itself on the GPU.
        if not self.daemon.stop():
            raise Failure("the daemon does not end when asked to")
        environment = dict(self.rig.environment, TMPDIR=self.rig.work)
        environment.pop("GPUCR_SIM_DIR", None)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   env=environment, cwd=self.rig.work, text=True)
        self.rig.others.append(process)
        try:
            text, _ = process.communicate(timeout=limit + 90)
        except BaseException:
            # It prints what it has.
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=60)
            self.bench_text = text
            raise
        self.bench_text = text
        with open(os.path.join(options.output, "bench.txt"), "w", encoding="utf-8") as out:
            out.write(text)
        self.results.check(process.returncode == 0, "all contents were right",
                           f"status {process.returncode}")
        self.daemon.start()

    def torch_programs(self):
        """PyTorch with each of its allocators; without PyTorch, the like of gpucr-demo."""
        if not self.has_torch:
            size = self.sizes.small
            return [self.rig.demo(size, buffers=4, name="plain", preload=True, tick=20),
                    self.rig.demo(size, "--own-vmm", "4", buffers=1, name="segments",
                                  preload=True, tick=20),
                    self.rig.demo(size, "--async", "4", buffers=1, name="async", preload=True,
                                  tick=20)]
        programs = []
        settings = [("plain", ""), ("segments", "expandable_segments:True")]
        if not self.options.hip:
            settings.append(("async", "backend:cudaMallocAsync"))
        for name, setting in settings:
            programs.append(self.rig.script(
                "transformer", "--layers", "2", "--pause", "0.02", name=f"torch-{name}",
                word="step", preload=True, PYTORCH_ALLOC_CONF=setting,
                PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_HIP_ALLOC_CONF=setting))
        return programs

    def part_torch(self):
        """PyTorch with three allocators at once: 100 cycles"""
        programs = self.torch_programs()
        for program in programs:
            program.wait_for(3)
        for program in programs:
            self.check_engine(program)
        self.many_cycles(programs, self.sizes.torch_cycles)

    def part_managed(self):
        """managed memory, which the driver alone refuses: 20 cycles"""
        refused = self.rig.start("refused", [self.options.managed], preload=True)
        refused.wait_for(3)
        bare = Bare(self.rig)
        answer = bare.call("freeze", refused.pid, 60)
        self.results.check("NOT_SUPPORTED" in answer, "the driver alone refuses", answer)
        answer = bare.call("freeze", refused.pid, 60)
        self.results.check(answer.startswith("error"), "it refuses again", answer)
        bare.close()
        self.check_goes_on(refused)
        self.verb(refused, "freeze", errno.EIO, "a freeze after a refusal")
        self.check_goes_on(refused)
        refused.stop()
        program = self.rig.start("managed", [self.options.managed], preload=True)
        program.wait_for(3)
        self.check_engine(program)
        self.many_cycles([program], self.sizes.managed_cycles)

    def part_arrays(self):
        """CuPy and JAX: 10 cycles"""
        names = [name for name in ("cupy", "jax")
                 if not self.options.sim and importlib.util.find_spec(name)]
        if not names:
            self.results.skip("arrays", "neither CuPy nor JAX is here")
            return
        programs = [self.rig.script("arrays", name, name=name, word="step", preload=True,
                                    XLA_PYTHON_CLIENT_PREALLOCATE="false") for name in names]
        for program in programs:
            program.wait_for(3)
            self.check_engine(program)
        self.many_cycles(programs, self.sizes.array_cycles)

    def part_kinds(self):
        """every kind of memory, many small blocks, submitting threads, captures, children"""
        size = self.sizes.small
        programs = [
            self.rig.demo(size, "--own-vmm", "2", "--pitch", "2", "--async", "2", buffers=2,
                          name="memory", preload=True),
            self.rig.demo(size, "--blocks", "2000", buffers=2, name="blocks", preload=True),
            self.rig.demo(size, "--threads", "4", buffers=2, name="threads", preload=True),
            self.rig.demo(size, "--capture", "20", buffers=2, name="capture", preload=True),
            self.rig.demo(size, "--managed", "2", "--children", "1", buffers=2, name="children",
                          preload=True),
        ]
        for program in programs:
            program.wait_for(3)
        for program in programs:
            self.check_engine(program)
        self.many_cycles(programs, self.sizes.kinds)

    def part_data(self):
        """freeze data: VRAM out, the context stays"""
        baseline = self.gpu.used()
        demo = self.fast_demo()
        self.check_engine(demo)
        for _ in range(2):
            self.need_verb(demo, "freeze data")
            self.check_state(demo, "frozen")
            used = self.gpu.used() - baseline
            self.results.check(used < CONTEXT_BYTES, "its data is out of VRAM",
                               f"{used // MIB} MiB more than before it started")
            self.results.check(self.is_quiet([demo], 0.5), "it is silent")
            self.need_verb(demo, "thaw")
            self.check_goes_on(demo)
        self.many_cycles([demo], 3, "freeze data")
        self.many_cycles([demo], 2)

    def part_files(self):
        """snapshot/vram: sizes, and copying at the speed of memory"""
        demo = self.fast_demo()
        self.check_engine(demo)
        self.need_verb(demo, "freeze")
        directory = self.daemon.path(demo.pid, "snapshot", "vram")

        def sizes():
            return {name: os.stat(os.path.join(directory, name)).st_size
                    for name in os.listdir(directory)}
        found = guarded(sizes)
        held = int(self.daemon.keys(demo.pid, "status")["held_bytes"])
        self.results.check(sum(found.values()) >= self.sizes.demo, "the files are all of it",
                           f"{len(found)} files, {sum(found.values())} bytes, held {held}")
        name = max(found, key=found.get)
        copy = os.path.join(self.rig.work, "copy")
        seconds = []
        for _ in range(2):
            started = time.monotonic()
            subprocess.run(["cp", os.path.join(directory, name), copy], check=True, timeout=120)
            seconds.append(time.monotonic() - started)
        same = subprocess.run(["cmp", os.path.join(directory, name), copy], check=False,
                              timeout=120).returncode == 0
        os.unlink(copy)
        self.results.check(same, "a copy is the same",
                           f"{name}: {found[name] / min(seconds) / 1e9:.1f} GB/s")
        self.need_verb(demo, "thaw")
        self.check_goes_on(demo)

    def part_verify(self):
        """a byte of a frozen program's file is changed: no thaw; changed back: as it was"""
        demo = self.fast_demo()
        self.check_engine(demo)
        for verb in ("freeze", "freeze data"):
            self.need_verb(demo, verb)
            directory = self.daemon.path(demo.pid, "snapshot", "vram")
            name = guarded(lambda where=directory: sorted(os.listdir(where))[-1])
            path = os.path.join(directory, name)
            offset = guarded(lambda where=path: os.stat(where).st_size) * 2 // 3

            def change(where=path, at=offset):
                with open(where, "r+b", buffering=0) as file:
                    old = os.pread(file.fileno(), 1, at)[0]
                    os.pwrite(file.fileno(), bytes([old ^ 1]), at)

            guarded(change)
            self.verb(demo, "thaw", errno.EIO)
            words = self.error_text(demo)
            self.results.check(name in words and str(offset // 65536 * 65536) in words,
                               "the error names file and offset", words)
            self.check_state(demo, "frozen")
            guarded(change)
            self.need_verb(demo, "thaw")
            self.check_goes_on(demo)

    def part_digest(self):
        """digests of VRAM: those of libxxhash, and how fast the GPU makes them"""
        environment = dict(self.rig.environment)
        size = "1" if self.options.quick else "16"
        if self.options.sim:
            environment["LD_LIBRARY_PATH"] = os.path.join(self.options.build, "backend", "sim")
            size = "0.125"
        done = subprocess.run([self.options.digest_rate, size], env=environment,
                              cwd=self.rig.work, capture_output=True, text=True, timeout=120,
                              check=False, stdin=subprocess.DEVNULL)
        for line in done.stdout.splitlines():
            self.results.say(f"     digest: {line}")
        self.results.check(done.returncode == 0 and "equal: " in done.stdout,
                           "all digests are right",
                           done.stderr.strip() or done.stdout.strip().split("\n")[-1])
        rate = re.search(r"all at once: (.*)", done.stdout)
        self.results.check(rate is not None, "the GPU makes them", rate and rate.group(1) or "")

    def part_store(self):
        """a store that is too small"""
        self.daemon.restart(f"store_size={self.sizes.demo // 4}")
        demo = self.fast_demo()
        self.check_engine(demo)
        for attempt in ("freeze without room", "and again"):
            self.verb(demo, "freeze", errno.ENOSPC, attempt)
            self.check_state(demo, "running")
            self.check_goes_on(demo)
        words = self.error_text(demo)
        self.results.check("ENOSPC" in words, "error says so", words)
        self.daemon.restart()
        self.need_verb(demo, "freeze", "freeze with room")
        self.need_verb(demo, "thaw", "thaw after that")
        self.check_goes_on(demo)

    def part_worker(self):
        """worker and daemon killed in the middle of a fast freeze or thaw"""
        self.rig.slow_down(100)
        demo = self.fast_demo()
        self.check_engine(demo)
        for milliseconds in self.sizes.worker_kills:
            for verb, goal in (("freeze", "frozen"), ("thaw", "running")):
                if self.results.is_late():
                    self.results.skip("the others", "the time is up")
                    return
                self.kill_helpers(demo, verb, goal, milliseconds, "gpucr-worker")
            self.check_goes_on(demo)
        for milliseconds in self.sizes.worker_kills[1::2]:
            self.kill_daemon(demo, "freeze", milliseconds)
            self.kill_daemon(demo, "thaw", milliseconds)

    def part_two(self):
        """two GPUs: from one to the other, and both with peer access"""
        count = len([name for name in guarded(lambda: os.listdir(self.daemon.path("gpus")))
                     if name.isdigit()])
        if count < 2:
            self.results.skip("two GPUs", f"there is {count}")
            return
        demo = self.fast_demo(size=self.sizes.small)
        self.check_engine(demo)
        if self.options.hip:
            self.need_verb(demo, "freeze")
            self.verb(demo, "thaw gpu=0:1", errno.EOPNOTSUPP, "its queues are on the first one")
            self.need_verb(demo, "thaw")
            self.check_goes_on(demo)
        for old, new in () if self.options.hip else ((0, 1), (1, 0)):
            self.need_verb(demo, "freeze")
            self.need_verb(demo, f"thaw gpu={old}:{new}")
            gpus = self.daemon.keys(demo.pid, "status").get("gpus")
            self.results.check(gpus == str(new), f"it is on GPU {new}", f"gpus {gpus}")
            self.check_goes_on(demo)
        demo.stop()
        both = self.fast_demo("--gpus", "2", size=self.sizes.small, name="both")
        self.check_engine(both)
        self.many_cycles([both], self.sizes.kinds // 2)
        if not self.options.hip:
            self.need_verb(both, "freeze")
            self.need_verb(both, "thaw gpu=0:1 gpu=1:0", "thaw with the GPUs exchanged")
            self.check_goes_on(both)

    def part_sanitizer(self):
        """compute-sanitizer finds nothing new with the preload library"""
        program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if self.options.sim or not os.access(program, os.X_OK):
            self.results.skip("compute-sanitizer", "it is not here")
            return
        errors = {}
        for preload in (False, True):
            command = self.rig.wrapper() if preload else []
            command += [program, "--tool", "memcheck", self.rig.tool("gpucr-demo"), "--bytes",
                        "64M", "--pitch", "1", "--async", "1", "--own-vmm", "1", "--managed",
                        "1", "--blocks", "100", "--tick", "10", "--ticks", "5"]
            done = subprocess.run(command, env=self.rig.program_environment(preload),
                                  cwd=self.rig.work, capture_output=True, text=True, timeout=120,
                                  check=False, stdin=subprocess.DEVNULL)
            found = re.search(r"ERROR SUMMARY: (\d+) error", done.stdout + done.stderr)
            good = found and "tick 5 ok" in done.stdout
            self.results.need(good, f"a run {'with' if preload else 'without'} preload",
                              f"status {done.returncode}; {done.stdout[-300:]!r} "
                              f"{done.stderr[-300:]!r}" if not good else found.group(0))
            errors[preload] = int(found.group(1))
        self.results.check(errors[True] <= errors[False], "nothing new",
                           f"{errors[False]} without, {errors[True]} with")

    def part_steps(self):
        """PyTorch's step time, with and without the preload library"""
        if not self.has_torch:
            self.results.skip("step time", "no torch here")
            return
        ratios = {"eager": [], "graph": []}
        wanted = {"eager": 20, "graph": 10}
        # Further pairs on a noisy host, and only of what is not clear yet.
        for _ in range(STEP_PAIRS_MAX):
            for kind, ratio in self.compare_steps(wanted).items():
                ratios[kind].append(ratio)
            wanted = {kind: count for kind, count in wanted.items()
                      if len(ratios[kind]) < STEP_PAIRS_MIN
                      or sum(self.step_cost(ratios[kind])) > STEP_LONGER}
            if not wanted:
                break
        for kind, of_programs in ratios.items():
            longer, noise = self.step_cost(of_programs)
            detail = (f"{longer * 100:+.2f} % +- {noise * 100:.2f}; pairs of programs: "
                      + ", ".join(f"{(ratio - 1) * 100:+.2f}" for ratio in of_programs))
            if longer - noise <= STEP_LONGER < longer + noise and noise > STEP_NOISE_MAX:
                self.results.skip(f"{kind}: at most 0.5 % longer", f"too much noise: {detail}")
            else:
                self.results.check(longer - noise <= STEP_LONGER, f"{kind}: at most 0.5 % longer",
                                   detail)

    @staticmethod
    def step_cost(ratios):
        """How much longer a step is, and by how much two programs differ that differ in nothing, for
        19 of 20 such sets of them."""
        return statistics.mean(ratios) - 1, 2 * statistics.stdev(ratios) / len(ratios) ** 0.5

    def compare_steps(self, rounds):
        """By kind of step, its time with the library over its time without.

        Two programs live at the same time and run in turns, a fifth of a second each: what makes
        the machine slower for a while does so to both.
        """
        with contextlib.ExitStack() as stack:
            programs = [self.start_steps(preload, stack) for preload in (False, True)]
            for program in programs:
                line = program.stdout.readline()
                self.results.need(line == "ready\n", "a program is ready", line.strip())
            return {kind: self.compare_kind(programs, kind, count)
                    for kind, count in rounds.items()}

    def start_steps(self, preload, stack):
        program = stack.enter_context(subprocess.Popen(
            (self.rig.wrapper() if preload else [])
            + [sys.executable, os.path.join(HERE, "steps.py")],
            env=self.rig.program_environment(preload), cwd=self.rig.work, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        guard = threading.Timer(120, program.kill)
        guard.start()
        stack.callback(guard.cancel)
        stack.callback(program.kill)
        return program

    @staticmethod
    def compare_kind(programs, kind, count):
        ratios = []
        for number in range(count):
            times = {}
            # Each goes first as often as the other.
            for program in programs[::1 if number % 2 else -1]:
                program.stdin.write(f"{kind} 0.2\n")
                program.stdin.flush()
                times[program] = float(program.stdout.readline())
            ratios.append(times[programs[1]] / times[programs[0]])
        return statistics.median(ratios)
