# SPDX-License-Identifier: MIT
"""dump that leaves the process frozen, of frozen ones, and under names; what is open."""
import json
import os
import pathlib
import pty
import re
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import vendor
from harness import check, equal, is_alive, needs_cuda, read_file, same_for_both, wait_for


def end(one):
    """By the test's hand; until its pid is free."""
    os.kill(one.pid, 9)
    one.wait_gone()


def back_to(one, ticks, name):
    """Its output is what it was at that tick; what it has written since goes to a file of @name."""
    os.rename(f'{one.path}.out', f'{one.path}.out.{name}')
    with open(f'{one.path}.out.{name}', encoding='utf-8') as old, \
            open(f'{one.path}.out', 'w', encoding='utf-8') as new:
        new.writelines(old.readlines()[:ticks + 1])


def test_manifest_of_its_owner():
    """While it is frozen its owner may write another manifest, one of a dump even: what the daemon
    knows of the process is taken from the daemon, and the process can be restored."""
    needs_cuda('the share of a context; on AMD it stays')
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        machine.must(one.pid, 'dump leave name=copy')
        manifest = read_file(machine.path('copy', 'snapshot', 'manifest'))
        good = json.loads(manifest)
        gpus = good['gpus'] + [
            {'index': index, 'uuid': f'GPU-{index:08x}-0000-0000-0000-000000000000', 'name': 'x',
             'memory_bytes': 0, 'control_bytes': 0, 'compute_capability': '9.0'}
            for index in range(len(good['gpus']), 32)]
        sealed = f'{machine.directory}/manifest'
        for key, forged in ('driver_version', '"x"'), ('api_version', '1'), ('comm', '"x"'):
            manifest = re.sub(rf'"{key}": [^,\n]*', f'"{key}": {forged}', manifest, count=1)
        with open(sealed, 'w', encoding='utf-8') as file:
            file.write(re.sub(r'"gpus": \[[^]]*\]', f'"gpus": {json.dumps(gpus)}', manifest,
                              count=1))
        subprocess.run([f'{harness.BUILD}/test/unit/tools/make_snapshot', '--seal', sealed],
                       check=True)
        machine.must('copy', 'drop')
        shutil.copyfile(sealed, machine.path(one.pid, 'snapshot', 'manifest'))
        machine.must(one.pid, 'dump name=second')
        found = json.loads(read_file(machine.path('second', 'snapshot', 'manifest')))
        for key in good.keys() - {'digest', 'criu', 'tree', 'made'}:
            equal(found[key], good[key], key)
        equal([image['file'] for image in found['criu']], [image['file'] for image in good['criu']])
        one.wait_gone()
        machine.must('second', 'thaw')
        one.wait_ticks()


def test_leave():
    """It stays frozen, goes on, and is in the place as it was, whatever becomes of it."""
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'dump leave name=copy')
        equal(machine.state(one.pid), 'frozen')
        equal(machine.state('copy'), 'dumped')
        check(dump.threads_state(one.pid) != 'T', 'it is stopped')
        ticks = one.ticks()
        # As often as one likes, each whole.
        machine.must(one.pid, 'dump leave name=copy-2')
        equal(machine.write(one.pid, 'dump leave name=copy'), 'EEXIST')
        equal(machine.state(one.pid), 'frozen')
        equal(one.ticks(), ticks)
        machine.must(one.pid, 'thaw')
        one.wait_ticks()
        # Its next freeze does not write over what the places have.
        machine.must(one.pid, 'freeze')
        machine.must(one.pid, 'thaw')
        one.wait_ticks()
        end(one)
        for name in ('copy', 'copy-2'):
            back_to(one, ticks, name)
            machine.must(name, 'thaw')
            one.wait_ticks()
            equal(machine.state(one.pid), 'running')
            end(one)


def test_its_pid_is_the_last_place():
    """Of all the places it was dumped to, after a daemon's death too: never an older state."""
    with dump.machine() as machine:
        one = dump.program(machine)
        ticks = {}
        for name in 'second', 'first', 'third':
            machine.must(one.pid, f'dump leave name={name}')
            ticks[name] = one.ticks()
            machine.must(one.pid, 'thaw')
            one.wait_ticks()
        machine.must(one.pid, 'dump name=last')
        one.wait_gone()
        dump.kill_daemon(machine)
        machine.start()
        for name in 'last', 'third', 'first':
            equal(os.readlink(machine.path(one.pid)), name)
            if name != 'first':
                os.rmdir(machine.path(name))
        # It is this state that comes back: its next tick is the one after that dump's.
        back_to(one, ticks['first'], 'old')
        machine.must(one.pid, 'thaw')
        one.wait_ticks()
        end(one)


