/* SPDX-License-Identifier: MIT */
/*
 * Like preload_memory.h, for managed memory: the functions that the agent calls, so that a test can
 * take the agent's part.
 */
#ifndef GPUCR_TEST_PRELOAD_MANAGED_H
#define GPUCR_TEST_PRELOAD_MANAGED_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/error.h"
#include "lib/protocol.h"

struct preload_managed {
	ssize_t (*describe)(struct gcr_extent *extents, size_t room);
	int (*files)(size_t first, size_t count, int *fds, struct gcr_error *error);
	void (*close_files)(void);
	int (*save)(struct gcr_error *error);
	int (*hold)(struct gcr_error *error);
	bool (*is_held)(void);
	void (*cancel)(void);
	int (*out)(struct gcr_error *error);
	int (*prepare)(struct gcr_error *error);
	void (*unprepare)(void);
	int (*in)(struct gcr_error *error);
	void (*exempt_thread)(void);
};

const struct preload_managed *gcr_test_managed(void);

#endif
