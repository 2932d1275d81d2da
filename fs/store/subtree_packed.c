/* SPDX-License-Identifier: MIT */
/*
 * The packed pieces of a subtree's files: the tables that refer to their chunks
 * (fs/pack/pack_table.h), and reading. Packed pieces are holes of the files, but appear to users as
 * data.
 */
#include "fs/store/subtree_private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/base/log.h"
#include "fs/pack/packs.h"
#include "fs/store/store.h"
#include "lib/beneath.h"
#include "lib/full_io.h"
#include "lib/pack.h"

#define PIECE_BYTES    ((uint64_t)GCR_PACK_PIECE_BYTES)
/* Tables are allocated in small pages. */
#define MEMORY_BYTES   4096
/* Pieces that are dropped at once, which is faster. */
#define DROPPED_PIECES 16

/* Number of attempts to open tables of removed files, and the pause between two attempts. */
#define ATTEMPTS     50
#define ATTEMPT_MSEC 20

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

uint64_t gcr_subtree_table_bytes(uint64_t bytes)
{
	return round_up(gcr_pack_table_bytes(bytes), MEMORY_BYTES);
}

/* ---- packed files ---- */

struct gcr_subtree_packed *gcr_subtree_packed_find(const struct gcr_subtree *subtree, ino_t ino)
{
	struct gcr_subtree_packed *packed = subtree->packed;

	while (packed && packed->ino != ino)
		packed = packed->next;
	return packed;
}

struct gcr_subtree_packed *gcr_subtree_packed_take(struct gcr_subtree *subtree, ino_t ino)
{
	struct gcr_subtree_packed **link = &subtree->packed;
	struct gcr_subtree_packed *packed;

	while (*link && (*link)->ino != ino)
		link = &(*link)->next;
	packed = *link;
	if (packed)
		*link = packed->next;
	return packed;
}

static void packed_free(struct gcr_subtree_packed *packed)
{
	gcr_pack_table_unref(packed->table);
	free(packed);
}

static int open_table(const struct gcr_subtree *subtree, struct gcr_subtree_packed *packed)
{
	char name[GCR_PACK_TABLE_NAME_BYTES];
	int result;

	gcr_pack_table_name(packed->ino, name);
	result = gcr_pack_table_open_again(subtree->tables_fd, name, packed->file_bytes,
					   gcr_packs_uid(subtree->packs), &packed->figures,
					   &packed->table);
	return result == -ENOENT || result == -EPROTO ? -EIO : result;
}

struct gcr_pack_table *gcr_subtree_packed_close(struct gcr_subtree_packed *packed)
{
	gcr_pack_table_figures(packed->table, &packed->figures);
	return TAKE_PTR(packed->table);
}

static void get_figures(const struct gcr_subtree_packed *packed,
			struct gcr_pack_figures *ret_figures)
{
	if (packed->table)
		gcr_pack_table_figures(packed->table, ret_figures);
	else
		*ret_figures = packed->figures;
}

void gcr_subtree_packed_drop(struct gcr_subtree *subtree, struct gcr_subtree_packed *packed,
			     uint64_t first, uint64_t end)
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
		gcr_packs_drop(subtree->packs, entries, count);
		count = 0;
	}
	gcr_packs_drop(subtree->packs, entries, count);
}

/* The state of dropping the chunks of removed files. */
struct going {
	unsigned int attempts; /* retries left, for all files together */
	unsigned int lost;     /* tables that cannot be opened, so their chunks are unknown */
	int result;	       /* the error of the last one */
};

/* Open the table of a removed file: -EIO, -EMFILE, ... */
static int open_going(struct gcr_subtree *subtree, struct gcr_subtree_packed *packed,
		      struct going *going)
{
	int result = packed->table ? 0 : open_table(subtree, packed);

	for (; gcr_store_may_try_again(result) && going->attempts; going->attempts--) {
		poll(NULL, 0, ATTEMPT_MSEC);
		result = open_table(subtree, packed);
	}
	return result;
}

/* Drops the chunks of a removed file, removes its table, and frees @packed. */
static void discard(struct gcr_subtree *subtree, struct gcr_subtree_packed *packed,
		    struct going *going)
{
	char name[GCR_PACK_TABLE_NAME_BYTES];
	int result = open_going(subtree, packed, going);

	if (result < 0) {
		going->lost++;
		going->result = result;
	} else {
		gcr_subtree_packed_drop(subtree, packed, 0, gcr_pack_table_pieces(packed->table));
	}
	gcr_pack_table_name(packed->ino, name);
	unlinkat(subtree->tables_fd, name, 0);
	packed_free(packed);
}

