/* SPDX-License-Identifier: MIT */
/* What all helper programs do: say hello, answer requests one by one, list the GPUs. */
#ifndef GCR_BACKEND_WORKER_SERVE_H
#define GCR_BACKEND_WORKER_SERVE_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/cuda/driver.h"
#include "lib/error.h"
#include "lib/message.h"
#include "lib/protocol.h"

/*
 * At the start of main(): let a thread find out what the hello needs from NVML, which takes as long
 * as initialising the driver does (8 ms), meanwhile.
 */
void gcr_serve_prepare(void);

/* Tell the daemon that we are ready, or why not (@error->number is not 0). */
int gcr_serve_hello(const struct gcr_driver *driver, const struct gcr_error *error);

/* What goes back to the daemon. */
struct gcr_answer {
	struct gcr_result result;
	int fds[GCR_MESSAGE_FDS_MAX]; /* closed once they have been sent */
	size_t fds_count;
	bool last; /* the helper is of no use any more: it goes after this answer */
};

/*
 * Do what @request asks for and fill @answer (it is all zero). Descriptors of the request that are
 * taken are set to -1; the others are closed afterwards. Requests of a type that is not known set
 * the result's error to EOPNOTSUPP.
 */
typedef void gcr_serve_handler(struct gcr_message *request, struct gcr_answer *answer, void *data);

/*
 * One more thing to know about the GPUs when NVML does not: the worker has a context. Not for HIP:
 * there the kernel knows.
 */
typedef void gcr_serve_complete(struct gcr_gpus_reply *reply, void *data);

/* What can be done between an answer and the next request. */
typedef void gcr_serve_between(void *data);

struct gcr_service {
	const struct gcr_driver *driver;
	gcr_serve_handler *handle;
	gcr_serve_complete *complete; /* may be NULL */
	gcr_serve_between *between;   /* may be NULL */
	void *data;
};

/*
 * Serve until the daemon closes the socket. GCR_MESSAGE_QUERY is answered here, everything else
 * by the handler.
 */
void gcr_serve(const struct gcr_service *service);

/*
 * For a handler: wait until @fd is readable, at most @timeout_msec. -ETIMEDOUT; -EPIPE: the daemon
 * has gone, and nobody waits for the answer.
 */
int gcr_serve_wait(int fd, int timeout_msec);

/* Put an error into a result. */
void gcr_serve_fail(struct gcr_result *result, CUresult driver_result,
		    const struct gcr_error *error);

#endif
