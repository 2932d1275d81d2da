# SPDX-License-Identifier: MIT
"""What the tests of dump and restore share: machines with a CRIU, and programs that CRIU can take,
which are nobody's children when they come back."""
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile

import criu
import harness
import launcher as launching
import vendor
from harness import BUILD, MIB, Failure, check, equal, is_alive, read_file, try_kill, wait_for

PR_SET_CHILD_SUBREAPER = 36
SMALL = ['--bytes', 6 * MIB, '--buffers', 3, '--tick', 50]


RUN = [*vendor.RUN, *vendor.DEMO, '--list']

# Stands for CRIU and does to a dump what the file `mode` says: no file, nothing.
WRAPPER = """#!/bin/sh
here=${{0%/*}}
[ "$1" = dump ] && [ -e "$here/mode" ] || exec {real} "$@"
# It is told to end by a limit.
await() {{
    until [ -e "$here/go" ]; do
        sleep 0.02
        [ "$(ulimit -f)" != 0 ] || exit 1
    done
}}
# Our script is asked before the daemon is.
hooked() {{
    for word; do
        shift
        case $word in --action-script=*) word=--action-script=$here/hook ;; esac
        set -- "$@" "$word"
    done
    exec {real} "$@"
}}
# Once its pid is there, the next one may get another mode.
mode=$(cat "$here/mode")
echo $$ > "$here/pid.new"; mv "$here/pid.new" "$here/pid"
case $mode in
fail) echo 'Error (criu/cr-dump.c:1): it was told to fail'; exit 1 ;;
nothing) exit 0 ;;
killed) kill -KILL $$ ;;
hang) exec sleep 1000 ;;
grow)
    # As much again as anybody may have, in pieces.
    for piece in $(seq 40); do
        head -c 8388608 /dev/zero > "/proc/$$/fd/3/grown-$piece" || exit 1
        sleep 0.02
    done
    exec {real} "$@"
    ;;
full) ulimit -f 16; exec {real} "$@" ;;
fail-after) {real} "$@"; exit 1 ;;
killed-after) {real} "$@"; kill -KILL $$ ;;
wait) await; exec {real} "$@" ;;
truncate | damage | wait-after | refuse | killed-at-end) hooked "$@" ;;
esac
"""

# CRIU's action script: the tree is held while it runs.
HOOK = """#!/bin/sh
here=${{0%/*}}
[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] || exit 0
case $(cat "$here/mode") in
refuse) exit 1 ;;
truncate) : > /proc/$PPID/fd/3/pstree.img ;;
damage)
    for image in /proc/$PPID/fd/3/core-*.img; do
        dd if=/dev/zero of="$image" bs=1 seek=8 count=2 conv=notrunc 2>/dev/null
    done
    ;;
wait-after)
    : > "$here/done"
    until [ -e "$here/go" ]; do
        sleep 0.02
        ! grep -q '^Max file size *0 ' /proc/$PPID/limits || exit 1
    done
    ;;
killed-at-end)
    # It is stopped, so that it cannot end the tree between the dump's publication and its own end.
    criu=$PPID
    kill -STOP $criu
    store=$(readlink /proc/$criu/fd/3)
    store=${{store%/*/*/*}}
    (for look in $(seq 1000); do
        ! ls "$store" | grep -q ^incoming- || break
        sleep 0.01
    done
    kill -KILL $criu) > /dev/null 2>&1 &
    ;;
esac
exec {hook}
"""


class Wrapper:
    """A CRIU with which something goes wrong."""

    def __init__(self, real):
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-criu-')
        self.program = f'{self.directory}/criu'
        with open(self.program, 'w', encoding='utf-8') as file:
            file.write(WRAPPER.format(real=real))
        with open(f'{self.directory}/hook', 'w', encoding='utf-8') as file:
            file.write(HOOK.format(hook=f'{BUILD}/backend/cuda/gpucr-hook'))
        for name in 'criu', 'hook':
            os.chmod(f'{self.directory}/{name}', 0o755)

    def path(self, name):
        return f'{self.directory}/{name}'

    def set(self, mode=None):
        for name in ('mode', 'pid', 'go', 'done'):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))
        if mode:
            with open(self.path('mode'), 'w', encoding='utf-8') as file:
                file.write(mode)

    def wait(self, name='pid'):
        """Until it has been started (or is `done`); its pid."""
        wait_for(lambda: os.path.exists(self.path(name)), f'{name} of criu')
        return int(read_file(self.path('pid')))

    def go(self):
        with open(self.path('go'), 'w', encoding='utf-8'):
            pass

    def finish(self):
        self.go()
        if os.path.exists(self.path('pid')):
            pid = int(read_file(self.path('pid')))
            with contextlib.suppress(OSError):
                if self.directory.encode() in open(f'/proc/{pid}/cmdline', 'rb').read() or \
                        b'sleep\x001000' in open(f'/proc/{pid}/cmdline', 'rb').read():
                    try_kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)


