# SPDX-License-Identifier: MIT
"""gpucr-top on a terminal and without one: what it shows of a mount, its keys, and that it leaves
the terminal as it was."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import BUILD, Machine, check, equal
from terminal import Terminal

TOP = f'{BUILD}/tools/gpucr-top'
# Leaves the screen that programs draw on.
LEAVES = b'\x1b[?1049l'


def top(machine, *arguments, term='xterm-256color', locale='C.UTF-8', **size):
    env = {**machine.env, 'TERM': term, 'LC_ALL': locale, 'GPUCR_MOUNT': machine.mountpoint}
    return Terminal([TOP, '--interval', '0.1', *arguments], env, **size)


def shows(*words):
    """Is there a line with all of them?"""
    return lambda lines: any(all(str(word) in line.split() for word in words) for line in lines)


def says(words):
    return lambda lines: words in lines[-1]


def test_verbs():
    with vmm.machine() as machine:
        demo = vmm.demo(machine)
        with top(machine) as screen:
            screen.wait(shows(demo.pid, 'gpucr-demo', 'running', '0'), 'the process')
            screen.wait(lambda lines: lines[1].startswith('GPU 0 [█') and
                        ', held 0,' in lines[1] and lines[2].startswith('store [·'), 'bars')
            screen.keys('f')
            screen.wait(says(f'freeze {demo.pid}? y/n'), 'the question')
            screen.keys('nv')
            screen.wait(says('q quit'), 'no question')
            equal(machine.state(demo.pid), 'running')
            screen.keys('fy')
            screen.wait(says(f'freeze {demo.pid}: ok'), 'the end of the freeze')
            screen.wait(shows(demo.pid, 'frozen'), 'a frozen process')
            screen.wait(lambda lines: '░' in lines[1], 'what is held')
            equal(machine.state(demo.pid), 'frozen')
            screen.keys('f')
            screen.wait(says(f'freeze {demo.pid}? y/n'), 'the question again')
            screen.keys('y')
            screen.wait(says(f'freeze {demo.pid}: ok'), 'what is frozen already')
            screen.keys('ty')
            screen.wait(says(f'thaw {demo.pid}: ok'), 'the end of the thaw')
            screen.wait(shows(demo.pid, 'running'), 'a running process')
            machine.failing('freeze')
            screen.keys('fy')
            screen.wait(says(f'freeze {demo.pid}: EIO: '), 'a failure, in words')
            machine.faults()
            screen.keys('q')
            equal(screen.end(), 0)
            check(LEAVES in screen.all, 'the screen is left')
        demo.wait_ticks()


def test_a_refusal():
    """What is not accepted is told at once."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine)
        phase = machine.hold('freeze')
        with top(machine) as screen:
            screen.wait(shows(demo.pid, 'running'), 'the process')
            writer = machine.writer(demo.pid, 'freeze')
            machine.wait_status(demo.pid, 'phase', phase)
            screen.keys('ty')
            screen.wait(says(f'thaw {demo.pid}: EBUSY: '), 'why not')
            machine.let_go()
            screen.wait(shows(demo.pid, 'frozen'), 'its end')
            equal(writer.result(), 'ok')
            screen.popen.send_signal(signal.SIGTERM)
            equal(screen.end(), 0)
            check(LEAVES in screen.all, 'the screen is left')
        machine.must(demo.pid, 'thaw')


def test_order_and_selection():
    with Machine(vram='512M') as machine:
        small, large = machine.ready_demo(), machine.ready_demo('--bytes', '64M')

        def order(*pids):
            return lambda lines: [int(line.split()[0]) for line in lines
                                  if 'gpucr-demo' in line] == list(pids)

        with top(machine) as screen:
            screen.wait(order(large.pid, small.pid), 'the largest first')
            screen.keys('p')
            screen.wait(order(*sorted((small.pid, large.pid))), 'by pid')
            screen.keys('v')
            screen.wait(order(large.pid, small.pid), 'the largest first again')
            # Who is selected stays so, wherever it goes: down, and up beyond the first.
            screen.keys('\x1bOBf')
            screen.wait(says(f'freeze {small.pid}? y/n'), 'the second one')
            screen.keys('ni')
            screen.keys('f')
            screen.wait(says(f'freeze {small.pid}? y/n'), 'the same one')
            screen.keys('nv\x1bOA\x1bOAf')
            screen.wait(says(f'freeze {large.pid}? y/n'), 'the first one')
            screen.keys('n')
            screen.keys('\x03')
            equal(screen.end(), 0, 'Ctrl-C')


def test_sizes():
    """Any size, without colours and without UTF-8."""
    with Machine() as machine:
        demo = machine.ready_demo()
        with top(machine, term='vt100', locale='C') as screen:
            screen.wait(shows(demo.pid, 'gpucr-demo', 'running', '0'), 'the process')
            for lines, columns in ((10, 44), (4, 30), (24, 200), (2, 5), (1, 1), (24, 80)):
                screen.resize(lines, columns)
                word = str(demo.pid)
                if columns >= 30 and lines >= 4:
                    screen.wait(shows(word, 'gpucr-demo'), f'the process on {lines}x{columns}')
                elif lines == 2:
                    screen.wait(lambda lines: lines[0] == 'gpucr', f'a title on {lines}x{columns}')
            screen.wait(lambda lines: '#' in lines[1], 'a bar of ASCII')
            check(all(byte < 0x80 for byte in screen.all), 'ASCII')
            screen.keys('q')
            equal(screen.end(), 0)


def test_a_daemon_that_goes():
    with Machine() as machine:
        demo = machine.ready_demo()
        with top(machine) as screen:
            screen.wait(shows(demo.pid), 'the process')
            machine.stop()
            screen.wait(lambda lines: 'no gpucrfs is mounted there' in lines[0], 'that it is gone')
            machine.start()
            screen.wait(shows(demo.pid, 'running'), 'the process again')
            machine.stop(signal.SIGKILL)
            screen.wait(lambda lines: 'its daemon has ended' in lines[0], 'that it has died')
            machine.start()
            screen.wait(shows(demo.pid, 'running'), 'the process once more')
            screen.keys('q')
            equal(screen.end(), 0)


def test_once():
    with vmm.machine() as machine:
        demo = vmm.demo(machine)
        machine.must(demo.pid, 'freeze')
        done = subprocess.run([TOP], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env={**machine.env, 'GPUCR_MOUNT': machine.mountpoint}, check=False)
        equal([done.returncode, done.stderr], [0, ''])
        check('\x1b' not in done.stdout, done.stdout)
        titles, line = done.stdout.splitlines()[-2:]
        fields = dict(zip(titles.split(), line.split()))
        equal([fields['ID'], fields['COMMAND'], fields['STATE'], fields['VRAM'], fields['GPU']],
              [str(demo.pid), 'gpucr-demo', 'frozen', '0', '0'])
        check(fields['HELD'].endswith('MiB') and fields['FREEZE'].endswith('s'), fields)
        machine.must(demo.pid, 'thaw')


def test_unknown_terminal():
    with Machine() as machine, top(machine, term='no-such-terminal') as screen:
        equal(screen.end(), 1)
        check(b'TERM=no-such-terminal' in screen.all, screen.all)


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
