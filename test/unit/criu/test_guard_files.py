#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The guard in CRIU, with a program in CRIU's place: with whose rights it opens and changes files
at paths that come from images, and that a user could have changed."""
import errno
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import harness
from harness import BUILD, NOBODY, check, equal

GUARD = f'{BUILD}/backend/cuda/libgpucr-criu-guard.so'
AS_CRIU = f'{BUILD}/test/unit/criu/libas-criu.so'
OTHER = NOBODY - 1
OWNER = f'{NOBODY}:{NOBODY}:0:{NOBODY}'

# In CRIU's place, in a process that it has made. A call's errno is printed, or 0. The guard knows
# CRIU by its first argument, which is the name of this script.
BEGIN = '''
import ctypes, errno, os, socket, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
root = os.open('/', os.O_RDONLY | os.O_DIRECTORY)
top = sys.argv[1]
relative = top[1:]
def tried(call):
    try:
        return call() and 0 or 0
    except OSError as error:
        return error.errno
def opened(path, flags=os.O_RDWR, fd=root):
    return tried(lambda: os.close(os.open(path, flags, 0o600, dir_fd=fd)))
pid = os.fork()
if pid:
    sys.exit(os.waitpid(pid, 0)[1] != 0)
'''


class Tree:
    """Directories in which root's file and the user's are. `safe` and what is below is root's,
    `users` is the user's."""

    def __enter__(self):
        if not harness.is_root():
            raise harness.Skip('several users are needed')
        self.top = tempfile.mkdtemp(prefix='gpucr-guard-')
        os.chmod(self.top, 0o755)
        self.make('safe', 0, 0o755)
        self.make('users', NOBODY, 0o755)
        self.make('script', 0, 0o755)
        for directory in 'safe', 'users':
            self.file(f'{directory}/roots', 0, 0o600)
            self.file(f'{directory}/own', NOBODY, 0o600)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.top)

    def make(self, name, uid, mode):
        os.mkdir(f'{self.top}/{name}')
        os.chown(f'{self.top}/{name}', uid, uid)
        os.chmod(f'{self.top}/{name}', mode)

    def file(self, name, uid, mode):
        with open(f'{self.top}/{name}', 'w', encoding='ascii') as file:
            file.write(name)
        os.chown(f'{self.top}/{name}', uid, uid)
        os.chmod(f'{self.top}/{name}', mode)

    def run(self, script, owner=OWNER, begin=BEGIN, name='restore', groups=()):
        """What the script prints, as words."""
        with open(f'{self.top}/script/{name}', 'w', encoding='utf-8') as file:
            file.write(begin + script)
        env = {'LD_PRELOAD': f'{GUARD} {AS_CRIU}' if name == 'restore' else GUARD, **({'GPUCR_CRIU_OWNER': owner} if owner else {})}
        done = subprocess.run([sys.executable, name, self.top], cwd=f'{self.top}/script',
                              check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=env, extra_groups=groups)
        equal([done.returncode, done.stderr], [0, ''])
        return done.stdout.split()

    def numbers(self, script, **options):
        return [errno.errorcode.get(int(word), 'ok')
                for word in self.run(script, **options)]


def test_opened_as_owner():
    with Tree() as tree:
        tree.make('private', 0, 0o700)
        tree.file('private/f', 0, 0o644)
        os.symlink(f'{tree.top}/safe', f'{tree.top}/users/link')
        os.symlink(f'{tree.top}/safe/roots', f'{tree.top}/users/roots-link')
        os.symlink(f'{tree.top}/private', f'{tree.top}/users/private')
        script = '''
for path in 'users/own', 'users/roots', 'users/link/own', 'users/link/roots', 'users/roots-link':
    print(opened(f'{relative}/{path}'))
for flags in os.O_PATH, os.O_RDONLY:
    print(opened(f'{relative}/users/private/f', flags), opened(f'{relative}/users/private', flags))
'''
        equal(tree.numbers(script),
              ['ok', 'EACCES', 'ok', 'EACCES', 'EACCES', 'EACCES', 'ok', 'EACCES', 'EACCES'])
        # Without an owner, in another program, and at another descriptor, CRIU is root.
        equal(set(tree.numbers(script, owner=None)), {'ok'})
        equal(set(tree.numbers(script, name='restored')), {'ok'})
        equal(tree.numbers('''
fd = os.open(f'{top}/users', os.O_RDONLY)
print(opened('roots', fd=fd), opened(f'{top}/users/roots', fd=None))
'''), ['ok', 'ok'])


