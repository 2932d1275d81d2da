/* SPDX-License-Identifier: MIT */
/*
 * A driver session: the part of a verb of one process (a task) that concerns the driver, for every
 * engine that can freeze. It holds the conversation with the driver through a control helper
 * (driver_session.c), and the VRAM and host memory that the process needs (driver_memory.c). All
 * functions run on the task's thread and fill @error with a message when they return a negative
 * errno. "The writers" are the users whose write(2) to a ctl file waits for the verb's result.
 */
#ifndef GCR_FS_ENGINE_DRIVER_SESSION_H
#define GCR_FS_ENGINE_DRIVER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/engine/admission.h"
#include "fs/helper/helper.h"
#include "fs/store/record.h"
#include "fs/verb/task.h"
#include "lib/procfs.h"

/* How long a driver session waits for a helper's hello, or for an answer that needs no GPU. */
#define GCR_DRIVER_HELPER_WAIT_USEC (20 * GCR_USEC_PER_SEC)

/*
 * The state of one driver session, from gcr_driver_session_init() to gcr_driver_session_finish().
 * Only the task's thread uses it.
 */
struct gcr_driver_session {
	struct gcr_task *task;
	struct gcr_process *process;
	struct gcr_daemon *daemon;
	struct gcr_vendor *vendor;	 /* of the process, for the session's lifetime */
	const char *engine;		 /* the engine's name, for records */
	struct gcr_proc_program program; /* of the process, for the verb's writer; 0: unknown */
	uid_t owner;	    /* of the process, when the session began; (uid_t)-1: it had ended */
	bool is_of_another; /* it was not the writer's then, as when the verb was written */
	struct gcr_helper *helper;
	struct gcr_record record;
	struct gcr_gpu_pair pairs[GCR_GPUS_MAX];
	uint32_t pairs_count;
	struct gcr_moves asked_moves; /* moves for a Restore, from the driver's current GPUs */
	uint32_t admitted;	      /* GPUs whose admission this session holds */
	/*
	 * Idle workers that were ended to make room. While their references are held, no other
	 * workers take their places; the contexts of those would need VRAM that the driver needs.
	 */
	struct gcr_helper *ended[2 * GCR_GPUS_MAX];
	unsigned int ended_count;
	uint64_t ended_bytes; /* VRAM that these workers had in all, as far as known */
	uint32_t ballast;     /* mask of GPUs where VRAM is held for a Restore: not checked again */
	int64_t stopping_usec; /* when the session noticed that the daemon is stopping, 0 before */
	bool rolling_back; /* a roll-back is under way, which a cancel or deadline does not stop */
	bool had_state;	   /* the driver has known the process, in this session or before */
	bool lacks_state;  /* the driver says that it does not know the process */
	bool is_ending;	   /* the process is ending, as the driver or the preload library says */
	bool is_replaced; /* the process has another program: nothing of the frozen one is of use */
	/* Not listed by NVML, or not every GPU: its need is the VRAM that a checkpoint frees. */
	bool need_unknown;
	uint64_t free_before[GCR_GPUS_MAX];
	uint64_t bytes; /* of VRAM that a checkpoint would put into the process's host memory */
	uint64_t anonymous_before; /* bytes of the process's host memory before the checkpoint */

	/* driver_stall.c: waits for a process that does not answer */
	int64_t asked_usec;   /* when the current wait for the process began, 0: none */
	int64_t stopped_usec; /* since when the process has been seen stopped, 0: not stopped */
	int64_t waited_usec;  /* sum of earlier waits while something was held */
	int64_t gated_usec;   /* the same for waits for GPU work, which have their own limit */
	int64_t queued_usec;  /* by how much waits for workers have shortened the limit */
	/* Bytes for which the process has more time, none of them by the library's word alone. */
	uint64_t patience_bytes;
	bool has_workers;     /* the session holds workers that other verbs may wait for */
	bool is_gating;	      /* the current wait is for work on the process's GPUs */
	bool is_halted;	      /* the daemon has stopped the process's threads */
	bool lets_others;     /* no answer for too long; stays set to the end of the verb */
	struct gcr_need need; /* VRAM of a Restore that has given its admission up */
	/*
	 * Called when the wait has lasted too long, repeatedly until it ends. NULL: the verb holds
	 * nothing else.
	 */
	void (*let_others)(struct gcr_driver_session *driver);
	/* Bytes that have been moved by now, beside patience_bytes. NULL: none. */
	uint64_t (*moved_bytes)(struct gcr_driver_session *driver);
};

