/* SPDX-License-Identifier: MIT */
/*
 * Files of a folder that have packed pieces: those are holes of the file, and their bytes are
 * chunks in the store (fs/packs.h) that the file's table names (fs/pack_table.h). They are read,
 * and have data and holes, as if they were not; what is to be changed is unpacked before. The file
 * and its table change in such an order that a daemon that is killed leaves the bytes of a piece in
 * one of them, or the same bytes in both.
 */
#include "fs/folder_private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/pack_table.h"
#include "fs/packs.h"
#include "fs/store.h"
#include "lib/pack.h"

#define PIECE_BYTES    ((uint64_t)GCR_PACK_PIECE_BYTES)
/* Memory that a table has: small pages. */
#define MEMORY_BYTES   4096
/* At once: then it is faster. */
#define DROPPED_PIECES 16

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* Memory of the table of a file of @bytes. */
static uint64_t table_bytes(uint64_t bytes)
{
	return round_up(gcr_pack_table_bytes(bytes), MEMORY_BYTES);
}

/* ---- files that are packed ---- */

struct gcr_folder_packed *gcr_folder_packed_find(const struct gcr_folder *folder, ino_t ino)
{
	struct gcr_folder_packed *packed = folder->packed;

	while (packed && packed->ino != ino)
		packed = packed->next;
	return packed;
}

struct gcr_folder_packed *gcr_folder_packed_take(struct gcr_folder *folder, ino_t ino)
{
	struct gcr_folder_packed **link = &folder->packed;
	struct gcr_folder_packed *packed;

	while (*link && (*link)->ino != ino)
		link = &(*link)->next;
	packed = *link;
	if (packed)
		*link = packed->next;
	return packed;
}

static void packed_free(struct gcr_folder_packed *packed)
{
	gcr_pack_table_unref(packed->table);
	free(packed);
}

/* These pieces are not packed any more. Lock: pack_lock, or nobody has it open. */
static void drop_pieces(struct gcr_folder *folder, struct gcr_folder_packed *packed, uint64_t first,
			uint64_t end)
{
	struct gcr_pack_entry entries[DROPPED_PIECES * GCR_PACK_PIECE_CHUNKS];
	size_t count = 0;

	for (uint64_t piece = first; piece < end; piece++) {
		if (!gcr_pack_table_is_packed(packed->table, piece))
			continue;
		gcr_pack_table_read(packed->table, piece, entries + count);
		gcr_pack_table_clear(packed->table, piece);
		count += GCR_PACK_PIECE_CHUNKS;
		if (count < GCR_ARRAY_SIZE(entries))
			continue;
		gcr_packs_drop(folder->packs, entries, count);
		count = 0;
	}
	gcr_packs_drop(folder->packs, entries, count);
}

void gcr_folder_packed_discard(struct gcr_folder *folder, struct gcr_folder_packed *packed)
{
	char name[GCR_PACK_TABLE_NAME_BYTES];

	if (!packed)
		return;
	drop_pieces(folder, packed, 0, gcr_pack_table_pieces(packed->table));
	gcr_pack_table_name(packed->ino, name);
	unlinkat(folder->tables_fd, name, 0);
	packed_free(packed);
}

void gcr_folder_packed_discard_all(struct gcr_folder *folder)
{
	struct gcr_folder_packed *gone = NULL;
	struct gcr_folder_packed **link;

	pthread_mutex_lock(&folder->lock);
	for (link = &folder->packed; *link;) {
		struct gcr_folder_packed *packed = *link;

		if (gcr_folder_inode_find(folder, packed->ino)) {
			link = &packed->next;
			continue;
		}
		*link = packed->next;
		packed->next = gone;
		gone = packed;
	}
	pthread_mutex_unlock(&folder->lock);
	while (gone) {
		struct gcr_folder_packed *packed = gone;

		gone = packed->next;
		gcr_folder_packed_discard(folder, packed);
	}
}

void gcr_folder_packed_finish(struct gcr_folder *folder)
{
	while (folder->packed)
		packed_free(gcr_folder_packed_take(folder, folder->packed->ino));
	gcr_packs_unref(folder->packs);
	if (folder->tables_fd >= 0)
		close(folder->tables_fd);
}

uint64_t gcr_folder_packed_bytes(const struct gcr_folder_packed *packed)
{
	return packed ? packed->memory_bytes : 0;
}

