/* SPDX-License-Identifier: MIT */
/* What the files of the dump share: one dump, on the thread of the first of its tasks. */
#ifndef GCR_FS_IMAGE_DUMP_PRIVATE_H
#define GCR_FS_IMAGE_DUMP_PRIVATE_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "criu-glue/opens.h"
#include "fs/image/place.h"
#include "fs/job/operation.h"
#include "fs/store/place_name.h"
#include "lib/file_identity.h"
#include "lib/proc_tree.h"
#include "lib/rights.h"

struct gcr_criu_job;

/* One process of the tree. */
struct gcr_dump_member {
	struct gcr_proc_member proc;
	int pidfd;
};

struct gcr_dump {
	struct gcr_task *task;
	struct gcr_daemon *daemon;
	pid_t root;
	struct gcr_dump_member *members; /* the root first */
	size_t count;
	uid_t uid; /* the root's */
	gid_t gid;
	struct gcr_place_hold place_hold;
	struct gcr_file_rights *first_rights; /* the root's as they were first; NULL: not seen */
	/* The same of the owner, who reads what is written; NULL: root, or it is for root alone. */
	const struct gcr_file_rights *owner_rights;
	bool is_private;    /* for root alone */
	bool is_of_several; /* users, or with others' rights: the place is root's, and private */
	struct gcr_opens *opens;
	unsigned int criu_version;
	unsigned int vendors; /* whose GPUs the tree uses: bit N, that of gcr_backends[N] */
	/* What stays in VRAM and is dumped by CRIU's plugins; NULL: nobody has any. */
	struct gcr_gpus_reply *kept;
	struct gcr_room *room; /* for what CRIU writes, until the place has an account of its own */
	uint64_t room_bytes;
	uint64_t contents_bytes; /* of files without a name, as of the last look */
	uint64_t contents_count;
	uint64_t kept_bytes; /* in VRAM, for CRIU's plugins */

	char name[GCR_PLACE_NAME_BYTES]; /* the place's */
	int place_fd;			 /* its directory, not yet under its name; -1: none */
	int root_fd;			 /* `snapshot` in it */
	int images_fd;			 /* `criu` in that */
	int work_fd;			 /* where CRIU's log is; -1: not yet */
	char *cgroup; /* the one that the tree was restored into, once it is published; or NULL */

	/* Digests of the files that the tree has open, made while CRIU works. */
	struct gcr_file_identity *files;
	size_t files_count;
	pthread_t reader;
	bool is_reading;
	atomic_bool stop_reading;
	int read_result;
	struct gcr_error read_error;
};

static inline void gcr_dump_set_phase(struct gcr_dump *dump, const char *phase)
{
	atomic_store(&dump->task->phase, phase);
}

/* -ECANCELED, without words: the verb is to stop. */
static inline int gcr_dump_stopped(struct gcr_dump *dump, struct gcr_error *error)
{
	if (!gcr_task_stopped(dump->task))
		return 0;
	*error = (struct gcr_error){.number = ECANCELED};
	return -ECANCELED;
}

/* ---- dump_tree.c: the tree, and what stands in the way ---- */

/* The members as they are now. */
int gcr_dump_find_tree(struct gcr_dump *dump, struct gcr_error *error);
/*
 * The tasks are for all GPU processes of the tree and no others: -EBUSY, one has been started, or
 * has left the tree.
 */
int gcr_dump_check_members(const struct gcr_dump *dump, struct gcr_error *error);
/* CRIU says that it has left all of it stopped: wait until it is, and find it again. -EIO. */
int gcr_dump_await_stop(struct gcr_dump *dump, struct gcr_error *error);
/* -EBUSY, -EOPNOTSUPP, ... */
int gcr_dump_check_tree(struct gcr_dump *dump, struct gcr_error *error);
/*
 * Memory that CRIU will write, a bound from above, and about how many images there will be: a file
 * in the store takes a huge page at least.
 */
