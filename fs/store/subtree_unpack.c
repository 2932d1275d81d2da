/* SPDX-License-Identifier: MIT */
/*
 * Changes of packed files: a change is planned, the pieces in its way are unpacked before the
 * change, and the pieces of which nothing is left are dropped after the change.
 */
#include "fs/store/subtree_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/pack/packs.h"
#include "fs/store/store.h"
#include "lib/full_io.h"
#include "lib/pack.h"

#define PIECE_BYTES ((uint64_t)GCR_PACK_PIECE_BYTES)

/* The first piece that lies wholly at or after @offset. */
static uint64_t first_whole(uint64_t offset)
{
	return gcr_pack_pieces(offset);
}

static struct gcr_subtree_pieces piece_of(uint64_t offset)
{
	return (struct gcr_subtree_pieces){offset / PIECE_BYTES, offset / PIECE_BYTES + 1};
}

static void plan_cut(uint64_t size, uint64_t bytes, struct gcr_subtree_plan *plan)
{
	uint64_t ends = bytes < size ? bytes : size;

	if (ends % PIECE_BYTES)
		plan->unpacked[0] = piece_of(ends);
	plan->gone = (struct gcr_subtree_pieces){first_whole(bytes), UINT64_MAX};
	plan->file_bytes = bytes;
}

static void plan_punch(uint64_t size, uint64_t offset, uint64_t end, struct gcr_subtree_plan *plan)
{
	if (offset % PIECE_BYTES)
		plan->unpacked[0] = piece_of(offset);
	if (end < size && end % PIECE_BYTES)
		plan->unpacked[1] = piece_of(end);
	plan->gone = (struct gcr_subtree_pieces){
		first_whole(offset), end < size ? end / PIECE_BYTES : gcr_pack_pieces(size)};
}

/*
 * Plan a change that writes or allocates data. If the file grows, its last piece gets another
 * length and is unpacked, too.
 */
static void plan_data(uint64_t size, uint64_t offset, uint64_t end, bool keeps_size,
		      struct gcr_subtree_plan *plan)
{
	uint64_t from = offset < size || keeps_size ? offset : size;

	if (offset == end)
		return;
	plan->unpacked[0] = (struct gcr_subtree_pieces){from / PIECE_BYTES, gcr_pack_pieces(end)};
	if (!keeps_size && end > size)
		plan->file_bytes = end;
}

/* Huge pages that unpacking takes outside @offset to @end; the caller counts those inside. */
static uint64_t sum_further(const struct gcr_pack_table *table, const struct gcr_subtree_plan *plan,
			    uint64_t offset, uint64_t end)
{
	uint64_t pieces = gcr_pack_table_pieces(table);
	uint64_t bytes = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(plan->unpacked); i++)
		for (uint64_t piece = plan->unpacked[i].first;
		     piece < plan->unpacked[i].end && piece < pieces; piece++)
			if (gcr_subtree_packed_has_data(table, piece) &&
			    (piece < offset / PIECE_BYTES || piece >= gcr_pack_pieces(end)))
				bytes += PIECE_BYTES;
	return bytes;
}

int gcr_subtree_plan(struct gcr_subtree_file *file, enum gcr_subtree_change kind, uint64_t offset,
		     uint64_t end, struct gcr_subtree_plan *ret_plan)
{
	const struct gcr_subtree_packed *packed = file->inode->packed;
	struct gcr_subtree_plan plan;
	struct stat stat;
	uint64_t size;

	if (fstat(file->fd, &stat) < 0)
		return -errno;
	size = (uint64_t)stat.st_size;
	plan = (struct gcr_subtree_plan){.file_bytes = size};
	if (kind == GCR_SUBTREE_TRUNCATE)
		plan_cut(size, end, &plan);
	else if (kind == GCR_SUBTREE_PUNCH)
		plan_punch(size, offset, end, &plan);
	else
		plan_data(size, offset, end, kind == GCR_SUBTREE_ALLOCATE_WITHIN, &plan);
	/* Only for a write or an allocation does the caller count the range itself. */
	if (kind == GCR_SUBTREE_TRUNCATE || kind == GCR_SUBTREE_PUNCH)
		offset = end = 0;
	plan.further_bytes = sum_further(packed->table, &plan, offset, end);
	if (gcr_subtree_table_bytes(plan.file_bytes) > packed->memory_bytes)
		plan.further_bytes +=
			gcr_subtree_table_bytes(plan.file_bytes) - packed->memory_bytes;
	*ret_plan = plan;
	return 0;
}

