# SPDX-License-Identifier: MIT
"""A PyTorch transformer that knows its results: transformer.py [--layers N] [--pause SEC]

Runs a CUDA graph of all layers on one of several inputs each step, and compares the result, bit
by bit, with what the same input gave in the beginning (kept in host memory). The graph also counts
its own runs on the GPU. Prints `pid N` when it is set up, then `step K ok` for each step; ends
with status 1 at the first difference.
"""
import argparse
import os
import sys
import time

import torch

WIDTH = 4096
HEADS = 32
TOKENS = 64
INPUTS = 4


def random(generator, *shape):
    numbers = torch.randn(*shape, device="cuda", dtype=torch.float32, generator=generator)
    return (numbers * 0.02).to(torch.bfloat16)


class Layer:
    def __init__(self, generator):
        self.attention_in = random(generator, WIDTH, 3 * WIDTH)
        self.attention_out = random(generator, WIDTH, WIDTH)
        self.wide = random(generator, WIDTH, 4 * WIDTH)
        self.narrow = random(generator, 4 * WIDTH, WIDTH)

    def attention(self, x):
        parts = (x @ self.attention_in).view(TOKENS, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(1, 2, 0, 3)
        scores = query @ key.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
        mixed = torch.softmax(scores, dim=-1) @ value
        return mixed.transpose(0, 1).reshape(TOKENS, WIDTH) @ self.attention_out

    def run(self, x):
        x = x + self.attention(torch.nn.functional.layer_norm(x, (WIDTH,)))
        y = torch.nn.functional.layer_norm(x, (WIDTH,))
        return x + torch.relu(y @ self.wide) @ self.narrow


class Model:
    def __init__(self, layers):
        generator = torch.Generator(device="cuda")
        generator.manual_seed(1)
        self.layers = [Layer(generator) for _ in range(layers)]
        self.inputs = [random(generator, TOKENS, WIDTH) for _ in range(INPUTS)]
        self.input = torch.zeros_like(self.inputs[0])
        self.runs = torch.zeros(1, device="cuda", dtype=torch.int64)
        self.count = 0
        self.graph = self.capture()
        self.runs.zero_()
        self.expected = [self.run(number) for number in range(INPUTS)]

    def all_layers(self):
        x = self.input
        for layer in self.layers:
            x = layer.run(x)
        self.runs += 1
        return x

    def capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.all_layers()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.output = self.all_layers()
        torch.cuda.synchronize()
        return graph

    def run(self, number):
        """The result for this input, in host memory."""
        self.input.copy_(self.inputs[number])
        self.graph.replay()
        self.count += 1
        return self.output.cpu()

    def problem(self, step):
        number = step % INPUTS
        result = self.run(number)
        if not torch.equal(result, self.expected[number]):
            wrong = int((result != self.expected[number]).sum())
            return f"input {number}: {wrong} of {result.numel()} numbers differ"
        if not torch.isfinite(result).all():
            return f"input {number}: the result is not finite"
        if int(self.runs) != self.count:
            return f"the graph ran {int(self.runs)} times, expected {self.count}"
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.1)
    arguments = parser.parse_args()

    with torch.inference_mode():
        model = Model(arguments.layers)
        print("pid", os.getpid(), flush=True)
        step = 1
        while True:
            problem = model.problem(step)
            if problem:
                print(f"step {step}: {problem}", file=sys.stderr, flush=True)
                return 1
            print("step", step, "ok", flush=True)
            step += 1
            time.sleep(arguments.pause)


if __name__ == "__main__":
    sys.exit(main())
