#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""criu-glue with a CRIU that is a script.
usage: test_criu_fake.py PATH-OF-CRIU_TOOL [TEST...]"""
import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from criu_place import GUARD, TOOL, check, gone, run, wait_for

SO_PASSRIGHTS = 83


def test_versions(place):
    for version, expect in (('4.0', '0'), ('4.1.1', '0'), ('10.2', '0'), ('3.19', 'EOPNOTSUPP'),
                            ('', 'EOPNOTSUPP'), ('four', 'EOPNOTSUPP')):
        answer = place.tool('find', place.fake('', version)[5:])
        check(answer.startswith(expect + ' '), version, answer)
        check(expect == '0' or 'install CRIU 4.0' in answer, answer)
    check(place.tool('find', f'{place.path}/none').startswith('EOPNOTSUPP '))
    broken = f'{place.path}/broken'
    with open(broken, 'w') as file:
        file.write('#!/no/such/program\n')
    os.chmod(broken, 0o755)
    check('cannot be started' in place.tool('find', broken))
    with open(broken, 'w') as file:
        file.write('#!/bin/sh\necho "Version: 4.1"\nexit 1\n')
    check('does not run here' in place.tool('find', broken))


def test_path(place):
    os.rename(place.fake('')[5:], place.directory('bin') + '/criu')
    environment = dict(os.environ, PATH=f'relative:{place.path}:{place.path}/bin:/usr/bin:/bin')
    answer = place.tool('find', environment=environment)
    check(answer == f'0 {place.path}/bin/criu\n40101', answer)


def test_arguments(place):
    script = place.fake('for a; do echo "$a"; done >arguments; env >environment; '
                        'ls -l /proc/self/fd >fds; ls /proc/$$/fd >numbers; cat /proc/self/fd/5 '
                        '>inherited; echo 77 >criu.pid; grep SigIgn /proc/$$/status >signals')
    environment = dict(os.environ, LD_PRELOAD='', CRIU_CONFIG_FILE='/x', CRIU_FAULT='130')
    words = place.criu('dump', script, 'pid=12', 'running', 'tcp=keep', 'shell_job', 'file_locks',
                       'ext_unix_sockets', 'link_remap', 'ghost=5000000', 'external=unix[5]',
                       'external=file[a:b]', environment=environment)
    check(words == 'done', words)
    images = f'{place.path}/images'
    with open(f'{images}/arguments') as file:
        given = file.read().split('\n')[:-1]
    for wanted in ('dump', '--no-default-config', '-v4', '--log-file=-', '--tree=12',
                   f'--libdir={place.path}/plugins', '--leave-running', '--tcp-established',
                   '--shell-job', '--file-locks', '--ext-unix-sk', '--link-remap',
                   '--ghost-limit=5000000', '--manage-cgroups=ignore', '--external=unix[5]', '--external=file[a:b]',
                   '--images-dir=/proc/self/fd/3', '--work-dir=/proc/self/fd/4'):
        check(wanted in given, wanted, given)
    with open(f'{images}/environment') as file:
        names = [line.split('=')[0] for line in file]
    check('CRIU_FAULT' in names and 'LD_PRELOAD' not in names and 'CRIU_CONFIG_FILE' not in names)
    with open(f'{images}/signals') as file:
        check(int(file.read().split()[1], 16) >> (signal.SIGXFSZ - 1) & 1, 'SIGXFSZ is not ignored')

    # Descriptors of a restore, whatever their numbers were.
    with open(f'{place.path}/text', 'w') as file:
        file.write('inherited text')
    fd = os.open(f'{place.path}/text', os.O_RDONLY)
    words = place.criu('restore', script, 'stopped', 'tcp=close', f'inherit={fd}:pipe:[9]',
                       pass_fds=(fd,))
    os.close(fd)
    check(words == '77', words)
    with open(f'{images}/arguments') as file:
        given = file.read().split('\n')[:-1]
    for wanted in ('restore', '--restore-detached', '--pidfile=criu.pid', '--leave-stopped',
                   '--tcp-close', 'fd[5]:pipe:[9]'):
        check(wanted in given, wanted, given)
    with open(f'{images}/inherited') as file:
        check(file.read() == 'inherited text')
    with open(f'{images}/numbers') as file:
        numbers = {int(line) for line in file}
    check({0, 1, 2, 3, 4, 5} <= numbers and not numbers & {6, 7, 8, 9}, numbers)


def test_environment(place):
    """What the guard is told comes from us: our environment can be that of another user."""
    script = place.fake('env >environment; echo 77 >criu.pid', is_criu=True)
    others = {f'GPUCR_CRIU_{name}': '1:9' for name in ('ROOT', 'OWNER', 'DUMPABLE', 'OTHER')}
    for name in 'LD_AUDITS', 'HSA_TOOLS_LIB', 'PYTHONPATH', 'GPUCR_KEPT':
        others[name] = '1:9'
    root = f'{os.getpid()}:'

    def found(*arguments):
        place.criu(*arguments, script, f'guard={GUARD}',
                   environment={**os.environ, **others})
        with open(f'{place.path}/images/environment') as file:
            pairs = [line.rstrip('\n').split('=', 1) for line in file if '=' in line]
        return [f'{name}={value}' for name, value in pairs if name.startswith('GPUCR_CRIU_')], dict(pairs)

    ours, all_of_it = found('dump', f'pid={os.getpid()}', 'running')
    check(len(ours) == 1 and ours[0].startswith(f'GPUCR_CRIU_ROOT={root}'), ours)
    ours, all_of_it = found('restore', 'stopped')
    check(not ours, ours)
    check(all_of_it['GPUCR_KEPT'] == '1:9' and 'PATH' in all_of_it, all_of_it)
    for name in 'LD_AUDITS', 'HSA_TOOLS_LIB', 'PYTHONPATH':
        check((name in all_of_it) == bool(os.geteuid()), name, all_of_it)


KEYS = '''
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
ADD, KEYCTL = {'x86_64': (248, 250), 'aarch64': (217, 219)}[os.uname().machine]
JOIN, SEARCH, SESSION = 1, 10, -3
def result(number, *arguments):
    return ctypes.get_errno() if libc.syscall(number, *arguments) < 0 else 0
'''


def test_keys(place):
    """What CRIU restores keeps CRIU's session keyring: it is not ours, whose keys our user can read.
    The launcher is not started from here: its unit gives it a keyring."""
    if os.environ.get('GPUCR_TEST_LAUNCH'):
        return
    with open(f'{place.path}/search', 'w') as file:
        file.write(KEYS + 'print(result(KEYCTL, SEARCH, SESSION, b"user", b"gpucr-test", 0))')
    script = place.fake(f'{sys.executable} {place.path}/search >found; echo 77 >criu.pid')

    def found(action):
        place.criu(action, script, *(['pid=12', 'running'] if action == 'dump' else ['stopped']))
        with open(f'{place.path}/images/found') as file:
            return int(file.read())

    pid = os.fork()
    if not pid:
        status = 1
        try:
            known = {}
            exec(KEYS, known)
            if known['result'](known['KEYCTL'], known['JOIN'], None) or known['result'](
                    known['ADD'], b'user', b'gpucr-test', b'words', 5, known['SESSION']):
                print('no keys can be made here: not tried')
            else:
                check(found('dump') == 0, 'the key is not found')
                check(found('restore') == errno.ENOKEY, 'the key is found')
            status = 0
        except AssertionError as error:
            print(error, file=sys.stderr)
        finally:
            os._exit(status)
    check(os.waitpid(pid, 0)[1] == 0, 'the process with the keys has failed')


def test_failures(place):
    line = '(00.1) Error (criu/a.c:1): '
    words = place.criu('dump', 'pid=1', place.fake(f'echo "{line}Strange thing"; exit 1'),
                       expect='EIO')
    check(words == 'criu: Strange thing', words)
    words = place.criu('dump', 'pid=1', place.fake(
        f'echo "{line}Some file locks are hold by dumping tasks!"; exit 1'), expect='EBUSY')
    check('file locks' in words, words)
    # a log of an earlier run is not this one's
    words = place.criu('dump', 'pid=1', place.fake('exit 3'), expect='EIO')
    check('exit status 3' in words, words)
    words = place.criu('dump', 'pid=1', place.fake('kill -SEGV $$'), expect='EIO')
    check('signal 11' in words, words)
    words = place.criu('dump', 'pid=1', place.fake('echo "no library" >&2; exit 127'), expect='EIO')
    check(words == 'criu: no library', words)
    # more than is kept of what it prints does not hold it up
    place.criu('dump', 'pid=1', place.fake('head -c 200000 /dev/zero >&2; exit 0'))
    place.criu('dump', 'pid=1', place.fake(
        'head -c 200000 /dev/zero; printf "\\n(00.1) Error (criu/a.c:1): a\\033\\001b\\n"; '
        'exit 1'), expect='EIO')
    words = place.criu('restore', place.fake('echo x >criu.pid'), expect='EIO')
    check('pid' in words, words)
    place.criu('restore', place.fake('exit 0'), expect='ENOENT')


def log_of(place):
    with open(f'{place.path}/images/criu.log', 'rb') as file:
        return file.read()


def test_long_log(place):
    """However long it is, its end is kept, and errors are wherever they were."""
    line = '(00.1) Error (criu/a.c:1): Strange thing'
    noise = 'head -c 2097152 /dev/zero | tr "\\0" "\\n"; '
    for script in (f'for n in $(seq 20); do {noise} done; echo "{line}"; echo end; exit 1',
                   f'echo "{line}"; for n in $(seq 20); do {noise} done; echo end; exit 1'):
        words = place.criu('dump', 'pid=1', place.fake(script), expect='EIO')
        check(words == 'criu: Strange thing', words)
        log = log_of(place)
        check(128 << 10 <= len(log) <= 256 << 10 and log.endswith(b'\nend\n'), len(log), log[-60:])
    # A process may name a file like that, as often as it likes.
    script = f'for n in $(seq 20000); do echo "{line} $n"; done; {noise} echo end; exit 1'
    words = place.criu('dump', 'pid=1', place.fake(script), expect='EIO')
    check(words == 'criu: Strange thing 1', words)
    check(len(log_of(place)) <= 256 << 10, len(log_of(place)))


THIEF = """
import os, signal, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
failed = open('failed', 'w')
open('thief', 'w').write(str(os.getpid()))
while True:
    try:
        os.write(1, b'stolen' * 1000 + bytes([10]))
    except OSError as error:
        failed.write(f'{error.errno} ')
        failed.flush()
        time.sleep(0.01)
