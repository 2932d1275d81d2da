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
 *  - A thread's memory for rseq(2) is private to its process. There the kernel reads where to
 *    continue the thread, also while CRIU restores the thread with root's rights, so no other user
 *    may write to that memory. If the kernel does not clear its field rseq_cs, that field is 0.
 *  - A deleted file is the owner's. The owner can read what CRIU writes into a file that CRIU makes
 *    with the owner's rights, before CRIU finds that the owner cannot give it to another user.
 *  - The tree has no mount namespace of its own, in which CRIU would make files as root. (A tree
 *    with a user namespace of its own has no owner here.)
 * Errors, with a message: -EACCES: one of these does not hold; -EIO: an image cannot be read, or is
 * invalid; -ENOMEM.
 */
int gcr_image_check(int images_fd, const struct gcr_image_owner *owner, struct gcr_error *error);

/*
 * At a dump: sets the field rseq_cs to 0 in each thread's memory for rseq(2), in the images.
 * Programs leave the field set after a critical section, and the kernel clears it later. If the
 * thread is in a critical section, CRIU has moved it to the abort handler, and has saved the field
 * elsewhere if the thread needs it. Errors, with a message: -EIO, -ENOMEM.
 */
int gcr_image_clear_rseq(int images_fd, struct gcr_error *error);

/*
 * Does a kernel of this release clear rseq_cs when a thread registers its memory for rseq(2)? Linux
 * 6.15 and later do ("rseq: Fix segfault on registration when rseq_cs is non-zero"); false for an
 * older kernel, even if that has got the change.
 */
bool gcr_image_kernel_clears_rseq(const char *release);

#endif
