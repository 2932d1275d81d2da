/* SPDX-License-Identifier: MIT */
/*
 * A verb of one process (a task) as the vmm engine carries it out: its requests to the process's
 * preload library (vmm_library.c) and to the workers of its GPUs (vmm_worker.c). All functions run
 * on the task's thread and fill @error with a message when they return a negative errno.
 */
#ifndef GCR_FS_ENGINE_VMM_H
#define GCR_FS_ENGINE_VMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/base/digest_buffer.h"
#include "fs/engine/driver_session.h"
#include "fs/engine/transit.h"
#include "fs/process/library.h"
#include "fs/store/store.h"
#include "lib/clock.h"
#include "lib/page.h"

/* The worker of one GPU, and the range of extents that it moves. */
struct gcr_vmm_worker {
	uint8_t uuid[GCR_UUID_BYTES];
	uint32_t first;
	uint32_t count;
	struct gcr_helper *helper; /* NULL: not taken */
	bool is_creating;	   /* CREATE is not answered yet */
	bool is_copying;	   /* COPY is not answered yet */
	bool is_ending;		   /* END is not answered yet */
	uint64_t own_bytes;	   /* VRAM that the worker had before its session, 0 if not known */
	bool has_imported;	   /* the worker has imported memory of the program */
	bool is_second; /* the GPU's second worker, beside that of the swap's other task */
	bool has_ended; /* the worker is gone; its reference keeps others from starting one */
};

/*
 * The state of one verb, from gcr_vmm_init() to gcr_vmm_finish(). Only the task's thread uses it.
 */
struct gcr_vmm {
	struct gcr_driver_session driver;
	struct gcr_library *library;   /* NULL: not taken */
	enum gcr_preload_phase phase;  /* the library's phase, from its last answer */
	struct gcr_snapshot *snapshot; /* NULL: none */
	struct gcr_transit *transit;   /* the library's files for managed memory; or NULL */
	const struct gcr_extent *extents;
	struct gcr_extent *own_extents; /* target of `extents` before there is a snapshot */
	size_t count;
	size_t device_count;	 /* the first extents, which are device memory */
	uint64_t imported_bytes; /* of a freeze: device memory of which workers have handles */
	uint64_t used_bytes;	 /* of a freeze: the most of them that the process can have */
	struct gcr_vmm_worker workers[GCR_GPUS_MAX];
	unsigned int workers_count;
	struct gcr_halt *halt;	  /* the program's threads are stopped, NULL: they are not */
	int64_t halt_ends_usec;	  /* when the threads are released at the latest */
	int64_t halt_looked_usec; /* when extend_halt() last looked at the program */
	struct gcr_digest_buffer *digests; /* NULL: none yet */
	bool has_given_files; /* the program may have changed the managed memory's files */
	bool needs_transit;   /* the transit files may hold the only copy */
	bool is_receiving;    /* RECEIVE is not answered yet */
	bool needs_control;   /* on thaw: the driver's own state is restored too */
	bool is_verified;     /* all bytes that came back match the metadata */
	int *handles;	      /* on thaw: descriptors on the way from worker to program, -1: none */
	struct gcr_quota_charge descriptors_charge; /* for the files of transit, and for handles */
	uint32_t usage_admitted; /* GPUs whose admission gcr_vmm_note_usage() took */
	struct gcr_verb_timing timing;
};

/* Set up @vmm for @task, and end all sessions and free everything that the verb still holds. */
void gcr_vmm_init(struct gcr_vmm *vmm, struct gcr_task *task);
void gcr_vmm_finish(struct gcr_vmm *vmm);

/* ---- engine_vmm.c: shared by the verbs ---- */

/*
 * Maps an errno of the connection to the program to one that the writer may get (gpucrfs(5)), and
 * sets @error's number to it. Other results are returned unchanged.
 */
int gcr_vmm_map_error(int result, struct gcr_error *error);

/* Returns the microseconds since *@since_usec, and sets *@since_usec to now. */
int64_t gcr_vmm_elapsed(int64_t *since_usec);

/* Appends the message of a failed roll-back to @error, whose own message stays first. */
void gcr_vmm_add_words(struct gcr_vmm *vmm, const struct gcr_error *back_error,
		       struct gcr_error *error);

/*
 * Rolls back from any point before COMMIT to running. @by_driver: the driver may have the process
 * locked or checkpointed. On failure *ret_state is failed, and everything that a retry needs stays
 * in place: the record says that a freeze was under way.
 */
