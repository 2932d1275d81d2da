/* SPDX-License-Identifier: MIT */
/*
 * Errands (slow work for a user's process, in one of a limited number of slots): a user who begins
 * many at once gets no more than a user's slots, and other users get theirs. Also with subordinate
 * ids, and when all users together have many.
 */
#include "fs/base/errand.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/clock.h"
#include "test/unit/test.h"

#define ALICE 4001
#define BOB   4002
#define SUBS  100000 /* first of the ids subordinate to Alice */
#define MANY  20

static char directory[] = "/tmp/test-errand-XXXXXX";
static struct gcr_quota *quota;
static atomic_int begun, refused, stopped;
static atomic_bool stop;

static int is_stopped(void *data)
{
	return atomic_load(&stop);
}

static int begin(enum gcr_errand_kind kind, uid_t uid, int64_t patience_usec,
		 struct gcr_errand **ret_errand, struct gcr_error *error)
{
	return gcr_errand_begin(quota, kind, uid,
				&(struct gcr_errand_wait){
					.is_stopped = is_stopped,
					.deadline_usec = gcr_clock_usec() + patience_usec,
				},
				ret_errand, error);
}

/* A thread of the attacker: begins one errand as Alice. */
static void *attack(void *data)
{
	struct gcr_errand **errand = data;
	struct gcr_error error;
	int result = begin(GCR_ERRAND_LOOK, ALICE, 60 * GCR_USEC_PER_SEC, errand, &error);

	if (!result)
		atomic_fetch_add(&begun, 1);
	else if (result == -EBUSY && strstr(error.words, "user 4001"))
		atomic_fetch_add(&refused, 1);
	else if (result == -ECANCELED && !*error.words)
		atomic_fetch_add(&stopped, 1);
	return NULL;
}

/*
 * Many errands begin at once, and none is left behind before all have asked for a slot; then the
 * running ones are left (gcr_errand_leave()), and the waiting ones fail.
 */
static void test_many_at_once(void)
{
	struct gcr_errand *his[MANY] = {NULL}, *others;
	pthread_t threads[MANY];
	struct gcr_error error;

	for (int i = 0; i < MANY; i++)
		CHECK(!pthread_create(&threads[i], NULL, attack, &his[i]));
	usleep(300 * GCR_USEC_PER_MSEC);
	CHECK(atomic_load(&begun) == GCR_ERRAND_USER_MAX);
	for (int i = 0; i < MANY; i++)
		if (his[i])
			gcr_errand_leave(his[i]);
	for (int i = 0; i < MANY; i++)
		pthread_join(threads[i], NULL);
	CHECK(atomic_load(&begun) == GCR_ERRAND_USER_MAX);
	CHECK(atomic_load(&refused) == MANY - GCR_ERRAND_USER_MAX);

	/*
	 * Other users, root and errands of another kind begin at once; a subordinate id of Alice is
	 * refused with a message about the kind of errand that asks.
	 */
	CHECK(!begin(GCR_ERRAND_LOOK, BOB, 0, &others, &error));
	gcr_errand_end(others);
	CHECK(!begin(GCR_ERRAND_LOOK, 0, 0, &others, &error));
	gcr_errand_end(others);
	CHECK(!begin(GCR_ERRAND_DIGEST, ALICE, 0, &others, &error));
	gcr_errand_end(others);
	CHECK(begin(GCR_ERRAND_LOOK, SUBS + 5, 0, &others, &error) == -EBUSY);
	CHECK(strstr(error.words, "looks at what processes of user 4001 have open still wait"));

	/* A slot that was left behind is free again when its errand ends, not before. */
	for (int i = 0, left = GCR_ERRAND_USER_MAX; i < MANY; i++) {
		if (!his[i])
			continue;
		CHECK(begin(GCR_ERRAND_LOOK, ALICE, 0, &others, &error) ==
		      (left == GCR_ERRAND_USER_MAX ? -EBUSY : 0));
		if (left-- < GCR_ERRAND_USER_MAX)
			gcr_errand_end(others);
		gcr_errand_end(his[i]);
	}
	gcr_errand_end(NULL);
}

/* A waiting errand gets the slot of one that ends; a wait can also be stopped or time out. */
static void test_wait(void)
{
	struct gcr_errand *own[GCR_ERRAND_USER_MAX], *waiting = NULL;
	struct gcr_error error;
	pthread_t thread;

	for (int i = 0; i < GCR_ERRAND_USER_MAX; i++)
		CHECK(!begin(GCR_ERRAND_LOOK, ALICE, 0, &own[i], &error));
	CHECK(begin(GCR_ERRAND_LOOK, ALICE, 100 * GCR_USEC_PER_MSEC, &waiting, &error) ==
	      -ETIMEDOUT);
	CHECK(strstr(error.words, "user 4001"));
	atomic_store(&begun, 0);
	CHECK(!pthread_create(&thread, NULL, attack, &waiting));
	usleep(100 * GCR_USEC_PER_MSEC);
	CHECK(!atomic_load(&begun));
	gcr_errand_end(own[0]);
	pthread_join(thread, NULL);
	CHECK(atomic_load(&begun) == 1);
	CHECK(!pthread_create(&thread, NULL, attack, &own[0]));
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	CHECK(atomic_load(&stopped) == 1);
	atomic_store(&stop, false);
	gcr_errand_end(waiting);
	for (int i = 1; i < GCR_ERRAND_USER_MAX; i++)
		gcr_errand_end(own[i]);
}

/* Many users together leave root's own slots free. */
static void test_all(void)
{
	struct gcr_errand *all[GCR_ERRAND_ALL_MAX], *roots[GCR_ERRAND_ROOT_MAX], *more;
	struct gcr_error error;

	for (unsigned int i = 0; i < GCR_ERRAND_ALL_MAX; i++) {
		CHECK(!begin(GCR_ERRAND_LOOK, 5000 + i, 0, &all[i], &error));
		gcr_errand_leave(all[i]);
	}
	CHECK(begin(GCR_ERRAND_LOOK, BOB, 0, &more, &error) == -EBUSY);
	CHECK(strstr(error.words, "all users together"));
	for (int i = 0; i < GCR_ERRAND_ROOT_MAX; i++) {
		CHECK(!begin(GCR_ERRAND_LOOK, 0, 0, &roots[i], &error));
		gcr_errand_leave(roots[i]);
	}
	CHECK(begin(GCR_ERRAND_LOOK, 0, 0, &more, &error) == -EBUSY);
	gcr_errand_end(all[0]);
	CHECK(!begin(GCR_ERRAND_LOOK, BOB, 0, &all[0], &error));
	for (int i = 0; i < GCR_ERRAND_ROOT_MAX; i++)
		gcr_errand_end(roots[i]);
	for (int i = 0; i < GCR_ERRAND_ALL_MAX; i++)
		gcr_errand_end(all[i]);
}

int main(void)
{
	const struct gcr_quota_limits limits = {0};
	char path[64];
	FILE *file;

	CHECK(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/subuid", directory);
	file = fopen(path, "w");
	CHECK(file && fprintf(file, "%d:%d:65536\n", ALICE, SUBS) > 0 && !fclose(file));
	CHECK(!chmod(path, 0644));
	CHECK(!gcr_quota_create(&limits, path, 0, &quota));
	test_many_at_once();
	test_wait();
	test_all();
	gcr_quota_destroy(quota);
	unlink(path);
	rmdir(directory);
	return 0;
}
