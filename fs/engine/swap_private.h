/* SPDX-License-Identifier: MIT */
/*
 * Progress of the two tasks of a swap, shared by swap.c (queries of engines) and fs/job/swap_run.c
 * (start to end). No other file includes this one.
 */
#ifndef GCR_FS_ENGINE_SWAP_PRIVATE_H
#define GCR_FS_ENGINE_SWAP_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/engine/admission.h"
#include "fs/engine/swap.h"
#include "lib/clock.h"

/*
 * When the two are to stop, a thaw that can roll back does so soon. A thaw whose program does not
 * answer is not waited for: after the first of these times the frozen process is thawed again if
 * there is VRAM for both, and after the second it stays frozen.
 */
#define GCR_SWAP_PATIENCE_USEC GCR_USEC_PER_SEC
#define GCR_SWAP_GIVE_UP_USEC  (10 * GCR_USEC_PER_SEC)

/* In the order in which a task reaches them. No task waits for one that has failed. */
enum gcr_swap_progress {
	GCR_SWAP_STARTED,
	GCR_SWAP_READY,	  /* the thaw has its admission; the freeze has its workers */
	GCR_SWAP_BEGUN,	  /* freeze only: VRAM that it may need again becomes free */
	GCR_SWAP_DECIDED, /* thaw only: nothing stops it any more */
	GCR_SWAP_DONE,	  /* the process is running; or frozen or ended, with its VRAM free */
	GCR_SWAP_FAILED,
};

/* One swap. `lock` guards all fields but `freeze` and `admission`, which are constant. */
struct gcr_swap {
	struct gcr_command freeze;
	struct gcr_admission *admission;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum gcr_swap_progress frozen;
	enum gcr_swap_progress thawed;
	int64_t out_usec;     /* when the freeze was done, monotonic */
	int64_t stopped_usec; /* when the freeze noticed that the two are to stop; 0: not yet */
	int64_t undone_usec;  /* until when an undo of the freeze waits for others */
	uint32_t admitted;    /* mask of GPUs whose admission is kept for a roll-back */
	/* The admission is no longer kept, and no need noted: no roll-back, or not soon. */
	bool is_over;
	bool has_left;	      /* the thaw no longer needs its admission */
	bool is_stuck;	      /* the thaw's process does not answer */
	struct gcr_need need; /* replaces `admitted` when one of the two does not answer */
};

/* The field with the task's progress; to be read with gcr_swap_get(), which takes the lock. */
enum gcr_swap_progress *gcr_swap_progress_of(const struct gcr_task *task);
enum gcr_swap_progress gcr_swap_get(struct gcr_swap *swap, const enum gcr_swap_progress *progress);
/* Advances the task's progress to @value; progress never goes back. */
void gcr_swap_set(const struct gcr_task *task, enum gcr_swap_progress value);
/* Waits briefly, or until *@progress is at least @wanted. */
void gcr_swap_wait_a_moment(struct gcr_swap *swap, const enum gcr_swap_progress *progress,
			    enum gcr_swap_progress wanted);
/*
 * Waits until the thaw has ended, but only for @usec once the two are to stop or their deadline has
 * passed. A thaw that has decided is waited for without limit, because it may still fail, unless
 * its process does not answer. Returns the thaw's progress.
 */
enum gcr_swap_progress gcr_swap_wait_for_thaw(struct gcr_task *task, int64_t usec);

/*
 * Gives up the admission that is kept for a roll-back, and ends the need that has replaced it: the
 * swap keeps nothing from then on. A thaw that @has_failed takes neither from a freeze that may
 * have to take VRAM again; the freeze gives them up itself. No lock is held by the caller.
 */
void gcr_swap_end_admission(struct gcr_swap *swap, bool has_failed);

/*
 * Gives the kept admission to others, and notes @need (which is copied, and is not noted) in its
 * place. Does nothing if no admission is kept. Lock: swap->lock.
 */
void gcr_swap_give_up_locked(struct gcr_swap *swap, const struct gcr_need *need);

#endif
