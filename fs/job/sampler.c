/* SPDX-License-Identifier: MIT */
/*
 * The sampling thread. sampler->lock guards the wake-up flags; the thread holds no other lock
 * during a request to a library, and takes a library only if no verb has it.
 */
#include "fs/job/sampler.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/helper/helper.h"
#include "fs/job/recover.h"
#include "fs/process/library.h"
#include "fs/process/listed.h"
#include "fs/process/pin.h"
#include "fs/process/wanted.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/extent.h"
#include "lib/lock.h"
#include "lib/proc_page.h"

GCR_DEFINE_CLEANUP(struct gcr_snapshot *, gcr_snapshot_unref);

/* Number of samples without a change after which a table is worth having files for. */
#define STEADY_SAMPLES 3
/* How long a running program's agent may take for an answer that needs no GPU. */
#define ANSWER_USEC    (1 * GCR_USEC_PER_SEC)
/* Pause after an agent did not answer; doubled each time, up to the maximum. */
#define PAUSE_USEC     (1 * GCR_USEC_PER_SEC)
#define PAUSE_MAX_USEC (64 * GCR_USEC_PER_SEC)
#define OWNERS_MAX     64 /* owners whose waits are counted separately */

/* How long a pass has waited for the libraries of a user. */
struct wait {
	uid_t owner;
	int64_t usec;
};

struct gcr_sampler {
	struct gcr_daemon *daemon;
	pthread_t thread;
	unsigned int workers_ended;    /* used by the thread only: count at the last pass */
	int64_t recover_again_usec;    /* likewise: see gcr_recover_missed() */
	struct wait waits[OWNERS_MAX]; /* likewise, of this pass */
	size_t waits_count;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool woken;
	bool stopping;
};

/* The entry of the process's owner; owners beyond the table share the last entry. */
static struct wait *wait_of(struct gcr_sampler *sampler, struct gcr_process *process)
{
	uid_t owner = gcr_process_event_owner(process);
	size_t i = 0;

	while (i < sampler->waits_count && sampler->waits[i].owner != owner)
		i++;
	if (i == OWNERS_MAX)
		return &sampler->waits[OWNERS_MAX - 1];
	if (i == sampler->waits_count)
		sampler->waits[sampler->waits_count++] = (struct wait){.owner = owner};
	return &sampler->waits[i];
}

/*
 * Note the answer to a request sent at @asked_usec. Libraries of one user that do not answer must
 * not delay the pass for all users.
 */
static void note_answer(struct gcr_process *process, struct wait *wait, int64_t asked_usec,
			int result)
{
	int64_t now_usec = gcr_clock_usec();

	wait->usec += now_usec - asked_usec;
	if (!result) {
		process->ask_wait_usec = 0;
		return;
	}
	process->ask_wait_usec = process->ask_wait_usec ? 2 * process->ask_wait_usec : PAUSE_USEC;
	if (process->ask_wait_usec > PAUSE_MAX_USEC)
		process->ask_wait_usec = PAUSE_MAX_USEC;
	process->ask_again_usec = now_usec + process->ask_wait_usec;
}

/*
 * Send one request to a library that no verb has. The caller owns the answer's descriptors. The
 * request is sent only if @is_wanted (or NULL) agrees while the sampler has the library: then no
 * verb proceeds, so the condition cannot change. -EAGAIN: not wanted now, or this library, or
 * others of the same user, did not answer before.
 */
static int ask(struct gcr_sampler *sampler, struct gcr_process *process, uint16_t type,
	       struct gcr_message *message, bool (*is_wanted)(struct gcr_process *))
{
	struct wait *wait = wait_of(sampler, process);
	int64_t asked_usec = gcr_clock_usec();
	struct gcr_library *library = NULL;
	struct gcr_error error;
	int result;

	if (wait->usec >= ANSWER_USEC ||
	    (process->ask_wait_usec && asked_usec < process->ask_again_usec))
		return -EAGAIN;
	result = gcr_library_take(process, 0, &library, &error);
	if (result < 0)
		return result;
	if (is_wanted && !is_wanted(process)) {
		gcr_library_put(library);
		return -EAGAIN;
	}
	result = gcr_library_request(library, type, NULL, 0, NULL, 0, &error);
	if (!result)
		result = gcr_library_receive(library, ANSWER_USEC, message);
	gcr_library_put(library);
	note_answer(process, wait, asked_usec, result);
	if (!result && message->header.type != GCR_MESSAGE_RESULT) {
		gcr_message_close_fds(message);
		result = -EPROTO;
	}
	return result;
}

