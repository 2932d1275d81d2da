# SPDX-License-Identifier: MIT
"""A user who wants to keep others from their dumps: he takes the names that these will have, all the
places that users may have, and has as many dumps under way as he can."""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import users
from harness import NOBODY, check, equal, read_file, same_for_both, wait_for

ATTACKER = 4007


def need_dump():
    if not harness.is_root():
        raise harness.Skip('several users are needed')
    same_for_both('what one user may have')


def user_program(machine, name, uid=0):
    os.chmod(machine.directory, 0o755)
    return dump.Program(machine, *dump.SMALL, uid=uid or None, name=name).wait_ready()


def make_places(machine, names, uid=ATTACKER):
    """How many of them he gets."""
    def make():
        count = 0
        for name in names:
            try:
                os.mkdir(machine.path(name))
                count += 1
            except OSError:
                pass
        return count

    return int(users.answer(make, uid))


def default_name(pid):
    stat = read_file(f'/proc/{pid}/stat')
    comm = re.sub(r'[^A-Za-z0-9._-]', '_', read_file(f'/proc/{pid}/comm').strip())
    return f'{comm}-{pid}-{stat.rpartition(")")[2].split()[19]}'


def dump_as(machine, one, text='dump', uid=0):
    return machine.writer(one.pid, text, uid=uid or None).result()


def test_names():
    need_dump()
    with dump.machine() as machine:
        one, two = user_program(machine, 'one'), user_program(machine, 'two')
        name = default_name(one.pid)
        equal(make_places(machine, [name, f'{name}-2', f'{name}-3', 'asked']), 4)
        equal(dump_as(machine, one), 'ok', machine.error(one.pid))
        equal(machine.read(f'{name}-4', 'status').count('dumped'), 1)
        equal(os.stat(machine.path(f'{name}-4')).st_uid, 0)
        equal(os.stat(machine.path(name)).st_uid, ATTACKER)
        # A name that was asked for is none that he may be without.
        equal(dump_as(machine, two, 'dump name=asked'), 'EEXIST')
        check('there is a asked already' in machine.error(two.pid), machine.error(two.pid))
        # Nor is there a second one of the same process.
        equal(dump_as(machine, two, 'dump leave'), 'ok', machine.error(two.pid))
        equal(dump_as(machine, two, 'thaw'), 'ok', machine.error(two.pid))
        equal(dump_as(machine, two, 'dump leave'), 'EEXIST', machine.error(two.pid))
        two.wait_ticks()


def test_places():
    """Users leave root 64 places; their dumps too."""
    need_dump()
    with dump.machine(options=',user_places=0') as machine:
        one, his = user_program(machine, 'one'), user_program(machine, 'his', NOBODY)
        equal(make_places(machine, [f'place{i}' for i in range(1000)]), 960)
        equal(dump_as(machine, his, uid=NOBODY), 'ENOSPC')
        check('too many places' in machine.error(his.pid), machine.error(his.pid))
        his.wait_ticks()
        machine.must(one.pid, 'dump')


def test_dumps():
    """No more of them at once than he may have; others' go on."""
    need_dump()
    with dump.machine(wrapped=True, options=',user_dumps=2') as machine:
        his = [user_program(machine, f'his{i}', ATTACKER) for i in range(3)]
        one = user_program(machine, 'one')
        machine.criu.set('hang')
        writers = [machine.writer(program.pid, 'dump', uid=ATTACKER) for program in his[:2]]
        for program in his[:2]:
            machine.wait_status(program.pid, 'phase', 'criu')
        equal(dump_as(machine, his[2], uid=ATTACKER), 'EAGAIN')
        said = machine.error(his[2].pid)
        check(re.match(rf'EAGAIN: user {ATTACKER} has 2 dumps under way, and 1 more would be above '
                       r'the limit of 2 \(user_dumps', said), said)
        machine.criu.set()
        equal(dump_as(machine, one), 'ok', machine.error(one.pid))
        for program, writer in zip(his, writers):
            machine.write(program.pid, 'cancel')
            check(writer.result(40) != 'ok', writer.result())
        wait_for(lambda: not re.search(rf'user {ATTACKER} .* dumps [1-9]', machine.read('status')),
                 'the end of his dumps')


if __name__ == '__main__':
    harness.main(globals())
