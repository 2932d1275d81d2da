/* SPDX-License-Identifier: MIT */
/* The guard's part in the moment at which a restored tree begins to run. */
#ifndef GCR_CRIU_GLUE_GUARD_RESUME_H
#define GCR_CRIU_GLUE_GUARD_RESUME_H

#include <sys/ptrace.h>

/*
 * Called before each ptrace(2) of CRIU; returns the call's last argument. At a restore the tree is
 * killed when CRIU ends, and CRIU ends if the daemon does not allow that it lets go of the tree.
 */
void *gcr_guard_resume(enum __ptrace_request request, void *data);

#endif
