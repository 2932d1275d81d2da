/* SPDX-License-Identifier: MIT */
/*
 * PR_SET_PDEATHSIG in CRIU's images: the signal that a thread gets when its parent ends. CRIU
 * restores it, and what starts the restored tree (CRIU itself, or the init of a pid namespace of
 * its own) is not the parent that the program meant, and ends soon after. A process whose parent is
 * in the tree keeps it.
 */
#ifndef GCR_CRIU_GLUE_PARENT_DEATH_H
#define GCR_CRIU_GLUE_PARENT_DEATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

/*
 * Has a thread of a process whose parent is not in the tree such a signal? The images are in the
 * directory @images_fd. Errors with words: -EIO an image cannot be read, or is not understood;
 * -ENOMEM.
 */
int gcr_criu_has_parent_death(int images_fd, bool *ret_has, struct gcr_error *error);

/*
 * None of these threads has one from now on. An image that changes is replaced by another file: a
 * hard link to the old one stays as it was. Errors as above, and those of
 * writing files.
 */
int gcr_criu_clear_parent_death(int images_fd, struct gcr_error *error);

/*
 * The parts, for tests. Of an image pstree.img: every thread, by its number, of each process
 * without a parent in the tree, for the caller to free. -EIO, -ENOMEM.
 */
int gcr_parent_death_threads(const uint8_t *image, size_t bytes, pid_t **ret_threads,
			     size_t *ret_count);

/* Of an image core-N.img, as many bytes as before: sets the signal to none. -EIO. */
int gcr_parent_death_clear(uint8_t *image, size_t bytes, bool *ret_had);

#endif
