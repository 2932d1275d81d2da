# SPDX-License-Identifier: MIT
"""Without libnvidia-ml.so.1 the figures come from a worker, which takes VRAM itself and so has to
go when it is idle."""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import MIB, Machine, Skip, check, equal, wait_for

WORKER = 'gpucr-worker'
HAS_NVML = ('import ctypes\ntry:\n    ctypes.CDLL("libnvidia-ml.so.1")\n'
            'except OSError:\n    raise SystemExit(1)')


class WithoutNvml(Machine):
    """The simulator's library folder has libcuda.so.1 only."""

    def __init__(self, more_env=None, **arguments):
        self.libraries = tempfile.mkdtemp(prefix='gpucrfs-test-lib-')
        try:
            os.chmod(self.libraries, 0o755)
            os.symlink(f'{harness.BUILD}/backend/sim/libcuda.so.1',
                       f'{self.libraries}/libcuda.so.1')
            found = subprocess.run([sys.executable, '-c', HAS_NVML], check=False,
                                   env={**os.environ, 'LD_LIBRARY_PATH': self.libraries})
            if not found.returncode:
                raise Skip('this machine has NVML')
            # The test runner may have put the simulator's real folder into the path.
            super().__init__(env={'GPUCR_SIM_LIBDIR': self.libraries, 'LD_LIBRARY_PATH': '',
                                  **(more_env or {})}, **arguments)
        except BaseException:
            shutil.rmtree(self.libraries)
            raise

    def finish(self):
        problems = super().finish()
        shutil.rmtree(self.libraries, ignore_errors=True)
        return problems

    def workers(self):
        return [pid for pid, comm in self.helpers() if comm == WORKER]


def test_what_is_not_known():
    with WithoutNvml(gpus=2) as machine:
        demo = machine.ready_demo()
        for index in range(2):
            equal(machine.gpu(index)['vram_used_bytes'], '-')
            equal(machine.gpu(index)['pids'], '-')
            check(machine.read('gpus', index, 'uuid').startswith('GPU-'), 'its UUID')
            equal(machine.read('gpus', index, 'name'), 'Simulated GPU\n')
        equal(machine.pids(), [demo.pid])
        equal(machine.status(demo.pid)['vram_bytes'], '0')
        equal(machine.workers(), [], 'looking starts no worker')


def test_freeze_and_thaw():
    with WithoutNvml() as machine:
        demo = machine.ready_demo()
        for _ in range(3):
            machine.must(demo.pid, 'freeze')
            status = machine.status(demo.pid)
            equal(status['state'], 'frozen')
            check(8 * MIB <= int(status['held_bytes']) <= 48 * MIB, status['held_bytes'])
            equal(status['gpus'], '0')
            demo.wait_standstill()
            machine.must(demo.pid, 'thaw')
            demo.wait_ticks()
        check(len(machine.workers()) <= 1, 'one worker for one GPU')


def test_thaw_without_room():
    with WithoutNvml() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        other = machine.ready_demo('--bytes', '160M')
        before = machine.status(demo.pid)
        for _ in range(2):
            equal(machine.write(demo.pid, 'thaw'), 'ENOMEM')
            after = machine.status(demo.pid)
            for key in ('state', 'held_bytes', 'generation', 'gpus'):
                equal(after[key], before[key], key)
        other.wait_ticks()
        # The worker has given back what it took for the question.
        more = machine.ready_demo('--bytes', '4M')
        more.end()
        other.end()
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_two_at_once():
    """The figures of one must not count what another one frees meanwhile as its own."""
    with WithoutNvml() as machine:
        demos = [machine.ready_demo('--bytes', '4M') for _ in range(3)]
        ids = ' '.join(str(demo.pid) for demo in demos)
        for _ in range(2):
            machine.must(None, f'freeze {ids}')
            for demo in demos:
                equal(machine.state(demo.pid), 'frozen')
                check(int(machine.status(demo.pid)['held_bytes']) >= 4 * MIB, 'what it holds')
            machine.must(None, f'thaw {ids}')
            for demo in demos:
                demo.wait_ticks()


def test_two_gpus():
    with WithoutNvml(gpus=2) as machine:
        second = machine.ready_demo(env={'CUDA_VISIBLE_DEVICES': '1'})
        machine.must(second.pid, 'freeze')
        equal(machine.status(second.pid)['gpus'], '1')
        machine.must(second.pid, 'thaw')
        second.wait_ticks()


def test_data_alone():
    """Nobody says where the context is that has stayed, but the files know where they are from."""
    with WithoutNvml(gpus=2, vmm=True) as machine:
        demo = machine.ready_demo(env={'CUDA_VISIBLE_DEVICES': '1'})
        machine.wait_status(demo.pid, 'engine', 'vmm')
        machine.must(demo.pid, 'freeze data')
        equal(machine.status(demo.pid)['gpus'], '1')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_the_worker_goes_when_idle():
    with WithoutNvml(worker_idle=1) as machine:
        demo = machine.ready_demo()
        for verb in ('freeze', 'thaw') * 2:
            machine.must(demo.pid, verb)
            check(machine.workers(), f'{verb} has asked a worker')
            wait_for(lambda: not machine.workers(), 'the worker to end')
        demo.wait_ticks()


def test_the_worker_fails():
    with WithoutNvml(worker_idle=0) as machine:
        demo = machine.ready_demo()
        machine.faults('cuDevicePrimaryCtxRetain error=CUDA_ERROR_OUT_OF_MEMORY')
        result = machine.write(demo.pid, 'freeze')
        equal(result, 'ENOMEM', machine.error(demo.pid))
        equal(machine.state(demo.pid), 'running')
        demo.wait_ticks()
        machine.faults()
        machine.must(demo.pid, 'freeze')
        machine.faults('cuMemCreate action=abort')
        result = machine.write(demo.pid, 'thaw')
        check(result != 'ok', 'thawed without having asked')
        equal(machine.state(demo.pid), 'frozen')
        check(machine.error(demo.pid).startswith(result + ': '), machine.error(demo.pid))
        machine.must_recover(demo)


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
