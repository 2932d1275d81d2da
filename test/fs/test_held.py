# SPDX-License-Identifier: MIT
"""The watchdog: a service manager, which is the test, hears no more of a daemon in which a request is
held up, until that goes on. A verb may take as long as it has been given. And what root does, or a
process becomes, while a user's requests are held up."""
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import holding
from harness import NOBODY, Machine, check, equal, error_of, is_root, same_for_both, wait_for
from users import GPU_PROGRAM

WATCHDOG_USEC = 300000
ROOM = 4002  # a group
# openat and pwrite64
WAITING_CALLS = {'x86_64': ('257', '18'), 'aarch64': ('56', '68')}[os.uname().machine]


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


TURNS = 4  # that a user has below any `snapshot`
LOST = {'read': lambda path: os.open(path, os.O_RDONLY),
        'write': lambda path: os.open(path, os.O_WRONLY),
        'change': lambda path: os.open(path, os.O_RDWR),
        'empty': lambda path: os.open(path, os.O_RDONLY | os.O_TRUNC)}
CALLS = {**LOST, 'list': os.listdir, 'group': LOST['read'], 'own': LOST['change']}


def make_file(path, mode):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, mode))


def user(work):
    """A process of NOBODY's, with ROOM among its groups."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setgroups([ROOM])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def ends_well(pid):
    equal(os.waitpid(pid, 0)[1], 0)


def call_in_threads(snapshot, out):
    """He writes to as many files as he has turns, and then calls what has to wait for them."""
    found = {}

    def call(name, function):
        found[name] = error_of(lambda: function(f'{snapshot}/{name}'))

    def write(name):
        fd = os.open(f'{snapshot}/{name}', os.O_WRONLY)
        os.pwrite(fd, b'x', 0)

    writers = [threading.Thread(target=write, args=(f'held-{i}',)) for i in range(TURNS)]
    for thread in writers:
        thread.start()
    os.read(out[0], 1)  # all four are held
    others = [threading.Thread(target=call, args=one) for one in CALLS.items()]
    for thread in others:
        thread.start()
    for thread in writers + others:
        thread.join()
    os.write(out[1], json.dumps(found).encode())


def waiting(pid):
    """How many of the process's threads wait for an answer of the mount's."""
    count = 0
    for tid in os.listdir(f'/proc/{pid}/task'):
        with open(f'/proc/{pid}/task/{tid}/syscall', encoding='utf-8') as file:
            count += file.read().split()[0] in WAITING_CALLS
    return count


def test_chown_overtakes_opens():
    """Opens and listings that the kernel has permitted wait for the user's turn; root
    takes the files away meanwhile: none is served by what the user had before."""
    no_sanitizers()
    if not is_root():
        raise harness.Skip('several users are needed')
    with Machine(start=False) as machine:
        held = holding.Holding(machine.directory, machine.runtime)
        machine.start(env=held.env)
        place = machine.path('place')
        snapshot = f'{place}/snapshot'

        def make():
            os.umask(0)
            os.mkdir(place)
            os.mkdir(f'{snapshot}/list', 0o755)
            for name in *LOST, 'group', 'own', *(f'held-{i}' for i in range(TURNS)):
                make_file(f'{snapshot}/{name}', 0o666)

        ends_well(user(make))
        to_us, to_child = os.pipe(), os.pipe()
        held.set(False, 0, is_disk_held=True)
        pid = user(lambda: call_in_threads(snapshot, (to_child[0], to_us[1])))
        wait_for(lambda: held.held_writes() == TURNS, 'his turns to be taken')
        os.write(to_child[1], b'x')
        wait_for(lambda: waiting(pid) == TURNS + len(CALLS), 'his calls to wait')
        for name in *LOST, 'list', 'group':
            os.chown(f'{snapshot}/{name}', 0, ROOM if name == 'group' else 0)
            os.chmod(f'{snapshot}/{name}', 0o640)
        os.chmod(f'{snapshot}/own', 0o644)
        held.set(False, 0)
        ends_well(pid)
        found = json.loads(os.read(to_us[0], 4096))
        # What his groups and the new mode leave him he has.
        equal(found, {**dict.fromkeys((*LOST, 'list'), 'EACCES'), 'group': 'ok', 'own': 'ok'})


# It is root's and his by turns: PR_SET_DUMPABLE is 4.
CHANGING = GPU_PROGRAM + """
while line := sys.stdin.readline():
    print(ctypes.CDLL(None).prctl(4, int(line)), flush=True)
"""


def change(program, is_dumpable):
    program.stdin.write(f'{is_dumpable}\n')
    equal(program.stdout.readline(), '0\n')


def open_held(held, path, meanwhile):
    """How NOBODY's open ends, whose text is held meanwhile."""
    count = held.held_texts()
    held.hold_texts(True)
    ours, his = os.pipe()
    pid = user(lambda: os.write(his, error_of(lambda: os.close(os.open(path, os.O_RDONLY))).encode()))
    wait_for(lambda: held.held_texts() > count, 'the text to be held')
    meanwhile()
    held.hold_texts(False)
    ends_well(pid)
    os.close(his)
    with os.fdopen(ours) as pipe:
        return pipe.read()


def test_process_becomes_roots_while_its_user_opens():
    """The text that is written for him is about a program of root's by then."""
    no_sanitizers()
    if not is_root():
        raise harness.Skip('several users are needed')
    with Machine(start=False) as machine:
        held = holding.Holding(machine.directory)
        machine.start(env=held.env)
        library = f'{machine.env["GPUCR_SIM_LIBDIR"]}/libcuda.so.1'
        with subprocess.Popen([sys.executable, '-c', CHANGING, library], text=True, bufsize=1,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              env=machine.env) as program:
            try:
                equal(program.stdout.readline(), '0 0\n')
                wait_for(lambda: os.path.exists(machine.path(program.pid)), 'its directory')
                for name in 'status', 'maps', 'error':
                    path = machine.path(program.pid, name)
                    equal(open_held(held, path, lambda: None), 'ok', name)
                    equal(open_held(held, path, lambda: change(program, 0)), 'EACCES', name)
                    change(program, 1)
            finally:
                program.kill()


if __name__ == '__main__':
    harness.main(globals())
