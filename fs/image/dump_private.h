/* SPDX-License-Identifier: MIT */
/*
 * State and functions that the files of the dump share. One dump runs on the thread of its first
 * task.
 */
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
	bool was_held; /* set by gcr_dump_check_held() */
};

/*
 * One dump. It belongs to the thread of the first task. While is_reading, the thread `reader`
 * writes the digests of `files` and the fields read_result and read_error.
 */
struct gcr_dump {
	struct gcr_task *task;
	struct gcr_daemon *daemon;
	pid_t root;
	struct gcr_dump_member *members; /* the root of the tree first */
	size_t count;
	uid_t uid; /* of the root of the tree */
	gid_t gid;
	struct gcr_place_hold place_hold;
	struct gcr_file_rights *first_rights; /* the root's, as first read; NULL: not read yet */
	/*
	 * The rights of the owner, who may read the images. NULL: the owner is root, or the place
	 * is for root alone.
	 */
	const struct gcr_file_rights *owner_rights;
	bool is_private;    /* readable for root alone */
	bool is_of_several; /* of several users, or with others' rights: root owns the place */
	struct gcr_opens *opens;
	unsigned int criu_version;
	unsigned int vendors; /* whose GPUs the tree uses: bit N, the vendor of gcr_backends[N] */
	/*
	 * GPU usage when all were frozen: VRAM that remains, and that CRIU's plugins dump. NULL:
	 * not asked yet.
	 */
	struct gcr_gpus_reply *kept;
	struct gcr_room *room; /* for CRIU's images, until the place is accounted for itself */
	uint64_t room_bytes;
	uint64_t contents_bytes; /* of unlinked files, as of the last scan */
	uint64_t contents_count;
	uint64_t kept_bytes; /* in VRAM, for CRIU's plugins */

	char name[GCR_PLACE_NAME_BYTES]; /* of the place */
	int place_fd;			 /* the place's directory before publication; -1: none */
	int root_fd;			 /* `snapshot` in that directory */
	int images_fd;			 /* `criu` in `snapshot` */
	int work_fd;			 /* directory of CRIU's log; -1: not open yet */
	char *cgroup; /* of an earlier restore of this tree; set by publishing; or NULL */

