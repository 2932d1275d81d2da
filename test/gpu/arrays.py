# SPDX-License-Identifier: MIT
"""A CuPy or JAX program that knows its results: arrays.py cupy|jax

A chain of matrix products, element-wise functions and sums on several inputs; the result of each
step is compared, bit by bit, with what the same input gave in the beginning (kept in host
memory). An array counts the steps on the GPU. Prints `pid N`, then `step K ok` for each step; ends
with status 1 at the first difference.
"""
import os
import sys
import time

import numpy

WIDTH = 4096
LAYERS = 6
INPUTS = 3


class Cupy:
    def __init__(self):
        import cupy
        self.cupy = cupy
        generator = cupy.random.default_rng(1)
        self.layers = [self.random(generator) for _ in range(LAYERS)]
        self.inputs = [self.random(generator) for _ in range(INPUTS)]
        self.steps = cupy.zeros(1, dtype=numpy.int64)

    def random(self, generator):
        return generator.standard_normal((WIDTH, WIDTH), dtype=numpy.float32) / WIDTH ** 0.5

    def run(self, number):
        x = self.inputs[number]
        for layer in self.layers:
            x = self.cupy.tanh(x @ layer) + x
        self.steps += 1
        return self.cupy.asnumpy(x[:64])

    def count(self):
        return int(self.steps[0])


class Jax:
    def __init__(self):
        import jax
        self.jax = jax
        keys = jax.random.split(jax.random.key(1), LAYERS + INPUTS)
        arrays = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH ** 0.5 for key in keys]
        self.layers, self.inputs = arrays[:LAYERS], arrays[LAYERS:]
        self.steps = jax.numpy.zeros((), dtype=jax.numpy.int32)
        self.compiled = jax.jit(self.chain)

    def chain(self, x, layers, steps):
        for layer in layers:
            x = self.jax.numpy.tanh(x @ layer) + x
        return x[:64], steps + 1

    def run(self, number):
        result, self.steps = self.compiled(self.inputs[number], self.layers, self.steps)
        return numpy.asarray(result)

    def count(self):
        return int(self.steps)


def main():
    # Otherwise it takes three quarters of the GPU at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    model = {"cupy": Cupy, "jax": Jax}[sys.argv[1]]()
    for number in range(INPUTS):
        model.run(number)  # what is chosen at the first run (algorithms) is chosen now
    expected = [model.run(number) for number in range(INPUTS)]
    done = 2 * INPUTS
    print("pid", os.getpid(), flush=True)
    step = 1
    while True:
        number = step % INPUTS
        result = model.run(number)
        done += 1
        if result.tobytes() != expected[number].tobytes():
            wrong = int((result != expected[number]).sum())
            print(f"step {step}: input {number}: {wrong} of {result.size} numbers differ",
                  file=sys.stderr, flush=True)
            return 1
        if not numpy.isfinite(result).all() or model.count() != done:
            print(f"step {step}: not finite, or {model.count()} steps counted, expected {done}",
                  file=sys.stderr, flush=True)
            return 1
        print("step", step, "ok", flush=True)
        step += 1
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
