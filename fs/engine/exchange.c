/* SPDX-License-Identifier: MIT */
/*
 * Each of the two says how far it is, and waits for the other one. exchange->lock is the last that
 * is taken, but for that of the admissions.
 *
 * Whatever happens, one of them is in VRAM in the end, or `error` says why not: until the freeze
 * has committed, a failure of either takes both back; from then on a failure of the thaw has the
 * other process thawed again. A process that ends takes nothing back but what depends on it: the
 * thaw goes on if the one that was to be frozen has ended, since its VRAM is free.
 */
#include "fs/engine/exchange.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fs/engine/admission.h"
#include "fs/daemon.h"
#include "fs/engine/drive.h"
#include "fs/engine/engine.h"
#include "fs/process/gpus.h"
#include "fs/base/log.h"
#include "fs/store/record.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* How often a stop is looked for. */
#define LOOK_USEC     (20 * GCR_USEC_PER_MSEC)
/* The kernel may free what is no more in use a little later (see vmm_released.c). */
#define RETURN_USEC   (2 * GCR_USEC_PER_SEC)
/*
 * When the two are to stop, a thaw that can go back does so soon. One whose program does not answer
 * is not waited for: where there is room beside it, the other one comes back after the first of
 * these times, and after the second it stays as it is.
 */
#define PATIENCE_USEC GCR_USEC_PER_SEC
#define GIVE_UP_USEC  (10 * GCR_USEC_PER_SEC)
/* The same when that has gone back, of what others have: until then they come to an end. */
#define UNDO_USEC     (60 * GCR_USEC_PER_SEC)
/* The same of a freeze: until it looks. */
#define REACT_USEC    (2 * GCR_USEC_PER_SEC)

/* In the order in which they come about; nobody waits for one that has failed. */
enum progress {
	STARTED,
	READY,	 /* the thaw is alone on its GPUs; the freeze has its workers */
	BEGUN,	 /* of the freeze: VRAM that it may need again becomes free */
	DECIDED, /* of the thaw: nothing stops it any more */
	DONE,	 /* running; frozen, or ended: the VRAM is free */
	FAILED,
};

struct gcr_exchange {
	struct gcr_command freeze;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum progress frozen;
	enum progress thawed;
	int64_t out_usec;     /* when the freeze was done, monotonic */
	int64_t stopped_usec; /* when the freeze noticed that the two are to stop; 0: not yet */
	int64_t undone_usec;  /* until when what it was frozen for may be taken back */
	uint32_t admitted;    /* kept for whoever goes back */
	bool is_over;	      /* nobody goes back any more, or not soon */
	bool has_left;	      /* the thaw needs its admission no more */
	bool is_stuck;	      /* the thaw's process does not answer */
	struct gcr_need need; /* instead of `admitted`, when one of the two does not answer */
};

int gcr_exchange_check(struct gcr_process *thawed, struct gcr_process *frozen,
		       struct gcr_error *error)
{
	struct gcr_process *const processes[] = {thawed, frozen};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(processes); i++) {
		const char *unused;
		const char *name = gcr_engine_choose(processes[i], &unused)->name;

		if (!gcr_engine_has_files(name))
			return gcr_error_set(error, EOPNOTSUPP,
					     "process %d is of the engine %s, which cannot work in "
					     "both directions at once: freeze, then thaw",
					     (int)processes[i]->pid, name);
	}
	return 0;
}

struct gcr_exchange *gcr_exchange_create(const struct gcr_command *command)
{
	struct gcr_exchange *exchange = calloc(1, sizeof(*exchange));

	if (!exchange)
		return NULL;
	exchange->freeze = (struct gcr_command){
		.verb = GCR_VERB_FREEZE,
		.data = command->swap_data,
		.timeout_usec = command->timeout_usec,
		.writer = command->writer,
		.rights = command->rights,
	};
	pthread_mutex_init(&exchange->lock, NULL);
	pthread_cond_init(&exchange->changed, NULL);
	return exchange;
}

void gcr_exchange_destroy(struct gcr_exchange *exchange)
{
	if (!exchange)
		return;
	pthread_cond_destroy(&exchange->changed);
	pthread_mutex_destroy(&exchange->lock);
	free(exchange);
}

