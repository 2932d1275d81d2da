/* SPDX-License-Identifier: MIT */
/*
 * The names of the mount. A node id encodes the object that it names (kind, process or GPU), so
 * there is no table of inodes except those of subtrees: forgetting such a node does nothing, and a
 * node whose process has ended is ESRCH.
 */
#ifndef GCR_FS_MOUNT_TREE_H
#define GCR_FS_MOUNT_TREE_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "fs/daemon.h"
#include "fs/process/process.h"
#include "fs/store/subtree.h"

enum gcr_node_kind {
	GCR_NODE_NONE = 0,
	GCR_NODE_ROOT = 1, /* equals FUSE_ROOT_ID */
	GCR_NODE_ROOT_CTL,
	GCR_NODE_ROOT_STATUS,
	GCR_NODE_ROOT_ERROR,
	GCR_NODE_ROOT_EVENTS,
	GCR_NODE_ROOT_METRICS,
	GCR_NODE_SELF,
	GCR_NODE_GPUS,
	GCR_NODE_GPU,
	GCR_NODE_GPU_UUID,
	GCR_NODE_GPU_NAME,
	GCR_NODE_GPU_STATUS,
	GCR_NODE_PROCESS,
	GCR_NODE_CTL,
	GCR_NODE_STATUS,
	GCR_NODE_ERROR,
	GCR_NODE_EVENTS,
	GCR_NODE_MAPS,
	GCR_NODE_CRIU_LOG,
	GCR_NODE_SNAPSHOT,
	GCR_NODE_PLACE,
	GCR_NODE_PLACE_CTL,
	GCR_NODE_PLACE_STATUS,
	GCR_NODE_PLACE_ERROR,
	GCR_NODE_PLACE_EVENTS,
	GCR_NODE_PLACE_CRIU_LOG,
	GCR_NODE_PLACE_SNAPSHOT,
	GCR_NODE_PID, /* a symbolic link from a pid to the place that names its process */
	GCR_NODE_ITEM,
	GCR_NODE_KINDS_COUNT,
};

/*
 * Node ids: bits 0-7 kind; 8-39 serial of the process or place (incoming snapshot), or index of the
 * GPU; 40-63 depend on the kind and the caller, see gcr_tree_lookup(). For nodes below a `snapshot`
 * (GCR_NODE_ITEM) 8-39 are the item and 40-63 the number of its subtree, see fs/store/subtree.h;
 * only these nodes count lookups and are forgotten. Their st_ino is a different number: bits 0-7
 * the kind, 8-63 the inode number in the store.
 */
static inline enum gcr_node_kind gcr_node_kind(fuse_ino_t node)
{
	return (node & 0xff) < GCR_NODE_KINDS_COUNT ? (enum gcr_node_kind)(node & 0xff)
						    : GCR_NODE_NONE;
}

static inline uint32_t gcr_node_number(fuse_ino_t node)
{
	return (uint32_t)(node >> 8);
}

/* The name of the file, or a description of it, for messages; the same for all nodes of a kind. */
const char *gcr_node_name(fuse_ino_t node);

bool gcr_node_is_ctl(enum gcr_node_kind kind);
bool gcr_node_is_events(enum gcr_node_kind kind);
/* Is it a `snapshot`, or below one? */
bool gcr_node_is_in_subtree(enum gcr_node_kind kind);

/* Does the text contain VRAM figures, so that the GPUs should be asked before it is rendered? */
bool gcr_node_needs_gpus(enum gcr_node_kind kind);

/*
 * Resolves @name below @parent for @caller. -ENOENT, -ENOTDIR, ...
 *
 * The upper 24 bits of the id of a file that is not below a `snapshot` depend on the look-up. Each
 * look-up of a ctl file returns a fresh id, because the kernel holds an inode's lock as long as a
 * write to the inode waits; but a user who makes more than a hundred in a second gets the same one
 * for the rest of it (fs/mount/ctl_ids.h). For the other files root, a container's root, and the
 * owner of a process or place have ids of their own: an open waits for a lease (F_SETLEASE) that
 * the owner of the file, or who has his id, has on the same inode. These ids stay the same, since
 * look-ups of one name whose ids differ have to be repeated until no other one comes between.
 */
int gcr_tree_lookup(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t parent,
		    const char *name, struct fuse_entry_param *ret_entry);

int gcr_tree_getattr(struct gcr_daemon *daemon, fuse_ino_t node, struct stat *ret_stat);

/*
 * The process that a node belongs to; the caller owns the reference. -EINVAL: the node belongs to
 * none; -ESRCH: the process has ended.
 */
int gcr_tree_process(struct gcr_daemon *daemon, fuse_ino_t node, struct gcr_process **ret_process);

/*
 * The place (incoming snapshot) that a node belongs to; the caller owns the reference. -EINVAL: the
 * node belongs to none; -ESRCH: the place is gone.
 */
struct gcr_place;
int gcr_tree_place(struct gcr_daemon *daemon, fuse_ino_t node, struct gcr_place **ret_place);
/* Fills in the kernel's entry for the place's directory. */
int gcr_tree_make_place_entry(struct gcr_place *place, struct fuse_entry_param *ret_entry);

/*
 * The snapshot of a frozen process, or the one kept of its last freeze; the caller owns the
 * reference. NULL: there is none.
 */
struct gcr_snapshot *gcr_tree_snapshot(struct gcr_process *process);

/*
 * The subtree and item of a node that is a `snapshot` or below one; the caller owns the reference.
 * -EPERM: the node is neither; -ENOENT: the process has nothing in the store now; -ESTALE, -ESRCH.
 */
int gcr_tree_subtree(struct gcr_daemon *daemon, fuse_ino_t node, struct gcr_subtree **ret_subtree,
		     uint32_t *ret_item);
/* Fills in the kernel's entry for an item. */
void gcr_tree_make_entry(const struct gcr_subtree *subtree, const struct gcr_subtree_entry *entry,
			 struct fuse_entry_param *ret_entry);
void gcr_tree_forget(fuse_ino_t node, uint64_t count);

/*
 * Calls @add for every entry of a directory, with its st_ino; stops at the first non-zero result of
 * @add and returns that.
 */
int gcr_tree_list(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node,
		  int (*add)(void *data, const char *name, fuse_ino_t node, mode_t mode),
		  void *data);

/*
 * Writes the text of a control file for @caller, whose id for quotas is @counted
 * (gcr_credentials_counted()). @process is NULL for nodes that belong to no process. -ETIMEDOUT,
 * -ENOMEM, -EMFILE, -ENFILE: the processes below a launcher cannot be listed.
 */
int gcr_tree_render(struct gcr_daemon *daemon, const struct fuse_ctx *caller, uid_t counted,
		    fuse_ino_t node, struct gcr_process *process, FILE *stream);

/* May @caller see @pid, by pid namespaces? For checks of many pids see fs/mount/sight.h. */
bool gcr_tree_reaches(const struct fuse_ctx *caller, pid_t pid);
/*
 * Does the place exist for @caller? Yes for a caller in our pid namespace. In another one, for the
 * owner of the place unless that is root (a caller with uid 0 may be confined to a container), and
 * for a caller that reaches the process restored from the place.
 */
bool gcr_tree_shows_place(const struct fuse_ctx *caller, struct gcr_place *place);
/* Is @caller in our own pid namespace? Then all places are visible to it. */
bool gcr_tree_is_local(const struct fuse_ctx *caller);

#endif
