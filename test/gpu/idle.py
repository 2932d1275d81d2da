# SPDX-License-Identifier: MIT
"""The parts of test_gpu.py about programs that are idle: what they hold is packed, and programs
that do not fit together take turns."""
import hashlib
import os
import signal
import subprocess
import time

from fast import GIB
from rig import MIB, Failure, guarded, read_text

# Of the GPU's memory: two of them do not fit.
SHARE = 0.56
LAYER_BYTES = 400 * 1000 * 1000
TURNS = 3
SLICE_SEC = 1


class IdleParts:
    # ---- what they are made of

    def hash_files(self, program):
        """Of all that a frozen program had in VRAM: by the name of the file."""
        directory = self.daemon.path(program.pid, "snapshot", "vram")

        def look():
            hashes = {}
            for name in sorted(os.listdir(directory)):
                with open(os.path.join(directory, name), "rb") as stream:
                    hashes[name] = hashlib.sha1(stream.read()).hexdigest()
            return hashes
        return guarded(look, 120)

    def model(self, size, name):
        """A program that checks its results, with so much VRAM."""
        if self.has_torch:
            return self.rig.script("transformer", "--layers", str(size // LAYER_BYTES), name=name,
                                   word="step", preload=True)
        return self.rig.demo(size, name=name, preload=True)

    def swap(self, *arguments):
        environment = dict(self.rig.environment, GPUCR_MOUNT=self.daemon.mount)
        path = os.path.join(self.rig.work, f"{self.rig.next_number():03d}-swap.log")
        with open(path, "wb") as log:
            process = subprocess.Popen([self.rig.tool("gpucr-swap"), *arguments], stdout=log,
                                       stderr=log, stdin=subprocess.DEVNULL, env=environment)
        self.rig.others.append(process)
        return process, path

    # ---- the parts

    def part_pack(self):
        """what a frozen program holds is packed, read, and thawed"""
        program = self.model(self.sizes.small if self.options.sim else 3 * GIB, "model")
        program.wait_for(3)
        self.need_verb(program, "freeze")
        before = self.hash_files(program)
        held = int(self.daemon.keys(program.pid, "status")["held_bytes"])
        started = time.monotonic()
        self.need_verb(program, "pack")
        seconds = time.monotonic() - started
        keys = self.daemon.keys(program.pid, "status")
        packed = int(keys["packed_bytes"])
        self.results.check(packed > 0, "it is packed",
                           f"{packed // MIB} of {held // MIB} MiB take "
                           f"{int(keys['packed_to_bytes']) // MIB} MiB, "
                           f"{packed / seconds / 1e9:.2f} GB/s")
        self.results.check(self.hash_files(program) == before, "its files read as before")
        self.need_verb(program, "thaw", "thaw of what is packed")
        self.check_goes_on(program, 8)
        self.need_verb(program, "freeze", "freeze again")
        self.need_verb(program, "pack", "pack again")
        self.need_verb(program, "unpack")
        keys = self.daemon.keys(program.pid, "status")
        self.results.check(keys["packed_bytes"] == "0", "it is unpacked",
                           f"packed_bytes {keys['packed_bytes']}")
        self.need_verb(program, "thaw", "thaw of what was unpacked")
        self.check_goes_on(program, 8)

    def part_swap(self):
        """two programs that do not fit together take turns"""
        size = int(self.gpu.free() * SHARE)
        self.daemon.restart(f"store_size={2 * size + 2 * GIB}")
        try:
            self.take_turns(size)
        finally:
            self.rig.stop_programs()
            self.daemon.restart()

    def take_turns(self, size):
        first = self.model(size, "first")
        first.wait_for(3)
        out, log = self.swap("out", str(first.pid))
        self.results.need(out.wait(120) == 0, "gpucr-swap out", read_text(log).strip())
        second = self.model(size, "second")
        second.wait_for(3)
        watch, log = self.swap("watch", "--idle", "600", "--slice", str(SLICE_SEC))
        # The simulator takes many seconds for one.
        turns = 1 if self.options.sim else TURNS
        started = time.monotonic()
        try:
            for _ in range(turns):
                for program in (first, second):
                    program.wait_more(3, 120)
        except Failure as failure:
            self.results.need(False, "they take turns", f"{failure}; {read_text(log)[-300:]}")
        seconds = (time.monotonic() - started) / (2 * turns)
        self.results.check(True, "they take turns", f"{size // MIB} MiB each; one turn with a "
                           f"slice of {SLICE_SEC} s took {seconds:.2f} s; at {first.count} and "
                           f"{second.count}")
        watch.send_signal(signal.SIGINT)
        watch.wait(60)
        for program in (first, second):
            program.check()