"""


def test_stolen_log(place):
    """CRIU lends its log to the programs it dumps, and so to other processes of their user: who has
    kept it can write nothing there once CRIU has ended, and nobody waits for them."""
    with open(f'{place.path}/thief.py', 'w') as file:
        file.write(THIEF)
    images = place.directory('images')
    for status, expect in (0, '0'), (1, 'EIO'):
        for name in 'thief', 'failed':
            if os.path.exists(f'{images}/{name}'):
                os.unlink(f'{images}/{name}')
        began = time.monotonic()
        place.criu('dump', 'pid=1', place.fake(
            f'{sys.executable} {place.path}/thief.py & until [ -s thief ]; do sleep 0.02; done; '
            f'sleep 0.3; exit {status}'), expect=expect)
        check(time.monotonic() - began < 4, 'the log was waited for')
        with open(f'{images}/thief') as file:
            thief = int(file.read())
        before = log_of(place)
        check(b'stolen' in before and len(before) <= 256 << 10, len(before))

        def fails():
            with open(f'{images}/failed') as file:
                return len(file.read().split()) > 5
        wait_for(fails, 'its writes to fail')
        check(log_of(place) == before, 'it has written to the log')
        with open(f'{images}/failed') as file:
            check(set(file.read().split()) == {str(errno.EPIPE)})
        check(not gone(thief), 'it was ended by a signal')
        os.kill(thief, signal.SIGKILL)
        wait_for(lambda: gone(thief), 'the end of the thief')


def test_messages_of_no_bytes(place):
    """They are not the end of the log. A message with descriptors, whose end could block the reader, is
    refused, or they are nobody's (before Linux 6.16)."""
    with open(f'{place.path}/odd.py', 'w') as file:
        file.write('import array, os, socket\n'
                   'one = socket.socket(fileno=1)\n'
                   'one.send(b"")\n'
                   'try:\n'
                   '    one.sendmsg([b"with\\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, '
                   'array.array("i", [0, 1, 2]))])\n'
                   'except PermissionError:\n'
                   '    one.send(b"refused\\n")\n'
                   'one.send(b"")\n'
                   'one.detach()\n')
    place.criu('dump', 'pid=1', place.fake(f'{sys.executable} {place.path}/odd.py; echo after; exit 0'))
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
            first = b'refused\n'
        except OSError:
            first = b'with\n'
    check(log_of(place) == first + b'after\n', log_of(place))


