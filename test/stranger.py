# SPDX-License-Identifier: MIT
"""A stranger who sends others descriptors that they cannot close: network sockets that linger with
bytes which nobody reads (socket(7), SO_LINGER). Whoever closes the last descriptor of one waits."""
import contextlib
import errno
import os
import signal
import socket
import struct
import threading

from harness import NOBODY, Skip

SO_PASSRIGHTS = 83
LINGER_SEC = 1000


def needs_refusal():
    """Skips where the kernel knows no sockets without descriptors (Linux 6.16)."""
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        except OSError as error:
            raise Skip('sockets take all descriptors here') from error


class Lingering:
    """Makes such sockets, in the process of the stranger."""

    def __init__(self):
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.server.bind(('127.0.0.1', 0))
        self.server.listen()
        self.ends = []

    def make(self):
        one = socket.create_connection(self.server.getsockname())
        self.ends.append(self.server.accept()[0])
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                one.send(bytes(65536))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, LINGER_SEC))
        return one


def send(names, report):
    """Sends such sockets to the first of @names() (as they are to be connected to) that there is. In
    front of each are connections that have sent nothing, so that this process has closed the socket
    by the time the listener gets to it. Reports `t` for each that was taken and `r` for each that
    was refused, and then `.`."""
    lingering = Lingering()
    ready = [lingering.make() for _ in range(16)]
    queue = [[socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(12)]
             for _ in ready]
    os.write(report, b'+')
    while not (found := names()):
        pass
    for one, links in zip(ready, queue):
        try:
            for link in links:
                link.setblocking(False)
                link.connect(found[0])
            socket.send_fds(links[-1], [b'x'], [one.fileno()])
            # Not by this thread: if the listener has been faster, this is the last descriptor.
            threading.Thread(target=one.close, daemon=True).start()
            os.write(report, b't')
        except OSError as error:
            os.write(report, b'r' if error.errno == errno.EPERM else b'-')
    os.write(report, b'.')
    signal.pause()


@contextlib.contextmanager
def stranger(does):
    """Another user's process that does so. It yields what has been reported since the last call."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            does(writer)
        finally:
            os._exit(1)
    os.close(writer)

    def reported():
        with contextlib.suppress(BlockingIOError):
            return os.read(reader, 1 << 16)
        return b''

    try:
        yield reported
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)


def names_of(prefix):
    """Of abstract sockets, as they are to be connected to."""
    with open('/proc/net/unix', encoding='utf-8') as file:
        return [f'\0{line.split("@", 1)[1].strip()}' for line in file if f'@{prefix}' in line]
