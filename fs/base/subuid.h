/* SPDX-License-Identifier: MIT */
/*
 * Owners of subordinate user ids: with a range in subuid(5) a user has thousands of ids. The file
 * is read at the start and again when it has changed. Its contents are not trusted: invalid lines
 * are skipped, and excess lines ignored.
 */
#ifndef GCR_FS_BASE_SUBUID_H
#define GCR_FS_BASE_SUBUID_H

#include <stdbool.h>
#include <sys/types.h>

#define GCR_SUBUID_RANGES_MAX 4096

struct gcr_subuids; /* not thread-safe */

/*
 * @path: as /etc/subuid; @users_path: as /etc/passwd, where names are looked up without a network
 * service. Both are copied. A missing file, or one that users other than root and ours may write
 * to, counts as empty. -ENOMEM.
 */
int gcr_subuids_create(const char *path, const char *users_path, struct gcr_subuids **ret_subuids);
void gcr_subuids_destroy(struct gcr_subuids *subuids); /* NULL is allowed */

/*
 * The user to whom @uid belongs, or @uid itself. The ids of a range whose user is unknown or root
 * belong to the first id of the range. Root is always root.
 */
uid_t gcr_subuids_owner(struct gcr_subuids *subuids, uid_t uid);
/*
 * The same, but the ids of a range whose user is unknown or root belong to themselves: they may be
 * of several users.
 */
uid_t gcr_subuids_known_owner(struct gcr_subuids *subuids, uid_t uid);

/* Reads the file again if it has changed; checks at most once a second unless @now. */
void gcr_subuids_refresh(struct gcr_subuids *subuids, bool now);

#endif
