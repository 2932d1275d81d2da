#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""gpucr-hook asks the daemon by descriptors of CRIU, its parent. If CRIU has ended by the time at which it
looks, its parent is another process, whose descriptors it leaves alone."""
import contextlib
import os
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import harness
from harness import BUILD, check, equal

HOOK = f'{BUILD}/backend/cuda/gpucr-hook'
IMAGES, ASKED = 3, 5  # descriptors of CRIU
# In the parent's place: it has these two, and starts the hook without them, as CRIU does.
PARENT = '''
import os, subprocess, sys
images, asked = map(int, sys.argv[1:3])
asked = os.dup2(asked, 20)
os.dup2(images, 3)
os.dup2(asked, 5)
done = subprocess.run([sys.argv[3]], env={'CRTOOLS_SCRIPT_ACTION': sys.argv[4]}, timeout=20)
print(done.returncode)
'''


@contextlib.contextmanager
def directory_of(name):
    """A descriptor of the directory of a place's images, if @name says so."""
    with tempfile.TemporaryDirectory() as base:
        path = f'{base}/{name}'
        os.makedirs(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)


def ask(images, answer, action='post-dump'):
    """The hook's exit status, and what it has said."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if answer is not None:
            ours.send(answer)
        else:
            ours.shutdown(socket.SHUT_WR)
        done = subprocess.run([sys.executable, '-c', PARENT, str(images), str(theirs.fileno()), HOOK,
                               action], stdout=subprocess.PIPE, text=True, check=False,
                              pass_fds=[images, theirs.fileno()])
        theirs.close()
        try:
            return done.stdout.strip(), ours.recv(16)
        except ConnectionResetError:  # the answer was not read, and nothing was said
            return done.stdout.strip(), b''


def said(answer):
    status, words = answer
    check(len(words) == 1, f'it has said {words}')
    return status


def test_answers():
    with directory_of('.new-incoming-one/snapshot/criu') as images:
        equal(said(ask(images, b'y')), '0')
        equal(said(ask(images, b'n')), '1')
        equal(said(ask(images, None)), '1')
        equal(ask(images, b'y', 'pre-dump'), ('0', b''))
    with directory_of('incoming-one/snapshot/criu') as images:
        equal(said(ask(images, None)), '0', 'a place that is published')


def test_another_parent():
    with directory_of('snapshot/other') as other, open('/dev/null', 'rb') as null:
        for images in other, null.fileno():
            equal(ask(images, b'y'), ('1', b''))


if __name__ == '__main__':
    harness.main(globals())
