#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""backend/preload/entry_points*.def against declarations of the driver's functions: names, versions,
numbers of arguments, and whether each can be handed on by a wrapper that knows only their number.
usage: test_entry_points.py SOURCE_ROOT library PRELOAD SIMULATOR | SOURCE_ROOT cuda INCLUDE_DIR |
       SOURCE_ROOT hip PRELOAD [SIMULATOR] | SOURCE_ROOT rocm

`library`: against cuda_api.h and what the two libraries export. `cuda`: against an installed
cuda.h; with that of CUDA 13.0 every function there has to be in the table. `hip` and `rocm` are the
same for HIP: every function that the installed headers declare and every one that the installed
library exports has to be in the table.
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
TABLE_VERSION = 13000  # of the CUDA whose header the table is compared with; it has later functions too
GENERATED = ('CALL', 'POLL', 'SUBMIT', 'WAIT')
ARGUMENTS_MAX = 14  # that wrappers.c has macros for
HIP = sys.argv[2] in ('hip', 'rocm')
failures = []

Entry = collections.namedtuple('Entry', 'kind symbol name version arguments')


def check(ok, what):
    if not ok:
        failures.append(what)


def read_table():
    entries = []
    name = 'entry_points_hip.def' if HIP else 'entry_points.def'
    for line in (ROOT / 'backend/preload/driver' / name).read_text().split('\n'):
        if not line.startswith('ENTRY('):
            continue
        match = re.fullmatch(r'ENTRY\((CALL|POLL|SUBMIT|WAIT|FREE|OWN), (\w+), (\w+), (\d+), (\d+)\)',
                             line)
        check(match, f'not an entry: {line}')
        if match:
            kind, symbol, name, version, arguments = match.groups()
            entries.append(Entry(kind, symbol, name, int(version), int(arguments)))
    symbols = [entry.symbol for entry in entries]
    check(len(entries) > (540 if HIP else 600), 'the table has been cut')
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


def compile_asserts(asserts, source, arguments):
    """The compiler finds all of them true, behind the source; how many they are."""
    with tempfile.NamedTemporaryFile('w', suffix='.c') as file:
        file.write(source + '\n'.join(asserts) + '\n')
        file.flush()
        result = subprocess.run([*CC, '-fsyntax-only', *arguments, file.name], text=True,
                                capture_output=True)
    check(result.returncode == 0, result.stderr.strip())
    return len(asserts)


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
    return compile_asserts(asserts, source, arguments)


def exported(library):
    lines = subprocess.run(['nm', '-D', '--defined-only', library], text=True, check=True,
                           capture_output=True).stdout.split('\n')
    return {line.split()[2].split('@')[0] for line in lines if len(line.split()) == 3}


def check_libraries(table, preload, simulator):
    own = exported(preload)
    expected = {entry.symbol for entry in table.values() if entry.kind != 'FREE'}
    expected |= {'dlmopen', 'dlopen', 'dlsym', 'gcr_preload_dlsym_hip' if HIP else 'gcr_preload_dlsym_cuda'}
    check(own == expected, f'{preload} exports {sorted(own ^ expected)}')
    needed = subprocess.run(['readelf', '-d', preload], text=True, check=True,
                            capture_output=True).stdout
    for library in re.findall(r'NEEDED.*\[(.*)\]', needed):
        check(re.match(r'(libc|libdl|libpthread|ld-linux.*)\.so', library),
              f'{preload} needs {library}')
    for symbol in (exported(simulator) if simulator else set()) - set(table):
        check(symbol.startswith('hipSim'), f'{symbol}, which {simulator} exports, is not in the table')


def check_cuda_api(table):
    source = '#include "backend/cuda/cuda_api_later.h"\n'
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
        if 0 < entry.version <= TABLE_VERSION:
            variants[entry.name, bool(match[3])].append((int(match[2] or 1), entry))
    for key, found in variants.items():
        known = sorted(versions[key])
        for (_, entry), number in zip(sorted(found), known):
            check(entry.version == number,
                  f'{entry.symbol}: since {entry.version} in the table, {number} in the header')
        check(len(found) == len(known) or version != TABLE_VERSION,
              f'{key[0]}: {len(found)} variants in the table, versions {known}')


# ---- HIP ----

def hip_prototypes(text):
    """Of functions, whatever their result; comments and what only C++ sees are gone."""
    found = re.findall(r'[\w*]\s*\b((?:__)?hip(?:rtc)?[A-Z]\w*)\s*\(((?:[^;{}()]|\([^;{}()]*\))*)\)\s*;',
                       text)
    return {name: split(parameters) for name, parameters in found}


def slots_of(parameter):
    """How many slots it takes, as an expression in C; and whether it is passed in another way."""
    words = [word for word in re.findall(r'\w+', parameter) if word != 'const']
    if '*' in parameter or '[' in parameter or not words:
        return '1', None
    kind = ' '.join(words[:-1] if len(words) > 1 and words[:-1] not in (['struct'], ['enum']) else words)
    if kind == 'unsigned' or kind == 'unsigned long long':
        return '1', None
    return f'((sizeof({kind}) + 7) / 8)', kind


