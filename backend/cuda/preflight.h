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

#include "lib/error.h"

/*
 * The preflight of struct gcr_backend. @device_directory stands for /dev in the names of NVIDIA's
 * own device files, others are looked for in /dev. @driver_version ("580.159.04") may be "" or
 * NULL: then it is not judged. 0: nothing was seen. Errors, with words:
 * -EOPNOTSUPP something stands in the way, -ESRCH the process ended, -EACCES /proc says no.
 */
int gcr_cuda_preflight(pid_t pid, const char *device_directory, const char *driver_version,
		       struct gcr_error *error);

enum gcr_cuda_obstacle_kind {
	GCR_CUDA_OPEN,	 /* an open or mapped file's name begins with `prefix` */
	GCR_CUDA_DEVICE, /* likewise, `prefix` being below the device directory */
	GCR_CUDA_MAPPED, /* the last part of a mapped file's name begins with `prefix` */
};

/* One row of what is looked for. */
struct gcr_cuda_obstacle {
	enum gcr_cuda_obstacle_kind kind;
	const char *prefix;
	unsigned int first_number; /* not 0: a number that is at least this has to follow */
	const char *why;	   /* a clause: what would be lost */
	const char *what_to_do;
};

extern const struct gcr_cuda_obstacle gcr_cuda_obstacles[];
extern const size_t gcr_cuda_obstacles_count;

/* The row that an open file, or a mapped one, falls under; NULL if there is none. */
const struct gcr_cuda_obstacle *gcr_cuda_obstacle_find(const char *path, bool is_mapping,
						       const char *device_directory);

#endif
