# SPDX-License-Identifier: MIT
"""CRIU that gpucr-launch starts: what is restored has none of the daemon's restrictions; nobody but
root of this machine has a program started; and deaths of the launcher cost no process."""
import array
import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import launcher
import restore
from harness import BUILD, LIBC, NOBODY, check, equal, read_file, same_for_both, wait_for

LAUNCH = f'{BUILD}/backend/cuda/gpucr-launch'
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 24, 38, 22
SECCOMP_MODE_FILTER = 2
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
CAP_SYS_PTRACE, CAP_SYS_TIME = 19, 25
KEYS = 'Seccomp', 'NoNewPrivs', 'CapBnd'


def restrict():
    """As a unit file does: no new privileges, a filter (that lets everything pass), a bound."""
    class Program(ctypes.Structure):
        _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]

    allow = ctypes.create_string_buffer(struct.pack('HBBI', 0x06, 0, 0, 0x7fff0000))
    program = Program(1, ctypes.addressof(allow))
    if LIBC.prctl(PR_CAPBSET_DROP, CAP_SYS_TIME, 0, 0, 0) or \
            LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or \
            LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        os._exit(99)


def rights(pid):
    keys = harness.parse_keys(read_file(f'/proc/{pid}/status').replace(':\t', ' '))
    return {key: keys[key] for key in KEYS}


def ours():
    return rights('self')


def start_restricted(machine):
    machine.start(preexec_fn=restrict)
    found = rights(machine.daemon.pid)
    equal((found['Seccomp'], found['NoNewPrivs']), ('2', '1'))
    check(found['CapBnd'] != ours()['CapBnd'], found)


def restored_is_unrestricted(verb):
    same_for_both('what is inherited')
    with dump.machine(launched=True, start=False) as machine:
        start_restricted(machine)
        one = dump.program(machine)
        equal(rights(one.pid), ours())
        name = dump.dumped(machine, one)
        machine.must(name, verb)
        one.pid = int(machine.status(name)['pid'])
        restore.check_on(machine, one, name)
        equal(rights(one.pid), ours())
        equal(machine.listener.launchers(), [])
        restore.ends(machine, one, name)


def test_restored_is_unrestricted():
    restored_is_unrestricted('thaw')


def test_restored_in_namespace_is_unrestricted():
    restored_is_unrestricted('thaw pid=new')


def test_what_a_child_inherits():
    """Why all this is: a direct child's program has the daemon's restrictions for ever. CRIU may also
    refuse to bring it back with less than it had."""
    same_for_both('what is inherited')
    with dump.machine(start=False) as machine:
        if machine.listener:
            raise harness.Skip('every CRIU is launched')
        start_restricted(machine)
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        if machine.write(name, 'thaw') == 'ok':
            check(rights(one.pid) != ours(), 'it has all rights')
            restore.ends(machine, one, name)


def test_nobody_listens():
    """Then nothing is dumped: never is CRIU a child instead."""
    same_for_both('sockets')
    with dump.machine(env={launcher.VARIABLE: '/no/such/socket'}) as machine:
        one = dump.program(machine)
        equal(machine.write(one.pid, 'dump'), 'EIO')
        check('gpucrfs-criu.socket' in machine.error(one.pid), machine.error(one.pid))
        dump.as_before(machine, one)


def launchers_of(machine, program):
    """Those whose program is, or is not, gpucr-drain, which keeps CRIU's log."""
    return [pid for pid in machine.listener.launchers()
            if any(read_file(f'/proc/{child}/comm') == 'gpucr-drain\n'
                   for child in harness.children_of(pid)) == (program == 'gpucr-drain')]


def test_launcher_dies():
    """At each moment: the place stays, no copy lives, and the next restore succeeds."""
    same_for_both('deaths')
    with restore.machine(launched=True) as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        for mode, sign in (('hang-before', 'ran'), ('hang-after', 'made')):
            for verb in 'thaw', 'thaw pid=new':
                machine.restores.set(mode)
                writer = machine.writer(name, verb)
                machine.restores.wait(sign)
                pid, = launchers_of(machine, 'criu')
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda: not launchers_of(machine, 'criu'), 'its end')
                check(writer.is_waiting(), 'CRIU goes on')
                machine.must(name, 'cancel')
                equal(writer.result(), 'ECANCELED')
                restore.check_back(machine, one, name)
        machine.restores.set('')
        restore.thaws(machine, one, name)


