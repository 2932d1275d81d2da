# SPDX-License-Identifier: MIT
"""Many programs, many verbs at once, and death at random: of programs, helpers and the daemon. At
the end every program that was left alive runs, and all its data is right.

The seed is printed. GPUCR_TEST_SEED repeats a run (as far as timing lets it), GPUCR_TEST_VERBS sets
the number of verbs, GPUCR_TEST_DEMOS that of programs.
"""
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import Failure, Machine, check, wait_for

VERBS = int(os.environ.get('GPUCR_TEST_VERBS') or (500 if harness.SLOW == 1 else 120))
DEMOS = int(os.environ.get('GPUCR_TEST_DEMOS') or (20 if harness.SLOW == 1 else 8))
SEED = int(os.environ.get('GPUCR_TEST_SEED') or random.randrange(1 << 30))
AT_ONCE = 8
ANSWERS = {'ok', 'EBUSY', 'EINTR', 'ECANCELED', 'ETIMEDOUT', 'ESRCH', 'ENOENT', 'ENOMEM', 'EIO',
           'killed',
           # While the daemon is away:
           'ENOTCONN', 'ECONNABORTED', 'ENODEV'}


class Stress:
    def __init__(self, machine):
        self.machine = machine
        self.random = random.Random(SEED)
        self.demos = []
        self.writers = []
        self.counts = {}

    def add_demo(self):
        demo = self.machine.demo('--bytes', self.random.choice(['256K', '1M', '3M']),
                                 '--buffers', 2, '--tick', self.random.choice([5, 20, 50]),
                                 '--gpu', self.random.randrange(2))
        self.demos.append(demo)
        return demo

    def pick(self, count=1):
        return self.random.sample(self.demos, min(count, len(self.demos)))

    def write(self):
        verb = self.random.choices(['freeze', 'thaw', 'cancel'], [5, 5, 1])[0]
        options = ''
        if verb != 'cancel' and self.random.random() < 0.1:
            options = ' timeout=1'
        flags = os.O_NONBLOCK if self.random.random() < 0.2 else 0
        if self.random.random() < 0.3:
            demos = self.pick(self.random.randrange(2, 6))
            text = f'{verb}{options} ' + ' '.join(str(demo.pid) for demo in demos)
            path = self.machine.ctl()
        else:
            text = f'{verb}{options}'
            path = self.machine.ctl(self.pick()[0].pid)
        self.writers.append(harness.Writer(path, text, flags))

    def reap(self, most):
        """Take the answers there are; wait while more than `most` writers wait."""
        deadline = time.monotonic() + 6 * harness.PATIENCE_SEC
        while True:
            for writer in [w for w in self.writers if not w.is_waiting()]:
                answer = writer.result()
                self.writers.remove(writer)
                self.counts[answer] = self.counts.get(answer, 0) + 1
                check(answer in ANSWERS, f'an answer that nobody expected: {answer}')
            if len(self.writers) <= most:
                return
            if time.monotonic() > deadline:
                raise Failure(f'{len(self.writers)} writers wait for ever')
            time.sleep(0.005)

    def kill_demo(self):
        demo = self.pick()[0]
        self.demos.remove(demo)
        demo.end(signal.SIGKILL)
        self.add_demo().wait_ready()

    def kill_helper(self):
        helpers = self.machine.helpers()
        if helpers:
            harness.try_kill(self.random.choice(helpers)[0], signal.SIGKILL)

    def interrupt_writer(self):
        if self.writers:
            number = self.random.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
            harness.try_kill(self.random.choice(self.writers).pid, number)

    def restart_daemon(self):
        if self.random.random() < 0.5:
            self.machine.daemon.kill()
            self.machine.daemon.wait()
        else:
            check(self.machine.stop(seconds=6 * harness.PATIENCE_SEC) == 0, 'its exit status')
        self.machine.start()

    def look(self):
        """Readers see something sensible at any time."""
        for demo in self.pick(3):
            try:
                status = self.machine.status(demo.pid)
            except FileNotFoundError:
                continue
            check(status['state'] in ('running', 'freezing', 'frozen', 'thawing'),
                  f'{demo.pid} is {status["state"]}: {self.machine.error(demo.pid)}')
        self.machine.read('status')

    def run(self):
        faults = ['cuCheckpointProcessLock delay_ms=5', 'cuCheckpointProcessCheckpoint delay_ms=20',
                  'cuCheckpointProcessRestore delay_ms=20', 'cuCheckpointProcessUnlock delay_ms=5']
        self.machine.faults(*faults)
        for number in range(VERBS):
            self.write()
            self.reap(AT_ONCE)
            chance = self.random.random()
            if chance < 0.02:
                self.kill_demo()
            elif chance < 0.06:
                self.kill_helper()
            elif chance < 0.10:
                self.interrupt_writer()
            elif chance < 0.20:
                self.look()
            elif chance < 0.21 and number > 20:
                self.restart_daemon()
            for demo in self.pick(2):
                demo.ticks()
        self.reap(0)
        self.machine.faults()

    def settle(self):
        """Thaw everybody, and see them tick."""
        for demo in self.demos:
            self.machine.wait_status(demo.pid, 'verb', '-', 6 * harness.PATIENCE_SEC)
            self.machine.must(demo.pid, 'thaw')
        for demo in self.demos:
            demo.wait_ticks(3, 3 * harness.PATIENCE_SEC)
            check(self.machine.state(demo.pid) == 'running', 'it runs')
        wait_for(lambda: sorted(self.machine.pids()) == sorted(d.pid for d in self.demos),
                 'the list to be that of the survivors')
        wait_for(lambda: not os.listdir(f'{self.machine.runtime}/processes'), 'no record is left')


def test_stress():
    print(f'seed {SEED}, {VERBS} verbs, {DEMOS} programs', flush=True)
    with Machine(vram='2G', gpus=2) as machine:
        stress = Stress(machine)
        try:
            for _ in range(DEMOS):
                stress.add_demo()
            for demo in stress.demos:
                demo.wait_ready()
            stress.run()
            stress.settle()
        finally:
            for writer in stress.writers:
                writer.finish()
        print('answers:', ', '.join(f'{count} {name}' for name, count
                                    in sorted(stress.counts.items())))
        check(stress.counts.get('ok', 0) > VERBS // 10, 'some verbs succeed')


if __name__ == '__main__':
    harness.TEST_SEC *= 3
    harness.main(globals())