/*
 * Sets up a driver session; gcr_driver_session_finish() gives back its helper, ended workers and
 * admission.
 */
void gcr_driver_session_init(struct gcr_driver_session *driver, struct gcr_task *task,
			     const char *engine);
void gcr_driver_session_finish(struct gcr_driver_session *driver);

/* Sets the phase that status shows: one word, a string constant. */
void gcr_driver_session_set_phase(struct gcr_driver_session *driver, const char *phase);

/*
 * Must the caller stop waiting? True if the process has ended, or if the daemon must exit now: then
 * even a roll-back is left unfinished. A cancel does not make it true.
 */
bool gcr_driver_session_must_leave(struct gcr_driver_session *driver);

/*
 * Has the process got another program (execve(2)) since the session began? That program may have
 * other rights: it must not be locked, and its library not be asked for what the earlier program
 * has had. False also if the process does not let itself be looked at.
 */
bool gcr_driver_sees_other_program(struct gcr_driver_session *driver);

/*
 * May the program that the process has now be locked? A process can hide its program, but not its
 * owner. So the owner must be the same as at the start of the session, and the owner of a running
 * process must be the verb's writer. When a thaw is undone, the process may be locked whoever wrote
 * the thaw. -ESRCH: the process has another program, or has ended; -EPERM: it has, or may have,
 * another user's; -EIO: its owner could not be read now.
 */
