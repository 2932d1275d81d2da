/* SPDX-License-Identifier: MIT */
/* fs/base/fair_queue.c: turns go round among clients, and by arrival within one. */
#include "fs/base/fair_queue.h"

#include <string.h>

#include "lib/cleanup.h"
#include "test/unit/test.h"

#define MANY (2 * GCR_FAIR_CLIENTS_MAX)

static struct gcr_fair_history histories[32];

static struct gcr_fair_queue make_queue(void)
{
	memset(histories, 0, sizeof(histories));
	return (struct gcr_fair_queue){.histories = histories};
}

static void join(struct gcr_fair_queue *queue, struct gcr_fair_waiter *waiter, uint64_t client,
		 uint32_t mask)
{
	*waiter = (struct gcr_fair_waiter){.client = client, .mask = mask};
	gcr_fair_queue_join(queue, waiter);
}

/* Gives the next turn; returns who has it. */
static struct gcr_fair_waiter *give(struct gcr_fair_queue *queue)
{
	struct gcr_fair_waiter *first = gcr_fair_queue_first(queue);

	if (first) {
		CHECK(gcr_fair_queue_is_first(queue, first));
		gcr_fair_queue_quit(queue, first);
		gcr_fair_queue_note(queue, first->mask, first->client);
	}
	return first;
}

/* However many waiters a client has, another one waits for one turn of it. */
static void test_clients(void)
{
	struct gcr_fair_queue queue = make_queue();
	struct gcr_fair_waiter many[10], other, third;

	CHECK(!gcr_fair_queue_first(&queue));
	gcr_fair_queue_note(&queue, 1, 1);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(many); i++)
		join(&queue, &many[i], 1, 1);
	join(&queue, &other, 2, 1);
	CHECK(give(&queue) == &other);
	/* The other's next one comes after one of the many. */
	join(&queue, &other, 2, 1);
	CHECK(give(&queue) == &many[0] && give(&queue) == &other && give(&queue) == &many[1]);
	/* One that has never had a turn is the next, and then the one whose turn is longer ago. */
	join(&queue, &other, 2, 1);
	join(&queue, &third, 3, 1);
	CHECK(give(&queue) == &third && give(&queue) == &other);
	for (size_t i = 2; i < GCR_ARRAY_SIZE(many); i++)
		CHECK(give(&queue) == &many[i]);
	CHECK(!give(&queue));
}

static void test_quit_and_urgent(void)
{
	struct gcr_fair_queue queue = make_queue();
	struct gcr_fair_waiter waiters[4], urgent = {.client = 1, .mask = 1, .is_urgent = true};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(waiters); i++)
		join(&queue, &waiters[i], 1 + i / 2, 1);
	gcr_fair_queue_join(&queue, &urgent);
	gcr_fair_queue_quit(&queue, &waiters[1]);
	gcr_fair_queue_quit(&queue, &waiters[1]);
	/* Ahead of the client's others, and not of another client that comes first. */
	CHECK(give(&queue) == &urgent && give(&queue) == &waiters[2]);
	gcr_fair_queue_join(&queue, &urgent);
	CHECK(give(&queue) == &urgent && give(&queue) == &waiters[3]);
	CHECK(give(&queue) == &waiters[0] && !give(&queue));
}

/* With more clients than are remembered, nobody waits for ever. */
static void test_many_clients(void)
{
	struct gcr_fair_queue queue = make_queue();
	struct gcr_fair_waiter patient, others[MANY];

	gcr_fair_queue_note(&queue, 1, 1);
	for (uint64_t i = 0; i < MANY; i++)
		gcr_fair_queue_note(&queue, 1, 2 + i);
	join(&queue, &patient, 1, 1);
	for (uint64_t i = 0; i < MANY; i++)
		join(&queue, &others[i], 2 + i, 1);
	CHECK(give(&queue) == &patient);
	for (uint64_t i = 0; i < MANY; i++)
		CHECK(give(&queue) == &others[i]);
}

/* Each GPU has turns of its own, and one that wants two waits for no circle of others. */
static void test_masks(void)
{
	struct gcr_fair_queue queue = make_queue();
	struct gcr_fair_waiter both, first, second;

	gcr_fair_queue_note(&queue, 0x1, 1);
	gcr_fair_queue_note(&queue, 0x2, 2);
	join(&queue, &both, 3, 0x3);
	join(&queue, &first, 1, 0x1);
	join(&queue, &second, 2, 0x2);
	CHECK(!gcr_fair_queue_is_first(&queue, &first) &&
	      !gcr_fair_queue_is_first(&queue, &second));
	CHECK(give(&queue) == &both);
	/* They want different ones: none waits for the other. */
	CHECK(gcr_fair_queue_is_first(&queue, &first) && gcr_fair_queue_is_first(&queue, &second));
	join(&queue, &both, 3, 0x3);
	CHECK(!gcr_fair_queue_is_first(&queue, &both));
	CHECK(give(&queue) == &first && give(&queue) == &second && give(&queue) == &both);
	/* A turn at another GPU is none at this one. */
	gcr_fair_queue_note(&queue, 0x4, 4);
	gcr_fair_queue_note(&queue, 0x8, 5);
	join(&queue, &first, 4, 0x4);
	join(&queue, &second, 5, 0x4);
	CHECK(give(&queue) == &second && give(&queue) == &first);
}

static void test_client(void)
{
	CHECK(gcr_fair_client(0, 1000) != gcr_fair_client(0, 1001));
	CHECK(gcr_fair_client(0, 1000) != gcr_fair_client(1000, 1000));
	CHECK(gcr_fair_client((uid_t)-1, 0) != gcr_fair_client(0, (uid_t)-1));
}

int main(void)
{
	test_clients();
	test_quit_and_urgent();
	test_many_clients();
	test_masks();
	test_client();
	return 0;
}
