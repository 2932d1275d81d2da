# SPDX-License-Identifier: MIT
"""The fast engine where something is short or in the way: room in the store, file descriptors,
children that were forked, a daemon that is not there or comes later."""
import os
import resource
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, check, children_of, equal, same_for_both, wait_for

SMALL = ('--bytes', '4M', '--buffers', 2, '--own-vmm', 1, '--tick', 40)
EVERY_KIND = ('--bytes', '6M', '--buffers', 3, '--own-vmm', 1, '--pitch', 1, *vendor.MANAGED,
              '--tick', 40)
# What is there once for each allocation: 171 of them, two messages full and more.
MANY = ('--buffers', 1, '--bytes', '1025K', '--own-vmm', 70, '--blocks', 100, '--block-bytes',
        '1025K', '--tick', 300)
DELAY_MSEC = 300 * harness.SLOW
LATER = 1 << 40  # a tick that does not come: they fork when they get SIGUSR2


def runs_as_before(machine, demo):
    """Nothing has been moved, nothing is kept."""
    machine.wait_status(demo.pid, 'verb', '-')
    status = machine.status(demo.pid)
    equal([status['state'], status['held_bytes']], ['running', '0'])
    wait_for(lambda: os.listdir(f'{machine.runtime}/store') == ['pool'], 'the store to be empty')
    demo.wait_ticks(2)


# ---- the store

def test_more_than_the_store_takes():
    """It is found out before anything is moved."""
    same_for_both('room in the store')
    with vmm.machine(vram='512M', options=',store_size=28M') as machine:
        large = vmm.demo(machine, *EVERY_KIND, '--blocks', 20, '--block-bytes', '2M')
        small = vmm.demo(machine, '--bytes', '16M', '--buffers', 2, '--managed', 1, '--tick', 40)
        for verb in ('freeze', 'freeze data'):
            machine.watch_faults()
            machine.faults(f'cuMemUnmap {vmm.ROLES["program"]}',
                           f'cuMemFree {vmm.ROLES["program"]}')
            equal(machine.write(large.pid, verb), 'ENOSPC')
            equal(machine.faulted(), [], 'calls before it was found out')
            machine.faults()
            check('store' in machine.error(large.pid), machine.error(large.pid))
            runs_as_before(machine, large)
        # All or none.
        equal(machine.write(None, f'freeze {small.pid} {large.pid}'), 'ENOSPC')
        runs_as_before(machine, large)
        runs_as_before(machine, small)


def test_room_for_one():
    """Two that have room one after the other."""
    same_for_both('room in the store')
    with vmm.machine(vram='512M', options=',store_size=28M') as machine:
        demos = [vmm.demo(machine, '--bytes', '16M', '--buffers', 2, '--tick', 40)
                 for _ in range(2)]
        for first, second in (demos, demos[::-1]):
            machine.must(first.pid, 'freeze')
            equal(machine.write(second.pid, 'freeze'), 'ENOSPC')
            equal(machine.state(second.pid), 'running')
            second.wait_ticks(2)
            equal(vmm.check_files(machine, first), 16 * MIB)
            machine.must(first.pid, 'thaw')
            first.wait_ticks(2)


def resize(machine, size_bytes):
    """Of the store's file system, behind the daemon's back; not below what is in use."""
    path = f'{machine.runtime}/store'

    def is_resized():
        status = os.statvfs(path)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        command = ['mount', '-o', f'remount,size={max(size_bytes, used + 4096)}', path]
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0

    wait_for(is_resized, 'a moment in which no more comes')


def full_store(role):
    """Somebody else takes the room during each of the calls."""
    with vmm.machine(vram='512M', options=',pool=0') as machine:
        if (f'{machine.runtime}/store', 'tmpfs') not in harness.mounts():
            raise harness.Skip('the daemon cannot mount a store of its own')
        demo = vmm.demo(machine, *EVERY_KIND)
        vmm.cycle(machine, demo)
        calls = vmm.calls(machine, demo, role, 'freeze')
        machine.must(demo.pid, 'thaw')
        results = []
        for call in calls:
            machine.wait_status(demo.pid, 'verb', '-')
            machine.watch_faults()
            machine.faults(f'{call} {vmm.ROLES[role]} times=1 delay_ms={DELAY_MSEC}')
            writer = machine.writer(demo.pid, 'freeze')
            wait_for(lambda: machine.faulted() or not writer.is_waiting(), 'the call')
            resize(machine, 4096)
            results.append(writer.result())
            machine.faults()
            check(results[-1] in ('ok', 'ENOSPC'), f'{call}: {results[-1]}')
            machine.wait_status(demo.pid, 'verb', '-')
            equal(machine.state(demo.pid), 'frozen' if results[-1] == 'ok' else 'running', call)
            resize(machine, 1 << 30)
            if results[-1] == 'ok':
                vmm.check_files(machine, demo)
                machine.must(demo.pid, 'thaw')
            else:
                runs_as_before(machine, demo)
            demo.wait_ticks(2)
        check('ENOSPC' in results, f'{calls}: {results}')
        vmm.cycle(machine, demo)


