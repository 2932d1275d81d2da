# SPDX-License-Identifier: MIT
"""Processes that do not let themselves be looked at. The attack is played for real: a user holds
processes of his own by a FUSE filesystem that does not answer, in the kernel's calls and locks that
readers of /proc and of memory wait for (test/fs/held.c)."""
import contextlib
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import library
import vendor
from harness import (BUILD, NOBODY, SLOW, Machine, Skip, check, equal, is_root, needs_cuda,
                     read_file, wait_for)
from users import child

OTHER = NOBODY - 1
BOUND_SEC = 20 * SLOW  # seconds, on a machine that does much else
HELPERS_MAX = 9        # fs/helper/looker.c
IDLE_MAX = 4
ABANDONED_USER_MAX = 2
SILENT_OWNER_MAX = 16
MAPPINGS = 60000  # the kernel gives no program more than 65,530, by default
MAPPERS = 8
PAGE_BOUND_SEC = 3 * SLOW


class Held:
    """One such process, known to the daemon or not."""

    def __init__(self, machine, how, uid=NOBODY, known=True, device=None):
        self.how = how
        self.directory = f'{machine.directory}/held-{len(machine.others)}'
        os.mkdir(self.directory)
        os.chown(self.directory, uid, uid)
        device = device or f'{machine.simulator}/nvidia-uvm'
        with open(device, 'a', encoding='utf-8'):
            os.chmod(device, 0o666)
        machine.others.append(self)
        self.pid = self.start([f'{BUILD}/test/fs/held', how, self.directory, device, str(uid)])
        if known:
            wait_for(lambda: self.pid in machine.pids(), 'the process to be listed')
        os.kill(self.pid, signal.SIGUSR2)
        equal(self.popen.stdout.readline(), 'held\n')

    def start(self, command):
        self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      text=True)
        return int(self.popen.stdout.readline())

    def let_go(self):
        self.popen.send_signal(signal.SIGUSR1)

    def finish(self):
        harness.end_or_kill(self.popen)
        subprocess.run(['umount', '-l', self.directory], check=False, stderr=subprocess.DEVNULL)


def child_of(pid):
    return int(read_file(f'/proc/{pid}/task/{pid}/children').split()[0])


