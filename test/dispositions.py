# SPDX-License-Identifier: MIT
"""What a process inherits of signals: a test is to find the default, whoever has started it."""
import signal

# Python itself ignores this one, and gives programs that it starts the default again.
KEPT = (signal.SIGPIPE,)


def reset():
    """Nothing is ignored and nothing is blocked from here on; Ctrl-C is KeyboardInterrupt."""
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN and number not in KEPT:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def worst():
    """For preexec_fn: as nohup(1), a shell's background or a careless program leaves them."""
    for name in 'INT', 'QUIT', 'PIPE', 'TERM', 'HUP', 'CHLD', 'ALRM':
        signal.signal(getattr(signal, f'SIG{name}'), signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR1, signal.SIGUSR2])
