/* SPDX-License-Identifier: MIT */
/*
 * Looking at other processes without waiting for them: helpers (gpucr-look) do it, and one that has
 * not answered in time is killed. Once started, it is the source of lib/procfs.h and of
 * lib/proc_file.h for all threads: their functions then take 2 s at most (smaps_rollup: 20 s), and
 * say -ETIMEDOUT of a process that kept its helper waiting, and -EBUSY, at once, while that process
 * is left alone (1 s, and up to 16 s when it is silent again).
 *
 * One owner's processes do not keep others' waiting: several helpers run at a time, four of them at
 * most look at processes of the same owner, two wait longer than a moment, and an owner with many
 * silent processes is not looked at until they have ended or answered. Some helpers are kept for
 * owners of whose processes none is looked at, and for root's. A helper that cannot be killed,
 * because its wait cannot be ended at all, is left behind and reaped when it ends; the number of
 * these is bounded, for each owner too: then memory is not looked at.
 */
#ifndef GCR_FS_HELPER_LOOKER_H
#define GCR_FS_HELPER_LOOKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/helper/scan_look.h"
#include "lib/error.h"

/*
 * Once in a program, while it has one thread or all others are in no look. @helper_directory: as
 * of struct gcr_helpers_config; copied. One helper is started and asked. With words: -EIO it cannot
 * be started or does not answer, -ENOMEM.
 */
int gcr_looker_start(const char *helper_directory, bool keep_stderr, struct gcr_error *error);

/*
 * Whose a user's processes are: bounds are of owners, so that a user with subordinate ids does not
 * have them once for each. Called without locks of the looker's, from all threads; set it while no
 * thread is in a look. NULL, as at the start: each user is his own owner.
 */
void gcr_looker_set_owners(uid_t (*owner)(uid_t uid, void *data), void *data);

/* No thread may be in a look. Helpers that cannot be killed are left to init. */
void gcr_looker_stop(void);

/* gcr_scan_look() by a helper. */
int gcr_looker_devices(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		       uint64_t *ret_start_ticks);

/*
 * gcr_scan_look() at many processes of one @owner (gcr_looker_owner()), for @budget_usec together
 * and a moment. @ret_found is filled for the first *@ret_done of them; to the rest the time did not
 * suffice. -ETIMEDOUT of one: it was cut short, or it kept the helper waiting; -EBUSY: it has been
 * silent. Such a one may be asked alone, with more time. -EBUSY, -ETIMEDOUT: there is no helper for
 * this owner now. Blocks no longer than @budget_usec and 1 s.
 */
int gcr_looker_devices_of_many(uid_t owner, const pid_t *pids, size_t count,
			       const struct gcr_scan_wanted *wanted, int64_t budget_usec,
			       struct gcr_scan_found *ret_found, size_t *ret_done);

/* Whose a process is by its real user, (uid_t)-1 if it has ended. Does not block. */
uid_t gcr_looker_owner(pid_t pid);

/* Has this process been silent, and not answered since? */
bool gcr_looker_is_silent(pid_t pid);

struct gcr_looker_figures {
	unsigned int helpers;	/* that run and can be asked */
	unsigned int abandoned; /* killed, and still there */
	unsigned int silent;	/* processes */
	uint64_t kills;		/* ever */
};
void gcr_looker_figures(struct gcr_looker_figures *ret_figures);

#endif
