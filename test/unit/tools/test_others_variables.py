#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Variables of a user in a shell of root's (su, sudo -E): the tools run no code of his and write no
verbs to files of his, but do to root's and to those of their own user. usage:
test_others_variables.py BUILD"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

BUILD = sys.argv[1]
OTHER, USER = 4001, 4002
PRELOAD = f'{BUILD}/backend/preload'
SIM = f'{BUILD}/backend/sim'
SKIPPED = 77


def check(ok, words):
    if not ok:
        sys.exit(f'failed: {words}')


def run(*command, user=0, **env):
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith('GPUCR_') and name not in ('LD_PRELOAD', 'LD_LIBRARY_PATH')}
    return subprocess.run(command, env={**clean, **env}, capture_output=True, text=True,
                          check=False, user=user, stdin=subprocess.DEVNULL)


def show(*options, **more):
    """The variables that a program under gpucr-run gets."""
    return run(f'{BUILD}/tools/gpucr-run', *options, 'sh', '-c',
               'printf "%s\\n" "${LD_PRELOAD-}" "${LD_LIBRARY_PATH-}"', **more)


def make(path, owner, mode=0o755):
    os.makedirs(path, exist_ok=True)
    os.chown(path, owner, owner)
    os.chmod(path, mode)
    return path


def library_in(directory, owner=0):
    path = f'{directory}/libgpucr-preload.so'
    shutil.copy(f'{PRELOAD}/libgpucr-preload.so', path)
    os.chown(path, owner, owner)
    return path


def refused(done, words):
    check(done.returncode == 1 and words in done.stderr, (words, done))
    check(not done.stdout, done)


def test_code(top):
    theirs = make(f'{top}/theirs', OTHER)
    below = make(f'{theirs}/below', 0)
    ours = make(f'{top}/ours', 0)
    users = make(f'{top}/users', USER)
    all_may = make(f'{top}/all', 0, 0o777)
    link = f'{ours}/link'
    os.symlink(theirs, link)
    library_in(theirs)
    good, file_of_theirs = library_in(ours), f'{ours}/theirs.so'
    shutil.copy(good, file_of_theirs)
    os.chown(file_of_theirs, OTHER, OTHER)
    hip = f'{make(f"{ours}/hip", 0)}/libgpucr-preload-hip.so'
    os.symlink(f'{theirs}/libgpucr-preload.so', hip)
    beside = library_in(f'{ours}/hip')
    whose = f'belongs to user {OTHER}'

    for path in (f'{theirs}/libgpucr-preload.so', library_in(below), file_of_theirs,
                 f'{link}/libgpucr-preload.so'):
        for name in 'GPUCR_PRELOAD', 'GPUCR_PRELOAD_HIP':
            refused(show(**{name: path}), whose)
            refused(show(**{name: path}, user=USER), whose)
    refused(show(GPUCR_PRELOAD=beside), whose)
    refused(show(GPUCR_PRELOAD=library_in(all_may)), 'all can write to')
    # As /tmp: what is root's stays as it is, but anybody adds files.
    all_add = make(f'{top}/sticky', 0, 0o1777)
    os.symlink(f'{SIM}/libcuda.so.1', f'{all_add}/libcuda.so.1')
    refused(show('--sim', GPUCR_SIM_LIBDIR=all_add), 'all can write to')
    path = library_in(all_add)
    done = show(GPUCR_PRELOAD=path, GPUCR_PRELOAD_HIP='')
    check(done.returncode == 0 and path in done.stdout.splitlines()[0].split(':'), done)
    for path in theirs, below, link:
        if path != link:
            os.symlink(f'{SIM}/libcuda.so.1', f'{path}/libcuda.so.1')
        refused(show('--sim', GPUCR_SIM_LIBDIR=path), whose)
    # To ld.so(8) one path is several directories, or another one.
    for name in 'a:b', 'a;b', '$LIB':
        path = make(f'{ours}/{name}', 0)
        os.symlink(f'{SIM}/libcuda.so.1', f'{path}/libcuda.so.1')
        os.symlink(path, f'{ours}/link to {name}')
        for value in path, f'{ours}/link to {name}':
            refused(show('--sim', GPUCR_SIM_LIBDIR=value), 'cannot be in LD_LIBRARY_PATH')
        done = show(GPUCR_PRELOAD=library_in(path), GPUCR_PRELOAD_HIP='')
        check((path in done.stdout) == (name == 'a;b'), done)
    # Who can change the link later cannot say then what is loaded.
    os.symlink(good, f'{theirs}/link.so')
    done = show(GPUCR_PRELOAD=f'{theirs}/link.so')
    check(done.stdout.splitlines()[0].split(':')[-1] == good, done)

    for user, path in ((0, good), (USER, good), (USER, library_in(users, USER)), (OTHER, file_of_theirs),
                       (OTHER, f'{theirs}/libgpucr-preload.so')):
        done = show(GPUCR_PRELOAD=path, GPUCR_PRELOAD_HIP='', user=user)
        check(done.returncode == 0 and path in done.stdout.splitlines()[0].split(':'), (user, done))
    done = show(GPUCR_PRELOAD='', user=USER)
    check(done.returncode == 0 and 'libgpucr' not in done.stdout, done)
    done = show(GPUCR_PRELOAD=f'{theirs}/none/none.so')
    check(done.returncode == 0 and 'libgpucr' not in done.stdout, done)
    done = show('--sim', GPUCR_SIM_LIBDIR=SIM, user=USER)
    check(done.returncode == 0 and done.stdout.splitlines()[1] == SIM, done)


