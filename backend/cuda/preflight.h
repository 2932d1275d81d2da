/* SPDX-License-Identifier: MIT */
/*
 * What can be seen in /proc that forbids to freeze a CUDA process: things that the driver's
 * checkpoint accepts and then loses, waits for without end, or dies of.
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
 * own device files, others are looked for in /dev. @driver_version ("580.159.04") may be "" or
 * NULL: then it is not judged. 0: nothing was seen. Errors, with words:
 * -EOPNOTSUPP something stands in the way, -ESRCH the process ended, -EACCES /proc says no.
 */
int gcr_cuda_preflight(pid_t pid, const char *device_directory, const char *driver_version,
		       struct gcr_error *error);

extern const struct gcr_obstacle gcr_cuda_obstacles[];
extern const size_t gcr_cuda_obstacles_count;

/* The row that an open file, or a mapped one, falls under; NULL if there is none. */
const struct gcr_obstacle *gcr_cuda_obstacle_find(const char *path, bool is_mapping,
						  const char *device_directory);

#endif
