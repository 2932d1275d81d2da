# SPDX-License-Identifier: MIT
"""A restore in which CRIU fails, hangs or dies, and in which the daemon does: never are there two
living copies, and the place or the process can be used afterwards."""
import contextlib
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
import vendor
from harness import check, equal, is_alive, needs_cuda, same_for_both, try_kill, wait_for


def again(machine):
    """The next daemon."""
    machine.daemon.wait()
    if machine.mountpoint in [path for path, _ in harness.mounts()]:
        subprocess.run(['umount', '-l', machine.mountpoint], check=True)
    restore.start(machine)


MODES = 'fail-before', 'fail-after', 'die-before', 'die-after', 'unguarded', 'no-pid'


def criu_fails(first, **options):
    """Each mode is usually tried with one of the verbs, in turns."""
    with restore.machine(**options) as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        for number, verb in enumerate(('thaw', 'thaw pid=new')):
            for mode in harness.few(MODES[(first + number) % 2::2], MODES):
                machine.restores.set(mode)
                result = machine.write(name, verb)
                check(result != 'ok', f'{mode}, {verb}: {result}')
                check('\n' not in machine.error(name), machine.error(name))
                restore.check_back(machine, one, name)
        machine.restores.set('')
        restore.thaws(machine, one, name)
        restore.ends(machine, one, name)


def test_criu_fails():
    """Also after it has made the tree, when it cannot tell the tree's pid, and when it has not asked
    whether the tree may run."""
    criu_fails(0)


def test_criu_fails_without_cgroups():
    same_for_both('cgroups')
    criu_fails(1, cgroups=False)


def thaws_that_hang(machine, name):
    """Thaws of a place in which CRIU hangs, once before and once after it has made the processes."""
    for mode, sign in (('hang-before', 'ran'), ('hang-after', 'made')):
        machine.restores.set(mode)
        writer = machine.writer(name, 'thaw')
        machine.restores.wait(sign)
        yield mode, sign, writer


def test_criu_hangs():
    """cancel, a signal to the writer and timeout= end it."""
    same_for_both('deadlines')
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        for mode, sign, writer in thaws_that_hang(machine, name):
            equal(machine.state(name), 'restoring')
            equal(machine.write(name, 'thaw pid=new'), 'EBUSY')
            equal(harness.error_of(lambda: os.rmdir(machine.path(name))), 'EBUSY')
            machine.must(name, 'cancel')
            equal(writer.result(), 'ECANCELED', mode)
            restore.check_back(machine, one, name)

            machine.restores.set(mode)
            writer = machine.writer(name, 'thaw')
            second = machine.writer(name, 'thaw')
            machine.restores.wait(sign)
            second.wait_waiting()
            writer.signal(signal.SIGTERM)
            equal(writer.result(), 'killed')
            time.sleep(0.2)
            equal(machine.state(name), 'restoring')  # for the second one
            second.signal(signal.SIGTERM)
            equal(second.result(), 'killed')
            machine.wait_status(name, 'state', 'dumped')
            restore.check_back(machine, one, name)

            machine.restores.set(mode)
            equal(machine.write(name, 'thaw timeout=2'), 'ETIMEDOUT', mode)
            restore.check_back(machine, one, name)
        machine.restores.set('')
        restore.thaws(machine, one, name)


def criu_of(machine):
    """The wrappers, and then what they wait for: a wrapper whose child ends goes on."""
    wrappers, children = [], []
    for name in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            words = harness.read_file(f'/proc/{name}/cmdline').split('\0')
            if f'{machine.restores.directory}/criu' in words:
                wrappers.append(int(name))
                children += map(int, harness.read_file(
                    f'/proc/{name}/task/{name}/children').split())
    return wrappers + children


