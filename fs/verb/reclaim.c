/* SPDX-License-Identifier: MIT */
/*
 * Who gives memory back when the store is too full, and in which order. It runs on the thread of
 * the task that needs the room, and holds no lock: packings are started, or joined, as the verb
 * does it, and looked at until they have ended or there is room.
 */
#include "fs/verb/reclaim.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/credentials.h"
#include "fs/base/quota.h"
#include "fs/pack/pack_table.h"
#include "fs/store/folder.h"
#include "fs/store/store.h"
#include "fs/verb/packing.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

#define LOOK_MSEC   20
/* So often when nothing more can be done. */
#define LOOKS	    2
/* In between it is looked whether the task is to stop; what goes at once may be more. */
#define SPILL_BYTES (64ull << 20)

GCR_DEFINE_CLEANUP(struct gcr_snapshot *, gcr_snapshot_unref);

/* After so long the disk does not answer: others do not wait for it until their deadlines. */
#define SPILL_MOST_USEC (20 * GCR_USEC_PER_SEC)

/* One of all who make room moves bytes to the disk: since when (monotonic). 0: none. */
static atomic_int_least64_t spilling_since_usec;

/* Those that have had their turn, each with a reference. */
struct turns {
	struct gcr_process **processes;
	size_t count;
};

struct reclaim {
	struct gcr_task *task;
	uint64_t bytes; /* that it needs */
	struct gcr_daemon *daemon;
	struct gcr_process *packed; /* that is being packed for us: the last of `turns` */
	struct turns packs;
	struct turns spills;
	struct gcr_error spill_error; /* that is told; number 0: none */
};

static void drop_turns(struct turns *turns)
{
	for (size_t i = 0; i < turns->count; i++)
		gcr_process_unref(turns->processes[i]);
	free(turns->processes);
}

static void finish(struct reclaim *reclaim)
{
	drop_turns(&reclaim->packs);
	drop_turns(&reclaim->spills);
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

	if (gcr_packing_is_under_way(process, GCR_VERB_UNPACK))
		return 0;

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
	return reclaim->packed && gcr_packing_is_under_way(reclaim->packed, GCR_VERB_PACK);
}

/* False: there is nothing left to pack. */
static bool pack_next(struct reclaim *reclaim)
{
	struct gcr_process *process = find_longest_frozen(reclaim, &reclaim->packs, may_pack);
	struct gcr_error error = {0};
	bool is_begun = process && take_turn(&reclaim->packs, process);

	/* What refuses it, another verb perhaps, does not concern us. It is held by `packs`. */
	if (is_begun && !gcr_packing_start_own(reclaim->daemon, process, &error))
		reclaim->packed = process;
	gcr_process_unref(process);
	return is_begun;
}

/* ---- to the disk ---- */

static int64_t may_spill(struct gcr_process *process)
{
	int64_t since_usec = 0;

	pthread_mutex_lock(&process->lock);
	if (process->state == GCR_STATE_FROZEN && !process->task && process->snapshot)
		since_usec = process->frozen_usec;
	pthread_mutex_unlock(&process->lock);
	return since_usec;
}

/* A reference; NULL: a verb has begun. */
static struct gcr_snapshot *hold_idle_snapshot(struct gcr_process *process)
{
	struct gcr_snapshot *snapshot = NULL;

	pthread_mutex_lock(&process->lock);
	if (process->state == GCR_STATE_FROZEN && !process->task && process->snapshot)
		snapshot = gcr_snapshot_ref(process->snapshot);
	pthread_mutex_unlock(&process->lock);
	return snapshot;
}

/* Are these the packed bytes of the user who needs the room? Root may know of all of them. */
static bool are_his(const struct reclaim *reclaim, const struct gcr_snapshot *snapshot)
{
	struct gcr_quota *quota = reclaim->daemon->quota;
	uid_t counted = reclaim->task->command->rights.counted;
	uid_t packed = gcr_snapshot_packed_uid(snapshot);

	return !counted || gcr_quota_owner(quota, packed) == gcr_quota_owner(quota, counted);
}

/*
 * Keep why nothing could go: the words of a limit tell what a user has, and are for him alone; and
 * that a limit was reached says less than that the disk is full, or fails.
 */
static void note_spill_error(struct reclaim *reclaim, const struct gcr_snapshot *snapshot,
			     const struct gcr_error *error)
{
	struct gcr_error *kept = &reclaim->spill_error;

	if (error->number != EDQUOT)
		*kept = *error;
	else if (kept->number && kept->number != EDQUOT)
		return;
	else if (are_his(reclaim, snapshot))
		*kept = *error;
	else if (!kept->number)
		gcr_error_set(kept, EDQUOT, "what others have packed may take no more of the disk");
}

