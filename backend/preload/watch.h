/* SPDX-License-Identifier: MIT */
/*
 * Whether the program's threads are stopped, as the daemon has them for a moment: by what the
 * kernel says, since a helper of the daemon's that is killed lets go of them without a word.
 */
#ifndef GCR_PRELOAD_WATCH_H
#define GCR_PRELOAD_WATCH_H

#include <stdbool.h>

#include "backend/preload/descriptor.h"
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

/* -errno with words. */
int gcr_watch_begin(struct gcr_watch *ret_watch, struct gcr_error *error);
void gcr_watch_end(struct gcr_watch *watch);

/*
 * Are all threads stopped but this one, our others and the driver's? What cannot be known: no.
 * Allocates nothing and takes no lock.
 */
bool gcr_watch_stopped(const struct gcr_watch *watch);

#endif