def test_criu_does_not_end():
    """As if it waited in the kernel for a filesystem that does not answer: the verb ends all the
    same, and so does the daemon."""
    same_for_both('deadlines')
    for cgroups in True, False:
        with restore.machine(cgroups=False) as machine:
            one = dump.program(machine)
            name = dump.dumped(machine, one)
            words = 'unkillable' if cgroups else 'cgroup unkillable'
            restore.fail(machine, words)
            machine.restores.set('hang-before')
            equal(machine.write(name, 'thaw timeout=1'), 'ETIMEDOUT')
            check('does not end' in machine.error(name), machine.error(name))
            equal(machine.state(name), 'failed')
            hung = criu_of(machine)
            check(hung, 'it lives')
            if cgroups:
                equal(machine.write(name, 'thaw'), 'EBUSY')
            for pid in hung:
                try_kill(pid, signal.SIGKILL)
            # Of a child of the daemon's the thread that was left behind sees the end.
            wait_for(lambda: one.reap() or not any(os.path.exists(f'/proc/{pid}') for pid in hung),
                     'its end')
            machine.restores.set('')
            restore.fail(machine, words.replace('unkillable', ''))
            restore.thaws(machine, one, name)

            name = dump.dumped(machine, one)
            restore.fail(machine, words)
            machine.restores.set('hang-before')
            writer = machine.writer(name, 'thaw')
            machine.restores.wait('ran')
            equal(machine.stop(), 0)
            check(writer.result() != 'ok', 'it was not restored')
            for pid in criu_of(machine):
                try_kill(pid, signal.SIGKILL)


def test_daemon_stops_in_criu():
    """SIGTERM: it is rolled back before the daemon has ended."""
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        for mode, _, writer in thaws_that_hang(machine, name):
            equal(machine.stop(), 0)
            check(writer.result() != 'ok', mode)
            equal(restore.processes_of(one), set())
            machine.restores.set('')
            again(machine)
            restore.check_back(machine, one, name)
        restore.thaws(machine, one, name)


def die_in_criu(verb, **options):
    with restore.machine(**options) as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        for mode, sign in (('hang-before', 'ran'), ('hang-after', 'made')):
            machine.restores.set(mode)
            writer = machine.writer(name, verb)
            machine.restores.wait(sign)
            machine.daemon.kill()
            check(writer.result() != 'ok', 'nobody has said that it is done')
            machine.restores.set('')
            again(machine)
            restore.check_back(machine, one, name)
            check('daemon had died' in machine.error(name), machine.error(name))
        restore.thaws(machine, one, name)
        restore.ends(machine, one, name)


def test_daemon_dies_in_criu():
    """SIGKILL: CRIU may be at work still, or have made all of the tree."""
    die_in_criu('thaw')


def test_daemon_dies_in_criu_with_new_pids():
    same_for_both('pids')
    die_in_criu('thaw pid=new')


@contextlib.contextmanager
def in_new_cgroup(path):
    """A process in a cgroup that has got this path, of one whose processes are ended."""
    def is_removed():
        with contextlib.suppress(FileNotFoundError):
            for pid in harness.read_file(f'{path}/cgroup.procs').split():
                try_kill(int(pid), signal.SIGKILL)
            try:
                os.rmdir(path)
            except OSError:
                return False
        return True

    wait_for(is_removed, 'the end of the cgroup')
    os.mkdir(path)
    pid = os.fork()
    if not pid:
        with open(f'{path}/cgroup.procs', 'w', encoding='utf-8') as file:
            file.write('0')
        time.sleep(1000)
        os._exit(0)
    try:
        wait_for(lambda: f'{pid}' in harness.read_file(f'{path}/cgroup.procs').split(), 'it')
        yield pid
    finally:
        try_kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        wait_for(is_removed, 'the end of the cgroup')


def test_cgroup_of_another():
    """By the time at which the next daemon looks for what was restored the cgroup is another tree's."""
    same_for_both('cgroups')
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        for is_known in True, False:
            machine.restores.set('hang-after')
            writer = machine.writer(name, 'thaw')
            machine.restores.wait('made')
            machine.daemon.kill()
            check(writer.result() != 'ok', 'nobody has said that it is done')
            machine.restores.set('')
            path = f'{machine.runtime}/store/incoming-{name}/origin'
            first, second = harness.read_file(path).split('\n')
            cgroup = second[second.index('/'):]
            with in_new_cgroup(cgroup) as pid:
                one.wait_gone()
                if not is_known:  # to an earlier version, which has written the path alone
                    numbers = ' '.join(second.split()[:3])
                    with open(path, 'w', encoding='utf-8') as file:
                        file.write(f'{first}\n{numbers} {cgroup}')
                again(machine)
                check(is_alive(pid), 'it is not ours to end')
                if is_known:
                    restore.check_back(machine, one, name, may_have_cgroup=True)
                else:
                    equal(machine.state(name), 'failed')
                    check(cgroup in machine.error(name), machine.error(name))
                    equal(machine.write(name, 'thaw'), 'EBUSY')
                    check(is_alive(pid), 'it is not ours to end')
        restore.thaws(machine, one, name)
        restore.ends(machine, one, name)


