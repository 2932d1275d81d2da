# SPDX-License-Identifier: MIT
"""What dump refuses, in words, and if it can before anybody is frozen."""
import os
import re
import resource
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
from harness import NOBODY, check, equal, needs_cuda, same_for_both, wait_for


def refused(machine, one, expected, words, verb='dump', root=None, frozen=False):
    """@frozen: it can only be found when the GPU processes are."""
    before = machine.status(one.pid)['generation']
    result = machine.write(root or one.pid, verb)
    equal(result, expected, machine.error(one.pid))
    check(re.search(words, machine.error(one.pid)), machine.error(one.pid))
    if not frozen:
        equal(machine.status(one.pid)['generation'], before, 'it was not frozen')
    dump.as_before(machine, one)


def with_shell(machine, script, name='one'):
    """A shell that has started a GPU process and then does this."""
    script = f"{dump.demo_in_shell(machine, name)} & {script}"
    root = dump.Program(machine, command=['sh', '-c', script], name='shell')
    return root, dump.Program.below(root, name).wait_ready()


def linux():
    return tuple(int(number) for number in re.findall(r'\d+', os.uname().release)[:2])


CONNECTED = """
import os, socket, sys
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
served, _ = listener.accept()
if sys.argv[1] == 'exec':
    for one in (listener, client, served):
        one.set_inheritable(True)
    os.execv(sys.argv[2], sys.argv[2:])
os.system(sys.argv[2])
"""


def test_network():
    """A connection of who uses no GPU is seen before the freeze, one of who does after it."""
    same_for_both('what is found out about the tree')
    if linux() >= (6, 16):
        number, words = 'EOPNOTSUPP', 'network socket .*CRIU before 4.2'
    else:
        number, words = 'EBUSY', 'TCP connection.*tcp=close'
    with dump.machine() as machine:
        root = dump.Program(machine, 'system', dump.demo_in_shell(machine, 'one'), name='system',
                            command=[sys.executable, '-c', CONNECTED])
        one = dump.Program.below(root, 'one').wait_ready()
        refused(machine, one, number, words, root=root.pid)
        two = dump.Program(machine, *dump.RUN, *dump.SMALL, name='exec',
                           command=[sys.executable, '-c', CONNECTED, 'exec']).wait_ready()
        refused(machine, two, number, words, frozen=True)
        # One of another program is nobody's business.
        name = dump.dumped(machine, dump.program(machine))
        equal(machine.state(name), 'dumped')


def test_many_pipes():
    """At a restore CRIU has a descriptor for each of them: of what it could not restore nothing is
    dumped."""
    same_for_both('what is found out about the tree')
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit < 4000:
        raise harness.Skip(f'only {limit} descriptors')
    resource.setrlimit(resource.RLIMIT_NOFILE, (4000, limit))
    pipes = [os.pipe() for _ in range(1100)]

    def hold():
        for reader, writer in pipes[:count]:
            os.close(reader)
            os.set_inheritable(writer, True)
        for reader, writer in pipes[count:]:
            os.close(reader)
            os.close(writer)

    try:
        with restore.machine() as machine:
            count = 1020
            one = dump.program(machine, prepare=hold)
            refused(machine, one, 'E2BIG', 'whose other ends are outside', frozen=True)
            count = 895
            other = dump.program(machine, prepare=hold, name='other')
            restore.thaws(machine, other, dump.dumped(machine, other))
    finally:
        for fd in sum(pipes, ()):
            os.close(fd)


def test_managed_memory():
    with dump.machine() as machine:
        one = dump.program(machine, *dump.SMALL, '--managed', 1)
        refused(machine, one, 'EOPNOTSUPP', 'managed memory', frozen=True)


def test_writer_in_the_tree():
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        path = f'{machine.directory}/go'
        root, one = with_shell(
            machine, f'until [ -e {path} ]; do sleep 0.05; done; '
                     f'echo dump > {machine.mountpoint}/$$/ctl; echo "answer $?"; wait')
        with open(path, 'w', encoding='utf-8'):
            pass
        wait_for(lambda: 'answer' in harness.read_file(f'{root.path}.out'), 'its answer')
        check('answer 0' not in harness.read_file(f'{root.path}.out'), 'it was refused')
        check('the writer is process' in machine.error(one.pid), machine.error(one.pid))
        dump.as_before(machine, one)


def test_daemon_in_the_tree():
    """It would wait for itself."""
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        one = dump.program(machine)
        refused(machine, one, 'EBUSY', 'the daemon itself', root=os.getpid())


def test_our_mount():
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        root, one = with_shell(machine, f'exec 5< {machine.mountpoint}/status; wait; exit 3')
        wait_for(lambda: os.path.exists(f'/proc/{root.pid}/fd/5'), 'the file to be open')
        refused(machine, one, 'EBUSY', 'on this mount', root=root.pid)


def test_stopped():
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        root, one = with_shell(machine, 'wait; exit 3')
        os.kill(root.pid, signal.SIGSTOP)
        wait_for(lambda: dump.threads_state(root.pid) == 'T', 'it to be stopped')
        refused(machine, one, 'EOPNOTSUPP', 'is stopped: continue it', root=root.pid)
        equal(dump.threads_state(root.pid), 'T', 'it stays so')
        os.kill(root.pid, signal.SIGCONT)
        machine.must(root.pid, 'dump')


