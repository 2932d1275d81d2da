#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The CRIU plugin without CRIU, in a dump: its hooks are called as CRIU calls them, and
everything that can fail does. What has to come out: no program is left frozen that goes on
running, nothing is dumped that could not be restored, and the log says why."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import harness
import library
from harness import Skip, check, equal, is_root, read_file, wait_for
from plugin import (DUMP, PRE_DUMP, SHIM, Mount, Place, check_error, check_snapshot, start_ticks,
                    state_of, write)

ENOTSUP = -95


def frozen(place, **more):
    """A program that was found and frozen."""
    pid = place.program().pid
    files = place.mount.add(pid)
    tool = place.tool(**more)
    equal(tool.call('init', DUMP), 0)
    equal(tool.call('pause', pid), 0)
    equal(place.mount.log(), [f'verb {pid}/ freeze park'])
    return pid, files, tool


def test_dump_and_kill():
    with Place() as place:
        pid, files, tool = frozen(place)
        with tool:
            equal(tool.call('pause', pid), 0)  # again: as it is
            equal(tool.call('save', pid), 0)
            check('3 inventory gpucr_plugin' in tool.lines, tool.lines)
            place.kill(pid)
            tool.call('exit', 0)
        check_snapshot(f'{place.images}/gpucr-{pid}', pid, files)
        equal(os.stat(f'{place.images}/gpucr-{pid}').st_mode & 0o777, 0o700)
        equal(place.mount.log(), [f'verb {pid}/ freeze park'])


def test_dump_and_go_on():
    """--leave-running, or a script of CRIU's that failed: the plugin is told neither."""
    with Place() as place:
        pid, _, tool = frozen(place)
        with tool:
            equal(tool.call('save', pid), 0)
            tool.call('exit', 0)
        place.mount.wait_log(f'verb {pid}/ thaw')
        equal(place.saved(), [f'gpucr-{pid}'])


def test_dump_fails():
    with Place() as place:
        pid, _, tool = frozen(place)
        with tool:
            equal(tool.call('save', pid), 0)
            tool.call('exit', -1)
        place.mount.wait_log(f'verb {pid}/ thaw')
        equal(place.saved(), [])


def test_criu_is_killed():
    with Place() as place:
        pid, _, tool = frozen(place)
        tool.kill()
        place.mount.wait_log(f'verb {pid}/ thaw')
        tool.__exit__()


def test_thaw_comes_too_early():
    """The freeze is still being ended or rolled back: the keeper tries again."""
    with Place() as place:
        pid, _, tool = frozen(place)
        place.mount.set('refuse', 'thaw 16\n')
        tool.kill()
        thaw = f'verb {pid}/ thaw'
        wait_for(lambda: place.mount.log().count(thaw) >= 2, 'two of them')
        place.mount.set('refuse', '')
        wait_no_keeper(place)
        check('verb thaw ok' in read_file(f'{place.mount.path}/{pid}/events'), 'it was accepted')
        tool.__exit__()


def test_daemon_starts_again():
    """CRIU ends while no daemon serves the mount: the next one has the program as frozen, and the keeper
    has it thawed."""
    with Place() as place:
        pid, files, tool = frozen(place)
        for name in 'ctl', str(pid):
            os.rename(f'{place.mount.path}/{name}', f'{place.directory}/away-{name}')
        tool.kill()
        tool.__exit__()
        time.sleep(1)
        check(keepers(place), 'the keeper has given up')
        for name in 'ctl', str(pid):
            os.rename(f'{place.directory}/away-{name}', f'{place.mount.path}/{name}')
        place.mount.wait_log(f'verb {pid}/ thaw')
        wait_no_keeper(place)


