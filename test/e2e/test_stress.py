# SPDX-License-Identifier: MIT
"""Many programs, random verbs, and helpers, programs and the daemon killed in the middle of them.

Whatever happens, no program ever ticks wrongly, none is forgotten, and in the end all run.
GPUCR_TEST_SEED repeats the choices of an earlier run (not its timing), GPUCR_TEST_VERBS sets how
many verbs are written."""
import collections
import contextlib
import errno
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import Failure, Machine, check, equal, wait_for

VERBS = int(os.environ.get('GPUCR_TEST_VERBS', '500'))
SEED = int(os.environ.get('GPUCR_TEST_SEED', random.SystemRandom().randrange(1 << 32)))
DEMOS = harness.few(12, 20)
WRITERS_MAX = 8
QUIET_EVERY = harness.few(50, 100)  # verbs
RESTARTS_MAX = 6
DEATHS_MAX = 10
CALLS = ('cuCheckpointProcessLock', 'cuCheckpointProcessCheckpoint',
         'cuCheckpointProcessRestore', 'cuCheckpointProcessUnlock')
BYTES = '512K'
if vendor.HIP:
    CALLS = tuple(f'{call} {who}' for who, calls in (
        ('thread=gpucr-agent', ('cuMemUnmap', 'cuMemExportToShareableHandle', 'cuMemMap')),
        ('comm=gpucr-worker', ('cuMemImportFromShareableHandle', 'cuMemcpyDtoHAsync',
                               'cuMemcpyHtoDAsync'))) for call in calls)
    BYTES = '3M'  # what is small is not moved
USUAL_DELAY_MSEC = 250
LONG_DELAY_MSEC = 1500  # longer than the writers' timeout
PAUSE_MOST_SEC = 0.8
GPUS = 2

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGKILL, signal.SIGHUP)
HARMLESS = (signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT)

# What a verb may answer at any time: others write verbs for the same processes.
ANSWERS = {'ok', 'EBUSY', 'ECANCELED', 'EINTR', 'ETIMEDOUT'}
# Of a process that has ended; its ctl cannot be opened any more.
ANSWERS_OF_ENDED = {'ESRCH', 'ENOENT'}
# Of a helper that was killed, and of a daemon.
ANSWERS_WITHOUT_HELPER = {'EIO'}
HELPER_DIED = re.compile(r' (\d+) \S+ verb \S+ EIO .*(worker died|helper|another process)')
ANSWERS_WITHOUT_DAEMON = {'ENOTCONN', 'ECONNABORTED', 'EIO', 'ENODEV', 'ENOENT'}  # nothing is mounted


