/* SPDX-License-Identifier: MIT */
/*
 * Dumpable processes (PR_SET_DUMPABLE) in CRIU's images: into whose memory other processes of their
 * user may look. CRIU makes a process dumpable while some of its threads still have root's rights.
 */
#ifndef GCR_CRIU_GLUE_DUMPABLE_H
#define GCR_CRIU_GLUE_DUMPABLE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

/*
 * Lists the dumpable processes by their pids in the images; the caller frees *ret_pids. Errors,
 * with a message: -EIO an image cannot be read, or is invalid; -ENOMEM.
 */
int gcr_criu_find_dumpable(int images_fd, pid_t **ret_pids, size_t *ret_count,
			   struct gcr_error *error);

/*
 * Changes the images so that none of these processes is dumpable. An image that changes is replaced
 * by another file: a hard link to the old one is unaffected. Errors as gcr_criu_find_dumpable(),
 * and those of writing files.
 */
int gcr_criu_clear_dumpable(int images_fd, const pid_t *pids, size_t count,
			    struct gcr_error *error);

#endif