int gcr_folder_packed_resize(struct gcr_folder *folder, struct gcr_folder_packed *packed,
			     uint64_t bytes)
{
	int result;

	if (packed->file_bytes == bytes)
		return 0;
	drop_pieces(folder, packed, gcr_pack_pieces(bytes), gcr_pack_pieces(packed->file_bytes));
	result = gcr_pack_table_resize(packed->table, bytes);
	if (result < 0)
		return result;
	packed->file_bytes = bytes;
	if (packed->memory_bytes < table_bytes(bytes))
		packed->memory_bytes = table_bytes(bytes);
	return 0;
}

/* What is packed is as much as it was in the file. */
static void add_blocks(const struct gcr_folder_packed *packed, struct stat *stat)
{
	uint64_t unit = (uint64_t)stat->st_blksize;
	uint64_t bytes = (uint64_t)stat->st_blocks * 512;
	uint64_t most = round_up((uint64_t)stat->st_size, unit);
	struct gcr_pack_figures figures;

	gcr_pack_table_figures(packed->table, &figures);
	/* A piece that is just being packed may be in both. */
	most = most < bytes ? bytes : most;
	bytes += round_up(figures.packed_bytes - figures.hole_bytes, unit);
	stat->st_blocks = (blkcnt_t)((bytes < most ? bytes : most) / 512);
}

int gcr_folder_stat_fd(const struct gcr_folder *folder, int fd, struct stat *ret_stat)
{
	const struct gcr_folder_packed *packed;
	struct stat stat;

	if (fstat(fd, &stat) < 0)
		return -errno;
	packed = S_ISREG(stat.st_mode) ? gcr_folder_packed_find(folder, stat.st_ino) : NULL;
	if (packed)
		add_blocks(packed, &stat);
	*ret_stat = stat;
	return 0;
}

/* ---- tables ---- */

/* The table that is there, of a file that has, or had, some length. */
static int open_left(int tables_fd, uid_t uid, const char *name,
		     struct gcr_folder_packed **ret_packed)
{
	struct gcr_folder_packed *packed = calloc(1, sizeof(*packed));
	uint64_t bytes;
	int result;

	if (!packed)
		return -ENOMEM;
	result = gcr_pack_table_open_left(tables_fd, name, uid, &packed->table, &packed->file_bytes,
					  &bytes);
	if (result < 0) {
		free(packed);
		return result;
	}
	packed->ino = (ino_t)strtoull(name, NULL, 10);
	packed->memory_bytes = round_up(bytes, MEMORY_BYTES);
	packed->is_left = true;
	*ret_packed = packed;
	return 0;
}

static void free_list(struct gcr_folder_packed *list)
{
	while (list) {
		struct gcr_folder_packed *packed = list;

		list = packed->next;
		packed_free(packed);
	}
}

