/* SPDX-License-Identifier: MIT */
/* How many verbs have ended, and how; thread-safe. The root's `metrics` file shows them. */
#ifndef GCR_FS_BASE_COUNTERS_H
#define GCR_FS_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/base/state.h"

#define GCR_COUNTERS_RESULTS 22 /* success, known errors, all others */

struct gcr_counters {
	int64_t started_usec; /* real time: since when it counts */
	struct {
		_Atomic uint64_t ended[GCR_COUNTERS_RESULTS];
		_Atomic uint64_t usec; /* of those that succeeded */
		_Atomic uint64_t bytes;
	} verbs[GCR_VERBS_COUNT];
	_Atomic uint64_t refusals[GCR_COUNTERS_RESULTS];
};

int gcr_counters_create(struct gcr_counters **ret_counters);
void gcr_counters_destroy(struct gcr_counters *counters);

/* One verb for one process has ended with @error_number (0 or positive errno). */
void gcr_counters_verb(struct gcr_counters *counters, enum gcr_verb verb, int error_number,
		       int64_t duration_usec, uint64_t bytes);

/* A write to a ctl file was refused with @error_number: no verb has begun. */
void gcr_counters_refusal(struct gcr_counters *counters, int error_number);

/* "ok", the name of an error, or "other"; NULL: there is no such result. */
const char *gcr_counters_result(size_t index);

#endif