MIXED = """
import os, sys, time
if not os.fork():
    time.sleep(100000)
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_another_users():
    """The owner of the root cannot take along what belongs to others."""
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        one = dump.Program(machine, *dump.RUN, *dump.SMALL,
                           command=[sys.executable, '-c', MIXED, str(NOBODY)]).wait_ready()
        writer = machine.writer(one.pid, 'dump', uid=NOBODY)
        equal(writer.result(), 'EPERM')
        check('belongs to another user' in machine.error(one.pid), machine.error(one.pid))
        dump.as_before(machine, one)


def script(machine, words):
    path = f'{machine}/criu'
    with open(path, 'w', encoding='utf-8') as file:
        file.write(f'#!/bin/sh\necho "Version: {words}"\n')
    os.chmod(path, 0o755)
    return path


def test_without_criu():
    """None, and one that is too old."""
    same_for_both('which CRIU there is')
    if not harness.is_root():
        raise harness.Skip('needs root')
    with tempfile.TemporaryDirectory() as directory:
        for path, words in ((f'{directory}/none', 'is not there: install CRIU 4.0'),
                            (script(directory, '3.19'), 'is version 3.19: install')):
            with harness.Machine(vmm=True, options=f',criu={path}') as machine:
                demo = machine.ready_demo()
                equal(machine.write(demo.pid, 'dump'), 'EOPNOTSUPP')
                check(words in machine.error(demo.pid), machine.error(demo.pid))
                equal(machine.status(demo.pid)['generation'], '-', 'it was not frozen')
                dump.nothing_left(machine)
                machine.must(demo.pid, 'freeze')
                machine.must(demo.pid, 'thaw')
                demo.wait_ticks()


def make_cgroup(name):
    """Where status sees it: of v2, or of v1's memory controller."""
    with open('/proc/self/mounts', encoding='utf-8') as mounts:
        lines = [line.split() for line in mounts]
    points = [line[1] for line in lines if line[2] == 'cgroup2'] + \
        [line[1] for line in lines if line[2] == 'cgroup' and 'memory' in line[3].split(',')]
    for point in points:
        try:
            os.mkdir(f'{point}/{name}')
            return f'{point}/{name}'
        except OSError:
            continue
    raise harness.Skip('no cgroup can be made')


def test_unit_of_systemd():
    """It would be started again."""
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        unit = f'gpucr-test-{harness.unique()}.service'
        cgroup = make_cgroup(unit)
        try:
            one = dump.program(machine)
            with open(f'{cgroup}/cgroup.procs', 'w', encoding='utf-8') as file:
                file.write(str(one.pid))
            wait_for(lambda: machine.status(one.pid).get('cgroup', unit).endswith(unit), 'cgroup')
            refused(machine, one, 'EOPNOTSUPP', f'belongs to {unit}.*dump supervised')
            machine.must(one.pid, 'dump leave name=copy')
            machine.must(one.pid, 'thaw')
            dump.dumped(machine, one, 'dump supervised name=it')
        finally:
            with open(f'{cgroup}/cgroup.procs', encoding='utf-8') as file:
                for pid in file.read().split():
                    harness.try_kill(int(pid), signal.SIGKILL)
            wait_for(lambda: harness.error_of(lambda: os.rmdir(cgroup)) in ('ok', 'ENOENT'),
                     'the cgroup to be empty')


def test_inside_a_container():
    """Not the first process of its pid namespace: its container is to be dumped as a whole."""
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        inner = f"{dump.demo_in_shell(machine, 'one')} & wait; exit 3"
        root = dump.Program(machine, command=['unshare', '--pid', '--fork', '--kill-child', 'sh',
                                              '-c', inner], name='container')
        one = dump.Program.below(root, 'one')
        wait_for(lambda: len(one.lines()) > 1 or root.popen.poll() is not None, 'the first tick')
        if root.popen.poll() is not None:
            raise harness.Skip(f'no pid namespace: {root.words()}')
        one.pid = wait_for(machine.pids, 'its directory')[0]
        refused(machine, one, 'EOPNOTSUPP', 'in a container, and not its first process')


def test_to_the_driver_it_is_on_another_gpu():
    """A thaw to that one was undone: CRIU would take what does not belong together."""
    needs_cuda('thaw gpu=')
    with dump.machine(gpus=2) as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        machine.faults('cuMemImportFromShareableHandle thread=gpucr-agent times=1 error=CUDA_ERROR_UNKNOWN')
        equal(machine.write(one.pid, 'thaw gpu=0:1'), 'EIO')
        machine.faults()
        equal(machine.write(one.pid, 'dump'), 'EBUSY')
        check('on other GPUs than its memory' in machine.error(one.pid), machine.error(one.pid))
        equal(machine.state(one.pid), 'frozen')
        machine.must(one.pid, 'thaw')
        one.wait_ticks(2)
        name = dump.dumped(machine, one)
        machine.must(name, 'thaw')
        one.wait_ticks(2)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
