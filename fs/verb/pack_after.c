/* SPDX-License-Identifier: MIT */
/*
 * A separate thread looks at the processes once a second, so that packing depends neither on a
 * library's connection nor on a program that answers. after->lock guards the wake-up flag; while it
 * is held, at most one process's lock is taken.
 */
#include "fs/verb/pack_after.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fs/process/process.h"
#include "fs/verb/packing.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

#define LOOK_USEC	 GCR_USEC_PER_SEC
/*
 * An interrupted packing is tried again after a pause, which doubles each time up to the maximum.
 */
#define AGAIN_FIRST_USEC GCR_USEC_PER_SEC
#define AGAIN_MOST_USEC	 (3600 * GCR_USEC_PER_SEC)

struct gcr_pack_after {
	struct gcr_daemon *daemon;
	pthread_t thread;
	struct gcr_process
		*packed; /* used by the thread only: the process it packed last, a reference */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool stopping;
};

/* Is the process to be packed now? If so, the time of its next attempt is set. */
static bool is_due(const struct gcr_pack_after *after, struct gcr_process *process)
{
	int64_t after_usec = (int64_t)after->daemon->options.pack_after * GCR_USEC_PER_SEC;
	int64_t now_usec = gcr_clock_usec();
	bool is_due;

	pthread_mutex_lock(&process->lock);
	is_due = process->state == GCR_STATE_FROZEN && !process->task && !process->packing &&
		 process->snapshot && !process->was_packed &&
		 gcr_clock_real_usec() - process->frozen_usec >= after_usec &&
		 now_usec >= process->pack_again_usec;
	if (is_due) {
		process->pack_wait_usec = process->pack_wait_usec ? process->pack_wait_usec * 2
								  : AGAIN_FIRST_USEC;
		if (process->pack_wait_usec > AGAIN_MOST_USEC)
			process->pack_wait_usec = AGAIN_MOST_USEC;
		process->pack_again_usec = now_usec + process->pack_wait_usec;
	}
	pthread_mutex_unlock(&process->lock);
	return is_due;
}

/* Start one packing at a time: each can use all idle processors. */
static void look(struct gcr_pack_after *after)
{
	struct gcr_process **list = NULL;
	struct gcr_error error = {0};
	size_t count = 0;

	if (after->packed && gcr_packing_is_under_way(after->packed, GCR_VERB_PACK))
		return;
	gcr_process_unref(TAKE_PTR(after->packed));
	if (gcr_processes_list(after->daemon->processes, &list, &count) < 0)
		return;
	for (size_t i = 0; i < count && !after->packed; i++)
		/* If a verb has begun in between, the attempt fails and is repeated later. */
		if (is_due(after, list[i]) &&
		    !gcr_packing_start_own(after->daemon, list[i], &error))
			after->packed = gcr_process_ref(list[i]);
	gcr_processes_list_free(list, count);
}

static void *run(void *data)
{
	struct gcr_pack_after *after = data;

	pthread_setname_np(pthread_self(), "gpucrfs-after");
	pthread_mutex_lock(&after->lock);
	while (!after->stopping) {
		int64_t until_usec = gcr_clock_usec() + LOOK_USEC;

		pthread_mutex_unlock(&after->lock);
		if (atomic_load(&after->daemon->recovered))
			look(after);
		pthread_mutex_lock(&after->lock);
		while (!after->stopping &&
		       !gcr_cond_wait_until(&after->changed, &after->lock, until_usec))
			;
	}
	pthread_mutex_unlock(&after->lock);
	return NULL;
}

int gcr_pack_after_create(struct gcr_daemon *daemon, struct gcr_pack_after **ret_after)
{
	_cleanup_free_ struct gcr_pack_after *after = NULL;
	int result;

	if (!daemon->options.pack_after)
		return 0;
	after = calloc(1, sizeof(*after));
	if (!after)
		return -ENOMEM;
	after->daemon = daemon;
	pthread_mutex_init(&after->lock, NULL);
	pthread_cond_init(&after->changed, NULL);
	result = pthread_create(&after->thread, NULL, run, after);
	if (result)
		return -result;
	*ret_after = TAKE_PTR(after);
	return 0;
}

void gcr_pack_after_destroy(struct gcr_pack_after *after)
{
	if (!after)
		return;
	pthread_mutex_lock(&after->lock);
	after->stopping = true;
	pthread_cond_broadcast(&after->changed);
	pthread_mutex_unlock(&after->lock);
	pthread_join(after->thread, NULL);
	gcr_process_unref(after->packed);
	pthread_cond_destroy(&after->changed);
	pthread_mutex_destroy(&after->lock);
	free(after);
}
