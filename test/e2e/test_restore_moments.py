#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Root thaws the program of a user. While CRIU makes its processes, these have root's rights and
already what the user has put into them: nobody has them run it, looks into them, or reads what CRIU
makes for them before it is theirs."""
import contextlib
import mmap
import os
import re
import signal
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
from harness import BUILD, LIBC, NOBODY, check, equal, read_file, wait_for
from test_restore_files import FD, IN_CLOSE_NOWRITE, WORDS, keep, machines, make_file, refused
from test_restore_whose import share_gpu, users_program

LIBRARY = f'{BUILD}/test/e2e/libmoments.so'
CRITICAL = 0x13000  # of moments.c
IN_CREATE = 0x100
CLONE_NEWNS, MNT_DETACH, MS_REC, MS_PRIVATE = 0x20000, 2, 0x4000, 0x40000

# Writes a letter all the time, as long as it runs.
WRITES = """
import sys, time
while True:
    with open(sys.argv[1], 'a') as file:
        file.write('x')
    time.sleep(0.001)
"""
# Called before CRIU reads the images with CRIU's descriptors, and later by CRIU as an action script.
CHANGES = """#!{python}
import os, shutil, sys
core = 'core-{pid}.img'
if len(sys.argv) > 1:
    shutil.copyfile(f'/proc/self/fd/3/{{core}}', '{kept}')
    with open(f'/proc/self/fd/3/{{core}}', 'r+b') as image:
        bytes_ = image.read()
        assert bytes_.count({old!r}) == 1, 'the ids of a process of the user'
        image.seek(0)
        image.write(bytes_.replace({old!r}, {new!r}))
elif os.environ['CRTOOLS_SCRIPT_ACTION'] == 'post-restore':
    shutil.copyfile('{kept}', f'/proc/{{os.getppid()}}/fd/3/{{core}}')
"""


def program(machine, what, **words):
    """One that asks the kernel for this."""
    return users_program(machine, env={
        'LD_PRELOAD': LIBRARY, 'GLIBC_TUNABLES': 'glibc.pthread.rseq=0', 'GPUCR_TEST_MOMENT': what,
        **{f'GPUCR_TEST_{key.upper()}': word for key, word in words.items()}})


@contextlib.contextmanager
def as_user(call):
    """A process of the user that makes the call all the time. Yields a function that waits for its
    end, and tells whether it has got what it wanted."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            harness.become(NOBODY)
            while not status & 2:
                with contextlib.suppress(OSError):
                    status = call()
        finally:
            os._exit(status & 1)
    ended = []

    def wait():
        ended.append(os.waitpid(pid, 0)[1])
        return ended[0]

    try:
        yield wait
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def first_processor():
    """What is started here runs there: the kernel writes the processor's number into the memory for
    rseq(2), and this is 0. So a file there stays as it was, for its digest."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def clear(path):
    with open(path, 'r+b') as file:
        file.write(bytes(32))


def test_memory_of_others():
    """The kernel asks a file that others write to where a thread is to continue."""
    with machines() as (machine, secret, users):
        os.chmod(secret, 0o700)
        shared = f'{users}/shared'
        make_file(shared, '\0' * mmap.PAGESIZE)
        os.chown(shared, NOBODY, NOBODY)
        with first_processor():
            one = program(machine, 'shared', shared=shared, made=f'{secret}/made')
        writing = machine.writer(one.pid, 'dump name=users', uid=NOBODY)
        equal(writing.result(), 'ok', machine.error(one.pid))
        one.wait_gone()
        with open(shared, 'rb') as file:
            equal(file.read(), bytes(mmap.PAGESIZE))
        watch = LIBC.inotify_init()
        check(LIBC.inotify_add_watch(watch, shared.encode(), IN_CLOSE_NOWRITE) >= 0, 'inotify')

        def write():
            """From when the daemon has looked at it."""
            os.read(watch, 4096)
            with open(shared, 'r+b') as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
                while True:
                    memory[8:16] = struct.pack('Q', CRITICAL)

        with as_user(write):
            result = refused(machine, one, 'shares its memory for rseq(2) with others')
        os.close(watch)
        equal([result, os.listdir(secret)], ['EACCES', ['f']])
        clear(shared)
        machine.must('users', 'thaw trusted')
        one.wait_ticks()


def uids(pid):
    """Of all threads."""
    return {read_file(f'/proc/{pid}/task/{thread}/status').split('Uid:')[1].split()[0]
            for thread in os.listdir(f'/proc/{pid}/task')}


def test_threads():
    """One thread of the program has its own rights, and the next one has still those of root."""
    with machines() as (machine, _, _):
        one = program(machine, 'thread')
        equal(machine.writer(one.pid, 'dump name=users', uid=NOBODY).result(), 'ok',
              machine.error(one.pid))
        one.wait_gone()

        def look():
            """2: no thread is root's; 3: one is."""
            os.close(os.open(f'/proc/{one.pid}/mem', os.O_RDWR))
            return 2 + ('0' in uids(one.pid))

        with as_user(look) as wait:
            machine.must('users', 'thaw')
            equal(wait(), 0, 'a thread was still root\'s')
        restore.check_on(machine, one, 'users')
        # It is as it was: its user can look into it.
        equal(os.stat(f'/proc/{one.pid}/mem').st_uid, NOBODY)
        machine.must('users', 'dump name=again')
        one.wait_gone()
        machine.must('again', 'thaw pid=new')
        one.pid = int(machine.status('again')['pid'])
        equal(os.stat(f'/proc/{one.pid}/mem').st_uid, NOBODY)
        one.wait_ticks()