const struct gcr_command *gcr_exchange_freeze(const struct gcr_exchange *exchange)
{
	return &exchange->freeze;
}

bool gcr_exchange_freezes(const struct gcr_task *task)
{
	return task->exchange && task->command == &task->exchange->freeze;
}

bool gcr_exchange_thaws(const struct gcr_task *task)
{
	return task->exchange && task->command != &task->exchange->freeze;
}

/* ---- how far they are ---- */

static enum progress *progress_of(const struct gcr_task *task)
{
	return gcr_exchange_freezes(task) ? &task->exchange->frozen : &task->exchange->thawed;
}

static enum progress get(struct gcr_exchange *exchange, const enum progress *progress)
{
	enum progress value;

	pthread_mutex_lock(&exchange->lock);
	value = *progress;
	pthread_mutex_unlock(&exchange->lock);
	return value;
}

/* It only goes on, never back. */
static void set(const struct gcr_task *task, enum progress value)
{
	struct gcr_exchange *exchange = task->exchange;
	enum progress *progress = progress_of(task);

	pthread_mutex_lock(&exchange->lock);
	if (value == DONE && progress == &exchange->frozen)
		exchange->out_usec = gcr_clock_usec();
	if (value > *progress)
		*progress = value;
	pthread_cond_broadcast(&exchange->changed);
	pthread_mutex_unlock(&exchange->lock);
}

/* For a moment, or until *@progress is at least @wanted. */
static void wait_a_moment(struct gcr_exchange *exchange, const enum progress *progress,
			  enum progress wanted)
{
	int64_t until_usec = gcr_clock_usec() + LOOK_USEC;
	struct timespec until = {until_usec / GCR_USEC_PER_SEC,
				 until_usec % GCR_USEC_PER_SEC * 1000};
	int result = 0;

	pthread_mutex_lock(&exchange->lock);
	while (*progress < wanted && !result)
		result = pthread_cond_clockwait(&exchange->changed, &exchange->lock,
						CLOCK_MONOTONIC, &until);
	pthread_mutex_unlock(&exchange->lock);
}

/* Until the other one is that far; -ECANCELED: the two are to stop. */
static int wait_for(struct gcr_task *task, const enum progress *progress, enum progress wanted)
{
	while (get(task->exchange, progress) < wanted) {
		if (gcr_task_stopped(task))
			return -ECANCELED;
		wait_a_moment(task->exchange, progress, wanted);
	}
	/* Whoever fails stops the operation first. */
	return gcr_task_stopped(task) ? -ECANCELED : 0;
}

static bool is_stuck(struct gcr_exchange *exchange)
{
	bool is;

	pthread_mutex_lock(&exchange->lock);
	is = exchange->is_stuck;
	pthread_mutex_unlock(&exchange->lock);
	return is;
}

/*
 * Until the thaw has come to its end, but only for @usec when the two are to stop, or are late.
 * What was decided is not undone by us, however late it is: but it may fail yet. Only one whose
 * process does not answer is not waited for.
 */
static enum progress wait_for_thaw(struct gcr_task *task, int64_t usec)
{
	struct gcr_exchange *exchange = task->exchange;
	enum progress progress;

	while ((progress = get(exchange, &exchange->thawed)) < DONE) {
		int64_t now_usec = gcr_clock_usec();

		if (!exchange->stopped_usec &&
		    (gcr_task_is_to_stop(task) || now_usec >= gcr_task_deadline_usec(task)))
			exchange->stopped_usec = now_usec;
		if (progress < DECIDED && exchange->stopped_usec &&
		    now_usec >= exchange->stopped_usec + usec)
			break;
		/* Nothing is undone any more: it may stay as it is, frozen. */
		if (progress == DECIDED && exchange->stopped_usec && is_stuck(exchange) &&
		    now_usec >= exchange->stopped_usec + GIVE_UP_USEC)
			break;
		wait_a_moment(exchange, &exchange->thawed, DONE);
	}
	return progress;
}

/* ---- the admission ---- */

