# SPDX-License-Identifier: MIT
"""Quotas: a user takes all that he can get of one thing after the other; he gets so much and no
more, is told why, and nobody else notices. What he lets go of is counted no longer, however that
comes about."""
import contextlib
import errno
import json
import os
import re
import resource
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import MIB, Machine, Skip, check, equal, error_of, name_of, same_for_both, wait_for

ALICE, BOB = 4001, 4002
CLONE_NEWPID = 0x20000000
FIRST_SUBUID = 100000
WHY = 'what one user may have'


def need_root():
    if not harness.is_root():
        raise Skip('several users are needed')
    same_for_both(WHY)


def become(uid):
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


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
    if harness.LIBC.unshare(CLONE_NEWPID):
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
    except harness.Failure:
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
    return by(uid, lambda: harness.read_file(machine.path('error')).strip())


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
              'user_timeout=600,store_size=512M')
    with user_machine(f',{limits}', vram='512M') as machine:
        machine.start()
        mine = [machine.ready_demo('--bytes', '1M', '--buffers', '1', uid=ALICE)
                for _ in range(5)]
        bobs, roots = machine.ready_demo(uid=BOB), machine.ready_demo()
        for program in *mine, bobs, roots:
            machine.wait_status(program.pid, 'registered', 'yes')
        path = make_place(machine, 'place')
        wait_count(machine, 'open_files', 0)
        descriptors = len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))

        def connect_many():
            peers = [connect(machine) for _ in range(1000)]
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
            # 20,000 opens: of a text, and of a file that takes a descriptor each.
            count, errors = take(ALICE, lambda: as_often_as(
                500, lambda: os.open(machine.path('metrics'), os.O_RDONLY))).found
            check(100 < count < 1000 and errors == ['EDQUOT'], f'{count} {errors}')
            left = 4096 - counts(machine)['open_files']
            count, errors = take(ALICE, lambda: as_often_as(
                10000, lambda: os.open(path, os.O_RDONLY))).found
            # The kernel says a little later that a file was closed.
            check(left <= count <= left + 2 and errors == ['EMFILE'], f'{count} {left} {errors}')
            equal(take(ALICE, lambda: as_often_as(
                10000, lambda: os.open(path, os.O_RDONLY))).found, [0, ['EMFILE']])
            others_work(machine, bobs, roots)
            check(why(machine).startswith(f'EMFILE: user {ALICE} has 4096 open files of the mount'),
                  why(machine))
            check(why(machine).endswith('(user_open_files in gpucrfs(8)): close some'), 'advice')
            equal(make_places(machine, 40), (19, ['EDQUOT']))
            others_work(machine, bobs, roots)
            text = machine.read('status')
            for name, most in (('connections', 30), ('open_files', 4096), ('places', 20)):
                equal(shown(text, ALICE)[name], (most, most), name)
            for name, most in ('text_bytes', 2 * MIB), ('store_bytes', 32 * MIB):
                found, limit = shown(text, ALICE)[name]
                check(limit == most and 0.9 * most < found <= most, f'{name} {found}/{limit}')
            equal(shown(text, FIRST_SUBUID + 1), {}, 'it is his')
            # Users see what is theirs.
            equal(shown(by(BOB, lambda: machine.read('status')), ALICE), {})
            equal(shown(by(ALICE, lambda: machine.read('status')), ALICE)['places'], (20, 20))
            check('gpucrfs_user_refusals_total{limit="places"} 21\n' in machine.read('metrics'),
                  'metrics')
            late = machine.ready_demo(uid=BOB)
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


