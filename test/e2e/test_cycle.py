# SPDX-License-Identifier: MIT
"""Programs frozen and thawed: the VRAM goes and comes back, the data is intact, nothing is lost."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, Failure, Machine, check, equal, wait_for


def test_one_cycle():
    with Machine() as machine:
        equal(machine.used(), 0)
        demo = machine.ready_demo('--bytes', '32M')
        wait_for(lambda: machine.used() >= 32 * MIB, 'its VRAM')
        used = machine.used()
        equal(machine.gpu()['pids'], str(demo.pid))

        machine.must(demo.pid, 'freeze')
        kept = machine.kept(demo.pid)
        machine.check_used(kept)
        equal(machine.gpu()['pids'], str(demo.pid) if kept else '-')
        status = machine.status(demo.pid)
        equal(status['state'], 'frozen')
        equal(status['verbs'], 'thaw dump pack unpack')
        equal(status['gpus'], '0')
        equal(status['vram_bytes'], str(kept))
        equal(status['held_bytes'], str(used - kept))
        check(re.fullmatch(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', status['generation']),
              status['generation'])
        check(int(status['last_freeze_usec']) > 0, 'last_freeze_usec')
        maps = [line.split() for line in machine.read(demo.pid, 'maps').splitlines()]
        equal({(row[1], row[2]) for row in maps}, {('0', 'device' if vendor.HIP else 'driver')})
        equal(sum(int(row[4]) for row in maps), used - kept)
        equal(harness.parse_keys(machine.read('status'))['held_bytes'], str(used - kept))
        records = [name for name in os.listdir(f'{machine.runtime}/processes')
                   if not name.startswith('.')]  # the spares of records
        equal(records, [f'{demo.pid}-{status["start_ticks"]}'])
        stood = demo.wait_standstill()

        machine.must(demo.pid, 'thaw')
        status = machine.status(demo.pid)
        equal([status['state'], status['held_bytes']], ['running', '0'])
        machine.check_used(used)
        check(int(status['last_thaw_usec']) > 0, 'last_thaw_usec')
        equal(os.listdir(f'{machine.runtime}/processes'), [])
        demo.wait_ticks()
        check(demo.ticks() > stood, 'it goes on')


def test_no_standard_descriptors():
    with Machine(start=False) as machine:
        machine.start(preexec_fn=lambda: os.closerange(0, 3))
        demo = machine.ready_demo()
        vmm.cycle(machine, demo)
        # Whatever it opens first is not what others write their words to.
        for number in range(3):
            equal(os.readlink(f'/proc/{machine.daemon.pid}/fd/{number}'), '/dev/null')


def test_ten_cycles():
    with Machine() as machine:
        demo = machine.ready_demo('--tick', 2)
        generations = set()
        for _ in range(10):
            machine.must(demo.pid, 'freeze')
            machine.check_used(machine.kept(demo.pid))
            generations.add(machine.status(demo.pid)['generation'])
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks(2)
        equal(len(generations), 10, 'each freeze has a generation')
        vmm.repeat_verbs(machine, demo)


def test_the_commands_of_the_manual():
    """What a person types, in a shell."""
    with Machine() as machine:
        demo = machine.ready_demo()
        script = f'''set -e
            echo freeze > {machine.mountpoint}/{demo.pid}/ctl && echo frozen
            grep '^state frozen$' {machine.mountpoint}/{demo.pid}/status
            echo thaw >> {machine.mountpoint}/{demo.pid}/ctl
            cat {machine.mountpoint}/{demo.pid}/error
            if echo sleep > {machine.mountpoint}/{demo.pid}/ctl; then exit 1; fi 2>/dev/null
            sed -n 's/: .*//p' {machine.mountpoint}/{demo.pid}/error'''
        found = subprocess.run(['sh', '-c', script], capture_output=True, text=True, check=False)
        equal(found.stdout, 'frozen\nstate frozen\nok\nEINVAL\n', found.stderr)


def test_make_room_for_another():
    """The purpose of it all: two programs that do not fit into the GPU together take turns."""
    with Machine(vram='256M') as machine:
        first = machine.ready_demo('--bytes', '150M', '--buffers', 1)
        machine.must(first.pid, 'freeze')
        second = machine.ready_demo('--bytes', '150M', '--buffers', 1)
        for _ in range(2):
            vmm.take_turns(machine, second, first)
            vmm.take_turns(machine, first, second)
        second.end()
        wait_for(lambda: second.pid not in machine.pids(), 'it to go')
        machine.must(first.pid, 'thaw')
        first.wait_ticks()


def test_several_at_once():
    with Machine() as machine:
        demos = [machine.ready_demo() for _ in range(4)]
        pids = ' '.join(str(demo.pid) for demo in demos)
        machine.must(None, f'freeze {pids}')
        equal([machine.state(demo.pid) for demo in demos], ['frozen'] * 4)
        machine.check_used(machine.kept(*[demo.pid for demo in demos]))
        machine.must(None, f'freeze {pids} {demos[0].pid}')
        machine.must(None, f'thaw {pids} timeout=60')
        equal([machine.state(demo.pid) for demo in demos], ['running'] * 4)
        # Some are there already: only the others have anything to do.
        machine.must(demos[1].pid, 'freeze')
        machine.must(None, f'freeze {pids}')
        equal([machine.state(demo.pid) for demo in demos], ['frozen'] * 4)
        machine.must(demos[2].pid, 'thaw')
        machine.must(None, f'thaw {pids}')
        for demo in demos:
            demo.wait_ticks()


def test_all_or_none():
    with Machine() as machine:
        good = [machine.ready_demo() for _ in range(3)]
        # Nobody can freeze what it has.
        bad = machine.ready_demo('--managed', 1, env={'GPUCR_PRELOAD_VMM': '0'})
        pids = ' '.join(str(demo.pid) for demo in [*good[:2], bad, good[2]])
        equal(machine.write(None, f'freeze {pids}'), 'EOPNOTSUPP')
        for demo in [*good, bad]:
            equal(machine.state(demo.pid), 'running')
            demo.wait_ticks()
        check(('gpucr-run' if vendor.HIP else 'managed') in machine.error(bad.pid),
              machine.error(bad.pid))
        check('another process' in machine.error(good[0].pid), machine.error(good[0].pid))
        machine.must(None, f'freeze {" ".join(str(demo.pid) for demo in good)}')

        # One id that is none: nothing is begun at all.
        before = machine.read('events').count(' state ')
        equal(machine.write(None, f'thaw {good[0].pid} 999999999'), 'ESRCH')
        equal(machine.read('events').count(' state '), before)
        # A thaw that fails for one leaves all frozen.
        if vendor.HIP:
            machine.failing('thaw', good[1].pid)
            equal(machine.write(None, f'thaw {" ".join(str(demo.pid) for demo in good)}'), 'EIO')
            equal([machine.state(demo.pid) for demo in good], ['frozen'] * 3)
        else:
            machine.faults(f'cuCheckpointProcessUnlock pid={good[1].pid} '
                           'error=CUDA_ERROR_UNKNOWN times=1')
        machine.must(None, f'thaw {" ".join(str(demo.pid) for demo in good)}')
        machine.failing('freeze', good[1].pid)
        equal(machine.write(None, f'freeze {" ".join(str(demo.pid) for demo in good)}'), 'EIO')
        for demo in good:
            equal(machine.state(demo.pid), 'running')
            demo.wait_ticks()


def test_overlapping_groups():
    """A group that holds a process with a verb under way is refused whole."""
    with Machine() as machine:
        first, second = machine.ready_demo(), machine.ready_demo()
        phase = machine.slow('freeze', 1500, first.pid)
        writer = machine.writer(first.pid, 'freeze')
        machine.wait_status(first.pid, 'phase', phase)
        equal(machine.write(None, f'freeze {first.pid} {second.pid}'), 'EBUSY')
        equal(machine.state(second.pid), 'running')
        equal(writer.result(), 'ok')
        machine.faults()
        machine.must(None, f'freeze {first.pid} {second.pid}')
        machine.must(None, f'thaw {second.pid} {first.pid}')


def test_two_gpus():
    with Machine(gpus=2) as machine:
        zero = machine.ready_demo('--gpu', 0, '--bytes', '16M')
        one = machine.ready_demo('--gpu', 1)
        wait_for(lambda: machine.used(0) and machine.used(1), 'both in use')
        equal(machine.status(zero.pid)['gpus'], '0')
        equal(machine.status(one.pid)['gpus'], '1')
        used = machine.used(0)

        machine.must(zero.pid, 'freeze')
        if vendor.HIP:
            stays_on_its_gpu(machine, zero, one)
            return
        equal(machine.used(0), 0)
        machine.must(zero.pid, 'thaw gpu=0:1')
        equal(machine.used(0), 0, 'it has moved')
        check(machine.used(1) >= used, 'to GPU 1')
        equal(machine.status(zero.pid)['gpus'], '1')
        zero.wait_ticks()
        one.wait_ticks()

        machine.must(None, f'freeze {zero.pid} {one.pid}')
        equal([machine.used(0), machine.used(1)], [0, 0])
        machine.must(zero.pid, 'thaw gpu=1:0')
        machine.must(one.pid, 'thaw')
        equal(machine.status(zero.pid)['gpus'], '0')
        equal(machine.status(one.pid)['gpus'], '1')

        machine.must(None, f'freeze {zero.pid} {one.pid}')
        machine.must(None, f'thaw gpu=0:1 gpu=1:0 {zero.pid} {one.pid}')
        equal(machine.status(zero.pid)['gpus'], '1')
        equal(machine.status(one.pid)['gpus'], '0')
        zero.wait_ticks()
        one.wait_ticks()
        machine.must(zero.pid, 'freeze')
        equal(machine.write(zero.pid, 'thaw gpu=1:2'), 'ENODEV')
        equal(machine.write(zero.pid, 'thaw gpu=7:0'), 'ENODEV')
        equal(machine.state(zero.pid), 'frozen')
        machine.must(zero.pid, 'thaw')
        zero.wait_ticks()


def stays_on_its_gpu(machine, zero, one):
    """Where its queues and contexts are."""
    equal(machine.write(zero.pid, 'thaw gpu=0:1'), 'EOPNOTSUPP')
    check('queues' in machine.error(zero.pid), machine.error(zero.pid))
    equal(machine.state(zero.pid), 'frozen')
    machine.must(one.pid, 'freeze')
    for index, program in enumerate((zero, one)):
        equal(machine.status(program.pid)['gpus'], str(index), 'the GPUs it has come to use')
        machine.check_used(machine.kept(program.pid), index)
    machine.must(None, f'thaw {zero.pid} {one.pid}')
    zero.wait_ticks()
    one.wait_ticks()


def test_hidden_gpus():
    """CUDA_VISIBLE_DEVICES and HIP's, the program's or the daemon's, change nothing for us."""
    with Machine(gpus=2, env={vendor.VISIBLE: '1'}) as machine:
        demo = machine.ready_demo('--gpu', 0)
        wait_for(lambda: machine.used(1), 'its VRAM on GPU 1')
        machine.must(demo.pid, 'freeze')
        if not vendor.HIP:
            equal(machine.used(0), 0)
        machine.check_used(machine.kept(demo.pid), 1)
        if vendor.HIP:
            machine.must(demo.pid, 'thaw')
            equal(machine.status(demo.pid)['gpus'], '1')
        else:
            machine.must(demo.pid, 'thaw gpu=1:0')
            equal(machine.used(1), 0)
        demo.wait_ticks()


