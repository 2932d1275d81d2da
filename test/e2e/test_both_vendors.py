# SPDX-License-Identifier: MIT
"""GPUs of NVIDIA and of AMD in one mount, with programs on both: each is frozen and thawed on its own
vendor's, together all or none, and nothing of one gets onto the other's."""
import os
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import vendor
import vmm
from harness import BUILD, MIB, check, equal, wait_for

CUDA, HIP = 'cuda', 'hip'
GPU = {CUDA: '0', HIP: '1'}  # AMD's come after NVIDIA's
SMALL = ('--bytes', '8M', '--buffers', 4, '--tick', 20)
COMPUTE = [f'{BUILD}/tools/gpucr-demo']
UUIDS = {CUDA: r'GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n', HIP: r'GPU-[0-9a-f]{16}\n'}
# What a verb of each can fail in.
FAULTS = {CUDA: 'cuCheckpointProcessCheckpoint', HIP: f'cuMemUnmap {vendor.AGENT}'}


def of(name):
    """The command of a program of this vendor's."""
    return [*vendor.RUN, *COMPUTE, *vendor.MODES[name]]


def programs(machine):
    """One of each vendor's, ticking, with the library that serves it."""
    found = {}
    for name in CUDA, HIP:
        found[name] = machine.demo(*SMALL, command=of(name)).wait_ready()
        machine.wait_status(found[name].pid, 'engine', vendor.ENGINES[name])
    return found


def go_on(found):
    for demo in found.values():
        demo.wait_ticks(2)


def states(machine, found):
    return [machine.state(demo.pid) for demo in found.values()]


def both(found):
    return ' '.join(str(demo.pid) for demo in found.values())


def test_side_by_side():
    """Both are shown, and each is frozen and thawed while the other one goes on."""
    with vmm.machine(others=1, worker_idle=1) as machine:
        equal(sorted(os.listdir(machine.path('gpus'))), ['0', '1'])
        equal(machine.status_of_all()['gpus'], '2')
        for name, index in GPU.items():
            check(re.fullmatch(UUIDS[name], machine.read('gpus', index, 'uuid')),
                  machine.read('gpus', index, 'uuid'))
        found = programs(machine)
        for name, demo in found.items():
            machine.wait_status(demo.pid, 'gpus', GPU[name])
            equal(machine.gpu(GPU[name])['pids'], str(demo.pid))
        equal(machine.pids(), sorted(demo.pid for demo in found.values()))
        used = {name: vmm.idle(machine, GPU[name]) for name in found}
        for name, demo in found.items():
            other = next(one for one in found if one != name)
            machine.must(demo.pid, 'freeze')
            found[other].wait_ticks(2)
            kept = int(machine.status(demo.pid).get('kept_vram_bytes', 0)) if name == HIP else 0
            equal([vmm.idle(machine, GPU[name]), vmm.idle(machine, GPU[other])],
                  [kept, used[other]], f'VRAM in use with {name} frozen')
            check(sum(vmm.files(machine, demo.pid).values()) >= 8 * MIB, 'its files')
            machine.must(demo.pid, 'thaw')
            go_on(found)
        equal({name: vmm.idle(machine, GPU[name]) for name in found}, used)


def test_together():
    """By the root's ctl: all or none, whichever of the two fails."""
    with vmm.machine(others=1) as machine:
        found = programs(machine)
        for verb, state in (('freeze', 'frozen'), ('thaw', 'running')) * 2:
            machine.must(None, f'{verb} {both(found)}')
            equal(states(machine, found), [state] * 2)
        go_on(found)
        for name, call in FAULTS.items():
            machine.faults(f'{call} pid={found[name].pid} error=CUDA_ERROR_UNKNOWN')
            equal(machine.write(None, f'freeze {both(found)}'), 'EIO', name)
            machine.faults()
            equal(states(machine, found), ['running'] * 2, name)
            go_on(found)
        machine.must(None, f'freeze {both(found)}')
        machine.must(None, f'thaw {both(found)}')
        go_on(found)


