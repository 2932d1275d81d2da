#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""gpucr-migrate against a model of two hosts (migrate_fake.sh), in which every single command that
it runs goes wrong, with GPUCR_TEST_ALL each in every way. Afterwards there must be at most one
living copy, and one that lives or can be thawed; and what it says must be true.
usage: test_migrate.py GPUCR_MIGRATE [TEST...]
"""
import collections
import concurrent.futures
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import dispositions  # pylint: disable=wrong-import-position
from amount import ALL  # pylint: disable=wrong-import-position

dispositions.reset()
SCRIPT = os.path.abspath(sys.argv[1])
FAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'migrate_fake.sh')
COMMANDS = ('cat ls mkdir mktemp readlink rm rmdir rsh rsync sed sleep').split()
SIGNALS = ('INT', 'TERM', 'HUP')
MODES = 'fail', 'kill', 'kill-after', 'signal', 'signal-after', 'die', 'die-after'
SOME_MODES = 'fail', 'kill-after', 'signal', 'die-after'
LOST = ('lost', 'lost-after')  # a connection
PLACE = 'a_demo-4711-77'
PATIENCE_SEC = 60


def check(condition, words):
    if not condition:
        raise AssertionError(words)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def read(path):
    try:
        with open(path, encoding='utf-8') as file:
            return file.read()
    except FileNotFoundError:
        return ''


class World:
    """Two hosts; on this one a process 4711 in the state that is given."""

    def __init__(self, state='running', **env):
        self.root = tempfile.mkdtemp(prefix='gpucr it\'s.')
        self.before = state
        self.here, self.there = f'{self.root}/here/mnt', f'{self.root}/there/mnt'
        self.env = {**os.environ, 'FAKE': self.root, 'FAKE_PATH': os.environ['PATH'],
                    'PATH': f'{self.root}/bin:{os.environ["PATH"]}', 'TMPDIR': self.root,
                    'GPUCR_MOUNT': self.here, **env}
        os.mkdir(f'{self.root}/bin')
        for name in COMMANDS:
            os.symlink(FAKE, f'{self.root}/bin/{name}')
        write(f'{self.root}/count', '0\n')
        for name in 'manifest', 'vram/gpu0-7000', 'criu/core.img', 'processes/9/manifest':
            write(f'{self.root}/truth/{name}', f'{name} as it was frozen\n')
        for mount in self.here, self.there:
            write(f'{mount}/ctl', '')
            write(f'{mount}/status', 'version 1\nstore_free_bytes 5000\n\nid user\n')
        directory = f'{self.here}/{PLACE if state == "dumped" else 4711}'
        write(f'{directory}/status', f'comm a demo\nstate {state}\nverb -\npid 4711\nstart_ticks 77\n'
                                     'vram_bytes 1000\nheld_bytes 0\nmembers -\n')
        write(f'{directory}/error', 'ok\n')
        write(f'{directory}/ctl', '')
        write(f'{directory}/snapshot/vram/gpu0-6000', 'kept from before\n')
        if state != 'running':
            shutil.rmtree(f'{directory}/snapshot')
            shutil.copytree(f'{self.root}/truth', f'{directory}/snapshot')
        if state == 'dumped':
            os.symlink(PLACE, f'{self.here}/4711')
        else:
            write(f'{self.root}/alive-here', '')
            shutil.rmtree(f'{directory}/snapshot/criu', ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, *options, target=('4711', 'host2'), stdout=subprocess.PIPE, **env):
        """Its exit status; what it said is kept."""
        # Who is still at work on the other host, when the script has ended, has its end of this.
        at_work, inherited = os.pipe()
        script = subprocess.Popen(
            ['sh', '-c', 'echo $$ >"$FAKE/pid" && exec "$@"', 'sh', SCRIPT, '--rsh',
             'rsh', '--remote-mount', self.there, *options, *target], env={**self.env, **env},
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
            start_new_session=True, pass_fds=[inherited])
        os.close(inherited)
        try:
            self.out, self.err = script.communicate(timeout=PATIENCE_SEC)
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
            self.out, self.err = script.communicate()
            raise AssertionError(f'it hangs: {self.err}') from None
        finally:
            ready = select.select([at_work], [], [], PATIENCE_SEC)[0]
            os.close(at_work)
        check(ready, 'the other host does not end')
        self.status = script.returncode
        return self.status

    def shell(self, command):
        # The model knows what cat writes.
        command = command.replace('echo thaw >> ', 'echo thaw | cat >> ')
        return subprocess.run(['sh', '-c', command], env=self.env, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True).returncode

    def lives(self, side):
        return os.path.exists(f'{self.root}/alive-{side}')

    def state(self, side, name):
        match = re.search('^state (.*)$', read(f'{self.root}/{side}/mnt/{name}/status'), re.M)
        return match and match.group(1)

    def commands(self):
        """What was run: (number, side, name, words)."""
        return [(int(number), *rest) for number, *rest in
                (line.split(' ', 3) for line in read(f'{self.root}/log').split('\0')[:-1])]

    def number(self, name, words):
        return next(command[0] for command in self.commands()
                    if command[2] == name and words in command[3])

    def can_be_thawed(self):
        """The place here is whole."""
        return self.state('here', PLACE) == 'dumped' and not subprocess.run(
            ['diff', '-r', f'{self.root}/truth', f'{self.here}/{PLACE}/snapshot'],
            check=False, stdout=subprocess.DEVNULL).returncode

    def check_copies(self):
        check(not read(f'{self.root}/violations'), read(f'{self.root}/violations'))
        check(not (self.lives('here') and self.lives('there')), 'two living copies')
        check(self.lives('here') or self.lives('there') or self.can_be_thawed(), 'it is lost')

    def check(self, is_way_back_whole=True):
        """Of a run that has ended by itself."""
        self.check_copies()
        status = self.status
        if status == 0:
            check(self.lives('there') and self.state('there', PLACE) == 'running', 'it moved')
            check(not os.path.lexists(f'{self.here}/{PLACE}'), 'nothing is left')
            check('runs on host2' in self.out, self.out)
        elif status == 3:
            check(self.lives('there') and 'must not be thawed' in self.err, self.err)
            return
        elif status == 75:
            check(self.can_be_thawed() and not self.lives('here'), 'nothing was thawed')
            check('not known' in self.err, self.err)
            return
        else:
            check(status in (1, 129, 130, 143), f'status {status}')
            check(not self.lives('there'), 'it lives there')
            check(self.err, 'no word')
            if is_way_back_whole:
                state = self.state('here', '4711')
                # What was frozen and is dumped cannot be brought back to that.
                check(state == self.before or [self.before, state] == ['frozen', 'dumped'],
                      f'it is {state}')
            elif self.before == 'running' and self.state('here', '4711') != 'running':
                check('echo thaw >>' in self.err, 'no word of how to thaw it')
            if os.path.exists(f'{self.there}/{PLACE}'):
                check('the place there is left' in self.err or 'can be removed' in self.err,
                      'no word of the place there')
        check('not known' not in self.err, self.err)

    def check_commands(self, is_finish_first):
        """After 75: both commands, in whatever order, give one living copy."""
        commands = re.findall('^    (rsh .*)$', self.err, re.M)
        check(len(commands) == 2, self.err)
        finish, back = commands
        did_live = self.lives('there')
        done = [self.shell(command) == 0 for command in
                ([finish, back] if is_finish_first else [back, finish])]
        self.check_copies()
        check(self.lives('here') or self.lives('there'), 'it does not live')
        if 'FAKE_REFUSE' in self.env:
            check(done == ([False, True] if is_finish_first else [True, False]), done)
            check(self.lives('here'), 'here')
        elif is_finish_first or did_live:
            check(done == ([True, False] if is_finish_first else [False, True]), done)
            check(self.lives('there') and not os.path.lexists(f'{self.here}/{PLACE}'), 'there')
        else:
            check(done[0] and self.lives('here'), 'here')
            check(not os.path.lexists(f'{self.there}/{PLACE}'), 'the place there')


def attempt(make, number, mode, is_way_back_whole=True, **env):
    """One run with one command that goes wrong. Returns its exit status or what is wrong."""
    with make() as world:
        try:
            world.run(FAKE_AT=str(number), FAKE_MODE=mode, **env)
            if mode == 'late':
                until = time.monotonic() + PATIENCE_SEC
                while not os.path.exists(f'{world.root}/late'):
                    check(time.monotonic() < until, 'the late command')
                    time.sleep(0.01)
            if world.status == -signal.SIGKILL:
                # It cannot clean up; nothing may be lost all the same.
                check('die' in f'{mode} {env.get("FAKE_MODE2")}', 'it was killed')
                world.check_copies()
                return world.status
            world.check(is_way_back_whole)
            if world.status == 75:
                world.check_commands(is_finish_first=number % 2 == 0 or mode == 'late')
            return world.status
        except AssertionError as error:
            log = ''.join(f'\n  {command}' for command in world.commands()[-12:])
            return f'{number} {mode} {env}: {error}; status {world.status}: {world.err}{log}'


def attempt_all(cases):
    """Statuses, and how often each came."""
    # After a signal, and between two looks, they only wait.
    with concurrent.futures.ThreadPoolExecutor(3 * os.cpu_count()) as pool:
        results = list(pool.map(lambda case: attempt(*case[0], **case[1]), cases))
    failures = [result for result in results if isinstance(result, str)]
    print(f'  {len(results)} runs: {sorted(collections.Counter(map(str, results)).items())[:9]}'
          if not failures else f'  {len(results)} runs, {len(failures)} failed')
    check(not failures, '\n'.join(failures[:3] + [failure.split('\n')[0] for failure in failures]))
    return collections.Counter(results)


def run_clean(make, expected):
    """The commands of a run in which nothing goes wrong."""
    with make() as world:
        status = world.run()
        check(status == expected, f'status {status}: {world.err}')
        world.check()
        return world.commands()


def in_turns(modes, number, parts):
    """One part of the modes: the commands beside this one have the others."""
    return modes[number % parts::parts]


def every_command(make, expected, modes, is_way_back_whole=True):
    """Each command goes wrong in one or two of MODES, or in one of SOME_MODES. With GPUCR_TEST_ALL
    in all of MODES, or in half of SOME_MODES. A process that runs loses each connection in both
    ways; the others lose it in one, if not all tests are run."""
    is_whole = modes == MODES
    cases = []
    for number, _, name, _ in run_clean(make, expected):
        if ALL:
            tried = modes if is_whole else in_turns(modes, number, 2)
        else:
            tried = in_turns(modes, number, 4)
        lost = LOST if ALL or is_whole else in_turns(LOST, number, len(LOST))
        for mode in tried + (lost if name in ('rsh', 'rsync') else ()):
            mode = mode.replace('signal', SIGNALS[number % len(SIGNALS)])
            cases.append(((make, number, mode), {'is_way_back_whole': is_way_back_whole}))
    return attempt_all(cases)


def test_running():
    results = every_command(World, 0, MODES)
    check(all(results[status] for status in (0, 1, 75, 129, 130, 143)), results)


def test_frozen():
    every_command(lambda: World('frozen'), 0, SOME_MODES)


def test_dumped():
    every_command(lambda: World('dumped'), 0, SOME_MODES)


def refused():
    return World(FAKE_REFUSE='1')


def test_place_of_another():
    """Made under the chosen name meanwhile, by a process that began at the same moment: it is not
    thawed."""
    with World() as world:
        world.run(FAKE_SQUAT='1')
        equal = (world.status, world.state('here', '4711'), world.state('here', PLACE))
        check(equal == (1, 'running', 'dumped'), f'{equal} {world.err}')
        check(world.lives('here') and not read(f'{world.root}/violations'), world.err)


def test_refused():
    """The thaw there fails: all of the way back too."""
    with refused() as world:
        check(world.run() == 1, world.err)
        world.check()
        check('thaw on host2: ENOMEM: GPU 0 has too little VRAM' in world.err, world.err)
        check(os.listdir(world.there).count(PLACE) == 0, 'the place there is gone')
    every_command(refused, 1, SOME_MODES, is_way_back_whole=False)


def test_twice():
    """A step fails, and then one of the way back."""
    cases = []
    with World() as world:
        world.run()
        # What cat writes is not among its words: the dump is the second verb.
        dump = [command[0] for command in world.commands()
                if command[2] == 'cat' and not command[3].strip()][1]
        difference = world.number('rsync', '--delete')
    for first, mode in (difference, 'fail'), (dump, 'kill-after'):
        with World() as world:
            world.run(FAKE_AT=str(first), FAKE_MODE=mode)
            check(world.status == 1, f'{world.status}: {world.err}')
            rest = [command for command in world.commands() if command[0] > first]
        for number, _, name_then, _ in rest:
            # Each command of the way back in one of these ways, in turns; with GPUCR_TEST_ALL in all.
            ways = ('fail', 'kill-after', 'die') + (LOST if name_then == 'rsh' else ())
            for second in ways if ALL else in_turns(ways, number, 3):
                cases.append(((World, first, mode), {
                    'is_way_back_whole': False, 'FAKE_AT2': str(number), 'FAKE_MODE2': second}))
    attempt_all(cases)


def test_late():
    """The connection is lost, and what was asked is done all the same, later."""
    commands = run_clean(World, 0)
    numbers = [command[0] for command in commands if command[2] == 'rsh']
    results = attempt_all([((World, number, 'late'), {}) for number in numbers])
    check(results[75] == 1, results)


def use_number_again(world, number, moment):
    """After the first command with this among its words, the process with the number, or the member of a
    tree, ends, and the number is another user's process. Files of his are not to be sent."""
    other = f'{world.root}/other'
    shutil.copytree(f'{world.here}/{number}', other, ignore=lambda *_: ['snapshot'])
    write(f'{other}/status', read(f'{other}/status').replace('start_ticks 7', 'start_ticks 8'))
    write(f'{other}/snapshot/vram/secret', 'of another user\n')
    os.mkdir(f'{world.root}/fake')
    for name in 'rsh', 'rsync':
        os.rename(f'{world.root}/bin/{name}', f'{world.root}/fake/{name}')
        write(f'{world.root}/bin/{name}', f"""#!/bin/sh
for word in . "$@"; do
    [ ! -e "$word/vram/secret" ] || : >"$FAKE/leaked"
done
"$FAKE/fake/{name}" "$@"
result=$?
case "$*" in
*'{moment}'*)
    if [ -d "$FAKE/other" ]; then
        rm -r "$FAKE/here/mnt/{number}"/*
        mv "$FAKE/here/mnt/{number}" "$FAKE/ended"
        mv "$FAKE/other" "$FAKE/here/mnt/{number}"
    fi
    ;;
esac
exit "$result"
""")
        os.chmod(f'{world.root}/bin/{name}', 0o755)


