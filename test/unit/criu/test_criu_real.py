#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""criu-glue with the real CRIU, that of test/criu.py.
usage: test_criu_real.py PATH-OF-CRIU_TOOL [TEST...]"""
import os
import pty
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import criu
import criu_place
import harness
from criu_place import (MIB, PATIENCE_SEC, PIDNS, Place, Skip, cgroup2_mount, check, children, end,
                        gone, is_ours, parent_of, run, wait_for)
from test_criu_opens import REFUSED, harmless


def prepare():
    try:
        found = criu.find()
    except harness.Skip as skip:
        raise Skip(str(skip)) from None
    os.environ.update(found.env)
    with Place() as place:
        answer = place.tool('find', found.program)
        check(answer.startswith('0 '), answer)
        Place.real = 'criu=' + answer.split('\n')[0][2:]


def test_plain(place):
    place.cycle(place.program(), Place.real)


def test_leave(place):
    pid = place.program()
    place.criu('dump', Place.real, f'pid={pid}', 'running')
    place.check_counts()
    place.criu('dump', Place.real, f'pid={pid}', 'stopped')
    # It is let go with the signal pending, and stops as soon as it runs.
    wait_for(lambda: state_of(pid) == 'T', 'it to be stopped')
    os.kill(pid, signal.SIGCONT)
    place.check_counts()


def state_of(pid):
    with open(f'/proc/{pid}/stat') as file:
        return file.read().rpartition(')')[2].split()[0]


def test_pipe(place):
    """stdout is a pipe to the outside; what stands for it afterwards is a file."""
    reader, writer = os.pipe()
    code = 'import threading\n' \
        'def talk():\n  while True:\n    os.write(1, b"word\\n"); time.sleep(0.01)\n' \
        'threading.Thread(target=talk).start()\n'
    pid = place.program(code, stdout=writer)
    key = f'pipe:[{os.fstat(writer).st_ino}]'
    os.close(writer)
    log = os.open(f'{place.path}/log', os.O_RDWR | os.O_CREAT | os.O_APPEND)
    place.cycle(pid, Place.real, restore=(f'inherit={log}:{key}',), pass_fds=(log,))
    wait_for(lambda: os.fstat(log).st_size > 50, 'words in the log')
    os.close(log)
    os.close(reader)


def test_terminal(place):
    master, slave = pty.openpty()
    status = os.stat(os.ttyname(slave))
    pid = place.program(stdin=slave, stdout=slave, stderr=slave)
    key = f'tty[{status.st_rdev:x}:{status.st_dev:x}]'
    words = place.criu('dump', Place.real, f'pid={pid}', 'running', expect='EBUSY')
    check('terminal' in words, words)
    others = pty.openpty()
    place.cycle(pid, Place.real, f'external={key}', restore=(f'inherit={others[1]}:{key}',),
                pass_fds=(others[1],))
    check(os.readlink(f'/proc/{pid}/fd/1') == os.ttyname(others[1]))
    for fd in (master, slave, *others):
        os.close(fd)


def test_ghost(place):
    code = 'f = open(sys.argv[1] + ".big", "w+b")\nf.write(b"a" * (2 << 20))\nf.flush()\n' \
        'os.unlink(sys.argv[1] + ".big")\n'
    pid = place.program(code)
    words = place.criu('dump', Place.real, f'pid={pid}', expect='EFBIG')
    check('unlinked' in words and 'counter.big' in words, words)
    place.check_counts()
    place.cycle(pid, Place.real, f'ghost={4 * MIB}')
    sizes = [os.stat(f'/proc/{pid}/fd/{fd}').st_size for fd in os.listdir(f'/proc/{pid}/fd')]
    check(2 * MIB in sizes, sizes)


def test_lock(place):
    lock = f'{place.path}/lock'
    pid = place.program(f'f = open({lock!r}, "w")\nfcntl.flock(f, fcntl.LOCK_EX)\n')
    words = place.criu('dump', Place.real, f'pid={pid}', expect='EBUSY')
    check('file locks' in words, words)
    place.cycle(pid, Place.real, 'file_locks')
    check(subprocess.run(['flock', '-n', lock, 'true'], check=False).returncode == 1, 'lost')


def test_unix(place):
    """A stream socket as stdout, as the journal gives; a file afterwards does not stand for it."""
    ours, theirs = socket.socketpair()
    pid = place.program('os.write(1, b"before")\n', stdout=theirs)
    inode = os.fstat(theirs.fileno()).st_ino
    theirs.close()
    words = place.criu('dump', Place.real, f'pid={pid}', expect='EBUSY')
    check('unix socket' in words, words)
    place.check_counts()
    other, given = socket.socketpair()
    place.cycle(pid, Place.real, f'external=unix[{inode}]', pass_fds=(given.fileno(),),
                restore=(f'inherit={given.fileno()}:socket:[{inode}]',))
    for a in (ours, other, given):
        a.close()


def test_shell(place):
    pid = place.program(leader=False)
    words = place.criu('dump', Place.real, f'pid={pid}', expect='EBUSY')
    check('shell-job' in words, words)
    place.cycle(pid, Place.real, 'shell_job')


def test_log(place):
    """A file that is only appended to may have grown meanwhile; others may not."""
    log = f'{place.path}/log'
    pid = place.program(f'f = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n')
    place.criu('dump', Place.real, f'pid={pid}')
    os.waitpid(pid, 0)
    with open(log, 'a') as file:
        file.write('more')
    place.criu('restore', Place.real)
    place.check_counts()
    end(pid)
    pid = place.program(f'f = os.open({log!r}, os.O_WRONLY)\n')
    place.criu('dump', Place.real, f'pid={pid}')
    os.waitpid(pid, 0)
    with open(log, 'a') as file:
        file.write('more')
    words = place.criu('restore', Place.real, expect='ESTALE')
    check('bring the old one back' in words and log[1:] in words, words)
    wait_for(lambda: gone(pid) or not is_ours(pid), 'the end of what was restored')
    end(pid)
    os.truncate(log, 4)
    place.criu('restore', Place.real)
    place.check_counts()


def test_tree(place):
    code = 'if os.fork() == 0:\n  os.fork()\n  while True: time.sleep(0.01)\n'
    pid = place.program(code)

    def below(parent):
        with open(f'/proc/{parent}/task/{parent}/children') as file:
            return [int(child) for child in file.read().split()]

    child, = below(pid)
    grandchild, = wait_for(lambda: below(child), 'the grandchild')
    place.pids += [child, grandchild]
    place.cycle(pid, Place.real)
    check(below(pid) == [child] and below(child) == [grandchild])
    os.kill(grandchild, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)


def test_cgroup(place):
    """What is restored is in the cgroup that it is given; the old one is not made again."""
    mount = cgroup2_mount()
    own = harness.unique()
    old, new = (f'{mount}/gpucr-test-{name}-{own}' for name in ('old', 'new'))
    pid = place.program('if os.fork() == 0:\n  while True: time.sleep(0.01)\n')
    child, = children(pid)
    place.pids.append(child)
    try:
        for directory in (old, new):
            os.mkdir(directory)
        for member in (pid, child):
            with open(f'{old}/cgroup.procs', 'w') as file:
                file.write(str(member))
        place.criu('dump', Place.real, f'pid={pid}')
        for ended in place.pids:
            os.waitpid(ended, 0)
        os.rmdir(old)
        procs = os.open(f'{new}/cgroup.procs', os.O_WRONLY)
        answer = place.criu('restore', Place.real, f'cgroup={procs}', pass_fds=(procs,))
        check(answer == str(pid), answer)
        with open(f'{new}/cgroup.procs') as file:
            check({int(line) for line in file} == {pid, child})
        check(not os.path.exists(old), 'the old cgroup has been made again')
        place.check_counts()
        for member in place.pids:
            end(member)
        # One that is gone: nothing is started.
        os.rmdir(new)
        words = place.criu('restore', Place.real, f'cgroup={procs}', expect='EIO',
                           pass_fds=(procs,))
        os.close(procs)
        check('cgroup of its own' in words, words)
    finally:
        for member in place.pids:
            end(member)
        for directory in (old, new):
            if os.path.exists(directory):
                os.rmdir(directory)


def take_pid(pid):
    """Another process has this pid from now on; None if it was not to be had."""
    for _ in range(50):
        try:
            with open('/proc/sys/kernel/ns_last_pid', 'w') as file:
                file.write(str(pid - 1))
        except OSError as reason:
            raise Skip(f'pids cannot be chosen: {reason}') from reason
        other = subprocess.Popen(['sleep', '1000'])
        if other.pid == pid:
            return other
        other.kill()
        other.wait()
    raise Skip(f'pid {pid} was not to be had')


def outer_pids(init):
    """Of all below this init: pids inside the namespace, by those outside."""
    found = {}
    waiting = [init]
    while waiting:
        pid = waiting.pop()
        with open(f'/proc/{pid}/status') as file:
            inner = [line.split() for line in file if line.startswith('NSpid:')][0]
        found[pid] = int(inner[-1])
        waiting += children(pid)
    return found


def test_pidns(place):
    """Its pid is taken: it goes on in a pid namespace of its own, which ends with it."""
    pid = place.program('p = os.fork()\nif p == 0:\n  while True: time.sleep(0.01)\n')
    child, = children(pid)
    place.pids.append(child)
    pidns = f'pidns={PIDNS}'
    place.criu('dump', Place.real, f'pid={pid}')
    for ended in place.pids:
        os.waitpid(ended, 0)
    other = take_pid(pid)
    try:
        before = place.count()
        root, init = map(int, place.criu('restore', Place.real, pidns).split())
        place.pids += [init]
        check(root not in (pid, init), root, pid)
        place.check_counts()
        check(before <= place.count() < before + 100000, 'begun anew')
        inner = outer_pids(init)
        check(set(inner.values()) == {1, pid, child}, inner)
        check(inner[root] == pid)
        # The /proc that it has is that of its namespace.
        with open(f'/proc/{root}/root/proc/1/comm') as file:
            check(file.read() == 'gpucr-pidns\n')
        check(other.poll() is None)
        check(os.listdir(f'/proc/{init}/fd') != [] and
              {os.readlink(f'/proc/{init}/fd/{fd}') for fd in os.listdir(f'/proc/{init}/fd')}
              == {'/dev/null'}, 'the init holds files')
        # Its end, and that of its child: nobody is left, and the init ends.
        os.kill(root, signal.SIGKILL)
        grandchild, = [outer for outer, number in inner.items() if number == child]
        wait_for(lambda: parent_of(grandchild) == init, 'the child to be given to the init')
        check(not gone(init), 'the init has ended too early')
        os.kill(grandchild, signal.SIGKILL)
        wait_for(lambda: gone(init), 'the end of the init')
        check(os.waitpid(init, 0) == (init, 0))

        # Its init is killed: everything ends.
        root, init = map(int, place.criu('restore', Place.real, pidns).split())
        inner = outer_pids(init)
        os.kill(init, signal.SIGKILL)
        os.waitpid(init, 0)
        check(all(gone(outer) for outer in inner), 'something is left')

        # Without it the pid is missed.
        answer = place.tool('restore', Place.real, f'libdir={place.directory("plugins")}',
                            f'images={place.directory("images")}')
        check(answer.startswith('EBUSY '), answer)
    finally:
        other.kill()
        other.wait()


def dumped_pair(place):
    """The pids of a program with much memory and of its child, which have been dumped."""
    pid = place.program(f'x = bytearray(b"a" * {20 * MIB})\n'
                        'if os.fork() == 0:\n  while True: time.sleep(0.01)\n')
    child, = children(pid)
    place.pids.append(child)
    place.criu('dump', Place.real, f'pid={pid}')
    for ended in place.pids:
        os.waitpid(ended, 0)
    return pid, child


def test_pidns_cancelled(place):
    """Stopped at many moments: nothing is left, or everything is there."""
    pid, child = dumped_pair(place)
    cancelled = 0
    for moment in range(12):
        answer = place.tool('restore', Place.real, f'cancel_usec={moment * 25000}',
                            f'pidns={PIDNS}', f'libdir={place.directory("plugins")}',
                            f'images={place.directory("images")}')
        if answer.startswith('0 '):
            root, init = map(int, answer.split()[1:])
            place.check_counts()
            check(set(outer_pids(init).values()) == {1, pid, child})
            os.kill(init, signal.SIGKILL)
            os.waitpid(init, 0)
            check(gone(root))
        else:
            check(answer == 'ECANCELED criu was stopped', answer)
            cancelled += 1
            # An init that has been killed is ours to wait for, like all that is left.
            wait_for(lambda: not any(map(left_of_restore, children(os.getpid()))),
                     'the end of what was begun')
    check(cancelled, 'never in the middle')


def left_of_restore(pid):
    """A child of ours that runs; one that has ended is waited for."""
    if pid in criu_place.LISTENERS:
        return False
    if gone(pid):
        os.waitpid(pid, 0)
        return False
    return True


def test_pidns_stopped(place):
    """One whose session's leader is outside, left stopped; nobody has to be asked for its pid."""
    pid = place.program(leader=False)
    place.criu('dump', Place.real, f'pid={pid}', 'shell_job')
    os.waitpid(pid, 0)
    root, init = map(int, place.criu('restore', Place.real, 'shell_job', 'stopped',
                                     f'pidns={PIDNS}').split())
    place.pids.append(init)
    check(outer_pids(init) == {init: 1, root: pid})
    # CRIU sends the signal, which is obeyed when it has let go.
    wait_for(lambda: state_of(root) in 'Tt', 'the stop')
    os.kill(root, signal.SIGCONT)
    place.check_counts()
    os.kill(root, signal.SIGKILL)
    wait_for(lambda: gone(init), 'the end of the init')


