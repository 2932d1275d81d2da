# SPDX-License-Identifier: MIT
"""Whose quotas they are: a user takes all that he can get of everything, by all his ids, or as root of
a container. He gets so much and no more, is told why, and nobody else notices."""
import os
import resource
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import MIB, Failure, Machine, check, equal, error_of, name_of, wait_for
from quota import (ALICE, BOB, FIRST_SUBUID, as_often_as, by, by_each, connect, count_open, counts,
                   enter_container, holding, make_place, need_root, others_work, shown, small_demo,
                   user_machine, wait_count, wait_nothing, why, write_subuids)

# With all tests: what a user has by default.
FILES = harness.few(600, 4096)


def make_places(machine, count):
    """So many attempts, under many ids of his: how many there are, and the errors."""
    found = []
    for number in range(count):
        found.append(by(FIRST_SUBUID + number if number % 5 else ALICE, lambda: error_of(
            lambda: os.mkdir(machine.path(f'many{number}')))))
    return found.count('ok'), sorted(set(found) - {'ok'})


def write_all(fds, mib):
    """Until it is enough, or refused: the MiB that were written, and the errors."""
    written, errors = 0, set()
    for fd in fds:
        for _ in range(mib):
            try:
                os.write(fd, bytes(MIB))
                written += 1
            except OSError as error:
                errors.add(name_of(error.errno))
                break
    return written, sorted(errors)


def test_hostile_user():
    """He sits at all his limits at once; the others freeze and thaw meanwhile."""
    need_root()
    limits = ('user_connections=30,user_text=2M,user_places=20,user_store=32M,user_verbs=3,'
              f'user_timeout=600,store_size=512M,user_open_files={FILES}')
    with user_machine(f',{limits}', vram='512M') as machine:
        machine.start()
        mine = [small_demo(machine, ALICE) for _ in range(5)]
        bobs, roots = small_demo(machine, BOB), small_demo(machine)
        for program in *mine, bobs, roots:
            machine.wait_status(program.pid, 'registered', 'yes')
        path = make_place(machine, 'place')
        wait_count(machine, 'open_files', 0)
        descriptors = len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))

        def connect_many():
            peers = [connect(machine) for _ in range(harness.few(200, 1000))]
            wait_for(lambda: count_open(peers) <= 25, 'the others to be dropped')
            by.kept = peers
            return count_open(peers)

        def start_verbs():
            """And writes to files, by descriptors that he has had before."""
            ctls = [os.open(machine.ctl(program.pid), os.O_WRONLY | os.O_NONBLOCK)
                    for program in mine]
            root = os.open(machine.ctl(), os.O_WRONLY | os.O_NONBLOCK)
            files = [os.open(path + str(number), os.O_WRONLY | os.O_CREAT)
                     for number in range(3)]
            found = [error_of(lambda: os.write(root, b'freeze ' + b' '.join(
                str(program.pid).encode() for program in mine)))]
            found += [error_of(lambda: os.write(ctl, b'freeze timeout=100000')) for ctl in ctls]
            found += [error_of(lambda: os.write(ctl, b'freeze timeout=600')) for ctl in ctls]
            by.kept = [ctls, root, files]
            return found, write_all(files, 20)

        with holding() as take:
            machine.faults(*[vendor.step('freeze', f'delay_ms={60000}', program.pid)[0]
                             for program in mine])
            verbs, (written, errors) = take(ALICE, start_verbs).found
            equal(verbs, ['EAGAIN'] + ['EINVAL'] * 5 + ['ok'] * 3 + ['EAGAIN'] * 2)
            check(28 <= written <= 32 and errors == ['EDQUOT'], f'{written} MiB, {errors}')
            equal(counts(machine)['verbs'], 3)
            others_work(machine, bobs, roots)
            equal(take(ALICE, connect_many).found, 25)
            others_work(machine, bobs, roots)
            # Many opens: of a text, and of a file that takes a descriptor each.
            count, errors = take(ALICE, lambda: as_often_as(
                500, lambda: os.open(machine.path('metrics'), os.O_RDONLY))).found
            check(100 < count < 1000 and errors == ['EDQUOT'], f'{count} {errors}')
            left = FILES - counts(machine)['open_files']
            count, errors = take(ALICE, lambda: as_often_as(
                FILES + 200, lambda: os.open(path, os.O_RDONLY))).found
            # The kernel says a little later that a file was closed.
            check(left <= count <= left + 2 and errors == ['EMFILE'], f'{count} {left} {errors}')
            equal(take(ALICE, lambda: as_often_as(
                300, lambda: os.open(path, os.O_RDONLY))).found, [0, ['EMFILE']])
            others_work(machine, bobs, roots)
            check(why(machine).startswith(f'EMFILE: user {ALICE} has {FILES} open files of the mount'),
                  why(machine))
            check(why(machine).endswith('(user_open_files in gpucrfs(8)): close some'), 'advice')
            equal(make_places(machine, 25), (19, ['EDQUOT']))
            others_work(machine, bobs, roots)
            text = machine.read('status')
            for name, most in (('connections', 30), ('open_files', FILES), ('places', 20)):
                equal(shown(text, ALICE)[name], (most, most), name)
            for name, most in ('text_bytes', 2 * MIB), ('store_bytes', 32 * MIB):
                found, limit = shown(text, ALICE)[name]
                check(limit == most and 0.9 * most < found <= most, f'{name} {found}/{limit}')
            equal(shown(text, FIRST_SUBUID + 1), {}, 'it is his')
            # Users see what is theirs.
            equal(shown(by(BOB, lambda: machine.read('status')), ALICE), {})
            equal(shown(by(ALICE, lambda: machine.read('status')), ALICE)['places'], (20, 20))
            check('gpucrfs_user_refusals_total{limit="places"} 6\n' in machine.read('metrics'),
                  'metrics')
            late = small_demo(machine, BOB)
            machine.wait_status(late.pid, 'registered', 'yes')
            others_work(machine, late)
        machine.faults()
        wait_count(machine, 'open_files', 0)
        wait_count(machine, 'text_bytes', 0)
        wait_count(machine, 'connections', 5)
        wait_for(lambda: len(os.listdir(f'/proc/{machine.daemon.pid}/fd')) < descriptors + 100,
                 'the descriptors to be closed')
        for name in os.listdir(machine.mountpoint):
            if name.startswith(('many', 'place')):
                os.rmdir(machine.path(name))
        for program in mine:
            program.end(signal.SIGKILL)
        wait_nothing(machine)
        others_work(machine, bobs, roots)


