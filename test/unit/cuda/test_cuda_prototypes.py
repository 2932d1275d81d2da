#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The prototypes of backend/cuda/cuda_api.h, one by one against those of an installed cuda.h of the
same version; numbers and layouts are test_cuda_api.c's.
usage: test_cuda_prototypes.py SOURCE_ROOT INCLUDE_DIR
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, INCLUDE = Path(sys.argv[1]), Path(sys.argv[2])
CC = os.environ.get('CC', 'cc').split()


def run(source, *arguments):
    with tempfile.NamedTemporaryFile('w', suffix='.c') as file:
        file.write(source)
        file.flush()
        return subprocess.run([*CC, *arguments, file.name], text=True, capture_output=True)


def prototypes(source, *arguments):
    result = run(source, '-E', '-P', *arguments)
    assert result.returncode == 0, result.stderr
    return {name: ' '.join(parameters.split()) for name, parameters in
            re.findall(r'CUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;', result.stdout)}


def version_of(text):
    return int(re.search(r'#define CUDA_VERSION (\d+)', text)[1])


def main():
    if not (INCLUDE / 'cuda.h').exists():
        print('skipped: no cuda.h')
        return 77
    ours = (ROOT / 'backend/cuda/cuda_api.h').read_text()
    if version_of((INCLUDE / 'cuda.h').read_text()) != version_of(ours):
        print('skipped: the installed cuda.h is of another version')
        return 77
    # With this every variant has its exported name.
    theirs = ['-D__CUDA_API_VERSION_INTERNAL', f'-I{INCLUDE}']
    source = '#include <cuda.h>\n'
    declared = prototypes(f'#include "{ROOT}/backend/cuda/cuda_api.h"\n', f'-I{ROOT}')
    known = prototypes(source, *theirs)
    assert len(declared) > 200, 'few declarations in cuda_api.h: has their shape changed?'
    failures = [f'{name} is not in cuda.h' for name in sorted(set(declared) - set(known))]
    for name, parameters in sorted(declared.items()):
        if name in known:
            source += (f'_Static_assert(__builtin_types_compatible_p(__typeof__({name}), '
                       f'CUresult ({parameters})), "{name}");\n')
    result = run(source, '-fsyntax-only', *theirs)
    failures += re.findall(r'static assertion failed: "(\w+)"', result.stderr)
    if result.returncode and not failures:
        failures = [result.stderr]
    for failure in failures:
        print(failure)
    print(f'{len(declared)} prototypes compared')
    return 1 if failures else 0


sys.exit(main())
