/* SPDX-License-Identifier: MIT */
/*
 * Obstacles visible in /proc that forbid freezing a CUDA process: things that the driver's
 * checkpoint accepts and then loses, waits for without end, or crashes on.
 */
#ifndef GCR_CUDA_PREFLIGHT_H
#define GCR_CUDA_PREFLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "backend/look.h"
#include "lib/error.h"

/*
 * The preflight of struct gcr_backend. @device_directory stands for /dev in the names of NVIDIA's
 * own device files; other files are always looked up in /dev. @driver_version ("580.159.04") may be
 * "" or NULL: then it is not checked. Returns 0 if there is no obstacle. Errors, with a message:
 * -EOPNOTSUPP there is an obstacle, -ESRCH the process has ended, -EACCES /proc cannot be read.
 */
int gcr_cuda_preflight(pid_t pid, const char *device_directory, const char *driver_version,
		       struct gcr_error *error);

extern const struct gcr_obstacle gcr_cuda_obstacles[];
extern const size_t gcr_cuda_obstacles_count;

/* Returns the row that matches an open or mapped file, or NULL. */
const struct gcr_obstacle *gcr_cuda_obstacle_find(const char *path, bool is_mapping,
						  const char *device_directory);

#endif
