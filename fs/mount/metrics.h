/* SPDX-License-Identifier: MIT */
/* Counters behind the root's `metrics` file, and the table of what stands in it. */
#ifndef GCR_FS_MOUNT_METRICS_H
#define GCR_FS_MOUNT_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "fs/base/state.h"

struct gcr_daemon;
struct gcr_metrics;

int gcr_metrics_create(struct gcr_metrics **ret_metrics);
void gcr_metrics_destroy(struct gcr_metrics *metrics);

/* One verb for one process has ended with @error_number (0 or positive errno). */
void gcr_metrics_verb(struct gcr_metrics *metrics, enum gcr_verb verb, int error_number,
		      int64_t duration_usec, uint64_t bytes);

/* A write to a ctl file was refused with @error_number: no verb has begun. */
void gcr_metrics_refusal(struct gcr_metrics *metrics, int error_number);

/* OpenMetrics 1.0. */
void gcr_metrics_render(struct gcr_daemon *daemon, FILE *stream);

/* Rows of the tables, for the test of the manual: names; NULL: there is no such row. */
const char *gcr_metrics_family(size_t index, const char **ret_labels, bool *ret_is_counter);
const char *gcr_metrics_result(size_t index);

#endif