def test_groups():
    with Tree() as tree:
        tree.file('users/groups', 0, 0o660)
        os.chown(f'{tree.top}/users/groups', 0, OTHER)
        script = "print(opened(f'{relative}/users/groups'))"
        equal(tree.numbers(script), ['EACCES'])
        equal(tree.numbers(script, owner=f'{NOBODY}:{NOBODY}:0:{NOBODY},{OTHER}'), ['ok'])
        equal(tree.numbers(script, owner=f'{NOBODY}:{OTHER}:0:'), ['ok'])
        equal(tree.numbers(script, owner=f'{NOBODY}:{NOBODY}:2:'), ['ok'])  # CAP_DAC_OVERRIDE
        # Not root's own.
        equal(tree.numbers(script, groups=[OTHER]), ['EACCES'])


def test_of_roots_path():
    """The images can name what they like: what only root can have put there is refused too."""
    with Tree() as tree:
        tree.make('safe/below', 0, 0o755)
        tree.file('safe/below/f', OTHER, 0o600)
        tree.file('safe/all', 0, 0o644)
        equal(tree.numbers('''
for path in 'roots', './/roots', 'below/f', 'missing':
    print(opened(f'{relative}/safe/{path}'))
print(opened(f'{relative}/safe/all', os.O_RDONLY), opened(f'{relative}/safe/all', os.O_RDWR))
'''), ['EACCES', 'EACCES', 'EACCES', 'ENOENT', 'ok', 'EACCES'])


def test_own_without_rights():
    """The owner could give himself the rights again."""
    with Tree() as tree:
        tree.file('users/none', NOBODY, 0)
        tree.make('users/dark', NOBODY, 0)
        tree.make('users/enter', 0, 0o711)
        tree.make('users/not-enter', 0, 0o700)
        os.symlink('none', f'{tree.top}/users/link')
        os.chown(f'{tree.top}/users/link', NOBODY, NOBODY, follow_symlinks=False)
        equal(tree.numbers('''
print(opened(f'{relative}/users/none'), opened(f'{relative}/users/dark', os.O_RDONLY))
print(opened(f'{relative}/users/enter', os.O_RDONLY))
print(opened(f'{relative}/users/not-enter', os.O_RDONLY), opened(f'{relative}/users/link'))
'''), ['ok', 'ok', 'ok', 'EACCES', 'EACCES'])


