/* SPDX-License-Identifier: MIT */
/* The user whose threads are in the images core-N.img. */
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
#include "criu-glue/image_creds.h"
#include "lib/beneath.h"

/* A group that no process is in as a rule. */
#define NO_GROUP ((gid_t)65534)

#define FILE_CAPABILITIES ((1ull << CAP_DAC_OVERRIDE) | (1ull << CAP_DAC_READ_SEARCH))

struct thread {
	pid_t number;
	struct gcr_image_creds creds; /* with the group for files among the groups */
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
		gcr_image_creds_finish(&threads->list[i].creds);
	free(threads->list);
}

/* ---- reading ---- */

/* Adds the thread of an image core-N.img, unless it is of a process that had ended. -EIO, -ENOMEM.
 */
static int read_core(const uint8_t *image, size_t bytes, pid_t number, struct threads *threads)
{
	struct thread thread = {.number = number};
	int result = gcr_image_creds_parse(image, bytes, &thread.creds);

	if (!result && !thread.creds.is_dead && threads->count == threads->room) {
		size_t room = threads->room ? threads->room * 2 : 16;
		struct thread *list = reallocarray(threads->list, room, sizeof(*list));

		result = list ? 0 : -ENOMEM;
		threads->list = list ? list : threads->list;
		threads->room = list ? room : threads->room;
	}
	if (!result && !thread.creds.is_dead)
		result =
			gcr_image_creds_add_group(&thread.creds, thread.creds.ids[GCR_CREDS_FSGID]);
	if (result < 0 || thread.creds.is_dead) {
		gcr_image_creds_finish(&thread.creds);
		return result;
	}
	gcr_image_creds_sort(&thread.creds);
	threads->list[threads->count++] = thread;
	return 0;
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
	int opened = gcr_beneath_list(images_fd, ".", &directory);

	if (opened < 0)
		return gcr_error_set(error, EIO, "the directory of CRIU's images: %s",
				     strerror(-opened));
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

/* The user ids of a thread, in this order. */
static const unsigned int user_ids[] = {GCR_CREDS_UID, GCR_CREDS_EUID, GCR_CREDS_SUID,
					GCR_CREDS_FSUID};

/* The first user id of the thread that is not root's. 0: all of them are. */
static uid_t user_of(const struct thread *thread)
{
	/* A program that is set-user-ID runs with its owner's rights for the real user. */
	for (size_t i = 0; i < GCR_ARRAY_SIZE(user_ids); i++)
		if (thread->creds.ids[user_ids[i]])
			return thread->creds.ids[user_ids[i]];
	return 0;
}

static bool has_user(const struct thread *thread, uid_t uid)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(user_ids); i++)
		if (thread->creds.ids[user_ids[i]] == uid)
			return true;
	return false;
}

/*
 * The thread that decides who the owner is, among those with an id that is not root's: the main
 * thread of the tree's root, or else the one with the lowest number. NULL: there is none.
 */
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

/* Removes from the owner the capabilities and groups that the thread lacks. */
static void reduce(struct gcr_image_owner *owner, const struct thread *thread)
{
	size_t kept = 0;

	owner->capabilities &= thread->creds.capabilities[GCR_CREDS_PERMITTED];
	for (size_t i = 0; i < owner->groups_count; i++)
		if (gcr_image_creds_has_group(&thread->creds, owner->groups[i]))
			owner->groups[kept++] = owner->groups[i];
	owner->groups_count = kept;
}

/* Does any thread have user ids of several users? */
static bool is_set_uid(const struct threads *threads)
{
	for (size_t i = 0; i < threads->count; i++) {
		const uint32_t *ids = threads->list[i].creds.ids;

		for (size_t j = 1; j < GCR_ARRAY_SIZE(user_ids); j++)
			if (ids[user_ids[j]] != ids[user_ids[0]])
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
		owner->groups = calloc(first->creds.groups_count, sizeof(*owner->groups));
	if (!owner || !owner->groups) {
		gcr_image_owner_destroy(owner);
		return -ENOMEM;
	}
	owner->uid = user_of(first);
	/* The capabilities of a program that is set-user-ID are root's. */
	owner->capabilities = is_set_uid(threads) ? 0 : FILE_CAPABILITIES;
	owner->groups_count = first->creds.groups_count;
	memcpy(owner->groups, first->creds.groups, owner->groups_count * sizeof(*owner->groups));
	for (size_t i = 0; i < threads->count; i++)
		if (has_user(&threads->list[i], owner->uid))
			reduce(owner, &threads->list[i]);
	owner->gid = owner->groups_count ? owner->groups[0] : NO_GROUP;
	for (size_t i = 0; i < owner->groups_count; i++)
		if (owner->groups[i] == first->creds.ids[GCR_CREDS_FSGID])
			owner->gid = first->creds.ids[GCR_CREDS_FSGID];
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
