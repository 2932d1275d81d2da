/* SPDX-License-Identifier: MIT */
/*
 * The images that CRIU reads at a restore. A dump removes from the images everything that ties the
 * tree to a parent outside the tree; but images that an earlier version dumped, or that come from
 * elsewhere, may still contain such ties (parent-death signals). The place itself must stay as its
 * digests say: the images are then changed in a separate directory in the place's directory, in
 * which all other images are hard links.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu-glue/parent_death.h"
#include "criu-glue/vdso.h"
#include "fs/base/log.h"
#include "fs/image/restore_private.h"
#include "fs/store/store.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"

/* Name of that separate directory in the directory of the place, which only root can access. */
#define COPY_NAME "criu-changed"

void gcr_restore_drop_images(struct gcr_restore *restore)
{
	int result =
		gcr_store_remove_tree(restore->job.daemon->store, restore->place->fd, COPY_NAME, 0);

	if (result < 0)
		gcr_log(LOG_WARNING, 0, "%s: %s in its directory cannot be removed: %s",
			restore->place->name, COPY_NAME, strerror(-result));
}

static int open_copy(struct gcr_restore *restore, int images_fd, struct gcr_error *error)
{
	const struct gcr_manifest *manifest = restore->manifest;
	int place_fd = restore->place->fd;
	_cleanup_close_ int fd = -1;
	int result;

	/* An earlier daemon may have left a copy. */
	result = gcr_store_remove_tree(restore->job.daemon->store, place_fd, COPY_NAME, 0);
	if (!result && mkdirat(place_fd, COPY_NAME, 0700) < 0)
		result = -errno;
	if (!result) {
		fd = gcr_beneath_open(place_fd, COPY_NAME, O_RDONLY | O_DIRECTORY);
		result = fd < 0 ? fd : 0;
	}
	for (size_t i = 0; i < manifest->images_count && !result; i++) {
		const char *name = manifest->images[i].name;

		if (linkat(images_fd, name, fd, name, 0) < 0)
			result = -errno;
	}
	if (result < 0)
		return gcr_error_set(error, -result, "CRIU's images cannot be copied: %s",
				     strerror(-result));
	result = gcr_criu_clear_parent_death(fd, error);
	return result < 0 ? result : TAKE_FD(fd);
}

int gcr_restore_open_images(struct gcr_restore *restore, struct gcr_error *error)
{
	_cleanup_close_ int fd =
		gcr_beneath_open(restore->root_fd, GCR_MANIFEST_IMAGES, O_RDONLY | O_DIRECTORY);
	bool is_tied = false;
	int result;

	if (fd < 0)
		return gcr_error_set(error, EIO, "criu: %s", strerror(-fd));
	result = gcr_criu_check_vdso(fd, error);
	if (!result)
		result = gcr_criu_has_parent_death(fd, &is_tied, error);
	if (result < 0)
		return result;
	return is_tied ? open_copy(restore, fd, error) : TAKE_FD(fd);
}
