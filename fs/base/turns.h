/* SPDX-License-Identifier: MIT */
/*
 * Threads that serve the mount and wait for looks at processes: of one owner only some may, so that
 * threads are left for others. Root, and the daemon's own user, may always. Some threads have more
 * waiting for them than themselves: the kernel keeps a directory locked during a look-up. Of those,
 * one owner has a share of time too. Thread-safe; nothing waits here.
 */
#ifndef GCR_FS_BASE_TURNS_H
#define GCR_FS_BASE_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/base/quota.h"

#define GCR_TURNS_OWNER_MAX 4  /* threads of one owner */
#define GCR_TURNS_MAX	    12 /* of all, of GCR_TURNS_THREADS */
#define GCR_TURNS_THREADS   28 /* of the session; others are in fs/mount/session_turn.h */

/* Of an owner's time, the part of it that his look-ups may take, and what they may take at once. */
#define GCR_TURNS_SHARE	     10
#define GCR_TURNS_AHEAD_USEC INT64_C(500000)

/* What a thread has; all zeros: nothing. */
struct gcr_turn {
	bool is_counted;
	uid_t owner;
	int64_t began_usec; /* of a look-up's; else 0 */
};

/*
 * May this thread wait for looks that @uid has asked for (see gcr_credentials_counted())? False:
 * too many do, and it is to go on with what is known. Ends with gcr_turn_end(), which an empty turn
 * may be given too.
 */
bool gcr_turn_begin(struct gcr_quota *quota, uid_t uid, struct gcr_turn *ret_turn);
void gcr_turn_end(struct gcr_turn *turn);

/*
 * The same for a look-up. False also while the owner's look-ups have taken more than their share:
 * one part of the time in GCR_TURNS_SHARE, of which GCR_TURNS_AHEAD_USEC may be used in advance.
 */
bool gcr_turn_begin_lookup(struct gcr_quota *quota, uid_t uid, struct gcr_turn *ret_turn);

#endif
