# SPDX-License-Identifier: MIT
"""Packed memory that a user gives away to his subordinate ids: it stays his, and takes no
descriptor of the daemon when it is gone."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import LIBC, MIB, become, check, equal, needs_cuda, wait_for
from pieces import Pieces
from quota import ALICE, FIRST_SUBUID, counts, need_root, user_machine, wait_count, write_subuids

CLONE_NEWUSER = 0x10000000
ROUNDS = 40
SUBUIDS = 100


def chown_in_namespace(path, inner):
    """ALICE gives the file to this id of a user namespace of hers, in which her subordinate ids
    are 1, 2 and so on."""
    from_child, to_us = os.pipe()
    from_us, to_child = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            become(ALICE)
            LIBC.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: root's files in /proc are hers again
            equal(LIBC.unshare(CLONE_NEWUSER), 0)
            os.write(to_us, b'x')
            os.read(from_us, 1)
            os.chown(path, inner, -1)
            status = 0
        finally:
            os._exit(status)
    equal(os.read(from_child, 1), b'x')
    for name, text in (('uid_map', f'0 {ALICE} 1\n1 {FIRST_SUBUID} {SUBUIDS}\n'),
                       ('gid_map', f'0 {ALICE} 1\n')):
        with open(f'/proc/{pid}/{name}', 'w', encoding='utf-8') as file:
            file.write(text)
    os.write(to_child, b'x')
    equal(os.waitpid(pid, 0)[1], 0)
    for fd in from_child, to_us, from_us, to_child:
        os.close(fd)


def verb(machine, program, text):
    equal(machine.writer(program.pid, text, uid=ALICE).result(), 'ok', text)


def descriptors(machine):
    return len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))


def owners(machine):
    """Whose packed chunks there are."""
    path = f'{machine.runtime}/store/packs'
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def check_unpacked(machine, program):
    """The program has its memory again, and the store holds nothing of it."""
    wait_for(lambda: not owners(machine), 'no packed chunks')
    wait_count(machine, 'store_bytes', 0)
    program.check()


def test_given_away():
    """Again and again, to another id each time."""
    need_root()
    needs_cuda('packing')
    with user_machine(vmm=True) as machine:
        machine.start()
        program = Pieces(machine, f'0:{2 * MIB}', uid=ALICE)
        before = 0
        for number in range(ROUNDS):
            verb(machine, program, 'freeze')
            chown_in_namespace(program.path(), 1 + number)
            equal(os.stat(program.path()).st_uid, FIRST_SUBUID + number)
            verb(machine, program, 'pack')
            equal(owners(machine), [str(ALICE)])
            check(counts(machine)['store_bytes'] > 0, str(counts(machine)))
            verb(machine, program, 'thaw')
            before = before or descriptors(machine)
        wait_for(lambda: descriptors(machine) <= before + 5, f'{before} descriptors again')
        check_unpacked(machine, program)


def test_next_daemon():
    """One that is started after a kill has those packed chunks that are needed, and no others."""
    need_root()
    needs_cuda('packing')
    with user_machine(vmm=True) as machine:
        machine.start()
        program = Pieces(machine, f'0:{2 * MIB}', uid=ALICE)
        verb(machine, program, 'freeze')
        chown_in_namespace(program.path(), 1)
        verb(machine, program, 'pack')
        for uid in range(FIRST_SUBUID + 2, FIRST_SUBUID + 40):
            os.mkdir(f'{machine.runtime}/store/packs/{uid}')
        machine.stop(signal.SIGKILL)
        machine.start()
        wait_for(lambda: owners(machine) == [str(ALICE)], 'those of one user')
        verb(machine, program, 'thaw')
        check_unpacked(machine, program)


def test_range_of_several_users():
    """The ids of a range of root's may be of several users, who share no chunks."""
    need_root()
    needs_cuda('packing')
    with user_machine(vmm=True) as machine:
        write_subuids(machine, f'root:{FIRST_SUBUID}:1000\n')
        machine.start()
        users = [FIRST_SUBUID + number for number in (3, 7)]
        programs = [Pieces(machine, f'0:{2 * MIB}', uid=uid) for uid in users]
        for program, uid in zip(programs, users):
            for text in 'freeze', 'pack':
                equal(machine.writer(program.pid, text, uid=uid).result(), 'ok', text)
        equal(owners(machine), [str(uid) for uid in users])
        for program, uid in zip(programs, users):
            equal(machine.writer(program.pid, 'thaw', uid=uid).result(), 'ok')
            program.check()
        wait_for(lambda: not owners(machine), 'no packed chunks')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
