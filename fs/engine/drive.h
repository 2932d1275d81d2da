/* SPDX-License-Identifier: MIT */
/*
 * A drive: a verb of one process (a task) as the `driver` engine carries it out. It holds the
 * conversation with the driver through a control helper (drive.c), and the VRAM and host memory
 * that the process needs (drive_memory.c). All functions run on the task's thread and fill @error
 * with a message when they return a negative errno.
 */
#ifndef GCR_FS_ENGINE_DRIVE_H
#define GCR_FS_ENGINE_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/engine/admission.h"
#include "fs/helper/helper.h"
#include "fs/store/record.h"
#include "fs/verb/task.h"

/* How long a drive waits for a helper's hello, or for an answer that needs no GPU. */
#define GCR_DRIVE_HELPER_WAIT_USEC (20 * GCR_USEC_PER_SEC)

struct gcr_drive {
	struct gcr_task *task;
	struct gcr_process *process;
	struct gcr_daemon *daemon;
	struct gcr_vendor *vendor; /* of the process, for the drive's lifetime */
	const char *engine;	   /* the engine's name, for records */
	struct gcr_helper *helper;
	struct gcr_record record;
	struct gcr_gpu_pair pairs[GCR_GPUS_MAX];
	uint32_t pairs_count;
	struct gcr_moves asked_moves; /* moves for a Restore, from the driver's current GPUs */
	uint32_t admitted;	      /* GPUs whose admission this drive holds */
	/*
	 * Idle workers that were ended to make room. While their references are held, no other
	 * workers take their places; the contexts of those would need VRAM that the driver needs.
	 */
	struct gcr_helper *ended[2 * GCR_GPUS_MAX];
	unsigned int ended_count;
	uint64_t ended_bytes; /* VRAM that these workers had in all, as far as known */
	uint32_t ballast;     /* mask of GPUs where VRAM is held for a Restore: not checked again */
	int64_t stopping_usec; /* when the drive noticed that the daemon is stopping, 0 before */
	bool rolling_back; /* a roll-back is under way, which a cancel or deadline does not stop */
	bool had_state;	   /* the driver has known the process, in this drive or before */
	bool lacks_state;  /* the driver says that it does not know the process */
	bool is_ending;	   /* the process is ending, as the driver or the preload library says */
	bool need_unknown; /* not listed by NVML: its need is the VRAM that a checkpoint frees */
	uint64_t free_before[GCR_GPUS_MAX];
	uint64_t bytes; /* of VRAM that a checkpoint would put into the process's host memory */
	uint64_t anonymous_before; /* bytes of the process's host memory before the checkpoint */

	/* drive_stall.c: waits for a process that does not answer */
	int64_t asked_usec;   /* when the current wait for the process began, 0: none */
	int64_t stopped_usec; /* since when the process has been seen stopped, 0: not stopped */
	int64_t waited_usec;  /* sum of earlier waits while something was held */
	int64_t gated_usec;   /* the same for waits for GPU work, which have their own limit */
	bool has_workers;     /* the drive holds workers that other verbs may wait for */
	bool is_gating;	      /* the current wait is for work on the process's GPUs */
	bool is_halted;	      /* the daemon has stopped the process's threads */
	bool lets_others;     /* no answer for too long; stays set to the end of the verb */
	struct gcr_need need; /* VRAM of a Restore that has given its admission up */
	/*
	 * Called when the wait has lasted too long, repeatedly until it ends. NULL: the verb holds
	 * nothing else.
	 */
	void (*let_others)(struct gcr_drive *drive);
};

/* Set up a drive; gcr_drive_finish() gives back its helper, ended workers and admission. */
void gcr_drive_init(struct gcr_drive *drive, struct gcr_task *task, const char *engine);
void gcr_drive_finish(struct gcr_drive *drive);

/* Set the phase that status shows: one word, a string constant. */
void gcr_drive_set_phase(struct gcr_drive *drive, const char *phase);