	/* Digests of the files that the tree has open, made by a thread while CRIU works. */
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

/* Has the verb been asked to stop? -ECANCELED, without a message, or 0. */
static inline int gcr_dump_stopped(struct gcr_dump *dump, struct gcr_error *error)
{
	if (!gcr_task_stopped(dump->task))
		return 0;
	*error = (struct gcr_error){.number = ECANCELED};
	return -ECANCELED;
}

/* ---- dump_tree.c: the processes of the tree, and obstacles to a dump ---- */

/*
 * Fills in the members, which are the processes that the tree has now; also sets uid and gid.
 * -ESRCH: the root has ended. That is so too if the tree has been listed before, and the root's pid
 * is another process's now; the members are then those of before.
 */
int gcr_dump_find_tree(struct gcr_dump *dump, struct gcr_error *error);
/*
 * Checks that the tasks are those of all GPU processes of the tree and of no others. -EBUSY: a GPU
 * process has been started, or has left the tree. -EOPNOTSUPP: a main thread has ended.
 */
int gcr_dump_check_members(const struct gcr_dump *dump, struct gcr_error *error);
/*
 * CRIU has reported that it stopped the whole tree: wait until each process is stopped, and list
 * the tree again. -EIO: a process is not stopped in time.
 */
int gcr_dump_await_stop(struct gcr_dump *dump, struct gcr_error *error);
/*
 * May this writer dump this tree? -EPERM: the owner forbids it; -EOPNOTSUPP: a container, a service
 * of systemd, a stopped process, a daemon that is not root; -EBUSY: the daemon or the writer is in
 * the tree; -ESRCH.
 */
int gcr_dump_check_tree(struct gcr_dump *dump, struct gcr_error *error);
/*
 * Gets an upper bound of the bytes that CRIU will write, and the approximate number of images: each
 * file in the store takes at least one huge page. Errors of reading /proc.
 */
int gcr_dump_memory(const struct gcr_dump *dump, uint64_t *ret_bytes, uint64_t *ret_images,
		    struct gcr_error *error);
/*
 * Checks that CRIU, whose pid is @criu, holds each thread of the tree that has not ended. CRIU lets
 * go of a tree once only, so it has held the tree since await_stop(): what has been looked at since
 * then was so when the images were written. -EIO, when CRIU or its hook has been killed.
 */
int gcr_dump_check_held(struct gcr_dump *dump, pid_t criu, struct gcr_error *error);
/* Does each process that was held then certainly live? False also if that is not known. */
bool gcr_dump_goes_on(const struct gcr_dump *dump);
/* Continues (SIGCONT) all processes that CRIU may have stopped. */
void gcr_dump_let_run(struct gcr_dump *dump);
bool gcr_dump_root_has_ended(const struct gcr_dump *dump);
/*
 * Kills all processes, each before its parent, so that a next daemon that finds the root alive
 * finds all that remain. Returns when they have ended. -ETIMEDOUT.
 */
int gcr_dump_end_tree(struct gcr_dump *dump, struct gcr_error *error);
/*
 * After -ETIMEDOUT: leaves the members' pidfds to the place @name, which cannot be used until these
 * processes have ended (gcr_place_ends_with()).
 */
void gcr_dump_leave_tree(struct gcr_dump *dump, struct gcr_places *places, const char *name);
void gcr_dump_forget_tree(struct gcr_dump *dump);
/*
 * Has the process been waited for, so that its pid may be that of another process? True also if
 * there is no pidfd.
 */
bool gcr_dump_is_gone(const struct gcr_dump_member *member);

/* ---- dump_owner.c: the owner of the tree ---- */

/*
 * Unless the writer is root, all processes must belong to the writer and have no further rights:
 * else -EPERM. If root dumps processes of several users, root owns the place. Sets
 * dump->owner_rights. Called again when the tree is stopped: the rights must not have changed, else
 * -EPERM.
 */
int gcr_dump_check_owner(struct gcr_dump *dump, struct gcr_error *error);
/*
 * Makes the place readable for root alone: the tree is of several users, or the place contains data
 * that the owner may not read.
 */
void gcr_dump_make_private(struct gcr_dump *dump);
/* The owner and group of the place and its contents. */
uid_t gcr_dump_place_uid(const struct gcr_dump *dump);
gid_t gcr_dump_place_gid(const struct gcr_dump *dump);

/* ---- dump_opens.c: what the tree has open ---- */

/*
 * gcr_opens_scan() of the tree; the caller destroys the result. The scan accesses filesystems that
 * may be the tree's own. -ETIMEDOUT: a filesystem has not answered in time; -ECANCELED, without a
 * message: the verb has been asked to stop; -EBUSY: earlier scans still wait.
 */
int gcr_dump_look_at_opens(struct gcr_dump *dump, struct gcr_opens **ret_opens,
			   struct gcr_error *error);

/* ---- dump_criu.c ---- */

/*
 * Starts CRIU and waits until all images are written; CRIU then holds the tree stopped and waits
 * for an answer. The caller destroys *ret_job. -ECANCELED, -ENOSPC, -EDQUOT, -EIO, ..., which set
 * @error: CRIU has ended, and the tree continues to run.
 */
int gcr_dump_run_criu(struct gcr_dump *dump, struct gcr_criu_job **ret_job,
		      struct gcr_error *error);
/*
 * Answers CRIU and waits for its end: on yes CRIU ends the tree (with `leave` it does not), on no
 * all processes continue. @job stays the caller's. -errno, only on yes: CRIU may not have done
 * that.
 */
int gcr_dump_answer_criu(struct gcr_dump *dump, struct gcr_criu_job *job, bool is_yes,
			 struct gcr_error *error);
/* Moves the log from the process to the place, which now stands for the process. */
void gcr_dump_hand_log_on(const struct gcr_dump *dump);
/* Leaves the log with the process, and ties it to the place: see gcr_criu_tie_log(). */
void gcr_dump_tie_log(const struct gcr_dump *dump);

/* ---- dump_metadata.c: the contents of the place besides CRIU's images ---- */

/*
 * Checks that every process has been frozen in a way that can be dumped. -EBUSY: one was frozen
 * with `data`, or is on other GPUs than its memory; -EIO: its manifest is damaged.
 */
int gcr_dump_check_frozen(const struct gcr_dump *dump, struct gcr_error *error);

/*
 * Starts the thread that reads and digests the open files (dump->opens) into dump->files.
 * gcr_dump_end_reading() must follow. -ENOMEM.
 */
int gcr_dump_begin_reading(struct gcr_dump *dump, struct gcr_error *error);
/*
 * Waits for that thread, if it has been started. Returns its result: errors of
 * gcr_file_identities_make(), with a message; -ECANCELED, without a message: the verb has been
 * asked to stop. A filesystem that does not answer is then not waited for.
 */
int gcr_dump_end_reading(struct gcr_dump *dump, struct gcr_error *error);

/*
 * Called when all images are written: adds VRAM (as hard links), the metadata of every GPU process,
 * and last the manifest.
 */
int gcr_dump_write_metadata(struct gcr_dump *dump, struct gcr_error *error);

/*
 * Checks that CRIU has written the images that it reports: its inventory, the list of the tree, and
 * one of each member; and that each process in them is still there, with the rights that its image
 * says. To be called while CRIU holds the tree. -EIO, -EPERM, -EBUSY, ...
 */
int gcr_dump_check_images(const struct gcr_dump *dump, struct gcr_error *error);

/*
 * Returns the process with this pid among the tasks' processes; no reference is taken. NULL: the
 * process uses no GPU.
 */
struct gcr_process *gcr_dump_gpu_process(const struct gcr_dump *dump, pid_t pid);

#endif
