# SPDX-License-Identifier: MIT
"""For tests of quotas: users and their ids, processes that keep what they have got, and what the
daemon counts."""
import contextlib
import errno
import json
import os
import re
import resource
import socket

from harness import (LIBC, Failure, Machine, Skip, become, check, equal, is_root, name_of, read_file,
                     same_for_both, wait_for)

ALICE, BOB = 4001, 4002
CLONE_NEWPID = 0x20000000
FIRST_SUBUID = 100000
WHY = 'what one user may have'


def need_root():
    if not is_root():
        raise Skip('several users are needed')
    same_for_both(WHY)


class Held:
    """What a process of a user has got: `found` is what take() returned. It keeps all of it until
    it is let go of."""

    def __init__(self, uid, take, enter=None):
        from_child, to_us = os.pipe()
        their_end, self.end = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.close(self.end)
                os.close(from_child)
                resource.setrlimit(resource.RLIMIT_NOFILE, (12000, 12000))
                if enter:
                    enter()
                become(uid)
                found = take()
                os.write(to_us, json.dumps(found).encode() + b'\n')
                os.close(to_us)
                os.read(their_end, 1)
                status = 0
            except BaseException as error:  # shown where it is read
                os.write(to_us, json.dumps(f'{error!r}').encode() + b'\n')
            finally:
                os._exit(status)
        os.close(to_us)
        os.close(their_end)
        with os.fdopen(from_child, 'rb') as pipe:
            self.found = json.loads(pipe.read() or b'"ended"')

    def let_go(self, number=0):
        if not self.pid:
            return
        if number:
            os.kill(self.pid, number)
        with contextlib.suppress(BrokenPipeError):
            os.write(self.end, b'x')  # others have inherited it: its end would not be seen
        os.close(self.end)
        os.waitpid(self.pid, 0)
        self.pid = 0


@contextlib.contextmanager
def holding():
    """take(uid, call, enter) makes a Held; all of them are let go of at the end."""
    held = []

    def take(uid, call, enter=None):
        held.append(Held(uid, call, enter))
        return held[-1]

    try:
        yield take
    finally:
        for one in held:
            one.let_go()


def enter_container():
    """A pid namespace of its own, and no user namespace: its root has root's id."""
    if LIBC.unshare(CLONE_NEWPID):
        raise OSError(errno.ENOSYS, 'unshare')
    pid = os.fork()
    if pid:
        os.closerange(3, 1000)
        os.waitpid(pid, 0)
        os._exit(0)


def by(uid, call, enter=None):
    """What a process of this user gets, which ends at once."""
    held = Held(uid, call, enter)
    held.let_go()
    return held.found


def by_each(uids, call):
    """What call() returns for each of these users, one after the other, in one process."""
    def work():
        found = []
        for uid in uids:
            os.setresgid(uid, uid, 0)
            os.setresuid(uid, uid, 0)
            found.append(call())
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
        return found

    return by(0, work)


def small_demo(machine, uid=None):
    """For tests in which it does not matter how much a program has."""
    return machine.ready_demo('--bytes', '1M', '--buffers', '1', uid=uid)


def as_often_as(times, call):
    """How often it succeeds, and which errors there are. What it returns is kept."""
    kept, errors = [], set()
    for _ in range(times):
        try:
            kept.append(call())
        except OSError as error:
            errors.add(name_of(error.errno))
    by.kept = kept
    return len(kept), sorted(errors)


def shown(text, uid):
    """The counts and limits of this user in a status of the root; {} if there are none."""
    found = re.search(rf'^user {uid} (.*)$', text, re.M)
    words = found.group(1).split() if found else []
    return {name: tuple(int(number) if number != '-' else None for number in count.split('/'))
            for name, count in zip(words[::2], words[1::2])}


def counts(machine, uid=ALICE):
    return {name: count for name, (count, _) in shown(machine.read('status'), uid).items()}


def wait_count(machine, name, expected, uid=ALICE):
    def is_so():
        return counts(machine, uid).get(name, 0) == expected
    try:
        wait_for(is_so, f'{name} of {uid} to be {expected}')
    except Failure:
        equal(counts(machine, uid).get(name, 0), expected, f'{name} of {uid}')


def wait_nothing(machine, uid=ALICE):
    wait_for(lambda: not counts(machine, uid), f'nothing of {uid}: {counts(machine, uid)}', 20)


def make_place(machine, name, uid=ALICE, size=0):
    """With a file `file` of this size."""
    def make():
        os.mkdir(machine.path(name))
        with open(machine.path(name, 'snapshot', 'file'), 'wb', buffering=0) as file:
            file.write(bytes(size))

    equal(by(uid, make), None)
    return machine.path(name, 'snapshot', 'file')


def why(machine, uid=ALICE):
    """What the user himself is told."""
    return by(uid, lambda: read_file(machine.path('error')).strip())


def write_subuids(machine, text):
    path = f'{machine.directory}/subuid'
    with open(path + '.new', 'w', encoding='utf-8') as file:
        file.write(text)
    os.chmod(path + '.new', 0o644)
    os.rename(path + '.new', path)


def user_machine(options='', **more):
    machine = Machine(start=False, **more)
    write_subuids(machine, f'{ALICE}:{FIRST_SUBUID}:1000\n')
    machine.options += f',user_subuids={machine.directory}/subuid{options}'
    return machine


def others_work(machine, *programs):
    """Freezing, thawing, listing, for root and for the user who owns each of these."""
    for program in programs:
        uid = os.stat(f'/proc/{program.pid}').st_uid
        for verb in 'freeze', 'thaw':
            writer = machine.writer(program.pid, verb, uid=uid)
            equal(writer.result(), 'ok', f'{verb} of {program.pid} by {uid}')
            equal(machine.state(program.pid), 'frozen' if verb == 'freeze' else 'running')
        machine.must(program.pid, 'freeze')
        machine.must(program.pid, 'thaw')
        check(str(program.pid) in by(uid, lambda: os.listdir(machine.mountpoint)), 'ls')
        check(f'{program.pid} ' in by(uid, lambda: machine.read('status')), 'status')
        program.wait_ticks(1)


def connect(machine):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(f'{machine.runtime}/socket')
    return peer


def count_open(peers):
    def is_open(peer):
        peer.setblocking(False)
        try:
            return bool(peer.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False

    return sum(map(is_open, peers))
