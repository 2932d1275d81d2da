# SPDX-License-Identifier: MIT
"""Starting in the background as in the foreground, over what a killed daemon left, and that nothing
is left behind in the end. The common refusals are in test_start.py."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import Failure, Machine, Skip, check, equal, wait_for

TYPE = 'fuse.gpucrfs'


class Bare(Machine):
    """A machine whose daemons the test starts itself; it ends those that are left."""

    def __init__(self, **arguments):
        super().__init__(start=False, **arguments)

    def run(self, *words, **options):
        """Run the program until its parent process ends and its stderr is closed."""
        try:
            return subprocess.run([f'{harness.BUILD}/fs/gpucrfs', *words], check=False, text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True,
                                  timeout=harness.PATIENCE_SEC,
                                  **{'env': self.env, 'cwd': '/', **options})
        except subprocess.TimeoutExpired as expired:
            raise Failure(f'{words}: neither ends nor closes its stderr: {expired.stderr}') \
                from None

    def sim(self, more=''):
        return f'sim,runtime_dir={self.runtime}{self.options}{more}'

    def daemons(self):
        """The pids of daemons for this machine's directory, also of those in the background."""
        found = []
        for name in os.listdir('/proc'):
            if not name.isdigit() or not harness.is_alive(int(name)):
                continue
            try:
                words = harness.read_file(f'/proc/{name}/cmdline').split('\0')
                places = [*words, os.readlink(f'/proc/{name}/cwd'),
                          harness.read_file(f'/proc/{name}/environ')]
            except OSError:
                continue
            if words[0].endswith('/fs/gpucrfs') and any(self.directory in place
                                                        for place in places):
                found.append(int(name))
        return found

    def finish(self):
        for pid in self.daemons():
            if not self.daemon or pid != self.daemon.pid:
                harness.try_kill(pid, signal.SIGTERM)
                wait_for(lambda ended=pid: not harness.is_alive(ended), f'{pid} to end')
        return super().finish()


def is_mounted(machine, mountpoint=None):
    return (mountpoint or machine.mountpoint, TYPE) in harness.mounts()


def unmount(path, *command):
    """Busy at first is no failure: the daemon looks at its own mount when that is new."""
    def try_it():
        return not subprocess.run([*(command or ('fusermount3', '-u')), path], check=False,
                                  stderr=subprocess.DEVNULL).returncode

    wait_for(try_it, f'{path} to be unmounted')


def refused(machine, result, pattern):
    """One clear line on stderr, status 1, nothing mounted and nobody left."""
    # A leak check may note that a thread was just ending.
    lines = [line for line in result.stderr.splitlines() if 'get registers from thread' not in line]
    equal(result.returncode, 1, result.stderr)
    check(len(lines) == 1 and lines[0].startswith('gpucrfs: '), result.stderr)
    check(re.search(pattern, lines[0]), f'{lines[0]!r} lacks {pattern!r}')
    equal(result.stdout, '')
    check(not [path for path, _ in harness.mounts() if path.startswith(machine.directory)],
          f'something is mounted after {lines[0]}')
    equal(machine.daemons(), [], lines[0])


