# SPDX-License-Identifier: MIT
"""Two hosts on one machine: each has namespaces of processes, mounts and the network of its own,
simulated GPUs of its own and a daemon of its own, under the same names of files. Between them is a
network with sshd; where there is none, a command in the other's namespaces takes the place of ssh.
What is in `shared` both see."""
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import criu
import harness
import vendor
from harness import BUILD, Failure, Skip, check, equal, wait_for

PORT = 2222
SEARCH = f'{os.environ["PATH"]}:/usr/sbin:/sbin'
NEEDED = {'ip': 'iproute2', 'rsync': 'rsync', 'nsenter': 'util-linux', 'mount': 'mount'}


class Host(harness.Machine):
    """`inner` names are those on the host, the others those that the test sees. The number of a
    process is that on the host. Directories of processes are there only for who is on the host."""

    def __init__(self, name, address, keeper, directory, shared, **options):
        found = criu.find()
        options['options'] = options.get('options', '') + f',criu={found.program}'
        options['env'] = {**found.env, **(options.get('env') or {})}
        super().__init__(start=False, vmm=True, **options)
        shutil.rmtree(self.directory)  # that was one of the test's own
        self.name, self.address, self.keeper = name, address, keeper
        self.nsenter = ['nsenter', '-m', '-n', '-p', f'--wd={shared}', '-t', str(keeper), '--']
        # What runs there ends when nsenter does.
        self.prefix = [*self.nsenter, 'setpriv', '--pdeathsig', 'TERM']
        self.inner = directory
        self.directory = f'/proc/{keeper}/root{directory}'
        self.inner_mountpoint = f'{directory}/mnt'
        self.runtime = f'{directory}/run'
        self.mountpoint = f'{self.directory}/mnt'
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

    def stop_at_end(self):
        """nsenter waits for the daemon, and ends as it does."""
        if self.daemon is None or self.daemon.poll() is not None:
            return super().stop_at_end()
        children = f'/proc/{self.daemon.pid}/task/{self.daemon.pid}/children'
        for pid in harness.read_file(children).split():
            harness.try_kill(int(pid), signal.SIGTERM)
        try:
            harness.wait_end(self.daemon, 30 * harness.SLOW)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
            return [f'the daemon of {self.name} did not end on SIGTERM']
        return super().stop_at_end()

    def finish(self):
        """Its mounts go with its namespaces, its files with the pair's."""
        return self.stop_at_end()

    def run(self, *command):
        """One that ends, on this host: (status, stdout, stderr)."""
        done = subprocess.run([*self.prefix, *command], check=False, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, env=self.env,
                              timeout=harness.TEST_SEC)
        return done.returncode, done.stdout, done.stderr

    def inner_path(self, *parts):
        return '/'.join([self.inner_mountpoint, *[str(part) for part in parts]])

    def read(self, *parts):
        status, out, err = self.run('cat', self.inner_path(*parts))
        if status:
            raise OSError(err)
        return out

    def write(self, pid, text, flags=0):
        path = f'{self.inner_path(pid)}/ctl'
        if self.run('sh', '-c', 'echo "$1" >>"$2"', 'sh', text, path)[0] == 0:
            return 'ok'
        return self.error(pid).partition(':')[0]

    def has(self, pid):
        return self.run('test', '-e', self.inner_path(pid))[0] == 0

    def places(self):
        """Names of places, of whatever kind."""
        return [name for name in self.must_run('ls', self.inner_mountpoint).split()
                if not name.isdigit() and
                name not in ('ctl', 'error', 'events', 'gpus', 'metrics', 'self', 'status')]

    def must_run(self, *command):
        status, out, err = self.run(*command)
        check(status == 0, f'{self.name}: {shlex.join(command)}: {out}{err}')
        return out


