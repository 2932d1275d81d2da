/* SPDX-License-Identifier: MIT */
/* Applies the rules of fs/mount/tree.c; keeps no state and holds no lock. */
#include "fs/mount/reach.h"

#include <errno.h>

#include "fs/base/quota.h"
#include "fs/base/tracing.h"
#include "fs/base/turns.h"
#include "fs/image/place.h"
#include "fs/mount/session_subtree.h"
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
 * Looks at both processes. A user keeps only some of the threads waiting for that: @is_text, else
 * the request has a turn already (fs/mount/session_turn.h).
 */
static int check_by_looks(struct gcr_daemon *daemon, const struct fuse_ctx *caller, pid_t pid,
			  bool is_text, struct gcr_error *error)
{
	_cleanup_(gcr_tracer_finish) struct gcr_tracer tracer = {.namespace_fd = -1};
	_cleanup_(gcr_turn_end) struct gcr_turn turn = {0};

	if (is_text && !gcr_turn_begin(daemon->quota, caller->uid, &turn))
		return gcr_error_set(error, EBUSY,
				     "you have others wait for looks at processes; try again");
	gcr_tracer_take(caller->pid, caller->uid, caller->gid, &tracer);
	return gcr_tracer_check(&tracer, pid, caller->uid, error);
}

/*
 * Has the kernel let the caller in as the owner, rather than by a capability? The files of a freeze
 * stay their user's when the process becomes root's, by prctl(2) for instance.
 */
static bool is_owners(const struct fuse_ctx *caller, struct gcr_process *process, bool is_text)
{
	struct gcr_proc_status status;
	uid_t owner;
	gid_t unused;

	if (!caller->uid || gcr_process_find_owner(process, &owner, &unused) < 0)
		return false;
	return owner == caller->uid || (!is_text && !gcr_proc_status(process->pid, &status) &&
					status.real_uid == caller->uid);
}

/*
 * May @caller, whom the kernel's check of the owner has let in, have what is about the process?
 * @is_text: a sign that both are in one user namespace is enough. 0, -EACCES, -EBUSY, -ESRCH,
 * -ETIMEDOUT; the user's `error` at the root says why.
 */
static int check_owner(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
		       struct gcr_process *process, bool is_text)
{
	struct gcr_error error = {0};
	int result = -EAGAIN;

	if (!is_owners(caller, process, is_text))
		return 0;
	if (is_text)
		result = gcr_tracer_check_quickly(caller->pid, caller->uid, caller->gid,
						  process->pid, caller->uid, &error);
	if (result == -EAGAIN)
		result = check_by_looks(daemon, caller, process->pid, is_text, &error);
	if (result < 0)
		gcr_session_tell_refusal(daemon, caller->uid, &error);
	return result == -EPERM ? -EACCES : result;
}

/* The process of which the subtree is the snapshot, with a reference; NULL: it is of none. */
static struct gcr_process *find_process(struct gcr_daemon *daemon,
					const struct gcr_subtree *subtree)
{
	struct gcr_process *found = NULL, **list = NULL;
	size_t count = 0;

	if (gcr_processes_list(daemon->processes, &list, &count) < 0)
		return NULL;
	for (size_t i = 0; i < count && !found; i++) {
		struct gcr_snapshot *snapshot = gcr_tree_snapshot(list[i]);

		if (snapshot && gcr_snapshot_subtree(snapshot) == subtree)
			found = gcr_process_ref(list[i]);
		gcr_snapshot_unref(snapshot);
	}
	gcr_processes_list_free(list, count);
	return found;
}

/* The same check for an item of the process's snapshot. */
static int check_items_owner(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			     fuse_ino_t node)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	struct gcr_process *process;
	uint32_t item;
	int result = gcr_tree_subtree(daemon, node, &subtree, &item);

	if (result < 0)
		return result;
	process = find_process(daemon, subtree);
	if (process)
		result = check_owner(daemon, caller, process, false);
	gcr_process_unref(process);
	return result;
}

/* Does the subtree belong to a process that the caller can see? */
static bool is_of_process(struct gcr_daemon *daemon, const struct search *search)
{
	struct gcr_process *process = find_process(daemon, search->subtree);
	bool is_its = process && gcr_tree_reaches(search->caller, process->pid);

	gcr_process_unref(process);
	return is_its;
}

static int check_item(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	struct search search = {.caller = caller};
	uint32_t item;
	int result;

	/* The kernel has checked the item's mode and owner. */
	if (caller->uid)
		return check_items_owner(daemon, caller, node);
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

int gcr_reach_check(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node)
{
	struct gcr_process *process;
	struct gcr_place *place;
	int result;

	if (gcr_node_kind(node) == GCR_NODE_ITEM)
		return check_item(daemon, caller, node);
	result = gcr_tree_process(daemon, node, &process);
	if (!result) {
		result = gcr_tree_reaches(caller, process->pid) ? 0 : -ENOENT;
		if (!result && needs_owner(gcr_node_kind(node)))
			result = check_owner(daemon, caller, process,
					     gcr_node_kind(node) != GCR_NODE_SNAPSHOT);
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
