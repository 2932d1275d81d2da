/* SPDX-License-Identifier: MIT */
/*
 * Writes that were refused, by user. What a user has written wrong is told to that user, by the
 * root's `error`, and does not stand in the history that everybody reads. In the daemon's log there
 * is only so much of it.
 */
#ifndef GCR_FS_BASE_REFUSALS_H
#define GCR_FS_BASE_REFUSALS_H

#include <stdio.h>
#include <sys/types.h>

#include "lib/error.h"

struct gcr_refusals;

/* @trusted: the user of the daemon, who is told everything and never forgotten. -ENOMEM */
int gcr_refusals_create(uid_t trusted, struct gcr_refusals **ret_refusals);
void gcr_refusals_destroy(struct gcr_refusals *refusals); /* NULL is allowed */

/* The last write of this user to the root's ctl: refused with @error, number 0: accepted. */
void gcr_refusals_note(struct gcr_refusals *refusals, uid_t uid, const struct gcr_error *error);
/* The text of `error` for this user. */
void gcr_refusals_render(struct gcr_refusals *refusals, uid_t uid, FILE *stream);

/*
 * A warning into the log that this user has brought about. Of one user ten are written at once, and
 * then one a second; of all together a hundred, and five a second. The next that is written tells
 * how many were not.
 */
void gcr_refusals_log(struct gcr_refusals *refusals, uid_t uid, pid_t pid, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

#endif
