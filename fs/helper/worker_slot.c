/* SPDX-License-Identifier: MIT */
#include "fs/helper/worker_slot.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "lib/cleanup.h"

#define WORKER 1u /* the mask of the only resource of a slot's queue */

struct worker_slot *gcr_worker_slot_find(struct gcr_helpers *helpers, const uint8_t *uuid,
					 bool is_second)
{
	for (struct worker_slot *slot = helpers->slots; slot; slot = slot->next)
		if (memcmp(slot->uuid, uuid, GCR_UUID_BYTES) == 0 && slot->is_second == is_second)
			return slot;
	return NULL;
}

struct worker_slot *gcr_worker_slot_add(struct gcr_helpers *helpers, const uint8_t *uuid,
					bool is_second)
{
	_cleanup_free_ struct worker_slot *slot = calloc(1, sizeof(*slot));

	if (!slot)
		return NULL;
	memcpy(slot->uuid, uuid, GCR_UUID_BYTES);
	slot->is_second = is_second;
	slot->queue.histories = &slot->history;
	slot->next = helpers->slots;
	helpers->slots = slot;
	return TAKE_PTR(slot);
}

bool gcr_worker_slot_take(struct worker_slot *slot)
{
	if (slot->is_taken)
		return false;
	slot->is_taken = true;
	return true;
}

void gcr_worker_slot_count(struct worker_slot *slot, uint64_t client)
{
	gcr_fair_queue_note(&slot->queue, WORKER, client);
}

void gcr_worker_slot_join(struct worker_slot *slot, struct worker_waiter *waiter, uint64_t client,
			  bool is_urgent)
{
	waiter->has_turn = false;
	waiter->fair = (struct gcr_fair_waiter){
		.client = client,
		.mask = WORKER,
		.is_urgent = is_urgent,
	};
	gcr_fair_queue_join(&slot->queue, &waiter->fair);
}

bool gcr_worker_slot_quit(struct worker_slot *slot, struct worker_waiter *waiter)
{
	gcr_fair_queue_quit(&slot->queue, &waiter->fair);
	return waiter->has_turn;
}

void gcr_worker_slot_pass(struct worker_slot *slot)
{
	struct worker_waiter *waiter = (struct worker_waiter *)gcr_fair_queue_first(&slot->queue);

	slot->is_taken = waiter;
	if (!waiter)
		return;
	gcr_fair_queue_quit(&slot->queue, &waiter->fair);
	gcr_worker_slot_count(slot, waiter->fair.client);
	waiter->has_turn = true;
	if (waiter->turn_fd >= 0)
		eventfd_write(waiter->turn_fd, 1);
}

void gcr_worker_slot_drop_if_unused(struct gcr_helpers *helpers, struct worker_slot *slot)
{
	if (slot->users > 0 || slot->idle)
		return;
	for (struct worker_slot **link = &helpers->slots; *link; link = &(*link)->next)
		if (*link == slot) {
			*link = slot->next;
			break;
		}
	free(slot);
}

void gcr_worker_slots_free(struct gcr_helpers *helpers)
{
	while (helpers->slots) {
		struct worker_slot *slot = helpers->slots;

		helpers->slots = slot->next;
		free(slot);
	}
}
