/* SPDX-License-Identifier: MIT */
/* Counters behind the root's `metrics` file. */
#ifndef GCR_FS_METRICS_H
#define GCR_FS_METRICS_H

#include <stdint.h>
#include <stdio.h>

#include "fs/state.h"

struct gcr_daemon;
struct gcr_metrics;

int gcr_metrics_create(struct gcr_metrics **ret_metrics);
void gcr_metrics_destroy(struct gcr_metrics *metrics);

/* One verb for one process has ended with @error_number (0 or positive errno). */
void gcr_metrics_verb(struct gcr_metrics *metrics, enum gcr_verb verb, int error_number,
		      int64_t duration_usec, uint64_t bytes);

/* Prometheus' text exposition format, version 0.0.4. */
void gcr_metrics_render(struct gcr_daemon *daemon, FILE *stream);

#endif