/* All tables of the directory. */
static int open_all_left(int tables_fd, uid_t uid, struct gcr_folder_packed **ret_list,
			 uint64_t *ret_bytes)
{
	int fd = openat(tables_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_closedir_ DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct gcr_folder_packed *list = NULL;
	const struct dirent *entry;
	uint64_t bytes = 0;
	int result = dir ? 0 : -errno;

	if (!dir && fd >= 0)
		close(fd);
	while (!result && (entry = readdir(dir))) {
		struct gcr_folder_packed *packed;

		if (*entry->d_name == '.')
			continue;
		result = open_left(tables_fd, uid, entry->d_name, &packed);
		/* Its file has holes then; a thaw finds that out. Or it was never finished. */
		if (result == -EPROTO || result == -ENOENT)
			result = 0;
		else if (!result) {
			packed->next = list;
			list = packed;
			bytes += gcr_folder_packed_bytes(packed);
		}
	}
	if (result < 0) {
		free_list(list);
		return result;
	}
	*ret_list = list;
	*ret_bytes = bytes;
	return 0;
}

int gcr_folder_attach_packs(struct gcr_folder *folder, struct gcr_packs *packs, int tables_fd)
{
	struct gcr_folder_packed *list = NULL;
	uint64_t bytes = 0;
	int result = open_all_left(tables_fd, gcr_packs_uid(packs), &list, &bytes);

	if (result < 0)
		return result;
	pthread_mutex_lock(&folder->lock);
	folder->packs = gcr_packs_ref(packs);
	folder->tables_fd = tables_fd;
	folder->packed = list;
	folder->changes++;
	pthread_mutex_unlock(&folder->lock);
	if (folder->room)
		gcr_room_settle(folder->room, 0, 0, bytes);
	gcr_folder_end_change(folder);
	return 0;
}

struct gcr_packs *gcr_folder_packs(struct gcr_folder *folder)
{
	struct gcr_packs *packs;

	pthread_mutex_lock(&folder->lock);
	packs = folder->packs;
	pthread_mutex_unlock(&folder->lock);
	return packs;
}

int gcr_folder_tables(struct gcr_folder *folder)
{
	int fd;

	pthread_mutex_lock(&folder->lock);
	fd = folder->tables_fd;
	pthread_mutex_unlock(&folder->lock);
	return fd;
}

void gcr_folder_pack_figures(struct gcr_folder *folder, struct gcr_pack_figures *ret_figures)
{
	struct gcr_pack_figures sum = {0};

	pthread_mutex_lock(&folder->lock);
	for (const struct gcr_folder_packed *packed = folder->packed; packed;
	     packed = packed->next) {
		struct gcr_pack_figures figures;

		gcr_pack_table_figures(packed->table, &figures);
		sum.pieces += figures.pieces;
		sum.packed_bytes += figures.packed_bytes;
		sum.packed_to_bytes += figures.packed_to_bytes;
		sum.shared_bytes += figures.shared_bytes;
		sum.zero_bytes += figures.zero_bytes;
		sum.hole_bytes += figures.hole_bytes;
	}
	pthread_mutex_unlock(&folder->lock);
	*ret_figures = sum;
}

int gcr_folder_each_packed(struct gcr_folder *folder, gcr_pack_table_visit *visit, void *data)
{
	_cleanup_free_ struct gcr_pack_table **tables = NULL;
	size_t count = 0;

	/* Nobody else waits for the folder as long as it takes to read all tables. */
	pthread_mutex_lock(&folder->lock);
	for (const struct gcr_folder_packed *packed = folder->packed; packed; packed = packed->next)
		count++;
	tables = calloc(count + 1, sizeof(struct gcr_pack_table *));
	count = 0;
	for (const struct gcr_folder_packed *packed = folder->packed; packed && tables;
	     packed = packed->next)
		tables[count++] = gcr_pack_table_ref(packed->table);
	pthread_mutex_unlock(&folder->lock);
	for (size_t i = 0; i < count; i++) {
		gcr_pack_table_each(tables[i], visit, data);
		gcr_pack_table_unref(tables[i]);
	}
	return tables ? 0 : -ENOMEM;
}

/* ---- reading ---- */

static int read_chunk(struct gcr_packs *packs, struct gcr_packer *packer,
		      const struct gcr_pack_entry *entry, void *ret_bytes)
{
	return gcr_packs_read(packs, packer, entry, ret_bytes, gcr_pack_entry_bytes(entry));
}

/* Bytes of a packed piece, from @offset in it on; they are all in it. */
static int read_in_piece(struct gcr_packs *packs, struct gcr_packer *packer,
			 const struct gcr_pack_entry *entries, uint64_t offset, size_t size,
			 char *ret_bytes)
{
	char scratch[GCR_CHUNK_BYTES];
	int result = 0;

	while (size && !result) {
		const struct gcr_pack_entry *entry = &entries[offset / GCR_CHUNK_BYTES];
		size_t skipped = offset % GCR_CHUNK_BYTES;
		size_t rest = GCR_CHUNK_BYTES - skipped;
		size_t got = rest < size ? rest : size;

		if (!skipped && got == gcr_pack_entry_bytes(entry)) {
			result = read_chunk(packs, packer, entry, ret_bytes);
		} else {
			result = read_chunk(packs, packer, entry, scratch);
			memcpy(ret_bytes, scratch + skipped, result ? 0 : got);
		}
		ret_bytes += got;
		offset += got;
		size -= got;
	}
	return result;
}

int gcr_folder_read_packed(struct gcr_folder_file *file, uint64_t offset, size_t size, char *buffer,
			   size_t *ret_size)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *packer = NULL;
	const struct gcr_pack_table *table = file->inode->packed->table;
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	int result = gcr_packer_create(&packer);
	struct stat stat;
	size_t done = 0;

	if (!result && fstat(file->fd, &stat) < 0)
		result = -errno;
	if (result < 0)
		return result;
	if (offset >= (uint64_t)stat.st_size)
		size = 0;
	else if (size > (uint64_t)stat.st_size - offset)
		size = (size_t)((uint64_t)stat.st_size - offset);
	while (done < size) {
		uint64_t at = offset + done;
		size_t part = PIECE_BYTES - at % PIECE_BYTES;
		size_t got = part;

		part = part < size - done ? part : size - done;
		got = part;
		if (gcr_pack_table_is_packed(table, at / PIECE_BYTES)) {
			gcr_pack_table_read(table, at / PIECE_BYTES, entries);
			result = read_in_piece(file->folder->packs, packer, entries,
					       at % PIECE_BYTES, part, buffer + done);
		} else {
			result = gcr_folder_read_file(file->fd, at, part, buffer + done, &got);
		}
		/* What cannot be read is an error, and nothing else that it could be taken for. */
		if (result < 0)
			return result == -EBADMSG ? -EIO : result;
		done += got;
		if (got < part)
			break;
	}
	*ret_size = done;
	return 0;
}