def test_ends_before_the_thaw():
    """The program ends when the keeper has seen it alive, and has its ctl open. The pid can be
    another process's by then, whose ctl that is: nothing is written to it."""
    with Place() as place:
        pid, _, tool = frozen(place)
        ctl = f'{place.mount.path}/{pid}/ctl'
        os.unlink(ctl)
        os.mkfifo(ctl)  # who opens it waits until it is read
        tool.kill()
        wait_for(lambda: any(map(opens_a_fifo, keepers(place))), 'the keeper to open it')
        place.kill(pid)
        with open(ctl, 'rb') as reader:
            equal(reader.read(), b'')
        wait_no_keeper(place)
        equal(place.mount.log(), [f'verb {pid}/ freeze park'])
        tool.__exit__()


def test_nobody_can_stand_by():
    """Then nothing is frozen."""
    with Place() as place:
        pid = place.gpu_program()
        place.mount.set('lonely', '')
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', pid), -1)
            check_error(tool, 'stand by')
        equal(place.mount.log(), [])


def test_left_stopped():
    """--leave-stopped: a thaw would need it to run. Another one shows that the keeper is done."""
    with Place() as place:
        pid, _, tool = frozen(place)
        other = place.gpu_program()
        with tool:
            equal(tool.call('pause', other), 0)
            os.kill(pid, signal.SIGSTOP)
            wait_for(lambda: state_of(pid) == 'T', 'it to stop')
            tool.call('exit', 0)
        place.mount.wait_log(f'verb {other}/ thaw')
        wait_no_keeper(place)
        equal([line for line in place.mount.log() if 'thaw' in line], [f'verb {other}/ thaw'])


def keepers(place):
    """They are named as who has started them."""
    found = []
    for name in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            if place.images in read_file(f'/proc/{name}/cmdline'):
                found.append(name)
    return found


def opens_a_fifo(pid):
    with contextlib.suppress(OSError):
        where = read_file(f'/proc/{pid}/wchan')
        return 'fifo' in where or where == 'wait_for_partner'
    return False


def wait_no_keeper(place):
    wait_for(lambda: not keepers(place), 'the keepers to end')


def test_was_frozen_before():
    """It stays as it was."""
    with Place() as place:
        pid = place.program().pid
        place.mount.add(pid, state='frozen')
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', pid), 0)
            tool.call('exit', -1)
        wait_no_keeper(place)
        equal(place.mount.log(), [f'verb {pid}/ freeze park'])


def test_tree():
    """All of them in one write, found below a root that uses no GPU."""
    with Place() as place:
        root, (first, second) = place.tree()
        place.mount.add(root, launcher=True)
        for pid in first, second:
            place.mount.add(pid, size=5000)
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', root), ENOTSUP)
            equal(place.mount.log(), [f'verb . freeze park {first} {second}'])
            for pid in first, second:
                equal(tool.call('pause', pid), 0)
            equal(tool.call('save', root), ENOTSUP)
            for pid in first, second:
                equal(tool.call('save', pid), 0)
            equal(len(place.mount.log()), 1)
            os.kill(first, signal.SIGKILL)
            tool.call('exit', 0)
        place.mount.wait_log(f'verb {second}/ thaw')
        equal(place.saved(), sorted([f'gpucr-{first}', f'gpucr-{second}']))


def test_child_comes_later():
    with Place() as place:
        root, (first, second) = place.tree()
        place.mount.add(first)
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', root), ENOTSUP)
            place.mount.add(second)
            equal(tool.call('pause', second), 0)
            equal(place.mount.log(), [f'verb {first}/ freeze park', f'verb {second}/ freeze park'])
            tool.call('exit', -1)
        for pid in first, second:
            place.mount.wait_log(f'verb {pid}/ thaw')


def test_begins_too_late():
    """After all were asked, before all were stopped."""
    with Place() as place:
        pid = place.program().pid
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', pid), ENOTSUP)
            place.mount.add(pid)
            equal(tool.call('save', pid), -1)
            check_error(tool, f'{pid} has begun to use a GPU')


