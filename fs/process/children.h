/* SPDX-License-Identifier: MIT */
/* Who else holds the descriptors that keep a program's VRAM. */
#ifndef GCR_FS_PROCESS_CHILDREN_H
#define GCR_FS_PROCESS_CHILDREN_H

#include <sys/types.h>

#include "lib/error.h"

/*
 * Descriptors of VRAM are close-on-exec and closed in a child of fork(3). A child made by the bare
 * system call still has them, and its memory would stay in use however often the program closes
 * its own. So it would with mappings that a child has inherited; one that uses the GPU by itself
 * has other memory mapped, which lies elsewhere in the device file. -EOPNOTSUPP names such a
 * descendant of @pid; 0: there is none, or it cannot be seen. -EFBIG: see gcr_proc_links().
 * @memory_links: how the descriptors' links in /proc/PID/fd begin, up to a NULL. @memory_device:
 * how the path of the device file begins, NULL: there is no memory in mappings.
 */
int gcr_children_check(pid_t pid, const char *const *memory_links, const char *memory_device,
		       struct gcr_error *error);

#endif
