# SPDX-License-Identifier: MIT
"""A user sends the daemon descriptors of a FUSE filesystem of his own, which does not answer when
they are closed or asked about (test/fs/unflushed.c)."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import library
import vmm
from harness import BUILD, NOBODY, SLOW, Skip, check, equal, is_root, needs_cuda, read_file, wait_for
from library import FINISH, HAND_OVER, HEADER, LIST, MAGIC, REGISTER, VERSION

BOUND_SEC = 15 * SLOW
SPENT_USER_MAX = 2  # fs/helper/receiver.c: for receiving, and as many for closing
POOL_MAX = 8
HANDLES = 112

# As NOBODY: sends the file's descriptor with each message.
SENDING = '''
import os, signal, socket, sys, time
place, path, dirty, rounds = sys.argv[1], sys.argv[2], sys.argv[3] == "dirty", int(sys.argv[4])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
file = os.open(path, os.O_RDWR)
if dirty:
    os.write(file, b"x" * 4096)
links = []
for number in range(rounds):
    for text in sys.argv[5:]:
        body, count = text.split(":")
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            link.connect(place)
            socket.send_fds(link, [bytes.fromhex(body)], [file] * int(count))
            link.send(b"")
        except OSError:
            pass
        links.append(link)
print("sent", flush=True)
signal.pause()
'''

# As NOBODY: opens the file anew for each message, and closes it. Then it writes to the file. With
# "behind" an empty packet, which is no message, precedes each message.
SENDING_EACH = '''
import os, signal, socket, sys
place, path, rounds, behind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "behind"
os.setgroups([]); os.setgid(65534); os.setuid(65534)
links = []
for number in range(rounds):
    for body in sys.argv[5:]:
        file = os.open(path, os.O_RDWR)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.connect(place)
        if behind:
            link.send(b"")
        socket.send_fds(link, [bytes.fromhex(body)], [file])
        os.close(file)
        links.append(link)
file = os.open(path, os.O_RDWR)
os.write(file, bytes(4096))
print("sent", flush=True)
signal.pause()
'''

REGISTERING = (HEADER.pack(MAGIC, VERSION, REGISTER, 1, 48) + bytes(48)).hex()
MALFORMED = 'deadbeef'


class Unflushed:
    """The filesystem, and who sends descriptors of it."""

    def __init__(self, machine, mode=''):
        self.directory = f'{machine.directory}/unflushed-{len(machine.others)}'
        self.mode = mode
        self.machine = machine
        self.senders = []
        self.files = []
        os.mkdir(self.directory)
        machine.others.append(self)
        self.popen = subprocess.Popen([f'{BUILD}/test/fs/unflushed', self.directory, *mode.split()],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        equal(self.popen.stdout.readline(), 'mounted\n')

    def start(self, script, *arguments):
        """Returns when it has sent all."""
        sender = subprocess.Popen(
            [sys.executable, '-c', script, f'{self.machine.runtime}/socket',
             f'{self.directory}/file', *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.senders.append(sender)
        equal(sender.stdout.readline(), 'sent\n')
        return sender

    def send(self, *messages, rounds=1):
        """All have the same opened file, which is the sender's until it has been let go."""
        self.start(SENDING, self.mode or 'clean', str(rounds), *messages).kill()

    def send_each(self, *bodies, rounds, place='first'):
        """Nobody but its message has the file of each one, which has pages to be written: whoever
        lets go of it waits for them."""
        check(self.mode == 'dirty', 'the file is written to')
        # The daemon has none of them before the page is there.
        os.kill(self.machine.daemon.pid, signal.SIGSTOP)
        try:
            self.start(SENDING_EACH, str(rounds), place, *bodies)
        finally:
            os.kill(self.machine.daemon.pid, signal.SIGCONT)

    def open(self):
        """A descriptor that is not closed before the end."""
        self.files.append(os.open(f'{self.directory}/file', os.O_RDWR))
        return self.files[-1]

    def finish(self):
        for sender in self.senders:
            sender.kill()
        harness.end_or_kill(self.popen)
        for file in self.files:
            with contextlib.suppress(OSError):
                os.close(file)
        for sender in self.senders:
            sender.wait()
            sender.stdout.close()
        subprocess.run(['umount', '-l', self.directory], check=False, stderr=subprocess.DEVNULL)