class Stress:
    """One run: what goes on now, and when what was killed."""

    def __init__(self, machine, seed):
        self.machine = machine
        self.random = random.Random(seed)
        self.writers = []  # (writer, what, pids, was it signalled to end)
        self.live = [self.new_demo() for _ in range(DEMOS)]
        for demo in self.live:
            demo.wait_ready()
        self.was_killed = {'daemon': 0.0, 'helper': 0.0, 'demo': 0.0}
        self.counts = collections.Counter()
        self.answers = collections.Counter()
        self.helpers_seen = set()

    def new_demo(self):
        return self.machine.demo('--bytes', BYTES, '--buffers', '2',
                                 '--tick', self.random.randint(20, 50),
                                 '--gpu', self.random.randrange(GPUS))

    # What can happen

    def write_verb(self):
        pids = [demo.pid for demo in self.random.sample(self.live, self.how_many())]
        verb = self.random.choices(('freeze', 'thaw', 'cancel'), (45, 45, 10))[0]
        text, flags, number = verb, 0, None
        if verb != 'cancel' and self.random.random() < 0.15:
            text += ' timeout=1'
        if verb == 'thaw' and self.random.random() < 0.2 and not vendor.HIP:
            text += self.random.choice((' gpu=0:1', ' gpu=1:0', ' gpu=0:1 gpu=1:0'))
        if len(pids) > 1 or self.random.random() < 0.1:
            text += ' ' + ' '.join(map(str, pids))
            path = self.machine.ctl()
        else:
            path = self.machine.ctl(pids[0])
        if self.random.random() < 0.2:
            flags = os.O_NONBLOCK
        elif self.random.random() < 0.25:
            number = self.random.choice(ENDING + HARMLESS)
        writer = harness.Writer(path, text, flags, self.random.choice((die, do_not_die)))
        self.machine.others.append(writer)
        self.writers.append((writer, text, pids, number if number in ENDING else None))
        if number:
            time.sleep(self.random.uniform(0, 0.1))
            harness.try_kill(writer.pid, number)
            self.counts['signals'] += 1
        self.counts['verbs'] += 1

    def how_many(self):
        return self.random.randint(2, 6) if self.random.random() < 0.2 else 1

    def change_delays(self):
        most_msec = self.random.choices((USUAL_DELAY_MSEC, LONG_DELAY_MSEC), (80, 20))[0]
        self.machine.faults(*[f'{call} delay_ms={self.random.randint(0, most_msec)}'
                              for call in CALLS if self.random.random() < 0.5])

    def kill_helper(self):
        helpers = self.machine.helpers()
        self.helpers_seen.update(pid for pid, _ in helpers)
        if helpers:
            self.was_killed['helper'] = time.monotonic()
            harness.try_kill(self.random.choice(helpers)[0], signal.SIGKILL)
            self.counts['helpers killed'] += 1

    def pause_helper(self):
        """It may hold up whoever waits for it, or for a lock that it has."""
        helpers = self.machine.helpers()
        if helpers:
            pid, _ = self.random.choice(helpers)
            self.was_killed['helper'] = time.monotonic()  # the daemon may kill it for that
            harness.try_kill(pid, signal.SIGSTOP)
            threading.Timer(self.random.uniform(0, PAUSE_MOST_SEC), harness.try_kill,
                            (pid, signal.SIGCONT)).start()
            self.counts['helpers paused'] += 1

    def kill_demo(self):
        if self.counts['demos killed'] == DEATHS_MAX:
            return
        demo = self.random.choice(self.live)
        self.live.remove(demo)
        self.was_killed['demo'] = time.monotonic()
        demo.ticks()
        demo.end(self.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGABRT)))
        self.counts['demos killed'] += 1
        self.live.append(self.new_demo().wait_ready())

    def restart_daemon(self):
        if self.counts['restarts'] == RESTARTS_MAX:
            return
        self.helpers_seen.update(pid for pid, _ in self.machine.helpers())
        self.was_killed['daemon'] = time.monotonic()
        if self.random.random() < 0.5:
            equal(self.machine.stop(), 0, 'the daemon that was told to go')
        else:
            self.machine.daemon.kill()
            self.machine.daemon.wait()
        self.counts['restarts'] += 1
        for _ in range(self.random.choice((0, 0, 1, 2))):
            self.kill_starting_daemon()
        self.machine.start()
        self.was_killed['daemon'] = time.monotonic()

    def kill_starting_daemon(self):
        """It dies while it recovers what the one before left."""
        with open(self.machine.log_path, 'a', encoding='utf-8') as log:
            daemon = subprocess.Popen(self.machine.command(), stdin=subprocess.DEVNULL,
                                      stdout=log, stderr=log, env=self.machine.env)
        time.sleep(self.random.uniform(0, 0.3))
        daemon.kill()
        daemon.wait()
        self.counts['killed at start'] += 1

    def look_around(self):
        """Reading may fail only because a process ends."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            what = self.random.choice(('status', 'events', 'metrics', 'gpus', 'pid', 'pid'))
            if what == 'gpus':
                self.machine.gpu()
            elif what == 'pid':
                pid = self.random.choice(self.live).pid
                self.machine.read(pid, self.random.choice(('status', 'error', 'events', 'maps')))
            else:
                self.machine.read(what)

    def step(self):
        self.collect()
        if len(self.writers) >= WRITERS_MAX:
            time.sleep(0.02)
            return
        happening = self.random.choices(
            (self.write_verb, self.look_around, self.kill_helper, self.change_delays,
             self.pause_helper, self.kill_demo, self.restart_daemon),
            (70, 15, 4, 4, 2, 1.5, 1))[0]
        happening()

    # What must be true

    def collect(self, wait=False):
        """The answers that have come."""
        left = []
        for entry in self.writers:
            writer = entry[0]
            if wait or not writer.is_waiting():
                self.judge(*entry)
                self.machine.others.remove(writer)
            else:
                left.append(entry)
        self.writers = left

    def judge(self, writer, text, pids, ending):
        answer = writer.result()
        self.answers[answer] += 1
        allowed = set(ANSWERS)
        if ending:
            allowed.add('killed')
        # Those of a while ago count too: a verb may have joined one with a process that has ended,
        # or have taken a dead spare.
        if self.was_killed['demo'] > writer.started - 2 * harness.SLOW:
            allowed |= ANSWERS_OF_ENDED
        if self.was_killed['helper'] > writer.started - 2 * harness.SLOW or \
                (answer == 'EIO' and self.was_killed['helper'] and self.says_who_died(pids)):
            allowed |= ANSWERS_WITHOUT_HELPER
        if self.was_killed['daemon'] > writer.started - 2 * harness.SLOW:
            allowed |= ANSWERS_WITHOUT_DAEMON | {'killed'}
        check(answer in allowed, f'{text!r} for {pids}: {answer}')

    def says_who_died(self, pids):
        """A verb that waits long for its turn, or for slow calls, may have begun long before a
        writer has joined it, and have lost its helper then."""
        with contextlib.suppress(OSError):
            lines = self.machine.read('events').split('\n')
            return any(match and int(match.group(1)) in pids
                       for match in map(HELPER_DIED.search, lines))
        return False

    def wait_quiet(self):
        """No verb is under way, and each live program is known, and running or frozen."""
        self.collect(wait=True)
        self.machine.faults()
        states = {}
        for demo in self.live:
            wait_for(lambda pid=demo.pid: os.path.exists(self.machine.path(pid)),
                     f'{demo.pid} to be listed')
            if vendor.HIP:
                wait_for(lambda pid=demo.pid: self.machine.status(pid)['engine'] == vendor.ENGINE,
                         f'the library of {demo.pid}')
            self.machine.wait_status(demo.pid, 'verb', '-')
            states[demo.pid] = self.machine.state(demo.pid)
            check(states[demo.pid] in ('running', 'frozen'),
                  f'{demo.pid} is {states[demo.pid]}: {self.machine.error(demo.pid)}')
        return states

    def check_quiet(self):
        """What the daemon says is what is."""
        states = self.wait_quiet()
        pids = [demo.pid for demo in self.live]
        wait_for(lambda: self.machine.pids() == sorted(pids), 'exactly the live programs to be listed')
        frozen = [demo for demo in self.live if states[demo.pid] == 'frozen']
        before = [demo.wait_standstill() if number == 0 else demo.ticks()
                  for number, demo in enumerate(frozen)]
        for demo in self.live:
            if states[demo.pid] == 'running':
                demo.wait_ticks(2)
        equal([demo.ticks() for demo in frozen], before, 'ticks of the frozen ones')
        records = [name for name in os.listdir(f'{self.machine.runtime}/processes')
                   if not name.startswith('.')]
        equal(sorted(int(name.split('-')[0]) for name in records),
              sorted(demo.pid for demo in frozen), 'records')
        self.check_memory(states)
        self.check_helpers()

    def check_memory(self, states):
        status = {pid: self.machine.status(pid) for pid in states}
        each = max(int(one['vram_bytes']) + int(one['held_bytes']) for one in status.values())
        kept = max(int(one.get('kept_vram_bytes', 0)) for one in status.values())
        for pid, state in states.items():
            expected = (str(kept), str(each - kept)) if state == 'frozen' else (str(each), '0')
            equal((status[pid]['vram_bytes'], status[pid]['held_bytes']), expected,
                  f'{pid} is {state}; its vram_bytes and held_bytes')
        running = [pid for pid, state in states.items() if state == 'running']
        frozen = len(states) - len(running)
        used = each * len(running) + kept * frozen
        wait_for(lambda: not vendor.HIP or
                 sum(self.machine.used(gpu) for gpu in range(GPUS)) == used, 'our workers to go')
        equal(sum(self.machine.used(gpu) for gpu in range(GPUS)), used, 'VRAM in use')
        equal(int(harness.parse_keys(self.machine.read('status'))['held_bytes']),
              (each - kept) * frozen, 'held bytes in all')

    def check_helpers(self):
        """Those that have ended are reaped; of the others there are few."""
        def children():
            found = []
            for name in os.listdir('/proc'):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    fields = harness.read_file(f'/proc/{int(name)}/stat').rpartition(')')[2].split()
                    if int(fields[1]) == self.machine.daemon.pid and \
                            harness.read_file(f'/proc/{int(name)}/comm') not in \
                            ('gpucr-look\n', 'gpucr-receive\n'):
                        found.append(fields[0])
            return found

        wait_for(lambda: 'Z' not in children() and len(children()) <= 2, 'helpers to be reaped')

    def finish(self):
        """Thaw all, and see that all is as it was."""
        self.wait_quiet()
        for demo in self.live:
            wait_for(lambda pid=demo.pid: self.machine.write(pid, 'thaw') == 'ok',
                     f'{demo.pid} to be thawed')
        states = self.wait_quiet()
        equal(set(states.values()), {'running'}, 'states in the end')
        for demo in self.live:
            demo.wait_ticks(3)
        self.check_quiet()
        self.helpers_seen.update(pid for pid, _ in self.machine.helpers())
        equal(self.machine.stop(), 0, 'the daemon in the end')
        self.machine.expects_clean_exit = True
        left = [pid for pid in self.helpers_seen if is_helper(pid)]
        equal(left, [], 'helpers that were left behind')
        for demo in self.live:
            demo.wait_ticks(1)


def die():
    """A writer ends by the signals that it gets."""
    for number in ENDING:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)


def do_not_die():
    """A writer is told by EINTR of the signals that it gets."""
    def tell(number, _):
        raise InterruptedError(errno.EINTR, f'signal {number}')

    for number in ENDING:
        if number != signal.SIGKILL:
            signal.signal(number, tell)


def is_helper(pid):
    """The pid may be another process's by now."""
    try:
        return harness.is_alive(pid) and 'gpucr-' in harness.read_file(f'/proc/{pid}/comm')
    except OSError:
        return False


def test_random_verbs():
    print(f'GPUCR_TEST_SEED={SEED} GPUCR_TEST_VERBS={VERBS}', flush=True)
    environment = {'GPUCR_SIM_CONTEXT_BYTES': '2M'}
    with Machine(vram='512M', gpus=GPUS, env=environment, worker_idle=1) as machine:
        stress = Stress(machine, SEED)
        try:
            next_quiet = QUIET_EVERY
            while stress.counts['verbs'] < VERBS:
                stress.step()
                if stress.counts['verbs'] >= next_quiet:
                    next_quiet += QUIET_EVERY
                    stress.check_quiet()
                    stress.change_delays()
            stress.check_quiet()
            stress.finish()
        except Failure:
            machine.demos.sort(key=lambda demo: demo in stress.live)
            raise
        finally:
            print(dict(stress.counts), dict(stress.answers), flush=True)


if __name__ == '__main__':
    harness.main(globals())
