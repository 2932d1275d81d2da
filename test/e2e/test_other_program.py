# SPDX-License-Identifier: MIT
"""A process that becomes a set-user-ID program, by execve(2), while its user's verb is under way or
while another process keeps its library's connection: the program is root's, and neither the verb nor
the connection touches it."""
import contextlib
import os
import shutil
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
import vmm
from harness import (BUILD, NOBODY, Skip, check, equal, is_root, read_file, same_for_both,
                     wait_for)
from library import (COMMIT, CONNECTING, HAND_OVER, HEADER, LIST, MAGIC, PAGE_BYTES, PAGE_NAME, REGISTER, RUNNING,
                     VERSION, Library, sealed_file)
from test_lying_library import MANAGED, gpu_uuid, lists

SAVE, HOLD = 110, 111


class Plain:
    """A program without a library."""

    def __init__(self, machine, env, **options):
        self.demo = machine.demo(
            env={'LD_LIBRARY_PATH': vendor.LIBRARIES, 'LD_PRELOAD': CONNECTING, **env},
            command=vendor.DEMO, **options).wait_ready()
        self.pid = self.demo.pid


@contextlib.contextmanager
def turning_machine(with_library=True):
    """A machine, and an ordinary user's process in it that becomes root's by turn()."""
    same_for_both('whose program it is')
    if not is_root():
        raise Skip('a set-user-ID program of root is needed')
    with vmm.machine() as machine:
        os.chmod(machine.directory, 0o755)
        directory = f'{machine.directory}/turning'
        os.mkdir(directory, 0o750)
        os.chown(directory, 0, NOBODY)
        program = f'{directory}/turning'
        shutil.copy(f'{BUILD}/test/e2e/turning', program)
        os.chmod(program, 0o4755)
        if os.statvfs(program).f_flag & os.ST_NOSUID:
            raise Skip('no set-user-ID programs work here')
        make = (lambda *args, **more: Library(*args, connections=1, **more)) if with_library else Plain
        lying = make(machine, uid=NOBODY, env={'GPUCR_TEST_NEXT': program})
        equal(os.stat(machine.path(lying.pid)).st_uid, NOBODY)
        try:
            yield machine, lying
        finally:
            machine.demos.remove(lying.demo)  # its output is that of two programs
            lying.demo.popen.kill()
            lying.demo.popen.wait()


@contextlib.contextmanager
def group_machine():
    """A machine, and a set-group-ID program that all may run."""
    same_for_both('whose program it is')
    if not is_root():
        raise Skip('a set-group-ID program is needed')
    with vmm.machine() as machine:
        program = f'{machine.directory}/turning'
        shutil.copy(f'{BUILD}/test/e2e/turning', program)
        os.chown(program, 0, NOBODY - 1)
        os.chmod(program, 0o2755)
        os.chmod(machine.directory, 0o755)
        yield machine, program


def turn(machine, lying):
    """It has been gpucr-demo, and is one again, root's: after a tick of the new one."""
    count = lying.demo.output.lines.count('tick 1 ok')
    os.kill(lying.pid, signal.SIGUSR1)
    wait_for(lambda: lying.demo.output.lines.count('tick 1 ok') > count, 'the new program')
    check('user 0, ' in lying.demo.words(), lying.demo.words())
    equal(os.stat(machine.path(lying.pid)).st_uid, 0)


def runs_on(lying, seconds=2):
    """It ticks as before, every twentieth of a second."""
    output = getattr(lying, 'demo', lying).output
    before, longest, until = len(output.lines), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        now = time.monotonic()
        wait_for(lambda: len(output.lines) > before, 'a tick')
        before, longest = len(output.lines), max(longest, time.monotonic() - now)
    check(longest < 1.5, f'it did nothing for {longest} s')
    check(output.lines[-1].endswith('ok'), output.lines[-1])


def roots_verbs_work(machine, pid):
    machine.wait_status(pid, 'engine', vendor.ENGINE)
    equal(machine.status(pid)['generation'], '-')
    machine.must(pid, 'freeze')
    equal(machine.state(pid), 'frozen')
    machine.must(pid, 'thaw')


