/* SPDX-License-Identifier: MIT */
/*
 * The GPUs that a frozen process is on, and those that it goes to: see driver_session.h. Contents
 * are named after the GPU that they were frozen on. Their place is the GPU that they are on now.
 */
#include "fs/engine/driver_session.h"

#include <errno.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/process/gpus.h"
#include "lib/cleanup.h"

static const uint8_t *place_of(const struct gcr_moves *moves, const uint8_t uuid[GCR_UUID_BYTES])
{
	for (uint32_t i = 0; i < moves->count; i++)
		if (!memcmp(moves->pairs[i].from, uuid, GCR_UUID_BYTES))
			return moves->pairs[i].to;
	return uuid;
}

static bool is_same(const uint8_t one[GCR_UUID_BYTES], const uint8_t other[GCR_UUID_BYTES])
{
	return !memcmp(one, other, GCR_UUID_BYTES);
}

/* Lists the moves of driver->pairs that lead to another GPU. */
static void take_destinations(const struct gcr_driver_session *driver, struct gcr_moves *ret_moves)
{
	ret_moves->count = 0;
	for (uint32_t i = 0; i < driver->pairs_count; i++)
		if (!is_same(driver->pairs[i].from, driver->pairs[i].to))
			ret_moves->pairs[ret_moves->count++] = driver->pairs[i];
}

static struct gcr_moves moved_of(struct gcr_process *process)
{
	struct gcr_moves moved;

	pthread_mutex_lock(&process->lock);
	moved = process->moved;
	pthread_mutex_unlock(&process->lock);
	return moved;
}

/* May contents of GPU @from go to GPU @to (the daemon's indexes)? 0, or -EOPNOTSUPP. */
static int check_pair(struct gcr_driver_session *driver, uint32_t from, uint32_t to,
		      struct gcr_error *error)
{
	struct gcr_vendor *old = gcr_gpus_vendor(driver->daemon->gpus, from);
	struct gcr_vendor *new = gcr_gpus_vendor(driver->daemon->gpus, to);

	if (from == to || !old || !new)
		return 0;
	if (old != new)
		return gcr_error_set(error, EOPNOTSUPP,
				     "gpu=%u:%u: GPU %u is of %s, and GPU %u of %s", from, to, from,
				     old->backend->vendor, to, new->backend->vendor);
	if (!driver->vendor->backend->has_control && old == driver->vendor)
		return gcr_error_set(error, EOPNOTSUPP,
				     "gpu=%u:%u: its queues have stayed on GPU %u, and its memory "
				     "cannot be on another one",
				     from, to, from);
	return 0;
}

static int make_pairs(struct gcr_driver_session *driver, bool needs_all, struct gcr_error *error)
{
	const struct gcr_command *command = driver->task->command;
	_cleanup_free_ struct gcr_gpus_reply *reply = NULL;
	uint32_t to[GCR_GPUS_MAX];
	int result;

	if (!command->gpu_pairs_count && !needs_all)
		return 0;
	if (driver->pairs_count && command->gpu_pairs_count)
		return gcr_error_set(error, EBUSY,
				     "it comes from other GPUs, and has its places here already");
	reply = calloc(1, sizeof(*reply));
	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_gpus_snapshot(driver->daemon->gpus, reply);
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		to[i] = i;
	for (unsigned int i = 0; i < command->gpu_pairs_count; i++) {
		uint32_t from = command->gpu_pairs[i].from;
		uint32_t wanted = command->gpu_pairs[i].to;
		uint32_t holder = 0;

		if (from >= reply->gpus_count || wanted >= reply->gpus_count)
			return gcr_error_set(error, ENODEV, "gpu=%u:%u: there are %u GPUs", from,
					     wanted, reply->gpus_count);
		result = check_pair(driver, from, wanted, error);
		if (result < 0)
			return result;
		while (to[holder] != wanted)
			holder++;
		to[holder] = to[from];
		to[from] = wanted;
	}
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		struct gcr_gpu_pair *pair = &driver->pairs[driver->pairs_count];

		/* The driver knows nothing of the other vendors' GPUs. */
		if (gcr_gpus_vendor(driver->daemon->gpus, i) != driver->vendor)
			continue;
		memcpy(pair->from, reply->gpus[i].uuid, GCR_UUID_BYTES);
		memcpy(pair->to, reply->gpus[to[i]].uuid, GCR_UUID_BYTES);
		driver->pairs_count++;
	}
	return 0;
}

/*
 * Sets the moves that the next Restore asks for: one for every GPU, or none if every GPU's contents
 * are in place already.
 */
static void ask_for_moves(struct gcr_driver_session *driver, const struct gcr_moves *moved)
{
	struct gcr_moves *asked = &driver->asked_moves;
	bool is_other = false;

	asked->count = driver->pairs_count;
	for (uint32_t i = 0; i < driver->pairs_count; i++) {
		struct gcr_gpu_pair *pair = &asked->pairs[i];

		memcpy(pair->from, place_of(moved, driver->pairs[i].from), GCR_UUID_BYTES);
		memcpy(pair->to, driver->pairs[i].to, GCR_UUID_BYTES);
		is_other |= !is_same(pair->from, pair->to);
	}
	if (!is_other)
		asked->count = 0;
}

