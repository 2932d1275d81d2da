/* SPDX-License-Identifier: MIT */
/*
 * Who gives memory back when the store is too full, and in which order. It runs on the thread of
 * the task that needs the room, and holds no lock: packings are started, or joined, as the verb
 * does it, and looked at until they have ended or there is room.
 */
#include "fs/reclaim.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "fs/folder.h"
#include "fs/pack_table.h"
#include "fs/packing.h"
#include "fs/store.h"
#include "lib/cleanup.h"

#define LOOK_MSEC 20

/* Those that have had their turn, each with a reference. */
struct turns {
	struct gcr_process **processes;
	size_t count;
};

struct reclaim {
	struct gcr_task *task;
	struct gcr_daemon *daemon;
	struct gcr_process *packed; /* that is being packed for us: the last of `turns` */
	struct turns packs;
};

static void finish(struct reclaim *reclaim)
{
	for (size_t i = 0; i < reclaim->packs.count; i++)
		gcr_process_unref(reclaim->packs.processes[i]);
	free(reclaim->packs.processes);
}

GCR_DEFINE_CLEANUP(struct reclaim *, finish);

static bool has_had_turn(const struct turns *turns, const struct gcr_process *process)
{
	for (size_t i = 0; i < turns->count; i++)
		if (turns->processes[i] == process)
			return true;
	return false;
}

static bool take_turn(struct turns *turns, struct gcr_process *process)
{
	struct gcr_process **processes =
		reallocarray(turns->processes, turns->count + 1, sizeof(struct gcr_process *));

	if (!processes)
		return false;
	turns->processes = processes;
	processes[turns->count++] = gcr_process_ref(process);
	return true;
}

/* ---- packing ---- */

/* Since when is it frozen, if packing it may be of use? 0: it is not. */
static int64_t may_pack(struct gcr_process *process)
{
	int64_t since_usec = 0;

	pthread_mutex_lock(&process->lock);
	if (process->state == GCR_STATE_FROZEN && !process->task && process->snapshot &&
	    (!process->was_packed || process->was_unpacked))
		since_usec = process->frozen_usec;
	pthread_mutex_unlock(&process->lock);
	return since_usec;
}

/* The one that is frozen for longest and has not had its turn; a reference. NULL: none. */
static struct gcr_process *find_longest_frozen(const struct reclaim *reclaim,
					       const struct turns *turns,
					       int64_t (*since)(struct gcr_process *process))
{
	struct gcr_process **list = NULL;
	struct gcr_process *found = NULL;
	int64_t found_usec = INT64_MAX;
	size_t count = 0;

	if (gcr_processes_list(reclaim->daemon->processes, &list, &count) < 0)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		int64_t since_usec = has_had_turn(turns, list[i]) ? 0 : since(list[i]);

		if (!since_usec || since_usec >= found_usec)
			continue;
		found = list[i];
		found_usec = since_usec;
	}
	if (found)
		gcr_process_ref(found);
	gcr_processes_list_free(list, count);
	return found;
}

static bool is_being_packed(const struct reclaim *reclaim)
{
	return reclaim->packed && gcr_packing_is_under_way(&reclaim->packed, 1);
}

/* False: there is nothing left to pack. */
static bool pack_next(struct reclaim *reclaim)
{
	const struct gcr_command command = {.verb = GCR_VERB_PACK};
	struct gcr_process *process = find_longest_frozen(reclaim, &reclaim->packs, may_pack);
	struct gcr_error error = {0};
	bool is_begun = process && take_turn(&reclaim->packs, process);

	/* What refuses it, another verb perhaps, does not concern us. */
	if (is_begun) {
		reclaim->packed = process;
		gcr_packing_start(reclaim->daemon, &command, &process, 1, NULL, &error);
	}
	gcr_process_unref(process);
	return is_begun;
}

/* ---- all of it ---- */

/* Who stopped the operation explains it. */
static int stopped(const struct reclaim *reclaim, struct gcr_error *error)
{
	*error = (struct gcr_error){0};
	if (is_being_packed(reclaim))
		gcr_error_set(error, ECANCELED,
			      "the packing of process %d, which makes room in the store, goes on",
			      (int)reclaim->packed->pid);
	return -ECANCELED;
}

/* Of what comes first, one step. False: nothing more can be done. */
static bool step(struct reclaim *reclaim)
{
	const struct gcr_process *process = reclaim->task->process;
	struct gcr_store *store = reclaim->daemon->store;

	if (is_being_packed(reclaim)) {
		poll(NULL, 0, LOOK_MSEC);
		return true;
	}
	/* What goes already is the first to be had, and those who still have it the last. */
	return gcr_store_wait_going(store, false) || pack_next(reclaim) ||
	       gcr_store_drop_kept_of_others(store, process->pid, process->start_ticks) ||
	       gcr_store_wait_going(store, true);
}

int gcr_reclaim(struct gcr_task *task, uint64_t bytes, struct gcr_error *error)
{
	const struct gcr_process *process = task->process;
	_cleanup_(finish_cleanup) struct reclaim *reclaim =
		&(struct reclaim){.task = task, .daemon = process->daemon};
	struct gcr_store *store = process->daemon->store;
	struct gcr_store_figures figures;

	gcr_store_figures(store, &figures);
	for (;;) {
		uint64_t missing;
		int result;

		if (gcr_task_stopped(task))
			return stopped(reclaim, error);
		result = gcr_store_claim(store, process->pid, process->start_ticks, bytes, &missing,
					 error);
		/* However much goes, it would not be enough. */
		if (!missing || bytes > figures.size_bytes - figures.reserve_bytes ||
		    !step(reclaim))
			return result;
	}
}

int gcr_reclaim_to_unpack(struct gcr_task *task, struct gcr_snapshot *snapshot,
			  struct gcr_error *error)
{
	struct gcr_pack_figures figures;

	gcr_folder_pack_figures(gcr_snapshot_folder(snapshot), &figures);
	return figures.pieces ? gcr_reclaim(task, figures.packed_bytes - figures.hole_bytes, error)
			      : 0;
}