def test_number_used_again():
    """It is no other process that is frozen, dumped and sent."""
    for state, moment in (('running', 'store_free_bytes'), ('running', 'made yes'), ('running', '--mkpath'),
                          ('frozen', 'made yes'), ('frozen', '--mkpath')):
        with World(state) as world:
            use_number_again(world, 4711, moment)
            case = f'{state}, {moment}'
            check(world.run() == 1, f'{case}: {world.status} {world.err}')
            check(not os.path.exists(f'{world.root}/leaked'), f'{case}: files were sent')
            check(world.state('here', '4711') == state, f'{case}: {world.err}')
            check(read(f'{world.here}/4711/error') == 'ok\n', f'{case}: it heard of a verb')
            check(not os.path.exists(f'{world.there}/{PLACE}'), f'{case}: the place there')
            check('4711 is not here any more' in world.err, f'{case}: {world.err}')


def test_number_of_a_member_used_again():
    """Of a tree, what is kept of another user's process is not sent either."""
    for moment, sent in ('made yes', '4713'), ('processes/4712', '4712 4713'):
        with World() as world:
            status = f'{world.here}/4711/status'
            write(status, read(status).replace('members -', 'members 4712 4713'))
            shutil.rmtree(f'{world.here}/4711/snapshot')
            for pid in 4712, 4713:
                write(f'{world.here}/{pid}/status', f'pid {pid}\nstart_ticks 7{pid}\nvram_bytes 500\n')
                write(f'{world.here}/{pid}/snapshot/vram/gpu0-6000', 'kept from before\n')
            use_number_again(world, 4712, moment)
            check(world.run() == 0, f'{moment}: {world.status} {world.err}')
            check(not os.path.exists(f'{world.root}/leaked'), f'{moment}: files were sent')
            kept = [re.search('processes/([0-9]+)/', words) for _, _, name, words in world.commands()
                    if name == 'rsync']
            check(' '.join(found.group(1) for found in kept if found) == sent, kept)