uint32_t gcr_exchange_gpus(const struct gcr_task *task)
{
	if (!gcr_exchange_thaws(task))
		return 0;
	return gcr_gpus_process_mask(task->process->daemon->gpus, gcr_task_sibling(task, 1)->pid);
}

void gcr_exchange_keep_admission(struct gcr_task *task, uint32_t mask)
{
	struct gcr_exchange *exchange = task->exchange;
	bool is_over;

	pthread_mutex_lock(&exchange->lock);
	is_over = exchange->is_over;
	if (gcr_exchange_thaws(task))
		exchange->has_left = true;
	if (!is_over)
		exchange->admitted |= mask;
	pthread_mutex_unlock(&exchange->lock);
	if (is_over && mask)
		gcr_admission_leave(task->process->daemon->admission, mask);
}

uint32_t gcr_exchange_take_admission(struct gcr_task *task)
{
	struct gcr_exchange *exchange = task->exchange;
	uint32_t mask;

	if (!exchange)
		return 0;
	pthread_mutex_lock(&exchange->lock);
	mask = exchange->admitted;
	exchange->admitted = 0;
	pthread_mutex_unlock(&exchange->lock);
	return mask;
}

/* Has the thaw taken all its VRAM, or none that it may yet take? */
static bool has_left(struct gcr_exchange *exchange)
{
	bool has;

	pthread_mutex_lock(&exchange->lock);
	has = exchange->has_left;
	pthread_mutex_unlock(&exchange->lock);
	return has;
}

void gcr_exchange_let_others(struct gcr_drive *drive, const struct gcr_snapshot *snapshot)
{
	struct gcr_process *frozen = gcr_task_sibling(drive->task, 1);
	struct gcr_exchange *exchange = drive->task->exchange;
	struct gcr_snapshot *held = NULL;
	struct gcr_need need = {0};
	struct gcr_error error;
	bool is_to_fail;

	pthread_mutex_lock(&frozen->lock);
	if (!snapshot && frozen->snapshot)
		snapshot = held = gcr_snapshot_ref(frozen->snapshot);
	pthread_mutex_unlock(&frozen->lock);
	gcr_drive_need(drive, frozen, snapshot, &need);
	gcr_snapshot_unref(held);
	pthread_mutex_lock(&exchange->lock);
	exchange->is_stuck |= gcr_exchange_thaws(drive->task);
	/* Until it is over the place of the one that may come back is kept. */
	if (exchange->admitted && !exchange->need.is_noted)
		exchange->need = need;
	if (exchange->admitted)
		gcr_admission_give_up(drive->daemon->admission, exchange->admitted,
				      &exchange->need);
	exchange->admitted = 0;
	is_to_fail = gcr_exchange_freezes(drive->task) && !drive->task->is_undoing &&
		     exchange->thawed < DECIDED;
	pthread_mutex_unlock(&exchange->lock);
	if (!is_to_fail)
		return;
	gcr_error_set(&error, ETIMEDOUT,
		      "process %d, which was to be frozen for it, does not answer, or its GPU work "
		      "does not end: is it stopped?",
		      (int)frozen->pid);
	gcr_task_fail(drive->task, &error);
}

/*
 * Nobody is to find it kept for him any more; but by the thaw it is not taken from a freeze that
 * may have to take VRAM again, which gives it up itself.
 */
static void give_up_admission(struct gcr_task *task, bool has_failed)
{
	struct gcr_exchange *exchange = task->exchange;
	uint32_t mask;
	bool is_over;

	pthread_mutex_lock(&exchange->lock);
	is_over = !has_failed || exchange->frozen < BEGUN;
	exchange->is_over |= is_over;
	if (is_over)
		gcr_admission_end_need(task->process->daemon->admission, &exchange->need);
	pthread_mutex_unlock(&exchange->lock);
	if (!is_over)
		return;
	mask = gcr_exchange_take_admission(task);
	if (mask)
		gcr_admission_leave(task->process->daemon->admission, mask);
}

/* ---- for engines ---- */

int gcr_exchange_wait_turn(struct gcr_task *task)
{
	if (!gcr_exchange_freezes(task))
		return 0;
	return wait_for(task, &task->exchange->thawed, READY);
}

