# SPDX-License-Identifier: MIT
"""The socket of the preload library: garbage that comes in there is dropped, and nobody notices."""
import fcntl
import os
import random
import resource
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import NOBODY, Machine, Skip, check, equal, wait_for

HEADER = struct.Struct('=IHHII')
MAGIC, VERSION = 0x46524347, 1
HELLO, STATE, RESULT, REGISTER = 1, 16, 64, 96
PAGE_MAGIC, PAGE_HIP = 0x50524347, 4
RUNNING, GATED, HANDED, OUT, INCOMING = 1, 2, 3, 4, 5
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4
SILENT_SEC = 5  # of a connection, as fs/process/registry.c has it


def message(kind=REGISTER, payload=b'\1\0\0\0\0\0\0\0', magic=MAGIC, version=VERSION, length=None):
    return HEADER.pack(magic, version, kind, 1,
                       len(payload) if length is None else length) + payload


def connect(machine):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(f'{machine.runtime}/socket')
    peer.settimeout(harness.PATIENCE_SEC)
    return peer


def is_dropped(peer):
    try:
        return peer.recv(100) == b''
    except ConnectionResetError:
        return True


GARBAGE = [
    b'\0', b'x' * 3, b'x' * 16, b'x' * 60000, os.urandom(20), b'GCRF',
    message()[:8], message()[:15],
    message(magic=MAGIC + 1), message(version=0), message(version=VERSION + 1),
    message(version=65535), message(length=0), message(length=9), message(length=4294967295),
    message(kind=0), message(kind=HELLO), message(kind=STATE), message(kind=RESULT),
    message(kind=65535), message() + b'more', message(payload=b'x' * 65536) + b'x',
]


def test_garbage():
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.wait_status(demo.pid, 'registered', 'yes')
        for bytes_sent in GARBAGE:
            peer = connect(machine)
            peer.send(bytes_sent)
            check(is_dropped(peer), repr(bytes_sent[:30]))
            peer.close()
        source = random.Random(1)
        for _ in range(200):
            peer = connect(machine)
            data = bytearray(message())
            for _ in range(source.randrange(1, 4)):
                data[source.randrange(len(data))] = source.randrange(256)
            peer.send(data[:source.randrange(1, len(data) + 1)])
            peer.close()
        equal(machine.status(demo.pid)['registered'], 'yes')
        complaints = machine.log().count('connection dropped')
        check(1 <= complaints <= 10 * harness.SLOW, f'{complaints} complaints')
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')


def test_descriptors_are_closed():
    """What comes with a message is closed again, however many there are."""
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        before = len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))
        null = os.open('/dev/null', os.O_RDONLY)
        for count in (1, 63, 64, 65, 250):
            for data in (message(), b'garbage'):
                peer = connect(machine)
                socket.send_fds(peer, [data], [null] * count)
                peer.close()
        os.close(null)
        wait_for(lambda: len(os.listdir(f'/proc/{machine.daemon.pid}/fd')) < before + 8,
                 'hardly more descriptors than before')


def test_messages_of_a_later_version():
    """A payload may have grown at its end, or be an older, shorter one."""
    with Machine() as machine:
        for payload in (b'', b'\1\0\0\0', b'\1' + b'\0' * 4000):
            peer = connect(machine)
            peer.send(message(payload=payload))
            wait_for(lambda: os.getpid() in machine.pids(), 'us in the list')
            equal(machine.status('self')['registered'], 'yes')
            peer.close()
            wait_for(lambda: os.getpid() not in machine.pids(), 'us to be gone')


def test_who_registers_without_a_gpu():
    with Machine() as machine:
        peer = connect(machine)
        peer.send(message())
        peer.send(message())
        wait_for(lambda: os.getpid() in machine.pids(), 'us in the list')
        result = machine.write(os.getpid(), 'freeze')
        check(result in ('EOPNOTSUPP', 'EIO'), result)
        equal(machine.state(os.getpid()), 'running')
        peer.close()
        wait_for(lambda: os.getpid() not in machine.pids(), 'us to be gone')


