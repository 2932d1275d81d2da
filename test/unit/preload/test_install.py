#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""backend/preload/install: what programs have mapped is never written over. usage:
test_install.py PATH-OF-INSTALL LIBRARY"""
import os
import re
import subprocess
import sys
import tempfile

INSTALL, LIBRARY = sys.argv[1:3]


def check(ok, words):
    if not ok:
        sys.exit(f'failed: {words}')


def install(library, root, expect=0):
    done = subprocess.run([INSTALL, library, '/usr/lib/gpucrfs'], env={**os.environ, 'DESTDIR': root},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    check((done.returncode == 0) == (expect == 0), done.stdout)
    return done.stdout


def contents(path):
    with open(path, 'rb') as file:
        return file.read()


def build_id(path):
    notes = subprocess.run(['readelf', '-n', path], capture_output=True, text=True, check=True).stdout
    return re.search(r'Build ID: ([0-9a-f]+)', notes).group(1)


def with_other_id(path, copy):
    """As another version would be: the id is 20 bytes somewhere in the file."""
    old = bytes.fromhex(build_id(path))
    data = contents(path)
    check(data.count(old) == 1, 'the id is not there once')
    with open(copy, 'wb') as file:
        file.write(data.replace(old, bytes(reversed(old))))


with tempfile.TemporaryDirectory() as root:
    directory = f'{root}/usr/lib/gpucrfs'
    link = f'{directory}/libgpucr-preload.so'
    first = f'{directory}/libgpucr-preload-{build_id(LIBRARY)}.so'

    install(LIBRARY, root)
    check(os.path.realpath(link) == os.path.realpath(first), 'the link leads elsewhere')
    check(contents(link) == contents(LIBRARY), 'it is another file')
    check(os.stat(first).st_mode & 0o777 == 0o755, 'mode')
    before = os.stat(first)

    # Once more, and another version: what is there is the same file as before.
    install(LIBRARY, root)
    newer = f'{root}/libgpucr-preload.so'
    with_other_id(LIBRARY, newer)
    install(newer, root)
    second = f'{directory}/libgpucr-preload-{build_id(newer)}.so'
    check(os.path.realpath(link) == os.path.realpath(second), 'the link leads to the old one')
    after = os.stat(first)
    check((before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns) and
          contents(first) == contents(LIBRARY), 'the first was written to')
    check(sorted(os.listdir(directory)) ==
          sorted([os.path.basename(path) for path in (first, second, link)]), 'something is left')

    # Files with debugging information removed have the same id.
    with open(newer, 'ab') as file:
        file.write(b'more')
    check('is there already' in install(newer, root), 'no word of a file that differs')
    check(not contents(second).endswith(b'more'), 'it was written over')

    # No id, and no library at all.
    install('/dev/null', root, expect=1)
    install(f'{root}/nothing', root, expect=1)
    check(len(os.listdir(directory)) == 3, 'a failure has left something')
print('ok')
