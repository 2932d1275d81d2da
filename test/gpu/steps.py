# SPDX-License-Identifier: MIT
"""How long a step of a PyTorch loop takes: steps.py

A transformer's layers, run eagerly (thousands of calls of the driver a step) and as a CUDA graph.
Prints `ready`; then, for each line `eager SEC` or `graph SEC` of the input, runs such steps for so
long and prints in microseconds what a tenth of the steps took less than: what a step takes when
little else disturbs it.

A thread that moves from one processor to another makes an eager step up to 50 % longer, and so does
another thread on the same one: the thread that is measured has a processor for itself.
"""
import contextlib
import os
import statistics
import sys
import time

import torch

from transformer import Model, TOKENS, WIDTH

# The first steps after another program's: the processor's caches hold what that one used.
FIRST_STEPS = 5


def stay_alone():
    """All other threads of this process, which are there by now, go to other processors."""
    *others, last = sorted(os.sched_getaffinity(0))
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, [last] if thread == os.getpid() or not others else others)


def measure(function, seconds):
    for _ in range(FIRST_STEPS):
        function()
    torch.cuda.synchronize()
    times = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(times) < 20:
        started = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.quantiles(times, n=10)[0] * 1e6


def main():
    with torch.inference_mode():
        model = Model(8)
        x = torch.zeros(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
        small = [torch.zeros(64, 64, device="cuda") for _ in range(64)]

        def eager():
            y = x
            for layer in model.layers:
                y = layer.run(y)
            # Calls that give the GPU next to nothing to do: what they cost shows.
            for _ in range(8):
                for tensor in small:
                    tensor.add_(1)

        functions = {"eager": eager, "graph": model.graph.replay}
        for function in functions.values():
            measure(function, 0.2)
        stay_alone()
        print("ready", flush=True)
        for line in sys.stdin:
            kind, seconds = line.split()
            print(round(measure(functions[kind], float(seconds)), 2), flush=True)


if __name__ == "__main__":
    main()