/* Is there data in this piece because it is packed? */
static bool is_packed_data(const struct gcr_pack_table *table, uint64_t piece)
{
	return gcr_pack_table_is_packed(table, piece) && !gcr_pack_table_is_hole(table, piece);
}

static int64_t seek_data(const struct gcr_pack_table *table, int fd, uint64_t offset)
{
	off_t in_file = lseek(fd, (off_t)offset, SEEK_DATA);
	uint64_t pieces = gcr_pack_table_pieces(table);
	uint64_t piece = offset / PIECE_BYTES;
	uint64_t packed;

	if (in_file < 0 && errno != ENXIO)
		return -errno;
	if (in_file >= 0 && (uint64_t)in_file / PIECE_BYTES < pieces)
		pieces = (uint64_t)in_file / PIECE_BYTES + 1;
	while (piece < pieces && !is_packed_data(table, piece))
		piece++;
	if (piece == pieces)
		return in_file < 0 ? -ENXIO : in_file;
	packed = piece * PIECE_BYTES < offset ? offset : piece * PIECE_BYTES;
	return in_file >= 0 && (uint64_t)in_file < packed ? in_file : (int64_t)packed;
}

static int64_t seek_hole(const struct gcr_pack_table *table, int fd, uint64_t offset, uint64_t size)
{
	while (offset < size) {
		uint64_t piece = offset / PIECE_BYTES;
		off_t hole;

		if (!is_packed_data(table, piece)) {
			hole = lseek(fd, (off_t)offset, SEEK_HOLE);
			if (hole < 0)
				return -errno;
			if (!is_packed_data(table, (uint64_t)hole / PIECE_BYTES))
				return hole;
			piece = (uint64_t)hole / PIECE_BYTES;
		}
		offset = (piece + 1) * PIECE_BYTES;
	}
	return (int64_t)size;
}

int64_t gcr_folder_seek_packed(struct gcr_folder_file *file, int64_t offset, int whence)
{
	const struct gcr_pack_table *table = file->inode->packed->table;
	struct stat stat;

	if (fstat(file->fd, &stat) < 0)
		return -errno;
	if (offset < 0 || offset >= stat.st_size)
		return -ENXIO;
	return whence == SEEK_DATA
		       ? seek_data(table, file->fd, (uint64_t)offset)
		       : seek_hole(table, file->fd, (uint64_t)offset, (uint64_t)stat.st_size);
}

/* ---- changes of a file ---- */

/* All of it from @first on; a piece that is not all there is none. */
static uint64_t first_whole(uint64_t offset)
{
	return gcr_pack_pieces(offset);
}

static struct gcr_folder_pieces piece_of(uint64_t offset)
{
	return (struct gcr_folder_pieces){offset / PIECE_BYTES, offset / PIECE_BYTES + 1};
}

static void plan_cut(uint64_t size, uint64_t bytes, struct gcr_folder_plan *plan)
{
	uint64_t ends = bytes < size ? bytes : size;

	if (ends % PIECE_BYTES)
		plan->unpacked[0] = piece_of(ends);
	plan->gone = (struct gcr_folder_pieces){first_whole(bytes), UINT64_MAX};
	plan->file_bytes = bytes;
}

