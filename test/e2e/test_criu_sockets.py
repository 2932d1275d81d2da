# SPDX-License-Identifier: MIT
"""CRIU has sockets with names that every process of the machine can reach. Who is none of the tree
does not get through, and does not keep the tree from it."""
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
import stranger
from harness import Skip, check, equal, is_root, same_for_both, wait_for
from stranger import names_of


CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 1


def connect(report):
    """Answers as CRIU's code in a process does, as far as anybody listens."""
    while True:
        for name in names_of('/crtools-pr-'):
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peer.settimeout(0.5)
            with contextlib.suppress(OSError), peer:
                peer.connect(name)
                os.write(report, b'c')
                data, files, _, _ = socket.recv_fds(peer, 4096, 16)
                if data or files:
                    os.write(report, b'!')
                    time.sleep(30)
        time.sleep(0.0005)


def send(report):
    reader, _ = os.pipe()
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    while True:
        for name in names_of('/crtools-fd-'):
            with contextlib.suppress(OSError):
                sender.sendmsg([b'A' * 8], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                             struct.pack('i', reader))], 0, name)
                os.write(report, b's')


def go_apart():
    """Into a network namespace, in which no CRIU of another test is."""
    same_for_both('who speaks to CRIU')
    if not is_root() or ctypes.CDLL(None).unshare(CLONE_NEWNET):
        raise Skip('several users, and a network namespace, are needed')
    # CRIU looks at the sockets of the loopback device.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack('16sh22x', b'lo', IFF_UP))


def cycle(machine, does, count):
    """A tree is dumped and restored, again and again. It returns what the stranger has reported."""
    # One of its processes makes the open file anew, and sends it to the others.
    names = 'one', 'two'
    members = ' '.join(f'{dump.demo_in_shell(machine, name)} &' for name in names)
    root = dump.Program(machine, name='root', command=[
        'sh', '-c', f'exec 9> {machine.directory}/shared; {members} wait; exit 3'])
    programs = [dump.Program.below(root, name).wait_ready() for name in names]
    found = b''
    with stranger.stranger(does) as reported:
        for _ in range(count):
            equal(machine.write(root.pid, 'dump name=tree'), 'ok', machine.error(root.pid))
            root.reap()
            equal(machine.write('tree', 'thaw'), 'ok', machine.error('tree'))
            for one in programs:
                one.wait_ticks()
            found += reported()
    return found


def test_dump():
    """Somebody poses as a process of the tree."""
    go_apart()
    with restore.machine() as machine:
        found = cycle(machine, connect, 2)
        check(b'c' in found, 'nobody has ever connected')
        check(b'!' not in found, 'CRIU has spoken to a stranger')


def test_descriptors():
    """Somebody sends descriptors whose close(2) waits for ever."""
    go_apart()
    stranger.needs_refusal()

    def send_those(report):
        stranger.send(lambda: names_of('/crtools-pr-'), report)

    with restore.machine() as machine, stranger.stranger(send_those) as reported:
        program = dump.Program(machine).wait_ready()
        wait_for(lambda: b'+' in reported(), 'his descriptors')
        harness.soon('dump', lambda: equal(machine.write(program.pid, 'dump name=one'), 'ok',
                                           machine.error(program.pid)), 30 * harness.SLOW)
        found = reported()
        check(b'r' in found and b't' not in found, f'CRIU takes descriptors: {found}')


def test_restore():
    """Somebody sends what a process of the tree would."""
    go_apart()
    with restore.machine() as machine:
        check(cycle(machine, send, 2), 'nobody has ever sent anything')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