/*
 * Must the caller stop waiting? True if the process has ended or the daemon must exit: then even a
 * roll-back is left unfinished.
 */
bool gcr_drive_must_leave(struct gcr_drive *drive);

/*
 * Is the program ending, so that there is nothing to take from it or to give back? True if the
 * driver has deinitialised in the program, or if its preload library says so.
 */
bool gcr_drive_is_ending(struct gcr_drive *drive);

/*
 * A verb has failed with @result. If the cause is the end of the process, or of its use of the GPU,
 * returns -ESRCH with a message that says so; otherwise @result. Waits briefly for the process to
 * exit.
 */
int gcr_drive_explain_end(struct gcr_drive *drive, int result, struct gcr_error *error);

/*
 * To be called after gcr_drive_explain_end(). If the process is ending but still exists, remove its
 * record, set *ret_state to running and return true. The caller frees the process's files in the
 * store.
 */
bool gcr_drive_let_go(struct gcr_drive *drive, int result, enum gcr_state *ret_state);

/* In a wait that cannot be cut short: once the deadline has passed, answer the writers. */
void gcr_drive_check_deadline(struct gcr_drive *drive);

/*
 * The same for a request that has to be answered by the deadline, and whose answer has a better
 * message: allows the answer to be a little late.
 */
void gcr_drive_check_answer(struct gcr_drive *drive);

/* Sleep for @msec, or until the process has ended. */
void gcr_drive_pause(struct gcr_drive *drive, int msec);

/* Take a control helper if the drive has none, and wait for its hello. */
int gcr_drive_need_helper(struct gcr_drive *drive, struct gcr_error *error);

/*
 * Check from outside the process for reasons that forbid a freeze: its vendor's preflight checks,
 * and use of another vendor's GPUs too. -EOPNOTSUPP, -ESRCH, -EACCES.
 */
int gcr_drive_preflight(struct gcr_drive *drive, const char *driver_version,
			struct gcr_error *error);

/*
 * Is the driver to checkpoint its own state too? False for `freeze data`, and for a vendor whose
 * driver has no checkpoint: then that state stays where it is.
 */
bool gcr_drive_takes_control(const struct gcr_drive *drive);

/*
 * Make one call to the driver and wait until it ends, since the driver cannot take back a call that
 * it has begun. If the deadline passes during the wait, the writers are answered. 0: the driver's
 * answer is in *ret. -EPIPE: the helper died, and the caller has to ask another helper how the call
 * ended; -ESRCH: the process has ended; -ECANCELED: the daemon must exit.
 */
int gcr_drive_call(struct gcr_drive *drive, uint16_t type, uint32_t timeout_ms,
		   struct gcr_result *ret, struct gcr_error *error);

/*
 * Get the driver's state of the process. A helper that dies is replaced, a few times. The state is
 * always `running` for a vendor whose driver has no checkpoint.
 */
int gcr_drive_ask_state(struct gcr_drive *drive, enum gcr_control_state *ret_state,
			struct gcr_error *error);

/*
 * Write the record that a next daemon needs: FREEZING and THAWING before the driver is touched,
 * FROZEN and FAILED when the process has come to that state.
 */
int gcr_drive_write_record(struct gcr_drive *drive, enum gcr_record_state state,
			   struct gcr_error *error);
/* Remove the record. The process also forgets the exchange that it was frozen for. */
void gcr_drive_remove_record(struct gcr_drive *drive);

/*
 * Query the GPUs of the process's vendor as they are now; the indexes in the reply are that
 * vendor's.
 */
int gcr_drive_query(struct gcr_drive *drive, struct gcr_gpus_reply *reply, struct gcr_error *error);

/* Before a freeze: note the VRAM that the process uses now, which a thaw will need. -EOPNOTSUPP. */
int gcr_drive_take_stock(struct gcr_drive *drive, struct gcr_error *error);

