# SPDX-License-Identifier: MIT
"""Two users and root, in an order of chance, in each other's places of a mount that root has made.
The model is a tmpfs with directories of the same owners and modes: each call has to end there as it
does in the mount, but for what a mount refuses to everybody. What is the other user's is never to
be had. GPUCR_TEST_SEED repeats a walk, GPUCR_TEST_STEPS makes it longer."""
import os
import pickle
import random
import signal
import stat
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import Machine, Skip, check, equal, is_root, name_of, same_for_both

SEED = int(os.environ.get('GPUCR_TEST_SEED', '0')) or random.randrange(1, 1 << 32)
STEPS = int(os.environ.get('GPUCR_TEST_STEPS', '0')) or 3000 // harness.SLOW
USERS = 4001, 4002
PLACES = {'one': USERS[0], 'two': USERS[1]}
NO_ACCESS = 'EACCES', 'EPERM'
OPEN_MAX = 6
SPAN = 300000
NO_SUCH_USER = 4003


class Hands:
    """What one user does, in a process of its own: each call in the mount and in the model."""

    def __init__(self, roots):
        self.roots = roots
        self.files = []  # pairs of descriptors: (mount, model)

    # With one path

    def mkdir(self, path, mode):
        os.mkdir(path, mode)

    def rmdir(self, path):
        os.rmdir(path)

    def unlink(self, path):
        os.unlink(path)

    def truncate(self, path, size):
        os.truncate(path, size)

    def chmod(self, path, mode):
        os.chmod(path, mode)

    def chown(self, path, uid, gid):
        os.chown(path, uid, gid, follow_symlinks=False)

    def utime(self, path, seconds):
        os.utime(path, (seconds, seconds))
        return int(os.stat(path).st_mtime)

    def stat(self, path):
        found = os.lstat(path)
        return [oct(found.st_mode), found.st_uid, found.st_gid,
                stat.S_ISREG(found.st_mode) and found.st_size]

    def listing(self, path):
        return sorted(os.listdir(path))

    def access(self, path, mode):
        return os.access(path, mode)

    def read_all(self, path):
        with open(path, 'rb') as file:
            return file.read()

    def symlink(self, path):
        os.symlink('/etc/passwd', path)

    def mknod(self, path, kind):
        os.mknod(path, kind | 0o666, os.makedev(1, 3))

    # With two

    def rename(self, old, new):
        os.rename(old, new)

    def link(self, old, new):
        os.link(old, new)

    # With a descriptor

    def pread(self, fd, size, offset):
        return os.pread(fd, size, offset)

    def pwrite(self, fd, data, offset):
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd, size):
        os.ftruncate(fd, size)

    def fchmod(self, fd, mode):
        os.fchmod(fd, mode)

    def fchown(self, fd, uid, gid):
        os.fchown(fd, uid, gid)

    def fstat(self, fd):
        found = os.fstat(fd)
        return [oct(found.st_mode), found.st_uid, found.st_gid, found.st_size]

    # Both at once

    def once(self, what, *arguments):
        try:
            found = getattr(self, what)(*arguments)
            return 'ok' if found is None else found
        except OSError as error:
            return name_of(error.errno)

    def by_path(self, what, paths, *rest):
        return [self.once(what, *[f'{root}/{path}' for path in paths], *rest)
                for root in self.roots]

    def by_file(self, what, index, *rest):
        # A change of owner, or a verb, ends writers, and a file without a name has no mode to be
        # changed: here and not in the model, which does not do it then.
        known = {'pwrite': ('EPERM', 'EBUSY'), 'ftruncate': ('EPERM', 'EBUSY'),
                 'fchmod': ('ESTALE',), 'fchown': ('ESTALE',)}.get(what, ())
        found = self.once(what, self.files[index][0], *rest)
        if known and found in known:
            return [found, found]
        return [found, self.once(what, self.files[index][1], *rest)]

    def open(self, path, flags, mode):
        fds, results = [], []
        for root in self.roots:
            try:
                fds.append(os.open(f'{root}/{path}', flags | os.O_NONBLOCK | os.O_NOFOLLOW, mode))
                results.append('ok')
            except OSError as error:
                results.append(name_of(error.errno))
        if results == ['ok', 'ok']:
            self.files.append(fds)
        else:
            for fd in fds:
                os.close(fd)
        return results

    def close(self, index):
        for fd in self.files.pop(index):
            os.close(fd)
        return ['ok', 'ok']

    def count(self):
        return len(self.files)

    def verb(self, name, verb):
        """Only in the mount."""
        try:
            fd = os.open(f'{self.roots[0]}/{name}/ctl', os.O_WRONLY)
        except OSError as error:
            return name_of(error.errno)
        try:
            os.write(fd, verb.encode())
            return 'ok'
        except OSError as error:
            return name_of(error.errno)
        finally:
            os.close(fd)