def test_refusals():
    """What is seen before anything is changed."""
    def refusal(words, prepare, *options, target=('4711', 'host2'), status=1):
        with World() as world:
            prepare(world)
            found = world.run(*options, target=target)
            check(found == status and words in world.err, f'{words}: {found}: {world.err}')
            check(world.lives('here') and world.state('here', '4711') in ('running', 'failed'),
                  words)
            # A place that was there is still there.
            check(not os.path.exists(f'{world.there}/{PLACE}') or words.endswith('already'), words)
            check(not any(name == 'rsync' for _, _, name, _ in world.commands()), words)

    def status_of_there(text):
        return lambda world: write(f'{world.there}/status', text)

    refusal('has gpucrfs 2, and this host 1', status_of_there('version 2\nstore_free_bytes 9999\n'))
    refusal('has 999 bytes free', status_of_there('version 1\nstore_free_bytes 999\n'))
    refusal('no gpucrfs is mounted at', lambda world: shutil.rmtree(world.there))
    refusal('already', lambda world: os.mkdir(f'{world.there}/{PLACE}'))
    refusal('no such process', lambda world: None, target=('4712', 'host2'))
    refusal('is failed', lambda world: subprocess.run(
        ['sed', '-i', 's/^state .*/state failed/', f'{world.here}/4711/status'], check=True))
    for target in (('4711',), ('4711', '-host'), ('../4711', 'host'), ('4711', 'a b'), ('', 'host')):
        refusal('gpucr-migrate', lambda world: None, target=target, status=2)
    for option in (('--name', '1x'), ('--name', 'a/b'), ('--thaw', 'gpu=0:1; x'), ('--thaw', 'a\nb'),
                   ('--dump', '$(x)'), ('--tcp', '`x`'), ('--frobnicate',), ('--rsh',)):
        refusal('gpucr-migrate', lambda world: None, *option, status=2,
                target=() if option == ('--rsh',) else ('4711', 'host2'))