class Launcher:
    """A shell with two demos as its children."""

    def __init__(self, machine):
        self.machine = machine
        run = ' '.join(vendor.RUN + vendor.DEMO)
        files = [f'{machine.directory}/child-{i}' for i in range(2)]
        script = ' '.join(f'{run} --bytes 4M --buffers 2 --tick 10 > {file} &' for file in files) + ' wait'
        self.files = files
        self.popen = subprocess.Popen(['sh', '-c', script], env=machine.env)
        self.pid = self.popen.pid
        wait_for(lambda: all(' ok' in harness.read_file(file) for file in files
                             if os.path.exists(file)) and os.path.exists(files[1]), 'the children')
        self.children = [int(harness.read_file(file).split()[1]) for file in files]

    def ticks(self):
        counts = []
        for file in self.files:
            lines = harness.read_file(file).split('\n')[1:-1]
            for number, line in enumerate(lines, 1):
                if line != f'tick {number} ok':
                    raise Failure(f'{file}: {line!r}')
            counts.append(len(lines))
        return counts

    def wait_ticks(self):
        before = self.ticks()
        wait_for(lambda: all(now > then + 2 for now, then in zip(self.ticks(), before)),
                 'ticks of both children')

    def finish(self):
        for child in self.children:
            harness.try_kill(child, 9)
        self.popen.wait(harness.PATIENCE_SEC)


