# SPDX-License-Identifier: MIT
"""Starting and what stands in its way: one clear line, and exit status 1."""
import ctypes
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import NOBODY, Failure, Machine, Skip, check, equal, wait_for

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


def private_mounts():
    """From here on this process has mounts of its own."""
    if not harness.is_root():
        raise Skip('only root can have mounts of its own')
    if LIBC.unshare(CLONE_NEWNS) or LIBC.mount(b'none', b'/', None, MS_REC | MS_PRIVATE, None):
        raise Skip(f'no mount namespace: {os.strerror(ctypes.get_errno())}')


def mount(source, target, kind=None, flags=0):
    if LIBC.mount(source.encode(), target.encode(), kind and kind.encode(), flags, None):
        raise Skip(f'cannot mount {target}: {os.strerror(ctypes.get_errno())}')


def refuse(command, words, env):
    """It must end with status 1 and one line that has these words."""
    null = os.open('/dev/null', os.O_RDWR) if os.path.exists('/dev/null') else subprocess.PIPE
    found = subprocess.run(command, stdin=null, capture_output=True, text=True, check=False,
                           env=env, timeout=harness.PATIENCE_SEC)
    equal(found.stdout, '')
    # LeakSanitizer remarks so on a thread that ends while it looks for leaks.
    lines = [line for line in found.stderr.splitlines()
             if 'Unable to get registers from thread' not in line]
    check(len(lines) == 1 and lines[0].startswith('gpucrfs: ') and words in lines[0],
          f'{words!r} expected in {found.stderr!r}')
    equal(found.returncode, 1)


def test_mountpoints():
    with Machine(start=False) as machine:
        def at(path, words, *more):
            options = f'sim,runtime_dir={machine.runtime}'
            for foreground in (['-f'], []):
                refuse([f'{harness.BUILD}/fs/gpucrfs', *foreground, '-o', options, *more, path],
                       words, machine.env)

        base = machine.directory
        at(f'{base}/missing', 'No such file or directory')
        at(f'{base}/missing/below', 'No such file or directory')
        with open(f'{base}/file', 'w', encoding='ascii'):
            pass
        at(f'{base}/file', 'Not a directory')
        os.makedirs(f'{base}/full/entry')
        at(f'{base}/full', 'not empty')
        os.symlink('nowhere', f'{base}/link')
        at(f'{base}/link', 'No such file or directory')
        at(machine.mountpoint, 'is too much', 'second')
        at(machine.mountpoint, "unknown option 'bogus'", '-o', 'bogus')
        at(machine.mountpoint, "unknown option '-z'", '-z')
        equal(machine.daemon, None)
        check(not harness.mounts().count((machine.mountpoint, 'fuse.gpucrfs')), 'not mounted')


def test_no_mountpoint():
    with Machine(start=False) as machine:
        refuse([f'{harness.BUILD}/fs/gpucrfs', '-f', '-o', 'sim'], 'where to mount', machine.env)


def test_help_and_version():
    with Machine(start=False) as machine:
        for option in ('-h', '--help', '-V', '--version'):
            found = subprocess.run([f'{harness.BUILD}/fs/gpucrfs', option], capture_output=True,
                                   text=True, check=False, env=machine.env)
            equal((found.returncode, found.stderr), (0, ''), option)
            check('gpucrfs' in found.stdout, found.stdout)


def test_mounted_already():
    with Machine() as machine:
        other = f'{machine.directory}/other'
        refuse([f'{harness.BUILD}/fs/gpucrfs', '-f', '-o', f'sim,runtime_dir={other}',
                machine.mountpoint], 'mounted on', machine.env)
        check(not os.path.exists(other), 'nothing was made')
        equal(machine.pids(), [])


def test_something_else_is_mounted():
    private_mounts()
    with Machine(start=False) as machine:
        mount('tmpfs', machine.mountpoint, 'tmpfs')
        refuse(machine.command(), '(tmpfs)', machine.env)
        LIBC.umount2(machine.mountpoint.encode(), 2)


def test_second_daemon():
    with Machine() as machine:
        os.mkdir(f'{machine.directory}/second')
        command = machine.command()[:-1] + [f'{machine.directory}/second']
        refuse(command, 'another gpucrfs', machine.env)
        equal(machine.pids(), [])
        demo = machine.ready_demo()
        machine.wait_status(demo.pid, 'registered', 'yes')


def test_two_daemons():
    """With different runtime directories and GPUs they do not see each other."""
    with Machine() as first, Machine() as second:
        demo = first.ready_demo()
        equal(first.pids(), [demo.pid])
        equal(second.pids(), [])
        check(not os.path.lexists(second.path(demo.pid)), 'not the other one\'s')


