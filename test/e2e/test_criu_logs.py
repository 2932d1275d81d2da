# SPDX-License-Identifier: MIT
"""What the daemon keeps of CRIU for each process and place goes with them, also if no daemon runs when
they do; and only then."""
import os
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
from harness import check, equal, read_file, wait_for


def kept(machine):
    directory = f'{machine.runtime}/criu'
    return sorted(name for name in os.listdir(directory)
                  if not name.startswith('plugins')) if os.path.isdir(directory) else []


def kill_daemon(machine):
    machine.daemon.kill()
    machine.daemon.wait()


def end(one):
    os.kill(one.pid, signal.SIGKILL)
    one.wait_gone()


def subject(machine, one):
    return f'process-{one.pid}-{machine.status(one.pid)["start_ticks"]}'


def test_restored_and_ended_without_a_daemon():
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        equal(kept(machine), [f'place-{name}'])
        restore.thaws(machine, one, name)
        equal(kept(machine), [f'place-{name}'])
        kill_daemon(machine)
        end(one)
        restore.start(machine)
        equal(kept(machine), [])


def test_dumped_and_ended_without_a_daemon():
    """A dump that left it running, or has failed."""
    with restore.machine() as machine:
        ending, living = dump.program(machine), dump.program(machine, name='living')
        for one in ending, living:
            machine.must(one.pid, f'dump leave name=left-{one.pid}')
        equal(kept(machine), sorted(subject(machine, one) for one in (ending, living)))
        stays = subject(machine, living)
        log = read_file(f'{machine.runtime}/criu/{stays}/criu.log')
        check(log, 'a log')
        kill_daemon(machine)
        end(ending)
        restore.start(machine)
        equal(kept(machine), [stays])
        equal(read_file(f'{machine.runtime}/criu/{stays}/criu.log'), log)
        end(living)
        wait_for(lambda: not kept(machine), 'the rest to go')


def test_names_in_it():
    """CRIU writes names of files as programs have chosen them; whoever reads its log on a terminal, or an
    error that comes from it, gets none of what controls that."""
    with dump.machine() as machine:
        path = f'{machine.directory}/\x1b[2J\x9b\r\x07name'

        def hold():
            os.set_inheritable(os.open(path, os.O_RDWR | os.O_CREAT), True)

        one = dump.program(machine, prepare=hold)
        machine.must(one.pid, 'dump leave')
        with open(f'{machine.runtime}/criu/{subject(machine, one)}/criu.log', 'rb') as file:
            check(b'\x1b[2J' in file.read(), 'CRIU does not name the file')
        log = machine.read(one.pid, 'criu.log')
        check('?[2J?' in log and 'name' in log, 'the name is not in the log')
        check(all(line.replace('\t', '').isprintable() for line in log.split('\n')), 'the log')


def test_places_that_stay():
    """A dumped program's is there as long as the place; so are those that are none of ours."""
    with restore.machine() as machine:
        one, other = dump.program(machine), dump.program(machine, name='other')
        names = [dump.dumped(machine, program) for program in (one, other)]
        foreign = ['place', 'place-', 'process-1', f'process-0{os.getpid()}-1', 'of-mine']
        for name in foreign:
            os.mkdir(f'{machine.runtime}/criu/{name}', 0o700)
        with open(f'{machine.runtime}/criu/place-/mine', 'w', encoding='utf-8'):
            pass
        kill_daemon(machine)
        restore.start(machine)
        equal(kept(machine), sorted(foreign + [f'place-{name}' for name in names]))
        log = read_file(machine.path(names[0], 'criu.log'))
        check(log, 'a log')
        os.rmdir(machine.path(names[1]))
        restore.thaws(machine, one, names[0])
        equal(kept(machine), sorted(foreign + [f'place-{names[0]}']))
        for name in foreign:
            for file in os.listdir(f'{machine.runtime}/criu/{name}'):
                os.unlink(f'{machine.runtime}/criu/{name}/{file}')
            os.rmdir(f'{machine.runtime}/criu/{name}')
        restore.ends(machine, one, names[0])
        wait_for(lambda: not kept(machine), 'all to go')


def test_the_store_is_lost_without_a_daemon():
    """With its places, of which nothing else is left."""
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        kill_daemon(machine)
        shutil.rmtree(f'{machine.runtime}/store/incoming-{name}')
        restore.start(machine)
        equal(kept(machine), [])


if __name__ == '__main__':
    harness.main(globals())
