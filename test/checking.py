# SPDX-License-Identifier: MIT
"""Checks, and waiting for something that is to happen: both say in words what was wrong."""
import errno
import sys
import threading
import time

from tested import PATIENCE_SEC


class Failure(Exception):
    """The test found something wrong."""


def check(condition, words):
    if not condition:
        raise Failure(words)


def equal(found, expected, words=''):
    if found != expected:
        raise Failure(f'{words + ": " if words else ""}found {found!r}, expected {expected!r}')


def wait_for(condition, words, seconds=None):
    """Returns what the condition returned when it was true at last."""
    began = time.monotonic()
    pause_sec = 0.002
    while True:
        value = condition()
        if value:
            return value
        passed = time.monotonic() - began
        if passed > (seconds or PATIENCE_SEC):
            raise Failure(f'waited in vain for: {words}')
        # To look takes the time of processors, too.
        time.sleep(max(pause_sec, min(passed / 50, 0.1)))
        pause_sec = min(1.5 * pause_sec, 0.025)


def soon(what, call, bound_sec):
    """What the call returns; a failure if that takes longer, or for ever. It has a thread of its own."""
    done = []
    began = time.monotonic()

    def run():
        try:
            done.append((call(), None))
        except BaseException as error:  # pylint: disable=broad-except
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(bound_sec)
    check(done, f'{what} takes more than {bound_sec} s')
    print(f'{what}: {time.monotonic() - began:.2f} s', file=sys.stderr)
    if done[0][1]:
        raise done[0][1]
    return done[0][0]


def name_of(number):
    """As the daemon names it: Python knows EOPNOTSUPP as ENOTSUP."""
    if not number:
        return 'ok'
    return 'EOPNOTSUPP' if number == errno.EOPNOTSUPP else errno.errorcode.get(number, str(number))


def fails(call, *arguments):
    """The words of the failure that the call ends with."""
    try:
        call(*arguments)
    except Failure as failure:
        return str(failure)
    raise Failure('it did not fail')


def error_of(call):
    """The name of the errno that it fails with; 'ok' if it does not."""
    try:
        call()
    except OSError as error:
        return name_of(error.errno)
    return 'ok'