static void tell_lost(const struct going *going)
{
	if (going->lost)
		gcr_log(LOG_WARNING, 0,
			"packed chunks of files that are gone stay until the next start: tables "
			"(%u) cannot be read: %s",
			going->lost, strerror(-going->result));
}

void gcr_subtree_packed_discard(struct gcr_subtree *subtree, struct gcr_subtree_packed *packed)
{
	struct going going = {.attempts = ATTEMPTS};

	if (!packed)
		return;
	discard(subtree, packed, &going);
	tell_lost(&going);
}

/* Puts a list of packed files back into the subtree's list. Lock: subtree. */
static void put_back_locked(struct gcr_subtree *subtree, struct gcr_subtree_packed *packed)
{
	while (packed) {
		struct gcr_subtree_packed *next = packed->next;

		packed->next = subtree->packed;
		subtree->packed = packed;
		packed = next;
	}
}

int gcr_subtree_discard_packed(struct gcr_subtree *subtree)
{
	struct gcr_subtree_packed *gone = NULL;
	struct gcr_subtree_packed **link;
	struct going going = {0};
	int result = 0;

	pthread_mutex_lock(&subtree->lock);
	subtree->is_going = true;
	for (link = &subtree->packed; *link;) {
		struct gcr_subtree_packed *packed = *link;

		if (gcr_subtree_inode_find(subtree, packed->ino)) {
			link = &packed->next;
			continue;
		}
		*link = packed->next;
		packed->next = gone;
		gone = packed;
	}
	pthread_mutex_unlock(&subtree->lock);
	while (gone) {
		struct gcr_subtree_packed *packed = gone;

		result = packed->table ? 0 : open_table(subtree, packed);
		if (gcr_store_may_try_again(result))
			break;
		gone = packed->next;
		discard(subtree, packed, &going);
		result = 0;
	}
	pthread_mutex_lock(&subtree->lock);
	put_back_locked(subtree, gone);
	pthread_mutex_unlock(&subtree->lock);
	tell_lost(&going);
	return result;
}

void gcr_subtree_packed_finish(struct gcr_subtree *subtree)
{
	while (subtree->packed)
		packed_free(gcr_subtree_packed_take(subtree, subtree->packed->ino));
	gcr_packs_unref(subtree->packs);
	if (subtree->tables_fd >= 0)
		close(subtree->tables_fd);
}

uint64_t gcr_subtree_packed_bytes(const struct gcr_subtree_packed *packed)
{
	return packed ? packed->memory_bytes : 0;
}

int gcr_subtree_packed_resize(struct gcr_subtree *subtree, struct gcr_subtree_packed *packed,
			      uint64_t bytes)
{
	int result;

	if (packed->file_bytes == bytes)
		return 0;
	gcr_subtree_packed_drop(subtree, packed, gcr_pack_pieces(bytes),
				gcr_pack_pieces(packed->file_bytes));
	result = gcr_pack_table_resize(packed->table, bytes);
	if (result < 0)
		return result;
	packed->file_bytes = bytes;
	if (packed->memory_bytes < gcr_subtree_table_bytes(bytes))
		packed->memory_bytes = gcr_subtree_table_bytes(bytes);
	return 0;
}

int gcr_subtree_packed_open(struct gcr_subtree *subtree, ino_t ino, uint64_t file_bytes,
			    struct gcr_subtree_packed **ret_packed)
{
	struct gcr_subtree_packed *packed = gcr_subtree_packed_find(subtree, ino);
	int result = packed ? open_table(subtree, packed) : 0;

	if (packed && !result) {
		/* A daemon may have been killed before it resized the table. */
		result = gcr_subtree_packed_resize(subtree, packed, file_bytes);
		if (result < 0)
			gcr_pack_table_unref(gcr_subtree_packed_close(packed));
	}
	if (!result)
		*ret_packed = packed;
	return result;
}

/* Add the blocks of packed pieces, so that these count as if they were in the file. */
static void add_blocks(const struct gcr_subtree_packed *packed, struct stat *stat)
{
	uint64_t unit = (uint64_t)stat->st_blksize;
	uint64_t bytes = (uint64_t)stat->st_blocks * 512;
	uint64_t most = round_up((uint64_t)stat->st_size, unit);
	struct gcr_pack_figures figures;

	get_figures(packed, &figures);
	/* A piece that is being packed may be counted in both. */
	most = most < bytes ? bytes : most;
	bytes += round_up(figures.packed_bytes - figures.hole_bytes, unit);
	stat->st_blocks = (blkcnt_t)((bytes < most ? bytes : most) / 512);
}