def test_runtime_directory_of_somebody_else():
    if not harness.is_root():
        raise Skip('only root can give a directory away')
    with Machine(start=False) as machine:
        os.mkdir(machine.runtime)
        os.chown(machine.runtime, NOBODY, NOBODY)
        refuse(machine.command(), 'belongs to somebody else', machine.env)
        os.chown(machine.runtime, 0, 0)
        os.chmod(machine.runtime, 0o777)
        refuse(machine.command(), 'written by others', machine.env)
        os.rmdir(machine.runtime)
        os.symlink('/tmp', machine.runtime)
        refuse(machine.command(), 'written by others', machine.env)
        os.unlink(machine.runtime)
        refuse([*machine.command()[:2], '-o', 'sim,runtime_dir=/nonexistent/x', machine.mountpoint],
               '/nonexistent/x', machine.env)


def test_no_fuse_device():
    private_mounts()
    with Machine(start=False) as machine:
        mount('tmpfs', '/dev', 'tmpfs')
        refuse(machine.command(), '/dev/fuse: No such file or directory', machine.env)


def test_no_gpu():
    if os.path.exists('/dev/nvidia-uvm'):
        raise Skip('there is a GPU here')
    with Machine(start=False) as machine:
        command = [f'{harness.BUILD}/fs/gpucrfs', '-f', '-o', f'runtime_dir={machine.runtime}',
                   machine.mountpoint]
        env = {key: value for key, value in machine.env.items() if key != 'LD_LIBRARY_PATH'}
        refuse(command, '-o sim', env)
        equal(os.listdir(machine.mountpoint), [])


def test_no_helper():
    with Machine(start=False) as machine:
        refuse(machine.command(), 'cannot be started',
               {**machine.env, 'GPUCR_HELPER_DIR': '/nonexistent'})
        refuse(machine.command(), 'did not come up',
               {**machine.env, 'GPUCR_SIM_FAULTS': 'cuInit action=abort'})
        refuse(machine.command(), 'cuInit',
               {**machine.env, 'GPUCR_SIM_FAULTS': 'cuInit error=CUDA_ERROR_UNKNOWN'})


def find_daemon(machine):
    """The pid of a daemon that nobody is the parent of."""
    for name in os.listdir('/proc'):
        try:
            words = harness.read_file(f'/proc/{name}/cmdline').split('\0')
        except OSError:
            continue
        if words[0].endswith('/gpucrfs') and machine.mountpoint in words:
            return int(name)
    return 0


def test_background():
    """The command returns when the mount answers."""
    with Machine(start=False) as machine:
        command = [word for word in machine.command() if word != '-f']
        found = subprocess.run(command, capture_output=True, text=True, check=False,
                               env=machine.env, cwd=machine.directory,
                               timeout=harness.PATIENCE_SEC)
        pid = find_daemon(machine)
        try:
            equal((found.returncode, found.stdout, found.stderr), (0, '', ''))
            check('ctl' in os.listdir(machine.mountpoint), 'the mount answers')
            check(pid and pid != os.getpid(), 'it runs')
            equal(os.readlink(f'/proc/{pid}/cwd'), '/')
            for fd in range(3):
                equal(os.readlink(f'/proc/{pid}/fd/{fd}'), '/dev/null')
            equal(harness.read_file(f'/proc/{pid}/stat').rpartition(')')[2].split()[3], str(pid),
                  'a session of its own')
            demo = machine.ready_demo()
            machine.must(demo.pid, 'freeze')
            machine.must(demo.pid, 'thaw')
        finally:
            if pid:
                os.kill(pid, signal.SIGTERM)
                wait_for(lambda: not harness.is_alive(pid), 'it to end')
        check((machine.mountpoint, 'fuse.gpucrfs') not in harness.mounts(), 'unmounted')


def test_relative_mountpoint():
    with Machine(start=False) as machine:
        command = [word for word in machine.command() if word != '-f'][:-1] + ['mnt/']
        subprocess.run(command, check=True, env=machine.env, cwd=machine.directory)
        pid = 0
        for name in os.listdir('/proc'):
            if name.isdigit() and os.path.exists(f'/proc/{name}/cmdline'):
                text = harness.read_file(f'/proc/{name}/cmdline')
                if 'gpucrfs\0' in text and machine.runtime in text:
                    pid = int(name)
        check(machine.answers(), 'the mount answers')
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not harness.is_alive(pid), 'it to end')


