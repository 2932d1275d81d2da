/* SPDX-License-Identifier: MIT */
/* What can be seen in /proc that forbids to freeze a HIP process. */
#ifndef GCR_ROCM_PREFLIGHT_H
#define GCR_ROCM_PREFLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "backend/look.h"
#include "lib/error.h"

/*
 * The preflight of struct gcr_backend; no version of the driver is refused. 0: nothing was seen.
 * Errors, with words: -EOPNOTSUPP something stands in the way, -ESRCH the process ended, -EACCES
 * /proc says no.
 */
int gcr_hip_preflight(pid_t pid, const char *device_directory, const char *driver_version,
		      struct gcr_error *error);

extern const struct gcr_obstacle gcr_hip_obstacles[];
extern const size_t gcr_hip_obstacles_count;

#endif
