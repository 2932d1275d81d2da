# SPDX-License-Identifier: MIT
"""Two hosts on one machine: each has network and mount namespaces of its own, simulated GPUs of its
own and a daemon of its own, under the same names of files. Between them is a network with sshd; where
there is none, a command in the other's namespaces takes the place of ssh. The test itself is on the
first. What is in `shared` both see."""
import contextlib
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import tempfile

import harness
from harness import BUILD, Failure, Skip, check, equal, wait_for

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
PORT = 2222
SEARCH = f'{os.environ["PATH"]}:/usr/sbin:/sbin'
TICKS_MAX = 20000  # a program that nobody could end ends then
NEEDED = {'ip': 'iproute2', 'rsync': 'rsync', 'nsenter': 'util-linux', 'mount': 'mount'}


class Host(harness.Machine):
    """@prefix runs a command on it. @path_of says under which name the test sees its files."""

    def __init__(self, name, address, directory, prefix, root, **options):
        super().__init__(start=False, vmm=True, **options)
        shutil.rmtree(self.directory)  # that was one of the test's own
        self.name, self.address, self.prefix = name, address, prefix
        self.inner, self.directory = directory, root + directory
        self.inner_mountpoint = f'{directory}/mnt'
        self.runtime = f'{directory}/run'
        self.mountpoint = root + self.inner_mountpoint
        self.simulator = f'{self.directory}/sim'
        self.log_path = f'{self.directory}/log'
        self.env.update({'GPUCR_SIM_DIR': f'{directory}/sim', 'GPUCR_SIM_HOST': name,
                         'GPUCR_SOCKET': f'{self.runtime}/socket'})
        os.mkdir(self.mountpoint)

    def command(self, *more):
        return [*self.prefix, f'{BUILD}/fs/gpucrfs', '-f', '-o',
                f'sim,runtime_dir={self.runtime}{self.options}', *more, self.inner_mountpoint]

    def answers(self):
        try:
            return 'ctl' in os.listdir(self.mountpoint)
        except OSError:
            return False

    def finish(self):
        """Its mounts go with its namespaces, its files with the pair's."""
        return self.stop_at_end()

    def run(self, *command, **options):
        """One that ends, on this host: (status, stdout, stderr)."""
        done = subprocess.run([*self.prefix, *command], check=False, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, env=self.env,
                              timeout=harness.TEST_SEC, **options)
        return done.returncode, done.stdout, done.stderr


