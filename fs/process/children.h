/* SPDX-License-Identifier: MIT */
/*
 * Finds other processes that hold the descriptors or mappings that keep a program's VRAM allocated.
 */
#ifndef GCR_FS_PROCESS_CHILDREN_H
#define GCR_FS_PROCESS_CHILDREN_H

#include <sys/types.h>

#include "lib/error.h"

/*
 * Checks that no descendant of @pid keeps @pid's VRAM in use. Descriptors of VRAM are
 * close-on-exec, and are closed in a child of fork(3). A child made by the bare system call still
 * has them, and the memory would stay in use after the program has closed its own descriptors. The
 * same holds for mappings that a child has inherited; a child that uses the GPU by itself has other
 * memory mapped, at other offsets in the device file. @memory_links: prefixes of the descriptors'
 * links in /proc/PID/fd, ending with NULL. @memory_device: prefix of the device file's path; NULL:
 * mappings hold no memory. Returns 0 if there is no such descendant or none can be seen. Errors,
 * with a message: -EOPNOTSUPP there is such a descendant, -EFBIG see gcr_proc_links(), -ETIMEDOUT a
 * process could not be looked at in time, -ENOMEM.
 */
int gcr_children_check(pid_t pid, const char *const *memory_links, const char *memory_device,
		       struct gcr_error *error);

#endif
