#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""backend/preload/entry_points.def against declarations of the driver's functions: names, versions,
numbers of arguments, and whether each can be handed on by a wrapper that knows only their number.
usage: test_entry_points.py SOURCE_ROOT library PRELOAD SIMULATOR | SOURCE_ROOT cuda INCLUDE_DIR

`library`: against cuda_api.h and what the two libraries export. `cuda`: against an installed
cuda.h; with that of CUDA 13.0 every function there has to be in the table.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
CC = os.environ.get('CC', 'cc').split()
TABLE_VERSION = 13000  # of the CUDA that the table follows
GENERATED = ('CALL', 'SUBMIT', 'WAIT')
ARGUMENTS_MAX = 11  # that wrappers.c has macros for
failures = []

Entry = collections.namedtuple('Entry', 'kind symbol name version arguments')


def check(ok, what):
    if not ok:
        failures.append(what)


def read_table():
    entries = []
    for line in (ROOT / 'backend/preload/entry_points.def').read_text().split('\n'):
        if not line.startswith('ENTRY('):
            continue
        match = re.fullmatch(r'ENTRY\((CALL|SUBMIT|WAIT|FREE|OWN), (\w+), (\w+), (\d+), (\d+)\)',
                             line)
        check(match, f'not an entry: {line}')
        if match:
            kind, symbol, name, version, arguments = match.groups()
            entries.append(Entry(kind, symbol, name, int(version), int(arguments)))
    symbols = [entry.symbol for entry in entries]
    check(len(entries) > 600, 'the table has been cut')
    check(symbols == sorted(set(symbols)), 'the table is not sorted, or has a symbol twice')
    for entry in entries:
        check(entry.kind not in GENERATED or entry.arguments <= ARGUMENTS_MAX,
              f'{entry.symbol}: more arguments than wrappers.c knows')
    return {entry.symbol: entry for entry in entries}


def preprocess(source, *arguments):
    return subprocess.run([*CC, '-E', '-P', '-xc', *arguments, '-'], input=source, text=True,
                          check=True, capture_output=True).stdout


def split(parameters):
    """The parameters of a prototype; commas in parentheses do not count."""
    parts, depth = [''], 0
    for character in parameters:
        depth += (character in '([') - (character in ')]')
        if character == ',' and depth == 0:
            parts.append('')
        else:
            parts[-1] += character
    parts = [part.strip() for part in parts]
    return [] if parts in ([''], ['void']) else parts


def prototypes(text):
    return {name: split(parameters) for name, parameters in
            re.findall(r'CUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;', text)}


def compare(table, declared, source, arguments):
    """Numbers of arguments; and the types of those that are passed by value, asked of the
    compiler that would pass them."""
    asserts = []
    for name, parameters in sorted(declared.items()):
        entry = table.get(name)
        if not entry:
            continue
        check(len(parameters) == entry.arguments or entry.version == 0,
              f'{name}: {entry.arguments} arguments in the table, {len(parameters)} declared')
        if entry.kind not in GENERATED:
            continue
        for parameter in parameters:
            words = re.findall(r'\w+', parameter)
            if '*' in parameter or '[' in parameter:
                continue
            kind = ' '.join(words[:-1] if len(words) > 1 else words)
            where = f'{name}: {parameter}: cannot be passed as a word'
            asserts.append(f'_Static_assert(sizeof({kind}) <= 8, "{where}");')
            for number in ('float', 'double'):
                asserts.append(f'_Static_assert(!__builtin_types_compatible_p({kind}, {number}), '
                               f'"{where}");')
    with tempfile.NamedTemporaryFile('w', suffix='.c') as file:
        file.write(source + '\n'.join(asserts) + '\n')
        file.flush()
        result = subprocess.run([*CC, '-fsyntax-only', *arguments, file.name], text=True,
                                capture_output=True)
    check(result.returncode == 0, result.stderr.strip())
    return len(asserts)


def exported(library):
    lines = subprocess.run(['nm', '-D', '--defined-only', library], text=True, check=True,
                           capture_output=True).stdout.split('\n')
    return {line.split()[2].split('@')[0] for line in lines if len(line.split()) == 3}