def test_store_full_in_the_programs_calls():
    same_for_both('room in the store')
    full_store('program')


def test_store_full_in_the_workers_calls():
    same_for_both('room in the store')
    full_store('worker')


# ---- descriptors

def limited(soft, hard=None):
    """The command that starts the demo with so many descriptors."""
    script = f'ulimit -Sn {soft}' + (f'; ulimit -Hn {hard}' if hard else '') + '; exec "$@"'
    return ['bash', '-c', script, 'bash', *vendor.RUN, *vendor.DEMO]


def test_few_descriptors_in_the_program():
    """One is needed for each allocation: what the hard limit forbids is refused."""
    with vmm.machine(vram='1G') as machine:
        demo = vmm.demo(machine, *MANY, command=limited(128, 160))
        for verb in ('freeze', 'freeze data', 'freeze'):
            equal(machine.write(demo.pid, verb), 'EOPNOTSUPP')
            check('limit of open files' in machine.error(demo.pid), machine.error(demo.pid))
            runs_as_before(machine, demo)
        demo.end()
        # The soft one makes way.
        demo = vmm.demo(machine, *MANY, command=limited(128, 4096))
        for _ in range(2 if harness.SLOW == 1 else 1):
            machine.must(demo.pid, 'freeze')
            check(vmm.check_files(machine, demo) >= 168 * MIB, 'bytes compared')
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks(2)
        equal(harness.read_file(f'/proc/{demo.pid}/limits').split('Max open files')[1].split()[0],
              '128', 'its soft limit afterwards')


def test_few_descriptors_in_the_daemon():
    """It and its workers have one for each allocation on thaw: refused, or done; never half."""
    same_for_both('descriptors of the daemon')
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))

    with vmm.machine(vram='1G', start=False) as machine:
        machine.start(preexec_fn=few)
        demo = vmm.demo(machine, *MANY)
        result = machine.write(demo.pid, 'freeze')
        if result == 'ok':
            check(vmm.check_files(machine, demo) >= 168 * MIB, 'bytes compared')
            result = machine.write(demo.pid, 'thaw')
            if result != 'ok':
                equal(machine.state(demo.pid), 'frozen')
                check('descriptor' in machine.error(demo.pid) or
                      'open files' in machine.error(demo.pid), machine.error(demo.pid))
                # Another daemon has more of them.
                equal(machine.stop(), 0)
                machine.start()
                machine.must(demo.pid, 'thaw')
        else:
            equal(result, 'EOPNOTSUPP', machine.error(demo.pid))
            runs_as_before(machine, demo)
        demo.wait_ticks(2)
        small = vmm.demo(machine, *SMALL)
        vmm.cycle(machine, small)


# ---- children

def test_forked_children_do_no_harm():
    """Forked before a freeze, and after a thaw, when there are descriptors to inherit."""
    with vmm.machine(worker_idle=1) as machine:
        early = vmm.demo(machine, *EVERY_KIND, '--children', 3)
        late = vmm.demo(machine, *SMALL, '--children', 3, '--fork-at', LATER)
        equal(len(children_of(early.pid)), 3)
        vmm.cycle(machine, late)
        check(not children_of(late.pid), 'it has not forked yet')
        os.kill(late.pid, signal.SIGUSR2)
        wait_for(lambda: len(children_of(late.pid)) == 3, 'its children')
        for _ in range(2):
            machine.must(None, f'freeze {early.pid} {late.pid}')
            equal(vmm.idle(machine), vmm.kept(machine), 'VRAM in use')
            vmm.check_files(machine, early)
            check(vmm.check_files(machine, late) >= 4 * MIB, 'bytes compared')
            machine.must(None, f'thaw {early.pid} {late.pid}')
            early.wait_ticks(2)
            late.wait_ticks(2)
        equal(len(children_of(early.pid)), 3)


