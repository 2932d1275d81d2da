/* SPDX-License-Identifier: MIT */
/*
 * The processes and places that the caller of a request can see; for requests that check many of
 * them. The caller's own data are determined once: the caller cannot change before the request is
 * answered.
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
	unsigned int levels; /* pid namespaces in which the caller has a pid; 0: unknown */
	bool is_namespace_known;
	int namespace_fd; /* the caller's pid namespace, if not ours; -1: none, or not opened */
};

/* Does not wait. @caller must stay valid. To be followed by gcr_sight_finish(). */
void gcr_sight_take(const struct fuse_ctx *caller, struct gcr_sight *ret_sight);
void gcr_sight_finish(struct gcr_sight *sight);

/*
 * The answers of gcr_tree_reaches() and gcr_tree_shows_place(). A helper looks at the process only
 * if both the caller and the process are outside our pid namespace. For one thread at a time.
 */
bool gcr_sight_reaches(struct gcr_sight *sight, pid_t pid);
bool gcr_sight_shows_place(struct gcr_sight *sight, struct gcr_place *place);

#endif
