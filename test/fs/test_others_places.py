# SPDX-License-Identifier: MIT
"""What the kernel would let through is judged by the daemon too: by users with capabilities, and by
root of a container who goes on from a descriptor that was handed to him."""
import ctypes
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import NOBODY, Machine, Skip, become, check, equal, error_of, is_root, same_for_both

OTHER = NOBODY - 1
PR_SET_KEEPCAPS = 8
CAPSET = {'x86_64': 126}.get(os.uname().machine, 91)
CAPABILITY_VERSION_3 = 0x20080522
CLONE_NEWPID = 0x20000000


def child(call, prepare=None):
    """What @call says, in a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            if prepare:
                prepare()
            os.write(writer, str(call()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, 'rb') as file:
        text = file.read().decode()
    os.waitpid(pid, 0)
    check(text, 'the process has failed')
    return text


def become_capable():
    """An ordinary user, with CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER."""
    harness.LIBC.prctl(PR_SET_KEEPCAPS, 1)
    become(OTHER)
    wanted = 1 << 1 | 1 << 2 | 1 << 3
    header = struct.pack('=Ii', CAPABILITY_VERSION_3, 0)
    sets = struct.pack('=6I', wanted, wanted, 0, 0, 0, 0)
    if harness.LIBC.syscall(CAPSET, ctypes.c_char_p(header), ctypes.c_char_p(sets)):
        os._exit(1)


def enter_container():
    """Root in a pid namespace of his own."""
    if harness.LIBC.unshare(CLONE_NEWPID):
        os._exit(1)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)


def need_root():
    same_for_both('whose places are')
    if not is_root():
        raise Skip('several users are needed')


def test_rmdir_of_another_place():
    """A place is its owner's to drop, and root's, whatever the kernel says of the directory."""
    need_root()
    with Machine() as machine:
        path = machine.path('his')
        equal(child(lambda: error_of(lambda: os.mkdir(path)), lambda: become(NOBODY)), 'ok')
        equal(child(lambda: error_of(lambda: os.rmdir(path)), lambda: become(OTHER)), 'EPERM')
        equal(child(lambda: error_of(lambda: os.rmdir(path)), become_capable), 'EPERM')
        equal(machine.state('his'), 'incoming')
        equal(child(lambda: error_of(lambda: os.rmdir(path)), lambda: become(NOBODY)), 'ok')
        os.mkdir(path)
        equal(child(lambda: error_of(lambda: os.rmdir(path)), become_capable), 'EPERM')
        os.rmdir(path)


def test_mode_of_anothers_file():
    need_root()
    with Machine() as machine:
        place = machine.path('his')
        file = f'{place}/snapshot/file'

        def make():
            os.mkdir(place)
            with open(file, 'w', encoding='utf-8'):
                os.chmod(file, 0o640)

        def change(uid):
            return child(lambda: [error_of(lambda: os.chmod(file, 0o666)),
                                  error_of(lambda: os.chown(file, uid, uid))], become_capable)

        equal(child(lambda: error_of(make), lambda: become(NOBODY)), 'ok')
        equal(change(OTHER), "['EPERM', 'EPERM']")
        equal([os.stat(file).st_mode & 0o777, os.stat(file).st_uid], [0o640, NOBODY])
        equal(child(lambda: error_of(lambda: os.chmod(file, 0o600)), lambda: become(NOBODY)), 'ok')


def test_descriptor_in_a_container():
    """Of a process, of its bytes, and of a place outside: a lookup would find none of them."""
    need_root()
    if child(lambda: 'ok', enter_container) != 'ok':
        raise Skip('no pid namespace can be made')
    with Machine(vmm=True) as machine:
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        snapshot = machine.path(demo.pid, 'snapshot')
        item = next(name for name in os.listdir(snapshot)
                    if os.path.isfile(f'{snapshot}/{name}'))
        os.mkdir(machine.path('place'))
        with open(machine.path('place', 'snapshot', 'file'), 'w', encoding='utf-8') as file:
            file.write('bytes of another')
        paths = [machine.path(demo.pid, 'status'), machine.path(demo.pid, 'events'),
                 machine.path(demo.pid, 'ctl'), snapshot, f'{snapshot}/{item}',
                 machine.path('place', 'status'), machine.path('place', 'snapshot'),
                 machine.path('place', 'snapshot', 'file')]
        for path in paths:
            flags = os.O_WRONLY if path.endswith('ctl') else os.O_RDONLY
            fd = os.open(path, os.O_PATH)
            link = f'/proc/self/fd/{fd}'
            equal(error_of(lambda: os.close(os.open(link, flags))), 'ok', path)
            equal(child(lambda: error_of(lambda: os.open(link, flags)), enter_container), 'ENOENT',
                  path)
            os.close(fd)
        for directory in snapshot, machine.path('place', 'snapshot'):
            fd = os.open(directory, os.O_PATH)
            for call in (lambda: os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=fd),
                         lambda: os.mkdir('new', dir_fd=fd), lambda: os.unlink('file', dir_fd=fd)):
                equal(child(lambda: error_of(call), enter_container), 'ENOENT', directory)
            os.close(fd)
        check(os.path.exists(machine.path('place', 'snapshot', 'file')), 'the file is gone')
        machine.must(demo.pid, 'thaw')


if __name__ == '__main__':
    harness.main(globals())
