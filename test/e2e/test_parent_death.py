# SPDX-License-Identifier: MIT
"""dump and thaw of what asked the kernel for a signal when its parent ends (PR_SET_PDEATHSIG): the
parent that it meant is gone by then, and what CRIU makes it a child of ends soon after."""
import json
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
from harness import BUILD, check, equal, is_alive, read_file, same_for_both, wait_for

LIBRARY = f'{BUILD}/test/e2e/libparent-death.so'


def tied(machine, what, name='tied'):
    """gpucr-demo below a shell that stays; @what of it ends with its parent."""
    demo = dump.demo_in_shell(machine, name)
    shell = dump.Program(machine, command=['sh', '-c', f'{demo} & wait; exit 3'],
                         name=f'{name}-shell',
                         env={'LD_PRELOAD': LIBRARY, 'GPUCR_TEST_PARENT_DEATH': what})
    one = dump.Program.below(shell, name).wait_ready()
    check(one.pid != shell.root, 'the shell is its parent')
    return one


def dumped(machine, one):
    """And its parent has ended."""
    name = dump.dumped(machine, one)
    one.popen.wait()
    return name


def pid_of(machine, name):
    return int(machine.status(name)['pid'])


def goes_on(machine, one, name, verb='thaw'):
    """Thawed, it lives, also when CRIU and the daemon have ended, and after another dump."""
    for _ in range(2):
        machine.must(name, verb)
        equal(machine.state(name), 'running', machine.error(name))
        one.pid = pid_of(machine, name)
        one.wait_ticks()
        dump.kill_daemon(machine)
        restore.start(machine)
        one.wait_ticks()
        check(is_alive(one.pid), 'it lives')
        if 'pid=new' in verb:  # it cannot be dumped again
            break
        name = dump.dumped(machine, one, f'dump name={one.path.rpartition("/")[2]}-again')


def child_of(pid):
    with open(f'/proc/{pid}/task/{pid}/children', encoding='utf-8') as file:
        children = [int(child) for child in file.read().split()]
    equal(len(children), 1, 'its children')
    return children[0]


def test_it_would_end():
    """What the other tests tell: without a dump it ends with its parent."""
    same_for_both('who ends')
    with dump.machine() as machine:
        for what in 'main', 'thread', 'child':
            one = tied(machine, what, what)
            child = child_of(one.pid) if what == 'child' else None
            os.kill(one.root, signal.SIGKILL)
            one.popen.wait()
            wait_for(lambda: one.reap() or not is_alive(one.pid), f'the end of {what}')
            if child:
                wait_for(lambda: one.reap() or not is_alive(child), 'the end of its child')


def test_main_thread():
    with dump.machine() as machine:
        one = tied(machine, 'main')
        goes_on(machine, one, dumped(machine, one))


def test_other_thread():
    same_for_both('what CRIU makes')
    with dump.machine() as machine:
        one = tied(machine, 'thread')
        goes_on(machine, one, dumped(machine, one))


def test_child_of_the_tree():
    """Its parent is in the tree: it ends with that, and not before."""
    same_for_both('what CRIU makes')
    with dump.machine() as machine:
        one = tied(machine, 'child')
        child = child_of(one.pid)
        name = dumped(machine, one)
        check(not is_alive(child), 'all of the tree has ended')
        machine.must(name, 'thaw')
        one.wait_ticks()
        equal(child_of(one.pid), child)
        check(is_alive(child), 'the child lives')
        os.kill(one.pid, signal.SIGKILL)
        wait_for(lambda: one.reap() or not is_alive(child), 'its end with its parent')


def test_left_running():
    """A dump that leaves it running changes the images, not the program."""
    same_for_both('what CRIU makes')
    with dump.machine() as machine:
        one = tied(machine, 'main')
        machine.must(one.pid, 'dump leave name=copy')
        machine.must(one.pid, 'thaw')
        one.wait_ticks()
        os.kill(one.root, signal.SIGKILL)
        one.popen.wait()
        one.wait_gone()
        machine.must('copy', 'thaw')
        machine.must('copy', 'freeze')
        machine.must('copy', 'thaw')
        check(is_alive(one.pid), 'it lives')


def test_launched():
    """CRIU is a child of gpucr-launch, which ends with it."""
    same_for_both('who starts CRIU')
    with dump.machine(launched=True) as machine:
        one = tied(machine, 'main')
        goes_on(machine, one, dumped(machine, one))


