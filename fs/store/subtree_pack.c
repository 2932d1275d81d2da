/* SPDX-License-Identifier: MIT */
/*
 * Packing files of a subtree piece by piece. A packed piece is a hole of the file, and its bytes
 * are chunks in the store (fs/pack/packs.h) that the file's table refers to. The file and its table
 * are changed in such an order that a daemon that is killed leaves the bytes of a piece in one of
 * them, or the same bytes in both.
 */
#include "fs/store/subtree_private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/pack/packs.h"
#include "fs/store/inodes.h"
#include "fs/store/store.h"
#include "lib/full_io.h"
#include "lib/pack.h"

#define PIECE_BYTES ((uint64_t)GCR_PACK_PIECE_BYTES)

static uint64_t bytes_to_pack(const struct gcr_subtree_file *file, const struct stat *stat)
{
	uint64_t bytes = (uint64_t)stat->st_size;

	return bytes < file->packed_most ? bytes : file->packed_most;
}

uint64_t gcr_subtree_pieces(const struct gcr_subtree_file *file)
{
	struct stat stat;

	return fstat(file->fd, &stat) < 0 ? 0 : gcr_pack_pieces(bytes_to_pack(file, &stat));
}

/*
 * Recounts the memory of the file after packing; freed memory is no longer promised. Lock:
 * change_lock.
 */
static void finish_packing(struct gcr_subtree_file *file, uint64_t taken_bytes)
{
	uint64_t before = file->inode->counted_bytes;
	struct gcr_room *room = file->subtree->room;

	gcr_subtree_trim_packed(file);
	gcr_subtree_recount_room(file, taken_bytes);
	if (room && file->inode->counted_bytes < before)
		gcr_room_shrink(room, before - file->inode->counted_bytes);
}

/*
 * Returns true if the file is neither open nor mapped elsewhere: only then does the kernel grant a
 * lease. An open by another process at this moment sends a signal; SIGIO would kill the daemon by
 * default, so SIGURG is used, which is ignored.
 */
static bool is_ours_alone(struct gcr_subtree_file *file)
{
	struct gcr_subtree_inode *inode = file->inode;
	int fd = file->fd;

	/* inode->fd may be a duplicate of an earlier open, which would prevent the lease. */
	pthread_mutex_lock(&file->subtree->lock);
	if (inode->files == 1)
		dup3(fd, inode->fd, O_CLOEXEC);
	pthread_mutex_unlock(&file->subtree->lock);
	if (fcntl(fd, F_SETSIG, SIGURG) < 0 || fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
		return false;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return true;
}

/*
 * Punch pieces that a daemon has published in the table but not punched before it was killed. Lock:
 * change_lock.
 */
static void punch_again(struct gcr_subtree_file *file)
{
	const struct gcr_pack_table *table = file->inode->packed->table;
	uint64_t pieces = gcr_pack_table_pieces(table);
	struct stat stat;
	off_t at = 0;

	if (fstat(file->fd, &stat) < 0 || gcr_subtree_is_shared(file, &stat) ||
	    (gcr_inodes_is_passed(&stat) && !is_ours_alone(file)))
		return;
	gcr_subtree_unmap(file->inode);
	while ((at = lseek(file->fd, at, SEEK_DATA)) >= 0 && (uint64_t)at / PIECE_BYTES < pieces) {
		uint64_t piece = (uint64_t)at / PIECE_BYTES;

		if (gcr_pack_table_is_packed(table, piece))
			fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				  (off_t)(piece * PIECE_BYTES), (off_t)PIECE_BYTES);
		at = (off_t)((piece + 1) * PIECE_BYTES);
	}
	gcr_subtree_may_map(file->inode);
	file->inode->packed->is_left = false;
}

int gcr_subtree_open_to_pack(struct gcr_subtree *subtree, uint32_t item, uint64_t bytes,
			     struct gcr_subtree_file **ret_file)
{
	_cleanup_(gcr_subtree_close_cleanup) struct gcr_subtree_file *file = NULL;
	struct gcr_subtree_inode *inode;
	int result;

	pthread_mutex_lock(&subtree->lock);
	result = subtree->packs ? gcr_subtree_open_locked(subtree, item, O_RDWR, true, &file)
				: -EOPNOTSUPP;
	pthread_mutex_unlock(&subtree->lock);
	if (!result)
		result = gcr_subtree_begin_change(subtree, file->epoch);
	if (result < 0)
		return result;
	file->packed_most = bytes;
	inode = file->inode;
	pthread_mutex_lock(&inode->change_lock);
	if (inode->packed && inode->packed->is_left)
		punch_again(file);
	finish_packing(file, 0);
	pthread_mutex_unlock(&inode->change_lock);
	gcr_subtree_end_change(subtree);
	*ret_file = TAKE_PTR(file);
	return 0;
}

uint64_t gcr_subtree_piece_cost(struct gcr_subtree_file *file)
{
	struct gcr_subtree_inode *inode = file->inode;
	uint64_t bytes = 0;
	struct stat stat;

	pthread_rwlock_rdlock(&inode->pack_lock);
	if (!inode->packed && !fstat(file->fd, &stat))
		bytes = gcr_subtree_table_bytes(bytes_to_pack(file, &stat));
	pthread_rwlock_unlock(&inode->pack_lock);
	return gcr_store_piece_cost(bytes);
}

