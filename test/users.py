# SPDX-License-Identifier: MIT
"""What processes of other users do in a test: they open, write, and hand descriptors on."""
import contextlib
import os
import signal
import socket
import subprocess
import sys

from harness import LIBC, Skip, become, check, equal, is_root, name_of, wait_for

CLONE_NEWPID = 0x20000000

# How a GPU program of NOBODY's in Python begins; its argument is the library of the driver.
GPU_PROGRAM = """
import ctypes, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)
cuda = ctypes.CDLL(sys.argv[1])
context = ctypes.c_void_p()
print(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), flush=True)
"""


def need_root():
    if not is_root():
        raise Skip('several users are needed')


def child(call, prepare=None):
    """The number that it returns, or its errno, of a process of its own."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        number = 255
        try:
            if prepare:
                prepare()
            number = call() or 0
        except OSError as error:
            number = error.errno
        finally:
            os.write(write_end, bytes([number]))
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, 'rb') as pipe:
        return (pipe.read() or b'\xff')[0]


def answer(call, uid, gid=None, groups=()):
    """What it returns, as text, in a process of this user's with all our descriptors."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        text = 'died'
        try:
            os.setgroups(groups)
            os.setgid(uid if gid is None else gid)
            os.setuid(uid)
            text = str(call())
        finally:
            os.write(write_end, text.encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


def opened(path, uid=0, flags=os.O_WRONLY, prepare=None):
    """A descriptor that a process of this user has opened, and handed on. It has ended then."""
    ours, theirs = socket.socketpair()

    def open_it():
        if uid:
            become(uid)
        socket.send_fds(theirs, [b'x'], [os.open(path, flags)])

    with ours, theirs:
        number = child(open_it, prepare)
        equal(name_of(number), 'ok', f'open of {path}')
        return socket.recv_fds(ours, 1, 1)[1][0]


def write_by(fd, text, uid=0, call=None, prepare=None):
    """How a write by a process of this user goes: its errno's name, or 'ok'."""
    data = text.encode()

    def write_it():
        if uid:
            become(uid)
        return 0 if (call or os.write)(fd, data) == len(data) else 254

    return name_of(child(write_it, prepare))


def read_as(uid, path):
    found = subprocess.run(['cat', path], capture_output=True, check=False, text=True, user=uid,
                           group=uid, extra_groups=[])
    return found.stdout + found.stderr


class User:
    """A process of a user; apart: in a pid namespace of its own. It ends as its work does."""

    def __init__(self, machine, uid, work, apart=False):
        machine.others.append(self)
        reader, writer = os.pipe()
        self.status = None
        self.pid = os.fork()
        if not self.pid:
            os.close(reader)
            os.setpgid(0, 0)
            os._exit(self.run(uid, work, apart, writer))
        os.close(writer)
        self.reader = reader
        check(os.read(reader, 1), 'the user')

    def run(self, uid, work, apart, writer):
        try:
            if apart:
                check(not LIBC.unshare(CLONE_NEWPID), 'unshare')
                pid = os.fork()
                if pid:
                    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if uid:
                become(uid)
            work(lambda: os.write(writer, b'.'))
            return 0
        except BaseException as error:  # whatever it is, the parent has to know
            print(f'the user: {error!r}', file=sys.stderr, flush=True)
            return 1

    def is_over(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def ends_well(self, words):
        wait_for(self.is_over, words)
        equal(self.status, 0, words)

    def finish(self):
        if not self.is_over():
            os.killpg(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with contextlib.suppress(OSError):
            os.close(self.reader)