int gcr_driver_make_pairs(struct gcr_driver_session *driver, struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	struct gcr_moves moved = moved_of(process);
	int result;

	pthread_mutex_lock(&process->lock);
	driver->pairs_count = process->moves_count;
	memcpy(driver->pairs, process->moves, sizeof(driver->pairs));
	pthread_mutex_unlock(&process->lock);
	/*
	 * Contents that an undone thaw left on another GPU go back, unless the command sends them
	 * elsewhere.
	 */
	result = make_pairs(driver, moved.count && !driver->pairs_count, error);
	if (!result)
		ask_for_moves(driver, &moved);
	return result;
}

int gcr_driver_follow_context(struct gcr_driver_session *driver, enum gcr_control_state control,
			      struct gcr_error *error)
{
	struct gcr_moves moved = moved_of(driver->process);
	struct gcr_gpus *gpus = driver->daemon->gpus;

	/*
	 * State that HIP leaves on a GPU is where CRIU's plugin has restored it: the plugin's pairs
	 * say so.
	 */
	if (control == GCR_CONTROL_CHECKPOINTED || !driver->vendor->backend->has_control)
		return 0;
	for (uint32_t i = 0; i < driver->pairs_count; i++) {
		const struct gcr_gpu_pair *pair = &driver->pairs[i];
		const uint8_t *place = place_of(&moved, pair->from);

		if (driver->task->command->gpu_pairs_count && !is_same(place, pair->to))
			return gcr_error_set(
				error, EOPNOTSUPP,
				"what was on GPU %d cannot go to GPU %d: its context has stayed on "
				"GPU %d, as after freeze data; thaw it there, and freeze all of it",
				gcr_gpus_index(gpus, pair->from), gcr_gpus_index(gpus, pair->to),
				gcr_gpus_index(gpus, place));
		memcpy(driver->pairs[i].to, place, GCR_UUID_BYTES);
	}
	driver->asked_moves.count = 0;
	return 0;
}

static bool goes_there(const struct gcr_driver_session *driver, const struct gcr_moves *moved)
{
	bool is_so = true;

	for (uint32_t i = 0; i < driver->pairs_count; i++)
		is_so &= is_same(place_of(moved, driver->pairs[i].from), driver->pairs[i].to);
	for (uint32_t i = 0; i < moved->count; i++)
		is_so &= is_same(gcr_driver_destination(driver, moved->pairs[i].from),
				 moved->pairs[i].to);
	return is_so;
}

/*
 * Notes that a Restore of an earlier daemon was made, to the GPUs that that daemon asked for. -EIO:
 * those are not the GPUs of this verb.
 */
static int note_earlier(struct gcr_driver_session *driver, struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	struct gcr_moves moved;

	pthread_mutex_lock(&process->lock);
	process->moved = process->moving;
	process->may_have_moved = false;
	pthread_mutex_unlock(&process->lock);
	moved = moved_of(process);
	return goes_there(driver, &moved)
		       ? 0
		       : gcr_error_set(error, EIO,
				       "what an earlier daemon had begun has "
				       "brought it to other GPUs meanwhile; thaw "
				       "tries again");
}

int gcr_driver_note_places(struct gcr_driver_session *driver, bool is_ours, struct gcr_error *error)
{
	struct gcr_process *process = driver->process;
	struct gcr_error record_error;
	bool is_known, is_earlier;
	int result = 0;

	pthread_mutex_lock(&process->lock);
	is_earlier = !is_ours && process->may_have_moved;
	is_known = !is_earlier && !driver->asked_moves.count;
	if (!is_known && !is_earlier)
		take_destinations(driver, &process->moved);
	process->may_have_moved &= is_earlier;
	pthread_mutex_unlock(&process->lock);
	if (is_earlier)
		result = note_earlier(driver, error);
	driver->asked_moves.count = 0;
	if (!is_known && gcr_driver_write_record(driver, GCR_RECORD_THAWING, &record_error) < 0)
		gcr_log(LOG_WARNING, process->pid, "%s", record_error.words);
	return result;
}

void gcr_driver_recover_places(struct gcr_driver_session *driver, enum gcr_control_state control)
{
	struct gcr_process *process = driver->process;

	/*
	 * A checkpointed process may still be restored: a helper of the earlier daemon may have
	 * just begun.
	 */
	if (control == GCR_CONTROL_CHECKPOINTED)
		return;
	pthread_mutex_lock(&process->lock);
	if (process->may_have_moved)
		process->moved = process->moving;
	process->may_have_moved = false;
	pthread_mutex_unlock(&process->lock);
}

void gcr_driver_record_places(struct gcr_driver_session *driver)
{
	struct gcr_process *process = driver->process;
	struct gcr_record *record = &driver->record;

	record->moving.count = 0;
	if (record->state == GCR_RECORD_THAWING)
		take_destinations(driver, &record->moving);
	pthread_mutex_lock(&process->lock);
	record->moved = process->moved;
	if (record->state == GCR_RECORD_FROZEN && process->may_have_moved)
		record->moving = process->moving;
	pthread_mutex_unlock(&process->lock);
}
