/* SPDX-License-Identifier: MIT */
/*
 * For test programs that the preload library's sources are part of: they have the driver as one
 * that is linked with it, and each of their tests has a process of its own.
 */
#ifndef GPUCR_LINKED_H
#define GPUCR_LINKED_H

#include "test/unit/sim.h"

struct linked_test {
	const char *name;
	void (*run)(void);
};

/* Runs all tests, or only the one named @only, after sim_begin(). */
static inline int run_linked(const struct linked_test *tests, size_t count, const char *only)
{
	int failed = 0, status;

	alarm(0);
	setenv("GPUCR_SOCKET", "", 1);
	/* Load the driver globally, as for a program that is linked with it. */
	CHECK(dlopen(getenv("GPUCR_SIM_LIB"), RTLD_NOW | RTLD_GLOBAL));
	for (size_t i = 0; i < count; i++) {
		pid_t pid;

		if (only && strcmp(only, tests[i].name) != 0)
			continue;
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			alarm(120 * TEST_SLOW);
			tests[i].run();
			exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			fprintf(stderr, "%s: status 0x%x\n", tests[i].name, status);
			failed = 1;
		}
		sim_set_faults("");
	}
	return failed;
}

#endif
