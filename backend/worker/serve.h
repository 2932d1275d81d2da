/* SPDX-License-Identifier: MIT */
/*
 * The part that all helper programs share: send the hello, answer requests one by one, list the
 * GPUs.
 */
#ifndef GCR_BACKEND_WORKER_SERVE_H
#define GCR_BACKEND_WORKER_SERVE_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/cuda/driver.h"
#include "lib/error.h"
#include "lib/message.h"
#include "lib/protocol.h"

/*
 * Call at the start of main(): starts a thread that asks NVML for the data of the hello. That takes
 * as long as initialising the driver (8 ms), and so runs in parallel with it.
 */
void gcr_serve_prepare(void);

/* Tells the daemon that the helper is ready, or why not (@error->number is not 0). */
int gcr_serve_hello(const struct gcr_driver *driver, const struct gcr_error *error);

/* A reply to the daemon. */
struct gcr_answer {
	struct gcr_result result;
	int fds[GCR_MESSAGE_FDS_MAX]; /* closed once they have been sent */
	size_t fds_count;
	bool last; /* the helper cannot continue: it exits after this answer */
};

/*
 * Execute @request and fill @answer, which is all zero. Set descriptors of the request that are
 * taken to -1; the others are closed afterwards. For a request of unknown type set the result's
 * error to EOPNOTSUPP.
 */
typedef void gcr_serve_handler(struct gcr_message *request, struct gcr_answer *answer, void *data);

/*
 * Called when NVML is missing, to add facts about the GPUs that need a context: the worker has one.
 * Not for HIP: there the kernel provides them.
 */
typedef void gcr_serve_complete(struct gcr_gpus_reply *reply, void *data);

/* Work to be done between an answer and the next request. */
typedef void gcr_serve_between(void *data);

/* A helper's functions for gcr_serve(). */
struct gcr_service {
	const struct gcr_driver *driver;
	gcr_serve_handler *handle;
	gcr_serve_complete *complete; /* may be NULL */
	gcr_serve_between *between;   /* may be NULL */
	void *data;
};

/*
 * Serves until the daemon closes the socket. GCR_MESSAGE_QUERY is answered here; the handler
 * answers all other requests.
 */
void gcr_serve(const struct gcr_service *service);

/*
 * For a handler: wait until @fd is readable, for at most @timeout_msec. Returns -ETIMEDOUT, or
 * -EPIPE if the daemon has closed its end, so that the answer cannot be delivered.
 */
int gcr_serve_wait(int fd, int timeout_msec);

/* Puts an error into @result, with the driver's code (CUDA_SUCCESS: none). */
void gcr_serve_fail(struct gcr_result *result, CUresult driver_result,
		    const struct gcr_error *error);

#endif