def mount_of(point, pid='self'):
    """Its device's numbers in mountinfo, or None."""
    text = point.replace('\\', '\\134').replace(' ', '\\040')
    with open(f'/proc/{pid}/mountinfo') as file:
        for line in file:
            if line.split()[4] == text:
                return line.split()[2]
    return None


def test_pidns_mounts(place):
    """The images are in the daemon's store: the namespace does not keep that mounted, and nothing
    is done to what others have mounted, whatever they call it."""
    ours = [place.directory('images'), place.directory('a b\\c')]
    theirs = [place.directory('foreign'), place.directory('foreign fuse')]
    pid = place.program()
    mounted = []
    fuse = os.open('/dev/fuse', os.O_RDWR)  # a filesystem that does not answer
    try:
        for point in [*ours, theirs[0]]:
            subprocess.run(['mount', '-t', 'tmpfs', 'gpucrfs', point], check=True)
            mounted.append(point)
        place.criu('dump', Place.real, f'pid={pid}')
        os.waitpid(pid, 0)
        options = f'fd={fuse},rootmode=40000,user_id=65534,group_id=65534,allow_other'
        check(criu_place.LIBC.mount(b'gpucrfs', theirs[1].encode(), b'fuse', 6, options.encode()) == 0, 'fuse')
        mounted.append(theirs[1])
        devices = [mount_of(point) for point in ours]
        # CRIU works elsewhere, as the daemon's does: from a directory without a path getcwd(3) would
        # look at all beside it.
        unwanted = [f'unwanted={device}' for device in devices]
        root, init = map(int, place.criu('restore', Place.real, f'pidns={PIDNS}',
                                         f'work={place.directory("work")}', *unwanted).split())
        place.pids.append(init)
        place.check_counts()
        for member in (init, root):
            check(not any(mount_of(point, member) for point in ours), 'still mounted')
            check(all(mount_of(point, member) for point in theirs), 'not ours to unmount')
        check(all(mount_of(point) for point in mounted), 'unmounted outside')
    finally:
        os.close(fuse)
        for point in mounted:
            subprocess.run(['umount', '-l', point], check=True)


