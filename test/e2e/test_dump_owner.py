# SPDX-License-Identifier: MIT
"""Whose a dump is whose processes change their user in the middle of it, and its log. See
test/unit/test_dump_owner.c for several users, and for what changes while CRIU works."""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
from harness import BUILD, NOBODY, Skip, check, equal, error_of, is_root, same_for_both, wait_for
from test_dump_rights import Secret, as_user

READS_MAX = 24
REFUSALS = 'may not read', 'belongs to another user', 'has changed its user'


def need_root():
    same_for_both('whose a dump is')
    if not is_root():
        raise Skip('several users are needed')


def test_root_for_a_moment():
    """The root of the tree is root's just when its rights are read. What it holds open it could not
    read as its user, so no dump of it is his, whichever read that is."""
    need_root()
    if os.statvfs('/tmp').f_flag & os.ST_NOSUID:
        raise Skip('/tmp has no set-user-ID programs')
    with dump.machine() as machine:
        machine.stop()
        os.chmod(machine.directory, 0o755)
        orders = f'{machine.directory}/racing'
        program = f'{BUILD}/test/e2e/changing'
        other = shutil.copy(program, f'{machine.directory}/other')
        os.chown(other, 0, 0)
        os.chmod(other, 0o4755)
        machine.start(env={'LD_PRELOAD': f'{BUILD}/test/e2e/libracing.so',
                           'GPUCR_TEST_RACING': orders})
        secret = Secret(machine)
        one = dump.Program(machine, *dump.SMALL, uid=NOBODY,
                           command=[program, 'root', secret.path, other, *dump.RUN]).wait_ready()
        os.unlink(secret.path)
        wait_for(lambda: os.path.exists(machine.path(one.root)), 'the root of the tree')
        said = set()
        for number in range(1, READS_MAX + 1):
            with open(f'{orders}.new', 'w', encoding='utf-8') as file:
                file.write(f'{one.root} {number} {number}')
            os.rename(file.name, orders)
            writer = machine.writer(one.root, f'dump name=stolen{number}', uid=NOBODY)
            result = writer.result()
            words = f'{result}: {machine.error(one.pid)}'
            found = [refusal for refusal in REFUSALS if refusal in words]
            check(result == 'EPERM' and found, f'read {number}: {words}')
            said.update(found)
            dump.nothing_left(machine)
        os.unlink(orders)
        check(len(said) > 1, f'the race was never run: {said}')
        one.wait_ticks()


def test_whose_log():
    """CRIU's log of root's dump names what is open, which its user need not know. It is root's
    until that is known to be nothing; his own dump's is his."""
    need_root()
    with dump.machine(wrapped=True) as machine:
        os.chmod(machine.directory, 0o755)
        one = dump.Program(machine, *dump.SMALL, uid=NOBODY).wait_ready()
        path = machine.path(one.pid, 'criu.log')

        def fail(uid):
            machine.criu.set('fail-after')
            # Where CRIU may dump no other user's process, it fails by itself.
            check(machine.writer(one.pid, 'dump', uid=uid).result() != 'ok', 'it was to fail')

        def readable():
            return as_user(lambda: error_of(lambda: open(path, 'rb').close()))

        fail(NOBODY)
        equal([os.stat(path).st_uid, readable()], [NOBODY, 'ok'])
        check(harness.read_file(path), 'there is a log')
        fail(None)
        equal([os.stat(path).st_uid, readable()], [0, 'EACCES'])
        check(harness.read_file(path), 'root reads it')
        fail(NOBODY)
        equal([os.stat(path).st_uid, readable()], [NOBODY, 'ok'])
        dump.as_before(machine, one)


if __name__ == '__main__':
    harness.main(globals())