# Cannot be waited for while another process traces it, as one that the kernel does not let be killed.
IMMORTAL = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
traced = os.getpid()
if not os.fork():
    os.setsid()
    if not libc.ptrace(0x4206, traced, None, None):  # PTRACE_SEIZE
        open(f'{sys.argv[1]}/immortal', 'w').write(str(os.getpid()))
    time.sleep(60)
    os._exit(0)
libc.prctl(0x59616d61, -1, 0, 0, 0)  # PR_SET_PTRACER
time.sleep(60)
"""


def test_log_that_does_not_end(place):
    """What keeps the log is left behind."""
    with open(f'{place.path}/immortal.py', 'w') as file:
        file.write(IMMORTAL)
    with open(f'{place.path}/keeper', 'w') as file:
        file.write(f'#!/bin/sh\nexec {sys.executable} {place.path}/immortal.py {place.path}\n')
    os.chmod(f'{place.path}/keeper', 0o755)
    began = time.monotonic()
    place.criu('dump', 'pid=1', f'log_program={place.path}/keeper', place.fake(
        f'until [ -s {place.path}/immortal ]; do sleep 0.02; done; exit 0'))
    took = time.monotonic() - began
    with open(f'{place.path}/immortal') as file:
        os.kill(int(file.read()), signal.SIGKILL)
    check(5 < took < 20, f'it took {took:.1f} s')


def test_no_program_for_the_log(place):
    words = place.criu('dump', 'pid=1', place.fake('exit 0'), 'log_program=/no/such', expect='EIO')
    check("keeps CRIU's log" in words, words)
    # It has ended: CRIU is not held up, and not killed.
    place.criu('dump', 'pid=1', 'log_program=/bin/true', place.fake(
        'sleep 0.2; for n in $(seq 1000); do echo lost; done; : >survived; exit 0'))
    check(os.path.exists(f'{place.path}/images/survived'))
    check(log_of(place) == b'')


def keepers(place):
    """Processes that have our log open."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if os.readlink(f'/proc/{pid}/fd/0') == f'{place.path}/images/criu.log':
                found.append(pid)
        except OSError:
            pass
    return found


