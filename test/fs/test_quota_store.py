# SPDX-License-Identifier: MIT
"""Quotas of places, of bytes in the store, and of the verbs that put them there: over restarts of the
daemon, and with each way in which they go away again."""
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import MIB, check, equal, error_of, name_of, wait_for
from quota import (ALICE, BOB, FIRST_SUBUID, by, counts, holding, make_place, need_root,
                   others_work, small_demo, user_machine, wait_count, wait_nothing, why,
                   write_subuids)


def fill(path, mib):
    """Write so much to a new file; returns the error's name."""
    def write():
        with open(path, 'wb', buffering=0) as file:
            left = mib * MIB
            while left:
                left -= file.write(bytes(min(left, MIB)))

    return error_of(write)


def test_places():
    """With subordinate ids, which count for their owner; over a restart of the daemon."""
    need_root()
    with user_machine(',user_places=6') as machine:
        machine.start()

        def make(uid, name):
            return by(uid, lambda: error_of(lambda: os.mkdir(machine.path(name))))

        equal([make(ALICE, f'a{i}') for i in range(3)], ['ok'] * 3)
        equal([make(FIRST_SUBUID + i, f's{i}') for i in range(5)], ['ok'] * 3 + ['EDQUOT'] * 2)
        equal(make(ALICE, 'a0'), 'EEXIST')
        equal([make(BOB, f'b{i}') for i in range(7)], ['ok'] * 6 + ['EDQUOT'])
        check(re.match(rf'EDQUOT: user {ALICE} has 6 places, and 1 more .*user_places.*rmdir',
                       why(machine, FIRST_SUBUID + 4)), why(machine, FIRST_SUBUID + 4))
        equal(error_of(lambda: os.mkdir(machine.path('roots'))), 'ok')
        # An open one that is removed is no place any more.
        fd = os.open(machine.path('a0', 'events'), os.O_RDONLY)
        equal(by(ALICE, lambda: os.rmdir(machine.path('a0'))), None)
        equal(counts(machine)['places'], 5)
        os.close(fd)
        equal(counts(machine)['places'], 5)
        equal(make(FIRST_SUBUID + 9, 's9'), 'ok')
        equal(make(FIRST_SUBUID + 9, 's10'), 'EDQUOT')
        machine.stop()
        machine.start()
        equal([counts(machine)['places'], counts(machine, BOB)['places']], [6, 6])
        equal(make(ALICE, 'a0'), 'EDQUOT')
        # The ids are somebody else's: so is what they make from now on.
        write_subuids(machine, f'{BOB + 1}:{FIRST_SUBUID}:1000\n')
        time.sleep(1.1)
        equal(make(FIRST_SUBUID + 9, 's11'), 'ok')
        equal(counts(machine, BOB + 1)['places'], 1)
        for name in os.listdir(machine.mountpoint):
            if re.fullmatch(r'[abs]\d+|roots', name):
                os.rmdir(machine.path(name))
        wait_nothing(machine)
        wait_nothing(machine, BOB)
        wait_nothing(machine, BOB + 1)


