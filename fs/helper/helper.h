/* SPDX-License-Identifier: MIT */
/*
 * Helper processes as the daemon sees them: starting them, exchanging messages, surviving their
 * failures. A helper may crash, hang or be killed at any moment; no function here waits longer than
 * its timeout.
 */
#ifndef GCR_FS_HELPER_HELPER_H
#define GCR_FS_HELPER_HELPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "lib/error.h"
#include "lib/protocol.h"

enum gcr_helper_kind {
	GCR_HELPER_CONTROL, /* runs one verb, no GPU context */
	GCR_HELPER_WORKER,  /* serves one GPU, holds a context */
	GCR_HELPER_HALT,    /* stops a program's threads once; no driver */
};

struct gcr_helper;  /* one helper process; used by one thread at a time */
struct gcr_helpers; /* the pool, shared by all of them; thread-safe */

struct gcr_helpers_config {
	const struct gcr_backend *backend;
	const char *helper_directory;	 /* where the programs are; several, separated by ':' */
	const char *simulator_directory; /* put first in LD_LIBRARY_PATH, NULL without -o sim */
	bool keep_stderr;		 /* helpers inherit our stderr; else /dev/null */
	/* A worker or a spare control helper ends after this time. */
	int64_t idle_usec;
};

/*
 * Creates the pool; copies the strings of @config, but not @config->backend. Starts one thread,
 * which retires idle helpers and replaces the spare. -ENOMEM, -errno of starting the thread.
 */
int gcr_helpers_create(const struct gcr_helpers_config *config, struct gcr_helpers **ret_helpers);

/* Kills the remaining helpers. All helpers must have been put back. NULL is allowed. */
void gcr_helpers_destroy(struct gcr_helpers *helpers);

/*
 * cuInit takes 0.1-0.2 s (measured), so one initialised control helper is kept as a spare: while
 * @wanted is true (some process is frozen, so a thaw will come), and for idle_usec after the last
 * helper was taken. An idle daemon without frozen processes has no spare.
 */
void gcr_helpers_keep_spare(struct gcr_helpers *helpers, bool wanted);

/*
 * Takes a control helper that has sent its hello: the spare, or a new one (then waits for the hello
 * up to @timeout_usec, or until @wake_fd, if not negative, is readable). A control helper is used
 * for one verb. Errors, with a message: -ETIMEDOUT, -EINTR, -EIO the helper died, or the error in
 * its hello (-ENODEV no GPU, -EOPNOTSUPP the driver is too old, ...).
 */
int gcr_helpers_take_control(struct gcr_helpers *helpers, int64_t timeout_usec, int wake_fd,
			     struct gcr_helper **ret_helper, struct gcr_error *error);

/* Takes a new helper that stops a program's threads; this kind sends no hello. -EIO, -ENOMEM. */
int gcr_helpers_take_halt(struct gcr_helpers *helpers, struct gcr_helper **ret_helper,
			  struct gcr_error *error);

/* How a caller waits for the turn at a worker. */
struct gcr_worker_wait {
	uint64_t client; /* turns go round among clients: see gcr_fair_client() */
	bool is_urgent;	 /* before the client's others: it holds what others wait for */
	int64_t timeout_usec;
	int wake_fd; /* ends the wait when it is readable; negative: none */
	/* Called with @data a few times a second: true ends the wait. NULL: not called. */
	bool (*is_to_stop)(void *data);
	void *data;
	int64_t queued_usec; /* out: how long others had the turn */
};

/*
 * Takes the worker of the GPU with this UUID, and starts it if there is none. Callers wait for
 * their turn, which they keep while the worker starts. @is_second: a second worker of the same GPU,
 * for memory that comes in while other memory goes out. The second worker has its own session and
 * context, and ends when idle like the first.
 *
 * Errors as gcr_helpers_take_control(), and -ECANCELED: @wait->is_to_stop(). A worker that has not
 * sent its hello at the timeout keeps starting, and the next call waits for it again; a worker that
 * takes longer than GCR_HELPERS_COME_UP_USEC to start is killed: -EIO.
 */
#define GCR_HELPERS_COME_UP_USEC (20 * GCR_USEC_PER_SEC)

int gcr_helpers_take_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second, struct gcr_worker_wait *wait,
			    struct gcr_helper **ret_helper, struct gcr_error *error);

/*
 * Records the process for which a worker that the caller has taken is used, for
 * gcr_helpers_users().
 */
void gcr_helper_set_user(struct gcr_helper *helper, pid_t pid);

/*
 * Passes the turn at the GPU on to other callers, who get another worker; this worker stays the
 * caller's with all that it holds, and ends when it is put back. Idempotent.
 */
void gcr_helper_set_aside(struct gcr_helper *helper);

