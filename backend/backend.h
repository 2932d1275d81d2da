/* SPDX-License-Identifier: MIT */
/*
 * The one interface between the daemon (fs/) and a GPU vendor. What the daemon needs to know
 * without a GPU library stands in struct gcr_backend: which open files make a process a GPU
 * process, what can be seen to stand in the way of a freeze, which helper programs to run.
 * Everything that needs the vendor's library is asked of those helpers in the vendor-neutral
 * messages of lib/protocol.h.
 */
#ifndef GCR_BACKEND_H
#define GCR_BACKEND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

struct gcr_backend {
	const char *name; /* "cuda" */

	/* helper programs, names below libexecdir */
	const char *control_program;
	const char *worker_program;

	/*
	 * The file, below the device directory ("/dev", or the simulator's), that a process holds
	 * open and mapped when it uses a GPU for computing: opening it is watched, those are
	 * listed.
	 */
	const char *compute_device;

	/* Printed at start when compute_device is absent. */
	const char *no_device_words;

	/*
	 * What can be seen from outside @pid (in /proc) that forbids a freeze: -EOPNOTSUPP with
	 * the reason and what to do in @error. @device_directory as above; @driver_version as the
	 * helper's hello has it. Other errors: -ESRCH the process ended, -EACCES /proc says no.
	 */
	int (*preflight)(pid_t pid, const char *device_directory, const char *driver_version,
			 struct gcr_error *error);
};

extern const struct gcr_backend gcr_backend_cuda;

#endif
