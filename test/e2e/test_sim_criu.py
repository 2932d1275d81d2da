# SPDX-License-Identifier: MIT
"""The simulated driver and CRIU: a process that was checkpointed through the driver API alone is
dumped, and restored in the same simulated machine, in another one, under another pid. No daemon
takes part; where the preload library does, this is its daemon."""
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import criu
import harness
from harness import BUILD, MIB, SOURCE, check, equal, is_alive, read_file, wait_for
from pieces import noise

LIBRARY = f'{BUILD}/backend/sim'
RUNNING, LOCKED, CHECKPOINTED = range(3)
OK, OUT_OF_MEMORY, INVALID_DEVICE, OPERATING_SYSTEM, ILLEGAL_STATE = 0, 2, 101, 304, 401
SYS_CLONE3 = 435  # the same on all architectures


class Place:
    """Somewhere that has a simulated machine: `prefix` runs commands there."""

    def __init__(self, host, simulator, env=None, prefix=()):
        self.prefix = list(prefix)
        self.simulator = simulator  # its files, as they are seen from here
        self.env = {**os.environ, 'LD_LIBRARY_PATH': LIBRARY, 'GPUCR_SIM_DIR': f'{host}/sim',
                    'GPUCR_SIM_VRAM': '64M', 'GPUCR_SIM_CONTEXT_BYTES': '4M', **(env or {})}

    def call(self, verb, *arguments):
        """The words that driver_call.py prints."""
        done = subprocess.run([*self.prefix, sys.executable, f'{SOURCE}/driver_call.py',
                               f'{LIBRARY}/libcuda.so.1', verb, *map(str, arguments)],
                              check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True, env=self.env, timeout=harness.PATIENCE_SEC)
        return done.stdout.split()

    def result(self, verb, *arguments):
        return int(self.call(verb, *arguments)[0])

    def state(self, pid):
        result, state = self.call('state', pid)
        equal(result, '0', f'state of {pid}')
        return int(state)

    def checkpoint(self, pid):
        equal(self.result('lock', pid), OK, 'lock')
        equal(self.result('checkpoint', pid), OK, 'checkpoint')

    def restore(self, pid, *pairs):
        equal(self.state(pid), CHECKPOINTED)
        equal(self.result('unlock', pid), ILLEGAL_STATE)
        equal(self.result('restore', pid, *pairs), OK, 'restore')
        equal(self.state(pid), LOCKED)
        equal(self.result('unlock', pid), OK, 'unlock')
        equal(self.state(pid), RUNNING)

    def blocks(self):
        """Physical memory in use. Reading it makes what nobody has any more go away."""
        self.call('uuids')
        return len(os.listdir(f'{self.simulator}/memory'))


