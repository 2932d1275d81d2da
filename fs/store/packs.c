/* SPDX-License-Identifier: MIT */
/*
 * The store's part in packing: the packed chunks of each user (fs/pack/packs.h) with the memory
 * that they take, and the tables of snapshots, which hold references to chunks. When the daemon
 * starts, each table in the store claims its chunks, whether its snapshot gets opened or not;
 * removing a table drops them.
 */
#include "fs/store/store_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/base/quota.h"
#include "fs/pack/pack_table.h"
#include "fs/pack/packs.h"
#include "fs/pack/spill.h"
#include "fs/store/subtree.h"
#include "lib/beneath.h"

/* Of a snapshot that is being packed: for its tables, and the directory and segments of chunks. */
#define DESCRIPTORS 4

/* ---- accounts ---- */

/*
 * take() of struct gcr_packs_account. Called with the packs locked, so this function must not wait.
 * The room was reserved before the piece was begun.
 */
static int take(void *data, uid_t uid, uint64_t bytes, bool is_there)
{
	struct gcr_store *store = data;
	int result = is_there ? 0 : gcr_room_take_promised(store->packs_room, bytes);

	if (!result) {
		gcr_room_recount(store->packs_room, is_there ? 0 : bytes, 0, bytes);
		gcr_store_count_packed(store, uid, GCR_QUOTA_STORE, bytes, 0);
	}
	return result;
}

static void give(void *data, uid_t uid, uint64_t bytes)
{
	struct gcr_store *store = data;

	gcr_room_recount(store->packs_room, 0, bytes, 0);
	gcr_room_shrink(store->packs_room, bytes);
	gcr_store_count_packed(store, uid, GCR_QUOTA_STORE, 0, bytes);
}

/* Sets the limit of each user on the disk: a part of the room on the disk, which changes. */
static void set_spill_limit(const struct gcr_store *store)
{
	uint64_t bytes;

	if (!store->user_spill_percent || gcr_spill_room(store->spill, &bytes) < 0)
		return;
	bytes = bytes / 100 * store->user_spill_percent;
	gcr_quota_set_most(store->quota, GCR_QUOTA_SPILL, bytes ? bytes : 1);
}

static int take_disk(void *data, uid_t uid, uint64_t bytes, struct gcr_error *error)
{
	struct gcr_store *store = data;

	set_spill_limit(store);
	return gcr_store_take_spilled(store, uid, bytes, error);
}

static void count_disk(void *data, uid_t uid, uint64_t more, uint64_t less)
{
	gcr_store_count_packed(data, uid, GCR_QUOTA_SPILL, more, less);
}

int gcr_store_packs(struct gcr_store *store, uid_t uid, struct gcr_packs **ret_packs,
		    struct gcr_error *error)
{
	return gcr_packs_users_get(store->packs, uid, ret_packs, error);
}

void gcr_store_packs_figures(struct gcr_store *store, struct gcr_packs_figures *ret_figures)
{
	gcr_packs_users_figures(store->packs, ret_figures);
}

/* ---- tables of snapshots ---- */

/* An operation on a packed piece. */
typedef int use_piece(struct gcr_packs *packs, const char *name, struct gcr_pack_table *table,
		      uint64_t piece);

/*
 * Claims the chunks of a piece. A missing chunk is marked as lost in the table, because only
 * claimed chunks may be dropped.
 */
static int claim(struct gcr_packs *packs, const char *name, struct gcr_pack_table *table,
		 uint64_t piece)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	unsigned int lost = 0;

	gcr_pack_table_read(table, piece, entries);
	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++) {
		int result = gcr_packs_claim(packs, &entries[i]);

		if (result < 0 && result != -EBADMSG)
			return result;
		if (result < 0) {
			gcr_pack_table_lose(table, piece, i, i + 1);
			lost++;
		}
	}
	if (lost)
		gcr_log(LOG_WARNING, 0, "%s in the store is packed, and damaged", name);
	return 0;
}

static int drop(struct gcr_packs *packs, const char *name, struct gcr_pack_table *table,
		uint64_t piece)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];

	gcr_pack_table_read(table, piece, entries);
	/*
	 * In this order, a daemon that is killed here leaves no table that refers to chunks of
	 * others.
	 */
	gcr_pack_table_lose(table, piece, 0, GCR_PACK_PIECE_CHUNKS);
	gcr_packs_drop(packs, entries, GCR_PACK_PIECE_CHUNKS);
	return 0;
}

