# SPDX-License-Identifier: MIT
"""What gpucrfs-criu.socket does, where systemd is not: a program that listens at a socket and
starts gpucr-launch for every connection. usage: launcher.py SOCKET GPUCR-LAUNCH"""
import contextlib
import os
import socket
import subprocess
import sys

VARIABLE = 'GPUCR_CRIU_SOCKET'


class Listener:
    """It runs in a process of its own, with all the rights that its starter has. As a context."""

    def __init__(self, directory, program):
        """@directory goes with it, if nothing else is there."""
        self.socket = f'{directory}/launch'
        self.popen = subprocess.Popen([sys.executable, os.path.abspath(__file__), self.socket, program],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.popen.stdout.readline()  # it listens

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finish()

    def launchers(self):
        """Pids of those that serve a connection now."""
        with open(f'/proc/{self.popen.pid}/task/{self.popen.pid}/children', encoding='utf-8') as file:
            pids = [int(pid) for pid in file.read().split()]
        found = []
        for pid in pids:
            with contextlib.suppress(OSError):
                with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
                    comm, state = file.read().partition(' (')[2].split(') ')[:2]
                if comm == 'gpucr-launch' and state[0] not in 'ZX':
                    found.append(pid)
        return found

    def finish(self):
        self.popen.terminate()
        self.popen.stdout.close()
        self.popen.wait()
        with contextlib.suppress(OSError):
            os.unlink(self.socket)
            os.rmdir(os.path.dirname(self.socket))


def listen(path, program):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print('listening', flush=True)
    listener.settimeout(0.5)
    while True:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            with connection:
                subprocess.Popen([program], stdin=connection, stdout=subprocess.DEVNULL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == '__main__':
    listen(*sys.argv[1:3])
