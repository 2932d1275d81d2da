# SPDX-License-Identifier: MIT
"""The part of test_gpu.py about servers that do not fit together: four of them, of which two fit
beside a program that nobody can freeze, are asked at random."""
import os
import random
import signal
import socket
import statistics
import threading
import time

from rig import MIB, Failure, read_text

SERVERS = 4
CLIENTS = 3
SLICE_SEC = 0.2
PART_SEC = 150
# Beside turns: after a failure the watcher leaves a program alone for so long.
RETRY_SEC = 5
TORCH_INPUTS = 4


class Server:
    """One of them, and what it has to answer: a client asks one thing at a time."""

    def __init__(self, suite, number, size):
        self.path = os.path.join(suite.rig.work, f"server-{number}")
        self.has_torch = suite.has_torch
        self.lock = threading.Lock()
        self.last = {}
        self.program = suite.rig.script("server", self.path, str(size),
                                        *(["torch"] if self.has_torch else []),
                                        name=f"server-{number}", word="step", preload=True)

    def expected(self, number, known):
        """Of PyTorch's, what the first server has answered before; else the sum of the buffers."""
        if self.has_torch:
            return known.get(number % TORCH_INPUTS)
        self.last[number % 8] = number
        return str(sum(self.last.values()))

    def ask(self, number, timeout):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(self.path)
            connection.sendall(f"{number}\n".encode())
            with connection.makefile(encoding="ascii") as stream:
                return stream.readline().strip()


class Clients:
    """Several threads that ask servers at random until there were enough, or it is too late."""

    def __init__(self, servers, known, count, until, timeout):
        self.servers, self.known = servers, known
        self.left, self.until, self.timeout = count, until, timeout
        self.lock = threading.Lock()
        self.random = random.Random(1)
        self.waits, self.problems = [], []

    def next_one(self):
        with self.lock:
            if not self.left or self.problems or time.monotonic() > self.until:
                return None
            self.left -= 1
            return self.random.choice(self.servers), self.random.randrange(1, 1 << 20)

    def run(self):
        while True:
            found = self.next_one()
            if not found:
                return
            server, number = found
            with server.lock:
                started = time.monotonic()
                expected = server.expected(number, self.known)
                try:
                    answer = server.ask(number, self.timeout)
                except OSError as error:
                    answer = f"{type(error).__name__}: {error}"
                with self.lock:
                    self.waits.append(time.monotonic() - started)
                    if answer != expected:
                        self.problems.append(f"{server.program.name}, {number}: '{answer}', "
                                             f"expected '{expected}'")

    def run_all(self):
        threads = [threading.Thread(target=self.run) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class ServingParts:
    def part_servers(self):
        """four servers, of which two fit beside a foreign program: every request is served"""
        size = self.sizes.small * 2 if self.options.sim else min(8 << 30, self.gpu.free() // 9)
        self.daemon.restart(f"store_size={int(4.5 * size) + 4096 * MIB}")
        try:
            self.serve(size)
        finally:
            self.rig.stop_programs()
            self.daemon.restart()

    def serve(self, size):
        started, free = time.monotonic(), self.gpu.free()
        servers = [Server(self, number, size) for number in range(SERVERS)]
        for server in servers:
            server.program.wait_for(0)
            self.wait_said_pid(server.program)
        # All of them with the same weights, in the same order: bit for bit the same.
        known = {number: servers[0].ask(number, 60) for number in range(TORCH_INPUTS)} \
            if self.has_torch else {}
        for server in servers:
            right = [server.ask(number, 60) == server.expected(number, known)
                     for number in range(TORCH_INPUTS)]
            self.results.need(all(right), f"{server.program.name} answers right before", f"{right}")
            self.check_engine(server.program)
        # The foreign program will have the like.
        context = max(0, (free - self.gpu.free()) // SERVERS - size)
        turn = self.turn_seconds(servers[0].program)
        for server in servers[:2]:
            self.need_verb(server.program, "freeze data")
        # That leaves too little for a third one.
        room = int(self.gpu.free() - 0.4 * size) - context
        foreign = self.rig.demo(room, buffers=16, tick=60000, name="foreign")
        foreign.wait_for(1)
        free = self.gpu.free()
        self.results.need(free < size * 3 // 4, "a third one does not fit",
                          f"{free // MIB} MiB are free beside two of {SERVERS} with {size // MIB} MiB, and {room // MIB} "
                          f"MiB of a foreign one; a freeze and thaw took {turn:.2f} s")
        # Each of the three others has its turn before, and all may have just begun theirs.
        bound = 2 * SERVERS * (SLICE_SEC + turn) + RETRY_SEC
        if self.options.sim:
            bound *= 3  # beside whatever else the machine does
        watch, log = self.swap("watch", "--idle", "600", "--slice", str(SLICE_SEC))
        count = 30 if self.options.quick else 60 if self.options.sim else 300
        clients = Clients(servers, known, count, started + PART_SEC, 60)
        clients.run_all()
        self.tell_waits(clients, bound, log)
        watch.send_signal(signal.SIGINT)
        watch.wait(60)
        for server in servers:
            server.program.check()
        foreign.check()
        self.results.check(self.daemon.state(foreign.pid) == "running",
                           "the foreign program was left alone")

    def wait_said_pid(self, program):
        until = time.monotonic() + 120
        while not program.said_pid:
            program.check()
            if time.monotonic() > until:
                raise Failure(f"{program.name} does not begin; {program.error_words()}")
            time.sleep(0.05)

    def turn_seconds(self, program):
        """The longer one of two, since the first one finds memory that was never used."""
        seconds = []
        for _ in range(2):
            began = time.monotonic()
            self.need_verb(program, "freeze data")
            self.need_verb(program, "thaw")
            seconds.append(time.monotonic() - began)
        return max(seconds)

    def tell_waits(self, clients, bound, log):
        words = read_text(log)
        waits = sorted(clients.waits) or [0]
        self.results.need(not clients.problems, "every request is served, and right",
                          f"{clients.problems[:3]} {words[-300:]}" if clients.problems
                          else f"{len(waits)} of them")
        self.results.check(len(waits) >= 30, "there were enough of them", f"{len(waits)}")
        self.results.check(waits[-1] <= bound, "the longest wait is within the bound",
                           f"{waits[-1]:.2f} s of {bound:.2f} s, from twice {SERVERS} turns of "
                           f"a slice of {SLICE_SEC} s and a swap, and {RETRY_SEC} s; median "
                           f"{statistics.median(waits):.3f} s")
        turns = words.count(" thawed\n")
        self.results.check(turns > 5, "they took turns", f"{turns} thaws, "
                           f"{words.count(' frozen')} freezes for {len(waits)} requests")