static bool has_data(int fd, uint64_t piece)
{
	off_t data = lseek(fd, (off_t)(piece * PIECE_BYTES), SEEK_DATA);

	return data >= 0 && (uint64_t)data / PIECE_BYTES == piece;
}

int gcr_subtree_read_piece(struct gcr_subtree_file *file, uint64_t piece, void *ret_bytes,
			   size_t *ret_size, uint64_t *ret_writes)
{
	struct gcr_subtree_inode *inode = file->inode;
	ssize_t got = -ENODATA;
	uint64_t writes;

	if (gcr_subtree_is_unwanted(file->subtree))
		return -EBUSY;
	/* Wait for a write that is under way. */
	pthread_mutex_lock(&inode->change_lock);
	writes = inode->writes;
	pthread_mutex_unlock(&inode->change_lock);
	pthread_rwlock_rdlock(&inode->pack_lock);
	if ((!inode->packed || !gcr_pack_table_is_packed(inode->packed->table, piece)) &&
	    has_data(file->fd, piece))
		got = gcr_pread_all(file->fd, ret_bytes, PIECE_BYTES, piece * PIECE_BYTES);
	pthread_rwlock_unlock(&inode->pack_lock);
	if (got <= 0)
		return got < 0 ? (int)got : -ENODATA;
	*ret_size = (size_t)got;
	*ret_writes = writes;
	return 0;
}

/* May the piece be packed now? Errors of gcr_subtree_pack_piece(). Lock: change_lock. */
static int may_pack(struct gcr_subtree_file *file, uint64_t piece, uint64_t writes)
{
	const struct gcr_subtree_inode *inode = file->inode;
	struct stat stat;

	if (!file->is_packer)
		return -EBADF;
	if (fstat(file->fd, &stat) < 0)
		return -errno;
	/* The table grows with the file, and is charged to the file's owner only afterwards. */
	if ((uint64_t)stat.st_size > file->packed_most)
		return -EFBIG;
	/* A reader of the other name would find holes: only this name has a table. */
	if (gcr_subtree_has_other_name(file))
		return -EMLINK;
	if (inode->writes != writes ||
	    (inode->packed && gcr_pack_table_is_packed(inode->packed->table, piece)))
		return -EAGAIN;
	/* A user of a removed other name may still read the file through it. */
	if (gcr_inodes_subtrees(&stat) > 1)
		return -ETXTBSY;
	if (!gcr_subtree_is_passed(file))
		return 0;
	if (!is_ours_alone(file))
		return -ETXTBSY;
	gcr_inodes_unmapped(&stat);
	return 0;
}

/* Make a table for the file; the caller counts its memory. Lock: change_lock. */
static int make_table(struct gcr_subtree_file *file, uint64_t file_bytes)
{
	struct gcr_subtree_inode *inode = file->inode;
	struct gcr_subtree_packed *packed;
	int result = gcr_subtree_packed_create(file->subtree, inode->ino, file_bytes, &packed);

	if (result < 0)
		return result;
	pthread_rwlock_wrlock(&inode->pack_lock);
	inode->packed = packed;
	pthread_rwlock_unlock(&inode->pack_lock);
	return 0;
}

/* The single step that makes the piece packed and frees its memory. Lock: change_lock. */
static int publish(struct gcr_subtree_file *file, uint64_t piece,
		   const struct gcr_pack_entry *entries)
{
	struct gcr_subtree_inode *inode = file->inode;
	struct gcr_pack_table *table = inode->packed->table;
	struct stat before;
	int result;

	if (fstat(file->fd, &before) < 0)
		return -errno;
	gcr_subtree_unmap(inode);
	pthread_rwlock_wrlock(&inode->pack_lock);
	result = gcr_pack_table_publish(table, piece, entries);
	if (!result && fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				 (off_t)(piece * PIECE_BYTES), (off_t)PIECE_BYTES) < 0) {
		result = -errno;
		gcr_pack_table_clear(table, piece);
	}
	gcr_subtree_keep_times(file->fd, &before);
	pthread_rwlock_unlock(&inode->pack_lock);
	gcr_subtree_may_map(inode);
	return result;
}

int gcr_subtree_pack_piece(struct gcr_subtree_file *file, uint64_t piece,
			   const struct gcr_pack_entry *entries, uint64_t writes)
{
	struct gcr_subtree_inode *inode = file->inode;
	struct gcr_subtree *subtree = file->subtree;
	uint64_t taken_bytes = 0;
	struct stat stat;
	int result = gcr_subtree_begin_change(subtree, file->epoch);

	if (result < 0)
		return result;
	pthread_mutex_lock(&inode->change_lock);
	result = may_pack(file, piece, writes);
	if (!result && fstat(file->fd, &stat) < 0)
		result = -errno;
	if (!result && !inode->packed) {
		uint64_t bytes = gcr_subtree_table_bytes((uint64_t)stat.st_size);

		result = subtree->room ? gcr_room_take_promised(subtree->room, bytes) : 0;
		taken_bytes = result ? 0 : bytes;
		if (!result)
			result = make_table(file, (uint64_t)stat.st_size);
	}
	if (!result)
		result = publish(file, piece, entries);
	finish_packing(file, taken_bytes);
	pthread_mutex_unlock(&inode->change_lock);
	gcr_subtree_end_change(subtree);
	return result == -EINVAL ? -EAGAIN : result;
}