/*
 * Have pool files made for the memory that the program has now. A failure is retried at the next
 * sample.
 */
static void refresh_pool(struct gcr_sampler *sampler, struct gcr_process *process,
			 struct gcr_message *message)
{
	_cleanup_(gcr_snapshot_unref_cleanup) struct gcr_snapshot *kept = NULL;
	struct gcr_store *store = sampler->daemon->store;
	_cleanup_free_ struct gcr_extent *extents = NULL;
	struct gcr_result answer;
	uint8_t gpu[GCR_UUID_BYTES] = {0};
	struct gcr_error error;
	size_t count = 0;
	bool has_gpu;

	if (ask(sampler, process, GCR_MESSAGE_LIST, message, NULL) < 0)
		return;
	gcr_message_payload(message, &answer, sizeof(answer));
	if (answer.error) {
		gcr_message_close_fds(message);
		return;
	}
	if (message->fds_count == 1 &&
	    gcr_proc_extents(process->pid, message->fds[0], &extents, &count, &error) < 0)
		count = 0;
	gcr_message_close_fds(message);
	if (gcr_listed_check(sampler->daemon, extents, count, &error) < 0)
		return;
	/*
	 * Pool files belong to no GPU until they are used; with several GPUs the worker is not
	 * known.
	 */
	has_gpu = count > 0;
	for (size_t i = 1; i < count; i++)
		if (memcmp(extents[i].gpu, extents[0].gpu, GCR_UUID_BYTES))
			has_gpu = false;
	if (count)
		memcpy(gpu, extents[0].gpu, GCR_UUID_BYTES);
	kept = gcr_store_find_kept(store, process->pid, process->start_ticks);
	count = gcr_store_not_kept(kept, extents, count);
	pthread_mutex_lock(&process->lock);
	/* A freeze that has begun has taken its files, or will; it needs no new ones. */
	if (process->state != GCR_STATE_RUNNING || process->task) {
		pthread_mutex_unlock(&process->lock);
		return;
	}
	gcr_store_pool(store, process->pid, process->start_ticks, extents, count);
	process->has_pool_gpu = has_gpu;
	memcpy(process->pool_gpu, gpu, GCR_UUID_BYTES);
	process->pinned_by = 0;
	process->has_steady_pool = true;
	pthread_mutex_unlock(&process->lock);
}

/*
 * Does the daemon take the process for frozen, while its library has not received COMMIT? Then its
 * VRAM is not free yet.
 */
static bool is_uncommitted(struct gcr_process *process)
{
	struct gcr_page_facts facts;
	bool is_frozen;

	pthread_mutex_lock(&process->lock);
	is_frozen = process->state == GCR_STATE_FROZEN && !process->task && process->snapshot;
	pthread_mutex_unlock(&process->lock);
	return is_frozen && !gcr_library_facts(process, &facts) &&
	       facts.phase == GCR_PRELOAD_HANDED;
}

static void tell_commit(struct gcr_sampler *sampler, struct gcr_process *process,
			struct gcr_message *message)
{
	if (is_uncommitted(process) &&
	    !ask(sampler, process, GCR_MESSAGE_COMMIT, message, is_uncommitted))
		gcr_message_close_fds(message);
}

/* Notes that no worker has the process's pool files pinned: the one that had has ended. */
static void forget_pins(struct gcr_process *process)
{
	pthread_mutex_lock(&process->lock);
	process->pinned_by = 0;
	pthread_mutex_unlock(&process->lock);
}

static void sample(struct gcr_sampler *sampler, struct gcr_process *process,
		   struct gcr_message *message)
{
	struct gcr_page_facts facts;
	bool refresh = false;

	if (gcr_library_facts(process, &facts) < 0)
		return;
	pthread_mutex_lock(&process->lock);
	if (!process->active_usec || process->submissions != facts.submissions) {
		process->submissions = facts.submissions;
		process->active_usec = gcr_clock_usec();
	}
	if (process->table_changes != facts.table_changes) {
		process->table_changes = facts.table_changes;
		process->steady_samples = 0;
		process->has_steady_pool = false;
	} else if (process->steady_samples < STEADY_SAMPLES) {
		process->steady_samples++;
	}
	refresh = process->steady_samples == STEADY_SAMPLES && !process->has_steady_pool &&
		  process->state == GCR_STATE_RUNNING && !process->task;
	pthread_mutex_unlock(&process->lock);
	if (facts.wanting)
		gcr_wanted_look(process);
	if (facts.phase == GCR_PRELOAD_HANDED)
		tell_commit(sampler, process, message);
	if (facts.phase == GCR_PRELOAD_HANDED || facts.phase == GCR_PRELOAD_OUT ||
	    facts.phase == GCR_PRELOAD_INCOMING)
		gcr_recover_late(process);
	else if (facts.phase == GCR_PRELOAD_RUNNING)
		gcr_recover_returned(process);
	gcr_pin_files(sampler->daemon, process);
	if (refresh && sampler->daemon->options.pool_bytes && facts.flags & GCR_PAGE_VMM)
		refresh_pool(sampler, process, message);
}

