#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The plugin in the real CRIU, with a plain program and a directory in the mount's place: CRIU
loads it, calls its hooks when it should, and the rest of the dump goes on around it."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import criu
import harness
from harness import Skip, check, equal, fails, is_alive, read_file, wait_for
from plugin import PLUGIN, Mount, check_snapshot

HOOK = re.compile(r"plugin: `gpucr_plugin' hook (\d+) ")
RESUME, PAUSE, CHECKPOINT = 9, 10, 11


class Place:
    def __init__(self):
        found = criu.find()
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-test-')
        self.images = f'{self.directory}/images'
        os.mkdir(self.images)
        self.mount = Mount(self.directory)
        self.criu = criu.Criu(os.path.dirname(found.program), {**found.env, **self.mount.env})
        self.criu.empty = f'{self.directory}/plugins'
        os.mkdir(self.criu.empty)
        os.symlink(PLUGIN, f'{self.criu.empty}/gpucr_plugin.so')
        self.programs = []
        self.pids = []
        harness.LIBC.prctl(criu.PR_SET_CHILD_SUBREAPER, 1)  # orphans are ours to collect

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.pids:
            criu.end(pid)
        for popen in self.programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
        shutil.rmtree(self.directory)

    def program(self, *command):
        popen = subprocess.Popen(command or ['sleep', '1000'], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True)
        self.programs.append(popen)
        return popen

    def gpu_program(self):
        popen = self.program()
        return popen, self.mount.add(popen.pid)

    def log(self, verb):
        return read_file(f'{self.images}/{verb}.log')

    def hooks(self, verb):
        return [int(number) for number in HOOK.findall(self.log(verb))]

    def restore(self, *options):
        pid = self.criu.restore(self.images, *options)
        self.pids.append(pid)
        return pid


def children_of(pid, count):
    """None until there are so many."""
    found = [int(word) for word in read_file(f'/proc/{pid}/task/{pid}/children').split()]
    return found if len(found) == count else None


def test_there_and_back():
    with Place() as place:
        popen, files = place.gpu_program()
        place.criu.dump(popen.pid, place.images)
        popen.wait()
        equal(place.hooks('dump'), [PAUSE, CHECKPOINT])
        check_snapshot(f'{place.images}/gpucr-{popen.pid}', popen.pid, files)
        equal(place.mount.log(), [f'verb {popen.pid}/ freeze park'])
        shutil.rmtree(f'{place.mount.path}/{popen.pid}')

        pid = place.restore()
        equal(pid, popen.pid)
        equal(place.hooks('restore'), [RESUME])
        (name,) = place.mount.places()
        equal(place.mount.log()[1:], [f'mkdir {name}', f'verb {name}/ thaw pid={pid} (nonblock)'])
        check_snapshot(f'{place.mount.path}/{name}/snapshot', pid, files)
        check(is_alive(pid), 'it is alive')


def test_hooks_are_called_when_expected():
    """The freeze is before the tasks are stopped, and the notice is while they are."""
    with Place() as place:
        popen, _ = place.gpu_program()
        place.criu.dump(popen.pid, place.images)
        popen.wait()
        log = place.log('dump')
        check(log.index('hook 10 ') < log.index('Seized task') < log.index('hook 11 ')
              < log.index('Dumping task (pid:'), 'the order in a dump')
        place.restore()
        log = place.log('restore')
        check(log.index('Run late stage hook') < log.index('hook 9 ')
              < log.index('Restore finished successfully'), 'the order in a restore')


def test_leave_running():
    with Place() as place:
        popen, _ = place.gpu_program()
        place.criu.dump(popen.pid, place.images, '--leave-running')
        place.mount.wait_log(f'verb {popen.pid}/ thaw')
        equal(popen.poll(), None)


def test_dump_fails_later():
    """CRIU refuses something when the GPU's memory is saved already: an unlinked file."""
    with Place() as place:
        popen = place.program('sh', '-c', f'exec 9>{place.directory}/ghost; '
                              f'head -c 3000000 /dev/zero >&9; rm {place.directory}/ghost; '
                              'exec sleep 1000')
        wait_for(lambda: read_file(f'/proc/{popen.pid}/comm') == 'sleep\n', 'it to begin')
        place.mount.add(popen.pid)
        fails(place.criu.dump, popen.pid, place.images)
        place.mount.wait_log(f'verb {popen.pid}/ thaw')
        equal([name for name in os.listdir(place.images) if name.startswith('gpucr')], [])
        equal(popen.poll(), None)


def test_freeze_is_refused():
    """With the words of the daemon in what CRIU says, and the program runs."""
    for number in 95, 16:
        with Place() as place:
            popen, _ = place.gpu_program()
            place.mount.set('refuse', f'freeze {number}\n')
            words = fails(place.criu.dump, popen.pid, place.images)
            check('words of the daemon' in words, words)
            equal(popen.poll(), None)
            equal(read_file(f'/proc/{popen.pid}/stat').rpartition(')')[2].split()[0], 'S')


def test_save_fails():
    with Place() as place:
        popen, _ = place.gpu_program()
        place.mount.set('copy', 'vanish')
        words = fails(place.criu.dump, popen.pid, place.images)
        check('could not be saved' in words, words)
        place.mount.wait_log(f'verb {popen.pid}/ thaw')
        equal(popen.poll(), None)


