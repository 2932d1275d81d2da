# SPDX-License-Identifier: MIT
"""Programs that are ending: one that is frozen in its exit goes on ending when it is thawed, and
one whose driver has gone is let go. None hangs, none has failed, and each ends as it means to."""
import contextlib
import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import check, equal, wait_for

ENDING = f'{harness.BUILD}/test/e2e/ending'
PROGRAMS = harness.few(20, 60) // harness.SLOW
AT_ONCE = 5
PROGRAMS_MIN = 1  # of each that are at once
HAMMER_SEC = 100
PAUSES_SEC = (0, 0.01, 0.02, 0.03)  # a freeze and a thaw take longer
STATUS = 7
# What a verb may say of a program that ends at any moment.
ANSWERS = {'ok', 'ESRCH', 'ENOENT'}
DEINITIALIZED = 'error=CUDA_ERROR_DEINITIALIZED thread=gpucr-agent'


def ending(machine, *arguments, library=True):
    run = vendor.RUN if library else []
    env = {} if library else {'LD_LIBRARY_PATH': f'{harness.BUILD}/backend/sim'}
    # LeakSanitizer stops a program as a debugger does while it ends, and a freeze says so.
    env['ASAN_OPTIONS'] = machine.env.get('ASAN_OPTIONS', '') + ':detect_leaks=0'
    program = harness.Demo(machine, [STATUS, *arguments], command=[*run, ENDING], env=env)
    machine.demos.append(program)
    return program


def wait_library(machine, program):
    machine.wait_status(program.pid, 'engine', vendor.ENGINE)
    return program


def ends_well(machine, program):
    """By itself, with its own status."""
    harness.wait_end(program.popen)
    equal(program.popen.returncode, STATUS, program.words())
    machine.demos.remove(program)
    program.finish()


def is_forgotten(machine):
    """Nothing of any program is left, in VRAM or in the store."""
    wait_for(lambda: os.listdir(f'{machine.runtime}/store') == ['pool'], 'the store to be empty')
    wait_for(lambda: not machine.pids(), 'no program to be listed')


def let_end(fifo):
    with open(fifo, 'w', encoding='utf-8'):
        pass


class Hammer(threading.Thread):
    """Starts short programs, one after the other, and freezes and thaws each until it has ended: with
    a pause of another length each time, or none, in which it comes nearer to its end."""

    def __init__(self, machine, count, arguments, library=True):
        super().__init__(daemon=True)
        self.machine = machine
        self.count = count
        self.arguments = arguments
        self.library = library
        self.answers = {}
        self.problem = None
        self.until = time.monotonic() + HAMMER_SEC

    def write(self, pid, verb):
        answer = self.machine.write(pid, verb)
        self.answers[answer] = self.answers.get(answer, 0) + 1
        if answer not in ANSWERS:
            words = 'it has ended'
            with contextlib.suppress(OSError):
                words = self.machine.error(pid)
            raise harness.Failure(f'{verb}: {answer}: {words}')

    def one(self):
        program = ending(self.machine, *self.arguments, library=self.library).wait_ready()
        for number in range(10000):
            if not program.is_running():
                break
            self.write(program.pid, 'freeze')
            self.write(program.pid, 'thaw')
            time.sleep(harness.few(PAUSES_SEC[number % len(PAUSES_SEC)], 0))
        ends_well(self.machine, program)

    def run(self):
        try:
            for number in range(self.count):
                # All of them on a machine that is not much slower than usual.
                if number < PROGRAMS_MIN or time.monotonic() < self.until:
                    self.one()
        except Exception as problem:  # pylint: disable=broad-except # said by the main thread
            self.problem = problem


