/* SPDX-License-Identifier: MIT */
/*
 * Places: directories of the mount's root for what is no running process. Users make empty ones
 * with mkdir(2) for snapshots from elsewhere; a dump makes one with all that it takes to restore a
 * tree of processes. Each is a folder in the store with a name, outlives the daemon, and belongs to
 * who has made it, or whose process it was. Once a process has been made of it, the place is
 * another name of that, until it ends.
 */
#ifndef GCR_FS_IMAGE_PLACE_H
#define GCR_FS_IMAGE_PLACE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "fs/base/quota.h"
#include "fs/base/state.h"
#include "fs/daemon.h"
#include "fs/store/store.h"
#include "lib/error.h"

struct gcr_event_log;
struct gcr_process;
struct gcr_restore;

/* How far a restore has come, for a next daemon. */
enum gcr_place_progress {
	GCR_PLACE_IDLE,
	GCR_PLACE_RESTORING, /* nothing that was made has run yet */
	GCR_PLACE_THAWING,   /* it may have: it is the process now, and not the place */
};

/* What there may be of it. */
struct gcr_place_made {
	enum gcr_place_progress progress;
	uint64_t since_ticks; /* since boot, as start times of processes: none of it is older */
	pid_t root;	      /* 0: not known */
	uint64_t root_ticks;
	char *cgroup; /* the directory of its own; NULL: it has none */
};

/* What a dump has made of which process. */
struct gcr_place_origin {
	pid_t pid; /* of the tree's root; 0: it comes from elsewhere */
	uint64_t start_ticks;
	uint64_t dumped_ticks; /* when, counted as start_ticks; 0: an earlier version did not say */
	uid_t uid;
	gid_t gid;
	bool is_ending;	 /* the tree may not have ended yet: it has to */
	bool is_staying; /* the tree lives on, and may be stopped yet: it is to be continued */
};

struct gcr_place {
	/* fixed for life */
	atomic_int references;
	uint32_t serial; /* never used again */
	struct gcr_daemon *daemon;
	char name[GCR_PLACE_NAME_BYTES];
	struct stat stat; /* of its directory: whose it is, and since when */
	int fd;		  /* its directory, which nobody but us sees */
	struct gcr_folder *folder;
	struct gcr_event_log *events;

	struct gcr_place *next;		/* the list's */
	struct gcr_quota_charge charge; /* of its owner, as long as it is in the list */

	pthread_mutex_t lock;
	enum gcr_state state; /* incoming, dumped, restoring, failed, or running: see `process` */
	int64_t state_since_usec;
	struct gcr_place_origin origin;
	struct gcr_restore *restore; /* what is under way; NULL: nothing */
	struct gcr_process *process; /* that has been made of it, a reference; NULL: none */
	char *cgroup;		     /* of what has been made of it; NULL: none */
	bool is_empty;		     /* what was in it has gone, or is about to */
	struct gcr_error error;	     /* of the last write to ctl that failed; number 0: none */
};

struct gcr_places;

/* What a place that is being made takes. All zeros: nothing. */
struct gcr_place_hold {
	struct gcr_places *places;
	struct gcr_quota_charge charge;
	uint32_t number; /* for gcr_snapshot_link() */
};

/* With those that earlier daemons have left. -ENOMEM; one that cannot be read is left as it is. */
int gcr_places_create(struct gcr_daemon *daemon, struct gcr_places **ret_places);
void gcr_places_destroy(struct gcr_places *places); /* their files stay */

/*
 * A reference to a new one. -EINVAL: it cannot be a name; -EEXIST; -ENOSPC: there are too many, or
 * no room; with words: -EDQUOT, -ENFILE: the user has too many; -ENOMEM.
 */
int gcr_place_make(struct gcr_places *places, const char *name, uid_t uid, gid_t gid,
		   struct gcr_place **ret_place, struct gcr_error *error);
/* References to what is there: -ENOENT. */
int gcr_place_find(struct gcr_places *places, const char *name, struct gcr_place **ret_place);
int gcr_place_find_serial(struct gcr_places *places, uint32_t serial, struct gcr_place **ret_place);
/*
 * Calls @visit for each that is there now, with no lock held; stops with its non-zero result.
 * -ENOMEM: none has been visited.
 */
int gcr_place_each(struct gcr_places *places, int (*visit)(struct gcr_place *place, void *data),
		   void *data);

