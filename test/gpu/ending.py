# SPDX-License-Identifier: MIT
"""The part of test_gpu.py about programs that end while they are frozen and thawed."""
import collections
import errno
import os
import subprocess
import time

from rig import Failure, Task, errno_name, write_verb

STATUS = 7
AT_ONCE = 4
END_SEC = 60
# What a verb may say of a program that ends at any moment.
ANSWERS = (0, errno.ESRCH, errno.ENOENT)


class EndingParts:
    # ---- what it is made of

    def one_short_program(self, command):
        """Freeze and thaw it without pause until it has ended: what verbs answered, and a problem
        or None."""
        answers = collections.Counter()
        with subprocess.Popen(self.rig.wrapper() + command, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True, cwd=self.rig.work,
                              env=self.rig.program_environment(True)) as program:
            try:
                pid = int(program.stdout.readline().split()[1])
                program.stdout.readline()
                until = time.monotonic() + END_SEC
                while program.poll() is None:
                    if time.monotonic() > until:
                        return answers, f"{command[0]}: {pid} hangs"
                    for verb in ("freeze", "thaw"):
                        try:
                            number = write_verb(self.daemon.path(pid, "ctl"), verb)[0]
                        except OSError as error:
                            number = error.errno
                        answers[errno_name(number)] += 1
                        if number not in ANSWERS:
                            return answers, f"{verb}: {errno_name(number)} {self.words_of(pid)}"
                if program.returncode != STATUS:
                    return answers, f"{command[0]}: exit status {program.returncode}"
                return answers, None
            except (IndexError, ValueError):
                return answers, f"{command[0]} has not begun"
            finally:
                program.kill()

    def words_of(self, pid):
        try:
            return self.daemon.text(pid, "error").strip()
        except (OSError, Failure) as error:
            return str(error)

    def many_short_programs(self, commands, count):
        answers, problems = collections.Counter(), []
        done = 0
        while done < count and not self.results.is_late():
            its_answers, problem = self.one_short_program(commands[done % len(commands)])
            done += 1
            answers += its_answers
            if problem:
                problems.append(problem)
        return done, answers, problems

    # ---- the parts

    def part_main_thread(self):
        """programs whose main thread ends while they are frozen"""
        for preload in (True, False):
            name = "main-thread-vmm" if preload else "main-thread-driver"
            end = os.path.join(self.rig.work, name + ".end")
            program = self.rig.demo(self.sizes.small, name=name, preload=preload,
                                    LD_PRELOAD=self.options.main_ends, GPUCR_TEST_MAIN_ENDS=end)
            program.wait_for(3)
            self.need_verb(program, "freeze", f"freeze, {name}")
            with open(end, "w", encoding="utf-8"):
                pass
            until = time.monotonic() + END_SEC
            while ") Z " not in open(f"/proc/{program.pid}/stat", encoding="utf-8").read():
                self.results.need(time.monotonic() < until, "the end of the main thread", name)
                time.sleep(0.05)
            number, _ = self.daemon.verb(program.pid, "thaw")
            self.results.check(number == 0, f"thaw without a main thread, {name}",
                               self.words_of(program.pid))
            if number == 0:
                self.check_goes_on(program)
                number, _ = self.daemon.verb(program.pid, "freeze")
                self.results.check(number == errno.EOPNOTSUPP, f"freeze without one, {name}",
                                   self.words_of(program.pid))
                self.check_goes_on(program)

    def part_ending(self):
        """short programs that end under freezes and thaws without pause"""
        count = 20 if self.options.sim or self.options.quick else 500
        commands = [[program, str(STATUS)] for program in self.options.ending.split(",")]
        tasks = [Task(lambda: self.many_short_programs(commands, count // AT_ONCE))
                 for _ in range(AT_ONCE)]
        done, answers, problems = 0, collections.Counter(), []
        for task in tasks:
            number, value = task.wait(max(60, self.options.limit))
            self.results.need(number == 0, "the programs have run", errno_name(number))
            done += value[0]
            answers += value[1]
            problems += value[2]
        self.results.check(not problems, f"{done} short programs ended as they mean to",
                           "; ".join(problems[:5]) or str(dict(answers)))
        failed = [line for line in self.daemon.text("events").splitlines()
                  if " state " in line and line.endswith(" failed")]
        self.results.check(not failed, "none has failed", "; ".join(failed[:5]))