def test_tree():
    """Below a root that uses no GPU, one of two."""
    with Place() as place:
        popen = place.program('sh', '-c', 'sleep 1000 & sleep 1000 & wait')
        first, second = wait_for(lambda: children_of(popen.pid, 2), 'the children')
        files = place.mount.add(second)
        place.criu.dump(popen.pid, place.images)
        popen.wait()
        for pid in first, second:
            os.waitpid(pid, 0)
        equal(place.mount.log(), [f'verb {second}/ freeze park'])
        place.restore()
        place.pids += [first, second]
        (name,) = place.mount.places()
        check_snapshot(f'{place.mount.path}/{name}/snapshot', second, files)
        equal(place.mount.log()[2:], [f'verb {name}/ thaw pid={second} (nonblock)'])


@contextlib.contextmanager
def freezer():
    """A cgroup as that of a container, of whichever version is there."""
    for above in '/sys/fs/cgroup/freezer', '/sys/fs/cgroup':
        path = f'{above}/gpucrfs-test-{harness.unique()}'
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            if any(os.path.exists(f'{path}/{name}') for name in ('freezer.state', 'cgroup.freeze')):
                yield path
                return
        finally:
            wait_for(lambda one=path: not read_file(f'{one}/cgroup.procs'), 'an empty cgroup')
            os.rmdir(path)
    raise Skip('no cgroup of one\'s own can be made')


def test_frozen_cgroup():
    """As container engines have it: CRIU stops all of the container at once, after it has asked for
    its root only. All are frozen by then."""
    with freezer() as cgroup, Place() as place:
        popen = place.program('sh', '-c', f'echo $$ >{cgroup}/cgroup.procs; '
                              'sleep 1000 & sleep 1000 & wait')
        pids = wait_for(lambda: children_of(popen.pid, 2), 'the children')
        for pid in pids:
            place.mount.add(pid)
        place.criu.dump(popen.pid, place.images, '--freeze-cgroup', cgroup)
        popen.wait()
        for pid in pids:
            os.waitpid(pid, 0)
        equal(place.mount.log(), [f'verb . freeze park {pids[0]} {pids[1]}'])
        equal(place.hooks('dump'), 3 * [PAUSE] + 3 * [CHECKPOINT])


def test_other_pid_outside():
    """Restored in a pid namespace of its own: the place is found by the pid inside, and the daemon
    is told the pid outside."""
    with Place() as place:
        popen = place.program('unshare', '--pid', '--fork', '--kill-child',
                              'setsid', 'sleep', '1000')
        (init,) = wait_for(lambda: children_of(popen.pid, 1), 'its init')
        wait_for(lambda: read_file(f'/proc/{init}/comm') == 'sleep\n', 'it to begin')
        files = place.mount.add(init)
        place.criu.dump(init, place.images)
        popen.wait()
        check_snapshot(f'{place.images}/gpucr-1', init, files)
        pid = place.restore()
        check(pid != init, 'it has another pid')
        (name,) = place.mount.places()
        check(f'verb {name}/ thaw pid={pid} (nonblock)' in place.mount.log(), place.mount.log())


def test_thaw_fails():
    """CRIU's own exit status says it, and the log the rest."""
    with Place() as place:
        popen, _ = place.gpu_program()
        place.criu.dump(popen.pid, place.images)
        popen.wait()
        place.mount.set('end', 'EIO digest of chunk 3 is wrong\n')
        words = fails(place.criu.restore, place.images)
        place.pids.append(popen.pid)
        check(f'process {popen.pid} is restored, but' in words, words)
        check('digest of chunk 3 is wrong' in words, words)
        check(is_alive(popen.pid), 'it is alive')


def test_restore_needs_the_plugin():
    """Without it the program would stand at its gate for ever: CRIU says what is missing."""
    with Place() as place:
        popen, _ = place.gpu_program()
        place.criu.dump(popen.pid, place.images)
        popen.wait()
        os.unlink(f'{place.criu.empty}/gpucr_plugin.so')
        words = fails(place.criu.restore, place.images)
        check('Missing required plugin: gpucr_plugin' in words, words)


def test_restore_is_refused_before():
    """Without a mount, or images that somebody else can write: no process is made."""
    for spoil in (lambda place, path: os.chmod(f'{path}/manifest', 0o622),
                  lambda place, path: os.unlink(f'{place.mount.path}/ctl')):
        with Place() as place:
            popen, _ = place.gpu_program()
            place.criu.dump(popen.pid, place.images)
            popen.wait()
            spoil(place, f'{place.images}/gpucr-{popen.pid}')
            words = fails(place.criu.restore, place.images)
            check('gpucr_plugin' in words, words)
            check(not is_alive(popen.pid), 'it was restored')
            equal(place.mount.places(), [])


def test_restore_fails_later():
    """Its pid is taken: the place goes again."""
    with Place() as place:
        popen, _ = place.gpu_program()
        place.criu.dump(popen.pid, place.images)
        popen.wait()
        check(take_pid(place, popen.pid), f'the pid {popen.pid} could not be taken')
        fails(place.criu.restore, place.images)
        equal(place.mount.places(), [])


def take_pid(place, pid):
    for _ in range(20):
        with open('/proc/sys/kernel/ns_last_pid', 'w', encoding='utf-8') as file:
            file.write(str(pid - 1))
        if place.program().pid == pid:
            return True
    return False


def test_plain_program():
    """It is none of the plugin's business."""
    with Place() as place:
        popen = place.program()
        place.criu.dump(popen.pid, place.images)
        popen.wait()
        equal([name for name in os.listdir(place.images) if name.startswith('gpucr')], [])
        os.unlink(f'{place.criu.empty}/gpucr_plugin.so')
        check(is_alive(place.restore()), 'restored without the plugin')
        equal(place.mount.log(), [])


if __name__ == '__main__':
    harness.main(globals())