struct gcr_place *gcr_place_ref(struct gcr_place *place);
void gcr_place_unref(struct gcr_place *place); /* NULL is allowed */

/*
 * It goes with all that is in it. -ENOENT: it is gone already; -EBUSY: a process is being made of
 * it, or has been; -ENOMEM.
 */
int gcr_place_drop(struct gcr_place *place);

/* ---- of a dump: its place is made beside the list, and becomes visible whole ---- */

/*
 * *ret_fd: its directory, with an empty `snapshot` in it; the caller's. If we die, a next daemon
 * lets the tree of this root go on. @uid is who wants it, and may have to do without: -EDQUOT,
 * -ENOSPC. *ret_hold (empty before) is for gcr_place_release() once it is published, or is not to
 * be. Where @may_rename, a @name that is taken by something else than a dump of this process gets a
 * suffix, `-2` and so on. -EEXIST, ...: with words.
 */
int gcr_place_begin(struct gcr_places *places, char name[GCR_PLACE_NAME_BYTES], bool may_rename,
		    pid_t pid, uint64_t start_ticks, uid_t uid, int *ret_fd,
		    struct gcr_place_hold *ret_hold, struct gcr_error *error);
void gcr_place_release(struct gcr_place_hold *hold); /* once; an empty one is allowed */
/*
 * The place gets its name. @fd: its directory. *ret_cgroup: the directory of the cgroup that the
 * process was restored into, which the caller removes when the process has ended, and frees, also
 * after an error; it stays as it is if there is none. Errors, with words; the caller then calls
 * gcr_place_abort().
 */
int gcr_place_publish(const struct gcr_place_hold *hold, const char *name, int fd,
		      const struct gcr_place_origin *origin, char **ret_cgroup,
		      struct gcr_error *error);
/* Is there a place that is another name of this process? A dump makes it one again. */
bool gcr_place_name_of_process(struct gcr_places *places, pid_t pid, uint64_t start_ticks,
			       char ret_name[GCR_PLACE_NAME_BYTES]);
/* One that was published, and is not to be: its process lives. */
void gcr_place_withdraw(struct gcr_places *places, const char *name);
/* Before its hold is released. */
void gcr_place_abort(const struct gcr_place_hold *hold, const char *name);
/* Its tree has ended, or goes on if it is staying. */
void gcr_place_ended(struct gcr_places *places, const char *name);

/* ---- what becomes of it ---- */

/* With its events. */
void gcr_place_set_state(struct gcr_place *place, enum gcr_state state);

/* Its state; and has a process been made of it? That is counted and shown as one then. */
bool gcr_place_is_process(struct gcr_place *place, enum gcr_state *ret_state);
/* The pid of that process, 0: there is none. */
pid_t gcr_place_pid(struct gcr_place *place);

/*
 * Tell a next daemon how far a restore is (@made NULL: none is under way any more), and what an
 * earlier one has told. Errors, with words. @ret_made->cgroup is to be freed.
 */
int gcr_place_mark(struct gcr_place *place, const struct gcr_place_made *made,
		   struct gcr_error *error);
int gcr_place_read_mark(struct gcr_place *place, struct gcr_place_made *ret_made,
			struct gcr_error *error);
/* @process has been made of it, and runs: what was in it goes. */
void gcr_place_became(struct gcr_place *place, struct gcr_process *process);
/* A process has ended: the place that was another name of it goes with it. */
void gcr_places_process_gone(struct gcr_places *places, struct gcr_process *process);

/*
 * The place under whose name the process of this pid is to be seen: the process has been made of
 * it; or, where no process has the pid (@process NULL), the last that it was dumped to. -ENOENT.
 */
int gcr_place_find_pid(struct gcr_places *places, pid_t pid, struct gcr_process *process,
		       struct gcr_place **ret_place);

/* The result of a verb into `error`, both event logs (its own with the words), and the log. */
void gcr_place_report(struct gcr_place *place, const char *verb, const struct gcr_error *error);
/* A write of user @uid was refused: the same, but the daemon's event log hears of root's only. */
void gcr_place_report_refusal(struct gcr_place *place, uid_t uid, const char *verb,
			      const struct gcr_error *error);

/* What its files say. */
void gcr_place_render_status(struct gcr_place *place, FILE *stream);
void gcr_place_render_error(struct gcr_place *place, FILE *stream);
const char *gcr_place_status_key(size_t index); /* NULL after the last */

#endif