def test_the_daemon_dies():
    """The next one finds each by its own vendor's library."""
    with vmm.machine(others=1) as machine:
        found = programs(machine)
        machine.must(None, f'freeze {both(found)}')
        machine.daemon.kill()
        machine.daemon.wait()
        machine.start()
        for name, demo in found.items():
            machine.wait_status(demo.pid, 'verb', '-')
            status = machine.status(demo.pid)
            equal([status['state'], status['engine']], ['frozen', vendor.ENGINES[name]])
        machine.must(None, f'thaw {both(found)}')
        go_on(found)


# A program on NVIDIA's whose other library, that for HIP, finds a daemon at once.
OF_TWO = '''
import ctypes, fcntl, os, socket, struct, sys, threading, time
SIZE = 8 << 20
cuda = ctypes.CDLL('libcuda.so.1')
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
call('cuInit', 0)
call('cuDevicePrimaryCtxRetain', ctypes.byref(context), 0)
call('cuCtxSetCurrent', context)
call('cuMemAlloc_v2', ctypes.byref(memory), ctypes.c_size_t(SIZE))
call('cuMemsetD8_v2', memory, 7, ctypes.c_size_t(SIZE))
call('cuCtxSynchronize')
page = os.memfd_create('gpucr-page', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(page, 1 << 20)
os.pwrite(page, struct.pack('=IIII', 0x50524347, 1, 1, 5), 0)
fcntl.fcntl(page, 1033, 2 | 4)
payload = struct.pack('=II40s', 1, 1, b'')
def register():
    while True:
        try:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peer.connect(sys.argv[1])
            message = struct.pack('=IHHII', 0x46524347, 1, 96, 1, len(payload)) + payload
            socket.send_fds(peer, [message], [page])
            peer.recv(4096)
        except OSError:
            time.sleep(0.002)
print('ready', flush=True)
for line in sys.stdin:
    if line == 'register\\n':
        threading.Thread(target=register, daemon=True).start()
    else:
        found = ctypes.create_string_buffer(SIZE)
        call('cuMemcpyDtoH_v2', found, memory, ctypes.c_size_t(SIZE))
        assert found.raw == bytes([7]) * SIZE
    print('done', flush=True)
'''


def read_slowly(directory, pid):
    """Records of processes that have ended, before and behind that of @pid."""
    (name,) = [name for name in os.listdir(directory) if name.startswith(f'{pid}-')]
    with open(f'{directory}/{name}', encoding='utf-8') as file:
        record = file.read()
    ticks = name.split('-')[1]
    for number in range(3000):
        dead = f'{1 if number % 2 else 9}-{number + 1}'
        with open(f'{directory}/{dead}', 'w', opener=lambda path, flags: os.open(path, flags, 0o600),
                  encoding='utf-8') as file:
            file.write(record.replace(f'\npid {pid}\n', f'\npid {dead.split("-")[0]}\n')
                       .replace(f'\nstart_ticks {ticks}\n', f'\nstart_ticks {number + 1}\n'))


def test_the_other_library_is_quicker():
    """After a daemon's death, too, the library is asked that has handed the memory over."""
    with vmm.machine(others=1) as machine:
        popen = subprocess.Popen([*vendor.RUN, sys.executable, '-c', OF_TWO,
                                  f'{machine.runtime}/socket'],
                                 env=machine.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True,
                                 preexec_fn=harness.end_with_us(signal.SIGKILL))

        def say(word):
            popen.stdin.write(f'{word}\n')
            popen.stdin.flush()
            equal(popen.stdout.readline(), 'done\n', word)

        try:
            equal(popen.stdout.readline(), 'ready\n')
            machine.wait_status(popen.pid, 'engine', vendor.ENGINES[CUDA])
            machine.must(popen.pid, 'freeze')
            say('register')
            for _ in range(3):
                machine.daemon.kill()
                machine.daemon.wait()
                read_slowly(f'{machine.runtime}/processes', popen.pid)
                machine.start()
                machine.wait_status(popen.pid, 'verb', '-')
                status = machine.status(popen.pid)
                equal([status['state'], status['engine']], ['frozen', vendor.ENGINES[CUDA]])
            check(sum(vmm.files(machine, popen.pid).values()) >= 8 * MIB, 'its files')
            machine.must(popen.pid, 'thaw')
            say('compare')
        finally:
            popen.kill()
            popen.wait()


