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
 * Records the result of a write to the root's ctl: @error, whose number is 0 if the write was
 * accepted. @owner is the user who is charged for the writer (gcr_quota_owner()); @reader is the id
 * that may read the error (gcr_quota_known_owner()). Each owner has one error, that of the last
 * reader; an accepted write clears only the error of the same reader.
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
