/* SPDX-License-Identifier: MIT */
/*
 * Whose a dumped tree is, by CRIU's images: the user with whose rights its files are opened when it
 * is restored.
 */
#ifndef GCR_CRIU_GLUE_IMAGE_OWNER_H
#define GCR_CRIU_GLUE_IMAGE_OWNER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/cleanup.h"
#include "lib/error.h"

struct gcr_image_owner {
	uid_t uid;
	gid_t gid;
	uint64_t capabilities; /* those that go past the modes of files */
	gid_t *groups;	       /* ascending */
	size_t groups_count;
};

void gcr_image_owner_destroy(struct gcr_image_owner *owner);
GCR_DEFINE_CLEANUP(struct gcr_image_owner *, gcr_image_owner_destroy);

/*
 * Finds the owner by the images in the directory @images_fd. @root: the pid of the tree's root in
 * the images. The groups and capabilities are those that all threads of this user have. If other
 * users than root have processes in the tree, the owner is that of the root, or of the process with
 * the lowest pid. *ret_owner, the caller's, is NULL if all is root's, or if the tree has a user
 * namespace of its own, in which CRIU has no more rights than the tree. Errors, with a message:
 * -EIO an image cannot be read, or is invalid; -ENOMEM.
 */
int gcr_image_owner_find(int images_fd, pid_t root, struct gcr_image_owner **ret_owner,
			 struct gcr_error *error);

#endif