def test_launcher():
    with Machine(worker_idle=1) as machine:
        launcher = Launcher(machine)
        try:
            children = sorted(launcher.children)
            status = machine.status(launcher.pid)
            equal(status['members'], ' '.join(str(child) for child in children))
            equal([status['state'], status['verbs'], status['comm']], ['running', 'freeze dump', 'sh'])
            check(launcher.pid not in machine.pids(), 'a launcher is not listed')
            equal(sorted(os.listdir(machine.path(launcher.pid))),
                  ['criu.log', 'ctl', 'error', 'events', 'status'])
            machine.must(launcher.pid, 'freeze')
            equal([machine.state(child) for child in children], ['frozen'] * 2)
            equal(machine.state(launcher.pid), 'frozen')
            machine.check_used(machine.kept(*children), words='the worker leaves the GPU too')
            machine.must(children[0], 'thaw')
            equal(machine.state(launcher.pid), 'running', 'the least frozen counts')
            machine.must(launcher.pid, 'thaw')
            equal([machine.state(child) for child in children], ['running'] * 2)
            launcher.wait_ticks()
            machine.must(None, f'freeze {launcher.pid}')
            machine.must(None, f'thaw {launcher.pid} {children[1]}')
            launcher.wait_ticks()

            if vendor.HIP:
                machine.failing('freeze', children[1])
                equal(machine.write(launcher.pid, 'freeze'), 'EIO')
            else:
                machine.faults(f'cuCheckpointProcessCheckpoint pid={children[1]} '
                               'error=CUDA_ERROR_NOT_SUPPORTED')
                equal(machine.write(launcher.pid, 'freeze'), 'EOPNOTSUPP')
            equal([machine.state(child) for child in children], ['running'] * 2)
            launcher.wait_ticks()
            equal(machine.write(launcher.pid, 'cancel'), 'EBUSY')
        finally:
            launcher.finish()
        wait_for(lambda: not os.path.lexists(machine.path(launcher.pid)), 'the launcher to go')