/* Of the longest frozen, packed bytes. False: there are none any more that can go. */
static bool spill_next(struct reclaim *reclaim, uint64_t missing)
{
	_cleanup_(gcr_snapshot_unref_cleanup) struct gcr_snapshot *snapshot = NULL;
	uint64_t wanted_bytes = missing < SPILL_BYTES ? missing : SPILL_BYTES;
	int64_t now_usec = gcr_clock_usec();
	int_least64_t since_usec = 0;
	uint64_t freed_bytes = 0;
	struct gcr_process *process;
	struct gcr_error error = {0};
	bool is_possible = true;

	if (!gcr_store_can_spill(reclaim->daemon->store))
		return false;
	/* What one of them moves is not there for another, who would think that nothing is left. */
	if (!atomic_compare_exchange_strong(&spilling_since_usec, &since_usec, now_usec)) {
		if (now_usec - since_usec >= SPILL_MOST_USEC) {
			gcr_error_set(&reclaim->spill_error, EIO,
				      "the disk of spill= does not answer");
			return false;
		}
		poll(NULL, 0, LOOK_MSEC);
		return true;
	}
	process = find_longest_frozen(reclaim, &reclaim->spills, may_spill);
	if (process)
		snapshot = hold_idle_snapshot(process);
	/* A verb that comes between goes on beside it. */
	if (snapshot)
		gcr_snapshot_spill(snapshot, wanted_bytes, &freed_bytes, &error);
	if (error.number)
		note_spill_error(reclaim, snapshot, &error);
	atomic_store(&spilling_since_usec, 0);
	if (!freed_bytes)
		is_possible = process && take_turn(&reclaim->spills, process);
	gcr_process_unref(process);
	return is_possible;
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
static bool step(struct reclaim *reclaim, uint64_t missing)
{
	const struct gcr_process *process = reclaim->task->process;
	struct gcr_store *store = reclaim->daemon->store;
	struct gcr_store_figures figures;
	bool is_counted_free;

	if (is_being_packed(reclaim)) {
		poll(NULL, 0, LOOK_MSEC);
		return true;
	}
	/*
	 * What goes already is the first to be had. Those who still have what is gone let go of it
	 * soon: the first too, if that is all that is in the way.
	 */
	gcr_store_figures(store, &figures);
	is_counted_free = figures.free_bytes + figures.pool_bytes >= reclaim->bytes;
	return gcr_store_wait_going(store, is_counted_free) || pack_next(reclaim) ||
	       gcr_store_drop_kept_of_others(store, process->pid, process->start_ticks) ||
	       spill_next(reclaim, missing) || gcr_store_wait_going(store, true);
}

/* What the store lacks, and why the disk could not help. */
static int explain(const struct reclaim *reclaim, int result, struct gcr_error *error)
{
	char words[GCR_ERROR_WORDS_MAX];

	if (!result) {
		*error = (struct gcr_error){0}; /* what it lacked before */
	} else if (reclaim->spill_error.number) {
		memcpy(words, error->words, sizeof(words));
		gcr_error_set(error, error->number, "%.250s; %.250s", words,
			      reclaim->spill_error.words);
	}
	return result;
}

/*
 * Whose quota the bytes count against: the owner's of the process, if he has asked for the freeze.
 * A freeze that root has asked for, a thaw, and a verb that is being undone are never refused; what
 * an exchange freezes may take the room that its other process gives back.
 */
static struct gcr_store_payer payer_of(const struct gcr_task *task)
{
	struct gcr_store_payer payer = {0};
	uid_t uid;
	gid_t gid;

	if (task->recovery || task->is_undoing || task->command->verb == GCR_VERB_THAW ||
	    !task->command->rights.counted || gcr_proc_owner(task->process->pid, &uid, &gid) < 0)
		return payer;
	payer.uid = gcr_credentials_counted(task->process->pid, uid);
	if (task->exchange) {
		const struct gcr_process *thawed = gcr_task_sibling(task, 0);

		payer.thawed_pid = thawed->pid;
		payer.thawed_start_ticks = thawed->start_ticks;
	}
	return payer;
}

int gcr_reclaim(struct gcr_task *task, uint64_t bytes, bool *ret_waited, struct gcr_error *error)
{
	bool has_waited = false;
	const struct gcr_process *process = task->process;
	_cleanup_(finish_cleanup) struct reclaim *reclaim =
		&(struct reclaim){.task = task, .daemon = process->daemon, .bytes = bytes};
	const struct gcr_store_payer payer = payer_of(task);
	struct gcr_store *store = process->daemon->store;
	struct gcr_store_figures figures;
	unsigned int looks = 0;

	gcr_store_figures(store, &figures);
	for (;;) {
		uint64_t missing;
		int result;

		if (gcr_task_stopped(task))
			return stopped(reclaim, error);
		result = gcr_store_claim(store, process->pid, process->start_ticks, &payer, bytes,
					 &missing, error);
		/* However much goes, it would not be enough. */
		if (!missing || bytes > figures.size_bytes - figures.reserve_bytes) {
			*ret_waited = has_waited;
			return explain(reclaim, result, error);
		}
		has_waited = true;
		if (step(reclaim, missing))
			continue;
		/* What others have just given up may not be on its way yet. */
		if (looks++ == LOOKS)
			return explain(reclaim, result, error);
		poll(NULL, 0, LOOK_MSEC);
	}
}