def varint(number):
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


@contextlib.contextmanager
def other_group(machine, pid):
    """CRIU gives the process a saved group that is not the images': they are changed while it reads
    them, and are as before when it has made the processes."""
    directory = machine.restores.directory
    ids = [bytes([number << 3]) + varint(NOBODY) for number in range(1, 9)]
    path = f'{directory}/changes'
    with open(path, 'w', encoding='utf-8') as file:
        file.write(CHANGES.format(
            python=sys.executable, pid=pid, kept=f'{directory}/kept', old=b''.join(ids),
            new=b''.join([*ids[:5], ids[5][:1] + varint(NOBODY - 1), *ids[6:]])))
    os.chmod(path, 0o755)
    with open(f'{directory}/criu', encoding='utf-8') as file:
        text = file.read()
    with open(f'{directory}/criu', 'w', encoding='utf-8') as file:
        file.write(text.replace('"$@"\nstatus', f'"$@" --action-script={path}\nstatus')
                   .replace(': > $here/ran\n', f': > $here/ran\n{path} before || exit 1\n'))
    try:
        yield
    finally:
        with open(f'{directory}/criu', 'w', encoding='utf-8') as file:
            file.write(text)


def test_rights_before_it_runs():
    """Its user continues it as soon as CRIU has stopped it: with rights that are not the images' it
    does not run at all."""
    with machines() as (machine, _, users):
        written = f'{users}/written'
        # Other machines' tests make no cgroup of this name.
        place = os.path.basename(machine.directory)
        demo = ' '.join(map(str, [*dump.RUN, *dump.SMALL]))
        writes = f"{sys.executable} -c '{WRITES.translate({39: 34})}' {written}"
        share_gpu(machine)
        one = dump.Program(machine, uid=NOBODY, command=[
            'sh', '-c', f'{writes} < /dev/null > /dev/null 2>&1 & exec {demo}']).wait_ready()
        wait_for(lambda: os.path.exists(written), 'what it writes')
        pids = [one.pid, *map(int, read_file(f'/proc/{one.pid}/task/{one.pid}/children').split())]
        equal(len(pids), 2)
        equal(machine.writer(one.pid, f'dump name={place}', uid=NOBODY).result(), 'ok',
              machine.error(one.pid))
        one.wait_gone()
        size = os.path.getsize(written)

        def go_on():
            while True:
                for pid in pids:
                    with contextlib.suppress(OSError):
                        # Nobody traces it, so nobody is held up.
                        if dump.threads_state(pid) == 'T':
                            os.kill(pid, signal.SIGCONT)

        with as_user(go_on), other_group(machine, one.pid):
            for verb in 'thaw', 'thaw', 'thaw pid=new':
                equal(machine.write(place, verb), 'EPERM', machine.error(place))
                check('user or group ids' in machine.error(place), machine.error(place))
                equal(os.path.getsize(written), size, f'{verb}: it has run')
                restore.check_back(machine, one, place)
        with as_user(go_on):
            machine.must(place, 'thaw')
            restore.check_on(machine, one, place)
        check(os.path.getsize(written) > size, 'it does not write')


def with_filter(machine):
    """CRIU has a filter of system calls at a restore: then it can suspend no other process's."""
    path = f'{machine.restores.directory}/criu-with-limits'
    if not os.path.exists(path):
        raise harness.Skip('CRIU is one for all')
    with open(path, encoding='utf-8') as file:
        text = file.read()
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text.replace('LD_PRELOAD="', f'''
case " $* " in *" restore "*) export GPUCR_TEST_MOMENT=filtered ;; esac
LD_PRELOAD="{LIBRARY}:''', 1))