def test_changes():
    """A user's link leads to root's directory: nothing is made, removed or changed there."""
    calls = '''
def named(call):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    call(one)
    one.close()
print(
    opened(f'{top}/users/{to}/new', os.O_WRONLY | os.O_CREAT | os.O_EXCL, None),
    opened(f'{top}/users/{to}/roots', os.O_PATH, None),
    tried(lambda: os.mkdir(f'{relative}/users/{to}/new-directory', dir_fd=root)),
    tried(lambda: os.symlink('x', f'{top}/users/{to}/new-link')),
    tried(lambda: os.mknod(f'{top}/users/{to}/new-fifo', stat.S_IFIFO | 0o600)),
    tried(lambda: os.link(f'{relative}/users/{to}/own', f'{relative}/users/{to}/new-name',
                          src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)),
    tried(lambda: os.rename(f'{top}/users/{to}/moved', f'{top}/users/{to}/moved-on')),
    tried(lambda: named(lambda one: one.bind(f'{top}/users/{to}/new-socket'))),
    tried(lambda: os.unlink(f'{top}/users/{to}/removed')),
    tried(lambda: os.unlink(f'{relative}/users/{to}/removed-too', dir_fd=root)),
    tried(lambda: os.rmdir(f'{top}/users/{to}/removed-directory')))
libc.lutimes(f'{top}/users/{to}/times'.encode(), (ctypes.c_long * 4)())
'''
    changed = '''
print(tried(lambda: os.chmod(f'{top}/users/{to}/mode', 0o640)),
      tried(lambda: os.chown(f'{top}/users/{to}/mode', os.stat(f'{top}/users').st_uid, -1)),
      tried(lambda: os.lchown(f'{top}/users/{to}/mode', os.stat(f'{top}/users').st_uid, -1)),
      tried(lambda: named(lambda one: one.connect(f'{top}/users/{to}/socket'))))
'''
    with Tree() as tree:
        for directory, uid in ('private', 0), ('users/private', NOBODY):
            tree.make(directory, uid, 0o755)
            for name in 'own', 'moved', 'removed', 'removed-too', 'times', 'mode', 'roots':
                tree.file(f'{directory}/{name}', uid, 0o600)
            tree.make(f'{directory}/removed-directory', uid, 0o755)
            subprocess.run([sys.executable, '-c', 'import socket, sys\n'
                            'socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).bind(sys.argv[1])',
                            f'{tree.top}/{directory}/socket'], check=True)
            os.chmod(f'{tree.top}/{directory}/socket', 0o600)
            os.chown(f'{tree.top}/{directory}/socket', uid, uid)
        os.symlink('../private', f'{tree.top}/users/link')

        def seen():
            return [(name, os.lstat(f'{tree.top}/private/{name}')[:6],
                     os.lstat(f'{tree.top}/private/{name}').st_mtime)
                    for name in sorted(os.listdir(f'{tree.top}/private'))]

        before = seen()
        found = tree.numbers(f"to = 'link'\n{calls}{changed}")
        # O_PATH needs no right to the file.
        equal(found[1], 'ok')
        check(set(found[:1] + found[2:]) <= {'EACCES', 'EPERM'}, found)
        equal(seen(), before)
        equal(tree.numbers(f"to = 'private'\n{calls}{changed}")[:14], ['ok'] * 14)
        equal(os.lstat(f'{tree.top}/users/private/new').st_uid, NOBODY)
        equal(os.lstat(f'{tree.top}/users/private/new-socket').st_uid, NOBODY)
        equal(os.lstat(f'{tree.top}/users/private/times').st_mtime, 0)


def test_directory_of_root():
    """In a directory that only root can change, CRIU does none of that."""
    with Tree() as tree:
        tree.file('safe/moved', 0, 0o600)
        tree.make('safe/directory', 0, 0o755)
        found = tree.numbers('''
one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
print(
    opened(f'{top}/safe/new', os.O_WRONLY | os.O_CREAT | os.O_EXCL, None),
    tried(lambda: os.mkdir(f'{relative}/safe/another', dir_fd=root)),
    tried(lambda: os.link(f'{relative}/safe/moved', f'{relative}/safe/name', src_dir_fd=root,
                          dst_dir_fd=root, follow_symlinks=False)),
    tried(lambda: os.rename(f'{top}/safe/moved', f'{top}/safe/on')),
    tried(lambda: one.bind(f'{top}/safe/socket')),
    tried(lambda: os.chmod(f'{top}/safe/moved', 0o666)),
    tried(lambda: os.chown(f'{top}/safe/moved', os.stat(f'{top}/users').st_uid, -1)),
    tried(lambda: os.unlink(f'{top}/safe/moved')),
    tried(lambda: os.rmdir(f'{top}/safe/directory')))
''')
        check(set(found) <= {'EACCES', 'EPERM'}, found)
        equal(sorted(set(os.listdir(f'{tree.top}/safe')) - {'roots', 'own'}), ['directory', 'moved'])


def test_sysctl():
    """Its permission is that of the effective user, when it is opened."""
    with Tree() as tree:
        equal(tree.numbers('''
print(opened('proc/sys/kernel/core_pattern', os.O_RDWR),
      opened('proc/sys/kernel/core_pattern', os.O_RDONLY))
'''), ['EACCES', 'ok'])