int gcr_subtree_stat_fd(const struct gcr_subtree *subtree, int fd, struct stat *ret_stat)
{
	const struct gcr_subtree_packed *packed;
	struct stat stat;

	if (fstat(fd, &stat) < 0)
		return -errno;
	packed = S_ISREG(stat.st_mode) ? gcr_subtree_packed_find(subtree, stat.st_ino) : NULL;
	if (packed)
		add_blocks(packed, &stat);
	*ret_stat = stat;
	return 0;
}

/* ---- tables ---- */

int gcr_subtree_packed_create(struct gcr_subtree *subtree, ino_t ino, uint64_t file_bytes,
			      struct gcr_subtree_packed **ret_packed)
{
	struct gcr_subtree_packed *packed = calloc(1, sizeof(*packed));
	char name[GCR_PACK_TABLE_NAME_BYTES];
	struct gcr_error error;
	int result;

	if (!packed)
		return -ENOMEM;
	packed->ino = ino;
	packed->file_bytes = file_bytes;
	packed->memory_bytes = gcr_subtree_table_bytes(file_bytes);
	gcr_pack_table_name(ino, name);
	/* An existing table was unreadable, or belongs to a file removed long ago. */
	unlinkat(subtree->tables_fd, name, 0);
	result = gcr_pack_table_open(subtree->tables_fd, name, file_bytes,
				     gcr_packs_uid(subtree->packs), true, &packed->table, &error);
	if (result < 0) {
		free(packed);
		return result;
	}
	pthread_mutex_lock(&subtree->lock);
	packed->next = subtree->packed;
	subtree->packed = packed;
	pthread_mutex_unlock(&subtree->lock);
	*ret_packed = packed;
	return 0;
}

/* Open an existing table and read the length of its file from it. */
static int open_left(int tables_fd, uid_t uid, const char *name,
		     struct gcr_subtree_packed **ret_packed)
{
	struct gcr_subtree_packed *packed = calloc(1, sizeof(*packed));
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
	gcr_pack_table_unref(gcr_subtree_packed_close(packed));
	*ret_packed = packed;
	return 0;
}

static void free_list(struct gcr_subtree_packed *list)
{
	while (list) {
		struct gcr_subtree_packed *packed = list;

		list = packed->next;
		packed_free(packed);
	}
}

/*
 * Opens all tables of the directory, except for damaged ones, whose files a thaw refuses, and
 * unfinished ones. *ret_bytes: the memory of the tables. -errno: nothing is open.
 */