def compare_slots(table, declared, source, arguments):
    """Also that no struct lies half in registers: on x86-64 there are six, on AArch64 eight."""
    asserts = []
    for name, parameters in sorted(declared.items()):
        entry = table.get(name)
        if not entry:
            continue
        total = '0'
        for parameter in parameters:
            slots, kind = slots_of(parameter)
            where = f'{name}: {parameter}: cannot be handed on slot by slot'
            if kind and entry.kind in GENERATED:
                asserts.append(f'_Static_assert(!__builtin_types_compatible_p({kind}, float) && '
                               f'!__builtin_types_compatible_p({kind}, double), "{where}");')
                asserts.append(f'_Static_assert(sizeof({kind}) <= 8 || '
                               f'(__builtin_types_compatible_p({kind}, dim3) && '
                               f'({total}) != 5 && ({total}) != 7), "{where}");')
            total += f' + {slots if entry.kind in GENERATED else 1}'
        if entry.kind == 'FREE':
            continue
        asserts.append(f'_Static_assert({total} == {entry.arguments}, '
                       f'"{name}: not {entry.arguments} slots");')
    return compile_asserts(asserts, source, arguments)


def check_hip_names(table):
    """Every entry point with a wrapper written by hand has one."""
    text = (ROOT / 'backend/preload/driver/entry_names_hip.h').read_text()
    names = re.findall(r'^#define GCR_HIP_NAME_(\w+)\s+(\w+)$', text, re.MULTILINE)
    stood_in = [name for _, name in names]
    own = {entry.symbol for entry in table.values() if entry.kind == 'OWN'}
    check(set(stood_in) == own, f'entry_names_hip.h and OWN: {sorted(set(stood_in) ^ own)}')
    check(len(stood_in) == len(own), 'entry_names_hip.h has a function twice')
    for wrapper, name in names:
        check(wrapper.startswith('cu') or wrapper == name, f'{wrapper} stands in for {name}')
    for entry in table.values():
        if not entry.symbol.startswith('_Z'):
            check(re.sub(r'(_spt|R0[06]00)$', '', entry.symbol) == entry.name,
                  f'{entry.symbol} is not a variant of {entry.name}')


def check_hip_api(table):
    source = '#include "backend/rocm/hip_api.h"\n'
    arguments = [f'-I{ROOT}', '-DGCR_HIP_HEADERS=0']
    declared = hip_prototypes(preprocess(source, *arguments))
    check(len(declared) > 150, 'few declarations in hip_api.h: has their shape changed?')
    for name in set(declared) - set(table):
        check(False, f'{name} of hip_api.h is not in the table')
    check(compare_slots(table, declared, source, arguments) > 300, 'few arguments compared')


def check_rocm(table):
    """False: nothing is installed."""
    arguments = ['-D__HIP_PLATFORM_AMD__', '-D__HIP_PLATFORM_HCC__']
    source = '#include <hip/hip_runtime_api.h>\n'
    try:
        text = preprocess(source, *arguments)
    except subprocess.CalledProcessError:
        return False
    declared = hip_prototypes(text)
    check(len(declared) > 350, 'few declarations in hip_runtime_api.h')
    for name in set(declared) - set(table):
        check(False, f'{name} of hip_runtime_api.h is not in the table')
    check(compare_slots(table, declared, source, arguments) > 700, 'few arguments compared')
    for number in (7, 6, 5):
        path = subprocess.run([*CC, f'-print-file-name=libamdhip64.so.{number}'], text=True,
                              check=True, capture_output=True).stdout.strip()
        if os.path.exists(path):
            break
    else:
        return True
    lines = subprocess.run(['nm', '-D', '--defined-only', path], text=True, check=True,
                           capture_output=True).stdout.split('\n')
    symbols = [line.split()[2] for line in lines if len(line.split()) == 3 and
               line.split()[1] in 'TWi']
    check(len(symbols) > 350, f'few exports in {path}')
    for symbol in symbols:
        name, _, version = symbol.replace('@@', '@').partition('@')
        check(name in table, f'{name}, which {path} exports, is not in the table')
        number = re.fullmatch(r'hip_(\d+)\.(\d+)', version)
        if name in table and number:
            since = 1000 * int(number[1]) + 10 * int(number[2])
            check(table[name].version == since,
                  f'{name}: since {table[name].version} in the table, {since} in {path}')
    return True


def main():
    table = read_table()
    if sys.argv[2] == 'hip':
        check_hip_names(table)
        check_hip_api(table)
        check_libraries(table, sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    elif sys.argv[2] == 'rocm':
        if not check_rocm(table):
            print('skipped: no hip/hip_runtime_api.h')
            return 77
    elif sys.argv[2] == 'cuda':
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
