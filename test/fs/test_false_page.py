# SPDX-License-Identifier: MIT
"""A program that shows a page of the preload library which is a file of its user's own filesystem,
and is another program by the time the daemon has looked at it. The attack is played for real: see
test/fs/false_page.c."""
import contextlib
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vendor
from harness import BUILD, NOBODY, Machine, Skip, check, equal, is_root, needs_cuda, wait_for


class Attacker:
    def __init__(self, machine):
        self.directory = f'{machine.directory}/false'
        os.mkdir(self.directory)
        program = f'{BUILD}/test/fs/false_page'
        other = shutil.copy(program, f'{machine.directory}/other')
        os.chown(other, 0, 0)
        os.chmod(other, 0o4755)
        machine.others.append(self)
        self.popen = subprocess.Popen(
            [program, self.directory, str(NOBODY), other], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
            env={**machine.env, 'LD_LIBRARY_PATH': vendor.LIBRARIES})
        self.pid = int(self.expect('ready'))

    def expect(self, *words):
        """The next line begins with one of these; what follows it."""
        word, _, rest = self.popen.stdout.readline().rstrip('\n').partition(' ')
        check(word in words, f'found {word!r} {rest!r}, expected {words}')
        return rest

    def map(self):
        self.popen.stdin.write('map\n')
        self.popen.stdin.flush()
        self.expect('mapped')

    def outcome(self):
        """Once no verb is under way any more."""
        self.popen.stdin.close()
        return self.popen.stdout.read().split('\n')[:-1]

    def finish(self):
        self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()
        with contextlib.suppress(OSError):
            self.popen.stdin.close()
        subprocess.run(['umount', '-l', self.directory], check=False, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def attacked():
    needs_cuda('the driver freezes a program without our library')
    if not is_root():
        raise Skip('several users are needed')
    if os.statvfs('/tmp').f_flag & os.ST_NOSUID:
        raise Skip('/tmp has no set-user-ID programs')
    with Machine() as machine:
        attacker = Attacker(machine)
        wait_for(lambda: attacker.pid in machine.pids(), 'the program to be listed')
        yield machine, attacker


def is_untouched(attacker):
    lines = attacker.outcome()
    # What is left of the attack without a look at the file is no more than a program that thaws.
    check(lines in (['unread 0'], ['runs 0', 'intact 0']), lines)


def test_thaw():
    """The library may be called back as the program is thawed: nothing is written to memory."""
    with attacked() as (machine, attacker):
        equal(machine.writer(attacker.pid, 'freeze', uid=NOBODY).result(), 'ok')
        attacker.map()
        machine.writer(attacker.pid, 'thaw', uid=NOBODY).result()
        is_untouched(attacker)


def test_recovery():
    """So it may be by a daemon that finds a frozen program."""
    with attacked() as (machine, attacker):
        equal(machine.writer(attacker.pid, 'freeze', uid=NOBODY).result(), 'ok')
        attacker.map()
        machine.stop()
        machine.start()
        is_untouched(attacker)


if __name__ == '__main__':
    harness.main(globals())
