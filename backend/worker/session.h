/* SPDX-License-Identifier: MIT */
/*
 * A session in the worker: moves the memory of one process out of VRAM or back in (see struct
 * gcr_session in lib/protocol.h). All extents are mapped back to back in one range of device
 * addresses, so that copying does not depend on their number and sizes.
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

/*
 * The resources that sessions use; they outlive the session. The context is the calling thread's.
 */
struct gcr_worker_gpu {
	struct gcr_driver driver;
	CUdevice device;
	CUcontext context;
	struct gcr_copier *copier;
	struct gcr_digester *digester;
	struct gcr_pins *pins; /* NULL: no file is registered */
};

/*
 * Begins a session with the table in @files->table, which stays the caller's; the other descriptors
 * are taken on success. The files are checked only when they are copied. Errors of all functions
 * here have a message; *ret_driver_result is the driver's code if the driver failed (else it is
 * left alone). -EPROTO: the table is invalid; -EOPNOTSUPP: more extents than descriptors can be
 * open.
 */
int gcr_worker_session_begin(struct gcr_worker_gpu *gpu, enum gcr_copy_direction direction,
			     const struct gcr_session *asked, const struct gcr_session_files *files,
			     struct gcr_worker_session **ret_session, CUresult *ret_driver_result,
			     struct gcr_error *error);

/*
 * OUT: import and map the memory behind @fds, which are the next @range of the table. Each
 * descriptor is taken (set to -1) when its memory has been imported, and kept until the end.
 * -EINVAL: @range is not the next one, or a descriptor is not of this GPU's memory.
 */
int gcr_worker_session_import(struct gcr_worker_session *session, const struct gcr_range *range,
			      int *fds, size_t fds_count, CUresult *ret_driver_result,
			      struct gcr_error *error);

/*
 * IN: allocate the VRAM of all extents; from then on data is copied to it. -ENOMEM with the
 * figures: nothing is held then, and the call can be repeated. With GCR_SESSION_IN_PARTS the memory
 * that could be allocated is kept and copied to; the next call allocates the rest. -EINVAL: the
 * session is no longer, or not, at this step.
 */
int gcr_worker_session_create(struct gcr_worker_session *session, CUresult *ret_driver_result,
			      struct gcr_error *error);

/*
 * Starts copying everything; -EINVAL if some memory is not there. gcr_copier_event() signals the
 * end, then gcr_worker_session_copied() returns the result. For OUT this call makes the digests,
 * queues the chunks that differ from the files, and writes the digests. For IN
 * gcr_worker_session_copied() compares the digests, which have to be complete when this function is
 * called: -EIO, with the file and the offset.
 */
int gcr_worker_session_copy(struct gcr_worker_session *session, CUresult *ret_driver_result,
			    struct gcr_error *error);
/* While copying: begin to verify the data that has arrived, so that less remains for the end. */
void gcr_worker_session_advance(struct gcr_worker_session *session);
int gcr_worker_session_copied(struct gcr_worker_session *session, CUresult *ret_driver_result,
			      struct gcr_error *error);

/*
 * IN, after CREATE: return a descriptor for each extent of @range; the caller owns them. Their
 * contents are valid only when all is copied. -EINVAL: some VRAM of the session is not allocated
 * yet, its copy has failed, or there is no such range.
 */
int gcr_worker_session_export(struct gcr_worker_session *session, const struct gcr_range *range,
			      int ret_fds[GCR_MESSAGE_FDS_MAX], CUresult *ret_driver_result,
			      struct gcr_error *error);

/*
 * OUT, when all is copied: unmaps and releases now, before END, the memory that is no longer
 * needed. Makes END faster; errors are left to END.
 */
void gcr_worker_session_tidy(struct gcr_worker_session *session);

/*
 * Ends the session and frees @session, whatever is returned. NULL is allowed. An error means that
 * the driver may still hold memory: only the end of this process releases it.
 */
int gcr_worker_session_end(struct gcr_worker_session *session, CUresult *ret_driver_result,
			   struct gcr_error *error);

#endif
