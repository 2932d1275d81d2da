/* SPDX-License-Identifier: MIT */
/* A bitmap of the fresh numbers in use, and a table of counters. */
#include "fs/mount/ctl_ids.h"

#include <pthread.h>
#include <stdbool.h>

#include "lib/clock.h"
#include "lib/lock.h"

/* The lowest 23 bits; a number with the bit above them is no fresh one. */
#define FRESH_MASK 0x7fffffu
/* A user gets as many fresh numbers of one ctl file in a second. */
#define FRESH_MOST 100
#define SLOT_BITS  10
#define HASH	   2654435761u /* Knuth's multiplier: the golden ratio of 2^32 */
#define WORD_BITS  64

static struct {
	pthread_mutex_t lock; /* a leaf */
	uint32_t last;
	uint32_t used_count;
	uint64_t used[(FRESH_MASK + 1) / WORD_BITS];
	/* Counts look-ups. Users and files whose hash is the same share a slot. */
	struct {
		uint32_t second;
		unsigned int count;
	} slots[1 << SLOT_BITS];
} ids = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The next number that the kernel does not know, after @ids.last; one must be left. */
static uint32_t find_fresh_locked(void)
{
	uint32_t id = ids.last;

	for (;;) {
		uint64_t word;

		id = (id + 1) & FRESH_MASK;
		word = ids.used[id / WORD_BITS] >> id % WORD_BITS;
		if (!(word & 1))
			return id;
		/* All numbers up to the end of the word are in use. */
		if (word == UINT64_MAX >> id % WORD_BITS)
			id |= WORD_BITS - 1;
	}
}

/* Has the user had so many fresh numbers of the file in this second that there are no more? */
static bool has_had_enough_locked(uint32_t slot, uint32_t second)
{
	unsigned int *count = &ids.slots[slot].count;

	if (ids.slots[slot].second != second)
		*count = 0;
	ids.slots[slot].second = second;
	return ++*count > FRESH_MOST;
}

uint32_t gcr_ctl_ids_take(struct gcr_quota *quota, uid_t uid, uint64_t node)
{
	uint32_t second = (uint32_t)(gcr_clock_usec() / GCR_USEC_PER_SEC);
	bool is_limited = gcr_quota_is_limited(quota, uid);
	uid_t owner = is_limited ? gcr_quota_owner(quota, uid) : uid;
	uint32_t slot = (uint32_t)((node ^ node >> 32) * HASH + owner) * HASH >> (32 - SLOT_BITS);
	uint32_t id;

	GCR_LOCK_SCOPE(&ids.lock);
	if ((is_limited && has_had_enough_locked(slot, second)) || ids.used_count == FRESH_MASK + 1)
		return ((owner * HASH + second) & FRESH_MASK) | (FRESH_MASK + 1);
	id = find_fresh_locked();
	ids.used[id / WORD_BITS] |= UINT64_C(1) << id % WORD_BITS;
	ids.used_count++;
	ids.last = id;
	return id;
}

void gcr_ctl_ids_give_back(uint32_t id)
{
	uint64_t bit = UINT64_C(1) << id % WORD_BITS;

	if (id > FRESH_MASK)
		return;
	GCR_LOCK_SCOPE(&ids.lock);
	if (ids.used[id / WORD_BITS] & bit)
		ids.used_count--;
	ids.used[id / WORD_BITS] &= ~bit;
}