static void plan_punch(uint64_t size, uint64_t offset, uint64_t end, struct gcr_folder_plan *plan)
{
	if (offset % PIECE_BYTES)
		plan->unpacked[0] = piece_of(offset);
	if (end < size && end % PIECE_BYTES)
		plan->unpacked[1] = piece_of(end);
	plan->gone = (struct gcr_folder_pieces){
		first_whole(offset), end < size ? end / PIECE_BYTES : gcr_pack_pieces(size)};
}

/* What is to have data; its old end has another piece's length then. */
static void plan_data(uint64_t size, uint64_t offset, uint64_t end, bool keeps_size,
		      struct gcr_folder_plan *plan)
{
	uint64_t from = offset < size || keeps_size ? offset : size;

	if (offset == end)
		return;
	plan->unpacked[0] = (struct gcr_folder_pieces){from / PIECE_BYTES, gcr_pack_pieces(end)};
	if (!keeps_size && end > size)
		plan->file_bytes = end;
}

/* Huge pages that it takes beyond those between @offset and @end, which somebody else counts. */
static uint64_t sum_further(const struct gcr_pack_table *table, const struct gcr_folder_plan *plan,
			    uint64_t offset, uint64_t end)
{
	uint64_t pieces = gcr_pack_table_pieces(table);
	uint64_t bytes = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(plan->unpacked); i++)
		for (uint64_t piece = plan->unpacked[i].first;
		     piece < plan->unpacked[i].end && piece < pieces; piece++)
			if (is_packed_data(table, piece) &&
			    (piece < offset / PIECE_BYTES || piece >= gcr_pack_pieces(end)))
				bytes += PIECE_BYTES;
	return bytes;
}

int gcr_folder_plan(struct gcr_folder_file *file, enum gcr_folder_change kind, uint64_t offset,
		    uint64_t end, struct gcr_folder_plan *ret_plan)
{
	const struct gcr_folder_packed *packed = file->inode->packed;
	struct gcr_folder_plan plan;
	struct stat stat;
	uint64_t size;

	if (fstat(file->fd, &stat) < 0)
		return -errno;
	size = (uint64_t)stat.st_size;
	plan = (struct gcr_folder_plan){.file_bytes = size};
	if (kind == GCR_FOLDER_TRUNCATE)
		plan_cut(size, end, &plan);
	else if (kind == GCR_FOLDER_PUNCH)
		plan_punch(size, offset, end, &plan);
	else
		plan_data(size, offset, end, kind == GCR_FOLDER_ALLOCATE_WITHIN, &plan);
	/* Only who writes counts what is between the two. */
	if (kind == GCR_FOLDER_TRUNCATE || kind == GCR_FOLDER_PUNCH)
		offset = end = 0;
	plan.further_bytes = sum_further(packed->table, &plan, offset, end);
	if (table_bytes(plan.file_bytes) > packed->memory_bytes)
		plan.further_bytes += table_bytes(plan.file_bytes) - packed->memory_bytes;
	*ret_plan = plan;
	return 0;
}

/* Into the file. With errors that has a hole there, as before. */
static int write_piece(struct gcr_folder_file *file, const struct gcr_pack_entry *entries,
		       uint64_t offset, size_t size)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *packer = NULL;
	_cleanup_free_ char *buffer = malloc(size);
	int result = buffer ? gcr_packer_create(&packer) : -ENOMEM;
	ssize_t written;

	if (!result)
		result = read_in_piece(file->folder->packs, packer, entries, 0, size, buffer);
	if (result == -EBADMSG)
		result = -EIO;
	if (result < 0)
		return result;
	written = gcr_folder_write_file(file->fd, buffer, size, offset);
	if (written == (ssize_t)size)
		return 0;
	fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
		  (off_t)PIECE_BYTES);
	return written < 0 ? (int)written : -ENOSPC;
}

/* Its content has not changed: the kernel thinks so. */
static void keep_times(int fd, const struct stat *before)
{
	futimens(fd, (const struct timespec[]){before->st_atim, before->st_mtim});
}