def test_cancel_of_a_launcher():
    with Machine() as machine:
        launcher = Launcher(machine)
        try:
            phase = machine.slow('freeze', 1000)
            writer = machine.writer(launcher.pid, 'freeze')
            # On AMD one after the other: they share a worker.
            reached = any if vendor.HIP else all
            wait_for(lambda: reached(machine.status(child)['phase'] == phase
                                     for child in launcher.children), phase)
            equal(machine.state(launcher.pid), 'freezing')
            equal(machine.status(launcher.pid)['verbs'], 'cancel')
            machine.must(launcher.pid, 'cancel')
            equal(writer.result(), 'ECANCELED')
            launcher.wait_ticks()
        finally:
            launcher.finish()


def test_programs_without_our_library():
    """Nothing preloaded: found by its device file all the same, and frozen by NVIDIA's driver."""
    with Machine(env={'GPUCR_PRELOAD': ''}) as machine:
        demo = machine.ready_demo()
        equal(machine.status(demo.pid)['registered'], 'no')
        if vendor.HIP:
            equal(machine.status(demo.pid)['engine'], 'none')
            for verb in 'freeze', 'freeze data':
                equal(machine.write(demo.pid, verb), 'EOPNOTSUPP')
                check('gpucr-run' in machine.error(demo.pid), machine.error(demo.pid))
                equal(machine.state(demo.pid), 'running')
            equal(machine.write(demo.pid, 'dump'), 'EOPNOTSUPP')
            demo.wait_ticks()
            return
        vmm.cycle(machine, demo)


def test_registered_with_our_library():
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.wait_status(demo.pid, 'registered', 'yes')
        machine.must(demo.pid, 'freeze')
        equal(machine.status(demo.pid)['registered'], 'yes')
        machine.must(demo.pid, 'thaw')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