def test_freeze_is_refused():
    """EOPNOTSUPP too, which to CRIU would mean that there is nothing to do."""
    for number in 95, 16, 110:
        with Place() as place:
            pid = place.gpu_program()
            place.mount.set('refuse', f'freeze {number}\n')
            with place.tool() as tool:
                equal(tool.call('init', DUMP), 0)
                equal(tool.call('pause', pid), -1)
                check_error(tool, f'from {pid} on cannot be frozen: .*words of the daemon')
                tool.call('exit', -1)
            wait_no_keeper(place)
            equal(place.mount.log(), [f'verb {pid}/ freeze park'])


def test_rollback_fails():
    """The freeze has failed, and the process is no longer as it was: the keeper tries a thaw after CRIU's
    end. What somebody else freezes meanwhile stays frozen."""
    for state in 'failed', 'freezing', 'running', 'frozen':
        with Place() as place:
            pid = place.gpu_program()
            place.mount.set('refuse', 'freeze 5\n')
            with place.tool() as tool:
                equal(tool.call('init', DUMP), 0)
                equal(tool.call('pause', pid), -1)
                status = f'{place.mount.path}/{pid}/status'
                write(status, read_file(status).replace('state running', f'state {state}'))
                tool.call('exit', -1)
            wait_no_keeper(place)
            equal(place.mount.log(), [f'verb {pid}/ freeze park'] +
                  [f'verb {pid}/ thaw'] * (state in ('failed', 'freezing')), state)


def pause_fails(place, pid, regex):
    """CRIU is told that a process cannot be stopped, and why."""
    with place.tool() as tool:
        equal(tool.call('init', DUMP), 0)
        equal(tool.call('pause', pid), -1)
        check_error(tool, regex)


def test_freeze_of_several_is_refused():
    with Place() as place:
        root, pids = place.tree()
        for pid in pids:
            place.mount.add(pid)
        place.mount.set('refuse', 'freeze 16\n')
        pause_fails(place, root, 'words of the daemon')


def test_one_ends_in_the_freeze():
    """The freeze of all has succeeded, and one of them has ended: the others do not stay frozen."""
    with Place() as place:
        root, (first, second) = place.tree()
        for pid in first, second:
            place.mount.add(pid)
        place.mount.set('kill', f'freeze {first}')
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', root), -1)
            check_error(tool, f'process {first} has ended')
            tool.call('exit', -1)
        place.mount.wait_log(f'verb {second}/ thaw')
        wait_no_keeper(place)


def test_short_write():
    with Place() as place:
        pid = place.gpu_program()
        place.mount.set('refuse', 'freeze 0\n')
        pause_fails(place, pid, 'only a part')


def test_alarm_does_not_go_off():
    """CRIU's limit for stopping tasks is not one for moving VRAM: it stands still meanwhile."""
    with Place() as place:
        pid = place.gpu_program()
        os.unlink(f'{place.mount.path}/{pid}/ctl')
        os.mkfifo(f'{place.mount.path}/{pid}/ctl')
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('alarm', 1), 0)
            tool.popen.stdin.write(f'pause {pid}\n')
            tool.popen.stdin.flush()
            # While the write waits for its reader no alarm is set.
            wait_for(lambda: 'fifo' in read_file(f'/proc/{tool.popen.pid}/wchan')
                     or re.match(r'(257|56) ', read_file(f'/proc/{tool.popen.pid}/syscall')),
                     'it to wait')
            check(tool.popen.poll() is None, 'it was ended by the alarm')
            reader = os.open(f'{place.mount.path}/{pid}/ctl', os.O_RDONLY)
            equal(tool.call('alarm', 0), 0)  # the answer to `pause`
            os.close(reader)
            check(tool.popen.stdout.readline().startswith('= 1'), 'the rest of the time')


def test_pre_dump():
    with Place() as place:
        pid = place.gpu_program()
        with place.tool() as tool:
            equal(tool.call('init', PRE_DUMP), 0)
            equal(tool.call('pause', pid), ENOTSUP)
        equal(place.mount.log(), [])