int gcr_exchange_begin_thaw(struct gcr_task *task)
{
	if (!gcr_exchange_thaws(task))
		return 0;
	set(task, READY);
	return wait_for(task, &task->exchange->frozen, READY);
}

void gcr_exchange_begin_freeze(struct gcr_task *task)
{
	if (gcr_exchange_freezes(task))
		set(task, READY);
}

int gcr_exchange_begin_letting_go(struct gcr_task *task)
{
	struct gcr_exchange *exchange = task->exchange;
	bool is_over;

	if (!gcr_exchange_freezes(task))
		return 0;
	pthread_mutex_lock(&exchange->lock);
	is_over = exchange->is_over;
	if (!is_over && exchange->frozen < BEGUN)
		exchange->frozen = BEGUN;
	pthread_mutex_unlock(&exchange->lock);
	return is_over ? -ECANCELED : 0;
}

bool gcr_exchange_needs_second(const struct gcr_task *task)
{
	return gcr_exchange_thaws(task) && get(task->exchange, &task->exchange->frozen) < DONE;
}

bool gcr_exchange_may_wait(const struct gcr_task *task)
{
	struct gcr_exchange *exchange = task->exchange;
	bool may_wait;

	if (!gcr_exchange_thaws(task))
		return false;
	pthread_mutex_lock(&exchange->lock);
	may_wait = exchange->frozen < DONE;
	if (exchange->frozen == DONE && task->process->vendor->backend->may_keep_vram)
		may_wait = gcr_clock_usec() < exchange->out_usec + RETURN_USEC;
	pthread_mutex_unlock(&exchange->lock);
	return may_wait;
}

int gcr_exchange_wait_room(struct gcr_task *task)
{
	struct gcr_exchange *exchange = task->exchange;

	/* What has not come back by then does so at any moment. */
	if (get(exchange, &exchange->frozen) == DONE)
		wait_a_moment(exchange, &exchange->frozen, FAILED);
	return wait_for(task, &exchange->frozen, DONE);
}

bool gcr_exchange_gives_up(const struct gcr_task *task)
{
	return task->exchange && task->is_undoing &&
	       (atomic_load(&task->process->daemon->stopping) ||
		gcr_clock_usec() >= task->exchange->undone_usec);
}

void gcr_exchange_fail(struct gcr_task *task, struct gcr_error *error)
{
	if (!gcr_exchange_freezes(task) || error->number == ESRCH ||
	    gcr_process_is_going(task->process))
		return;
	gcr_task_fail(task, error);
	set(task, FAILED);
	wait_for_thaw(task, GIVE_UP_USEC);
}

int gcr_exchange_commit(struct gcr_task *task)
{
	int result;

	if (gcr_exchange_freezes(task)) {
		result = gcr_exchange_begin_letting_go(task);
		task->has_passed = !result;
		return result;
	}
	atomic_store(&task->phase, "vote");
	result = wait_for(task, &task->exchange->frozen, DONE);
	if (!result)
		result = gcr_task_decide(task);
	if (!result)
		set(task, DECIDED);
	return result;
}

/* ---- the two ---- */

/* A next daemon that finds it frozen knows why. */
static void note(const struct gcr_task *task)
{
	const struct gcr_process *thawed = gcr_task_sibling(task, 0);
	struct gcr_process *process = task->process;

	pthread_mutex_lock(&process->lock);
	process->frozen_for_pid = thawed->pid;
	process->frozen_for_start_ticks = thawed->start_ticks;
	pthread_mutex_unlock(&process->lock);
}

/* It stays where it is now, whatever becomes of the other one. */
static void forget(const struct gcr_task *task)
{
	struct gcr_process *process = task->process;
	bool was_noted;
	int result;

	pthread_mutex_lock(&process->lock);
	was_noted = process->frozen_for_pid;
	process->frozen_for_pid = 0;
	pthread_mutex_unlock(&process->lock);
	if ((!was_noted && !task->exchange) || gcr_process_has_ended(process))
		return;
	result = gcr_record_end_exchange(process->daemon->runtime_fd, process->pid,
					 process->start_ticks);
	if (result < 0)
		gcr_log(LOG_WARNING, process->pid, "its record cannot be written: %s",
			strerror(-result));
}

