# SPDX-License-Identifier: MIT
"""gpucr-swap: programs out of the GPU and in again, by hand, and by `watch` as they need it; and what
it goes by: wanted_usec in status, the event `wanted`."""
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import Machine, Output, check, equal, wait_for
from test_without_nvml import WithoutNvml

SWAP = f'{harness.BUILD}/tools/gpucr-swap'
TURNS = int(os.environ.get('GPUCR_TEST_TURNS', '60' if harness.SLOW == 1 else '30'))
# A model takes 60 % of the GPU; contexts, ours among them, and small allocations some of the rest.
SMALL = {'vram': '20M', 'vmm': True, 'env': {'GPUCR_SIM_CONTEXT_BYTES': '64K'}}
MODEL = ('--bytes', '12M', '--buffers', 2, '--tick', 40)
LONG = '3600'  # nobody is idle for so long


class Swap:
    """gpucr-swap watch."""

    def __init__(self, machine, *arguments):
        self.machine = machine
        self.errors_path = f'{machine.directory}/swap-{len(machine.others)}'
        with open(self.errors_path, 'w', encoding='utf-8') as errors:
            self.popen = subprocess.Popen(
                [SWAP, 'watch', *map(str, arguments)], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(machine),
                preexec_fn=harness.end_with_us(signal.SIGTERM))
        self.output = Output(self.popen.stdout)
        machine.others.append(self)

    def words(self):
        return harness.read_file(self.errors_path)

    def count(self, pattern):
        return sum(bool(re.search(pattern, line)) for line in list(self.output.lines))

    def wait(self, pattern, count=1, seconds=None):
        """Until so many lines say so."""
        self.output.wait(lambda lines: sum(bool(re.search(pattern, line)) for line in lines) >= count,
                         f'{count} times {pattern!r} of gpucr-swap', seconds)

    def wait_words(self, pattern):
        wait_for(lambda: re.search(pattern, self.words()), f'{pattern!r} of gpucr-swap')

    def end(self, number=signal.SIGINT):
        self.popen.send_signal(number)
        return self.popen.wait(harness.PATIENCE_SEC)

    def finish(self):
        if self.popen.poll() is None:
            sys.stderr.write(f'--- gpucr-swap\n{self.output.lines[-10:]}\n{self.words()}\n')
            self.popen.terminate()
            self.popen.wait()


def environment(machine):
    return {**machine.env, 'GPUCR_MOUNT': machine.mountpoint}


def swap(machine, *arguments):
    """Returns its exit status, what it prints, and what it complains of."""
    done = subprocess.run([SWAP, *map(str, arguments)], env=environment(machine), text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False,
                          timeout=harness.PATIENCE_SEC * 3)
    return done.returncode, done.stdout, done.stderr


def must_swap(machine, *arguments):
    status, output, words = swap(machine, *arguments)
    equal((status, words), (0, ''), ' '.join(map(str, arguments)))
    return output


def wanted(machine, pid):
    return int(machine.status(pid)['wanted_usec'])


def frozen_models(machine, count=3):
    """They cannot all be there: each goes as soon as it is."""
    demos = []
    for _ in range(count):
        demos.append(machine.ready_demo(*MODEL))
        machine.must(demos[-1].pid, 'freeze data')
    return demos


# ---- who wants ----

def test_wanted():
    with Machine(vmm=True) as machine:
        demo = machine.ready_demo()
        events = machine.events()
        its_events = machine.events(demo.pid)
        for verb in ('freeze data', 'freeze'):
            equal(wanted(machine, demo.pid), 0, 'while it runs')
            start = len(events.lines())
            machine.must(demo.pid, verb)
            line = events.wait(rf' {demo.pid} \S+ wanted$', start=start)
            line = line.partition(' ')[2]
            equal(line.split()[1], machine.status(demo.pid)['generation'])
            check(any(own.endswith(line) for own in its_events.lines()), 'not in its own events')
            check(wanted(machine, demo.pid) >= int(machine.status(demo.pid)['state_since_usec']),
                  'not before it was frozen')
            machine.must(demo.pid, 'thaw')
            equal(wanted(machine, demo.pid), 0, 'when it runs again')
            demo.wait_ticks()
        equal(sum(line.endswith(' wanted') for line in events.lines()), 2, 'once a freeze')
        events.close()
        its_events.close()


