/* SPDX-License-Identifier: MIT */
/*
 * A task in the hands of the driver engine: its conversation with the driver through a control
 * helper (drive.c), and the VRAM and host memory it needs (drive_memory.c). All functions run on
 * the task's thread and fill @error with words when they return a negative errno.
 */
#ifndef GCR_FS_ENGINE_DRIVE_H
#define GCR_FS_ENGINE_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/engine/admission.h"
#include "fs/helper/helper.h"
#include "fs/store/record.h"
#include "fs/verb/task.h"

/* What a drive waits for a helper's hello, or for an answer that needs no GPU. */
#define GCR_DRIVE_HELPER_WAIT_USEC (20 * GCR_USEC_PER_SEC)

struct gcr_drive {
	struct gcr_task *task;
	struct gcr_process *process;
	struct gcr_daemon *daemon;
	struct gcr_vendor *vendor; /* of the process, for as long as this lasts */
	const char *engine;	   /* its name, for records */
	struct gcr_helper *helper;
	struct gcr_record record;
	struct gcr_gpu_pair pairs[GCR_GPUS_MAX];
	uint32_t pairs_count;
	struct gcr_moves asked_moves; /* the same for a Restore: from where the driver has it */
	uint32_t admitted;	      /* GPUs we hold the admission of */
	/*
	 * Idle workers that have ended to make room. As long as they are held no others take their
	 * places, whose contexts would need VRAM that the driver needs.
	 */
	struct gcr_helper *ended[2 * GCR_GPUS_MAX];
	unsigned int ended_count;
	uint64_t ended_bytes;  /* of VRAM that they had, all together, as far as it is known */
	uint32_t ballast;      /* of these: VRAM for a Restore is held, no need to look for it */
	int64_t stopping_usec; /* when we noticed that the daemon is stopping, 0 before */
	bool rolling_back;     /* what has to be undone is undone, whoever wants it to stop */
	bool had_state;	       /* the driver has known the process since this began, or before */
	bool lacks_state;      /* the driver says that it does not know the process */
	bool is_ending;	       /* it said then that it does not, or the preload library does */
	bool need_unknown; /* NVML does not list the process: its VRAM is what a checkpoint frees */
	uint64_t free_before[GCR_GPUS_MAX];
	uint64_t bytes;		   /* of VRAM that a checkpoint would put into its host memory */
	uint64_t anonymous_before; /* bytes of its host memory before the checkpoint */

	/* drive_stall.c: what becomes of it all while the process does not answer */
	int64_t asked_usec;   /* since when an answer of the process is waited for, 0: it is not */
	int64_t stopped_usec; /* since when it has been seen stopped, 0: it is not */
	int64_t waited_usec;  /* for earlier answers, together, while something was held */
	int64_t gated_usec;   /* of that, the work on its GPUs has a time of its own */
	bool has_workers;     /* whose turn others may wait for */
	bool is_gating;	      /* the wait is for work on its GPUs */
	bool is_halted;	      /* its threads are stopped by us */
	bool lets_others;     /* it has not answered for too long: to the end of the verb */
	struct gcr_need need; /* VRAM of a Restore that has given its admission up */
	/* Called then, again and again as long as the wait lasts; NULL: nothing else is held. */
	void (*let_others)(struct gcr_drive *drive);
};

void gcr_drive_init(struct gcr_drive *drive, struct gcr_task *task, const char *engine);
void gcr_drive_finish(struct gcr_drive *drive);

/* One word for status; a string constant. */
void gcr_drive_set_phase(struct gcr_drive *drive, const char *phase);

/* It has ended, or the daemon must go: even what is being undone has to be left as it is. */
bool gcr_drive_must_leave(struct gcr_drive *drive);

/*
 * Is the program ending, so that there is nothing to take from it or to give back? The driver has
 * deinitialized in it, or its preload library says so.
 */
bool gcr_drive_is_ending(struct gcr_drive *drive);

/*
 * A verb has ended with @result, not 0. Did it meet the end of the process, or of what it has of
 * the GPU? Then -ESRCH with words for that, @result else. Waits for a moment for the process to be
 * gone.
 */
int gcr_drive_explain_end(struct gcr_drive *drive, int result, struct gcr_error *error);

/*
 * After that: an ending process that is still there is let go. *ret_state says running, and its
 * record is gone; what the store has of it is the caller's.
 */
bool gcr_drive_let_go(struct gcr_drive *drive, int result, enum gcr_state *ret_state);

/* In a wait that has to go on: when the deadline has passed, the writers get their answer. */
void gcr_drive_check_deadline(struct gcr_drive *drive);

/*
 * The same for what has been asked to answer by the deadline, with words that say what it waits
 * for: it may be a little late.
 */