def test_options_refused():
    with Bare() as machine:
        mountpoint = machine.mountpoint
        file = f'{machine.directory}/file'
        with open(file, 'w', encoding='utf-8'):
            pass
        open_to_all = f'{machine.directory}/open'
        os.mkdir(open_to_all)
        os.chmod(open_to_all, 0o777)
        for mode in ('-f',), ():
            def attempt(options, *words, mode=mode):
                return machine.run(*mode, '-o', options, *words, mountpoint)

            refused(machine, attempt(machine.sim(',allow_other')), 'unknown option')
            refused(machine, attempt(machine.sim(), '-d'), "unknown option '-d'")
            refused(machine, attempt(machine.sim(), '--nonsense'), 'unknown option')
            refused(machine, attempt(f'sim,runtime_dir={machine.directory}/a/b'),
                    'No such file or directory')
            refused(machine, attempt(f'sim,runtime_dir={file}'), 'file: Not a directory')
            refused(machine, attempt(f'sim,runtime_dir={open_to_all}'), 'written by others')
            refused(machine, machine.run(*mode, '-o', machine.sim(), ''),
                    'No such file or directory')
            refused(machine, attempt('sim,runtime_dir='), 'No such file or directory')
            refused(machine, attempt(f'sim=,runtime_dir={machine.runtime}'),
                    'No such file or directory')
        check(not os.path.exists(machine.runtime), 'nothing was begun')
        result = machine.run('-f', '-o', machine.sim(',worker_idle=soon'), mountpoint)
        check(result.returncode == 1 and 'worker_idle=soon' in result.stderr, result.stderr)


def test_second_daemon():
    """One runtime directory, one daemon."""
    with Bare() as machine:
        machine.start()
        other = f'{machine.directory}/other'
        os.mkdir(other)
        for mode in ('-f',), ():
            result = machine.run(*mode, '-o', machine.sim(), other)
            equal(result.returncode, 1)
            check(re.fullmatch(rf'gpucrfs: another gpucrfs runs with {machine.runtime}; .*\n',
                               result.stderr), result.stderr)
            check(not is_mounted(machine, other), 'it is mounted')
        demo = machine.ready_demo()
        # The socket is still the first one's.
        machine.wait_status(demo.pid, 'registered', 'yes')
        # With a runtime directory of its own it is welcome.
        result = machine.run('-o', f'sim,runtime_dir={machine.directory}/run2', other)
        equal(result.returncode, 0, result.stderr)
        check(str(demo.pid) in os.listdir(other), 'both see the process')
        unmount(other)
        wait_for(lambda: machine.daemons() == [machine.daemon.pid], 'the second one to end')
        demo.wait_ticks()


def test_without_helpers():
    """The programs that talk to the driver are not there, or of no use."""
    with Bare() as machine:
        nothing, little = f'{machine.directory}/nothing', f'{machine.directory}/little'
        os.mkdir(nothing)
        os.mkdir(little)
        os.symlink(f'{harness.BUILD}/backend/cuda/gpucr-look', f'{little}/gpucr-look')
        for mode in ('-f',), ():
            result = machine.run(*mode, '-o', machine.sim(), machine.mountpoint,
                                 env={**machine.env, 'GPUCR_HELPER_DIR': nothing})
            refused(machine, result, f'{nothing}/gpucr-look cannot be started')
            result = machine.run(*mode, '-o', machine.sim(), machine.mountpoint,
                                 env={**machine.env, 'GPUCR_HELPER_DIR': little})
            refused(machine, result, f'{little}/gpucr-control cannot be started')
            result = machine.run(*mode, '-o', machine.sim(), machine.mountpoint,
                                 env={**machine.env, 'GPUCR_SIM_LIBDIR': nothing,
                                      'LD_LIBRARY_PATH': ''})
            refused(machine, result, 'libcuda.so.1')