def test_daemon_dies_without_cgroups():
    """When CRIU has let go of the tree, before that is recorded as the process."""
    same_for_both('cgroups')
    for verb in 'thaw', 'thaw pid=new':
        with restore.machine(cgroups=False) as machine:
            one = dump.program(machine)
            name = dump.dumped(machine, one)
            restore.fail(machine, 'cgroup hold')
            writer = machine.writer(name, verb)
            restore.wait_held(machine)
            check(restore.processes_of(one), 'the tree')
            machine.daemon.kill()
            check(writer.result() != 'ok', 'nobody has said that it is done')
            if machine.listener:
                # The next daemon cannot see this CRIU, which must not go on beside another.
                wait_for(lambda: not machine.listener.launchers(), 'the end of CRIU and its launcher')
            restore.fail(machine, 'cgroup')
            again(machine)
            restore.check_back(machine, one, name)
            check('daemon had died' in machine.error(name), machine.error(name))
            restore.thaws(machine, one, name)
            restore.ends(machine, one, name)


def test_death_while_criu_asks():
    """CRIU holds the tree, which may not run yet, and the daemon dies, or CRIU does: nobody need end
    the tree."""
    same_for_both('cgroups')
    for verb in 'thaw', 'thaw pid=new':
        with restore.machine(cgroups=False) as machine:
            one = dump.program(machine)
            name = dump.dumped(machine, one)
            for who in 'daemon', 'criu':
                restore.fail(machine, 'cgroup ask')
                writer = machine.writer(name, verb)
                restore.wait_held(machine)
                check(restore.processes_of(one), 'the tree')
                if who == 'daemon':
                    machine.daemon.kill()
                else:
                    for pid in criu_of(machine):
                        try_kill(pid, signal.SIGKILL)
                wait_for(lambda: one.reap() or not restore.processes_of(one), 'the end of the tree')
                restore.fail(machine, 'cgroup')
                check(writer.result() != 'ok', 'nobody has said that it is done')
                if who == 'daemon':
                    again(machine)
                restore.check_back(machine, one, name)
            restore.thaws(machine, one, name)
            restore.ends(machine, one, name)


def test_what_is_not_known_without_cgroups():
    """Somebody's process has got a number and the name of the dumped tree's, and CRIU has not told
    yet of what it has made: the process lives, and there is no other thaw beside it."""
    same_for_both('cgroups')
    for has_died in False, True:
        with restore.machine(cgroups=False) as machine:
            one = dump.program(machine)
            name = dump.dumped(machine, one)
            machine.restores.set('hang-before')
            writer = machine.writer(name, 'thaw')
            machine.restores.wait('ran')
            pid = restore.fork_as(one.pid, harness.NOBODY, 'gpucr-demo')
            try:
                wait_for(lambda: harness.read_file(f'/proc/{pid}/comm') == 'gpucr-demo\n', 'its name')
                if has_died:
                    hung = criu_of(machine)
                    machine.daemon.kill()
                    writer.result()
                    for process in hung:
                        try_kill(process, signal.SIGKILL)
                    again(machine)
                else:
                    machine.must(name, 'cancel')
                    writer.result()
                check(is_alive(pid), 'it is not ours to end')
                equal(machine.state(name), 'failed')
                machine.restores.set('')
                for verb in 'thaw', 'thaw pid=new':
                    equal(machine.write(name, verb), 'EBUSY')
                    check(f'process {pid}' in machine.error(name), machine.error(name))
                check(is_alive(pid), 'it is not ours to end')
            finally:
                try_kill(pid, signal.SIGKILL)
                wait_for(lambda: one.reap() or not os.path.exists(f'/proc/{pid}'), 'its end')
            restore.thaws(machine, one, name)
            restore.ends(machine, one, name)


