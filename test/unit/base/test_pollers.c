/* SPDX-License-Identifier: MIT */
/* Pollers of event logs: in which order they are notified, in which rounds, and what removes them.
 */
#include "fs/base/pollers.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/event.h"
#include "lib/lock.h"
#include "test/unit/test.h"

#define ALICE 4001
#define BOB   4002
#define MANY  4096
#define LINES 400

/* In place of libfuse's: notes who is notified. */
struct fuse_pollhandle {
	char name;
	void (*then)(void); /* what the one who is notified does at once; may be NULL */
};

static struct {
	pthread_mutex_t lock;
	char order[MANY + 1];
	size_t notified, made, destroyed;
} noted = {.lock = PTHREAD_MUTEX_INITIALIZER};

int fuse_lowlevel_notify_poll(struct fuse_pollhandle *handle)
{
	pthread_mutex_lock(&noted.lock);
	if (noted.notified < MANY)
		noted.order[noted.notified] = handle->name;
	noted.notified++;
	pthread_mutex_unlock(&noted.lock);
	if (handle->then)
		handle->then();
	return 0;
}

void fuse_pollhandle_destroy(struct fuse_pollhandle *handle)
{
	pthread_mutex_lock(&noted.lock);
	noted.destroyed++;
	pthread_mutex_unlock(&noted.lock);
	free(handle);
}

static struct fuse_pollhandle *handle_of(char name, void (*then)(void))
{
	struct fuse_pollhandle *handle = calloc(1, sizeof(*handle));

	CHECK(handle);
	*handle = (struct fuse_pollhandle){.name = name, .then = then};
	pthread_mutex_lock(&noted.lock);
	noted.made++;
	pthread_mutex_unlock(&noted.lock);
	return handle;
}

/* Checks who has been notified since the last call, and that no handle but @left is left. */
static void check_order(const char *order, size_t left)
{
	GCR_LOCK_SCOPE(&noted.lock);
	if (strcmp(noted.order, order) != 0)
		fprintf(stderr, "%s, not %s\n", noted.order, order);
	CHECK(!strcmp(noted.order, order));
	CHECK(noted.made == noted.destroyed + left);
	memset(noted.order, 0, sizeof(noted.order));
	noted.notified = 0;
}

static struct gcr_polled polled;
static struct gcr_poller pollers[MANY];

static void make(int index, uid_t owner)
{
	CHECK(!gcr_poller_init(&pollers[index], &polled, owner));
}

static void arm(int index, void (*then)(void))
{
	gcr_poller_arm(&pollers[index], handle_of((char)('a' + index % 26), then));
}

/* One of each owner in turn, and each owner's in the order in which they came. */
static void test_owners_take_turns(void)
{
	gcr_polled_init(&polled);
	for (int i = 0; i < 5; i++)
		make(i, i < 3 ? ALICE : i == 3 ? BOB : 0);
	for (int i = 0; i < 5; i++)
		arm(i, NULL);
	gcr_polled_notify(&polled);
	check_order("adebc", 0);
	/* Once only. */
	gcr_polled_notify(&polled);
	check_order("", 0);
	arm(2, NULL);
	arm(1, NULL);
	gcr_polled_notify(&polled);
	check_order("cb", 0);
	for (int i = 0; i < 5; i++)
		gcr_poller_finish(&pollers[i]);
	gcr_polled_finish(&polled);
}

static void arm_first_again(void)
{
	arm(0, arm_first_again);
}

static void replace_second(void)
{
	gcr_poller_arm(&pollers[1], handle_of('z', NULL));
}

static void finish_second(void)
{
	gcr_poller_finish(&pollers[1]);
}

static void test_rounds(void)
{
	gcr_polled_init(&polled);
	for (int i = 0; i < 3; i++)
		make(i, ALICE);
	/* One that polls again at once has to wait for the next round. */
	arm(0, arm_first_again);
	arm(1, NULL);
	gcr_polled_notify(&polled);
	check_order("ab", 1);
	gcr_polled_notify(&polled);
	check_order("a", 1);
	/* A handle takes the place of the one before, in the same round. */
	arm(0, NULL);
	arm(0, replace_second);
	arm(1, NULL);
	arm(2, NULL);
	gcr_polled_notify(&polled);
	check_order("azc", 0);
	/* One that goes while it waits for its notification has none. */
	arm(0, finish_second);
	arm(1, NULL);
	arm(2, NULL);
	gcr_polled_notify(&polled);
	check_order("ac", 0);
	arm(0, NULL);
	gcr_poller_finish(&pollers[0]);
	gcr_polled_notify(&polled);
	check_order("", 0);
	gcr_poller_finish(&pollers[2]);
	gcr_polled_finish(&polled);
}