void gcr_drive_check_answer(struct gcr_drive *drive);

/* Wait, but not for a process that has ended. */
void gcr_drive_pause(struct gcr_drive *drive, int msec);

int gcr_drive_need_helper(struct gcr_drive *drive, struct gcr_error *error);

/*
 * What can be seen from outside the process that forbids a freeze: its vendor's preflight, and that
 * it uses another vendor's GPUs too. -EOPNOTSUPP, -ESRCH, -EACCES.
 */
int gcr_drive_preflight(struct gcr_drive *drive, const char *driver_version,
			struct gcr_error *error);

/*
 * Is the driver to checkpoint its own part too? Not with `freeze data`, and not where the vendor's
 * cannot: then that part stays where it is.
 */
bool gcr_drive_takes_control(const struct gcr_drive *drive);

/*
 * One call, waited for to its end: what the driver has begun cannot be taken back. When the
 * deadline passes meanwhile, the writers get their answer. 0: the driver's answer is in *ret.
 * -EPIPE: the helper died, and the call's fate is to be asked of another; -ESRCH: the process has
 * ended; -ECANCELED: the daemon must go.
 */
int gcr_drive_call(struct gcr_drive *drive, uint16_t type, uint32_t timeout_ms,
		   struct gcr_result *ret, struct gcr_error *error);

/*
 * The driver's view of the process; a helper that dies is replaced, a few times. Running, always,
 * where the driver has none.
 */
int gcr_drive_ask_state(struct gcr_drive *drive, enum gcr_control_state *ret_state,
			struct gcr_error *error);

/* What a next daemon needs to know; written before the driver is touched. */
int gcr_drive_write_record(struct gcr_drive *drive, enum gcr_record_state state,
			   struct gcr_error *error);
void gcr_drive_remove_record(struct gcr_drive *drive);

/* The GPUs of the process's vendor as they are now; theirs are the indexes of the reply. */
int gcr_drive_query(struct gcr_drive *drive, struct gcr_gpus_reply *reply, struct gcr_error *error);

/* Before a freeze: what the process uses now; a thaw will need it. -EOPNOTSUPP. */
int gcr_drive_take_stock(struct gcr_drive *drive, struct gcr_error *error);

/* Of what it uses, @bytes on one GPU are not left to the driver. */
void gcr_drive_deduct(struct gcr_drive *drive, const uint8_t uuid[GCR_UUID_BYTES], uint64_t bytes);

/* Can the process's host memory take what is left to the driver? -ENOMEM with the figures. */
int gcr_drive_check_host_room(struct gcr_drive *drive, struct gcr_error *error);

/* After the checkpoint of a process that NVML does not list: what became free is its need. */
int gcr_drive_measure_freed(struct gcr_drive *drive, struct gcr_error *error);

/* For a process found frozen without a note of its need: a bound from above. */
void gcr_drive_assume_need(struct gcr_drive *drive);

/*
 * Before every Restore: alone on the GPUs concerned, and enough VRAM there (-ENOMEM with the
 * figures). The admission is held until gcr_drive_leave() or gcr_drive_finish(). -ECANCELED: the
 * operation is to stop; on the way back, the daemon or the process is.
 */
int gcr_drive_admit(struct gcr_drive *drive, struct gcr_error *error);

/* Of an exchange it is kept for both: see gcr_exchange_keep_admission(). */
void gcr_drive_leave(struct gcr_drive *drive);

/*
 * End a worker of this GPU that nobody uses, whose context takes VRAM. Until gcr_drive_let_start()
 * or gcr_drive_finish() none takes its place: the driver needs some more VRAM after a restore, too.
 * False: there is none.
 */
bool gcr_drive_end_idle_worker(struct gcr_drive *drive, const uint8_t uuid[GCR_UUID_BYTES],
			       bool is_second);
void gcr_drive_let_start(struct gcr_drive *drive);

/* The GPUs that a Restore will need VRAM of, as a mask of indexes. */
uint32_t gcr_drive_need_mask(struct gcr_drive *drive);

/* Only the first half of gcr_drive_admit(): to be alone on the GPUs of @mask. */
int gcr_drive_wait_turn(struct gcr_drive *drive, uint32_t mask, struct gcr_error *error);

/* Where the contents of GPU @uuid go on thaw: another GPU if gpu=OLD:NEW says so. */
const uint8_t *gcr_drive_destination(const struct gcr_drive *drive,
				     const uint8_t uuid[GCR_UUID_BYTES]);

/*
 * ---- drive_places.c: on which GPUs a frozen process is, and where it goes ----
 *
 * Its bytes are called by the GPUs that it was frozen on, whatever becomes of it. What the driver
 * has of it goes to others in a Restore, and stays there if the thaw is undone.
 */