def test_daemon_dies_in_thaw():
    """From then on the tree is the process."""
    for number, call in enumerate(('cuMemCreate', 'cuMemcpyHtoDAsync')):
        with restore.machine(cgroups=not number) as machine:
            one = dump.program(machine)
            name = dump.dumped(machine, one)
            machine.watch_faults()
            machine.faults(f'{call} comm=gpucr-worker delay_ms=3000')
            writer = machine.writer(name, 'thaw')
            machine.wait_faulted()
            machine.daemon.kill()
            check(writer.result() != 'ok', 'nobody has said that it is done')
            machine.faults()
            again(machine)
            check(restore.only_one(machine, one), 'it lives')
            wait_for(lambda: machine.state(one.pid) in ('running', 'frozen') and
                     machine.status(one.pid)['verb'] == '-', 'the recovery')
            if machine.state(one.pid) == 'frozen':
                machine.must(one.pid, 'thaw')
            restore.check_on(machine, one, name)
            restore.ends(machine, one, name)


def test_daemon_dies_after_thaw():
    """All run, and what was in the place is there still: as if it had died in that moment."""
    for has_ended in False, True:
        with restore.machine() as machine:
            one = dump.program(machine)
            name = dump.dumped(machine, one)
            restore.thaws(machine, one, name)
            start = machine.status(one.pid)['start_ticks']
            cgroup = restore.cgroup_of(name)[0]
            machine.daemon.kill()
            machine.daemon.wait()
            if has_ended:
                os.kill(one.pid, signal.SIGKILL)
                one.wait_gone()
            place = f'{machine.runtime}/store/incoming-{name}'
            os.makedirs(f'{place}/snapshot', 0o700)
            with open(f'{place}/origin', 'w', encoding='utf-8') as file:
                file.write(f'thawing {one.pid} {start}\n0 {one.pid} {start} {cgroup}')
            os.chmod(place, 0o700)
            os.chmod(file.name, 0o600)
            again(machine)
            if has_ended:
                restore.check_back(machine, one, name)
            else:
                restore.check_on(machine, one, name)
                machine.must(name, 'freeze')
                machine.must(name, 'thaw')
                one.wait_ticks(2)
                restore.ends(machine, one, name)


def die_in_thaw(machine, name, delay_ms, thaw):
    """The daemon is killed while the worker makes memory, for so long, for the thaw of a place."""
    machine.watch_faults()
    machine.faults(f'cuMemCreate comm=gpucr-worker delay_ms={delay_ms}')
    writer = machine.writer(name, thaw)
    machine.wait_faulted()
    machine.daemon.kill()
    check(writer.result() != 'ok', 'nobody has said that it is done')


def test_daemon_dies_in_thaw_to_another_gpu():
    """Nobody knows any more which one: it is ended."""
    needs_cuda('thaw gpu=, which is refused where queues have to come back to their GPU')
    with restore.machine(gpus=2) as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        die_in_thaw(machine, name, 2000, 'thaw gpu=0:1')
        machine.faults()
        again(machine)
        restore.check_back(machine, one, name)
        machine.must(name, 'thaw gpu=0:1')
        restore.check_on(machine, one, name)
        restore.ends(machine, one, name)


def test_daemon_dies_in_thaw_of_a_tree():
    """Its root uses no GPU."""
    with restore.machine() as machine:
        demo = f'{" ".join(vendor.RUN + vendor.DEMO)} --bytes 4M --buffers 2'
        one = dump.Program(machine, command=['sh', '-c', f'{demo} --tick 50; true']).wait_ready()
        equal(machine.write(one.root, 'dump name=tree'), 'ok')
        wait_for(lambda: one.reap() or not os.path.exists(f'/proc/{one.root}'), 'its end')
        machine.watch_faults()
        machine.faults('cuMemCreate comm=gpucr-worker delay_ms=2000')
        writer = machine.writer('tree', 'thaw')
        machine.wait_faulted()
        machine.daemon.kill()
        check(writer.result() != 'ok', 'nobody has said that it is done')
        machine.faults()
        again(machine)
        wait_for(lambda: machine.state(one.pid) in ('running', 'frozen') and
                 machine.status(one.pid)['verb'] == '-', 'the recovery')
        if machine.state(one.pid) == 'frozen':
            machine.must(one.pid, 'thaw')
        one.wait_ticks(2)
        equal(restore.processes_of(one), {one.pid, one.root})
        equal(os.readlink(machine.path(one.root)), 'tree')
        os.kill(one.pid, signal.SIGKILL)
        wait_for(lambda: one.reap() or not os.path.lexists(machine.path('tree')), 'the end')
        wait_for(lambda: not restore.cgroup_of('tree'), 'the end of its cgroup')