def test_store_bytes():
    """Written, in names, unlinked but open, of a place that is gone, given to another user."""
    need_root()
    with user_machine(',user_store=64M,store_size=512M') as machine, holding() as take:
        machine.start()
        for name, uid in ('place', ALICE), ('other', FIRST_SUBUID), ('bobs', BOB):
            make_place(machine, name, uid)
        path = machine.path('place', 'snapshot')
        equal(by(ALICE, lambda: fill(f'{path}/a', 40)), 'ok')
        wait_count(machine, 'store_bytes', 40 * MIB)
        equal(by(ALICE, lambda: fill(f'{path}/b', 40)), 'EDQUOT')
        wait_count(machine, 'store_bytes', 64 * MIB)
        check(re.match(rf'EDQUOT: user {ALICE} has 64 MiB of bytes in the store, and 1 MiB more '
                       r'would be above the limit of 64 MiB \(user_store.*remove places',
                       why(machine)), why(machine))
        equal(by(FIRST_SUBUID, lambda: fill(machine.path('other', 'snapshot', 'a'), 3)), 'EDQUOT')
        for call in (lambda: os.truncate(f'{path}/b', 0) or
                     os.posix_fallocate(os.open(f'{path}/a', os.O_RDWR), 0, 200 * MIB),
                     lambda: os.posix_fallocate(
                         os.open(f'{path}/c', os.O_RDWR | os.O_CREAT), 0, 100 * MIB)):
            equal(by(ALICE, lambda: error_of(call)), 'EDQUOT')
        equal(by(BOB, lambda: fill(machine.path('bobs', 'snapshot', 'a'), 50)), 'ok')
        equal(fill(f'{path}/roots', 30), 'ok', 'root writes there')
        wait_count(machine, 'store_bytes', 70 * MIB)
        equal(by(ALICE, lambda: fill(f'{path}/b', 1)), 'EDQUOT')
        # Removed, and still open.
        held = take(ALICE, lambda: [os.open(f'{path}/roots', os.O_RDONLY) and 0,
                                    os.open(f'{path}/a', os.O_RDONLY) and 0])
        equal(held.found, [0, 0])
        os.unlink(f'{path}/roots')
        wait_count(machine, 'store_bytes', 70 * MIB)
        equal(by(ALICE, lambda: os.unlink(f'{path}/a') or os.unlink(f'{path}/b') or
                 os.rmdir(machine.path('place'))), None)
        wait_count(machine, 'store_bytes', 70 * MIB)
        make_place(machine, 'again')
        equal(by(ALICE, lambda: fill(machine.path('again', 'snapshot', 'a'), 1)), 'EDQUOT')
        held.let_go(signal.SIGKILL)
        wait_count(machine, 'store_bytes', 0)
        # Given away, with its bytes.
        snapshot = machine.path('again', 'snapshot')
        equal(by(ALICE, lambda: fill(f'{snapshot}/a', 10)), 'ok')
        wait_count(machine, 'store_bytes', 10 * MIB)
        wait_count(machine, 'store_bytes', 50 * MIB, BOB)
        os.chown(snapshot, BOB, BOB)
        wait_count(machine, 'store_bytes', 0)
        wait_count(machine, 'store_bytes', 60 * MIB, BOB)
        machine.stop()
        machine.start()
        wait_count(machine, 'store_bytes', 0)
        wait_count(machine, 'store_bytes', 60 * MIB, BOB)
        # Root's, it counts for whom the place is: he can remove it.
        os.chown(snapshot, 0, 0)
        wait_count(machine, 'store_bytes', 50 * MIB, BOB)
        wait_count(machine, 'store_bytes', 10 * MIB)
        os.chown(snapshot, ALICE, ALICE)
        wait_count(machine, 'store_bytes', 10 * MIB)
        for name in 'again', 'other', 'bobs':
            os.rmdir(machine.path(name))
        wait_nothing(machine)
        wait_nothing(machine, BOB)


def test_names():
    """Names without bytes take memory as well."""
    need_root()
    with user_machine(',user_store=2M,store_size=512M') as machine:
        machine.start()
        make_place(machine, 'place')

        def make_names():
            made, errors = 0, set()
            for number in range(1700):
                try:
                    os.mkdir(machine.path('place', 'snapshot', f'{number}'))
                    made += 1
                except OSError as error:
                    errors.add(name_of(error.errno))
            return made, sorted(errors)

        count, errors = by(ALICE, make_names)
        check(1500 < count < 1560 and errors == ['EDQUOT'], f'{count} {errors}')
        os.rmdir(machine.path('place'))
        wait_nothing(machine)


def test_frozen_in_an_exchange():
    """What an exchange freezes counts as well, less what it thaws."""
    need_root()
    with user_machine(',user_store=20M,store_size=512M', vram='512M',
                      vmm=True) as machine:
        machine.start()
        small = [machine.ready_demo('--bytes', '2M', '--buffers', 2, uid=ALICE) for _ in range(2)]
        alike = machine.ready_demo('--bytes', '2M', '--buffers', 2, uid=ALICE)
        large = machine.ready_demo('--bytes', '10M', '--buffers', 2, uid=ALICE)
        for program in *small, alike, large:
            machine.wait_status(program.pid, 'engine', 'vmm')

        def write(program, verb):
            return machine.writer(program.pid, verb, uid=ALICE).result()

        for program in small:
            equal(write(program, 'freeze'), 'ok')
        held = counts(machine)['store_bytes']
        equal(write(large, 'freeze'), 'EDQUOT')
        equal(write(small[0], f'thaw swap={large.pid}'), 'EDQUOT')
        equal([machine.state(program.pid) for program in (*small, large)],
              ['frozen', 'frozen', 'running'])
        large.wait_ticks(2)
        equal(counts(machine)['store_bytes'], held)
        # One that takes no more than the other gives back.
        equal(write(small[0], f'thaw swap={alike.pid}'), 'ok')
        equal([machine.state(program.pid) for program in (small[0], alike)],
              ['running', 'frozen'])
        equal(counts(machine)['store_bytes'], held)
        small[0].wait_ticks(2)


