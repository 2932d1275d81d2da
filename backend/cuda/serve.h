/* SPDX-License-Identifier: MIT */
/* What both helper programs do: say hello, answer requests one by one, list the GPUs. */
#ifndef GCR_CUDA_SERVE_H
#define GCR_CUDA_SERVE_H

#include "backend/cuda/driver.h"
#include "lib/error.h"
#include "lib/message.h"
#include "lib/protocol.h"

/* Tell the daemon that we are ready, or why not (@error->number is not 0). */
int gcr_serve_hello(const struct gcr_driver *driver, const struct gcr_error *error);

/*
 * Do what @request asks for and fill @result (it is all zero). Requests of a type that is not
 * known set its error to EOPNOTSUPP.
 */
typedef void gcr_serve_handler(const struct gcr_message *request, struct gcr_result *result,
			       void *data);

/* One more thing to know about the GPUs when NVML does not: the worker has a context. */
typedef void gcr_serve_complete(struct gcr_gpus_reply *reply, void *data);

/*
 * Serve until the daemon closes the socket. GCR_MESSAGE_QUERY is answered here, everything else
 * by @handler. @complete may be NULL.
 */
void gcr_serve(const struct gcr_driver *driver, gcr_serve_handler *handler,
	       gcr_serve_complete *complete, void *data);

/* Put an error into a result. */
void gcr_serve_fail(struct gcr_result *result, CUresult driver_result,
		    const struct gcr_error *error);

#endif