def test_helpers_of_another_user():
    """Root has the variables of a user (su, sudo -E): his programs are not started."""
    if not harness.is_root():
        raise Skip('only root can give a file to another user')
    with Bare() as machine:
        theirs, ours = f'{machine.directory}/theirs', f'{machine.directory}/ours'
        for path in theirs, f'{theirs}/lib', ours:
            os.mkdir(path)
        os.symlink(f'{theirs}/lib', f'{ours}/link')
        os.chown(theirs, 4001, 4001)
        build = f'{harness.BUILD}/backend/cuda'
        for name, value in (
                ('GPUCR_HELPER_DIR', theirs), ('GPUCR_HELPER_DIR', f'{theirs}/lib'),
                ('GPUCR_HELPER_DIR', f'{ours}/link'), ('GPUCR_HELPER_DIR', f'{build}:{theirs}/none'),
                ('GPUCR_SIM_LIBDIR', theirs)):
            result = machine.run('-f', '-o', machine.sim(), machine.mountpoint,
                                 env={**machine.env, name: value})
            refused(machine, result, f'{theirs} belongs to user 4001')
        # What is missing in a directory where all can make files, a user makes later, or has made.
        all_may = f'{machine.directory}/all'
        os.mkdir(all_may)
        os.chmod(all_may, 0o1777)
        for value in (all_may, f'{all_may}/none:{build}', f'{all_may}/none/below:{build}',
                      f'{build}:{all_may}/none'):
            result = machine.run('-f', '-o', machine.sim(), machine.mountpoint,
                                 env={**machine.env, 'GPUCR_HELPER_DIR': value})
            refused(machine, result, f'all can write to {all_may}')


def test_simulator_of_another_user():
    """What a simulator's files say of GPUs, root's daemon believes only on the simulator, and not of a
    directory that a user's variable names."""
    if not harness.is_root():
        raise Skip('only root can give a file to another user')
    with Bare() as machine:
        theirs, all_may, helpers = (f'{machine.directory}/{name}' for name in ('theirs', 'all', 'helpers'))
        for path in theirs, all_may, helpers:
            os.mkdir(path)
        os.chown(theirs, 4001, 4001)
        os.chmod(all_may, 0o777)
        seen = f'{helpers}/seen'
        with open(f'{helpers}/gpucr-look', 'w', encoding='utf-8') as program:
            program.write(f'#!/bin/sh\nprintenv GPUCR_SIM_DIR >{seen}\n')
        os.chmod(program.name, 0o755)

        def attempt(options, value, words):
            """The simulator's directory of the helpers."""
            result = machine.run('-f', '-o', options, machine.mountpoint,
                                 env={**machine.env, 'GPUCR_SIM_DIR': value, 'GPUCR_HELPER_DIR': helpers})
            check(result.returncode == 1 and words in result.stderr, f'{words}: {result}')
            return harness.read_file(seen).strip() if os.path.exists(seen) else None

        sim = machine.sim()
        for value in theirs, f'{theirs}/none':
            equal(attempt(sim, value, f'{theirs} belongs to user 4001'), None)
        equal(attempt(sim, all_may, f'all can write to {all_may}'), None)
        os.chmod(all_may, 0o1777)
        equal(attempt(sim, f'{all_may}/none', f'all can write to {all_may}'), None)
        equal(attempt(sim, all_may, 'cannot be started'), all_may)
        equal(attempt(f'{sim},sim={theirs}', theirs, 'cannot be started'), theirs)
        for value in theirs, all_may:
            equal(attempt(f'runtime_dir={machine.runtime}', value, 'cannot be started'), '')


