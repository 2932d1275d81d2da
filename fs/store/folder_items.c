/* SPDX-License-Identifier: MIT */
/*
 * The table of items: the names of a folder that the kernel knows. The number of an item is free
 * again when all its lookups have been forgotten and no item below it is left.
 */
#include "fs/store/folder_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/store/store.h"

#define FIRST_BUCKETS 16

/*
 * Tables up to this size are not counted: a thousand names are free, and tables grow by doubling.
 */
#define ITEMS_FREE 2048

static _Atomic uint64_t generations; /* the last one that was given to an item */

/* Makes the table one with the root only, and FIRST_BUCKETS buckets. */
static void start_empty(struct gcr_folder *folder)
{
	folder->items_count = 1;
	folder->free_item = GCR_FOLDER_NONE;
	folder->buckets_count = FIRST_BUCKETS;
	memset(folder->buckets, 0xff, FIRST_BUCKETS * sizeof(*folder->buckets));
}

int gcr_folder_items_init(struct gcr_folder *folder)
{
	folder->items = calloc(1, sizeof(*folder->items));
	folder->buckets = malloc(FIRST_BUCKETS * sizeof(*folder->buckets));
	if (!folder->items || !folder->buckets)
		return -ENOMEM;
	folder->items[GCR_FOLDER_ROOT] =
		(struct gcr_folder_item){.parent = GCR_FOLDER_NONE, .lookups = 1};
	start_empty(folder);
	return 0;
}

void gcr_folder_items_finish(struct gcr_folder *folder)
{
	for (uint32_t item = 0; item < folder->items_count; item++) {
		free(folder->items[item].name);
		free(folder->items[item].removed);
	}
	free(folder->items);
	free(folder->buckets);
}

/*
 * Count the memory of the table in the folder's account. The table stays as large as it ever was
 * while the kernel knows one of the names.
 */
static void count_memory(struct gcr_folder *folder)
{
	uint64_t bytes = 0;

	if (!folder->room)
		return;
	if (folder->items_count > ITEMS_FREE)
		bytes = folder->items_count * sizeof(*folder->items) +
			folder->buckets_count * sizeof(*folder->buckets);
	if (bytes == folder->items_bytes)
		return;
	gcr_room_settle(folder->room, 0, folder->items_bytes, bytes);
	if (bytes < folder->items_bytes)
		gcr_room_trim(folder->room);
	folder->items_bytes = bytes;
}

/*
 * If the kernel knows no name any more, make a large table small again; without memory for that,
 * the table stays.
 */
static void shrink(struct gcr_folder *folder)
{
	struct gcr_folder_item *items;
	uint32_t *buckets;

	if (folder->lookups || folder->named_count || folder->items_count <= ITEMS_FREE)
		return;
	buckets = malloc(FIRST_BUCKETS * sizeof(*buckets));
	items = buckets ? malloc(sizeof(*items)) : NULL;
	if (!items) {
		free(buckets);
		return;
	}
	items[GCR_FOLDER_ROOT] = folder->items[GCR_FOLDER_ROOT];
	free(folder->items);
	free(folder->buckets);
	folder->items = items;
	folder->buckets = buckets;
	start_empty(folder);
	count_memory(folder);
}

