# SPDX-License-Identifier: MIT
"""What the status of a place tells a script: of what was dumped, and of a thaw that is under way."""
import ctypes
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import criu
import dump
import harness
from harness import check, equal, wait_for

# A restore waits until somebody opens the pipe beside it.
SLOW_CRIU = '''#!/bin/sh
case " $* " in
*" restore "*) read -r line <"$0.pipe" ;;
esac
exec %s "$@"
'''
KEYS = ['name', 'uid', 'state', 'state_since_usec', 'verbs', 'verb', 'phase', 'verb_elapsed_usec',
        'pid', 'start_ticks', 'held_bytes']


class SlowCriu:
    """In the place of CRIU: it waits with a restore for go()."""

    def __init__(self, program):
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-criu-')
        self.program = f'{self.directory}/criu'
        with open(self.program, 'w', encoding='utf-8') as file:
            file.write(SLOW_CRIU % program)
        os.chmod(self.program, 0o755)
        os.mkfifo(f'{self.program}.pipe')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.directory)

    def go(self):
        with open(f'{self.program}.pipe', 'w', encoding='utf-8') as file:
            file.write('\n')


def what_is(machine, name, *keys):
    status = machine.status(name)
    return [status[key] for key in keys]


def test_status():
    found = criu.find()
    ctypes.CDLL(None).prctl(dump.PR_SET_CHILD_SUBREAPER, 1)
    with SlowCriu(found.program) as slow, \
            harness.Machine(vmm=True, options=f',criu={slow.program}', env=found.env) as machine:
        one = dump.program(machine)
        ticks = machine.status(one.pid)['start_ticks']
        name = dump.dumped(machine, one, 'dump name=one')
        idle = ['dumped', 'thaw drop', '-', '-', '0', str(one.pid), ticks]
        keys = ['state', 'verbs', 'verb', 'phase', 'verb_elapsed_usec', 'pid', 'start_ticks']
        equal(list(machine.status(name)), KEYS)
        equal(what_is(machine, name, *keys), idle)
        equal(machine.status(one.pid), machine.status(name), 'by its pid')
        check(int(machine.status(name)['held_bytes']) > 6 * harness.MIB, 'held_bytes')

        for end in 'cancel', 'go':
            writer = machine.writer(name, 'thaw')
            wait_for(lambda: machine.status(name)['phase'] == 'criu', 'CRIU to be started')
            equal(what_is(machine, name, 'state', 'verbs', 'verb', 'pid', 'start_ticks'),
                  ['restoring', 'cancel', 'thaw', str(one.pid), ticks], end)
            elapsed = int(machine.status(name)['verb_elapsed_usec'])
            wait_for(lambda: int(machine.status(name)['verb_elapsed_usec']) > elapsed > 0, 'time')
            equal(machine.read('status').splitlines()[-1].split()[:4], [name, '0', '-', 'restoring'])
            equal(machine.write(name, 'drop'), 'EBUSY', 'in a verb')
            if end == 'go':
                slow.go()
                equal(writer.result(), 'ok')
            else:
                machine.must(name, 'cancel')
                equal(writer.result(), 'ECANCELED')
                equal(what_is(machine, name, *keys), idle, 'after cancel')
                check(machine.error(name).startswith('ECANCELED: '), machine.error(name))
        one.wait_ticks(2)
        equal(what_is(machine, name, 'pid', 'state', 'verb'), [str(one.pid), 'running', '-'])
        check('engine' in machine.status(name), 'it is the status of the process')


if __name__ == '__main__':
    harness.main(globals())