def test_words_of_the_other_host():
    """Whatever it answers does nothing to a terminal."""
    for words in ('version 1\\033[2J\\007', 'version 1\\302\\2332J', 'version \\033]0;x\\007'):
        with World() as world:
            write(f'{world.root}/bin/evil', f"#!/bin/sh\nprintf 'gpucr-migrate {words}\\ngpucr-migrate end\\n'\n")
            os.chmod(f'{world.root}/bin/evil', 0o755)
            check(world.run('--rsh', 'evil') == 1, world.err)
            check('has gpucrfs' in world.err and '?' in world.err, world.err)
            check(world.err.replace('\n', '').isprintable() and world.err.isascii(), repr(world.err))


def test_endless_words_of_the_other_host():
    """It cannot fill this host's disk."""
    for stream in '', ' >&2':
        with World() as world:
            write(f'{world.root}/bin/evil', f'#!/bin/sh\nexec yes gpucr-migrate a{stream}\n')
            os.chmod(f'{world.root}/bin/evil', 0o755)
            check(world.run('--rsh', 'evil') == 1, world.err)
            check('does not answer' in world.err, world.err[-200:])
            check(world.lives('here') and world.state('here', '4711') == 'running', 'it runs')


def test_long_words_of_the_other_host():
    """What is not printable in them costs no time."""
    with World() as world:
        write(f'{world.root}/bin/evil', "#!/bin/sh\nprintf 'gpucr-migrate version '\n"
                                        "head -c 60000 /dev/zero | tr '\\0' '\\1'\nprintf '\\ngpucr-migrate end\\n'\n")
        os.chmod(f'{world.root}/bin/evil', 0o755)
        begun = time.monotonic()
        check(world.run('--rsh', 'evil') == 1, world.err)
        check('has gpucrfs ????' in world.err, world.err[:200])
        check(time.monotonic() - begun < 10, 'it takes long')


