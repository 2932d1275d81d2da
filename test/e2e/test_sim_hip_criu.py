# SPDX-License-Identifier: MIT
"""The simulated HIP and CRIU: with the stand-in of amdgpu_plugin.so a process that uses HIP is
dumped without knowing of it, and restored, in the same simulated machine and in another one. No
daemon takes part."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import criu
import harness
from harness import BUILD, MIB, Failure, check, equal, is_alive, read_file, wait_for

LIBRARY = f'{BUILD}/backend/sim'
GPU_ID = 21001
QUEUES = 4 * MIB
MANAGED = 2 * MIB
# hipMalloc, mapped, a block of the pool, managed (a kernel has had it), the queues and the like
IN_USE = (4 + 2 + 2) * MIB + MANAGED + QUEUES


class Host:
    """A simulated machine and CRIU with the plugin; `environment` is what CRIU sees."""

    def __init__(self, **env):
        self.criu = criu.find()
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-test-')
        self.simulator = f'{self.directory}/sim'
        self.images = f'{self.directory}/images'
        self.criu.empty = f'{self.directory}/plugins'
        for name in 'images', 'sim', 'plugins', 'elsewhere':
            os.mkdir(f'{self.directory}/{name}')
        os.symlink(f'{LIBRARY}/amdgpu_plugin.so', f'{self.directory}/plugins/amdgpu_plugin.so')
        self.env = {**os.environ, 'GPUCR_SIM_DIR': self.simulator, 'GPUCR_SIM_VRAM': '64M',
                    'GPUCR_SIM_CONTEXT_BYTES': str(QUEUES), **env}
        self.programs = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in self.programs:
            program.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def program(self, name):
        self.programs.append(Program(self, name))
        return self.programs[-1]

    def number(self, name):
        return int(read_file(f'{self.simulator}/sys/{name}'))

    def used(self):
        """By all processes that live."""
        subprocess.run([sys.executable, '-c',
                        'import ctypes, sys; sys.exit(-ctypes.CDLL(sys.argv[1])'
                        '.hipSimRefreshSysfs())', f'{LIBRARY}/libamdhip64.so.6'],
                       check=True, env=self.env)
        return self.number('class/drm/renderD128/device/mem_info_vram_used')

    def process_entry(self, pid):
        return f'{self.simulator}/sys/class/kfd/kfd/proc/{pid}/vram_{GPU_ID}'


class Program:
    """test/e2e/hip_memory.c."""

    def __init__(self, host, name):
        self.host = host
        self.path = f'{host.directory}/{name}'
        os.mkfifo(f'{self.path}.lines')
        self.lines = os.open(f'{self.path}.lines', os.O_RDWR)
        with open(f'{self.path}.out', 'w', encoding='utf-8') as out, \
                open(f'{self.path}.err', 'w', encoding='utf-8') as err:
            self.popen = subprocess.Popen(
                [f'{BUILD}/test/e2e/hip_memory', f'{LIBRARY}/libamdhip64.so.6'],
                stdin=self.lines, stdout=out, stderr=err, env=host.env, start_new_session=True)
        self.pid = self.popen.pid
        self.is_restored = False
        wait_for(lambda: self.ticks() > 0 or self.popen.poll() is not None, f'{name} to begin')
        check(self.popen.poll() is None, read_file(f'{self.path}.err'))

    def ticks(self):
        return read_file(f'{self.path}.out').count('\n')

    def tick(self):
        """It checks its memory, and changes it."""
        ticks = self.ticks()
        os.write(self.lines, b'\n')
        wait_for(lambda: self.ticks() > ticks or not is_alive(self.pid), f'{self.path} to tick')
        check(is_alive(self.pid), f'it has ended: {read_file(f"{self.path}.err")}')

    def held(self):
        """What it holds of the simulated machine."""
        found = [line.split(None, 5)[5] for line in
                 read_file(f'/proc/{self.pid}/maps').split('\n') if self.host.simulator in line]
        for number in os.listdir(f'/proc/{self.pid}/fd'):
            link = os.readlink(f'/proc/{self.pid}/fd/{number}')
            if self.host.simulator in link or 'socket:' in link:
                found.append(link)
        return found

    def dump(self, *options):
        self.host.criu.dump(self.pid, self.host.images, *options)

    def dumped(self):
        equal(self.popen.wait() if not self.is_restored else
              os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), -signal.SIGKILL,
              'how it ended')

    def restore(self, *options, prefix=()):
        self.pid = self.host.criu.restore(self.host.images, *options, prefix=prefix)
        self.is_restored = True

    def end(self):
        self.popen.kill()
        self.popen.wait()
        if self.is_restored:
            criu.end(self.pid)
        os.close(self.lines)


def with_environment(host, **changes):
    """CRIU is run with what this process has."""
    for name, value in {'GPUCR_SIM_DIR': host.simulator, **changes}.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def test_dump_and_restore():
    """Twice, and by the environment of the process itself where CRIU has none."""
    with Host() as host:
        other = host.program('other')
        program = host.program('program')
        equal(host.used(), 2 * IN_USE)
        for directory in host.simulator, None:
            with_environment(host, GPUCR_SIM_DIR=directory)
            before = sorted(set(program.held()))
            program.dump()
            program.dumped()
            equal(host.used(), IN_USE, 'the other one\'s')
            check(not os.path.exists(host.process_entry(program.pid)), 'KFD\'s entry')
            program.restore()
            # It has all that it had, under other numbers.
            equal([name for name in sorted(set(program.held())) if '/memory/' not in name and
                   '/processes/' not in name and 'socket:' not in name],
                  [name for name in before if '/memory/' not in name and
                   '/processes/' not in name and 'socket:' not in name])
            # Managed memory has come to the host meanwhile, and goes to the GPU when it is used.
            equal(host.used(), 2 * IN_USE - MANAGED)
            program.tick()
            equal(host.used(), 2 * IN_USE)
            equal(int(read_file(host.process_entry(program.pid))), IN_USE)
        program.tick()
        other.tick()


def test_left_running():
    """What goes on after a dump, or is left stopped, has its GPUs again before it runs."""
    with Host() as host:
        program = host.program('program')
        with_environment(host)
        for option in '--leave-running', '--leave-stopped':
            program.dump(option)
            check(f'{host.simulator}/kfd' in program.held(), option)
            equal(host.used(), IN_USE - MANAGED)
            os.kill(program.pid, signal.SIGCONT)
            program.tick()
            equal(host.used(), IN_USE)


def fails(program, words, *options):
    try:
        program.dump(*options)
    except Failure as failure:
        check(words in str(failure), str(failure))
        return
    raise Failure(f'{words}: it was dumped')


def test_failed_dump():
    """The dump fails at its end, or the process cannot let go: it goes on with all that it had."""
    with Host() as host:
        program = host.program('program')
        with_environment(host)
        script = f'{host.directory}/script'
        with open(script, 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\n[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]\n')
        os.chmod(script, 0o755)
        fails(program, 'Dumping FAILED', '--action-script', script)
        program.tick()
        with open(f'{host.simulator}/faults', 'w', encoding='utf-8') as file:
            file.write('cuCheckpointProcessCheckpoint comm=hip_memory error=999 times=1\n')
        fails(program, 'cannot let go of its GPUs: error 999')
        program.tick()
        equal(host.used(), IN_USE)


def test_restored_stopped():
    """Somebody else is to continue it."""
    with Host() as host:
        program = host.program('program')
        with_environment(host)
        program.dump()
        program.dumped()
        program.restore('--leave-stopped')
        wait_for(lambda: '(stopped)' in read_file(f'/proc/{program.pid}/status'), 'it to be stopped')
        check(f'{host.simulator}/kfd' in program.held(), 'it has its GPU')
        os.kill(program.pid, signal.SIGCONT)
        program.tick()


def test_another_machine():
    """Where the directory has the same name; and there again where there is too little VRAM."""
    with Host() as host:
        program = host.program('program')
        with_environment(host, GPUCR_SIM_CONTEXT_BYTES=str(QUEUES), GPUCR_SIM_HOST='elsewhere')
        program.dump()
        program.dumped()
        for number, vram in enumerate(('8M', '64M')):
            os.environ['GPUCR_SIM_VRAM'] = vram
            there = f'{host.directory}/elsewhere/{number}'
            os.mkdir(there)
            with subprocess.Popen(
                    ['unshare', '--mount', '--kill-child', 'sh', '-c',
                     f'mount --bind {there} {host.simulator} && echo ready && exec sleep 1000'],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                    preexec_fn=harness.end_with_us(signal.SIGKILL)) as keeper:
                try:
                    equal(keeper.stdout.readline(), 'ready\n', 'a mount namespace')
                    program.restore(prefix=['nsenter', '-t', str(keeper.pid), '-m', '--'])
                    if vram == '64M':
                        program.tick()
                        # CRIU has put its memory there, and the kernel its numbers.
                        equal(int(read_file(f'{there}/sys/class/kfd/kfd/proc/{program.pid}/'
                                            f'vram_{GPU_ID}')), IN_USE)
                    else:
                        equal(program.held(), [], 'held by a process that got nothing')
                        check('cannot have its GPUs again: error 2' in
                              read_file(f'{host.images}/restore.log'), 'CRIU\'s log')
                    criu.end(program.pid)
                    program.is_restored = False
                finally:
                    keeper.kill()
        equal(host.used(), 0, 'where it came from')


def test_shared_memory():
    """Memory that another process has too cannot come back: it is not taken away."""
    with Host() as host:
        program = host.program('program')
        with_environment(host)
        done = subprocess.run(
            [sys.executable, '-c', IMPORTING, f'{LIBRARY}/libamdhip64.so.6', host.images,
             host.criu.program, host.criu.empty],
            check=False, env={**host.env, **host.criu.env}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=harness.PATIENCE_SEC)
        equal(done.stdout.strip().split('\n')[-1], 'still 66', 'what it says')
        program.tick()


# Has imported what it had exported: it cannot let go of that, and keeps it.
IMPORTING = '''
import ctypes, os, subprocess, sys, time
library, images, criu, plugins = sys.argv[1:]
hip = ctypes.CDLL(library)
class Prop(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle", ctypes.c_int), ("kind", ctypes.c_int),
                ("id", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_uint)]
class Access(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]
def ok(error):
    assert error == 0, error
size = ctypes.c_size_t(2 << 20)
zero = ctypes.c_ulonglong(0)
handle, again, range_ = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
fd = ctypes.c_int()
ok(hip.hipMemCreate(ctypes.byref(handle), size, ctypes.byref(Prop(1, 1, 1, 0, None, 0)), zero))
ok(hip.hipMemExportToShareableHandle(ctypes.byref(fd), handle, 1, zero))
ok(hip.hipMemImportFromShareableHandle(ctypes.byref(again), ctypes.byref(fd), 1))
os.close(fd.value)
ok(hip.hipMemAddressReserve(ctypes.byref(range_), size, ctypes.c_size_t(0), None, zero))
ok(hip.hipMemMap(range_, size, ctypes.c_size_t(0), again, zero))
ok(hip.hipMemSetAccess(range_, size, ctypes.byref(Access(1, 0, 3)), ctypes.c_size_t(1)))
ok(hip.hipMemset(range_, 66, ctypes.c_size_t(1)))
ok(hip.hipDeviceSynchronize())
done = subprocess.run(["timeout", "-s", "KILL", "60", criu, "dump", "--no-default-config",
                       "--libdir", plugins, "-D", images, "-o", "import.log", "-v4", "-t",
                       str(os.getpid())], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                      stderr=subprocess.STDOUT)
assert done.returncode > 0, done
assert "cannot let go of its GPUs: error 801" in open(images + "/import.log").read()
byte = ctypes.c_ubyte()
ok(hip.hipMemcpy(ctypes.byref(byte), range_, ctypes.c_size_t(1), 4))
print("still", byte.value)
'''


if __name__ == '__main__':
    harness.main(globals())
