/* SPDX-License-Identifier: MIT */
#include "fs/base/fair_queue.h"

#include <stddef.h>

static uint64_t last_turn(const struct gcr_fair_history *history, uint64_t client)
{
	for (unsigned int i = 0; i < GCR_FAIR_CLIENTS_MAX; i++)
		if (history->entries[i].turn && history->entries[i].client == client)
			return history->entries[i].turn;
	return history->forgotten;
}

/*
 * Notes a turn. Without a free entry, the client whose turn is the longest ago is dropped. A client
 * without an entry counts as one whose turn was the latest of those dropped, so that new clients do
 * not go ahead of an old one again and again.
 */
static void note_turn(struct gcr_fair_history *history, uint64_t client, uint64_t turn)
{
	unsigned int oldest = 0;
	unsigned int i = 0;

	for (; i < GCR_FAIR_CLIENTS_MAX; i++) {
		if (history->entries[i].turn && history->entries[i].client == client)
			break;
		if (history->entries[i].turn < history->entries[oldest].turn)
			oldest = i;
	}
	if (i == GCR_FAIR_CLIENTS_MAX) {
		i = oldest;
		if (history->entries[i].turn > history->forgotten)
			history->forgotten = history->entries[i].turn;
	}
	history->entries[i].client = client;
	history->entries[i].turn = turn;
}

void gcr_fair_queue_join(struct gcr_fair_queue *queue, struct gcr_fair_waiter *waiter)
{
	struct gcr_fair_waiter **link = &queue->waiters;

	waiter->next = NULL;
	waiter->last = 0;
	for (uint32_t mask = waiter->mask; mask; mask &= mask - 1) {
		uint64_t turn = last_turn(&queue->histories[__builtin_ctz(mask)], waiter->client);

		if (turn > waiter->last)
			waiter->last = turn;
	}
	while (*link)
		link = &(*link)->next;
	*link = waiter;
}

void gcr_fair_queue_quit(struct gcr_fair_queue *queue, struct gcr_fair_waiter *waiter)
{
	for (struct gcr_fair_waiter **link = &queue->waiters; *link; link = &(*link)->next)
		if (*link == waiter) {
			*link = waiter->next;
			waiter->next = NULL;
			return;
		}
}

/* Does @one have its turn before @other? @is_earlier: @one came first. */
static bool precedes(const struct gcr_fair_waiter *one, const struct gcr_fair_waiter *other,
		     bool is_earlier)
{
	if (one->last != other->last)
		return one->last < other->last;
	if (one->is_urgent != other->is_urgent)
		return one->is_urgent;
	return is_earlier;
}

struct gcr_fair_waiter *gcr_fair_queue_first(const struct gcr_fair_queue *queue)
{
	struct gcr_fair_waiter *first = queue->waiters;

	for (struct gcr_fair_waiter *waiter = first; waiter; waiter = waiter->next)
		if (precedes(waiter, first, false))
			first = waiter;
	return first;
}

bool gcr_fair_queue_is_first(const struct gcr_fair_queue *queue,
			     const struct gcr_fair_waiter *waiter)
{
	bool is_earlier = true;

	for (const struct gcr_fair_waiter *other = queue->waiters; other; other = other->next) {
		if (other == waiter)
			is_earlier = false;
		else if (other->mask & waiter->mask && precedes(other, waiter, is_earlier))
			return false;
	}
	return true;
}

void gcr_fair_queue_note(struct gcr_fair_queue *queue, uint32_t mask, uint64_t client)
{
	uint64_t turn = ++queue->turns;

	for (uint32_t rest = mask; rest; rest &= rest - 1)
		note_turn(&queue->histories[__builtin_ctz(rest)], client, turn);
	for (struct gcr_fair_waiter *waiter = queue->waiters; waiter; waiter = waiter->next)
		if (waiter->client == client && waiter->mask & mask)
			waiter->last = turn;
}
