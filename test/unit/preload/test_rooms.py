#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The preload library's directories: a file calls only those of its own and of the ones before it,
and no more than two files of a directory call each other. usage: test_rooms.py LIBRARY"""
import glob
import os
import subprocess
import sys

ROOMS = ['base', 'driver', 'gate', 'memory', 'managed', 'ipc', 'agent', 'hook']
DEFINED = 'TDBRWVC'
# Assembly and its C half, and the table of wrappers and the look-up in it, which is one of them.
PAIRS_MOST = 3


def read_object(path):
    """The names that it defines for others, and those that it takes from others."""
    defined, taken = set(), set()
    listing = subprocess.run(['nm', path], capture_output=True, text=True, check=True).stdout
    for words in map(str.split, listing.splitlines()):
        if len(words) == 2:
            taken.add(words[1])
        elif words[1] in DEFINED:
            defined.add(words[2])
    return defined, taken


def read_calls(library):
    """For each object, ROOM_FILE, the other ones that it takes names from, with a name of each."""
    objects = {os.path.basename(path): read_object(path)
               for path in glob.glob(f'{library}.p/*.o')
               if os.path.basename(path).split('_')[0] in ROOMS}
    owners = {name: owner for owner, (defined, _) in objects.items() for name in defined}
    return {caller: {owners[name]: name for name in taken if owners.get(name, caller) != caller}
            for caller, (_, taken) in objects.items()}


def reached(calls, start):
    found, left = set(), [start]
    while left:
        for callee in calls[left.pop()]:
            if callee not in found:
                found.add(callee)
                left.append(callee)
    return found


def main():
    calls = read_calls(sys.argv[1])
    failures = []
    if {name.split('_')[0] for name in calls} != set(ROOMS):
        failures.append('not all directories were found')
    for caller, callees in calls.items():
        for callee, name in callees.items():
            if ROOMS.index(callee.split('_')[0]) > ROOMS.index(caller.split('_')[0]):
                failures.append(f'{caller} calls {name} of {callee}, which is above it')
    circles = {frozenset(other for other in reached(calls, name) if name in reached(calls, other))
               for name in calls} - {frozenset()}
    failures += [f'these call each other: {" ".join(sorted(circle))}' for circle in circles
                 if len(circle) > 2]
    if len(circles) > PAIRS_MOST:
        failures.append(f'{len(circles)} pairs of files call each other')
    print('\n'.join(failures) or f'{len(calls)} files')
    sys.exit(1 if failures else 0)


if __name__ == '__main__':
    main()
