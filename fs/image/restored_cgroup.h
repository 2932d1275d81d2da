/* SPDX-License-Identifier: MIT */
/*
 * A cgroup for each restored tree. In the daemon's own the tree would end when the service is
 * stopped, and its memory would count as the daemon's.
 *
 * It is gpucrfs/gpucr-NAME (or gpucr2-NAME, ...) below the root of the cgroup2 tree as it is
 * mounted here: the machine's root, or in a container with a view of its own the container's, whose
 * limits then hold. Not beside the daemon: that directory (system.slice) is systemd's, and nothing
 * may be made there. At the root other programs make theirs too, and systemd leaves them alone. No
 * controllers are enabled for it; what limits gpucrfs/ limits all restored trees together.
 *
 * Where cgroup2 is mounted beside cgroup v1 ("hybrid") systemd goes by cgroup2, so the tree stays
 * when the service is stopped; in v1's own trees (memory, cpu) it is where the daemon is. With v1
 * alone there is no such cgroup.
 */
#ifndef GCR_FS_IMAGE_RESTORED_CGROUP_H
#define GCR_FS_IMAGE_RESTORED_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/error.h"

/*
 * Make one. @name: any; if there is one of this name that has processes, or may be about to (it is
 * less than a minute old, and perhaps another daemon's), a number is added.
 * @ret_directory: its path as a file, for gcr_restored_cgroup_remove() and to be freed.
 * @ret_procs_fd: its cgroup.procs, for struct gcr_program; the caller's. Errors with words that say
 * what is missing, after which a tree can only be restored into our own: -EOPNOTSUPP no cgroup2,
 * -EROFS, -EACCES, -EPERM, others as the kernel has them, -ENOMEM.
 */
int gcr_restored_cgroup_make(const char *name, char **ret_directory, int *ret_procs_fd,
			     struct gcr_error *error);

/* Are there processes in it that have not ended? Not if it is gone. */
bool gcr_restored_cgroup_is_used(const char *directory);

/*
 * Kill all that is in it, whatever that makes meanwhile, and wait for its end. 0: nothing is in it
 * now, or it is gone; -ETIMEDOUT: something does not end in @timeout_usec; others as the kernel has
 * them.
 */
int gcr_restored_cgroup_kill(const char *directory, int64_t timeout_usec);

/*
 * After the tree's end, a moment in which what waits for it (the init of its pid namespace) ends
 * too. 0: it is gone, by whomever; -EBUSY: there are processes in it still.
 */
int gcr_restored_cgroup_remove(const char *directory);

/*
 * Remove those that have been left behind and are empty: of trees that ended while no daemon ran.
 * Those that are less than a minute old may be another daemon's, which is about to use them.
 */
void gcr_restored_cgroup_sweep(void);

#endif
