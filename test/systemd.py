# SPDX-License-Identifier: MIT
"""A systemd of the test's own, which runs a daemon by the unit files that are installed: a user
manager, as root, in a mount namespace of its own. It applies the restrictions of a unit as the
machine's does. Where there is no systemd, or it does not come up, a test is skipped."""
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

import harness
from harness import BUILD, Failure, Skip, read_file, wait_for

SYSTEMD = '/lib/systemd/systemd'
INSIDE = 'GPUCR_TEST_INSIDE'
UNIT, SOCKET, CRIU = 'gpucrfs.service', 'gpucrfs-criu.socket', 'gpucrfs-criu@.service'
START_SEC = 30


def enter():
    """Once, by a test file: go on in a mount namespace with the cgroups as systemd wants them."""
    if os.environ.get(INSIDE) or not os.access(SYSTEMD, os.X_OK) or not harness.is_root():
        return
    os.environ[INSIDE] = '1'
    script = ('mount --make-rprivate / && mkdir -p /run/systemd && '
              'mount -t tmpfs none /run/systemd && mkdir /run/systemd/system && '
              'umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec "$@"')
    os.execvp('unshare', ['unshare', '-m', 'sh', '-c', script, 'sh', sys.executable, *sys.argv])


class Manager:
    def __init__(self):
        if not os.access(SYSTEMD, os.X_OK) or not harness.is_root():
            raise Skip('this needs systemd, and root')
        if not os.access('/sys/fs/cgroup/cgroup.procs', os.W_OK):
            raise Skip('there is no cgroup2 for systemd')
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-systemd-')
        self.units = f'{self.directory}/systemd/user'
        os.makedirs(self.units)
        self.cgroup = f'/sys/fs/cgroup/gpucrfs-test-{harness.unique()}'
        os.mkdir(self.cgroup)
        self.env = {**os.environ, 'XDG_RUNTIME_DIR': self.directory, 'HOME': self.directory}
        self.log = open(f'{self.directory}/log', 'w', encoding='utf-8')

        def prepare():
            with open(f'{self.cgroup}/cgroup.procs', 'w', encoding='ascii') as file:
                file.write('0')

        self.popen = subprocess.Popen([SYSTEMD, '--user', '--log-target=console'],
                                      env=self.env, stdin=subprocess.DEVNULL, stdout=self.log,
                                      stderr=self.log, preexec_fn=prepare)
        with contextlib.suppress(Failure):
            wait_for(lambda: self.ctl('is-system-running').strip() in ('running', 'degraded') or
                     self.popen.poll() is not None, 'systemd', START_SEC)
        if self.popen.poll() is not None or not self.ctl('is-system-running').strip():
            words = self.words()
            self.finish()
            raise Skip(f'systemd does not come up here: {words[-300:]}')

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind and not issubclass(kind, Skip):
            sys.stderr.write(f'--- systemd\n{self.words()[-6000:]}\n')
        self.finish()

    def words(self):
        return read_file(self.log.name)

    def ctl(self, *arguments, must=False):
        done = subprocess.run(['systemctl', '--user', *arguments], env=self.env, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        if must and done.returncode:
            raise Failure(f'systemctl {" ".join(arguments)}: {done.stdout}')
        return done.stdout

    def show(self, key, unit=UNIT):
        return self.ctl('show', '-P', key, unit).strip()

    def finish(self):
        self.ctl('stop', SOCKET, UNIT)
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                harness.wait_end(self.popen, START_SEC)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        self.log.close()
        # What a service has left, which is not to be there.
        with contextlib.suppress(OSError):
            with open(f'{self.cgroup}/cgroup.kill', 'w', encoding='ascii') as file:
                file.write('1')
        wait_for(self._remove_cgroups, 'the cgroups of systemd to be empty')
        shutil.rmtree(self.directory, ignore_errors=True)

    def _remove_cgroups(self):
        for path, _, _ in os.walk(self.cgroup, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        return not os.path.exists(self.cgroup)


class Service:
    """The daemon, in the place of a subprocess.Popen."""
    args = UNIT

    def __init__(self, manager):
        self.manager = manager
        self.pid = int(manager.show('MainPID'))
        self.returncode = None

    def poll(self):
        if self.returncode is None and not harness.is_alive(self.pid):
            self.returncode = int(self.manager.show('ExecMainStatus') or 0)
        return self.returncode

    def wait(self, _=None):
        wait_for(lambda: self.poll() is not None, 'the end of the daemon')
        return self.returncode

    def send_signal(self, number):
        harness.try_kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def install(manager, machine, more='', env=None):
    """The units that were built, with the paths of the test. @more: further lines of the service."""
    directory = f'{BUILD}/tools'
    socket = f'{manager.directory}/criu/socket'
    given = {key: value for key, value in {**machine.env, **(env or {})}.items()
             if os.environ.get(key) != value and key != 'GPUCR_CRIU_SOCKET'}
    variables = ''.join(f'Environment={shlex.quote(f"{key}={value}")}\n'
                        for key, value in given.items())
    text = read_file(f'{directory}/{UNIT}')
    text = re.sub(r'^ExecStartPre=.*\n', '', text, flags=re.M)
    command = ' '.join(shlex.quote(word) for word in machine.command())
    text = re.sub(r'^ExecStart=.*$', lambda _: f'ExecStart={command}', text, flags=re.M)
    text = text.replace('/run/gpucrfs-criu/socket', socket)
    text = text.replace('[Install]', f'{variables}StandardOutput=append:{machine.log_path}\n'
                        f'StandardError=append:{machine.log_path}\n{more}\n[Install]')
    units = {UNIT: text}
    units[SOCKET] = read_file(f'{directory}/{SOCKET}').replace('/run/gpucrfs-criu/socket', socket)
    units[CRIU] = re.sub(r'^ExecStart=.*$', f'ExecStart={BUILD}/backend/cuda/gpucr-launch',
                         read_file(f'{directory}/{CRIU}'), flags=re.M)
    for name, words in units.items():
        with open(f'{manager.units}/{name}', 'w', encoding='utf-8') as file:
            file.write(words)
    manager.ctl('daemon-reload', must=True)
    return socket


def start(manager, machine, more='', env=None):
    """As machine.start(), which is this one from now on."""
    install(manager, machine, more, env)

    def start_again():
        manager.ctl('start', UNIT, must=True)
        machine.daemon = Service(manager)
        wait_for(machine.answers, 'the mount')
        return machine

    machine.start = start_again
    start_again()
