/* SPDX-License-Identifier: MIT */
/*
 * Checks whether the program's threads are still stopped, as the daemon has requested for a short
 * time. Asks the kernel, since a helper of the daemon's that is killed releases the threads without
 * notice.
 */
#ifndef GCR_PRELOAD_WATCH_H
#define GCR_PRELOAD_WATCH_H

#include <stdbool.h>

#include "backend/preload/base/descriptor.h"
#include "lib/error.h"
#include "lib/thread_name.h"

struct gcr_watch {
	struct gcr_descriptor tasks; /* /proc/self/task */
	char program[GCR_THREAD_NAME_ROOM];
};

#define GCR_WATCH_NONE               \
	{                            \
		.tasks = {.fd = -1 } \
	}

/* Returns -errno with a message. */
int gcr_watch_begin(struct gcr_watch *ret_watch, struct gcr_error *error);
void gcr_watch_end(struct gcr_watch *watch);

/*
 * Are all threads stopped except this one, the library's others and the driver's? False if unknown.
 * Allocates nothing and takes no lock.
 */
bool gcr_watch_stopped(const struct gcr_watch *watch);

#endif