def test_sockets():
    """They are the owner's, for the one at the other end."""
    with Tree() as tree:
        script = '''
import struct
def peer(one):
    return struct.unpack('3i', one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:]
left, right = socket.socketpair()
listening = socket.socket(socket.AF_UNIX)
listening.bind(chr(0) + 'gpucr-guard-' + str(os.getpid()))
listening.listen()
client = socket.socket(socket.AF_UNIX)
client.connect(listening.getsockname())
served, _ = listening.accept()
print(*peer(left), *peer(right), *peer(client), *peer(served))
'''
        equal(tree.run(script), [str(NOBODY)] * 8)
        equal(tree.run(script, owner=None), ['0'] * 8)


def test_messages():
    """At a socket with a path, somebody else may get them: they are the owner's."""
    with Tree() as tree:
        script = '''
import struct
one, two = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
one.bind(f'{top}/users/socket')
one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
two.connect(f'{top}/users/socket')
two.sendmsg([b'words'])
print(*struct.unpack('3I', one.recvmsg(100, 100)[1][0][2])[1:], *os.getresuid(), *os.getresgid())
os.unlink(f'{top}/users/socket')
'''
        equal(tree.run(script), [str(NOBODY)] * 2 + ['0'] * 6)
        equal(tree.run(script, owner=None), ['0'] * 8)


def test_owner_of_signals():
    """CRIU takes on the ids that are in the image: root's are not taken."""
    with Tree() as tree:
        equal(tree.numbers('''
import fcntl
left, _ = socket.socketpair()
users = os.stat(f'{top}/users').st_uid
def own(uid):
    os.setresuid(uid, uid, 0)
    try:
        fcntl.fcntl(left.fileno(), fcntl.F_SETOWN, os.getpid())
    finally:
        os.setresuid(0, 0, 0)
print(tried(lambda: own(0)), tried(lambda: own(users)), tried(lambda: own(users + 1)))
'''), ['EPERM', 'ok', 'EPERM'])


def test_lease():
    """It is for the owner's file, and the kernel sends its signals with his ids."""
    with Tree() as tree:
        tree.file('safe/all', 0, 0o644)
        equal(tree.run('''
import fcntl, struct
def lease(path):
    fd = os.open(path, os.O_RDONLY)
    result = tried(lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK))
    return result, *struct.unpack('2I', fcntl.fcntl(fd, 17, bytes(8)))  # F_GETOWNER_UIDS
print(*lease(f'{top}/users/own'), *lease(f'{top}/safe/all'), *os.getresuid())
'''), [str(number) for number in (0, NOBODY, NOBODY, errno.EACCES, 0, 0, 0, 0, 0)])


def test_watches():
    """Of what the owner may not read, fanotify(7) tells him nothing."""
    with Tree() as tree:
        tree.make('safe/private', 0, 0o700)
        equal(tree.numbers('''
NAMES, OPEN, ADD = 0xe00, 0x20, 1
def made(flags):
    fd = libc.fanotify_init(flags, os.O_RDONLY)
    if fd < 0:
        raise OSError(ctypes.get_errno(), 'fanotify_init')
    return fd
names = made(NAMES)
def marked(path):
    if libc.fanotify_mark(names, ADD, ctypes.c_uint64(OPEN), -100, path.encode()):
        raise OSError(ctypes.get_errno(), 'fanotify_mark')
print(tried(lambda: marked(f'{top}/users')), tried(lambda: marked(f'{top}/safe/private')),
      tried(lambda: made(0)))
'''), ['ok', 'EACCES', 'EPERM'])


def test_root_directory():
    """A process gets CRIU's own."""
    with Tree() as tree:
        script = '''
os.chdir(f'{top}/safe')
print(tried(lambda: os.chroot('.')))
os.chdir('/')
print(tried(lambda: os.chroot('.')))
'''
        equal(tree.numbers(script), ['EPERM', 'ok'])
        equal(tree.numbers(script, owner=None), ['ok', 'ok'])