def test_who_does_not_want():
    """One that leaves the GPU alone, and begins to want it when it is frozen."""
    with Machine(vmm=True) as machine:
        demo = machine.ready_demo('--tick', 4000 * harness.SLOW)
        demo.wait_ticks(1)
        events = machine.events()
        machine.must(demo.pid, 'freeze data')
        equal(wanted(machine, demo.pid), 0, 'nobody is at the gate')
        events.wait(rf' {demo.pid} \S+ wanted$')
        check(wanted(machine, demo.pid) > int(machine.status(demo.pid)['state_since_usec']),
              'later than it was frozen')
        machine.must(demo.pid, 'thaw')
        events.close()


def test_rolled_back():
    """Who had to wait for a freeze that failed has not wanted anything."""
    with Machine(vmm=True) as machine:
        demo = machine.ready_demo()
        events = machine.events()
        machine.failing('freeze')
        equal(machine.write(demo.pid, 'freeze'), 'EIO')
        machine.faults()
        demo.wait_ticks()
        equal(wanted(machine, demo.pid), 0)
        check(not any(line.endswith(' wanted') for line in events.lines()), 'nor was it told')
        events.close()


def test_daemon_restarts():
    """The next daemon is told too."""
    with Machine(vmm=True) as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze data')
        wait_for(lambda: wanted(machine, demo.pid), 'the gate to be come to')
        machine.expects_clean_exit = False
        machine.stop(signal.SIGKILL)
        subprocess.run(['umount', '-l', machine.mountpoint], check=False)
        machine.start()
        machine.expects_clean_exit = True
        events = machine.events()
        events.wait(rf' {demo.pid} \S+ wanted$')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()
        events.close()


def test_without_library():
    harness.needs_cuda('there is no engine driver')
    with Machine() as machine:
        demo = machine.ready_demo()
        equal(machine.status(demo.pid)['wanted_usec'], '-')
        machine.must(demo.pid, 'freeze')
        equal(machine.status(demo.pid)['wanted_usec'], '-')
        machine.must(demo.pid, 'thaw')


# ---- by hand ----

def test_by_hand():
    with Machine(**{**SMALL, 'vram': '26M'}) as machine:
        first = machine.ready_demo(*MODEL)
        must_swap(machine, 'out', first.pid)
        equal(machine.state(first.pid), 'frozen')
        second = machine.ready_demo(*MODEL)
        since = wait_for(lambda: wanted(machine, first.pid), 'it to want its GPU')
        status, _, words = swap(machine, 'in', first.pid)
        equal(status, 1)
        check(words.startswith(f'gpucr-swap: thaw {first.pid}: ENOMEM: '), words)
        equal(wanted(machine, first.pid), since, 'after a thaw that has failed')
        must_swap(machine, second.pid, first.pid)
        equal((machine.state(first.pid), machine.state(second.pid)), ('running', 'frozen'))
        equal(wanted(machine, first.pid), 0)
        first.wait_ticks()
        # A place that is too small is given back.
        small = machine.ready_demo('--bytes', '2M', '--buffers', 1)
        status, _, words = swap(machine, small.pid, second.pid)
        equal(status, 1)
        check(words.endswith(f'gpucr-swap: {small.pid} has been thawed again\n'), words)
        equal((machine.state(small.pid), machine.state(second.pid)), ('running', 'frozen'))
        small.wait_ticks()
        # One that was out before stays so.
        must_swap(machine, 'out', small.pid)
        status, _, words = swap(machine, small.pid, second.pid)
        equal(status, 1)
        check('thawed again' not in words, words)
        equal((machine.state(small.pid), machine.state(second.pid)), ('frozen', 'frozen'))


def test_by_hand_is_interrupted():
    """In the middle of the thaw: both are as before."""
    harness.same_for_both('signals')
    with Machine(vmm=True) as machine:
        first = machine.ready_demo()
        must_swap(machine, 'out', '--full', first.pid)
        second = machine.ready_demo()
        rule, phase = vendor.step('thaw', f'delay_ms={2000 * harness.SLOW}', first.pid)
        machine.faults(rule)
        for number, expected in (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143):
            with subprocess.Popen([SWAP, str(second.pid), str(first.pid)], env=environment(machine),
                                  stderr=subprocess.PIPE, text=True) as popen:
                machine.wait_status(first.pid, 'phase', phase)
                popen.send_signal(number)
                words = popen.stderr.read()
            equal(popen.returncode, expected, words)
            check(words.endswith(f'gpucr-swap: {second.pid} has been thawed again\n'), words)
            equal((machine.state(first.pid), machine.state(second.pid)), ('frozen', 'running'))
        machine.faults()
        must_swap(machine, 'in', first.pid)


