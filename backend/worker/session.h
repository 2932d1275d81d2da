/* SPDX-License-Identifier: MIT */
/*
 * A session in the worker: the memory of one process on its way out of VRAM or back in (see struct
 * gcr_session in lib/protocol.h). All extents are mapped back to back in one range of device
 * addresses, so that how many there are, and how large, makes no difference to copying.
 */
#ifndef GCR_BACKEND_WORKER_SESSION_H
#define GCR_BACKEND_WORKER_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/driver.h"
#include "backend/worker/copy.h"
#include "backend/worker/digest.h"
#include "backend/worker/pin.h"
#include "lib/error.h"
#include "lib/protocol.h"

struct gcr_worker_session;

/* The descriptors that a session begins with, in the order of the message. */
struct gcr_session_files {
	int table;
	int directory;
	int digests;
	int tables; /* -1, as the last one: nothing is packed */
	int segments;
};

/* What a session works with; outlives it. The context is the calling thread's. */
struct gcr_worker_gpu {
	struct gcr_driver driver;
	CUdevice device;
	CUcontext context;
	struct gcr_copier *copier;
	struct gcr_digester *digester;
	struct gcr_pins *pins; /* NULL: no file is registered */
};

/*
 * Begin with the table in @files->table; the others are taken on success. The files are not looked
 * at before they are copied. Errors of all functions here come with words;
 * *ret_driver_result is the driver's code if it was the driver (else it is left alone). -EPROTO a
 * table that makes no sense, -EOPNOTSUPP more extents than descriptors can be open.
 */
int gcr_worker_session_begin(struct gcr_worker_gpu *gpu, enum gcr_copy_direction direction,
			     const struct gcr_session *asked, const struct gcr_session_files *files,
			     struct gcr_worker_session **ret_session, CUresult *ret_driver_result,
			     struct gcr_error *error);

/*
 * OUT: map the memory behind @fds, which are the next @range of the table.
 * Each descriptor is taken (set to -1) when its memory has been imported, and kept to the end.
 * -EINVAL not the next ones, or a descriptor of something else.
 */
int gcr_worker_session_import(struct gcr_worker_session *session, const struct gcr_range *range,
			      int *fds, size_t fds_count, CUresult *ret_driver_result,
			      struct gcr_error *error);

/*
 * IN: take the VRAM of all extents; it is copied to from then on. -ENOMEM with the figures, and
 * nothing is held then: it can be asked for again. With GCR_SESSION_IN_PARTS what there was room
 * for stays, and is being copied to; the next call takes the rest.
 */
int gcr_worker_session_create(struct gcr_worker_session *session, CUresult *ret_driver_result,
			      struct gcr_error *error);

/*
 * Everything is being copied, or -EINVAL: some of it is not there. gcr_copier_event() tells when it
 * is through, then gcr_worker_session_copied() how it went. Here OUT makes the digests, copies what
 * differs from what the files have, and writes them; there IN compares them, which have to be
 * complete when this is called: -EIO, with the file and the offset.
 */
int gcr_worker_session_copy(struct gcr_worker_session *session, CUresult *ret_driver_result,
			    struct gcr_error *error);
/* Meanwhile: begin to verify what has come in so far, which then need not wait for the end. */
void gcr_worker_session_advance(struct gcr_worker_session *session);
int gcr_worker_session_copied(struct gcr_worker_session *session, CUresult *ret_driver_result,
			      struct gcr_error *error);

/*
 * IN, after CREATE: a descriptor for each of @range, the caller's. What is behind it is right only
 * when all is copied.
 */
int gcr_worker_session_export(struct gcr_worker_session *session, const struct gcr_range *range,
			      int ret_fds[GCR_MESSAGE_FDS_MAX], CUresult *ret_driver_result,
			      struct gcr_error *error);

/* OUT, after all is copied: unmap what END would have to. Nothing that could be missed. */
void gcr_worker_session_tidy(struct gcr_worker_session *session);

/*
 * Let go of everything; @session is gone, whatever is returned. NULL is allowed. An error means
 * that the driver may still hold memory: only the end of this process helps.
 */
int gcr_worker_session_end(struct gcr_worker_session *session, CUresult *ret_driver_result,
			   struct gcr_error *error);

#endif