/* The room for it has been taken. Lock: change_lock. */
static int unpack(struct gcr_folder_file *file, uint64_t piece)
{
	struct gcr_folder_inode *inode = file->inode;
	struct gcr_pack_table *table = inode->packed->table;
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	struct stat before;
	int result = 0;

	if (fstat(file->fd, &before) < 0)
		return -errno;
	/* Nobody else changes it; who reads it goes on. */
	gcr_pack_table_read(table, piece, entries);
	if (!gcr_pack_table_is_hole(table, piece))
		result = write_piece(file, entries, piece * PIECE_BYTES,
				     gcr_pack_table_piece_bytes(table, piece));
	keep_times(file->fd, &before);
	if (result < 0)
		return result;
	pthread_rwlock_wrlock(&inode->pack_lock);
	gcr_pack_table_clear(table, piece);
	pthread_rwlock_unlock(&inode->pack_lock);
	gcr_packs_drop(file->folder->packs, entries, GCR_ARRAY_SIZE(entries));
	return 0;
}

int gcr_folder_carry_out(struct gcr_folder_file *file, const struct gcr_folder_plan *plan)
{
	struct gcr_folder_inode *inode = file->inode;
	const struct gcr_pack_table *table = inode->packed->table;
	uint64_t pieces = gcr_pack_table_pieces(table);
	int result = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(plan->unpacked); i++)
		for (uint64_t piece = plan->unpacked[i].first;
		     piece < plan->unpacked[i].end && piece < pieces && !result; piece++) {
			if (!gcr_pack_table_is_packed(table, piece))
				continue;
			result = gcr_folder_is_unwanted(file->folder) ? -EBUSY
								      : unpack(file, piece);
		}
	/* Whoever maps the table finds it as long as the file. */
	if (!result && plan->file_bytes > inode->packed->file_bytes) {
		pthread_rwlock_wrlock(&inode->pack_lock);
		result = gcr_folder_packed_resize(file->folder, inode->packed, plan->file_bytes);
		pthread_rwlock_unlock(&inode->pack_lock);
	}
	return result;
}

void gcr_folder_drop_gone(struct gcr_folder_file *file, const struct gcr_folder_plan *plan)
{
	uint64_t pieces = gcr_pack_table_pieces(file->inode->packed->table);

	drop_pieces(file->folder, file->inode->packed, plan->gone.first,
		    plan->gone.end < pieces ? plan->gone.end : pieces);
}

void gcr_folder_settle_packed(struct gcr_folder_file *file)
{
	struct gcr_folder_inode *inode = file->inode;
	struct gcr_folder_packed *packed = inode->packed;
	struct gcr_pack_figures figures;
	struct stat stat;

	if (!packed)
		return;
	pthread_rwlock_wrlock(&inode->pack_lock);
	/* Without memory for that, it is done when the file is opened again. */
	if (!fstat(file->fd, &stat))
		gcr_folder_packed_resize(file->folder, packed, (uint64_t)stat.st_size);
	gcr_pack_table_figures(packed->table, &figures);
	if (!figures.pieces)
		inode->packed = NULL;
	pthread_rwlock_unlock(&inode->pack_lock);
	if (figures.pieces)
		return;
	pthread_mutex_lock(&file->folder->lock);
	gcr_folder_packed_take(file->folder, inode->ino);
	pthread_mutex_unlock(&file->folder->lock);
	gcr_folder_packed_discard(file->folder, packed);
}

/* ---- packing ---- */

uint64_t gcr_folder_pieces(const struct gcr_folder_file *file)
{
	struct stat stat;

	return fstat(file->fd, &stat) < 0 ? 0 : gcr_pack_pieces((uint64_t)stat.st_size);
}

/* What it has given back is nobody's promise any more. Lock: change_lock. */
static void settle_packing(struct gcr_folder_file *file, uint64_t taken_bytes)
{
	uint64_t before = file->inode->counted_bytes;
	struct gcr_room *room = file->folder->room;

	gcr_folder_settle_packed(file);
	gcr_folder_settle_room(file, taken_bytes);
	if (room && file->inode->counted_bytes < before)
		gcr_room_shrink(room, before - file->inode->counted_bytes);
}

/*
 * Nobody but us has it open or mapped: the kernel gives a lease only then. If somebody opens it at
 * this moment we would get SIGIO, which is the end of who does not expect it; this one is ignored.
 */