class Program:
    """test/e2e/pieces.c, which has what it was told to have. It ends when nobody can tell it
    anything any more. A signal for that would come when CRIU, which restores it, ends."""

    def __init__(self, host, place, name, *kinds):
        self.path = f'{host}/{name}'
        os.mkfifo(f'{self.path}.lines')
        self.lines = os.open(f'{self.path}.lines', os.O_RDWR)
        with open(f'{self.path}.out', 'w', encoding='utf-8') as out, \
                open(f'{self.path}.err', 'w', encoding='utf-8') as err:
            self.popen = subprocess.Popen(
                [*place.prefix, f'{BUILD}/test/e2e/pieces', f'{self.path}.lines', *kinds],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=place.env,
                start_new_session=True)
        self.pid = self.popen.pid
        self.is_restored = False
        self.contents = {}
        wait_for(lambda: self.ticks() > 0 or self.popen.poll() is not None, f'{name} to begin')
        check(self.popen.poll() is None, read_file(f'{self.path}.err'))
        for index, kind in enumerate(kinds):
            self.put(index, noise(f'{name} {index}', int(kind.partition(':')[2])))

    def ticks(self):
        """Not positive before the first."""
        return len(read_file(f'{self.path}.out').split('\n')) - 2

    def tell(self, line):
        os.write(self.lines, f'{line}\n'.encode())

    def told(self, line):
        ticks = self.ticks()
        self.tell(line)
        wait_for(lambda: self.ticks() > ticks or not is_alive(self.pid), line)
        check(is_alive(self.pid), f'it has ended: {read_file(f"{self.path}.err")}')

    def put(self, index, data):
        with open(f'{self.path}.data', 'wb') as file:
            file.write(data)
        self.told(f'load {index} 0 {self.path}.data')
        self.contents[index] = data

    def check(self):
        """It runs, and its memory is what it has to be."""
        for index, content in self.contents.items():
            self.told(f'save {index} {self.path}.data')
            with open(f'{self.path}.data', 'rb') as file:
                check(file.read() == content, f'piece {index} of {self.path}')

    def held(self):
        """What it holds of the simulated machine."""
        machine = f'{os.path.dirname(self.path)}/sim/'
        found = [line.split(None, 5)[5] for line in
                 read_file(f'/proc/{self.pid}/maps').split('\n') if machine in line]
        for number in os.listdir(f'/proc/{self.pid}/fd'):
            link = os.readlink(f'/proc/{self.pid}/fd/{number}')
            if machine in link or 'socket:' in link:
                found.append(link)
        return found

    def wait(self):
        """How it ended, as Popen.wait() says."""
        if self.is_restored:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.popen.wait()

    def end(self):
        self.popen.kill()
        self.popen.wait()
        if self.is_restored:
            criu.end(self.pid)
        os.close(self.lines)


class Library:
    """The preload library of a program, as its daemon sees it: lib/protocol.h."""
    HEADER = struct.Struct('=IHHII')
    MAGIC, VERSION = 0x46524347, 1
    REGISTER, WANTED, RESULT = 96, 97, 64
    GATE_CLOSE, GATE_OPEN, HAND_OVER, COMMIT, FINISH, PARK = 100, 101, 104, 105, 108, 115
    RUNNING, OUT = 1, 4
    PAGE_MAGIC = 0x50524347
    GENERATION = b'01234567-89ab-cdef-0123-456789abcdef'

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.settimeout(harness.PATIENCE_SEC)
        self.socket = None

    def _receive(self):
        data, fds, _, _ = socket.recv_fds(self.socket, 66000, 64)
        check(data, 'the library has closed its socket')
        magic, version, kind, _, length = self.HEADER.unpack_from(data)
        equal((magic, version, length), (self.MAGIC, self.VERSION, len(data) - self.HEADER.size))
        return kind, data[self.HEADER.size:], fds

    def accept(self):
        """Phase and generation, with which it registers."""
        self.socket = self.listener.accept()[0]
        self.socket.settimeout(harness.PATIENCE_SEC)
        kind, payload, (page,) = self._receive()
        equal(kind, self.REGISTER)
        equal(struct.unpack_from('=I', os.pread(page, 4, 0))[0], self.PAGE_MAGIC)
        os.close(page)
        _, phase, generation = struct.unpack_from('=II40s', payload)
        return phase, generation.rstrip(b'\0')

    def ask(self, kind, payload=b''):
        self.socket.send(self.HEADER.pack(self.MAGIC, self.VERSION, kind, 1, len(payload)) + payload)
        answer, payload, fds = self._receive()
        # Its thread may say at any time that it waits for the GPU.
        while answer == self.WANTED:
            answer, payload, fds = self._receive()
        equal((answer, fds), (self.RESULT, []))
        equal(struct.unpack_from('=i', payload)[0], 0, f'request {kind}')

    def take_memory(self):
        self.ask(self.GATE_CLOSE, struct.pack('=I', 10000))
        self.ask(self.HAND_OVER, struct.pack('=40sI', self.GENERATION, 0))
        self.ask(self.COMMIT)

    def park(self):
        self.ask(self.PARK, struct.pack('=II', 3600000, 0))
        equal(self.socket.recv(1), b'', 'what comes after it')
        self.socket.close()

    def go_on(self):
        self.ask(self.FINISH)
        self.ask(self.GATE_OPEN)

    def close(self):
        self.listener.close()


