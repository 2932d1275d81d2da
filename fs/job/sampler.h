/* SPDX-License-Identifier: MIT */
/*
 * The sampler: one thread that reads the pages of the preload libraries regularly. The thread finds
 * out since when a program has given its GPU no work, and whether the files in the pool still fit
 * the program's memory. If a library that reconnects has missed the commit, the thread sends the
 * commit again. The thread sleeps while there is no library.
 */
#ifndef GCR_FS_JOB_SAMPLER_H
#define GCR_FS_JOB_SAMPLER_H

#include <stdint.h>

#include "fs/daemon.h"
#include "fs/process/process.h"

struct gcr_sampler;

/* Starts the thread. -ENOMEM, -EAGAIN. */
int gcr_sampler_create(struct gcr_daemon *daemon, struct gcr_sampler **ret_sampler);
/* Ends the thread. NULL is allowed. */
void gcr_sampler_destroy(struct gcr_sampler *sampler);

/* A library has registered; callable on any thread. */
void gcr_sampler_wake(struct gcr_sampler *sampler);

/*
 * Milliseconds since the program last gave its GPU work, as seen by samples (every
 * GCR_SAMPLE_MSEC); -1 if not known.
 */
int64_t gcr_sampler_idle_msec(struct gcr_process *process);

#define GCR_SAMPLE_MSEC 250

#endif
