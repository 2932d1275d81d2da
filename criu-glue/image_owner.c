/* SPDX-License-Identifier: MIT */
/* The ids of all threads, from core-N.img: images/core.proto and creds.proto of CRIU. */
#include "criu-glue/image_owner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "criu-glue/image.h"
#include "criu-glue/protobuf.h"
#include "lib/beneath.h"

/* A group that no process is in as a rule. */
#define NO_GROUP ((gid_t)65534)

#define FILE_CAPABILITIES ((1ull << CAP_DAC_OVERRIDE) | (1ull << CAP_DAC_READ_SEARCH))

/* Field numbers of core_entry, thread_core_entry and creds_entry. */
enum {
	FIELD_THREAD_CORE = 5,

	FIELD_CREDS = 10,

	FIELD_UID = 1,
	FIELD_EUID = 3,
	FIELD_SUID = 5,
	FIELD_FSUID = 7,
	FIELD_FSGID = 8,
	FIELD_PERMITTED = 10,
	FIELD_GROUPS = 14,
};

/* A growing list of numbers. */
struct numbers {
	uint32_t *list;
	size_t count, room;
};

struct thread {
	pid_t number;
	uid_t uids[4];	       /* real, effective, saved, for files */
	gid_t gid;	       /* for files */
	struct numbers groups; /* with @gid; ascending */
	uint64_t permitted;
};

struct threads {
	struct thread *list;
	size_t count, room;
};

void gcr_image_owner_destroy(struct gcr_image_owner *owner)
{
	if (!owner)
		return;
	free(owner->groups);
	free(owner);
}

static void finish_threads(struct threads *threads)
{
	for (size_t i = 0; i < threads->count; i++)
		free(threads->list[i].groups.list);
	free(threads->list);
}

/* ---- reading ---- */

static int add_number(struct numbers *numbers, uint64_t number)
{
	if (number > UINT32_MAX)
		return -EIO;
	if (numbers->count == numbers->room) {
		size_t room = numbers->room ? numbers->room * 2 : 16;
		uint32_t *list = reallocarray(numbers->list, room, sizeof(*list));

		if (!list)
			return -ENOMEM;
		numbers->list = list;
		numbers->room = room;
	}
	numbers->list[numbers->count++] = (uint32_t)number;
	return 0;
}

/* Adds the numbers of a field, which has one or several packed ones. -EIO, -ENOMEM. */
static int add_numbers(struct numbers *numbers, const struct gcr_protobuf_field *field)
{
	const uint8_t *at = field->content, *end = at + field->content_bytes;
	int result = 0;

	if (field->wire != GCR_PROTOBUF_VARINT && field->wire != GCR_PROTOBUF_BYTES)
		return -EIO;
	while (at < end && !result) {
		uint64_t number;

		result = gcr_protobuf_varint(&at, end, &number) ? add_number(numbers, number)
								: -EIO;
	}
	return result;
}

static int compare(const void *left, const void *right)
{
	uint32_t one = *(const uint32_t *)left, other = *(const uint32_t *)right;

	return one < other ? -1 : one > other;
}

/* Reads a creds_entry. -EIO, -ENOMEM; the groups are the caller's in any case. */
static int read_creds(const uint8_t *at, const uint8_t *end, struct thread *thread)
{
	struct numbers permitted = {0};
	struct gcr_protobuf_field field;
	unsigned int found = 0;
	int result = 0;

	while (at < end && !result) {
		if (!gcr_protobuf_next(&at, end, &field)) {
			result = -EIO;
			break;
		}
		switch (field.number) {
		case FIELD_UID:
		case FIELD_EUID:
		case FIELD_SUID:
		case FIELD_FSUID:
			thread->uids[field.number / 2] = (uid_t)field.value;
			found |= 1u << field.number / 2;
			break;
		case FIELD_FSGID:
			thread->gid = (gid_t)field.value;
			found |= 1u << 4;
			result = add_number(&thread->groups, field.value);
			break;
		case FIELD_GROUPS:
			result = add_numbers(&thread->groups, &field);
			break;
		case FIELD_PERMITTED:
			result = add_numbers(&permitted, &field);
			break;
		}
	}
	if (permitted.count)
		thread->permitted = permitted.list[0];
	free(permitted.list);
	if (!result && found != 0x1f)
		result = -EIO;
	if (thread->groups.count)
		qsort(thread->groups.list, thread->groups.count, sizeof(*thread->groups.list),
		      compare);
	return result;
}

/* Adds a thread with what its thread_core_entry says. -EIO, -ENOMEM. */
static int read_thread(const uint8_t *at, const uint8_t *end, pid_t number, struct threads *threads)
{
	struct gcr_protobuf_field field;
	struct thread *thread;

	if (threads->count == threads->room) {
		size_t room = threads->room ? threads->room * 2 : 16;
		struct thread *list = reallocarray(threads->list, room, sizeof(*list));

		if (!list)
			return -ENOMEM;
		threads->list = list;
		threads->room = room;
	}
	thread = &threads->list[threads->count];
	while (at < end) {
		if (!gcr_protobuf_next(&at, end, &field))
			return -EIO;
		if (field.number != FIELD_CREDS)
			continue;
		if (field.wire != GCR_PROTOBUF_BYTES)
			return -EIO;
		*thread = (struct thread){.number = number};
		threads->count++;
		return read_creds(field.content, field.content + field.content_bytes, thread);
	}
	return -EIO;
}