def test_pidns_fails(place):
    """What CRIU says about a failure is heard, and nothing is left."""
    pid = place.program()
    place.criu('dump', Place.real, f'pid={pid}')
    os.waitpid(pid, 0)
    core = f'{place.path}/images/core-{pid}.img'
    os.truncate(core, 10)
    answer = place.tool('restore', Place.real, f'pidns={PIDNS}',
                        f'libdir={place.directory("plugins")}',
                        f'images={place.directory("images")}')
    check(answer.startswith('EIO criu: ') or answer.startswith('EIO '), answer)
    check('gpucr-pidns' not in answer, answer)
    wait_for(lambda: not any(map(left_of_restore, children(os.getpid()))), 'its end')
    answer = place.tool('restore', Place.real, f'pidns={place.path}/none',
                        f'libdir={place.directory("plugins")}',
                        f'images={place.directory("images")}')
    check(answer.startswith('EIO ') and 'cannot be started' in answer, answer)


def test_cancel(place):
    """Cancelled at many moments of a dump: the program goes on each time, and can be dumped."""
    pid = place.program(f'x = bytearray(b"a" * {20 * MIB})\n')
    cancelled = 0
    for tenth in range(12):
        answer = place.tool('dump', Place.real, f'pid={pid}', 'running',
                            f'cancel_usec={tenth * 20000}', f'libdir={place.directory("plugins")}',
                            f'images={place.directory("images")}')
        check(answer in ('0 done', 'ECANCELED criu was stopped'), answer)
        cancelled += answer != '0 done'
        place.check_counts()
        with open(f'/proc/{pid}/status') as file:
            check('TracerPid:\t0\n' in file.read())
        with open(f'/proc/{pid}/maps') as file:
            check('CRIUMFD' not in file.read(), 'its code is still there')
    check(cancelled, 'never in the middle')
    place.cycle(pid, Place.real)