def test_launcher_of_the_log_dies():
    """The log goes on, and so does the restore."""
    same_for_both('deaths')
    with dump.machine(launched=True, wrapped=True) as machine:
        one = dump.program(machine)
        machine.criu.set('wait')
        writer = machine.writer(one.pid, 'dump leave')
        machine.criu.wait()
        pid, = launchers_of(machine, 'gpucr-drain')
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not launchers_of(machine, 'gpucr-drain'), 'its end')
        machine.criu.go()
        equal(writer.result(), 'ok')
        check('Dumping finished successfully' in machine.read(one.pid, 'criu.log'), 'its log')


# ---- orders that are none ----


def order(argv, magic=0x6c726367, version=1, fds=1, given=b'\0', data=None, descriptors=0):
    """A struct gcr_launch_request and the memfd that comes along."""
    if data is None:
        data = b''.join(word.encode() + b'\0' for word in [argv[0], *argv]) + given
    memfd = os.memfd_create('order')
    os.write(memfd, data)
    return struct.pack('=8Ii', magic, version, len(data), len(argv), 0, fds, descriptors, 0, 0), memfd


class Conversation:
    """With a gpucr-launch of its own."""

    def __init__(self, prepare=None):
        """@prepare: in the process that connects, which the launcher sees as its peer."""
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-launch-')
        os.chmod(self.directory, 0o777)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f'{self.directory}/socket')
        os.chmod(f'{self.directory}/socket', 0o777)
        listener.listen()
        self.pid = None
        self.socket = socket.socket(socket.AF_UNIX)
        if prepare:
            self.pid = os.fork()
            if not self.pid:
                try:
                    prepare()
                    self.socket.connect(f'{self.directory}/socket')
                    signal.pause()
                finally:
                    os._exit(1)
        else:
            self.socket.connect(f'{self.directory}/socket')
        connection, _ = listener.accept()
        listener.close()
        self.errors = tempfile.TemporaryFile()
        self.popen = subprocess.Popen([LAUNCH], stdin=connection, stderr=self.errors)
        connection.close()

    def send(self, bytes_, *fds):
        rights_ = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
        self.socket.sendmsg([bytes_], rights_)

    def end(self):
        """It ends by itself; its words."""
        self.popen.wait(harness.PATIENCE_SEC)
        self.errors.seek(0)
        return self.errors.read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.popen.kill()
        self.popen.wait()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.unlink(f'{self.directory}/socket')
        os.rmdir(self.directory)


@contextlib.contextmanager
def marker():
    """A program that leaves a file behind if it is started."""
    with tempfile.TemporaryDirectory(prefix='gpucrfs-launch-') as directory:
        os.chmod(directory, 0o777)
        path = f'{directory}/ran'
        yield ['/usr/bin/touch', path], path


def test_it_works():
    """Else the tests below find out nothing."""
    same_for_both('orders')
    with marker() as (argv, path), Conversation() as one:
        one.send(*order(argv))
        equal(struct.unpack('=Ii', one.socket.recv(8)), (1, 0))
        check(not os.path.exists(path), 'started before the word')
        one.send(b'g')
        word, pid = struct.unpack('=Ii', one.socket.recv(8))
        equal(word, 2)
        equal(struct.unpack('=Ii', one.socket.recv(8)), (4, 0))
        check(os.path.exists(path) and pid > 0, 'it ran')
        equal(one.end(), '')
        equal(one.popen.returncode, 0)


def test_given_up():
    """A daemon that has not waited for READY has nothing started."""
    same_for_both('orders')
    with marker() as (argv, path), Conversation() as one:
        one.send(*order(argv))
        one.socket.recv(8)
        one.socket.close()
        check(one.end(), 'no words')
        check(not os.path.exists(path), 'started')