class HeldInContainer(Held):
    """One of root's in a pid namespace of its own, without a user namespace."""

    def __init__(self, machine):
        super().__init__(machine, 'exec', uid=0, known=False)

    def start(self, command):
        self.popen = subprocess.Popen(['unshare', '--pid', '--fork', '--kill-child', *command],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.popen.stdout.readline()  # its pid in there
        return child_of(child_of(self.popen.pid))

    def finish(self):
        self.popen.kill()
        super().finish()


@contextlib.contextmanager
def attacked(*hows, known=True, **options):
    """A program of root's, and processes of another user's that are held so."""
    needs_cuda('the process has the device of CUDA mapped')
    if not is_root():
        raise Skip('several users are needed')
    with Machine(**options) as machine:
        demo = machine.ready_demo()
        yield machine, demo, [Held(machine, how, known=known) for how in hows]


def soon(what, call):
    return harness.soon(what, call, BOUND_SEC)


def others_go_on(machine, demo):
    """All that the other users do, and that needs a look at processes."""
    for _ in range(3):
        check(demo.pid in soon('ls', machine.pids), 'the other process is not listed')
        check('processes' in soon('status', lambda: machine.read('status')), 'status')
    equal(soon('lookup', lambda: machine.state(demo.pid)), 'running')
    soon('freeze', lambda: machine.must(demo.pid, 'freeze'))
    equal(soon('status of one', lambda: machine.state(demo.pid)), 'frozen')
    soon('thaw', lambda: machine.must(demo.pid, 'thaw'))
    # One that has just started is found at once.
    new = machine.ready_demo()
    equal(soon('lookup of a new one', lambda: machine.state(new.pid)), 'running')
    new.end()


def is_bounded(machine, users=1):
    lookers = machine.lookers()
    check(len(lookers) <= HELPERS_MAX + users * ABANDONED_USER_MAX, f'helpers: {lookers}')


def refused(machine, one):
    """A verb on the held process itself ends, and says why."""
    result = soon(f'freeze of the one in {one.how}', lambda: machine.write(one.pid, 'freeze'))
    equal(result, 'ETIMEDOUT')
    equal(soon('its status', lambda: machine.status(one.pid))['answers'], 'no')
    words = soon('its error', lambda: machine.error(one.pid))
    check('does not let itself be looked at' in words, words)


def in_way(how):
    with attacked(how) as (machine, demo, held):
        others_go_on(machine, demo)
        check(held[0].pid in machine.pids(), 'what is known of it is forgotten')
        refused(machine, held[0])
        refused(machine, held[0])
        is_bounded(machine)
        others_go_on(machine, demo)
        is_bounded(machine)
        held[0].let_go()
        if how == 'exec':
            # It is another program now, which has the device open and not mapped.
            wait_for(lambda: held[0].pid not in machine.pids(), 'it to be seen again')
        else:
            wait_for(lambda: machine.write(held[0].pid, 'freeze') not in ('ETIMEDOUT', 'EBUSY'),
                     'it to be seen again')
            wait_for(lambda: machine.status(held[0].pid)['answers'] == 'yes', 'it to answer')
        wait_for(lambda: len(machine.lookers()) <= IDLE_MAX, 'helpers to end')


def test_in_exec():
    in_way('exec')


def test_page_that_is_not_read():
    in_way('page')


def test_with_the_lock_of_its_memory():
    in_way('lock')


def test_unknown():
    """The daemon has never seen it: it cannot be found, which is said, and not waited for."""
    with attacked('exec', known=False) as (machine, demo, held):
        result = soon('lookup', lambda: harness.error_of(lambda: os.stat(machine.path(held[0].pid))))
        check(result in ('ETIMEDOUT', 'ENOENT'), result)
        result = soon('verb', lambda: machine.write(None, f'freeze {held[0].pid}'))
        check(result in ('ETIMEDOUT', 'ESRCH', 'ENOENT'), result)
        others_go_on(machine, demo)


def test_cancel():
    """A verb of a held process obeys `cancel`."""
    with attacked('page') as (machine, demo, held):
        writer = machine.writer(held[0].pid, 'freeze')
        soon('cancel', lambda: machine.write(held[0].pid, 'cancel'))
        check(soon('freeze', writer.result) != 'ok', 'it cannot have been frozen')
        others_go_on(machine, demo)


def test_many_of_one_user():
    """More than there are helpers, in all ways; and another user's process that is well is seen."""
    with attacked('exec', 'lock', 'page', 'exec', 'lock', 'exec', 'exec', 'exec', 'exec', 'exec',
                  known=False) as (machine, demo, held):
        theirs = machine.ready_demo(uid=OTHER)
        for _ in range(3):
            others_go_on(machine, demo)
            equal(soon('another user', lambda: machine.state(theirs.pid)), 'running')
            is_bounded(machine)


def root_goes_on(hold):
    """Root's verbs, new programs and listing, while more of root's are silent than of any user."""
    with attacked() as (machine, demo, _):
        held = []
        for _ in range(SILENT_OWNER_MAX + 1):
            held.append(hold(machine))
            machine.write(None, f'freeze {held[-1].pid}')  # a look at it, which it does not answer
        others_go_on(machine, demo)
        is_bounded(machine)


def test_many_of_root():
    root_goes_on(lambda machine: Held(machine, 'exec', uid=0, known=False))


def test_many_of_root_of_a_container():
    root_goes_on(HeldInContainer)


def test_many_of_the_writer():
    """He is known as one of our namespace without a look at him; his process is the one that is not
    looked at, until his others have ended."""
    with attacked() as (machine, _, _):
        theirs = machine.ready_demo(uid=NOBODY)
        held = [Held(machine, 'exec', known=False) for _ in range(SILENT_OWNER_MAX + 1)]
        for one in held:
            machine.write(None, f'freeze {one.pid}')
        writer = machine.writer(theirs.pid, 'freeze', uid=NOBODY)
        check(soon('verb', writer.result) != 'ok', 'it cannot have been looked at')
        words = machine.error(theirs.pid)
        check('the opener or the writer' not in words, words)
        for one in held:
            one.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: machine.writer(theirs.pid, 'freeze', uid=NOBODY).result() == 'ok',
                 'it to be looked at again')


def use(snapshot):
    """Reads, changes and renames what is below a snapshot."""
    with open(f'{snapshot}/vram/{os.listdir(f"{snapshot}/vram")[0]}', 'rb') as file:
        file.read(1)
    os.mkdir(f'{snapshot}/vram/made')
    os.rename(f'{snapshot}/vram/made', f'{snapshot}/made')