def test_killed(place):
    """CRIU waits in the middle of a dump, its code in the program, and is killed."""
    pid = place.program(f'x = bytearray(b"a" * {20 * MIB})\n')
    images = place.directory('images')
    # its image of the memory is a pipe that nobody reads from: it stops there
    os.mkfifo(f'{images}/pages-1.img')
    answer = place.tool('dump', Place.real, f'pid={pid}', 'running', f'images={images}',
                        f'libdir={place.directory("plugins")}', 'kill_usec=2000000')
    check(answer == 'ECANCELED criu was stopped', answer)
    place.check_counts()
    with open(f'/proc/{pid}/status') as file:
        check('TracerPid:\t0\n' in file.read())
    os.unlink(f'{images}/pages-1.img')
    place.cycle(pid, Place.real)


def test_tcp(place):
    """A connection: kept, with the other end waiting meanwhile; and closed."""
    code = 's = socket.create_connection(("127.0.0.1", {}))\n' \
        'import threading\ndef talk():\n  try:\n    while True:\n      s.sendall(s.recv(4))\n' \
        '  except OSError: open(sys.argv[1] + ".closed", "w")\n' \
        'threading.Thread(target=talk).start()\n'
    server = socket.socket()
    server.bind(('127.0.0.1', 0))
    server.listen()
    server.settimeout(PATIENCE_SEC)
    pid = place.program(code.format(server.getsockname()[1]))
    ours, _ = server.accept()
    ours.settimeout(PATIENCE_SEC)
    answer = place.tool('dump', Place.real, f'pid={pid}', f'images={place.directory("images")}',
                        f'libdir={place.directory("plugins")}', 'tcp=keep', 'running')
    if answer.startswith('EOPNOTSUPP '):
        check('newer' in answer or 'install' in answer, answer)
        place.check_counts()
        raise Skip(answer)
    place.criu('dump', Place.real, f'pid={pid}', expect='EBUSY')
    place.cycle(pid, Place.real, 'tcp=keep')
    ours.sendall(b'ping')
    check(ours.recv(4) == b'ping')
    place.cycle(pid, Place.real, 'tcp=close')
    wait_for(lambda: os.path.exists(f'{place.path}/counter.closed'), 'the connection to be closed')
    ours.close()
    server.close()