def test_full():
    harness.needs_cuda('there is but one way to freeze')
    with Machine(vmm=True) as machine:
        demo = machine.ready_demo()
        must_swap(machine, 'out', demo.pid)
        check(int(machine.status(demo.pid)['kept_vram_bytes']) > 0, 'the context stays')
        must_swap(machine, 'in', demo.pid)
        must_swap(machine, 'out', '--full', demo.pid)
        equal(machine.status(demo.pid)['kept_vram_bytes'], '0')
        must_swap(machine, 'in', demo.pid)
        demo.wait_ticks()


def idle_msec(machine, pid):
    value = machine.status(pid)['idle_ms']
    return -1 if value == '-' else int(value)


def test_out_idle():
    with Machine(vmm=True) as machine:
        busy = machine.ready_demo()
        idle = machine.ready_demo('--tick', 60000)
        wait_for(lambda: idle_msec(machine, idle.pid) >= 1500, 'it to be idle')
        equal(must_swap(machine, 'out', '--idle', '1.5'), f'{idle.pid}\n')
        equal((machine.state(busy.pid), machine.state(idle.pid)), ('running', 'frozen'))
        equal(must_swap(machine, 'out', '--idle', 3600), '')
        must_swap(machine, 'in', idle.pid)


def test_misuse():
    with Machine() as machine:
        for arguments in ((), ('out',), ('in',), ('in', '12', '13'), ('out', '12', '--idle', '1'),
                          ('12',), ('12', '13', '14'), ('out', 'training'), ('--idle', '1', '12', '13'),
                          ('watch',), ('watch', '12', '--idle', '1'), ('watch', '--idle'),
                          ('watch', '--idle', '1s'), ('watch', '--idle', '1', '--gpu', 'x'),
                          ('in', '--full', '12'), ('out', '--slice', '1', '12'), ('--fast', '1', '2')):
            status, output, words = swap(machine, *arguments)
            equal((status, output), (2, ''), str(arguments))
            check(words, f'{arguments}: no words')
        for arguments, what in ((('out', '4194305'), 'no such process'),
                                (('in', os.getpid()), 'uses no GPU'),
                                (('watch', '--idle', '1', '--gpu', '7'), 'there is no GPU 7')):
            status, _, words = swap(machine, *arguments)
            equal(status, 1, str(arguments))
            check(what in words, words)
        check(must_swap(machine, '--help').startswith('Usage: gpucr-swap'), '--help')
        check(must_swap(machine, '--version').startswith('gpucr-swap '), '--version')


# ---- watch ----