/* Adds the threads of an image core-N.img: one, or none for a process that had ended. */
static int read_core(const uint8_t *image, size_t bytes, pid_t number, struct threads *threads)
{
	const uint8_t *at, *end = image + bytes, *message;
	int result = gcr_criu_image_begin(image, bytes, GCR_CRIU_CORE, &at);
	struct gcr_protobuf_field field;

	while (!result && at < end) {
		result = gcr_criu_image_next(&at, end, &message);
		while (!result && message < at) {
			if (!gcr_protobuf_next(&message, at, &field))
				return -EIO;
			if (field.number != FIELD_THREAD_CORE)
				continue;
			if (field.wire != GCR_PROTOBUF_BYTES)
				return -EIO;
			result = read_thread(field.content, field.content + field.content_bytes,
					     number, threads);
		}
	}
	return result;
}

/*
 * Reads the threads of all images in the directory. *ret_has_namespace: there is an image of a user
 * namespace. Errors, with a message: -EIO, -ENOMEM.
 */
static int read_all(int images_fd, struct threads *threads, bool *ret_has_namespace,
		    struct gcr_error *error)
{
	_cleanup_closedir_ DIR *directory = NULL;
	const struct dirent *entry;
	int fd = openat(images_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	directory = fd < 0 ? NULL : fdopendir(fd);
	if (!directory) {
		int number = errno;

		if (fd >= 0)
			close(fd);
		return gcr_error_set(error, EIO, "the directory of CRIU's images: %s",
				     strerror(number));
	}
	while ((entry = readdir(directory))) {
		_cleanup_free_ void *bytes = NULL;
		int number, result, length = 0;
		size_t size;

		if (!strncmp(entry->d_name, "userns-", strlen("userns-")))
			*ret_has_namespace = true;
		if (sscanf(entry->d_name, "core-%9d.img%n", &number, &length) != 1 || !length ||
		    entry->d_name[length])
			continue;
		result = gcr_criu_image_read(images_fd, entry->d_name, &bytes, &size, error);
		if (result < 0)
			return result;
		result = read_core(bytes, size, number, threads);
		if (result < 0)
			return gcr_criu_image_fail(error, result, entry->d_name);
	}
	return 0;
}

/* ---- the owner ---- */

/* The first id of the thread that is not root's; 0: there is none. */
static uid_t user_of(const struct thread *thread)
{
	/* A program that is set-user-ID runs with its owner's rights for the real user. */
	for (size_t i = 0; i < GCR_ARRAY_SIZE(thread->uids); i++)
		if (thread->uids[i])
			return thread->uids[i];
	return 0;
}

static bool has_user(const struct thread *thread, uid_t uid)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(thread->uids); i++)
		if (thread->uids[i] == uid)
			return true;
	return false;
}

/* The user's thread that comes first: the root's, or else that with the lowest number; NULL. */
static const struct thread *find_first(const struct threads *threads, pid_t root)
{
	const struct thread *first = NULL;

	for (size_t i = 0; i < threads->count; i++) {
		const struct thread *thread = &threads->list[i];

		if (user_of(thread) && (!first || thread->number == root ||
					(first->number != root && thread->number < first->number)))
			first = thread;
	}
	return first;
}

static bool has_number(const struct numbers *numbers, uint32_t number)
{
	return numbers->count &&
	       bsearch(&number, numbers->list, numbers->count, sizeof(*numbers->list), compare);
}

/* Takes what the thread has not from the owner. */
static void reduce(struct gcr_image_owner *owner, const struct thread *thread)
{
	size_t kept = 0;

	owner->capabilities &= thread->permitted;
	for (size_t i = 0; i < owner->groups_count; i++)
		if (has_number(&thread->groups, owner->groups[i]))
			owner->groups[kept++] = owner->groups[i];
	owner->groups_count = kept;
}

/* Has a thread ids of several users? */
static bool is_set_uid(const struct threads *threads)
{
	for (size_t i = 0; i < threads->count; i++) {
		const uid_t *uids = threads->list[i].uids;

		if (uids[1] != uids[0] || uids[2] != uids[0] || uids[3] != uids[0])
			return true;
	}
	return false;
}

static int make_owner(const struct threads *threads, pid_t root, struct gcr_image_owner **ret_owner)
{
	const struct thread *first = find_first(threads, root);
	struct gcr_image_owner *owner;

	*ret_owner = NULL;
	if (!first)
		return 0;
	owner = calloc(1, sizeof(*owner));
	if (owner)
		owner->groups = calloc(first->groups.count, sizeof(*owner->groups));
	if (!owner || !owner->groups) {
		gcr_image_owner_destroy(owner);
		return -ENOMEM;
	}
	owner->uid = user_of(first);
	/* The capabilities of a program that is set-user-ID are root's. */
	owner->capabilities = is_set_uid(threads) ? 0 : FILE_CAPABILITIES;
	owner->groups_count = first->groups.count;
	memcpy(owner->groups, first->groups.list, owner->groups_count * sizeof(*owner->groups));
	for (size_t i = 0; i < threads->count; i++)
		if (has_user(&threads->list[i], owner->uid))
			reduce(owner, &threads->list[i]);
	owner->gid = owner->groups_count ? owner->groups[0] : NO_GROUP;
	for (size_t i = 0; i < owner->groups_count; i++)
		if (owner->groups[i] == first->gid)
			owner->gid = first->gid;
	*ret_owner = owner;
	return 0;
}

int gcr_image_owner_find(int images_fd, pid_t root, struct gcr_image_owner **ret_owner,
			 struct gcr_error *error)
{
	_cleanup_(finish_threads) struct threads threads = {0};
	bool has_namespace = false;
	int result = read_all(images_fd, &threads, &has_namespace, error);

	if (result < 0)
		return result;
	if (has_namespace) {
		*ret_owner = NULL;
		return 0;
	}
	result = make_owner(&threads, root, ret_owner);
	return result < 0 ? gcr_error_set(error, ENOMEM, "out of memory") : 0;
}
