/* SPDX-License-Identifier: MIT */
/* State and functions that the files of the restore share. Each restore runs on its own thread. */
#ifndef GCR_FS_IMAGE_RESTORE_PRIVATE_H
#define GCR_FS_IMAGE_RESTORE_PRIVATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/image/place.h"
#include "fs/process/process.h"
#include "fs/verb/job.h"
#include "lib/manifest.h"

/* A GPU process of the tree: as it was dumped, and as it is restored. */
struct gcr_restore_member {
	const struct gcr_tree_process *described;
	struct gcr_manifest *manifest; /* NULL: use the top-level manifest of the restore */
	struct gcr_digest *digests;
	struct gcr_vendor *vendor; /* the vendor of its GPUs */
	int root_fd; /* the directory that contains `vram`, `digests` and `manifest` */
	pid_t pid;   /* the restored process's */
	struct gcr_process *process; /* a reference; NULL: not restored yet */
};

/* A process of the restored tree. */
struct gcr_restore_held {
	pid_t pid;
	uint64_t start_ticks;
	int pidfd; /* -1: the process ended before a pidfd was opened */
};

/* One restore. A restore is for one place, and has the deadline of its command. */
struct gcr_restore {
	struct gcr_job job;
	struct gcr_place *place; /* a reference */
	enum gcr_state from;
	int64_t started_usec;
	_Atomic(const char *) phase;

	/* used by the restore's thread only */
	int root_fd; /* `snapshot` in the place */
	struct gcr_manifest *manifest;
	struct gcr_restore_member *members;
	size_t members_count;
	unsigned int vendors; /* whose GPUs the tree uses: bit N, the vendor of gcr_backends[N] */
	struct gcr_gpu_pair moves[GCR_GPUS_MAX]; /* only if some GPUs differ from the dump's */
	unsigned int moves_count;
	struct gcr_tree_process alone; /* `pid=N`: the only member, not dumped by us */
	pid_t root;		       /* of the restored tree; 0: none yet */
	uint64_t root_ticks;	       /* the root's start time; 0: not known */
	struct gcr_restore_held *held; /* all processes of the tree, opened while CRIU holds them */
	size_t held_count;
	pid_t namespace_init; /* of `pid=new`'s namespace, -1: ended; 0: no namespace */
	uint64_t namespace_init_ticks;
	bool is_left;	/* CRIU was killed, and has not ended */
	bool has_owner; /* its files are opened with the rights of a user, not root's */
	char *cgroup;	/* directory of the tree's cgroup; NULL: none */
	uint64_t cgroup_inode;
	uint64_t since_ticks; /* no restored process is older; 0: CRIU not started yet */
};

/*
 * Is the restore to be stopped? Returns the reason as a positive errno, ETIMEDOUT for its deadline;
 * 0: no.
 */
int gcr_restore_stopped(struct gcr_restore *restore);
/* -ECANCELED, -EINTR or -ETIMEDOUT with a message if the restore is to be stopped; else 0. */
int gcr_restore_check_stop(struct gcr_restore *restore, struct gcr_error *error);
void gcr_restore_set_phase(struct gcr_restore *restore, const char *phase);

/* ---- restore_check.c: checks before anything is started ---- */

/*
 * May the opener and the writer of this command have a process restored? -EPERM: they are not both
 * root of this machine; -EOPNOTSUPP: the daemon is not root. Errors set @error.
 */
int gcr_restore_check_rights(const struct gcr_command *command, struct gcr_error *error);
/*
 * Checks metadata, owners, images and this machine. Fills in manifest, members, vendors and moves;
 * gcr_restore_forget_metadata() frees them.
 */
int gcr_restore_check(struct gcr_restore *restore, struct gcr_error *error);
void gcr_restore_forget_metadata(struct gcr_restore *restore);

/* ---- restore_gpus.c: the GPUs that the tree goes to ---- */

/*
 * Returns the member's own manifest or, if it has none, the top-level one. It stays the restore's.
 */
const struct gcr_manifest *gcr_restore_manifest_of(const struct gcr_restore *restore,
						   const struct gcr_restore_member *member);
/*
 * Checks that GPUs of the vendors and the plugins that CRIU needs are present. Fills in
 * restore->vendors, and each member's vendor. -EOPNOTSUPP; -EIO: the metadata contradicts itself.
 */
int gcr_restore_check_vendors(struct gcr_restore *restore, struct gcr_error *error);
/*
 * Chooses a GPU here for each GPU of the dump: fills in restore->moves. -EOPNOTSUPP, -ENODEV,
 * -E2BIG.
 */
int gcr_restore_place_gpus(struct gcr_restore *restore, struct gcr_error *error);
/*
 * Checks that there is VRAM for the contents that CRIU's plugins restore. -ENOMEM, with the
 * figures.
 */
int gcr_restore_check_room(struct gcr_restore *restore, struct gcr_error *error);

/* ---- restore_supply.c: replacements for files that the tree shared with outside processes ---- */

