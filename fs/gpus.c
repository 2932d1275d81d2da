/* SPDX-License-Identifier: MIT */
/*
 * The table of GPUs and the thread that refreshes it. gpus->lock is a leaf; callbacks run with no
 * lock held. The thread keeps its helper while readers come, and lets it go with the workers' idle
 * time.
 */
#include "fs/gpus.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "fs/helper.h"
#include "fs/log.h"
#include "fs/operation.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/uuid.h"

#define FRESH_USEC	  (100 * GCR_USEC_PER_MSEC)
#define READER_WAIT_USEC  (300 * GCR_USEC_PER_MSEC)
#define START_WAIT_USEC	  (30 * GCR_USEC_PER_SEC)
#define QUERY_WAIT_USEC	  (5 * GCR_USEC_PER_SEC)
/* After a failed query readers get what is known at once, for this long. */
#define FAILED_PAUSE_USEC (5 * GCR_USEC_PER_SEC)

struct reader {
	void (*ready)(void *data);
	void *data;
	int64_t until_usec;
	struct reader *next;
};

struct gcr_gpus {
	struct gcr_daemon *daemon;
	pthread_t asker;  /* asks helpers; may wait long */
	pthread_t waiter; /* lets readers go whose time is up */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool stopping;
	bool asking;	      /* a query is wanted or under way */
	int64_t known_usec;   /* when `reply` was asked for, monotonic */
	int64_t expired_usec; /* what was asked for before is wrong */
	int64_t failed_usec;  /* when the last query failed, 0 if it did not */
	struct reader *readers;
	uint32_t admitted;
	struct gcr_gpus_reply reply;
};

/* Keep an answer to a question of @asked_usec, unless a later one is there. Lock held. */
static void keep_locked(struct gcr_gpus *gpus, const struct gcr_gpus_reply *reply,
			int64_t asked_usec)
{
	gpus->failed_usec = 0;
	if (asked_usec < gpus->known_usec)
		return;
	gpus->reply = *reply;
	gpus->known_usec = asked_usec;
}

static void wait_until(struct gcr_gpus *gpus, int64_t usec)
{
	struct timespec until = {usec / GCR_USEC_PER_SEC, usec % GCR_USEC_PER_SEC * 1000};

	pthread_cond_clockwait(&gpus->changed, &gpus->lock, CLOCK_MONOTONIC, &until);
}

/* Call back the readers that need not wait any longer. Lock held; released meanwhile. */
static void release_readers_locked(struct gcr_gpus *gpus, bool all)
{
	int64_t now_usec = gcr_clock_usec();
	struct reader **link = &gpus->readers;
	struct reader *due = NULL;

	while (*link) {
		struct reader *reader = *link;

		if (!all && reader->until_usec > now_usec) {
			link = &reader->next;
			continue;
		}
		*link = reader->next;
		reader->next = due;
		due = reader;
	}
	if (!due)
		return;
	pthread_mutex_unlock(&gpus->lock);
	while (due) {
		struct reader *reader = due;

		due = reader->next;
		reader->ready(reader->data);
		free(reader);
	}
	pthread_mutex_lock(&gpus->lock);
}

static void *let_readers_go(void *data)
{
	struct gcr_gpus *gpus = data;

	pthread_mutex_lock(&gpus->lock);
	while (!gpus->stopping) {
		int64_t next_usec = INT64_MAX;

		release_readers_locked(gpus, !gpus->asking);
		for (struct reader *reader = gpus->readers; reader; reader = reader->next)
			if (reader->until_usec < next_usec)
				next_usec = reader->until_usec;
		if (gpus->stopping)
			break;
		if (next_usec == INT64_MAX)
			pthread_cond_wait(&gpus->changed, &gpus->lock);
		else
			wait_until(gpus, next_usec);
	}
	release_readers_locked(gpus, true);
	pthread_mutex_unlock(&gpus->lock);
	return NULL;
}

/* One question. *helper is kept for the next one, or NULL afterwards. */
static int ask(struct gcr_gpus *gpus, struct gcr_helper **helper, int64_t start_wait_usec,
	       struct gcr_gpus_reply *reply, struct gcr_error *error)
{
	bool is_new = !*helper;
	int result = 0;

