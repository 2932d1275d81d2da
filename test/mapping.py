# SPDX-License-Identifier: MIT
"""Mappings of files past the daemon."""
import ctypes
import mmap
import os

import harness
from checking import check


class Mapping:
    """Of a whole file, without a descriptor: Python's own keeps one."""

    def __init__(self, path):
        call = harness.LIBC.mmap
        call.restype = ctypes.c_void_p
        call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                         ctypes.c_int64]
        fd = os.open(path, os.O_RDONLY)
        self.size = os.fstat(fd).st_size
        self.address = call(None, self.size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        check(self.address not in (None, ctypes.c_void_p(-1).value), 'it is mapped')
        os.close(fd)

    def __getitem__(self, where):
        start, end, _ = where.indices(self.size)
        return ctypes.string_at(self.address + start, end - start)

    def close(self):
        harness.LIBC.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size))
