# SPDX-License-Identifier: MIT
"""The build that is tested: where it is, its sanitizer, and how patient a test is with it."""
import os
import re

BUILD = os.environ.get('GPUCR_TEST_BUILD', '')
SOURCE = os.path.dirname(os.path.abspath(__file__))
SANITIZER = os.environ.get('GPUCR_TEST_SANITIZER', 'none')
# Sanitizers make everything slower; so does a machine that runs other tests at the same time.
SLOW = 1 if SANITIZER == 'none' else 5
PATIENCE_SEC = 40 if SLOW == 1 else 100
REPORT = re.compile(r'ERROR: \w+Sanitizer|runtime error:|WARNING: \w+Sanitizer')


def sanitizer_environment():
    """Options for instrumented programs: reports go to stderr, and one ends the program."""
    if SANITIZER == 'none':
        return {}
    return {
        # gpucr-run preloads a library of ours before the sanitizer's.
        'ASAN_OPTIONS': 'verify_asan_link_order=0:detect_leaks=1:abort_on_error=0',
        'UBSAN_OPTIONS': 'print_stacktrace=1',
        'LSAN_OPTIONS': f'suppressions={SOURCE}/lsan.supp:print_suppressions=0',
        'TSAN_OPTIONS': f'suppressions={SOURCE}/tsan.supp:second_deadlock_stack=1:'
                        'atexit_sleep_ms=50',
    }
