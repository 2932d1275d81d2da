/* SPDX-License-Identifier: MIT */
/*
 * A task in the hands of the vmm engine: its requests to the process's preload library
 * (vmm_link.c) and to the workers of its GPUs (vmm_worker.c). All functions run on the task's
 * thread and fill @error with words when they return a negative errno.
 */
#ifndef GCR_FS_ENGINE_VMM_H
#define GCR_FS_ENGINE_VMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/base/digest_buffer.h"
#include "fs/engine/drive.h"
#include "fs/engine/transit.h"
#include "fs/process/link.h"
#include "fs/store/store.h"
#include "lib/clock.h"
#include "lib/page.h"

/* The worker of one GPU, and which extents are its. */
struct gcr_vmm_worker {
	uint8_t uuid[GCR_UUID_BYTES];
	uint32_t first;
	uint32_t count;
	struct gcr_helper *helper; /* NULL: not taken */
	bool is_creating;	   /* CREATE is not answered yet */
	bool is_copying;	   /* COPY is not */
	bool is_ending;		   /* END is not */
	uint64_t own_bytes;	   /* VRAM that it had before that, 0 if it is not known */
	bool has_imported;	   /* memory of the program's */
	bool is_second;		   /* of its GPU, beside that of the other half of an exchange */
	bool has_ended;		   /* it is gone, and nobody else has its turn yet */
};

struct gcr_vmm {
	struct gcr_drive drive;
	struct gcr_link *link;	       /* NULL: not taken */
	enum gcr_preload_phase phase;  /* the library's, as it last said */
	struct gcr_snapshot *snapshot; /* NULL: none */
	struct gcr_transit *transit; /* managed memory's files, as the library has them; or NULL */
	const struct gcr_extent *extents;
	struct gcr_extent *own_extents; /* what `extents` points to before there is a snapshot */
	size_t count;
	size_t device_count; /* of these, the first */
	struct gcr_vmm_worker workers[GCR_GPUS_MAX];
	unsigned int workers_count;
	struct gcr_halt *halt;		   /* its threads are stopped, NULL: they are not */
	int64_t halt_ends_usec;		   /* and are let go at this moment at the latest */
	int64_t halt_looked_usec;	   /* when it was looked whether all of it is stopped */
	struct gcr_digest_buffer *digests; /* NULL: none yet */
	bool has_given_files;		   /* managed memory's files may have changed since */
	bool needs_transit;		   /* what is in transit may be nowhere else */
	bool is_receiving;		   /* RECEIVE is not answered yet */
	bool needs_control;		   /* on thaw: the driver's own part comes back too */
	bool is_verified;		   /* all that came back was what the metadata says */
	int *handles; /* on thaw: descriptors on the way from worker to program, -1: none */
	uint32_t usage_admitted; /* GPUs that gcr_vmm_note_usage() is alone on */
	struct gcr_verb_timing timing;
};

void gcr_vmm_init(struct gcr_vmm *vmm, struct gcr_task *task);
void gcr_vmm_finish(struct gcr_vmm *vmm);

/* ---- engine_vmm.c: what the verbs have in common ---- */

/*
 * What the writer gets for a failure between us and the program: what is between them has no errno
 * of its own in the contract.
 */
int gcr_vmm_map_error(int result, struct gcr_error *error);

/* Microseconds since *@since_usec, which becomes now. */
int64_t gcr_vmm_lap(int64_t *since_usec);

/* The first words stay; what went wrong on the way back is added. */
void gcr_vmm_add_words(struct gcr_vmm *vmm, const struct gcr_error *back_error,
		       struct gcr_error *error);

/*
 * From anywhere before COMMIT to running; @by_driver: it may be locked. On failure it has failed,
 * with all that is needed to try again left in place: its record says that a freeze was under way.
 */
int gcr_vmm_back_to_running(struct gcr_vmm *vmm, bool by_driver, enum gcr_state *ret_state,
			    struct gcr_error *error);

/* All is copied. Others of the same write may need these workers before they can vote. */
void gcr_vmm_let_workers_go(struct gcr_vmm *vmm);

/* It runs: its record goes, and its snapshot, unless that is kept. */
void gcr_vmm_set_running(struct gcr_vmm *vmm);

/* What is moved is what vmm->snapshot holds. */
void gcr_vmm_use_snapshot(struct gcr_vmm *vmm);

/* ---- vmm_freeze.c, vmm_thaw.c, vmm_recover.c: the verbs ---- */

int gcr_vmm_freeze(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error);
int gcr_vmm_thaw(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error);

/*
 * What the program says of itself decides: what it has not given away is taken back, what it has is
 * in the store.
 */
int gcr_vmm_recover(struct gcr_vmm *vmm, enum gcr_state *ret_state, struct gcr_error *error);

/* It has all its memory, or the descriptors of it: no need of the files. */
int gcr_vmm_recover_to_running(struct gcr_vmm *vmm, enum gcr_state *ret_state,
			       struct gcr_error *error);