/*
 * gpu=OLD:NEW as the driver wants it: a destination for every GPU, each used once; without one, to
 * where it was frozen. -ENODEV, -EOPNOTSUPP, -EBUSY.
 */
int gcr_drive_make_pairs(struct gcr_drive *drive, struct gcr_error *error);

/*
 * With its context where it runs, @control says, its memory goes there too. -EOPNOTSUPP: it is
 * asked for elsewhere.
 */
int gcr_drive_follow_context(struct gcr_drive *drive, enum gcr_control_state control,
			     struct gcr_error *error);

/*
 * The driver has restored it. The record says so before it can be checkpointed again. Unless the
 * Restore @is_ours it may be one that an earlier daemon has begun: -EIO if that led elsewhere.
 */
int gcr_drive_note_places(struct gcr_drive *drive, bool is_ours, struct gcr_error *error);

/* Has the Restore been made that an earlier daemon may have begun? @control tells. */
void gcr_drive_recover_places(struct gcr_drive *drive, enum gcr_control_state control);

/* For the record; without @process->lock held. */
void gcr_drive_record_places(struct gcr_drive *drive);

/* ---- drive_stall.c: a process that does not answer ---- */

/*
 * Around every wait for the process itself, its library or its driver; and in the wait, a few times
 * a second. When it has lasted too long (the process is stopped, the verb is late, or it has
 * waited too long altogether) the admission becomes a need, the exchange is told, and let_others()
 * called.
 */
void gcr_drive_begin_wait(struct gcr_drive *drive);
void gcr_drive_end_wait(struct gcr_drive *drive);
void gcr_drive_check_stall(struct gcr_drive *drive);

/* Add what @process has to find in VRAM: its driver's share, and @snapshot (NULL: none). */
void gcr_drive_need(struct gcr_drive *drive, struct gcr_process *process,
		    const struct gcr_snapshot *snapshot, struct gcr_need *need);

/* Are @bytes free on a GPU beside what others need there (fs/engine/admission.h)? -ENOMEM. */
int gcr_drive_check_needs(struct gcr_drive *drive, const uint8_t uuid[GCR_UUID_BYTES],
			  uint64_t bytes, struct gcr_error *error);

/* Is the process stopped now, by a signal or a debugger, not by us (is_halted)? */
bool gcr_drive_sees_stop(struct gcr_drive *drive);

/* Before a thaw: one that is stopped could not answer. -EOPNOTSUPP. */
int gcr_drive_check_stopped(struct gcr_drive *drive, struct gcr_error *error);

/* ---- drive_control.c: the driver's steps ---- */

/* Pause before a call that failed is tried again on the way back. */
#define GCR_DRIVE_RETRY_MSEC 100

/* A new generation, and the engine, into the process. -EIO: the kernel has no random numbers. */
int gcr_drive_new_generation(struct gcr_drive *drive, struct gcr_error *error);

/* Only a process that runs can be frozen: -EBUSY, -EIO with *ret_state failed. */
int gcr_drive_check_running(struct gcr_drive *drive, enum gcr_state *ret_state,
			    struct gcr_error *error);

/* Lock in slices until the GPU is idle, the deadline has passed or the operation is to stop. */
int gcr_drive_lock(struct gcr_drive *drive, struct gcr_error *error);

/* A helper that dies in these is replaced, and the driver asked how the call ended. */
int gcr_drive_checkpoint(struct gcr_drive *drive, struct gcr_error *error);
int gcr_drive_restore(struct gcr_drive *drive, enum gcr_state *ret_state, struct gcr_error *error);
int gcr_drive_unlock(struct gcr_drive *drive, struct gcr_error *error);

/* From wherever the driver is to checkpointed, however often it takes. The record stays. */
int gcr_drive_to_checkpointed(struct gcr_drive *drive, struct gcr_error *error);

/*
 * From wherever the driver is back to running. It takes as long as it takes; only the end of the
 * process, of the daemon, or a lack of VRAM stops it. On failure *ret_state tells where the process
 * is left, and words why. The record stays.
 */
int gcr_drive_to_running(struct gcr_drive *drive, enum gcr_state *ret_state,
			 struct gcr_error *error);

/* Is a way back to be given up, after a step that ended with @result? */
bool gcr_drive_is_hopeless(struct gcr_drive *drive, int result, int64_t since_usec);
/* The words then. */
int gcr_drive_stuck(enum gcr_control_state state, int result, struct gcr_error *error);

/* -ECANCELED; words are left empty: who stopped the operation explains it. */
int gcr_drive_stopped(struct gcr_error *error);

#endif