def test_daemon_dies_at_any_time():
    """At moments spread over the whole of a restore."""
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        seconds = 0.05
        done = 0
        moments, factor = harness.few((4, 2.6), (9, 1.45))
        while done < moments:
            writer = machine.writer(name, 'thaw')
            time.sleep(seconds)
            machine.daemon.kill()
            writer.result()
            again(machine)
            seconds *= factor
            done += 1
            if restore.only_one(machine, one):
                wait_for(lambda: machine.state(one.pid) in ('running', 'frozen') and
                         machine.status(one.pid)['verb'] == '-', 'the recovery')
                if machine.state(one.pid) == 'frozen':
                    machine.must(one.pid, 'thaw')
                one.wait_ticks(2)
                equal(restore.processes_of(one), {one.pid})
                name = dump.dumped(machine, one)
            else:
                # The daemon may have died between making a cgroup and saying so.
                restore.check_back(machine, one, name, may_have_cgroup=True)
        restore.thaws(machine, one, name)


def dumped_again(machine, one, name):
    """After a verb that was given up or not; the name of its place, dumped."""
    wait_for(lambda: machine.state(name) != 'restoring', 'the end of the restore')
    if machine.state(name) == 'running':
        restore.check_on(machine, one, name)
        name = dump.dumped(machine, one)
        equal(restore.cgroup_of(name), [])
        return name
    restore.check_back(machine, one, name)
    return name


def test_given_up_at_any_time():
    """By cancel, by a signal to the writer, and by the end of the daemon."""
    same_for_both('who writes to ctl')
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        results = set()
        moments, factor = harness.few((3, 3.2), (6, 1.6))
        for how in 'cancel', 'signal', 'stop':
            seconds = 0.02
            for _ in range(moments):
                writer = machine.writer(name, 'thaw')
                time.sleep(seconds)
                seconds *= factor
                if how == 'cancel':
                    machine.write(name, 'cancel')
                elif how == 'signal':
                    writer.signal(signal.SIGTERM)
                else:
                    equal(machine.stop(), 0)
                results.add(writer.result())
                if how == 'stop':
                    again(machine)
                    if os.path.lexists(machine.path(name)):
                        name = dumped_again(machine, one, name)
                    else:
                        one.wait_ticks(2)
                        equal(restore.processes_of(one), {one.pid})
                        name = dump.dumped(machine, one)
                else:
                    name = dumped_again(machine, one, name)
        check({'ECANCELED', 'killed'} <= results, results)
        restore.thaws(machine, one, name)


def test_daemon_stops_in_thaw():
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        for call in 'cuMemCreate', 'cuMemcpyHtoDAsync':
            machine.watch_faults()
            machine.faults(f'{call} comm=gpucr-worker delay_ms=1000')
            writer = machine.writer(name, 'thaw')
            machine.wait_faulted()
            equal(machine.stop(), 0)
            machine.faults()
            result = writer.result()
            again(machine)
            if result == 'ok':
                one.wait_ticks(2)
                name = dump.dumped(machine, one)
            else:
                restore.check_back(machine, one, name)
        restore.thaws(machine, one, name)


def test_what_lives_on_is_not_made_twice():
    """A thaw's tree of which the root has ended while no daemon was there, and a child has not."""
    same_for_both('cgroups')
    with restore.machine() as machine:
        one = dump.program(machine)
        name = dump.dumped(machine, one)
        die_in_thaw(machine, name, 3000, 'thaw')
        cgroup = restore.cgroup_of(name)
        check(cgroup, 'a cgroup')
        pid = os.fork()
        if not pid:
            with open(f'{cgroup[0]}/cgroup.procs', 'w', encoding='utf-8') as file:
                file.write('0')
            time.sleep(1000)
            os._exit(0)
        try:
            wait_for(lambda: f'{pid}' in open(f'{cgroup[0]}/cgroup.procs').read().split(), 'it')
            os.kill(one.pid, signal.SIGKILL)
            one.wait_gone()
            machine.faults()
            again(machine)
            equal(machine.state(name), 'failed')
            check(cgroup[0] in machine.error(name), machine.error(name))
            for verb in 'thaw', 'thaw pid=new':
                equal(machine.write(name, verb), 'EBUSY')
                equal(machine.state(name), 'failed')
            check(is_alive(pid), 'it is not ours to end')
        finally:
            try_kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        restore.thaws(machine, one, name)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
