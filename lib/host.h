/* SPDX-License-Identifier: MIT */
/*
 * The properties of a machine that decide whether a process dumped elsewhere can run here. CRIU
 * compares none of them unless it is asked to (it can compare processors), and does not record the
 * kernel release.
 */
#ifndef GCR_LIB_HOST_H
#define GCR_LIB_HOST_H

#include "lib/error.h"

#define GCR_HOST_MACHINE_BYTES	 65 /* the sizes of struct utsname */
#define GCR_HOST_KERNEL_BYTES	 65
#define GCR_HOST_CPU_FLAGS_BYTES 8192 /* several times the size of today's flags */

struct gcr_host {
	char machine[GCR_HOST_MACHINE_BYTES]; /* "x86_64" */
	char kernel[GCR_HOST_KERNEL_BYTES];   /* the release: "6.12.43+deb13-amd64" */
	/* The first "flags" or "Features" line of /proc/cpuinfo, separated by single spaces. */
	char cpu_flags[GCR_HOST_CPU_FLAGS_BYTES];
	unsigned int criu_version; /* major * 10000 + minor * 100 + sublevel */
};

/*
 * Describes this machine; criu_version becomes 0 and is for the caller to fill in. @cpuinfo: the
 * file to read, NULL for /proc/cpuinfo. If the kernel lists no flags, cpu_flags is empty. Errors,
 * with a message: -ENOMEM, -EPROTO the data does not fit, and errors of reading.
 */
int gcr_host_read(const char *cpuinfo, struct gcr_host *ret_host, struct gcr_error *error);

/*
 * May a process dumped on @then be restored on @now? 0, or -EOPNOTSUPP with a message that names
 * the first difference that forbids it:
 * - another machine;
 * - a processor flag that is missing now: the program and its libraries chose their instructions
 *   when they started. Flags that matter to the kernel only (power, mitigations, virtualization)
 *   are not compared.
 * - a kernel whose major.minor is older: CRIU would try, and the restore can succeed if the kernel
 *   has what CRIU itself needs; but the program may have detected the available system calls at
 *   its start, and fail only later. A newer kernel is fine: CRIU is used to change kernels.
 * - an older CRIU: a newer CRIU reads the images of all older ones, but not the reverse.
 */
int gcr_host_check(const struct gcr_host *then, const struct gcr_host *now,
		   struct gcr_error *error);

/* Parses major and minor of a kernel release. -EINVAL: it has none. */
int gcr_host_kernel_parse(const char *release, unsigned int *ret_major, unsigned int *ret_minor);

#endif