static bool is_ours_alone(struct gcr_folder_file *file)
{
	struct gcr_folder_inode *inode = file->inode;
	int fd = file->fd;

	/* Who opened it first may have closed it. */
	pthread_mutex_lock(&file->folder->lock);
	if (inode->files == 1)
		dup3(fd, inode->fd, O_CLOEXEC);
	pthread_mutex_unlock(&file->folder->lock);
	if (fcntl(fd, F_SETSIG, SIGURG) < 0 || fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
		return false;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return true;
}

/* A daemon that was killed may have published pieces that the file still has. Lock: change_lock. */
static void punch_again(struct gcr_folder_file *file)
{
	const struct gcr_pack_table *table = file->inode->packed->table;
	uint64_t pieces = gcr_pack_table_pieces(table);
	off_t at = 0;

	if (gcr_folder_is_passed(file) && !is_ours_alone(file))
		return;
	gcr_folder_unmap(file->inode);
	while ((at = lseek(file->fd, at, SEEK_DATA)) >= 0 && (uint64_t)at / PIECE_BYTES < pieces) {
		uint64_t piece = (uint64_t)at / PIECE_BYTES;

		if (gcr_pack_table_is_packed(table, piece))
			fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				  (off_t)(piece * PIECE_BYTES), (off_t)PIECE_BYTES);
		at = (off_t)((piece + 1) * PIECE_BYTES);
	}
	gcr_folder_may_map(file->inode);
	file->inode->packed->is_left = false;
}

int gcr_folder_open_to_pack(struct gcr_folder *folder, uint32_t item,
			    struct gcr_folder_file **ret_file)
{
	_cleanup_(gcr_folder_close_cleanup) struct gcr_folder_file *file = NULL;
	struct gcr_folder_inode *inode;
	int result;

	pthread_mutex_lock(&folder->lock);
	result = folder->packs ? gcr_folder_open_locked(folder, item, O_RDWR, true, &file)
			       : -EOPNOTSUPP;
	pthread_mutex_unlock(&folder->lock);
	if (!result)
		result = gcr_folder_begin_change(folder, file->epoch);
	if (result < 0)
		return result;
	inode = file->inode;
	pthread_mutex_lock(&inode->change_lock);
	if (inode->packed && inode->packed->is_left)
		punch_again(file);
	settle_packing(file, 0);
	pthread_mutex_unlock(&inode->change_lock);
	gcr_folder_end_change(folder);
	*ret_file = TAKE_PTR(file);
	return 0;
}

uint64_t gcr_folder_piece_cost(struct gcr_folder_file *file)
{
	struct gcr_folder_inode *inode = file->inode;
	uint64_t bytes = 0;
	struct stat stat;

	pthread_rwlock_rdlock(&inode->pack_lock);
	if (!inode->packed && !fstat(file->fd, &stat))
		bytes = table_bytes((uint64_t)stat.st_size);
	pthread_rwlock_unlock(&inode->pack_lock);
	return gcr_store_piece_cost(bytes);
}

static bool has_data(int fd, uint64_t piece)
{
	off_t data = lseek(fd, (off_t)(piece * PIECE_BYTES), SEEK_DATA);

	return data >= 0 && (uint64_t)data / PIECE_BYTES == piece;
}

int gcr_folder_read_piece(struct gcr_folder_file *file, uint64_t piece, void *ret_bytes,
			  size_t *ret_size, uint64_t *ret_writes)
{
	struct gcr_folder_inode *inode = file->inode;
	size_t size = 0;
	uint64_t writes;
	int result = -ENODATA;

	if (gcr_folder_is_unwanted(file->folder))
		return -EBUSY;
	/* What is being written now is read when it has been. */
	pthread_mutex_lock(&inode->change_lock);
	writes = inode->writes;
	pthread_mutex_unlock(&inode->change_lock);
	pthread_rwlock_rdlock(&inode->pack_lock);
	if ((!inode->packed || !gcr_pack_table_is_packed(inode->packed->table, piece)) &&
	    has_data(file->fd, piece))
		result = gcr_folder_read_file(file->fd, piece * PIECE_BYTES, PIECE_BYTES, ret_bytes,
					      &size);
	pthread_rwlock_unlock(&inode->pack_lock);
	if (!result && !size)
		result = -ENODATA;
	if (result < 0)
		return result;
	*ret_size = size;
	*ret_writes = writes;
	return 0;
}

