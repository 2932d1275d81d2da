/* SPDX-License-Identifier: MIT */
/* The text of the root's `metrics` file, and the table of its metric families. */
#ifndef GCR_FS_MOUNT_METRICS_H
#define GCR_FS_MOUNT_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "fs/base/state.h"

struct gcr_daemon;

/* Writes the metrics as OpenMetrics 1.0. */
void gcr_metrics_render(struct gcr_daemon *daemon, FILE *stream);

/* Name of a row of the table, for the test of the manual; NULL: there is no such row. */
const char *gcr_metrics_family(size_t index, const char **ret_labels, bool *ret_is_counter);

#endif