def test_notification():
    """READY=1 comes when the mount answers, not before."""
    config = harness.read_file(f'{harness.BUILD}/config.h')
    if 'HAVE_SYSTEMD 1' not in config:
        raise Skip('built without libsystemd')
    with Machine(start=False) as machine:
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(f'{machine.directory}/notify')
        notify.settimeout(harness.PATIENCE_SEC)
        machine.daemon = subprocess.Popen(
            machine.command(), stdin=subprocess.DEVNULL, stderr=open(machine.log_path, 'w'),
            env={**machine.env, 'NOTIFY_SOCKET': f'{machine.directory}/notify'})
        check('READY=1' in notify.recv(4096).decode().split('\n'), 'READY=1')
        check('ctl' in os.listdir(machine.mountpoint), 'the mount answers')
        machine.daemon.terminate()
        check('STOPPING=1' in notify.recv(4096).decode().split('\n'), 'STOPPING=1')
        equal(machine.daemon.wait(harness.PATIENCE_SEC), 0)


def is_protected(machine):
    status = os.stat(machine.mountpoint)
    return bool(harness.flags_of(machine.mountpoint) & harness.FS_IMMUTABLE_FL or
                status.st_mode & 0o777 == 0)


def write_to_bare(machine):
    """As a shell does that knows nothing of the daemon's end."""
    with open(f'{machine.mountpoint}/ctl', 'w', encoding='ascii') as file:
        file.write('freeze\n')


def kill_and_unmount(machine):
    machine.daemon.kill()
    machine.daemon.wait()
    command = ['umount', '-l'] if harness.is_root() else ['fusermount3', '-u', '-z']
    subprocess.run([*command, machine.mountpoint], check=True)


def test_written_to_while_no_daemon_is_there():
    """A frozen process is reached again, whatever has come into the bare directory meanwhile."""
    with Machine(vmm=True) as machine:
        demo = machine.ready_demo()
        machine.wait_status(demo.pid, 'registered', 'yes')
        machine.must(demo.pid, 'freeze')
        kill_and_unmount(machine)
        check(is_protected(machine), 'the directory beneath')
        if harness.flags_of(machine.mountpoint) & harness.FS_IMMUTABLE_FL:
            equal(harness.error_of(lambda: write_to_bare(machine)), 'EPERM')
        # Where there are no such flags root can write to it.
        harness.unprotect(machine.mountpoint)
        write_to_bare(machine)
        machine.start()
        equal(machine.state(demo.pid), 'frozen')
        check(f'{machine.mountpoint}/ctl is not of the mount' in machine.log(), machine.log())
        # Over a mount that is dead, with nothing frozen, too.
        machine.must(demo.pid, 'thaw')
        machine.daemon.kill()
        machine.daemon.wait()
        machine.start()
        equal(machine.stop(), 0)
        check(not is_protected(machine), 'the directory is as it was')
        # What nobody has to come back to is not hidden.
        refuse(machine.command(), 'not empty', machine.env)
        equal(os.listdir(machine.mountpoint), ['ctl'])
        check(not os.path.exists(f'{machine.runtime}/mountpoint'), 'nothing is left of it')


def test_mountpoint_is_as_it_was():
    """Its mode, and a flag that it had; also when the next daemon is elsewhere, or fails."""
    with Machine(start=False) as machine:
        os.chmod(machine.mountpoint, 0o1755)
        machine.start()
        equal(machine.stop(), 0)
        equal(os.stat(machine.mountpoint).st_mode & 0o7777, 0o1755)
        check(not is_protected(machine), 'it can be written to')
        machine.start()
        first = machine.mountpoint
        kill_and_unmount(machine)
        check(is_protected(machine), 'it is left so')
        machine.mountpoint = f'{machine.directory}/other'
        os.mkdir(machine.mountpoint)
        machine.start()
        equal(machine.stop(), 0)
        equal(os.stat(first).st_mode & 0o7777, 0o1755)
        equal(harness.flags_of(first) & harness.FS_IMMUTABLE_FL, 0)
        if harness.is_root() and harness.flags_of(
                first, lambda flags: flags | harness.FS_IMMUTABLE_FL):
            machine.mountpoint = first
            machine.start()
            equal(machine.stop(), 0)
            check(harness.flags_of(first) & harness.FS_IMMUTABLE_FL, 'the flag was there before')


def test_stale_mount():
    """What a daemon that was killed left behind is taken away."""
    with Machine() as machine:
        for _ in range(3):
            machine.daemon.kill()
            machine.daemon.wait()
            try:
                os.listdir(machine.mountpoint)
                raise Failure('the mount answers without its daemon')
            except OSError as error:
                equal(harness.name_of(error.errno), 'ENOTCONN')
            machine.start()
        equal([path for path, _ in harness.mounts()].count(machine.mountpoint), 1)