def read_vram(machine, name):
    with os.scandir(machine.path(name, 'snapshot', 'vram')) as entries:
        return {entry.name: pathlib.Path(entry.path).read_bytes() for entry in entries}


def test_pack_after_it():
    """The place has the same files: they stay as they are, or the place would have holes."""
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        machine.must(one.pid, 'pack')
        machine.must(one.pid, 'dump leave name=copy')
        bytes_of_vram = read_vram(machine, one.pid)
        check(any(any(content) for content in bytes_of_vram.values()), 'there is something in it')
        equal(machine.write(one.pid, 'pack'), 'EBUSY')
        check('linked' in machine.error(one.pid), machine.error(one.pid))
        equal(machine.status(one.pid)['packed_bytes'], '0')
        equal(read_vram(machine, one.pid), bytes_of_vram)
        equal(read_vram(machine, 'copy'), bytes_of_vram)
        machine.must('copy', 'drop')
        wait_for(lambda: machine.write(one.pid, 'pack') == 'ok', 'the links to go')
        equal(read_vram(machine, one.pid), bytes_of_vram)
        machine.must(one.pid, 'thaw')
        one.wait_ticks()


def test_a_frozen_one():
    with dump.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        name = dump.dumped(machine, one)
        machine.must(name, 'thaw')
        one.wait_ticks()
        machine.must(one.pid, 'freeze data')
        if vendor.HIP:  # the same as without `data`: CRIU's plugin takes the rest
            name = dump.dumped(machine, one)
            machine.must(name, 'thaw')
            one.wait_ticks()
            return
        equal(machine.write(one.pid, 'dump'), 'EBUSY')
        check('`data`' in machine.error(one.pid), machine.error(one.pid))
        equal(machine.state(one.pid), 'frozen')
        dump.nothing_left(machine)
        machine.must(one.pid, 'thaw')
        one.wait_ticks()


def test_names():
    same_for_both('names of places')
    with dump.machine() as machine:
        one = dump.program(machine)
        os.mkdir(machine.path('taken'))
        generation = machine.status(one.pid)['generation']
        equal(machine.write(one.pid, 'dump name=taken'), 'EEXIST')
        check('taken' in machine.error(one.pid), machine.error(one.pid))
        equal(machine.status(one.pid)['generation'], generation, 'it was not frozen')
        for name in ('1st', 'gpus', 'a/b', '.x', ''):
            equal(machine.write(one.pid, f'dump name={name}'), 'EINVAL', name)
        os.rmdir(machine.path('taken'))
        equal(dump.dumped(machine, one, 'dump name=taken'), 'taken')
        machine.must('taken', 'drop')
        check(not os.path.exists(machine.path('taken')), 'it is gone')
        wait_for(lambda: int(machine.status_of_all()['store_used_bytes']) == 0, 'an empty store')


def test_frozen_by_the_driver():
    """Without our library, and with it where the driver alone can freeze it: VRAM is in the
    program's memory, and so in CRIU's images."""
    needs_cuda('the engine of the driver alone, which leaves VRAM in the images')
    kinds = {'with': {'env': {'GPUCR_PRELOAD_VMM': '0'}},
             'without': {'command': vendor.DEMO,
                         'env': {'LD_LIBRARY_PATH': vendor.LIBRARIES}}}
    with dump.machine(wrapped=True) as machine:
        for kind, options in kinds.items():
            one = dump.program(machine, name=kind, **options)
            equal(machine.status(one.pid)['engine'], 'driver')
            machine.criu.set('fail')
            equal(machine.write(one.pid, 'dump'), 'EIO')
            dump.as_before(machine, one)
            machine.criu.set()
            for number in range(2):
                name = f'{kind}-{number}'
                dump.dumped(machine, one, f'dump name={name}')
                equal(sorted(os.listdir(machine.path(name, 'snapshot'))),
                      ['criu', 'digests', 'files', 'manifest'])
                machine.must(name, 'thaw')
                one.wait_ticks()
            machine.must(one.pid, 'freeze')
            machine.must(one.pid, 'thaw')
            one.wait_ticks()
            end(one)


def records(machine):
    return os.listdir(f'{machine.runtime}/processes')


def test_nothing_of_it_is_left():
    """But the place: no record, no snapshot, no log of CRIU of who is gone for good."""
    with dump.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        wait_for(lambda: not records(machine), 'no record')
        wait_for(lambda: sorted(dump.store(machine)) == sorted(['pool', f'incoming-{name}']),
                 'only the place in the store')
        wait_for(lambda: not [one for one in os.listdir(f'{machine.runtime}/criu')
                              if one.startswith('process-')], 'no log of its')
        machine.must(name, 'thaw')
        one.wait_ticks()
        wait_for(lambda: dump.store(machine) == ['pool'], 'nothing in the store')
        equal(records(machine), [])