class Host:
    """A simulated machine, programs on it, and other places to restore them in."""

    def __init__(self, **env):
        self.criu = criu.find()
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-test-')
        self.images = f'{self.directory}/images'
        for name in 'images', 'sim', 'elsewhere':
            os.mkdir(f'{self.directory}/{name}')
            os.chmod(f'{self.directory}/{name}', 0o1777)
        self.here = Place(self.directory, f'{self.directory}/sim', env)
        self.programs = []
        self.keepers = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in self.programs:
            program.end()
        for keeper in self.keepers:
            keeper.kill()
            keeper.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def program(self, place, name, *kinds):
        program = Program(self.directory, place, name, *kinds)
        self.programs.append(program)
        return program

    def keeper(self, options, command):
        """Namespaces that last as long as a process in them; returns its pid."""
        keeper = subprocess.Popen(['unshare', '--kill-child', *options, 'sh', '-c',
                                   f'{command} && echo ready && exec sleep 1000'],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                  preexec_fn=harness.end_with_us(signal.SIGKILL))
        self.keepers.append(keeper)
        equal(keeper.stdout.readline(), 'ready\n', 'namespaces')
        # With --fork its child is the one in them.
        children = read_file(f'/proc/{keeper.pid}/task/{keeper.pid}/children').split()
        return int(children[0]) if children else keeper.pid

    def elsewhere(self, what=None, **env):
        """Another machine, in which the simulator's directory has the same name."""
        what = what or f'--bind {self.directory}/elsewhere'
        pid = self.keeper(['--mount'], f'mount {what} {self.directory}/sim')
        other = f'/proc/{pid}/root{self.directory}/sim'
        return Place(self.directory, other, {'GPUCR_SIM_HOST': 'elsewhere', **env},
                     ['nsenter', '-t', str(pid), '-m', '--'])

    def dump(self, program):
        self.here.checkpoint(program.pid)
        equal(program.held(), [], 'held by the checkpointed process')
        self.criu.dump(program.pid, self.images)
        equal(program.wait(), -signal.SIGKILL, 'how it ended')

    def restore(self, program, place, prefix=None):
        """As CRIU leaves it: everything is still in the process."""
        program.pid = self.criu.restore(self.images,
                                        prefix=place.prefix if prefix is None else prefix)
        program.is_restored = True
        return program.pid


def test_same_machine():
    with Host() as host:
        other = host.program(host.here, 'other', f'0:{MIB}')
        program = host.program(host.here, 'program', f'0:{4 * MIB}', '0:4096', f'0:{6 * MIB}')
        before = host.here.blocks()
        for number in range(2):
            host.dump(program)
            equal(host.here.blocks(), 1, 'what the other one has')
            check(host.here.result('state', program.pid) != OK, 'there is no such process')
            host.restore(program, host.here)
            equal(program.held(), [], 'held by the restored process')
            # A call that it makes before it is unlocked waits.
            ticks = program.ticks()
            program.tell(f'save 0 {program.path}.data')
            result, thread = host.here.call('thread', program.pid)
            equal(result, '0', 'the restore thread')
            check(os.path.isdir(f'/proc/{program.pid}/task/{thread}'), f'thread {thread}')
            equal(host.here.state(program.pid), CHECKPOINTED)
            equal(program.held(), [], 'held after it was asked')
            equal(program.ticks(), ticks, 'ticks of a checkpointed process')
            host.here.restore(program.pid)
            wait_for(lambda: program.ticks() == ticks + 1, 'the call that waited')
            program.check()
            program.put(1, noise(f'round {number}', 4096))
            equal(host.here.blocks(), before)
            program.check()
        other.check()
        # and then once more without CRIU
        host.here.checkpoint(program.pid)
        host.here.restore(program.pid)
        program.check()


