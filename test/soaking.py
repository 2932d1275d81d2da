# SPDX-License-Identifier: MIT
"""What test/soak is made of: programs that know their memory, shells that write verbs and read files,
and what the daemon has of the machine at a time."""
import collections
import contextlib
import errno
import os
import re
import resource
import signal
import subprocess
import time

import harness
import vendor
from harness import Failure, is_alive, read_file, try_kill

MIB = 1 << 20
DEMO = [f'{harness.BUILD}/tools/gpucr-demo']
WITHOUT_VMM = [vendor.RUN[0], '--sim', '--no-vmm']
LIBRARIES = ('vmm', 'hip')

# How the programs differ. @verbs: those that make sense for it beside freeze, thaw and cancel; @gpus:
# NVIDIA's have the indexes 0 and 1, AMD's has 2.
Kind = collections.namedtuple('Kind', 'name engine arguments run env verbs gpus')
DUMP, DATA, SWAP, PACK, MOVE = 'dump', 'data', 'swap', 'pack', 'move'
FAST = (DUMP, DATA, SWAP, PACK, MOVE)


def kind(name, engine, *arguments, run=tuple(vendor.RUN), env=None, verbs=FAST, gpus=(0, 1)):
    return Kind(name, engine, arguments, list(run), env or {}, verbs, gpus)


KINDS = [
    kind('plain', 'vmm', '--bytes', '6M', '--buffers', 2),
    kind('replica', 'vmm', '--bytes', '6M', '--buffers', 2),
    kind('large', 'vmm', '--bytes', '12M', '--buffers', 3),
    kind('kinds', 'vmm', '--bytes', '4M', '--buffers', 2, '--own-vmm', 1, '--pitch', 1, '--async', 1),
    kind('blocks', 'vmm', '--bytes', '4M', '--buffers', 2, '--blocks', 64, '--block-bytes', '16K',
         '--threads', 2),
    kind('managed', 'vmm', '--bytes', '4M', '--buffers', 2, '--managed', 1),
    kind('two', 'vmm', '--bytes', '8M', '--buffers', 2, '--gpus', 2, gpus=(0,)),
    kind('capture', 'vmm', '--bytes', '4M', '--buffers', 2, '--capture', 5, '--children', 1,
         verbs=(DATA, SWAP, PACK, MOVE)),
    kind('no-vmm', 'driver', '--bytes', '4M', '--buffers', 2, run=WITHOUT_VMM, verbs=(DUMP, MOVE)),
    kind('alone', 'driver', '--bytes', '4M', '--buffers', 2, env={'GPUCR_PRELOAD': ''}, verbs=(MOVE,)),
    kind('amd', 'hip', '--bytes', '6M', '--buffers', 2, '--hip', verbs=(DUMP, SWAP, PACK), gpus=(0,)),
    kind('none', 'none', '--bytes', '2M', '--buffers', 1, '--hip', env={'GPUCR_PRELOAD': ''}, verbs=(),
         gpus=(0,)),
]


