# SPDX-License-Identifier: MIT
"""What a script reads in status: bytes and durations of the last verbs, what is held, since when a
program is idle, and how full the store is."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import MIB, Machine, check, equal, needs_cuda, same_for_both, wait_for

FREEZE_PARTS = ['gate', 'handover', 'copy', 'control']
THAW_PARTS = ['copy', 'control', 'handover', 'map']
# In which there is something to do for the fast engine.
MOVED = {'freeze': ['gate', 'handover', 'copy', 'control'],
         'thaw': ['copy', 'control', 'handover', 'map']}
if vendor.HIP:
    for parts_of_a_verb in MOVED.values():
        parts_of_a_verb.remove('control')
NEVER = {f'last_{key}': '0' for key in (
    'freeze_usec', 'freeze_bytes', *(f'freeze_{part}_usec' for part in FREEZE_PARTS),
    'thaw_usec', 'thaw_bytes', *(f'thaw_{part}_usec' for part in THAW_PARTS))}
IDLE_MOST_MS = 1000 * harness.SLOW


def figures(machine, pid, verb):
    """Bytes, parts; each part is at most the whole."""
    status = machine.status(pid)
    whole = int(status[f'last_{verb}_usec'])
    check(whole > 0, f'{verb}: {whole}')
    parts = {part: int(status[f'last_{verb}_{part}_usec'])
             for part in (FREEZE_PARTS if verb == 'freeze' else THAW_PARTS)}
    for part, usec in parts.items():
        check(0 <= usec <= whole, f'{verb}: {part} {usec} of {whole}')
    return int(status[f'last_{verb}_bytes']), parts


def subset(status, keys):
    return {key: status[key] for key in keys}


def vram_of(machine, pid):
    return wait_for(lambda: int(machine.status(pid)['vram_bytes']), 'its VRAM')


def test_vmm():
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 3)
        equal(subset(machine.status(demo.pid), NEVER), NEVER)
        before = vram_of(machine, demo.pid)
        machine.must(demo.pid, 'freeze')
        moved, parts = figures(machine, demo.pid, 'freeze')
        equal(moved, sum(vmm.files(machine, demo.pid).values()))
        check(24 * MIB <= moved < before, moved)
        for part in MOVED['freeze']:
            check(parts[part] > 0, parts)
        status = machine.status(demo.pid)
        # The files, and what the driver keeps; on AMD that stays in VRAM.
        kept = machine.kept(demo.pid)
        equal([status['vram_bytes'], status['held_bytes']], [str(kept), str(before - kept)])
        machine.must(demo.pid, 'thaw')
        equal(machine.status(demo.pid)['held_bytes'], '0')
        equal(vram_of(machine, demo.pid), before)
        again, parts = figures(machine, demo.pid, 'thaw')
        equal(again, moved)
        for part in MOVED['thaw']:
            check(parts[part] > 0, parts)
        equal(figures(machine, demo.pid, 'freeze')[0], moved, 'the last freeze is still known')


def test_parts_at_the_same_time():
    """The copy counts from its beginning, not from the end of the driver's checkpoint."""
    needs_cuda('control state, which AMD leaves where it is')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 3)
        for verb, copy, control in (
                ('freeze', 'cuMemcpyDtoHAsync_v2', 'cuCheckpointProcessCheckpoint'),
                ('thaw', 'cuMemcpyHtoDAsync_v2', 'cuCheckpointProcessRestore')):
            machine.faults(f'{copy} comm=gpucr-worker delay_ms=50', f'{control} delay_ms=700')
            machine.must(demo.pid, verb)
            _, parts = figures(machine, demo.pid, verb)
            check(parts['copy'] >= 150000 and parts['control'] >= 700000, f'{verb}: {parts}')