def test_in_the_hand_over():
    """The library answers when the process is root's already: the driver must not lock that."""
    with turning_machine() as (machine, lying):
        def turn_first(library, sequence):
            turn(machine, library)
            library.obey(HAND_OVER, sequence, b'\0' * 44)

        lying.on[HAND_OVER] = turn_first
        writer = machine.writer(lying.pid, 'freeze timeout=30', uid=NOBODY)
        check(writer.result() in ('ESRCH', 'EPERM', 'EIO'), writer.result())
        equal(machine.state(lying.pid), 'running')
        runs_on(lying)
        roots_verbs_work(machine, lying.pid)
        runs_on(lying, 0.5)


def test_before_the_accept():
    """A connection that the daemon has not accepted yet when its process becomes a set-group-ID
    program, which never has a library."""
    with group_machine() as (machine, program):
        page = sealed_file(bytes(PAGE_BYTES))
        machine.daemon.send_signal(signal.SIGSTOP)
        try:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            plain = Plain(machine, {
                'GPUCR_TEST_NEXT': program,
                'GPUCR_TEST_CONNECT': f'{machine.runtime}/socket:{link.fileno()}'
            }, uid=NOBODY, pass_fds=[link.fileno()])
            os.kill(plain.pid, signal.SIGUSR1)
            wait_for(lambda: read_file(f'/proc/{plain.pid}/comm') == 'turning\n', 'the program')
        finally:
            machine.daemon.send_signal(signal.SIGCONT)
        body = struct.pack('=II40s', 1, RUNNING, b'')
        socket.send_fds(link, [HEADER.pack(MAGIC, VERSION, REGISTER, 1, len(body)) + body], [page])
        wait_for(lambda: "another user's rights now" in machine.log(), 'the connection to be dropped')
        machine.demos.remove(plain.demo)
        plain.demo.popen.kill()
        plain.demo.popen.wait()
        link.close()
        os.close(page)


def test_before_the_task():
    """The verb waits for a library, and the process gets another group meanwhile, as an ordinary
    program of its user again: whom its writer may not trace he does not freeze."""
    with group_machine() as (machine, program):
        # The library's name, and no library.
        page = os.memfd_create(PAGE_NAME, 0)
        os.ftruncate(page, PAGE_BYTES)
        plain = Plain(machine, {
            'GPUCR_TEST_NEXT': program, 'GPUCR_TEST_PAGE': str(page), 'GPUCR_PRELOAD': '',
            'GPUCR_TEST_CONNECTING': CONNECTING},
                      uid=NOBODY, pass_fds=[page])
        os.close(page)
        writer = machine.writer(plain.pid, 'freeze', uid=NOBODY)
        machine.wait_status(plain.pid, 'state', 'freezing')
        os.kill(plain.pid, signal.SIGUSR1)
        wait_for(lambda: read_file(f'/proc/{plain.pid}/comm') == 'turning\n', 'the program')
        count = plain.demo.output.lines.count('tick 1 ok')
        os.kill(plain.pid, signal.SIGUSR1)
        wait_for(lambda: plain.demo.output.lines.count('tick 1 ok') > count, 'the new program')
        check(f'group {NOBODY - 1} now' in plain.demo.words(), plain.demo.words())
        equal(os.stat(machine.path(plain.pid)).st_uid, NOBODY)
        os.kill(plain.pid, signal.SIGUSR2)
        equal(writer.result(), 'ESRCH')
        equal(machine.state(plain.pid), 'running')
        runs_on(plain)
        machine.must(plain.pid, 'freeze')
        machine.must(plain.pid, 'thaw')
        runs_on(plain, 0.5)
        machine.demos.remove(plain.demo)  # its output is that of two programs
        plain.demo.popen.kill()
        plain.demo.popen.wait()


def test_before_the_lock():
    """The driver locks what has the pid when it is asked: it is unlocked at once."""
    with turning_machine(with_library=False) as (machine, plain):
        machine.watch_faults()
        machine.hold_at(f'cuCheckpointProcessLock {vmm.ROLES["control"]} times=1')
        writer = machine.writer(plain.pid, 'freeze', uid=NOBODY)
        machine.wait_faulted()
        turn(machine, plain)
        machine.let_go()
        equal(writer.result(), 'ESRCH')
        equal(machine.state(plain.pid), 'running')
        runs_on(plain)
        roots_verbs_work(machine, plain.pid)


