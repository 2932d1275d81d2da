/* SPDX-License-Identifier: MIT */
/* The images pstree.img and core-N.img: images/pstree.proto and core.proto of CRIU 4. */
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

/* Field numbers of pstree_entry, core_entry and thread_core_entry. */
enum {
	FIELD_PID = 1,
	FIELD_PARENT = 2,
	FIELD_THREADS = 5,

	FIELD_THREAD_CORE = 5,

	FIELD_PARENT_DEATH = 8,
};

/* A growing list of thread ids. */
struct threads {
	pid_t *list;
	size_t count, room;
};

/* ---- the tree ---- */

static int add_thread(struct threads *threads, uint64_t number)
{
	if (!number || number > INT32_MAX)
		return -EIO;
	if (threads->count == threads->room) {
		size_t room = threads->room ? threads->room * 2 : 16;
		pid_t *list = reallocarray(threads->list, room, sizeof(*list));

		if (!list)
			return -ENOMEM;
		threads->list = list;
		threads->room = room;
	}
	threads->list[threads->count++] = (pid_t)number;
	return 0;
}

/* Adds the ids of a field, which has one or several packed ones. -EIO, -ENOMEM. */
static int add_threads(struct threads *threads, const struct gcr_protobuf_field *field)
{
	const uint8_t *at = field->content, *end = at + field->content_bytes;
	int result = 0;

	if (field->wire != GCR_PROTOBUF_VARINT && field->wire != GCR_PROTOBUF_BYTES)
		return -EIO;
	while (at < end && !result) {
		uint64_t number;

		result = gcr_protobuf_varint(&at, end, &number) ? add_thread(threads, number)
								: -EIO;
	}
	return result;
}

/*
 * Adds the threads of a process without a parent in the tree. The main thread has the process's own
 * id, and may be missing in the list.
 */
static int add_process(struct threads *threads, const uint8_t *message, const uint8_t *end)
{
	size_t before = threads->count;
	struct gcr_protobuf_field field;
	uint64_t pid = 0, parent = 0;
	bool is_listed = false;
	int result = 0;

	for (const uint8_t *at = message; at < end && !result;) {
		if (!gcr_protobuf_next(&at, end, &field))
			return -EIO;
		if (field.number == FIELD_PID)
			pid = field.value;
		else if (field.number == FIELD_PARENT)
			parent = field.value;
		else if (field.number == FIELD_THREADS)
			result = add_threads(threads, &field);
	}
	if (result < 0)
		return result;
	if (parent) {
		threads->count = before;
		return 0;
	}
	for (size_t i = before; i < threads->count; i++)
		is_listed |= (uint64_t)threads->list[i] == pid;
	return is_listed ? 0 : add_thread(threads, pid);
}

int gcr_parent_death_threads(const uint8_t *image, size_t bytes, pid_t **ret_threads,
			     size_t *ret_count)
{
	const uint8_t *at, *end = image + bytes, *message;
	struct threads threads = {0};
	int result = gcr_image_begin(image, bytes, GCR_IMAGE_PSTREE, &at);

	while (!result && at < end) {
		result = gcr_image_next(&at, end, &message);
		if (!result)
			result = add_process(&threads, message, at);
	}
	if (!result && !threads.count)
		result = -EIO;
	if (result < 0) {
		free(threads.list);
		return result;
	}
	*ret_threads = threads.list;
	*ret_count = threads.count;
	return 0;
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
	int result = gcr_image_begin(image, bytes, GCR_IMAGE_CORE, &at);
	struct gcr_protobuf_field field;
	bool had = false;

	while (!result && at < end) {
		result = gcr_image_next(&at, end, &message);
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
	char name[32];
	int result;

	snprintf(name, sizeof(name), "core-%d.img", (int)number);
	result = gcr_image_read(images_fd, name, &bytes, &part.iov_len, error);
	if (result < 0)
		return result;
	result = gcr_parent_death_clear(bytes, part.iov_len, ret_had);
	if (result < 0)
		return gcr_image_fail(error, result, name);
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
	static const char tree[] = "pstree.img";
	_cleanup_free_ pid_t *threads = NULL;
	_cleanup_free_ void *bytes = NULL;
	bool has = false;
	size_t size, count = 0;
	int result;

	result = gcr_image_read(images_fd, tree, &bytes, &size, error);
	if (result < 0)
		return result;
	result = gcr_parent_death_threads(bytes, size, &threads, &count);
	if (result < 0)
		return gcr_image_fail(error, result, tree);
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