def test_restore_cancelled(place):
    """Stopped at many moments of a restore: all of the tree is there, or nothing of it."""
    pid, child = dumped_pair(place)
    cancelled = 0
    for moment in range(10):
        answer = place.tool('restore', Place.real, f'cancel_usec={30000 + moment * 25000}',
                            f'libdir={place.directory("plugins")}',
                            f'images={place.directory("images")}')
        if answer.startswith('0 '):
            place.check_counts()
            end(child) if children(pid) == [child] else check(False, 'a child is missing')
        else:
            check(answer == 'ECANCELED criu was stopped' or answer.startswith('EBUSY '), answer)
            cancelled += answer.startswith('ECANCELED')
            wait_for(lambda: all(gone(task) or not is_ours(task) for task in (pid, child)),
                     'the end of both')
        end(pid)
        end(child)
    check(cancelled, 'never in the middle')
    place.criu('restore', Place.real)
    place.check_counts()


def test_opens(place):
    """With what was found, and with nothing else, it is dumped and restored."""
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    code = REFUSED['ghost'][0] + '\nl = open(sys.argv[1] + ".lock", "w")\n' \
        'fcntl.flock(l, fcntl.LOCK_EX)\n' + 'os.write(1, b"x"); os.write(2, b"y")\n'
    pid = place.program(code, stdout=writer, stderr=theirs, leader=False)
    version = place.tool('find', Place.real[5:]).split('\n')[1]
    opens = harmless(place, pid, f'version={version}', f'ghost={64 * MIB}')
    arguments = [name for name in ('shell_job', 'file_locks', 'link_remap', 'ext_unix_sockets')
                 if opens.flag(name)] + [f'ghost={opens.flag("ghost")}']
    check(arguments[:2] == ['shell_job', 'file_locks'], arguments)
    log = os.open(f'{place.path}/log', os.O_RDWR | os.O_CREAT)
    other, given = socket.socketpair()
    dump, restore = [], []
    for row in opens.rows('external'):
        _, _, key, option, _, _ = row.split()
        dump += [] if option == '-' else [f'external={option}']
        restore.append(f'inherit={given.fileno() if key.startswith("socket") else log}:{key}')
    check(len(restore) == 2, opens.text)
    place.cycle(pid, Place.real, *arguments, *dump, restore=restore, pass_fds=(log, given.fileno()))
    check(os.readlink(f'/proc/{pid}/fd/1') == f'{place.path}/log')
    for fd in (reader, writer, log):
        os.close(fd)
    for end_of_pair in (ours, theirs, other, given):
        end_of_pair.close()


if __name__ == '__main__':
    sys.exit(run(globals(), prepare))
