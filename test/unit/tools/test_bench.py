#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""gpucr-bench on the simulated GPU: its figures, what it finds wrong, and that nothing is left
behind. usage: test_bench.py PATH-OF-GPUCR-BENCH SOURCE-ROOT
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback

BENCH = os.path.abspath(sys.argv[1])
TOOLS = os.path.dirname(BENCH)
BUILD = os.path.dirname(TOOLS)
ROOT = sys.argv[2]
MIB = 1 << 20
RUN_SEC = 600
ENDING_SEC = 10

work = None


def check(condition, words):
    if not condition:
        raise AssertionError(words)


def near(found, expected, words):
    check(expected and abs(found / expected - 1) < 1e-6, f'{words}: {found}, expected {expected}')


def read(path):
    with open(path, encoding='utf-8', errors='replace') as stream:
        return stream.read()


def below_work():
    """Mounts and processes that have to do with our directory."""
    found = [line.split()[1] for line in read('/proc/self/mounts').splitlines()
             if line.split()[1].startswith(work + '/')]
    for name in os.listdir('/proc'):
        try:
            environment = read(f'/proc/{name}/environ') if name.isdigit() else ''
            if int(name or 0) != os.getpid() and f'={work}/gpucr-bench.' in environment:
                found.append(f'process {name}: ' + read(f'/proc/{name}/cmdline').replace('\0', ' '))
        except (OSError, ValueError):
            pass
    return found


def environment(**more):
    """With a state directory of its own for what is no bench: programs that the tests start."""
    values = {name: value for name, value in os.environ.items()
              if not name.startswith('GPUCR_') and name != 'LD_LIBRARY_PATH'}
    values.update(TMPDIR=work, GPUCR_SIM_VRAM='256M', PATH=f"{TOOLS}:{os.environ['PATH']}")
    values.update(more)
    return values


def bench(*arguments, status=0, **more):
    """Run it; (stdout, stderr), having made sure that nothing is left."""
    done = subprocess.run([BENCH, *arguments], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=RUN_SEC, env=environment(**more))
    check(done.returncode == status, f'{" ".join(arguments)}: status {done.returncode}, expected '
          f'{status}\n{done.stdout}\n{done.stderr}')
    # What the bench has killed takes a moment to end on a busy machine, if it is nobody's child here.
    end = time.monotonic() + ENDING_SEC
    while found := below_work():
        check(time.monotonic() < end, f'{" ".join(arguments)}: left behind: {found}')
        time.sleep(0.02)
    left = [name for name in os.listdir(work) if name.startswith('gpucr-bench.')]
    check(not left, f'{" ".join(arguments)}: left behind: {left}')
    return done.stdout, done.stderr


def results(*arguments, **more):
    path = os.path.join(work, 'results.json')
    out, _ = bench('--sim', *arguments, '--json', path, **more)
    found = json.loads(read(path))
    check(found['simulated'] and 'these figures mean nothing' in out, 'it does not say simulated')
    return found, out


def has_fuse():
    return os.access('/dev/fuse', os.R_OK | os.W_OK)


# ---- the tests

def test_arguments():
    """Options as the manual and the completion have them; what is none."""
    out, _ = bench('--help')
    listed = re.findall(r'^  (--[a-z-]+)', out, re.M)
    check(len(listed) > 10, f'few options: {listed}')
    page = read(os.path.join(ROOT, 'man', 'gpucr-bench.1.scd'))
    documented = re.findall(r'^\*(--[a-z-]+)\*', page, re.M)
    check(listed == documented, f'options {listed}, documented {documented}')
    completion = read(os.path.join(ROOT, 'tools', 'completions', 'gpucr-bench'))
    for option in listed:
        check(re.search(rf'{option}[ )\n\']', completion), f'completion: no {option}')
    check(bench('--version')[0].startswith('gpucr-bench '), '--version')
    for wrong in (['--nonsense'], ['more'], ['--sizes', '1'], ['--sizes', '1G,'], ['--runs', '0'],
                  ['--rows', 'fast'], ['--rows', 'vmm,'], ['--limit', 'x'], ['--sizes', '1T'],
                  ['--mount', '/', '--rows', 'vmm-cold'], ['--mount', '/', '--rows', 'copy'],
                  ['--changed', '101'], ['--changed', '-1'], ['--rows', 'copy-back']):
        bench(*wrong, status=2)