def hammer(machine, arguments, programs, library=True):
    each = max(harness.few(2, 3), programs // AT_ONCE)
    hammers = [Hammer(machine, each, arguments, library) for _ in range(AT_ONCE)]
    for thread in hammers:
        thread.start()
    for thread in hammers:
        thread.join()
        if thread.problem:
            raise thread.problem
    total = {}
    for thread in hammers:
        for answer, count in thread.answers.items():
            total[answer] = total.get(answer, 0) + count
    check(total.get('ok', 0) > 0, total)
    states = [line for line in machine.read('events').splitlines() if ' state ' in line]
    equal([line for line in states if 'failed' in line], [])
    is_forgotten(machine)


def test_short_programs():
    with vmm.machine(vram='2G') as machine:
        hammer(machine, [0], PROGRAMS)


def test_short_programs_with_threads():
    with vmm.machine(vram='2G') as machine:
        hammer(machine, [2], PROGRAMS // 4)


def frozen_and_thawed(machine, where):
    """Programs that have been frozen, and end there; each is thawed when it has been looked at."""
    for verb in ('freeze', 'freeze data'):
        fifo = f'{machine.directory}/{verb[-4:]}'
        os.mkfifo(fifo)
        program = wait_library(machine, ending(machine, 0, where, fifo).wait_ready(2))
        machine.must(program.pid, verb)
        let_end(fifo)
        yield program
        check(machine.write(program.pid, 'thaw') in ANSWERS, 'the thaw of one that ends then')
        ends_well(machine, program)
    is_forgotten(machine)


def test_frozen_in_its_exit():
    """Before the driver's exit handler it is a program like any other."""
    with vmm.machine() as machine:
        for program in frozen_and_thawed(machine, 'before'):
            program.wait_standstill()
            check(program.is_running(), 'it waits at the gate')


def test_exit_of_a_frozen_program():
    """One that comes to the driver's exit handler while it is frozen waits for its thaw there."""
    with vmm.machine() as machine:
        for program in frozen_and_thawed(machine, 'main'):
            wait_for(lambda p=program: machine.status(p.pid)['wanted_usec'] != '-',
                     'its exit to come to the gate')


def test_after_the_driver():
    """Its gate does not close any more, and no verb holds it up."""
    with vmm.machine() as machine:
        fifo = f'{machine.directory}/fifo'
        os.mkfifo(fifo)
        program = wait_library(machine, ending(machine, 1, 'after', fifo).wait_ready(2))
        for verb in ('freeze', 'freeze data', 'freeze'):
            equal(machine.write(program.pid, verb), 'ESRCH')
            check('is ending' in machine.error(program.pid), machine.error(program.pid))
            equal(machine.state(program.pid), 'running')
        let_end(fifo)
        ends_well(machine, program)
        is_forgotten(machine)


def fifo_of(machine):
    os.mkfifo(f'{machine.directory}/fifo')
    return f'{machine.directory}/fifo'


def end_lost(machine, program):
    """Its exit is not held up. What it had in VRAM was lost with its driver, which it has."""
    let_end(f'{machine.directory}/fifo')
    harness.wait_end(program.popen)
    machine.demos.remove(program)
    program.finish()
    is_forgotten(machine)


def test_driver_has_gone_in_a_thaw():
    """As it was seen: the driver ends between its unlock and the thaw's first call."""
    for verb in ('freeze', 'freeze data'):
        with vmm.machine() as machine:
            program = wait_library(machine, ending(machine, 0, 'main', fifo_of(machine))
                                   .wait_ready(2))
            machine.must(program.pid, verb)
            machine.faults(*(f'{call} {DEINITIALIZED}' for call in
                             ('cuCtxPushCurrent', 'cuDevicePrimaryCtxGetState', 'cuMemMap',
                              'cuMemImportFromShareableHandle')))
            equal(machine.write(program.pid, 'thaw'), 'ESRCH')
            words = machine.error(program.pid)
            check('is ending' in words and '-2' not in words, words)
            equal(machine.state(program.pid), 'running')
            equal(machine.status(program.pid)['held_bytes'], '0')
            wait_for(lambda m=machine: os.listdir(f'{m.runtime}/store') == ['pool'],
                     'the store to be empty')
            equal(machine.write(program.pid, 'freeze'), 'ESRCH')
            machine.faults()
            end_lost(machine, program)


def test_driver_goes_in_a_freeze():
    """At each call that the library makes: it goes on to its end, and has not failed."""
    for call in ('cuMemExportToShareableHandle', 'cuMemUnmap', 'cuMemRelease', 'cuCtxPushCurrent'):
        with vmm.machine() as machine:
            program = wait_library(machine, ending(machine, 0, 'main', fifo_of(machine))
                                   .wait_ready(2))
            # From that call on, all of them.
            machine.faults(f'{call} {DEINITIALIZED}', f'cuMemMap {DEINITIALIZED}')
            answer = machine.write(program.pid, 'freeze')
            words = machine.error(program.pid)
            # The stack limit is not essential: a freeze does without.
            if answer == 'ok':
                equal(machine.write(program.pid, 'thaw'), 'ESRCH')
                words = machine.error(program.pid)
            else:
                equal(answer, 'ESRCH', words)
            check('is ending' in words, words)
            equal(machine.state(program.pid), 'running')
            machine.faults()
            end_lost(machine, program)


def test_without_the_library():
    """The driver alone: none hangs, none has failed."""
    with harness.Machine(vram='2G') as machine:
        hammer(machine, [0], PROGRAMS // 2, library=False)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