def test_simulator(top):
    """The simulator of root's program makes and changes files there."""
    theirs, ours = make(f'{top}/simulator', OTHER), make(f'{top}/roots', 0, 0o1777)
    link = f'{make(f"{top}/to it", 0)}/link'
    os.symlink(theirs, link)

    def attempt(value, user, *options):
        return run(f'{BUILD}/tools/gpucr-run', *options, 'printenv', 'GPUCR_SIM_DIR', user=user,
                   GPUCR_SIM_DIR=value)

    for user in 0, USER:
        for value in theirs, f'{theirs}/none', link:
            refused(attempt(value, user, '--sim'), f'belongs to user {OTHER}')
        refused(attempt(f'{ours}/none', user, '--sim'), 'all can write to')
        for value in ours, f'{ours}/':
            done = attempt(value, user, '--sim')
            check(done.stdout == f'{ours}\n', done)
    check(attempt(theirs, OTHER, '--sim').stdout == f'{theirs}\n', 'his own')


def make_mount(path, owner):
    make(path, owner)
    make(f'{path}/123', owner)
    for name in 'ctl', '123/ctl', '123/error':
        with open(f'{path}/{name}', 'w', encoding='utf-8'):
            pass
        os.chmod(f'{path}/{name}', 0o666)
    return path


TOOLS = (('gpucr', 'freeze', '123'), ('gpucr', 'ls'), ('gpucr-migrate', '123', 'nowhere'),
         ('gpucr-swap', 'status'), ('gpucr-top', '--once'))


def test_mounts(top):
    theirs = make_mount(f'{top}/their mount', OTHER)
    victim = f'{top}/victim'
    with open(victim, 'w', encoding='utf-8'):
        pass
    os.remove(f'{theirs}/123/ctl')
    os.symlink(victim, f'{theirs}/123/ctl')
    link = f'{make(f"{top}/links", 0)}/link'
    os.symlink(theirs, link)
    for name, *arguments in TOOLS:
        if not os.path.exists(f'{BUILD}/tools/{name}'):
            continue
        for value in theirs, f'{theirs}/', link:
            for user in 0, USER:
                done = run(f'{BUILD}/tools/{name}', *arguments, user=user, GPUCR_MOUNT=value)
                refused(done, f'belongs to user {OTHER}')
        for user in 0, USER:
            ours = make_mount(f'{top}/mount of {user}', user)
            done = run(f'{BUILD}/tools/{name}', *arguments, user=user, GPUCR_MOUNT=ours)
            check('is not used' not in done.stderr, done)
    check(os.path.getsize(victim) == 0, 'something was written to a file of root\'s')
    ours = make_mount(f'{top}/mount of 0', 0)
    check(run(f'{BUILD}/tools/gpucr', 'freeze', '123', GPUCR_MOUNT=ours).returncode == 0, 'own mount')