class Person:
    """One of them, whom the test tells what to do."""

    def __init__(self, uid, roots):
        ask, self.ask = os.pipe()
        self.answer, answer = os.pipe()
        self.uid = uid
        self.pid = os.fork()
        if not self.pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(self.ask)
            os.close(self.answer)
            try:
                self._work(uid, Hands(roots), ask, answer)
            finally:
                os._exit(0)
        os.close(ask)
        os.close(answer)

    @staticmethod
    def _work(uid, hands, ask, answer):
        os.umask(0)
        os.chdir('/')
        harness.become(uid)
        with os.fdopen(ask, 'rb') as asked, os.fdopen(answer, 'wb') as answered:
            while size := asked.read(4):
                what, arguments = pickle.loads(asked.read(struct.unpack('I', size)[0]))
                data = pickle.dumps(getattr(hands, what)(*arguments))
                answered.write(struct.pack('I', len(data)) + data)
                answered.flush()

    def do(self, what, *arguments):
        data = pickle.dumps((what, arguments))
        os.write(self.ask, struct.pack('I', len(data)) + data)
        size = struct.unpack('I', self._read(4))[0]
        return pickle.loads(self._read(size))

    def _read(self, size):
        data = b''
        while len(data) < size:
            more = os.read(self.answer, size - len(data))
            check(more, f'the process of user {self.uid} has ended')
            data += more
        return data

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.ask)
        os.close(self.answer)


class Walk:
    def __init__(self, people):
        self.people = people
        self.chance = random.Random(SEED)
        self.done = []

    def path(self, name=None):
        name = name or self.chance.choice(list(PLACES))
        directory = self.chance.choice(['', '', 'a/', 'b/', 'a/b/'])
        return f'{name}/snapshot/{directory}{self.chance.choice("abcd")}'

    def mode(self):
        return self.chance.choice([0o600, 0o700, 0o644, 0o755, 0o666, 0o777, 0o000, 0o711])

    def owner(self):
        return self.chance.choice([*USERS, 0, NO_SUCH_USER, -1])

    def offset(self):
        return self.chance.choice([0, 1, 4095, 4096, self.chance.randrange(SPAN)])

    def data(self):
        return bytes([self.chance.randrange(256)]) * self.chance.choice([1, 100, 4096, 70000])

    def flags(self):
        how = self.chance.choice([os.O_RDONLY, os.O_RDWR, os.O_WRONLY])
        return how | self.chance.choice([0, 0, os.O_CREAT, os.O_CREAT | os.O_EXCL,
                                         os.O_CREAT | os.O_TRUNC])

    def steps(self):
        name = self.chance.choice(list(PLACES))
        path = self.path(name)
        yield from 4 * [('open', path, self.flags(), self.mode())]
        yield from 2 * [('by_path', 'rename', [path, self.path(name)])]
        yield 'by_path', 'rename', [path, self.path()]
        for what, rest in (('mkdir', [self.mode()]), ('rmdir', []), ('unlink', []),
                           ('truncate', [self.offset()]), ('chmod', [self.mode()]),
                           ('chown', [self.owner(), self.owner()]),
                           ('utime', [self.chance.randrange(1 << 30)]), ('stat', []),
                           ('listing', []), ('access', [self.chance.randrange(8)]),
                           ('read_all', []), ('symlink', []),
                           ('mknod', [self.chance.choice([stat.S_IFIFO, stat.S_IFCHR,
                                                          stat.S_IFSOCK, stat.S_IFBLK])])):
            yield 'by_path', what, [path], *rest
        yield 'by_path', 'link', [path, self.path(name)]

    def with_file(self, index):
        for what, rest in (('pread', [self.chance.choice([1, 5000]), self.offset()]),
                           ('pwrite', [self.data(), self.offset()]),
                           ('pwrite', [self.data(), self.offset()]),
                           ('ftruncate', [self.offset()]), ('fstat', []),
                           ('fchmod', [self.mode()]),
                           ('fchown', [self.owner(), self.owner()])):
            yield 'by_file', what, index, *rest
        yield 'close', index

    def step(self):
        person = self.chance.choice(self.people)
        steps = list(self.steps())
        count = person.do('count')
        if count:
            steps += 2 * list(self.with_file(self.chance.randrange(count)))
        if count > OPEN_MAX:
            steps = [('close', 0)]
        step = self.chance.choice(steps)
        found = person.do(*step)
        shown = [f'{len(a)} bytes' if isinstance(a, bytes) else a for a in step]
        self.done.append(f'{person.uid}: {shown}: {[str(one)[:60] for one in found]}')
        words = f'GPUCR_TEST_SEED={SEED}, step {len(self.done)}: ' + '\n'.join(self.done[-8:])
        self.judge(person, step, found, words)

    def judge(self, person, step, found, words):
        mount, model = found
        if step[0] in ('open', 'by_path') and person.uid:
            paths = step[2] if step[0] == 'by_path' else [step[1]]
            if any(PLACES[path.split('/')[0]] != person.uid for path in paths):
                # Of access(2) it is False; of a rename what is wrong with his own may come first.
                check(mount in NO_ACCESS or (len(paths) == 2 and str(mount).startswith('E')) or
                      (step[1] == 'access' and mount is False), words)
        if step[0] == 'by_path' and step[1] in REFUSED:
            # Nothing but files and directories, and no second name.
            check(mount != 'ok' and mount.startswith('E'), words)
            if model == 'ok':
                self.undo(step)
            return
        if step[1] == 'rename' and len({path.split('/')[0] for path in step[2]}) == 2:
            check('ok' not in found, words)
            return
        if mount in NO_ACCESS and model in NO_ACCESS:
            return
        check(mount == model, words)

    def undo(self, step):
        """What only the model has done."""
        os.unlink(f'{self.model}/{step[2][-1]}')