def receivers(machine):
    found = []
    for name in os.listdir('/proc'):
        with contextlib.suppress(OSError, ValueError):
            text = read_file(f'/proc/{int(name)}/stat')
            if '(gpucr-receive)' in text and \
                    int(text.rpartition(')')[2].split()[1]) == machine.daemon.pid:
                found.append(int(name))
    return found


def soon(what, call):
    return harness.soon(what, call, BOUND_SEC)


def others_go_on(machine, demo=None):
    """Another user's program registers, and is frozen and thawed; the helpers are few."""
    # Not by another thread: programs of the tests end with the thread that started them.
    demo = demo or machine.ready_demo()
    soon('registering', lambda: wait_for(lambda: demo.pid in machine.pids(), 'it to be listed'))
    machine.wait_status(demo.pid, 'registered', 'yes')
    soon('freeze', lambda: machine.must(demo.pid, 'freeze'))
    soon('thaw', lambda: machine.must(demo.pid, 'thaw'))
    demo.wait_ticks()
    found = receivers(machine)
    check(len(found) <= 2 * SPENT_USER_MAX + POOL_MAX, f'helpers: {found}')


def ends(machine):
    equal(machine.stop(signal.SIGTERM, BOUND_SEC), 0)


@contextlib.contextmanager
def attacked(mode=''):
    needs_cuda('the daemon receives in the same way for all vendors')
    if not is_root():
        raise Skip('several users are needed')
    with vmm.machine() as machine:
        yield machine, Unflushed(machine, mode)


def play(mode, *messages, rounds=1):
    with attacked(mode) as (machine, unflushed):
        unflushed.send(*messages, rounds=rounds)
        others_go_on(machine)
        check(f'connection of user {NOBODY} dropped' in machine.log(), machine.log())
        ends(machine)


def test_malformed():
    play('', f'{MALFORMED}:1')


def test_in_place_of_the_page():
    play('', f'{REGISTERING}:1')


def test_more_than_due():
    play('', f'{REGISTERING}:60', f'{REGISTERING}:253')


def test_flood():
    play('', f'{MALFORMED}:1', f'{REGISTERING}:2', rounds=20)


def test_dirty_pages():
    """Letting go of the last reference waits for the pages to be written."""
    play('dirty', f'{MALFORMED}:1', f'{REGISTERING}:1', rounds=10)


def connections(machine):
    """That the user has, as root's status says."""
    found = re.search(rf'^user {NOBODY} connections (\d+)/', machine.read('status'), re.M)
    return int(found.group(1)) if found else 0


def test_over_his_limit():
    """What cannot be closed yet counts as his until it is, over his limit too; and many such
    connections take few of the daemon's descriptors."""
    needs_cuda('the daemon receives in the same way for all vendors')
    if not is_root():
        raise Skip('several users are needed')
    most, rounds = 8, 30  # all of them wait in the daemon's queue (fs/process/registry.c)
    with vmm.machine(options=f',user_connections={most}') as machine:
        unflushed = Unflushed(machine, 'dirty')
        directory = f'/proc/{machine.daemon.pid}/fd'
        before = len(os.listdir(directory))
        unflushed.send_each(MALFORMED, REGISTERING, rounds=rounds)
        # Those that helpers are receiving or closing are there, too.
        wait_for(lambda: connections(machine) > 2 * rounds - 8, 'all of them to be turned away')
        taken = len(os.listdir(directory)) - before
        check(taken < rounds / 2, f'{taken} descriptors')
        others_go_on(machine)
        # By now helpers would have closed them.
        time.sleep(3)
        check(connections(machine) > 2 * rounds - 8, 'given back too early')
        unflushed.finish()
        wait_for(lambda: connections(machine) == 0, 'all to be given back')
        wait_for(lambda: len(os.listdir(directory)) < before + 20, 'all descriptors to be closed')
        ends(machine)


