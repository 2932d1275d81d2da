/* SPDX-License-Identifier: MIT */
/* A number for each of a few users. The caller's lock, if there is one, guards the list. */
#ifndef GCR_FS_BASE_USER_COUNTS_H
#define GCR_FS_BASE_USER_COUNTS_H

#include <stddef.h>
#include <sys/types.h>

/* An empty list is all zeros. */
struct gcr_user_counts {
	struct gcr_user_count {
		uid_t uid;
		size_t count;
	} * list;
	size_t users;
};

/*
 * Returns a pointer to the user's number, valid until the next call for this list; a number that is
 * missing is added as 0. NULL: no memory.
 */
size_t *gcr_user_counts_get(struct gcr_user_counts *counts, uid_t uid);

/* Subtracts from the user's number, if there is one, and drops a user whose number is 0. */
void gcr_user_counts_release(struct gcr_user_counts *counts, uid_t uid, size_t amount);

#endif
