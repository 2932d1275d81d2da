/* SPDX-License-Identifier: MIT */
/*
 * The images that CRIU reads at a restore. A dump removes from the images everything that ties the
 * tree to a parent outside the tree; but images that an earlier version dumped, or that come from
 * elsewhere, may still contain such ties (parent-death signals). And CRIU itself may make no
 * process of a user dumpable, which the guard does later. The place itself must stay as its digests
 * say: the images are then changed in a separate directory in the place's directory, in which all
 * other images are hard links.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu-glue/creds.h"
#include "criu-glue/dumpable.h"
#include "criu-glue/image_check.h"
#include "criu-glue/image_owner.h"
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

static int open_copy(struct gcr_restore *restore, const struct gcr_restore_images *images,
		     struct gcr_error *error)
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

		if (linkat(images->fd, name, fd, name, 0) < 0)
			result = -errno;
	}
	if (result < 0)
		return gcr_error_set(error, -result, "CRIU's images cannot be copied: %s",
				     strerror(-result));
	result = gcr_criu_clear_parent_death(fd, error);
	if (!result)
		result = gcr_criu_clear_dumpable(fd, images->dumpable, images->dumpable_count,
						 error);
	return result < 0 ? result : TAKE_FD(fd);
}

void gcr_restore_close_images(struct gcr_restore_images *images)
{
	if (images->fd >= 0)
		close(images->fd);
	gcr_image_owner_destroy(images->owner);
	free(images->dumpable);
}

int gcr_restore_open_images(struct gcr_restore *restore, struct gcr_restore_images *ret_images,
			    struct gcr_error *error)
{
	_cleanup_(gcr_restore_close_images) struct gcr_restore_images images = {.fd = -1};
	bool is_tied = false;
	int result, fd;

	images.fd = gcr_beneath_open(restore->root_fd, GCR_MANIFEST_IMAGES, O_RDONLY | O_DIRECTORY);
	if (images.fd < 0)
		return gcr_error_set(error, EIO, "criu: %s", strerror(-images.fd));
	result = gcr_criu_check_vdso(images.fd, error);
	if (!result)
		result = gcr_criu_has_parent_death(images.fd, &is_tied, error);
	if (!result && !restore->job.command.trusted)
		result = gcr_image_owner_find(images.fd, restore->manifest->tree->processes[0].pid,
					      &images.owner, error);
	if (!result && images.owner)
		result = gcr_image_check(images.fd, images.owner, error);
	if (!result && images.owner)
		result = gcr_criu_find_dumpable(images.fd, &images.dumpable, &images.dumpable_count,
						error);
	if (result < 0)
		return result;
	if (is_tied || images.dumpable_count) {
		fd = open_copy(restore, &images, error);
		if (fd < 0)
			return fd;
		close(images.fd);
		images.fd = fd;
	}
	restore->has_owner = images.owner;
	*ret_images = images;
	images = (struct gcr_restore_images){.fd = -1};
	return 0;
}

int gcr_restore_check_creds(struct gcr_restore *restore, struct gcr_error *error)
{
	_cleanup_free_ pid_t *pids = calloc(restore->held_count + 1, sizeof(*pids));
	_cleanup_close_ int fd =
		gcr_beneath_open(restore->root_fd, GCR_MANIFEST_IMAGES, O_RDONLY | O_DIRECTORY);
	int result;

	if (!restore->has_owner)
		return 0;
	if (fd < 0 || !pids)
		return gcr_error_set(error, fd < 0 ? EIO : ENOMEM, "criu: %s",
				     fd < 0 ? strerror(-fd) : "out of memory");
	for (size_t i = 0; i < restore->held_count; i++)
		pids[i] = restore->held[i].pid;
	result = gcr_criu_check_creds(fd, pids, restore->held_count, true, error);
	return result == -EBUSY ? gcr_error_set(error, EIO,
						"a process or thread that CRIU has restored has "
						"ended")
				: result;
}
