/* SPDX-License-Identifier: MIT */
/* mm-N.img of a process with the pid N has one message of images/mm.proto of CRIU 4. */
#include "criu-glue/dumpable.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "criu-glue/image.h"
#include "criu-glue/protobuf.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"

#define FIELD_DUMPABLE 15u /* of mm_entry */

/*
 * Finds the number in an image mm-N.img that makes the process dumpable: *ret_at is the number's
 * only byte; NULL: the process is not dumpable. -EIO.
 */
static int find_number(uint8_t *image, size_t bytes, uint8_t **ret_at)
{
	struct gcr_protobuf_field field;
	const uint8_t *at, *message;
	int result = gcr_criu_image_begin(image, bytes, GCR_CRIU_MM, &at);
	uint8_t *found = NULL;

	if (!result)
		result = gcr_criu_image_next(&at, image + bytes, &message);
	if (result < 0 || at != image + bytes)
		return -EIO;
	while (message < at) {
		if (!gcr_protobuf_next(&message, at, &field))
			return -EIO;
		if (field.number != FIELD_DUMPABLE)
			continue;
		/* A reader would take the last one. */
		if (field.wire != GCR_PROTOBUF_VARINT || found || field.content_bytes != 1)
			return -EIO;
		if (field.value == 1)
			found = image + (field.content - image);
	}
	*ret_at = found;
	return 0;
}

/*
 * Reads the memory image of the process, if there is one (see gcr_criu_mm_read()); the caller frees
 * *ret_bytes. *ret_at points into *ret_bytes: see find_number(). *ret_at must be NULL before, and
 * stays so without an image.
 */
static int read_image(int images_fd, pid_t pid, char name[GCR_CRIU_NAME_BYTES], void **ret_bytes,
		      size_t *ret_size, uint8_t **ret_at, struct gcr_error *error)
{
	int result;

	result = gcr_criu_mm_read(images_fd, pid, name, ret_bytes, ret_size, error);
	if (result < 0 || !*ret_bytes)
		return result;
	result = find_number(*ret_bytes, *ret_size, ret_at);
	return result < 0 ? gcr_criu_image_fail(error, result, name) : 0;
}

int gcr_criu_find_dumpable(int images_fd, pid_t **ret_pids, size_t *ret_count,
			   struct gcr_error *error)
{
	_cleanup_(gcr_criu_tree_finish) struct gcr_criu_tree tree = {0};
	_cleanup_free_ pid_t *pids = NULL;
	size_t count = 0;
	int result = gcr_criu_tree_read(images_fd, &tree, error);

	if (result < 0)
		return result;
	pids = calloc(tree.count, sizeof(*pids));
	if (!pids)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < tree.count && !result; i++) {
		_cleanup_free_ void *bytes = NULL;
		uint8_t *at = NULL;
		char name[GCR_CRIU_NAME_BYTES];
		size_t size;

		result = read_image(images_fd, tree.processes[i].pid, name, &bytes, &size, &at,
				    error);
		if (!result && at)
			pids[count++] = tree.processes[i].pid;
	}
	if (result < 0)
		return result;
	*ret_pids = TAKE_PTR(pids);
	*ret_count = count;
	return 0;
}

int gcr_criu_clear_dumpable(int images_fd, const pid_t *pids, size_t count, struct gcr_error *error)
{
	int result = 0;

	for (size_t i = 0; i < count && !result; i++) {
		_cleanup_free_ void *bytes = NULL;
		uint8_t *at = NULL;
		struct iovec part;
		char name[GCR_CRIU_NAME_BYTES];

		result = read_image(images_fd, pids[i], name, &bytes, &part.iov_len, &at, error);
		if (result < 0 || !at)
			continue;
		*at = 0;
		part.iov_base = bytes;
		result = gcr_beneath_replace(images_fd, name, &part, 1, error);
		if (result < 0)
			gcr_error_prefix(error, "CRIU's %s", name);
	}
	return result;
}