/* A user of a GPU's worker. */
struct gcr_helper_user {
	pid_t pid;	    /* 0: the daemon itself, briefly */
	int64_t since_usec; /* monotonic */
	bool is_aside;
};

/* Lists at most @most users of this GPU's workers; returns how many were written. */
unsigned int gcr_helpers_users(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			       struct gcr_helper_user *ret_users, unsigned int most);

/*
 * Gives a helper back, without waiting. A worker that holds nothing becomes idle, also one that
 * still starts. Any other helper ends: its socket is closed, and it is killed after one second; a
 * worker with a request under way is killed at once. NULL is allowed.
 */
void gcr_helper_put(struct gcr_helper *helper);

/*
 * As gcr_helper_put(), while a control helper makes a call whose answer the caller does not want
 * any more. The helper gets @usec longer to end the call before it is killed.
 */
void gcr_helper_put_calling(struct gcr_helper *helper, int64_t usec);

/* The path of a program in the helpers' directories: gcr_helper_find(). */
int gcr_helpers_program(const struct gcr_helpers *helpers, const char *name, char **ret_path,
			struct gcr_error *error);

/*
 * The driver version and API version, from the hello of any helper. False if there was no hello
 * yet.
 */
bool gcr_helpers_hello(struct gcr_helpers *helpers, struct gcr_hello *ret_hello);

/* Is @pid one of our helpers (they hold device files too, but are no GPU processes)? */
bool gcr_helpers_owns(struct gcr_helpers *helpers, pid_t pid);

/*
 * Starts the worker of this GPU if there is none, without waiting: starting it takes a large part
 * of the time of a freeze. The next gcr_helpers_take_worker() takes it, and reports errors of its
 * start.
 */
void gcr_helpers_start_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES]);

/* The pid of this GPU's worker if it is ready and unused; else 0. */
pid_t gcr_helpers_idle_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			      bool is_second);

/* Does this GPU's worker (@is_second: its second worker) run, in use or not? */
bool gcr_helpers_has_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second);

/*
 * Takes this GPU's worker for a moment if it is running and unused, for work that can wait: -EAGAIN
 * if not. Never starts one.
 */
int gcr_helpers_borrow_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			      bool is_second, struct gcr_helper **ret_helper);

/*
 * Takes this GPU's worker if it is running and unused, to end it. If the worker is borrowed, waits
 * for it as @client (see gcr_fair_client()), at most @wait_usec. -EAGAIN if it is not to be had.
 * Never starts one.
 */
int gcr_helpers_take_idle_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
				 bool is_second, uint64_t client, int64_t wait_usec,
				 struct gcr_helper **ret_helper);

/* Number of workers that have ended since the start; all that they had registered is gone. */
unsigned int gcr_helpers_workers_ended(struct gcr_helpers *helpers);

/* Number of workers that are running. */
unsigned int gcr_helpers_workers(struct gcr_helpers *helpers);

/*
 * Sends a request; gcr_helper_result() receives the answer. Errors, with a message: -EPIPE the
 * helper has ended, -EBUSY it has not answered the last request, and those of gcr_message_send().
 */
int gcr_helper_request(struct gcr_helper *helper, uint16_t type, const void *payload,
		       size_t payload_bytes, struct gcr_error *error);

/* As gcr_helper_request(), with descriptors, which stay the caller's. */
int gcr_helper_request_fds(struct gcr_helper *helper, uint16_t type, const void *payload,
			   size_t payload_bytes, const int *fds, size_t fds_count,
			   struct gcr_error *error);

/*
 * Waits for the answer to the last request. -ETIMEDOUT and -EINTR (@wake_fd readable): the request
 * is still under way, call again. -EPIPE: the helper died. 0: *ret_result is filled in; the caller
 * looks at its `error`.
 */
int gcr_helper_result(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		      struct gcr_result *ret_result);

/*
 * gcr_helper_result() for an answer with descriptors: up to GCR_MESSAGE_FDS_MAX, which become the
 * caller's.
 */
int gcr_helper_result_fds(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
			  struct gcr_result *ret_result, int ret_fds[GCR_MESSAGE_FDS_MAX],
			  size_t *ret_fds_count);

/* As gcr_helper_result(), for the answer to GCR_MESSAGE_QUERY, with entries checked. */
int gcr_helper_gpus(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		    struct gcr_gpus_reply *ret_reply);

/*
 * Kills the helper now, with SIGKILL. Work that the driver has started inside the target process
 * continues (measured).
 */
void gcr_helper_kill(struct gcr_helper *helper);

/* Waits until the helper has ended and its resources are released: -ETIMEDOUT. */
int gcr_helper_await_end(struct gcr_helper *helper, int64_t timeout_usec);

pid_t gcr_helper_pid(const struct gcr_helper *helper);

#endif
