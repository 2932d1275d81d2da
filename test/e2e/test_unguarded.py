# SPDX-License-Identifier: MIT
"""CRIU is let at nothing without the library that stands between it and the programs, and the error says what
is missing: the loader starts a program also without a library that it was told to load."""
import contextlib
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import criu
import dump
import harness
import restore
from harness import BUILD, check, equal, same_for_both

GUARD = 'libgpucr-criu-guard.so'
# Stands for CRIU: with the word in the file beside it CRIU does not get what the loader is told.
WRAPPER = '''#!/bin/sh
if [ "$1" = "$(cat {directory}/without)" ]; then
    : >{directory}/ran
    exec env -u LD_PRELOAD {program} "$@"
fi
exec {program} "$@"
'''


@contextlib.contextmanager
def helpers(name, has_guard=True):
    """A directory of this name, with what is in the helpers' directory."""
    with tempfile.TemporaryDirectory(prefix='gpucrfs-helpers-') as top:
        directory = f'{top}/{name}'
        os.mkdir(directory)
        for one in os.listdir(f'{BUILD}/backend/cuda'):
            if one != GUARD and os.path.isfile(f'{BUILD}/backend/cuda/{one}'):
                os.symlink(f'{BUILD}/backend/cuda/{one}', f'{directory}/{one}')
        if has_guard:
            shutil.copy(f'{BUILD}/backend/cuda/{GUARD}', f'{directory}/{GUARD}')
            os.chmod(f'{directory}/{GUARD}', 0o644)
        yield directory


def refused(machine, one, number, *words):
    equal(machine.write(one.pid, 'dump'), number, machine.error(one.pid))
    for word in words:
        check(word in machine.error(one.pid), machine.error(one.pid))
    dump.as_before(machine, one)
    dump.nothing_left(machine)


def test_installation():
    same_for_both('where the library is')
    with helpers('few', has_guard=False) as few, dump.machine(env={'GPUCR_HELPER_DIR': few}) as machine:
        one = dump.program(machine)
        refused(machine, one, 'EIO', f'{few}/{GUARD} cannot be loaded: No such file')
        equal(machine.status(one.pid)['generation'], '-', 'it was not frozen')
        # When it has been installed.
        shutil.copy(f'{BUILD}/backend/cuda/{GUARD}', f'{few}/{GUARD}')
        restore.thaws(machine, one, dump.dumped(machine, one))
    with helpers('with blank') as blank, dump.machine(env={'GPUCR_HELPER_DIR': blank}) as machine:
        one = dump.program(machine)
        refused(machine, one, 'EOPNOTSUPP', f'{blank}/{GUARD}', 'a blank')
        equal(machine.status(one.pid)['generation'], '-', 'it was not frozen')
    # A library is not executable everywhere.
    with helpers('all') as directory, tempfile.TemporaryDirectory() as nothing, \
            dump.machine(env={'GPUCR_HELPER_DIR': f'{directory}:{nothing}'}) as machine:
        one = dump.program(machine)
        restore.thaws(machine, one, dump.dumped(machine, one))


@contextlib.contextmanager
def wrapped():
    """A machine, and a function that says with which word its CRIU does without the library."""
    found = criu.find()
    machine = dump.machine(start=False)
    directory = f'{machine.directory}/wrapper'
    os.mkdir(directory)
    path = f'{directory}/criu'
    with open(path, 'w', encoding='utf-8') as file:
        file.write(WRAPPER.format(directory=directory, program=found.program))
    os.chmod(path, 0o755)
    machine.options = machine.options.replace(f'criu={found.program}', f'criu={path}')

    def do_without(word):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f'{directory}/ran')
        with open(f'{directory}/without', 'w', encoding='utf-8') as file:
            file.write(word)
        return lambda: check(os.path.exists(f'{directory}/ran'), 'it has run')

    do_without('nothing')
    with machine:
        machine.start()
        yield machine, do_without


def test_first_question():
    same_for_both('how CRIU is found')
    with wrapped() as (machine, do_without):
        one = dump.program(machine)
        ran = do_without('--version')
        refused(machine, one, 'EOPNOTSUPP', f'wrapper/criu has not loaded {BUILD}/backend/cuda/{GUARD}',
                'passes its environment')
        equal(machine.status(one.pid)['generation'], '-', 'it was not frozen')
        ran()
        do_without('nothing')
        restore.thaws(machine, one, dump.dumped(machine, one))


def test_runs():
    """A CRIU that is replaced later, or a loader that has no memory for a moment."""
    same_for_both('how CRIU is run')
    with wrapped() as (machine, do_without):
        one = dump.program(machine)
        words = f'criu has not loaded {BUILD}/backend/cuda/{GUARD}', 'passes its environment'
        ran = do_without('dump')
        refused(machine, one, 'EIO', *words)
        ran()
        do_without('nothing')
        name = dump.dumped(machine, one)
        for verb in 'thaw', 'thaw pid=new', 'thaw trusted':
            ran = do_without('restore')
            equal(machine.write(name, verb), 'EIO', verb)
            for word in words:
                check(word in machine.error(name), machine.error(name))
            ran()
            restore.check_back(machine, one, name)
        do_without('nothing')
        restore.thaws(machine, one, name)


if __name__ == '__main__':
    harness.main(globals())