def test_frozen_bytes():
    """Freezing one's own is refused beyond the limit, thawing never, and root is not limited."""
    need_root()
    with user_machine(',user_store=16M,store_size=512M', vram='512M', vmm=True) as machine:
        machine.start()
        small = '--bytes', '4M', '--buffers', '2', '--tick', '100'
        mine = [machine.ready_demo(*small, uid=ALICE) for _ in range(3)]
        first, second = mine[:2]
        bobs = machine.ready_demo(*small, uid=BOB)
        for program in *mine, bobs:
            machine.wait_status(program.pid, 'engine', 'vmm')

        def write(program, verb):
            return machine.writer(program.pid, verb,
                                  uid=os.stat(f'/proc/{program.pid}').st_uid).result()

        equal(write(first, 'freeze'), 'ok')
        held = counts(machine)['store_bytes']
        check(8 * MIB < held <= 16 * MIB, str(held))
        equal(write(second, 'freeze'), 'EDQUOT')
        check(re.match(rf'EDQUOT: user {ALICE} has \d+ MiB of bytes in the store, and \d+ MiB more '
                       r'would be above the limit of 16 MiB .*thaw or pack',
                       machine.error(second.pid)), machine.error(second.pid))
        equal(machine.state(second.pid), 'running')
        second.wait_ticks(2)
        equal(counts(machine)['store_bytes'], held)
        equal(write(bobs, 'freeze'), 'ok')
        equal(write(bobs, 'thaw'), 'ok')
        # Root may; and the user thaws it with more than he may have.
        for program in mine[1:]:
            machine.must(program.pid, 'freeze')
        held = counts(machine)['store_bytes']
        check(held > 16 * MIB, str(held))
        machine.stop()
        machine.start()
        for program in mine:
            machine.wait_status(program.pid, 'state', 'frozen')
        equal(counts(machine)['store_bytes'], held, 'after a restart')
        # Packed, it takes little, and is not unpacked to more than he may have.
        for program in mine:
            equal(write(program, 'pack'), 'ok')
        wait_for(lambda: counts(machine)['store_bytes'] < held, 'packed bytes')
        packed = counts(machine)['store_bytes']
        machine.stop()
        machine.start()
        for program in mine:
            machine.wait_status(program.pid, 'state', 'frozen')
        equal(counts(machine)['store_bytes'], packed, 'after another restart')
        equal(machine.writer(None, 'unpack ' + ' '.join(
            str(program.pid) for program in mine), uid=ALICE).result(),
              'EDQUOT')
        equal(counts(machine)['store_bytes'], packed)
        for program in mine:
            machine.must(program.pid, 'unpack')
        check(counts(machine)['store_bytes'] > 16 * MIB, str(counts(machine)))
        for program in mine:
            equal(write(program, 'thaw'), 'ok')
            program.wait_ticks(2)
        wait_for(lambda: not counts(machine).get('store_bytes'), 'nothing in the store')
        # A freeze that fails leaves nothing.
        machine.failing('freeze', first.pid)
        check(write(first, 'freeze') != 'ok', 'it fails')
        machine.faults()
        wait_for(lambda: not counts(machine).get('store_bytes'), 'nothing in the store')
        equal(write(first, 'freeze'), 'ok')
        first.end(signal.SIGKILL)
        wait_for(lambda: not counts(machine).get('store_bytes'), 'nothing in the store')


def test_verbs():
    """One for each process of a write; they come back when the verb has ended."""
    need_root()
    with user_machine(',user_verbs=3') as machine:
        machine.start()
        mine = [small_demo(machine, ALICE) for _ in range(5)]
        bobs = small_demo(machine, BOB)
        pids = [str(program.pid) for program in mine]

        def write(text, program=None, flags=os.O_NONBLOCK, uid=ALICE):
            return machine.writer(program.pid if program else None, text, flags=flags,
                                  uid=uid).result()

        equal(write('freeze ' + ' '.join(pids)), 'EAGAIN')
        check(re.match(rf'EAGAIN: user {ALICE} has 0 verbs under way, and 5 more would be above '
                       r'the limit of 3 \(user_verbs', why(machine)), why(machine))
        machine.hold_at(*[vendor.step('freeze', '', program.pid)[0] for program in mine[:3]])
        equal(write('freeze ' + ' '.join(pids[:2])), 'ok')
        equal(write('freeze', mine[2]), 'ok')
        equal(counts(machine)['verbs'], 3)
        equal([write('freeze', program) for program in mine[3:]], ['EAGAIN'] * 2)
        check(machine.error(mine[4].pid).startswith('EAGAIN: '), machine.error(mine[4].pid))
        equal(write('freeze', mine[2]), 'ok', 'it is under way already')
        others_work(machine, bobs)
        machine.must(mine[3].pid, 'freeze')
        equal(counts(machine)['verbs'], 3, 'root has frozen one of his')
        machine.let_go()
        for program in mine[:3]:
            machine.wait_status(program.pid, 'state', 'frozen')
        wait_for(lambda: not counts(machine).get('verbs'), 'no verbs under way')
        equal(write('thaw ' + ' '.join(pids[:3]), flags=0), 'ok')
        equal(write('freeze', mine[4], flags=0), 'ok')
        # Whoever fails, is cancelled, or ends.
        machine.failing('freeze', mine[0].pid)
        check(write('freeze', mine[0], flags=0) != 'ok', 'it fails')
        machine.slow('freeze', 4000 * harness.SLOW, mine[1].pid)
        equal(write('freeze', mine[1]), 'ok')
        equal(write('cancel', mine[1], flags=0), 'ok')
        machine.faults()
        machine.slow('freeze', 2000 * harness.SLOW, mine[2].pid)
        equal(write('freeze', mine[2]), 'ok')
        mine[2].end(signal.SIGKILL)
        machine.faults()
        wait_for(lambda: not counts(machine).get('verbs'), 'no verbs under way')