def play_behind(options, rounds):
    needs_cuda('the daemon receives in the same way for all vendors')
    if not is_root():
        raise Skip('several users are needed')
    with vmm.machine(options=options) as machine:
        unflushed = Unflushed(machine, 'dirty')
        unflushed.send_each(MALFORMED, REGISTERING, rounds=rounds, place='behind')
        others_go_on(machine)
        unflushed.finish()
        wait_for(lambda: connections(machine) == 0, 'all to be given back')
        ends(machine)


def test_behind_an_empty_packet():
    """An empty packet looks like the end of the connection, but descriptors may follow it."""
    play_behind('', 4)


def test_behind_an_empty_packet_over_his_limit():
    play_behind(',user_connections=2', 8)


# Sends such messages, or registers, again and again; the descriptor is one of a file in memory.
AGAIN = '''
import os, socket, sys, time
place, body, uid = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
file = os.memfd_create("any")
print("begins", flush=True)
while True:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        try:
            link.connect(place)
            socket.send_fds(link, [body], [file])
        except OSError:
            pass
    time.sleep(0.02)
'''


@contextlib.contextmanager
def sending(machine, body, uid, *command):
    with subprocess.Popen([*command, sys.executable, '-c', AGAIN, f'{machine.runtime}/socket', body,
                           str(uid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True) as sender:
        try:
            equal(sender.stdout.readline(), 'begins\n')
            yield
        finally:
            sender.kill()


def goes_on(machine, demo):
    directory = f'/proc/{machine.daemon.pid}/fd'
    before = len(os.listdir(directory))
    until = time.monotonic() + 3 * SLOW
    while time.monotonic() < until:
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
    demo.wait_ticks()
    check(len(os.listdir(directory)) < before + 40, 'descriptors stay open')


def test_root_of_a_container():
    """Wrong messages of its programs do not count for the host's root."""
    needs_cuda('the daemon receives in the same way for all vendors')
    if not is_root():
        raise Skip('several users are needed')
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--bytes', '4M', '--buffers', 2)
        with sending(machine, MALFORMED, 0, 'unshare', '--pid', '--fork', '--kill-child'):
            goes_on(machine, demo)
            other = machine.ready_demo()
            wait_for(lambda: other.pid in machine.pids(), 'it to be listed')
            machine.wait_status(other.pid, 'registered', 'yes')
        ends(machine)


def test_refused_connections():
    """A user's programs that are over the limit do not disturb the ones that came in time."""
    needs_cuda('the daemon receives in the same way for all vendors')
    if not is_root():
        raise Skip('several users are needed')
    with vmm.machine(options=',user_connections=1') as machine:
        demo = vmm.demo(machine, '--bytes', '4M', '--buffers', 2, uid=NOBODY)
        with sending(machine, REGISTERING, NOBODY):
            goes_on(machine, demo)
        wait_for(lambda: connections(machine) <= 1, 'all to be given back')
        ends(machine)


def lie(request, number):
    """A library that answers the request with such a descriptor."""
    with attacked() as (machine, unflushed):
        lying = library.Library(machine)
        # No child is made while we have the file: it would have to close it.
        demo = machine.ready_demo()
        file = unflushed.open()

        def answer(one, sequence):
            if number == HANDLES:
                body = HEADER.pack(MAGIC, VERSION, HANDLES, sequence, 8) + bytes(4) + b'\1\0\0\0'
                socket.send_fds(one.link, [body], [file])
            else:
                one.answer(sequence, fd=file)

        lying.on[request] = answer
        lying.demo.is_to_end = True
        # The daemon may wait for its library, which does not come again.
        threading.Thread(target=lambda: (machine.write(lying.pid, 'freeze'),
                                         machine.write(lying.pid, 'thaw timeout=5')),
                         daemon=True).start()
        wait_for(lambda: request in lying.asked, 'the request')
        others_go_on(machine, demo)
        lying.demo.is_to_end = True
        lying.demo.popen.kill()
        ends(machine)


def test_list():
    lie(LIST, 0)


def test_hand_over():
    lie(HAND_OVER, 0)


def test_handles():
    lie(HAND_OVER, HANDLES)


def test_finish():
    lie(FINISH, 0)


if __name__ == '__main__':
    harness.main(globals())
