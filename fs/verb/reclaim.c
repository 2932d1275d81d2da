/* SPDX-License-Identifier: MIT */
/*
 * Frees room when the store is too full, in a fixed order. This runs on the thread of the task that
 * needs the room, without locks: packings are started or joined in the same way as by the verb, and
 * polled until they have ended or there is room.
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
#include "fs/store/subtree.h"
#include "fs/store/store.h"
#include "fs/verb/packing.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

#define LOOK_MSEC   20
/* Number of attempts when nothing more can be done. */
#define LOOKS	    2
/*
 * Bytes that one step moves to the disk; a step may move more. A stop of the task is checked
 * between steps.
 */
#define SPILL_BYTES (64ull << 20)

GCR_DEFINE_CLEANUP(struct gcr_snapshot *, gcr_snapshot_unref);

/*
 * After this time of waiting for removals in vain, something else is tried: there may be very many
 * names to remove, or they may be of no use.
 */
#define GOING_USEC GCR_USEC_PER_SEC

/*
 * After this time the disk is regarded as not answering: other tasks do not wait until their
 * deadlines.
 */
#define SPILL_MOST_USEC (20 * GCR_USEC_PER_SEC)

/* Only one task at a time moves bytes to the disk: since when (monotonic). 0: none. */
static atomic_int_least64_t spilling_since_usec;

/* Processes that have had their turn, each with a reference. */
struct turns {
	struct gcr_process **processes;
	size_t count;
};

struct reclaim {
	struct gcr_task *task;
	uint64_t bytes; /* that the task needs */
	struct gcr_daemon *daemon;
	struct gcr_process *packed; /* being packed for this task: the last of `turns` */
	struct turns packs;
	struct turns spills;
	uint64_t least_missing;	      /* so far */
	int64_t going_until_usec;     /* monotonic: until then removals are waited for first */
	struct gcr_error spill_error; /* to be reported; number 0: none */
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

/*
 * Returns the time since which the process is frozen, by the real clock in microseconds. 0: the
 * process is not frozen, or packing is of no use.
 */
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

/* The process that is frozen for longest and has not had its turn; a reference. NULL: none. */
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

/* Start to pack the next process. Returns false if there is nothing left to pack. */
static bool pack_next(struct reclaim *reclaim)
{
	struct gcr_process *process = find_longest_frozen(reclaim, &reclaim->packs, may_pack);
	struct gcr_error error = {0};
	bool is_begun = process && take_turn(&reclaim->packs, process);

	/*
	 * If the packing is refused, perhaps because of another verb, try the next one. `packs`
	 * holds the reference.
	 */
	if (is_begun && !gcr_packing_start_own(reclaim->daemon, process, &error))
		reclaim->packed = process;
	gcr_process_unref(process);
	return is_begun;
}

/* ---- to the disk ---- */

/*
 * As may_pack(), for moving packed bytes to the disk. 0: the process is not frozen, or a verb has
 * begun.
 */
static int64_t may_spill(struct gcr_process *process)
{
	int64_t since_usec = 0;

	pthread_mutex_lock(&process->lock);
	if (process->state == GCR_STATE_FROZEN && !process->task && process->snapshot)
		since_usec = process->frozen_usec;
	pthread_mutex_unlock(&process->lock);
	return since_usec;
}

/*
 * Returns a reference; NULL: the process is not frozen, a verb has begun, or there is no snapshot.
 */
static struct gcr_snapshot *hold_idle_snapshot(struct gcr_process *process)
{
	struct gcr_snapshot *snapshot = NULL;

