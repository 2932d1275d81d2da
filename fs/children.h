/* SPDX-License-Identifier: MIT */
/* Who else holds the descriptors that keep a program's VRAM. */
#ifndef GCR_FS_CHILDREN_H
#define GCR_FS_CHILDREN_H

#include <sys/types.h>

#include "lib/error.h"

/*
 * Descriptors of VRAM are close-on-exec and closed in a child of fork(3). A child made by the bare
 * system call still has them, and its memory would stay in use however often the program closes
 * its own. -EOPNOTSUPP names such a descendant of @pid; 0: there is none, or it cannot be seen.
 * @memory_link: how their links in /proc/PID/fd begin.
 */
int gcr_children_check(pid_t pid, const char *memory_link, struct gcr_error *error);

#endif
