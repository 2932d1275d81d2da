# SPDX-License-Identifier: MIT
"""Releases of ROCm that do not free VRAM, or refuse access: what the daemon does about them."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import vendor
import vmm
from harness import MIB, check, equal

VERSION = {'GPUCR_SIM_HIP_VERSION': '7.0'}  # one that exports what was imported
SIZES = ('--bytes', '32M', '--buffers', 2, '--tick', 20)
BYTES = 32 * MIB


def machine(quirks, **options):
    return vmm.machine(env={**VERSION, 'GPUCR_SIM_HIP_QUIRKS': quirks}, **options)


def unreturned(machine, pid):
    return int(machine.status(pid)['unreturned_vram_bytes'])


def check_lost(machine, demo):
    """Frozen, and the GPU has it all the same."""
    equal(machine.state(demo.pid), 'frozen')
    check(unreturned(machine, demo.pid) >= BYTES * 3 // 4, machine.read(demo.pid, 'status'))
    words = machine.error(demo.pid)
    check(words.startswith('ok: frozen, but ') and 'still in use' in words, words)
    check('still in use' in machine.log(), machine.log())


def check_refused(machine, demo):
    """It runs, and goes on; a freeze says why not."""
    equal(machine.write(demo.pid, 'freeze'), 'EOPNOTSUPP')
    words = machine.error(demo.pid)
    check('its last freeze has left' in words, words)
    equal(machine.state(demo.pid), 'running')
    demo.wait_ticks(2)


def test_imports_that_stay():
    """A worker's go with it; a program's, which it has from its first thaw on, are noticed."""
    with machine('import', vram='512M') as one:
        demo = vmm.demo(one, *SIZES)
        one.must(demo.pid, 'freeze')
        equal(unreturned(one, demo.pid), 0, one.error(demo.pid))
        equal(one.error(demo.pid), 'ok')
        one.check_used(one.kept(demo.pid))
        vmm.check_files(one, demo)
        one.must(demo.pid, 'thaw')
        demo.wait_ticks(2)
        one.must(demo.pid, 'freeze')
        check_lost(one, demo)
        vmm.check_files(one, demo)
        one.must(demo.pid, 'thaw')
        demo.wait_ticks(2)
        check_refused(one, demo)
        # Another one is not concerned.
        other = vmm.demo(one, *SIZES)
        one.must(other.pid, 'freeze')
        equal(unreturned(one, other.pid), 0, one.error(other.pid))
        one.must(other.pid, 'thaw')
        other.wait_ticks(2)


def test_memory_that_stays():
    """Noticed in the first freeze, of each process of the same write."""
    with machine('release', vram='512M') as one:
        demos = [vmm.demo(one, *SIZES) for _ in range(2)]
        both = ' '.join(str(demo.pid) for demo in demos)
        one.must(None, f'freeze {both}')
        for demo in demos:
            check_lost(one, demo)
        one.must(None, f'thaw {both}')
        for demo in demos:
            demo.wait_ticks(2)
            check_refused(one, demo)


def test_nothing_stays():
    """Again and again, alone and together; workers end with the freeze."""
    with machine('', vram='512M') as one:
        demos = [vmm.demo(one, *SIZES) for _ in range(2)]
        both = ' '.join(str(demo.pid) for demo in demos)
        for _ in range(2):
            one.must(demos[0].pid, 'freeze')
            equal([name for _, name in one.helpers() if name == 'gpucr-worker'], [])
            one.must(demos[0].pid, 'thaw')
            one.must(None, f'freeze {both}')
            for demo in demos:
                equal(unreturned(one, demo.pid), 0, one.error(demo.pid))
            one.must(None, f'thaw {both}')
            for demo in demos:
                demo.wait_ticks(2)


def test_access_of_a_part():
    """The worker's memory, of several sizes, comes in parts."""
    with vmm.machine(start=False, env=VERSION) as one:
        # Only for the daemon's helpers.
        one.start(env={'GPUCR_SIM_HIP_QUIRKS': 'access'})
        demo = vmm.demo(one, '--bytes', '5M', '--buffers', 9, '--own-vmm', 3, '--tick', 20)
        for _ in range(2):
            one.must(demo.pid, 'freeze')
            vmm.check_files(one, demo)
            one.must(demo.pid, 'thaw')
            demo.wait_ticks(2)


# A program's library, as far as the daemon sees it: a page that says what the program has.
LIBRARY = '''
import ctypes, fcntl, os, socket, struct, sys, time
hip = ctypes.CDLL('libamdhip64.so')
pointer = ctypes.c_void_p()
assert hip.hipMalloc(ctypes.byref(pointer), 4096) == 0
page = os.memfd_create('gpucr-page', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(page, 1 << 20)
os.pwrite(page, struct.pack('=IIII', 0x50524347, 1, 1, 5), 0)
os.pwrite(page, struct.pack('=Q', int(sys.argv[2])), 256)
fcntl.fcntl(page, 1033, 2 | 4)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect(sys.argv[1])
payload = struct.pack('=II40s', 1, 1, b'')
socket.send_fds(peer, [struct.pack('=IHHII', 0x46524347, 1, 96, 1, len(payload)) + payload], [page])
print('ready', flush=True)
time.sleep(1000)
'''


def test_memory_that_is_apart():
    """A dump would lose it, or not: that depends on the kernel."""
    with dump.machine() as one:
        popen = subprocess.Popen([sys.executable, '-c', LIBRARY, f'{one.runtime}/socket', '5000'],
                                 env={**one.env, 'LD_LIBRARY_PATH': vendor.LIBRARIES},
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                 preexec_fn=harness.end_with_us(signal.SIGKILL))
        try:
            equal(popen.stdout.readline(), 'ready\n')
            one.wait_status(popen.pid, 'engine', vendor.ENGINE)
            equal(one.write(popen.pid, 'dump'), 'EOPNOTSUPP')
            words = one.error(popen.pid)
            check('5 KiB of GPU memory made by hipMemCreate' in words, words)
            equal(one.state(popen.pid), 'running')
        finally:
            popen.kill()
            popen.wait()


if __name__ == '__main__':
    assert vendor.HIP, 'GPUCR_TEST_VENDOR=hip'
    harness.main(globals(), at_once=2)
