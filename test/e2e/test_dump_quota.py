# SPDX-License-Identifier: MIT
"""A user who dumps his processes has no more places, and holds no more of the store, than he may."""
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
from harness import MIB, NOBODY, check, equal, same_for_both, wait_for


def need_root():
    if not harness.is_root():
        raise harness.Skip('several users are needed')
    same_for_both('what one user may have')


def need_dump():
    need_root()
    with open('/proc/self/status', encoding='utf-8') as status:
        capabilities = int(status.read().split('CapEff:')[1].split()[0], 16)
    if not capabilities >> 24 & 1:
        raise harness.Skip('without CAP_SYS_RESOURCE CRIU dumps no process of another user')


def held(machine):
    """His places, and what he holds of the store."""
    found = re.search(rf'^user {NOBODY} .* places (\d+)/\S+ store_bytes (\d+)/',
                      machine.read('status'), re.M)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def user_program(machine, name, **options):
    os.chmod(machine.directory, 0o755)
    return dump.Program(machine, *dump.SMALL, uid=NOBODY, name=name, **options).wait_ready()


def refused(machine, one, words):
    equal(machine.writer(one.pid, 'dump', uid=NOBODY).result(), 'EDQUOT')
    said = machine.error(one.pid)
    check(re.match(f'EDQUOT: user {NOBODY} has {words}', said), said)
    equal(machine.state(one.pid), 'running')
    one.wait_ticks()


def user_place(machine, is_filled=True):
    """Of his, with as much as he may have."""
    path = machine.path('filled')
    pid = os.fork()
    if not pid:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.mkdir(path)
        if not is_filled:
            os._exit(0)
        try:
            with open(f'{path}/snapshot/file', 'wb', buffering=0) as file:
                while True:
                    file.write(bytes(MIB))
        except OSError:
            os._exit(0)
    os.waitpid(pid, 0)
    return path


def test_refused():
    """Before CRIU does anything: the program runs on, and no part of a place is left."""
    need_root()
    with dump.machine(options=',user_places=1') as machine:
        one = user_program(machine, 'one')
        path = user_place(machine, False)
        refused(machine, one, r'1 places, and 1 more would be above the limit of 1 \(user_places')
        wait_for(lambda: held(machine) == (1, 0), 'nothing more')
        os.rmdir(path)
        wait_for(lambda: held(machine) == (0, 0), 'nothing of his')
    with dump.machine(options=',user_store=100M') as machine:
        one = user_program(machine, 'one')
        path = user_place(machine)
        wait_for(lambda: held(machine) == (1, 100 * MIB), 'a full place')
        refused(machine, one, r'100 MiB of bytes in the store, and \d+ MiB more would be above')
        wait_for(lambda: held(machine) == (1, 100 * MIB), 'nothing more')
        os.rmdir(path)
        dump.as_before(machine, one)
        wait_for(lambda: held(machine) == (0, 0), 'nothing of his')


def test_files_without_names():
    """They go into the images, and count before CRIU begins."""
    need_root()

    def hold(is_memfd):
        fd = os.memfd_create('held') if is_memfd else \
            os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR, 0o600)
        for _ in range(100):
            os.write(fd, bytes([165]) * MIB)
        os.set_inheritable(fd, True)

    with dump.machine(options=',user_store=90M') as machine:
        for is_memfd in False, True:
            one = user_program(machine, f'one-{is_memfd}', prepare=lambda: hold(is_memfd))
            refused(machine, one, r'0 MiB of bytes in the store, and \d{3} MiB more would be above')
            wait_for(lambda: held(machine) == (0, 0), 'nothing of his')


def test_more_than_was_seen():
    """CRIU writes more than the tree had: it has to give up, and the program goes on."""
    need_root()
    with dump.machine(wrapped=True, options=',user_store=120M') as machine:
        one = user_program(machine, 'one')
        machine.criu.set('grow')
        refused(machine, one, r'\d+ MiB of bytes in the store, and \d+ MiB more would be above')
        machine.criu.set()
        wait_for(lambda: held(machine) == (0, 0), 'nothing of his')
        dump.nothing_left(machine)


def test_places():
    """Dumps make places of his. He is told before anything of the process ends."""
    need_dump()
    with dump.machine(options=',user_places=2') as machine:
        first, second, third = [user_program(machine, name) for name in ('one', 'two', 'three')]
        equal(machine.writer(first.pid, 'dump name=first', uid=NOBODY).result(), 'ok')
        equal(machine.writer(second.pid, 'dump name=second', uid=NOBODY).result(), 'ok')
        equal(held(machine)[0], 2)
        refused(machine, third, r'2 places, and 1 more would be above the limit of 2 \(user_places')
        equal(held(machine)[0], 2)
        # Root may, and it counts for him.
        machine.must(third.pid, 'dump name=third')
        equal(held(machine)[0], 3)
        machine.stop()
        machine.start()
        equal(held(machine)[0], 3, 'after a restart')
        for name in 'first', 'second', 'third':
            os.rmdir(machine.path(name))
        wait_for(lambda: held(machine) == (0, 0), 'nothing of his')


def test_store():
    """The images are root's, and the place is his."""
    need_dump()
    with dump.machine(options=',user_store=300M') as machine:
        first, second = user_program(machine, 'one'), user_program(machine, 'two')
        equal(machine.writer(first.pid, 'dump name=first', uid=NOBODY).result(), 'ok')
        equal(os.stat(machine.path('first', 'snapshot')).st_uid, 0)
        places, held_bytes = held(machine)
        check(places == 1 and 10 * MIB < held_bytes < 300 * MIB, f'{places}, {held_bytes}')
        path = user_place(machine)
        refused(machine, second, r'\d+ MiB of bytes in the store, and \d+ MiB more would be')
        os.rmdir(path)
        wait_for(lambda: held(machine) == (1, held_bytes), 'the bytes of the dump')
        machine.must('first', 'thaw')
        first.wait_ticks()
        wait_for(lambda: held(machine)[1] < held_bytes, 'its bytes to go')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
