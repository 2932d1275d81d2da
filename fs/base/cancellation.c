/* SPDX-License-Identifier: MIT */
/*
 * Counts the verbs that have not ended yet. The answer is EIO if a verb was not rolled back, else
 * the first error of any of them.
 */
#include "fs/base/cancellation.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fs/base/waiter.h"

struct gcr_cancellation {
	atomic_int pending;
	atomic_int error; /* positive errno */
	struct gcr_waiter *waiter;
};

int gcr_cancellation_create(struct gcr_waiter *waiter, struct gcr_cancellation **ret_cancellation)
{
	struct gcr_cancellation *cancellation = calloc(1, sizeof(*cancellation));

	if (!cancellation)
		return -ENOMEM;
	atomic_init(&cancellation->pending, 1);
	atomic_init(&cancellation->error, 0);
	cancellation->waiter = gcr_waiter_ref(waiter);
	*ret_cancellation = cancellation;
	return 0;
}

void gcr_cancellation_destroy(struct gcr_cancellation *cancellation)
{
	if (!cancellation)
		return;
	gcr_waiter_unref(cancellation->waiter);
	free(cancellation);
}

void gcr_cancellation_hold(struct gcr_cancellation *cancellation)
{
	atomic_fetch_add(&cancellation->pending, 1);
}

bool gcr_cancellation_is_given_up(const struct gcr_cancellation *cancellation)
{
	return gcr_waiter_is_answered(cancellation->waiter);
}

void gcr_cancellation_end(struct gcr_cancellation *cancellation, int error_number)
{
	int none = 0;

	if (error_number == EIO)
		atomic_store(&cancellation->error, EIO);
	else if (error_number)
		atomic_compare_exchange_strong(&cancellation->error, &none, error_number);
	if (atomic_fetch_sub(&cancellation->pending, 1) != 1)
		return;
	gcr_waiter_answer(cancellation->waiter, atomic_load(&cancellation->error));
	gcr_cancellation_destroy(cancellation);
}
