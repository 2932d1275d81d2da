# SPDX-License-Identifier: MIT
"""What test/fs/holding.c, preloaded into a daemon, is told."""
import os
import struct
import threading

from harness import BUILD

LEGAL_SEC = 60  # GCR_WATCHDOG_LEGAL_USEC


class Holding:
    def __init__(self, directory, disk=''):
        self.path = f'{directory}/holding'
        with open(self.path, 'wb') as file:
            file.write(bytes(6 * 8))
        self.env = {'LD_PRELOAD': f'{BUILD}/test/fs/libholding.so', 'GPUCR_TEST_HOLDING': self.path,
                    'GPUCR_TEST_HOLDING_DISK': disk or '/nowhere'}
        self.thread = None

    def set(self, is_held, ahead_sec, is_disk_held=False):
        fd = os.open(self.path, os.O_WRONLY)
        os.write(fd, struct.pack('=qqq', is_held, ahead_sec, is_disk_held))
        os.close(fd)

    def hold_texts(self, is_held):
        """Texts for readers, before they are written."""
        fd = os.open(self.path, os.O_WRONLY)
        os.pwrite(fd, struct.pack('=q', is_held), 4 * 8)
        os.close(fd)

    def _word(self, index):
        with open(self.path, 'rb') as file:
            return struct.unpack('=6q', file.read())[index]

    def held_writes(self):
        """How many writes to the disk have been held so far."""
        return self._word(3)

    def held_texts(self):
        return self._word(5)

    def ask(self, machine):
        """In a thread of the test: the answer is held up."""
        self.thread = threading.Thread(target=lambda: _statvfs(machine.mountpoint), daemon=True)
        self.thread.start()


def _statvfs(path):
    try:
        os.statvfs(path)
    except OSError:  # the daemon was killed
        pass
