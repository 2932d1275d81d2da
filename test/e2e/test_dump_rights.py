# SPDX-License-Identifier: MIT
"""What a dump must not tell its reader: contents, digests and sizes of files that the owner of the
processes could not read, whatever descriptors he has got hold of."""
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import users
from harness import NOBODY, check, equal, error_of, same_for_both, wait_for

SECRET = b'root:$6$what-only-root-may-read$' * 40

# Without CAP_SYS_RESOURCE CRIU dumps no process of another user.
with open('/proc/self/status', encoding='utf-8') as status:
    HAS_RESOURCE = bool(int(status.read().split('CapEff:')[1].split()[0], 16) >> 24 & 1)


class Secret:
    """A file that only root may read, in a directory that everybody may list."""

    def __init__(self, machine, name='secret', mode=0o600):
        self.path = f'{machine.directory}/{name}'
        with open(self.path, 'wb') as file:
            file.write(SECRET)
        os.chmod(self.path, mode)


def keep_name(path):
    os.set_inheritable(os.open(path, os.O_PATH), True)


def keep_on_its_way(path):
    ours, its = socket.socketpair()
    socket.send_fds(ours, [b'x'], [os.open(path, os.O_PATH)])
    for fd in ours.detach(), its.detach():
        os.set_inheritable(fd, True)


def attacker(machine, prepare, path, descriptors=()):
    """A program of an ordinary user, which inherits @descriptors of ours."""
    os.chmod(machine.directory, 0o755)
    for fd in descriptors:
        os.set_inheritable(fd, True)
    one = dump.Program(machine, *dump.SMALL, uid=NOBODY, prepare=lambda: prepare(path))
    for fd in descriptors:
        os.close(fd)
    return one.wait_ready()


def refused(machine, one, words):
    equal(machine.writer(one.pid, 'dump', uid=NOBODY).result(), 'EPERM')
    said = machine.error(one.pid)
    check(words in said, said)
    dump.as_before(machine, one)


def files_below(path):
    for directory, _, names in os.walk(path):
        for name in names:
            yield os.path.join(directory, name)


def private_when_root_dumps(machine, one, name):
    """It can be dumped; nobody but root reads what was written."""
    if not HAS_RESOURCE:
        return []
    machine.must(one.pid, f'dump name={name}')
    one.wait_gone()
    snapshot = machine.path(name, 'snapshot')
    found = [path for path in files_below(f'{snapshot}/criu')]
    check(found, 'there are images')
    for path in [*found, f'{snapshot}/manifest', f'{snapshot}/files']:
        equal(os.stat(path).st_mode & 0o077, 0, path)
        equal(as_user(lambda path=path: error_of(lambda: open(path, 'rb').close())), 'EACCES', path)
    return found


def as_user(call):
    """As NOBODY, with group 0; what @call returns, a string."""
    return users.answer(call, NOBODY, groups=[0])


def test_only_a_name():
    """O_PATH on a file of root's that is then replaced, as editors and useradd(8) do."""
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        secret = Secret(machine)
        one = attacker(machine, keep_name, secret.path)
        os.rename(Secret(machine, 'newer').path, secret.path)
        refused(machine, one, 'may not read')
        images = private_when_root_dumps(machine, one, 'path')
        if images:
            check(any(SECRET in open(path, 'rb').read() for path in images),
                  'the file is in the images, as the attack supposes')
            machine.must('path', 'thaw')
            one.wait_ticks()


def test_only_a_name_that_stays():
    """Its size and digest."""
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        one = attacker(machine, keep_name, Secret(machine).path)
        refused(machine, one, 'may not read')
        private_when_root_dumps(machine, one, 'name')


def test_only_for_writing():
    """A log of root's that the program inherits, before and after it has lost its name."""
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        secret = Secret(machine)
        one = attacker(machine, os.path.exists, secret.path,
                       [os.open(secret.path, os.O_WRONLY | os.O_APPEND)])
        refused(machine, one, 'may not read')
        os.unlink(secret.path)
        refused(machine, one, 'may not read')


def test_on_its_way():
    """The descriptor is in the queue of a socket, where nobody sees it."""
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        secret = Secret(machine)
        one = attacker(machine, keep_on_its_way, secret.path)
        os.unlink(secret.path)
        refused(machine, one, 'wait to be received')


def test_what_the_owner_may_read():
    """What was opened for reading by root, what all may read, and what is the owner's."""
    same_for_both('what is found out about the tree')
    with dump.machine() as machine:
        secret = Secret(machine)
        fd = os.open(secret.path, os.O_RDONLY)
        os.unlink(secret.path)
        common = Secret(machine, 'common', 0o644)
        owned = Secret(machine, 'owned', 0o200)
        os.chown(owned.path, NOBODY, NOBODY)
        one = attacker(machine, keep_name, common.path, [fd, os.open(owned.path, os.O_WRONLY)])
        os.unlink(common.path)
        result = machine.writer(one.pid, 'dump name=own', uid=NOBODY).result()
        if not HAS_RESOURCE:
            # CRIU dumps no process of another user here; nothing of ours stood in the way.
            check('criu' in machine.error(one.pid), machine.error(one.pid))
            return
        equal(result, 'ok')
        one.wait_gone()
        wait_for(lambda: machine.state('own') == 'dumped', 'the place')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
