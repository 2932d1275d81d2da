# SPDX-License-Identifier: MIT
"""Callers that may see less than everything: other pid namespaces, and users who run a daemon of
their own."""
import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import NOBODY, Machine, Skip, check, equal, same_for_both, wait_for

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000

# The init of a pid namespace: starts demos there, and answers requests on stdin about the mount.
INSIDE = r'''
import errno, json, os, subprocess, sys
mountpoint, count, *command = sys.argv[1:]
demos = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(int(count))]
for demo in demos:
    demo.stdout.readline(), demo.stdout.readline()
print(json.dumps([demo.pid for demo in demos]), flush=True)
def attempt(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]
def write(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    return 'ok'
for line in sys.stdin:
    what, path, *text = json.loads(line)
    path = os.path.join(mountpoint, path)
    calls = {
        'list': lambda: sorted(os.listdir(path)),
        'read': lambda: open(path).read(),
        'write': lambda: write(path, *text),
        'link': lambda: os.readlink(path),
        'tick': lambda: [demo.stdout.readline() and demo.poll() for demo in demos],
    }
    print(json.dumps(attempt(calls[what])), flush=True)
for demo in demos:
    demo.kill()
    demo.wait()
'''


class Namespace:
    """Demos in a pid namespace of their own, and somebody there who can be asked."""

    def __init__(self, machine, count=1, more=()):
        command = [*vendor.RUN, *vendor.DEMO, '--bytes', '4M', '--buffers', '2', '--tick', '20']
        self.popen = subprocess.Popen(
            ['unshare', '--pid', '--fork', '--kill-child', *more, sys.executable, '-c', INSIDE,
             machine.mountpoint, str(count), *command], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=machine.env, cwd='/')
        line = self.popen.stdout.readline()
        if not line:
            words = self.popen.stderr.read()
            self.popen.wait()
            raise Skip(f'no pid namespace: {words.strip()}')
        self.inner_pids = json.loads(line)
        machine.others.append(self)

    def ask(self, *words):
        self.popen.stdin.write(json.dumps(words) + '\n')
        self.popen.stdin.flush()
        return json.loads(self.popen.stdout.readline())

    def pids(self):
        return sorted(int(name) for name in self.ask('list', '') if name.isdigit())

    def finish(self):
        self.popen.stdin.close()
        try:
            self.popen.wait(harness.PATIENCE_SEC)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.popen.stdout.close()
        self.popen.stderr.close()


def table(text):
    """The ids in the root's status."""
    return [int(line.split()[0]) for line in text.partition('\n\n')[2].splitlines()[1:]]


def test_pid_namespace():
    """From inside one sees and reaches one's own processes, by the daemon's numbers."""
    same_for_both('what a namespace shows')
    if not harness.is_root():
        raise Skip('only root can make a pid namespace')
    with Machine() as machine:
        outer = machine.ready_demo()
        inside = Namespace(machine, 2)
        pids = wait_for(lambda: len(machine.pids()) == 3 and
                        sorted(set(machine.pids()) - {outer.pid}), 'all three from outside')
        equal(table(machine.read('status')), machine.pids(), 'outside one sees all')
        ns_pids = sorted(int(machine.status(pid)['ns_pid']) for pid in pids)
        equal(ns_pids, inside.inner_pids, 'ns_pid')

        equal(inside.pids(), pids)
        equal(table(inside.ask('read', 'status')), pids)
        equal(harness.parse_keys(inside.ask('read', f'{pids[0]}/status'))['state'], 'running')
        for name in 'status', 'error', 'events', 'maps':
            equal(inside.ask('read', f'{outer.pid}/{name}'), 'ENOENT', name)
        equal(inside.ask('write', f'{outer.pid}/ctl', 'freeze'), 'ENOENT')
        equal(inside.ask('write', 'ctl', f'freeze {outer.pid}'), 'ESRCH')
        equal(inside.ask('write', 'ctl', f'freeze {pids[0]} {outer.pid}'), 'ESRCH')
        for pid in machine.pids():
            equal(machine.state(pid), 'running')
        outer.wait_ticks()


def test_frozen_in_a_pid_namespace():
    """Its own processes it can freeze and thaw from inside; so can one from outside."""
    if not harness.is_root():
        raise Skip('only root can make a pid namespace')
    with Machine() as machine:
        inside = Namespace(machine)
        (pid,) = wait_for(machine.pids, 'it from outside')
        for side in (lambda verb: inside.ask('write', f'{pid}/ctl', verb),
                     lambda verb: inside.ask('write', 'ctl', f'{verb} {pid}'),
                     lambda verb: machine.write(pid, verb)):
            equal(side('freeze'), 'ok', machine.error(pid))
            equal(machine.state(pid), 'frozen')
            equal(inside.pids(), [pid], 'it is still there')
            equal(side('thaw'), 'ok', machine.error(pid))
            for _ in range(3):
                equal(inside.ask('tick', ''), [None])


def test_below_is_reached_too():
    """A namespace inside one's own is one's own; the number of another one is not."""
    same_for_both('what a namespace shows')
    if not harness.is_root():
        raise Skip('only root can make a pid namespace')
    with Machine() as machine:
        first, second = Namespace(machine), Namespace(machine)
        pids = wait_for(lambda: len(machine.pids()) == 2 and machine.pids(), 'both')
        equal(sorted(first.pids() + second.pids()), pids)
        check(len(first.pids()) == 1, 'each sees one')
        equal(first.ask('write', f'{second.pids()[0]}/ctl', 'freeze'), 'ENOENT')
        nested = Namespace(machine, 1, ['unshare', '--pid', '--fork', '--kill-child'])
        wait_for(lambda: len(nested.pids()) == 1, 'the nested one')
        equal(len(machine.pids()), 3)
        equal(len(first.pids()), 1)