static int use_table(struct gcr_packs *packs, int tables_fd, const char *table_name,
		     const char *name, use_piece *use)
{
	_cleanup_(gcr_pack_table_unref_cleanup) struct gcr_pack_table *table = NULL;
	uint64_t file_bytes = 0;
	uint64_t table_bytes = 0;
	int result = gcr_pack_table_open_left(tables_fd, table_name, gcr_packs_uid(packs), &table,
					      &file_bytes, &table_bytes);

	if (result < 0)
		return result;
	for (uint64_t piece = 0; piece < gcr_pack_table_pieces(table) && !result; piece++)
		if (gcr_pack_table_is_packed(table, piece))
			result = use(packs, name, table, piece);
	/*
	 * The table is removed, so that a retry of the removal skips it. A reader of the packed
	 * file has the table mapped.
	 */
	if (!result && use == drop)
		unlinkat(tables_fd, table_name, 0);
	return result;
}

/* Applies @use to all tables in a directory, which are of one user; closes @fd. -ENOMEM, ... */
static int use_directory(struct gcr_store *store, int fd, uid_t uid, const char *name,
			 use_piece *use)
{
	_cleanup_(gcr_packs_unref_cleanup) struct gcr_packs *packs = NULL;
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	struct gcr_error error;
	int result = gcr_beneath_list_fd(fd, &dir);

	if (result < 0)
		return result;
	result = gcr_store_packs(store, uid, &packs, &error);
	if (result < 0)
		gcr_log(LOG_WARNING, 0, "%s in the store is packed: %s", name, error.words);
	while (!result && (entry = readdir(dir))) {
		if (*entry->d_name == '.')
			continue;
		result = use_table(packs, dirfd(dir), entry->d_name, name, use);
		if (result == -ENOENT) /* a table that was never finished */
			result = 0;
		if (result != -EPROTO)
			continue;
		gcr_log(LOG_WARNING, 0, "%s in the store has a table %s that is damaged", name,
			entry->d_name);
		/* A retry of the removal does not log it again. */
		if (use == drop)
			unlinkat(dirfd(dir), entry->d_name, 0);
		result = 0;
	}
	return result;
}

int gcr_store_find_tables(struct gcr_store *store, const char *name, uid_t *ret_uid)
{
	const size_t length = strlen(GCR_PACK_TABLES_NAME);
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int result = gcr_beneath_list(store->fd, name, &dir);

	if (result < 0)
		return result;
	while ((entry = readdir(dir))) {
		if (strncmp(entry->d_name, GCR_PACK_TABLES_NAME, length) != 0)
			continue;
		*ret_uid = (uid_t)strtoul(entry->d_name + length, NULL, 10);
		return gcr_beneath_open(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY);
	}
	return -ENOENT;
}

static int use_tables(struct gcr_store *store, const char *name, use_piece *use)
{
	uid_t uid = 0;
	int fd = gcr_store_find_tables(store, name, &uid);

	/* There are no tables; any other error may be temporary. */
	if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
		return 0;
	return fd < 0 ? fd : use_directory(store, fd, uid, name, use);
}

int gcr_store_drop_tables(struct gcr_store *store, const char *name)
{
	int result = use_tables(store, name, drop);

	if (gcr_store_may_try_again(result))
		return result;
	if (result < 0)
		gcr_log(LOG_WARNING, 0,
			"packed chunks of %s in the store, which is removed, stay until the next "
			"start: its tables cannot be read: %s",
			name, strerror(-result));
	return 0;
}

/* ---- start and stop ---- */

int gcr_store_start_packs(struct gcr_store *store)
{
	const struct gcr_packs_account account = {
		.take = take,
		.give = give,
		.data = store,
		.spill = store->spill,
		.take_disk = take_disk,
		.count_disk = count_disk,
	};
	const struct gcr_tree_sum nothing = {0};
	int result = gcr_room_create(store, 0, &nothing, 0, &store->packs_room);

	if (!result)
		result = gcr_packs_users_create(store->fd, &account, &store->packs);
	for (const struct gcr_store_leftover *left = store->leftovers; left && !result;
	     left = left->next)
		result = use_tables(store, left->name, claim);
	/* After an error some claims may be missing: nothing is removed. */
	if (!result)
		gcr_packs_users_sweep(store->packs);
	set_spill_limit(store);
	return result;
}