def check_libraries(table, preload, simulator):
    own = exported(preload)
    expected = {entry.symbol for entry in table.values() if entry.kind != 'FREE'} | {'dlsym'}
    check(own == expected, f'{preload} exports {sorted(own ^ expected)}')
    needed = subprocess.run(['readelf', '-d', preload], text=True, check=True,
                            capture_output=True).stdout
    for library in re.findall(r'NEEDED.*\[(.*)\]', needed):
        check(re.match(r'(libc|libdl|libpthread|ld-linux.*)\.so', library),
              f'{preload} needs {library}')
    for symbol in exported(simulator) - set(table):
        check(False, f'{symbol}, which {simulator} exports, is not in the table')


def check_cuda_api(table):
    source = '#include "backend/cuda/cuda_api.h"\n'
    arguments = [f'-I{ROOT}']
    declared = prototypes(preprocess(source, *arguments))
    check(len(declared) > 200, 'few declarations in cuda_api.h: has their shape changed?')
    for name in set(declared) - set(table):
        check(False, f'{name} of cuda_api.h is not in the table')
    check(compare(table, declared, source, arguments) > 300, 'few arguments compared')


# What the headers of other APIs need that may not be installed.
FOREIGN = '''
typedef unsigned int GLenum, GLuint; typedef int GLint;
typedef void *EGLStreamKHR, *EGLSyncKHR, *EGLImageKHR; typedef int EGLint;
typedef unsigned int VdpDevice, VdpVideoSurface, VdpOutputSurface; typedef void VdpGetProcAddress;
'''


def check_cuda_h(table, include):
    arguments = [f'-I{include}', '-D__CUDA_API_VERSION_INTERNAL']
    version = int(re.search(r'#define CUDA_VERSION (\d+)', (include / 'cuda.h').read_text())[1])
    declared = {}
    for header in ('cuda.h', 'cudaProfiler.h', 'cudaGL.h', 'cudaEGL.h', 'cudaVDPAU.h'):
        if not (include / header).exists():
            continue
        text = (include / header).read_text()
        if header not in ('cuda.h', 'cudaProfiler.h'):
            text = re.sub(r'#\s*(include|error).*', '', text)
            text = f'#include <cuda.h>\n#define CUDAAPI\n{FOREIGN}{text}\n'
        found = prototypes(preprocess(text, *arguments))
        check(found, f'no declarations in {header}')
        compare(table, {name: found[name] for name in set(found) - set(declared)}, text, arguments)
        declared.update(found)
    if version == TABLE_VERSION:
        for name in set(declared) - set(table):
            check(False, f'{name} of cuda.h is not in the table')

    # Which version brought a variant: the n-th of the versions is that of the n-th suffix.
    versions = collections.defaultdict(set)
    for header in include.glob('cuda*Typedefs.h'):
        for name, number, own in re.findall(r'\*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\)',
                                            header.read_text()):
            versions[name, bool(own)].add(int(number))
    variants = collections.defaultdict(list)
    for entry in table.values():
        match = re.fullmatch(r'(\w+?)(?:_v(\d+))?(_ptds|_ptsz)?', entry.symbol)
        check(match[1] == entry.name, f'{entry.symbol} is not a variant of {entry.name}')
        if entry.version:
            variants[entry.name, bool(match[3])].append((int(match[2] or 1), entry))
    for key, found in variants.items():
        known = sorted(versions[key])
        for (_, entry), number in zip(sorted(found), known):
            check(entry.version == number,
                  f'{entry.symbol}: since {entry.version} in the table, {number} in the header')
        check(len(found) == len(known) or version != TABLE_VERSION,
              f'{key[0]}: {len(found)} variants in the table, versions {known}')


def main():
    table = read_table()
    if sys.argv[2] == 'cuda':
        include = Path(sys.argv[3])
        if not (include / 'cuda.h').exists():
            print('skipped: no cuda.h')
            return 77
        check_cuda_h(table, include)
    else:
        check_cuda_api(table)
        check_libraries(table, sys.argv[3], sys.argv[4])
    for failure in failures:
        print(failure)
    return 1 if failures else 0


sys.exit(main())
