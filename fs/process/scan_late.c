/* SPDX-License-Identifier: MIT */
/* Late looks: late->lock guards the table of processes; looks are made without it. */
#include "fs/process/scan_late.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

#define BUCKETS	  256
#define SLOW_USEC (50 * GCR_USEC_PER_MSEC)
#define REST_USEC (1 * GCR_USEC_PER_SEC) /* longest rest */

struct late_entry {
	struct late_entry *next;
	pid_t pid;
	uid_t owner;
	bool is_queued;
	bool is_slow;
	bool is_asked; /* by the pass under way */
	bool has_found;
	unsigned int none_count; /* consecutive looks without a device */
	unsigned int reported;	 /* devices, by the last pass */
	uint64_t queued_number;
	uint64_t served_number; /* of the last look at any process of the owner */
	struct gcr_scan_found found;
};

struct gcr_late {
	struct gcr_late_config config;
	pthread_t thread;
	bool thread_runs;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_ending;
	uint64_t number;
	struct late_entry *buckets[BUCKETS];
};

static struct late_entry *find_locked(struct gcr_late *late, pid_t pid)
{
	struct late_entry *entry = late->buckets[(uint32_t)pid % BUCKETS];

	while (entry && entry->pid != pid)
		entry = entry->next;
	return entry;
}

/* The next entry: of the owner that was served longest ago, the process queued first. */
static struct late_entry *pick_locked(struct gcr_late *late)
{
	struct late_entry *first = NULL;

	for (size_t i = 0; i < BUCKETS; i++)
		for (struct late_entry *one = late->buckets[i]; one; one = one->next)
			if (one->is_queued &&
			    (!first || one->served_number < first->served_number ||
			     (one->served_number == first->served_number &&
			      one->queued_number < first->queued_number)))
				first = one;
	return first;
}

/* Records that @owner has just been served. */
static void note_served_locked(struct gcr_late *late, uid_t owner)
{
	late->number++;
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct late_entry *one = late->buckets[i]; one; one = one->next)
			if (one->owner == owner)
				one->served_number = late->number;
}

/* The number of the last look at a process of @owner; 0: there was none. */
static uint64_t served_number_locked(const struct gcr_late *late, uid_t owner)
{
	for (size_t i = 0; i < BUCKETS; i++)
		for (const struct late_entry *one = late->buckets[i]; one; one = one->next)
			if (one->owner == owner)
				return one->served_number;
	return 0;
}

/* Has the process ended, or is it hidden from us? Other failures say nothing about the process. */
static bool holds_none(int result)
{
	return result == -ESRCH || result == -ENOENT || result == -EACCES;
}

/*
 * Records the result of a look. True: the result differs from the reported devices. A look without
 * a result leaves the known state.
 */
static bool note_found_locked(struct gcr_late *late, pid_t pid, int result, unsigned int devices,
			      uint64_t start_ticks, int64_t took_usec)
{
	struct late_entry *entry = find_locked(late, pid);
	bool is_silent = result == -ETIMEDOUT || result == -EBUSY || result == -EIO;

	if (!entry)
		return false;
	entry->is_slow = is_silent || took_usec > SLOW_USEC;
	if (result < 0 && !holds_none(result))
		return false;
	entry->has_found = true;
	entry->found = (struct gcr_scan_found){.devices = result < 0 ? 0 : devices,
					       .start_ticks = start_ticks};
	entry->none_count = entry->found.devices ? 0 : entry->none_count + 1;
	return entry->found.devices != entry->reported;
}

/* Makes the next look; returns its duration, or -1 if none is queued. */
static int64_t look_at_next(struct gcr_late *late)
{
	int64_t began_usec = gcr_clock_usec();
	unsigned int devices = 0;
	uint64_t start_ticks = 0;
	bool is_other;
	pid_t pid;
	int r;

	{
		struct late_entry *entry;

		GCR_LOCK_SCOPE(&late->lock);
		entry = pick_locked(late);
		if (!entry)
			return -1;
		entry->is_queued = false;
		pid = entry->pid;
		note_served_locked(late, entry->owner);
	}
	r = late->config.look(pid, late->config.wanted, &devices, &start_ticks);
	{
		GCR_LOCK_SCOPE(&late->lock);
		is_other = note_found_locked(late, pid, r, devices, start_ticks,
					     gcr_clock_usec() - began_usec);
	}
	if (is_other)
		late->config.changed(late->config.data);
	return gcr_clock_usec() - began_usec;
}