def test_given_up_after_the_word():
    """A launcher that sleeps until the daemon has given it up starts nothing either."""
    same_for_both('orders')
    with marker() as (argv, path), Conversation() as one:
        one.send(*order(argv))
        one.socket.recv(8)
        one.popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, one.popen.pid, os.WSTOPPED)
        one.send(b'g')
        one.socket.close()
        one.popen.send_signal(signal.SIGCONT)
        check('does not wait' in one.end(), 'its words')
        equal(one.popen.returncode, 1)
        check(not os.path.exists(path), 'started')


def test_others_are_refused():
    """An ordinary user; root of a user namespace; root of a container, which is real root; and root
    with few rights, as the daemon's helpers are."""
    same_for_both('orders')

    def as_user():
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)

    def in_user_namespace():
        if LIBC.unshare(CLONE_NEWUSER):
            raise OSError
        for name, text in ('setgroups', 'deny'), ('uid_map', '0 0 1'), ('gid_map', '0 0 1'):
            with open(f'/proc/self/{name}', 'w', encoding='ascii') as file:
                file.write(text)

    def in_container():
        if LIBC.unshare(CLONE_NEWPID):
            raise OSError
        LIBC.prctl(harness.PR_SET_PDEATHSIG, signal.SIGKILL)
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            os._exit(0)
        LIBC.prctl(harness.PR_SET_PDEATHSIG, signal.SIGKILL)

    def with_few_rights():
        header = struct.pack('=Ii', 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
        few = 1 << CAP_SYS_PTRACE
        if LIBC.capset(header, struct.pack('=6I', few, few, 0, 0, 0, 0)):
            raise OSError

    for prepare in as_user, in_user_namespace, in_container, with_few_rights:
        with marker() as (argv, path), Conversation(prepare) as one:
            with contextlib.suppress(OSError):
                one.send(*order(argv))
                one.send(b'g')
            words = one.end()
            check('only root' in words, f'{prepare.__name__}: {words!r}')
            check(not os.path.exists(path), f'{prepare.__name__} has started it')


def test_bad_orders():
    same_for_both('orders')
    with marker() as (argv, path):
        bad = {
            'magic': order(argv, magic=1),
            'version': order(argv, version=2),
            'counts': order(argv, fds=2),
            'given and not there': order(argv, given=b'\1'),
            'no arguments': order([], data=b'/usr/bin/touch\0\0'),
            'no end of a string': order(argv, data=b'/usr/bin/touch\0touch'),
            'nothing': order(argv, data=b''),
            'many': order(argv, fds=(1 << 20) + 1),
            'descriptors': order(argv, descriptors=3),
        }
        for what, (request, memfd) in bad.items():
            with Conversation() as one:
                one.send(request, memfd)
                with contextlib.suppress(OSError):
                    one.send(b'g')
                check('no order' in one.end(), what)
                equal(one.popen.returncode, 1, what)
        for what, data in ('words', b'hello'), ('none', b''), ('no memfd', order(argv)[0]):
            with Conversation() as one:
                with contextlib.suppress(OSError):
                    one.send(data)
                    one.socket.shutdown(socket.SHUT_WR)
                check('no order' in one.end(), what)
        check(not os.path.exists(path), 'started')


def test_many_descriptors():
    """More than one message can bring, in their order."""
    same_for_both('orders')
    with tempfile.TemporaryDirectory(prefix='gpucrfs-launch-') as directory:
        count = 300
        script = f'for n in $(seq 3 {count - 1}); do read word <&$n; echo $word; done >{directory}/out'
        argv = ['/bin/bash', '-c', script]
        request, memfd = order(argv, fds=count, given=b'\0' * 3 + b'\1' * (count - 3),
                               descriptors=count - 3)
        fds = []
        for number in range(3, count):
            fds.append(os.memfd_create('one'))
            os.write(fds[-1], b'%d\n' % number)
            os.lseek(fds[-1], 0, os.SEEK_SET)
        with Conversation() as one:
            one.send(request, memfd)
            for start in range(0, len(fds), 128):
                one.send(b'm', *fds[start:start + 128])
            one.socket.recv(8)
            one.send(b'g')
            equal(one.end(), '')
        equal(read_file(f'{directory}/out').split(), [str(number) for number in range(3, count)])
        for fd in [memfd, *fds]:
            os.close(fd)


if __name__ == '__main__':
    harness.main(globals())