REFUSED = 'symlink', 'mknod', 'link'


def contents(root):
    found = {}
    for path, names, files in os.walk(root):
        for name in [*names, *files]:
            full = f'{path}/{name}'
            status = os.lstat(full)
            data = b''
            if stat.S_ISREG(status.st_mode):
                with open(full, 'rb') as file:
                    data = file.read()
            found[os.path.relpath(full, root)] = [oct(status.st_mode), status.st_uid,
                                                  status.st_gid, data]
    return found


def make_model(machine):
    """Where each place of the mount has a directory of its own file system: a rename is EXDEV."""
    model = f'{machine.directory}/model'
    os.mkdir(model, 0o755)
    for name, uid in PLACES.items():
        at = os.stat(machine.path(name))
        inner = os.stat(machine.path(name, 'snapshot'))
        equal([at.st_uid, inner.st_uid], [uid, uid], name)
        for path, status in ((f'{model}/{name}', at), (f'{model}/{name}/snapshot', inner)):
            os.mkdir(path)
            os.chmod(path, stat.S_IMODE(status.st_mode))
            os.chown(path, status.st_uid, status.st_gid)
            if path.endswith('snapshot'):
                subprocess.run(['mount', '-t', 'tmpfs', '-o',
                                        f'mode={stat.S_IMODE(status.st_mode):o},uid={uid},gid={uid}',
                                        'model', path], check=True)
    return model


def test_two_users_and_root():
    same_for_both('places')
    if not is_root():
        raise Skip('several users are needed')
    with Machine() as machine:
        people, model = [], None
        try:
            for name, uid in PLACES.items():
                maker = Person(uid, [machine.mountpoint])
                equal(maker.do('by_path', 'mkdir', [name], 0o700), ['ok'])
                maker.end()
            model = make_model(machine)
            people = [Person(uid, [machine.mountpoint, model]) for uid in (*USERS, *USERS, 0)]
            walk = Walk(people)
            walk.model = model
            for number in range(STEPS):
                walk.step()
                if number % 150 == 0:
                    person = walk.chance.choice(people)
                    name = walk.chance.choice(list(PLACES))
                    found = person.do('verb', name, walk.chance.choice(['thaw', 'freeze', 'x']))
                    mine = person.uid in (0, PLACES[name])
                    check(found in ('EOPNOTSUPP', 'EBUSY', 'EINVAL', 'EIO', 'EPERM') if mine
                          else found in NO_ACCESS, f'{SEED}: a verb of {person.uid}: {found}')
                    for place in PLACES:
                        sides = [contents(f'{root}/{place}/snapshot')
                                 for root in (machine.mountpoint, model)]
                        check(sides[0] == sides[1], f'GPUCR_TEST_SEED={SEED}: {place}: ' + str(
                            [(key, *[str(side.get(key))[:90] for side in sides])
                             for key in {**sides[0], **sides[1]}
                             if sides[0].get(key) != sides[1].get(key)]))
            print(f'GPUCR_TEST_SEED={SEED}: {STEPS} steps')
        finally:
            for person in people:
                person.end()
            for name in PLACES if model else []:
                subprocess.run(['umount', '-l', f'{model}/{name}/snapshot'], check=False)


if __name__ == '__main__':
    harness.main(globals())
