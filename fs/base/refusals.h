/* SPDX-License-Identifier: MIT */
/*
 * Refused writes, by user. The error of a user's write is shown to that user only, in the root's
 * `error`, not in the event history that all users read. The number of such messages in the
 * daemon's log is limited.
 */
#ifndef GCR_FS_BASE_REFUSALS_H
#define GCR_FS_BASE_REFUSALS_H

#include <stdio.h>
#include <sys/types.h>

#include "lib/error.h"

struct gcr_refusals;

/*
 * @trusted: the daemon's user, whose log messages are not limited and whose entry is never reused.
 * -ENOMEM.
 */
int gcr_refusals_create(uid_t trusted, struct gcr_refusals **ret_refusals);
void gcr_refusals_destroy(struct gcr_refusals *refusals); /* NULL is allowed */

/*
 * Records the result of the last write to the root's ctl by @reader, one of the ids for which
 * @owner counts (gcr_quota_owner()): refused with @error; number 0: accepted. @reader is the id, or
 * that of several ids which may see each other's errors (gcr_quota_known_owner()). An owner has the
 * error of one reader at a time: the last one.
 */
void gcr_refusals_note(struct gcr_refusals *refusals, uid_t owner, uid_t reader,
		       const struct gcr_error *error);
/* Prints the text of `error` for @reader, an id of @owner. */
void gcr_refusals_render(struct gcr_refusals *refusals, uid_t owner, uid_t reader, FILE *stream);

/*
 * Logs a warning caused by this user, within limits: ten messages of a user at once, then one a
 * second; a hundred of all users together, then five a second. The next message that is written is
 * preceded by the number of suppressed ones.
 */
void gcr_refusals_log(struct gcr_refusals *refusals, uid_t uid, pid_t pid, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

#endif