def test_new_pids():
    """Its parent is the init of its namespace, or CRIU in there."""
    same_for_both('what CRIU makes')
    with dump.machine() as machine:
        one = tied(machine, 'main')
        goes_on(machine, one, dumped(machine, one), 'thaw pid=new')


# ---- what an earlier version has dumped ----

def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7f) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def field_at(data, at, end, wanted):
    """Where the content of this field of a message begins and ends."""
    while at < end:
        key, at = varint(data, at)
        content, wire = at, key & 7
        if wire == 0:
            at = varint(data, at)[1]
        elif wire == 2:
            length, content = varint(data, at)
            at = content + length
        else:
            at += {1: 8, 5: 4}[wire]
        if key >> 3 == wanted:
            return content, at
    raise harness.Failure(f'no field {wanted}')


def signal_at(data):
    """Where core_entry.thread_core.pdeath_sig is in an image."""
    return field_at(data, *field_at(data, 12, len(data), 5), 8)[0]


class Old:
    """A place as an earlier version has dumped it: with the signal in the image, as CRIU wrote it."""

    def __init__(self, machine, one):
        self.machine = machine
        self.name = dumped(machine, one)
        self.snapshot = machine.path(self.name, 'snapshot')
        self.image = f'criu/core-{one.pid}.img'
        with open(f'{self.snapshot}/{self.image}', 'rb') as file:
            self.data = bytearray(file.read())
        equal(self.data[signal_at(self.data)], 0, 'the signal in the new image')
        self.data[signal_at(self.data)] = signal.SIGKILL
        self.put(self.data)

    def put(self, data):
        """Another image, and a manifest that says so."""
        path = f'{self.snapshot}/{self.image}'
        with open(path, 'r+b') as file:
            file.write(data)
        digest = subprocess.run([f'{BUILD}/test/unit/tools/make_snapshot', '--digest', path],
                                stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        text = read_file(f'{self.snapshot}/manifest')
        old, = [image['xxh3_128'] for image in json.loads(text)['criu']
                if image['file'] == os.path.basename(self.image)]
        equal(text.count(old), 1)
        sealed = f'{self.machine.directory}/manifest'
        with open(sealed, 'w', encoding='utf-8') as file:
            file.write(text.replace(old, digest))
        subprocess.run([f'{BUILD}/test/unit/tools/make_snapshot', '--seal', sealed], check=True)
        shutil.copyfile(sealed, f'{self.snapshot}/manifest')

    def changed(self):
        """What is beside the place's own files for CRIU."""
        return f'{self.machine.runtime}/store/incoming-{self.name}/criu-changed'

    def check_untouched(self):
        check(not os.path.lexists(self.changed()), 'nothing is left')
        with open(f'{self.snapshot}/{self.image}', 'rb') as file:
            check(file.read() == self.data, 'the image is what it was')


def test_old_dump():
    same_for_both('metadata and files')
    with restore.machine() as machine:
        one = tied(machine, 'main')
        old = Old(machine, one)
        # As it is after failures, and after the end of a daemon in the middle.
        machine.restores.set('fail-after')
        equal(machine.write(old.name, 'thaw'), 'EIO')
        restore.check_back(machine, one, old.name)
        old.check_untouched()
        machine.restores.set('')
        os.mkdir(old.changed())
        os.symlink('/dev/null', f'{old.changed()}/{os.path.basename(old.image)}')
        goes_on(machine, one, old.name)


def test_old_dump_that_is_damaged():
    """It is told, CRIU is not started, and put right it can be thawed."""
    same_for_both('metadata and files')
    with restore.machine() as machine:
        one = tied(machine, 'main')
        old = Old(machine, one)
        at = signal_at(old.data) - 1
        for number in 0, at:
            damaged = bytearray(old.data)
            damaged[number] ^= 7
            old.put(damaged)
            machine.restores.set('')
            equal(machine.write(old.name, 'thaw'), 'EIO')
            words = machine.error(old.name)
            check(os.path.basename(old.image) in words and 'damaged' in words, words)
            check(not machine.restores.has('ran'), 'CRIU has not been started')
            restore.check_back(machine, one, old.name)
        old.put(old.data)
        goes_on(machine, one, old.name)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
