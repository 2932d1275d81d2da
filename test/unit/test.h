/* SPDX-License-Identifier: MIT */
/* The whole of the test framework: a test is a program that exits 0, 1 (failed) or 77 (skipped). */
#ifndef GCR_TEST_H
#define GCR_TEST_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                 \
	do {                                                                             \
		if (!(condition)) {                                                      \
			fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, \
				#condition);                                             \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

/* What is ignored or blocked where a test is started, as nohup(1) does, is the default in it. */
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

/* Times and counts: sanitizers make everything slower. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TEST_SLOW 5
#else
#define TEST_SLOW 1
#endif

/* For functions that go through memory word by word, with nobody else there. */
#define UNSEEN __attribute__((no_sanitize("thread", "address")))

#define SKIP(reason)                                      \
	do {                                              \
		fprintf(stderr, "skipped: %s\n", reason); \
		exit(77);                                 \
	} while (0)

#endif
