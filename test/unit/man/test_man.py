#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The manual pages against the code, both ways: what the code has is documented, and what a page
documents is there. usage: test_man.py PRINT_TABLES SOURCE_ROOT

PRINT_TABLES prints the tables that are data of the program. What has no table (file names and
modes, error numbers, phases, environment variables, options of the tools) is looked for
in the source text, in the one shape in which it is written there.
"""
import errno
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[2])
failures = []
checks = 0


# What belongs to gpucrfs(5), on pages of its own.
CONTRACT = ('gpucrfs-amd.7', 'gpucrfs-dump.7', 'gpucrfs-engines.7', 'gpucrfs-metrics.5', 'gpucrfs-obstacles.7',
            'gpucrfs-snapshot.5', 'gpucrfs-status.5', 'gpucrfs-verbs.7')

# Where verbs are carried out.
ENGINES = ('fs/engine/driver_session.c', 'fs/engine/driver_control.c', 'fs/engine/engine_driver.c',
           'fs/engine/engine_none.c', 'fs/engine/engine_vmm.c', 'fs/engine/vmm_freeze.c',
           'fs/engine/vmm_recover.c', 'fs/engine/vmm_thaw.c')
DUMP = ('fs/image/dump.c', 'fs/image/dump_criu.c', 'fs/image/dump_owner.c', 'fs/image/dump_metadata.c',
        'fs/image/dump_tree.c', 'fs/engine/park.c')
# What tasks themselves do, whatever the engine.
TASK = ('fs/engine/swap.c', 'fs/job/swap_run.c', 'fs/job/operation.c',
        'fs/job/operation_task.c', 'fs/verb/packing_undo.c', 'fs/verb/task.c')
RESTORE = ('fs/image/restore.c', 'fs/image/restore_check.c', 'fs/image/restore_gpus.c',
           'fs/image/restore_held.c', 'fs/image/restore_supply.c', 'fs/image/restore_tree.c')


def read(path):
    return (ROOT / path).read_text(encoding='utf-8')


def check(ok, what):
    global checks
    checks += 1
    if not ok:
        failures.append(what)


def check_same(what, page, documented, code):
    """Two collections of the same names; a name documented twice is wrong, too."""
    documented = list(documented)
    check(code, f'{what}: found none in the code: has its shape changed?')
    for name in sorted(set(code) - set(documented)):
        check(False, f'{page}: {what} {name} is missing')
    for name in sorted(set(documented) - set(code)):
        check(False, f'{page}: there is no {what} {name}')
    for name in sorted({name for name in documented if documented.count(name) > 1}):
        check(False, f'{page}: {what} {name} is there twice')
    check(True, what)


class Page:
    """One page, or several as one. What both have, as NAME, is that of the last."""
    def __init__(self, name, *more):
        self.name = name
        self.text = ''.join(read(f'man/{page}.scd') for page in (name, *more))
        self.sections = {}
        title = None
        for line in self.text.split('\n'):
            if re.match('##? ', line):
                title = line.lstrip('#')[1:]
                self.sections[title] = []
            elif title:
                self.sections[title].append(line)

    def section(self, title):
        check(title in self.sections, f'{self.name}: there is no section {title}')
        return self.sections.get(title, [])

    def terms(self, title, pattern=r'[^*]+'):
        """What a section defines: bold words that begin a line followed by an indented text."""
        lines = self.section(title)
        found = []
        for line, after in zip(lines, lines[1:] + ['']):
            match = re.match(rf'\*({pattern})\*', line)
            if match and after.startswith('\t') and not line.startswith('\t'):
                found.append(match.group(1))
        return found

    def has(self, term):
        return f'*{term}*' in self.text


def tables():
    output = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout
    rows = {}
    for line in output.splitlines():
        table, *words = line.split(' ')
        rows.setdefault(table, []).append(words)
    return rows


def check_tables(abi, daemon, rows):
    def names(table):
        return [words[0] for words in rows[table]]

    check_same('state', abi.name, abi.terms('STATES'), names('state'))
    check_same('verb', abi.name, abi.terms('VERBS', r'[a-z]+'), names('verb'))
    for title, table in (('STATUS OF A PROCESS', 'status-key'),
                         ('STATUS OF THE DAEMON', 'root-key'),
                         ('STATUS OF A PLACE', 'place-key'),
                         ('STATUS OF A GPU', 'gpu-key')):
        check_same('key', f'{abi.name}, {title}', abi.terms(title), names(table))
        check(abi.terms(title) == names(table),
              f'{abi.name}, {title}: not in the order of the file')

    # A table of scdoc: a cell a line, the headings first.
    cells = re.findall(r'^(?:\[\[|\||:-?) +([^\n]+)$', '\n'.join(abi.section('VERBS')), re.M)
    documented = [' '.join(cells[i:i + 4]) for i in range(4, len(cells), 4)]
    check_same('transition', abi.name, documented,
               [' '.join(words) for words in rows['transition']])

    # *freeze* [*timeout=*_SEC_], *thaw* [*pid=*new|_PID_]
    for verb in names('verb'):
        lines = [line for line in abi.section('VERBS') if line.startswith(f'*{verb}*')]
        documented = re.findall(r'\*([a-z_]+=?)\*([_:|A-Za-z]*)', lines[0].split('*', 2)[2])
        options = [name + words.replace('_', '') for name, words in documented]
        code = [key + ('' if words == '-' else '=' + words)
                for its_verb, key, words in rows['verb-option'] if its_verb == verb]
        if options or code:
            check_same('option', f'{abi.name}, {verb}', options, code)

    code = [name + ('' if value == '-' else '=' + value) for name, value in rows['mount-option']]
    lines = [line for line in daemon.section('OPTIONS') if line.startswith('*-o ')]
    documented = [re.sub(r'[*_]', '', line[4:]) for line in lines]
    check_same('option -o', daemon.name, documented,
               [name.replace('_', '') for name in code])


def check_engines(abi):
    code = [name for path in ('fs/engine/engine_driver.c', 'fs/engine/engine_none.c', 'fs/engine/engine_vmm.c')
            for name in re.findall(r'\.name = "(\w+)"', read(path))]
    engines = Page('gpucrfs-engines.7')
    check_same('engine', engines.name, engines.terms('DESCRIPTION'), code)


def check_files(abi):
    source = read('fs/mount/tree.c')
    rows = re.findall(r'\[GCR_NODE_\w+\] = \{GCR_NODE_(\w+), ("([\w.]+)"|NULL), (S_IF\w+)( \| (0\d+))',
                      source)
    rows += [('ROOT', name, name, kind, '', mode) for name, kind, mode in
             re.findall(r'entry\(\w+, "([\w.]+)", (S_IF\w+) \| (0\d+)\)', read('fs/base/root_entries.h'))]
    titles = {'ROOT': 'FILES OF THE ROOT', 'GPU': 'FILES OF A GPU',
              'PROCESS': 'FILES OF A PROCESS', 'PLACE': 'FILES OF A PLACE'}
    code = {title: [] for title in titles.values()}
    for parent, _, name, kind, _, mode in rows:
        if parent not in titles or not name:
            continue
        words = 'symbolic link' if kind == 'S_IFLNK' else f'mode {mode}'
        code[titles[parent]].append(f'{name} ({words})')
    for title, files in code.items():
        documented = [' '.join(match) for match in re.findall(r'^\*([\w.]+)\* (\([^)]*\))$',
                                                              '\n'.join(abi.section(title)), re.M)]
        check_same('file', f'{abi.name}, {title}', documented, files)
    own = re.search(r'\[GCR_NODE_PROCESS\] = \{GCR_NODE_ROOT, NULL, S_IFDIR \| (0\d+)', source)
    check(own and f'_pid_ (mode {own.group(1)})' in abi.text, f'{abi.name}: mode of _pid_')


def check_errors(abi):
    code = set()
    for path in ('fs/process/children.c', 'fs/mount/control.c', 'fs/verb/ctl.c', 'fs/engine/driver_memory.c', 'fs/job/operation.c',
                 'fs/store/pack_work.c', 'fs/verb/packing.c',
                 *ENGINES, *DUMP, *RESTORE, 'fs/image/place.c', 'fs/image/place_dump.c', 'fs/mount/session.c', 'fs/store/store.c',
                 'backend/cuda/preflight.c', 'backend/look.c', 'backend/rocm/preflight.c',
                 'fs/image/criu_plugin.c', 'fs/process/gpus.c', 'fs/base/quota.c'):
        for call in re.findall(r'(?:gcr_error_set|fuse_reply_err|gcr_waiter_answer)\(([^;]*?);',
                               read(path)):
            code |= set(re.findall(r'\bE[A-Z0-9]{2,}\b', re.sub(r'"[^"]*"', '', call)))
    for name in re.findall(r'\{CUDA_ERROR_\w+, (E[A-Z0-9]+)\}', read('backend/cuda/driver.c')):
        code.add(name)
    for path in ('criu-glue/criu_log.c', 'criu-glue/opens.c', 'criu-glue/opens_file.c',
                 'criu-glue/opens_socket.c', 'criu-glue/opens_tree.c'):
        code |= set(re.findall(r', (E[A-Z0-9]{2,}),', read(path)))
    code |= set(re.findall(r'(?:true|false), (E[A-Z0-9]{2,}),', read('fs/base/quota.c')))
    check(len(code) > 8, 'errors: found few in the code: has their shape changed?')
    for name in sorted(code):
        check(abi.has(name), f'{abi.name}: {name} is missing')
    listed = abi.terms('ERRORS')
    for name in listed:
        check(hasattr(errno, name), f'{abi.name}: {name} is no error')
        check(name in code, f'{abi.name}: nothing gives {name}')
    check(listed == sorted(listed), f'{abi.name}: ERRORS is not in order')


def check_phases(abi, title, phases):
    text = re.search(r'\*phase\*\n((?:\t.*\n)+)', '\n'.join(abi.section(title)))
    check_same('phase', f'{abi.name}, {title}',
               re.findall(r'\*([\w-]+)\*', text.group(1)) if text else [], set(phases))


def check_words(abi, daemon):
    phases = [phase for path in (*ENGINES, *DUMP)
              for phase in re.findall(r'set_phase\([&\w>-]+, "([\w-]+)"\)', read(path))]
    phases += [phase for path in TASK
               for phase in re.findall(r'task->phase, "(\w+)"', read(path))]
    check_phases(abi, 'STATUS OF A PROCESS', phases)
    phases = [phase for path in RESTORE
              for phase in re.findall(r'(?:set_phase\(\w+|&restore->phase), "([\w-]+)"\)',
                                      read(path))]
    check_phases(abi, 'STATUS OF A PLACE', phases)

    text = ' '.join(abi.section('STATUS OF A LAUNCHER'))
    keys = re.search(r'has only these keys: ([^.]*)\.', text)
    code = re.findall(r'\{"(\w+)", render_\w+, true\}', read('fs/mount/render.c'))
    check_same('key of a launcher', abi.name,
               re.findall(r'\*(\w+)\*', keys.group(1)) if keys else [], code)

    # "%d - found %s": the kinds of events
    kinds = set()
    for path in ('fs/process/process.c', 'fs/mount/control.c', 'fs/image/place.c', 'fs/process/wanted.c'):
        kinds |= set(re.findall(r'"(?:%d|%s|-) (?:%s|-) (\w+)\b', read(path)))
    check_same('event', abi.name, abi.terms('EVENTS', r'[a-z]+'), kinds)

    for words in ('O_NONBLOCK', 'SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGALRM', 'SIGKILL'):
        check(abi.has(words), f'{abi.name}: {words} is missing')
    signals = re.findall(r'signal_bit\((SIG\w+)\)', read('fs/base/waiter.c'))
    sentence = re.search(r'when it is sent ([^.]*?), or when it ends', abi.text.replace('\n', ' '))
    check_same('signal', abi.name,
               re.findall(r'\*(SIG\w+)\*', sentence.group(1)) if sentence else [], signals)

    signals = re.findall(r'sigaddset\(&signals, (SIG\w+)\)', read('fs/main.c'))
    documented = re.findall(r'\*(SIG\w+)\*', '\n'.join(
        line for line in daemon.section('SIGNALS') if line.startswith('*')))
    check_same('signal', daemon.name, documented, set(signals))

    code = re.findall(r'(?:getenv|from_environment)\(\s*"(\w+)"',
                      ''.join(map(read, ('fs/main.c', 'fs/options.c', 'fs/process/gpus.c',
                                         'fs/image/criu_plugin.c', 'fs/image/criu_run.c'))))
    check_same('variable', daemon.name, daemon.terms('ENVIRONMENT'), set(code))


def check_metrics(abi, rows):
    """Families, with their labels and types, and what verbs end with."""
    metrics = Page('gpucrfs-metrics.5')
    lines = re.findall(r'^\*(gpucrfs_\w+)(.*)\* \((\w+)\)$', '\n'.join(metrics.section('DESCRIPTION')), re.M)
    documented = [f'{name} {{{",".join(re.findall(chr(92) + "w+(?==)", labels))}}} {kind}'
                  for name, labels, kind in lines]
    code = [' '.join(words) for words in rows['metric']]
    check_same('metric', metrics.name, documented, code)
    check(documented == code, f'{metrics.name}: not in the order of the file')
    check_same('result', metrics.name, ['ok', *abi.terms('ERRORS'), 'other'],
               [words[0] for words in rows['metric-result']])


def check_tools(verbs, verb_options):
    gpucr, run, demo = Page('gpucr.1'), Page('gpucr-run.1'), Page('gpucr-demo.1')
    migrate, swap = Page('gpucr-migrate.1'), Page('gpucr-swap.1')
    # The scripts have it look for the mount.
    of_mounts = set(re.findall(r'getenv\("(\w+)"\)', read('tools/trusted/gpucr-trusted.c')))

    check_same('verb or command', gpucr.name, gpucr.terms('VERBS', '[a-z]+'),
               verbs + ['ls', 'status'])
    check_same('variable', gpucr.name, gpucr.terms('ENVIRONMENT'),
               set(re.findall(r'\$\{(GPUCR_\w+)', read('tools/gpucr.in'))) | of_mounts)
    code = set(re.findall(r'\$\{(GPUCR_\w+)', read('tools/gpucr-run.in')))
    for path in ('backend/preload/agent/connection.c', 'backend/preload/memory/memory.c'):
        code |= set(re.findall(r'getenv\("(GPUCR_\w+)"', read(path)))
    for name in sorted(code):
        check(name in run.terms('ENVIRONMENT'), f'{run.name}: variable {name} is missing')

    rows = re.findall(r'\{"([\w-]+)",(?: "\w+",)? offsetof', read('tools/demo/gpucr-demo.c'))
    check_same('option', demo.name, demo.terms('OPTIONS'),
               [f'--{name}' for name in rows] + ['--help'])
    check_same('variable', migrate.name, migrate.terms('ENVIRONMENT'),
               set(re.findall(r'\$\{(GPUCR_\w+)', read('tools/gpucr-migrate.in'))) | of_mounts)
    options = set(re.findall(r'--[a-z-]+(?=[ )])', '\n'.join(
        line for line in read('tools/gpucr-migrate.in').split('\n')
        if re.match(r' +(?:-h \| )?--[a-z].*\)', line))))
    check_same('option', migrate.name,
               re.findall(r'^(?:\*-h\*, )?\*(--[a-z-]+)\*.*$', '\n'.join(migrate.section('OPTIONS')),
                          re.M), options)
    completion = read('tools/completions/gpucr-migrate')
    for option in sorted(options):
        check(option in completion, f'completions/gpucr-migrate: option {option} is missing')
    check_same('variable', swap.name, swap.terms('ENVIRONMENT'),
               set(re.findall(r'getenv\("(\w+)"\)', read('tools/swap/gpucr-swap.c') +
                              read('tools/swap/status.c'))))
    options = set(re.findall(r'^\t\{"(--[a-z]+)", ', read('tools/swap/gpucr-swap.c'), re.M))
    check_same('option', swap.name,
               re.findall(r'^(?:\*-h\*, )?\*(--[a-z]+)\*.*$', '\n'.join(swap.section('OPTIONS')), re.M),
               options)
    completion = read('tools/completions/gpucr-swap')
    for option in sorted(options):
        check(option in completion, f'completions/gpucr-swap: option {option} is missing')
    for page, path in ((gpucr, 'tools/gpucr.in'), (run, 'tools/gpucr-run.in'),
                       (migrate, 'tools/gpucr-migrate.in')):
        heredoc = re.search(r"<<'HELP'\n(.*?)\nHELP\n", read(path), re.S).group(1)
        for option in set(re.findall(r'(?<![\w-])--?[a-z]+(?:-[a-z]+)*', heredoc)):
            check(page.has(option), f'{page.name}: option {option} is missing')

    completion = read('tools/completions/gpucr')
    words = set(re.findall(r'[\w=-]+', completion))
    for verb in verbs:
        check(verb in words, f'completions/gpucr: verb {verb} is missing')
        line = re.search(rf"^    (?:\w+ \| )*{verb}(?: \| \w+)*\)(.*)$", completion, re.M)
        options = [key + ('' if value == '-' else '=') for its, key, value in verb_options
                   if its == verb]
        for option in options:
            check(line and option in line.group(1),
                  f'completions/gpucr: {verb} has an option {option}')


def check_nccl(abi):
    """One or two of them are not enough: ranks share memory all the same."""
    for name, text in (abi.name, abi.text), ('doc/limits.md', read('doc/limits.md')):
        for variable in 'NCCL_P2P_DISABLE=1', 'NCCL_CUMEM_HOST_ENABLE=0', 'NCCL_NVLS_ENABLE=0':
            check(variable in text, f'{name}: {variable} is missing')


def check_references():
    """Pages and sections that a page names are there."""
    pages = {path.stem: Page(path.stem) for path in sorted((ROOT / 'man').glob('*.scd'))}
    for page in pages.values():
        text = ' '.join(page.text.split())
        for name, number in re.findall(r'\*(gpucr[\w-]*)\*\((\d)\)', text):
            check(f'{name}.{number}' in pages, f'{page.name}: there is no page {name}({number})')
        for title, name, number in re.findall(r'\*([A-Z][A-Za-z -]+)\* in \*(gpucr[\w-]*)\*\((\d)\)',
                                              text):
            other = pages.get(f'{name}.{number}')
            check(other and title in other.sections,
                  f'{page.name}: {name}({number}) has no section {title}')
        for title in re.findall(r'[Ss]ee \*([A-Z]+(?: [A-Z]+)*)\*(?! in \*)', text):
            check(title in page.sections, f'{page.name}: there is no section {title} here')


def main():
    abi, daemon = Page('gpucrfs.5', *CONTRACT), Page('gpucrfs.8')
    rows = tables()

    check_tables(abi, daemon, rows)
    check_engines(abi)
    check_files(abi)
    check_errors(abi)
    check_words(abi, daemon)
    check_nccl(abi)
    check_references()
    check_metrics(abi, rows)
    check_tools([words[0] for words in rows['verb']], rows['verb-option'])

    completion = re.findall(r'[\w=]+', read('tools/completions/gpucrfs'))
    for name, value in rows['mount-option']:
        name += '' if value == '-' else '='
        check(name in completion, f'completions/gpucrfs: option {name} is missing')

    for failure in failures:
        print(failure)
    print(f'{checks} checks, {len(failures)} failed')
    sys.exit(1 if failures else 0)


main()
