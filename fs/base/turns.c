/* SPDX-License-Identifier: MIT */
/* The threads that wait, by owner. `turns.lock` guards the list, and nothing is called with it. */
#include "fs/base/turns.h"

#include <pthread.h>

#include "lib/cleanup.h"
#include "lib/lock.h"

static struct {
	pthread_mutex_t lock;
	uid_t owners[GCR_TURNS_MAX];
	unsigned int count;
} turns = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

void gcr_turn_end(struct gcr_turn *turn)
{
	unsigned int i = 0;

	if (!turn->is_counted)
		return;
	GCR_LOCK_SCOPE(&turns.lock);
	while (turns.owners[i] != turn->owner)
		i++;
	turns.owners[i] = turns.owners[--turns.count];
	turn->is_counted = false;
}