def test_root_of_container():
    """He has the id of root, and the limits of a user; all containers together."""
    need_root()
    with user_machine(',user_connections=20,user_open_files=50,user_text=1M') as machine, \
            holding() as take:
        machine.start()
        demo = machine.ready_demo()
        machine.wait_status(demo.pid, 'registered', 'yes')

        def open_many(times, name='metrics'):
            return lambda: as_often_as(times, lambda: os.open(machine.path(name), os.O_RDONLY))

        def connect_many():
            peers = [connect(machine) for _ in range(60)]
            wait_for(lambda: count_open(peers) <= 20, 'the others to be dropped')
            by.kept = peers
            return count_open(peers)

        first = take(0, open_many(200), enter_container)
        equal(first.found, [50, ['EMFILE']])
        equal(take(0, open_many(20), enter_container).found, [0, ['EMFILE']], 'another container')
        equal(take(0, connect_many, enter_container).found, 20)
        found = shown(machine.read('status'), 'container-root')
        equal([found['connections'], found['open_files']], [(20, 20), (50, 50)])
        check('user container-root has 50 open files of the mount' in machine.log(), 'the log')
        theirs = by(0, lambda: machine.read('status'), enter_container)
        equal(shown(theirs, 'container-root')['connections'], (20, 20), 'what he is shown')
        equal(shown(by(BOB, lambda: machine.read('status')), 'container-root'), {})
        # Root of the host has none of these limits, and is not told of his errors.
        equal(take(0, open_many(200)).found, [200, []])
        equal(shown(machine.read('status'), 0), {})
        equal(machine.read('error'), 'ok\n')
        equal(take(0, lambda: count_open([connect(machine) for _ in range(40)])).found, 40)
        first.let_go()
        wait_count(machine, 'open_files', 0, 'container-root')
        found = take(0, open_many(40, 'status'), enter_container).found
        equal(found, [40, []], 'after they were closed')
        others_work(machine, demo)


