/* SPDX-License-Identifier: MIT */
/*
 * The part of a ctl file's inode number by which look-ups of the file differ: see
 * gcr_tree_lookup(). The kernel holds an inode's lock as long as a write to the inode waits, and
 * who writes from memory that cannot be read can make a write wait for ever. So a number that the
 * kernel still knows is given to nobody else. Thread-safe; no call blocks.
 */
#ifndef GCR_FS_MOUNT_CTL_IDS_H
#define GCR_FS_MOUNT_CTL_IDS_H

#include <stdint.h>
#include <sys/types.h>

#include "fs/base/quota.h"

/*
 * Returns a number of 24 bits for a look-up of the ctl file @node by @uid: a fresh one, which is to
 * be given back when the kernel forgets the inode. A user who makes more than a hundred such
 * look-ups in a second gets one number for the rest of the second, as does everybody if no fresh
 * one is left; root always gets a fresh one while there are any.
 */
uint32_t gcr_ctl_ids_take(struct gcr_quota *quota, uid_t uid, uint64_t node);

/* The kernel has forgotten the inode. Does nothing if the number was no fresh one. */
void gcr_ctl_ids_give_back(uint32_t id);

#endif
