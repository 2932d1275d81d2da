/* SPDX-License-Identifier: MIT */
/*
 * Waiters for the end of a verb, or of its cancellation. Each waiter is answered once, with no lock
 * held, or abandons the wait.
 */
#include "fs/verb/operation_data.h"

#include <errno.h>
#include <stdlib.h>

#include "fs/base/cancellation.h"
#include "fs/base/waiter.h"
#include "lib/cleanup.h"

int gcr_operation_add_entry_locked(struct gcr_operation *operation, struct gcr_waiter *waiter,
				   struct gcr_cancellation *cancellation)
{
	struct gcr_operation_entry *entries =
		reallocarray(operation->entries, operation->entries_count + 1, sizeof(*entries));

	if (!entries)
		return -ENOMEM;
	operation->entries = entries;
	entries[operation->entries_count++] = (struct gcr_operation_entry){
		.waiter = waiter ? gcr_waiter_ref(waiter) : NULL, .cancellation = cancellation};
	return 0;
}

void gcr_operation_answer(struct gcr_operation *operation, int error_number)
{
	struct gcr_waiter *waiter;

	do {
		waiter = NULL;
		pthread_mutex_lock(&operation->lock);
		for (size_t i = 0; i < operation->entries_count && !waiter; i++)
			waiter = TAKE_PTR(operation->entries[i].waiter);
		pthread_mutex_unlock(&operation->lock);
		if (waiter) {
			gcr_waiter_answer(waiter, error_number);
			gcr_waiter_unref(waiter);
		}
	} while (waiter);
}

void gcr_operation_answer_cancellations(struct gcr_operation *operation, int error_number)
{
	_cleanup_free_ struct gcr_operation_entry *entries = NULL;
	size_t count;

	pthread_mutex_lock(&operation->lock);
	operation->is_over = true;
	entries = TAKE_PTR(operation->entries);
	count = operation->entries_count;
	operation->entries_count = 0;
	pthread_mutex_unlock(&operation->lock);
	for (size_t i = 0; i < count; i++)
		if (entries[i].cancellation)
			gcr_cancellation_end(entries[i].cancellation, error_number);
}

void gcr_operation_abandon(struct gcr_operation *operation, struct gcr_waiter *waiter)
{
	struct gcr_waiter *answer = NULL;
	bool wanted;

	pthread_mutex_lock(&operation->lock);
	wanted = operation->detached;
	for (size_t i = 0; i < operation->entries_count; i++) {
		struct gcr_operation_entry *entry = &operation->entries[i];

		if (entry->waiter == waiter)
			entry->abandoned = true;
		if (entry->waiter && !entry->abandoned)
			wanted = true;
	}
	if (!wanted) {
		gcr_operation_stop_locked(operation, EINTR);
	} else if (!operation->committed) {
		/* Other writers still want the verb: only this waiter is answered. */
		for (size_t i = 0; i < operation->entries_count && !answer; i++)
			if (operation->entries[i].waiter == waiter)
				answer = TAKE_PTR(operation->entries[i].waiter);
	}
	pthread_mutex_unlock(&operation->lock);
	if (answer) {
		gcr_waiter_answer(answer, EINTR);
		gcr_waiter_unref(answer);
	}
}