/* Rests for @usec, or, if that is -1, until a look is queued. False: the thread has to end. */
static bool rest(struct gcr_late *late, int64_t usec)
{
	int64_t until_usec = gcr_clock_usec() + (usec < REST_USEC ? usec : REST_USEC);
	int r = 0;

	GCR_LOCK_SCOPE(&late->lock);
	while (!late->is_ending && r == 0 && (usec >= 0 || !pick_locked(late)))
		r = usec < 0 ? pthread_cond_wait(&late->changed, &late->lock)
			     : gcr_cond_wait_until(&late->changed, &late->lock, until_usec);
	return !late->is_ending;
}

static void *late_thread(void *data)
{
	struct gcr_late *late = data;

	while (rest(late, look_at_next(late)))
		;
	return NULL;
}

int gcr_late_create(const struct gcr_late_config *config, struct gcr_late **ret_late)
{
	struct gcr_late *late = calloc(1, sizeof(*late));
	sigset_t all, old;
	int r;

	if (!late)
		return -ENOMEM;
	late->config = *config;
	pthread_mutex_init(&late->lock, NULL);
	pthread_cond_init(&late->changed, NULL);
	/* The daemon's other threads handle signals. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&late->thread, NULL, late_thread, late);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	late->thread_runs = r == 0;
	if (r < 0) {
		gcr_late_destroy(late);
		return r;
	}
	*ret_late = late;
	return 0;
}

void gcr_late_destroy(struct gcr_late *late)
{
	if (!late)
		return;
	if (late->thread_runs) {
		pthread_mutex_lock(&late->lock);
		late->is_ending = true;
		pthread_cond_broadcast(&late->changed);
		pthread_mutex_unlock(&late->lock);
		pthread_join(late->thread, NULL);
	}
	for (size_t i = 0; i < BUCKETS; i++) {
		while (late->buckets[i]) {
			struct late_entry *entry = late->buckets[i];

			late->buckets[i] = entry->next;
			free(entry);
		}
	}
	pthread_cond_destroy(&late->changed);
	pthread_mutex_destroy(&late->lock);
	free(late);
}

void gcr_late_begin(struct gcr_late *late)
{
	GCR_LOCK_SCOPE(&late->lock);
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct late_entry *one = late->buckets[i]; one; one = one->next)
			one->is_asked = false;
}

void gcr_late_end(struct gcr_late *late)
{
	GCR_LOCK_SCOPE(&late->lock);
	for (size_t i = 0; i < BUCKETS; i++) {
		struct late_entry **link = &late->buckets[i];

		while (*link) {
			struct late_entry *entry = *link;

			if (entry->is_asked) {
				link = &entry->next;
			} else {
				*link = entry->next;
				free(entry);
			}
		}
	}
}

bool gcr_late_is_slow(struct gcr_late *late, pid_t pid)
{
	const struct late_entry *entry;

	GCR_LOCK_SCOPE(&late->lock);
	entry = find_locked(late, pid);
	return entry && entry->is_slow;
}

bool gcr_late_ask(struct gcr_late *late, pid_t pid, uid_t owner, bool is_slow,
		  struct gcr_scan_found *ret_found)
{
	struct late_entry *entry;

	GCR_LOCK_SCOPE(&late->lock);
	entry = find_locked(late, pid);
	if (!entry) {
		struct late_entry **bucket = &late->buckets[(uint32_t)pid % BUCKETS];

		entry = calloc(1, sizeof(*entry));
		/* The next pass asks again. */
		if (!entry)
			return false;
		entry->served_number = served_number_locked(late, owner);
		entry->pid = pid;
		entry->next = *bucket;
		*bucket = entry;
	}
	entry->owner = owner;
	entry->is_asked = true;
	entry->is_slow |= is_slow;
	if (!entry->is_queued) {
		entry->is_queued = true;
		entry->queued_number = ++late->number;
		pthread_cond_broadcast(&late->changed);
	}
	if (entry->has_found)
		*ret_found = entry->found;
	return entry->has_found;
}

void gcr_late_report(struct gcr_late *late, pid_t pid, unsigned int devices)
{
	struct late_entry *entry;

	GCR_LOCK_SCOPE(&late->lock);
	entry = find_locked(late, pid);
	if (entry)
		entry->reported = devices;
}

void gcr_late_note_devices(struct gcr_late *late, pid_t pid, unsigned int devices,
			   uint64_t start_ticks)
{
	struct late_entry *entry;

	GCR_LOCK_SCOPE(&late->lock);
	entry = find_locked(late, pid);
	if (!entry)
		return;
	entry->has_found = true;
	entry->found = (struct gcr_scan_found){.devices = devices, .start_ticks = start_ticks};
	entry->none_count = 0;
}

bool gcr_late_holds_none(struct gcr_late *late, pid_t pid)
{
	const struct late_entry *entry;

	GCR_LOCK_SCOPE(&late->lock);
	entry = find_locked(late, pid);
	return entry && entry->none_count >= 2;
}