def test_child_that_shares_a_descriptor():
    """By clone(2), behind the library's back: it is named, and once it is gone the freeze works."""
    with vmm.machine(worker_idle=1) as machine:
        demo = vmm.demo(machine, *SMALL, '--children', 1, '--clone', '--fork-at', LATER)
        vmm.cycle(machine, demo)
        check(not children_of(demo.pid), 'it has not forked yet')
        os.kill(demo.pid, signal.SIGUSR2)
        child = wait_for(lambda: children_of(demo.pid), 'its child')[0]
        for verb in ('freeze', 'freeze data'):
            equal(machine.write(demo.pid, verb), 'EOPNOTSUPP')
            check(f'child {child} (gpucr-demo)' in machine.error(demo.pid),
                  machine.error(demo.pid))
            runs_as_before(machine, demo)
        os.kill(child, signal.SIGKILL)
        wait_for(lambda: not harness.is_alive(child), 'the child to end')
        machine.must(demo.pid, 'freeze')
        equal(vmm.idle(machine), vmm.kept(machine), 'VRAM in use')
        check(vmm.check_files(machine, demo) >= 4 * MIB, 'bytes compared')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks(2)


# ---- without a daemon

def test_daemon_that_comes_later():
    """Programs go on without one; it serves them when it is there, goes, and comes back."""
    same_for_both('how a library looks for a daemon')
    with vmm.machine(vram='512M', start=False) as machine:
        demos = [machine.ready_demo('--list', *EVERY_KIND),
                 machine.ready_demo('--list', *SMALL, '--threads', 1),
                 machine.ready_demo('--list', *SMALL, '--capture', 1, '--async', 2)]
        for demo in demos:
            demo.wait_ticks(5)
            equal([line for line in demo.words().split('\n')
                   if line and not line.startswith('buffer ')], [], 'what it says')
        for _ in range(2):
            machine.start()
            for demo in demos:
                wait_for(lambda: demo.pid in machine.pids() and
                         machine.status(demo.pid)['engine'] == vendor.ENGINE, 'its library')
                machine.must(demo.pid, 'freeze')
                vmm.check_files(machine, demo)
                machine.must(demo.pid, 'thaw')
                demo.wait_ticks(2)
            equal(machine.stop(), 0)
            for demo in demos:
                demo.wait_ticks(3)
        demos[0].end()
        equal(demos[0].popen.returncode in (0, -signal.SIGTERM), True, 'how it ended')


# ---- several at once

def test_several_at_once_byte_by_byte():
    """On two GPUs, of every kind; then all or none, when one of them cannot be frozen."""
    with vmm.machine(vram='512M', gpus=2) as machine:
        demos = [vmm.demo(machine, *EVERY_KIND), vmm.demo(machine, *EVERY_KIND, '--gpu', 1),
                 vmm.demo(machine, *EVERY_KIND, '--gpus', 2),
                 vmm.demo(machine, *SMALL, '--threads', 2)]
        pids = ' '.join(str(demo.pid) for demo in demos)
        for verb in ('freeze', 'freeze data'):
            machine.must(None, f'{verb} {pids}')
            for demo in demos:
                check(vmm.check_files(machine, demo) >= 4 * MIB, 'bytes compared')
            machine.must(None, f'thaw {pids}')
            for demo in demos:
                demo.wait_ticks(2)
        busy = vmm.demo(machine, '--spin', 3, '--tick', 20)
        busy.wait_ticks(4)
        equal(machine.write(None, f'freeze timeout={harness.SLOW} {pids} {busy.pid}'), 'ETIMEDOUT')
        for demo in [*demos, busy]:
            runs_as_before(machine, demo)
        os.kill(busy.pid, signal.SIGUSR1)
        machine.must(None, f'freeze {pids} {busy.pid}')
        machine.must(None, f'thaw {pids} {busy.pid}')
        for demo in [*demos, busy]:
            demo.wait_ticks(2)


def test_room_for_the_driver_after_a_thaw():
    """The driver's figures leave imported memory out: what the driver needs itself is known in a
    second freeze too. Without room for that its restore would lose the process."""
    harness.needs_cuda('a restore by the driver')
    with vmm.machine(vram='1G') as machine:
        demo = vmm.demo(machine, '--bytes', '256M', '--buffers', 1, '--blocks', 100,
                        '--block-bytes', '1M')
        machine.must(demo.pid, 'freeze')
        held_bytes = machine.status(demo.pid)['held_bytes']
        machine.must(demo.pid, 'thaw')
        machine.must(demo.pid, 'freeze')
        equal(machine.status(demo.pid)['held_bytes'], held_bytes, 'what a thaw needs')
        # Room for what has been moved, but not for the rest.
        other = vmm.demo(machine, '--bytes', '644M', '--buffers', 1)
        equal(machine.write(demo.pid, 'thaw'), 'ENOMEM', machine.error(demo.pid))
        equal(machine.state(demo.pid), 'frozen')
        other.end()
        machine.must(demo.pid, 'thaw')
        vmm.cycle(machine, demo)


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
