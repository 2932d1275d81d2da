# SPDX-License-Identifier: MIT
"""Processes that let themselves be looked at, and take long: a user has many that share a table of
thousands of descriptors. Others' listings do not wait for them (test/fs/crowd.c)."""
import contextlib
import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import (BUILD, NOBODY, PR_SET_PDEATHSIG, SLOW, Machine, Skip, become, check, equal, is_root,
                     needs_cuda, wait_for)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'e2e'))
from sharer import BLOCK, PROGRAM, Sharer
from test_looker import Held
from test_turns import Child, enter_container_of, in_threads, time_taken

OTHER = NOBODY - 1
DESCRIPTORS = 15000
PR_SET_DUMPABLE = 4
LISTING_SEC = 1.5 * SLOW  # a listing waits 1 s at most for a pass


class Crowd:
    """Such processes; with @holders each has the device open, behind all other descriptors."""

    def __init__(self, machine, count, holders=False, uid=NOBODY, descriptors=DESCRIPTORS,
                 mapped=None, command=()):
        needs_cuda('the processes have the device of CUDA mapped')
        if not is_root():
            raise Skip('several users are needed')
        device = f'{machine.simulator}/nvidia-uvm'
        with open(device, 'a', encoding='utf-8'):
            os.chmod(device, 0o666)
        machine.others.append(self)
        self.popen = subprocess.Popen([*command, f'{BUILD}/test/fs/crowd', device, str(uid), str(count),
                                       str(descriptors), 'last' if holders else 'none',
                                       *([mapped] if mapped else [])],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pids = {int(pid) for pid in self.popen.stdout.readline().split()}
        equal(len(self.pids), count)

    def finish(self):
        self.popen.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(20)
        self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()


def listing(machine):
    """The pids, and how long the listing took."""
    began = time.monotonic()
    pids = machine.pids()
    return pids, time.monotonic() - began


def as_user(uid, command):
    """What a command prints that runs as this user, and how long it took."""
    began = time.monotonic()
    result = subprocess.run(command, user=uid, group=uid, extra_groups=[], check=True, text=True,
                            stdout=subprocess.PIPE)
    return result.stdout, time.monotonic() - began


def is_within(what, took_sec):
    print(f'{what}: {took_sec:.2f} s', file=sys.stderr)
    check(took_sec < LISTING_SEC, f'{what} takes {took_sec:.2f} s, more than {LISTING_SEC} s')


def others_go_on(machine, demo):
    """Listings and status, of root and of another user; a new process is seen by its own pass."""
    for _ in range(2):
        pids, took_sec = listing(machine)
        is_within('ls', took_sec)
        check(demo.pid in pids, 'the other process is not listed')
        began = time.monotonic()
        equal(machine.state(demo.pid), 'running')
        machine.read('status')
        is_within('status', time.monotonic() - began)
    text, took_sec = as_user(OTHER, ['ls', machine.mountpoint])
    is_within('ls of another user', took_sec)
    check(str(demo.pid) in text.split(), text)
    new = machine.ready_demo(uid=OTHER)
    pids, took_sec = listing(machine)
    is_within('ls', took_sec)
    check(new.pid in pids, 'a new process of another user is not listed at once')
    new.end()


def test_many_that_share_descriptors():
    """None of them uses a GPU."""
    with Machine() as machine:
        demo = machine.ready_demo(uid=OTHER)
        crowd = Crowd(machine, 20)
        others_go_on(machine, demo)
        check(int(machine.status_of_all()['looks_put_off']) > 0, 'none is put off')
        check(not crowd.pids & set(machine.pids()), 'they are no GPU processes')
        check(machine.daemon.poll() is None, 'the daemon has ended')


def test_they_are_found_in_the_end():
    """All of them use one: each is looked at, if later, and listed; and so is that they end."""
    with Machine() as machine:
        demo = machine.ready_demo(uid=OTHER)
        crowd = Crowd(machine, 20, holders=True)
        others_go_on(machine, demo)
        wait_for(lambda: crowd.pids <= set(machine.pids()), 'all of them to be listed')
        # They stay so, though passes put them off.
        for _ in range(3):
            pids, took_sec = listing(machine)
            is_within('ls', took_sec)
            check(crowd.pids <= set(pids), 'one that was put off is forgotten')
        crowd.finish()
        wait_for(lambda: not crowd.pids & set(machine.pids()), 'their ends to be seen')
        wait_for(lambda: machine.status_of_all()['looks_put_off'] == '0', 'none to be put off')


def test_subordinate_ids():
    """A user has one share with all his ids."""
    if not is_root():
        raise Skip('several users are needed')
    with Machine(start=False) as machine:
        table = f'{machine.directory}/subuids'
        with open(table, 'w', encoding='utf-8') as file:
            file.write(f'{NOBODY}:700000:65536\n')
        machine.options += f',user_subuids={table}'
        machine.start()
        demo = machine.ready_demo(uid=OTHER)
        for i in range(10):
            Crowd(machine, 4, uid=700000 + i)
        others_go_on(machine, demo)
        took_sec = min(listing(machine)[1] for _ in range(5))
        # The share of one owner, not that of ten (fs/process/scan_pass.c).
        check(took_sec < 0.6 * SLOW, f'ls takes {took_sec:.2f} s')


def test_requests_of_one_user():
    """He lists, and looks for processes that are below others, in many threads: others' requests
    find a thread that serves them."""
    with Machine() as machine:
        demo = machine.ready_demo(uid=OTHER)
        crowd = Crowd(machine, 40)
        end = f'{machine.directory}/end'

        def bother(path):
            while not os.path.exists(end):
                harness.error_of(lambda: os.listdir(path))
                # What is refused at once would be a test of who gets the processors.
                time.sleep(0.2)

        def attack(ready):
            paths = [machine.mountpoint, machine.path(crowd.popen.pid)] * 20
            threads = [threading.Thread(target=bother, args=(path,)) for path in paths]
            for thread in threads:
                thread.start()
            ready()
            for thread in threads:
                thread.join()
        mallory = Child(machine, NOBODY, attack)
        mallory.wait_ready()
        for _ in range(10):
            began = time.monotonic()
            equal(machine.state(demo.pid), 'running')
            took_sec = time.monotonic() - began
            print(f'status: {took_sec:.2f} s', file=sys.stderr)
            check(took_sec < 3 * SLOW, f'status of one takes {took_sec:.2f} s')
        check(not mallory.is_over(), 'the attack has ended')
        with open(end, 'w', encoding='utf-8'):
            pass
        mallory.wait()


def from_a_container(bother):
    """A user with many processes in another pid namespace has many threads there that call
    @bother with the mountpoint, again and again: others' requests do not wait for them."""
    with Machine() as machine:
        crowd = Crowd(machine, 300, holders=True, descriptors=8,
                      command=['unshare', '--pid', '--fork', '--kill-child'])
        wait_for(lambda: len(machine.pids()) >= len(crowd.pids), 'all of them to be listed')
        inside = machine.pids()[0]
        end = f'{machine.directory}/end'

        def attack(ready):
            enter_container_of(inside)
            become(NOBODY)
            check(len(os.listdir(machine.mountpoint)) > len(crowd.pids), 'he sees them')
            bother(machine.mountpoint)

            def repeat(index):
                if not index:
                    ready()
                while not os.path.exists(end):
                    harness.error_of(lambda: bother(machine.mountpoint))
            in_threads(200, repeat)
        def request():
            os.close(os.open(machine.ctl(), os.O_WRONLY))
        alone = time_taken('requests of others, without him', request, 0.5)
        mallory = Child(machine, 0, attack)
        mallory.wait_ready()
        time.sleep(0.3)
        median = time_taken('requests of others', request, 2)
        check(not mallory.is_over(), 'the attack has ended')
        with open(end, 'w', encoding='utf-8'):
            pass
        mallory.wait()
        check(median < max(0.04 * SLOW, 20 * alone), f'{median} s, and {alone} s without')


def test_listings_from_a_container():
    """Each listing of the root looks at each process, in a few of the mount's threads."""
    from_a_container(os.listdir)


def test_opens_from_a_container():
    """Each looks at the opener, in a few of the mount's threads."""
    from_a_container(lambda mountpoint: os.close(os.open(f'{mountpoint}/ctl', os.O_WRONLY)))


def test_a_launcher_of_many():
    """A look for GPU processes below a process ends in time, and does not say that there are none
    where it has not seen all."""
    with Machine() as machine:
        crowd = Crowd(machine, 40)
        began = time.monotonic()
        try:
            os.stat(machine.path(crowd.popen.pid))
            result = 'ok'
        except OSError as error:
            result = os.strerror(error.errno)
        took_sec = time.monotonic() - began
        check(took_sec < 3 * SLOW, f'the look takes {took_sec:.2f} s')
        equal(result, 'Connection timed out')


def chains(device, count, depth):
    """Makes @count chains of @depth processes below the caller; the last of each uses a GPU."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 1)  # else all of them were root's
    for _ in range(count):
        if os.fork():
            continue
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for _ in range(depth):
            if os.fork():
                while True:
                    signal.pause()
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with open(device, 'rb') as file, mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ):
            while True:
                signal.pause()


def worst_sec(call, seconds):
    """The longest time of a call among those that begin within so many seconds."""
    end = time.monotonic() + seconds
    worst = 0
    while time.monotonic() < end:
        began = time.monotonic()
        call()
        worst = max(worst, time.monotonic() - began)
        time.sleep(0.02)
    return worst


def test_verbs_of_a_launcher():
    """Each write to its ctl looks for the GPU processes below it: the writes of one user leave threads
    for others, who wait not much longer than while he writes to a process's ctl, which is quick."""
    needs_cuda('the processes have the device of CUDA mapped')
    if not is_root():
        raise Skip('several users are needed')
    count, depth, writers = harness.few(20, 30), harness.few(20, 30), 80
    with Machine() as machine:
        device = f'{machine.simulator}/nvidia-uvm'
        os.chmod(machine.simulator, 0o755)
        with open(device, 'ab') as file:
            file.truncate(4096)
            os.chmod(device, 0o666)
        end = f'{machine.directory}/end'

        def launch(ready):
            chains(device, count, depth)
            ready()
            while not os.path.exists(end):
                time.sleep(0.1)
        launcher = Child(machine, NOBODY, launch)
        launcher.wait_ready()
        wait_for(lambda: len(machine.pids()) == count, 'all of them to be listed')

        def attack(path):
            def bother(ctl):
                while not os.path.exists(f'{path}.end'):
                    harness.error_of(lambda: os.write(ctl, b'cancel'))

            def work(ready):
                ctls = [os.open(ctl, os.O_WRONLY) for _ in range(writers)]
                threads = [threading.Thread(target=bother, args=(one,)) for one in ctls]
                for thread in threads:
                    thread.start()
                ready()
                for thread in threads:
                    thread.join()
            ctl = machine.ctl(path)
            path = f'{machine.directory}/{path}'
            mallory = Child(machine, NOBODY, work)
            mallory.wait_ready()
            took_sec = worst_sec(lambda: os.stat(machine.path('gpus/0/name')), 3)
            with open(f'{path}.end', 'w', encoding='utf-8'):
                pass
            mallory.wait()
            return took_sec

        quick_sec = attack(machine.pids()[0])
        slow_sec = attack(launcher.pid)
        print(f'stat: {quick_sec:.2f} s, {slow_sec:.2f} s', file=sys.stderr)
        check(slow_sec < quick_sec + SLOW, f'a stat takes {slow_sec:.2f} s')
        with open(end, 'w', encoding='utf-8'):
            pass
        launcher.wait()


def test_look_ups_of_unknown():
    """The kernel keeps the root locked while a name is looked up that is to be made: a user whose
    processes take long has a share of that, and others make theirs meanwhile."""
    with Machine() as machine:
        crowd = Crowd(machine, 1)
        target = machine.path(crowd.popen.pid)
        answers, answer = os.pipe()

        def attack(ready):
            ready()
            end = time.monotonic() + 4
            while time.monotonic() < end:
                os.write(answer, f'{harness.error_of(lambda: os.mkdir(target))} '.encode())
                time.sleep(0.001)
        mallory = Child(machine, NOBODY, attack)
        mallory.wait_ready()
        times = []
        while not mallory.is_over():
            began = time.monotonic()
            os.mkdir(machine.path('mine'))
            os.rmdir(machine.path('mine'))
            times.append(time.monotonic() - began)
            time.sleep(0.01)
        mallory.wait()
        os.close(answer)
        with open(answers, encoding='utf-8') as got:
            codes = got.read().split()
        print(f'{len(times)}, at most {max(times):.2f} s; {len(codes)} answers', file=sys.stderr)
        # Where looks take no time, nobody needs to be put off.
        check('EBUSY' in codes or max(times) < 0.2 * SLOW,
              f'all of {len(codes)} processes were looked at; others waited {max(times):.2f} s')
        # He is not shut out of what is listed.
        demo = machine.ready_demo(uid=NOBODY)
        wait_for(lambda: demo.pid in machine.pids(), 'it to be listed')
        text, _ = as_user(NOBODY, ['cat', machine.path(demo.pid, 'status')])
        check('running' in text, text)


def rank(machine, uid):
    """A program without the preload library, of a tree of its own, that has NCCL's file mapped."""
    file = f'{machine.directory}/libnccl.so.2'
    with open(file, 'wb') as library:
        library.write(bytes(4096))
    sharer = Sharer(machine, preloaded=False, uid=uid,
                    command=['sh', '-c', '"$@" & wait', 'sh', *vendor.RUN, PROGRAM])
    sharer.must(f'alloc {BLOCK} 1')
    sharer.must(f'map {file}')
    wait_for(lambda: sharer.pid in machine.pids(), 'it to be listed')
    return sharer, file


def test_sharing_that_is_not_seen():
    """What passes have put off is not taken for what does not share GPU memory."""
    with Machine() as machine:
        sharer, file = rank(machine, OTHER)
        crowd = Crowd(machine, 10, uid=OTHER, mapped=file)
        # They are looked at alone, and use none.
        machine.must(sharer.pid, 'freeze')
        machine.must(sharer.pid, 'thaw')
        crowd.finish()
        crowd = Crowd(machine, 10, uid=OTHER, mapped=file, holders=True)
        equal(machine.write(sharer.pid, 'freeze'), 'EOPNOTSUPP')
        words = machine.error(sharer.pid)
        check(any(f'process {pid} ' in words for pid in crowd.pids | {crowd.popen.pid}), words)
        crowd.finish()
        # Another user's count for nothing, however many are put off.
        Crowd(machine, 10, mapped=file, holders=True)
        machine.must(sharer.pid, 'freeze')
        machine.must(sharer.pid, 'thaw')


def test_sharing_that_cannot_be_looked_for():
    """A process of the same user is silent, and was never seen: it may be the other one."""
    with Machine() as machine:
        sharer, file = rank(machine, OTHER)
        held = Held(machine, 'exec', uid=OTHER, known=False, device=f'{file}-other')
        result = machine.write(sharer.pid, 'freeze')
        words = machine.error(sharer.pid)
        equal(result, 'ETIMEDOUT', words)
        check(f'process {held.pid}, ' in words and 'unseen' in words, words)
        check(held.pid not in machine.pids(), 'it was seen')
        equal(machine.state(sharer.pid), 'running')
        machine.must(sharer.pid, 'freeze unseen')
        machine.must(sharer.pid, 'thaw')


if __name__ == '__main__':
    harness.main(globals())
