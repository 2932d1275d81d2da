# SPDX-License-Identifier: MIT
"""The fast engine: VRAM goes into files byte for byte, and comes back at its place."""
import os
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, check, equal, needs_cuda, wait_for


def test_one_cycle():
    with vmm.machine(worker_idle=1) as machine:
        demo = vmm.demo(machine, '--bytes', '16M', '--buffers', 4)
        wait_for(lambda: machine.used() >= 16 * MIB, 'its VRAM')
        before = machine.status(demo.pid)
        check(int(before['vram_bytes']) >= 16 * MIB, before['vram_bytes'])
        equal(before['engine_reason'], '-')
        machine.must(demo.pid, 'freeze')
        kept = machine.kept(demo.pid)
        equal(vmm.idle(machine), kept, 'VRAM in use')
        status = machine.status(demo.pid)
        equal([status['state'], status['engine'], status['vram_bytes']],
              ['frozen', vendor.ENGINE, str(kept)])
        check(int(status['held_bytes']) >= 16 * MIB, status['held_bytes'])
        equal(vmm.check_files(machine, demo), 16 * MIB)
        stood = demo.wait_standstill()
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()
        check(demo.ticks() > stood, 'it goes on')
        status = machine.status(demo.pid)
        equal([status['state'], status['held_bytes']], ['running', '0'])
        # The driver's tools leave out of their count what a thaw has given it.
        wait_for(lambda: machine.status(demo.pid)['vram_bytes'] == before['vram_bytes'],
                 'its VRAM to be counted as before')
        wait_for(lambda: not os.path.exists(machine.path(demo.pid, 'snapshot', 'vram')) or
                 not vmm.files(machine, demo.pid), 'its files to go')
        equal(os.listdir(f'{machine.runtime}/processes'), [])


def test_ten_cycles():
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--tick', 2)
        for _ in range(10):
            vmm.cycle(machine, demo)
            equal(machine.status(demo.pid)['engine'], vendor.ENGINE)
        vmm.repeat_verbs(machine, demo)


def test_every_kind():
    """One after the other, then all in one program; the bytes in the files each time."""
    with vmm.machine(vram='512M', worker_idle=1) as machine:
        kinds = ['--own-vmm', *vendor.MANAGED[:1], '--pitch', '--async']
        for chosen in [*[[kind] for kind in kinds], kinds]:
            arguments = [word for kind in chosen for word in (kind, 2)]
            demo = vmm.demo(machine, '--bytes', '7M', '--buffers', 2, '--tick', 5, '--blocks', 9,
                            '--block-bytes', 5000, *arguments)
            for _ in range(2):
                machine.must(demo.pid, 'freeze')
                check(vmm.check_files(machine, demo) >= 7 * MIB, 'bytes compared')
                machine.must(demo.pid, 'thaw')
                demo.wait_ticks()
            machine.must(demo.pid, 'freeze')
            equal(vmm.idle(machine), vmm.kept(machine), f'VRAM in use with {chosen}')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
            demo.end()
            wait_for(lambda: machine.pids() == [], 'it to go')


def test_managed_memory_touched_while_frozen():
    """The CPU sleeps on it until the thaw, and finds its bytes."""
    needs_cuda('managed memory, with which no freeze is possible')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--buffers', 1, '--managed', 3, '--bytes', '3M', '--tick', 1)
        for _ in range(5):
            machine.must(demo.pid, 'freeze')
            stood = demo.wait_standstill()
            equal(demo.ticks(), stood)
            check(demo.is_running(), 'it waits')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()


def test_data_alone():
    """freeze data: the context stays, with what the driver keeps."""
    with vmm.machine(worker_idle=1) as machine:
        demo = vmm.demo(machine, '--bytes', '16M', '--buffers', 2)
        other = vmm.demo(machine)
        used = vmm.idle(machine)
        machine.must(demo.pid, 'freeze data')
        equal(machine.state(demo.pid), 'frozen')
        left = vmm.idle(machine)
        equal(used - left, 16 * MIB, 'VRAM given back')
        equal(vmm.check_files(machine, demo), 16 * MIB)
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()
        equal(vmm.idle(machine), used)
        vmm.cycle(machine, demo, 'freeze data')
        vmm.cycle(machine, demo)
        machine.must(None, f'freeze data {demo.pid} {other.pid}')
        machine.must(None, f'thaw {demo.pid} {other.pid}')
        demo.wait_ticks()
        other.wait_ticks()


