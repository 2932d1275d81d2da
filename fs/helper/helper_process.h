/* SPDX-License-Identifier: MIT */
/*
 * One helper process as fs/helper/helper.c (starting, talking) and fs/helper/helpers.c (the pool)
 * share it. Nobody else includes this.
 */
#ifndef GCR_FS_HELPER_HELPER_PROCESS_H
#define GCR_FS_HELPER_HELPER_PROCESS_H

#include <pthread.h>

#include "fs/helper/helper.h"

enum helper_role {
	HELPER_TAKEN,	/* somebody's: the pool only reaps it */
	HELPER_SPARE,	/* a control helper for the next verb */
	HELPER_IDLE,	/* a worker that waits for the next request */
	HELPER_LEAVING, /* its socket is closed; killed at `deadline_usec` */
};

/* The pool; helpers.c has its lock, and the slots. */
struct gcr_helpers {
	struct gcr_helpers_config config; /* strings are ours */
	int epoll_fd;			  /* wake_fd and the pidfd of every helper not reaped */
	int wake_fd;			  /* the lists have changed */
	pthread_t thread;
	bool has_thread;

	pthread_mutex_t lock;
	bool stopping;
	struct gcr_helper *all;
	struct gcr_helper *spare;
	struct worker_slot *slots;
	unsigned int workers_ended;
	bool spare_wanted;
	bool was_taken; /* some helper, at: */
	int64_t taken_usec;
	int64_t spare_retry_usec; /* not before */
	bool has_hello;
	struct gcr_hello hello;
};

struct gcr_helper {
	/* fixed from the start */
	struct gcr_helpers *helpers;
	enum gcr_helper_kind kind;
	char *program; /* its name in words */
	pid_t pid;
	int pidfd;

	/* the conversation: whoever has taken the helper, else the pool under its lock */
	int socket; /* -1 once closed */
	uint32_t sequence;
	bool pending;	      /* a request is not answered yet */
	bool said_hello;      /* and it was a good one */
	bool dead;	      /* the socket has ended, or it was killed, or it talked garbage */
	bool has_reservation; /* RESERVE was sent and no RELEASE succeeded since */
	bool in_session;      /* likewise SESSION_OUT or SESSION_IN and END */
	bool has_imported;    /* IMPORT was sent, ever */
	uint16_t request_type;
	struct gcr_hello hello;

	/* under the pool's lock */
	struct gcr_helper *next;
	enum helper_role role;
	bool killed;	       /* by us, after it did not leave */
	int64_t deadline_usec; /* IDLE: retire; LEAVING: kill */
	bool reaped;
	int wait_status; /* if reaped; -1 if the kernel did not tell */
	struct worker_slot *slot;
	uint8_t uuid[GCR_UUID_BYTES]; /* a worker's GPU */
	bool is_aside;		      /* its turn has gone to others */
	int64_t started_usec;	      /* monotonic */
	pid_t user;		      /* TAKEN: for whom, 0: not said */
	int64_t taken_usec;	      /* and since when, monotonic */
};

/* Start the program. @uuid: the worker's GPU, NULL for others. -EIO, -ENOMEM, with words. */
int gcr_helper_start(const struct gcr_helpers_config *config, enum gcr_helper_kind kind,
		     const uint8_t *uuid, struct gcr_helper **ret_helper, struct gcr_error *error);

/*
 * The path of a program in @directories, if there is one of that name; else in the first of the
 * directories, divided by ':', that has it, or in the last one if none has. For the caller to free.
 * NULL: no memory.
 */
char *gcr_helper_find(const char *directories, const char *program);

/* Wait for the hello, if it has not been heard. Errors as gcr_helpers_take_control(). */
int gcr_helper_greet(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		     struct gcr_error *error);

/* Is a helper that nobody talks to still able to take requests? */
bool gcr_helper_usable(const struct gcr_helper *helper);

/* Close our end of the socket: the helper ends when it sees that. */
void gcr_helper_hang_up(struct gcr_helper *helper);

/*
 * Collect its exit status if it has ended; never waits. True if it has been collected. The
 * caller holds the pool's lock.
 */
bool gcr_helper_reap(struct gcr_helper *helper);

/* gcr_helper_reap() for whoever has taken the helper: takes the pool's lock. */
bool gcr_helpers_reap_one(struct gcr_helper *helper, int *ret_wait_status);

/* Free the object; the process is not touched. */
void gcr_helper_free(struct gcr_helper *helper);

#endif