def test_many_of_who_reads():
    """The kernel tells the user namespaces of readers and processes without a look (Linux 6.11)."""
    if tuple(int(word) for word in os.uname().release.split('.')[:2]) < (6, 11):
        raise Skip('this kernel tells no user namespace without a look')
    with attacked(vmm=True) as (machine, _, _):
        theirs = machine.ready_demo(uid=NOBODY)
        machine.must(theirs.pid, 'freeze')
        held = [Held(machine, 'exec', known=False) for _ in range(SILENT_OWNER_MAX + 1)]
        for one in held:
            machine.write(None, f'freeze {one.pid}')
        snapshot = machine.path(theirs.pid, 'snapshot')
        number = soon('his files', lambda: child(lambda: use(snapshot), lambda: harness.become(NOBODY)))
        equal(harness.name_of(number), 'ok')


def ends_soon(*hows, at_verb=False):
    with attacked(*hows) as (machine, _, held):
        soon('ls', machine.pids)
        writers = [machine.writer(one.pid, 'freeze') for one in held] if at_verb else []
        equal(machine.stop(seconds=BOUND_SEC), 0)
        for writer in writers:
            check(writer.result() != 'ok', 'it cannot have been frozen')


def test_sigterm():
    ends_soon('exec', 'page', 'lock')


def test_sigterm_in_verbs():
    ends_soon('exec', 'page', 'lock', at_verb=True)


def test_start():
    """A daemon starts beside such processes too."""
    with attacked('exec', 'lock') as (machine, demo, held):
        machine.stop()
        began = time.monotonic()
        machine.start()
        check(time.monotonic() - began < BOUND_SEC, 'the start takes long')
        others_go_on(machine, demo)


def test_page_mapped_a_million_times():
    """
    A library's page belongs to its program, which can have it mapped as often as it likes, and the
    kernel look for it in all these mappings: whoever maps it, unmaps it or faults in it waits.
    """
    if not is_root():
        raise Skip('several users are needed')
    if SLOW > 1:
        raise harness.OnceIsEnough('what the kernel makes wait')
    with Machine() as machine:
        demo = machine.ready_demo()
        theirs = library.Library(machine, connections=10, uid=NOBODY)
        theirs.use_all_slots()
        with subprocess.Popen([f'{BUILD}/test/fs/mapped', str(theirs.page), str(library.PAGE_BYTES),
                               str(MAPPINGS), str(MAPPERS)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True, user=NOBODY, group=NOBODY,
                              pass_fds=[theirs.page]) as attacker:
            try:
                equal(attacker.stdout.readline(), 'mapped\n')
                longest = 0
                while theirs.links:
                    theirs.lose(library.RUNNING)
                    for _ in range(10):
                        began = time.monotonic()
                        machine.status(demo.pid)
                        machine.status(theirs.pid)
                        longest = max(longest, time.monotonic() - began)
                # It took twelve while the daemon mapped pages.
                check(longest < PAGE_BOUND_SEC, f'status took {longest:.3f} s')
                others_go_on(machine, demo)
            finally:
                attacker.kill()
        equal(machine.status(theirs.pid)['engine'], vendor.ENGINE)


def test_helper_is_killed():
    """Its loss is made good at once."""
    with Machine() as machine:
        demo = machine.ready_demo()
        for _ in range(5):
            for pid in machine.lookers():
                harness.try_kill(pid, signal.SIGKILL)
            check(demo.pid in machine.pids(), 'it is not listed')
        machine.must(demo.pid, 'freeze')
        for pid in machine.lookers():
            harness.try_kill(pid, signal.SIGKILL)
        machine.must(demo.pid, 'thaw')


def test_rights():
    """The helper has no more rights than it needs, and no files but its own."""
    with Machine() as machine:
        machine.ready_demo()
        pid = machine.lookers()[0]
        status = harness.parse_keys(read_file(f'/proc/{pid}/status').replace(':', ' '))
        equal(status['NoNewPrivs'].strip(), '1')
        kept = 1 << 19 | 1 << 2 if is_root() else 0  # CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH
        equal(int(status['CapPrm'].strip(), 16) & ~kept, 0)
        if is_root():
            # While it looks at a process it has a file of /proc open besides.
            wait_for(lambda: len(os.listdir(f'/proc/{pid}/fd')) == 4, 'its own files and no others')


if __name__ == '__main__':
    harness.main(globals())