def test_timeout():
    need_root()
    with user_machine(',user_timeout=100') as machine:
        machine.start()
        demo = machine.ready_demo(uid=ALICE)
        for text in 'freeze timeout=101', 'freeze timeout=604800':
            equal(machine.writer(demo.pid, text, uid=ALICE).result(), 'EINVAL')
            equal(machine.error(demo.pid), 'EINVAL: timeout= takes at most 100 seconds from a user '
                  'who is not root (user_timeout in gpucrfs(8))')
        equal(machine.writer(demo.pid, 'freeze timeout=100', uid=ALICE).result(), 'ok')
        machine.must(demo.pid, 'thaw timeout=604800')


def test_names_that_are_gone():
    """What the daemon has for names that the kernel knew is there until it knows none of them."""
    need_root()
    with user_machine(',store_size=512M') as machine:
        machine.start()
        make_place(machine, 'place')
        path = machine.path('place', 'snapshot')

        def make_and_remove():
            for number in range(5000):
                os.mkdir(f'{path}/{number}')
            for number in range(1, 5000):
                os.rmdir(f'{path}/{number}')

        equal(by(ALICE, make_and_remove), None)
        wait_for(lambda: 8192 * 40 < counts(machine)['store_bytes'] < MIB, 'only that to count')
        os.rmdir(f'{path}/0')
        os.unlink(f'{path}/file')  # of make_place()
        wait_count(machine, 'store_bytes', 0)


def make_many_names(machine, place, count):
    """As the user of the place could: through the mount it takes minutes."""
    for number in range(count):
        os.mknod(f'{machine.runtime}/store/incoming-{place}/snapshot/{number}')


def is_removing(machine):
    return any(name.startswith('.gone-') for name in os.listdir(f'{machine.runtime}/store'))


def used_bytes(machine):
    return int(re.search(r'^store_used_bytes (\d+)', machine.read('status'), re.M).group(1))


def test_removals_take_turns():
    """A user's many names do not keep the memory of others."""
    need_root()
    with user_machine(',store_size=512M') as machine:
        machine.start()
        make_place(machine, 'many', ALICE)
        make_place(machine, 'also-many', FIRST_SUBUID)
        make_place(machine, 'bobs', BOB)
        equal(by(BOB, lambda: fill(machine.path('bobs', 'snapshot', 'a'), 100)), 'ok')
        make_many_names(machine, 'many', 150000)
        make_many_names(machine, 'also-many', 150000)
        for name in 'many', 'also-many', 'bobs':
            os.rmdir(machine.path(name))
        wait_for(lambda: used_bytes(machine) < 100 * MIB, "the end of Bob's place")
        check(is_removing(machine), 'first all of those of Alice')
        wait_for(lambda: not is_removing(machine), 'the end of the others', seconds=60)


def test_removals_that_take_long():
    """They keep neither the end of a daemon nor the start of the next one."""
    need_root()
    with user_machine(',store_size=512M') as machine:
        machine.start()
        make_place(machine, 'stays', ALICE)
        make_place(machine, 'many', ALICE)
        make_many_names(machine, 'many', 500000)
        os.rmdir(machine.path('many'))
        machine.stop()
        check(is_removing(machine), 'it was all removed first')
        equal(fill(f'{machine.runtime}/store/incoming-stays/snapshot/a', 1), 'ok')
        machine.start()
        # Removals get names that no daemon before has given.
        os.rmdir(machine.path('stays'))
        wait_for(lambda: not is_removing(machine), 'the end of all', seconds=60)
        wait_for(lambda: not used_bytes(machine), 'no memory in use')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
