/* SPDX-License-Identifier: MIT */
/*
 * One thread that looks at the pages of the preload libraries now and then: since when a program
 * has given its GPU no work, and whether its files in the pool are still those it would need. Also
 * tells a library that reconnects what it has missed. It sleeps while there is no library.
 */
#ifndef GCR_FS_JOB_SAMPLER_H
#define GCR_FS_JOB_SAMPLER_H

#include <stdint.h>

#include "fs/daemon.h"
#include "fs/process/process.h"

struct gcr_sampler;

int gcr_sampler_create(struct gcr_daemon *daemon, struct gcr_sampler **ret_sampler);
/* Ends the thread. NULL is allowed. */
void gcr_sampler_destroy(struct gcr_sampler *sampler);

/* A library has registered. Any thread. */
void gcr_sampler_wake(struct gcr_sampler *sampler);

/*
 * Milliseconds since the program last gave its GPU work, as far as samples tell (every
 * GCR_SAMPLE_MSEC); -1 if not known.
 */
int64_t gcr_sampler_idle_msec(struct gcr_process *process);

#define GCR_SAMPLE_MSEC 250

#endif
