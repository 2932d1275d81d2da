/* SPDX-License-Identifier: MIT */
/*
 * How far the two of an exchange are, for exchange.c (what engines ask) and fs/job/exchange_run.c
 * (from start to end). Nobody else includes this.
 */
#ifndef GCR_FS_ENGINE_EXCHANGE_PRIVATE_H
#define GCR_FS_ENGINE_EXCHANGE_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/engine/admission.h"
#include "fs/engine/exchange.h"
#include "lib/clock.h"

/*
 * When the two are to stop, a thaw that can go back does so soon. One whose program does not answer
 * is not waited for: where there is room beside it, the other one comes back after the first of
 * these times, and after the second it stays as it is.
 */
#define GCR_EXCHANGE_PATIENCE_USEC GCR_USEC_PER_SEC
#define GCR_EXCHANGE_GIVE_UP_USEC  (10 * GCR_USEC_PER_SEC)

/* In the order in which they come about; nobody waits for one that has failed. */
enum gcr_exchange_progress {
	GCR_EXCHANGE_STARTED,
	GCR_EXCHANGE_READY,   /* the thaw is alone on its GPUs; the freeze has its workers */
	GCR_EXCHANGE_BEGUN,   /* of the freeze: VRAM that it may need again becomes free */
	GCR_EXCHANGE_DECIDED, /* of the thaw: nothing stops it any more */
	GCR_EXCHANGE_DONE,    /* running; frozen, or ended: the VRAM is free */
	GCR_EXCHANGE_FAILED,
};

struct gcr_exchange {
	struct gcr_command freeze;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum gcr_exchange_progress frozen;
	enum gcr_exchange_progress thawed;
	int64_t out_usec;     /* when the freeze was done, monotonic */
	int64_t stopped_usec; /* when the freeze noticed that the two are to stop; 0: not yet */
	int64_t undone_usec;  /* until when what it was frozen for may be taken back */
	uint32_t admitted;    /* kept for whoever goes back */
	bool is_over;	      /* nobody goes back any more, or not soon */
	bool has_left;	      /* the thaw needs its admission no more */
	bool is_stuck;	      /* the thaw's process does not answer */
	struct gcr_need need; /* instead of `admitted`, when one of the two does not answer */
};

enum gcr_exchange_progress *gcr_exchange_progress_of(const struct gcr_task *task);
enum gcr_exchange_progress gcr_exchange_get(struct gcr_exchange *exchange,
					    const enum gcr_exchange_progress *progress);
/* The task has got to @value; its progress never goes back. */
void gcr_exchange_set(const struct gcr_task *task, enum gcr_exchange_progress value);
/* Wait for a moment, or until *@progress is at least @wanted. */
void gcr_exchange_wait_a_moment(struct gcr_exchange *exchange,
				const enum gcr_exchange_progress *progress,
				enum gcr_exchange_progress wanted);
/*
 * Wait until the thaw has ended, but only for @usec once the two are to stop or their deadline has
 * passed. A thaw that has decided is waited for however late it is, because it may still fail; but
 * not one whose process does not answer. Returns how far the thaw is.
 */
enum gcr_exchange_progress gcr_exchange_wait_for_thaw(struct gcr_task *task, int64_t usec);

#endif