def test_no_gpu_process():
    with Place() as place:
        pid = place.program().pid
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', pid), ENOTSUP)
            equal(tool.call('save', pid), ENOTSUP)
            tool.call('exit', 0)
            equal(tool.errors(), [])
            check('3 inventory gpucr_plugin' not in tool.lines, tool.lines)
        equal(place.saved(), [])


def test_no_mount():
    """Everything is as without the plugin, but what is left of another dump goes."""
    with Place() as place:
        os.mkdir(f'{place.images}/gpucr-12')
        write(f'{place.images}/gpucr-12/manifest', '')
        os.mkdir(f'{place.images}/gpucr-other')
        with place.tool(GPUCR_MOUNT='', FAKE_MOUNTINFO='/dev/null') as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', os.getpid()), ENOTSUP)
            equal(tool.errors(), [])
        equal(place.saved(), ['gpucr-other'])


HANDED_OVER = """
import mmap, os, struct, time
page = os.memfd_create('{name}')
os.ftruncate(page, 1 << 20)
memory = mmap.mmap(page, 1 << 20)
os.close(page)
struct.pack_into('=IIII', memory, 0, {magic}, 1, {phase}, 1)
print(flush=True)
time.sleep(1000)
"""


def test_frozen_without_a_daemon():
    """Its GPU memory is in the store, which nobody serves now: a dump would be without it."""
    for phase, answer in ((1, ENOTSUP), (4, -1)):
        program = HANDED_OVER.format(name=library.PAGE_NAME, magic=library.PAGE_MAGIC, phase=phase)
        with Place() as place, subprocess.Popen([sys.executable, '-c', program],
                                                stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            with place.tool(GPUCR_MOUNT='', FAKE_MOUNTINFO='/dev/null') as tool:
                equal(tool.call('init', DUMP), 0)
                equal(tool.call('pause', child.pid), answer)
                equal(tool.call('pause', os.getpid()), answer)  # it is below this one
                check(not tool.errors() or 'start that first' in tool.errors()[0], tool.errors())
            with place.tool() as tool:  # a daemon that does not list it
                equal(tool.call('init', DUMP), 0)
                equal(tool.call('pause', child.pid), answer)
            child.kill()


def test_left_cannot_be_removed():
    """A directory that we never make: the error says what it is, and not that another is not empty."""
    with Place() as place:
        os.makedirs(f'{place.images}/gpucr-12/vram/strange')
        with place.tool(GPUCR_MOUNT='', FAKE_MOUNTINFO='/dev/null') as tool:
            check(tool.call('init', DUMP) < 0, 'it fails')
            check_error(tool, 'gpucr-12 .*cannot be removed: Is a directory')
        equal(place.saved(), ['gpucr-12'])


def test_mount_is_found():
    """The first that root or this user has made; its name may hold blanks."""
    with Place() as place:
        pid = place.program().pid
        odd = f'{place.directory}/a mount'
        other = Mount(f'{place.directory}/images')
        os.rename(place.mount.path, odd)
        other.add(pid)
        place.mount.path = odd
        place.mount.add(pid)
        escaped = odd.replace(' ', '\\040')
        lines = ['20 1 0:30 / / rw,relatime shared:1 - ext4 /dev/vda rw,user_id=0',
                 f'21 20 0:31 / {other.path} rw shared:2 - fuse.other other rw,user_id=0',
                 f'22 20 0:32 / {other.path} rw - fuse.gpucrfs gpucrfs rw,user_id=65533,group_id=0',
                 f'23 20 0:33 / {other.path} rw - fuse.gpucrfs gpucrfs rw,xuser_id=0,group_id=0',
                 f'24 20 0:34 / {escaped} rw shared:3 - fuse.gpucrfs gpucrfs rw,user_id='
                 f'{os.geteuid()},group_id=0,allow_other',
                 f'25 20 0:35 / {other.path} rw - fuse.gpucrfs gpucrfs rw,user_id=0,group_id=0', '']
        write(f'{place.directory}/mountinfo', '\n'.join(lines))
        with place.tool(GPUCR_MOUNT='', FAKE_MOUNT=odd,
                        FAKE_MOUNTINFO=f'{place.directory}/mountinfo') as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', pid), 0)
            equal(place.mount.log(), [f'verb {pid}/ freeze park'])
            place.kill(pid)
            tool.call('exit', 0)


def test_rival():
    """CRIU's own plugin, which would take our processes for its own if it comes first."""
    with Place() as place:
        library = f'{place.directory}/cuda_plugin.so'
        shutil.copy(SHIM, library)
        with place.tool(LD_PRELOAD=f'{SHIM}:{library}') as tool:
            equal(tool.call('init', DUMP), -1)
            check_error(tool, 'cuda_plugin.so is loaded too')
        with place.tool(LD_PRELOAD=f'{SHIM}:{library}') as tool:
            equal(tool.call('init', PRE_DUMP), 0)


def test_mount_does_not_answer():
    """Whether a process uses a GPU cannot be known, so nothing is dumped."""
    with Place() as place:
        os.unlink(f'{place.mount.path}/ctl')
        with place.tool() as tool:
            equal(tool.call('init', DUMP), -1)
            check_error(tool, 'does not answer')
        with place.tool(GPUCR_MOUNT='mnt') as tool:
            equal(tool.call('init', DUMP), -1)
            check_error(tool, 'absolute')


def test_other_pid_namespace():
    with Place() as place:
        pid = place.program().pid
        place.mount.add(pid, ticks=int(start_ticks(pid)) + 1)
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', pid), -1)
            check_error(tool, 'another pid namespace')
        equal(place.mount.log(), [])


def test_other_engine():
    """Refused before anything is frozen."""
    with Place() as place:
        root, (first, second) = place.tree()
        place.mount.add(first)
        place.mount.add(second, engine='driver')
        with place.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', root), -1)
            check_error(tool, f'process {second} is of the engine driver, .*gpucr-run')
        equal(place.mount.log(), [])


def failing_save(spoil, regex, prepare=None):
    """The images hold nothing of it, and the program goes on."""
    with Place() as place:
        if prepare:
            prepare(place)
        pid, _, tool = frozen(place)
        with tool:
            spoil(place, pid)
            equal(tool.call('save', pid), -1)
            check_error(tool, f'{pid} could not be saved: .*{regex}')
            tool.call('exit', -1)
        place.mount.wait_log(f'verb {pid}/ thaw')
        equal(place.saved(), [])


def test_image_directory_is_full():
    if not is_root():
        raise Skip('mounting needs root')

    def prepare(place):
        done = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=2M', 'tmpfs', place.images],
                              check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise Skip(done.stderr.strip())
    failing_save(lambda *_: None, 'No space left on device', prepare)


def test_copy_fails():
    failing_save(lambda place, _: place.mount.set('copy', 'fail'), 'Input/output error')


def test_file_vanishes():
    failing_save(lambda place, _: place.mount.set('copy', 'vanish'), 'it is missing')


def test_file_shrinks():
    failing_save(lambda place, _: place.mount.set('copy', 'shrink'), 'changed while')


def test_manifest_changes():
    """Somebody has thawed it and frozen it again."""
    failing_save(lambda place, _: place.mount.set('copy', 'manifest'), 'manifest: it has changed')


def test_no_manifest():
    failing_save(lambda place, pid: os.unlink(f'{place.mount.path}/{pid}/snapshot/manifest'),
                 'manifest: it is missing')


def test_link_in_snapshot():
    def spoil(place, pid):
        name = f'{place.mount.path}/{pid}/snapshot/digests'
        os.unlink(name)
        os.symlink('/etc/passwd', name)
    failing_save(spoil, 'digests')


def test_no_snapshot():
    failing_save(lambda place, pid: shutil.rmtree(f'{place.mount.path}/{pid}/snapshot'),
                 'snapshot: No such file')


if __name__ == '__main__':
    harness.main(globals())