def test_connections():
    """Registered or not: they are dropped beyond the limit, and come back."""
    need_root()
    with user_machine(',user_connections=10') as machine:
        machine.start()
        demos = [machine.ready_demo(uid=ALICE) for _ in range(3)]
        for demo in demos:
            machine.wait_status(demo.pid, 'registered', 'yes')
        equal(counts(machine)['connections'], 3)

        def connect_many(expected):
            peers = [connect(machine) for _ in range(40)]
            wait_for(lambda: count_open(peers) <= expected, 'the others to be dropped')
            by.kept = peers
            return count_open(peers)

        with holding() as take:
            equal(take(ALICE, lambda: connect_many(7)).found, 7)
            equal(take(FIRST_SUBUID + 3, lambda: connect_many(0)).found, 0)
            equal(take(BOB, lambda: connect_many(10)).found, 10)
            equal(counts(machine)['connections'], 10)
            check(f'user {ALICE} has 10 connections to the socket' in machine.log(), 'the log')
            late = machine.ready_demo()
            machine.wait_status(late.pid, 'registered', 'yes')
        wait_count(machine, 'connections', 3)
        wait_nothing(machine, BOB)
        for demo in demos:
            demo.end(signal.SIGKILL)
        wait_nothing(machine)


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

        equal(by(BOB, write_wrongly(b'of-bob')), 'EINVAL')
        words = why(machine, BOB)
        check('of-bob' in words, words)
        for uid in range(FIRST_SUBUID, FIRST_SUBUID + 100):
            equal(by(uid, write_wrongly(b'of-alice')), 'EINVAL')
        equal(why(machine, BOB), words)
        check('of-alice' in why(machine, FIRST_SUBUID + 5), why(machine, FIRST_SUBUID + 5))
        equal(why(machine, FIRST_SUBUID + 5), why(machine))


def test_open_files():
    """Of one file and of all kinds, until they are closed, by whatever."""
    need_root()
    with user_machine(',user_open_files=50') as machine, holding() as take:
        machine.start()
        demo = machine.ready_demo(uid=ALICE)
        machine.wait_status(demo.pid, 'registered', 'yes')
        path = make_place(machine, 'place', size=4096)
        names = [path, machine.path('status'), machine.path('gpus'), machine.ctl(),
                 machine.path(demo.pid, 'events'), machine.path(demo.pid, 'maps'),
                 machine.path('place')]
        first = take(ALICE, lambda: as_often_as(
            40, lambda: os.open(names[len(os.listdir('/proc/self/fd')) % len(names)],
                                os.O_RDONLY if 'ctl' not in
                                names[len(os.listdir('/proc/self/fd')) % len(names)]
                                else os.O_WRONLY)))
        equal(first.found[0], 40)
        wait_count(machine, 'open_files', 40)
        # What fails is not counted.
        for call in (lambda: os.open(machine.path('status'), os.O_WRONLY),
                     lambda: os.open(machine.path('place', 'none'), os.O_RDONLY),
                     lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY),
                     lambda: os.open(machine.path('place', 'snapshot'), os.O_RDWR),
                     lambda: os.open(machine.path('new'), os.O_RDWR | os.O_CREAT),
                     lambda: os.open(machine.ctl(demo.pid), os.O_RDONLY)):
            check(by(ALICE, lambda: as_often_as(30, call))[0] == 0, 'it fails')
        wait_count(machine, 'open_files', 40)
        second = take(FIRST_SUBUID, lambda: as_often_as(
            40, lambda: os.open(machine.path('metrics'), os.O_RDONLY)))
        equal(second.found, [10, ['EMFILE']])
        equal(take(BOB, lambda: as_often_as(
            50, lambda: os.open(machine.path('metrics'), os.O_RDONLY))).found, [50, []])
        equal(error_of(lambda: os.close(os.open(path, os.O_RDONLY))), 'ok', 'root')
        equal(machine.writer(demo.pid, 'freeze', uid=ALICE).result(), 'EMFILE')
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        check(why(machine).startswith('EMFILE: '), why(machine))
        # Killed; and an unlinked one.
        os.unlink(path)
        first.let_go(signal.SIGKILL)
        wait_count(machine, 'open_files', 10)
        second.let_go(signal.SIGKILL)
        wait_count(machine, 'open_files', 0)
        equal(by(ALICE, lambda: as_often_as(
            60, lambda: os.open(machine.path('metrics'), os.O_RDONLY)))[0], 50)
        wait_count(machine, 'open_files', 0)


