# SPDX-License-Identifier: MIT
"""dump of several processes: all of a tree or none."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import vendor
from harness import check, equal, is_alive, same_for_both, wait_for


def wait_tree_gone(root, *programs):
    for one in programs:
        one.wait_gone()
    root.wait_gone()


def place_of(machine):
    equal(len(dump.places(machine)), 1, 'places')
    return dump.places(machine)[0]


def child_of(program):
    children = harness.read_file(f'/proc/{program.pid}/task/{program.pid}/children').split()
    equal(len(children), 1, 'children')
    return int(children[0])


def comm_of(pid):
    return harness.read_file(f'/proc/{pid}/comm').strip()


def test_launcher():
    """The root uses no GPU: it has no VRAM in the place, and what is below it has."""
    with dump.machine() as machine:
        root, (one, two) = dump.launcher(machine)
        for program in (one, two):
            program.wait_ticks(2)
        machine.must(root.pid, 'dump')
        wait_tree_gone(root, one, two)
        name = place_of(machine)
        equal(machine.state(name), 'dumped')
        equal(name.split('-')[:2], ['sh', str(root.pid)])
        equal(sorted(os.listdir(machine.path(name, 'snapshot'))),
              ['criu', 'digests', 'files', 'manifest', 'processes'])
        equal(sorted(os.listdir(machine.path(name, 'snapshot/processes'))),
              sorted([str(one.pid), str(two.pid)]))
        for program in (one, two):
            equal(sorted(os.listdir(machine.path(name, 'snapshot/processes', program.pid))),
                  ['digests', 'manifest', 'vram'])
        machine.must(name, 'thaw')
        for program in (one, two):
            program.wait_ticks(2)
            equal(machine.state(program.pid), 'running')
        equal(comm_of(root.pid), 'sh')


def test_child_that_has_ended():
    """One that nobody has waited for is dumped as such."""
    with dump.machine() as machine:
        script = f'sleep 0.2 & exec {dump.demo_in_shell(machine, "program")}'
        root = dump.Program(machine, command=['sh', '-c', script], name='root')
        program = dump.Program.below(root, 'program').wait_ready()
        for _ in range(2):
            program.wait_ticks(1)
            wait_for(lambda: ') Z ' in harness.read_file(f'/proc/{child_of(program)}/stat'),
                     'the end of the child')
            machine.must(program.pid, 'dump')
            program.wait_gone()
            machine.must(place_of(machine), 'thaw')
        program.wait_ticks(1)


def test_gpu_processes_below_each_other():
    """A GPU process with another one below it that has forked a child."""
    with dump.machine() as machine:
        script = f"{dump.demo_in_shell(machine, 'below', '--children 1')} & " \
                 f"exec {dump.demo_in_shell(machine, 'above')}"
        root = dump.Program(machine, command=['sh', '-c', script], name='root')
        above, below = [dump.Program.below(root, name).wait_ready() for name in ('above', 'below')]
        equal(above.pid, root.pid)
        for program in (above, below):  # it is known to use a GPU
            machine.wait_status(program.pid, 'state', 'running')
        # The upper one alone stands for both.
        machine.must(above.pid, 'dump name=both')
        wait_tree_gone(root, above, below)
        equal(sorted(os.listdir(machine.path('both', 'snapshot'))),
              ['criu', 'digests', 'files', 'manifest', 'processes', 'vram'])
        machine.must('both', 'thaw')
        for program in (above, below):
            program.wait_ticks(2)
        # The child has come along, with what it has inherited, and does so again.
        child = child_of(below)
        machine.must(above.pid, 'dump')
        wait_tree_gone(root, above, below)
        check(not is_alive(child), 'it is of the tree')
        machine.must('both', 'thaw')
        for program in (above, below):
            program.wait_ticks(2)
        equal(child_of(below), child)


def test_only_a_part_of_a_tree():
    """What is above is left out: its child ends."""
    with dump.machine() as machine:
        root, (one, two) = dump.launcher(machine)
        machine.must(one.pid, 'dump name=part')
        wait_for(lambda: not is_alive(one.pid), 'its end')
        two.wait_ticks()
        equal(machine.state(two.pid), 'running')
        check(is_alive(root.pid), 'the shell')
        equal(os.listdir(machine.path('part', 'snapshot')).count('processes'), 0)


def test_one_that_fails():
    """If one cannot be frozen none is dumped, and those that were frozen go on."""
    with dump.machine() as machine:
        root, programs = dump.launcher(machine, 3)
        machine.must(programs[0].pid, 'freeze')
        if vendor.HIP:
            machine.failing('freeze', programs[1].pid)
        else:
            machine.failing('freeze', more='times=1')
        result = machine.write(root.pid, 'dump')
        check(result not in ('ok', 'ESRCH'), result)
        machine.faults()
        # Which was frozen before stays so.
        equal(machine.state(programs[0].pid), 'frozen')
        dump.as_before(machine, *programs[1:])
        machine.must(programs[0].pid, 'thaw')
        dump.as_before(machine, *programs)


MAIN_ENDS = '''import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)
'''


def test_one_whose_main_thread_has_ended():
    """CRIU would take it for one that has ended, and its other threads would be lost."""
    same_for_both('which processes are dumped')
    with dump.machine() as machine:
        script = f"{machine.directory}/main-ends"
        with open(script, 'w', encoding='utf-8') as file:
            file.write(MAIN_ENDS)
        root = dump.Program(machine, name='shell', command=[
            'sh', '-c', f"{dump.demo_in_shell(machine, 'one')} & {sys.executable} {script} & wait; exit 3"])
        one = dump.Program.below(root, 'one').wait_ready()

        def zombies():
            children = harness.read_file(f'/proc/{root.pid}/task/{root.pid}/children').split()
            return [int(child) for child in children
                    if not is_alive(int(child))]

        wait_for(zombies, 'the end of a main thread')
        other, = zombies()
        equal(machine.write(root.pid, 'dump'), 'EOPNOTSUPP')
        check(f'main thread of process {other}' in machine.error(one.pid), machine.error(one.pid))
        dump.as_before(machine, one)
        check(len(os.listdir(f'/proc/{other}/task')) > 1, 'its other thread')
        os.kill(other, 9)


def test_one_that_ends():
    """A member is killed while CRIU is about to begin: the others go on."""
    with dump.machine(wrapped=True) as machine:
        root, (one, two) = dump.launcher(machine)
        machine.criu.set('wait')
        writer = machine.writer(root.pid, 'dump')
        machine.criu.wait()
        os.kill(two.pid, 9)
        machine.criu.go()
        check(writer.result() != 'ok', 'it has ended')
        machine.criu.set()
        dump.as_before(machine, one)
        check(machine.error(one.pid) != 'ok', 'what became of the dump')
        check(is_alive(root.pid), 'the shell')


def test_one_that_leaves():
    """What is no longer below the root when all is frozen would be lost."""
    same_for_both('the tree while it freezes')
    with dump.machine() as machine:
        script = f"sh -c '{dump.demo_in_shell(machine, 'stray')} & wait; exit 3' & wait; exit 3"
        root = dump.Program(machine, command=['sh', '-c', script], name='root')
        stray = dump.Program.below(root, 'stray').wait_ready()
        middle = int(harness.read_file(f'/proc/{stray.pid}/stat').rpartition(')')[2].split()[1])
        check(middle != root.pid, 'a shell between the two')
        phase = machine.slow('freeze', 700)
        writer = machine.writer(root.pid, 'dump')
        machine.wait_status(stray.pid, 'phase', phase)
        os.kill(middle, 9)
        equal(writer.result(), 'EBUSY')
        check('no longer below' in machine.error(stray.pid), machine.error(stray.pid))
        machine.faults()
        dump.as_before(machine, stray)


LISTENER = """
import os, signal, sys, time
pid = os.fork()
if not pid:
    os.setpgid(0, 0)
    def note(number, _):
        os.write(1, b'signal %d\\n' % number)
    for number in (signal.SIGHUP, signal.SIGCONT):
        signal.signal(number, note)
    os.write(1, b'ready\\n')
    while True:
        time.sleep(1000)
os.system(sys.argv[1])
"""


def test_process_groups():
    """A child in a group of its own, which would tell if it ran once more while the tree ends."""
    same_for_both('groups of processes')
    with dump.machine() as machine:
        path = f'{machine.directory}/listener'
        root = dump.Program(machine, dump.demo_in_shell(machine, 'one'), name='listener',
                            command=[sys.executable, '-c', LISTENER])
        one = dump.Program.below(root, 'one').wait_ready()
        wait_for(lambda: harness.read_file(f'{path}.out') == 'ready\n', 'the child')
        machine.must(root.pid, 'dump name=all')
        wait_tree_gone(root, one)
        equal(harness.read_file(f'{path}.out'), 'ready\n')
        machine.must('all', 'thaw')
        one.wait_ticks(1)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
