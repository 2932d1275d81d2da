/* SPDX-License-Identifier: MIT */
/* Have other threads of the program run meanwhile? Who did not, has written nothing. */
#ifndef GCR_PRELOAD_QUIET_H
#define GCR_PRELOAD_QUIET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct gcr_quiet {
	struct gcr_quiet_thread *threads;
	size_t count;
	bool is_quiet; /* none was running */
};

/* Look at all threads but this one and those of the driver. Cannot be told: not quiet. */
void gcr_quiet_look(struct gcr_quiet *ret_quiet);

/* Has none of them run since @before, nor is running, nor any come? */
bool gcr_quiet_since(const struct gcr_quiet *before);

/*
 * The driver's threads touch nothing of the program's now, and ours know what they do. @stat_text
 * is what /proc/PID/task/TID/stat says.
 */
bool gcr_quiet_ignores(const char *stat_text, pid_t tid);

void gcr_quiet_free(struct gcr_quiet *quiet);

#endif