def frozen_and_left(machine):
    """Programs of which the one of AMD's was frozen by a daemon that has been killed."""
    found = programs(machine)
    machine.must(found[HIP].pid, 'freeze')
    machine.daemon.kill()
    machine.daemon.wait()
    return found


def test_a_vendor_that_is_missing():
    """Whose frozen process is alive: a daemon without it does not start, and says so."""
    with vmm.machine(others=1) as machine:
        found = frozen_and_left(machine)
        try:
            machine.start(env={'GPUCR_SIM_HIP_GPUS': '0'})
        except harness.Failure:
            pass
        else:
            raise harness.Failure('it has started')
        check('a process is frozen that used a GPU of a vendor whose GPUs are not there'
              in machine.log(), machine.log())
        equal(machine.daemon.returncode, 1)
        machine.start()
        machine.wait_status(found[HIP].pid, 'verb', '-')
        machine.must(found[HIP].pid, 'thaw')
        go_on(found)


def test_only_dead_ones_are_missing():
    """One that has ended since does not keep a daemon from starting."""
    with vmm.machine(others=1) as machine:
        found = frozen_and_left(machine)
        found.pop(HIP).end(signal.SIGKILL)
        machine.start(env={'GPUCR_SIM_HIP_GPUS': '0'})
        equal(machine.status_of_all()['gpus'], '1')
        go_on(found)


def test_one_vendor_fails():
    """What is shown of the other's GPUs is as new as ever."""
    with vmm.machine(others=1) as machine:
        files = {name: f'{machine.simulator}/hip/sys/class/kfd/kfd/topology/nodes'
                 for name in (HIP,)}
        nodes = next(path for path in (files[HIP], files[HIP].replace('/hip/', '/'))
                     if os.path.isdir(path))
        os.rename(nodes, f'{nodes}.away')
        machine.used(0)
        wait_for(lambda: 'the GPUs cannot be asked' in machine.log() or machine.gpu(0) is None,
                 'a query to fail', 20)
        demo = machine.demo(*SMALL, command=of(CUDA)).wait_ready()
        wait_for(lambda: machine.used(0) >= 8 * MIB, 'its VRAM to be shown', 3)
        os.rename(f'{nodes}.away', nodes)
        demo.wait_ticks(2)


def test_a_tree_of_both():
    """Dumped and brought back whole, each onto its own."""
    with dump.machine(others=1, worker_idle=1) as machine:
        commands = []
        for name in CUDA, HIP:
            words = ' '.join(map(str, [*of(name), *dump.SMALL]))
            path = f'{machine.directory}/{name}'
            commands.append(f'{words} >> {path}.out 2>> {path}.err < /dev/null &')
        root = dump.Program(machine, command=['sh', '-c', f'{" ".join(commands)} wait; exit 3'],
                            name='root')
        found = {name: dump.Program.below(root, name).wait_ready() for name in (CUDA, HIP)}
        for name, one in found.items():
            machine.wait_status(one.pid, 'engine', vendor.ENGINES[name])
        machine.must(root.pid, 'freeze')
        equal(states(machine, found), ['frozen'] * 2)
        machine.must(root.pid, 'thaw')
        go_on(found)
        for _ in range(2):
            machine.must(root.pid, 'dump name=both')
            for one in (*found.values(), root):
                one.wait_gone()
            for index in GPU.values():
                equal(vmm.idle(machine, index), 0, f'VRAM in use of GPU {index}')
            equal(sorted(os.listdir(machine.path('both', 'snapshot', 'processes'))),
                  sorted(str(one.pid) for one in found.values()))
            machine.must('both', 'thaw')
            go_on(found)
            for name, one in found.items():
                machine.wait_status(one.pid, 'gpus', GPU[name])
                equal(machine.status(one.pid)['engine'], vendor.ENGINES[name])


