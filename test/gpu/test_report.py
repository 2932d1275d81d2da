# SPDX-License-Identifier: MIT
"""test/gpu/run --hip on the simulated AMD GPU: what it is to find out on a real one, it finds out
here, and its report says so, whatever becomes of the run."""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

BUILD = os.environ['GPUCR_TEST_BUILD']
RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'run')
SECONDS = 400
BENCH = '--sizes 16M --runs 1 --no-calls --rows hip-cold'
# What the report has to have, whatever was found.
SECTIONS = ['machine', 'devices', 'memory of the GPUs', 'interfaces', 'ROCm', 'its libraries', 'packages',
            'settings', 'rocminfo', 'rocm-smi', 'amd-smi', 'PyTorch (version, HIP, CUDA, GPU there, '
            'GPUs)', 'CRIU', 'compiler', 'build', 'checks', 'gpucr-bench', 'the daemon',
            'the programs', "the kernel's last messages on amdgpu and kfd", 'result']

problems = []


def check(good, words):
    if not good:
        problems.append(words)
        print(f'FAIL: {words}')


class Attempt:
    """A run with a directory of its own for whatever it makes."""

    def __init__(self, *arguments, build=BUILD):
        self.directory = tempfile.TemporaryDirectory(prefix='gpucr-report.')
        self.temporary = os.path.join(self.directory.name, 'tmp')
        self.report = os.path.join(self.directory.name, 'report.txt')
        os.mkdir(self.temporary)
        # pylint: disable=consider-using-with # a test may end it
        self.process = subprocess.Popen(
            [RUN, '--hip', '--sim', '--quick', '--build', build, '--report', self.report,
             '--limit', str(SECONDS), *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, 'TMPDIR': self.temporary}, cwd=self.directory.name)

    def end(self):
        """Its exit status, what it printed, and the report."""
        try:
            output, _ = self.process.communicate(timeout=SECONDS + 90)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            output, _ = self.process.communicate()
            check(False, 'it does not end')
        with open(self.report, encoding='utf-8') as file:
            report = file.read()
        check(os.listdir(self.temporary) == [], f'left behind: {os.listdir(self.temporary)}')
        check(sorted(os.listdir(self.directory.name)) == ['report.txt', 'tmp'],
              f'left behind: {os.listdir(self.directory.name)}')
        with open('/proc/self/mounts', encoding='utf-8') as file:
            check(self.directory.name not in file.read(), 'something is still mounted')
        return self.process.returncode, output, report


def sections(report):
    return [line[5:] for line in report.splitlines() if line.startswith('==== ')]


def body(report, title):
    return report.partition(f'\n==== {title}\n')[2].partition('\n====')[0]


def test_whole():
    status, output, report = Attempt('--only', 'demo,without,data,bench', '--bench', BENCH).end()
    check(status == 0, f'status {status}:\n{output}')
    found = sections(report)
    for title in SECTIONS:
        check(title in found, f'no section {title}')
    check('simulated: yes' in report, 'it is not said that it was simulated')
    checks = body(report, 'checks')
    for words in ('PASS demo: demo has the engine hip', 'PASS demo: demo has given its VRAM back',
                  'PASS demo: thaw demo', 'PASS without: the error says what to do',
                  'PASS data: freeze data demo', 'PASS bench: all contents were right',
                  'PASS end: nothing stays mounted'):
        check(words in checks, f"no '{words}'")
    check('FAIL' not in checks, 'a check has failed')
    check('hip, cold' in body(report, 'gpucr-bench'), 'no table of gpucr-bench')
    result = body(report, 'result')
    check(result.startswith('status 0: ') and ' passed, 0 failed' in result, f"result '{result}'")
    name = socket.gethostname()
    check(len(name) < 4 or name not in report, 'the name of the host is in it')
    check('send it' in output, 'nobody is asked to send it')


def test_without_build():
    attempt = Attempt(build='/nonexistent')
    status, output, report = attempt.end()
    check(status == 1, f'without a build: status {status}:\n{output}')
    check('/nonexistent' in body(report, 'result'), f"why not: '{body(report, 'result')}'")
    check('machine' in sections(report), 'without a build: nothing of the machine')


def test_interrupted():
    attempt = Attempt('--only', 'demo')
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with open(attempt.report, encoding='utf-8') if os.path.exists(attempt.report) \
                else open(os.devnull, encoding='utf-8') as file:
            if '==== compiler' in file.read():
                break
        time.sleep(0.05)
    attempt.process.send_signal(signal.SIGTERM)
    status, output, report = attempt.end()
    check(status == 143, f'interrupted: status {status}:\n{output}')
    check('status 143' in body(report, 'result'), f"interrupted: '{body(report, 'result')}'")


def main():
    if not os.access('/dev/fuse', os.R_OK | os.W_OK):
        print('/dev/fuse cannot be opened')
        sys.exit(77)
    for test in (test_without_build, test_interrupted, test_whole):
        started = time.monotonic()
        test()
        print(f'{test.__name__}: {time.monotonic() - started:.1f} s', flush=True)
    sys.exit(1 if problems else 0)


main()