/*
 * Connect to a library that may have been without a daemon for long: then it takes its memory back
 * by itself, and where the driver has the process checkpointed it is held up in that. It can only
 * be reached when the driver lets go; what has no memory to take back is reached all the same.
 */
int gcr_vmm_reach(struct gcr_vmm *vmm, enum gcr_control_state *control, struct gcr_error *error);

/* ---- vmm_link.c ---- */

/* The library of a frozen program may have to reconnect. */
#define GCR_VMM_RECONNECT_USEC (20 * GCR_USEC_PER_SEC)

/*
 * What its page says now, waited for as long as a busy machine may take. -EBUSY: it cannot be read;
 * -EIO: the library is gone; with words.
 */
int gcr_vmm_facts(struct gcr_vmm *vmm, struct gcr_page_facts *ret_facts, struct gcr_error *error);

/* Take the link; on success the phase is known. */
int gcr_vmm_connect(struct gcr_vmm *vmm, int64_t timeout_usec, struct gcr_error *error);

/*
 * One request without descriptors, waited for to its end; 0: done, and the phase is what it says.
 * -ENOTCONN: the library is gone, -ESRCH: the process, -ECANCELED: the daemon must go.
 */
int gcr_vmm_ask(struct gcr_vmm *vmm, uint16_t type, struct gcr_error *error);

/*
 * Ask again and again: the library may have to reconnect, or a call in the program to end. 0 also
 * if the program has all its memory, so that there is nothing to ask for: the phase tells.
 */
int gcr_vmm_request_until_answered(struct gcr_vmm *vmm, uint16_t type, struct gcr_error *error);

/* As the library last said: it has all its memory, mapped where it was. */
bool gcr_vmm_has_its_memory(const struct gcr_vmm *vmm);

/* -EIO, with words: nobody came for what it had handed over. */
int gcr_vmm_took_it_back(struct gcr_error *error);

/*
 * With the driver's Lock nothing moves any more. Is its memory not with the program? What was
 * handed over and is mapped again could be checkpointed, but never restored. -EIO.
 */
int gcr_vmm_check_handed(struct gcr_vmm *vmm, struct gcr_error *error);

/* Close the gate; ends with the deadline or when the operation is to stop. */
int gcr_vmm_close_gate(struct gcr_vmm *vmm, struct gcr_error *error);

/* The table of its memory into vmm->extents, with the daemon's GPU indexes. */
int gcr_vmm_list(struct gcr_vmm *vmm, struct gcr_error *error);

