# SPDX-License-Identifier: MIT
"""The watchdog: a service manager, which is the test, hears no more of a daemon in which a request is
held up, until that goes on. A verb may take as long as it has been given."""
import os
import re
import select
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import holding
from harness import Machine, check, equal, same_for_both, wait_for

WATCHDOG_USEC = 300000


class Manager:
    """Listens as systemd does."""

    def __init__(self, directory):
        self.path = f'{directory}/notify'
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.env = {'NOTIFY_SOCKET': self.path, 'WATCHDOG_USEC': str(WATCHDOG_USEC)}

    def listen(self, seconds):
        """What is said in so long."""
        heard = []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.socket], [], [], left)[0]:
                heard += self.socket.recv(4096).decode().split('\n')
        return heard

    def wait(self, word):
        deadline = time.monotonic() + harness.PATIENCE_SEC
        while select.select([self.socket], [], [], max(0, deadline - time.monotonic()))[0]:
            if word in self.socket.recv(4096).decode().split('\n'):
                return
        raise harness.Failure(f'{word} was not said')

    def finish(self):
        """Nobody is to wait for it to hear."""
        self.socket.close()

    def wait_silence(self):
        wait_for(lambda: not self.listen(5 * WATCHDOG_USEC / 1000000), 'silence')


def start(machine):
    held = holding.Holding(machine.directory)
    manager = Manager(machine.directory)
    machine.others.append(manager)
    machine.start(env={**held.env, **manager.env})
    manager.wait('READY=1')
    manager.wait('WATCHDOG=1')
    return held, manager


def complaints(machine):
    return re.findall(r'a request \((\w+) of ([^,]+), node (\w+)\) is held up in the daemon for (\d+) s',
                      machine.log())


def no_sanitizers():
    if harness.SANITIZER != 'none':
        raise harness.Skip('a sanitizer has a clock and a start of its own')
    same_for_both('the watchdog')


def test_held_up():
    no_sanitizers()
    with Machine(start=False) as machine:
        held, manager = start(machine)
        held.set(True, 0)
        held.ask(machine)
        # It is there, and legal yet; others are answered.
        time.sleep(0.2)
        machine.read('status')
        manager.listen(0.1)
        manager.wait('WATCHDOG=1')
        manager.wait('WATCHDOG=1')
        equal(complaints(machine), [])
        held.set(True, holding.LEGAL_SEC + 10)
        manager.wait_silence()
        (kind, name, _, seconds), = complaints(machine)
        equal((kind, name), ('statfs', 'the root'))
        check(int(seconds) >= holding.LEGAL_SEC, seconds)
        machine.read('status')
        equal(manager.listen(5 * WATCHDOG_USEC / 1000000), [])
        held.set(False, holding.LEGAL_SEC + 10)
        manager.wait('WATCHDOG=1')
        manager.wait('WATCHDOG=1')
        held.thread.join(harness.PATIENCE_SEC)
        check('no request is held up any more' in machine.log(), machine.log())
        equal(len(complaints(machine)), 1)


def test_without_manager():
    """It is only logged."""
    no_sanitizers()
    with Machine(start=False) as machine:
        held = holding.Holding(machine.directory)
        machine.start(env={**held.env, 'WATCHDOG_USEC': '3000000', 'WATCHDOG_PID': '1'})
        equal(complaints(machine), [])
        held.set(True, 0)
        held.ask(machine)
        time.sleep(0.2)
        held.set(True, holding.LEGAL_SEC + 10)
        # A look is due every thirty seconds of the clock that is not ours.
        wait_for(lambda: complaints(machine), 'a line of the log', 60)
        check('service manager' not in machine.log(), machine.log())
        held.set(False, 0)


def test_long_verbs_are_legal():
    """A freeze that takes longer than any request may: its writer waits, and all is well."""
    no_sanitizers()
    with Machine(start=False) as machine:
        held, manager = start(machine)
        demo = machine.ready_demo()
        machine.slow('freeze', 4000, demo.pid)
        writer = machine.writer(demo.pid, 'freeze timeout=600').wait_waiting()
        held.set(False, holding.LEGAL_SEC + 100)
        heard = manager.listen(2)
        check(heard.count('WATCHDOG=1') >= 3, heard)
        check(writer.is_waiting(), 'the freeze has ended')
        equal(complaints(machine), [])
        equal(writer.result(), 'ok')
        equal(machine.state(demo.pid), 'frozen')
        machine.must(demo.pid, 'thaw')
        demo.wait_ticks()


if __name__ == '__main__':
    harness.main(globals())