def test_files_while_frozen():
    """cp gets the bytes; a reader that has a file open goes on through the thaw."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '8M', '--buffers', 2)
        machine.must(demo.pid, 'freeze')
        names = vmm.files(machine, demo.pid)
        check(sum(names.values()) >= 8 * MIB, names)
        name = max(names, key=lambda name: names[name])
        path = machine.path(demo.pid, 'snapshot', 'vram', name)
        shutil.copy(path, f'{machine.directory}/copy')
        with open(path, 'rb') as reader, open(f'{machine.directory}/copy', 'rb') as copy:
            start = reader.read(4096)
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
            equal(start, copy.read(4096))
            check(reader.read() == copy.read(), 'the rest, read after the thaw')


def test_make_room_for_another():
    with vmm.machine(vram='256M') as machine:
        first = vmm.demo(machine, '--bytes', '120M', '--buffers', 3)
        machine.must(first.pid, 'freeze')
        second = vmm.demo(machine, '--bytes', '120M', '--buffers', 2)
        equal(machine.write(first.pid, 'thaw'), 'ENOMEM')
        equal(machine.state(first.pid), 'frozen')
        equal(vmm.check_files(machine, first), 120 * MIB)
        second.wait_ticks()
        vmm.take_turns(machine, second, first)
        vmm.take_turns(machine, first, second)
        second.end()
        machine.must(first.pid, 'thaw')
        first.wait_ticks()


def test_two_gpus():
    """Buffers on both, with copies and kernels between them; then on other GPUs."""
    with vmm.machine(gpus=2, vram='256M', worker_idle=1) as machine:
        demo = vmm.demo(machine, '--gpus', 2, '--bytes', '12M', '--buffers', 4, '--own-vmm', 2,
                        *vendor.MANAGED, '--tick', 5)
        one = vmm.demo(machine, '--bytes', '6M', '--buffers', 2, '--gpu', 0)
        vmm.cycle(machine, demo)
        machine.must(None, f'freeze {demo.pid} {one.pid}')
        equal(vmm.idle(machine, 0) + vmm.idle(machine, 1), machine.kept(demo.pid, one.pid))
        check(vmm.check_files(machine, demo) >= 12 * MIB, 'bytes compared')
        if vendor.HIP:  # they stay where their queues are
            machine.must(None, f'thaw {demo.pid} {one.pid}')
            demo.wait_ticks()
            one.wait_ticks()
            return
        machine.must(one.pid, 'thaw gpu=0:1')
        one.wait_ticks()
        machine.wait_status(one.pid, 'gpus', '1')
        machine.must(demo.pid, 'thaw gpu=0:1 gpu=1:0')
        demo.wait_ticks()
        machine.must(one.pid, 'freeze')
        equal(vmm.check_files(machine, one), 6 * MIB)
        machine.must(one.pid, 'thaw gpu=1:0')
        machine.wait_status(one.pid, 'gpus', '0')
        one.wait_ticks()
        vmm.cycle(machine, demo)


def test_several_at_once():
    with vmm.machine(vram='512M') as machine:
        demos = [vmm.demo(machine, '--bytes', '6M', '--buffers', 2) for _ in range(5)]
        pids = ' '.join(str(demo.pid) for demo in demos)
        for _ in range(3):
            machine.must(None, f'freeze {pids}')
            equal([machine.state(demo.pid) for demo in demos], ['frozen'] * 5)
            machine.must(None, f'thaw {pids}')
            for demo in demos:
                demo.wait_ticks(2)


def test_many_blocks():
    """2000 small ones, which stay with the driver, and hundreds that do not."""
    with vmm.machine(vram='1G') as machine:
        small = vmm.demo(machine, '--blocks', 2000, '--block-bytes', '4K', '--tick', 5)
        machine.must(small.pid, 'freeze')
        machine.must(small.pid, 'thaw')
        small.wait_ticks(2, 4 * harness.PATIENCE_SEC)
        small.end()
        # More than a message can carry descriptors of, several times.
        large = vmm.demo(machine, '--buffers', 1, '--bytes', '1025K', '--own-vmm', 70,
                         '--blocks', 100, '--block-bytes', '1025K', '--tick', 5)
        machine.must(large.pid, 'freeze')
        check(len(vmm.files(machine, large.pid)) >= 171, len(vmm.files(machine, large.pid)))
        machine.must(large.pid, 'thaw')
        large.wait_ticks(2, 4 * harness.PATIENCE_SEC)


def test_many_cycles_of_submitting_threads():
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--threads', 6, '--bytes', '6M', '--buffers', 2, '--tick', 1)
        for _ in range(20 if harness.SLOW == 1 and not vendor.HIP else 10):
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks(1)
        demo.wait_ticks(5)


def test_open_capture():
    """A freeze waits for it to end; one that does not end is named."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--capture', 100, '--tick', 1)
        for _ in range(3):
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks(2)
        demo.end()
        machine.faults('cuStreamBeginCapture when=after')
        machine.watch_faults()
        demo = machine.demo('--list', '--capture', 4000 * harness.SLOW, '--tick', 1)
        machine.wait_faulted()
        begun = time.monotonic()
        demo.pid = machine.faulted()[0][0]
        machine.faults()
        wait_for(lambda: os.path.exists(machine.path(demo.pid)), 'its directory')
        equal(machine.write(demo.pid, f'freeze timeout={harness.SLOW}'), 'ETIMEDOUT')
        check('capture' in machine.error(demo.pid), machine.error(demo.pid))
        check(time.monotonic() - begun < 4 * harness.SLOW, 'the capture was open all the time')
        equal(machine.state(demo.pid), 'running')
        demo.wait_ready()


