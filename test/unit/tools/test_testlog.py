#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tools/lib/testlog.py, which counts what tools/check has run. usage: test_testlog.py TESTLOG.PY"""
import json
import os
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath(sys.argv[1])


def entry(name, result, words=''):
    return {'name': f'gpucrfs:unit / {name}', 'result': result, 'duration': 1.5, 'returncode': 3,
            'stdout': words, 'stderr': ''}


def write(path, entries):
    with open(path, 'w', encoding='utf-8') as file:
        file.writelines(json.dumps(one) + '\n' for one in entries)
    return path


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def sum_up(first, alone, in_ci, expected='', unsteady=''):
    """Returns the counts, what was printed, and the lines of skipped tests."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [write(f'{directory}/first', first)]
        paths.append(write(f'{directory}/alone', alone) if alone else f'{directory}/none')
        paths += [f'{directory}/expected', f'{directory}/counts', f'{directory}/skips']
        for path, text in ((paths[2], expected), (paths[4], 'before\n')):
            with open(path, 'w', encoding='utf-8') as file:
                file.write(text)
        env = {**os.environ, 'CI': 'true' if in_ci else '', 'GPUCR_CHECK_UNSTEADY': unsteady}
        done = subprocess.run([sys.executable, PROGRAM, 'plain', *paths], env=env, check=True,
                              stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        return read(paths[3]).split(), done.stdout, read(paths[4]).splitlines()


def check(condition, words):
    if not condition:
        raise AssertionError(words)


def test_unsteady():
    """It fails a run that asks for that, and no other; its first output is shown either way."""
    first = [entry('good', 'OK'), entry('shaky', 'FAIL', 'it was late')]
    for unsteady, counts, word in (('fail', ['1', '1', '0'], 'FAILED'), ('', ['2', '0', '0'], 'ok')):
        found, text, _ = sum_up(first, [entry('shaky', 'OK')], True, unsteady=unsteady)
        line = next(line for line in text.splitlines() if 'unit/shaky' in line)
        check(found == counts, f'{unsteady}: {found}')
        check(line.startswith(word) and 'UNSTEADY' in line, line)
        check('it was late' in text, text)


def test_failed():
    """Twice, or with no second run."""
    for alone in [], [entry('bad', 'FAIL')], [entry('bad', 'TIMEOUT')]:
        for in_ci in True, False:
            found, text, _ = sum_up([entry('bad', 'FAIL', 'wrong'), entry('good', 'OK')], alone,
                                    in_ci)
            check(found == ['1', '1', '0'] and 'UNSTEADY' not in text, f'{found}: {text}')


def test_skipped():
    """Listed with the reasons, behind those of other builds; in CI only those that are expected."""
    first = [entry('gpu', 'SKIP', 'looking\nskipped: no GPU\n'), entry('good', 'OK')]
    wanted = ['before', 'plain: unit/gpu: skipped: no GPU']
    for in_ci, expected, counts in ((False, '', ['1', '0', '1']), (True, '', ['1', '1', '0']),
                                    (True, '* gpu # none\n', ['1', '0', '1'])):
        found, _, skips = sum_up(first, [], in_ci, expected)
        check(found == counts, f'{in_ci} {expected!r}: {found}')
        check(skips == wanted, skips)


def test_names():
    """Of those that failed, as meson test takes them."""
    with tempfile.TemporaryDirectory() as directory:
        path = write(f'{directory}/log', [entry('bad', 'FAIL'), entry('good', 'OK'),
                                          entry('late', 'TIMEOUT'), entry('gpu', 'SKIP')])
        text = subprocess.run([sys.executable, PROGRAM, '--failed', path], check=True,
                              stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL).stdout
        check(text.split() == ['bad', 'late'], text)


for name, test in list(globals().items()):
    if name.startswith('test_'):
        test()
        print(f'{name}: ok')