/* Lock: change_lock. */
static int may_pack(struct gcr_folder_file *file, uint64_t piece, uint64_t writes)
{
	const struct gcr_folder_inode *inode = file->inode;
	struct stat stat;

	if (!file->is_packer)
		return -EBADF;
	if (fstat(file->fd, &stat) < 0)
		return -errno;
	/* Who has the other name finds holes: only this name has a table. */
	if (stat.st_nlink > 1)
		return -EMLINK;
	if (inode->writes != writes ||
	    (inode->packed && gcr_pack_table_is_packed(inode->packed->table, piece)))
		return -EAGAIN;
	if (!gcr_folder_is_passed(file))
		return 0;
	if (!is_ours_alone(file))
		return -ETXTBSY;
	pthread_mutex_lock(&file->folder->lock);
	gcr_folder_forget_passed(file->folder, inode->ino);
	pthread_mutex_unlock(&file->folder->lock);
	return 0;
}

/* What it takes is the caller's to count. Lock: change_lock. */
static int make_table(struct gcr_folder_file *file, uint64_t file_bytes)
{
	struct gcr_folder_packed *packed = calloc(1, sizeof(*packed));
	struct gcr_folder_inode *inode = file->inode;
	struct gcr_folder *folder = file->folder;
	char name[GCR_PACK_TABLE_NAME_BYTES];
	struct gcr_error error;
	int result;

	if (!packed)
		return -ENOMEM;
	packed->ino = inode->ino;
	packed->file_bytes = file_bytes;
	packed->memory_bytes = table_bytes(file_bytes);
	gcr_pack_table_name(inode->ino, name);
	/* One that is there could not be read, or its file is long gone. */
	unlinkat(folder->tables_fd, name, 0);
	result = gcr_pack_table_open(folder->tables_fd, name, file_bytes,
				     gcr_packs_uid(folder->packs), true, &packed->table, &error);
	if (result < 0) {
		free(packed);
		return result;
	}
	pthread_mutex_lock(&folder->lock);
	packed->next = folder->packed;
	folder->packed = packed;
	pthread_mutex_unlock(&folder->lock);
	pthread_rwlock_wrlock(&inode->pack_lock);
	inode->packed = packed;
	pthread_rwlock_unlock(&inode->pack_lock);
	return 0;
}

/* The one step in which it becomes packed, and its memory goes. Lock: change_lock. */
static int publish(struct gcr_folder_file *file, uint64_t piece,
		   const struct gcr_pack_entry *entries)
{
	struct gcr_folder_inode *inode = file->inode;
	struct gcr_pack_table *table = inode->packed->table;
	struct stat before;
	int result;

	if (fstat(file->fd, &before) < 0)
		return -errno;
	gcr_folder_unmap(inode);
	pthread_rwlock_wrlock(&inode->pack_lock);
	result = gcr_pack_table_publish(table, piece, entries);
	if (!result && fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				 (off_t)(piece * PIECE_BYTES), (off_t)PIECE_BYTES) < 0) {
		result = -errno;
		gcr_pack_table_clear(table, piece);
	}
	keep_times(file->fd, &before);
	pthread_rwlock_unlock(&inode->pack_lock);
	gcr_folder_may_map(inode);
	return result;
}

int gcr_folder_pack_piece(struct gcr_folder_file *file, uint64_t piece,
			  const struct gcr_pack_entry *entries, uint64_t writes)
{
	struct gcr_folder_inode *inode = file->inode;
	struct gcr_folder *folder = file->folder;
	uint64_t taken_bytes = 0;
	struct stat stat;
	int result = gcr_folder_begin_change(folder, file->epoch);

	if (result < 0)
		return result;
	pthread_mutex_lock(&inode->change_lock);
	result = may_pack(file, piece, writes);
	if (!result && fstat(file->fd, &stat) < 0)
		result = -errno;
	if (!result && !inode->packed) {
		uint64_t bytes = table_bytes((uint64_t)stat.st_size);

		result = folder->room ? gcr_room_take_promised(folder->room, bytes) : 0;
		taken_bytes = result ? 0 : bytes;
		if (!result)
			result = make_table(file, (uint64_t)stat.st_size);
	}
	if (!result)
		result = publish(file, piece, entries);
	settle_packing(file, taken_bytes);
	pthread_mutex_unlock(&inode->change_lock);
	gcr_folder_end_change(folder);
	return result == -EINVAL ? -EAGAIN : result;
}
