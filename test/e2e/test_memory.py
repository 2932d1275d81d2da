# SPDX-License-Identifier: MIT
"""Too little memory, on the GPU or in the host: refused in time, never half done."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import (MIB, Failure, Machine, Skip, check, equal, needs_cuda, read_file, same_for_both,
                     wait_for)


def test_no_room_to_thaw():
    with Machine(vram='256M') as machine:
        demo = machine.ready_demo('--bytes', '100M')
        machine.must(demo.pid, 'freeze')
        generation = machine.status(demo.pid)['generation']
        other = machine.ready_demo('--bytes', '150M')
        for _ in range(3):
            equal(machine.write(demo.pid, 'thaw'), 'ENOMEM')
            words = machine.error(demo.pid)
            check('GPU 0' in words and 'MiB free' in words or
                  vendor.HIP and 'MiB are free' in words, words)
            status = machine.status(demo.pid)
            equal([status['state'], status['generation']], ['frozen', generation])
            check(int(status['held_bytes']) >= 100 * MIB, status['held_bytes'])
        other.wait_ticks()
        other.end()
        machine.check_used(machine.kept(demo.pid), words='its VRAM to be free')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def check_room_on_both(env):
    with Machine(gpus=2, vram='256M', env=env) as machine:
        demo = machine.ready_demo('--gpus', 2, '--bytes', '100M')
        machine.must(demo.pid, 'freeze')
        equal(machine.status(demo.pid)['gpus'], '0 1')
        other = machine.ready_demo('--gpu', 1, '--bytes', '200M')
        equal(machine.write(demo.pid, 'thaw'), 'ENOMEM')
        check('GPU 1' in machine.error(demo.pid), machine.error(demo.pid))
        equal(machine.state(demo.pid), 'frozen')
        other.end()
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_no_room_behind_many_processes():
    """Others have more processes on the GPUs than a list has entries: the room is looked at."""
    needs_cuda('a list of processes before a freeze')
    # The last entry is the one on GPU 1; all entries; more entries on one GPU.
    for others in (511, 512, 3000):
        check_room_on_both({'GPUCR_SIM_OTHERS': str(others)})


def test_no_room_on_a_gpu_without_a_list():
    """What the list of the other GPU says is not all that the process has."""
    needs_cuda('a list of processes before a freeze')
    check_room_on_both({'GPUCR_SIM_UNLISTED': '1'})


def test_two_thaws_of_which_one_fits():
    """Each alone would fit. Both at once would be the end of one of them."""
    with Machine(vram='256M') as machine:
        demos = []
        for _ in range(2):
            demo = machine.ready_demo('--bytes', '130M')
            machine.must(demo.pid, 'freeze')
            demos.append(demo)
        for _ in range(3):
            machine.slow('thaw', 300)
            writers = [machine.writer(demo.pid, 'thaw') for demo in demos]
            results = [writer.result() for writer in writers]
            equal(sorted(results), ['ENOMEM', 'ok'])
            winner = demos[results.index('ok')]
            winner.wait_ticks()
            equal(machine.state(demos[results.index('ENOMEM')].pid), 'frozen')
            machine.must(winner.pid, 'freeze')
        # As a group it is all or none.
        machine.faults()
        equal(machine.write(None, f'thaw {demos[0].pid} {demos[1].pid}'), 'ENOMEM')
        equal([machine.state(demo.pid) for demo in demos], ['frozen'] * 2)
        machine.check_used(machine.kept(*[demo.pid for demo in demos]))
        for demo in demos:
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
            machine.must(demo.pid, 'freeze')
        machine.must(demos[0].pid, 'thaw')


def thaw_slowly(machine, pid):
    """It has its GPU's turn for some seconds: returns its writer."""
    if not vendor.HIP:
        machine.faults(f'cuCheckpointProcessRestore pid={pid} delay_ms=3000')
        writer = machine.writer(pid, 'thaw')
        machine.wait_status(pid, 'phase', 'restore')
        return writer
    # Until all of its memory is there and described. Others may have to start a worker meanwhile.
    machine.watch_faults()
    machine.faults('cuMemExportToShareableHandle comm=gpucr-worker nth=1 delay_ms=5000')
    writer = machine.writer(pid, 'thaw')
    machine.wait_faulted()
    machine.faults()
    return writer


