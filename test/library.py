# SPDX-License-Identifier: MIT
"""A preload library that the test plays itself, for a program whose memory is all the driver's:
what the real one does once in a thousand times is done here at every run."""
import contextlib
import fcntl
import mmap
import os
import socket
import struct
import threading

import harness
import vendor
from harness import wait_for

RUNNING, GATED, HANDED, OUT, INCOMING = range(1, 6)
REGISTER, RESULT = 96, 64
GATE_CLOSE, GATE_OPEN, LIST, FILES, HAND_OVER, COMMIT, TAKE_BACK, RECEIVE, FINISH, LET_GO = \
    range(100, 110)
# A request, where it makes sense, and where it leads.
MOVES = {
    GATE_CLOSE: ((RUNNING, GATED), GATED),
    GATE_OPEN: ((RUNNING, GATED), RUNNING),
    HAND_OVER: ((GATED, HANDED), HANDED),
    COMMIT: ((HANDED, OUT), OUT),
    TAKE_BACK: ((HANDED, GATED), GATED),
    FINISH: ((OUT, INCOMING, GATED), GATED),
    LET_GO: ((INCOMING, OUT), OUT),
}
EBUSY = 16

HEADER = struct.Struct('=IHHII')
RESULT_BODY = struct.Struct('=iiIIQ384s')
MAGIC, VERSION, PAGE_MAGIC = 0x46524347, 1, 0x50524347
PAGE_BYTES = 312 + 8192 * 64
PAGE_NAME = 'gpucr-page'  # GCR_PAGE_NAME of lib/protocol.h
PAGE_PHASE = 8
PAGE_FLAGS = 12
PAGE_DEVICE_BYTES = 24
PAGE_SLOTS_COUNT = 52
PAGE_IMPORTED_BYTES = 264
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
PAGE_VMM = 5 if vendor.HIP else 1  # with whose it is

CONTAINER = ['unshare', '--pid', '--fork', '--kill-child']

# A connection is its who has called connect(2): this module, in the program.
CONNECTING = f'{vendor.BUILD}/test/libconnecting.so'


def sealed_file(content=b''):
    """As the library sends it: the daemon takes no file that can still grow."""
    fd = os.memfd_create('table', os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


class Library:
    """
    Serves the daemon for a demo, with no extents at all. `on` names what is not done as usual: a
    function of (library, sequence) for a request, called once; it answers, or does not. With
    @contained the program is in a pid namespace of its own, as in a container.
    """

    def __init__(self, machine, connections=3, env=None, contained=False, **options):
        self.phase = RUNNING
        self.generation = b''
        self.on = {}
        self.asked = []
        self.kept = None  # a list: of the descriptors that it is given, and does not close
        self.links = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                      for _ in range(connections)]
        self.link = None
        numbers = [link.fileno() for link in self.links]
        places = [f'{machine.runtime}/socket', *map(str, numbers)]
        self.demo = machine.demo(
            '--bytes', '1M', '--buffers', 1, '--tick', 5, pass_fds=numbers, **options,
            env={'LD_LIBRARY_PATH': vendor.LIBRARIES, 'GPUCR_TEST_CONNECT': ':'.join(places),
                 **(env or {})},
            command=[*(CONTAINER if contained else []), 'env', f'LD_PRELOAD={CONNECTING}',
                     *vendor.DEMO]).wait_ready()
        if contained:
            starter = self.demo.popen.pid
            self.demo.pid = int(harness.read_file(f'/proc/{starter}/task/{starter}/children'))
        self.pid = self.demo.pid
        self.page = os.memfd_create('page', os.MFD_ALLOW_SEALING)
        os.ftruncate(self.page, PAGE_BYTES)
        self.memory = mmap.mmap(self.page, PAGE_BYTES)
        struct.pack_into('=IIII', self.memory, 0, PAGE_MAGIC, 1, RUNNING, PAGE_VMM)
        fcntl.fcntl(self.page, fcntl.F_ADD_SEALS, SEALS)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.register(RUNNING)
        self.thread.start()
        wait_for(lambda: machine.status(self.pid).get('engine') == vendor.ENGINE, 'the library')

    def register(self, phase):
        """On a new connection; the one before has been closed."""
        self.set_phase(phase)
        self.link = self.links.pop(0)
        body = struct.pack('=II40s', 1, phase, self.generation)
        self._send(REGISTER, 1, body, self.page)

    def lose(self, phase):
        """The connection has gone; the next one finds it in this phase."""
        self.link.close()
        self.register(phase)

    def set_phase(self, phase):
        self.phase = phase
        struct.pack_into('=I', self.memory, PAGE_PHASE, phase)

    def set_flags(self, flags):
        struct.pack_into('=I', self.memory, PAGE_FLAGS, flags)

    def claim(self, device_bytes, imported_bytes):
        """Memory of which the daemon has only the library's word."""
        struct.pack_into('=Q', self.memory, PAGE_DEVICE_BYTES, device_bytes)
        struct.pack_into('=Q', self.memory, PAGE_IMPORTED_BYTES, imported_bytes)

    def use_all_slots(self):
        struct.pack_into('=I', self.memory, PAGE_SLOTS_COUNT, 8192)

    def answer(self, sequence, error=0, words='', fd=None, phase=None):
        self._send(RESULT, sequence,
                   RESULT_BODY.pack(error, 0, phase or self.phase, 0, 0, words.encode()), fd)

    def _send(self, number, sequence, body, fd=None):
        message = HEADER.pack(MAGIC, VERSION, number, sequence, len(body)) + body
        socket.send_fds(self.link, [message], [] if fd is None else [fd])

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(self.link, 1 << 17, 64)
                if self.kept is not None:
                    self.kept += fds
                else:
                    for fd in fds:
                        os.close(fd)
                if not data:
                    return
                _, _, number, sequence, _ = HEADER.unpack(data[:HEADER.size])
                self.asked.append(number)
                if number in self.on:
                    self.on.pop(number)(self, sequence)
                else:
                    self.obey(number, sequence, data[HEADER.size:])

    def obey(self, number, sequence, body=b''):
        """As the real one does."""
        if number == LIST:
            table = sealed_file()
            self.answer(sequence, fd=table)
            os.close(table)
            return
        if number in MOVES:
            where, phase = MOVES[number]
            if self.phase not in where:
                self.answer(sequence, EBUSY, f'request {number} makes no sense now')
                return
            if number == HAND_OVER:
                self.generation = body[:40]
            self.set_phase(phase)
        self.answer(sequence)