def test_temporary(top):
    """Files for a moment are made where nobody else can put others in their place."""
    theirs, all_may = make(f'{top}/temporary', OTHER), make(f'{top}/all may', 0, 0o777)
    ours, all_add = make(f'{top}/our-temporary', 0), make(f'{top}/all add', 0, 0o1777)
    users = make(f'{top}/of user', USER)
    link = f'{make(f"{top}/to theirs", 0)}/link'
    os.symlink(theirs, link)
    programs, seen = make(f'{top}/programs', 0), make(f'{top}/seen', 0, 0o1777)
    with open(f'{programs}/mktemp', 'w', encoding='utf-8') as file:
        file.write('#!/bin/sh\nprintf %s "$TMPDIR" >"$SEEN"\nPATH=$REST\nexec mktemp "$@"\n')
    os.chmod(f'{programs}/mktemp', 0o755)
    values = ([(value, 0, '/tmp') for value in (theirs, f'{theirs}/none', link, all_may, users, f'{ours}/none')] +
              [(value, 0, value) for value in (ours, all_add)] +
              [(theirs, USER, '/tmp'), (users, USER, users), (all_add, USER, all_add), (theirs, OTHER, theirs)])
    for number, (value, user, expected) in enumerate(values):
        mount = make_mount(f'{top}/mounts/{number}', user)
        for tool, *arguments in (('gpucr', 'freeze', '123'), ('gpucr-migrate', '--rsh', 'false', '123', 'nowhere')):
            file = f'{seen}/{number}-{tool}'
            run(f'{BUILD}/tools/{tool}', *arguments, user=user, GPUCR_MOUNT=mount, TMPDIR=value, SEEN=file,
                REST=os.environ['PATH'], PATH=f'{programs}:{os.environ["PATH"]}')
            with open(file, encoding='utf-8') as text:
                found = text.read()
            check(found == expected, f'{tool} of {user}: TMPDIR={value}: {found}')
    for value, expected in (theirs, 'TMPDIR: '), (ours, ''):
        done = run(f'{BUILD}/tools/gpucr-bench', '--sim', '--no-calls', '--rows', 'copy', '--sizes', '2M',
                   '--runs', '1', TMPDIR=value)
        check(done.returncode == 0 and (expected in done.stderr if expected else 'TMPDIR' not in done.stderr), done)


def test_without_finder(top):
    """Of whom a file is cannot be found out: to unset the variable is no help."""
    ours = make(f'{top}/no finder', 0)
    for tool in 'gpucr', 'gpucr-run':
        with open(f'{BUILD}/tools/{tool}', encoding='utf-8') as file:
            text = re.sub("(?m)^helperdir='.*'$", f"helperdir='{ours}/none'", file.read())
        with open(f'{ours}/{tool}', 'w', encoding='utf-8') as file:
            file.write(text)
        os.chmod(f'{ours}/{tool}', 0o755)
        done = run(f'{ours}/{tool}', 'ls', GPUCR_PRELOAD=f'{ours}/any', GPUCR_MOUNT=ours)
        refused(done, f'{ours}/none/gpucr-trusted could not be run')
        check('unset' not in done.stderr, done)


if os.geteuid():
    print('skipped: several users are needed')
    sys.exit(SKIPPED)
with tempfile.TemporaryDirectory() as directory:
    os.chmod(directory, 0o755)
    test_code(directory)
    test_simulator(directory)
    test_mounts(directory)
    test_temporary(directory)
    test_without_finder(directory)
print('ok')
