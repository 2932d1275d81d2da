# SPDX-License-Identifier: MIT
"""What the tests of dump and restore share: machines with a CRIU, and programs that CRIU can take,
which are nobody's children when they come back."""
import contextlib
import ctypes
import os
import signal
import subprocess

import criu
import harness
from harness import BUILD, MIB, Failure, check, equal, is_alive, read_file, try_kill, wait_for

PR_SET_CHILD_SUBREAPER = 36
SMALL = ['--bytes', 6 * MIB, '--buffers', 3, '--tick', 50]


def machine(**options):
    """A Machine for the fast engine, whose daemon has a CRIU that works here."""
    found = criu.find()
    # What a dump ends is somebody's to wait for; a zombie has its pid still.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    options['options'] = options.get('options', '') + f',criu={found.program}'
    options['env'] = {**found.env, **options.get('env', {})}
    return harness.Machine(vmm=True, **options)


class Program:
    """gpucr-demo in a session of its own, with its output in a file. It ends by the test's hand,
    for a signal with which it would end by itself would come when CRIU ends."""

    def __init__(self, machine, *arguments, name='program', command=None, env=None, uid=None,
                 session=True, stdin=None):
        self.machine = machine
        self.path = f'{machine.directory}/{name}'
        program = command or [f'{BUILD}/tools/gpucr-run', '--sim', f'{BUILD}/tools/gpucr-demo',
                              '--list']

        def become():
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)

        with open(f'{self.path}.out', 'a', encoding='utf-8') as out, \
                open(f'{self.path}.err', 'a', encoding='utf-8') as err:
            self.popen = subprocess.Popen(
                program + [str(argument) for argument in arguments],
                stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err, cwd='/',
                env={**machine.env, **(env or {})}, start_new_session=session, preexec_fn=become)
        self.root = self.popen.pid
        self.pid = self.root
        machine.others.append(self)

    def lines(self):
        return read_file(f'{self.path}.out').split('\n')[:-1]

    def words(self):
        return read_file(f'{self.path}.err')

    def wait_ready(self):
        wait_for(lambda: len(self.lines()) > 1 or self.popen.poll() is not None, 'the first tick')
        check(self.popen.poll() is None, f'it has ended: {self.words()}')
        self.pid = int(self.lines()[0].split()[1])
        return self

    def ticks(self):
        """The number of the last tick: none is skipped, repeated or wrong."""
        lines = self.lines()
        for number, line in enumerate(lines[1:], 1):
            if line != f'tick {number} ok':
                raise Failure(f'line {number + 1} of {self.path} is {line!r}')
        return len(lines) - 1

    def wait_ticks(self, more=3):
        goal = self.ticks() + more
        wait_for(lambda: self.ticks() >= goal, f'tick {goal} of {self.path}')

    def reap(self):
        """What has ended is collected, so that its pid is free."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def wait_gone(self):
        wait_for(lambda: self.reap() or not os.path.exists(f'/proc/{self.pid}'), 'its end')

    # as harness.Demo, for Machine.finish()
    def finish(self):
        for pid in {self.root, self.pid}:
            if is_alive(pid):
                try_kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError, subprocess.TimeoutExpired):
            self.popen.wait(1)
        self.reap()


def program(machine, *arguments, **options):
    return Program(machine, *(arguments or SMALL), **options).wait_ready()


def dumped(machine, one, verb='dump'):
    """Dump it; the name of its place."""
    start = int(machine.status(one.pid)['start_ticks'])
    machine.must(one.pid, verb)
    one.wait_gone()
    name = next((word[5:] for word in verb.split() if word.startswith('name=')),
                f'gpucr-demo-{one.pid}-{start}')
    equal(machine.state(name), 'dumped')
    return name