def test_turns():
    """Three models of which one fits, each of which believes that the GPU is its own."""
    with Machine(**SMALL) as machine:
        demos = frozen_models(machine)
        watch = Swap(machine, '--idle', LONG, '--slice', '0.02')
        watch.wait(' thawed$', TURNS, 220 * harness.SLOW)
        equal(watch.end(), 130)
        equal(watch.words(), '')
        turns = [watch.count(rf'^{demo.pid} thawed$') for demo in demos]
        check(max(turns) - min(turns) <= 2, f'turns: {turns}')
        for demo in demos:
            check(demo.ticks() > TURNS // 6, f'{demo.ticks()} ticks in {TURNS} turns')


def test_idle_goes():
    """What is idle goes, also if nobody wants its place, and is back when it is needed."""
    with Machine(vmm=True) as machine:
        busy = machine.ready_demo()
        idle = machine.ready_demo('--tick', 3000 * harness.SLOW)
        watch = Swap(machine, '--idle', '0.8')
        watch.wait(rf'^{idle.pid} frozen, idle for ')
        ticks = idle.ticks()
        watch.wait(rf'^{idle.pid} thawed$')
        idle.output.wait(lambda lines: len(lines) - 1 > ticks, 'the next tick')
        busy.wait_ticks()
        equal(watch.end(), 130)
        equal(watch.count(rf'^{busy.pid} '), 0)


def test_killed_while_waiting():
    """Those behind it have their turn."""
    with Machine(**SMALL) as machine:
        demos = frozen_models(machine)
        watch = Swap(machine, '--idle', LONG, '--slice', '0.5')
        watch.wait(' thawed$')
        waiting = next(demo for demo in demos if machine.state(demo.pid) == 'frozen')
        waiting.end(signal.SIGKILL)
        others = [demo for demo in demos if demo is not waiting]
        for demo in others:
            watch.wait(rf'^{demo.pid} thawed$', 2)
        equal(watch.end(signal.SIGTERM), 143)
        states = sorted(machine.state(demo.pid) for demo in others)
        check(states in (['frozen', 'running'], ['frozen', 'frozen']), f'states: {states}')


def test_daemon_restarts_under_watch():
    with Machine(**SMALL) as machine:
        demos = frozen_models(machine, 2)
        watch = Swap(machine, '--idle', LONG, '--slice', '0.1')
        watch.wait(' thawed$', 2)
        machine.stop()
        watch.wait_words('waiting for one')
        machine.start()
        before = [watch.count(rf'^{demo.pid} thawed$') for demo in demos]
        for demo, turns in zip(demos, before):
            watch.wait(rf'^{demo.pid} thawed$', turns + 1)
            demo.ticks()
        equal(watch.end(), 130)


def test_thaw_fails_once():
    """It is tried again, though nothing else happens meanwhile."""
    with Machine(vmm=True) as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze data')
        wait_for(lambda: wanted(machine, demo.pid), 'it to want its GPU')
        machine.watch_faults()
        machine.faults('cuMemMap thread=gpucr-agent nth=1 error=CUDA_ERROR_OUT_OF_MEMORY')
        watch = Swap(machine, '--idle', LONG)
        machine.wait_faulted()
        watch.wait(rf'^{demo.pid} thawed$')
        demo.wait_ticks()
        equal(watch.end(), 130)


def test_thaw_fails_once_beside_others():
    """One is frozen for it, and its thaw fails all the same, for a reason that passes: it has its
    turns from then on."""
    with Machine(**SMALL) as machine:
        waiting = frozen_models(machine, 1)[0]
        running = machine.ready_demo(*MODEL)
        wait_for(lambda: wanted(machine, waiting.pid), 'it to want its GPU')
        machine.watch_faults()
        machine.faults('cuMemMap thread=gpucr-agent nth=1 error=CUDA_ERROR_OUT_OF_MEMORY')
        watch = Swap(machine, '--idle', LONG, '--slice', '0.2')
        machine.wait_faulted()
        for demo in waiting, running:
            watch.wait(rf'^{demo.pid} thawed$')
            demo.wait_ticks()
        equal(watch.end(), 130)


def test_log_is_cut():
    """Much is told again then, and nobody is forgotten for it."""
    harness.same_for_both('the log of events')
    if harness.SLOW > 1:
        raise harness.Skip('thousands of refused writes take minutes')
    with Machine(**SMALL) as machine:
        demos = frozen_models(machine, 2)
        watch = Swap(machine, '--idle', LONG, '--slice', '0.2')
        watch.wait(' thawed$', 2)
        events = f'{machine.mountpoint}/events'
        size = os.stat(events).st_size
        long = 'x' * 64  # the name of a place stands in all of its lines: they fill the log soon
        os.mkdir(machine.path(long))
        ctl = os.open(machine.ctl(long), os.O_WRONLY)
        while True:
            for _ in range(20):
                check(harness.error_of(lambda: os.write(ctl, b'x')) != 'ok', 'a refused write')
            before, size = size, os.stat(events).st_size
            if size < before:
                break
        os.close(ctl)
        os.rmdir(machine.path(long))
        for demo in demos:
            turns = watch.count(rf'^{demo.pid} thawed$')
            watch.wait(rf'^{demo.pid} thawed$', turns + 2)
        equal(watch.end(), 130)


def check_turns_in_container(machine):
    """Nobody knows where a program is as long as it runs."""
    demos = frozen_models(machine, 2)
    watch = Swap(machine, '--idle', LONG, '--slice', '0.02')
    for demo in demos:
        watch.wait(rf'^{demo.pid} thawed$', 2)
    equal(watch.end(), 130)
    equal(watch.words(), '')


def test_not_listed():
    harness.needs_cuda('figures of processes by NVML')
    with Machine(**{**SMALL, 'env': {**SMALL['env'], 'GPUCR_SIM_CONTAINER': '1'}}) as machine:
        running = machine.ready_demo(*MODEL)
        equal(machine.status(running.pid)['gpus'], '-')
        running.end()
        check_turns_in_container(machine)


def test_without_figures():
    harness.needs_cuda('figures by NVML')
    with WithoutNvml(vram='20M', vmm=True, more_env=SMALL['env']) as machine:
        check_turns_in_container(machine)


def test_busy_once():
    """One that could not go at first goes later: it has not been counted as gone."""
    with Machine(**SMALL) as machine:
        frozen = frozen_models(machine, 1)[0]
        running = machine.ready_demo(*MODEL)
        machine.faults(f'cuMemExportToShareableHandle thread=gpucr-agent pid={running.pid} nth=1 '
                       'error=CUDA_ERROR_UNKNOWN')
        watch = Swap(machine, '--idle', LONG, '--slice', '0.02')
        watch.wait_words(f'freeze {running.pid}: ')
        watch.wait(rf'^{running.pid} frozen')
        watch.wait(rf'^{frozen.pid} thawed$')
        equal(watch.end(), 130)


def test_left_alone():
    """One that could not say that it wants back is said once, and stays."""
    harness.needs_cuda('there is no engine driver')
    with Machine(vmm=True) as machine:
        alone = machine.ready_demo('--tick', 60000, env={'GPUCR_PRELOAD_VMM': '0'})
        other = machine.ready_demo('--tick', 60000)
        watch = Swap(machine, '--idle', '0.3')
        watch.wait(rf'^{other.pid} frozen')
        watch.wait_words(f'{alone.pid}: it is left alone')
        machine.must(other.pid, 'thaw')
        watch.wait(rf'^{other.pid} frozen', 2)
        equal(watch.end(), 130)
        equal(watch.words().count('\n'), 1)
        equal(machine.state(alone.pid), 'running')


def turns_of(machine, watch, demo, seconds):
    """It goes by hand and comes back: whatever the other one waits for has been looked at again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        wait_for(lambda: machine.state(demo.pid) == 'running', 'it to be back')
        turns = watch.count(rf'^{demo.pid} thawed$')
        if machine.write(demo.pid, 'freeze data') == 'EBUSY':  # it is its turn to go
            continue
        watch.wait(rf'^{demo.pid} thawed$', turns + 1)


def test_would_not_fit():
    """Nobody is frozen for one that would not fit even then, and that is said once."""
    with Machine(**SMALL) as machine:
        large = frozen_models(machine, 1)[0]
        small = machine.ready_demo('--bytes', '4M', '--buffers', 2, '--tick', 40)
        alone = machine.ready_demo('--bytes', '7M', '--buffers', 2, env={'GPUCR_PRELOAD_VMM': '0'})
        watch = Swap(machine, '--idle', LONG, '--slice', '0.02')
        watch.wait_words(f'thaw {large.pid}: it would not fit')
        equal(watch.count(' frozen'), 0)
        turns_of(machine, watch, small, 6)  # it is looked at every five seconds
        equal(watch.words().count(f'thaw {large.pid}'), 1)
        # Its figures may be those of before and after a turn: at most once in five seconds.
        check(watch.count(' frozen') <= 2, 'somebody is frozen again and again')
        alone.end()
        watch.wait(rf'^{large.pid} thawed$')
        large.wait_ticks()
        equal(watch.end(), 130)


def test_managed():
    """A thaw needs no VRAM for managed memory: for that nobody is frozen."""
    harness.needs_cuda('managed memory, with which no freeze is possible')
    with Machine(**SMALL) as machine:
        large = machine.ready_demo('--bytes', '6M', '--buffers', 1, '--managed', 3, '--tick', 40)
        machine.must(large.pid, 'freeze data')
        model = machine.ready_demo('--bytes', '4M', '--buffers', 2, '--tick', 40)
        watch = Swap(machine, '--idle', LONG, '--slice', '0.02')
        watch.wait(rf'^{large.pid} thawed$')
        for demo in large, model:
            demo.wait_ticks()
        equal(watch.end(), 130)
        equal(watch.count(' frozen'), 0)


def test_did_not_fit():
    """What a thaw needs beside what is held only the thaw knows: for that they are frozen once."""
    harness.needs_cuda('what has to be free beside the contents')
    with Machine(vram='100M', vmm=True, env=SMALL['env']) as machine:
        large = machine.ready_demo(*MODEL)
        machine.must(large.pid, 'freeze')
        small = machine.ready_demo('--bytes', '4M', '--buffers', 2, '--tick', 40)
        alone = machine.ready_demo('--bytes', '30M', '--buffers', 2, env={'GPUCR_PRELOAD_VMM': '0'})
        watch = Swap(machine, '--idle', LONG, '--slice', '0.02')
        watch.wait_words(f'thaw {large.pid}: it would not fit')
        wait_for(lambda: re.search(rf'^{large.pid} .* its thaw needs more than freezing all others',
                                   must_swap(machine, 'status'), re.M), 'the reason')
        turns_of(machine, watch, small, 6)
        check(watch.count(rf'^{small.pid} frozen') <= 3, 'it is frozen again and again')
        equal(watch.words().count(f'thaw {large.pid}: it would not fit'), 1)
        equal(watch.words().count(f'thaw {large.pid}: ENOMEM'), 1)
        alone.end()
        watch.wait(rf'^{large.pid} thawed$')
        equal(watch.end(), 130)


def test_stopped_for_a_while():
    """Two that run are stopped while two frozen ones want the GPU: then all have their turns."""
    with Machine(**{**SMALL, 'vram': '36M'}) as machine:
        demos = [machine.ready_demo(*MODEL) for _ in range(2)]
        for demo in demos:
            machine.must(demo.pid, 'freeze data')
        running = [machine.ready_demo(*MODEL) for _ in range(2)]
        for demo in demos:
            wait_for(lambda pid=demo.pid: wanted(machine, pid), 'it to want its GPU')
        for demo in running:
            machine.stop_process(demo.pid)
        watch = Swap(machine, '--idle', LONG, '--slice', '0.1')
        try:
            for demo in running:
                watch.wait_words(f'freeze {demo.pid}: EOPNOTSUPP')
            wait_for(lambda: re.search(rf'^{demos[0].pid} .* could not be frozen',
                                       must_swap(machine, 'status'), re.M), 'the reason')
        finally:
            for demo in running:
                os.kill(demo.pid, signal.SIGCONT)
        for demo in demos + running:
            watch.wait(rf'^{demo.pid} thawed$', 2, 60 * harness.SLOW)
            demo.wait_ticks()
        equal(watch.end(), 130)


def test_foreign_holder():
    """Beside a program that nobody can freeze two of four fit: all are served again and again."""
    harness.needs_cuda('there is no engine driver')
    with Machine(**{**SMALL, 'vram': '64M'}) as machine:
        foreign = machine.ready_demo('--bytes', '32M', '--buffers', 2, '--tick', 60000,
                                     env={'GPUCR_PRELOAD': ''})
        demos = frozen_models(machine, 4)
        each = harness.few(5, 16) if harness.SLOW == 1 else 4
        watch = Swap(machine, '--idle', LONG, '--slice', '0.05')
        for demo in demos:
            watch.wait(rf'^{demo.pid} thawed$', each, 120 * harness.SLOW)
            demo.wait_ticks()
        equal(watch.count(rf'^{foreign.pid} '), 0)
        status, output, _ = swap(machine, 'status', '--metrics')
        equal(status, 0)
        turns = float(re.search(r'^gpucrswap_turns_total\{gpus="all"\} (\S+)$', output, re.M).group(1))
        waits = float(re.search(r'^gpucrswap_waits_total\{gpus="all"\} (\S+)$', output, re.M).group(1))
        check(turns >= 4 * each and waits >= turns, output)
        check(output.endswith('# EOF\n'), output)
        equal(watch.end(), 130)
        equal(swap(machine, 'status')[0], 1, 'the status of one that has ended')


if __name__ == '__main__':
    harness.main(globals())
