# SPDX-License-Identifier: MIT
"""gpucr-migrate between two hosts with a network between them. How often there and back:
GPUCR_TEST_MIGRATIONS."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import criu
import harness
from harness import BUILD, Skip, check, equal, same_for_both
from hosts import Pair

# As tools/gpucr-migrate.in has them.
RSYNC = ['rsync', '-a', '--no-owner', '--no-group', '--sparse', '--inplace', '--modify-window=-1',
         '--protect-args', '--mkpath', '--stats']


def test_dry_run():
    """Each of them finds the other."""
    same_for_both('what the script does')
    with Pair() as pair:
        program = pair.program(pair.here)
        out = pair.must_migrate(pair.here, pair.there, program.pid, '--dry-run')
        check(out.startswith(f'would move {program.pid} (running, '), out)
        other = pair.program(pair.there)
        out = pair.must_migrate(pair.there, pair.here, other.pid, '--dry-run')
        check(out.startswith(f'would move {other.pid} (running, '), out)
        equal([host.places() for host in pair.hosts], [[], []])
        status, _, err = pair.migrate(pair.here, pair.there, other.pid, '--dry-run')
        equal(status, 1, err)
        check('no such process' in err, err)


def test_too_little_room():
    same_for_both('room in the store')
    with Pair(there={'options': ',store_size=4M'}) as pair:
        program = pair.program(pair.here)
        status, _, err = pair.migrate(pair.here, pair.there, program.pid)
        equal(status, 1, err)
        check('bytes free' in err, err)
        equal([pair.there.places(), pair.here.state(program.pid)], [[], 'running'])
        program.wait_ticks()


def test_way_back():
    """The dump is refused when the bytes kept of the last freeze have been copied already."""
    same_for_both('what the script does')
    with Pair(here={'options': ',keep=64M'}) as pair:
        program = pair.program(pair.here)
        pair.here.must(program.pid, 'freeze')
        pair.here.must(program.pid, 'thaw')
        program.wait_ticks()
        for before in 'running', 'frozen':
            if before == 'frozen':
                pair.here.must(program.pid, 'freeze')
            status, _, err = pair.migrate(pair.here, pair.there, program.pid, '--dump', 'no-such=1')
            equal(status, 1, err)
            check(f'dump {program.pid}: EINVAL' in err, err)
            check('here as before' in err, err)
            equal([pair.there.places(), pair.here.state(program.pid)], [[], before])
            check('gone dropped' in pair.there.read('events'), 'there was a place')
            if before == 'running':
                program.wait_ticks()
        pair.here.must(program.pid, 'thaw')
        program.wait_ticks()


def digests(host, name):
    """Of all that is in a snapshot, which is right in itself."""
    place = host.inner_path(name, 'snapshot')
    host.must_run(f'{BUILD}/tools/gpucr-verify', '-q', place)
    return host.must_run('sh', '-c', 'cd "$1" && sha256sum * vram/* 2>/dev/null | sort -k 2; '
                                     '[ -e manifest ]', 'sh', place)


def test_copy():
    """A snapshot goes from one mount into the other, and then what has changed of it."""
    same_for_both('files')
    with Pair() as pair:
        program = pair.program(pair.here, '--bytes', '32M', '--buffers', '1', '--tick', '300')
        place = pair.there.inner_path('copy')
        pair.there.must_run('mkdir', place)
        sent = []
        for _ in range(harness.few(2, 3)):
            pair.here.must(program.pid, 'freeze')
            out = pair.here.must_run(
                *RSYNC, '--delete', '-e', f'{pair.directory}/rsh',
                pair.here.inner_path(program.pid, 'snapshot/'),
                f'{pair.there.address}:{place}/snapshot/')
            sent += [int(line.split()[-2].replace(',', '')) for line in out.split('\n')
                     if line.startswith('Literal data:')]
            equal(digests(pair.there, 'copy'), digests(pair.here, program.pid))
            pair.here.must(program.pid, 'thaw')
            program.wait_ticks()
        check(sent[0] > 2 * max(sent[1:]), f'bytes sent: {sent}')
        pair.there.must_run('rmdir', place)


def dumpable_program(pair, *arguments):
    program = pair.program(pair.here, *arguments)
    if 'dump' not in pair.here.status(program.pid)['verbs'].split():
        raise Skip('this daemon dumps no process')
    return program


def remote_shell(pair, name, text, **words):
    """The path of a script in place of ssh: @text with @words, `rsh` among them, and our place, `moved`."""
    path = f'{pair.directory}/{name}'
    with open(path, 'w', encoding='utf-8') as script:
        script.write(text.format(place=pair.here.inner_path('moved'), rsh=f'{pair.directory}/rsh', **words))
    os.chmod(path, 0o755)
    return path


def migrate_by(pair, shell, done, expected):
    """A program, and what is said of its way to `moved` with this remote shell, which makes the file @done."""
    program = dumpable_program(pair)
    program.wait_ticks()
    status, out, err = pair.migrate(pair.here, pair.there, program.pid, '--rsh', shell, '--name', 'moved')
    check(os.path.exists(done), f'{status}: {out}{err}')
    equal(status, expected, err)
    return program, err


def test_there_and_back():
    """It never skips a tick, or makes one twice, and is in one place."""
    with Pair(env=criu.find().env) as pair:
        program = dumpable_program(pair)
        for _ in range(int(os.environ.get('GPUCR_TEST_MIGRATIONS', '2'))):
            for source, target in (pair.here, pair.there), (pair.there, pair.here):
                program.wait_ticks()
                out = pair.must_migrate(source, target, program.pid)
                check(f'runs on {target.address}' in out, out)
                equal(target.state(program.pid), 'running')
                check(not source.has(program.pid), 'it is not where it was')
                equal(source.places(), [])
                program.wait_ticks()
        # It is as good as new.
        pair.here.must(program.pid, 'freeze')
        pair.here.must(program.pid, 'thaw')
        program.wait_ticks()


# When rsync connects: the place is removed, as its owner may, and another one has its name.
EXCHANGING = '''#!/bin/sh
case $* in
*'rsync --server'*)
    if mkdir {own}; then
        ulimit -S -f unlimited # what the other host may say has a limit, and what a user does has none
        cp -r {place}/snapshot/. {own} && rmdir {place} && mkdir {place} &&
            cp -r {own}/. {place}/snapshot && echo mine >{place}/snapshot/README && touch {own}.done
    fi 2>/dev/null
    ;;
esac
exec {rsh} "$@"
'''


def test_other_place_of_that_name():
    """What a user puts under the name of a place does not become root's on the other host."""
    same_for_both('what the script does')
    with Pair(env=criu.find().env) as pair:
        own = f'{pair.shared}/own'
        exchanging = remote_shell(pair, 'exchanging', EXCHANGING, own=own)
        _, err = migrate_by(pair, exchanging, f'{own}.done', 1)
        check('rsync to' in err, err)
        equal(pair.there.places(), [])
        check('verb thaw' not in pair.there.read('events'), pair.there.read('events'))
        equal(pair.here.status('moved')['state'], 'incoming')
        pair.here.must_run('rmdir', pair.here.inner_path('moved'))