int gcr_dump_memory(const struct gcr_dump *dump, uint64_t *ret_bytes, uint64_t *ret_images,
		    struct gcr_error *error);
/* All of them go on that may have been stopped by CRIU. */
void gcr_dump_let_run(struct gcr_dump *dump);
/* Has the root ended? */
bool gcr_dump_root_has_ended(const struct gcr_dump *dump);
/*
 * All of them end, every one before its parent: a next daemon that finds the root alive finds all
 * that are left. Returns when they have ended. -ETIMEDOUT.
 */
int gcr_dump_end_tree(struct gcr_dump *dump, struct gcr_error *error);
void gcr_dump_forget_tree(struct gcr_dump *dump);

/* ---- dump_owner.c: whose it is ---- */

/*
 * All of them belong to the writer, if that is not root, and have no more rights: else -EPERM.
 * Where root dumps several users' processes the place is root's. Sets dump->owner_rights; called
 * again when the tree stands still, to find the same: else -EPERM.
 */
int gcr_dump_check_owner(struct gcr_dump *dump, struct gcr_error *error);
/* What is written is for root alone: of several users, or with what the owner may not read. */
void gcr_dump_make_private(struct gcr_dump *dump);
/* Whom the place and what is in it belong to. */
uid_t gcr_dump_place_uid(const struct gcr_dump *dump);
gid_t gcr_dump_place_gid(const struct gcr_dump *dump);

/* ---- dump_opens.c: what the tree has open ---- */

/*
 * gcr_opens_scan() of the tree, for the caller to destroy. It asks filesystems that may be the
 * tree's own: -ETIMEDOUT: one has not answered in time; -ECANCELED: the verb is to stop, without
 * words; -EBUSY: earlier looks still wait.
 */
int gcr_dump_look_at_opens(struct gcr_dump *dump, struct gcr_opens **ret_opens,
			   struct gcr_error *error);

/* ---- dump_criu.c ---- */

/*
 * Until all images are written, and CRIU holds the tree and waits: *ret_job. -ECANCELED, -ENOSPC,
 * -EDQUOT, -EIO, ..., with words: CRIU has ended, and the tree goes on.
 */
int gcr_dump_run_criu(struct gcr_dump *dump, struct gcr_criu_job **ret_job,
		      struct gcr_error *error);
/*
 * With a yes it ends the tree (but with `leave`), and with a no all go on. An error: it may not
 * have done what it was told.
 */
int gcr_dump_answer_criu(struct gcr_dump *dump, struct gcr_criu_job *job, bool is_yes,
			 struct gcr_error *error);
/* The place is the process, and has its log. */
void gcr_dump_hand_log_on(const struct gcr_dump *dump);

/* ---- dump_metadata.c: what goes into the place besides CRIU's images ---- */

/* -EBUSY: one of them has been frozen in a way that cannot be dumped. */
int gcr_dump_check_frozen(const struct gcr_dump *dump, struct gcr_error *error);

/* Begin to read the files that are open, and wait for the end of that. */
int gcr_dump_begin_reading(struct gcr_dump *dump, struct gcr_error *error);
/* -ECANCELED: the verb is to stop. Not waited for is a file system that does not answer then. */
int gcr_dump_end_reading(struct gcr_dump *dump, struct gcr_error *error);

/*
 * CRIU has ended: VRAM (by hard links), the metadata of every GPU process, and last the manifest.
 */
int gcr_dump_write_metadata(struct gcr_dump *dump, struct gcr_error *error);

/* What CRIU says to have written is there: the tree's list, and an image of every member. -EIO. */
int gcr_dump_check_images(const struct gcr_dump *dump, struct gcr_error *error);

/* The first of the tasks' processes with this pid, NULL: it uses no GPU. */
struct gcr_process *gcr_dump_gpu_process(const struct gcr_dump *dump, pid_t pid);

#endif
