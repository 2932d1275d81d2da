/* SPDX-License-Identifier: MIT */
/*
 * Two arrays in no order. A writer is taken out when answered. A `cancel` that is interrupted is
 * answered without the list's knowledge, so the list looks for such ones before it grows.
 */
#include "fs/base/waiting.h"

#include <errno.h>
#include <stdlib.h>

#include "fs/base/cancellation.h"
#include "fs/base/waiter.h"

#define ROOM_FIRST 4

void gcr_waiting_finish(struct gcr_waiting *waiting)
{
	free(waiting->writers);
	free(waiting->cancellations);
	*waiting = (struct gcr_waiting){0};
}

int gcr_waiting_add(struct gcr_waiting *waiting, struct gcr_waiter *waiter, bool is_wanting)
{
	size_t room = waiting->writers_room ? 2 * waiting->writers_room : ROOM_FIRST;
	struct gcr_waiting_writer *writers = waiting->writers;

	if (waiting->writers_count == waiting->writers_room) {
		writers = reallocarray(writers, room, sizeof(*writers));
		if (!writers)
			return -ENOMEM;
		waiting->writers = writers;
		waiting->writers_room = room;
	}
	writers[waiting->writers_count++] =
		(struct gcr_waiting_writer){gcr_waiter_ref(waiter), is_wanting};
	return 0;
}

/* Ends the cancellations whose writers have been answered already. */
static void drop_given_up(struct gcr_waiting *waiting)
{
	size_t kept = 0;

	for (size_t i = 0; i < waiting->cancellations_count; i++) {
		struct gcr_cancellation *cancellation = waiting->cancellations[i];

		if (gcr_cancellation_is_given_up(cancellation))
			gcr_cancellation_end(cancellation, 0);
		else
			waiting->cancellations[kept++] = cancellation;
	}
	waiting->cancellations_count = kept;
}

int gcr_waiting_add_cancellation(struct gcr_waiting *waiting, struct gcr_cancellation *cancellation)
{
	size_t room = waiting->cancellations_room ? 2 * waiting->cancellations_room : ROOM_FIRST;
	struct gcr_cancellation **cancellations = waiting->cancellations;
	bool is_full = waiting->cancellations_count == waiting->cancellations_room;

	if (is_full)
		drop_given_up(waiting);
	/* A list that is still half full grows: so it is not looked through for each new entry. */
	if (is_full && 2 * waiting->cancellations_count >= waiting->cancellations_room) {
		cancellations =
			reallocarray(cancellations, room, sizeof(struct gcr_cancellation *));
		if (!cancellations)
			return -ENOMEM;
		waiting->cancellations = cancellations;
		waiting->cancellations_room = room;
	}
	cancellations[waiting->cancellations_count++] = cancellation;
	return 0;
}

bool gcr_waiting_abandon(struct gcr_waiting *waiting, const struct gcr_waiter *waiter)
{
	bool is_wanted = false;

	for (size_t i = 0; i < waiting->writers_count; i++) {
		struct gcr_waiting_writer *writer = &waiting->writers[i];

		if (writer->waiter == waiter)
			writer->is_wanting = false;
		is_wanted |= writer->is_wanting;
	}
	return is_wanted;
}

struct gcr_waiter *gcr_waiting_take(struct gcr_waiting *waiting, const struct gcr_waiter *waiter)
{
	for (size_t i = waiting->writers_count; i-- > 0;) {
		struct gcr_waiter *taken = waiting->writers[i].waiter;

		if (waiter && taken != waiter)
			continue;
		waiting->writers[i] = waiting->writers[--waiting->writers_count];
		return taken;
	}
	return NULL;
}

struct gcr_cancellation *gcr_waiting_take_cancellation(struct gcr_waiting *waiting)
{
	if (!waiting->cancellations_count)
		return NULL;
	return waiting->cancellations[--waiting->cancellations_count];
}
