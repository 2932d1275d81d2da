/* SPDX-License-Identifier: MIT */
/* The waiting threads, by owner. `turns.lock` guards the lists; no function is called with it. */
#include "fs/base/turns.h"

#include <pthread.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

#define OWING_MAX 64 /* with more owners, those with the smallest debt are dropped */

/* What the owners' debts are for. */
enum debt {
	DEBT_LOOK_UPS,
	DEBT_CONNECTIONS,
	DEBTS_COUNT,
};

/* An owner whose look-ups, or connections, have used time. */
struct owing {
	uid_t owner;
	int64_t until_usec; /* when the debt is paid off */
};

static struct {
	pthread_mutex_t lock;
	uid_t owners[GCR_TURNS_MAX];
	unsigned int count;
	struct owing owing[DEBTS_COUNT][OWING_MAX];
} turns = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The owner's entry, or, if there is none, the one with the smallest debt. Lock: turns. */
static struct owing *find_owing_locked(enum debt debt, uid_t owner)
{
	struct owing *least = &turns.owing[debt][0];

	for (unsigned int i = 0; i < OWING_MAX; i++) {
		struct owing *owing = &turns.owing[debt][i];

		if (owing->until_usec && owing->owner == owner)
			return owing;
		if (owing->until_usec < least->until_usec)
			least = owing;
	}
	return least;
}

/* Has the owner exceeded his share of the time? */
static bool owes_too_much(enum debt debt, uid_t owner)
{
	const struct owing *owing;
	GCR_LOCK_SCOPE(&turns.lock);

	owing = find_owing_locked(debt, owner);
	return owing->until_usec && owing->owner == owner &&
	       owing->until_usec - gcr_clock_usec() > GCR_TURNS_AHEAD_USEC * GCR_TURNS_SHARE;
}

/* Adds @used_usec to the owner's debt. Lock: turns. */
static void charge_locked(enum debt debt, uid_t owner, int64_t used_usec)
{
	struct owing *owing = find_owing_locked(debt, owner);
	int64_t from_usec = gcr_clock_usec();

	if (owing->until_usec && owing->owner == owner && owing->until_usec > from_usec)
		from_usec = owing->until_usec;
	*owing = (struct owing){
		.owner = owner,
		.until_usec = from_usec + used_usec * GCR_TURNS_SHARE,
	};
}

bool gcr_turn_begin(struct gcr_quota *quota, uid_t uid, struct gcr_turn *ret_turn)
{
	uid_t owner = gcr_quota_owner(quota, uid);
	unsigned int of_owner = 0;

	*ret_turn = (struct gcr_turn){0};
	if (!gcr_quota_is_limited(quota, uid))
		return true;
	GCR_LOCK_SCOPE(&turns.lock);
	for (unsigned int i = 0; i < turns.count; i++)
		of_owner += turns.owners[i] == owner;
	if (of_owner >= GCR_TURNS_OWNER_MAX || turns.count >= GCR_TURNS_MAX)
		return false;
	turns.owners[turns.count++] = owner;
	*ret_turn = (struct gcr_turn){.is_counted = true, .owner = owner};
	return true;
}

bool gcr_turn_may_look_up(struct gcr_quota *quota, uid_t uid)
{
	return !gcr_quota_is_limited(quota, uid) ||
	       !owes_too_much(DEBT_LOOK_UPS, gcr_quota_owner(quota, uid));
}

void gcr_turn_looked_up(struct gcr_quota *quota, uid_t uid, int64_t began_usec)
{
	int64_t used_usec = gcr_clock_usec() - began_usec;
	uid_t owner;

	if (used_usec <= GCR_TURNS_QUICK_USEC || !gcr_quota_is_limited(quota, uid))
		return;
	owner = gcr_quota_owner(quota, uid);
	GCR_LOCK_SCOPE(&turns.lock);
	charge_locked(DEBT_LOOK_UPS, owner, used_usec);
}

bool gcr_turn_may_connect(struct gcr_quota *quota, uid_t uid)
{
	return !gcr_quota_is_limited(quota, uid) ||
	       !owes_too_much(DEBT_CONNECTIONS, gcr_quota_owner(quota, uid));
}

void gcr_turn_connected(struct gcr_quota *quota, uid_t uid, int64_t waited_usec)
{
	uid_t owner;

	if (!waited_usec || !gcr_quota_is_limited(quota, uid))
		return;
	owner = gcr_quota_owner(quota, uid);
	GCR_LOCK_SCOPE(&turns.lock);
	charge_locked(DEBT_CONNECTIONS, owner, waited_usec);
}

bool gcr_turn_begin_lookup(struct gcr_quota *quota, uid_t uid, struct gcr_turn *ret_turn)
{
	*ret_turn = (struct gcr_turn){0};
	if (!gcr_turn_may_look_up(quota, uid) || !gcr_turn_begin(quota, uid, ret_turn))
		return false;
	ret_turn->began_usec = gcr_clock_usec();
	return true;
}

void gcr_turn_end(struct gcr_turn *turn)
{
	unsigned int i = 0;

	if (!turn->is_counted)
		return;
	GCR_LOCK_SCOPE(&turns.lock);
	while (turns.owners[i] != turn->owner)
		i++;
	turns.owners[i] = turns.owners[--turns.count];
	if (turn->began_usec)
		charge_locked(DEBT_LOOK_UPS, turn->owner, gcr_clock_usec() - turn->began_usec);
	turn->is_counted = false;
}
