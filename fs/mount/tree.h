/* SPDX-License-Identifier: MIT */
/*
 * The names of the mount. A node id says what it names (kind, process or GPU), so there is no
 * table of inodes but those of folders: forgetting is nothing, and a node whose process has gone is
 * ESRCH.
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
#include "fs/store/folder.h"

enum gcr_node_kind {
	GCR_NODE_NONE = 0,
	GCR_NODE_ROOT = 1, /* so that its id is FUSE_ROOT_ID */
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
	GCR_NODE_PID, /* a link from a pid to the place whose name its process has */
	GCR_NODE_ITEM,
	GCR_NODE_KINDS_COUNT,
};

/*
 * Node ids: bits 0-7 kind, 8-39 serial of the process or incoming snapshot, or index of the GPU,
 * 40-63 by the kind: a
 * ctl's see below. Of what is below a `snapshot` (GCR_NODE_ITEM) 8-39 are the item and 40-63 the
 * number of its folder, see fs/store/folder.h; only these are looked up and forgotten. Their st_ino
 * is another number: bits 0-7 the kind, 8-63 the inode number in the store.
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

/* What a person calls it, as far as that is the same for all of its kind. */
const char *gcr_node_name(fuse_ino_t node);

/* Is it a ctl file? Each look-up of one returns a fresh id, counted in the upper 24 bits, because
 * the kernel holds an inode's lock for as long as a write to it waits. */
bool gcr_node_is_ctl(enum gcr_node_kind kind);
bool gcr_node_is_events(enum gcr_node_kind kind);

/* Does its text tell of VRAM, so that the GPUs should be asked before it is rendered? */
bool gcr_node_needs_gpus(enum gcr_node_kind kind);

/* Resolve @name below @parent for @caller. -ENOENT, -ENOTDIR, ... */
int gcr_tree_lookup(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t parent,
		    const char *name, struct fuse_entry_param *ret_entry);

int gcr_tree_getattr(struct gcr_daemon *daemon, fuse_ino_t node, struct stat *ret_stat);

/* The process a node is about; -ESRCH if it has ended. The reference is the caller's. */
int gcr_tree_process(struct gcr_daemon *daemon, fuse_ino_t node, struct gcr_process **ret_process);

/* The incoming snapshot a node is about: -EINVAL: about none; -ESRCH: it is gone. */
struct gcr_place;
int gcr_tree_place(struct gcr_daemon *daemon, fuse_ino_t node, struct gcr_place **ret_place);
/* Its directory, as the kernel is to see it. */
int gcr_tree_make_place_entry(struct gcr_place *place, struct fuse_entry_param *ret_entry);

/* The bytes of a frozen process, or kept ones: a reference of the caller's. NULL: there are none.
 */
struct gcr_snapshot *gcr_tree_snapshot(struct gcr_process *process);

/*
 * The folder and item that a node is: one below a `snapshot`, or that itself. The reference is the
 * caller's. -EPERM: it is none of these; -ENOENT: the process has nothing in the store now;
 * -ESTALE, -ESRCH.
 */
int gcr_tree_folder(struct gcr_daemon *daemon, fuse_ino_t node, struct gcr_folder **ret_folder,
		    uint32_t *ret_item);
/* As the kernel is to see an item. */
void gcr_tree_make_entry(const struct gcr_folder *folder, const struct gcr_folder_entry *entry,
			 struct fuse_entry_param *ret_entry);
void gcr_tree_forget(fuse_ino_t node, uint64_t count);

/* Calls @add for every entry of a directory, with its st_ino; stops with its non-zero result. */
int gcr_tree_list(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node,
		  int (*add)(void *data, const char *name, fuse_ino_t node, mode_t mode),
		  void *data);

/*
 * Write a control file's text for @caller, whose id @counted is for quotas
 * (gcr_credentials_counted()). @process is NULL for nodes that are not about one.
 */
void gcr_tree_render(struct gcr_daemon *daemon, const struct fuse_ctx *caller, uid_t counted,
		     fuse_ino_t node, struct gcr_process *process, FILE *stream);

/* May @caller see @pid by pid namespaces? fs/mount/sight.h is for many of them. */
bool gcr_tree_reaches(const struct fuse_ctx *caller, pid_t pid);
/*
 * Is there such a place for @caller? In another pid namespace than ours only for its owner, where
 * root is no owner: what is root by its number there may be shut in a container. And for who
 * reaches the process that has been made of it.
 */
bool gcr_tree_shows_place(const struct fuse_ctx *caller, struct gcr_place *place);
/* Is @caller in our own pid namespace? Then all places are there for it. */
bool gcr_tree_is_local(const struct fuse_ctx *caller);

#endif
