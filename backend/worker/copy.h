/* SPDX-License-Identifier: MIT */
/*
 * The copy path: bytes between VRAM and the files of a space (space.h), through a ring of
 * pinned memory. A copier is made once for a context; it does one job at a time.
 */
#ifndef GCR_BACKEND_WORKER_COPY_H
#define GCR_BACKEND_WORKER_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/driver.h"
#include "backend/worker/space.h"
#include "lib/error.h"

struct gcr_copier;

struct gcr_copier_config {
	unsigned int threads; /* that copy between ring and files */
	unsigned int slots;   /* of the ring */
	size_t slot_bytes;    /* one copy of the GPU's; a multiple of GCR_SPACE_PIECE_BYTES */
	unsigned int lanes;   /* parts of what has arrived that are copied side by side */
};

/* What was measured to be best, with no more threads than the calling one may use CPUs. */
void gcr_copier_config_default(struct gcr_copier_config *ret_config);

/*
 * Ring and threads, which inherit CPUs and memory policy of the caller. @driver is kept.
 * Errors, with words: -ENOMEM, or what the driver says; *ret_driver_result is its last answer.
 */
int gcr_copier_create(const struct gcr_driver *driver, CUcontext context,
		      const struct gcr_copier_config *config, struct gcr_copier **ret_copier,
		      CUresult *ret_driver_result, struct gcr_error *error);
/* Stops a job. NULL is allowed. */
void gcr_copier_destroy(struct gcr_copier *copier);

enum gcr_copy_direction {
	GCR_COPY_OUT, /* VRAM to files */
	GCR_COPY_IN,
};

struct gcr_copy_job {
	enum gcr_copy_direction direction;
	const struct gcr_space *space; /* the caller's, until the job has ended */
	CUdeviceptr base;	       /* where offset 0 is in VRAM */
	unsigned int in_flight;	       /* at most so many copies queued; 0: as many as fit */
};

/* Begin. Nothing is copied before it is added; the job ends when the whole space has been. */
void gcr_copier_start(struct gcr_copier *copier, const struct gcr_copy_job *job);

enum gcr_copy_what {
	GCR_COPY_BYTES,
	GCR_COPY_ZEROS,	  /* OUT: nothing but zeros, whole pieces; they become holes */
	GCR_COPY_NOTHING, /* OUT: what the files have already */
};

/* So many bytes of the space from @offset on can be done now, each of them once. -ENOMEM. */
int gcr_copier_add(struct gcr_copier *copier, enum gcr_copy_what what, uint64_t offset,
		   uint64_t bytes, struct gcr_error *error);

/* Everything is added. */
void gcr_copier_close(struct gcr_copier *copier);

/* From now on as many copies are queued as fit. */
void gcr_copier_hurry(struct gcr_copier *copier);

/* Readable when the job has ended: everything is copied, it has failed or was stopped. */
int gcr_copier_event(const struct gcr_copier *copier);

/*
 * Wait for the end of the job and forget it. Every thread and the GPU are through with its space
 * then. Errors, with words: as gcr_space_write(), or what the driver says, whose code is
 * *ret_driver_result then (else CUDA_SUCCESS).
 */
int gcr_copier_finish(struct gcr_copier *copier, CUresult *ret_driver_result,
		      struct gcr_error *error);

/* How long the last job that has ended took, and how much of what was added were bytes to copy. */
int64_t gcr_copier_usec(struct gcr_copier *copier);
uint64_t gcr_copier_bytes(struct gcr_copier *copier);

/*
 * IN: so many bytes of the space, from its beginning on, are in VRAM. Only known where they come in
 * order, from registered files; else 0.
 */
uint64_t gcr_copier_landed(struct gcr_copier *copier);

/* Do not go on with the job; then gcr_copier_finish() without its error. No job: nothing. */
void gcr_copier_stop(struct gcr_copier *copier);

#endif
