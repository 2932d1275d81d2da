# SPDX-License-Identifier: MIT
"""The part of test_gpu.py about what could break a freeze and that no other program here does, and about
what the driver does of which the code depends."""
import glob
import importlib.util
import os
import subprocess
import sys

SKIPPED = 77

PROBES = {
    "free": "memory freed while a kernel of a second still has to write to it",
    "stack": "a graph whose kernel has a stack frame of 16 KiB, replayed after thaws",
    "pinned": "the CPU counts in pinned memory through freezes, and the GPU too",
    "pitched": "memset and memcpy nodes and a texture on pitched memory",
}

# What asks for the driver's private tables: the CUDA runtime as it starts, and cuBLAS.
ASK = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
print("cudaFree", runtime.cudaFree(None))
blas = ctypes.CDLL(sys.argv[2])
handle = ctypes.c_void_p()
print("cublasCreate", blas.cublasCreate_v2(ctypes.byref(handle)))
"""


def find_library(name):
    """Of a toolkit, or of Python's packages; None if there is none."""
    places = ["/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib", "/usr/lib/*-linux-gnu"]
    for directory in sys.path:
        places += [f"{directory}/nvidia/*/lib", f"{directory}/torch/lib"]
    for place in places:
        found = sorted(path for path in glob.glob(f"{place}/{name}.so.*") if os.path.exists(path))
        if found:
            return found[-1]
    return None


class ProbeParts:
    def run_once(self, command, preload=False, **variables):
        return subprocess.run(self.rig.wrapper() + command, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60, cwd=self.rig.work,
                              env={**self.rig.program_environment(preload), **variables})

    def can_probe(self, name):
        answer = self.run_once([self.options.probes, name, "can"])
        words = answer.stdout.strip() or answer.stderr.strip()
        if answer.returncode == SKIPPED:
            self.results.skip(name, words.removeprefix("skip: "))
            return False
        self.results.check(answer.returncode == 0, f"{name} can begin", words)
        if answer.returncode == 0 and words:
            self.results.skip(f"a part of {name}", words)
        return answer.returncode == 0

    def probe(self, name):
        program = self.rig.start(name, [self.options.probes, name], preload=True)
        program.wait_for(2)
        self.check_engine(program)
        self.many_cycles([program], 2 if self.options.sim or self.options.quick else 10)
        program.stop()

    def probe_green(self):
        """Whether a green context and its kernels outlive freezes, by the driver's checkpoint alone and
        by the fast engine, with a kernel of it under way."""
        program = self.rig.start("green", [self.options.probes, "green"])
        program.wait_for(2)
        for _ in range(3):
            self.need_verb(program, "freeze", "the driver's freeze of a green context")
            self.need_verb(program, "thaw", "its thaw")
            self.check_goes_on(program)
        program.stop()
        self.probe("green")
        if self.can_probe("green-facts"):
            answer = self.run_once([self.options.probes, "green-facts"])
            self.results.check(answer.returncode == 0, "facts of green contexts", answer.stderr)
            for line in answer.stdout.splitlines():
                self.results.say(line)

    def probe_tables(self):
        """Which private tables the CUDA runtime and cuBLAS ask for."""
        runtime, blas = find_library("libcudart"), find_library("libcublas")
        if self.options.sim or not runtime or not blas:
            self.results.skip("private tables", "no CUDA runtime and cuBLAS here")
            return
        answer = self.run_once([sys.executable, "-c", ASK, runtime, blas],
                               LD_PRELOAD=self.options.export_tables)
        asked = sorted({line for line in answer.stderr.splitlines() if line.startswith("table ")})
        self.results.check(answer.returncode == 0 and asked, f"{len(asked)} private tables asked for",
                           answer.stdout + answer.stderr[-500:])
        for line in asked:
            self.results.say(line)
        if importlib.util.find_spec("torch"):
            answer = self.run_once([sys.executable, "-c",
                                    "import torch; a = torch.ones(64, 64, device='cuda'); print(a @ a)"],
                                   LD_PRELOAD=self.options.export_tables)
            for line in sorted({line for line in answer.stderr.splitlines()
                                if line.startswith("table ")} - set(asked)):
                self.results.say(f"PyTorch: {line}")

    def part_probes(self):
        """what could break a freeze, a program for each"""
        for name, words in PROBES.items():
            if self.results.is_late():
                break
            self.results.say(f"{name}: {words}")
            if self.can_probe(name):
                self.probe(name)
        if self.can_probe("green"):
            self.probe_green()
        self.probe_tables()
