/* SPDX-License-Identifier: MIT */
/*
 * The table of items: the names of a subtree that the kernel knows. The number of an item is free
 * again when all its lookups have been forgotten and no item below it is left.
 */
#include "fs/store/subtree_private.h"

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
static void start_empty(struct gcr_subtree *subtree)
{
	subtree->items_count = 1;
	subtree->free_item = GCR_SUBTREE_NONE;
	subtree->buckets_count = FIRST_BUCKETS;
	memset(subtree->buckets, 0xff, FIRST_BUCKETS * sizeof(*subtree->buckets));
}

int gcr_subtree_items_init(struct gcr_subtree *subtree)
{
	subtree->items = calloc(1, sizeof(*subtree->items));
	subtree->buckets = malloc(FIRST_BUCKETS * sizeof(*subtree->buckets));
	if (!subtree->items || !subtree->buckets)
		return -ENOMEM;
	subtree->items[GCR_SUBTREE_ROOT] =
		(struct gcr_subtree_item){.parent = GCR_SUBTREE_NONE, .lookups = 1};
	start_empty(subtree);
	return 0;
}

void gcr_subtree_items_finish(struct gcr_subtree *subtree)
{
	for (uint32_t item = 0; item < subtree->items_count; item++) {
		free(subtree->items[item].name);
		free(subtree->items[item].removed);
	}
	free(subtree->items);
	free(subtree->buckets);
}

/*
 * Count the memory of the table in the subtree's account. The table stays as large as it ever was
 * while the kernel knows one of the names.
 */
static void count_memory(struct gcr_subtree *subtree)
{
	uint64_t bytes = 0;

	if (!subtree->room)
		return;
	if (subtree->items_count > ITEMS_FREE)
		bytes = subtree->items_count * sizeof(*subtree->items) +
			subtree->buckets_count * sizeof(*subtree->buckets);
	if (bytes == subtree->items_bytes)
		return;
	gcr_room_recount(subtree->room, 0, subtree->items_bytes, bytes);
	if (bytes < subtree->items_bytes)
		gcr_room_trim(subtree->room);
	subtree->items_bytes = bytes;
}

/*
 * If the kernel knows no name any more, make a large table small again; without memory for that,
 * the table stays.
 */
static void shrink(struct gcr_subtree *subtree)
{
	struct gcr_subtree_item *items;
	uint32_t *buckets;

	if (subtree->lookups || subtree->named_count || subtree->items_count <= ITEMS_FREE)
		return;
	buckets = malloc(FIRST_BUCKETS * sizeof(*buckets));
	items = buckets ? malloc(sizeof(*items)) : NULL;
	if (!items) {
		free(buckets);
		return;
	}
	items[GCR_SUBTREE_ROOT] = subtree->items[GCR_SUBTREE_ROOT];
	free(subtree->items);
	free(subtree->buckets);
	subtree->items = items;
	subtree->buckets = buckets;
	start_empty(subtree);
	count_memory(subtree);
}