def packing(*arguments):
    """Run it without anything that it does not need; what came of it by content, and the text."""
    path = os.path.join(work, 'packing.json')
    out, _ = bench('--json', path, '--runs', '2', *arguments, GPUCR_SIM_DIR='/nonexistent')
    found = json.loads(read(path))
    check(not found['failures'], str(found))
    for row in found['packing']:
        for threads in 'one', 'all':
            for act in 'pack', 'unpack':
                rate = row[threads][f'{act}_bytes_per_second']
                check(len(rate['values']) == 2 and rate['min'] > 0, f'{row["content"]}: {act}')
    return {row['content']: row for row in found['packing']}, out


def test_pack():
    """How small bytes become, which is no matter of the machine; a file of one's own."""
    found, out = packing('--pack', '--sizes', '16M')
    ratios = {name: row['packed_bytes'] / row['bytes'] for name, row in found.items()}
    for name, low, high in (('weights', .65, .75), ('first-moments', .8, .9),
                            ('second-moments', .82, .92), ('cache', .2, .7)):
        check(found[name]['bytes'] == 16 * MIB and low < ratios[name] < high, str(ratios))
        check(f'{ratios[name]:.3f}' in out and 'synthetic' in out, out)
    check(0 < found['cache']['zero_bytes'] < 16 * MIB, str(found['cache']))
    path = os.path.join(work, 'file')
    with open(path, 'wb') as file:
        file.write(bytes(MIB) + os.urandom(MIB) + b'what is packed\n' * 99999)
    size = os.path.getsize(path)
    found, out = packing('--pack-file', path)
    row = found['file']
    check(list(found) == ['file'] and row['bytes'] == size, str(found))
    check(row['zero_bytes'] == MIB and MIB < row['packed_bytes'] < MIB + MIB // 10, str(row))
    check(path in out and 'synthetic' not in out, out)
    found, _ = packing('--pack-file', path, '--pack', '--sizes', '2M')
    check(len(found) == 5 and all(row['bytes'] == 2 * MIB for row in found.values()), str(found))
    for wrong in '/nonexistent', '/dev/null', work:
        _, err = bench('--pack-file', wrong, status=1)
        check(wrong in err, err)


def test_no_driver():
    """A machine without a GPU."""
    # In a process of its own: a build's own library may be in this one's path.
    look = [sys.executable, '-c', 'import ctypes; ctypes.CDLL("libcuda.so.1")']
    if not subprocess.run(look, check=False, stderr=subprocess.DEVNULL,
                          env=environment()).returncode:
        return
    _, err = bench(status=1)
    check('there is no NVIDIA driver here' in err, err)


def test_bare():
    """The peer, the limits and the cost of calls need no daemon's mount but for the last."""
    found, out = results('--sizes', '8M,16M', '--runs', '3', '--slow-runs', '2', '--rows', 'bare',
                         *([] if has_fuse() else ['--no-calls']))
    check([(row['row'], row['bytes']) for row in found['rows']] ==
          [('bare', 8 * MIB), ('bare', 16 * MIB)], 'rows')
    if has_fuse():
        for name, call in found['calls'].items():
            check(len(call['with_ns']['values']) == 6 and call['without_ns']['min'] > 0, name)
    row = found['rows'][0]
    check(len(row['freeze_usec']['values']) == 2 and len(row['thaw_usec']['values']) == 2, 'runs')
    check(len(found['control_freeze_usec']['values']) == 3, 'runs of the control state')
    near(row['freeze_times_faster'], 1, 'the peer next to itself')
    for verb, rate in (('freeze', 'out'), ('thaw', 'in')):
        limit = max(8 * MIB * 1e6 / found['pinned_copies'][0][f'{rate}_bytes_per_second'],
                    found[f'control_{verb}_usec']['median'])
        near(row[f'{verb}_limit_usec'], limit, f'limit of {verb}')
        near(row[f'{verb}_of_limit'], row[f'{verb}_usec']['median'] / limit, 'its ratio')
        values = sorted(row[f'{verb}_usec']['values'])
        near(row[f'{verb}_usec']['median'], sum(values) / 2, 'median')
        near(row[f'{verb}_usec']['min'], values[0], 'min')
        near(row[f'{verb}_usec']['max'], values[1], 'max')
    check(row['frozen_vram_bytes']['max'] == 0, 'VRAM of the frozen program')
    check(re.search(r'^\| 8 MiB +\| bare cuCheckpoint ', out, re.M), out)
    check(not found['failures'], str(found['failures']))


def test_driver():
    """Rows with daemons: cold, warm, compared with the peer."""
    found, out = results('--sizes', '16M', '--runs', '2', '--rows', 'bare,driver', '--no-calls')
    check([row['row'] for row in found['rows']] == ['bare', 'driver-cold', 'driver-warm'], out)
    peer = found['rows'][0]
    for row in found['rows'][1:]:
        check(len(row['thaw_usec']['values']) == 2, row['row'])
        near(row['freeze_times_faster'],
             peer['freeze_usec']['median'] / row['freeze_usec']['median'], 'ratio')
        check(row['moved_bytes']['min'] >= 16 * MIB, 'bytes')
        check(row['frozen_vram_bytes']['max'] == 0, 'VRAM of the frozen program')
        check(row['daemon_host_bytes']['min'] > 0, 'host memory of the daemon')
    cold = found['rows'][1]
    check(cold['start'] == 'cold' and cold['idle_vram_bytes']['max'] == 0 and
          cold['idle_more_vram_bytes']['max'] <= 0, 'VRAM after the idle time')
    check(not found['failures'] and not found['notes'], out)


def test_vmm():
    """The fast engine: cold without anything kept, warm with pages and a worker."""
    found, out = results('--sizes', '32M', '--runs', '2', '--rows', 'bare,vmm,data', '--no-calls')
    check([row['row'] for row in found['rows']] ==
          ['bare', 'vmm-cold', 'vmm-warm', 'data-cold', 'data-warm'], out)
    for row in found['rows'][1:]:
        check(len(row['thaw_usec']['values']) == 2, row['row'])
        if row['engine'] == 'vmm':
            check(row['frozen_vram_bytes']['max'] == 0, 'VRAM of the frozen program')
        else:
            check(0 < row['frozen_vram_bytes']['max'] < 32 * MIB, 'VRAM of its context')
            rate = found['pinned_copies'][0]
            check(rate['bytes'] == 32 * MIB, 'another size was copied')
            near(row['freeze_limit_usec'], 32 * MIB * 1e6 / rate['out_bytes_per_second'],
                 'limit of data')
        if row['start'] == 'cold':
            check(row['idle_vram_bytes']['max'] == 0, 'VRAM after the idle time')
            check(row['store_host_bytes']['max'] < MIB, 'pages are kept')
        else:
            check(row['store_host_bytes']['min'] >= 32 * MIB, 'the pool is not filled')
        if row['row'] == 'vmm-cold':
            check(row['idle_more_vram_bytes']['max'] <= 0, 'VRAM after the idle time')
    check(not found['failures'] and not found['notes'], out)


def test_refreeze():
    """Frozen for the second time, after a part has been changed."""
    found, out = results('--sizes', '32M', '--runs', '2', '--rows', 'bare,refreeze', '--changed',
                         '10', '--no-calls')
    check([row['row'] for row in found['rows']] == ['bare', 'refreeze', 'refreeze-data'], out)
    check(found['changed_percent'] == 10, 'percent')
    peer, whole, data = found['rows']
    for row in (whole, data):
        check(row['start'] == 'again' and len(row['thaw_usec']['values']) == 2, row['row'])
        near(row['freeze_times_faster'],
             peer['freeze_usec']['median'] / row['freeze_usec']['median'], 'ratio')
        check(row['copied_bytes']['max'] == 51 * 65536, f'copied: {row["copied_bytes"]}')
        # What is kept takes the place of the pool.
        check(32 * MIB <= row['store_host_bytes']['max'] < 64 * MIB, 'room in the store')
    check(found['digests'] in ('gpu', 'host') and re.search(r'^Digests made on the', out, re.M), out)
    near(whole['freeze_limit_usec'], found['control_freeze_usec']['median'], 'limit')
    near(whole['freeze_of_limit'], whole['freeze_usec']['median'] /
         found['control_freeze_usec']['median'], 'its ratio')
    check(data['freeze_limit_usec'] is None and data['freeze_of_limit'] is None, 'limit of data')
    check(data['thaw_limit_usec'] > 0, 'limit of the thaw')
    check(re.search(r'^\| 32 MiB +\| vmm, refreeze +\| ', out, re.M), out)
    check(not found['failures'] and not found['notes'], out)


def test_exchange():
    """Only if it is named. That the contents are right is looked at after each."""
    found, out = results('--sizes', '16M', '--runs', '2', '--rows', 'exchange', '--no-calls')
    row, = found['exchanges']
    check(row['bytes'] == 16 * MIB and row['row'] == 'exchange', out)
    for key in ('apart_usec', 'exchange_usec'):
        check(len(row[key]['values']) == 2 and min(row[key]['values']) > 0, out)
    check(0 < row['ratio'] < 100, out)
    check('thaw swap=' in out, out)


def test_copies():
    """Files of a frozen process, out of the mount and in, next to the same in a bare tmpfs."""
    found, out = results('--sizes', '16M,8M', '--runs', '3', '--rows', 'copy', '--no-calls')
    check(found['rows'] == [], out)
    check([copy['row'] for copy in found['copies']] == ['copy-out', 'copy-in'], out)
    for copy in found['copies']:
        check(copy['bytes'] == 16 * MIB, 'not the first size')
        check(len(copy['bytes_per_second']['values']) == 3 and
              len(copy['bare_bytes_per_second']['values']) == 3, 'runs')
        near(copy['of_bare'], copy['bytes_per_second']['median'] /
             copy['bare_bytes_per_second']['median'], 'ratio')
        words = copy['row'].replace('-', ' ')
        check(re.search(rf'^\| 16 MiB \| {words} +\| +[0-9.]+ \|', out, re.M), out)
    check(not found['failures'] and not found['notes'], out)
    found, out = results('--sizes', '8M', '--runs', '1', '--rows', 'copy-out', '--no-calls')
    check([copy['row'] for copy in found['copies']] == ['copy-out'], 'rows')
    reader = 'kernel itself' if found['copies'][0]['passthrough'] else 'daemon'
    check(f'The {reader} reads\nthe mount' in out, out)


def test_hip():
    """An AMD GPU: nobody to be compared with, and what is frozen is the data."""
    rows = ['--sizes', '16M', '--runs', '2', '--rows', 'bare,hip,refreeze', '--no-calls']
    found, out = results('--hip', *rows)
    check(found['hip'], 'it is not said that it is AMD')
    check([row['row'] for row in found['rows']] ==
          ['hip-cold', 'hip-warm', 'refreeze', 'refreeze-data'], out)
    rate = found['pinned_copies'][0]['out_bytes_per_second']
    for row in found['rows']:
        check(row['engine'] in ('hip', 'hip data') and len(row['thaw_usec']['values']) == 2,
              row['row'])
        check(row['freeze_times_faster'] is None and row['thaw_times_faster'] is None, 'a peer')
        check(0 < row['frozen_vram_bytes']['max'] < 32 * MIB, 'VRAM of its queues')
        if row['start'] == 'again':
            check(row['freeze_limit_usec'] is None, 'limit of a refreeze')
        else:
            near(row['freeze_limit_usec'], 16 * MIB * 1e6 / rate, 'limit')
        if row['row'] == 'hip-cold':
            check(row['idle_vram_bytes']['max'] == 0, 'VRAM after the idle time')
    check(found['control_freeze_usec'] is None, 'control state')
    check([note['what'] for note in found['notes']] == ['bare, driver'], str(found['notes']))
    check(re.search(r'^\| 16 MiB +\| hip, cold +\| ', out, re.M), out)
    check(not found['failures'], out)
    found, out = results('--hip', '--sizes', '8M', '--runs', '1', '--rows', 'hip-cold,copy')
    check([copy['row'] for copy in found['copies']] == ['copy-out', 'copy-in'], out)
    check('hipMalloc, 64 MiB' in out and 'cuMem' not in out, out)
    for name, call in found['calls'].items():
        check(len(call['with_ns']['values']) == 2 and call['without_ns']['min'] > 0, name)
    check(not found['failures'] and not found['notes'], out)
    bench('--hip', '--sim', '--rows', 'bare,driver', status=2)


def copier(*questions):
    """What the role that copies answers to each; then it is told to end."""
    place = os.path.join(work, 'place')
    os.makedirs(place, exist_ok=True)
    done = subprocess.run([BENCH, '--role', 'copy', place, str(8 * MIB)], capture_output=True,
                          input=''.join(question + '\n' for question in questions), text=True,
                          timeout=60, check=True, env=environment())
    answers = done.stdout.splitlines()
    check(answers[0].startswith('ok place ') and len(answers) == 1 + len(questions), str(answers))
    check(not os.listdir(place), 'left behind')
    return answers[1:]


def test_copier():
    """What was copied wrongly is found; a place that is none is an error."""
    source, target, other = (os.path.join(work, name) for name in ('source', 'target', 'other'))
    os.mkdir(source)
    for name, data in (('one', os.urandom(3 * MIB + 17)), ('two', os.urandom(MIB)), ('none', b'')):
        with open(os.path.join(source, name), 'wb') as stream:
            stream.write(data)
    count = 4 * MIB + 17
    answers = copier(f'out {source}', 'bare', f'make {target}', f'in {target}', f'compare {target}',
                     f'compare {work}/nowhere', f'remove {target}', f'in {target}')
    for answer in answers[:2] + [answers[3]]:
        check(re.match(rf'ok bytes {count} usec \d+$', answer), answer)
    check(answers[2] == answers[4] == 'ok', str(answers))
    check(answers[5].startswith('error ') and answers[6].startswith('error '), str(answers))
    check(answers[7].startswith('error ') and 'File exists' in answers[7], answers[7])
    for name in ('one', 'two', 'none'):
        check(subprocess.run(['cmp', f'{source}/{name}', f'{target}/{name}'],
                             check=False).returncode == 0, name)
    os.mkdir(other)
    for name in ('one', 'two', 'none'):
        with open(f'{source}/{name}', 'rb') as stream:
            data = bytearray(stream.read())
        if name == 'one':
            data[2 * MIB + 5] ^= 1
        with open(f'{other}/{name}', 'wb') as stream:
            stream.write(data)
    answer = copier(f'out {source}', f'compare {other}')[1]
    check(answer == f'error content one is not what was copied, in the MiB at byte {2 * MIB}',
          answer)


def test_too_large():
    """A size that does not fit is left out, and said."""
    found, out = results('--sizes', '1G,8M', '--runs', '1', '--rows', 'bare', '--no-calls')
    check([row['bytes'] for row in found['rows']] == [8 * MIB], out)
    check(re.search(r'^note: 1 GiB: left out: needs \d+ MiB of VRAM, \d+ MiB are free$', out, re.M),
          out)


def test_failing_freeze():
    """A verb that fails is a failure, and the bench goes on to the next row."""
    out, _ = bench('--sim', '--sizes', '8M,16M', '--runs', '3', '--rows', 'bare', '--no-calls',
                   '--busy', status=1,
                   GPUCR_SIM_FAULTS='cuCheckpointProcessCheckpoint error=CUDA_ERROR_UNKNOWN')
    check(len(re.findall(r'^FAILED: (?:8|16) MiB bare cuCheckpoint: run 1: '
                         r'cuCheckpointProcessCheckpoint: CUDA_ERROR_UNKNOWN', out, re.M)) == 2, out)


def test_command():
    """Somebody else's program: measured like ours; one that ends after a thaw has lost something."""
    demo = 'gpucr-demo --bytes 16M --tick 20'
    found, out = results('--command', demo, '--ready', 'tick 2 ok', '--check', 'ok', '--runs', '2',
                         '--rows', 'bare,driver-warm' if has_fuse() else 'bare', '--no-calls')
    check(len(found['rows']) == 1 + has_fuse() and all(row['command'] for row in found['rows']),
          out)
    for row in found['rows']:
        check(row['bytes'] is None and row['moved_bytes']['min'] >= 16 * MIB, 'bytes')
        check(row['freeze_of_limit'] > 0, 'limit')
    out, _ = bench('--sim', '--command', demo + ' --ticks 100', '--ready', 'tick 2 ok', '--check',
                   'never', '--runs', '1', '--rows', 'bare', '--no-calls', status=1)
    check(re.search(r'FAILED: command bare.*WRONG CONTENT: after the thaw: it has ended', out), out)
    out, _ = bench('--sim', '--command', 'echo ready; sleep 60', '--runs', '1', '--rows', 'bare',
                   '--no-calls', status=1)
    check('has 0 processes that use GPU 0' in out, out)


def spoil(pid, pattern, change=True):
    """Change a byte of a process's memory where these bytes are, or only find them."""
    for line in read(f'/proc/{pid}/maps').splitlines():
        words = line.split()
        start, end = (int(number, 16) for number in words[0].split('-'))
        # Not a sanitizer's shadow memory, which is huge.
        if not words[1].startswith('rw') or end - start > 256 * MIB:
            continue
        with open(f'/proc/{pid}/mem', 'r+b', buffering=0) as memory:
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except OSError:
                continue
            where = data.find(pattern)
            if where >= 0 and change:
                memory.seek(start + where + 5)
                memory.write(bytes([data[where + 5] ^ 0x40]))
            if where >= 0:
                return True
    return False


def word(seed, index):
    return ((seed ^ index * 2654435761) & 0xffffffff).to_bytes(4, 'little')


def test_contents():
    """A byte of VRAM that changes is found, and where it is."""
    state = os.path.join(work, 'sim-contents')
    os.mkdir(state)
    target = subprocess.Popen(
        [os.path.join(TOOLS, 'gpucr-run'), '--sim', BENCH, '--role', 'target', '0', str(8 * MIB),
         '64', '7', '0'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        env=environment(GPUCR_SIM_DIR=state, GPUCR_PRELOAD=''))

    def ask():
        target.stdin.write('verify\n')
        return target.stdout.readline()

    try:
        check(target.stdout.readline() == 'ok\n', 'it does not start')
        check(ask() == 'ok\n', 'it is not right in the beginning')
        check(ask() == 'ok\n', 'it is not right after its own change')
        # Piece 9 has been changed twice: each time every word grew by a number of its own.
        seed = 7 + 9 * 0x9e3779b9
        grown = 2 * (2654435761 + 9)
        pattern = b''.join(((int.from_bytes(word(seed, index), 'little') + grown) & 0xffffffff)
                           .to_bytes(4, 'little') for index in range(64))
        check(spoil(target.pid, pattern), 'the bytes are not found')
        answer = ask()
        check(re.match(r'error content piece 9 \(2097152 bytes at 0x[0-9a-f]+\) has changed, first '
                       r'at byte 4: expected 0x[0-9a-f]{8}, found 0x', answer), answer)
    finally:
        target.kill()
        target.wait()
        target.stdin.close()
        target.stdout.close()


def test_changes():
    """Only so many chunks change, what they are then is known, and a wrong byte is found."""
    state = os.path.join(work, 'sim-changes')
    os.mkdir(state)
    target = subprocess.Popen(
        [os.path.join(TOOLS, 'gpucr-run'), '--sim', BENCH, '--role', 'target', '0', str(8 * MIB),
         '4', '7', '0', '25'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        env=environment(GPUCR_SIM_DIR=state, GPUCR_PRELOAD=''))

    def ask(question):
        target.stdin.write(question + '\n')
        return target.stdout.readline()

    # Of the large pieces every fourth chunk of 64 KiB, the last of four; piece 9 is the second.
    seed = 7 + 9 * 0x9e3779b9
    step = 2654435761 + 9
    words = 65536 // 4

    def content(chunk, times):
        return b''.join(((int.from_bytes(word(seed, index), 'little') + times * step) & 0xffffffff)
                        .to_bytes(4, 'little')
                        for index in range(chunk * words, chunk * words + 64))

    try:
        check(target.stdout.readline() == 'ok\n', 'it does not start')
        for times in (1, 2):
            check(ask('change') == 'ok\n', f'change {times}')
        check(ask('verify') == 'ok\n', 'it does not know its own changes')
        # The verification has changed every word once.
        for chunk, times in ((0, 1), (2, 1), (4, 1), (7, 3)):
            check(spoil(target.pid, content(chunk, times), change=False), f'chunk {chunk}')
        check(spoil(target.pid, content(3, 3)), 'the bytes of a changed chunk are not found')
        answer = ask('change')
        check(re.match(rf'error content piece 9 .* first at byte {3 * 65536 + 4}: ', answer),
              answer)
    finally:
        target.kill()
        target.wait()
        target.stdin.close()
        target.stdout.close()


def test_limit():
    """When the time is up, what there is is printed."""
    path = os.path.join(work, 'limit.json')
    bench('--sim', '--sizes', '8M', '--runs', '100', '--rows', 'bare', '--no-calls', '--limit', '1',
          '--json', path)
    found = json.loads(read(path))
    check(len(found['rows']) < 2, 'rows')
    check('the time is up' in str(found['notes']) or
          len(found['rows'][0]['freeze_usec']['values']) == 100, str(found['notes']))


def test_interrupt():
    """^C in the middle: nothing is left, and it is no success."""
    process = subprocess.Popen([BENCH, '--sim', '--sizes', '16M', '--runs', '20', '--rows', 'driver',
                                '--progress'],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=environment())
    for line in process.stderr:
        if 'driver, cold, run 1' in line:
            break
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    check(process.returncode == 1 and 'interrupted' in err, f'{process.returncode} {err}')
    check(not below_work(), f'left behind: {below_work()}')


def test_mount():
    """A gpucrfs that is there."""
    mount, runtime, state = (os.path.join(work, name) for name in ('mnt', 'run', 'sim-mount'))
    for path in (mount, runtime, state):
        os.mkdir(path, 0o700)
    its = environment(GPUCR_SIM_DIR=state, GPUCR_HELPER_DIR=f'{BUILD}/backend/cuda',
                      GPUCR_SIM_LIBDIR=f'{BUILD}/backend/sim')
    # A TMPDIR of its own, for it is not the bench's.
    its['TMPDIR'] = '/tmp'
    daemon = subprocess.Popen([f'{BUILD}/fs/gpucrfs', '-f', '-o', f'runtime_dir={runtime},sim',
                               mount], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=its)
    try:
        deadline = time.monotonic() + 60
        while not os.path.exists(f'{mount}/ctl'):
            check(daemon.poll() is None and time.monotonic() < deadline, 'no mount')
            time.sleep(0.01)
        path = os.path.join(work, 'mount.json')
        done = subprocess.run([BENCH, '--sim', '--mount', mount, '--sizes', '8M', '--runs', '2',
                               '--rows', 'bare,driver', '--no-calls', '--json', path], check=False,
                              capture_output=True, text=True, timeout=RUN_SEC,
                              env=environment(GPUCR_SIM_DIR=state,
                                              GPUCR_SOCKET=f'{runtime}/socket'))
        check(done.returncode == 0, done.stdout + done.stderr)
        found = json.loads(read(path))
        check([row['row'] for row in found['rows']] == ['bare', 'driver'], done.stdout)
        check(found['rows'][1]['start'] == 'as it is', 'start')
    finally:
        daemon.terminate()
        daemon.communicate(timeout=60)
    check(daemon.returncode == 0, 'the daemon ended badly')
    bench('--sim', '--mount', work, '--sizes', '8M', '--rows', 'driver', '--no-calls',
          GPUCR_SIM_DIR=state)


NEED_FUSE = (test_driver, test_vmm, test_refreeze, test_copies, test_exchange, test_hip,
             test_interrupt, test_mount)


def main():
    global work
    failed = 0
    tests = [value for name, value in globals().items() if name.startswith('test_')]
    for test in tests:
        if test in NEED_FUSE and not has_fuse():
            continue
        with tempfile.TemporaryDirectory(prefix='gpucr-test-bench.') as work:
            started = time.monotonic()
            try:
                test()
            except Exception:
                failed += 1
                print(f'FAILED {test.__name__}: {traceback.format_exc()}')
            else:
                print(f'ok     {test.__name__} ({time.monotonic() - started:.1f} s)')
    if not failed and not has_fuse():
        print('skipped: /dev/fuse is not there, so no row with a daemon was tested')
        sys.exit(77)
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
