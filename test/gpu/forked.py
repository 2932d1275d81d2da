# SPDX-License-Identifier: MIT
"""A CUDA process with a fork()ed child that does nothing: forked.py

Prints `pid N`, the child's `child N`, then `tick K ok` for as long as 1 MiB of VRAM is what it
should be. The child inherits every open device file and ends with its parent.
"""
import ctypes
import os
import signal
import sys
import time

BYTES = 1 << 20
PR_SET_PDEATHSIG = 1


def checked(result):
    if result:
        sys.exit(f"the driver answers {result}")


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    pointer = ctypes.c_uint64()
    checked(cuda.cuInit(0))
    checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    checked(cuda.cuCtxSetCurrent(context))
    checked(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(BYTES)))
    pattern = os.urandom(BYTES)
    checked(cuda.cuMemcpyHtoD_v2(pointer, pattern, ctypes.c_size_t(BYTES)))

    print("pid", os.getpid(), flush=True)
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        while True:
            time.sleep(60)
    print("child", child, flush=True)
    found = ctypes.create_string_buffer(BYTES)
    tick = 1
    while True:
        checked(cuda.cuMemcpyDtoH_v2(found, pointer, ctypes.c_size_t(BYTES)))
        if found.raw != pattern:
            sys.exit(f"tick {tick}: VRAM has changed")
        print("tick", tick, "ok", flush=True)
        tick += 1
        time.sleep(0.1)


if __name__ == "__main__":
    main()
