/* SPDX-License-Identifier: MIT */
/*
 * A place: a named directory in the mount's root that stands for no running process. A user makes
 * an empty place with mkdir(2) to bring in a snapshot from elsewhere; a dump makes one with all
 * that is needed to restore a tree of processes. Each place is a subtree (a directory of files) in
 * the store and outlives the daemon. It belongs to the user who made it, or whose process was
 * dumped. Once a process has been restored from it, the place is another name of that process until
 * the process ends.
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

/* How far a restore has come, recorded for the next daemon. */
enum gcr_place_progress {
	GCR_PLACE_IDLE,
	GCR_PLACE_RESTORING, /* no restored process has run yet */
	GCR_PLACE_THAWING,   /* restored processes may have run: now they are the process */
};

/* The processes and the cgroup that a restore has made, or may have made, from the place. */
struct gcr_place_made {
	enum gcr_place_progress progress;
	uint64_t since_ticks; /* since boot; no restored process has started before */
	pid_t root;	      /* 0: not known */
	uint64_t root_ticks;
	char *cgroup; /* directory of the restored tree's own cgroup; NULL: none */
	/*
	 * The cgroup's, which no other cgroup gets: its path may be another's by the time. 0: not
	 * known, since an earlier version made it.
	 */
	uint64_t cgroup_inode;
};

/* The process that a dump has made the place of. */
struct gcr_place_origin {
	pid_t pid; /* of the tree's root; 0: the place comes from elsewhere */
	uint64_t start_ticks;
	uint64_t dumped_ticks; /* when; 0: an earlier version did not record that */
	uid_t uid;
	gid_t gid;
	bool is_ending;	 /* the tree may not have ended yet, and must be ended */
	bool is_staying; /* the tree lives on (`leave`); if still stopped, it must be continued */
};

/* One place. gcr_place_ref() and gcr_place_unref() count the references. */
struct gcr_place {
	/* constant, but for the number of references */
	atomic_int references;
	uint32_t serial; /* never reused */
	struct gcr_daemon *daemon;
	char name[GCR_PLACE_NAME_BYTES];
	struct stat stat; /* of the place's directory: owner, and time of creation */
	int fd;		  /* the place's directory, visible to the daemon only */
	struct gcr_subtree *subtree;
	struct gcr_event_log *events;

	struct gcr_place *next;		/* next in the list of all places */
	struct gcr_quota_charge charge; /* the owner's quota, as long as the place is in the list */

	pthread_mutex_t lock;
	enum gcr_state state; /* incoming, dumped, restoring, failed, or running: see `process` */
	int64_t state_since_usec;
	struct gcr_place_origin origin;
	struct gcr_restore *restore; /* the restore under way; NULL: none */
	struct gcr_process *process; /* restored from the place, a reference; NULL: none */
	char *cgroup;		     /* of the restored tree; NULL: none */
	int *ending;		     /* pidfds of its tree if is_ending; NULL: not known */
	size_t ending_count;
	bool is_empty;		/* the contents have been removed, or are about to be */
	struct gcr_error error; /* of the last failed write to ctl; number 0: none */
};

struct gcr_places;

/* Resources reserved for a place that a dump is making. All zeros: nothing reserved. */
struct gcr_place_hold {
	struct gcr_places *places;
	struct gcr_quota_charge charge;
	uint32_t number;   /* for gcr_snapshot_link() */
	bool is_published; /* set: another place of the same name may be made */
};

/*
 * Creates the list of places, with those that earlier daemons have left. -ENOMEM. A place that
 * cannot be read is skipped and stays in the store.
 */
int gcr_places_create(struct gcr_daemon *daemon, struct gcr_places **ret_places);
void gcr_places_destroy(struct gcr_places *places); /* the files of the places stay */

/*
 * Makes an empty place; *ret_place is a reference for the caller. -EINVAL: not a valid name;
 * -EEXIST; -ENOSPC: too many places, or no room; -EDQUOT, -ENFILE, which set @error: the user has
 * too many; -ENOMEM.
 */
int gcr_place_make(struct gcr_places *places, const char *name, uid_t uid, gid_t gid,
		   struct gcr_place **ret_place, struct gcr_error *error);
/* Finds a place; *ret_place is a reference for the caller. -ENOENT. */
int gcr_place_find(struct gcr_places *places, const char *name, struct gcr_place **ret_place);
int gcr_place_find_serial(struct gcr_places *places, uint32_t serial, struct gcr_place **ret_place);
/*
 * Calls @visit for each place of the list, with no lock held, and stops at its first non-zero
 * result, which is returned. -ENOMEM: no place has been visited.
 */
int gcr_place_each(struct gcr_places *places, int (*visit)(struct gcr_place *place, void *data),
		   void *data);

struct gcr_place *gcr_place_ref(struct gcr_place *place);
void gcr_place_unref(struct gcr_place *place); /* NULL is allowed */

/*
 * Removes the place and its contents. -ENOENT: the place is already gone; -EBUSY: a process is
 * being restored from it, or has been, or the dumped tree has still to be ended; -ENOMEM.
 */
int gcr_place_drop(struct gcr_place *place);

