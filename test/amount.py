# SPDX-License-Identifier: MIT
"""How much is tried, also by tests that have no harness: this imports nothing of theirs."""
import os

ALL = bool(os.environ.get('GPUCR_TEST_ALL'))


def few(usual, of_all):
    """A number, or a list, of what is tried: as CI does it, and with -Dall_tests=true."""
    return of_all if ALL else usual
