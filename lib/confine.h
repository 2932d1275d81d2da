/* SPDX-License-Identifier: MIT */
/*
 * A helper program drops the rights that it does not need before it reads any input that another
 * user could have written. An attacker who takes over a helper (through the driver, for example)
 * then has these few rights and not all of root's.
 */
#ifndef GCR_LIB_CONFINE_H
#define GCR_LIB_CONFINE_H

#include "lib/error.h"

/* The kind of helper; each has a line in the table of lib/confine.c. */
enum gcr_confine_role {
	GCR_CONFINE_CONTROL, /* drives the driver's checkpoint of other processes */
	GCR_CONFINE_WORKER,  /* copies bytes between a GPU and files of the store */
	GCR_CONFINE_HALT,    /* stops the threads of a program with ptrace(2) */
	GCR_CONFINE_LOOK,    /* reads /proc files and memory of other processes */
	GCR_CONFINE_RECEIVE, /* inspects descriptors that other processes have sent */
	GCR_CONFINE_DRAIN,   /* copies from one descriptor to another */
	GCR_CONFINE_EMPTY,   /* truncates root's files to length 0 */
};

/*
 * Confines the calling process permanently, with all threads and children that it will have:
 *  - no_new_privs: no set-user-ID program that it starts can gain rights;
 *  - all capability sets, the bounding set too, are reduced to those of @role;
 *  - system calls that are not on the list of @role fail with EPERM (with libseccomp only).
 *
 * Call it while the process has one thread. The last step is left out if the kernel has no seccomp
 * filters, and in builds without libseccomp or with a sanitizer. Returns 0, or -errno with a
 * message in @error (may be NULL): the process must then not continue.
 */
int gcr_confine(enum gcr_confine_role role, struct gcr_error *error);

#endif