def test_environment_of_another_user():
    """Of root's environment helpers get a few variables, and what these name nobody else can change."""
    if not harness.is_root():
        raise Skip('only root can give a file to another user')
    with Bare() as machine:
        theirs, ours, helpers = (f'{machine.directory}/{name}' for name in ('theirs', 'ours', 'helpers'))
        seen = f'{machine.directory}/seen'
        for path in theirs, ours, helpers:
            os.mkdir(path)
        os.chown(theirs, 4001, 4001)
        os.symlink(theirs, f'{ours}/link')
        for name in 'gpucr-control', 'gpucr-control-hip', 'gpucr-look':
            with open(f'{helpers}/{name}', 'w', encoding='utf-8') as program:
                # A shell takes the variable for its own.
                program.write(f'#!/bin/sh\ncat /proc/$$/environ >{helpers}/new.$$ && mv {helpers}/new.$$ {seen}\n')
            os.chmod(program.name, 0o755)
        dirty = {name: f'{theirs}/file' for name in (
            'CUDA_INJECTION64_PATH', 'NVTX_INJECTION64_PATH', 'HSA_TOOLS_LIB', 'ROCP_TOOL_LIB',
            'CUDA_CACHE_PATH', 'CUDA_MPS_PIPE_DIRECTORY', 'LD_DEBUG_OUTPUT', 'GCONV_PATH', 'LOCPATH', 'TMPDIR',
            'PYTHONPATH', 'BASH_ENV', 'XDG_CACHE_HOME', 'GPUCR_CRIU_ROOT')}

        def attempt(directories, **more):
            """What a helper has got, and what the daemon has said."""
            with contextlib.suppress(FileNotFoundError):
                os.remove(seen)
            # On a busy machine the daemon may kill the helper as one that does not answer.
            until = time.monotonic() + harness.PATIENCE_SEC
            while not os.path.exists(seen):
                check(time.monotonic() < until, 'no helper has run')
                result = machine.run('-f', '-o', machine.sim(), machine.mountpoint, env={
                    **machine.env, **dirty, 'GPUCR_HELPER_DIR': directories, **more})
                equal(result.returncode, 1, result.stderr)
            pairs = [entry.split('=', 1) for entry in harness.read_file(seen).split('\0') if entry]
            return dict(pairs), result.stderr

        build, sim = f'{harness.BUILD}/backend/cuda', f'{harness.BUILD}/backend/sim'
        libraries = os.path.realpath(sim)
        for directories in helpers, f'{helpers}:{build}':
            if directories != helpers:
                os.remove(f'{helpers}/gpucr-look')  # now that of the driver is the first
            is_driver = directories != helpers
            got, words = attempt(directories, HOME=theirs, PATH=f'{theirs}:relative::{ours}/link:/usr/bin:{ours}',
                                 LD_LIBRARY_PATH=f'{ours}:{theirs}')
            check(not set(dirty) & set(got), f'{sorted(got)}')
            check('HOME' not in got, got)
            equal(got['PATH'], f'{os.path.realpath("/usr/bin")}:{ours}')
            equal(got.get('LD_LIBRARY_PATH'), libraries if is_driver else None)
            equal(got['GPUCR_SIM_VRAM'], machine.env['GPUCR_SIM_VRAM'])
            for name in f'PATH: {theirs}', f'PATH: {ours}/link', f'HOME: {theirs}', f'LD_LIBRARY_PATH: {theirs}':
                check(f'{name} is not used: {theirs} belongs to user 4001' in words, f'{name}: {words}')
            got, words = attempt(directories, HOME=ours, PATH=theirs, LD_LIBRARY_PATH=f'{ours}:{ours}/link/..',
                                 LC_ALL='C.UTF-8')
            equal((got['HOME'], got['LC_ALL']), (ours, 'C.UTF-8'))
            check(got['PATH'].startswith('/usr/local/sbin:'), got['PATH'])
            equal(got.get('LD_LIBRARY_PATH'), f'{libraries}:{ours}:{machine.directory}' if is_driver else None)