	if (is_new)
		result = gcr_helpers_take_control(gpus->daemon->helpers, start_wait_usec, -1,
						  helper, error);
	if (!result)
		result = gcr_helper_request(*helper, GCR_MESSAGE_QUERY, NULL, 0, error);
	if (!result) {
		result = gcr_helper_gpus(*helper, QUERY_WAIT_USEC, -1, reply);
		if (result < 0)
			gcr_error_set(error, -result, "the helper did not answer: %s",
				      strerror(-result));
	}
	if (!result && reply->error)
		result = gcr_error_set(error, reply->error, "%s", reply->words);
	if (result < 0 && *helper) {
		gcr_helper_kill(*helper);
		gcr_helper_put(TAKE_PTR(*helper));
	}
	/* One that was kept may have died long ago. */
	if (result == -EPIPE && !is_new)
		return ask(gpus, helper, start_wait_usec, reply, error);
	return result;
}

static void *refresh(void *data)
{
	struct gcr_gpus *gpus = data;
	int64_t idle_usec = (int64_t)gpus->daemon->options.worker_idle * GCR_USEC_PER_SEC;
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_helper *helper = NULL;
	struct gcr_error error;
	int64_t used_usec = 0;

	pthread_mutex_lock(&gpus->lock);
	while (!gpus->stopping && reply) {
		int64_t asked_usec;
		int result;

		if (!gpus->asking) {
			if (!helper) {
				pthread_cond_wait(&gpus->changed, &gpus->lock);
			} else if (gcr_clock_usec() >= used_usec + idle_usec) {
				pthread_mutex_unlock(&gpus->lock);
				gcr_helper_put(TAKE_PTR(helper));
				pthread_mutex_lock(&gpus->lock);
			} else {
				wait_until(gpus, used_usec + idle_usec);
			}
			continue;
		}
		pthread_mutex_unlock(&gpus->lock);
		asked_usec = gcr_clock_usec();
		result = ask(gpus, &helper, QUERY_WAIT_USEC, reply, &error);
		used_usec = gcr_clock_usec();
		if (result < 0)
			gcr_log(LOG_WARNING, 0, "the GPUs cannot be asked: %s", error.words);
		pthread_mutex_lock(&gpus->lock);
		if (result < 0)
			gpus->failed_usec = gcr_clock_usec();
		else
			keep_locked(gpus, reply, asked_usec);
		/* What became wrong while it was asked for is asked for again. */
		gpus->asking = !result && gpus->readers && gpus->known_usec <= gpus->expired_usec;
		pthread_cond_broadcast(&gpus->changed);
	}
	pthread_mutex_unlock(&gpus->lock);
	gcr_helper_put(helper);
	return NULL;
}

int gcr_gpus_create(struct gcr_daemon *daemon, struct gcr_gpus **ret_gpus, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus *gpus = calloc(1, sizeof(*gpus));
	struct gcr_helper *helper = NULL;
	int result;

	if (!gpus)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gpus->daemon = daemon;
	result = ask(gpus, &helper, START_WAIT_USEC, &gpus->reply, error);
	gcr_helper_put(helper);
	if (result < 0)
		return result;
	if (!gpus->reply.gpus_count)
		return gcr_error_set(error, ENODEV, "the driver shows no GPU");
	gpus->known_usec = gcr_clock_usec();
	pthread_mutex_init(&gpus->lock, NULL);
	pthread_cond_init(&gpus->changed, NULL);
	result = pthread_create(&gpus->asker, NULL, refresh, gpus);
	if (result)
		return gcr_error_set(error, result, "cannot start a thread");
	result = pthread_create(&gpus->waiter, NULL, let_readers_go, gpus);
	if (result) {
		pthread_mutex_lock(&gpus->lock);
		gpus->stopping = true;
		pthread_cond_broadcast(&gpus->changed);
		pthread_mutex_unlock(&gpus->lock);
		pthread_join(gpus->asker, NULL);
		return gcr_error_set(error, result, "cannot start a thread");
	}
	*ret_gpus = TAKE_PTR(gpus);
	return 0;
}

