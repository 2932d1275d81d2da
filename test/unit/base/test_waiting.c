/* SPDX-License-Identifier: MIT */
/* The list of those who wait for a verb: who keeps the verb going, and how long the list becomes.
 */
#include "fs/base/waiting.h"

#include <errno.h>

#include "fs/base/cancellation.h"
#include "fs/base/waiter.h"
#include "test/unit/test.h"

#define INTERRUPTED 10000

static int answers; /* how many waiters have been answered */

static void done(void *data, int error_number)
{
	answers++;
	if (data)
		*(int *)data = error_number;
}

static struct gcr_waiter *new_waiter(int *ret_error)
{
	struct gcr_waiter *waiter;

	CHECK(!gcr_waiter_create_local(done, ret_error, &waiter));
	return waiter;
}

/* Adds a `cancel` of this writer, as gcr_operation_cancel() does. */
static void add_cancel(struct gcr_waiting *waiting, struct gcr_waiter *waiter)
{
	struct gcr_cancellation *cancellation;

	CHECK(!gcr_cancellation_create(waiter, &cancellation));
	gcr_cancellation_hold(cancellation);
	CHECK(!gcr_waiting_add_cancellation(waiting, cancellation));
	gcr_cancellation_end(cancellation, 0);
}

static void end_cancels(struct gcr_waiting *waiting)
{
	struct gcr_cancellation *cancellation;

	while ((cancellation = gcr_waiting_take_cancellation(waiting)))
		gcr_cancellation_end(cancellation, EBUSY);
}

/* The verb is wanted until the last writer who wants it has abandoned it. */
static void test_wanted(void)
{
	struct gcr_waiting waiting = {0};
	struct gcr_waiter *first = new_waiter(NULL), *second = new_waiter(NULL);
	struct gcr_waiter *other = new_waiter(NULL);
	struct gcr_waiter *all[] = {first, second, other};

	CHECK(!gcr_waiting_add(&waiting, first, true));
	CHECK(!gcr_waiting_add(&waiting, other, false));
	CHECK(!gcr_waiting_add(&waiting, second, true));
	CHECK(gcr_waiting_abandon(&waiting, first));
	CHECK(gcr_waiting_take(&waiting, first) == first);
	CHECK(!gcr_waiting_take(&waiting, first));
	CHECK(gcr_waiting_abandon(&waiting, other));
	CHECK(!gcr_waiting_abandon(&waiting, second));
	/* They wait for the end all the same. */
	CHECK(gcr_waiting_take(&waiting, NULL) && gcr_waiting_take(&waiting, NULL));
	CHECK(!gcr_waiting_take(&waiting, NULL));
	for (size_t i = 0; i < 3; i++) {
		gcr_waiter_unref(all[i]);
		gcr_waiter_unref(all[i]); /* the list's */
	}
	gcr_waiting_finish(&waiting);
}

/* A user has a `cancel` interrupted again and again: only those who wait take room. */
static void test_interrupted(void)
{
	struct gcr_waiting waiting = {0};
	int error_number = -1;
	struct gcr_waiter *patient = new_waiter(&error_number);

	answers = 0;
	add_cancel(&waiting, patient);
	for (int i = 0; i < INTERRUPTED; i++) {
		struct gcr_waiter *waiter = new_waiter(NULL);

		add_cancel(&waiting, waiter);
		gcr_waiter_answer(waiter, EINTR);
		gcr_waiter_unref(waiter);
		CHECK(waiting.cancellations_room <= 16);
	}
	CHECK(answers == INTERRUPTED && error_number == -1);
	end_cancels(&waiting);
	CHECK(answers == INTERRUPTED + 1 && error_number == EBUSY);
	gcr_waiter_unref(patient);
	gcr_waiting_finish(&waiting);
}

/* Those who wait are all answered, however many. */
static void test_many(void)
{
	struct gcr_waiting waiting = {0};

	answers = 0;
	for (int i = 0; i < INTERRUPTED; i++) {
		struct gcr_waiter *waiter = new_waiter(NULL);

		add_cancel(&waiting, waiter);
		gcr_waiter_unref(waiter);
	}
	CHECK(!answers && waiting.cancellations_count == INTERRUPTED);
	end_cancels(&waiting);
	CHECK(answers == INTERRUPTED);
	gcr_waiting_finish(&waiting);
}

int main(void)
{
	test_wanted();
	test_interrupted();
	test_many();
	return 0;
}