def test_kernel_that_never_ends():
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--spin', 5, '--tick', 20)
        demo.wait_ticks(6)
        for _ in range(2):
            equal(machine.write(demo.pid, f'freeze timeout={harness.SLOW}'), 'ETIMEDOUT')
            equal(machine.state(demo.pid), 'running')
            words = machine.error(demo.pid)
            check('GPU' in words or 'kernel' in words or 'work' in words, words)
            demo.wait_ticks()
        equal(machine.write(demo.pid, f'freeze data timeout={harness.SLOW}'), 'ETIMEDOUT')
        demo.wait_ticks()
        os.kill(demo.pid, signal.SIGUSR1)
        vmm.cycle(machine, demo)


def test_cancel_while_it_waits_for_the_gpu():
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--spin', 2, '--tick', 20)
        demo.wait_ticks(3)
        writer = machine.writer(demo.pid, 'freeze')
        machine.wait_status(demo.pid, 'phase', 'gate')
        machine.must(demo.pid, 'cancel')
        equal(writer.result(), 'ECANCELED')
        demo.wait_ticks()
        os.kill(demo.pid, signal.SIGUSR1)
        vmm.cycle(machine, demo)


def set_incomplete(pid, name):
    """As the library does when a function that it does not know is called."""
    fds = f'/proc/{pid}/fd'
    page = next(fd for fd in os.listdir(fds) if 'gpucr-page' in os.readlink(f'{fds}/{fd}'))
    with open(f'{fds}/{page}', 'r+b') as file:
        file.seek(56)  # struct gcr_page
        file.write(name.ljust(64, b'\0'))


def test_gate_incomplete_meanwhile():
    if harness.SANITIZER == 'thread':
        raise harness.Skip('ThreadSanitizer holds signals back as long as a thread is in the gate')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--spin', 2, '--tick', 20)
        demo.wait_ticks(3)
        writer = machine.writer(demo.pid, 'freeze')
        machine.wait_status(demo.pid, 'phase', 'gate')
        set_incomplete(demo.pid, b'cuFutureCall')
        os.kill(demo.pid, signal.SIGUSR1)
        equal(writer.result(), 'EOPNOTSUPP')
        check('cuFutureCall' in machine.error(demo.pid), machine.error(demo.pid))
        equal(machine.state(demo.pid), 'running')
        demo.wait_ticks()
        set_incomplete(demo.pid, b'')
        vmm.cycle(machine, demo)


def test_not_handed_over_if_not_wanted():
    """--no-vmm: the driver engine, as before; on AMD none."""
    with vmm.machine() as machine:
        demo = machine.ready_demo(command=[*vendor.RUN, '--no-vmm', *vendor.DEMO])
        equal(machine.status(demo.pid)['engine'], 'none' if vendor.HIP else 'driver')
        if vendor.HIP:
            equal(machine.write(demo.pid, 'freeze'), 'EOPNOTSUPP')
            equal(machine.state(demo.pid), 'running')
        else:
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