def register(machine, flags, phase):
    """As the preload library does, with a page of these flags."""
    page = os.memfd_create('gpucr-page', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(page, 1 << 20)
    os.pwrite(page, struct.pack('=IIII', PAGE_MAGIC, 1, phase, flags), 0)
    fcntl.fcntl(page, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    peer = connect(machine)
    socket.send_fds(peer, [message(payload=struct.pack('=II40s', 1, phase, b''))], [page])
    os.close(page)
    return peer


def is_open(peer):
    peer.setblocking(False)
    try:
        return peer.recv(100) != b''
    except BlockingIOError:
        return True


def test_libraries_of_a_vendor_without_gpus():
    """One whose program runs is left to itself; one that has handed memory over is not kept, so that
    it takes that back."""
    with Machine() as machine:
        running = register(machine, PAGE_HIP, RUNNING)
        for phase in (GATED, HANDED, OUT, INCOMING):
            peer = register(machine, PAGE_HIP, phase)
            check(is_dropped(peer), f'phase {phase}')
            peer.close()
        check(is_open(running), 'the one that runs')
        check(os.getpid() not in machine.pids(), 'nobody is served')
        # Of the vendor that is there they are welcome.
        served = register(machine, 0, OUT)
        wait_for(lambda: os.getpid() in machine.pids(), 'us in the list')
        check(is_open(served), 'the one that is served')
        served.close()
        running.close()


def test_silent_connections():
    with Machine() as machine:
        peers = [connect(machine) for _ in range(300)]
        demo = machine.ready_demo()
        machine.wait_status(demo.pid, 'registered', 'yes')
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        equal(machine.log().count('dropped'), 0)
        for peer in peers:
            peer.close()


def cpu_ticks(pid):
    fields = harness.read_file(f'/proc/{pid}/stat').rpartition(')')[2].split()
    return int(fields[11]) + int(fields[12])


def test_too_many_connections():
    """More than it may have descriptors: some are dropped, and the mount works on."""
    count = harness.few(1500, 5000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 1000:
        raise Skip('not so many descriptors are allowed')
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 1000), hard))
    with Machine(start=False) as machine:
        def limit():
            if not harness.ALL:
                resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))

        machine.start(preexec_fn=limit)
        demo = machine.ready_demo()
        machine.wait_status(demo.pid, 'registered', 'yes')
        began = time.monotonic()
        peers = [connect(machine) for _ in range(count)]
        # Later than that the first ones are dropped because they say nothing.
        were_all_there = time.monotonic() - began < SILENT_SEC - 1
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        late = machine.ready_demo()
        machine.must(late.pid, 'freeze')
        machine.must(late.pid, 'thaw')
        equal(machine.status(demo.pid)['registered'], 'yes')
        complaints = machine.log().count('too many connections')
        check(were_all_there <= complaints <= 30 * harness.SLOW, f'{complaints} complaints')
        for peer in peers:
            peer.close()
        last = machine.ready_demo()
        machine.wait_status(last.pid, 'registered', 'yes')


def test_few_descriptors():
    """Connections cannot use up the descriptors that verbs need."""
    with Machine(start=False) as machine:
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

        machine.start(preexec_fn=limit)
        demo = machine.ready_demo()
        peers = [connect(machine) for _ in range(400)]
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        begun = cpu_ticks(machine.daemon.pid)
        time.sleep(1)
        check(cpu_ticks(machine.daemon.pid) - begun < 30, 'it does not spin')
        for peer in peers:
            peer.close()


def test_other_users_may_register():
    if not harness.is_root():
        raise Skip('only root can become another user')
    with Machine() as machine:
        demo = machine.ready_demo(uid=NOBODY)
        machine.wait_status(demo.pid, 'registered', 'yes')


def listen_as(path, uid, say):
    """What a daemon of that user would get from the first program that connects."""
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    os.chmod(path, 0o777)
    listener.listen(5)
    os.write(say, b'listening ')
    peer, _ = listener.accept()
    data, fds, _, _ = socket.recv_fds(peer, 1 << 16, 8)
    os.write(say, f'{len(data) > 0 and HEADER.unpack(data[:HEADER.size])[2]} {len(fds) > 0} '.encode())


def said_to_daemon_of(listener, program):
    """What a program of one user says to the socket of another, which GPUCR_SOCKET names."""
    with Machine() as machine:
        directory = f'{machine.directory}/users'
        os.mkdir(directory)
        os.chmod(directory, 0o777)
        said, say = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                listen_as(f'{directory}/socket', listener, say)
            finally:
                os._exit(0)
        os.close(say)
        equal(os.read(said, 100), b'listening ')
        demo = machine.demo(uid=program, env={'GPUCR_SOCKET': f'{directory}/socket'})
        demo.wait_ready()
        with os.fdopen(said, 'rb') as file:
            words = file.read().decode().split()
        os.waitpid(pid, 0)
        demo.wait_ticks()
        return words