def test_open_and_die():
    """Opens that wait for the GPUs' figures, of programs that are killed meanwhile."""
    need_root()
    with user_machine() as machine:
        machine.start()
        for _ in range(60):
            def open_one():
                for _ in range(20):
                    os.open(machine.path('status'), os.O_RDONLY)

            pid = os.fork()
            if not pid:
                become(ALICE)
                open_one()
                os._exit(0)
            time.sleep(0.002)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        wait_nothing(machine)


def test_text():
    """5,000 open logs of some size do not fill the memory of the daemon."""
    need_root()
    with user_machine(',user_text=2M,user_open_files=20000') as machine, holding() as take:
        machine.start()
        make_place(machine, 'place')
        for number in range(30):
            equal(by(ALICE, lambda: os.mkdir(machine.path('place', 'snapshot',
                                                          f'{number:02}' + 'n' * 200))), None)
        for path in machine.path('metrics'), machine.path('place', 'snapshot'):
            found = take(ALICE, lambda: as_often_as(5000, lambda: os.open(path, os.O_RDONLY)))
            count, errors = found.found
            check(100 < count < 1000 and errors == ['EDQUOT'], f'{path}: {found.found}')
            check(MIB < counts(machine)['text_bytes'] <= 2 * MIB, str(counts(machine)))
            check(why(machine).startswith(f'EDQUOT: user {ALICE} has 1 MiB of bytes of text'),
                  why(machine))
            check('gpucrfs_users' in machine.read('metrics'), 'root reads')
            check(by(BOB, lambda: len(machine.read('metrics'))) > 1000, 'others read')
            found.let_go()
            wait_count(machine, 'text_bytes', 0)


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


