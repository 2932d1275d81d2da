/* SPDX-License-Identifier: MIT */
/*
 * What the caller of a request sees of processes and places, for requests that ask this of many.
 * What is the caller's own is found out once: the caller cannot change before it is answered.
 */
#ifndef GCR_FS_MOUNT_SIGHT_H
#define GCR_FS_MOUNT_SIGHT_H

#include <stdbool.h>
#include <sys/types.h>

struct fuse_ctx;
struct gcr_place;

struct gcr_sight {
	const struct fuse_ctx *caller;
	bool is_local;	     /* as gcr_tree_is_local() */
	unsigned int levels; /* pid namespaces in which the caller has a number; 0: unknown */
	bool is_namespace_known;
	int namespace_fd; /* the caller's, where that is another than ours; -1: none, or not known
			   */
};

/* Does not wait. @caller has to stay; gcr_sight_finish() has to follow. */
void gcr_sight_take(const struct fuse_ctx *caller, struct gcr_sight *ret_sight);
void gcr_sight_finish(struct gcr_sight *sight);

/*
 * The answers of gcr_tree_reaches() and gcr_tree_shows_place(). Only for a caller in another pid
 * namespace, and a process that is not in ours, a helper looks at the process. One thread at a
 * time.
 */
bool gcr_sight_reaches(struct gcr_sight *sight, pid_t pid);
bool gcr_sight_shows_place(struct gcr_sight *sight, struct gcr_place *place);

#endif