def test_waiting_for_the_turn_can_be_ended():
    with Machine(vmm=vendor.HIP) as machine:
        first, second = machine.ready_demo(), machine.ready_demo()
        machine.must(None, f'freeze {first.pid} {second.pid}')
        slow = thaw_slowly(machine, first.pid)
        waiting = machine.writer(second.pid, 'thaw')
        machine.wait_status(second.pid, 'phase', 'admission')
        machine.must(second.pid, 'cancel')
        equal(waiting.result(), 'ECANCELED')
        equal(machine.state(second.pid), 'frozen')
        equal(machine.write(second.pid, 'thaw timeout=1'), 'ETIMEDOUT')
        equal(machine.state(second.pid), 'frozen')
        check(slow.is_waiting(), 'the first is still thawed')
        equal(slow.result(), 'ok')
        machine.must(second.pid, 'thaw')
        first.wait_ticks()
        second.wait_ticks()


def test_other_gpus_need_not_wait():
    with Machine(gpus=2, vmm=vendor.HIP) as machine:
        zero = machine.ready_demo('--gpu', 0)
        one = machine.ready_demo('--gpu', 1)
        machine.must(zero.pid, 'freeze')
        machine.must(one.pid, 'freeze')
        slow = thaw_slowly(machine, zero.pid)
        machine.must(one.pid, 'thaw')
        one.wait_ticks()
        check(slow.is_waiting(), 'the first is still thawed')
        equal(slow.result(), 'ok')
        zero.wait_ticks()


def test_vram_taken_before_a_roll_back():
    """One of two cannot be frozen; when the other is to go back, its VRAM is somebody else's."""
    needs_cuda('VRAM that is free before all have voted; on AMD workers have it until then')
    with Machine(vram='256M') as machine:
        good = machine.ready_demo('--bytes', '100M')
        bad = machine.ready_demo('--bytes', '4M')
        machine.faults(f'cuCheckpointProcessCheckpoint pid={bad.pid} delay_ms={2000 * harness.SLOW}'
                       ' error=CUDA_ERROR_UNKNOWN')
        writer = machine.writer(None, f'freeze {good.pid} {bad.pid}')
        wait_for(lambda: machine.used() < 100 * MIB, 'the VRAM of the good one to be free')
        thief = machine.ready_demo('--bytes', '150M')
        equal(writer.result(), 'EIO')
        equal(machine.state(bad.pid), 'running')
        bad.wait_ticks()
        status = machine.status(good.pid)
        equal(status['state'], 'frozen')
        check(int(status['held_bytes']) >= 100 * MIB, status['held_bytes'])
        words = machine.error(good.pid)
        check('stays frozen, intact' in words and 'MiB free' in words, words)
        thief.wait_ticks()
        equal(machine.write(good.pid, 'thaw'), 'ENOMEM')
        thief.end()
        wait_for(lambda: machine.used() < 100 * MIB, 'the VRAM to be free again')
        machine.faults()
        # A daemon that dies in this state leaves nothing behind either.
        machine.daemon.kill()
        machine.daemon.wait()
        machine.start()
        machine.wait_status(good.pid, 'verb', '-')
        equal(machine.state(good.pid), 'frozen')
        machine.must(good.pid, 'thaw')
        good.wait_ticks()