void gcr_gpus_destroy(struct gcr_gpus *gpus)
{
	if (!gpus)
		return;
	pthread_mutex_lock(&gpus->lock);
	gpus->stopping = true;
	pthread_cond_broadcast(&gpus->changed);
	pthread_mutex_unlock(&gpus->lock);
	pthread_join(gpus->asker, NULL);
	pthread_join(gpus->waiter, NULL);
	pthread_cond_destroy(&gpus->changed);
	pthread_mutex_destroy(&gpus->lock);
	free(gpus);
}

void gcr_gpus_when_fresh(struct gcr_gpus *gpus, void (*ready)(void *data), void *data)
{
	int64_t now_usec = gcr_clock_usec();
	struct reader *reader = NULL;

	pthread_mutex_lock(&gpus->lock);
	if (!gpus->stopping &&
	    (gpus->known_usec <= gpus->expired_usec || now_usec - gpus->known_usec > FRESH_USEC) &&
	    (!gpus->failed_usec || now_usec - gpus->failed_usec > FAILED_PAUSE_USEC))
		reader = calloc(1, sizeof(*reader));
	if (reader) {
		*reader = (struct reader){.ready = ready,
					  .data = data,
					  .until_usec = now_usec + READER_WAIT_USEC,
					  .next = gpus->readers};
		gpus->readers = reader;
		gpus->asking = true;
		pthread_cond_broadcast(&gpus->changed);
	}
	pthread_mutex_unlock(&gpus->lock);
	if (!reader)
		ready(data);
}

void gcr_gpus_snapshot(struct gcr_gpus *gpus, struct gcr_gpus_reply *ret_reply)
{
	pthread_mutex_lock(&gpus->lock);
	*ret_reply = gpus->reply;
	pthread_mutex_unlock(&gpus->lock);
}

void gcr_gpus_update(struct gcr_gpus *gpus, const struct gcr_gpus_reply *reply, int64_t asked_usec)
{
	pthread_mutex_lock(&gpus->lock);
	keep_locked(gpus, reply, asked_usec);
	pthread_mutex_unlock(&gpus->lock);
}

void gcr_gpus_expire(struct gcr_gpus *gpus)
{
	pthread_mutex_lock(&gpus->lock);
	gpus->expired_usec = gcr_clock_usec();
	pthread_mutex_unlock(&gpus->lock);
}

uint64_t gcr_gpus_process_bytes(struct gcr_gpus *gpus, pid_t pid)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < gpus->reply.processes_count; i++)
		if (gpus->reply.processes[i].pid == pid)
			bytes += gpus->reply.processes[i].bytes;
	pthread_mutex_unlock(&gpus->lock);
	return bytes;
}

unsigned int gcr_gpus_count(struct gcr_gpus *gpus)
{
	unsigned int count;

	pthread_mutex_lock(&gpus->lock);
	count = gpus->reply.gpus_count;
	pthread_mutex_unlock(&gpus->lock);
	return count;
}

int gcr_gpus_index(struct gcr_gpus *gpus, const uint8_t uuid[GCR_UUID_BYTES])
{
	int index = -ENODEV;

	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < gpus->reply.gpus_count && index < 0; i++)
		if (!memcmp(gpus->reply.gpus[i].uuid, uuid, GCR_UUID_BYTES))
			index = (int)i;
	pthread_mutex_unlock(&gpus->lock);
	return index;
}

bool gcr_gpus_admit(struct gcr_gpus *gpus, uint32_t mask)
{
	bool admitted;

	pthread_mutex_lock(&gpus->lock);
	admitted = !(gpus->admitted & mask);
	if (admitted)
		gpus->admitted |= mask;
	pthread_mutex_unlock(&gpus->lock);
	return admitted;
}

void gcr_gpus_leave(struct gcr_gpus *gpus, uint32_t mask)
{
	pthread_mutex_lock(&gpus->lock);
	gpus->admitted &= ~mask;
	pthread_mutex_unlock(&gpus->lock);
}

void gcr_gpus_format_uuid(const uint8_t uuid[GCR_UUID_BYTES], char *text)
{
	memcpy(text, "GPU-", 4);
	gcr_uuid_format(uuid, text + 4);
}
