# SPDX-License-Identifier: MIT
"""A user stops his own process in the middle of its verb, at each call that it makes in it. Others'
verbs on the same GPU go through meanwhile; the stopped process loses nothing: it goes on, or ends,
and then nothing of it is held any more."""
import itertools
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
import vendor
import vmm
from harness import check, equal, wait_for
from test_exchange import swap

# One user's, and another's.
ATTACKER, OTHER = 65533, 65532
# What others wait for at most: until the process is seen to be stopped, and their own work.
BOUND_SEC = 12 * harness.SLOW
LARGE = ('--bytes', '6M', '--buffers', 2, '--own-vmm', 1, '--tick', 5)
SMALL = ('--bytes', '4M', '--buffers', 2, '--tick', 5)
HELD = ('admissions', 'needs', 'workers', 'workers_aside')


def held(machine):
    """What root sees of who holds what: key to pids."""
    status = machine.status_of_all()
    return {key: [int(entry.split(':')[1]) for entry in status[key].split() if entry != '-']
            for key in HELD}


def wait_released(machine):
    wait_for(lambda: not any(held(machine).values()), 'nothing to be held')


def program(machine, uid, *arguments, **options):
    return vmm.demo(machine, *(arguments or SMALL), uid=uid, **options)


def is_stopped(pid):
    """By a signal; what the daemon has stopped for managed memory is another state."""
    return any(harness.read_file(f'/proc/{pid}/task/{thread}/stat').rpartition(')')[2].split()[0] == 'T'
               for thread in os.listdir(f'/proc/{pid}/task'))


# Who freezes, and who thaws.
OTHERS_TURNS = itertools.cycle(([(None, 'freeze'), (OTHER, 'thaw')], [(OTHER, 'freeze'), (None, 'thaw')]))


def others_go_on(machine, other):
    """A freeze and a thaw by another user, and one by root, each within the bound. Usually one of
    the two by each of them, the other way round the next time."""
    by_both = [(OTHER, 'freeze'), (OTHER, 'thaw'), (None, 'freeze'), (None, 'thaw')]
    for uid, verb in harness.few(next(OTHERS_TURNS), by_both):
        writer = machine.writer(other.pid, verb, uid=uid)
        equal(writer.result(BOUND_SEC), 'ok', f'{verb}: {machine.error(other.pid)}')
    other.wait_ticks(2)


def stop_at(machine, demo, verb, rule, more='', uid=ATTACKER):
    """Begin @verb, and let the process be stopped at the call of @rule."""
    vmm_other = vmm.other(verb)
    machine.must(demo.pid, vmm_other)
    machine.watch_faults()
    machine.faults(f'{rule} pid={demo.pid} action=stop')
    writer = machine.writer(demo.pid, verb + more, uid=uid)
    wait_for(lambda: machine.faulted() or not writer.is_waiting(), f'{rule} in {verb}')
    if not machine.faulted():
        machine.faults()
        equal(writer.result(), 'ok', rule)
        return None  # a call that is not made each time
    wait_for(lambda: is_stopped(demo.pid), f'{demo.pid} to be stopped')
    machine.faults()
    return writer


def go_on(machine, demo, verb, writer, words):
    """The stopped process goes on: its verb ends well, or is rolled back."""
    os.kill(demo.pid, signal.SIGCONT)
    result = writer.result()
    check(result in ('ok', 'ETIMEDOUT'), f'{words}: {result}: {machine.error(demo.pid)}')
    machine.wait_status(demo.pid, 'verb', '-')
    if result == 'ok':
        equal(machine.state(demo.pid), {'freeze': 'frozen', 'thaw': 'running'}[verb], words)
    vmm.recover(machine, demo)
    wait_released(machine)


def calls(machine, demo, verb):
    """All calls of the process in a verb: those of the library, and those of the driver in it."""
    machine.must(demo.pid, vmm.other(verb))
    rules = [f'{call} {vmm.ROLES["program"]} nth=1'
             for call in vmm.calls(machine, demo, 'program', verb)]
    steps = {'freeze': ('Lock', 'Checkpoint'), 'thaw': ('Restore', 'Unlock')}[verb]
    return rules + ([] if vendor.HIP else [f'cuCheckpointProcess{step} nth=1' for step in steps])


