# SPDX-License-Identifier: MIT
"""Programs set what they rely on of signals: they are started with all of them ignored or blocked."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dispositions
import harness
from harness import BUILD, Machine, check, equal, wait_for


def make_machine():
    return Machine(start=False)


def test_daemon():
    """It notices the ends of its helpers, freezes and thaws, and ends when it is told to."""
    with make_machine() as machine:
        machine.start(preexec_fn=dispositions.worst)
        demo = machine.ready_demo()
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()
        # One that is killed is noticed and waited for.
        for pid, _ in machine.helpers():
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda gone=pid: not os.path.exists(f'/proc/{gone}'), 'no zombie')
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        equal(machine.stop(), 0, 'its status')


def test_swap():
    """gpucr-swap watch: SIGTERM ends it, the end of the terminal, which is ignored, does not."""
    with Machine() as machine:
        program = subprocess.Popen([f'{BUILD}/tools/gpucr-swap', 'watch', '--idle', '60'],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, restore_signals=False,
                                   env={**machine.env, 'GPUCR_MOUNT': machine.mountpoint},
                                   preexec_fn=dispositions.worst)

        def handles(number):
            status = harness.read_file(f'/proc/{program.pid}/status')
            mask = next(line for line in status.split('\n') if line.startswith('SigBlk'))
            return int(mask.split()[1], 16) >> number - 1 & 1

        wait_for(lambda: handles(signal.SIGTERM), 'it to watch')
        program.send_signal(signal.SIGHUP)
        check(not handles(signal.SIGHUP), 'SIGHUP stays ignored')
        program.send_signal(signal.SIGTERM)
        check(program.wait(harness.PATIENCE_SEC) in (0, 143), f'its status: {program.returncode}')
        program.stdout.close()


if __name__ == '__main__':
    harness.main(globals())
