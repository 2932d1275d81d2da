/* SPDX-License-Identifier: MIT */
/*
 * The list of requests under way, and the thread that checks it. `watch.lock` guards the list and
 * is held only for a few instructions; the log is written without it.
 */
#include "fs/base/watchdog.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "fs/base/log.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

static struct {
	pthread_mutex_t lock;
	struct gcr_watched *list;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct gcr_watchdog {
	struct gcr_watchdog_config config;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_ending;
	bool is_stuck; /* result of the last check */
};

void gcr_watchdog_begin(struct gcr_watched *watched, const char *kind, uint64_t node,
			const char *name, pid_t pid)
{
	*watched = (struct gcr_watched){
		.kind = kind,
		.name = name,
		.node = node,
		.pid = pid,
		.since_usec = gcr_clock_usec(),
	};
	pthread_mutex_lock(&watch.lock);
	watched->next = watch.list;
	if (watch.list)
		watch.list->previous = watched;
	watch.list = watched;
	pthread_mutex_unlock(&watch.lock);
}

void gcr_watchdog_end(struct gcr_watched *watched)
{
	pthread_mutex_lock(&watch.lock);
	if (watched->previous)
		watched->previous->next = watched->next;
	else
		watch.list = watched->next;
	if (watched->next)
		watched->next->previous = watched->previous;
	pthread_mutex_unlock(&watch.lock);
}

/*
 * Finds the oldest request that has been under way for longer than @legal_usec, copies it, and sets
 * its is_told. In the copy is_told is as it was before.
 */
static bool find_stuck(int64_t legal_usec, struct gcr_watched *ret_copy)
{
	int64_t before_usec = gcr_clock_usec() - legal_usec;
	struct gcr_watched *oldest = NULL;

	pthread_mutex_lock(&watch.lock);
	for (struct gcr_watched *one = watch.list; one; one = one->next)
		if (one->since_usec < before_usec &&
		    (!oldest || one->since_usec < oldest->since_usec))
			oldest = one;
	if (oldest) {
		*ret_copy = *oldest;
		oldest->is_told = true;
	}
	pthread_mutex_unlock(&watch.lock);
	return oldest;
}

static void look(struct gcr_watchdog *watchdog)
{
	struct gcr_watched stuck;
	bool is_stuck = find_stuck(watchdog->config.legal_usec, &stuck);

	if (is_stuck && !stuck.is_told)
		gcr_log(LOG_ERR, stuck.pid,
			"a request (%s of %s, node %#" PRIx64 ") is held up in the daemon for "
			"%" PRId64 " s now%s",
			stuck.kind, stuck.name, stuck.node,
			(gcr_clock_usec() - stuck.since_usec) / GCR_USEC_PER_SEC,
			watchdog->config.well ? "; the service manager is told no more that all is "
						"well"
					      : "");
	if (!is_stuck && watchdog->is_stuck)
		gcr_log(LOG_NOTICE, 0, "no request is held up any more");
	watchdog->is_stuck = is_stuck;
	if (!is_stuck && watchdog->config.well)
		watchdog->config.well();
}

static void *run(void *data)
{
	struct gcr_watchdog *watchdog = data;

	pthread_setname_np(pthread_self(), "gpucrfs-watch");
	pthread_mutex_lock(&watchdog->lock);
	while (!watchdog->is_ending) {
		int64_t until_usec = gcr_clock_usec() + watchdog->config.period_usec;

		pthread_mutex_unlock(&watchdog->lock);
		look(watchdog);
		pthread_mutex_lock(&watchdog->lock);
		while (!watchdog->is_ending &&
		       gcr_cond_wait_until(&watchdog->changed, &watchdog->lock, until_usec) == 0)
			;
	}
	pthread_mutex_unlock(&watchdog->lock);
	return NULL;
}

int gcr_watchdog_create(const struct gcr_watchdog_config *config,
			struct gcr_watchdog **ret_watchdog)
{
	_cleanup_free_ struct gcr_watchdog *watchdog = calloc(1, sizeof(*watchdog));
	int result;

	if (!watchdog)
		return -ENOMEM;
	watchdog->config = *config;
	pthread_mutex_init(&watchdog->lock, NULL);
	pthread_cond_init(&watchdog->changed, NULL);
	result = pthread_create(&watchdog->thread, NULL, run, watchdog);
	if (result)
		return -result;
	*ret_watchdog = TAKE_PTR(watchdog);
	return 0;
}

void gcr_watchdog_destroy(struct gcr_watchdog *watchdog)
{
	if (!watchdog)
		return;
	pthread_mutex_lock(&watchdog->lock);
	watchdog->is_ending = true;
	pthread_cond_signal(&watchdog->changed);
	pthread_mutex_unlock(&watchdog->lock);
	pthread_join(watchdog->thread, NULL);
	free(watchdog);
}