def check_each_call(verb, number, more=''):
    """At each call: stopped, the others go on, and it goes on (@number 0) or is killed; usually one of
    the two at each, in turns."""
    with vmm.machine(vram='512M') as machine:
        other = program(machine, OTHER)
        demo = program(machine, ATTACKER, *LARGE)
        vmm.cycle(machine, demo)
        rules = calls(machine, demo, verb)
        if len(rules) >= 10:  # on AMD there are few
            rules = harness.few(rules[bool(number)::2], rules)
        count = 0
        for rule in rules:
            writer = stop_at(machine, demo, verb, rule, more)
            if not writer:
                continue
            count += 1
            others_go_on(machine, other)
            if not number:
                go_on(machine, demo, verb, writer, rule)
                continue
            demo.end(number)
            # A call after its last answer is none in the verb.
            check(writer.result() in ('ok', 'ESRCH', 'ETIMEDOUT'), f'{rule}: {writer.result()}')
            wait_for(lambda: demo.pid not in machine.pids(), 'it to be gone')
            wait_released(machine)
            others_go_on(machine, other)
            demo = program(machine, ATTACKER, *LARGE)
        check(count >= 3, f'{count} of {rules}')
        vmm.recover(machine, demo)
        vmm.cycle(machine, demo)


def test_freeze_goes_on():
    check_each_call('freeze', 0)


def test_thaw_goes_on():
    check_each_call('thaw', 0)


def test_freeze_killed():
    check_each_call('freeze', signal.SIGKILL)


def test_thaw_killed():
    check_each_call('thaw', signal.SIGKILL)


def test_late_and_goes_on():
    """The deadline has passed when it goes on: all is as it was before."""
    with vmm.machine(vram='512M') as machine:
        other = program(machine, OTHER)
        demo = program(machine, ATTACKER, *LARGE)
        for verb, rule in (('freeze', f'cuMemExportToShareableHandle {vmm.ROLES["program"]} nth=1'),
                           ('thaw', f'cuMemMap {vmm.ROLES["program"]} nth=1')):
            writer = stop_at(machine, demo, verb, rule, f' timeout={harness.SLOW}')
            equal(writer.result(), 'ETIMEDOUT')
            others_go_on(machine, other)
            os.kill(demo.pid, signal.SIGCONT)
            machine.wait_status(demo.pid, 'verb', '-')
            equal(machine.state(demo.pid), {'freeze': 'running', 'thaw': 'frozen'}[verb],
                  machine.error(demo.pid))
            vmm.recover(machine, demo)
            wait_released(machine)


def test_between_the_calls():
    """In phases in which it calls nothing: while the worker copies, so that the end of the freeze
    is not answered, or the memory not taken."""
    with vmm.machine(vram='512M') as machine:
        other = program(machine, OTHER)
        demo = program(machine, ATTACKER, *LARGE)
        for verb, call in (('freeze', 'cuMemImportFromShareableHandle'),
                           ('freeze', 'cuMemcpyDtoHAsync'), ('thaw', 'cuMemCreate'),
                           ('thaw', 'cuMemcpyHtoDAsync')):
            machine.must(demo.pid, vmm.other(verb))
            machine.watch_faults()
            machine.faults(f'{call} comm=gpucr-worker nth=1 delay_ms={1500 * harness.SLOW}')
            writer = machine.writer(demo.pid, verb, uid=ATTACKER)
            machine.wait_faulted()
            machine.stop_process(demo.pid)
            machine.faults()
            others_go_on(machine, other)
            go_on(machine, demo, verb, writer, call)


def test_status_says_who():
    """Root sees who holds what, since when and in which phase; other users do not."""
    with vmm.machine(vram='512M') as machine:
        other = program(machine, OTHER)
        demo = program(machine, ATTACKER, *LARGE)
        wait_released(machine)
        writer = stop_at(machine, demo, 'freeze',
                         f'cuMemExportToShareableHandle {vmm.ROLES["program"]} nth=1')
        equal(held(machine)['workers'], [demo.pid])
        entry = machine.status_of_all()['workers'].split(':')
        equal(entry[:3], ['0', str(demo.pid), 'handover'])
        wait_for(lambda: held(machine)['workers_aside'] == [demo.pid], 'it to be set aside')
        equal(held(machine)['workers'], [])
        check(int(machine.status_of_all()['workers_aside'].split(':')[3]) > 0, 'since when')
        check('it is stopped in the phase `handover` of its freeze' in machine.log(), machine.log())
        pid = os.fork()
        if not pid:
            os.setgid(OTHER)
            os.setuid(OTHER)
            os._exit(0 if all(value == '-' for key, value in machine.status_of_all().items()
                              if key in HELD) else 1)
        equal(os.waitpid(pid, 0)[1], 0, 'another user sees it')
        others_go_on(machine, other)
        go_on(machine, demo, 'freeze', writer, 'export')