def test_killed_as_it_starts():
    """At whatever point, it ends: nothing of it waits for its own mount."""
    with Machine() as machine:
        machine.stop(signal.SIGKILL)
        for step in range(12):
            subprocess.run(['umount', '-l', machine.mountpoint], check=True)
            with open(machine.log_path, 'a', encoding='utf-8') as log:
                machine.daemon = subprocess.Popen(
                    machine.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env=machine.env, preexec_fn=harness.end_with_us(signal.SIGTERM))
            while (machine.mountpoint, 'fuse.gpucrfs') not in harness.mounts():
                check(machine.daemon.poll() is None, machine.log())
            time.sleep(step * 0.0005 * harness.SLOW)
            machine.stop(signal.SIGKILL)
        machine.start()


def become_ordinary_user():
    """In a mount namespace where everybody may open /dev/fuse."""
    private_mounts()
    node = f'/dev/gpucrfs-test-{harness.unique()}'
    if not os.access('/dev/fuse', os.R_OK):
        raise Skip('/dev/fuse cannot be opened')
    if not os.stat('/dev/fuse').st_mode & 0o002:
        try:
            os.mknod(node, 0o666 | stat.S_IFCHR, os.stat('/dev/fuse').st_rdev)
        except OSError as error:
            raise Skip(f'no device node: {error}') from None
        os.chmod(node, 0o666)
        mount(node, '/dev/fuse', None, MS_BIND)
        os.unlink(node)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.chdir('/')
    try:
        os.close(os.open('/dev/fuse', os.O_RDWR))
    except OSError as error:
        raise Skip(f'/dev/fuse as an ordinary user: {error}') from None
    if not os.access(f'{harness.BUILD}/fs/gpucrfs', os.X_OK):
        raise Skip('the build folder is not everybody\'s to read')


def test_ordinary_user():
    """Everybody can run a daemon for processes of their own."""
    if subprocess.run(['sh', '-c', 'command -v fusermount3'], check=False,
                      stdout=subprocess.DEVNULL).returncode:
        raise Skip('no fusermount3')
    if harness.is_root():
        other = Machine(start=False)  # root's program on the same GPU
        os.mkdir(other.simulator)
        os.chmod(other.simulator, 0o1777)
        roots = other.ready_demo()
        child = os.fork()
        if not child:
            status = 1
            try:
                become_ordinary_user()
                with Machine(env={'GPUCR_SIM_DIR': other.simulator}) as machine:
                    try_ordinary_user(machine, roots)
                status = 0
            except Skip as skip:
                print(skip)
                status = harness.SKIPPED
            finally:
                if status == 1:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        roots.wait_ticks()
        other.finish()
        if status == harness.SKIPPED:
            raise Skip('see above')
        equal(status, 0)
    else:
        with Machine() as machine:
            try_ordinary_user(machine, None)


def try_ordinary_user(machine, roots):
    demo = machine.ready_demo()
    equal(machine.pids(), [demo.pid])
    if roots:
        check(not os.path.lexists(machine.path(roots.pid)), 'root\'s process is not shown')
    equal(os.stat(machine.mountpoint).st_uid, os.getuid())
    equal(os.stat(machine.path(demo.pid)).st_uid, os.getuid())
    machine.wait_status(demo.pid, 'registered', 'yes')
    machine.must(demo.pid, 'freeze')
    equal(machine.state(demo.pid), 'frozen')
    machine.must(demo.pid, 'thaw')
    demo.wait_ticks()
    machine.daemon.kill()
    machine.daemon.wait()
    machine.start()
    equal(machine.state(demo.pid), 'running')
    kill_and_unmount(machine)
    if not harness.is_root():
        equal(harness.error_of(lambda: write_to_bare(machine)), 'EACCES')
    machine.start()
    equal(machine.state(demo.pid), 'running')
    equal(machine.stop(), 0)
    check(not is_protected(machine), 'the mountpoint is as it was')


def test_unmounted_as_a_request_comes():
    """The thread that takes it is told something else than the others (test/fs/aborted.c): this is
    a regular end too."""
    if harness.SANITIZER != 'none':
        raise Skip('a library in front of the sanitizer')
    with Machine(start=False) as machine:
        machine.start(env={'LD_PRELOAD': f'{harness.BUILD}/test/fs/libaborted.so'})
        subprocess.run(['umount', '-l', machine.mountpoint], check=True)
        equal(machine.daemon.wait(30), 0)
        check('reading device' in machine.log(), machine.log())


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
