# SPDX-License-Identifier: MIT
"""No place has the name of something that the mount's root has itself: no lookup would reach it."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
from harness import Machine, check, equal, error_of, same_for_both


def test_names_of_the_root():
    same_for_both('names of places')
    with Machine() as machine:
        demo = machine.ready_demo()
        names = [name for name in os.listdir(machine.mountpoint) if not name.isdigit()]
        check({'ctl', 'error', 'gpus'} <= set(names), names)
        for name in names:
            equal(machine.write(demo.pid, f'dump name={name}'), 'EINVAL', name)
            check('name= takes' in machine.error(demo.pid), machine.error(demo.pid))
            equal(error_of(lambda name=name: os.mkdir(machine.path(name))), 'EEXIST', name)
        # As long as those, or longer, they are good.
        for name in names:
            os.mkdir(machine.path(f'{name}x'))
            equal(machine.state(f'{name}x'), 'incoming')
            os.rmdir(machine.path(f'{name}x'))


if __name__ == '__main__':
    harness.main(globals())