def test_maps():
    """While it is frozen: each file, and what the driver holds."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 3,
                        *vendor.MANAGED)
        rows = [line.split() for line in machine.read(demo.pid, 'maps').splitlines()]
        equal([row[:3] + row[4:] for row in rows], [['-', '0', 'driver', '0', '-']])
        machine.must(demo.pid, 'freeze')
        rows = [line.split() for line in machine.read(demo.pid, 'maps').splitlines()]
        found = {}
        for span, gpu, kind, size, held, dirty in rows if vendor.HIP else rows[:-1]:
            start, end = (int(number, 16) for number in span.split('-'))
            equal([end - start, gpu, held, dirty], [int(size), '0', size, '-'], span)
            found[f'managed-{start:x}' if kind == 'managed' else f'gpu0-{start:x}'] = int(size)
        equal(found, vmm.files(machine, demo.pid))
        if not vendor.HIP:
            equal(rows[-1][:3], ['-', '0', 'driver'])
        equal(sum(int(row[4]) for row in rows), int(machine.status(demo.pid)['held_bytes']))
        machine.must(demo.pid, 'thaw')
        equal(len(machine.read(demo.pid, 'maps').splitlines()), 1)


def test_every_kind_is_held():
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '6M', '--buffers', 2, '--own-vmm', 2, *vendor.MANAGED,
                        '--pitch', 2, '--async', 2)
        machine.must(demo.pid, 'freeze')
        moved, _ = figures(machine, demo.pid, 'freeze')
        equal(moved, sum(vmm.files(machine, demo.pid).values()))
        check(int(machine.status(demo.pid)['held_bytes']) >= moved, 'what the driver has')
        machine.must(demo.pid, 'thaw')
        equal(figures(machine, demo.pid, 'thaw')[0], moved)


def test_vmm_data():
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 3)
        before = vram_of(machine, demo.pid)
        machine.must(demo.pid, 'freeze data')
        moved, parts = figures(machine, demo.pid, 'freeze')
        equal(moved, sum(vmm.files(machine, demo.pid).values()))
        equal(parts['control'], 0, 'the context stays')
        status = machine.status(demo.pid)
        equal(status['held_bytes'], str(moved))
        equal(status['vram_bytes'], str(before - moved))
        machine.must(demo.pid, 'thaw')
        again, parts = figures(machine, demo.pid, 'thaw')
        equal([again, parts['control']], [moved, 0])


def test_held_by_the_store_of_a_daemon_that_died():
    if not harness.is_root():
        raise harness.Skip('the store of who is not root may not be there any more')
    with vmm.machine() as machine:
        for verb in ('freeze', 'freeze data'):
            demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 3)
            used = vram_of(machine, demo.pid)
            machine.must(demo.pid, verb)
            before = subset(machine.status(demo.pid), ['held_bytes', 'vram_bytes', 'engine'])
            machine.stop(signal.SIGKILL)
            machine.start()
            machine.wait_status(demo.pid, 'verb', '-')
            equal(subset(machine.status(demo.pid), before), before, verb)
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
            # What came back is counted also by a daemon that has not seen it come.
            equal(vram_of(machine, demo.pid), used, verb)
            machine.stop(signal.SIGKILL)
            machine.start()
            wait_for(lambda: machine.status(demo.pid)['engine'] == vendor.ENGINE, 'its library')
            equal(vram_of(machine, demo.pid), used, verb)
            demo.end()


def test_driver():
    needs_cuda('the engine of the driver alone')
    with Machine() as machine:
        demo = machine.ready_demo('--bytes', '24M', '--buffers', 3)
        equal(subset(machine.status(demo.pid), NEVER), NEVER)
        before = vram_of(machine, demo.pid)
        machine.must(demo.pid, 'freeze')
        for verb in ('freeze', 'thaw'):
            moved, parts = figures(machine, demo.pid, verb)
            equal(moved, before)
            check(parts.pop('control') > 0, 'control')
            equal(set(parts.values()), {0}, 'what this engine has not')
            if verb == 'freeze':
                equal(machine.status(demo.pid)['held_bytes'], str(before))
                machine.must(demo.pid, 'thaw')


def test_a_verb_that_fails_changes_nothing():
    for fast in (True,) if vendor.HIP else (True, False):
        with Machine(vmm=fast) as machine:
            demo = machine.ready_demo()
            machine.wait_status(demo.pid, 'engine', vendor.ENGINE if fast else 'driver')
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
            before = subset(machine.status(demo.pid), NEVER)
            machine.failing('freeze')
            equal(machine.write(demo.pid, 'freeze'), 'EIO')
            equal(subset(machine.status(demo.pid), NEVER), before, 'a freeze')
            machine.faults()
            machine.must(demo.pid, 'freeze')
            before = subset(machine.status(demo.pid), NEVER)
            machine.failing('freeze')
            machine.must(demo.pid, 'freeze')
            equal(subset(machine.status(demo.pid), NEVER), before, 'nothing to do')
            machine.faults()
            machine.must(demo.pid, 'thaw')


def test_idle():
    same_for_both('threads')
    with Machine() as machine:
        demo = machine.ready_demo('--tick', 5)

        def idle_ms():
            value = machine.status(demo.pid)['idle_ms']
            return -1 if value == '-' else int(value)

        wait_for(lambda: 0 <= idle_ms() <= IDLE_MOST_MS, 'it works')
        os.kill(demo.pid, signal.SIGSTOP)
        wait_for(lambda: idle_ms() > IDLE_MOST_MS, 'it has done nothing for long')
        os.kill(demo.pid, signal.SIGCONT)
        wait_for(lambda: idle_ms() <= IDLE_MOST_MS, 'it works again')
        machine.must(demo.pid, 'freeze')
        wait_for(lambda: idle_ms() > IDLE_MOST_MS, 'nor does it while it is frozen')
        machine.must(demo.pid, 'thaw')


def test_not_known_without_the_library():
    with Machine() as machine:
        demo = machine.ready_demo(command=vendor.DEMO,
                                  env={'LD_LIBRARY_PATH': vendor.LIBRARIES})
        status = machine.status(demo.pid)
        equal([status['registered'], status['idle_ms']], ['no', '-'])
        equal([status['pool_bytes'], status['pool_ready_bytes'], status['pinned']],
              ['0', '0', 'no'])


def test_pool():
    with Machine(vmm=True, options=',pool=64M') as machine:
        demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 3)

        def ready():
            status = machine.status(demo.pid)
            check(int(status['pool_ready_bytes']) <= int(status['pool_bytes']), status)
            return status if status['pool_ready_bytes'] == status['pool_bytes'] != '0' else None

        wanted = int(wait_for(ready, 'its pool')['pool_bytes'])
        machine.must(demo.pid, 'freeze')
        equal(wanted, figures(machine, demo.pid, 'freeze')[0])
        status = machine.status(demo.pid)
        equal([status['pool_bytes'], status['pool_ready_bytes']], ['0', '0'], 'it is in use')
        # On AMD a worker that has imported memory ends with the freeze.
        in_freeze = 'no' if vendor.HIP else 'yes'
        machine.wait_status(demo.pid, 'pinned', in_freeze)
        machine.must(demo.pid, 'thaw')
        equal(int(wait_for(ready, 'its pool again')['pool_bytes']), wanted)
        machine.wait_status(demo.pid, 'pinned', 'yes')
        (worker,) = [pid for pid, comm in machine.helpers() if comm == 'gpucr-worker']
        os.kill(worker, signal.SIGKILL)
        machine.wait_status(demo.pid, 'pinned', 'no')
        machine.must(demo.pid, 'freeze')
        machine.wait_status(demo.pid, 'pinned', in_freeze)


def test_store():
    same_for_both('the store')
    with Machine(vmm=True, options=',store_size=128M,pool=32M') as machine:
        def store():
            status = machine.status_of_all()
            found = {key: int(status[key]) for key in (
                'store_bytes', 'store_used_bytes', 'store_free_bytes', 'store_reserve_bytes',
                'pool_bytes',
                'pool_used_bytes')}
            equal(found['store_used_bytes'] + found['store_free_bytes'] +
                  found['store_reserve_bytes'], found['store_bytes'])
            check(found['pool_used_bytes'] <= found['store_used_bytes'], found)
            return found

        equal(store(), {'store_bytes': 128 * MIB, 'store_used_bytes': 0,
                        'store_free_bytes': 120 * MIB, 'store_reserve_bytes': 8 * MIB,
                        'pool_bytes': 32 * MIB,
                        'pool_used_bytes': 0})
        check(machine.status_of_all()['store_survives_restart'] in ('yes', 'no'), 'survives')
        demo = vmm.demo(machine, '--bytes', '24M', '--buffers', 3)
        wait_for(lambda: store()['pool_used_bytes'] >= 24 * MIB, 'the pool')
        equal(store()['store_used_bytes'], store()['pool_used_bytes'])
        machine.must(demo.pid, 'freeze')
        held = sum(vmm.files(machine, demo.pid).values())
        found = store()
        # Its files went to the freeze, but for what it had more than that by then.
        check(found['pool_used_bytes'] <= 8 * MIB, found)
        check(held <= found['store_used_bytes'] <= held + 8 * MIB, found)
        metrics = {}
        for line in machine.read('metrics').splitlines():
            if not line.startswith('#'):
                name, _, value = line.rpartition(' ')
                metrics[name] = float(value)
        for key, value in found.items():
            equal(metrics[f'gpucrfs_{key}'], value, key)
        equal(metrics['gpucrfs_store_survives_restart'],
              machine.status_of_all()['store_survives_restart'] == 'yes')
        equal(metrics['gpucrfs_verb_bytes_total{verb="freeze"}'], held)
        equal(metrics['gpucrfs_verb_bytes_total{verb="thaw"}'], 0)
        machine.must(demo.pid, 'thaw')
        wait_for(lambda: store()['store_used_bytes'] == store()['pool_used_bytes'], 'it to go')


def test_no_pool_wanted():
    same_for_both('the store')
    with Machine(vmm=True) as machine:
        status = machine.status_of_all()
        equal([status['pool_bytes'], status['pool_used_bytes']], ['0', '0'])
        demo = vmm.demo(machine)
        vmm.cycle(machine, demo)
        equal(machine.status(demo.pid)['pool_bytes'], '0')


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