/* Descriptors that CRIU is to use for those files. */
struct gcr_criu_inherit;
struct gcr_supplies {
	struct gcr_criu_inherit *inherits;
	size_t count;
	int *fds; /* closed by gcr_supplies_finish() */
	size_t fds_count;
};
/*
 * Opens the replacements and, if needed, starts a program that writes the tree's output into a log.
 * That program is put into the cgroup of @cgroup_procs_fd (-1: the daemon's own), because it must
 * live as long as the tree. *ret_supplies must be all zeros; gcr_supplies_finish() must follow,
 * also after an error. -EOPNOTSUPP: a file cannot be replaced, ...; errors set @error.
 */
int gcr_restore_supply(struct gcr_restore *restore, int cgroup_procs_fd,
		       struct gcr_supplies *ret_supplies, struct gcr_error *error);
void gcr_supplies_finish(struct gcr_supplies *supplies);

/* ---- restore_images.c: the images that CRIU reads ---- */

/* The images that CRIU is to restore, and what its guard is told of them. */
struct gcr_image_owner;
struct gcr_restore_images {
	int fd; /* their directory */
	/* With whose rights the tree's files are opened; NULL: root's. */
	struct gcr_image_owner *owner;
	/* With an owner: the processes that are to be dumpable, although the images say otherwise.
	 */
	pid_t *dumpable;
	size_t dumpable_count;
};
/*
 * Finds the owner of the tree, and opens the images: those of the place, without parent-death
 * signals that would kill the tree when CRIU ends, and, with an owner, without dumpable processes.
 * -EIO, -ENOMEM, ...; errors set @error. gcr_restore_close_images() frees what it has got.
 */
int gcr_restore_open_images(struct gcr_restore *restore, struct gcr_restore_images *ret_images,
			    struct gcr_error *error);
void gcr_restore_close_images(struct gcr_restore_images *images);
/*
 * Checks that the processes of a tree with an owner, restore->held, have the rights that
 * the images say. -EPERM, -EIO, ...; errors set @error.
 */
int gcr_restore_check_creds(struct gcr_restore *restore, struct gcr_error *error);
/* Removes changed copies of images. Called when CRIU has ended, or was not started. */
void gcr_restore_drop_images(struct gcr_restore *restore);

/* ---- restore_held.c: pidfds of the restored tree ---- */

/*
 * Opens all processes of the tree, into restore->held, while CRIU holds them: once some run, the
 * tree can change. Errors set @error.
 */
int gcr_restore_hold_all(struct gcr_restore *restore, struct gcr_error *error);
/* Kills them, and waits for nothing. */
void gcr_restore_kill_held(const struct gcr_restore *restore);
/* Kills them, also those whose parent has ended, and waits for their end. 0, -ETIMEDOUT. */
int gcr_restore_end_held(const struct gcr_restore *restore, int64_t timeout_usec);

/* ---- restore_tree.c: the tree ---- */

/*
 * Runs CRIU. On success restore->root and all processes below it have the rights that the images
 * say, are stopped, unless their owner has continued them, and are in restore->held.
 */
int gcr_restore_run_criu(struct gcr_restore *restore, struct gcr_error *error);
/* Enters every GPU process into the process table: frozen, with its bytes. Errors set @error. */
int gcr_restore_adopt(struct gcr_restore *restore, struct gcr_error *error);
/* Continues the GPU processes or, with @all, all processes. */
void gcr_restore_let_run(struct gcr_restore *restore, bool all);
/*
 * Ends the restored tree, however far the restore has come. -ETIMEDOUT: a process does not end; the
 * log names it.
 */
int gcr_restore_end_tree(struct gcr_restore *restore);
/*
 * Ends the tree whose root is @root, started at @root_ticks. 0 also if another process has the pid
 * now. -EBUSY if @root_ticks is 0 (not known) and any process has the pid.
 */
int gcr_restore_end_below(pid_t root, uint64_t root_ticks);
/*
 * Sends signal @number to all processes of the tree whose root is @root, started at @root_ticks,
 * children first. Does nothing if another process has the pid now. A failure is logged.
 */
void gcr_restore_signal_all(pid_t root, uint64_t root_ticks, int number);

/*
 * Finds a process that has the pid and the name of a process of @tree and has been started since
 * @since_ticks: it may be one that was restored, or anybody's. Returns its pid; 0: none.
 */
pid_t gcr_restore_find_made(const struct gcr_manifest_tree *tree, uint64_t since_ticks);
/*
 * If an earlier restore of the place has failed: is any process of that restore still alive?
 * -EBUSY, with a message: yes. 0: no; restore->from becomes the state that the place had before
 * that restore. Errors of gcr_place_read_mark().
 */
int gcr_restore_check_left(struct gcr_restore *restore, struct gcr_error *error);

/*
 * Records for a next daemon how far the restore has come. No restored process is older than
 * restore->since_ticks. Errors set @error.
 */
int gcr_restore_mark(struct gcr_restore *restore, enum gcr_place_progress progress,
		     struct gcr_error *error);

#endif
