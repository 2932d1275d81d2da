/* SPDX-License-Identifier: MIT */
/*
 * Looking at one process for the devices that it holds: the part of the scan that the process can
 * block (lib/proc_source.h), so a helper does it.
 */
#ifndef GCR_FS_HELPER_SCAN_LOOK_H
#define GCR_FS_HELPER_SCAN_LOOK_H

#include <stdint.h>
#include <sys/types.h>

#define GCR_SCAN_DEVICES_MAX 4
#define GCR_SCAN_PATH_BYTES  256
#define GCR_SCAN_MAPPED_MAX  4

/* The devices to look for, in the form that is sent to the helper. */
struct gcr_scan_wanted {
	struct gcr_scan_wanted_device {
		char path[GCR_SCAN_PATH_BYTES]; /* "": unused */
		/* Files in the same directory that count as mapped; none: only the file itself. */
		char mapped[GCR_SCAN_MAPPED_MAX][32];
	} devices[GCR_SCAN_DEVICES_MAX];
};

/*
 * Which devices does @pid have open and mapped? Bit N of *@ret_devices stands for devices[N].
 * *@ret_start_ticks is set only if there is any. -ESRCH: the process has no program: a kernel
 * thread, a zombie, or about to end. -EACCES, -ENOMEM.
 */
int gcr_scan_look(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		  uint64_t *ret_start_ticks);

/*
 * As gcr_scan_look(), until @until_usec, a time of gcr_clock_usec(). -ETIMEDOUT: the process has
 * too many descriptors to finish in time.
 */
int gcr_scan_look_until(pid_t pid, const struct gcr_scan_wanted *wanted, int64_t until_usec,
			unsigned int *ret_devices, uint64_t *ret_start_ticks);

/* The result of a look at one of several processes. */
struct gcr_scan_found {
	int32_t error;	  /* 0, or the errno of gcr_scan_look_until() */
	uint32_t devices; /* if the process has any */
	uint64_t start_ticks;
};

#endif