def test_root_of_container_and_all():
    """Without limits of users he leaves some connections to root of the host, too."""
    need_root()
    with user_machine(',user_connections=0') as machine, holding() as take:
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (1200, 1200))

        def connect_many():
            peers = [connect(machine) for _ in range(250)]
            time.sleep(2)
            by.kept = peers
            return count_open(peers)

        machine.start(preexec_fn=limit)
        found = take(0, connect_many, enter_container).found
        check(0 < found <= 150, f'{found} of 200 connections')
        late = machine.ready_demo()
        machine.wait_status(late.pid, 'registered', 'yes')
        others_work(machine, late)


def test_words_of_many_ids():
    """With all his ids he pushes out no other user's words, and reads his own by each of them."""
    need_root()
    with user_machine() as machine:
        machine.start()

        def write_wrongly(words):
            def write():
                with open(machine.ctl(), 'wb', buffering=0) as ctl:
                    return error_of(lambda: ctl.write(words))
            return write

        many = range(FIRST_SUBUID, FIRST_SUBUID + 100)

        equal(by(BOB, write_wrongly(b'of-bob')), 'EINVAL')
        words = why(machine, BOB)
        check('of-bob' in words, words)
        equal(by_each(many, write_wrongly(b'of-alice')), ['EINVAL'] * len(many))
        equal(why(machine, BOB), words)
        check('of-alice' in why(machine, FIRST_SUBUID + 5), why(machine, FIRST_SUBUID + 5))
        equal(why(machine, FIRST_SUBUID + 5), why(machine))


def test_words_of_others_in_the_range():
    """A range of root's, as containers have parts of it, has the ids of several users: none of
    them reads another one's words."""
    need_root()
    with user_machine(',user_places=1') as machine:
        write_subuids(machine, 'root:100000:1000000000\n')
        machine.start()
        first, second = 1100000, 1700000

        def write(words):
            with open(machine.ctl(), 'wb', buffering=0) as ctl:
                return error_of(lambda: ctl.write(words))

        equal(by(first, lambda: write(b'of-the-first')), 'EINVAL')
        check('of-the-first' in why(machine, first), why(machine, first))
        equal(why(machine, second), 'ok')
        equal(why(machine, ALICE), 'ok')
        # What one of them does well says nothing of the other's.
        equal(by(second, lambda: os.mkdir(machine.path('seconds'))), None)
        check('of-the-first' in why(machine, first), why(machine, first))
        # They are one owner with one limit.
        equal(by(first, lambda: error_of(lambda: os.mkdir(machine.path('firsts')))), 'EDQUOT')
        check(why(machine, first).startswith('EDQUOT: '), why(machine, first))
        equal(why(machine, second), 'ok')


def test_history_by_many_ids():
    """With thousands of ids, each of which has less there than others, he does not push these out of
    the root's events."""
    need_root()
    ids = 5200
    with user_machine() as machine:
        write_subuids(machine, f'{ALICE}:{FIRST_SUBUID}:{ids}\n')
        machine.start()
        demo = small_demo(machine, BOB)
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        history = [line for line in machine.read('events').splitlines()
                   if line.split()[1] == str(demo.pid)]
        check(len(history) > 4, str(history))
        name = machine.path('p' * 64)

        def make_and_drop():
            os.mkdir(name)
            os.rmdir(name)

        equal(by_each(range(FIRST_SUBUID, FIRST_SUBUID + ids), make_and_drop), [None] * ids)
        events = machine.read('events').splitlines()
        check(sum('p' * 64 in line for line in events) < 2 * ids, 'they have been cut')
        equal([line for line in events if line.split()[1] == str(demo.pid)], history)


def test_options():
    """Words that are no limit, or one of what is not allowed at all."""
    with Machine(start=False) as machine:
        for option in ('user_places=-1', 'user_places=x', 'user_places=5x', 'user_verbs=',
                       'user_store=101%', 'user_store=-1', 'user_text=12Q', 'user_timeout=1h',
                       'user_open_files=99999999999', 'user_descriptors=x', 'user_dumps=3'):
            machine.options = f',{option}'
            try:
                machine.start()
            except Failure as failure:
                check(option.split('=', maxsplit=1)[0] in str(failure) or 'user_' in str(failure),
                      str(failure))
            else:
                raise Failure(f'{option} is taken')
            os.truncate(machine.log_path, 0)
        machine.expects_clean_exit = False


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
