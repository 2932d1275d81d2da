# SPDX-License-Identifier: MIT
"""What the tests of restores share: machines whose CRIU can be told to fail, and what must be so
whatever has happened: never two living copies, nothing left behind."""
import contextlib
import ctypes
import errno
import os
import re
import signal

import criu
import dump
from harness import BUILD, check, equal, is_alive, wait_for

CGROUPS = '/sys/fs/cgroup', '/sys/fs/cgroup/unified'

# Stands in for CRIU. The file `mode` beside it says what becomes of a restore; `ran` is made when
# one begins, `made` when the tree is there.
WRAPPER = '''#!/bin/sh
here={directory}
case " $* " in *" restore "*) ;; *) exec {program} "$@" ;; esac
mode=$(cat $here/mode 2>/dev/null)
: > $here/ran
case $mode in
fail-before) exit 1 ;;
hang-before) sleep 1000 ;;
unguarded) unset LD_PRELOAD ;;
die-before) kill -KILL $$ ;;
esac
{program} "$@"
status=$?
: > $here/made
case $mode in
fail-after) exit 1 ;;
hang-after) sleep 1000 ;;
die-after) kill -KILL $$ ;;
no-pid) rm -f /proc/self/fd/4/criu.pid ;;
esac
exit $status
'''


class Restores:
    """The wrapper of a machine."""

    def __init__(self, machine, directory):
        self.machine = machine
        self.directory = directory

    def set(self, mode):
        for name in 'ran', 'made':
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f'{self.directory}/{name}')
        with open(f'{self.directory}/mode', 'w', encoding='utf-8') as file:
            file.write(mode)

    def has(self, name):
        return os.path.exists(f'{self.directory}/{name}')

    def wait(self, name):
        wait_for(lambda: self.has(name), f'CRIU to have {name}')


def machine(cgroups=True, **options):
    """A machine of dump.py, with `restores`."""
    found = criu.find()
    one = dump.machine(start=False, **options)
    restores = Restores(one, f'{one.directory}/wrapper')
    os.mkdir(restores.directory)
    path = f'{restores.directory}/criu'
    with open(path, 'w', encoding='utf-8') as file:
        file.write(WRAPPER.format(directory=restores.directory, program=found.program))
    os.chmod(path, 0o755)
    one.options = one.options.replace(f'criu={found.program}', f'criu={path}')
    one.restores = restores
    if not cgroups:
        fail(one, 'cgroup')
        one.options_of_start = {'env': {
            'LD_PRELOAD': f'{BUILD}/test/e2e/libfailing.so',
            'GPUCR_TEST_FAILING': f'{one.directory}/failing'}}
    try:
        start(one)
    except BaseException:
        one.finish()
        raise
    return one


def fail(machine, words):
    """Calls of the daemon of a machine without cgroups: see e2e/failing.c."""
    with open(f'{machine.directory}/failing.new', 'w', encoding='utf-8') as file:
        file.write(words)
    os.rename(file.name, f'{machine.directory}/failing')


def wait_held(machine):
    """Until a restore is held, which `hold` has asked for."""
    path = f'{machine.directory}/failing.held'
    wait_for(lambda: os.path.exists(path), 'the restore to be held')
    os.unlink(path)


def fork_as(pid, uid=0, comm=None):
    """A child with this pid, by clone3(2): others get the numbers that they would get anyway."""
    wanted = (ctypes.c_int * 1)(pid)
    arguments = (ctypes.c_uint64 * 10)()
    arguments[4] = signal.SIGCHLD
    arguments[8], arguments[9] = ctypes.addressof(wanted), 1
    # Not CDLL: the child would have to wait for Python's lock, which a thread may hold.
    libc = ctypes.PyDLL(None, use_errno=True)

    def call():
        """A number is free a moment after its process has gone from /proc."""
        child = libc.syscall(435, arguments, ctypes.c_size_t(ctypes.sizeof(arguments)))
        check(child >= 0 or ctypes.get_errno() == errno.EEXIST,
              f'clone3: {os.strerror(ctypes.get_errno())}')
        return child + 1

    child = wait_for(call, f'the number {pid} to be free') - 1
    if child == 0:
        try:
            if comm:
                with open('/proc/self/comm', 'w', encoding='utf-8') as file:
                    file.write(comm)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            while True:
                signal.pause()
        finally:
            os._exit(1)
    return child


def start(machine):
    """Also the next daemon."""
    return machine.start(**getattr(machine, 'options_of_start', {}))


def cgroup_of(name):
    """The directories of a place's cgroup."""
    return [path for path in (f'{top}/gpucrfs/gpucr-{name}' for top in CGROUPS)
            if os.path.isdir(path)]


def processes_of(one):
    """All that live and have its output open: the copies of a program."""
    target = os.path.realpath(f'{one.path}.out')
    found = set()
    for name in os.listdir('/proc'):
        if name.isdigit() and int(name) != os.getpid() and is_alive(int(name)):
            with contextlib.suppress(OSError):
                if any(os.readlink(f'/proc/{name}/fd/{fd}') == target
                       for fd in os.listdir(f'/proc/{name}/fd')):
                    found.add(int(name))
    return found


def check_back(machine, one, name, state='dumped', may_have_cgroup=False):
    """A restore has failed: the place is what it was, and nothing lives of what was made."""
    one.reap()
    equal(machine.state(name), state, machine.error(name))
    equal(processes_of(one), set())
    if not may_have_cgroup:
        equal(cgroup_of(name), [])
    # The one that was dumped has ended, which the daemon may still have to notice.
    wait_for(lambda: not os.path.isdir(f'{machine.runtime}/processes') or
             not os.listdir(f'{machine.runtime}/processes'), 'the end of all records')
    equal(in_store(machine, r'\d|\.new-'), [])
    equal(in_store(machine, 'incoming-'), [f'incoming-{name}'])


def check_on(machine, one, name, pid=None):
    """It has been restored, and there is one of it."""
    pid = pid or one.pid
    equal(machine.state(name), 'running', machine.error(name))
    equal(os.readlink(machine.path(pid)), name)
    one.wait_ticks(2)
    equal(processes_of(one), {pid})
    wait_for(lambda: not in_store(machine, r'incoming-|\d|\.'), 'the store to be empty')


def in_store(machine, pattern):
    return [name for name in os.listdir(f'{machine.runtime}/store') if re.match(pattern, name)]


def thaws(machine, one, name):
    """It can be thawed, whatever has happened to it before."""
    machine.must(name, 'thaw')
    check_on(machine, one, name)


def ends(machine, one, name, pid=None):
    """The end of a restored process: both names go, and all that was kept of it."""
    pid = pid or one.pid
    os.kill(pid, 9)
    wait_for(lambda: one.reap() or not os.path.lexists(machine.path(pid)), 'the end of the process')
    wait_for(lambda: not os.path.lexists(machine.path(name)), 'the end of the place')
    wait_for(lambda: not cgroup_of(name), 'the end of its cgroup')


def only_one(machine, one):
    """Whatever has happened: there is not more than one of it."""
    copies = processes_of(one)
    check(len(copies) <= 1, f'{len(copies)} copies: {copies}')
    return len(copies) == 1
