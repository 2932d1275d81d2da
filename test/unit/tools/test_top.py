#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""gpucr-top --once on folders that look like a mount: the bytes that it prints, how it ends, and its
command line and completion. usage: test_top.py GPUCR-TOP SOURCE_ROOT"""
import os
import re
import subprocess
import sys
import tempfile

TOP, SOURCE = sys.argv[1:3]
GIB = 1 << 30
HEADINGS = 'id user comm state vram_bytes held_bytes'


def check(ok, words):
    if not ok:
        sys.exit(f'failed: {words}')


def run(*arguments, env=None, **options):
    return subprocess.run([TOP, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          env=env or {'PATH': '/bin', 'LC_ALL': 'C.UTF-8'}, check=False, **options)


def make(mount, files):
    for name, text in files.items():
        path = os.path.join(mount, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as file:
            file.write(text if isinstance(text, bytes) else text.encode())


def keys(**values):
    return ''.join(f'{key} {value}\n' for key, value in values.items())


def expect(files, lines, *arguments):
    with tempfile.TemporaryDirectory() as mount:
        make(mount, files)
        done = run('--once', '--mount', mount, *arguments)
        wanted = '\n'.join(lines) + '\n'
        check(done.returncode == 0 and not done.stderr, done)
        check(done.stdout == wanted.encode(),
              f'{arguments}: found\n{done.stdout.decode(errors="replace")}expected\n{wanted}')


GPU = keys(vendor='nvidia', vram_total_bytes=80 * GIB, vram_used_bytes=41 * GIB + 700,
           vram_processes_bytes=40 * GIB, held_bytes=16 * GIB)
ROOT = keys(version='0.1.0', store_bytes=100 * GIB, store_used_bytes=16 * GIB,
            pool_used_bytes=0, kept_bytes=3 << 20)
SHOWN = ['GPU 0: 41.0GiB of 80.0GiB, processes 40.0GiB, held 16.0GiB, NVIDIA H100 80GB HBM3',
         'store: 16.0GiB of 100.0GiB, pool 0, kept 3MiB', '']
MACHINE = {
    'gpus/0/status': GPU, 'gpus/0/name': 'NVIDIA H100 80GB HBM3\n',
    'status': f'''{ROOT}
{HEADINGS}
812 1000 python3 running {40 * GIB} 0
1234 0 serve frozen 0 {16 * GIB}
99 7 other freezing {5 << 20} 0
training 7 - dumped 0 {9 * GIB}
''',
    '812/status': keys(gpus='0 1', idle_ms=99999, last_freeze_usec=385000,
                       last_freeze_bytes=16 * GIB, last_thaw_usec=0, last_thaw_bytes=0),
    '1234/status': keys(gpus=0, idle_ms=360000000, last_freeze_usec=12345678,
                        last_freeze_bytes=16 * GIB, last_thaw_usec=1000, last_thaw_bytes=999000),
}

# By VRAM; what may not be read is not known.
expect(MACHINE, [
    *SHOWN,
    'ID       USER COMMAND STATE    GPU    VRAM    HELD IDLE FREEZE     RATE   THAW    RATE',
    '812      1000 python3 running  0,1 40.0GiB       0  99s 0.385s 44.6GB/s      -       -',
    '99       7    other   freezing -      5MiB       0    -      -        -      -       -',
    '1234     0    serve   frozen   0         0 16.0GiB   4d  12.3s  1.4GB/s 0.001s 999MB/s',
    'training 7    -       dumped   -         0 9216MiB    -      -        -      -       -',
])
expect({'status': f'version 0\n\n{HEADINGS}\n'}, [
    'store: - of -, pool -, kept -', '',
    'ID USER COMMAND STATE GPU VRAM HELD IDLE FREEZE RATE THAW RATE',
])
# Keys that not every daemon has.
expect({'status': f'version 0\n\n{HEADINGS}\n1 0 a frozen 0 1\n2 0 b frozen 1023 1025\n3 0 c running 0 0\n',
        '1/status': keys(wanted_usec=1767225600000000, packed_bytes=16 * GIB,
                         packed_to_bytes=1 * GIB),
        '2/status': keys(wanted_usec=0, packed_bytes=0, packed_to_bytes=0)}, [
    'store: - of -, pool -, kept -', '',
    'ID USER COMMAND STATE   GPU VRAM HELD IDLE WANTED FREEZE RATE THAW RATE          PACKED',
    '1  0    a       frozen  -      0 1KiB    -    yes      -    -    -    - 16.0GiB>1024MiB',
    '2  0    b       frozen  -   1KiB 2KiB    -     no      -    -    -    -               0',
    '3  0    c       running -      0    0    -      -      -    -    -    -               -',
], '--sort', 'pid')
# Names that would like to be more than names.
expect({'status': b'version 0\n\n' + HEADINGS.encode() + b'\n'
                  b'5 0 \x1b]0;x\x07\x1b[2J\xc2\x9b31m running 0 0\n'
                  b'6 0 \r\x0b\x7f\xe2\x80\xae\xff frozen\x08 0 0\n'
                  b'\x1b[A 0 c running 0 0\n',
        'gpus/0/name': b'GPU\x1b[31m\n\x1b[2J', '5/status': 'gpus \x1b[1m\n',
        'gpus/0/status': ''}, [
    'GPU 0: - of -, processes -, held -, GPU?[31m',
    'store: - of -, pool -, kept -', '',
    'ID  USER COMMAND         STATE   GPU  VRAM HELD IDLE FREEZE RATE THAW RATE',
    '5   0    ?]0;x??[2J??31m running ,[1m    0    0    -      -    -    -    -',
    '6   0    ???????         frozen? -       0    0    -      -    -    -    -',
    '?[A 0    c               running -       0    0    -      -    -    -    -',
], '--sort', 'pid')

# Without a terminal the table is printed too; and how it ends.
with tempfile.TemporaryDirectory() as directory:
    make(directory, MACHINE)
    once = run('--once', '--mount', directory).stdout
    by_variable = run(env={'GPUCR_MOUNT': directory, 'TERM': 'xterm'})
    check(by_variable.returncode == 0 and by_variable.stdout == once, by_variable)
    with open('/dev/full', 'wb') as full:
        done = subprocess.run([TOP, '--once', '--mount', directory], stdout=full,
                              stderr=subprocess.PIPE, check=False)
        check(done.returncode == 1 and b'cannot be written' in done.stderr, done)
    os.unlink(f'{directory}/status')
    done = run('--once', '--mount', directory)
    check(done.returncode == 1 and done.stdout == b'' and directory.encode() in done.stderr, done)
for wrong in (['--interval', '0'], ['--interval', 'x'], ['--interval', 'nan'], ['--sort', 'size'],
              ['word'], ['--none']):
    done = run('--mount', '/', *wrong)
    check(done.returncode == 2 and b'--help' in done.stderr, f'{wrong}: {done}')

# The options are in the manual and in the completion.
usage = run('--help').stdout.decode()
options = set(re.findall(r'--[a-z]+', usage))
check(len(options) == 6, options)
with open(f'{SOURCE}/man/gpucr-top.1.scd', encoding='utf-8') as file:
    documented = re.findall(r'^\*(--[a-z]+)\*', file.read(), re.M)
check(sorted(documented) == sorted(options), f'{documented} and {options}')
for words, wanted in (('--', options), ('--sort ""', {'vram', 'held', 'idle', 'state', 'pid'})):
    script = f'''. {SOURCE}/tools/completions/gpucr-top
        COMP_WORDS=(gpucr-top {words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _gpucr_top && printf '%s\\n' "${{COMPREPLY[@]}}"'''
    found = subprocess.run(['bash', '-c', script], capture_output=True, text=True, check=True)
    check(set(found.stdout.split()) == wanted, f'{words}: {found}')
check(run('--version').stdout.startswith(b'gpucr-top '), 'the version')
print('ok')
