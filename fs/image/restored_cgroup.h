/* SPDX-License-Identifier: MIT */
/*
 * A cgroup for each restored tree. In the daemon's own cgroup the tree would end when the service
 * is stopped, and its memory would be charged to the daemon.
 *
 * The cgroup is gpucrfs/gpucr-NAME (or gpucr2-NAME, ...) below the root of the cgroup2 tree as it
 * is mounted here: the machine's root or, in a container with a view of its own, the container's,
 * whose limits then apply. It cannot be beside the daemon: that directory (system.slice) belongs to
 * systemd, and no other program may create cgroups there. At the root other programs create cgroups
 * too, and systemd leaves them alone. No controllers are enabled for the cgroup; limits of gpucrfs/
 * apply to all restored trees together.
 *
 * If cgroup2 is mounted beside cgroup v1 ("hybrid"), systemd goes by cgroup2, so the tree stays
 * when the service is stopped; in v1's hierarchies (memory, cpu) the tree is where the daemon is.
 * With v1 alone no such cgroup can be made.
 */
#ifndef GCR_FS_IMAGE_RESTORED_CGROUP_H
#define GCR_FS_IMAGE_RESTORED_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/error.h"

/*
 * Makes a cgroup. @name: any; a number is added if the cgroup of this name has processes, or may
 * get some (it is less than a minute old, and may be another daemon's). @ret_directory: the path of
 * its directory, for gcr_restored_cgroup_remove(); the caller frees it. @ret_inode (may be NULL):
 * its inode number. @ret_procs_fd: its
 * cgroup.procs, for struct gcr_program; the caller closes it. Errors set @error to a message that
 * names the missing part; a tree can then only be restored into our own cgroup: -EOPNOTSUPP no
 * cgroup2, -EROFS, -EACCES, -EPERM, other errors of the kernel, -ENOMEM.
 */
int gcr_restored_cgroup_make(const char *name, char **ret_directory, uint64_t *ret_inode,
			     int *ret_procs_fd, struct gcr_error *error);

/*
 * Are there processes in the cgroup that have not ended? False if the cgroup no longer exists, true
 * if its state cannot be read. @inode: the cgroup's inode number, which the kernel gives no other
 * one, while another may have the path by the time; 0: not known, any cgroup of this path.
 */
bool gcr_restored_cgroup_is_used(const char *directory, uint64_t inode);

/*
 * Kills all processes in the cgroup, including those started in the meantime, and waits for their
 * end. @inode: as above. 0: the cgroup is empty, or no longer exists; -ETIMEDOUT: a process has not
 * ended in @timeout_usec; other errors of the kernel.
 */
int gcr_restored_cgroup_kill(const char *directory, uint64_t inode, int64_t timeout_usec);

/*
 * Removes the cgroup after the tree's end. Waits a moment for processes that end with the tree (the
 * init of its pid namespace). @inode: as above. 0: the cgroup no longer exists, whether or not this
 * call removed it; -EBUSY: there are still processes in it; other errors of the kernel.
 */
int gcr_restored_cgroup_remove(const char *directory, uint64_t inode);

/*
 * Removes empty cgroups of trees that ended while no daemon ran. Those less than a minute old may
 * belong to another daemon that is about to use them, and are kept.
 */
void gcr_restored_cgroup_sweep(void);

#endif
