/* SPDX-License-Identifier: MIT */
/* The place of a process in the cgroup trees (v2, v1 or both), and the limits that apply there. */
#ifndef GCR_LIB_PROC_CGROUP_H
#define GCR_LIB_PROC_CGROUP_H

#include <stdint.h>
#include <sys/types.h>

/*
 * The process's cgroup path as status shows it: the v2 path; the v1 memory controller's if there is
 * no v2 path, or if that is the root and memory is controlled by v1. The caller frees *ret_path.
 * -ENOENT: the process has neither; errors of gcr_proc_read(), -ENOMEM.
 */
int gcr_proc_cgroup(pid_t pid, char **ret_path);

/*
 * Bytes that may still be allocated for @pid: the least of limit - current over its memory cgroup
 * and all ancestors (v2 memory.max, v1 memory.limit_in_bytes), and MemAvailable. *ret_what names
 * the tightest limit ("MemAvailable" or the cgroup's path); the caller frees it. Errors of
 * gcr_proc_read() and of reading the files, -EPROTO, -ENOMEM.
 */
int gcr_proc_memory_room(pid_t pid, uint64_t *ret_bytes, char **ret_what);

/* The mount point of the v2 tree, which the caller frees. -ENOENT: not mounted. */
int gcr_proc_cgroup_mount(char **ret_point);

/*
 * Is the process's cgroup or an ancestor frozen, or being frozen (v2 cgroup.freeze and
 * cgroup.events, v1 freezer.state)? 1, 0, -errno.
 */
int gcr_proc_cgroup_frozen(pid_t pid);

#endif
