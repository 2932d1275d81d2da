/* SPDX-License-Identifier: MIT */
/* Counters of ended verbs and their results, shown in the root's `metrics` file. Thread-safe. */
#ifndef GCR_FS_BASE_COUNTERS_H
#define GCR_FS_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/base/state.h"

#define GCR_COUNTERS_RESULTS 22 /* success, known errors, and one for all others */

struct gcr_counters {
	int64_t started_usec; /* real time: start of counting */
	struct {
		_Atomic uint64_t ended[GCR_COUNTERS_RESULTS];
		_Atomic uint64_t usec; /* of successful verbs */
		_Atomic uint64_t bytes;
	} verbs[GCR_VERBS_COUNT];
	_Atomic uint64_t refusals[GCR_COUNTERS_RESULTS];
};

/* Creates counters, all 0. -ENOMEM. */
int gcr_counters_create(struct gcr_counters **ret_counters);
void gcr_counters_destroy(struct gcr_counters *counters);

/* Counts the end of one verb for one process with @error_number (0 or positive errno). */
void gcr_counters_verb(struct gcr_counters *counters, enum gcr_verb verb, int error_number,
		       int64_t duration_usec, uint64_t bytes);

/* Counts a write to a ctl file that was refused with @error_number, before any verb began. */
void gcr_counters_refusal(struct gcr_counters *counters, int error_number);

/* Name of a result: "ok", an error's name, or "other"; NULL: there is no such result. */
const char *gcr_counters_result(size_t index);

#endif