/* Sample all processes. Returns true if there is any library to look at. */
static bool sample_all(struct gcr_sampler *sampler, struct gcr_message *message)
{
	unsigned int ended = 0;
	struct gcr_process **list = NULL;
	size_t count = 0;
	bool any = false;

	sampler->waits_count = 0;
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		ended += gcr_helpers_workers_ended(sampler->daemon->vendors[i].helpers);
	if (gcr_processes_list(sampler->daemon->processes, &list, &count) < 0)
		return true;
	for (size_t i = 0; i < count; i++) {
		pthread_mutex_lock(&list[i]->lock);
		any = any || list[i]->library;
		pthread_mutex_unlock(&list[i]->lock);
		if (ended != sampler->workers_ended)
			forget_pins(list[i]);
		sample(sampler, list[i], message);
	}
	gcr_processes_list_free(list, count);
	sampler->workers_ended = ended;
	return any;
}

static void *run(void *data)
{
	struct gcr_sampler *sampler = data;
	_cleanup_free_ struct gcr_message *message = malloc(sizeof(*message));
	bool any = false;

	if (!message)
		return NULL;
	pthread_mutex_lock(&sampler->lock);
	while (!sampler->stopping) {
		int64_t until_usec;

		sampler->woken = false;
		pthread_mutex_unlock(&sampler->lock);
		any = sample_all(sampler, message);
		any |= gcr_recover_missed(sampler->daemon, &sampler->recover_again_usec);
		pthread_mutex_lock(&sampler->lock);
		if (!any) {
			while (!sampler->woken && !sampler->stopping)
				pthread_cond_wait(&sampler->changed, &sampler->lock);
			continue;
		}
		until_usec = gcr_clock_usec() + GCR_SAMPLE_MSEC * GCR_USEC_PER_MSEC;
		while (!sampler->stopping &&
		       !gcr_cond_wait_until(&sampler->changed, &sampler->lock, until_usec))
			;
	}
	pthread_mutex_unlock(&sampler->lock);
	return NULL;
}

static void process_registered(struct gcr_process *process)
{
	gcr_sampler_wake(process->daemon->sampler);
}

int gcr_sampler_create(struct gcr_daemon *daemon, struct gcr_sampler **ret_sampler)
{
	static const struct gcr_process_listener listener = {.registered = process_registered};
	_cleanup_free_ struct gcr_sampler *sampler = calloc(1, sizeof(*sampler));
	int result;

	if (!sampler)
		return -ENOMEM;
	sampler->daemon = daemon;
	pthread_mutex_init(&sampler->lock, NULL);
	pthread_cond_init(&sampler->changed, NULL);
	result = pthread_create(&sampler->thread, NULL, run, sampler);
	if (result)
		return -result;
	*ret_sampler = TAKE_PTR(sampler);
	gcr_processes_listen(daemon->processes, &listener);
	return 0;
}

void gcr_sampler_destroy(struct gcr_sampler *sampler)
{
	if (!sampler)
		return;
	pthread_mutex_lock(&sampler->lock);
	sampler->stopping = true;
	pthread_cond_broadcast(&sampler->changed);
	pthread_mutex_unlock(&sampler->lock);
	pthread_join(sampler->thread, NULL);
	pthread_cond_destroy(&sampler->changed);
	pthread_mutex_destroy(&sampler->lock);
	free(sampler);
}

void gcr_sampler_wake(struct gcr_sampler *sampler)
{
	if (!sampler)
		return;
	pthread_mutex_lock(&sampler->lock);
	sampler->woken = true;
	pthread_cond_broadcast(&sampler->changed);
	pthread_mutex_unlock(&sampler->lock);
}

int64_t gcr_sampler_idle_msec(struct gcr_process *process)
{
	int64_t active_usec;

	pthread_mutex_lock(&process->lock);
	active_usec = process->active_usec;
	pthread_mutex_unlock(&process->lock);
	return active_usec ? (gcr_clock_usec() - active_usec) / GCR_USEC_PER_MSEC : -1;
}