/* The last poller of an owner goes while it is due. */
static void test_an_owner_goes(void)
{
	gcr_polled_init(&polled);
	make(0, ALICE);
	make(1, BOB);
	make(2, ALICE);
	arm(0, finish_second);
	arm(1, NULL);
	arm(2, NULL);
	gcr_polled_notify(&polled);
	check_order("ac", 0);
	gcr_poller_finish(&pollers[0]);
	gcr_poller_finish(&pollers[2]);
	gcr_polled_finish(&polled);
}

static void test_many(void)
{
	char order[MANY + 1] = "";

	gcr_polled_init(&polled);
	for (int i = 0; i < MANY; i++) {
		make(i, ALICE);
		arm(i, NULL);
		order[i] = (char)('a' + i % 26);
	}
	gcr_polled_notify(&polled);
	check_order(order, 0);
	/* Those that go first are neither the oldest nor the newest ones. */
	for (int i = 0; i < MANY; i++)
		arm(i, NULL);
	for (int i = 1; i < MANY; i += 2)
		gcr_poller_finish(&pollers[i]);
	for (int i = 0; i < MANY; i += 2)
		gcr_poller_finish(&pollers[i]);
	gcr_polled_notify(&polled);
	check_order("", 0);
	gcr_polled_finish(&polled);
}

/* A reader's look, and its poll handle. */
static void test_reader(void)
{
	struct gcr_event_reader *readers[3];
	struct gcr_event_log *log;
	char text[100];

	CHECK(!gcr_event_log_create(&log));
	for (int i = 0; i < 3; i++)
		CHECK(!gcr_event_reader_create(log, ALICE, &readers[i]));
	CHECK(!gcr_event_reader_poll(readers[0], handle_of('a', NULL)));
	CHECK(!gcr_event_reader_poll(readers[1], handle_of('b', NULL)));
	CHECK(!gcr_event_reader_poll(readers[2], NULL));
	gcr_event_reader_destroy(readers[1]);
	gcr_event_log_append(log, "a line");
	check_order("a", 0);
	CHECK(gcr_event_reader_poll(readers[0], NULL));
	CHECK(gcr_event_reader_read(readers[0], 0, text, sizeof(text)));
	CHECK(!gcr_event_reader_poll(readers[0], NULL));
	gcr_event_reader_destroy(readers[0]);
	gcr_event_reader_destroy(readers[2]);
	gcr_event_log_unref(log);
}

static size_t count_notified(void)
{
	GCR_LOCK_SCOPE(&noted.lock);
	return noted.notified;
}

/* Notifies until @count pollers have been: one that is not armed again yet is not. */
static size_t notify_until(size_t count)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	while (count_notified() < count) {
		gcr_polled_notify(&polled);
		nanosleep(&pause, NULL);
	}
	return count_notified();
}

/* With the thread: lines in quick succession are one round. */
static void test_thread(void)
{
	int64_t began_usec;
	size_t rounds;

	CHECK(!gcr_pollers_start());
	gcr_polled_init(&polled);
	make(0, ALICE);
	arm(0, arm_first_again);
	began_usec = gcr_clock_usec();
	for (int i = 0; i < LINES; i++) {
		const struct timespec pause = {.tv_nsec = 100000};

		gcr_polled_notify(&polled);
		nanosleep(&pause, NULL);
	}
	/* One more round at least, after the last line. */
	rounds = notify_until(1);
	rounds = notify_until(rounds + 1);
	CHECK((int64_t)rounds <= (gcr_clock_usec() - began_usec) / GCR_POLLED_REST_USEC + 2);
	gcr_poller_finish(&pollers[0]);
	/* A log may go while it is ready, or rests. */
	for (int i = 0; i < LINES; i++) {
		gcr_polled_finish(&polled);
		gcr_polled_init(&polled);
		make(0, ALICE);
		arm(0, NULL);
		gcr_polled_notify(&polled);
		gcr_poller_finish(&pollers[0]);
	}
	make(0, ALICE);
	arm(0, NULL);
	gcr_pollers_stop();
	gcr_pollers_stop();
	rounds = count_notified();
	gcr_polled_notify(&polled);
	CHECK(count_notified() == rounds);
	gcr_poller_finish(&pollers[0]);
	gcr_polled_finish(&polled);
	CHECK(noted.made == noted.destroyed);
}

int main(void)
{
	test_owners_take_turns();
	test_rounds();
	test_an_owner_goes();
	test_many();
	test_reader();
	test_thread();
	return 0;
}
