/* SPDX-License-Identifier: MIT */
/*
 * Helper processes seen from the daemon: starting them, talking to them, outliving them. A helper
 * may crash, hang or be killed at any moment; nothing here waits longer than it was told to.
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
	GCR_HELPER_CONTROL, /* one verb, no GPU context */
	GCR_HELPER_WORKER,  /* one GPU, holds a context */
	GCR_HELPER_HALT,    /* stops a program's threads once; no driver */
};

struct gcr_helper;  /* one helper process; used by one thread at a time */
struct gcr_helpers; /* what all of them share; thread-safe */

struct gcr_helpers_config {
	const struct gcr_backend *backend;
	const char *helper_directory;	 /* where the programs are; several: divided by ':' */
	const char *simulator_directory; /* put first in LD_LIBRARY_PATH, NULL without -o sim */
	bool keep_stderr;		 /* theirs is ours; else /dev/null */
	int64_t idle_usec;		 /* a worker or a spare control helper goes after this */
};

/* Strings of @config are copied. Starts one thread that retires idle helpers and fills the spare.
 */
int gcr_helpers_create(const struct gcr_helpers_config *config, struct gcr_helpers **ret_helpers);

/* Kills what is left. Helpers taken by others must have been given back. NULL is allowed. */
void gcr_helpers_destroy(struct gcr_helpers *helpers);

/*
 * cuInit takes 0.1-0.2 s (measured), so one initialised control helper is kept ready: while
 * @wanted is true (some process is frozen: a thaw will come), and for idle_usec after the last
 * helper was taken. An idle daemon without frozen processes keeps none.
 */
void gcr_helpers_keep_spare(struct gcr_helpers *helpers, bool wanted);

/*
 * Take a control helper that has said hello: the spare, or a new one (then waits for its hello up
 * to @timeout_usec, or until @wake_fd, if not negative, is readable). It is used for one verb.
 * Errors: -ETIMEDOUT, -EINTR, -EIO it died, or what its hello says (-ENODEV no GPU,
 * -EOPNOTSUPP the driver is too old, ...), with words.
 */
int gcr_helpers_take_control(struct gcr_helpers *helpers, int64_t timeout_usec, int wake_fd,
			     struct gcr_helper **ret_helper, struct gcr_error *error);

/* A new one that stops a program's threads; it says no hello. */
int gcr_helpers_take_halt(struct gcr_helpers *helpers, struct gcr_helper **ret_helper,
			  struct gcr_error *error);

/*
 * The worker of the GPU with this UUID, started if it is not there; others wait their turn.
 * @is_second: another one of the same GPU, for what comes in while something else goes out. It has
 * a session of its own, a context of its own, and ends when idle like the first.
 *
 * Errors as gcr_helpers_take_control(). A worker that has not said hello when the time is over goes
 * on coming up, and the next call waits for the rest; one that takes longer than
 * GCR_HELPERS_COME_UP_USEC is killed: -EIO.
 */
#define GCR_HELPERS_COME_UP_USEC (20 * GCR_USEC_PER_SEC)

int gcr_helpers_take_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second, int64_t timeout_usec, int wake_fd,
			    struct gcr_helper **ret_helper, struct gcr_error *error);

/* Who uses a worker that the caller has taken, for those who look (gcr_helpers_users()). */
void gcr_helper_set_user(struct gcr_helper *helper, pid_t pid);

/*
 * The turn at the GPU's worker is for others, who get another worker, though this one stays the
 * caller's with all that it holds. Given back it ends. Doing it twice is fine.
 */
void gcr_helper_set_aside(struct gcr_helper *helper);

/* Who has taken the workers of a GPU. */
struct gcr_helper_user {
	pid_t pid;	    /* 0: the daemon itself, for a moment */
	int64_t since_usec; /* monotonic */
	bool is_aside;
};

/* Up to @most of them, and how many were written. */
unsigned int gcr_helpers_users(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			       struct gcr_helper_user *ret_users, unsigned int most);

/*
 * Give a helper back: a worker becomes idle, or is killed if it is in the middle of a request; the
 * others end (closing their socket; killed if they do not go within a second, never waited for).
 * NULL is allowed.
 */
void gcr_helper_put(struct gcr_helper *helper);

/* The path of a program that is where the helpers are; for the caller to free. NULL: no memory. */
char *gcr_helpers_program(const struct gcr_helpers *helpers, const char *name);

/* The hello of any helper so far: driver version and API version. False if there was none yet. */
bool gcr_helpers_hello(struct gcr_helpers *helpers, struct gcr_hello *ret_hello);

/* Is @pid one of our helpers (they hold device files too, but are no GPU processes)? */
bool gcr_helpers_owns(struct gcr_helpers *helpers, pid_t pid);

/*
 * Start the worker of this GPU if none is there, and do not wait for it: its start takes as long as
 * much of a freeze. It is found by the next gcr_helpers_take_worker(). Failures are that call's.
 */
void gcr_helpers_start_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES]);

/* The worker of this GPU if it is ready and nobody uses it now; 0: not so. */
pid_t gcr_helpers_idle_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			      bool is_second);

/* Does that of this GPU, or the second one, run, whoever uses it? */
bool gcr_helpers_has_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second);

/*
 * The worker of this GPU if it is running and nobody uses it, for something that can wait: -EAGAIN
 * if not. Never starts one.
 */
int gcr_helpers_borrow_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			      bool is_second, struct gcr_helper **ret_helper);

/* How many workers have ended so far, with what they had registered. */
unsigned int gcr_helpers_workers_ended(struct gcr_helpers *helpers);

/* How many run now. */
unsigned int gcr_helpers_workers(struct gcr_helpers *helpers);

/* Send a request; its answer is fetched with gcr_helper_result(). -EPIPE: the helper is gone. */
int gcr_helper_request(struct gcr_helper *helper, uint16_t type, const void *payload,
		       size_t payload_bytes, struct gcr_error *error);

/* The same with descriptors, which stay the caller's. */
int gcr_helper_request_fds(struct gcr_helper *helper, uint16_t type, const void *payload,
			   size_t payload_bytes, const int *fds, size_t fds_count,
			   struct gcr_error *error);

/*
 * Wait for the answer to the last request. -ETIMEDOUT and -EINTR (@wake_fd readable) leave the
 * request under way: call again. -EPIPE: the helper died. 0: *ret_result is filled; its `error`
 * is not turned into a return value.
 */
int gcr_helper_result(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		      struct gcr_result *ret_result);

/*
 * gcr_helper_result() for an answer that carries descriptors: up to GCR_MESSAGE_FDS_MAX, the
 * caller's from then on.
 */
int gcr_helper_result_fds(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
			  struct gcr_result *ret_result, int ret_fds[GCR_MESSAGE_FDS_MAX],
			  size_t *ret_fds_count);

/* gcr_helper_result() for GCR_MESSAGE_QUERY. */
int gcr_helper_gpus(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		    struct gcr_gpus_reply *ret_reply);

/* End it now: SIGKILL. What the driver has started inside the target goes on (measured). */
void gcr_helper_kill(struct gcr_helper *helper);

/* Wait until it has ended, with all that it had: -ETIMEDOUT. */
int gcr_helper_await_end(struct gcr_helper *helper, int64_t timeout_usec);

pid_t gcr_helper_pid(const struct gcr_helper *helper);

#endif