def test_endless_complaints_in_a_copy():
    """They fill neither this host's disk nor its log."""
    with World() as world:
        os.unlink(f'{world.root}/bin/rsync')
        write(f'{world.root}/bin/rsync', '#!/bin/sh\nhead -c 50000000 /dev/zero >&2\nexit 1\n')
        os.chmod(f'{world.root}/bin/rsync', 0o755)
        check(world.run() == 1, world.err[-200:])
        check(world.lives('here') and world.state('here', '4711') == 'running', 'it runs')
        check(len(world.err) < 3 << 20, len(world.err))


def test_output_of_rsync_to_a_file():
    """Its length, and what is in the file already, is not limited by that."""
    with World() as world:
        os.mkdir(f'{world.root}/fake')
        os.rename(f'{world.root}/bin/rsync', f'{world.root}/fake/rsync')
        write(f'{world.root}/bin/rsync', '#!/bin/sh\necho copied\nexec "$FAKE/fake/rsync" "$@"\n')
        os.chmod(f'{world.root}/bin/rsync', 0o755)
        with open(f'{world.root}/log-of-all', 'wb') as file:
            file.truncate(10 << 20)
            file.seek(0, os.SEEK_END)
            check(world.run(stdout=file) == 0, world.err)
        with open(f'{world.root}/log-of-all', 'rb') as file:
            file.seek(10 << 20)
            said = file.read()
        check(said.count(b'copied') == 2 and b'runs on host2' in said, said)