/* Deduct @bytes on one GPU, which the driver will not checkpoint, from the noted use. */
void gcr_drive_deduct(struct gcr_drive *drive, const uint8_t uuid[GCR_UUID_BYTES], uint64_t bytes);

/*
 * Can the process's host memory take the VRAM that is left to the driver? -ENOMEM with the figures.
 */
int gcr_drive_check_host_room(struct gcr_drive *drive, struct gcr_error *error);

/*
 * After the checkpoint of a process that NVML does not list: note the VRAM that it freed as its
 * need.
 */
int gcr_drive_measure_freed(struct gcr_drive *drive, struct gcr_error *error);

/* For a process found frozen without a noted need: assume an upper bound. */
void gcr_drive_assume_need(struct gcr_drive *drive);

/*
 * Before every Restore: take the admission of the GPUs concerned, and check that they have enough
 * VRAM (-ENOMEM with the figures). The admission is held until gcr_drive_leave() or
 * gcr_drive_finish(). -ECANCELED: the operation is to stop; during a roll-back, only if the daemon
 * or the process ends.
 */
int gcr_drive_admit(struct gcr_drive *drive, struct gcr_error *error);

/*
 * Give the admission back. In an exchange it is kept for both tasks: see
 * gcr_exchange_keep_admission().
 */
void gcr_drive_leave(struct gcr_drive *drive);

/*
 * End an idle worker of the GPU @uuid, whose context takes VRAM. Until gcr_drive_let_start() or
 * gcr_drive_finish() no worker takes its place, because the driver needs some more VRAM after a
 * restore, too. Returns false if no worker is idle.
 */
bool gcr_drive_end_idle_worker(struct gcr_drive *drive, const uint8_t uuid[GCR_UUID_BYTES],
			       bool is_second);
void gcr_drive_let_start(struct gcr_drive *drive);

/* The GPUs whose VRAM a Restore will need, as a mask of indexes. */
uint32_t gcr_drive_need_mask(struct gcr_drive *drive);

/* Only the first half of gcr_drive_admit(): take the admission of the GPUs of @mask. */
int gcr_drive_wait_turn(struct gcr_drive *drive, uint32_t mask, struct gcr_error *error);

/* The GPU that the contents of GPU @uuid go to on thaw: another one if gpu=OLD:NEW says so. */
const uint8_t *gcr_drive_destination(const struct gcr_drive *drive,
				     const uint8_t uuid[GCR_UUID_BYTES]);

/*
 * ---- drive_places.c: the GPUs that a frozen process is on, and those that it goes to ----
 *
 * A frozen process's bytes are always named after the GPUs that it was frozen on. A Restore can
 * move the driver's own state to other GPUs; that state stays there if the thaw is undone.
 */

/*
 * Make the list of moves that the driver wants from gpu=OLD:NEW: a destination for every GPU, each
 * used once. Without the option the process goes to the GPUs that it was frozen on. -ENODEV,
 * -EOPNOTSUPP, -EBUSY.
 */
int gcr_drive_make_pairs(struct gcr_drive *drive, struct gcr_error *error);

/*
 * If @control says that the process's context is still on a GPU, direct its memory to the same GPU.
 * -EOPNOTSUPP: the command asks for another one.
 */
int gcr_drive_follow_context(struct gcr_drive *drive, enum gcr_control_state control,
			     struct gcr_error *error);

/*
 * Note where a Restore that succeeded has put the process, in the record too, before the next
 * checkpoint. If not @is_ours, an earlier daemon may have begun the Restore: -EIO if that one went
 * to other GPUs.
 */
int gcr_drive_note_places(struct gcr_drive *drive, bool is_ours, struct gcr_error *error);

/*
 * Tell from @control whether a Restore that an earlier daemon may have begun was made, and note it.
 */
void gcr_drive_recover_places(struct gcr_drive *drive, enum gcr_control_state control);

/* Copy the GPUs into the record; called without @process->lock. */
void gcr_drive_record_places(struct gcr_drive *drive);

/* ---- drive_stall.c: processes that do not answer ---- */

