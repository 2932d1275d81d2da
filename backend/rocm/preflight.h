/* SPDX-License-Identifier: MIT */
/* Obstacles visible in /proc that forbid freezing a HIP process. */
#ifndef GCR_ROCM_PREFLIGHT_H
#define GCR_ROCM_PREFLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "backend/look.h"
#include "lib/error.h"

/*
 * The preflight of struct gcr_backend; no driver version is refused. Returns 0 if no obstacle was
 * found. Errors, with a message: -EOPNOTSUPP an obstacle, -ESRCH the process has ended, -EACCES
 * access to /proc was denied.
 */
int gcr_hip_preflight(pid_t pid, const char *device_directory, const char *driver_version,
		      struct gcr_error *error);

extern const struct gcr_obstacle gcr_hip_obstacles[];
extern const size_t gcr_hip_obstacles_count;

#endif
