# SPDX-License-Identifier: MIT
"""Parts of test_gpu.py that are for AMD GPUs only, where queues and context stay in VRAM while a
process is frozen. AmdParts is the part of Suite that has them."""
import ctypes
import errno
import os
import shutil

from rig import MIB
from there import PR_SET_CHILD_SUBREAPER, Way

# Of what a frozen program had, in percent: what it does not have in VRAM any more at least. The rest
# is the worker's, which has come meanwhile.
GONE_PERCENT = 80
PLUGIN = "amdgpu_plugin.so"
PLUGIN_DIRECTORIES = ("/usr/lib/criu", "/usr/local/lib/criu", "/usr/lib64/criu",
                      "/usr/lib/x86_64-linux-gnu/criu", "/var/lib/criu")


class AmdParts:
    def freeze_and_thaw_data(self, program, verb):
        """There and back, with what the GPU itself says of it."""
        keys = self.daemon.keys(program.pid, "status")
        size = int(keys["vram_bytes"])
        before = self.gpu.used()
        self.need_verb(program, verb)
        self.check_state(program, "frozen")
        keys = self.daemon.keys(program.pid, "status")
        kept = int(keys["kept_vram_bytes"])
        gone = before - self.gpu.used()
        self.results.check(gone >= (size - kept) * GONE_PERCENT // 100,
                           f"{program.name} has given its VRAM back",
                           f"{gone // MIB} MiB are free again of {size // MIB} MiB; "
                           f"kept_vram_bytes {kept}")
        self.results.check(kept < size // 2, "what stays is little", f"{kept // MIB} MiB")
        self.check_returned(program, keys)
        self.results.check(self.is_quiet([program], 1.5), f"{program.name} is silent while frozen",
                           f"{program.word} {program.count}")
        self.need_verb(program, "thaw")
        self.check_state(program, "running")
        self.check_goes_on(program, 8)

    def check_returned(self, program, keys):
        """What the daemon has measured: some releases of ROCm do not free what was released."""
        stays = int(keys["unreturned_vram_bytes"])
        self.results.check(not stays, f"ROCm has freed the VRAM of {program.name}",
                           f"{stays // MIB} MiB of {int(keys['last_freeze_bytes']) // MIB} MiB are "
                           f"still in use; {self.error_text(program)}" if stays else "")

    def part_again(self):
        """frozen three times: from the second time on all of its memory was imported"""
        demo = self.rig.demo(self.sizes.small, name="again")
        demo.wait_for(3)
        for _ in range(3):
            self.freeze_and_thaw_data(demo, "freeze")

    def part_without(self):
        """a program without the preload library: refused with the reason, and it goes on"""
        self.options.preload = False
        try:
            demo = self.rig.demo(self.sizes.small, name="without")
        finally:
            self.options.preload = True
        demo.wait_for(3)
        self.check_engine(demo, "none")
        self.verb(demo, "freeze", errno.EOPNOTSUPP)
        words = self.error_text(demo)
        self.results.check("gpucr-run" in words, "the error says what to do", words)
        self.check_state(demo, "running")
        self.check_goes_on(demo)

    def find_plugin(self):
        for directory in PLUGIN_DIRECTORIES:
            if os.path.exists(os.path.join(directory, PLUGIN)):
                return directory
        return None

    def part_dump_amd(self):
        """dump and thaw of whole programs, with CRIU and its plugin for AMD GPUs"""
        if self.options.sim:
            self.results.skip("dump", "simulated: test/e2e has it")
            return
        program = shutil.which("criu") or shutil.which("criu", path="/usr/sbin:/usr/local/sbin")
        if not program or not self.find_plugin():
            self.results.skip("dump", "CRIU is not installed" if not program else
                              f"CRIU's {PLUGIN} is in none of " + ", ".join(PLUGIN_DIRECTORIES))
            return
        if os.getuid():
            self.results.skip("dump", "it wants root")
            return
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.daemon.restart(f"criu={program}")
        for name, start in (("demo", self.detached_demo), ("torch", self.detached_torch)):
            if name == "torch" and not self.has_torch:
                continue
            size = 2 if name == "torch" else self.sizes.small * 4
            with self.bare_tmpfs() as bare:
                self.one_way(Way(self, name), bare,
                             lambda name, start=start, size=size: start(name, size, True),
                             lambda program, bare=bare:
                             self.there_three_times(program, "hip", bare))
