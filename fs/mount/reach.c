/* SPDX-License-Identifier: MIT */
/* Applies the rules of fs/mount/tree.c; keeps no state and holds no lock. */
#include "fs/mount/reach.h"

#include <errno.h>

#include "fs/base/quota.h"
#include "fs/base/tracing.h"
#include "fs/base/turns.h"
#include "fs/image/place.h"
#include "fs/mount/session_quota.h"
#include "fs/mount/tree.h"
#include "fs/process/process.h"
#include "fs/store/subtree.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/procfs.h"

GCR_DEFINE_CLEANUP(struct gcr_subtree *, gcr_subtree_unref);

struct search {
	const struct fuse_ctx *caller;
	const struct gcr_subtree *subtree;
};

static int is_places(struct gcr_place *place, void *data)
{
	const struct search *search = data;

	return place->subtree == search->subtree && gcr_tree_shows_place(search->caller, place);
}

/*
 * What is asked for, and what the threads that wait for looks are counted by: the turn that the
 * request has (fs/mount/session_turn.h), unless it has none.
 */
enum waiting {
	WAITING_TEXT,
	WAITING_ITEM,
	WAITING_LOCKED, /* an item, by gcr_turn_begin_lookup(): the kernel keeps a lock meanwhile */
};

/* Looks at both processes. A user keeps only some of the threads waiting for that. */
static int check_by_looks(struct gcr_daemon *daemon, const struct fuse_ctx *caller, pid_t pid,
			  enum waiting waiting, struct gcr_error *error)
{
	_cleanup_(gcr_tracer_finish) struct gcr_tracer tracer = {.namespace_fd = -1};
	_cleanup_(gcr_turn_end) struct gcr_turn turn = {0};

	if (waiting == WAITING_LOCKED && !gcr_turn_begin_lookup(daemon->quota, caller->uid, &turn))
		return gcr_error_set(error, EBUSY,
				     "you have others wait for looks at processes; try again");
	gcr_tracer_take(caller->pid, caller->uid, caller->gid, &tracer);
	return gcr_tracer_check(&tracer, pid, caller->uid, error);
}

/* Is the caller one of the process's own threads? Then the kernel asks for nothing else. */
static bool is_own_thread(const struct fuse_ctx *caller, pid_t pid)
{
	struct gcr_proc_status status;

	return !gcr_proc_status(caller->pid, &status) && status.thread_group == pid;
}

/*
 * Would the kernel let the caller, who has the process's user id, look into it? For a text, a sign
 * that both are in one user namespace is enough where the kernel does not tell the namespaces.
 */
static int check_tracing(struct gcr_daemon *daemon, const struct fuse_ctx *caller, pid_t pid,
			 enum waiting waiting, struct gcr_error *error)
{
	int result;

	if (is_own_thread(caller, pid))
		return 0;
	result = gcr_tracer_check_at_once(caller->pid, caller->uid, caller->gid, pid, caller->uid,
					  error);
	if (result == -EAGAIN && waiting == WAITING_TEXT)
		result = gcr_tracer_check_quickly(caller->pid, caller->uid, caller->gid, pid,
						  caller->uid, error);
	return result == -EAGAIN ? check_by_looks(daemon, caller, pid, waiting, error) : result;
}

/*
 * Has the kernel let the caller in as the owner, rather than by a capability? The files of a freeze
 * stay their user's when the process becomes root's, by prctl(2) for instance. 1, 0, -ESRCH.
 */
static int is_owners(const struct fuse_ctx *caller, struct gcr_process *process, bool is_text)
{
	struct gcr_proc_status status;
	uid_t owner;
	gid_t unused;
	int result = gcr_process_find_owner(process, &owner, &unused);

	if (result < 0 || owner == caller->uid)
		return result < 0 ? result : 1;
	if (is_text)
		return 0;
	result = gcr_proc_status(process->pid, &status);
	return result < 0 ? result : status.real_uid == caller->uid;
}

/*
 * May @caller, whom the kernel's check of the owner has let in, have what is about the process?
 * Nobody but root has what is about one that has ended: its number may be another process's. 0,
 * -EACCES, -EBUSY, -ESRCH, -ETIMEDOUT; the user's `error` at the root says why.
 */
