/* SPDX-License-Identifier: MIT */
#include "fs/mount/session_listing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/quota.h"
#include "fs/mount/session_quota.h"
#include "lib/cleanup.h"

struct entry {
	fuse_ino_t node;
	mode_t mode;
	size_t name; /* offset in the listing's names */
};

struct gcr_listing {
	struct gcr_daemon *daemon;
	uid_t uid;
	fuse_ino_t node;
	struct entry *entries;
	size_t count;
	size_t entries_max;
	char *names;
	size_t names_bytes;
	size_t names_max;
	struct gcr_quota_charge held;
};

void gcr_listing_destroy(struct gcr_listing *listing)
{
	if (!listing)
		return;
	free(listing->entries);
	free(listing->names);
	gcr_quota_release(&listing->held);
	free(listing);
}

GCR_DEFINE_CLEANUP(struct gcr_listing *, gcr_listing_destroy);

/* Charges a listing of the given size to its user, then allocates it. */
static int grow(struct gcr_listing *listing, size_t names_max, size_t entries_max)
{
	struct entry *entries;
	char *names;
	int result;

	gcr_quota_release(&listing->held);
	result = gcr_session_take_text(listing->daemon, listing->uid, listing->node,
				       names_max + entries_max * sizeof(*listing->entries),
				       &listing->held);
	if (result < 0)
		return result;
	if (names_max > listing->names_max) {
		names = realloc(listing->names, names_max);
		if (!names)
			return -ENOMEM;
		listing->names = names;
		listing->names_max = names_max;
	}
	if (entries_max > listing->entries_max) {
		entries = reallocarray(listing->entries, entries_max, sizeof(*entries));
		if (!entries)
			return -ENOMEM;
		listing->entries = entries;
		listing->entries_max = entries_max;
	}
	return 0;
}

/* The callback of gcr_tree_list(). */
static int add_entry(void *data, const char *name, fuse_ino_t node, mode_t mode)
{
	struct gcr_listing *listing = data;
	size_t length = strlen(name) + 1;
	size_t names_max = listing->names_max;
	size_t entries_max = listing->entries_max;
	int result;

	if (listing->names_bytes + length > names_max)
		names_max = 2 * (names_max + length);
	if (listing->count == entries_max)
		entries_max = entries_max ? 2 * entries_max : 1;
	if (names_max > listing->names_max || entries_max > listing->entries_max) {
		result = grow(listing, names_max, entries_max);
		if (result < 0)
			return result;
	}
	listing->entries[listing->count++] =
		(struct entry){.node = node, .mode = mode, .name = listing->names_bytes};
	memcpy(listing->names + listing->names_bytes, name, length);
	listing->names_bytes += length;
	return 0;
}

int gcr_listing_create(struct gcr_daemon *daemon, const struct fuse_ctx *caller, uid_t uid,
		       fuse_ino_t node, struct gcr_listing **ret_listing)
{
	_cleanup_(gcr_listing_destroy_cleanup) struct gcr_listing *listing =
		calloc(1, sizeof(*listing));
	int result;

	if (!listing)
		return -ENOMEM;
	listing->daemon = daemon;
	listing->uid = uid;
	listing->node = node;
	result = gcr_tree_list(daemon, caller, node, add_entry, listing);
	if (!result)
		*ret_listing = TAKE_PTR(listing);
	return result;
}

void gcr_listing_reply(const struct gcr_listing *listing, fuse_req_t request, size_t size,
		       off_t offset)
{
	_cleanup_free_ char *buffer = malloc(size);
	size_t length = 0;

	if (!buffer) {
		fuse_reply_err(request, ENOMEM);
		return;
	}
	for (size_t i = (size_t)offset; i < listing->count; i++) {
		const struct entry *entry = &listing->entries[i];
		struct stat stat = {.st_ino = entry->node, .st_mode = entry->mode};
		size_t bytes = fuse_add_direntry(request, buffer + length, size - length,
						 listing->names + entry->name, &stat, (off_t)i + 1);

		if (bytes > size - length)
			break;
		length += bytes;
	}
	fuse_reply_buf(request, buffer, length);
}