def machine(wrapped=False, launched=False, users_dump=True, **options):
    """A Machine for the fast engine, whose daemon has a CRIU that works here, and lets users dump
    unless @users_dump is false; with @wrapped its `criu` is a Wrapper of it. With @launched, or GPUCR_TEST_LAUNCH, it is started by gpucr-launch."""
    found = criu.find()
    # What a dump ends is somebody's to wait for; a zombie has its pid still.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    wrapper = Wrapper(found.program) if wrapped else None
    program = wrapper.program if wrapped else found.program
    options['options'] = (options.get('options', '') + f',criu={program}' +
                          (',allow_user_dumps' if users_dump else ''))
    options['env'] = {**found.env, **options.get('env', {})}
    listener = None
    if launched or os.environ.get('GPUCR_TEST_LAUNCH'):
        listener = launching.Listener(tempfile.mkdtemp(prefix='gpucrfs-launch-'),
                                      f'{BUILD}/backend/cuda/gpucr-launch')
        options['env'][launching.VARIABLE] = listener.socket
    try:
        made = harness.Machine(vmm=True, **options)
    except BaseException:
        if listener:
            listener.finish()
        raise
    made.listener = listener
    if listener:
        made.others.append(listener)
    if wrapped:
        made.criu = wrapper
        made.others.append(wrapper)
    return made


class Program:
    """gpucr-demo in a session of its own, with its output in a file; @prepare is called in the child,
    as the user, and what is inheritable is inherited. It ends by the test's hand,
    for a signal with which it would end by itself would come when CRIU ends."""

    def __init__(self, machine, *arguments, name='program', command=None, env=None, uid=None,
                 session=True, stdin=None, prepare=None):
        self.machine = machine
        self.path = f'{machine.directory}/{name}'
        program = command or RUN

        def become():
            if uid is not None:
                harness.become(uid)
            if prepare:
                prepare()

        with open(f'{self.path}.out', 'a', encoding='utf-8') as out, \
                open(f'{self.path}.err', 'a', encoding='utf-8') as err:
            if uid is not None:  # who has to be able to open them when it is restored
                for file in out, err:
                    os.fchown(file.fileno(), uid, -1)
            self.popen = subprocess.Popen(
                program + [str(argument) for argument in arguments],
                stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err, cwd='/',
                env={**machine.env, **(env or {})}, start_new_session=session, preexec_fn=become,
                close_fds=not prepare)
        self.root = self.popen.pid
        self.pid = self.root
        machine.others.append(self)

    @classmethod
    def below(cls, parent, name):
        """One that @parent has started, with its output in files of this name."""
        one = cls.__new__(cls)
        one.machine, one.popen, one.root = parent.machine, parent.popen, parent.root
        one.path = f'{parent.machine.directory}/{name}'
        one.pid = one.root
        parent.machine.others.append(one)
        return one

    def lines(self):
        with contextlib.suppress(FileNotFoundError):
            return read_file(f'{self.path}.out').split('\n')[:-1]
        return []

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
        """What has ended is collected, so that its pid is free; but for whom others wait."""
        waited = {one.pid for one in self.machine.others if isinstance(one, harness.Writer)}
        waited.add(self.machine.daemon.pid)
        listener = getattr(self.machine, 'listener', None)
        if listener:
            waited.add(listener.popen.pid)
        for task in os.listdir('/proc/self/task'):
            with contextlib.suppress(OSError):
                for child in read_file(f'/proc/self/task/{task}/children').split():
                    if int(child) not in waited:
                        os.waitpid(int(child), os.WNOHANG)

    def wait_gone(self):
        wait_for(lambda: self.reap() or not os.path.exists(f'/proc/{self.pid}'), 'its end')

    def session(self):
        """Who is in its session, and has its environment: whatever it has started."""
        mark = f'GPUCR_SOCKET={self.machine.runtime}/'.encode()
        for name in os.listdir('/proc'):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.getsid(int(name)) == self.root:
                    with open(f'/proc/{name}/environ', 'rb') as file:
                        if mark in file.read():
                            yield int(name)

    # as harness.Demo, for Machine.finish()
    def finish(self):
        for pid in {self.root, self.pid, *self.session()}:
            if is_alive(pid):
                try_kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError, subprocess.TimeoutExpired):
            self.popen.wait(1)
        self.reap()


