/* SPDX-License-Identifier: MIT */
/*
 * One process, looked at for the devices that it holds: the part of the scan that the process can
 * keep waiting (lib/proc_source.h), and that a helper therefore does.
 */
#ifndef GCR_FS_HELPER_SCAN_LOOK_H
#define GCR_FS_HELPER_SCAN_LOOK_H

#include <stdint.h>
#include <sys/types.h>

#define GCR_SCAN_DEVICES_MAX 4
#define GCR_SCAN_PATH_BYTES  256
#define GCR_SCAN_MAPPED_MAX  4

/* As it is sent to the helper. */
struct gcr_scan_wanted {
	struct gcr_scan_wanted_device {
		char path[GCR_SCAN_PATH_BYTES]; /* "": there is none */
		/* Files in the same directory that count as mapped; none: that file alone. */
		char mapped[GCR_SCAN_MAPPED_MAX][32];
	} devices[GCR_SCAN_DEVICES_MAX];
};

/*
 * Which devices does @pid hold open and have mapped? Bit N of *@ret_devices is of devices[N].
 * *@ret_start_ticks is set only if there is any. -ESRCH: it has no program: a kernel thread, a
 * zombie, or about to end. -EACCES, -ENOMEM.
 */
int gcr_scan_look(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		  uint64_t *ret_start_ticks);

/* The same until that time of gcr_clock_usec(). -ETIMEDOUT: it has too many descriptors for that.
 */
int gcr_scan_look_until(pid_t pid, const struct gcr_scan_wanted *wanted, int64_t until_usec,
			unsigned int *ret_devices, uint64_t *ret_start_ticks);

/* What a look at one of several processes has found. */
struct gcr_scan_found {
	int32_t error;	  /* as above: 0, or an errno */
	uint32_t devices; /* of a process that has any */
	uint64_t start_ticks;
};

#endif