/* Write a packed piece into the file. With errors the file has a hole there, as before. */
static int write_piece(struct gcr_subtree_file *file, const struct gcr_pack_entry *entries,
		       uint64_t offset, size_t size)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *packer = NULL;
	_cleanup_free_ char *buffer = malloc(size);
	int result = buffer ? gcr_packer_create(&packer) : -ENOMEM;

	if (!result)
		result = gcr_subtree_read_in_piece(file->subtree->packs, packer, entries, 0, size,
						   buffer);
	if (result == -EBADMSG)
		result = -EIO;
	if (result < 0)
		return result;
	result = gcr_pwrite_all(file->fd, buffer, size, offset);
	if (result < 0)
		fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
			  (off_t)PIECE_BYTES);
	return result;
}

void gcr_subtree_keep_times(int fd, const struct stat *before)
{
	futimens(fd, (const struct timespec[]){before->st_atim, before->st_mtim});
}

/* Unpack a piece; the room for it has been taken. Lock: change_lock. */
static int unpack(struct gcr_subtree_file *file, uint64_t piece)
{
	struct gcr_subtree_inode *inode = file->inode;
	struct gcr_pack_table *table = inode->packed->table;
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	struct stat before;
	int result = 0;

	if (fstat(file->fd, &before) < 0)
		return -errno;
	/* Only this thread changes the entries; concurrent reads are allowed. */
	gcr_pack_table_read(table, piece, entries);
	if (!gcr_pack_table_is_hole(table, piece))
		result = write_piece(file, entries, piece * PIECE_BYTES,
				     gcr_pack_table_piece_bytes(table, piece));
	gcr_subtree_keep_times(file->fd, &before);
	if (result < 0)
		return result;
	pthread_rwlock_wrlock(&inode->pack_lock);
	gcr_pack_table_clear(table, piece);
	pthread_rwlock_unlock(&inode->pack_lock);
	gcr_packs_drop(file->subtree->packs, entries, GCR_ARRAY_SIZE(entries));
	return 0;
}

int gcr_subtree_carry_out(struct gcr_subtree_file *file, const struct gcr_subtree_plan *plan)
{
	struct gcr_subtree_inode *inode = file->inode;
	const struct gcr_pack_table *table = inode->packed->table;
	uint64_t pieces = gcr_pack_table_pieces(table);
	int result = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(plan->unpacked); i++)
		for (uint64_t piece = plan->unpacked[i].first;
		     piece < plan->unpacked[i].end && piece < pieces && !result; piece++) {
			if (!gcr_pack_table_is_packed(table, piece))
				continue;
			result = gcr_subtree_is_unwanted(file->subtree) ? -EBUSY
									: unpack(file, piece);
		}
	/* The table must be as long as the file whenever it gets mapped. */
	if (!result && plan->file_bytes > inode->packed->file_bytes) {
		pthread_rwlock_wrlock(&inode->pack_lock);
		result = gcr_subtree_packed_resize(file->subtree, inode->packed, plan->file_bytes);
		pthread_rwlock_unlock(&inode->pack_lock);
	}
	return result;
}

void gcr_subtree_drop_gone(struct gcr_subtree_file *file, const struct gcr_subtree_plan *plan)
{
	uint64_t pieces = gcr_pack_table_pieces(file->inode->packed->table);

	gcr_subtree_packed_drop(file->subtree, file->inode->packed, plan->gone.first,
				plan->gone.end < pieces ? plan->gone.end : pieces);
}

void gcr_subtree_trim_packed(struct gcr_subtree_file *file)
{
	struct gcr_subtree_inode *inode = file->inode;
	struct gcr_subtree_packed *packed = inode->packed;
	struct gcr_pack_figures figures;
	struct stat stat;

	if (!packed)
		return;
	pthread_rwlock_wrlock(&inode->pack_lock);
	/* Without memory, the table is resized when the file is opened again. */
	if (!fstat(file->fd, &stat))
		gcr_subtree_packed_resize(file->subtree, packed, (uint64_t)stat.st_size);
	gcr_pack_table_figures(packed->table, &figures);
	if (!figures.pieces)
		inode->packed = NULL;
	pthread_rwlock_unlock(&inode->pack_lock);
	if (figures.pieces)
		return;
	pthread_mutex_lock(&file->subtree->lock);
	gcr_subtree_packed_take(file->subtree, inode->ino);
	pthread_mutex_unlock(&file->subtree->lock);
	gcr_subtree_packed_discard(file->subtree, packed);
}
