# SPDX-License-Identifier: MIT
"""CRIU for tests: brought by test/get-criu once for a build folder, or the one in the folder that
GPUCR_TEST_CRIU names. Where it cannot be had, or takes no process on this kernel, a test that
needs it is skipped with the reason."""
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import harness
from harness import BUILD, SLOW, SOURCE, Failure, Skip, try_kill

# As CRIU knows it: do not use hardware breakpoints. Where a virtual machine does not have them a
# dump waits for one for ever.
WITHOUT_BREAKPOINTS = {'CRIU_FAULT': '130'}
SECONDS = 60 * SLOW
PROBE_SECONDS = 10 * SLOW  # a dump and restore of `sleep` takes less than one
PROBLEM_SECONDS = 300  # then it is looked for again
PR_SET_CHILD_SUBREAPER = 36


class Criu:
    """One that works here. `prefix` of the calls is a command that runs CRIU elsewhere."""

    def __init__(self, directory, env):
        self.program = f'{directory}/criu'
        self.empty = f'{directory}/no-plugins'
        self.env = env

    def _run(self, verb, images, options, prefix, seconds):
        """Its exit status, and what it says about a failure."""
        log = f'{images}/{verb}.log'
        with contextlib.suppress(FileNotFoundError):
            os.unlink(log)
        done = subprocess.run(
            [*prefix, 'timeout', '-s', 'KILL', str(seconds), self.program, verb,
             '--no-default-config', '--libdir', self.empty, '-D', images, '-o', f'{verb}.log',
             '-v4', *[str(option) for option in options]],
            check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env={**os.environ, **self.env})
        words = done.stdout.strip()
        with contextlib.suppress(OSError):
            with open(log, encoding='utf-8', errors='replace') as file:
                words += ''.join(line for line in file if 'Error' in line)
        return done.returncode, words or f'exit status {done.returncode}'

    def dump(self, pid, images, *options, prefix=(), seconds=SECONDS):
        """The process ends, and is to be waited for by whoever started it."""
        status, words = self._run('dump', images, ['-t', pid, *options], prefix, seconds)
        if status:
            raise Failure(f'criu dump: {words}')

    def restore(self, images, *options, prefix=(), seconds=SECONDS):
        """Returns the pid, as the place has it where CRIU was run. The process is a child of this
        one, unless it is in a pid namespace of its own."""
        pidfile = f'{images}/restored.pid'
        with contextlib.suppress(FileNotFoundError):
            os.unlink(pidfile)
        harness.LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
        status, words = self._run('restore', images, ['-d', '--pidfile', pidfile, *options],
                                  prefix, seconds)
        if status:
            raise Failure(f'criu restore: {words}')
        with open(pidfile, encoding='utf-8') as file:
            return int(file.read())


def end(pid):
    """A restored process."""
    try_kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _probe(directory, env):
    """None if a process can be dumped and restored so, else what CRIU said."""
    criu = Criu(directory, env)
    images = tempfile.mkdtemp(prefix='gpucr-criu-')
    sleeper = subprocess.Popen(['sleep', '1000'], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    try:
        criu.dump(sleeper.pid, images, seconds=PROBE_SECONDS)
        sleeper.wait()
        end(criu.restore(images, seconds=PROBE_SECONDS))
        return None
    except Failure as failure:
        return str(failure)
    finally:
        sleeper.kill()
        sleeper.wait()
        shutil.rmtree(images)


def _bring(directory):
    """Returns why there is none, or None."""
    if os.access(f'{directory}/criu', os.X_OK):
        return None
    done = subprocess.run([f'{SOURCE}/get-criu', directory], check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    if not done.returncode:
        return None
    return (done.stderr.strip().split('\n') or ['get-criu failed'])[-1]


def _find(directory):
    """What is known after the search: `env`, or a `problem`."""
    problem = _bring(directory)
    if problem:
        return {'problem': f'no CRIU: {problem}'}
    os.makedirs(f'{directory}/no-plugins', exist_ok=True)
    for env in {}, WITHOUT_BREAKPOINTS:
        problem = _probe(directory, env)
        if not problem:
            return {'env': env}
    return {'problem': f'CRIU does not work here: {problem}'}


def _remembered(path, key):
    with contextlib.suppress(OSError), open(path, encoding='utf-8') as file:
        known = json.load(file)
        age = time.time() - os.fstat(file.fileno()).st_mtime
        if known.get('for') == key and ('env' in known or age < PROBLEM_SECONDS):
            return known
    return None


def find():
    """A Criu, or Skip."""
    if not harness.is_root():
        raise Skip('CRIU needs root')
    if harness.SANITIZER != 'none':
        raise Skip('CRIU takes no process with a sanitizer')
    directory = os.environ.get('GPUCR_TEST_CRIU') or f'{BUILD}/criu'
    # Found out once, by whichever test comes first; the others wait for it.
    with open(f'{BUILD}/criu.lock', 'w', encoding='utf-8') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = f'{BUILD}/criu.found'
        key = [directory, os.uname().release]
        known = _remembered(path, key)
        if not known:
            known = {'for': key, **_find(directory)}
            with open(f'{path}.new', 'w', encoding='utf-8') as file:
                json.dump(known, file)
            os.rename(f'{path}.new', path)
    if 'problem' in known:
        raise Skip(known['problem'])
    return Criu(directory, known['env'])
