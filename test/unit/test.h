/* SPDX-License-Identifier: MIT */
/*
 * The test framework: a test is a program that exits with 0 (passed), 1 (failed) or 77 (skipped).
 */
#ifndef GCR_TEST_H
#define GCR_TEST_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                 \
	do {                                                                             \
		if (!(condition)) {                                                      \
			fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, \
				#condition);                                             \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

/* Resets signals that the parent ignores or blocks (as nohup(1) does) to their defaults. */
__attribute__((constructor)) static void test_default_signals(void)
{
	sigset_t none;

	for (int number = 1; number < SIGRTMIN; number++) {
		struct sigaction inherited;

		if (!sigaction(number, NULL, &inherited) && inherited.sa_handler == SIG_IGN)
			signal(number, SIG_DFL);
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Factor for times and counts: sanitizers make everything slower. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TEST_SLOW 5
#else
#define TEST_SLOW 1
#endif

/* How often something is tried: as CI does it, and with -Dall_tests=true. */
static inline int test_few(int usual, int of_all)
{
	return getenv("GPUCR_TEST_ALL") ? of_all : usual;
}

/*
 * For tests that move much memory, first in main(): TSan does not check the memory that memcpy(3),
 * read(2) and the like access, in this program and in those that it starts. That would take most of
 * their time, and other tests have it checked.
 */
static inline void test_copies_unchecked(char **argv)
{
#ifdef __SANITIZE_THREAD__
	const char *old_options = getenv("TSAN_OPTIONS");
	char options[1024];

	if (old_options && strstr(old_options, "ignore_interceptors_accesses=1"))
		return;
	snprintf(options, sizeof(options), "%s:ignore_interceptors_accesses=1",
		 old_options ? old_options : "");
	CHECK(!setenv("TSAN_OPTIONS", options, 1));
	execv("/proc/self/exe", argv);
	CHECK(!"the program can be run again");
#endif
}

/* For functions that walk memory word by word while no other thread uses that memory. */
#define UNSEEN __attribute__((no_sanitize("thread", "address")))

#define SKIP(reason)                                      \
	do {                                              \
		fprintf(stderr, "skipped: %s\n", reason); \
		exit(77);                                 \
	} while (0)

#endif
