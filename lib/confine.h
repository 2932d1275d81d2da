/* SPDX-License-Identifier: MIT */
/*
 * A helper program gives up the rights that it does not need, before it reads anything that
 * somebody else could have written. An attacker who takes over a helper (by way of the driver, say)
 * then has these rights and not all of root's.
 */
#ifndef GCR_LIB_CONFINE_H
#define GCR_LIB_CONFINE_H

#include "lib/error.h"

/* The kind of helper; each has a line in the table of lib/confine.c. */
enum gcr_confine_role {
	GCR_CONFINE_CONTROL, /* drives the driver's checkpoint of other processes */
	GCR_CONFINE_WORKER,  /* moves bytes between a GPU and files of the store */
	GCR_CONFINE_HALT,    /* stops the threads of a program with ptrace(2) */
	GCR_CONFINE_LOOK,    /* reads what /proc shows of other processes, and their memory */
	GCR_CONFINE_RECEIVE, /* looks at descriptors that others have sent */
	GCR_CONFINE_DRAIN,   /* copies from one descriptor to another */
	GCR_CONFINE_EMPTY,   /* cuts files of root's to nothing */
};

/*
 * Confine the calling process for ever, with all threads and children that it will have:
 *  - no_new_privs: no set-user-ID program that it could start gains rights;
 *  - all capability sets, the bounding set too, are cut down to those of @role;
 *  - system calls that are not on the list of @role fail with EPERM (with libseccomp only).
 * Call it while the process has one thread. A kernel without seccomp filters, a build without
 * libseccomp and one with a sanitizer leave the last step out.
 * 0, or -errno with a message in @error (may be NULL): the process must not go on.
 */
int gcr_confine(enum gcr_confine_role role, struct gcr_error *error);

#endif
