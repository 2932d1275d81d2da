#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""No wait with a deadline goes by the wall clock, which somebody may set back by an hour: the wait
would take so much longer, and a verb with it. usage: test_waits.py PROGRAM..."""
import re
import subprocess
import sys

# Each takes a deadline of CLOCK_REALTIME. A condition waits with gcr_cond_wait_until().
WALL_CLOCK = {'pthread_cond_timedwait', 'sem_timedwait', 'pthread_mutex_timedlock', 'pthread_timedjoin_np',
              'pthread_rwlock_timedrdlock', 'pthread_rwlock_timedwrlock', 'mq_timedreceive', 'mq_timedsend'}
MONOTONIC = {'pthread_cond_clockwait', 'pthread_clockjoin_np'}


def calls_of(program):
    listing = subprocess.run(['nm', '-u', program], capture_output=True, text=True, check=True).stdout
    return {re.sub('@.*', '', line.split()[-1]) for line in listing.splitlines()}


def main():
    calls = {program: calls_of(program) for program in sys.argv[1:]}
    failures = [f'{program} calls {name}' for program, names in calls.items()
                for name in sorted(names & WALL_CLOCK)]
    # A listing that could not be read would pass too.
    if not MONOTONIC <= set().union(*calls.values()):
        failures.append(f'these programs do not call {", ".join(sorted(MONOTONIC))}')
    print('\n'.join(failures) or f'{len(calls)} programs')
    sys.exit(1 if failures else 0)


if __name__ == '__main__':
    main()
