/* SPDX-License-Identifier: MIT */
/* The history is a list of files, identified by their names and sorted by them. */
#include "fs/process/history.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "lib/cleanup.h"
#include "lib/extent.h"

struct entry {
	char name[GCR_EXTENT_NAME_BYTES];
	struct gcr_digest digest; /* over the digests of its chunks */
	struct timespec time;
};

struct gcr_history {
	size_t count;
	struct entry entries[];
};

void gcr_history_free(struct gcr_history *history)
{
	free(history);
}

GCR_DEFINE_CLEANUP(struct gcr_history *, gcr_history_free);

static int compare(const void *left, const void *right)
{
	return strcmp(((const struct entry *)left)->name, ((const struct entry *)right)->name);
}

static const struct entry *find(const struct gcr_history *history, const struct entry *like)
{
	if (!history)
		return NULL;
	return bsearch(like, history->entries, history->count, sizeof(*like), compare);
}

/* Makes a history with the files' digests and without times, in the order of the files. */
static struct gcr_history *make(const struct gcr_snapshot *snapshot,
				const struct gcr_digest *digests)
{
	size_t count = gcr_snapshot_count(snapshot);
	struct gcr_history *history =
		calloc(1, sizeof(*history) + count * sizeof(history->entries[0]));

	if (!history)
		return NULL;
	history->count = count;
	for (size_t i = 0; i < count; i++) {
		const struct gcr_extent *extent = gcr_snapshot_extent(snapshot, i);
		uint64_t chunks = gcr_digest_count(extent->bytes);

		gcr_extent_name(extent, history->entries[i].name);
		gcr_digest_of(digests, chunks * sizeof(*digests), &history->entries[i].digest);
		digests += chunks;
	}
	return history;
}

/* Stores @history in the process, which takes ownership. */
static void keep(struct gcr_process *process, struct gcr_history *history)
{
	struct gcr_history *old;

	qsort(history->entries, history->count, sizeof(history->entries[0]), compare);
	pthread_mutex_lock(&process->lock);
	old = process->history;
	process->history = history;
	pthread_mutex_unlock(&process->lock);
	gcr_history_free(old);
}

void gcr_history_apply(struct gcr_process *process, const struct gcr_snapshot *snapshot,
		       const struct gcr_digest *digests)
{
	_cleanup_(gcr_history_free_cleanup) struct gcr_history *history = make(snapshot, digests);
	struct timespec now;

	if (!history)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	pthread_mutex_lock(&process->lock);
	for (size_t i = 0; i < history->count; i++) {
		struct entry *entry = &history->entries[i];
		const struct entry *old = find(process->history, entry);

		entry->time = old && gcr_digest_equal(&old->digest, &entry->digest) ? old->time
										    : now;
	}
	pthread_mutex_unlock(&process->lock);
	for (size_t i = 0; i < history->count; i++)
		gcr_snapshot_set_time(snapshot, i, &history->entries[i].time);
	keep(process, TAKE_PTR(history));
}

void gcr_history_begin(struct gcr_process *process, const struct gcr_snapshot *snapshot,
		       const struct gcr_digest *digests)
{
	_cleanup_(gcr_history_free_cleanup) struct gcr_history *history = NULL;
	bool has_one;

	pthread_mutex_lock(&process->lock);
	has_one = process->history;
	pthread_mutex_unlock(&process->lock);
	if (has_one)
		return;
	history = make(snapshot, digests);
	if (!history)
		return;
	for (size_t i = 0; i < history->count; i++) {
		struct stat stat;

		if (gcr_snapshot_stat(snapshot, i, &stat) < 0)
			return;
		history->entries[i].time = stat.st_mtim;
	}
	keep(process, TAKE_PTR(history));
}
