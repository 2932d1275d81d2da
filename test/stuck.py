# SPDX-License-Identifier: MIT
"""test/e2e/stuck_write.c from Python."""
import subprocess
import tempfile

from harness import BUILD, equal


class StuckWrite:
    """A write of @uid's into @fd that waits for ever, with the file's lock: its bytes are in `source`,
    a file of a FUSE filesystem that never answers a read."""

    def __init__(self, directory, fd, uid):
        self.mountpoint = tempfile.mkdtemp(dir=directory)
        self.process = subprocess.Popen(
            [f'{BUILD}/test/e2e/stuck_write', self.mountpoint, str(fd), str(uid)],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, pass_fds=[fd])
        equal(self.process.stdout.readline(), b'stuck\n')

    def source(self):
        return f'{self.mountpoint}/source'

    def end(self):
        self.process.terminate()
        equal(self.process.wait(), 0, 'stuck_write')
        self.process.stdout.close()