/* Files of vmm->transit; without it, there is nothing to send. */
int gcr_vmm_send_files(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * SAVE and HOLD, the latter with the program's threads stopped; nothing to do for a program without
 * managed memory. -EOPNOTSUPP: they cannot be.
 */
int gcr_vmm_hold(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * TAKE_BACK or SETTLE (@type), with the program's threads stopped if there is managed memory.
 * -EBUSY, -EOPNOTSUPP: they cannot be.
 */
int gcr_vmm_bring_in(struct gcr_vmm *vmm, uint16_t type, struct gcr_error *error);

/* HAND_OVER, with what comes passed on to the workers. */
int gcr_vmm_hand_over(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * Give vmm->handles to the program. Stops early when the operation is to stop; while the program
 * does not answer, others get the workers then.
 */
int gcr_vmm_receive(struct gcr_vmm *vmm, struct gcr_error *error);

/* ---- vmm_metadata.c: digests and manifest of vmm->snapshot ---- */

/*
 * Room for the digests, for the workers to write them to; those of files that came with their bytes
 * are there. -ENOMEM.
 */
int gcr_vmm_make_digests(struct gcr_vmm *vmm, struct gcr_error *error);

/* All is copied: digests of the managed memory's files too, and the metadata. */
int gcr_vmm_seal(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * On thaw, into that room: what everything is checked by. -EIO: the metadata is not what a freeze
 * has written.
 */
int gcr_vmm_read_digests(struct gcr_vmm *vmm, struct gcr_error *error);

/* Are the files of managed memory what they were? -EIO. */
int gcr_vmm_verify_managed(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * A thaw did not come to its end, and threads of the program may have written to pages of managed
 * memory that they had got: metadata with the digests of what there is now.
 */
int gcr_vmm_seal_again(struct gcr_vmm *vmm, struct gcr_error *error);

/* ---- vmm_transit.c: managed memory's files; without such memory there is nothing to do ---- */

/* vmm->transit, for vmm->snapshot. -ENOMEM, ... */
int gcr_vmm_make_transit(struct gcr_vmm *vmm, enum gcr_transit_way way, struct gcr_error *error);
/* Copy all of it, beside what the task does. */
int gcr_vmm_begin_transit(struct gcr_vmm *vmm, enum gcr_transit_way way, struct gcr_error *error);
/* All is copied. Ends early when the operation is to stop. */
int gcr_vmm_end_transit(struct gcr_vmm *vmm, struct gcr_error *error);
/* What the library has may be newer than the store's files: these become the same, whole. */
int gcr_vmm_return_transit(struct gcr_vmm *vmm, struct gcr_error *error);
/* The daemon's share of it ends: see gcr_transit_destroy(). */
void gcr_vmm_drop_transit(struct gcr_vmm *vmm);

/* ---- vmm_worker.c ---- */

/*
 * Which GPUs' workers the extents need: vmm->workers, one a GPU, none taken yet. -EPROTO: the
 * extents of one GPU do not follow each other.
 */
int gcr_vmm_assign(struct gcr_vmm *vmm, struct gcr_error *error);

/* The GPUs of vmm->workers, as a mask of indexes. */
uint32_t gcr_vmm_gpu_mask(struct gcr_vmm *vmm);

/*
 * How many copies may be queued at a GPU while the driver has something to do there, too: behind a
 * deep queue a restore takes two and a half times as long, and a checkpoint half as long again
 * (measured).
 */
#define GCR_VMM_COPIES_IN_FLIGHT 4

/* Take the workers and begin a session of @type in each. */
int gcr_vmm_open_sessions(struct gcr_vmm *vmm, uint16_t type, uint32_t copies_in_flight,
			  struct gcr_error *error);

/* Descriptors of the extents [first, first + count), for whichever workers they belong to. */
int gcr_vmm_import(struct gcr_vmm *vmm, uint32_t first, uint32_t count, const int *fds,
		   struct gcr_error *error);

/*
 * CREATE in every session, and what came of it: VRAM for all. What has begun is to be ended, also
 * if beginning failed. -ENOMEM.
 */
int gcr_vmm_begin_create(struct gcr_vmm *vmm, struct gcr_error *error);
int gcr_vmm_end_create(struct gcr_vmm *vmm, struct gcr_error *error);

/* Hold as much VRAM as the driver will need on each GPU, or give it back. */
int gcr_vmm_take_ballast(struct gcr_vmm *vmm, struct gcr_error *error);
int gcr_vmm_drop_ballast(struct gcr_vmm *vmm, struct gcr_error *error);

/* Begin to copy, and wait until all is copied. Stops early when the operation is to stop. */
int gcr_vmm_begin_copy(struct gcr_vmm *vmm, struct gcr_error *error);
int gcr_vmm_end_copy(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * End the other workers of its GPUs, if they are idle: those of the other half of an exchange, or
 * what an earlier one has left. Their contexts take VRAM. False if there were none.
 */
bool gcr_vmm_end_idle_workers(struct gcr_vmm *vmm);

/* Descriptors of all extents into vmm->handles. */
int gcr_vmm_export(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * Begin to do so: letting go of much memory takes a while, which others can be used for. A copy
 * that is under way is waited for, for a second.
 */
void gcr_vmm_begin_close(struct gcr_vmm *vmm);

/*
 * The program does not answer: its workers stay its own, with what they hold, and others get new
 * ones.
 */
void gcr_vmm_set_workers_aside(struct gcr_vmm *vmm);

/*
 * On thaw, with the sessions open and nothing taken yet: room for all of it beside what others
 * still need. -ENOMEM.
 */
int gcr_vmm_check_needs(struct gcr_vmm *vmm, struct gcr_error *error);

/*
 * END every session and give the workers back. Failures end the worker: nothing of it stays. Where
 * a run time may keep VRAM the end of a worker that has imported some is waited for.
 */
void gcr_vmm_close_sessions(struct gcr_vmm *vmm);

/* END every session and the workers, but let nobody else have one before they are given back. */
void gcr_vmm_end_workers(struct gcr_vmm *vmm);

/* ---- vmm_released.c: did the VRAM come back? For vendors whose run time may keep it. ---- */

struct gcr_vmm_usage;

/* The sessions are open, and nothing is imported: what VRAM the workers themselves have. */
void gcr_vmm_note_workers(struct gcr_vmm *vmm);

/*
 * Before COMMIT: what is in use. While this lasts nobody is thawed on the GPUs concerned. NULL: it
 * cannot be told, or there is no need.
 */
struct gcr_vmm_usage *gcr_vmm_note_usage(struct gcr_vmm *vmm);

/*
 * After COMMIT, the workers gone: wait for a moment until what was handed over is free. What has
 * stayed in use is noted in the process (unreturned_vram_bytes), logged, and a reason to refuse its
 * next freeze. Frees @usage; NULL is fine.
 */
void gcr_vmm_check_usage(struct gcr_vmm *vmm, struct gcr_vmm_usage *usage);

/*
 * The program does not answer: others are let on the GPUs, and of what becomes free it cannot be
 * told any more whose it was.
 */
void gcr_vmm_give_usage_up(struct gcr_vmm *vmm);

/* Nothing is known: the program could not be told to free it, or has it again. */
void gcr_vmm_forget_usage(struct gcr_vmm *vmm, struct gcr_vmm_usage *usage);

/* -EOPNOTSUPP if an earlier freeze did not free the VRAM. */
int gcr_vmm_check_returned(struct gcr_vmm *vmm, struct gcr_error *error);

#endif