/* It was frozen for one that could not be thawed. */
static int thaw_again(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_exchange *exchange = task->exchange;
	int result;

	exchange->undone_usec = get(exchange, &exchange->thawed) == FAILED
					? gcr_clock_usec() + UNDO_USEC
					: exchange->stopped_usec + GIVE_UP_USEC;
	task->from = GCR_STATE_FROZEN;
	task->is_undoing = true;
	gcr_process_set_state(task->process, GCR_STATE_THAWING);
	*error = (struct gcr_error){0};
	result = gcr_engine_of(task->process)->thaw(task, ret_state, error);
	task->from = GCR_STATE_RUNNING;
	task->is_undoing = false;
	task->has_passed = false;
	return result;
}

static int freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	static const int64_t waits[] = {PATIENCE_USEC, GIVE_UP_USEC};
	enum progress progress = READY;
	int result;

	note(task);
	result = gcr_engine_freeze(task, ret_state, error);
	if (result < 0) {
		gcr_exchange_fail(task, error);
		return result;
	}
	set(task, DONE);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(waits) && progress != FAILED; i++) {
		atomic_store(&task->phase, "vote");
		progress = wait_for_thaw(task, waits[i]);
		if (progress == DONE)
			return 0;
		if (progress == DECIDED) {
			gcr_log(LOG_WARNING, task->process->pid,
				"it stays frozen: process %d, which it was frozen for, does not "
				"answer",
				(int)gcr_task_sibling(task, 0)->pid);
			return 0;
		}
		/* What the driver restores would be lost if somebody took VRAM from it. */
		if (progress != FAILED && !has_left(task->exchange))
			result = gcr_error_set(error, ETIMEDOUT,
					       "the driver does not let go of that one");
		else
			result = thaw_again(task, ret_state, error);
		if (result != -ENOMEM && result != -ETIMEDOUT)
			break;
	}
	/* Whoever stopped the two explains it. */
	if (!result) {
		*error = (struct gcr_error){0};
		return -ECANCELED;
	}
	gcr_error_prefix(
		error, "it was frozen for a process that could not be thawed, and %s thawed again",
		*ret_state == GCR_STATE_FROZEN
			? "stays frozen, its bytes in the store: it could not be"
			: "could not be");
	gcr_log(LOG_ERR, task->process->pid, "roll-back: %s", error->words);
	return result;
}

int gcr_exchange_carry_out(struct gcr_task *task, enum gcr_state *ret_state,
			   struct gcr_error *error)
{
	int result;

	if (gcr_exchange_freezes(task))
		return freeze(task, ret_state, error);
	result = gcr_engine_of(task->process)->thaw(task, ret_state, error);
	if (gcr_process_has_ended(task->process))
		result = gcr_error_set(error, ESRCH, "process %d has ended",
				       (int)task->process->pid);
	gcr_exchange_end(task, result, error);
	return result;
}

void gcr_exchange_end(struct gcr_task *task, int result, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + REACT_USEC;
	enum progress *progress;
	bool has_failed = false;
	bool had_ended;

	/* What only the daemon's stop has prevented is left for the next one. */
	if (!task->recovery && (!result || !atomic_load(&task->process->daemon->stopping)))
		forget(task);
	if (!task->exchange)
		return;
	progress = progress_of(task);
	had_ended = get(task->exchange, progress) >= DONE;
	/* The VRAM of a process that has ended is free, whatever else became of it. */
	if (gcr_exchange_freezes(task) &&
	    (result == -ESRCH || gcr_process_has_ended(task->process)))
		result = 0;
	if (result < 0 && !had_ended)
		gcr_task_fail(task, error);
	set(task, result < 0 ? FAILED : DONE);
	if (gcr_exchange_thaws(task) && result < 0) {
		/* Who has to go back finds it; nobody else waits for one that does not answer. */
		while (!had_ended && get(task->exchange, &task->exchange->frozen) < BEGUN &&
		       gcr_clock_usec() < until_usec)
			wait_a_moment(task->exchange, &task->exchange->frozen, BEGUN);
		has_failed = true;
	}
	give_up_admission(task, has_failed);
}