def test_filesystems_of_the_kernel():
    """The kernel gives its files to other processes, and takes the rights of the opener."""
    with Tree() as tree:
        found = tree.numbers('''
print(opened('proc/1/environ', os.O_RDONLY), opened('proc/self/status', os.O_RDONLY))
''')
        equal(found, ['EACCES', 'ok'])


def test_mount_that_is_nowhere():
    """CRIU makes a mount of /proc for itself: its root is no root directory of the tree's files."""
    with Tree() as tree:
        found = tree.run('''
OPEN_TREE, AT_FDCWD, CLONE = 428, -100, 1
fd = libc.syscall(OPEN_TREE, AT_FDCWD, b'/proc', CLONE | os.O_CLOEXEC)
print(errno.EPERM if fd < 0 else opened('1/environ', os.O_RDONLY, fd))
''')
        equal(found, ['0'])


def test_rights_come_back():
    with Tree() as tree:
        equal(tree.run('''
def rights():
    with open('/proc/self/status') as file:
        return [line for line in file if line.startswith(('Uid', 'Gid', 'Groups', 'Cap'))]
before = rights()
libc.prctl(1, 10, 0, 0, 0)
number, dumpable = ctypes.c_int(), libc.prctl(3, 0, 0, 0, 0)
print(opened(f'{relative}/users/own'), opened(f'{relative}/users/roots'))
libc.prctl(2, ctypes.byref(number), 0, 0, 0)
print(rights() == before, number.value, libc.prctl(3, 0, 0, 0, 0) == dumpable)
print('GPUCR_CRIU_OWNER' in os.environ)
''', groups=[1, 2, OTHER]), ['0', str(errno.EACCES), 'True', '10', 'True', 'False'])


def test_criu_itself():
    """It removes what it has made again, and else does its own work."""
    with Tree() as tree:
        os.symlink('../safe', f'{tree.top}/users/link')
        tree.make('safe/directory', 0, 0o755)
        begin = BEGIN.partition('pid = ')[0]
        equal(tree.numbers('''
print(opened(f'{top}/users/link/log', os.O_WRONLY | os.O_CREAT, None),
      opened(f'{relative}/users/link/roots'),
      tried(lambda: os.unlink(f'{top}/users/link/roots')),
      tried(lambda: os.rmdir(f'{top}/users/link/directory')),
      tried(lambda: os.rename(f'{top}/safe/log', f'{top}/safe/logged')))
''', begin=begin), ['ok', 'EACCES', 'EACCES', 'EACCES', 'ok'])


def test_starter():
    """A program that is called like CRIU, and becomes CRIU, leaves CRIU what the daemon tells it."""
    with Tree() as tree:
        script = 'import os\nprint(os.environ.get("GPUCR_CRIU_OWNER"))\n'
        for preload, found in ((GUARD, OWNER), (f'{GUARD} {AS_CRIU}', 'None')):
            with open(f'{tree.top}/script/restore', 'w', encoding='utf-8') as file:
                file.write(script)
            done = subprocess.run([sys.executable, 'restore'], check=True, stdout=subprocess.PIPE, text=True,
                                  cwd=f'{tree.top}/script',
                                  env={'LD_PRELOAD': preload, 'GPUCR_CRIU_OWNER': OWNER})
            equal(done.stdout.strip(), found, preload)


def test_wrong_owner():
    """CRIU does not run at all."""
    with Tree() as tree:
        with open(f'{tree.top}/script/restore', 'w', encoding='utf-8') as file:
            file.write('print("ran")')
        for owner in '', 'x', '0:0:0:', f'{NOBODY}', f'{NOBODY}:1:0', f'{NOBODY}:1:0:x':
            done = subprocess.run([sys.executable, 'restore'], cwd=f'{tree.top}/script',
                                  check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True,
                                  env={'LD_PRELOAD': f'{GUARD} {AS_CRIU}', 'GPUCR_CRIU_OWNER': owner})
            equal([done.returncode, done.stdout, done.stderr],
                  [1, '', f'gpucr-criu-guard: the owner of the tree is not known: {owner}\n'])


if __name__ == '__main__':
    harness.main(globals())