def test_parked():
    """The preload library lets go of its daemon, and finds the next one when it is restored."""
    with Host() as host, contextlib.closing(Library(f'{host.directory}/socket')) as library:
        there = host.elsewhere()
        place = Place(host.directory, host.here.simulator, {
            'LD_PRELOAD': f'{BUILD}/backend/preload/libgpucr-preload.so',
            'GPUCR_SOCKET': f'{host.directory}/socket'})
        program = host.program(place, 'program', '0:4096', '0:65536')
        equal(library.accept(), (library.RUNNING, b''))
        for where in host.here, there:
            library.take_memory()
            library.park()
            equal(sum(link.startswith('socket:') for link in program.held()), 1, 'of the driver')
            host.dump(program)
            host.restore(program, where)
            # Nobody tells it that it was restored. Its calls wait at the gate.
            equal(library.accept(), (library.OUT, library.GENERATION))
            ticks = program.ticks()
            program.tell(f'save 0 {program.path}.data')
            where.restore(program.pid)
            equal(program.ticks(), ticks, 'ticks behind the gate')
            library.go_on()
            wait_for(lambda: program.ticks() == ticks + 1, 'the call that waited')
            program.check()


def test_another_machine():
    with Host() as host:
        there = host.elsewhere()
        # It has processes, memory and numbers of its own.
        others = [host.program(there, f'other-{number}', f'0:{(number + 1) * 2 * MIB}', '0:4096')
                  for number in range(2)]
        program = host.program(host.here, 'program', f'0:{4 * MIB}', '0:4096')
        blocks = there.blocks()
        host.dump(program)
        host.restore(program, there)
        there.restore(program.pid)
        program.check()
        equal(there.blocks(), blocks + 2)
        equal(host.here.blocks(), 0, 'blocks left where it came from')
        for other in others:
            other.check()
        # Killed, it leaves nothing.
        criu.end(program.pid)
        equal(there.blocks(), blocks)


def killed_by_fault(place, verb, call, program):
    """The program dies when it has carried out the call, before it has answered."""
    with open(f'{place.simulator}/faults', 'w', encoding='utf-8') as file:
        file.write(f'{call} comm=pieces when=after action=kill\n')
    equal(place.result(verb, program.pid), OPERATING_SYSTEM, call)
    os.unlink(file.name)
    equal(program.wait(), -signal.SIGKILL)


def test_killed():
    with Host() as host:
        there = host.elsewhere()
        other = host.program(there, 'other', f'0:{2 * MIB}')
        programs = [host.program(host.here, f'program-{number}', f'0:{4 * MIB}', '0:4096')
                    for number in range(2)]
        equal(host.here.result('lock', programs[0].pid), OK)
        killed_by_fault(host.here, 'checkpoint', 'cuCheckpointProcessCheckpoint', programs[0])
        equal(host.here.blocks(), 2, 'of the second one')
        host.dump(programs[1])
        host.restore(programs[1], there)
        killed_by_fault(there, 'restore', 'cuCheckpointProcessRestore', programs[1])
        equal(there.blocks(), 1)
        other.check()
        for place in host.here, there:
            sockets = [name for name in os.listdir(f'{place.simulator}/processes')
                       if name in [f'{program.pid}.sock' for program in programs]]
            equal(sockets, [])


def test_another_gpu():
    with Host() as host:
        there = host.elsewhere(GPUCR_SIM_GPUS='2')
        old, new = host.here.call('uuids'), there.call('uuids')
        equal(len(set(old + new)), 3, 'GPUs')
        program = host.program(host.here, 'program', f'0:{4 * MIB}')
        host.dump(program)
        host.restore(program, there)
        for wrong in f'{new[0]}:{new[1]}', f'{old[0]}:{old[0]}':
            equal(there.result('restore', program.pid, wrong), 1, wrong)
        there.restore(program.pid, f'{old[0]}:{new[1]}')
        program.check()
        equal(there.blocks(), 1)
        # A context of 4 MiB for whoever asks, and another one where the program is now.
        equal([there.call('used', number) for number in range(2)],
              [[str(4 * MIB)], [str(12 * MIB)]])


