/* SPDX-License-Identifier: MIT */
/* Images, and pstree.img, whose messages are those of images/pstree.proto of CRIU 4. */
#include "criu-glue/image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "criu-glue/protobuf.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"

#define COMMON_MAGIC 0x54564319u

/* Field numbers of pstree_entry. */
enum {
	FIELD_PID = 1,
	FIELD_PARENT = 2,
	FIELD_THREADS = 5,
};

int gcr_criu_image_fail(struct gcr_error *error, int result, const char *name)
{
	if (result == -ENOMEM)
		return gcr_error_set(error, ENOMEM, "out of memory");
	return gcr_error_set(error, EIO, "CRIU's %s is damaged, or of a kind that is not known",
			     name);
}

int gcr_criu_image_read(int images_fd, const char *name, void **ret_bytes, size_t *ret_size,
			struct gcr_error *error)
{
	int result = gcr_beneath_read(images_fd, name, GCR_CRIU_IMAGE_BYTES_MAX, ret_bytes,
				      ret_size, error);

	if (result >= 0 || result == -ENOMEM)
		return result;
	/* The caller gets -EIO for a missing image as for a damaged one. */
	gcr_error_prefix(error, "CRIU's %s", name);
	error->number = EIO;
	return -EIO;
}

int gcr_criu_mm_read(int images_fd, pid_t pid, char ret_name[GCR_CRIU_NAME_BYTES], void **ret_bytes,
		     size_t *ret_size, struct gcr_error *error)
{
	*ret_bytes = NULL;
	snprintf(ret_name, GCR_CRIU_NAME_BYTES, "mm-%d.img", (int)pid);
	if (faccessat(images_fd, ret_name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
		return 0;
	return gcr_criu_image_read(images_fd, ret_name, ret_bytes, ret_size, error);
}

int gcr_criu_core_read(int images_fd, pid_t thread, char ret_name[GCR_CRIU_NAME_BYTES],
		       void **ret_bytes, size_t *ret_size, struct gcr_error *error)
{
	snprintf(ret_name, GCR_CRIU_NAME_BYTES, "core-%d.img", (int)thread);
	return gcr_criu_image_read(images_fd, ret_name, ret_bytes, ret_size, error);
}

int gcr_criu_image_begin(const uint8_t *image, size_t bytes, uint32_t kind, const uint8_t **ret_at)
{
	const uint32_t magic[2] = {COMMON_MAGIC, kind};

	if (bytes < sizeof(magic) || memcmp(image, magic, sizeof(magic)) != 0)
		return -EIO;
	*ret_at = image + sizeof(magic);
	return 0;
}

int gcr_criu_image_next(const uint8_t **at, const uint8_t *end, const uint8_t **ret_message)
{
	uint32_t length;

	if ((size_t)(end - *at) < sizeof(length))
		return -EIO;
	memcpy(&length, *at, sizeof(length));
	*ret_message = *at + sizeof(length);
	if (length > (size_t)(end - *ret_message))
		return -EIO;
	*at = *ret_message + length;
	return 0;
}

/* ---- the tree ---- */

static int add_thread(struct gcr_criu_tree *tree, uint64_t number)
{
	if (!number || number > INT32_MAX)
		return -EIO;
	if (tree->threads_count == tree->threads_room) {
		size_t room = tree->threads_room ? tree->threads_room * 2 : 16;
		pid_t *threads = reallocarray(tree->threads, room, sizeof(*threads));

		if (!threads)
			return -ENOMEM;
		tree->threads = threads;
		tree->threads_room = room;
	}
	tree->threads[tree->threads_count++] = (pid_t)number;
	return 0;
}

/*
 * Adds the ids of a field, which has one or several packed ones. The first id of a process (@first
 * is its place) stands for the main thread, which has the id of the process: CRIU does not read
 * this one, and writes bytes of no meaning for a process that has ended (prepare_pstree(),
 * collect_threads() of CRIU). -EIO, -ENOMEM.
 */
static int add_threads(struct gcr_criu_tree *tree, const struct gcr_protobuf_field *field,
		       size_t first)
{
	const uint8_t *at = field->content, *end = at + field->content_bytes;
	int result = 0;

	if (field->wire != GCR_PROTOBUF_VARINT && field->wire != GCR_PROTOBUF_BYTES)
		return -EIO;
	while (at < end && !result) {
		uint64_t number;

		if (!gcr_protobuf_varint(&at, end, &number))
			return -EIO;
		result = add_thread(tree, tree->threads_count == first ? 1 : number);
	}
	return result;
}

/* Adds a process and its threads, of which the main one comes first. */
static int add_process(struct gcr_criu_tree *tree, const uint8_t *at, const uint8_t *end)
{
	struct gcr_criu_process process = {.first = tree->threads_count};
	struct gcr_protobuf_field field;
	int result = 0;

	while (at < end && !result) {
		if (!gcr_protobuf_next(&at, end, &field))
			return -EIO;
		if (field.number == FIELD_PID && field.value <= INT32_MAX)
			process.pid = (pid_t)field.value;
		else if (field.number == FIELD_PARENT && field.value <= INT32_MAX)
			process.parent = (pid_t)field.value;
		else if (field.number == FIELD_THREADS)
			result = add_threads(tree, &field, process.first);
	}
	if (!result && process.pid <= 0)
		result = -EIO;
	if (!result && tree->threads_count == process.first)
		result = add_thread(tree, (uint64_t)process.pid);
	if (!result)
		tree->threads[process.first] = process.pid;
	if (!result && tree->count == tree->room) {
		size_t room = tree->room ? tree->room * 2 : 16;
		struct gcr_criu_process *processes =
			reallocarray(tree->processes, room, sizeof(*processes));

		if (!processes)
			return -ENOMEM;
		tree->processes = processes;
		tree->room = room;
	}
	if (result < 0)
		return result;
	process.count = tree->threads_count - process.first;
	tree->processes[tree->count++] = process;
	return 0;
}

int gcr_criu_tree_parse(const uint8_t *image, size_t bytes, struct gcr_criu_tree *ret_tree)
{
	const uint8_t *at, *end = image + bytes, *message;
	int result = gcr_criu_image_begin(image, bytes, GCR_CRIU_PSTREE, &at);

	*ret_tree = (struct gcr_criu_tree){0};
	while (!result && at < end) {
		result = gcr_criu_image_next(&at, end, &message);
		if (!result)
			result = add_process(ret_tree, message, at);
	}
	return !result && !ret_tree->count ? -EIO : result;
}

int gcr_criu_tree_read(int images_fd, struct gcr_criu_tree *ret_tree, struct gcr_error *error)
{
	_cleanup_free_ void *bytes = NULL;
	size_t size;
	int result;

	*ret_tree = (struct gcr_criu_tree){0};
	result = gcr_criu_image_read(images_fd, GCR_CRIU_PSTREE_NAME, &bytes, &size, error);
	if (result < 0)
		return result;
	result = gcr_criu_tree_parse(bytes, size, ret_tree);
	return result < 0 ? gcr_criu_image_fail(error, result, GCR_CRIU_PSTREE_NAME) : 0;
}

void gcr_criu_tree_finish(struct gcr_criu_tree *tree)
{
	free(tree->processes);
	free(tree->threads);
	*tree = (struct gcr_criu_tree){0};
}