def restored_elsewhere(machine, one, log=None, options=''):
    """What had somebody outside goes on with its output in a file: in @log, or the daemon's own."""
    name = dump.dumped(machine, one)
    log = log or f'{machine.runtime}/stdio/{name}.log'
    machine.must(name, f'thaw {options}')
    wait_for(lambda: os.path.exists(log) and harness.read_file(log).count('tick') > 2,
             'output in the log')
    numbers = [int(line.split()[1]) for line in harness.read_file(log).split('\n')[:-1]
               if line.startswith('tick ') and line.strip().endswith(' ok')]
    equal(numbers, list(range(numbers[0], numbers[0] + len(numbers))))


class Ended:
    """A program whose output a test reads from something else than a file."""

    def __init__(self, machine, first, **options):
        self.popen = subprocess.Popen(dump.RUN + [str(word) for word in dump.SMALL],
                                      env=machine.env, cwd='/', **options)
        self.pid = self.root = self.popen.pid
        self.machine = machine
        machine.others.append(self)
        text = b''
        while b'tick 2' not in text:
            text += first()

    reap = dump.Program.reap
    wait_gone = dump.Program.wait_gone
    session = dump.Program.session
    finish = dump.Program.finish


def test_output_to_a_pipe():
    same_for_both('what a program has open')
    with dump.machine() as machine:
        reader, writer = os.pipe()
        one = Ended(machine, lambda: os.read(reader, 4096), stdin=subprocess.DEVNULL,
                    stdout=writer, stderr=writer, start_new_session=True)
        os.close(writer)
        log = f'{machine.directory}/log.of.pipe'
        restored_elsewhere(machine, one, log, f'stdio={log}')


def test_output_to_a_socket():
    same_for_both('what a program has open')
    with dump.machine() as machine:
        ours, its = socket.socketpair()
        one = Ended(machine, lambda: ours.recv(4096), stdin=subprocess.DEVNULL, stdout=its,
                    stderr=its, start_new_session=True)
        its.close()
        restored_elsewhere(machine, one)


def test_output_to_a_terminal():
    """Its session's leader is somebody else, as if a shell had started it."""
    same_for_both('what a program has open')
    with dump.machine() as machine:
        ours, its = pty.openpty()
        one = Ended(machine, lambda: os.read(ours, 4096), stdin=its, stdout=its, stderr=its,
                    start_new_session=True)
        os.close(its)
        restored_elsewhere(machine, one)
        os.close(ours)


OPEN = """
import fcntl, os, sys
lock = open(sys.argv[1], 'w')
fcntl.flock(lock, fcntl.LOCK_EX)
ghost = open(sys.argv[1] + '.ghost', 'w+')
ghost.write('what has no name')
ghost.flush()
os.unlink(ghost.name)
if os.fork():
    os.wait()
    os._exit(3)
os.setpgid(0, 0)
os.write(1, b'%d\\n' % os.getpid())
if not os.fork():
    os.execv('/bin/sh', ['sh', '-c', sys.argv[2]])
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: None)
while True:
    signal.pause()
    ghost.seek(0)
    other = open(sys.argv[1], 'w')
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        words = 'the lock is gone'
    except BlockingIOError:
        words = 'locked'
    os.write(1, f'{ghost.read()}, {words}\\n'.encode())
"""


def test_locks_and_files_without_a_name():
    same_for_both('what a program has open')
    with dump.machine() as machine:
        path = f'{machine.directory}/locked'
        root = dump.Program(machine, path, dump.demo_in_shell(machine, 'one'), name='root',
                            command=[sys.executable, '-c', OPEN])
        one = dump.Program.below(root, 'one').wait_ready()
        machine.must(root.pid, 'dump name=all')
        for program in (one, root):
            program.wait_gone()
        machine.must('all', 'thaw')
        one.wait_ticks()
        pid = int(harness.read_file(f'{root.path}.out').split()[0])
        os.kill(pid, 10)
        wait_for(lambda: 'what has no name, locked\n' in harness.read_file(f'{root.path}.out'),
                 'its words')


def test_from_a_shell():
    """Not the leader of its session, which is left out."""
    same_for_both('sessions')
    with dump.machine() as machine:
        script = f"{dump.demo_in_shell(machine, 'one')} & wait; exec sleep 1000"
        shell = dump.Program(machine, command=['sh', '-c', script], name='shell')
        one = dump.Program.below(shell, 'one').wait_ready()
        machine.must(one.pid, 'dump name=one')
        wait_for(lambda: not is_alive(one.pid), 'its end')
        wait_for(lambda: not os.path.exists(f'/proc/{one.pid}'), 'the shell to wait for it')
        machine.must('one', 'thaw')
        one.wait_ticks()
        check(is_alive(shell.pid), 'the shell')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