def test_seen_without_helpers():
    """That it is stopped is seen though what looks at processes does not answer, as on a machine that
    is too busy."""
    with vmm.machine(vram='512M') as machine:
        demo = program(machine, ATTACKER, *LARGE)
        writer = stop_at(machine, demo, 'freeze',
                         f'cuMemExportToShareableHandle {vmm.ROLES["program"]} nth=1')

        def is_aside():
            for pid in machine.lookers():
                harness.try_kill(pid, signal.SIGSTOP)
            return held(machine)['workers_aside'] == [demo.pid]

        wait_for(is_aside, 'it to be set aside')
        check('it is stopped in the phase' in machine.log(), machine.log())
        for pid in machine.lookers():
            harness.try_kill(pid, signal.SIGKILL)
        os.kill(demo.pid, signal.SIGCONT)
        # It, and we who write, are looked at again after a while.
        wait_for(lambda: machine.write(demo.pid, 'cancel') not in ('ESRCH', 'ETIMEDOUT'),
                 'writers to be seen')
        result = writer.result()
        # Its library may be looked at before that works again.
        check(result in ('ok', 'ECANCELED') or (result == 'EIO' and
              'freeze: EIO: the page of its preload library cannot be read' in machine.log()),
              f'{result}: {machine.log()}')
        vmm.recover(machine, demo)
        wait_released(machine)


def test_need_is_kept():
    """What a restore has yet to take others do not get: it would be lost without it. Another thaw
    that would fit is refused, and done when the restore is over."""
    harness.needs_cuda('a restore by the driver')
    with harness.Machine(vram='200M', worker_idle=0) as machine:
        demo = machine.ready_demo('--bytes', '80M', '--buffers', 1, uid=ATTACKER)
        other = machine.ready_demo('--bytes', '60M', '--buffers', 1, uid=OTHER)
        machine.must(other.pid, 'freeze')
        writer = stop_at(machine, demo, 'thaw', 'cuCheckpointProcessRestore nth=1')
        wait_for(lambda: held(machine)['needs'] == [demo.pid], 'its need to be noted')
        equal(held(machine)['admissions'], [])
        second = machine.writer(other.pid, 'thaw', uid=OTHER)
        equal(second.result(BOUND_SEC), 'ENOMEM')
        check('kept for a process which stands still' in machine.error(other.pid),
              machine.error(other.pid))
        equal(machine.state(other.pid), 'frozen')
        os.kill(demo.pid, signal.SIGCONT)
        equal(writer.result(), 'ok', machine.error(demo.pid))
        demo.wait_ticks(2)
        wait_released(machine)
        machine.must(demo.pid, 'freeze')
        machine.must(other.pid, 'thaw')
        other.wait_ticks(2)


def test_need_ends_with_the_process():
    harness.needs_cuda('a restore by the driver')
    with harness.Machine(vram='200M', worker_idle=0) as machine:
        demo = machine.ready_demo('--bytes', '80M', '--buffers', 1, uid=ATTACKER)
        other = machine.ready_demo('--bytes', '60M', '--buffers', 1, uid=OTHER)
        machine.must(other.pid, 'freeze')
        writer = stop_at(machine, demo, 'thaw', 'cuCheckpointProcessRestore nth=1')
        wait_for(lambda: held(machine)['needs'] == [demo.pid], 'its need to be noted')
        demo.end(signal.SIGKILL)
        check(writer.result() in ('ESRCH', 'ETIMEDOUT'), 'the writer of a process that was killed')
        wait_released(machine)
        machine.must(other.pid, 'thaw')
        other.wait_ticks(2)


def test_driver_engine():
    """Each of the driver's steps, which it carries out in the process."""
    harness.needs_cuda('there is no engine driver')
    with harness.Machine(vram='512M') as machine:
        demo = machine.ready_demo('--bytes', '16M', '--tick', 5, uid=ATTACKER)
        other = machine.ready_demo('--bytes', '8M', '--tick', 5, uid=OTHER)
        for verb, step in (('freeze', 'Lock'), ('freeze', 'Checkpoint'), ('thaw', 'Restore'),
                           ('thaw', 'Unlock')):
            writer = stop_at(machine, demo, verb, f'cuCheckpointProcess{step} nth=1')
            others_go_on(machine, other)
            go_on(machine, demo, verb, writer, step)


