/* SPDX-License-Identifier: MIT */
#include "fs/helper/worker_slot.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/cleanup.h"

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
	slot->turn_fd = eventfd(1, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC);
	if (slot->turn_fd < 0)
		return NULL;
	memcpy(slot->uuid, uuid, GCR_UUID_BYTES);
	slot->is_second = is_second;
	slot->next = helpers->slots;
	helpers->slots = slot;
	return TAKE_PTR(slot);
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
	close(slot->turn_fd);
	free(slot);
}

void gcr_worker_slots_free(struct gcr_helpers *helpers)
{
	while (helpers->slots) {
		struct worker_slot *slot = helpers->slots;

		helpers->slots = slot->next;
		close(slot->turn_fd);
		free(slot);
	}
}