def test_colon_in_a_trusted_path():
    """A path that has been checked is one directory: its second half is none of whom we stand in."""
    if not harness.is_root():
        raise Skip('only root can give a file to another user')
    with Bare() as machine:
        theirs, ours, all_may = (f'{machine.directory}/{name}' for name in ('theirs', 'ours', 'all'))
        ran = f'{theirs}/ran'
        for path in (f'{theirs}/00', f'{ours}/pci0000:00', f'{ours}/0000;00', f'{all_may}/ours',
                     f'{all_may}/ours:/none'):
            os.makedirs(path)
        os.chmod(all_may, 0o1777)
        os.symlink(f'{ours}/pci0000:00', f'{ours}/link')
        for path in f'{theirs}/00/gpucr-look', f'{all_may}/ours:/none/gpucr-look':
            with open(path, 'w', encoding='utf-8') as program:
                program.write(f'#!/bin/sh\n: >{ran}\n')
            os.chmod(path, 0o755)
            os.chown(path, 4001, 4001)
        os.chown(f'{all_may}/ours:', 4001, 4001)
        for name, value, words in (
                ('GPUCR_HELPER_DIR', f'{ours}/pci0000:00', 'cannot be in a list'),
                ('GPUCR_HELPER_DIR', f'{ours}/link', 'cannot be in a list'),
                ('GPUCR_HELPER_DIR', f'{ours}:{ours}/link', 'cannot be in a list'),
                ('GPUCR_HELPER_DIR', f'{all_may}/ours:/none', 'belongs to user 4001'),
                ('GPUCR_SIM_LIBDIR', f'{ours}/link', 'cannot be in a list'),
                ('GPUCR_SIM_LIBDIR', f'{ours}/0000;00', 'cannot be in a list'),
                ('GPUCR_SIM_LIBDIR', f'/usr/$LIB/../../..{theirs}', 'No such file')):
            result = machine.run('-f', '-o', machine.sim(), machine.mountpoint, cwd=theirs,
                                 env={**machine.env, name: value})
            check(not os.path.exists(ran), f'{name}={value}: root ran the program of a user')
            refused(machine, result, words)


def test_colon_in_the_helpers_directory():
    """Directories are divided by colons, unless there is one of the whole name."""
    with harness.Machine(start=False) as machine:
        directory = f'{machine.directory}/a:b'
        os.symlink(f'{harness.BUILD}/backend/cuda', directory)
        for value in directory, f'{machine.directory}/nothing:{harness.BUILD}/backend/cuda':
            machine.start(env={'GPUCR_HELPER_DIR': value})
            demo = machine.ready_demo()
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
            demo.end()
            equal(machine.stop(), 0)


def test_relative_paths():
    """The daemon in the background works in another directory than it was started in."""
    with Bare() as machine:
        del machine.env['GPUCR_SIM_DIR']
        with open(f'{machine.directory}/old', 'w', encoding='utf-8') as criu:
            criu.write('#!/bin/sh\necho Version: 3.17\n')
        os.chmod(criu.name, 0o755)
        for mountpoint in 'mnt', './mnt/', '../' + os.path.basename(machine.directory) + '/mnt':
            result = machine.run('-o', f'sim=sim,runtime_dir=run,criu=old{machine.options}',
                                 mountpoint, cwd=machine.directory)
            equal(result.returncode, 0, result.stderr)
            check(os.path.exists(f'{machine.simulator}/nvidia-uvm'), 'the simulator\'s state')
            check(os.path.exists(f'{machine.runtime}/socket'), 'the runtime directory')
            demo = machine.ready_demo(env={'GPUCR_SIM_DIR': machine.simulator})
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
            check(machine.write(demo.pid, 'dump') != 'ok', 'a dump with CRIU 3.17')
            check(f'{machine.directory}/old' in machine.error(demo.pid), machine.error(demo.pid))
            demo.end()
            unmount(machine.mountpoint)
            wait_for(lambda: not machine.daemons(), 'the daemon to end')


def test_never_ready():
    """One that cannot start does not say that it is ready."""
    if '#define HAVE_SYSTEMD 1' not in harness.read_file(f'{harness.BUILD}/config.h'):
        raise Skip('built without libsystemd')
    with Bare() as machine:
        path = f'{machine.directory}/notify'
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(path)
        notify.setblocking(False)
        env = {**machine.env, 'NOTIFY_SOCKET': path}
        os.mkdir(f'{machine.mountpoint}/x')
        refused(machine, machine.run('-f', '-o', machine.sim(), machine.mountpoint, env=env),
                'not empty')
        os.rmdir(f'{machine.mountpoint}/x')
        env['GPUCR_HELPER_DIR'] = machine.directory
        refused(machine, machine.run('-f', '-o', machine.sim(), machine.mountpoint, env=env),
                'cannot be started')
        try:
            raise Failure(f'it said {notify.recv(1000)}')
        except BlockingIOError:
            notify.close()


