/* SPDX-License-Identifier: MIT */
/*
 * A snapshot's tree as a subtree: the accounting at the first change by a user, and the start of a
 * verb, which has to find the files under their current names.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fs/store/subtree.h"
#include "fs/store/inodes.h"
#include "lib/beneath.h"

struct gcr_subtree *gcr_snapshot_subtree(const struct gcr_snapshot *snapshot)
{
	return snapshot->subtree;
}

/*
 * touch() of struct gcr_subtree_config, at the first change of the tree: from now on its files may
 * differ from those that were made, and count with the memory that they have allocated.
 */
static int touch(void *data, struct gcr_room **ret_room)
{
	struct gcr_snapshot *snapshot = data;
	struct gcr_store *store = snapshot->store;
	uint64_t table_bytes = gcr_store_cost(gcr_store_table_bytes(snapshot->count));
	struct gcr_tree_sum sum;
	int result;

	result = gcr_store_sum_tree(snapshot->root_fd, &sum);
	if (!result)
		result = gcr_room_create(store, snapshot->cost_bytes - table_bytes, &sum,
					 snapshot->count, ret_room);
	if (result < 0)
		return result;
	pthread_mutex_lock(&store->lock);
	snapshot->is_tainted = true;
	snapshot->is_touched = true;
	(*ret_room)->payer_bytes = &snapshot->cost_bytes;
	pthread_mutex_unlock(&store->lock);
	return 0;
}

int gcr_snapshot_attach_subtree(struct gcr_snapshot *snapshot)
{
	return gcr_subtree_create(
		&(struct gcr_subtree_config){
			.root_fd = snapshot->root_fd,
			.store = snapshot->store,
			.owner = snapshot->root_uid,
			.pid = snapshot->pid,
			.start_ticks = snapshot->start_ticks,
			.adopter = snapshot->is_adopted ? snapshot->number : 0,
			.touch = touch,
			.data = snapshot,
		},
		&snapshot->subtree);
}

/* Open the current directory `vram` under the descriptor number of the old one. */
static int find_files(struct gcr_snapshot *snapshot, struct gcr_error *error)
{
	_cleanup_close_ int fd =
		gcr_beneath_open(snapshot->root_fd, "vram", O_RDONLY | O_DIRECTORY);
	struct gcr_store *store = snapshot->store;
	int result = 0;

	if (fd < 0)
		return gcr_error_set(
			error, EIO, "its directory snapshot/vram is gone: %s; put it back and thaw",
			strerror(-fd));
	pthread_mutex_lock(&store->lock);
	if (snapshot->files_fd < 0)
		snapshot->files_fd = TAKE_FD(fd);
	else if (dup3(fd, snapshot->files_fd, O_CLOEXEC) < 0)
		result = -errno;
	pthread_mutex_unlock(&store->lock);
	return result ? gcr_error_set(error, -result, "its files: %s", strerror(-result)) : 0;
}

int gcr_snapshot_begin_verb(struct gcr_snapshot *snapshot, struct gcr_error *error)
{
	gcr_subtree_begin_verb(snapshot->subtree);
	return gcr_subtree_is_touched(snapshot->subtree) ? find_files(snapshot, error) : 0;
}

void gcr_snapshot_end_verb(struct gcr_snapshot *snapshot)
{
	gcr_subtree_end_verb(snapshot->subtree);
}

/*
 * The memory of the files from @first on. @recounts: the subtree counts each file with its memory.
 */
static uint64_t sum_files(const struct gcr_snapshot *snapshot, size_t first, bool recounts)
{
	uint64_t sum = 0;
	struct stat stat;

	for (size_t i = first; i < snapshot->count; i++) {
		if (gcr_snapshot_stat(snapshot, i, &stat) < 0)
			continue;
		sum += (uint64_t)stat.st_blocks * 512;
		if (recounts)
			gcr_subtree_recount(snapshot->subtree, stat.st_ino,
					    (uint64_t)stat.st_blocks * 512);
	}
	return sum;
}

uint64_t gcr_snapshot_files_bytes(const struct gcr_snapshot *snapshot, size_t first)
{
	return sum_files(snapshot, first, false);
}

int gcr_snapshot_begin_growth(struct gcr_snapshot *snapshot, size_t first, uint64_t *ret_bytes)
{
	int result = gcr_subtree_touch(snapshot->subtree);

	if (!result)
		*ret_bytes = gcr_snapshot_files_bytes(snapshot, first);
	return result;
}

int gcr_snapshot_take_growth(struct gcr_snapshot *snapshot, uint64_t bytes)
{
	return gcr_subtree_take_growth(snapshot->subtree, bytes);
}

void gcr_snapshot_finish_growth(struct gcr_snapshot *snapshot, size_t first, uint64_t taken_bytes,
				uint64_t before_bytes)
{
	uint64_t after_bytes = sum_files(snapshot, first, true);

	gcr_subtree_finish_growth(snapshot->subtree, taken_bytes, before_bytes, after_bytes);
}

bool gcr_snapshot_is_file_read(const struct gcr_snapshot *snapshot, size_t index)
{
	struct stat stat;

	return !gcr_snapshot_stat(snapshot, index, &stat) &&
	       (gcr_inodes_subtrees(&stat) || gcr_inodes_is_passed(&stat));
}
