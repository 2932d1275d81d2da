# SPDX-License-Identifier: MIT
"""A preload library that lies to the daemon about its memory."""
import contextlib
import errno
import os
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import MIB, check, equal, wait_for
from library import (GATE_CLOSE, HANDED, HEADER, INCOMING, LIST, MAGIC, OUT, RUNNING, VERSION,
                     Library, sealed_file)

HANDLES, PARK = 112, 115
DEVICE, MANAGED = 1, 2
EXTENT = struct.Struct('=QQQ16sIII12x')
GPU_BYTES = 256 * MIB


def gpu_uuid(machine, index=0):
    text = machine.read('gpus', str(index), 'uuid').strip().removeprefix('GPU-').replace('-', '')
    return bytes.fromhex(text)


def lists(*extents):
    """An answer to LIST."""
    def answer(lying, sequence):
        table = sealed_file(b''.join(EXTENT.pack(*extent, 0, 0) for extent in extents))
        lying.answer(sequence, fd=table)
        os.close(table)
    return answer


def device(uuid, count, size, start=1 << 40):
    return [(start + index * size, size, index + 1, uuid, DEVICE) for index in range(count)]


def check_refused(machine, lying, answer, words):
    before = machine.status_of_all()
    lying.on[LIST] = answer
    equal(machine.write(lying.pid, 'freeze'), 'EIO', machine.error(lying.pid))
    check(words in machine.error(lying.pid), machine.error(lying.pid))
    equal(machine.state(lying.pid), 'running')
    keys = ('store_used_bytes', 'store_free_bytes', 'store_reserve_bytes', 'held_bytes')

    def is_as_before():
        after = machine.status_of_all()
        return all(after[key] == before[key] for key in keys)
    # The store removes discarded files a little later, on a thread of its own.
    wait_for(is_as_before, 'the store to be as before')