def has_pidfd(holder, path):
    """Has the process a descriptor of the one whose pid is in the file @path?"""
    with contextlib.suppress(OSError, ValueError):
        with open(path, encoding='ascii') as file:
            line = f'Pid:\t{int(file.read())}\n'
        for fd in os.listdir(f'/proc/{holder}/fdinfo'):
            with contextlib.suppress(OSError):
                with open(f'/proc/{holder}/fdinfo/{fd}', encoding='ascii') as file:
                    if line in file.read():
                        return True
    return False


def test_log_without_its_starter(place):
    """The daemon dies: CRIU goes on, and so does its log."""
    images = place.directory('images')
    script = place.fake('echo before; echo $$ >begun; until [ -e go ]; do sleep 0.05; done; '
                        'head -c 3000000 /dev/zero | tr "\\0" "\\n"; echo after; : >done')
    with subprocess.Popen([TOOL, 'dump', f'libdir={place.directory("plugins")}', f'images={images}',
                           'pid=1', script], stdout=subprocess.DEVNULL) as tool:
        # A CRIU of which the daemon has not heard is ended with it.
        wait_for(lambda: has_pidfd(tool.pid, f'{images}/begun'), 'CRIU')
        tool.kill()
    with open(f'{images}/go', 'w'):
        pass
    wait_for(lambda: os.path.exists(f'{images}/done'), 'the end of CRIU')
    wait_for(lambda: not keepers(place), 'the end of the log')
    check(log_of(place).endswith(b'\nafter\n') and len(log_of(place)) <= 256 << 10)


def test_options(place):
    script = place.fake('exit 0')
    place.criu('dump', script, expect='EINVAL')
    place.criu('dump', script, 'pid=1', 'log=../x', expect='EINVAL')
    place.criu('dump', script, 'pid=1', 'inherit=0:x', expect='EINVAL')
    place.criu('restore', script, 'running', expect='EINVAL')
    answer = place.tool('dump', script, 'pid=1', f'images={place.path}', 'libdir=/no/such')
    check(answer.startswith('EINVAL '), answer)


