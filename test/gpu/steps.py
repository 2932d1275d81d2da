# SPDX-License-Identifier: MIT
"""How long a step of a PyTorch loop takes: steps.py SECONDS

A transformer's layers, run eagerly (thousands of calls of the driver a step) and as a CUDA graph.
Prints `eager USEC` and `graph USEC`: a tenth of the steps took less than that, which is what a step
takes when little else disturbs it. A thread that moves from one processor to another makes an eager
step up to 50 % longer, and so does another thread on the same one: the thread that is measured has a
processor for itself.
"""
import contextlib
import os
import statistics
import sys
import time

import torch

from transformer import Model, TOKENS, WIDTH


def stay_alone():
    """All other threads of this process, which are there by now, go to other processors."""
    *others, last = sorted(os.sched_getaffinity(0))
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, [last] if thread == os.getpid() or not others else others)


def measure(function, seconds):
    for _ in range(5):
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
    seconds = float(sys.argv[1])
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

        measure(eager, seconds / 10)
        measure(model.graph.replay, seconds / 10)
        stay_alone()
        print("eager", round(measure(eager, seconds), 2), flush=True)
        print("graph", round(measure(model.graph.replay, seconds), 2), flush=True)


if __name__ == "__main__":
    main()