def test_more_than_the_gpu_has():
    """What is listed is compared with the GPU, before anything is reserved for it."""
    harness.needs_cuda('the text of a UUID is all of it')
    with vmm.machine() as machine:
        lying = Library(machine)
        honest = vmm.demo(machine, '--bytes', '4M', '--buffers', 1)
        uuid = gpu_uuid(machine)
        words = 'its preload library lists'
        check_refused(machine, lying, lists(*device(uuid, 1, GPU_BYTES + 2 * MIB)), words)
        # Each of them fits.
        check_refused(machine, lying, lists(*device(uuid, 3, GPU_BYTES // 2)), words)
        check_refused(machine, lying, lists(*device(uuid, 1, 1 << 60, 1 << 61)), words)
        # As many as are too many for a sum of 64 bits.
        unmapped = [(0, 1 << 60, index + 1, uuid, DEVICE) for index in range(17)]
        check_refused(machine, lying, lists(*unmapped), 'makes no sense')
        managed = [(1 << 61, 1 << 60, 1, uuid, MANAGED)]
        check_refused(machine, lying, lists(*managed), 'of managed memory')
        vmm.cycle(machine, honest)
        machine.must(lying.pid, 'freeze')
        machine.must(lying.pid, 'thaw')


def test_more_in_use_than_the_gpu_has():
    """What a library says that its program has imported is added to the driver's figure, in the
    process's status and in what all can read of the GPU: up to what the GPU has, and no sum of 64
    bits overflows."""
    with vmm.machine() as machine:
        lying = Library(machine)
        own = int(machine.status(lying.pid)['vram_bytes'])
        of_all = int(machine.gpu()['vram_processes_bytes'])
        check(0 < own <= of_all < GPU_BYTES, f'{own}, {of_all}')
        for imported in (2**64 - 1, 2**64 - own, 2**63, 2 * GPU_BYTES):
            lying.claim(imported, imported)
            equal(int(machine.status(lying.pid)['vram_bytes']), own + GPU_BYTES, hex(imported))
            equal(int(machine.gpu()['vram_processes_bytes']), GPU_BYTES, hex(imported))
        lying.claim(MIB, MIB)
        equal(int(machine.status(lying.pid)['vram_bytes']), own + MIB, 'what can be')
        equal(int(machine.gpu()['vram_processes_bytes']), of_all + MIB, 'what can be')


def test_one_gpu_twice():
    """Memory of GPU 1, GPU 0 and GPU 1 again: its freeze would wait for the worker that it has."""
    harness.needs_cuda('the text of a UUID is all of it')
    with vmm.machine(gpus=2) as machine:
        lying = Library(machine)
        honest = vmm.demo(machine, '--bytes', '4M', '--buffers', 1)
        first, second = gpu_uuid(machine, 0), gpu_uuid(machine, 1)
        disorder = [((1 << 40) + index * 2 * MIB, 2 * MIB, index + 1, uuid, DEVICE)
                    for index, uuid in enumerate((second, first, second))]
        answer = lists(*disorder)

        def before_and_after_the_gate(library, sequence):
            library.on[LIST] = answer
            answer(library, sequence)
        check_refused(machine, lying, before_and_after_the_gate, 'not listed GPU by GPU')
        vmm.cycle(machine, honest)
        machine.must(lying.pid, 'freeze')
        machine.must(lying.pid, 'thaw')


def test_handles_that_nobody_waits_for():
    """Each of them the daemon would close, which the driver can make take long: it receives none."""
    harness.needs_cuda('the daemon receives in the same way for all vendors')
    with vmm.machine() as machine:
        lying = Library(machine)
        # To the daemon's helper it is a descriptor of the GPU.
        path = f'{machine.simulator}/of-the-gpu'
        with open(path, 'wb') as file:
            body = HEADER.pack(MAGIC, VERSION, HANDLES, 1, 8) + struct.pack('=II', 0, 1)
            socket.send_fds(lying.link, [body], [file.fileno()])
        wait_for(lambda: not lying.thread.is_alive(), 'the connection to end')
        check('a descriptor that is not due' in machine.log(), machine.log())
        os.unlink(path)
        lying.lose(RUNNING)
        wait_for(lambda: machine.status(lying.pid)['registered'] == 'yes', 'the library')


def test_gate_that_never_closes():
    """A library answers at once that its program does not come to rest, whenever it is asked: it is
    not asked again and again without a pause."""
    with vmm.machine() as machine:
        lying = Library(machine)
        seconds = 2

        def refuse(library, sequence):
            library.on[GATE_CLOSE] = refuse
            library.answer(sequence, errno.ETIMEDOUT, 'a kernel runs')

        lying.on[GATE_CLOSE] = refuse
        equal(machine.write(lying.pid, f'freeze timeout={seconds}'), 'ETIMEDOUT')
        equal(machine.state(lying.pid), 'running')
        asked = lying.asked.count(GATE_CLOSE)
        check(1 < asked <= 20 * seconds, f'asked {asked} times in {seconds} s')
        lying.on.clear()
        machine.must(lying.pid, 'freeze')
        machine.must(lying.pid, 'thaw')


def test_out_without_a_record():
    """A library says that its memory is out, so the daemon looks for the record that another daemon
    would have left. It takes none away that it is itself writing for somebody else's process."""
    with vmm.machine() as machine:
        lying = Library(machine)
        vmm.cycle(machine, vmm.demo(machine, '--bytes', '4M', '--buffers', 1))
        # As it is between the two steps in which a record is written.
        unfinished = f'{machine.runtime}/processes/.1-1.new'
        with open(unfinished, 'wb'):
            pass
        for phase in (HANDED, OUT, INCOMING):
            lying.set_phase(phase)
            time.sleep(0.6 * harness.SLOW)  # the daemon reads the page four times a second
            check(os.path.exists(unfinished), 'it was removed')
        os.unlink(unfinished)
        equal(machine.state(lying.pid), 'running')


def test_messages_without_end():
    """Instead of an answer a library sends other messages, as many as it can: the daemon does not
    take them as fast, whether they belong to the request or to an earlier one."""
    for early in range(2):
        with vmm.machine() as machine:
            lying = Library(machine)
            is_enough = threading.Event()
            sent = []

            def flood(library, sequence):
                body = HEADER.pack(MAGIC, VERSION, HANDLES, sequence - early, 8)
                while not is_enough.is_set():
                    library.link.send(body + struct.pack('=II', 0, 0))
                    sent.append(1)
                library.answer(sequence, errno.EIO)

            lying.on[GATE_CLOSE] = flood
            writer = machine.writer(lying.pid, 'freeze timeout=1')
            wait_for(lambda: sent, 'the request')
            time.sleep(2)
            count = len(sent)
            check(1024 < count < 8000, f'{count} messages in 2 s')
            is_enough.set()
            check(writer.result() in ('EIO', 'ETIMEDOUT'), machine.error(lying.pid))
            wait_for(lambda: machine.status(lying.pid)['verb'] == '-', 'the end of the verb')
            equal(machine.state(lying.pid), 'running')
            machine.must(lying.pid, 'freeze')
            machine.must(lying.pid, 'thaw')


def test_park_without_an_answer():
    """Instead of the answer come other messages, without end: the verb ends nevertheless, and so
    does that on another process beside it."""
    harness.needs_cuda('the daemon receives in the same way for all vendors')
    with vmm.machine() as machine:
        lying = Library(machine)
        honest = vmm.demo(machine, '--bytes', '4M', '--buffers', 1)
        is_enough = threading.Event()

        def flood(library, sequence):
            body = HEADER.pack(MAGIC, VERSION, HANDLES, sequence, 8) + struct.pack('=II', 0, 0)

            def send():
                with contextlib.suppress(OSError):
                    while not is_enough.is_set():
                        library.link.send(body)
            threading.Thread(target=send, daemon=True).start()

        lying.on[PARK] = flood
        writer = machine.writer(None, f'freeze park {lying.pid} {honest.pid}')
        equal(writer.result(20 * harness.SLOW), 'ETIMEDOUT', machine.error(lying.pid))
        is_enough.set()
        wait_for(lambda: machine.status(honest.pid)['state'] == 'running', 'the other one')
        honest.wait_ticks()


if __name__ == '__main__':
    harness.main(globals())