def test_vram_taken_before_a_cancelled_freeze_is_rolled_back():
    needs_cuda('VRAM that is free before all have voted; on AMD workers have it until then')
    with Machine(vram='256M') as machine:
        demo = machine.ready_demo('--bytes', '100M')
        other = machine.ready_demo('--bytes', '4M')
        machine.hold_at(f'cuCheckpointProcessCheckpoint pid={other.pid}')
        writer = machine.writer(None, f'freeze {demo.pid} {other.pid}')
        wait_for(lambda: machine.used() < 100 * MIB, 'its VRAM to be free')
        thief = machine.ready_demo('--bytes', '150M')
        canceller = machine.writer(None, f'cancel {demo.pid}')
        canceller.wait_waiting()
        machine.let_go()
        equal(canceller.result(), 'EIO')
        equal(writer.result(), 'ECANCELED')
        equal(machine.state(demo.pid), 'frozen')
        check('stays frozen' in machine.error(demo.pid), machine.error(demo.pid))
        other.wait_ticks()
        thief.end()
        wait_for(lambda: machine.used() < 100 * MIB, 'the VRAM to be free again')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


class MemoryCgroup:
    """A memory cgroup of version 1 or 2, if this machine lets us make one."""

    def __init__(self, limit):
        name = f'gpucrfs-test-{harness.unique()}'
        self.path = None
        for parent, file in (('/sys/fs/cgroup/memory', 'memory.limit_in_bytes'),
                             ('/sys/fs/cgroup', 'memory.max')):
            path = f'{parent}/{name}'
            try:
                os.mkdir(path)
            except OSError:
                continue
            if os.path.exists(f'{path}/{file}'):
                self.path, self.file = path, f'{path}/{file}'
                break
            os.rmdir(path)
        if not self.path:
            raise Skip('no memory cgroup can be made here')
        self.set_limit(limit)

    def set_limit(self, limit):
        with open(self.file, 'w', encoding='ascii') as file:
            file.write(str(limit))

    def add(self, pid):
        with open(f'{self.path}/cgroup.procs', 'w', encoding='ascii') as file:
            file.write(str(pid))

    def remove(self):
        for pid in harness.read_file(f'{self.path}/cgroup.procs').split():
            with open(f'{os.path.dirname(self.path)}/cgroup.procs', 'w', encoding='ascii') as file:
                file.write(pid)
        os.rmdir(self.path)


def test_no_room_in_the_host():
    """The driver puts VRAM into the program's own memory, where its cgroup's limit counts."""
    needs_cuda("VRAM in the program's own memory; AMD's goes to the store")
    cgroup = MemoryCgroup(400 * MIB)
    try:
        with Machine() as machine:
            demo = machine.ready_demo()
            cgroup.add(demo.pid)
            equal(machine.write(demo.pid, 'freeze'), 'ENOMEM')
            words = machine.error(demo.pid)
            check(os.path.basename(cgroup.path) in words and 'MiB' in words, words)
            equal(machine.state(demo.pid), 'running')
            check(os.path.basename(cgroup.path) in machine.status(demo.pid)['cgroup'],
                  machine.status(demo.pid)['cgroup'])
            demo.wait_ticks()
            cgroup.set_limit(2048 * MIB)
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
    finally:
        cgroup.remove()


def private_bytes(machine):
    for line in read_file(f'/proc/{machine.daemon.pid}/status').splitlines():
        if line.startswith('RssAnon:'):
            return int(line.split()[1]) << 10
    raise Failure('the kernel does not tell')


def test_what_the_daemon_keeps():
    """Each thread of a verb uses some memory, and what it has had is not the daemon's for ever."""
    same_for_both('the allocator')
    if harness.SLOW > 1:
        raise Skip('a sanitizer has an allocator of its own')
    with vmm.machine(vram='512M', options=',keep=16M') as machine:
        demos = [vmm.demo(machine, '--bytes', '8M', '--buffers', 2, '--tick', 300) for _ in range(8)]
        pids = ' '.join(str(demo.pid) for demo in demos)
        for _ in range(harness.few(2, 10)):
            machine.must(None, f'freeze {pids}')
            for writer in [machine.writer(demo.pid, 'pack') for demo in demos]:
                writer.result()
            machine.must(None, f'thaw {pids}')
        # 40 MiB with glibc's defaults on two CPUs, 3 MiB with ours.
        check(private_bytes(machine) < 16 * MIB, f'{private_bytes(machine) / MIB:.1f} MiB of private memory')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
