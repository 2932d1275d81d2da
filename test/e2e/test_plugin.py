# SPDX-License-Identifier: MIT
"""Programs that use a GPU, dumped and restored by somebody else's CRIU: the plugin, the daemon, the
preload library and CRIU are the real ones, the GPU is simulated."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import criu
import harness
import vendor
import vmm
from harness import (BUILD, check, equal, fails, is_alive, read_file, same_for_both, try_kill,
                     wait_for)
from plugin import PLUGIN

DEMO = f'{" ".join(vendor.RUN + vendor.DEMO)} --bytes 8M --buffers 4 --tick 20'


class Program:
    """gpucr-demo, with nothing open that would have to be supplied again. It ends with the test."""

    def __init__(self, machine, name, before='true'):
        self.path = f'{machine.directory}/{name}'
        command = ['sh', '-c', f'{before}; exec {DEMO}']
        with open(f'{self.path}.out', 'w', encoding='utf-8') as out, \
                open(f'{self.path}.err', 'w', encoding='utf-8') as err:
            self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                          stderr=err, env=machine.env, start_new_session=True)
        self.is_restored = False
        wait_for(lambda: self.ticks() > 0 or self.popen.poll() is not None, 'the first tick')
        check(self.popen.poll() is None, read_file(f'{self.path}.err'))
        self.pid = int(read_file(f'{self.path}.out').split()[1])
        wait_for(lambda: machine.status(self.pid).get('engine') == vendor.ENGINE, 'its engine')

    def ticks(self):
        """The number of the last one; all are there, each once, with the right bytes."""
        lines = read_file(f'{self.path}.out').split('\n')[1:-1]
        for number, line in enumerate(lines, 1):
            equal(line, f'tick {number} ok', f'line {number + 1} of {self.path}.out')
        return len(lines)

    def goes_on(self, more=3):
        goal = self.ticks() + more
        wait_for(lambda: self.ticks() >= goal, f'tick {goal} of {self.pid}: it is '
                 f'{"alive" if is_alive(self.pid) else "dead"}')

    def stands_still(self):
        last = -1
        while last != self.ticks():
            last = self.ticks()
            time.sleep(0.25)

    def wait(self):
        if self.is_restored:
            os.waitpid(self.pid, 0)
        else:
            self.popen.wait()

    def end(self):
        try_kill(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        if self.is_restored:
            criu.end(self.pid)


class Host:
    def __init__(self):
        found = criu.find()
        self.machine = vmm.machine()
        self.criu = criu.Criu(os.path.dirname(found.program),
                              {**found.env, 'GPUCR_MOUNT': self.machine.mountpoint})
        self.criu.empty = f'{self.machine.directory}/plugins'
        os.mkdir(self.criu.empty)
        os.symlink(PLUGIN, f'{self.criu.empty}/gpucr_plugin.so')
        if vendor.HIP:
            os.symlink(f'{vendor.LIBRARIES}/amdgpu_plugin.so',
                       f'{self.criu.empty}/amdgpu_plugin.so')
        self.images = f'{self.machine.directory}/images'
        os.mkdir(self.images)
        self.programs = []

    def __enter__(self):
        self.machine.__enter__()
        return self

    def __exit__(self, *exception):
        for program in self.programs:
            with contextlib.suppress(ChildProcessError):
                program.end()
        return self.machine.__exit__(*exception)

    def program(self, **options):
        program = Program(self.machine, f'program-{len(self.programs)}', **options)
        self.programs.append(program)
        return program

    def dump(self, program):
        """It is gone then, and its VRAM is among the images."""
        self.criu.dump(program.pid, self.images)
        program.wait()
        verify(f'{self.images}/gpucr-{program.pid}')
        wait_for(lambda: program.pid not in self.machine.pids(), 'its directory to go')

    def restore(self, program):
        program.is_restored = True
        equal(self.criu.restore(self.images), program.pid)
        equal(self.machine.state(program.pid), 'running')

    def places(self):
        return [name for name in os.listdir(self.machine.mountpoint) if name.startswith('criu-')]


def verify(directory):
    done = subprocess.run([f'{BUILD}/tools/gpucr-verify', directory], check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    equal(done.returncode, 0, done.stdout)


def test_there_and_back():
    """Three times, and no tick is skipped or comes twice."""
    with Host() as host:
        program = host.program()
        for _ in range(3):
            host.dump(program)
            host.restore(program)
            program.goes_on()
            shutil.rmtree(host.images)
            os.mkdir(host.images)
        host.machine.must(program.pid, 'freeze')
        host.machine.must(program.pid, 'thaw')
        program.goes_on()


def test_another_daemon_in_between():
    with Host() as host:
        program = host.program()
        host.dump(program)
        equal(host.machine.stop(), 0)
        host.machine.start()
        host.restore(program)
        program.goes_on()


def test_leave_running():
    with Host() as host:
        program = host.program()
        host.criu.dump(program.pid, host.images, '--leave-running')
        program.goes_on()
        verify(f'{host.images}/gpucr-{program.pid}')


def test_dump_fails():
    """CRIU refuses it when its VRAM is saved already: it has an unlinked file of 3 MB."""
    same_for_both('what CRIU refuses')
    with Host() as host:
        ghost = f'{host.machine.directory}/ghost'
        program = host.program(before=f'exec 9>{ghost}; head -c 3000000 /dev/zero >&9; rm {ghost}')
        words = fails(host.criu.dump, program.pid, host.images)
        check('ghost' in words, words)
        program.goes_on()
        wait_for(lambda: host.machine.state(program.pid) == 'running', 'it to be thawed')
        equal([name for name in os.listdir(host.images) if name.startswith('gpucr-')], [])


def test_freeze_is_refused():
    with Host() as host:
        program = host.program()
        if vendor.HIP:
            host.machine.failing('freeze')
        else:
            host.machine.faults(f'cuCheckpointProcessLock {vmm.ROLES["control"]} '
                                'error=CUDA_ERROR_UNKNOWN')
        words = fails(host.criu.dump, program.pid, host.images)
        host.machine.faults()
        check(f'the GPU processes from {program.pid} on cannot be frozen' in words, words)
        check(host.machine.error(program.pid).split(': ', 1)[1] in words, words)
        program.goes_on()


def test_bytes_are_wrong():
    """Told before the program may run; it goes on when they are right again."""
    with Host() as host:
        program = host.program()
        host.dump(program)
        vram = f'{host.images}/gpucr-{program.pid}/vram'
        name = max(os.listdir(vram), key=lambda one: os.stat(f'{vram}/{one}').st_blocks)
        flip(f'{vram}/{name}')
        program.is_restored = True
        words = fails(host.criu.restore, host.images)
        check(re.search(f'process {program.pid} is restored, but', words), words)
        program.stands_still()
        check(is_alive(program.pid), 'it is alive')
        (place,) = host.places()
        flip(host.machine.path(place, 'snapshot', 'vram', name))
        host.machine.must(place, f'thaw pid={program.pid}')
        program.goes_on()


def flip(path):
    with harness.open_both(path) as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))


def test_no_room():
    """The store cannot take it: said before there is a process."""
    same_for_both('room in the store')
    with Host() as host:
        program = host.program()
        host.dump(program)
        equal(host.machine.stop(), 0)
        host.machine.options += ',store_size=4M'
        host.machine.start()
        words = fails(host.criu.restore, host.images)
        check('No space left' in words, words)
        check(not is_alive(program.pid), 'it was restored')
        equal(host.places(), [])


def test_tree():
    """A shell that uses no GPU, and two programs below it that do."""
    with Host() as host:
        machine = host.machine
        outs = [f'{machine.directory}/{name}.out' for name in ('first', 'second')]
        shell = subprocess.Popen(
            ['sh', '-c', ' '.join(f'{DEMO} >{out} 2>{out}.err &' for out in outs) + ' wait'],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=machine.env, start_new_session=True)
        harness.LIBC.prctl(criu.PR_SET_CHILD_SUBREAPER, 1)

        def ticks():
            return [len(read_file(out).split('\n')) - 2 for out in outs]
        try:
            wait_for(lambda: all(os.path.exists(out) for out in outs) and min(ticks()) > 0, 'ticks')
            pids = [int(read_file(out).split()[1]) for out in outs]
            for pid in pids:
                machine.wait_status(pid, 'engine', vendor.ENGINE)
            host.criu.dump(shell.pid, host.images)
            shell.wait()
            for pid in pids:
                os.waitpid(pid, 0)
                verify(f'{host.images}/gpucr-{pid}')
            equal(host.criu.restore(host.images), shell.pid)
            goal = max(ticks()) + 3
            wait_for(lambda: min(ticks()) >= goal, 'ticks after it')
            for out in outs:
                lines = read_file(out).split('\n')[1:-1]
                equal(lines, [f'tick {number} ok' for number in range(1, len(lines) + 1)])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)


def test_plugin_is_missing():
    """Without it CRIU does not even begin to restore."""
    same_for_both('what CRIU finds out')
    with Host() as host:
        program = host.program()
        host.dump(program)
        os.unlink(f'{host.criu.empty}/gpucr_plugin.so')
        check('Missing required plugin: gpucr_plugin' in fails(host.criu.restore, host.images),
              'what CRIU says')


if __name__ == '__main__':
    harness.main(globals())
