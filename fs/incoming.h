/* SPDX-License-Identifier: MIT */
/*
 * Places for snapshots from elsewhere: directories of the mount's root that users make with
 * mkdir(2). Each is a folder in the store with a name, outlives the daemon, and belongs to who has
 * made it.
 */
#ifndef GCR_FS_INCOMING_H
#define GCR_FS_INCOMING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "fs/daemon.h"
#include "fs/store.h"
#include "lib/error.h"

struct gcr_event_log;

struct gcr_incoming {
	/* fixed for life */
	atomic_int references;
	uint32_t serial; /* never used again */
	struct gcr_daemon *daemon;
	char name[GCR_INCOMING_NAME_BYTES];
	struct stat stat; /* of its directory: whose it is, and since when */
	struct gcr_folder *folder;
	struct gcr_event_log *events;

	struct gcr_incoming *next; /* the list's */

	pthread_mutex_t lock;
	struct gcr_error error; /* of the last write to ctl that failed; number 0: none */
};

struct gcr_incomings;

/* With those that earlier daemons have left. -ENOMEM; one that cannot be read is left as it is. */
int gcr_incomings_create(struct gcr_daemon *daemon, struct gcr_incomings **ret_incomings);
void gcr_incomings_destroy(struct gcr_incomings *incomings); /* their files stay */

/*
 * A reference to a new one. -EINVAL: it cannot be a name; -EEXIST; -ENOSPC: there are too many, or
 * no room; -ENOMEM.
 */
int gcr_incoming_make(struct gcr_incomings *incomings, const char *name, uid_t uid, gid_t gid,
		      struct gcr_incoming **ret_incoming);
/* References to what is there: -ENOENT. */
int gcr_incoming_find(struct gcr_incomings *incomings, const char *name,
		      struct gcr_incoming **ret_incoming);
int gcr_incoming_find_serial(struct gcr_incomings *incomings, uint32_t serial,
			     struct gcr_incoming **ret_incoming);
/* Calls @visit for each, with the list locked; stops with its non-zero result. */
int gcr_incoming_each(struct gcr_incomings *incomings,
		      int (*visit)(struct gcr_incoming *incoming, void *data), void *data);

struct gcr_incoming *gcr_incoming_ref(struct gcr_incoming *incoming);
void gcr_incoming_unref(struct gcr_incoming *incoming); /* NULL is allowed */

/* It goes with all that is in it. -ENOENT: it is gone already; -ENOMEM. */
int gcr_incoming_drop(struct gcr_incoming *incoming);

/* A write to its ctl: 0 or -errno, with words in its `error`. */
int gcr_incoming_write(struct gcr_incoming *incoming, const char *bytes, size_t length);

/* What its files say. */
void gcr_incoming_render_status(struct gcr_incoming *incoming, FILE *stream);
void gcr_incoming_render_error(struct gcr_incoming *incoming, FILE *stream);
const char *gcr_incoming_status_key(size_t index); /* NULL after the last */

#endif