def test_stale_mount():
    with Bare() as machine:
        for start in 'foreground', 'background', 'relative':
            machine.start()
            machine.daemon.send_signal(signal.SIGKILL)
            machine.daemon.wait()
            machine.daemon = None
            check(is_mounted(machine), 'the mount is left')
            try:
                os.listdir(machine.mountpoint)
                raise Failure('the mount answers without a daemon')
            except OSError as error:
                equal(harness.name_of(error.errno), 'ENOTCONN')
            if start == 'foreground':
                machine.start()
                check(machine.answers(), 'the new mount')
                equal(machine.stop(), 0)
            else:
                result = machine.run('-o', machine.sim(), machine.mountpoint
                                     if start == 'background' else 'mnt/', cwd=machine.directory)
                equal(result.returncode, 0, result.stderr)
                check('ctl' in os.listdir(machine.mountpoint), 'the new mount')
                equal(harness.mounts().count((machine.mountpoint, TYPE)), 1)
                (daemon,) = machine.daemons()
                os.kill(daemon, signal.SIGTERM)
                wait_for(lambda ended=daemon: not harness.is_alive(ended), 'the daemon to end')
            check(not is_mounted(machine), 'nothing is left')


def test_a_mountpoint_with_blanks():
    with Bare() as machine:
        odd = f'{machine.directory}/a b\t\\c,d'
        os.mkdir(odd)
        for again in False, True:
            result = machine.run('-o', machine.sim(), odd)
            equal(result.returncode, 0, result.stderr)
            check('ctl' in os.listdir(odd), 'it is mounted')
            (daemon,) = machine.daemons()
            if not again:
                os.kill(daemon, signal.SIGKILL)
                wait_for(lambda: not machine.daemons(), 'the daemon to end')
                continue
            os.kill(daemon, signal.SIGTERM)
            wait_for(lambda: not machine.daemons(), 'the daemon to end')
        equal(os.listdir(odd), [])


def test_unmounted_from_outside():
    commands = [['fusermount3', '-u']]
    if harness.is_root():
        commands += [['umount'], ['umount', '-l']]
    with Bare() as machine:
        for command in commands:
            machine.start()
            helpers = machine.helpers()
            unmount(machine.mountpoint, *command)
            equal(machine.daemon.wait(harness.PATIENCE_SEC), 0, ' '.join(command))
            check(not any(harness.is_alive(pid) for pid, _ in helpers), 'a helper is left')
            check(not os.path.exists(f'{machine.runtime}/socket'), 'the socket is left')
        # A lazy one goes when nobody has a file of it open any more.
        machine.start()
        fd = os.open(machine.path('status'), os.O_RDONLY)
        command = ['umount', '-l'] if harness.is_root() else ['fusermount3', '-u', '-z']
        unmount(machine.mountpoint, *command)
        check(os.read(fd, 100).startswith(b'version '), 'an open file is still there')
        equal(machine.daemon.poll(), None)
        os.close(fd)
        equal(machine.daemon.wait(harness.PATIENCE_SEC), 0, 'lazily, with a file open')


def test_signals_while_it_starts():
    """Told to go before it is ready: it goes, with nothing left mounted."""
    with Bare() as machine:
        for tenths in range(0, 8):
            daemon = subprocess.Popen(machine.command(), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                      env=machine.env)
            try:
                daemon.wait(tenths * 0.015 * harness.SLOW)
            except subprocess.TimeoutExpired:
                pass
            daemon.send_signal(signal.SIGTERM)
            check(daemon.wait(harness.PATIENCE_SEC) in (0, -signal.SIGTERM), 'its exit status')
            check(not is_mounted(machine), 'it is mounted')


if __name__ == '__main__':
    harness.main(globals(), at_once=4)
