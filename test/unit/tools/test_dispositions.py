#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests and programs find what they need of signals, whatever is ignored or blocked where they are
started. usage: test_dispositions.py CASE... with one -- between each two: commands that must end
with status 0, or skip, where the parent ignores and blocks what it can"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import dispositions  # pylint: disable=wrong-import-position

SKIPPED = 77


def commands(words):
    command = []
    for word in [*words, '--']:
        if word == '--':
            yield command
            command = []
        else:
            command.append(word)


dispositions.reset()
for case in commands(sys.argv[1:]):
    done = subprocess.run(case, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors='replace', check=False,
                          preexec_fn=dispositions.worst, restore_signals=False)
    name = ' '.join(os.path.basename(word) for word in case[:3])
    if done.returncode not in (0, SKIPPED):
        print(done.stdout)
        sys.exit(f'{name}: status {done.returncode}')
    print(f'{name}: {"ok" if done.returncode == 0 else "skipped"}')
