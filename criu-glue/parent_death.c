/* SPDX-License-Identifier: MIT */
/* The messages of core-N.img are those of images/core.proto of CRIU 4. */
#include "criu-glue/parent_death.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "criu-glue/image.h"
#include "criu-glue/protobuf.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"

/* Field numbers of core_entry and thread_core_entry. */
enum {
	FIELD_THREAD_CORE = 5,

	FIELD_PARENT_DEATH = 8,
};

/* ---- the tree ---- */

int gcr_parent_death_threads(const uint8_t *image, size_t bytes, pid_t **ret_threads,
			     size_t *ret_count)
{
	struct gcr_criu_tree tree;
	int result = gcr_criu_tree_parse(image, bytes, &tree);
	size_t count = 0;

	/* The list is cut down in place: threads are in the order of their processes. */
	for (size_t i = 0; !result && i < tree.count; i++)
		for (size_t j = 0; j < tree.processes[i].count && !tree.processes[i].parent; j++)
			tree.threads[count++] = tree.threads[tree.processes[i].first + j];
	if (!result && !count)
		result = -EIO;
	if (!result) {
		*ret_threads = TAKE_PTR(tree.threads);
		*ret_count = count;
	}
	gcr_criu_tree_finish(&tree);
	return result;
}

/* ---- a thread ---- */

/* Writes a zero of the same length as the number, so that no enclosing length changes. */
static void set_zero(uint8_t *varint, size_t bytes)
{
	memset(varint, 0x80, bytes - 1);
	varint[bytes - 1] = 0;
}

/* Clears the signal in a thread_core_entry. *ret_had is set if there was one. -EIO. */
static int clear_thread(uint8_t *image, const uint8_t *message, const uint8_t *end, bool *ret_had)
{
	struct gcr_protobuf_field field;

	while (message < end) {
		if (!gcr_protobuf_next(&message, end, &field))
			return -EIO;
		if (field.number != FIELD_PARENT_DEATH)
			continue;
		if (field.wire != GCR_PROTOBUF_VARINT)
			return -EIO;
		*ret_had |= field.value != 0;
		set_zero(image + (field.content - image), field.content_bytes);
	}
	return 0;
}

int gcr_parent_death_clear(uint8_t *image, size_t bytes, bool *ret_had)
{
	const uint8_t *at, *end = image + bytes, *message;
	int result = gcr_criu_image_begin(image, bytes, GCR_CRIU_CORE, &at);
	struct gcr_protobuf_field field;
	bool had = false;

	while (!result && at < end) {
		result = gcr_criu_image_next(&at, end, &message);
		while (!result && message < at) {
			if (!gcr_protobuf_next(&message, at, &field))
				return -EIO;
			if (field.number != FIELD_THREAD_CORE)
				continue;
			if (field.wire != GCR_PROTOBUF_BYTES)
				return -EIO;
			result = clear_thread(image, field.content,
					      field.content + field.content_bytes, &had);
		}
	}
	if (!result)
		*ret_had = had;
	return result;
}

/* ---- all images ---- */

static int look_at_thread(int images_fd, pid_t number, bool is_to_change, bool *ret_had,
			  struct gcr_error *error)
{
	_cleanup_free_ void *bytes = NULL;
	struct iovec part;
	char name[GCR_CRIU_NAME_BYTES];
	int result;

	result = gcr_criu_core_read(images_fd, number, name, &bytes, &part.iov_len, error);
	if (result < 0)
		return result;
	result = gcr_parent_death_clear(bytes, part.iov_len, ret_had);
	if (result < 0)
		return gcr_criu_image_fail(error, result, name);
	if (!is_to_change || !*ret_had)
		return 0;
	part.iov_base = bytes;
	result = gcr_beneath_replace(images_fd, name, &part, 1, error);
	if (result < 0)
		gcr_error_prefix(error, "CRIU's %s", name);
	return result;
}

static int look(int images_fd, bool is_to_change, bool *ret_has, struct gcr_error *error)
{
	_cleanup_free_ pid_t *threads = NULL;
	_cleanup_free_ void *bytes = NULL;
	bool has = false;
	size_t size, count = 0;
	int result;

	result = gcr_criu_image_read(images_fd, GCR_CRIU_PSTREE_NAME, &bytes, &size, error);
	if (result < 0)
		return result;
	result = gcr_parent_death_threads(bytes, size, &threads, &count);
	if (result < 0)
		return gcr_criu_image_fail(error, result, GCR_CRIU_PSTREE_NAME);
	for (size_t i = 0; i < count && !result; i++) {
		bool had = false;

		result = look_at_thread(images_fd, threads[i], is_to_change, &had, error);
		has |= had;
	}
	if (!result)
		*ret_has = has;
	return result;
}

int gcr_criu_has_parent_death(int images_fd, bool *ret_has, struct gcr_error *error)
{
	return look(images_fd, false, ret_has, error);
}

int gcr_criu_clear_parent_death(int images_fd, struct gcr_error *error)
{
	bool unused;

	return look(images_fd, true, &unused, error);
}