def test_cancel(place):
    # It fails at its next write, by itself.
    script = place.fake('trap "" XFSZ; while echo x >>image; do sleep 0.01; done; exit 1')
    words = place.criu('dump', script, 'pid=1', 'cancel_usec=300000', expect='ECANCELED')
    check('stopped' in words, words)
    # It does not answer, and is killed; so is one that hangs in a restore, with what it made.
    script = place.fake('echo $$ >me; exec sleep 1000')
    place.criu('dump', script, 'pid=1', 'cancel_usec=300000', 'grace_usec=1000', expect='ECANCELED')
    script = place.fake('(echo $$ >/dev/null; sleep 1001 & echo $! >grandchild; wait) & '
                        'echo $! >child; sleep 1002')
    place.criu('restore', script, 'cancel_usec=500000', expect='ECANCELED')
    for name in ('child', 'grandchild'):
        with open(f'{place.path}/images/{name}') as file:
            pid = int(file.read())
        wait_for(lambda: gone(pid), name)


# Where CRIU looks for its images.
LOOK = '[ "$fd" ] || for word; do case $word in --images-dir=*) fd=${word##*/} ;; esac; done; export fd; '
SEE = 'readlink /proc/$$/fd/$fd >seen || echo nothing >seen; '
DONE = 'echo 77 >criu.pid; '
UNGUARDED = 'has not loaded'


def seen(place):
    with open(f'{place.path}/images/seen') as file:
        return file.read().strip()


def test_with_guard(place):
    """CRIU has its images from the guard, and no other program has them."""
    for action in ['dump', f'pid={os.getpid()}', 'running'], ['restore', 'stopped']:
        place.criu(*action, f'guard={GUARD}', place.fake(LOOK + SEE + DONE, is_criu=True))
        check(seen(place) == f'{place.path}/images', seen(place))
        # One that was taken for CRIU, and becomes another program.
        place.criu(*action, f'guard={GUARD}',
                   place.fake(f"{LOOK}exec env -u LD_PRELOAD /bin/sh -c '{SEE + DONE}'", is_criu=True))
        check(seen(place) == 'nothing', seen(place))


def test_without_guard(place):
    """The loader goes on without it. Such a CRIU has no images, and the error says why."""
    static = f'{TOOL[:TOOL.rindex("/")]}/static_criu'
    for action in ['dump', f'pid={os.getpid()}', 'running'], ['restore', 'stopped']:
        for guard, start, is_criu in ((GUARD, 'env -u LD_PRELOAD', False), (GUARD, 'env -i', False),
                                      (f'{place.path}/none.so', 'env', True)):
            for status in 0, 1:
                words = place.criu(*action, f'guard={guard}', place.fake(
                    f"{LOOK}exec {start} fd=$fd /bin/sh -c '{SEE + DONE}exit {status}'", is_criu=is_criu),
                                   expect='EIO')
                check(UNGUARDED in words and guard in words, words)
                check(not status or 'exit status 1' in words or 'cannot be preloaded' in words, words)
                check(seen(place).startswith('socket:'), start, seen(place))
        if os.path.exists(static):
            words = place.criu(*action, f'guard={GUARD}', f'criu={static}', expect='EIO')
            check(UNGUARDED in words, words)
            check(not os.path.exists(f'{place.path}/images/made'))
    with_blank = place.directory('with blank') + '/guard.so'
    shutil.copy(GUARD, with_blank)
    words = place.criu('restore', 'stopped', f'guard={with_blank}', place.fake(DONE, is_criu=True), expect='EOPNOTSUPP')
    check('a blank' in words and with_blank in words, words)


def test_version_without_guard(place):
    """The first question shows a wrong installation."""
    def find(program, guard):
        return place.tool('find', program, guard)

    shutil.copy(GUARD, place.directory('with blank') + '/guard.so')
    good = place.fake('', is_criu=True)[5:]
    check(find(good, GUARD) == f'0 {good}\n40101', find(good, GUARD))
    for guard, words in ((f'{place.path}/none.so', UNGUARDED), (f'{place.path}/with blank/guard.so', 'a blank')):
        answer = find(good, guard)
        check(answer.startswith('EOPNOTSUPP ') and words in answer and guard in answer, answer)
    answer = find(place.fake('')[5:], GUARD)
    check(answer.startswith('EOPNOTSUPP ') and UNGUARDED in answer and 'a dynamic program' in answer, answer)
    # What is wrong with CRIU itself comes first.
    answer = find(place.fake('', '3.19')[5:], GUARD)
    check('is version 3.19' in answer, answer)


if __name__ == '__main__':
    sys.exit(run(globals()))