/* ---- places of dumps: made outside the list, and published as a whole ---- */

/*
 * Begins a place for the dump of the tree whose root is @pid. *ret_fd: the directory of the place,
 * with an empty `snapshot` in it; the caller closes it. If the daemon dies, the next one lets the
 * tree run again. @uid is the user who asked for the dump, for quotas: -EDQUOT, -ENOSPC. *ret_hold
 * (must be empty) is to be released by gcr_place_release() after publishing or aborting. With
 * @may_rename, a @name that is taken by anything but a dump of this process gets a suffix, `-2` and
 * so on. -EEXIST, ...; errors set @error.
 */
int gcr_place_begin(struct gcr_places *places, char name[GCR_PLACE_NAME_BYTES], bool may_rename,
		    pid_t pid, uint64_t start_ticks, uid_t uid, int *ret_fd,
		    struct gcr_place_hold *ret_hold, struct gcr_error *error);
void gcr_place_release(struct gcr_place_hold *hold); /* once; an empty one is allowed */
/*
 * Publishes the place under @name. @fd: its directory. If the process was restored from a place of
 * this name, the new place replaces that one, and *ret_cgroup, also on error, becomes the path of
 * the cgroup that it was restored into; else *ret_cgroup does not change. The caller removes the
 * cgroup when the process has ended, and frees the path. Errors set @error, among them -EEXIST: the
 * name is taken; the caller must then call gcr_place_abort().
 */
int gcr_place_publish(struct gcr_place_hold *hold, const char *name, int fd,
		      const struct gcr_place_origin *origin, char **ret_cgroup,
		      struct gcr_error *error);
/* Is there a place that is another name of this process? A further dump then uses the same name. */
bool gcr_place_name_of_process(struct gcr_places *places, pid_t pid, uint64_t start_ticks,
			       char ret_name[GCR_PLACE_NAME_BYTES]);
/* Removes a published place after all, because its process lives. */
void gcr_place_withdraw(struct gcr_places *places, const char *name);
/*
 * Removes a place that was begun; to be called before its hold is released. No effect once the
 * place has been published.
 */
void gcr_place_abort(const struct gcr_place_hold *hold, const char *name);
/* Records that the dumped tree has ended or, with `leave`, has been continued. */
void gcr_place_ended(struct gcr_places *places, const char *name);
/*
 * The dumped tree does not end in time: the place cannot be thawed or removed until these @count
 * processes have ended. Takes over the pidfds and their array, which was made by malloc(3).
 */
void gcr_place_ends_with(struct gcr_places *places, const char *name, int *pidfds, size_t count);
/* Looks whether they have; never blocks. Lock: none. */
void gcr_place_look_at_end(struct gcr_place *place);

/* ---- state of a place ---- */

/* Sets the state, and writes it to the event logs. Takes the place's lock. */
void gcr_place_set_state(struct gcr_place *place, enum gcr_state state);

/*
 * Gets the state. Returns true if a process has been restored from the place: then the place is
 * counted and shown as that process.
 */
bool gcr_place_is_process(struct gcr_place *place, enum gcr_state *ret_state);
/* The pid of the restored process; 0: none. */
pid_t gcr_place_pid(struct gcr_place *place);

/*
 * Record for a next daemon how far a restore has come (@made NULL: none is under way any more), and
 * read the record of an earlier daemon. Errors set @error; of reading -EIO also: there is no record
 * of a restore. The caller frees ret_made->cgroup.
 */
int gcr_place_mark(struct gcr_place *place, const struct gcr_place_made *made,
		   struct gcr_error *error);
int gcr_place_read_mark(struct gcr_place *place, struct gcr_place_made *ret_made,
			struct gcr_error *error);
/* @process has been restored from the place and runs: the contents of the place are removed. */
void gcr_place_became(struct gcr_place *place, struct gcr_process *process);
/* @process has ended: the place that was another name of it is removed. */
void gcr_places_process_gone(struct gcr_places *places, struct gcr_process *process);

/*
 * The place under whose name the process with this pid is shown: the place that @process was
 * restored from or, if no process has the pid (@process NULL), the latest dump of that pid.
 * *ret_place is a reference. -ENOENT.
 */
int gcr_place_find_pid(struct gcr_places *places, pid_t pid, struct gcr_process *process,
		       struct gcr_place **ret_place);

/*
 * Reports the result of a verb: in `error`, in the place's and the daemon's event logs (the message
 * in the place's only), and in the daemon's log.
 */
void gcr_place_report(struct gcr_place *place, const char *verb, const struct gcr_error *error);
/*
 * Reports that a write of user @uid was refused. As above, but in the daemon's event log only if
 * @uid is the daemon's user (root).
 */
void gcr_place_report_refusal(struct gcr_place *place, uid_t uid, const char *verb,
			      const struct gcr_error *error);

/*
 * Write the texts of the place's files `status` and `error`. gcr_place_status_key(): the keys of
 * `status` in order.
 */
void gcr_place_render_status(struct gcr_place *place, FILE *stream);
void gcr_place_render_error(struct gcr_place *place, FILE *stream);
const char *gcr_place_status_key(size_t index); /* NULL after the last */

#endif