def fill(path, mib):
    """Write so much to a new file; returns the error's name."""
    def write():
        with open(path, 'wb', buffering=0) as file:
            left = mib * MIB
            while left:
                left -= file.write(bytes(min(left, MIB)))

    return error_of(write)


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
    with user_machine(',user_store=4M,store_size=512M') as machine:
        machine.start()
        make_place(machine, 'place')

        def make_names():
            made, errors = 0, set()
            for number in range(3500):
                try:
                    os.mkdir(machine.path('place', 'snapshot', f'{number}'))
                    made += 1
                except OSError as error:
                    errors.add(name_of(error.errno))
            return made, sorted(errors)

        count, errors = by(ALICE, make_names)
        check(2000 < count < 2100 and errors == ['EDQUOT'], f'{count} {errors}')
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
    with user_machine(',user_store=20M,store_size=512M', vram='512M', vmm=True) as machine:
        machine.start()
        mine = [machine.ready_demo(uid=ALICE) for _ in range(4)]
        first, second = mine[:2]
        bobs = machine.ready_demo(uid=BOB)
        for program in *mine, bobs:
            machine.wait_status(program.pid, 'engine', 'vmm')

        def write(program, verb):
            return machine.writer(program.pid, verb,
                                  uid=os.stat(f'/proc/{program.pid}').st_uid).result()

        equal(write(first, 'freeze'), 'ok')
        held = counts(machine)['store_bytes']
        check(10 * MIB < held <= 20 * MIB, str(held))
        equal(write(second, 'freeze'), 'EDQUOT')
        check(re.match(rf'EDQUOT: user {ALICE} has \d+ MiB of bytes in the store, and \d+ MiB more '
                       r'would be above the limit of 20 MiB .*thaw or pack',
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
        check(held > 20 * MIB, str(held))
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
        check(counts(machine)['store_bytes'] > 20 * MIB, str(counts(machine)))
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
        mine = [machine.ready_demo('--bytes', '1M', '--buffers', '1', uid=ALICE)
                for _ in range(5)]
        bobs = machine.ready_demo('--bytes', '1M', '--buffers', '1', uid=BOB)
        pids = [str(program.pid) for program in mine]

        def write(text, program=None, flags=os.O_NONBLOCK, uid=ALICE):
            return machine.writer(program.pid if program else None, text, flags=flags,
                                  uid=uid).result()

        equal(write('freeze ' + ' '.join(pids)), 'EAGAIN')
        check(re.match(rf'EAGAIN: user {ALICE} has 0 verbs under way, and 5 more would be above '
                       r'the limit of 3 \(user_verbs', why(machine)), why(machine))
        machine.faults(*[vendor.step('freeze', f'delay_ms={6000 * harness.SLOW}', program.pid)[0]
                         for program in mine[:3]])
        equal(write('freeze ' + ' '.join(pids[:2])), 'ok')
        equal(write('freeze', mine[2]), 'ok')
        equal(counts(machine)['verbs'], 3)
        equal([write('freeze', program) for program in mine[3:]], ['EAGAIN'] * 2)
        check(machine.error(mine[4].pid).startswith('EAGAIN: '), machine.error(mine[4].pid))
        equal(write('freeze', mine[2]), 'ok', 'it is under way already')
        others_work(machine, bobs)
        machine.must(mine[3].pid, 'freeze')
        equal(counts(machine)['verbs'], 3, 'root has frozen one of his')
        for program in mine[:3]:
            machine.wait_status(program.pid, 'state', 'frozen')
        machine.faults()
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


def test_descriptors_of_all():
    """All users together leave some to the daemon and to root."""
    need_root()
    with user_machine(',user_open_files=0') as machine, holding() as take:
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (400, 800))

        machine.start(preexec_fn=limit)
        demo, bobs = machine.ready_demo(), machine.ready_demo(uid=BOB)
        for program in demo, bobs:
            machine.wait_status(program.pid, 'registered', 'yes')
        path = make_place(machine, 'place')
        found = take(ALICE, lambda: as_often_as(3000, lambda: os.open(path, os.O_RDONLY)))
        # A quarter of 800 is the reserve.
        check(450 < found.found[0] < 600 and found.found[1] == ['ENFILE'], str(found.found))
        descriptors = len(os.listdir(f'/proc/{machine.daemon.pid}/fd'))
        check(descriptors <= 610, f'{descriptors} descriptors')
        equal(take(BOB, lambda: as_often_as(
            10, lambda: os.open(machine.path('metrics'), os.O_RDONLY))).found, [0, ['ENFILE']])
        equal(by(BOB, lambda: error_of(lambda: os.mkdir(machine.path('bobs')))), 'ENFILE')
        for program in demo, bobs:
            machine.must(program.pid, 'freeze')
            machine.must(program.pid, 'thaw')
        check(str(demo.pid) in os.listdir(machine.mountpoint), 'ls')
        late = machine.ready_demo()
        machine.wait_status(late.pid, 'registered', 'yes')
        found.let_go()
        wait_for(lambda: len(os.listdir(f'/proc/{machine.daemon.pid}/fd')) < 150, 'few again')
        others_work(machine, bobs)


def test_history_by_many_ids():
    """With a thousand ids he does not push others out of the root's events."""
    need_root()
    with user_machine() as machine:
        machine.start()
        demo = machine.ready_demo(uid=BOB)
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        history = [line for line in machine.read('events').splitlines()
                   if line.split()[1] == str(demo.pid)]
        check(len(history) > 4, str(history))
        name = machine.path('p' * 64)

        def make_and_drop(uid):
            def make():
                for _ in range(40):
                    os.mkdir(name)
                    os.rmdir(name)
            return make

        for uid in range(FIRST_SUBUID, FIRST_SUBUID + 300):
            equal(by(uid, make_and_drop(uid)), None)
        events = machine.read('events').splitlines()
        check(not any('found' in line and str(demo.pid) not in line and line < history[0]
                      for line in events[:1]), 'it has been cut')
        equal([line for line in events if line.split()[1] == str(demo.pid)], history)


def test_options():
    """Words that are no limit."""
    with Machine(start=False) as machine:
        for option in ('user_places=-1', 'user_places=x', 'user_places=5x', 'user_verbs=',
                       'user_store=101%', 'user_store=-1', 'user_text=12Q', 'user_timeout=1h',
                       'user_open_files=99999999999'):
            machine.options = f',{option}'
            try:
                machine.start()
            except harness.Failure as failure:
                check(option.split('=', maxsplit=1)[0] in str(failure) or 'user_' in str(failure),
                      str(failure))
            else:
                raise harness.Failure(f'{option} is taken')
            os.truncate(machine.log_path, 0)
        machine.expects_clean_exit = False


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
