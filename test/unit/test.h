/* SPDX-License-Identifier: MIT */
/* The whole of the test framework: a test is a program that exits 0, 1 (failed) or 77 (skipped). */
#ifndef GCR_TEST_H
#define GCR_TEST_H

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

/* Times and counts: sanitizers make everything slower. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TEST_SLOW 5
#else
#define TEST_SLOW 1
#endif

/* For functions that go through memory word by word, with nobody else there. */
#define UNSEEN __attribute__((no_sanitize("thread")))

#define SKIP(reason)                                      \
	do {                                              \
		fprintf(stderr, "skipped: %s\n", reason); \
		exit(77);                                 \
	} while (0)

#endif
