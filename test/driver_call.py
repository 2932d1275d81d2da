# SPDX-License-Identifier: MIT
"""Calls of the simulated driver's checkpoint API, by name: driver_call.py LIBRARY VERB PID
[OLD-UUID:NEW-UUID]... prints the result and, for `state` and `thread`, what was asked for. `uuids`
prints those of all GPUs, `used NUMBER` the bytes in use of one. A program of its own, to be run
where the machine is."""
import ctypes
import sys


class Pair(ctypes.Structure):
    _fields_ = [('old', ctypes.c_ubyte * 16), ('new', ctypes.c_ubyte * 16)]


class RestoreArgs(ctypes.Structure):
    """CUcheckpointRestoreArgs of cuda.h 13.0."""
    _fields_ = [('pairs', ctypes.POINTER(Pair)), ('count', ctypes.c_uint),
                ('reserved', ctypes.c_char * 44), ('reserved1', ctypes.c_uint64)]


def uuids(cuda):
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for device in range(count.value):
        uuid = (ctypes.c_ubyte * 16)()
        cuda.cuDeviceGetUuid_v2(uuid, device)
        print(bytes(uuid).hex())


def used_bytes(cuda, device):
    """With what the context takes in which this is asked."""
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or \
            cuda.cuCtxSetCurrent(context) or \
            cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)):
        sys.exit('no context')
    return total.value - free.value


def main(library, verb, pid=0, *pairs):
    cuda = ctypes.CDLL(library)
    if cuda.cuInit(0):
        sys.exit('cuInit failed')
    if verb == 'uuids':
        uuids(cuda)
        return
    if verb == 'used':
        print(used_bytes(cuda, int(pid)))
        return
    argument = None
    if verb in ('state', 'thread'):
        argument = ctypes.c_int(-1)
    elif pairs:
        table = (Pair * len(pairs))()
        for entry, words in zip(table, pairs):
            old, new = words.split(':')
            entry.old[:], entry.new[:] = bytes.fromhex(old), bytes.fromhex(new)
        argument = RestoreArgs(table, len(pairs))
    call = getattr(cuda, {'state': 'cuCheckpointProcessGetState',
                          'thread': 'cuCheckpointProcessGetRestoreThreadId',
                          'lock': 'cuCheckpointProcessLock',
                          'checkpoint': 'cuCheckpointProcessCheckpoint',
                          'restore': 'cuCheckpointProcessRestore',
                          'unlock': 'cuCheckpointProcessUnlock'}[verb])
    print(call(int(pid), ctypes.byref(argument) if argument else None),
          argument.value if verb in ('state', 'thread') else '')


main(*sys.argv[1:])
