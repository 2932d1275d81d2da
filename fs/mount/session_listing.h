/* SPDX-License-Identifier: MIT */
/* The names in an open directory, as they were when the directory was opened. */
#ifndef GCR_FS_MOUNT_SESSION_LISTING_H
#define GCR_FS_MOUNT_SESSION_LISTING_H

#include "fs/mount/tree.h"

struct gcr_listing;

/*
 * Lists the directory @node, and charges the memory of the listing to user @uid as text that an
 * open file holds. Errors are those of gcr_tree_list(), of the quota, and -ENOMEM.
 */
int gcr_listing_create(struct gcr_daemon *daemon, const struct fuse_ctx *caller, uid_t uid,
		       fuse_ino_t node, struct gcr_listing **ret_listing);
/* Does nothing with NULL. */
void gcr_listing_destroy(struct gcr_listing *listing);

/*
 * Answers a readdir request: with as many entries from index @offset on as @size bytes have room
 * for.
 */
void gcr_listing_reply(const struct gcr_listing *listing, fuse_req_t request, size_t size,
		       off_t offset);

#endif
