/* SPDX-License-Identifier: MIT */
/*
 * Looking at other processes without blocking on them: helpers (gpucr-look) do it, and a helper
 * that does not answer in time is killed. Once started, the looker is the source of lib/procfs.h
 * and of lib/proc_file.h for all threads: their functions then take 2 s at most (smaps_rollup: 20
 * s). They return -ETIMEDOUT for a process that blocked its helper (a "silent" process), and then
 * -EBUSY, at once, while that process is paused (1 s, and up to 16 s when it is silent again).
 *
 * One owner's processes do not delay those of others: several helpers run at a time; at most four
 * of them look at processes of the same owner, at most two of these for longer than a moment, and
 * an owner with many silent processes is not looked at until they have ended or answered. Root of
 * our own namespaces is looked at in spite of that, with fewer slow looks. Some helpers are
 * reserved for owners none of whose processes is being looked at, for root's, and for a thread that
 * hurries. A helper that cannot be killed, because its wait cannot be interrupted at all, is
 * abandoned and reaped when it ends; the number of these is bounded, also for each owner; at the
 * bound no memory is looked at.
 */
#ifndef GCR_FS_HELPER_LOOKER_H
#define GCR_FS_HELPER_LOOKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/helper/scan_look.h"
#include "lib/error.h"

/*
 * Starts the looker, once in a program, while it has one thread or no other thread is in a look.
 * @helper_directory: as in struct gcr_helpers_config; copied. Starts one helper and checks that it
 * answers. Errors, with a message: -EIO the helper cannot be started or does not answer, -ENOMEM.
 */
int gcr_looker_start(const char *helper_directory, bool keep_stderr, struct gcr_error *error);

/*
 * Sets the function that maps a user to the owner of his processes: bounds apply to owners, so that
 * a user with subordinate ids does not get them once for each id. The function is called from all
 * threads, without locks of the looker; set it while no thread is in a look. NULL, the default:
 * each user is his own owner.
 */
void gcr_looker_set_owners(uid_t (*owner)(uid_t uid, void *data), void *data);

/*
 * From now on the looks of the calling thread, the only one of the program that calls this, never
 * wait for a helper (-EBUSY instead), and a process that does not answer has a tenth of a second
 * (five times that if the helper runs): the thread serves all users. Such a process does not become
 * a silent one by that.
 */
void gcr_looker_hurry(void);
/* How long looks of the calling thread have waited for processes that did not answer, in total. */
int64_t gcr_looker_waited_usec(void);

/* Stops the looker; no thread may be in a look. Helpers that cannot be killed are left to init. */
void gcr_looker_stop(void);

/*
 * As gcr_scan_look(), done by a helper. Also -ETIMEDOUT, -EBUSY: see the head of this file; -EIO:
 * the helpers fail.
 */
int gcr_looker_devices(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		       uint64_t *ret_start_ticks);

/*
 * gcr_scan_look() for many processes of one @owner (gcr_looker_owner()), within @budget_usec in
 * total plus a moment. @ret_found, which has room for @count, is filled in for the first *ret_done
 * processes; the rest needs another call: time ran out, or they are more than GCR_LOOKER_PIDS_MAX.
 * An entry's error is ETIMEDOUT for a process whose look was cut short or blocked the helper, EBUSY
 * for a silent process; such a process may be looked at alone, with more time. Returns -EBUSY,
 * -ETIMEDOUT: there is no helper for this owner now. Blocks no longer than @budget_usec and 1 s.
 */
int gcr_looker_devices_of_many(uid_t owner, const pid_t *pids, size_t count,
			       const struct gcr_scan_wanted *wanted, int64_t budget_usec,
			       struct gcr_scan_found *ret_found, size_t *ret_done);

/*
 * The owner of a process by its real user. GCR_QUOTA_OTHER_ROOT (fs/base/quota.h): root of another
 * pid or user namespace, who is no more trusted than any user, or the process has ended. Does not
 * block.
 */
uid_t gcr_looker_owner(pid_t pid);

/* Has this process been silent, without having answered since? */
bool gcr_looker_is_silent(pid_t pid);

struct gcr_looker_figures {
	unsigned int helpers;	/* helpers that are running and usable */
	unsigned int abandoned; /* killed, but not ended */
	unsigned int silent;	/* silent processes */
	uint64_t kills;		/* since the start */
};
void gcr_looker_figures(struct gcr_looker_figures *ret_figures);

#endif