/* The bucket of a name, by FNV-1a of the parent's number and the name. */
static uint32_t *bucket_of(const struct gcr_folder *folder, uint32_t parent, const char *name)
{
	uint64_t value = UINT64_C(0xcbf29ce484222325) ^ parent;

	for (; *name; name++)
		value = (value ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	value ^= value >> 32;
	return &folder->buckets[value & (folder->buckets_count - 1)];
}

uint32_t gcr_folder_item_find(const struct gcr_folder *folder, uint32_t parent, const char *name)
{
	uint32_t item = *bucket_of(folder, parent, name);

	while (item != GCR_FOLDER_NONE && (folder->items[item].parent != parent ||
					   strcmp(folder->items[item].name, name) != 0))
		item = folder->items[item].next;
	return item;
}

static void hash(struct gcr_folder *folder, uint32_t item)
{
	struct gcr_folder_item *place = &folder->items[item];
	uint32_t *bucket = bucket_of(folder, place->parent, place->name);

	place->next = *bucket;
	*bucket = item;
	folder->named_count++;
}

static void unhash(struct gcr_folder *folder, uint32_t item)
{
	const struct gcr_folder_item *place = &folder->items[item];
	uint32_t *link = bucket_of(folder, place->parent, place->name);

	while (*link != item)
		link = &folder->items[*link].next;
	*link = place->next;
	folder->named_count--;
}

/* Double the number of buckets; without memory the table works as it is. */
static void grow_buckets(struct gcr_folder *folder)
{
	uint32_t count = 2 * folder->buckets_count;
	uint32_t *buckets = malloc(count * sizeof(*buckets));

	if (!buckets)
		return;
	memset(buckets, 0xff, count * sizeof(*buckets));
	free(folder->buckets);
	folder->buckets = buckets;
	folder->buckets_count = count;
	folder->named_count = 0;
	for (uint32_t item = 0; item < folder->items_count; item++)
		if (folder->items[item].name)
			hash(folder, item);
}

static int grow_items(struct gcr_folder *folder)
{
	uint32_t count = folder->items_count < UINT32_MAX / 2 ? 2 * folder->items_count : 0;
	struct gcr_folder_item *items = count ? reallocarray(folder->items, count, sizeof(*items))
					      : NULL;

	if (!items)
		return -ENOMEM;
	folder->items = items;
	for (uint32_t item = count; item-- > folder->items_count;) {
		items[item] = (struct gcr_folder_item){.next = folder->free_item};
		folder->free_item = item;
	}
	folder->items_count = count;
	count_memory(folder);
	return 0;
}

int gcr_folder_item_get(struct gcr_folder *folder, uint32_t parent, const char *name,
			uint32_t *ret_item)
{
	uint32_t item = gcr_folder_item_find(folder, parent, name);
	struct gcr_folder_item *place;
	char *copy;

	if (item != GCR_FOLDER_NONE) {
		folder->items[item].lookups++;
		folder->lookups++;
		*ret_item = item;
		return 0;
	}
	if (folder->free_item == GCR_FOLDER_NONE && grow_items(folder) < 0)
		return -ENOMEM;
	copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	item = folder->free_item;
	place = &folder->items[item];
	folder->free_item = place->next;
	/* Of all folders, because their numbers are reused. */
	*place = (struct gcr_folder_item){.name = copy,
					  .parent = parent,
					  .lookups = 1,
					  .generation = atomic_fetch_add(&generations, 1) + 1};
	folder->lookups++;
	folder->items[parent].children++;
	hash(folder, item);
	if (folder->named_count > folder->buckets_count)
		grow_buckets(folder);
	*ret_item = item;
	return 0;
}

/* Free the item if it is unused, and then those above it. */
static void drop_unused(struct gcr_folder *folder, uint32_t item)
{
	while (item != GCR_FOLDER_NONE && !folder->items[item].lookups &&
	       !folder->items[item].children) {
		struct gcr_folder_item *place = &folder->items[item];
		uint32_t parent = place->parent;

		if (place->name) {
			unhash(folder, item);
			free(TAKE_PTR(place->name));
			folder->items[parent].children--;
		} else {
			parent = GCR_FOLDER_NONE;
		}
		free(TAKE_PTR(place->removed));
		place->inode = NULL;
		place->parent = GCR_FOLDER_NONE;
		place->next = folder->free_item;
		folder->free_item = item;
		item = parent;
	}
}

void gcr_folder_item_forget(struct gcr_folder *folder, uint32_t item, uint64_t count)
{
	if (item == GCR_FOLDER_ROOT || item >= folder->items_count || !folder->items[item].lookups)
		return;
	if (count > folder->items[item].lookups)
		count = folder->items[item].lookups;
	folder->items[item].lookups -= count;
	folder->lookups -= count;
	drop_unused(folder, item);
	shrink(folder);
}

void gcr_folder_item_remove(struct gcr_folder *folder, uint32_t item, const struct stat *stat)
{
	struct gcr_folder_item *place = &folder->items[item];
	uint32_t parent = place->parent;

	unhash(folder, item);
	free(TAKE_PTR(place->name));
	place->parent = GCR_FOLDER_NONE;
	if (stat && place->lookups)
		place->removed = malloc(sizeof(*place->removed));
	if (place->removed)
		*place->removed = *stat;
	folder->items[parent].children--;
	drop_unused(folder, item);
	drop_unused(folder, parent);
}

int gcr_folder_item_move(struct gcr_folder *folder, uint32_t item, uint32_t parent,
			 const char *name)
{
	struct gcr_folder_item *place = &folder->items[item];
	uint32_t old_parent = place->parent;
	char *copy = strdup(name);

	if (!copy)
		return -ENOMEM;
	unhash(folder, item);
	free(place->name);
	place->name = copy;
	place->parent = parent;
	folder->items[parent].children++;
	folder->items[old_parent].children--;
	hash(folder, item);
	drop_unused(folder, old_parent);
	return 0;
}

void gcr_folder_item_exchange(struct gcr_folder *folder, uint32_t left, uint32_t right)
{
	struct gcr_folder_item *a = &folder->items[left];
	struct gcr_folder_item *b = &folder->items[right];
	uint32_t parent = a->parent;
	char *name = a->name;

	unhash(folder, left);
	unhash(folder, right);
	a->parent = b->parent;
	a->name = b->name;
	b->parent = parent;
	b->name = name;
	hash(folder, left);
	hash(folder, right);
}

int gcr_folder_item_check(const struct gcr_folder *folder, uint32_t item)
{
	if (item == GCR_FOLDER_ROOT)
		return 0;
	return item < folder->items_count && folder->items[item].name ? 0 : -ESTALE;
}

int gcr_folder_item_path(const struct gcr_folder *folder, uint32_t item, char path[PATH_MAX],
			 unsigned int *ret_depth)
{
	size_t at = PATH_MAX - 1;
	unsigned int depth = 0;

	path[at] = '\0';
	for (; item != GCR_FOLDER_ROOT; item = folder->items[item].parent, depth++) {
		size_t length;

		if (gcr_folder_item_check(folder, item) < 0)
			return -ESTALE;
		length = strlen(folder->items[item].name);
		if (length + 1 > at)
			return -ENAMETOOLONG;
		if (depth)
			path[--at] = '/';
		at -= length;
		memcpy(path + at, folder->items[item].name, length);
	}
	memmove(path, path + at, PATH_MAX - at);
	if (!depth)
		strcpy(path, ".");
	if (ret_depth)
		*ret_depth = depth;
	return 0;
}
