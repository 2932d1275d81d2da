#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The CRIU plugin without CRIU, in a restore: its hooks are called as CRIU calls them, and
everything that can fail does. What has to come out: CRIU makes no process if it can be known
before that it will not have its memory, nothing is left in the mount, and the log says why."""
import os
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import harness
from harness import NOBODY, equal, is_root, wait_for
from plugin import RESTORE, Place, check_error, check_snapshot, state_of

ENOTSUP = -95


def restored(place, inventory='has'):
    """Images of a program, and another in its place; returns the tool after `init`."""
    pid = place.program().pid
    files = place.mount.add(pid)
    place.save(pid)
    shutil.rmtree(f'{place.mount.path}/{pid}')
    new = place.program().pid
    # As if it had the old one's pid.
    os.rename(f'{place.images}/gpucr-{pid}', f'{place.images}/gpucr-{new}')
    place.mount.set('log', '')
    return pid, new, files, place.tool(inventory)


def test_restore():
    for inventory in 'has', 'old':
        with Place() as place:
            pid, new, files, tool = restored(place, inventory)
            with tool:
                equal(tool.call('init', RESTORE), 0)
                (name,) = place.mount.places()
                equal(place.mount.log(), [f'mkdir {name}'])
                check_snapshot(f'{place.mount.path}/{name}/snapshot', pid, files)
                equal(tool.call('resume', os.getpid()), ENOTSUP)  # a process without
                equal(tool.call('resume', new), 0)
                equal(place.mount.log()[1:], [f'verb {name}/ thaw pid={new} (nonblock)'])
                tool.call('exit', 0)
                equal(tool.errors(), [])
            equal(place.mount.places(), [name])
            equal(place.saved(), [f'gpucr-{new}'])


def test_restore_fails():
    with Place() as place:
        _, new, _, tool = restored(place)
        with tool:
            equal(tool.call('init', RESTORE), 0)
            equal(tool.call('resume', new), 0)
            tool.call('exit', -1)
        equal(place.mount.places(), [])
        equal(place.saved(), [f'gpucr-{new}'])


def test_no_process_for_it():
    with Place() as place:
        _, _, _, tool = restored(place)
        with tool:
            equal(tool.call('init', RESTORE), 0)
            tool.call('exit', 0)
        equal(place.mount.places(), [])


def test_thaw_is_refused():
    """At once: CRIU ignores it, but the log does not, and the place stays for another try."""
    with Place() as place:
        _, new, _, tool = restored(place)
        place.mount.set('refuse', 'thaw 12\n')
        with tool:
            equal(tool.call('init', RESTORE), 0)
            equal(tool.call('resume', new), -1)
            check_error(tool, f'process {new} is restored, but .*ENOMEM: words of the daemon .*'
                              f'echo thaw pid={new} >')
            tool.call('exit', 0)
        equal(len(place.mount.places()), 1)


def test_thaw_fails():
    """Later."""
    with Place() as place:
        _, new, _, tool = restored(place)
        place.mount.set('end', 'EIO digest of chunk 3 is wrong\n')
        with tool:
            equal(tool.call('init', RESTORE), 0)
            equal(tool.call('resume', new), 0)
            equal(tool.errors(), [])
            tool.call('exit', 0)
            check_error(tool, f'process {new} is restored, but .*digest of chunk 3 is wrong')
        equal(len(place.mount.places()), 1)


def test_thaw_is_seen_in_status():
    """Nothing comes in the events."""
    with Place() as place:
        _, new, _, tool = restored(place)
        place.mount.set('end', 'state\n')
        with tool:
            equal(tool.call('init', RESTORE), 0)
            equal(tool.call('resume', new), 0)
            tool.call('exit', 0)
            equal(tool.errors(), [])
        equal(len(place.mount.places()), 1)


def test_ends_or_stops_before_the_thaw():
    """Nobody waits for it."""
    for number in signal.SIGKILL, signal.SIGSTOP:
        with Place() as place:
            _, new, _, tool = restored(place)
            place.mount.set('end', 'never\n')
            with tool:
                equal(tool.call('init', RESTORE), 0)
                equal(tool.call('resume', new), 0)
                os.kill(new, number)
                wait_for(lambda one=new: state_of(one) in 'TZ', 'it to stop or end')
                tool.call('exit', 0)
                equal(tool.errors(), [])
            equal(len(place.mount.places()), 1)


def failing_restore(spoil, regex, **env):
    """Before there is any process, and nothing is left in the mount."""
    with Place() as place:
        _, new, _, tool = restored(place)
        tool.__exit__()
        spoil(place, f'{place.images}/gpucr-{new}')
        with place.tool(**env) as other:
            equal(other.call('init', RESTORE), -1)
            check_error(other, regex)
        equal(place.mount.places(), [])


def test_restore_without_mount():
    failing_restore(lambda *_: None, 'the images hold GPU memory: no gpucrfs', GPUCR_MOUNT='',
                    FAKE_MOUNTINFO='/dev/null')


def test_images_are_not_whole():
    failing_restore(lambda place, path: shutil.rmtree(path), 'copy them whole')
    failing_restore(lambda place, path: os.unlink(f'{path}/manifest'), 'manifest')


def test_images_of_somebody_else():
    """Files that another user could have made or written."""
    for name in '.', 'manifest', 'digests', 'vram', 'vram/gpu0-7f0000000000':
        for mode in 0o720, 0o702:
            failing_restore(lambda place, path, one=name, bits=mode:
                            os.chmod(f'{path}/{one}', bits), 'can be written by others')
        if is_root():
            failing_restore(lambda place, path, one=name:
                            os.chown(f'{path}/{one}', NOBODY, NOBODY), 'belongs to user 65534')


def test_links_in_images():
    def spoil(place, path):
        os.rename(path, f'{place.directory}/elsewhere')
        os.symlink(f'{place.directory}/elsewhere', path)
    failing_restore(spoil, 'gpucr-')

    def spoil_file(place, path):
        os.rename(f'{path}/vram/gpu0-7f0000000000', f'{place.directory}/memory')
        os.symlink(f'{place.directory}/memory', f'{path}/vram/gpu0-7f0000000000')
    failing_restore(spoil_file, 'gpu0-7f0000000000')


def test_copy_into_mount_fails():
    failing_restore(lambda place, _: place.mount.set('copy', 'fail'), 'Input/output error')


def test_not_of_these_images():
    """The inventory does not name the plugin: what lies there is of another dump."""
    with Place() as place:
        _, new, _, tool = restored(place, 'none')
        with tool:
            equal(tool.call('init', RESTORE), 0)
            equal(tool.call('resume', new), ENOTSUP)
        equal(place.mount.places(), [])


def test_nothing_to_restore():
    with Place() as place, place.tool('old') as tool:
        equal(tool.call('init', RESTORE), 0)
        equal(tool.call('resume', os.getpid()), ENOTSUP)
        tool.call('exit', 0)
        equal(tool.lines, [])


if __name__ == '__main__':
    harness.main(globals())