REPLACING = '''#!/bin/sh
{rsh} "$@"
result=$?
case $* in
*'thawed yes'*) rmdir {place} && mkdir {place} && touch {done} ;;
esac
exit $result
'''


def test_other_place_at_the_end():
    """The owner drops the place that has been copied, and somebody else has one of that name then:
    it stays."""
    same_for_both('what the script does')
    with Pair(env=criu.find().env) as pair:
        done = f'{pair.shared}/done'
        program, _ = migrate_by(pair, remote_shell(pair, 'replacing', REPLACING, done=done), done, 0)
        equal(pair.here.status('moved')['state'], 'incoming')
        program.wait_ticks()
        pair.here.must_run('rmdir', pair.here.inner_path('moved'))


def test_several_at_once():
    """Several rsyncs share the files, one of which may be cut off: what it left is sent."""
    same_for_both('how files are sent')
    with Pair(env=criu.find().env) as pair:
        program = dumpable_program(pair, '--bytes', '16M', '--buffers', '3')
        program.wait_ticks()
        pair.must_migrate(pair.here, pair.there, program.pid, '--jobs', '3')
        program.wait_ticks()
        # The first connection that carries an rsync breaks.
        cut = os.path.join(pair.directory, 'cut')
        with open(cut, 'w', encoding='utf-8') as file:
            file.write(f"""#!/bin/sh
case $* in
*'rsync --server'*)
    mkdir '{cut}.done' 2>/dev/null && exit 255
    ;;
esac
exec '{pair.directory}/rsh' "$@"
""")
        os.chmod(cut, 0o755)
        pair.must_migrate(pair.there, pair.here, program.pid, '--jobs', '2', '--rsh', cut)
        check(os.path.exists(f'{cut}.done'), 'no connection was cut')
        equal(pair.here.state(program.pid), 'running')
        program.wait_ticks()


def test_refused_there():
    """There is no room for it on the GPU there: it goes on here."""
    with Pair(there={'vram': '4M'}, env=criu.find().env) as pair:
        program = dumpable_program(pair)
        status, _, err = pair.migrate(pair.here, pair.there, program.pid)
        equal(status, 1, err)
        check('thaw on' in err and 'runs here as before' in err, err)
        equal([pair.there.places(), pair.here.state(program.pid)], [[], 'running'])
        program.wait_ticks()


harness.main(globals())
