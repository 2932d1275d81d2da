/* SPDX-License-Identifier: MIT */
/*
 * For tests of the preload library's memory: the functions that the agent (the library's thread
 * that speaks with the daemon) calls, so that a test can take the agent's part.
 *
 * Environment: GPUCR_TEST_PRELOAD is the library with the test's entry point added,
 * GPUCR_TEST_SIMULATOR the directory of the simulator's libraries.
 */
#ifndef GPUCR_TEST_PRELOAD_MEMORY_H
#define GPUCR_TEST_PRELOAD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/error.h"
#include "lib/protocol.h"

struct preload_memory {
	bool (*converts)(void);
	ssize_t (*describe)(struct gcr_extent *extents, size_t room);
	int (*export)(size_t first, size_t count, int *ret_fds, struct gcr_error *error);
	int (*unmap)(struct gcr_error *error);
	int (*take_back)(struct gcr_error *error);
	void (*commit)(void);
	int (*receive)(size_t first, size_t count, int *fds, struct gcr_error *error);
	bool (*complete)(struct gcr_error *error);
	int (*let_go)(struct gcr_error *error);
	void (*forget)(void);
	bool (*owns)(unsigned long long address);
	struct gcr_page *(*page)(void);
	int (*gate_close)(int64_t timeout_usec, int wake_fd, struct gcr_error *error);
	void (*gate_open)(void);
	void (*exempt)(void);
};

const struct preload_memory *gcr_test_memory(void);

#endif
