/* SPDX-License-Identifier: MIT */
/*
 * The copy path: moves bytes between VRAM and the files of a space (space.h) through a ring of
 * pinned memory. A copier is made once for a context and does one job at a time.
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
	unsigned int threads; /* number of threads that copy between ring and files */
	unsigned int slots;   /* number of slots of the ring */
	size_t slot_bytes;    /* bytes of one GPU copy; a multiple of GCR_SPACE_PIECE_BYTES */
	unsigned int lanes;   /* parts of the added data that are copied in parallel */
};

/*
 * The configuration that was measured to be best, with at most as many threads as the calling
 * thread may use CPUs.
 */
void gcr_copier_config_default(struct gcr_copier_config *ret_config);

/*
 * Creates the ring and the threads, which inherit the caller's CPUs and memory policy. @driver must
 * outlive the copier. Errors, with a message: -ENOMEM, or the driver's; *ret_driver_result is the
 * driver's last result.
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
	const struct gcr_space *space; /* the caller's; must exist until the job has ended */
	CUdeviceptr base;	       /* address of offset 0 in VRAM */
	unsigned int in_flight; /* maximum number of copies queued at the GPU; 0: as many as fit */
};

/*
 * Begins a job. Only the ranges that are added by gcr_copier_add() are copied. The job ends when
 * every byte of the space has been added and processed.
 */
void gcr_copier_start(struct gcr_copier *copier, const struct gcr_copy_job *job);

enum gcr_copy_what {
	GCR_COPY_BYTES,
	GCR_COPY_ZEROS,	  /* OUT: only zeros, whole pieces; they become holes */
	GCR_COPY_NOTHING, /* OUT: the files already have these bytes */
};

/*
 * Adds @bytes of the space from @offset on to the job, which may process them at once. Each byte is
 * added once. -ENOMEM.
 */
int gcr_copier_add(struct gcr_copier *copier, enum gcr_copy_what what, uint64_t offset,
		   uint64_t bytes, struct gcr_error *error);

/* Tells the copier that nothing more will be added. */
void gcr_copier_close(struct gcr_copier *copier);

/* Lifts the job's limit of queued copies: from now on as many are queued as fit. */
void gcr_copier_hurry(struct gcr_copier *copier);

/*
 * Returns a descriptor that is readable when the job has ended: everything is copied, or the job
 * has failed or was stopped.
 */
int gcr_copier_event(const struct gcr_copier *copier);

/*
 * Waits for the end of the job and forgets it. After the return no thread uses the space, and
 * neither does the GPU. Errors, with a message: as gcr_space_write(), or the driver's, with its
 * code in *ret_driver_result (else CUDA_SUCCESS).
 */
int gcr_copier_finish(struct gcr_copier *copier, CUresult *ret_driver_result,
		      struct gcr_error *error);

/*
 * Duration of the last job that has ended, in microseconds, and how many of the added bytes were
 * GCR_COPY_BYTES.
 */
int64_t gcr_copier_usec(struct gcr_copier *copier);
uint64_t gcr_copier_bytes(struct gcr_copier *copier);

/*
 * IN: number of bytes from the beginning of the space that are in VRAM. Only known if they arrive
 * in order, from registered files; else 0.
 */
uint64_t gcr_copier_landed(struct gcr_copier *copier);

/* Aborts the job, if there is one, and waits like gcr_copier_finish(), ignoring its error. */
void gcr_copier_stop(struct gcr_copier *copier);

#endif