int gcr_vmm_back_to_running(struct gcr_vmm *vmm, bool by_driver, enum gcr_state *ret_state,
			    struct gcr_error *error);

/*
 * Called when all is copied: gives the workers back, since other processes of the same write may
 * need them before they can vote.
 */
void gcr_vmm_let_workers_go(struct gcr_vmm *vmm);

/*
 * Called when the process runs again: removes its record, and its snapshot unless the store keeps
 * that.
 */
void gcr_vmm_set_running(struct gcr_vmm *vmm);

/* Sets vmm->extents, the memory to be moved, from vmm->snapshot. */
void gcr_vmm_use_snapshot(struct gcr_vmm *vmm);

/* ---- vmm_freeze.c, vmm_thaw.c, vmm_recover.c: the verbs ---- */

/* The verbs, as freeze() and thaw() of struct gcr_engine. */
int gcr_vmm_freeze(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error);
int gcr_vmm_thaw(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error);

/*
 * Recovers the process. The library's phase decides: memory that the program has not given away is
 * taken back, and memory that it has given away is in the store.
 */
int gcr_vmm_recover(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error);

/*
 * Brings a process to running whose program has all its memory, or the descriptors of it, so that
 * the files of the store are not needed.
 */
int gcr_vmm_recover_to_running(struct gcr_vmm *vmm, enum gcr_state *ret_state,
			       struct gcr_error *error);

/*
 * Connects to a library that may have been without a daemon for long. Such a library takes its
 * memory back by itself, and is blocked in that as long as the driver has the process checkpointed.
 * *control is the driver's state of the process. If the library does not connect and *control is
 * checkpointed, brings the driver back to running, sets *control to running, and connects again.
 * -EIO: the driver could not be brought back; errors of gcr_vmm_connect().
 */
int gcr_vmm_reach(struct gcr_vmm *vmm, enum gcr_control_state *control, struct gcr_error *error);

/* ---- vmm_library.c: requests to the library ---- */

/* How long to wait for the library of a frozen program, which may have to reconnect. */
#define GCR_VMM_RECONNECT_USEC (20 * GCR_USEC_PER_SEC)

/*
 * Reads the facts in the library's page, with retries for as long as a busy machine may need.
 * -EBUSY: the page cannot be read; -EIO: the library is gone; with a message.
 */
int gcr_vmm_facts(struct gcr_vmm *vmm, struct gcr_page_facts *ret_facts, struct gcr_error *error);

/*
 * Takes the library, waiting at most @timeout_usec for one that is not connected; on success
 * vmm->phase is set. -ENOTCONN: the library is gone or has not connected; -EBUSY: another verb has
 * the library, or the library's page cannot be read in time; -ESRCH, ...
 */
int gcr_vmm_connect(struct gcr_vmm *vmm, int64_t timeout_usec, struct gcr_error *error);

/*
 * Sends one request without descriptors and waits until it ends. 0: done, with vmm->phase from the
 * answer. -ENOTCONN: the library is gone; -ESRCH: the process has ended; -ECANCELED: the daemon
 * must exit; else the library's own error.
 */
int gcr_vmm_ask(struct gcr_vmm *vmm, uint16_t type, struct gcr_error *error);

/*
 * Repeats a request until it is answered: the library may have to reconnect, or a call in the
 * program to end. Also returns 0 without a request if vmm->phase shows that there is nothing to ask
 * for, because the program has all its memory. Errors that the library answers are returned, but
 * for GATE_OPEN are not taken for an answer. Gives up, with the last error, when
 * gcr_driver_is_hopeless() says so.
 */
int gcr_vmm_request_until_answered(struct gcr_vmm *vmm, uint16_t type, struct gcr_error *error);

/* Did the library last say that it has all its memory, mapped at its old addresses? */
bool gcr_vmm_has_its_memory(const struct gcr_vmm *vmm);

/*
 * Returns -EIO, with the message that the library has taken its memory back because no daemon came.
 */
int gcr_vmm_took_it_back(struct gcr_error *error);

/*
 * After the driver's Lock, when nothing moves any more: is the memory still handed over? Memory
 * that was handed over and is mapped again could be checkpointed, but never restored. -EIO.
 */