def test_self_in_a_pid_namespace():
    """The link names the caller by the daemon's number, whatever it is called inside."""
    same_for_both('what a namespace shows')
    if not harness.is_root():
        raise Skip('only root can make a pid namespace')
    with Machine() as machine:
        inside = Namespace(machine)
        target = int(inside.ask('link', 'self'))
        equal(harness.read_file(f'/proc/{target}/cmdline').split('\0')[1:2], ['-c'])
        # It is the launcher of the demo, and so has a directory.
        wait_for(lambda: machine.pids() != [], 'the demo to be seen')
        members = harness.parse_keys(inside.ask('read', 'self/status'))['members']
        equal(members.split(), [str(pid) for pid in machine.pids()])


def become_ordinary_user():
    """From here on this process is nobody, in a mount namespace where that one may use fuse."""
    if not shutil.which('fusermount3'):
        raise Skip('no fusermount3')
    if not harness.is_root():
        return
    if LIBC.unshare(CLONE_NEWNS) or LIBC.mount(b'none', b'/', None, MS_REC | MS_PRIVATE, None):
        raise Skip('no mount namespace of its own')
    if os.path.exists('/dev/fuse') and not os.stat('/dev/fuse').st_mode & stat.S_IWOTH:
        node = f'/dev/gpucrfs-test-{harness.unique()}'
        try:
            os.mknod(node, 0o666 | stat.S_IFCHR, os.stat('/dev/fuse').st_rdev)
            os.chmod(node, 0o666)
            failed = LIBC.mount(node.encode(), b'/dev/fuse', None, MS_BIND, None)
            os.unlink(node)
        except OSError as error:
            raise Skip(f'no device node: {error}') from None
        if failed:
            raise Skip('/dev/fuse is not everybody\'s')
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.chdir('/')
    if not os.access(f'{harness.BUILD}/fs/gpucrfs', os.X_OK):
        raise Skip('the build folder is not everybody\'s to read')
    try:
        os.close(os.open('/dev/fuse', os.O_RDWR))
    except OSError as error:
        raise Skip(f'/dev/fuse: {error.strerror}') from None


class UsersMachine(Machine):
    """As far as a user can: fusermount3 removes what is left."""

    def finish(self):
        for other in self.others:
            other.finish()
        self.others = []
        problems = self.stop_at_end()
        if any(path == self.mountpoint for path, _ in harness.mounts()):
            subprocess.run(['fusermount3', '-u', '-z', self.mountpoint], check=False)
            problems.append('the mount was left behind')
        return problems + super().finish()


def test_daemon_of_a_user():
    become_ordinary_user()
    with UsersMachine() as machine:
        equal(os.stat(machine.mountpoint).st_uid, os.geteuid())
        demos = [machine.ready_demo() for _ in range(2)]
        equal(machine.pids(), sorted(demo.pid for demo in demos))
        for demo in demos:
            machine.wait_status(demo.pid, 'registered', 'yes')
            machine.must(demo.pid, 'freeze')
            equal(machine.state(demo.pid), 'frozen')
        machine.check_used(machine.kept(*[demo.pid for demo in demos]))
        machine.must(None, 'thaw ' + ' '.join(str(demo.pid) for demo in demos))
        generation = machine.status(demos[0].pid)['generation']
        equal(machine.write(demos[0].pid, 'dump'), 'EOPNOTSUPP')
        check('CRIU needs root' in machine.error(demos[0].pid), machine.error(demos[0].pid))
        equal(machine.status(demos[0].pid)['generation'], generation, 'it was not frozen')
        for demo in demos:
            demo.wait_ticks()
        check(not any(name == '1' for name in os.listdir(machine.mountpoint)), 'pid 1')
        check(not os.path.lexists(machine.path(1)), 'somebody else\'s process has no directory')
        equal(machine.write(None, 'freeze 1'), 'ESRCH')


def unmount(path):
    """Busy at first is no failure: the daemon looks at its own mount when that is new."""
    def try_it():
        return not subprocess.run(['fusermount3', '-u', path], check=False,
                                  stderr=subprocess.DEVNULL).returncode

    wait_for(try_it, f'{path} to be unmounted')


def test_daemon_of_a_user_ends():
    same_for_both('the mount of a user')
    become_ordinary_user()
    with UsersMachine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
            equal(machine.stop(number), 0)
            check(machine.mountpoint not in [path for path, _ in harness.mounts()], 'unmounted')
            machine.start()
            equal(machine.state(demo.pid), 'frozen')
        unmount(machine.mountpoint)
        equal(machine.daemon.wait(harness.PATIENCE_SEC), 0)
        machine.start()
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


def test_daemon_of_a_user_refuses():
    """A directory that is not the user's, as mountpoint or for its records."""
    same_for_both('options of the daemon')
    become_ordinary_user()
    with UsersMachine(start=False) as machine:
        for options, mountpoint, words in (
                (f'sim,runtime_dir={machine.runtime}', '/proc/1/fdinfo', 'Permission denied'),
                ('sim,runtime_dir=/etc', machine.mountpoint, '/etc belongs to somebody else'),
                ('sim,runtime_dir=/etc/gpucrfs-test', machine.mountpoint, 'Permission denied')):
            found = subprocess.run(
                [f'{harness.BUILD}/fs/gpucrfs', '-f', '-o', options, mountpoint], check=False,
                capture_output=True, text=True, env=machine.env, timeout=harness.PATIENCE_SEC)
            equal(found.returncode, 1, found.stderr)
            check(words in found.stderr and len(found.stderr.splitlines()) == 1, found.stderr)


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
