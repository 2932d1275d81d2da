/* SPDX-License-Identifier: MIT */
/* What the files of the restore share: one restore, on its thread. */
#ifndef GCR_FS_IMAGE_RESTORE_PRIVATE_H
#define GCR_FS_IMAGE_RESTORE_PRIVATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/image/place.h"
#include "fs/process/process.h"
#include "fs/verb/ctl.h"
#include "lib/manifest.h"

/* A GPU process of the tree, as it was dumped, and as it is made. */
struct gcr_restore_member {
	const struct gcr_tree_process *described;
	struct gcr_manifest *manifest; /* NULL: the top one, which is the restore's */
	struct gcr_digest *digests;
	struct gcr_vendor *vendor;   /* whose GPUs it uses */
	int root_fd;		     /* the directory with `vram`, `digests` and `manifest` */
	pid_t pid;		     /* now */
	struct gcr_process *process; /* a reference, NULL: not yet */
};

/* A process of the tree that was made. */
struct gcr_restore_held {
	pid_t pid;
	uint64_t start_ticks;
	int pidfd; /* -1: the process ended before it was held */
};

struct gcr_restore {
	atomic_int references;
	struct gcr_daemon *daemon;
	struct gcr_place *place; /* a reference */
	struct gcr_command command;
	enum gcr_state from;
	int64_t started_usec;
	_Atomic(const char *) phase;

	pthread_mutex_t lock;
	atomic_bool stop_reading; /* as `stop`, for those who read files */
	int stop;		  /* positive errno: why it is to end, 0: it is not */
	bool is_detached;	  /* wanted whoever waits */
	bool is_over;		  /* nobody can join */
	int64_t deadline_usec;
	struct gcr_restore_waiter *waiters;
	size_t waiters_count;
	struct gcr_restore *next; /* the list's */

	/* the thread's */
	int root_fd; /* `snapshot` of the place */
	struct gcr_manifest *manifest;
	struct gcr_restore_member *members;
	size_t members_count;
	unsigned int vendors; /* whose GPUs it uses: bit N, that of gcr_backends[N] */
	struct gcr_gpu_pair moves[GCR_GPUS_MAX]; /* of GPUs that are others here */
	unsigned int moves_count;
	struct gcr_tree_process alone; /* `pid=N`: the one member, which was not dumped by us */
	pid_t root;		       /* of the tree that was made; 0: none yet */
	uint64_t root_ticks;	       /* the root's start time; 0: not known */
	struct gcr_restore_held *held; /* all of the tree, taken while none of it ran */
	size_t held_count;
	pid_t namespace_init; /* `pid=new`: of its pid namespace, -1: ended; 0: it is in ours */
	uint64_t namespace_init_ticks;
	bool is_left;	      /* CRIU was killed, and does not end */
	char *cgroup;	      /* the directory of its own; NULL: it has none */
	uint64_t since_ticks; /* nothing that was made is older; 0: nothing yet */
};

/* Why it is to stop, positive; 0: it is not. */
int gcr_restore_stopped(struct gcr_restore *restore);
/* -ECANCELED if so; who stopped it explains it. */
int gcr_restore_check_stop(struct gcr_restore *restore, struct gcr_error *error);
void gcr_restore_set_phase(struct gcr_restore *restore, const char *phase);

/* ---- restore_check.c: before anything is started ---- */

/* May the two who have written this have a process made? -EPERM, -EOPNOTSUPP, with words. */
int gcr_restore_check_rights(const struct gcr_command *command, struct gcr_error *error);
/* Metadata, owners, images, this machine: fills in manifest, members and moves. */
int gcr_restore_check(struct gcr_restore *restore, struct gcr_error *error);
void gcr_restore_forget_metadata(struct gcr_restore *restore);

/* ---- restore_gpus.c ---- */

/* A member's own, or the top one. */
const struct gcr_manifest *gcr_restore_manifest_of(const struct gcr_restore *restore,
						   const struct gcr_restore_member *member);
/* Whose GPUs are needed (fills in `vendors`), and the plugins that CRIU needs. -EOPNOTSUPP, -EIO */
int gcr_restore_check_vendors(struct gcr_restore *restore, struct gcr_error *error);
/* Fills in `moves`. -EOPNOTSUPP, -ENODEV, -E2BIG */
int gcr_restore_place_gpus(struct gcr_restore *restore, struct gcr_error *error);
/* VRAM for what CRIU itself will restore. -ENOMEM with the figures. */
int gcr_restore_check_room(struct gcr_restore *restore, struct gcr_error *error);

/* ---- restore_supply.c: what the tree had open outside of it ---- */

/* What it starts is in the cgroup of @cgroup_procs_fd (-1: ours), for it is to live as long. */
struct gcr_criu_inherit;
struct gcr_supplies {
	struct gcr_criu_inherit *inherits;
	size_t count;
	int *fds; /* to be closed */
	size_t fds_count;
};
/* Errors, with words: -EOPNOTSUPP it cannot be supplied, ... */
int gcr_restore_supply(struct gcr_restore *restore, int cgroup_procs_fd,
		       struct gcr_supplies *ret_supplies, struct gcr_error *error);
void gcr_supplies_finish(struct gcr_supplies *supplies);

/* ---- restore_images.c: what CRIU reads ---- */

/*
 * A descriptor of the directory with the images that CRIU is to restore, the caller's: those of the
 * place, but for what would end with CRIU. -EIO, -ENOMEM, ... with words.
 */
int gcr_restore_open_images(struct gcr_restore *restore, struct gcr_error *error);
/* CRIU has ended, or was not started: what was made for it goes. */
void gcr_restore_drop_images(struct gcr_restore *restore);

/* ---- restore_tree.c: the tree ---- */

/* CRIU: restore->root is stopped then, with all below it. */
int gcr_restore_run_criu(struct gcr_restore *restore, struct gcr_error *error);
/* Every GPU process is in the table, frozen, with its bytes. */
int gcr_restore_adopt(struct gcr_restore *restore, struct gcr_error *error);
/* Those of the GPU processes, or all, go on. */
void gcr_restore_let_run(struct gcr_restore *restore, bool all);
/* What was made ends, however far it has come. -ETIMEDOUT: something does not, as the log tells. */
int gcr_restore_end_tree(struct gcr_restore *restore);
/*
 * The same of a tree by its root, which started at @root_ticks: 0, too, if another process has the
 * number now; -EBUSY if @root_ticks is 0 (not known) and any process has it.
 */
int gcr_restore_end_below(pid_t root, uint64_t root_ticks);
/* All processes of that tree get a signal. */
void gcr_restore_signal_all(pid_t root, uint64_t root_ticks, int number);

/*
 * Who has a pid and the name of a process of the tree since then; 0: nobody. *ret_ticks (may be
 * NULL): its start time.
 */
pid_t gcr_restore_find_made(const struct gcr_manifest_tree *tree, uint64_t since_ticks,
			    uint64_t *ret_ticks);
/* Does anything live of a restore that has failed? -EBUSY, with words. Else it is as it was. */
int gcr_restore_check_left(struct gcr_restore *restore, struct gcr_error *error);

/* For a next daemon: how far it is. Nothing of it is older than the first time. With words. */
int gcr_restore_mark(struct gcr_restore *restore, enum gcr_place_progress progress,
		     struct gcr_error *error);

#endif