def test_complaints_of_the_other_host():
    """Nor does what its shell says beside the answers."""
    with World() as world:
        write(f'{world.root}/bin/evil', "#!/bin/sh\nprintf 'Hello \\033[2J\\033]0;x\\007\\302\\233!\\n' >&2\n"
                                        "exit 1\n")
        os.chmod(f'{world.root}/bin/evil', 0o755)
        check(world.run('--rsh', 'evil') == 1, world.err)
        check('Hello ?[2J' in world.err and 'does not answer' in world.err, repr(world.err))
        check(world.err.replace('\n', '').isprintable() and world.err.isascii(), repr(world.err))


def test_options():
    with World() as world:
        check(world.run('--dry-run') == 0 and 'would move 4711' in world.out, world.err)
        check(world.lives('here') and not os.path.exists(f'{world.there}/{PLACE}'), 'changed')
        check([name for _, _, name, _ in world.commands()].count('rsh') == 1, 'dry run')
    with World() as world:
        check(world.run('--name', 'moved', '--thaw', 'gpu=0:1 pid=new', '--tcp', 'close', '--mount',
                        f'{world.here}/', '--rsync-options', '--bwlimit=1g --stats') == 0, world.err)
        check(world.state('there', 'moved') == 'running', 'its name')
        asked = [words for _, _, name, words in world.commands() if name == 'rsh']
        check(any("'thaw gpu=0:1 pid=new'" in words for words in asked), asked)
        rsyncs = [words for _, _, name, words in world.commands() if name == 'rsync']
        check(len(rsyncs) == 2 and all('--bwlimit=1g --stats -e rsh -- ' in words
                                       for words in rsyncs), rsyncs)
    with World() as world:  # addresses, as ssh and as rsync take them
        check(world.run(target=('4711', 'root@fd00::2')) == 0, world.err)
        check(all(words.startswith('root@fd00::2 ') for _, _, name, words in world.commands()
                  if name == 'rsh'), 'ssh')
        check(all(' root@[fd00::2]:' in words for _, _, name, words in world.commands()
                  if name == 'rsync'), 'rsync')
    for option, word in ('--help', 'Usage: gpucr-migrate'), ('--version', 'gpucr-migrate '):
        done = subprocess.run([SCRIPT, option], check=True, stdout=subprocess.PIPE, text=True)
        check(done.stdout.startswith(word), done.stdout)


def main():
    wanted = sys.argv[2:]
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith('test_') or (wanted and name not in wanted):
            continue
        begun = time.monotonic()
        try:
            test()
            word = 'ok'
        except AssertionError as error:
            failed += 1
            word = f'FAILED: {error}'
        print(f'{name}: {word} ({time.monotonic() - begun:.1f} s)', flush=True)
    sys.exit(1 if failed else 0)


main()