	pthread_mutex_lock(&process->lock);
	if (process->state == GCR_STATE_FROZEN && !process->task && process->snapshot)
		snapshot = gcr_snapshot_ref(process->snapshot);
	pthread_mutex_unlock(&process->lock);
	return snapshot;
}

/*
 * Do these packed bytes belong to the user who needs the room? Root may know of all users' bytes.
 */
static bool are_his(const struct reclaim *reclaim, const struct gcr_snapshot *snapshot)
{
	struct gcr_quota *quota = reclaim->daemon->quota;
	uid_t counted = reclaim->task->command->rights.counted;
	uid_t packed = gcr_snapshot_packed_uid(snapshot);

	return !counted || gcr_quota_owner(quota, packed) == gcr_quota_owner(quota, counted);
}

/*
 * Keep the reason why nothing could be moved. The message of a quota tells how much a user has, and
 * is for that user alone. An exceeded quota is less important than a disk that is full or fails.
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

/*
 * Move packed bytes of the longest frozen process. Returns false if no bytes are left that can be
 * moved.
 */
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
	/*
	 * A second task would not see the bytes that the first one is moving, and conclude that
	 * none are left.
	 */
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
	/* A verb that begins in between runs in parallel. */
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

/*
 * Returns -ECANCELED. The message is empty unless a packing continues: the caller then adds the
 * reason of the operation's stop.
 */
static int stopped(const struct reclaim *reclaim, struct gcr_error *error)
{
	*error = (struct gcr_error){0};
	if (is_being_packed(reclaim))
		gcr_error_set(error, ECANCELED,
			      "the packing of process %d, which makes room in the store, goes on",
			      (int)reclaim->packed->pid);
	return -ECANCELED;
}

/*
 * Wait for removals under way, if these have made room lately. False: there is nothing to wait for.
 */
static bool wait_going(struct reclaim *reclaim, uint64_t missing, bool with_held)
{
	int64_t now_usec = gcr_clock_usec();

	if (!reclaim->going_until_usec || missing < reclaim->least_missing) {
		reclaim->least_missing = missing;
		reclaim->going_until_usec = now_usec + GOING_USEC;
	}
	return now_usec < reclaim->going_until_usec &&
	       gcr_store_wait_going(reclaim->daemon->store, with_held);
}

/*
 * Take one step of the first method that can free room. Returns false if nothing more can be done.
 */
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
	 * Room that is already being freed comes first. Holders of removed files release them soon;
	 * if that room is sufficient, wait for it before anything else.
	 */
	gcr_store_counted_figures(store, &figures);
	is_counted_free = figures.free_bytes + figures.pool_bytes >= reclaim->bytes;
	return wait_going(reclaim, missing, is_counted_free) || pack_next(reclaim) ||
	       gcr_store_drop_kept_of_others(store, process->pid, process->start_ticks) ||
	       spill_next(reclaim, missing) || gcr_store_wait_going(store, true);
}

/* Set the message: the room that the store lacks, and why the disk could not help. */
static int explain(const struct reclaim *reclaim, int result, struct gcr_error *error)
{
	char words[GCR_ERROR_WORDS_MAX];

	if (!result) {
		*error = (struct gcr_error){0}; /* the message of an earlier attempt */
	} else if (reclaim->spill_error.number) {
		memcpy(words, error->words, sizeof(words));
		gcr_error_set(error, error->number, "%.250s; %.250s", words,
			      reclaim->spill_error.words);
	}
	return result;
}

/*
 * The user whose quota the bytes count against: the process's, if that user has asked for the
 * freeze. A freeze that root has asked for, a thaw, and a verb that is being undone are never
 * refused. The freeze of a swap may use the room that its other process releases.
 */
static struct gcr_store_payer payer_of(const struct gcr_task *task)
{
	struct gcr_store_payer payer = {0};

	if (task->recovery || task->is_undoing || task->command->verb == GCR_VERB_THAW ||
	    !task->command->rights.counted)
		return payer;
	payer.uid = gcr_credentials_payer(task->process->pid);
	if (task->swap) {
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

	gcr_store_counted_figures(store, &figures);
	for (;;) {
		uint64_t missing;
		int result;

		if (gcr_task_stopped(task))
			return stopped(reclaim, error);
		result = gcr_store_claim(store, process->pid, process->start_ticks, &payer, bytes,
					 &missing, error);
		/* Claimed, refused by a quota, or more than the store can ever have. */
		if (!missing || bytes > figures.size_bytes - figures.reserve_bytes) {
			*ret_waited = has_waited;
			return explain(reclaim, result, error);
		}
		has_waited = true;
		if (step(reclaim, missing))
			continue;
		/* Room that others have just released may not be visible yet. */
		if (looks++ == LOOKS)
			return explain(reclaim, result, error);
		poll(NULL, 0, LOOK_MSEC);
	}
}