int gcr_vmm_check_handed(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * GATE_CLOSE: closes the gate, so that calls of the driver wait, and waits until the GPU is at
 * rest. -ETIMEDOUT: not so by the deadline; -ECANCELED: the operation is to stop.
 */
int gcr_vmm_close_gate(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * LIST: reads the table of the program's memory into vmm->extents, with the daemon's GPU indexes.
 */
int gcr_vmm_list(struct gcr_vmm *vmm, struct gcr_error *error);

/* Sends the library the files of vmm->transit. Does nothing without a transit. */
int gcr_vmm_send_files(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * SAVE and HOLD, the latter with the program's threads stopped. Does nothing for a program without
 * managed memory. -EOPNOTSUPP: the threads cannot be stopped.
 */
int gcr_vmm_hold(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * TAKE_BACK or FINISH (@type), with the program's threads stopped if there is managed memory.
 * -EBUSY, -EOPNOTSUPP: the threads cannot be stopped.
 */
int gcr_vmm_bring_in(struct gcr_vmm *vmm, uint16_t type, struct gcr_error *error);

/*
 * HAND_OVER: the library unmaps its memory and sends descriptors of it, which are passed on to the
 * workers.
 */
int gcr_vmm_hand_over(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * RECEIVE: sends vmm->handles to the library, which maps the memory, and closes them here. Stops
 * early (-ECANCELED) when the operation is to stop; if the program does not answer then, others get
 * the workers.
 */
int gcr_vmm_receive(struct gcr_vmm *vmm, struct gcr_error *error);

/* ---- vmm_metadata.c: digests and manifest of vmm->snapshot ---- */

/*
 * Allocates vmm->digests, which the workers write to. The digests of files that came with known
 * contents are taken over. -ENOMEM.
 */
int gcr_vmm_make_digests(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * After the copy: makes the digests of the managed memory's files too, and writes the metadata of
 * vmm->snapshot.
 */
int gcr_vmm_seal(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * On thaw: reads the expected digests into vmm->digests; with `unverified` none. -EIO: no freeze
 * has written the metadata.
 */
int gcr_vmm_read_digests(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * Compares the files of managed memory with their digests; with `unverified` only their sizes.
 * -EIO: they differ.
 */
int gcr_vmm_verify_managed(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * Called after a thaw that failed, in which threads of the program may have written to restored
 * pages of managed memory: writes the metadata again, with the digests of the present contents.
 */
int gcr_vmm_seal_again(struct gcr_vmm *vmm, struct gcr_error *error);

/* ---- vmm_transit.c: managed memory's files; without such memory there is nothing to do ---- */

/*
 * Creates vmm->transit for the managed memory of vmm->snapshot, and charges its descriptors, and in
 * a thaw those that gcr_vmm_export() gets. -ENFILE: its user, or all users, may have no more.
 * Other errors: those of gcr_transit_create().
 */
int gcr_vmm_make_transit(struct gcr_vmm *vmm, enum gcr_transit_way way, struct gcr_error *error);
/* Begins to copy all files, on other threads. */
int gcr_vmm_begin_transit(struct gcr_vmm *vmm, enum gcr_transit_way way, struct gcr_error *error);
/* Waits until all is copied. Ends early (-ECANCELED) when the operation is to stop. */
int gcr_vmm_end_transit(struct gcr_vmm *vmm, struct gcr_error *error);
/*
 * After a thaw that failed: copies the library's files, which may be newer than the store's, whole
 * to the store.
 */
int gcr_vmm_return_transit(struct gcr_vmm *vmm, struct gcr_error *error);
/* Ends the daemon's use of the transit: see gcr_transit_destroy(). */
void gcr_vmm_drop_transit(struct gcr_vmm *vmm);

/* ---- vmm_worker.c: sessions in workers ---- */

/*
 * Fills vmm->workers: one for each GPU of the extents, none taken yet. -EPROTO: the extents of one
 * GPU are not all next to each other.
 */
int gcr_vmm_assign(struct gcr_vmm *vmm, struct gcr_error *error);

/* The GPUs of vmm->workers, as a mask of indexes. */
uint32_t gcr_vmm_gpu_mask(struct gcr_vmm *vmm);

/*
 * How many copies may be queued at a GPU while the driver uses that GPU, too. Behind a deep queue a
 * restore takes two and a half times as long, and a checkpoint one and a half times as long
 * (measured).
 */
#define GCR_VMM_COPIES_IN_FLIGHT 4

/*
 * Takes the workers and begins a session of @type (GCR_MESSAGE_SESSION_OUT or _IN) in each.
 * @copies_in_flight: the limit of queued copies; 0: as many as fit. -ENOMEM: there is no VRAM for a
 * worker's context.
 */
int gcr_vmm_open_sessions(struct gcr_vmm *vmm, uint16_t type, uint32_t copies_in_flight,
			  struct gcr_error *error);

/*
 * Passes the descriptors @fds of the extents [first, first + count) to the workers of these
 * extents. The descriptors stay the caller's.
 */
int gcr_vmm_import(struct gcr_vmm *vmm, uint32_t first, uint32_t count, const int *fds,
		   struct gcr_error *error);

/*
 * Send CREATE to every session, and wait until each has VRAM for all its extents.
 * gcr_vmm_end_create() has to be called also if gcr_vmm_begin_create() failed. -ENOMEM: too little
 * VRAM.
 */
int gcr_vmm_begin_create(struct gcr_vmm *vmm, struct gcr_error *error);
int gcr_vmm_end_create(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * Make the workers hold as much VRAM as the driver will need on each GPU (the ballast), and free
 * it. -ENOMEM: too little VRAM.
 */
int gcr_vmm_take_ballast(struct gcr_vmm *vmm, struct gcr_error *error);
int gcr_vmm_drop_ballast(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * Begin to copy in every session, and wait until all is copied. The wait stops early when the
 * operation is to stop.
 */
int gcr_vmm_begin_copy(struct gcr_vmm *vmm, struct gcr_error *error);
int gcr_vmm_end_copy(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * Ends the other workers of the same GPUs if they are idle: those of the other task of a swap, or
 * those that an earlier swap left. Their contexts take VRAM. Returns false if there were none.
 */
bool gcr_vmm_end_idle_workers(struct gcr_vmm *vmm);

/* Gets the descriptors of all extents from the workers into vmm->handles. */
int gcr_vmm_export(struct gcr_vmm *vmm, struct gcr_error *error);
/* Closes the descriptors in vmm->handles that are still open. */
void gcr_vmm_drop_handles(struct gcr_vmm *vmm);

/*
 * Begins to end the sessions. Freeing much memory takes a while, in which the task can do other
 * work. A copy that is under way is waited for, one second at most; then its worker is killed.
 */
void gcr_vmm_begin_close(struct gcr_vmm *vmm);

/*
 * The program does not answer: its workers stay with this task, with the VRAM that they hold, and
 * other tasks start new ones.
 */
void gcr_vmm_set_workers_aside(struct gcr_vmm *vmm);

/*
 * On thaw, with the sessions open and nothing taken yet: is there VRAM for all extents beyond the
 * needs of other processes? -ENOMEM: no.
 */
int gcr_vmm_check_needs(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * Ends every session (END) and gives the workers back. A worker that fails is killed, so that
 * nothing of the session stays. Where a run time may keep VRAM, a worker that has imported some is
 * ended, and its end awaited.
 */
void gcr_vmm_close_sessions(struct gcr_vmm *vmm);

/*
 * Ends every session (END) and the workers; no other task gets a new one before the references are
 * given back.
 */
void gcr_vmm_end_workers(struct gcr_vmm *vmm);

/* ---- vmm_released.c: did the VRAM come back? For vendors whose run time may keep it. ---- */

struct gcr_vmm_usage;

/*
 * Notes the VRAM that the workers themselves have. Called with the sessions open and nothing
 * imported.
 */
void gcr_vmm_note_workers(struct gcr_vmm *vmm);

/*
 * Before COMMIT: note the VRAM in use. Until the usage is freed, no process is thawed on the GPUs
 * concerned. NULL: the usage cannot be found out, or is not needed.
 */
struct gcr_vmm_usage *gcr_vmm_note_usage(struct gcr_vmm *vmm);

/*
 * After COMMIT, with the workers gone: wait briefly until the VRAM that was handed over is free.
 * VRAM that has stayed in use is noted in the process (unreturned_vram_bytes), logged, and a reason
 * to refuse its next freeze. Frees @usage; NULL is allowed.
 */
void gcr_vmm_check_usage(struct gcr_vmm *vmm, struct gcr_vmm_usage *usage);

/*
 * The program does not answer: let others on the GPUs. From then on, VRAM that becomes free cannot
 * be attributed to this process.
 */
void gcr_vmm_give_usage_up(struct gcr_vmm *vmm);

/*
 * Frees @usage (NULL is allowed) without a result: the program could not be told to free the VRAM,
 * or has it again.
 */
void gcr_vmm_forget_usage(struct gcr_vmm *vmm, struct gcr_vmm_usage *usage);

/* May the process be frozen again? -EOPNOTSUPP: an earlier freeze did not free its VRAM. */
int gcr_vmm_check_returned(struct gcr_vmm *vmm, struct gcr_error *error);

#endif
