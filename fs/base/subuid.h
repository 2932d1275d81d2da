/* SPDX-License-Identifier: MIT */
/*
 * Whose user ids are: with a range of subordinate ids (subuid(5)) a user has thousands, which are
 * all his. The file is read at the start and again when it has changed. What is in it is not
 * trusted: lines that are none are left out, and too many are cut off.
 */
#ifndef GCR_FS_BASE_SUBUID_H
#define GCR_FS_BASE_SUBUID_H

#include <stdbool.h>
#include <sys/types.h>

#define GCR_SUBUID_RANGES_MAX 4096

struct gcr_subuids; /* not thread-safe */

/*
 * @path: as /etc/subuid; @users_path: as /etc/passwd, where names are looked up without asking
 * anybody over a network. Both are copied. A file that is not there, or that others than root and
 * us may write to, has no ranges. -ENOMEM.
 */
int gcr_subuids_create(const char *path, const char *users_path, struct gcr_subuids **ret_subuids);
void gcr_subuids_destroy(struct gcr_subuids *subuids); /* NULL is allowed */

/*
 * The user to whom @uid belongs, or @uid itself. The ids of a range whose user is not known, or is
 * root, belong to the first of them. Root is always root.
 */
uid_t gcr_subuids_owner(struct gcr_subuids *subuids, uid_t uid);

/* Read the file again if it is another, at most once a second unless @now. */
void gcr_subuids_refresh(struct gcr_subuids *subuids, bool now);

#endif