int gcr_driver_may_lock(struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * Is the program ending, so that there is nothing to take from it or to give back? True if the
 * driver has deinitialised in the program, if its preload library says so, or if the process has
 * another program.
 */
bool gcr_driver_sees_end(struct gcr_driver_session *driver);

/*
 * A verb has failed with @result. Returns -ESRCH, with a message that says so, if the cause is the
 * end of the process or of its use of the GPU; else returns @result. Waits briefly for the process
 * to exit.
 */
int gcr_driver_explain_end(struct gcr_driver_session *driver, int result, struct gcr_error *error);

/*
 * Called with the result of gcr_driver_explain_end(). If the process is ending but still exists,
 * removes its record, sets *ret_state to running and returns true. The caller then frees the
 * process's files in the store.
 */
bool gcr_driver_let_go(struct gcr_driver_session *driver, int result, enum gcr_state *ret_state);

/*
 * Called again and again in a wait that cannot be cut short. Once the deadline has passed, the
 * writers are answered, and a control helper that a signal has stopped is killed.
 */
void gcr_driver_check_deadline(struct gcr_driver_session *driver);

/*
 * As gcr_driver_check_deadline(), but half a second later: for a request that the other side
 * answers by the deadline with a better message.
 */
void gcr_driver_check_answer(struct gcr_driver_session *driver);

/* Sleeps for @msec, or until the process has ended. */
void gcr_driver_session_pause(struct gcr_driver_session *driver, int msec);

/*
 * Takes a control helper if the driver session has none, and waits for its hello. Errors as
 * gcr_helpers_take_control().
 */
int gcr_driver_need_helper(struct gcr_driver_session *driver, struct gcr_error *error);

/* Returns -EPERM, with the message that the process is not the writer's any more. */
int gcr_driver_of_another(const struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * Checks from outside the process for reasons that forbid a freeze: the vendor's preflight checks,
 * and the use of two vendors' GPUs by one process. @driver_version: from the hello of the control
 * helper. -EOPNOTSUPP: there is such a reason; -EPERM: the process is not the writer's any more;
 * -ESRCH: the process has ended; -EACCES: /proc cannot be read.
 */
int gcr_driver_preflight(struct gcr_driver_session *driver, const char *driver_version,
			 struct gcr_error *error);

/*
 * Is the driver to checkpoint its own state too? False for `freeze data`, and for a vendor whose
 * driver has no checkpoint: then that state stays where it is.
 */
bool gcr_driver_takes_control(const struct gcr_driver_session *driver);

/*
 * Makes one call to the driver and waits until it ends, since the driver cannot take back a call
 * that it has begun. If the deadline passes during the wait, the writers are answered. 0: the
 * driver's answer is in *ret. -EPIPE: the helper died, and the caller has to ask another helper how
 * the call ended; -ESRCH: the process has ended; -ECANCELED: the daemon must exit.
 */
int gcr_driver_call(struct gcr_driver_session *driver, uint16_t type, uint32_t timeout_ms,
		    struct gcr_result *ret, struct gcr_error *error);

/*
 * Gets the driver's state of the process. A helper that dies is replaced, a few times. The state is
 * always `running` for a vendor whose driver has no checkpoint. -EIO: the helpers fail, or the
 * driver does not find the process; other errors of the driver; -ESRCH, -ECANCELED as of
 * gcr_driver_call().
 */
int gcr_driver_ask_state(struct gcr_driver_session *driver, enum gcr_control_state *ret_state,
			 struct gcr_error *error);

/*
 * Writes the record that a next daemon needs: FREEZING and THAWING before the driver is touched,
 * FROZEN and FAILED when the process has come to that state. -errno: the record cannot be written.
 */
int gcr_driver_write_record(struct gcr_driver_session *driver, enum gcr_record_state state,
			    struct gcr_error *error);
/* Removes the record. The process also forgets the swap that it was frozen for. */
void gcr_driver_remove_record(struct gcr_driver_session *driver);

/*
 * Asks the driver's library for the GPUs of the process's vendor as they are now; the indexes in
 * the reply are that vendor's. All entries of the process are listed. -EIO: no helper answers;
 * -ESRCH: the process has ended; else the library's error.
 */
int gcr_driver_query(struct gcr_driver_session *driver, struct gcr_gpus_reply *reply,
		     struct gcr_error *error);

/*
 * Before a freeze: notes in the process the VRAM that it uses now on each GPU, which a thaw will
 * need. -EOPNOTSUPP: a GPU is in MIG mode, or its free VRAM cannot be found out; -ENOMEM; errors of
 * gcr_driver_query().
 */
int gcr_driver_take_stock(struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * Subtracts @bytes of one GPU, which the driver will not checkpoint, from the VRAM noted by
 * gcr_driver_take_stock().
 */
void gcr_driver_deduct(struct gcr_driver_session *driver, const uint8_t uuid[GCR_UUID_BYTES],
		       uint64_t bytes);

/*
 * Can the process's host memory take the VRAM that is left to the driver? -ENOMEM, with the
 * figures: no; errors of gcr_proc_memory_room().
 */
int gcr_driver_check_host_room(struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * After the checkpoint of a process that NVML does not list: notes the VRAM that became free as the
 * VRAM that a thaw will need. Errors of gcr_driver_query(), -EOPNOTSUPP, -ENOMEM.
 */
int gcr_driver_measure_freed(struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * For a process that was found frozen without a noted need: notes an upper bound (its host memory)
 * for each GPU.
 */
void gcr_driver_assume_need(struct gcr_driver_session *driver);

/*
 * To be called before every Restore: takes the admission of the GPUs concerned, and checks that
 * they have enough VRAM (-ENOMEM with the figures). The admission is held until
 * gcr_driver_leave_admission() or gcr_driver_session_finish(). -ECANCELED: the operation is to
 * stop; during a roll-back, only if the daemon or the process ends. -ETIMEDOUT: the undo of a
 * swap's freeze has waited long enough.
 */
int gcr_driver_take_admission(struct gcr_driver_session *driver, struct gcr_error *error);

/* Gives the admission back. In a swap it is kept for both tasks: see gcr_swap_keep_admission(). */
void gcr_driver_leave_admission(struct gcr_driver_session *driver);

/*
 * Ends an idle worker of the GPU @uuid, whose context takes VRAM; @is_second: the GPU's second
 * worker. Until gcr_driver_let_start() or gcr_driver_session_finish() no worker takes its place,
 * because the driver needs some more VRAM after a restore, too. Returns false if no such worker is
 * idle.
 */
bool gcr_driver_end_idle_worker(struct gcr_driver_session *driver,
				const uint8_t uuid[GCR_UUID_BYTES], bool is_second);
void gcr_driver_let_start(struct gcr_driver_session *driver);

/* The GPUs whose VRAM a Restore will need, as a mask (bit = index). */
uint32_t gcr_driver_need_mask(struct gcr_driver_session *driver);

/*
 * Waits for the admission of all GPUs of @mask and takes it, as gcr_driver_take_admission() does,
 * but does not look at their VRAM. Does nothing if the driver session holds an admission.
 * -ECANCELED as for gcr_driver_take_admission().
 */
int gcr_driver_wait_turn(struct gcr_driver_session *driver, uint32_t mask, struct gcr_error *error);

/* The GPU that the contents of GPU @uuid go to on thaw: another one if gpu=OLD:NEW says so. */
const uint8_t *gcr_driver_destination(const struct gcr_driver_session *driver,
				      const uint8_t uuid[GCR_UUID_BYTES]);

/*
 * ---- driver_places.c: the GPUs that a frozen process is on, and those that it goes to ----
 *
 * A frozen process's bytes are always named after the GPUs that it was frozen on. A Restore can
 * move the driver's own state to other GPUs; that state stays there if the thaw is undone.
 */

/*
 * Makes the list of moves that the driver wants from gpu=OLD:NEW: a destination for every GPU, each
 * used once. Without the option the process goes to the GPUs that it was frozen on. -ENODEV: there
 * is no such GPU; -EOPNOTSUPP: the two GPUs are of two vendors, or the vendor's processes cannot
 * move; -EBUSY: the process was dumped on other GPUs, and has got its GPUs in the restore; -ENOMEM.
 */
int gcr_driver_make_pairs(struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * If @control says that the process's context is still on a GPU, the process's memory is directed
 * to the same GPU. -EOPNOTSUPP: the command asks for another one.
 */
int gcr_driver_follow_context(struct gcr_driver_session *driver, enum gcr_control_state control,
			      struct gcr_error *error);

/*
 * After a Restore that succeeded, and before the next checkpoint: notes in the process and in its
 * record which GPUs the process is on now. @is_ours is false if an earlier daemon may have begun
 * the Restore: -EIO if that daemon sent the process to other GPUs.
 */
int gcr_driver_note_places(struct gcr_driver_session *driver, bool is_ours,
			   struct gcr_error *error);

/*
 * In a recovery: tells from the driver's state @control whether a Restore that an earlier daemon
 * may have begun was made, and if so notes where the process is.
 */
void gcr_driver_recover_places(struct gcr_driver_session *driver, enum gcr_control_state control);

/*
 * Copies the process's present GPUs, and those that a thaw under way sends it to, into
 * driver->record. Takes @process->lock.
 */
void gcr_driver_record_places(struct gcr_driver_session *driver);

/* ---- driver_stall.c: processes that do not answer ---- */

/*
 * gcr_driver_begin_wait() and gcr_driver_end_wait() enclose every wait for the process itself, its
 * library or its driver; gcr_driver_check_stall() is called in the wait, a few times a second. When
 * the wait has lasted too long (the process is stopped, the verb is late, or all its waits together
 * exceed a limit, which grows with the bytes that the driver reports or that have been moved), the
 * admission becomes a need, the swap is notified, and driver->let_others() is
 * called.
 */
void gcr_driver_begin_wait(struct gcr_driver_session *driver);
void gcr_driver_end_wait(struct gcr_driver_session *driver);
void gcr_driver_check_stall(struct gcr_driver_session *driver);

/*
 * Subtracts @queued_usec, for which the verb has waited for a worker while it held something, from
 * the time that its process may take. At least a few seconds of that time remain.
 */
void gcr_driver_note_queued(struct gcr_driver_session *driver, int64_t queued_usec);

/*
 * Adds to @need the VRAM, in bytes, that @process will take: its driver's share, and the device
 * memory of @snapshot (NULL: none). Also sets the need's owner and pid. Takes @process->lock.
 */
void gcr_driver_add_need(struct gcr_driver_session *driver, struct gcr_process *process,
			 const struct gcr_snapshot *snapshot, struct gcr_need *need);

/*
 * If other processes have noted a need for VRAM of the GPU (fs/engine/admission.h): are @bytes
 * free beyond their needs? 0: yes, or no other process has noted one, and then the free VRAM is
 * not looked at; -ENOMEM: no; or an error of gcr_driver_query().
 */
int gcr_driver_check_needs(struct gcr_driver_session *driver, const uint8_t uuid[GCR_UUID_BYTES],
			   uint64_t bytes, struct gcr_error *error);

/* Is the process stopped now by a signal or a debugger (not by the daemon: is_halted)? */
bool gcr_driver_sees_stop(struct gcr_driver_session *driver);

/*
 * Before a thaw: refuses a process that a signal has stopped, which could not answer. A tracer's
 * stop does not count. -EOPNOTSUPP.
 */
int gcr_driver_check_stopped(struct gcr_driver_session *driver, struct gcr_error *error);

/* ---- driver_control.c: the driver's steps ---- */

/* Pause before a failed call is tried again during a roll-back. */
#define GCR_DRIVER_RETRY_MSEC 100

/*
 * Gives the process a new random generation, which names this freeze, and the name of the
 * session's engine. -EIO: the kernel has no random numbers.
 */
int gcr_driver_new_generation(struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * Checks that the driver calls the process running: only then can it be frozen. -EBUSY: another
 * tool has locked or checkpointed it; -EIO with *ret_state failed: the driver says that the process
 * has failed; errors of gcr_driver_ask_state().
 */
int gcr_driver_check_running(struct gcr_driver_session *driver, enum gcr_state *ret_state,
			     struct gcr_error *error);

/*
 * The driver's Lock: waits until the work on the GPU has ended, and blocks further calls of the
 * program. Asks in slices, so that a stop is noticed. -ETIMEDOUT: the work did not end by the
 * deadline; -ECANCELED: the operation is to stop; -EPERM: the process is not the writer's any more;
 * -EIO, ...
 */
int gcr_driver_lock(struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * The driver's Checkpoint, Restore and Unlock. If the helper dies in one of them, another helper
 * asks the driver how the call ended. After a successful restore the driver has the process locked,
 * with its VRAM back. -EOPNOTSUPP: the driver refuses to checkpoint the process; -EIO: the driver
 * failed (*ret_state is failed if the process can never be restored, else it is not set); errors of
 * gcr_driver_call().
 */
int gcr_driver_checkpoint(struct gcr_driver_session *driver, struct gcr_error *error);
int gcr_driver_restore(struct gcr_driver_session *driver, enum gcr_state *ret_state,
		       struct gcr_error *error);
int gcr_driver_unlock(struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * Brings the driver from any state to checkpointed, with as many retries as that takes. The record
 * stays. Errors as of gcr_driver_stuck().
 */
int gcr_driver_to_checkpointed(struct gcr_driver_session *driver, struct gcr_error *error);

/*
 * Brings the driver from any state back to running. There is no deadline: only the end of the
 * process or of the daemon, or a lack of VRAM, stops the roll-back. On failure *ret_state is the
 * state of the process if the driver alone has its memory, and @error says why. The record stays.
 */
int gcr_driver_to_running(struct gcr_driver_session *driver, enum gcr_state *ret_state,
			  struct gcr_error *error);

/*
 * Is a roll-back to be given up, after a step that ended with @result? True after -ESRCH or
 * -ECANCELED, if the process is ending, and two minutes after @since_usec (monotonic).
 */
bool gcr_driver_is_hopeless(struct gcr_driver_session *driver, int result, int64_t since_usec);
/*
 * Sets the message for a roll-back that was given up; @state: the driver's last known state.
 * Returns @result, or -EIO if that is 0.
 */
int gcr_driver_stuck(enum gcr_control_state state, int result, struct gcr_error *error);

/*
 * Returns -ECANCELED and leaves @error empty: the stop of the operation has a message of its own.
 */
int gcr_driver_session_stopped(struct gcr_error *error);

#endif