def test_number_used_again_in_the_lock():
    """The process ends in the driver's call, before the driver has looked for it, and another user's
    gets its number: that one is unlocked at once."""
    harness.needs_cuda('the driver locks a number')
    if not is_root():
        raise Skip('only root chooses the number of a process')
    with vmm.machine() as machine:
        first = machine.ready_demo(uid=NOBODY)
        machine.watch_faults()
        machine.hold_at(f'cuCheckpointProcessLock {vmm.ROLES["control"]} times=1')
        writer = machine.writer(first.pid, 'freeze', uid=NOBODY)
        machine.wait_faulted()
        machine.daemon.send_signal(signal.SIGSTOP)  # it would end its helper
        try:
            first.end()
            second = machine.demo_with_pid(first.pid)
            machine.let_go()
            runs_on(second)
        finally:
            machine.daemon.send_signal(signal.SIGCONT)
        equal(writer.result(), 'ESRCH')
        runs_on(second, 0.5)
        machine.must(second.pid, 'freeze')
        machine.must(second.pid, 'thaw')
        runs_on(second, 0.5)


def test_before_the_halt():
    """Its threads were to be stopped for its managed memory: those of the new program are not."""
    harness.needs_cuda('managed memory')
    with turning_machine() as (machine, lying):
        answer = lists((1 << 41, 1 << 30, 1, gpu_uuid(machine), MANAGED))

        def list_again(library, sequence):
            library.on[LIST] = list_again
            answer(library, sequence)

        def turn_first(library, sequence):
            turn(machine, library)
            library.answer(sequence)

        lying.on[LIST] = list_again
        lying.on[SAVE] = turn_first
        lying.on[HOLD] = lambda library, sequence: None
        writer = machine.writer(lying.pid, 'freeze data timeout=5', uid=NOBODY)
        wait_for(lambda: 'user 0, ' in lying.demo.words(), 'the new program')
        runs_on(lying, 4)
        check(writer.result() in ('ESRCH', 'EPERM', 'EIO'), writer.result())
        check(HOLD not in lying.asked, lying.asked)
        roots_verbs_work(machine, lying.pid)


def test_undone_thaw():
    """Another owner's, when the driver locks it for the way back: it is unlocked at once, and is
    frozen but for the driver's own share, so the next thaw brings it back."""
    harness.needs_cuda('the control state of AMD stays')
    if not is_root():
        raise Skip('several users are needed')
    with vmm.machine() as machine:
        demo = machine.ready_demo(uid=NOBODY, env={'LD_PRELOAD': CONNECTING,
                                                   'GPUCR_TEST_UNDUMPABLE': '1'})
        equal(os.stat(machine.path(demo.pid)).st_uid, NOBODY)
        machine.must(demo.pid, 'freeze')
        lock = f'cuCheckpointProcessLock {vmm.ROLES["control"]} times=1 action=hold'
        machine.watch_faults()
        machine.hold_at(lock)
        machine.faults(lock, f'cuMemMap {vmm.ROLES["program"]} error=CUDA_ERROR_UNKNOWN')
        writer = machine.writer(demo.pid, 'thaw', uid=NOBODY)
        wait_for(lambda: 'cuCheckpointProcessLock' in [call for _, _, call in machine.faulted()],
                 'the way back')
        os.kill(demo.pid, signal.SIGUSR2)
        wait_for(lambda: not os.stat(machine.path(demo.pid)).st_uid, 'it to be root\'s')
        machine.let_go()
        check(writer.result() != 'ok', 'the thaw cannot have succeeded')
        machine.wait_status(demo.pid, 'verb', '-')
        words = machine.error(demo.pid)
        check('belongs to another user' in words and 'thaw tries again' in words, words)
        equal(machine.state(demo.pid), 'frozen')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()
        vmm.cycle(machine, demo)


def test_kept_connection():
    """The user's library is not asked for root's program, and keeps no other one away."""
    with turning_machine() as (machine, lying):
        def never(library, _):
            library.on[COMMIT] = never

        turn(machine, lying)
        lying.asked.clear()
        lying.on[COMMIT] = never
        roots_verbs_work(machine, lying.pid)
        equal(lying.asked, [])
        runs_on(lying, 0.5)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
