/* SPDX-License-Identifier: MIT */
/*
 * Limits the threads that serve the mount and wait for looks at processes: each owner may occupy
 * only some of them, so that threads remain for others. Root and the daemon's own user are not
 * limited. During a look-up the kernel keeps the directory locked, so other requests wait with the
 * thread; the look-ups of one owner are therefore limited in time, too. Thread-safe; no call
 * blocks.
 */
#ifndef GCR_FS_BASE_TURNS_H
#define GCR_FS_BASE_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/base/quota.h"

#define GCR_TURNS_OWNER_MAX 4  /* threads per owner */
#define GCR_TURNS_MAX	    12 /* for all limited owners together, out of GCR_TURNS_THREADS */
#define GCR_TURNS_THREADS   44 /* of the session; fs/mount/session_turn.h limits others */

/*
 * An owner's look-ups may take one part in GCR_TURNS_SHARE of the time, of which
 * GCR_TURNS_AHEAD_USEC may be used in advance.
 */
#define GCR_TURNS_SHARE	     10
#define GCR_TURNS_AHEAD_USEC INT64_C(500000)

/* The turn of one thread; all zeros: none. */
struct gcr_turn {
	bool is_counted;
	uid_t owner;
	int64_t began_usec; /* start of a look-up; else 0 */
};

/*
 * May this thread wait for looks at processes, for a request of @uid (see
 * gcr_credentials_counted())? False: too many threads wait, and the caller has to use the state
 * that the daemon knows. gcr_turn_end() ends the turn, an empty one too.
 */
bool gcr_turn_begin(struct gcr_quota *quota, uid_t uid, struct gcr_turn *ret_turn);
void gcr_turn_end(struct gcr_turn *turn);

/*
 * The same for a look-up, and for a rename between directories. Also false while the owner's
 * look-ups have exceeded their share of the time.
 */
bool gcr_turn_begin_lookup(struct gcr_quota *quota, uid_t uid, struct gcr_turn *ret_turn);

/*
 * A look-up that is expected to be quick, so that its thread is not counted: may @uid make it?
 * False while the owner's look-ups have exceeded their share of the time. Afterwards the time since
 * @began_usec counts for the owner if it was longer than GCR_TURNS_QUICK_USEC.
 */
#define GCR_TURNS_QUICK_USEC INT64_C(50000)
bool gcr_turn_may_look_up(struct gcr_quota *quota, uid_t uid);
void gcr_turn_looked_up(struct gcr_quota *quota, uid_t uid, int64_t began_usec);

/*
 * The same for the thread that hears of all connections, apart from the look-ups: may it look at a
 * process that @uid has connect? Afterwards the time counts that it has waited for processes that
 * did not answer.
 */
bool gcr_turn_may_connect(struct gcr_quota *quota, uid_t uid);
void gcr_turn_connected(struct gcr_quota *quota, uid_t uid, int64_t waited_usec);

#endif
