/* SPDX-License-Identifier: MIT */
/*
 * The objects of a helper process and of the pool, shared only by fs/helper/helper.c (starting,
 * talking), helpers.c and worker_slot.c (the pool), and helpers_take.c (taking and giving back).
 */
#ifndef GCR_FS_HELPER_HELPER_PROCESS_H
#define GCR_FS_HELPER_HELPER_PROCESS_H

#include <pthread.h>

#include "fs/helper/helper.h"
#include "lib/clock.h"

/* Time for a helper to end by itself before it is killed. */
#define GCR_HELPER_LEAVE_USEC GCR_USEC_PER_SEC

enum helper_role {
	HELPER_TAKEN,	/* in use: the pool only reaps it */
	HELPER_SPARE,	/* a control helper kept for the next verb */
	HELPER_IDLE,	/* a worker waiting for the next request */
	HELPER_LEAVING, /* its socket is closed; killed at `deadline_usec` */
};

/* The pool. */
struct gcr_helpers {
	struct gcr_helpers_config config; /* strings are owned */
	int epoll_fd;			  /* polls wake_fd and the pidfds of helpers not reaped */
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
	bool was_taken; /* some helper was taken, at taken_usec */
	int64_t taken_usec;
	int64_t spare_retry_usec; /* no new spare before this time */
	bool has_hello;
	struct gcr_hello hello;
};

struct gcr_helper {
	/* constant after the start */
	struct gcr_helpers *helpers;
	enum gcr_helper_kind kind;
	char *program; /* its name in messages */
	pid_t pid;
	int pidfd;

	/*
	 * the conversation: owned by the thread that has taken the helper, else by the pool under
	 * its lock
	 */
	int socket; /* -1 once closed */
	uint32_t sequence;
	bool pending;	      /* a request is not answered yet */
	bool said_hello;      /* and the hello reported no error */
	bool dead;	      /* the socket has closed, it was killed, or it broke the protocol */
	bool has_reservation; /* RESERVE was sent and no RELEASE succeeded since */
	bool in_session;      /* likewise for SESSION_OUT or SESSION_IN, and END */
	bool has_imported;    /* IMPORT has been sent at some time */
	uint16_t request_type;
	struct gcr_hello hello;

	/* under the pool's lock */
	struct gcr_helper *next;
	enum helper_role role;
	bool killed;	       /* by us, after it did not end by itself */
	int64_t deadline_usec; /* IDLE: retire; LEAVING: kill */
	bool reaped;
	int wait_status; /* if reaped; -1 if the kernel does not report it */
	struct worker_slot *slot;
	uint8_t uuid[GCR_UUID_BYTES]; /* the GPU of a worker */
	bool is_aside;		      /* its turn has been passed on to others */
	int64_t started_usec;	      /* monotonic */
	pid_t user;		      /* TAKEN: the process it is used for, 0: not recorded */
	int64_t taken_usec;	      /* time of taking, monotonic */
};

/*
 * Starts the program. @uuid: the worker's GPU, NULL for other kinds. -EIO, -ENOMEM, with a message.
 */
int gcr_helper_start(const struct gcr_helpers_config *config, enum gcr_helper_kind kind,
		     const uint8_t *uuid, struct gcr_helper **ret_helper, struct gcr_error *error);

/*
 * The path of @program, or of a library (NAME.so): in the first of @directories (separated by ':')
 * that has it. Those that do not begin with '/' are left out. The caller frees *ret_path. 0;
 * -ENOMEM; -EIO: no directory is left, or none has it. Errors come with a message.
 */
int gcr_helper_find(const char *directories, const char *program, char **ret_path,
		    struct gcr_error *error);

/* Waits for the hello if it has not been received. Errors as gcr_helpers_take_control(). */
int gcr_helper_greet(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		     struct gcr_error *error);

/* Can a helper that is not in use still take requests? */
bool gcr_helper_usable(const struct gcr_helper *helper);

/* Closes our end of the socket: the helper ends when it notices. */
void gcr_helper_hang_up(struct gcr_helper *helper);

/*
 * Reaps the helper if it has ended; never waits. Returns true if it has been reaped. The caller
 * holds the pool's lock.
 */
bool gcr_helper_reap(struct gcr_helper *helper);

/* gcr_helper_reap() for the thread that has taken the helper: takes the pool's lock. */
bool gcr_helpers_reap_one(struct gcr_helper *helper, int *ret_wait_status);

/* Wakes the pool's thread: the lists have changed. */
void gcr_helpers_wake(struct gcr_helpers *helpers);

/*
 * Starts a helper and adds it to the pool's list, with this role. Errors as gcr_helper_start(). The
 * caller holds the pool's lock.
 */
int gcr_helpers_start_locked(struct gcr_helpers *helpers, enum gcr_helper_kind kind,
			     const uint8_t *uuid, enum helper_role role,
			     struct gcr_helper **ret_helper, struct gcr_error *error);

/* gcr_helper_reap(), counting the ended workers. The caller holds the pool's lock. */
bool gcr_helpers_reap_locked(struct gcr_helper *helper);

/*
 * Closes the helper's socket, upon which it ends; the pool's thread kills it at @kill_usec
 * (monotonic) if it has not, and frees it. The caller holds the pool's lock.
 */
void gcr_helpers_leave_locked(struct gcr_helper *helper, int64_t kill_usec);

/* Frees the object; does not touch the process. */
void gcr_helper_free(struct gcr_helper *helper);

#endif
