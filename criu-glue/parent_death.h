/* SPDX-License-Identifier: MIT */
/*
 * PR_SET_PDEATHSIG in CRIU's images: the signal that a thread gets when its parent ends. CRIU
 * restores this setting, but the parent of the restored root (CRIU itself, or the init of a new pid
 * namespace) is not the one that the program meant, and ends soon after. A process whose parent is
 * in the tree keeps its setting.
 */
#ifndef GCR_CRIU_GLUE_PARENT_DEATH_H
#define GCR_CRIU_GLUE_PARENT_DEATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

/*
 * Does any thread of a process whose parent is not in the tree have such a signal? The images are
 * in the directory @images_fd. Errors, with a message: -EIO an image cannot be read, or is invalid;
 * -ENOMEM.
 */
int gcr_criu_has_parent_death(int images_fd, bool *ret_has, struct gcr_error *error);

/*
 * Clears the signal of all these threads. An image that changes is replaced by another file: a hard
 * link to the old one is unaffected. Errors as gcr_criu_has_parent_death(), and those of writing
 * files.
 */
int gcr_criu_clear_parent_death(int images_fd, struct gcr_error *error);

/*
 * The parts, exported for tests. From an image pstree.img: the ids of all threads of each process
 * without a parent in the tree; the caller frees the array. -EIO, -ENOMEM.
 */
int gcr_parent_death_threads(const uint8_t *image, size_t bytes, pid_t **ret_threads,
			     size_t *ret_count);

/*
 * Sets the signal to none in an image core-N.img, whose length does not change. *ret_had: there was
 * one. -EIO.
 */
int gcr_parent_death_clear(uint8_t *image, size_t bytes, bool *ret_had);

#endif
