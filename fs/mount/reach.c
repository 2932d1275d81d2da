/* SPDX-License-Identifier: MIT */
/* Applies the rules of fs/mount/tree.c; keeps no state and holds no lock. */
#include "fs/mount/reach.h"

#include <errno.h>

#include "fs/image/place.h"
#include "fs/mount/tree.h"
#include "fs/process/process.h"
#include "fs/store/subtree.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"

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

/* Does the subtree belong to a process that the caller can see? */
static bool is_of_process(struct gcr_daemon *daemon, const struct search *search)
{
	struct gcr_process **list = NULL;
	size_t count = 0;
	bool is_its = false;

	if (gcr_processes_list(daemon->processes, &list, &count) < 0)
		return false;
	for (size_t i = 0; i < count && !is_its; i++) {
		struct gcr_snapshot *snapshot = gcr_tree_snapshot(list[i]);

		is_its = snapshot && gcr_snapshot_subtree(snapshot) == search->subtree &&
			 gcr_tree_reaches(search->caller, list[i]->pid);
		gcr_snapshot_unref(snapshot);
	}
	gcr_processes_list_free(list, count);
	return is_its;
}

static int check_item(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	struct search search = {.caller = caller};
	uint32_t item;
	int result;

	/*
	 * For callers other than root the kernel's check of the item's mode and owner is
	 * sufficient.
	 */
	if (caller->uid || gcr_tree_is_local(caller))
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
