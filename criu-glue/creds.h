/* SPDX-License-Identifier: MIT */
/*
 * The credentials in CRIU's images. CRIU has the dumped process itself tell its credentials, in
 * memory that other processes of the same user can write to. With the user id 0 in an image, a
 * restore would make root's process of it. The kernel's word counts: the images are compared with
 * /proc.
 */
#ifndef GCR_CRIU_GLUE_CREDS_H
#define GCR_CRIU_GLUE_CREDS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "lib/error.h"

/*
 * Compares the images in the directory @images_fd with the processes @pids of the tree, which are
 * stopped. The images must contain each thread of these processes once, in its process, and no
 * other living thread. User and group ids, groups, capabilities and no_new_privs must be equal. The
 * kernel does not tell securebits: the images may have only those that the thread could set itself.
 * The caller makes sure that the pids have not changed hands. @is_restored: CRIU has made the
 * processes from the images; then they may lack capabilities of the bounding set, and may have
 * no_new_privs, since CRIU cannot give more than it has. Errors, with a message: -EPERM: an image
 * differs from the kernel; -EBUSY: a process has ended since CRIU dumped it, so its rights cannot
 * be checked any more; -EIO: an image is damaged; -ENOMEM, and errors of /proc.
 */
int gcr_criu_check_creds(int images_fd, const pid_t *pids, size_t count, bool is_restored,
			 struct gcr_error *error);

#endif