/* The bucket of a name, by FNV-1a of the parent's number and the name. */
static uint32_t *bucket_of(const struct gcr_subtree *subtree, uint32_t parent, const char *name)
{
	uint64_t value = UINT64_C(0xcbf29ce484222325) ^ parent;

	for (; *name; name++)
		value = (value ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	value ^= value >> 32;
	return &subtree->buckets[value & (subtree->buckets_count - 1)];
}

uint32_t gcr_subtree_item_find(const struct gcr_subtree *subtree, uint32_t parent, const char *name)
{
	uint32_t item = *bucket_of(subtree, parent, name);

	while (item != GCR_SUBTREE_NONE && (subtree->items[item].parent != parent ||
					    strcmp(subtree->items[item].name, name) != 0))
		item = subtree->items[item].next;
	return item;
}

static void hash(struct gcr_subtree *subtree, uint32_t item)
{
	struct gcr_subtree_item *place = &subtree->items[item];
	uint32_t *bucket = bucket_of(subtree, place->parent, place->name);

	place->next = *bucket;
	*bucket = item;
	subtree->named_count++;
}

static void unhash(struct gcr_subtree *subtree, uint32_t item)
{
	const struct gcr_subtree_item *place = &subtree->items[item];
	uint32_t *link = bucket_of(subtree, place->parent, place->name);

	while (*link != item)
		link = &subtree->items[*link].next;
	*link = place->next;
	subtree->named_count--;
}

/* Double the number of buckets; without memory the table works as it is. */
static void grow_buckets(struct gcr_subtree *subtree)
{
	uint32_t count = 2 * subtree->buckets_count;
	uint32_t *buckets = malloc(count * sizeof(*buckets));

	if (!buckets)
		return;
	memset(buckets, 0xff, count * sizeof(*buckets));
	free(subtree->buckets);
	subtree->buckets = buckets;
	subtree->buckets_count = count;
	subtree->named_count = 0;
	for (uint32_t item = 0; item < subtree->items_count; item++)
		if (subtree->items[item].name)
			hash(subtree, item);
}

static int grow_items(struct gcr_subtree *subtree)
{
	uint32_t count = subtree->items_count < UINT32_MAX / 2 ? 2 * subtree->items_count : 0;
	struct gcr_subtree_item *items = count ? reallocarray(subtree->items, count, sizeof(*items))
					       : NULL;

	if (!items)
		return -ENOMEM;
	subtree->items = items;
	for (uint32_t item = count; item-- > subtree->items_count;) {
		items[item] = (struct gcr_subtree_item){.next = subtree->free_item};
		subtree->free_item = item;
	}
	subtree->items_count = count;
	count_memory(subtree);
	return 0;
}

int gcr_subtree_item_get(struct gcr_subtree *subtree, uint32_t parent, const char *name,
			 uint32_t *ret_item)
{
	uint32_t item = gcr_subtree_item_find(subtree, parent, name);
	struct gcr_subtree_item *place;
	char *copy;

	if (item != GCR_SUBTREE_NONE) {
		subtree->items[item].lookups++;
		subtree->lookups++;
		*ret_item = item;
		return 0;
	}
	if (subtree->free_item == GCR_SUBTREE_NONE && grow_items(subtree) < 0)
		return -ENOMEM;
	copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	item = subtree->free_item;
	place = &subtree->items[item];
	subtree->free_item = place->next;
	/* Of all subtrees, because their numbers are reused. */
	*place = (struct gcr_subtree_item){.name = copy,
					   .parent = parent,
					   .lookups = 1,
					   .generation = atomic_fetch_add(&generations, 1) + 1};
	subtree->lookups++;
	subtree->items[parent].children++;
	hash(subtree, item);
	if (subtree->named_count > subtree->buckets_count)
		grow_buckets(subtree);
	*ret_item = item;
	return 0;
}

/* Free the item if it is unused, and then those above it. */
static void drop_unused(struct gcr_subtree *subtree, uint32_t item)
{
	while (item != GCR_SUBTREE_NONE && !subtree->items[item].lookups &&
	       !subtree->items[item].children) {
		struct gcr_subtree_item *place = &subtree->items[item];
		uint32_t parent = place->parent;

		if (place->name) {
			unhash(subtree, item);
			free(TAKE_PTR(place->name));
			subtree->items[parent].children--;
		} else {
			parent = GCR_SUBTREE_NONE;
		}
		free(TAKE_PTR(place->removed));
		place->inode = NULL;
		place->parent = GCR_SUBTREE_NONE;
		place->next = subtree->free_item;
		subtree->free_item = item;
		item = parent;
	}
}

void gcr_subtree_item_forget(struct gcr_subtree *subtree, uint32_t item, uint64_t count)
{
	if (item == GCR_SUBTREE_ROOT || item >= subtree->items_count ||
	    !subtree->items[item].lookups)
		return;
	if (count > subtree->items[item].lookups)
		count = subtree->items[item].lookups;
	subtree->items[item].lookups -= count;
	subtree->lookups -= count;
	drop_unused(subtree, item);
	shrink(subtree);
}

void gcr_subtree_item_remove(struct gcr_subtree *subtree, uint32_t item, const struct stat *stat)
{
	struct gcr_subtree_item *place = &subtree->items[item];
	uint32_t parent = place->parent;

	unhash(subtree, item);
	free(TAKE_PTR(place->name));
	place->parent = GCR_SUBTREE_NONE;
	if (stat && place->lookups)
		place->removed = malloc(sizeof(*place->removed));
	if (place->removed)
		*place->removed = *stat;
	subtree->items[parent].children--;
	drop_unused(subtree, item);
	drop_unused(subtree, parent);
}

int gcr_subtree_item_move(struct gcr_subtree *subtree, uint32_t item, uint32_t parent,
			  const char *name)
{
	struct gcr_subtree_item *place = &subtree->items[item];
	uint32_t old_parent = place->parent;
	char *copy = strdup(name);

	if (!copy)
		return -ENOMEM;
	unhash(subtree, item);
	free(place->name);
	place->name = copy;
	place->parent = parent;
	subtree->items[parent].children++;
	subtree->items[old_parent].children--;
	hash(subtree, item);
	drop_unused(subtree, old_parent);
	return 0;
}

void gcr_subtree_item_exchange(struct gcr_subtree *subtree, uint32_t left, uint32_t right)
{
	struct gcr_subtree_item *a = &subtree->items[left];
	struct gcr_subtree_item *b = &subtree->items[right];
	uint32_t parent = a->parent;
	char *name = a->name;

	unhash(subtree, left);
	unhash(subtree, right);
	a->parent = b->parent;
	a->name = b->name;
	b->parent = parent;
	b->name = name;
	hash(subtree, left);
	hash(subtree, right);
}

int gcr_subtree_item_check(const struct gcr_subtree *subtree, uint32_t item)
{
	if (item == GCR_SUBTREE_ROOT)
		return 0;
	return item < subtree->items_count && subtree->items[item].name ? 0 : -ESTALE;
}

int gcr_subtree_item_path(const struct gcr_subtree *subtree, uint32_t item, char path[PATH_MAX],
			  unsigned int *ret_depth)
{
	size_t at = PATH_MAX - 1;
	unsigned int depth = 0;

	path[at] = '\0';
	for (; item != GCR_SUBTREE_ROOT; item = subtree->items[item].parent, depth++) {
		size_t length;

		if (gcr_subtree_item_check(subtree, item) < 0)
			return -ESTALE;
		length = strlen(subtree->items[item].name);
		if (length + 1 > at)
			return -ENAMETOOLONG;
		if (depth)
			path[--at] = '/';
		at -= length;
		memcpy(path + at, subtree->items[item].name, length);
	}
	memmove(path, path + at, PATH_MAX - at);
	if (!depth)
		strcpy(path, ".");
	if (ret_depth)
		*ret_depth = depth;
	return 0;
}