def test_filter():
    """The program's filter of system calls is there before it gives up root's rights."""
    with machines() as (machine, _, _):
        with_filter(machine)
        one = program(machine, 'filter')
        equal(machine.writer(one.pid, 'dump name=users', uid=NOBODY).result(), 'ok',
              machine.error(one.pid))
        one.wait_gone()
        refused(machine, one, 'filter of system calls')
        # If a thread of the library's has got its filter late, and so has given up root's rights, it does
        # not speak for a process that has kept them, and that thaw fails.
        found, is_over = [], threading.Event()

        def look():
            while not is_over.is_set():
                with contextlib.suppress(OSError):
                    if machine.status('users').get('phase') == 'thaw':
                        found.append(uids(one.pid))
                time.sleep(0.01)
        looker = threading.Thread(target=look)
        looker.start()
        results = []
        while not any('0' in each for each in found) and len(results) < 6:
            results.append(machine.write('users', 'thaw trusted timeout=6'))
            if results[-1] == 'ok':
                found.append(uids(one.pid))
                break
        is_over.set()
        looker.join()
        check(any('0' in each for each in found), f'the filter does nothing: {results}, {found}')


def test_vdso():
    """CRIU, as root, would write where the program's vdso says that functions are."""
    with machines() as (machine, _, _):
        one = program(machine, 'vdso')
        equal(machine.writer(one.pid, 'dump name=users', uid=NOBODY).result(), 'EPERM')
        check("the kernel's functions" in machine.error(one.pid), machine.error(one.pid))
        one.wait_ticks()


def test_secure_bits():
    """A program has them from root alone, and nobody can compare those in an image: it is not dumped.
    (test_image_check.c: images of an earlier version, or of another host.)"""
    with machines() as (machine, _, _):
        share_gpu(machine)
        demo = dump.demo_in_shell(machine, 'member')
        user = f'setpriv --securebits +noroot --reuid={NOBODY} --regid={NOBODY} --clear-groups'
        root = dump.Program(machine, name='root', command=['sh', '-c', f'exec {user} {demo}'])
        one = dump.Program.below(root, 'member').wait_ready()
        for program_ in root, one:
            for suffix in 'out', 'err':
                os.chmod(f'{program_.path}.{suffix}', 0o666)
        equal(machine.write(one.pid, 'dump name=users'), 'EPERM')
        check('securebits' in machine.error(one.pid), machine.error(one.pid))
        one.wait_ticks()


def leave_mounts():
    """In a mount namespace of its own, without what CRIU does not take along, but with the test's files."""
    if LIBC.unshare(CLONE_NEWNS) or LIBC.mount(b'none', b'/', None, MS_REC | MS_PRIVATE, None):
        os._exit(1)
    for line in reversed(read_file('/proc/self/mountinfo').splitlines()):
        mountpoint = line.split()[4]
        if re.search(' - (fuse|tmpfs)', line) and not f'{tempfile.gettempdir()}/'.startswith(f'{mountpoint}/'):
            LIBC.umount2(mountpoint.encode(), MNT_DETACH)


def test_mount_namespace():
    """A set-user-ID program can have made it for the user. CRIU would make files there as root."""
    with machines() as (machine, _, _):
        share_gpu(machine)
        demo = dump.demo_in_shell(machine, 'member')
        user = f'setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups'
        root = dump.Program(machine, name='root', command=['sh', '-c', f'exec {user} {demo}'],
                            prepare=leave_mounts)
        one = dump.Program.below(root, 'member').wait_ready()
        if machine.write(one.pid, 'dump name=users') != 'ok':
            raise harness.Skip(f'CRIU dumps no tree with mounts here: {machine.error(one.pid)}')
        one.wait_gone()
        equal(refused(machine, one, 'a mount namespace of its own'), 'EACCES')
        if machine.write('users', 'thaw trusted') != 'ok':
            check('mount namespace' not in machine.error('users'), machine.error('users'))


def test_deleted_file_of_root():
    """The program has it open without any access, which needs no rights to it. CRIU makes it again
    as the program's owner, writes into it, and then cannot give it to root."""
    with machines() as (machine, _, users):
        def prepare():
            make_file(f'{users}/prepared')  # the program is the user's by now
            keep(os.open(f'{users}/d/f', os.O_PATH))

        os.mkdir(f'{users}/d')
        make_file(f'{users}/d/f')
        one = users_program(machine, prepare=prepare)
        os.unlink(f'{users}/d/f')
        os.chown(f'{users}/d', NOBODY, NOBODY)
        equal(os.readlink(f'/proc/{one.pid}/fd/{FD}'), f'{users}/d/f (deleted)')
        machine.must(one.pid, 'dump name=users')
        one.wait_gone()

        def read():
            """3: there is a file with these words."""
            for name in os.listdir(f'{users}/d'):
                with open(f'{users}/d/{name}', encoding='ascii') as file:
                    if file.read() == WORDS:
                        return 3
            return 0

        with as_user(read) as wait:
            equal(refused(machine, one, 'a deleted file of user 0'), 'EACCES')
            make_file(f'{users}/d/end', WORDS, 0o644)
            wait()
        equal(os.listdir(f'{users}/d'), ['end'])
        os.unlink(f'{users}/d/end')
        machine.must('users', 'thaw trusted')
        one.wait_ticks()


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
