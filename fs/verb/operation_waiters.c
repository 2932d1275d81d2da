/* SPDX-License-Identifier: MIT */
/*
 * Waiters for the end of a verb, or of its cancellation. Each waiter is answered once, with no lock
 * held, or abandons the wait.
 */
#include "fs/verb/operation_data.h"

#include <errno.h>

#include "fs/base/cancellation.h"
#include "fs/base/waiter.h"

void gcr_operation_answer(struct gcr_operation *operation, int error_number)
{
	struct gcr_waiter *waiter;

	do {
		pthread_mutex_lock(&operation->lock);
		waiter = gcr_waiting_take(&operation->waiting, NULL);
		pthread_mutex_unlock(&operation->lock);
		if (waiter) {
			gcr_waiter_answer(waiter, error_number);
			gcr_waiter_unref(waiter);
		}
	} while (waiter);
}

void gcr_operation_answer_cancellations(struct gcr_operation *operation, int error_number)
{
	struct gcr_cancellation *cancellation;

	do {
		pthread_mutex_lock(&operation->lock);
		operation->is_over = true;
		cancellation = gcr_waiting_take_cancellation(&operation->waiting);
		pthread_mutex_unlock(&operation->lock);
		if (cancellation)
			gcr_cancellation_end(cancellation, error_number);
	} while (cancellation);
}

void gcr_operation_abandon(struct gcr_operation *operation, struct gcr_waiter *waiter)
{
	struct gcr_waiter *answer = NULL;

	pthread_mutex_lock(&operation->lock);
	if (!gcr_waiting_abandon(&operation->waiting, waiter) && !operation->detached)
		gcr_operation_stop_locked(operation, EINTR);
	else if (!operation->committed)
		/* Other writers still want the verb: only this waiter is answered. */
		answer = gcr_waiting_take(&operation->waiting, waiter);
	pthread_mutex_unlock(&operation->lock);
	if (answer) {
		gcr_waiter_answer(answer, EINTR);
		gcr_waiter_unref(answer);
	}
}