class Program:
    """gpucr-demo, started on one host: it moves. Nothing kills it when the test dies, as that
    signal would come when whoever restores it ends; it ends by itself after TICKS_MAX."""

    def __init__(self, pair, host, *arguments):
        self.path = f'{pair.shared}/out'
        with open(self.path, 'w', encoding='utf-8') as out, \
                open(f'{pair.shared}/err', 'w', encoding='utf-8') as err:
            self.popen = subprocess.Popen(
                [*host.prefix, f'{BUILD}/tools/gpucr-run', '--sim', f'{BUILD}/tools/gpucr-demo',
                 '--bytes', '8M', '--tick', '20', '--ticks', str(TICKS_MAX), *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=host.env, cwd=pair.shared,
                start_new_session=True)
        wait_for(lambda: self.ticks() > 0 or self.popen.poll() is not None, 'the first tick')
        check(self.popen.poll() is None, harness.read_file(f'{pair.shared}/err'))
        self.pid = int(harness.read_file(self.path).split()[1])

    def ticks(self):
        """The last one; none must be missing, or be there twice."""
        lines = harness.read_file(self.path).split('\n')[:-1]
        for number, line in enumerate(lines[1:], 1):
            equal(line, f'tick {number} ok', f'line {number + 1}')
        return len(lines) - 1

    def wait_ticks(self, more=3):
        goal = self.ticks() + more
        wait_for(lambda: self.ticks() >= goal, f'tick {goal}')

    def end(self):
        for pid in {self.popen.pid, getattr(self, 'pid', self.popen.pid)}:
            with contextlib.suppress(OSError):
                if 'gpucr-' in os.readlink(f'/proc/{pid}/exe'):
                    os.kill(pid, signal.SIGKILL)
        self.popen.wait()


class Pair:
    """Hosts `here` and `there`."""

    def __init__(self, here=None, there=None, env=None):
        if not harness.is_root():
            raise Skip('only root can make hosts')
        for command, package in NEEDED.items():
            if not shutil.which(command, path=SEARCH):
                raise Skip(f'{command} is not there (package {package})')
        self.sshd = shutil.which('sshd', path=SEARCH) if shutil.which('ssh') else None
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-test-')
        self.children = []
        self.programs = []
        self.hosts = []
        try:
            self._make(here or {}, there or {}, env or {})
        except BaseException:
            self._end()
            raise

    def _make(self, here, there, env):
        os.chmod(self.directory, 0o755)
        self.shared = f'{self.directory}/shared'
        machine = f'{self.directory}/machine'
        for path in machine, f'{self.directory}/there', self.shared:
            os.mkdir(path, 0o755)
        if harness.LIBC.unshare(CLONE_NEWNS | CLONE_NEWNET):
            raise Skip('no namespaces of mounts and networks')
        self.must('mount', '--make-rprivate', '/')
        keeper = self.start(['unshare', '--mount', '--net', 'sh', '-c',
                             f'mount --bind {self.directory}/there {machine} && '
                             'ip link set lo up && echo ready && exec sleep 100000'],
                            stdout=subprocess.PIPE, text=True)
        equal(keeper.stdout.readline(), 'ready\n', 'namespaces')
        nsenter = ['nsenter', '-m', '-n', f'--wd={self.shared}', '-t']
        self.here = Host('here', '10.213.0.1', machine, [], '', env=env, **here)
        self.hosts.append(self.here)
        self.there = Host('there', '10.213.0.2', machine, [*nsenter, str(keeper.pid), '--'],
                          f'/proc/{keeper.pid}/root', env=env, **there)
        self.hosts.append(self.there)
        self.must('ip', 'link', 'set', 'lo', 'up')
        self.must('ip', 'link', 'add', 'gpucr0', 'type', 'veth', 'peer', 'name', 'gpucr0', 'netns',
                  str(keeper.pid))
        for host in self.hosts:
            self.must(*host.prefix, 'ip', 'addr', 'add', f'{host.address}/24', 'dev', 'gpucr0')
            self.must(*host.prefix, 'ip', 'link', 'set', 'gpucr0', 'up')
        if self.sshd:
            self._serve()
        else:
            for host, pid in zip(self.hosts, (os.getpid(), keeper.pid)):
                self._script(f'rsh-{host.address}', f'shift\nexec {shlex.join(nsenter)} {pid} -- '
                                                    'sh -c "$*"')
            self._script('rsh', f'exec {self.directory}/rsh-$1 "$@"')
        for host in self.hosts:
            host.start()

    def _script(self, name, text):
        path = f'{self.directory}/{name}'
        with open(path, 'w', encoding='utf-8') as file:
            file.write(f'#!/bin/sh\n{text}\n')
        os.chmod(path, 0o755)

    def _serve(self):
        """sshd on both, which take a key made for this; nothing of the machine's own is used."""
        directory = self.directory
        key = f'{directory}/key'
        self.must('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', key)
        with open(f'{directory}/sshd_config', 'w', encoding='utf-8') as file:
            file.write(f'HostKey {key}\nAuthorizedKeysFile {key}.pub\nStrictModes no\nUsePAM no\n'
                       'PidFile none\nPermitRootLogin yes\nPasswordAuthentication no\n')
        with open(f'{directory}/passwd', 'w', encoding='utf-8') as file:
            file.write(harness.read_file('/etc/passwd'))
            try:
                pwd.getpwnam('sshd')
            except KeyError:
                file.write('sshd:x:65533:65534::/nonexistent:/usr/sbin/nologin\n')
        os.chmod(file.name, 0o644)
        for host in self.hosts:
            # Where it separates its privileges, and as whom.
            self.must(*host.prefix, 'mount', '-t', 'tmpfs', '-o', 'mode=755', 'run', '/run')
            self.must(*host.prefix, 'mkdir', '/run/sshd')
            self.must(*host.prefix, 'mount', '--bind', f'{directory}/passwd', '/etc/passwd')
            self.start([*host.prefix, self.sshd, '-D', '-e', '-f', f'{directory}/sshd_config', '-o',
                        f'ListenAddress={host.address}:{PORT}'],
                       stderr=open(f'{directory}/sshd-{host.name}.log', 'wb'))
        self._script('rsh', f'exec ssh -F none -p {PORT} -i {key} -o IdentitiesOnly=yes -o '
                            'StrictHostKeyChecking=no -o LogLevel=ERROR -o BatchMode=yes '
                            f'-o UserKnownHostsFile={directory}/known "$@"')
        for host, other in (self.here, self.there), (self.there, self.here):
            def is_up(host=host, other=other):
                self.answer = host.run(f'{directory}/rsh', other.address, 'echo it is $0')
                return self.answer[:1] == (0,)
            try:
                wait_for(is_up, f'sshd of {other.name}')
            except Failure as failure:
                log = harness.read_file(f'{directory}/sshd-{other.name}.log')
                raise Failure(f'{failure}: {self.answer}\n{log}') from None

    def start(self, command, **options):
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                 preexec_fn=harness.end_with_us(signal.SIGTERM), **options)
        self.children.append(child)
        return child

    @staticmethod
    def must(*command):
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        check(not done.returncode, f'{shlex.join(command)}: {done.stdout}')

    def program(self, host, *arguments):
        program = Program(self, host, *arguments)
        self.programs.append(program)
        return program

    def migrate(self, source, target, what, *options):
        """gpucr-migrate on one host, to the other: (status, stdout, stderr)."""
        return source.run(f'{BUILD}/tools/gpucr-migrate', '--mount', source.inner_mountpoint,
                          '--remote-mount', target.inner_mountpoint, '--rsh',
                          f'{self.directory}/rsh', *options, str(what), target.address)

    def must_migrate(self, source, target, what, *options):
        status, out, err = self.migrate(source, target, what, *options)
        check(status == 0, f'status {status}: {err}')
        return out

    def _end(self):
        problems = []
        for program in self.programs:
            program.end()
        for host in self.hosts:
            problems += host.finish()
        for child in reversed(self.children):
            child.terminate()
            child.wait()
            if child.stdout:
                child.stdout.close()
        with contextlib.suppress(OSError):
            subprocess.run(['umount', '-l', '-A', f'{self.directory}/machine/mnt'], check=False,
                           stderr=subprocess.DEVNULL)
            subprocess.run(['umount', '-l', f'{self.directory}/machine/run/store'], check=False,
                           stderr=subprocess.DEVNULL)
        shutil.rmtree(self.directory, ignore_errors=True)
        return problems

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        failed = kind is not None and not issubclass(kind, Skip)
        if failed:
            for host in self.hosts:
                host.show()
        problems = self._end()
        if problems and not failed:
            raise Failure('; '.join(problems))