def test_never_onto_the_others():
    """Whatever gpu= says; and a place of a vendor that has no GPU here stays a place."""
    with dump.machine(others=1) as machine:
        found = {name: dump.Program(machine, *dump.SMALL, name=name, command=of(name)).wait_ready()
                 for name in (CUDA, HIP)}
        machine.must(None, f'freeze {both(found)}')
        for name, one in found.items():
            machine.wait_status(one.pid, 'state', 'frozen')
            other = next(GPU[other] for other in GPU if other != name)
            result = machine.write(one.pid, f'thaw gpu={GPU[name]}:{other}')
            check(result in ('EOPNOTSUPP', 'EINVAL', 'ENODEV'), f'{name}: {result}')
            equal(machine.state(one.pid), 'frozen', machine.error(one.pid))
        machine.must(None, f'thaw {both(found)}')
        go_on(found)
        for name, one in found.items():
            other = next(GPU[other] for other in GPU if other != name)
            machine.must(one.pid, f'dump name={name}')
            one.wait_gone()
            result = machine.write(name, f'thaw gpu={GPU[name]}:{other}')
            check(result in ('EOPNOTSUPP', 'EINVAL', 'ENODEV'), f'{name}: {result}')
            equal(machine.state(name), 'dumped', machine.error(name))
        equal(machine.stop(), 0)
        # AMD's GPUs are gone, then NVIDIA's; then all are there again.
        for gone, counts in (HIP, (1, 0)), (CUDA, (0, 1)), (None, (1, 1)):
            shutil.rmtree(machine.simulator)
            machine.env.update(GPUCR_SIM_GPUS=str(counts[0]), GPUCR_SIM_HIP_GPUS=str(counts[1]))
            machine.start()
            if not gone:
                break
            for verb in 'thaw', 'thaw gpu=0:0', f'thaw gpu={GPU[gone]}:0':
                result = machine.write(gone, verb)
                check(result in ('EOPNOTSUPP', 'ENODEV'), f'{gone}: {verb}: {result}')
                equal(machine.state(gone), 'dumped', machine.error(gone))
            equal(machine.stop(), 0)
        for name, one in found.items():
            machine.must(name, 'thaw')
            one.wait_ticks(2)


USES_BOTH = '''
import ctypes, sys, time
cuda, hip = ctypes.CDLL('libcuda.so.1'), ctypes.CDLL('libamdhip64.so')
context, pointers = ctypes.c_void_p(), [ctypes.c_void_p(), ctypes.c_void_p()]
def use_cuda():
    return cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or \\
        cuda.cuCtxSetCurrent(context) or cuda.cuMemAlloc_v2(ctypes.byref(pointers[0]), 4 << 20)
def use_hip():
    return hip.hipMalloc(ctypes.byref(pointers[1]), 4 << 20)
use = {'cuda': use_cuda, 'hip': use_hip}
for name in sys.argv[1:]:
    print(name, use[name](), flush=True)
while True:
    time.sleep(0.02)
    print('on', flush=True)
'''


def test_one_that_uses_both():
    """It can be frozen by neither, goes on, and is not taken for one of the other's."""
    with vmm.machine(others=1) as machine:
        for order in (CUDA, HIP), (HIP, CUDA):
            popen = subprocess.Popen([*vendor.RUN, sys.executable, '-c', USES_BOTH, *order],
                                     env=machine.env, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, text=True,
                                     preexec_fn=harness.end_with_us(signal.SIGKILL))
            try:
                output = harness.Output(popen.stdout)
                output.wait(lambda lines: lines.count('on') > 3, 'both to be used')
                equal(output.lines[:2], [f'{name} 0' for name in order])
                wait_for(lambda: popen.pid in machine.pids(), 'it to be found')
                for verb in 'freeze', 'freeze data':
                    equal(machine.write(popen.pid, verb), 'EOPNOTSUPP')
                    check('two vendors' in machine.error(popen.pid), machine.error(popen.pid))
                    equal(machine.state(popen.pid), 'running')
                count = len(output.lines)
                output.wait(lambda lines, before=count: len(lines) > before + 3, 'it to go on')
            finally:
                popen.kill()
                popen.wait()
            wait_for(lambda: machine.pids() == [], 'it to go')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
