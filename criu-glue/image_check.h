/* SPDX-License-Identifier: MIT */
/* What in CRIU's images would give a program's user, at a restore, more than he could have. */
#ifndef GCR_CRIU_GLUE_IMAGE_CHECK_H
#define GCR_CRIU_GLUE_IMAGE_CHECK_H

#include <stdbool.h>

#include "criu-glue/image_owner.h"
#include "lib/error.h"

/*
 * Checks the images in the directory @images_fd of a tree with this owner:
 *  - A thread that is not root's has no secure bits (PR_SET_SECUREBITS), which the kernel tells
 *    nobody but the thread itself. With some of them, set-user-ID programs do not give up root's
 *    rights.
 *  - The memory of a thread for rseq(2) is the process's own. By it the kernel learns where the
 *    thread is to continue, also while CRIU restores the thread with root's rights, so nobody else
 *    may have it. On a kernel that believes at once what is in it, it names no code.
 *  - A deleted file is the owner's. The owner can read what CRIU writes into a file that CRIU makes
 *    with his rights, before CRIU finds that he cannot give it to another user.
 * Errors, with a message: -EACCES one of them is not so; -EIO an image cannot be read, or is
 * invalid; -ENOMEM.
 */
int gcr_image_check(int images_fd, const struct gcr_image_owner *owner, struct gcr_error *error);

/*
 * At a dump: has the memory of no thread for rseq(2) name code. Programs leave it named after they
 * were there, and the kernel clears it when it sees that. If a thread is there now, CRIU has put it
 * at the code's own way out, and has the name elsewhere if the thread needs it. Errors, with a
 * message: -EIO, -ENOMEM.
 */
int gcr_image_clear_rseq(int images_fd, struct gcr_error *error);

/*
 * Does a kernel of this release clear what is in a thread's memory for rseq(2) when the thread
 * tells the kernel of it? Linux 6.15 and later do ("rseq: Fix segfault on registration when rseq_cs
 * is non-zero"); an older one that has got the change is taken for one that does not.
 */
bool gcr_image_kernel_clears_rseq(const char *release);

#endif