def program(machine, *arguments, **options):
    return Program(machine, *(arguments or SMALL), **options).wait_ready()


def with_output(machine, name, ours, its):
    """gpucr-demo whose output is the descriptor @its, of which we read the other end, dumped; its pid."""
    popen = subprocess.Popen(
        [*vendor.RUN, *vendor.DEMO, *map(str, SMALL)], stdin=subprocess.DEVNULL, stdout=its, stderr=its,
        cwd='/', env=machine.env, start_new_session=True)
    os.close(its)
    text = b''
    while text.count(b'\n') < 3:
        text += os.read(ours, 4096)
    pid = int(text.split()[1])
    try:
        machine.must(pid, f'dump name={name}')
    except BaseException:
        try_kill(pid, signal.SIGKILL)
        raise
    popen.wait()
    os.close(ours)
    return pid


def dumped(machine, one, verb='dump'):
    """Dump it; the name of its place."""
    path = machine.path(one.pid)
    start = int(machine.status(one.pid)['start_ticks'])
    # One that has the name of a place keeps it.
    name = os.readlink(path) if os.path.islink(path) else f'gpucr-demo-{one.pid}-{start}'
    name = next((word[5:] for word in verb.split() if word.startswith('name=')), name)
    machine.must(one.pid, verb)
    one.wait_gone()
    equal(machine.state(name), 'dumped')
    return name


def demo_in_shell(machine, name, arguments=''):
    """What a shell starts to run a program with its output in files of this name."""
    small = ' '.join(str(word) for word in SMALL)
    path = f'{machine.directory}/{name}'
    return f"{' '.join(RUN)} {small} {arguments} >> {path}.out 2>> {path}.err < /dev/null"


def launcher(machine, count=2):
    """A shell that uses no GPU, and programs below it that do."""
    names = [f'member-{number}' for number in range(count)]
    script = ' '.join(f'{demo_in_shell(machine, name)} &' for name in names)
    root = Program(machine, command=['sh', '-c', f'{script} wait; exit 3'], name='launcher')
    return root, [Program.below(root, name).wait_ready() for name in names]


def threads_state(pid):
    with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as stat:
        return stat.read().rpartition(')')[2].split()[0]


def descriptors(machine):
    """What the daemon has open, with the numbers of inodes left out, and without what it has of
    its lookers and receivers, which come and go."""
    found = []
    lookers = len([comm for comm, _ in children(machine) if comm in ('gpucr-look', 'gpucr-receive')])
    for fd in os.listdir(f'/proc/{machine.daemon.pid}/fd'):
        with contextlib.suppress(OSError):
            link = os.readlink(f'/proc/{machine.daemon.pid}/fd/{fd}')
            found.append(link.partition(':[')[0])
    for link in ['socket', 'anon_inode'] * lookers:
        found.remove(link)
    return sorted(found)


def children(machine):
    """Of the daemon, with what has ended and was not waited for: (comm, state)."""
    found = []
    for name in os.listdir('/proc'):
        with contextlib.suppress(OSError, KeyError):
            if name.isdigit():  # not `stat`, which a process can keep from being read
                keys = dict(line.split(':\t', 1) for line in
                            read_file(f'/proc/{name}/status').split('\n') if ':\t' in line)
                if int(keys['PPid']) == machine.daemon.pid:
                    found.append((keys['Name'], keys['State'][0]))
    return found


def store(machine):
    return os.listdir(f'{machine.runtime}/store')


def places(machine):
    return [name for name in os.listdir(machine.path())
            if not name.isdigit() and name not in ('gpus', 'self') and
            os.path.isdir(machine.path(name)) and machine.state(name) in ('dumped', 'incoming', 'restoring')]


def nothing_left(machine):
    """Of a dump that has failed: no place, no CRIU, no descriptor."""
    equal([name for name in store(machine) if name.startswith('.new-')], [], 'the store')
    equal(places(machine), [], 'places')
    wait_for(lambda: not [one for one in children(machine)
                          if one[1] in 'ZX' or not one[0].startswith('gpucr')],
             f'criu to be gone: {children(machine)}')


def as_before(machine, *programs):
    """They run as if nothing had been, and nothing is left of it."""
    for one in programs:
        equal(machine.state(one.pid), 'running', f'process {one.pid}')
        one.wait_ticks()
    nothing_left(machine)


def kill_daemon(machine):
    machine.daemon.kill()
    machine.daemon.wait()
