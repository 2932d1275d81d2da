/* SPDX-License-Identifier: MIT */
/* Waits for the closes of a passed-through file: how many threads of one owner, and of all. */
#define FUSE_USE_VERSION 314
#include "fs/base/passthrough.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <time.h>

#include "lib/clock.h"
#include "test/unit/test.h"

#define NODE	    0x1234
#define ALICE	    4001
#define BOB	    4002
#define WAIT_USEC   (100 * GCR_USEC_PER_MSEC) /* as in passthrough.c */
#define THREADS	    8
#define WAITS	    3
#define TRIES	    500
#define OWNERS_FULL 4 /* as many occupy what all may have */

/* In place of the kernel, which registers any file. */
int fuse_session_fd(struct fuse_session *session)
{
	return -1;
}

int ioctl(int fd, unsigned long request, ...)
{
	return 1;
}

static atomic_bool is_over;

/* Waits again and again. */
static void *bother(void *data)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	const uid_t *owner = data;

	while (!atomic_load(&is_over)) {
		CHECK(gcr_passthrough_wait(NODE, *owner) == -EBUSY);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

/* Does a wait of this owner really wait? */
static bool waits(uid_t owner)
{
	int64_t began_usec = gcr_clock_usec();

	CHECK(gcr_passthrough_wait(NODE, owner) == -EBUSY);
	return gcr_clock_usec() - began_usec >= WAIT_USEC;
}

/* Is one of its waits refused? The others may take its place between two of them. */
static bool is_refused(uid_t owner)
{
	const struct timespec pause = {.tv_nsec = 20000000};

	for (int i = 0; i < TRIES; i++) {
		if (!waits(owner))
			return true;
		nanosleep(&pause, NULL);
	}
	return false;
}

/* Starts threads that bother, the first with owners[0] and so on. */
static void start(pthread_t *threads, uid_t *owners, int count)
{
	atomic_store(&is_over, false);
	for (int i = 0; i < count; i++)
		CHECK(!pthread_create(&threads[i], NULL, bother, &owners[i]));
}

static void end(const pthread_t *threads, int count)
{
	atomic_store(&is_over, true);
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

static void test_one_owner(void)
{
	pthread_t threads[THREADS];
	uid_t owners[THREADS];

	for (int i = 0; i < THREADS; i++)
		owners[i] = ALICE;
	CHECK(waits(ALICE));
	start(threads, owners, THREADS);
	CHECK(is_refused(ALICE));
	for (int i = 0; i < WAITS; i++)
		CHECK(waits(BOB));
	end(threads, THREADS);
	/* Nothing is left of it. */
	CHECK(waits(ALICE));
}

static void test_all_owners(void)
{
	pthread_t threads[4 * OWNERS_FULL];
	uid_t owners[4 * OWNERS_FULL];

	for (int i = 0; i < 4 * OWNERS_FULL; i++)
		owners[i] = ALICE + (uid_t)(i % OWNERS_FULL);
	start(threads, owners, 4 * OWNERS_FULL);
	CHECK(is_refused(ALICE + OWNERS_FULL));
	end(threads, 4 * OWNERS_FULL);
	CHECK(waits(ALICE + OWNERS_FULL));
}

static void *wait_until_closed(void *data)
{
	atomic_int *result = data;

	atomic_store(result, gcr_passthrough_wait(NODE, ALICE));
	return NULL;
}

/* The close ends a wait that has begun, and there is none after it. */
static void test_close(void)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	int64_t began_usec;
	atomic_int result = 1;
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, wait_until_closed, &result));
	nanosleep(&pause, NULL);
	began_usec = gcr_clock_usec();
	gcr_passthrough_close(NODE);
	pthread_join(thread, NULL);
	CHECK(!atomic_load(&result));
	CHECK(gcr_clock_usec() - began_usec < WAIT_USEC / 2 * TEST_SLOW);
	CHECK(!gcr_passthrough_wait(NODE, ALICE));
}

int main(void)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	CHECK(gcr_passthrough_open(NODE, fd, O_RDONLY, true) == 1);
	close(fd);
	test_one_owner();
	test_all_owners();
	test_close();
	return 0;
}