def test_fewer_gpus():
    """Refused before anything is changed: with another one in its place it can be restored."""
    with Host(GPUCR_SIM_GPUS='2') as host:
        there = host.elsewhere()
        old, new = host.here.call('uuids'), there.call('uuids')
        program = host.program(host.here, 'program', f'1:{2 * MIB}', f'0:{2 * MIB}')
        host.dump(program)
        host.restore(program, there)
        equal(there.result('restore', program.pid), INVALID_DEVICE)
        equal(there.result('restore', program.pid, f'{old[1]}:{new[0]}'), 1, 'one of two')
        equal(there.state(program.pid), CHECKPOINTED)
        equal(there.blocks(), 0)
        # There is a machine with enough of them: the one where it was.
        criu.end(program.pid)
        host.restore(program, host.here)
        host.here.restore(program.pid)
        program.check()


def fails_to_restore(there, program, result):
    """The restore ends with @result, and the program is as checkpointed as it was."""
    equal(there.result('restore', program.pid), result)
    equal(there.state(program.pid), CHECKPOINTED)
    equal(program.held(), [], 'held after a restore that failed')



def test_too_little_memory():
    """The restore that fails is the last, as on the real driver, and nobody else is hurt."""
    with Host() as host:
        there = host.elsewhere(GPUCR_SIM_VRAM='16M')
        other = host.program(there, 'other', f'0:{8 * MIB}')
        program = host.program(host.here, 'program', f'0:{4 * MIB}')
        host.dump(program)
        host.restore(program, there)
        fails_to_restore(there, program, OUT_OF_MEMORY)
        other.check()
        equal(there.blocks(), 1)


def test_no_room():
    """What goes wrong in the middle of a restore leaves nothing in the process either."""
    with Host() as host:
        there = host.elsewhere('-t tmpfs -o size=5m tmpfs')
        program = host.program(host.here, 'program', f'0:{8 * MIB}')
        host.dump(program)
        host.restore(program, there)
        fails_to_restore(there, program, OPERATING_SYSTEM)
        equal(there.blocks(), 0)


def process_with_pid(pid):
    """A sleeping process that has taken the pid; returns False if it cannot."""
    number = ctypes.c_int(pid)
    arguments = (ctypes.c_uint64 * 11)()
    arguments[4] = signal.SIGCHLD
    arguments[8], arguments[9] = ctypes.addressof(number), 1
    child = harness.LIBC.syscall(SYS_CLONE3, arguments, ctypes.sizeof(arguments))
    if not child:
        os.execvp('sleep', ['sleep', '1000'])
    return child == pid


def pid_of(inner, keeper):
    """The process that has this pid in the keeper's pid namespace."""
    namespace = os.readlink(f'/proc/{keeper}/ns/pid')
    for name in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            if os.readlink(f'/proc/{name}/ns/pid') == namespace and \
                    f'\t{inner}\n' in read_file(f'/proc/{name}/status').partition('NSpid:')[2]:
                return int(name)
    raise harness.Failure(f'no process is {inner} in the pid namespace of {keeper}')


def test_pid_taken():
    """Where its pid is used it is restored in a pid namespace, and found under the pid it has
    outside."""
    with Host() as host:
        program = host.program(host.here, 'program', f'0:{4 * MIB}', '0:4096')
        old = program.pid
        host.dump(program)
        check(process_with_pid(old), f'the pid {old} could not be taken')
        try:
            keeper = host.keeper(['--mount', '--pid', '--fork', '--mount-proc'], 'true')
            equal(host.restore(program, host.here,
                               ['nsenter', '-t', str(keeper), '-m', '-p', '--']), old)
            program.pid = pid_of(old, keeper)
            check(program.pid != old, 'it has another pid')
            check(host.here.result('state', old) != OK, 'the other process')
            host.here.restore(program.pid)
            program.check()
            # It stays that: another checkpoint, in place.
            host.here.checkpoint(program.pid)
            equal(program.held(), [])
            host.here.restore(program.pid)
            program.check()
        finally:
            criu.end(old)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