def test_daemon_of_another_user():
    """In a shell of root's with a user's variables (su, sudo -E) the user's socket gets nothing of
    root's programs. The daemons of root and of the same user do."""
    if not harness.is_root():
        raise Skip('only root can become another user')
    nothing, registration = ['False', 'False'], [str(REGISTER), 'True']
    for listener, program, expected in (
            (4001, 0, nothing), (4001, NOBODY, nothing),
            (0, 0, registration), (0, NOBODY, registration), (4001, 4001, registration)):
        said = said_to_daemon_of(listener, program)
        equal(said, expected, f'the socket of {listener} for a program of {program}')


def as_user(uid, function):
    """function() in a child process of that user, which goes on until it is told to end: its pid, and
    a pipe that ends it when it is closed. The function has returned."""
    said, say = os.pipe()
    wait, end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(end)
            os.setgid(uid)
            os.setuid(uid)
            function()
            os.write(say, b'x')
            os.read(wait, 1)
        finally:
            os._exit(0)
    os.close(say)
    os.close(wait)
    os.read(said, 1)
    os.close(said)
    return pid, end


def test_old_connection_of_a_number_used_again():
    """An attacker's process connects, leaves the socket to its child, and ends. The number is then
    a victim's: what comes through the socket is not the victim's word."""
    if not harness.is_root():
        raise Skip('only root can become another user')
    with Machine() as machine:
        kept, keep = os.pipe()
        pid, end = as_user(4001, lambda: attack(machine, kept))
        os.close(end)
        os.waitpid(pid, 0)
        victim = machine.demo_with_pid(pid, '--bytes', '4M', '--buffers', 1, '--tick', 20, uid=NOBODY,
                                       env={'GPUCR_PRELOAD_VMM': '1'})
        machine.wait_status(victim.pid, 'registered', 'yes')
        os.write(keep, b'x')
        wait_for(lambda: 'its process has ended' in machine.log(), 'the attacker to be dropped')
        os.close(keep)
        os.close(kept)
        equal(machine.status(victim.pid)['registered'], 'yes')
        machine.must(victim.pid, 'freeze')
        machine.must(victim.pid, 'thaw')
        equal(machine.status(victim.pid)['engine'], 'vmm')


def attack(machine, wait):
    """Connect; a child that outlives us registers on that connection when it is told to."""
    peer = connect(machine)
    if not os.fork():
        try:
            os.read(wait, 1)
            page = os.memfd_create('gpucr-page', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(page, 1 << 20)
            os.pwrite(page, struct.pack('=IIII', PAGE_MAGIC, 1, RUNNING, 0), 0)
            fcntl.fcntl(page, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
            body = message(payload=struct.pack('=II40s', 1, RUNNING, b''))
            socket.send_fds(peer, [body], [page])
            peer.recv(100)
        finally:
            os._exit(0)
    peer.close()


def test_second_connection_of_a_process():
    """One that is in use is not replaced."""
    with Machine() as machine:
        first = register(machine, 0, RUNNING)
        wait_for(lambda: os.getpid() in machine.pids(), 'us in the list')
        second = register(machine, 0, RUNNING)
        check(is_dropped(second), 'the second one')
        check(is_open(first), 'the first one')
        first.close()
        third = register(machine, 0, RUNNING)
        wait_for(lambda: os.getpid() in machine.pids(), 'us in the list again')
        check(is_open(third), 'the one after the first')
        third.close()
        second.close()


def test_connections_of_one_user():
    """They run out for that user alone, and silent ones make room after a while."""
    if not harness.is_root():
        raise Skip('only root can become another user')
    with Machine() as machine:
        peers = []

        def connect_many():
            resource.setrlimit(resource.RLIMIT_NOFILE, (6000, 6000))
            for _ in range(4500):
                peers.append(connect(machine))

        resource.setrlimit(resource.RLIMIT_NOFILE, (6000, 6000))
        pid, end = as_user(4001, connect_many)
        demo = machine.ready_demo(uid=NOBODY)
        machine.wait_status(demo.pid, 'registered', 'yes')
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        os.close(end)
        os.waitpid(pid, 0)


def test_registration_ends_with_the_program():
    with Machine() as machine:
        demo = machine.ready_demo()
        machine.wait_status(demo.pid, 'registered', 'yes')
        before = len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))
        for _ in range(8):
            other = machine.ready_demo()
            machine.wait_status(other.pid, 'registered', 'yes')
            other.end()
        # Each had two of the daemon's descriptors; a spare helper may have come meanwhile.
        wait_for(lambda: len(os.listdir(f'/proc/{machine.daemon.pid}/fd')) < before + 8,
                 'hardly more descriptors than before')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