void gcr_store_stop_packs(struct gcr_store *store)
{
	gcr_packs_users_destroy(TAKE_PTR(store->packs));
	gcr_room_destroy(TAKE_PTR(store->packs_room));
}

/* ---- packing a snapshot ---- */

int gcr_snapshot_attach_tables(struct gcr_snapshot *snapshot, struct gcr_error *error)
{
	_cleanup_(gcr_packs_unref_cleanup) struct gcr_packs *packs = NULL;
	_cleanup_close_ int fd = -1;
	uid_t uid = 0;
	int result;

	fd = gcr_store_find_tables(snapshot->store, snapshot->name, &uid);
	if (fd == -ENOENT)
		return 0;
	result = fd < 0 ? fd : gcr_store_packs(snapshot->store, uid, &packs, error);
	if (!result)
		result = gcr_subtree_attach_packs(snapshot->subtree, packs, fd);
	if (result < 0)
		return gcr_error_set(error, -result, "what is packed of %s: %s", snapshot->name,
				     strerror(-result));
	TAKE_FD(fd);
	return 0;
}

static int make_tables(struct gcr_snapshot *snapshot, uid_t uid)
{
	_cleanup_close_ int fd =
		gcr_beneath_open(snapshot->store->fd, snapshot->name, O_RDONLY | O_DIRECTORY);
	char name[sizeof(GCR_PACK_TABLES_NAME) + 10];

	if (fd < 0)
		return fd;
	snprintf(name, sizeof(name), GCR_PACK_TABLES_NAME "%u", uid);
	return mkdirat(fd, name, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

/*
 * The user whose chunks those of the snapshot are: one for all his subordinate ids, so that he
 * cannot have chunks as many users by giving snapshots away to these ids.
 */
static uid_t owner_of(const struct gcr_snapshot *snapshot)
{
	uid_t uid;

	pthread_mutex_lock(&snapshot->store->lock);
	uid = snapshot->uid;
	pthread_mutex_unlock(&snapshot->store->lock);
	return gcr_quota_known_owner(snapshot->store->quota, uid);
}

uid_t gcr_snapshot_packed_uid(const struct gcr_snapshot *snapshot)
{
	const struct gcr_packs *packs = gcr_subtree_packs(snapshot->subtree);

	return packs ? gcr_packs_uid(packs) : owner_of(snapshot);
}

int gcr_snapshot_begin_packing(struct gcr_snapshot *snapshot, struct gcr_error *error)
{
	uid_t owner = owner_of(snapshot);
	int result;

	if (gcr_subtree_packs(snapshot->subtree))
		return 0;
	result = gcr_quota_check_descriptors(snapshot->store->quota, owner, DESCRIPTORS, error);
	if (result < 0)
		return result;
	result = gcr_subtree_touch(snapshot->subtree);
	/*
	 * Not the owner of the files, which are root's if the process was not dumpable when they
	 * were made: the chunks would be shared with root's. Those of a container are shared with
	 * no other user, and count for the container.
	 */
	if (!result)
		result = make_tables(snapshot, owner);
	if (result < 0)
		return gcr_error_set(error, -result, "the store: %s", strerror(-result));
	return gcr_snapshot_attach_tables(snapshot, error);
}

int gcr_snapshot_open_to_pack(struct gcr_snapshot *snapshot, size_t index,
			      struct gcr_subtree_file **ret_file)
{
	struct gcr_subtree *subtree = snapshot->subtree;
	char name[GCR_EXTENT_NAME_BYTES];
	struct gcr_subtree_entry vram;
	struct gcr_subtree_entry file;
	int result = gcr_subtree_lookup(subtree, GCR_SUBTREE_ROOT, "vram", &vram);

	if (result < 0)
		return result;
	gcr_extent_name(&snapshot->extents[index], name);
	result = gcr_subtree_lookup(subtree, vram.item, name, &file);
	if (!result) {
		result = gcr_subtree_open_to_pack(subtree, file.item,
						  snapshot->extents[index].bytes, ret_file);
		gcr_subtree_forget(subtree, file.item, 1);
	}
	gcr_subtree_forget(subtree, vram.item, 1);
	return result;
}
