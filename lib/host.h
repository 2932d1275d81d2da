/* SPDX-License-Identifier: MIT */
/*
 * What of a machine decides whether a process that was dumped elsewhere can go on here. CRIU
 * compares none of this unless it is asked to (it can compare processors), and records no kernel
 * release.
 */
#ifndef GCR_LIB_HOST_H
#define GCR_LIB_HOST_H

#include "lib/error.h"

#define GCR_HOST_MACHINE_BYTES	 65 /* as struct utsname has them */
#define GCR_HOST_KERNEL_BYTES	 65
#define GCR_HOST_CPU_FLAGS_BYTES 8192 /* several times what there are */

struct gcr_host {
	char machine[GCR_HOST_MACHINE_BYTES]; /* "x86_64" */
	char kernel[GCR_HOST_KERNEL_BYTES];   /* the release: "6.12.43+deb13-amd64" */
	/* The words of /proc/cpuinfo's first "flags" or "Features", one space between two. */
	char cpu_flags[GCR_HOST_CPU_FLAGS_BYTES];
	unsigned int criu_version; /* major * 10000 + minor * 100 + sublevel */
};

/*
 * This machine; criu_version is the caller's to fill in, and becomes 0. @cpuinfo: the file to read,
 * NULL for /proc/cpuinfo. A machine whose kernel tells no flags has none. Errors, with words:
 * -ENOMEM, -EPROTO more than there is room for, and what reading gives.
 */
int gcr_host_read(const char *cpuinfo, struct gcr_host *ret_host, struct gcr_error *error);

/*
 * May what was dumped on @then be restored on @now? 0, or -EOPNOTSUPP with words that name the
 * first difference that forbids it:
 * - another machine;
 * - a flag of the processor that is no longer there: the program and its libraries chose their
 *   instructions when they started. Flags that tell only the kernel something (power, mitigations,
 *   virtualization) are not compared.
 * - a kernel whose major.minor is older: CRIU would try, and its images can be restored as long as
 *   the kernel has what CRIU itself needs; but the program may have found out at its start which
 *   system calls there are, and fail only later. A newer kernel runs it: that is what CRIU is used
 *   for to change kernels.
 * - an older CRIU: a newer one reads the images of all before it, not the other way round.
 */
int gcr_host_check(const struct gcr_host *then, const struct gcr_host *now,
		   struct gcr_error *error);

/* Major and minor of a kernel's release. -EINVAL: it has none. */
int gcr_host_kernel_parse(const char *release, unsigned int *ret_major, unsigned int *ret_minor);

#endif