class Program:
    """gpucr-demo in a session of its own, with its output in a file: a dump can take it. Its pid stays
    the same when it comes back from one, but then it is not known to Popen any more. It gets no signal
    when its parent ends, as that would come when CRIU does."""

    def __init__(self, machine, its_kind, number, gpu, tick_msec):
        self.kind = its_kind
        self.path = f'{machine.directory}/program-{number}'
        self.ticks = 0
        self.text = ''
        self.was_dumped = False  # a dump of it was begun: it may have ended by that
        self.started = time.monotonic()
        arguments = [*its_kind.arguments, '--gpu', gpu, '--tick', tick_msec]
        with open(f'{self.path}.out', 'ab') as out, open(f'{self.path}.err', 'ab') as err:
            self.popen = subprocess.Popen(
                [*its_kind.run, *DEMO, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, cwd='/', env={**machine.env, **its_kind.env}, start_new_session=True)
        self.pid = self.popen.pid
        self.output = open(f'{self.path}.out', encoding='utf-8', errors='replace')

    def __str__(self):
        return f'{self.kind.name} ({self.pid})'

    def look(self):
        """Take what it has said: every line must be the next tick, and right."""
        *lines, self.text = (self.text + self.output.read()).split('\n')
        for line in lines:
            if not self.ticks and line == f'pid {self.pid}':
                continue
            if line != f'tick {self.ticks + 1} ok':
                raise Failure(f'{self} says {line!r}, and tick {self.ticks + 1} was to be right; '
                              f'{self.words()}')
            self.ticks += 1

    def words(self):
        return read_file(f'{self.path}.err')[-500:].strip()

    def is_alive(self):
        self.popen.poll()
        return is_alive(self.pid)

    def end(self, number=signal.SIGKILL):
        if self.is_alive():
            try_kill(self.pid, number)
        if number == signal.SIGKILL and self.popen.returncode is None:
            self.popen.wait()

    def finish(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.end()
        self.output.close()
        for suffix in 'out', 'err':
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f'{self.path}.{suffix}')


NUMBERS = {os.strerror(number): number for number in errno.errorcode}


class Shell:
    """bash, with one command in it. @deadline: in seconds, it must have ended by then."""

    def __init__(self, machine, label, command, deadline, pids=()):
        self.label = label
        self.command = command
        self.pids = pids
        self.was_killed = False
        self.started = time.monotonic()
        self.deadline = self.started + deadline
        self.popen = subprocess.Popen(
            ['bash', '-c', command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, env={**machine.env, 'LC_ALL': 'C'}, start_new_session=True,
            preexec_fn=harness.end_with_us(signal.SIGKILL))

    @property
    def seconds(self):
        return time.monotonic() - self.started

    def answer(self):
        """None while it runs; 'ok', the name of an errno, or 'killed'."""
        if self.popen.poll() is None:
            return None
        words = self.popen.stderr.read().decode(errors='replace').strip()
        self.popen.stderr.close()
        if self.popen.returncode == 0:
            return 'ok'
        if self.was_killed:
            return 'killed'
        line = words.split('\n')[0]
        number = NUMBERS.get(line.rpartition(': ')[2])
        return harness.name_of(number) if number else f'status {self.popen.returncode}: {line}'

    def kill(self, number):
        self.was_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def finish(self):
        if self.popen.poll() is None:
            self.kill(signal.SIGKILL)
            self.popen.wait()


# ---- what the daemon has ----

Sample = collections.namedtuple('Sample', 'seconds rss anonymous descriptors threads')


def sample(pid, started):
    """None: it is not there."""
    with contextlib.suppress(OSError, KeyError):
        keys = {line.partition(':')[0]: line.partition(':')[2].split()[0]
                for line in read_file(f'/proc/{pid}/status').splitlines() if line.split(':')[1].strip()}
        return Sample(time.monotonic() - started, int(keys['VmRSS']) << 10, int(keys['RssAnon']) << 10,
                      len(os.listdir(f'/proc/{pid}/fd')), int(keys['Threads']))
    return None


def slope(samples):
    """Bytes a minute by which private memory grows: least squares."""
    count = len(samples)
    if count < 3:
        return 0.0
    mean_x = sum(one.seconds for one in samples) / count
    mean_y = sum(one.anonymous for one in samples) / count
    spread = sum((one.seconds - mean_x) ** 2 for one in samples)
    if not spread:
        return 0.0
    return 60 * sum((one.seconds - mean_x) * (one.anonymous - mean_y) for one in samples) / spread


def descriptors(pid):
    """What they are, without numbers: a Counter."""
    found = collections.Counter()
    for fd in os.listdir(f'/proc/{pid}/fd'):
        with contextlib.suppress(OSError):
            link = os.readlink(f'/proc/{pid}/fd/{fd}')
            found[re.sub(r'\d+', 'N', link.partition(':[')[0])] += 1
    return found


# No helpers, by what they are called when they begin, too; and the looker, which stays.
PROGRAMS = ('gpucr-run', 'gpucr-demo', 'gpucr-look', 'gpucr-receive')


def our_helpers(machine):
    """Helpers and CRIU of this machine, whoever's children they are: (pid, comm, state, parent)."""
    mark = f'GPUCR_SOCKET={machine.runtime}/'.encode()
    found = []
    for name in os.listdir('/proc'):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(name)
            comm, _, rest = read_file(f'/proc/{pid}/stat').partition(' (')[2].rpartition(') ')
            if not comm.startswith(('gpucr-', 'criu')) or comm in PROGRAMS:
                continue
            state, parent = rest.split()[:2]
            is_ours = int(parent) == machine.daemon.pid
            if not is_ours and state not in 'ZX':
                with open(f'/proc/{pid}/environ', 'rb') as file:
                    is_ours = mark in file.read()
            if is_ours:
                found.append((pid, comm, state, int(parent)))
    return sorted(found)


def files_below(directory, skip=()):
    """Names of all that is there, without numbers, but not of the directories @skip in it."""
    found = collections.Counter()
    for where, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if where != directory or name not in skip]
        for name in (*names, *directories):
            path = os.path.relpath(os.path.join(where, name), directory)
            found[re.sub(r'\d+', 'N', path)] += 1
    return found


def store_descriptors(found):
    """Those of what the store keeps of running programs: they come and go with it."""
    return sum(count for name, count in found.items() if '/store/' in name or 'gpucr-digests' in name)


def our_mounts(machine):
    return sorted(path for path, _ in harness.mounts() if path.startswith(machine.directory + '/'))


def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
