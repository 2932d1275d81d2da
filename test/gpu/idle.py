# SPDX-License-Identifier: MIT
"""The parts of test_gpu.py about programs that are idle: what they hold is packed, and goes to a
disk, and programs that do not fit together take turns."""
import errno
import hashlib
import os
import signal
import subprocess
import time

from fast import GIB
from rig import MIB, Failure, guarded, read_text

# Of the GPU's memory: two of them do not fit.
SHARE = 0.56
# Of the host's memory: that of both is in the store for a moment of an exchange.
HOST_SHARE = 0.38
LAYER_BYTES = 400 * 1000 * 1000
TURNS = 3
SLICE_SEC = 1


def available_bytes():
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise Failure("/proc/meminfo has no MemAvailable")


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

    def part_spill(self):
        """a store that is too small for two models: one goes to a disk, and comes back"""
        size = 4 * self.sizes.small if self.options.sim else 3 * GIB
        models = [self.model(size, name) for name in ("first", "second")]
        for model in models:
            model.wait_for(3)
        self.need_verb(models[0], "freeze", "freeze, to see what it holds")
        files = self.file_bytes(models[0])
        self.need_verb(models[0], "thaw", "thaw")
        disk = os.path.join(self.rig.work, "disk")
        os.mkdir(disk, 0o700)
        # Room for one of them, and for packing.
        self.daemon.restart(f"store_size={files * 9 // 8 + 16 * MIB},spill={disk}")
        try:
            self.spill(models, disk)
        finally:
            self.rig.stop_programs()
            self.daemon.restart()

    def file_bytes(self, program):
        """What the files of a frozen program are."""
        directory = self.daemon.path(program.pid, "snapshot", "vram")
        return guarded(lambda: sum(os.stat(os.path.join(directory, name)).st_size
                                   for name in os.listdir(directory)))

    def disk_bytes(self, disk):
        """What files there take of it."""
        found = 0
        for directory, _, names in os.walk(disk):
            found += sum(512 * os.stat(os.path.join(directory, name)).st_blocks for name in names)
        return found

    def spill(self, models, disk):
        hashes = []
        for model in models:
            self.check_engine(model)
            self.need_verb(model, "freeze")
            if not hashes:
                self.results.check(self.disk_bytes(disk) == 0, "nothing is on the disk before")
            hashes.append(self.hash_files(model))
        spilled = int(self.daemon.keys("status")["spilled_bytes"])
        on_disk = self.disk_bytes(disk)
        self.results.need(0 < spilled <= on_disk + MIB, "bytes of the first one are on the disk",
                          f"spilled_bytes {spilled // MIB} MiB, {on_disk // MIB} MiB in files")
        self.results.check(self.hash_files(models[0]) == hashes[0], "its files read as before")
        self.daemon.kill()
        self.daemon.start()
        for model, its in zip(models, hashes):
            self.results.need(self.daemon.final_state(model.pid) == "frozen",
                              f"{model.name} is frozen for the daemon after one that was killed")
            self.results.check(self.hash_files(model) == its,
                               f"{model.name}: its files read as before")
        for model in reversed(models):
            self.need_verb(model, "thaw", f"thaw {model.name}")
            self.check_goes_on(model, 8)
        left = self.disk_bytes(disk)
        self.results.check(left < MIB, "the disk has its bytes back", f"{left} bytes in files")

    def size_of_two(self):
        """Of two programs that do not fit on the GPU together, but in the host's memory."""
        return min(int(self.gpu.free() * SHARE), int(available_bytes() * HOST_SHARE))

    def take_the_rest(self, size):
        """A foreign program has what would be free beside two that are so small."""
        rest = int(self.gpu.free() - size / SHARE)
        if rest > GIB:
            self.rig.demo(rest, buffers=16, tick=60000, name="foreign").wait_for(1)

    def part_swap(self):
        """two programs that do not fit together take turns"""
        size = self.size_of_two()
        self.daemon.restart(f"store_size={2 * size + 2 * GIB}")
        try:
            self.take_the_rest(size)
            self.take_turns(size)
        finally:
            self.rig.stop_programs()
            self.daemon.restart()

    def part_exchange(self):
        """one out and the other one in, by one verb, again and again"""
        size = self.sizes.small if self.options.sim else self.size_of_two()
        self.daemon.restart(f"store_size={2 * size + 2 * GIB}")
        try:
            if not self.options.sim:
                self.take_the_rest(size)
            first = self.model(size, "first")
            first.wait_for(3)
            self.need_verb(first, "freeze data")
            second = self.model(size, "second")
            second.wait_for(3)
            for data in ("", " data", "", " data"):
                self.need_verb(first, f"thaw swap={second.pid}{data}",
                               f"{first.name} comes, {second.name} goes{data and ', its data'}")
                self.check_state(second, "frozen")
                self.check_goes_on(first)
                self.results.check(self.is_quiet([second], 0.3), f"{second.name} is silent")
                first, second = second, first
            self.verb(first, f"thaw swap={first.pid}", errno.EINVAL, "with itself")
            self.check_state(first, "frozen")
            second.stop()
            self.need_verb(first, "thaw", "the one that is left comes back")
            self.check_goes_on(first)
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