/*
 * begin and end enclose every wait for the process itself, its library or its driver; check is
 * called in the wait, a few times a second. When the wait has lasted too long (the process is
 * stopped, the verb is late, or all its waits together exceed a limit), the admission becomes a
 * need, the exchange is notified, and let_others() is called.
 */
void gcr_drive_begin_wait(struct gcr_drive *drive);
void gcr_drive_end_wait(struct gcr_drive *drive);
void gcr_drive_check_stall(struct gcr_drive *drive);

/* Add to @need the VRAM that @process needs: its driver's share, and @snapshot (NULL: none). */
void gcr_drive_need(struct gcr_drive *drive, struct gcr_process *process,
		    const struct gcr_snapshot *snapshot, struct gcr_need *need);

/*
 * If other processes have noted a need for VRAM of the GPU (fs/engine/admission.h): are @bytes
 * free beyond their needs? 0: yes, or no other process has noted one, and then the free VRAM is
 * not looked at; -ENOMEM: no; or an error of gcr_drive_query().
 */
int gcr_drive_check_needs(struct gcr_drive *drive, const uint8_t uuid[GCR_UUID_BYTES],
			  uint64_t bytes, struct gcr_error *error);

/* Is the process stopped now by a signal or a debugger (not by the daemon: is_halted)? */
bool gcr_drive_sees_stop(struct gcr_drive *drive);

/* Before a thaw: refuse a stopped process, which could not answer. -EOPNOTSUPP. */
int gcr_drive_check_stopped(struct gcr_drive *drive, struct gcr_error *error);

/* ---- drive_control.c: the driver's steps ---- */

/* Pause before a failed call is retried during a roll-back. */
#define GCR_DRIVE_RETRY_MSEC 100

/* Set a new generation, and the engine, in the process. -EIO: the kernel has no random numbers. */
int gcr_drive_new_generation(struct gcr_drive *drive, struct gcr_error *error);

/* Only a running process can be frozen: -EBUSY; -EIO, with *ret_state failed. */
int gcr_drive_check_running(struct gcr_drive *drive, enum gcr_state *ret_state,
			    struct gcr_error *error);

/* Lock in slices until the GPU is idle, the deadline has passed or the operation is to stop. */
int gcr_drive_lock(struct gcr_drive *drive, struct gcr_error *error);

/*
 * A helper that dies in one of these is replaced, and the driver is asked how the call ended. After
 * a successful restore the driver has the process locked, with its VRAM back.
 */
int gcr_drive_checkpoint(struct gcr_drive *drive, struct gcr_error *error);
int gcr_drive_restore(struct gcr_drive *drive, enum gcr_state *ret_state, struct gcr_error *error);
int gcr_drive_unlock(struct gcr_drive *drive, struct gcr_error *error);

/*
 * Bring the driver from any state to checkpointed, with as many retries as that takes. The record
 * stays.
 */
int gcr_drive_to_checkpointed(struct gcr_drive *drive, struct gcr_error *error);

/*
 * Bring the driver from any state back to running. There is no deadline: only the end of the
 * process or of the daemon, or a lack of VRAM, stops the roll-back. On failure *ret_state is the
 * state of the process if the driver alone has its memory, and @error says why. The record stays.
 */
int gcr_drive_to_running(struct gcr_drive *drive, enum gcr_state *ret_state,
			 struct gcr_error *error);

/*
 * Is a roll-back to be given up, after a step that ended with @result? Retries continue for a
 * limited time after @since_usec; a process that stays locked is stuck.
 */
bool gcr_drive_is_hopeless(struct gcr_drive *drive, int result, int64_t since_usec);
/* Set the message for a roll-back that was given up; returns a negative errno. */
int gcr_drive_stuck(enum gcr_control_state state, int result, struct gcr_error *error);

/*
 * Returns -ECANCELED and leaves @error empty: the stop of the operation has a message of its own.
 */
int gcr_drive_stopped(struct gcr_error *error);

#endif
