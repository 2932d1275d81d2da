#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which mount the tools take if none is named: their user's, else root's, and never another user's.
Nor do they take one of another user's that GPUCR_MOUNT names.
plugin_mount.c shows programs a table of mounts of ours. usage: test_find_mount.py BUILD"""
import os
import re
import subprocess
import sys
import tempfile

BUILD = sys.argv[1]
OTHER, USER = 4001, 4002


def check(ok, words):
    if not ok:
        sys.exit(f'failed: {words}')


def line(where, user):
    where = where.replace(' ', '\\040')
    return f'22 20 0:32 / {where} rw,nosuid - fuse.gpucrfs gpucrfs rw,user_id={user},group_id=0\n'


# How a program is made to say which mount it has found. gpucr and gpucr-migrate ask gpucr-trusted.
PROGRAMS = {'gpucr-trusted': (['mount'], '{}\n'),
            'gpucr-swap': (['status'], ' runs for {}\n'),
            'gpucr-top': (['--once'], 'gpucr-top: {}')}


def plugin_mount():
    return next(f'{BUILD}/test/unit/criu/{file}' for file in os.listdir(f'{BUILD}/test/unit/criu')
                if re.fullmatch(r'lib.*plugin-mount\.so|plugin-mount\.so', file))


def run(name, *arguments, table, user=None, **more):
    """What a program says on this table of mounts."""
    env = {name: value for name, value in os.environ.items() if name != 'GPUCR_MOUNT'}
    env.update(LD_PRELOAD=plugin_mount(), FAKE_MOUNTINFO=table, ASAN_OPTIONS='verify_asan_link_order=0', **more)
    done = subprocess.run([f'{BUILD}/tools/{name}', *arguments], env=env, capture_output=True, text=True,
                          check=False, user=user)
    return done.stdout + done.stderr


def program(name, table, mounts, user):
    """Which of them a program asks."""
    arguments, words = PROGRAMS[name]
    said = run(name, *arguments, table=table, user=user)
    found = [mount for mount in mounts if words.format(mount) in said]
    check(found or 'no gpucrfs is mounted' in said or not said, said)
    return found[0] if found else ''


def refusal(name, table, mount, user):
    """Why a tool does not use the mount that GPUCR_MOUNT names; '': it does."""
    said = run(name, *PROGRAMS[name][0], table=table, user=user, GPUCR_MOUNT=mount)
    return ''.join(re.findall('is not used: (.*)', said))


def test_library(directory, table):
    """A user's FUSE filesystem can say that its files are root's."""
    path = f'{directory}/preload.so'
    with open(path, 'w', encoding='utf-8'):
        pass
    for lines, expected in (([], path), ([line(directory, 0)], path),
                            ([line(directory, OTHER)], 'it is on a mount of user 4001'),
                            ([line(path, OTHER).replace('fuse.gpucrfs', 'fuse')], 'it is on a mount of user 4001')):
        with open(table, 'w', encoding='utf-8') as file:
            file.write(''.join(lines))
        said = run('gpucr-trusted', 'file', 'GPUCR_PRELOAD', path, table=table)
        check(expected in said and ('not used' in said) == (expected != path), said)


def test_named(directory, table):
    theirs = f'{directory}/their place'
    for name in theirs, f'{theirs}/mnt', f'{directory}/tmp', f'{directory}/tmp/mnt':
        os.mkdir(name)
        with open(f'{name}/ctl', 'w', encoding='utf-8'):
            pass
    os.chown(theirs, OTHER, OTHER)
    mounted, plain = f'{theirs}/mnt', f'{directory}/tmp/mnt'
    other = 'it is on a mount of user 4001'
    owner = f'{theirs} belongs to user 4001'
    cases = [
        (mounted, [line(mounted, 0)], ''),
        (mounted, [line(mounted, USER)], ''),
        (mounted, [line(mounted, OTHER)], other),
        (mounted, [line(mounted, 0), line(mounted, OTHER)], other),
        (mounted, [line(mounted, 0).replace('fuse.gpucrfs', 'fuse.sshfs')], owner),
        (mounted, [line(f'{directory}/their', 0)], owner),
        (mounted, [], owner),
        (plain, [], ''),
        # Whatever its owners seem to be.
        (plain, [line(plain, OTHER)], other),
        (plain, [line(plain, OTHER).replace('fuse.gpucrfs', 'fuse.sshfs')], other),
        (plain, [line(f'{directory}/tmp', OTHER)], other),
        (plain, [line(f'{directory}/tm', OTHER), line(f'{plain}t', OTHER)], ''),
    ]
    for mount, lines, expected in cases:
        with open(table, 'w', encoding='utf-8') as file:
            file.write(''.join(lines))
        for name in PROGRAMS:
            if not os.path.exists(f'{BUILD}/tools/{name}'):
                continue
            found = refusal(name, table, mount, USER)
            check(found.startswith(expected) and bool(found) == bool(expected),
                  f'{name}: {found!r} of {mount} in {lines}, expected {expected!r}')


with tempfile.TemporaryDirectory() as directory:
    names = others, roots, ours = [f'{directory}/{name}' for name in ("other's 1", 'root', 'ours')]
    for name in names:
        os.mkdir(name)
        with open(f'{name}/ctl', 'w', encoding='utf-8'):
            pass
    table = f'{directory}/mountinfo'
    first = '21 20 0:31 / / rw - ext4 /dev/sda rw,user_id=0\n'
    os.chmod(directory, 0o755)
    for user in {os.geteuid(), USER if not os.geteuid() else os.geteuid()}:
        cases = [
            ([line(others, OTHER)], ''),
            ([line(others, OTHER), line(ours, user)], ours),
            ([line(others, f'{OTHER},x'), line(ours, user), line(others, user)], ours),
            ([line(others, user)], others),  # a blank, and a digit after it
        ]
        if user:
            cases.append(([line(others, OTHER), line(roots, 0), line(ours, user)], ours))
            cases.append(([line(others, OTHER), line(roots, 0)], roots))
        for lines, expected in cases:
            with open(table, 'w', encoding='utf-8') as file:
                file.write(first + ''.join(lines))
            for name in PROGRAMS:
                if not os.path.exists(f'{BUILD}/tools/{name}'):
                    continue  # gpucr-top is built where curses is there
                found = program(name, table, names, user)
                check(found == expected, f'{name}: {found!r} of {lines}, expected {expected!r}')
    if not os.geteuid():
        test_named(directory, table)
        test_library(directory, table)
print('ok')