def test_freeze_data():
    """The context stays: there are no steps of the driver."""
    with vmm.machine(vram='512M') as machine:
        other = program(machine, OTHER)
        demo = program(machine, ATTACKER, *LARGE)
        for call in ('cuMemExportToShareableHandle', 'cuMemUnmap'):
            writer = stop_at(machine, demo, 'freeze', f'{call} {vmm.ROLES["program"]} nth=1',
                             ' data')
            others_go_on(machine, other)
            go_on(machine, demo, 'freeze', writer, call)
        machine.must(demo.pid, 'freeze data')
        machine.watch_faults()
        machine.faults(f'cuMemMap {vmm.ROLES["program"]} nth=1 pid={demo.pid} action=stop')
        writer = machine.writer(demo.pid, 'thaw', uid=ATTACKER)
        machine.wait_faulted()
        machine.faults()
        others_go_on(machine, other)
        go_on(machine, demo, 'thaw', writer, 'map')


def check_exchange(machine, other, demos, stuck_is_frozen, rule, number=0):
    """One of an exchange is stopped: others go on; afterwards one of the two is in VRAM. Returns those
    of the two that are left."""
    frozen, running = demos
    machine.must(frozen.pid, 'freeze')
    stuck = frozen if stuck_is_frozen else running
    machine.watch_faults()
    machine.faults(f'{rule} pid={stuck.pid} action=stop')
    writer = machine.writer(frozen.pid, swap(running), uid=ATTACKER)
    machine.wait_faulted()
    machine.faults()
    others_go_on(machine, other)
    if number:
        stuck.end(number)
    else:
        os.kill(stuck.pid, signal.SIGCONT)
    result = writer.result()
    left = [demo for demo in (running, frozen) if demo is not stuck or not number]
    for demo in left:
        machine.wait_status(demo.pid, 'verb', '-')
        check(machine.state(demo.pid) in ('running', 'frozen'), machine.error(demo.pid))
    if not number:
        equal(sorted(machine.state(demo.pid) for demo in left), ['frozen', 'running'], result)
    wait_released(machine)
    for demo in left:
        vmm.recover(machine, demo)
    return left


def check_exchanges(number=0):
    """At each call, usually at every other one: stopped, and goes on (@number 0) or is killed."""
    rules = exchange_rules()
    with vmm.machine(vram='512M') as machine:
        other = program(machine, OTHER)
        demos = []
        for stuck_is_frozen, rule in harness.few(rules[bool(number)::2], rules):
            demos += [program(machine, ATTACKER, *LARGE) for _ in range(2 - len(demos))]
            demos = check_exchange(machine, other, demos, stuck_is_frozen, rule, number)


def exchange_rules():
    program = vmm.ROLES['program']
    rules = [(False, f'cuMemExportToShareableHandle {program} nth=1'),
             (False, f'cuMemUnmap {program} nth=1'),
             (True, f'cuMemImportFromShareableHandle {program} nth=1'),
             (True, f'cuMemMap {program} nth=1')]
    if not vendor.HIP:
        rules += [(False, f'cuCtxRecordEvent {program} nth=1'),
                  (False, 'cuCheckpointProcessLock nth=1'),
                  (False, 'cuCheckpointProcessCheckpoint nth=1'),
                  (True, 'cuCheckpointProcessRestore nth=1'),
                  (True, 'cuCheckpointProcessUnlock nth=1')]
    return rules


def test_exchange_goes_on():
    check_exchanges()


def test_exchange_killed():
    check_exchanges(signal.SIGKILL)


def test_managed_memory_for_long():
    """Its threads are held while managed memory comes back. Time in which all of it is stopped does
    not count for that: as it goes on, they do not see what is half done."""
    harness.needs_cuda('managed memory')
    with vmm.machine(vram='512M') as machine:
        other = program(machine, OTHER)
        demo = program(machine, None, *LARGE, '--managed', 2)  # which others may not freeze
        writer = stop_at(machine, demo, 'thaw', f'cuMemcpyHtoD {vmm.ROLES["program"]} nth=1',
                         uid=None)
        others_go_on(machine, other)
        wait_for(lambda: int(machine.status(demo.pid)['verb_elapsed_usec']) >
                 25000000 * harness.SLOW, 'it to be late')
        go_on(machine, demo, 'thaw', writer, 'managed memory')


def test_thaw_of_a_stopped_one():
    """It could not answer: that is said at once, and the thaw works when it goes on."""
    with vmm.machine() as machine:
        demo = program(machine, ATTACKER, *LARGE)
        machine.must(demo.pid, 'freeze')
        machine.stop_process(demo.pid)
        writer = machine.writer(demo.pid, 'thaw', uid=ATTACKER)
        equal(writer.result(BOUND_SEC), 'EOPNOTSUPP')
        check(f'continue it (kill -CONT {demo.pid})' in machine.error(demo.pid),
              machine.error(demo.pid))
        equal(machine.state(demo.pid), 'frozen')
        os.kill(demo.pid, signal.SIGCONT)
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks(2)


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
