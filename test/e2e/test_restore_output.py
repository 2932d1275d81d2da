# SPDX-License-Identifier: MIT
"""What a restored program writes into a pipe whose other end was outside: its log is root's, its user
reads it and can do nothing else with it, and the program goes on whatever becomes of the drain."""
import contextlib
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
from harness import NOBODY, check, equal, read_file, same_for_both, wait_for

# As NOBODY: each way to the log, and what came of it.
TRYING = '''
import os, sys
log = sys.argv[1]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print("read", " ok" in open(log).read())
def attempt(name, call):
    try:
        call()
        print(name, True)
    except OSError:
        print(name, False)
attempt("write", lambda: os.open(log, os.O_WRONLY))
attempt("append", lambda: os.open(log, os.O_WRONLY | os.O_APPEND))
attempt("truncate", lambda: os.truncate(log, 0))
attempt("chmod", lambda: os.chmod(log, 0o666))
attempt("unlink", lambda: os.unlink(log))
attempt("rename", lambda: os.rename(log, log + "x"))
attempt("make", lambda: os.open(log + "y", os.O_WRONLY | os.O_CREAT))
'''


def drains(machine):
    """Pids of those that write into a log of the machine."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            if os.readlink(f'/proc/{pid}/fd/0').startswith(f'{machine.runtime}/stdio/'):
                found.append(int(pid))
    return found


@contextlib.contextmanager
def restored(machine, name, uid):
    """gpucr-demo whose output was a pipe of ours, thawed from a place of this user's. Its pid."""
    pid = dump.with_output(machine, name, *os.pipe())
    try:
        if uid:
            # The store keeps whose it is; a user's process is dumped by few CRIUs.
            machine.stop()
            os.chown(f'{machine.runtime}/store/incoming-{name}', uid, uid)
            machine.start()
        machine.must(name, 'thaw')
        yield pid
    finally:
        harness.try_kill(pid, signal.SIGKILL)


def more_ticks(log):
    count = read_file(log).count(' ok\n')
    wait_for(lambda: read_file(log).count(' ok\n') > count + 2, f'more ticks in {log}')


def test_of_a_user():
    same_for_both('what a program has open')
    if not harness.is_root():
        raise harness.Skip('several users are needed')
    with dump.machine() as machine:
        os.chmod(machine.directory, 0o755)
        log = f'{machine.runtime}/stdio/his.log'
        # An earlier daemon's log, which was the user's: he has it open for writing still.
        os.mkdir(f'{machine.runtime}/stdio', 0o711)
        with open(log, 'w', encoding='utf-8') as old:
            os.fchown(old.fileno(), NOBODY, NOBODY)
            with restored(machine, 'his', NOBODY) as pid:
                more_ticks(log)
                old.write('forged\n')
                old.flush()
                check('forged' not in read_file(log), 'the old file is used')
                equal(os.stat(log).st_uid, 0)
                check(os.readlink(f'/proc/{pid}/fd/1').startswith('pipe:'), 'no pipe')
                said = subprocess.run([sys.executable, '-c', TRYING, log], check=True,
                                      stdout=subprocess.PIPE, text=True).stdout.split('\n')
                equal(said[0], 'read True')
                check(all(line.endswith(' False') for line in said[1:-1]) and len(said) == 9, said)
                machine.must(pid, 'freeze')
                machine.must(pid, 'thaw')
                more_ticks(log)


def test_deaths():
    """The daemon dies, and the drain: the program runs on and what it says arrives."""
    same_for_both('what a program has open')
    with dump.machine() as machine:
        log = f'{machine.runtime}/stdio/piped.log'
        one = dump.program(machine)  # whose reap() is used
        with restored(machine, 'piped', 0) as pid:
            more_ticks(log)
            machine.daemon.kill()
            machine.daemon.wait()
            more_ticks(log)
            machine.start()
            more_ticks(log)
            pids = drains(machine)
            equal(len(pids), 2, 'drains')
            parents = {int(read_file(f'/proc/{one}/stat').rpartition(') ')[2].split()[1]) for one in pids}
            for drain in set(pids) - parents:
                os.kill(drain, signal.SIGKILL)
            more_ticks(log)
            check(harness.is_alive(pid), 'it has ended')
            # Dumped again, it gets another pipe.
            wait_for(lambda: machine.state(pid) == 'running', 'the recovery')
            machine.must(pid, 'dump name=again')
            wait_for(lambda: one.reap() or not os.path.exists(f'/proc/{pid}'), 'its end')
            machine.must('again', 'thaw')
            more_ticks(f'{machine.runtime}/stdio/again.log')
        wait_for(lambda: one.reap() or not restore.cgroup_of('again'), 'the end of the cgroup')
        wait_for(lambda: not drains(machine), 'the end of the drains')


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
