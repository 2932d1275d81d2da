#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""criu-glue with a CRIU that is a script.
usage: test_criu_fake.py PATH-OF-CRIU_TOOL [TEST...]"""
import os
import signal
import sys

from criu_place import check, gone, run, wait_for


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
    for wanted in ('dump', '--no-default-config', '-v4', '--log-file=criu.log', '--tree=12',
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


def test_failures(place):
    line = '(00.1) Error (criu/a.c:1): '
    words = place.criu('dump', 'pid=1', place.fake(f'echo "{line}Strange thing" >$log; exit 1'),
                       expect='EIO')
    check(words == 'criu: Strange thing', words)
    words = place.criu('dump', 'pid=1', place.fake(
        f'echo "{line}Some file locks are hold by dumping tasks!" >$log; exit 1'), expect='EBUSY')
    check('file locks' in words, words)
    # a log of an earlier run is not this one's
    words = place.criu('dump', 'pid=1', place.fake('exit 3'), expect='EIO')
    check('exit status 3' in words, words)
    words = place.criu('dump', 'pid=1', place.fake('kill -SEGV $$'), expect='EIO')
    check('signal 11' in words, words)
    words = place.criu('dump', 'pid=1', place.fake('echo "no library" >&2; exit 127'), expect='EIO')
    check(words == 'criu: no library', words)
    # more than is kept of what it prints does not hold it up
    place.criu('dump', 'pid=1', place.fake('head -c 200000 /dev/zero; exit 0'))
    place.criu('dump', 'pid=1', place.fake(
        'head -c 300000 /dev/zero >$log; printf "\\n(00.1) Error (criu/a.c:1): a\\033\\001b\\n" '
        '>>$log; exit 1'), expect='EIO')
    words = place.criu('restore', place.fake('echo x >criu.pid'), expect='EIO')
    check('pid' in words, words)
    place.criu('restore', place.fake('exit 0'), expect='ENOENT')


def test_long_log(place):
    """However long it is, its end is kept, and no more memory than for that."""
    line = '(00.1) Error (criu/a.c:1): Strange thing'
    script = place.fake('for n in $(seq 40); do head -c 2097152 /dev/zero | tr "\\0" "\\n" >>$log; '
                        f'sleep 0.02; done; echo "{line}" >>$log; exit 1')
    words = place.criu('dump', 'pid=1', script, expect='EIO')
    check(words == 'criu: Strange thing', words)
    status = os.stat(f'{place.path}/images/criu.log')
    check(status.st_size > 80 << 20 and status.st_blocks * 512 < 30 << 20, status)


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




if __name__ == '__main__':
    sys.exit(run(globals()))