static int open_all_left(int tables_fd, uid_t uid, struct gcr_subtree_packed **ret_list,
			 uint64_t *ret_bytes)
{
	_cleanup_closedir_ DIR *dir = NULL;
	struct gcr_subtree_packed *list = NULL;
	const struct dirent *entry;
	uint64_t bytes = 0;
	int result = gcr_beneath_list(tables_fd, ".", &dir);

	while (!result && (entry = readdir(dir))) {
		struct gcr_subtree_packed *packed;

		if (*entry->d_name == '.')
			continue;
		result = open_left(tables_fd, uid, entry->d_name, &packed);
		/*
		 * The table is damaged, and its file has holes, which a thaw finds out; or the
		 * table was never finished.
		 */
		if (result == -EPROTO || result == -ENOENT)
			result = 0;
		else if (!result) {
			packed->next = list;
			list = packed;
			bytes += gcr_subtree_packed_bytes(packed);
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

int gcr_subtree_attach_packs(struct gcr_subtree *subtree, struct gcr_packs *packs, int tables_fd)
{
	struct gcr_subtree_packed *list = NULL;
	uint64_t bytes = 0;
	int result = open_all_left(tables_fd, gcr_packs_uid(packs), &list, &bytes);

	if (result < 0)
		return result;
	pthread_mutex_lock(&subtree->lock);
	subtree->packs = gcr_packs_ref(packs);
	subtree->tables_fd = tables_fd;
	subtree->packed = list;
	subtree->changes++;
	pthread_mutex_unlock(&subtree->lock);
	if (subtree->room)
		gcr_room_recount(subtree->room, 0, 0, bytes);
	gcr_subtree_end_change(subtree);
	return 0;
}

struct gcr_packs *gcr_subtree_packs(struct gcr_subtree *subtree)
{
	struct gcr_packs *packs;

	pthread_mutex_lock(&subtree->lock);
	packs = subtree->packs;
	pthread_mutex_unlock(&subtree->lock);
	return packs;
}

int gcr_subtree_tables(struct gcr_subtree *subtree)
{
	int fd;

	pthread_mutex_lock(&subtree->lock);
	fd = subtree->tables_fd;
	pthread_mutex_unlock(&subtree->lock);
	return fd;
}

void gcr_subtree_pack_figures(struct gcr_subtree *subtree, struct gcr_pack_figures *ret_figures)
{
	struct gcr_pack_figures sum = {0};

	pthread_mutex_lock(&subtree->lock);
	for (const struct gcr_subtree_packed *packed = subtree->packed; packed;
	     packed = packed->next) {
		struct gcr_pack_figures figures;

		get_figures(packed, &figures);
		sum.pieces += figures.pieces;
		sum.packed_bytes += figures.packed_bytes;
		sum.packed_to_bytes += figures.packed_to_bytes;
		sum.shared_bytes += figures.shared_bytes;
		sum.zero_bytes += figures.zero_bytes;
		sum.hole_bytes += figures.hole_bytes;
	}
	pthread_mutex_unlock(&subtree->lock);
	*ret_figures = sum;
}

int gcr_subtree_each_packed(struct gcr_subtree *subtree, gcr_pack_table_visit *visit, void *data)
{
	_cleanup_free_ ino_t *inos = NULL;
	size_t count = 0;
	int result = 0;

	/* The lock is not held while all tables are read, which takes long. */
	pthread_mutex_lock(&subtree->lock);
	for (const struct gcr_subtree_packed *packed = subtree->packed; packed;
	     packed = packed->next)
		count++;
	inos = calloc(count + 1, sizeof(*inos));
	count = 0;
	for (const struct gcr_subtree_packed *packed = subtree->packed; packed && inos;
	     packed = packed->next)
		inos[count++] = packed->ino;
	pthread_mutex_unlock(&subtree->lock);
	if (!inos)
		return -ENOMEM;
	for (size_t i = 0; i < count && !result; i++) {
		char name[GCR_PACK_TABLE_NAME_BYTES];

		gcr_pack_table_name(inos[i], name);
		result = gcr_pack_table_each(subtree->tables_fd, name, visit, data);
	}
	return result;
}

/* ---- reading ---- */

static int read_chunk(struct gcr_packs *packs, struct gcr_packer *packer,
		      const struct gcr_pack_entry *entry, void *ret_bytes)
{
	return gcr_packs_read(packs, packer, entry, ret_bytes, gcr_pack_entry_bytes(entry));
}

int gcr_subtree_read_in_piece(struct gcr_packs *packs, struct gcr_packer *packer,
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

ssize_t gcr_subtree_read_packed(struct gcr_subtree_file *file, uint64_t offset, size_t size,
				char *ret_bytes)
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
		ssize_t got;

		part = part < size - done ? part : size - done;
		got = (ssize_t)part;
		if (gcr_pack_table_is_packed(table, at / PIECE_BYTES)) {
			gcr_pack_table_read(table, at / PIECE_BYTES, entries);
			result = gcr_subtree_read_in_piece(file->subtree->packs, packer, entries,
							   at % PIECE_BYTES, part,
							   ret_bytes + done);
			if (result < 0)
				got = result;
		} else {
			got = gcr_pread_all(file->fd, ret_bytes + done, part, at);
		}
		/* Damaged chunks give -EIO, which cannot be mistaken for another condition. */
		if (got < 0)
			return got == -EBADMSG ? -EIO : got;
		done += (size_t)got;
		if ((size_t)got < part)
			break;
	}
	return (ssize_t)done;
}

bool gcr_subtree_packed_has_data(const struct gcr_pack_table *table, uint64_t piece)
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
	while (piece < pieces && !gcr_subtree_packed_has_data(table, piece))
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

		if (!gcr_subtree_packed_has_data(table, piece)) {
			hole = lseek(fd, (off_t)offset, SEEK_HOLE);
			if (hole < 0)
				return -errno;
			if (!gcr_subtree_packed_has_data(table, (uint64_t)hole / PIECE_BYTES))
				return hole;
			piece = (uint64_t)hole / PIECE_BYTES;
		}
		offset = (piece + 1) * PIECE_BYTES;
	}
	return (int64_t)size;
}

int64_t gcr_subtree_seek_packed(struct gcr_subtree_file *file, int64_t offset, int whence)
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
