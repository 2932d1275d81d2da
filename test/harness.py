# SPDX-License-Identifier: MIT
"""What the tests of the daemon import: the names of the modules that they share, in one place.

A test file holds functions named test_*, and ends with harness.main(globals()). Each test makes
a Machine: a temporary directory with its own simulated GPU, runtime directory and mountpoint, so
that tests run side by side. A Machine cleans up after itself whatever happens; when a test fails
it first prints what the daemon, the mount and the programs said.

Waiting is on events or on a condition with a deadline; a deadline that passes is a failure.
"""
import dispositions
from amount import ALL, few
from checking import Failure, check, equal, error_of, fails, name_of, soon, wait_for
from files import mounts, open_both, parse_keys, read_file
from machine import FS_IMMUTABLE_FL, Machine, flags_of, unprotect
from processes import (LIBC, NOBODY, PR_SET_PDEATHSIG, become, children_of, end_or_kill, end_with_us, is_alive,
                       is_root, show_threads, try_kill, unique, wait_end)
from programs import Demo, Events, Output, Writer
from runner import SKIPPED, TEST_SEC, go_apart, main
from skipping import NotHere, OnceIsEnough, Skip, needs_cuda, same_for_both
from tested import BUILD, PATIENCE_SEC, SANITIZER, SLOW, SOURCE

MIB = 1 << 20

__all__ = [
    'ALL', 'few',
    'Failure', 'check', 'equal', 'error_of', 'fails', 'name_of', 'soon', 'wait_for',
    'mounts', 'open_both', 'parse_keys', 'read_file',
    'FS_IMMUTABLE_FL', 'Machine', 'flags_of', 'unprotect',
    'LIBC', 'NOBODY', 'PR_SET_PDEATHSIG', 'become', 'children_of', 'end_or_kill', 'end_with_us',
    'is_alive', 'is_root', 'show_threads', 'try_kill', 'unique', 'wait_end',
    'Demo', 'Events', 'Output', 'Writer',
    'SKIPPED', 'TEST_SEC', 'go_apart', 'main',
    'NotHere', 'OnceIsEnough', 'Skip', 'needs_cuda', 'same_for_both',
    'BUILD', 'PATIENCE_SEC', 'SANITIZER', 'SLOW', 'SOURCE',
    'MIB',
]

dispositions.reset()