class Program:
    """gpucr-demo, started on one host: it moves. It ends with the first process of its namespace."""

    def __init__(self, pair, host, *arguments):
        self.path = f'{pair.shared}/{len(pair.programs)}'
        demo = shlex.join([*vendor.RUN, *vendor.DEMO, '--bytes', '8M', '--tick', '20',
                           *arguments])
        for name in 'out', 'err':
            with open(f'{self.path}.{name}', 'w', encoding='utf-8'):
                pass
        # What it has open has to be of its own mounts.
        self.popen = subprocess.Popen(
            [*host.nsenter, 'setsid', 'sh', '-c',
             f'cd / && exec {demo} < /dev/null > {self.path}.out 2> {self.path}.err'],
            stdin=subprocess.DEVNULL, env=host.env)
        wait_for(lambda: self.ticks() > 0 or self.popen.poll() is not None, 'the first tick')
        check(self.popen.poll() is None, self.words())
        self.pid = int(harness.read_file(f'{self.path}.out').split()[1])
        wait_for(lambda: host.status(self.pid).get('engine') == vendor.ENGINE, 'its engine')

    def ticks(self):
        """The last one; none must be missing, or be there twice."""
        lines = harness.read_file(f'{self.path}.out').split('\n')[:-1]
        for number, line in enumerate(lines[1:], 1):
            equal(line, f'tick {number} ok', f'line {number + 1}')
        return len(lines) - 1

    def wait_ticks(self, more=3):
        goal = self.ticks() + more
        wait_for(lambda: self.ticks() >= goal, f'tick {goal}')

    def words(self):
        return harness.read_file(f'{self.path}.err')


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
        for path in machine, self.shared:
            os.mkdir(path, 0o755)
        names = {'here': here, 'there': there}
        for number, (name, options) in enumerate(names.items(), 1):
            keeper = self._keep(f'{self.directory}/{name}', machine, 10000 * number)
            host = Host(name, f'10.213.0.{number}', keeper, machine, self.shared, env=env,
                        **options)
            self.hosts.append(host)
        self.here, self.there = self.hosts
        self.must('nsenter', '-n', '-t', str(self.here.keeper), '--', 'ip', 'link', 'add', 'gpucr0',
                  'type', 'veth', 'peer', 'name', 'gpucr0', 'netns', str(self.there.keeper))
        for host in self.hosts:
            host.must_run('ip', 'addr', 'add', f'{host.address}/24', 'dev', 'gpucr0')
            host.must_run('ip', 'link', 'set', 'gpucr0', 'up')
        if self.sshd:
            self._serve()
        else:
            self._reach()
        for host in self.hosts:
            host.start()

    def _keep(self, directory, machine, last_pid):
        """Namespaces, and the first process in them. Their numbers of processes are others than
        the other host's, so that those of a process that moves are free."""
        os.mkdir(directory, 0o755)
        script = ('mount --make-rprivate / && mount --bind "$1" "$2" && ip link set lo up && '
                  'echo "$3" >/proc/sys/kernel/ns_last_pid && echo ready && '
                  'while :; do sleep 1000; done')
        keeper = self.start(['unshare', '--mount', '--net', '--pid', '--fork', '--mount-proc',
                             '--kill-child', 'sh', '-c', script, 'sh', directory, machine,
                             str(last_pid)], stdout=subprocess.PIPE, text=True)
        equal(keeper.stdout.readline(), 'ready\n', 'namespaces')
        return int(harness.read_file(f'/proc/{keeper.pid}/task/{keeper.pid}/children').split()[0])

    def _reach(self):
        """Without sshd: we start the command on the other host, with the caller's files."""
        for host in self.hosts:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(f'{self.shared}/{host.address}')
            listener.listen()
            threading.Thread(target=self._accept, args=(listener, host), daemon=True).start()
        self._script('rsh', f'''import os, socket, sys
caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
caller.connect("{self.shared}/" + sys.argv[1])
socket.send_fds(caller, [" ".join(sys.argv[2:]).encode()], [0, 1, 2])
for number in range(3):
    os.close(number)
answer = caller.recv(1)
os._exit(answer[0] if answer else 255)''', sys.executable)

    @staticmethod
    def _accept(listener, host):
        def serve(caller):
            with caller:
                command, files, _, _ = socket.recv_fds(caller, 65536, 3)
                child = subprocess.Popen([*host.prefix, 'sh', '-c', command.decode()],
                                         stdin=files[0], stdout=files[1], stderr=files[2],
                                         env=host.env)
                for number in files:
                    os.close(number)
                caller.send(bytes([child.wait() & 0xff]))

        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    def _script(self, name, text, shell='/bin/sh'):
        path = f'{self.directory}/{name}'
        with open(path, 'w', encoding='utf-8') as file:
            file.write(f'#!{shell}\n{text}\n')
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
            for line in harness.read_file('/etc/passwd').splitlines():
                fields = line.split(':')
                if fields[0] == 'root':  # bash reads what lies at home for each command by ssh
                    fields[5] = f'{directory}/home'
                file.write(':'.join(fields) + '\n')
            try:
                pwd.getpwnam('sshd')
            except KeyError:
                file.write('sshd:x:65533:65534::/nonexistent:/usr/sbin/nologin\n')
        os.chmod(file.name, 0o644)
        os.mkdir(f'{directory}/home')
        for host in self.hosts:
            # Where it separates its privileges, and as whom.
            host.must_run('mount', '-t', 'tmpfs', '-o', 'mode=755', 'run', '/run')
            host.must_run('mkdir', '/run/sshd')
            host.must_run('mount', '--bind', f'{directory}/passwd', '/etc/passwd')
            if os.path.exists('/etc/resolv.conf'):  # nobody answers there
                host.must_run('mount', '--bind', '/dev/null', '/etc/resolv.conf')
            self.start([*host.prefix, self.sshd, '-D', '-e', '-f', f'{directory}/sshd_config', '-o',
                        f'ListenAddress={host.address}:{PORT}'],
                       stderr=open(f'{directory}/sshd-{host.name}.log', 'wb'))
        self._script('rsh', f'exec ssh -F none -p {PORT} -i {key} -o IdentitiesOnly=yes -o '
                            'StrictHostKeyChecking=no -o LogLevel=ERROR -o BatchMode=yes '
                            f'-o UserKnownHostsFile={directory}/known "$@"')
        self.answer = 'no answer'
        for host, other in (self.here, self.there), (self.there, self.here):
            def is_up(host=host, other=other):
                self.answer = host.run(f'{directory}/rsh', other.address, 'echo it is $0')
                return self.answer[:1] == (0,)
            try:
                wait_for(is_up, f'sshd of {other.name}', 30)
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
        for host in self.hosts:
            problems += host.finish()
        for child in reversed(self.children):
            child.kill()
            child.wait()
            if child.stdout:
                child.stdout.close()
        for program in self.programs:
            program.popen.wait()
        for host in self.hosts:
            harness.unprotect(f'{host.directory}/mnt')
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