static int check_owner(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
		       struct gcr_process *process, enum waiting waiting)
{
	struct gcr_error error = {0};
	int result;

	if (!caller->uid)
		return 0;
	result = is_owners(caller, process, waiting == WAITING_TEXT);
	if (result > 0)
		result = check_tracing(daemon, caller, process->pid, waiting, &error);
	if (error.number)
		gcr_session_tell_refusal(daemon, caller->uid, &error);
	if (!result && gcr_process_pidfd_tells(process))
		return -ESRCH;
	return result == -EPERM ? -EACCES : result;
}

/*
 * The process whose snapshot the subtree is, with a reference; NULL: none, the subtree is a
 * place's. -ESTALE: the process is not listed, and so nobody can tell who may have its snapshot.
 */
static int find_process(struct gcr_daemon *daemon, const struct gcr_subtree *subtree,
			struct gcr_process **ret_process)
{
	uint64_t start_ticks;
	pid_t pid = gcr_subtree_process(subtree, &start_ticks);

	*ret_process = NULL;
	if (pid && gcr_processes_find_exactly(daemon->processes, pid, start_ticks, ret_process) < 0)
		return -ESTALE;
	return 0;
}

/* The same check for an item of the process's snapshot. */
static int check_items_owner(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			     fuse_ino_t node, enum waiting waiting)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	struct gcr_process *process = NULL;
	uint32_t item;
	int result = gcr_tree_subtree(daemon, node, &subtree, &item);

	if (!result)
		result = find_process(daemon, subtree, &process);
	if (!result && process)
		result = check_owner(daemon, caller, process, waiting);
	gcr_process_unref(process);
	return result;
}

/* Does the subtree belong to a process that the caller can see? */
static bool is_of_process(struct gcr_daemon *daemon, const struct search *search)
{
	struct gcr_process *process;
	bool is_its = !find_process(daemon, search->subtree, &process) && process &&
		      gcr_tree_reaches(search->caller, process->pid);

	gcr_process_unref(process);
	return is_its;
}

static int check_item(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node,
		      enum waiting waiting)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	struct search search = {.caller = caller};
	uint32_t item;
	int result;

	/* The kernel has checked the item's mode and owner. */
	if (caller->uid)
		return check_items_owner(daemon, caller, node, waiting);
	if (gcr_tree_is_local(caller))
		return 0;
	result = gcr_tree_subtree(daemon, node, &subtree, &item);
	if (result < 0)
		return result;
	search.subtree = subtree;
	result = gcr_place_each(daemon->places, is_places, &search);
	if (!result)
		result = is_of_process(daemon, &search);
	return result > 0 ? 0 : result < 0 ? result : -ENOENT;
}

/* Are these the process's contents, rather than its directory or `ctl` (fs/mount/control.c)? */
static bool needs_owner(enum gcr_node_kind kind)
{
	return kind != GCR_NODE_PROCESS && kind != GCR_NODE_CTL;
}

/* @waiting is for what is below a `snapshot`. */
static int check_node(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node,
		      enum waiting waiting)
{
	struct gcr_process *process;
	struct gcr_place *place;
	int result;

	if (gcr_node_kind(node) == GCR_NODE_ITEM)
		return check_item(daemon, caller, node, waiting);
	result = gcr_tree_process(daemon, node, &process);
	if (!result) {
		result = gcr_tree_reaches(caller, process->pid) ? 0 : -ENOENT;
		if (!result && needs_owner(gcr_node_kind(node)))
			result = check_owner(
				daemon, caller, process,
				gcr_node_kind(node) == GCR_NODE_SNAPSHOT ? waiting : WAITING_TEXT);
		gcr_process_unref(process);
		return result;
	}
	if (result == -EINVAL)
		result = gcr_tree_place(daemon, node, &place);
	if (!result) {
		result = gcr_tree_shows_place(caller, place) ? 0 : -ENOENT;
		gcr_place_unref(place);
	}
	return result == -EINVAL ? 0 : result;
}

int gcr_reach_check(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node)
{
	return check_node(daemon, caller, node, WAITING_ITEM);
}

int gcr_reach_check_locked(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			   fuse_ino_t node)
{
	return check_node(daemon, caller, node, WAITING_LOCKED);
}
