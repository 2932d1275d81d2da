/* SPDX-License-Identifier: MIT */
/*
 * The mapped table of one file. All of its pages have memory before its header is written, so that
 * an access never finds the store full. The lock guards the figures, and changes of the mapping,
 * for threads that read the figures while another thread uses the table.
 */
#include "fs/pack/pack_table.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/full_io.h"
#include "lib/lock.h"

#ifndef MADV_POPULATE_WRITE /* Linux 5.14, <asm-generic/mman-common.h> */
#define MADV_POPULATE_WRITE 23
#endif

/* Pieces read at once. */
#define LOOKED_PIECES 16

struct gcr_pack_table {
	atomic_int references;
	int fd;
	struct gcr_pack_table_header *map;
	uint64_t map_bytes;

	pthread_mutex_t lock;
	struct gcr_pack_figures figures;
};

static struct gcr_pack_table_piece *piece_of(const struct gcr_pack_table *table, uint64_t piece)
{
	return (struct gcr_pack_table_piece *)(table->map + 1) + piece;
}

uint64_t gcr_pack_table_pieces(const struct gcr_pack_table *table)
{
	return gcr_pack_pieces(table->map->file_bytes);
}

static uint32_t piece_bytes(uint64_t file_bytes, uint64_t piece)
{
	uint64_t left = file_bytes - piece * GCR_PACK_PIECE_BYTES;

	return left < GCR_PACK_PIECE_BYTES ? (uint32_t)left : GCR_PACK_PIECE_BYTES;
}

uint32_t gcr_pack_table_piece_bytes(const struct gcr_pack_table *table, uint64_t piece)
{
	return piece_bytes(table->map->file_bytes, piece);
}

/* ---- the entries of a piece ---- */

static bool is_entry(const struct gcr_pack_entry *entry, uint32_t bytes)
{
	switch (entry->kind) {
	case GCR_PACK_ZEROS:
		return gcr_pack_entry_bytes(entry) == bytes;
	case GCR_PACK_STORED:
	case GCR_PACK_LOST:
		return gcr_pack_entry_bytes(entry) == bytes &&
		       entry->packed_bytes_less_1 <= entry->bytes_less_1;
	default:
		return false;
	}
}

static bool are_entries(const struct gcr_pack_entry *entries, uint32_t bytes)
{
	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++) {
		uint32_t part = bytes < GCR_CHUNK_BYTES ? bytes : GCR_CHUNK_BYTES;

		if (part ? !is_entry(&entries[i], part) : entries[i].kind != GCR_PACK_NOTHING)
			return false;
		bytes -= part;
	}
	return true;
}

static struct gcr_pack_figures figures_of(const struct gcr_pack_entry *entries)
{
	struct gcr_pack_figures figures = {.pieces = 1};

	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++) {
		const struct gcr_pack_entry *entry = &entries[i];
		uint32_t bytes = gcr_pack_entry_bytes(entry);

		if (entry->kind == GCR_PACK_NOTHING)
			continue;
		figures.packed_bytes += bytes;
		if (entry->kind == GCR_PACK_ZEROS)
			figures.zero_bytes += bytes;
		else if (entry->kind == GCR_PACK_STORED && entry->flags & GCR_PACK_FLAG_SHARED)
			figures.shared_bytes += bytes;
		else if (entry->kind == GCR_PACK_STORED)
			figures.packed_to_bytes += gcr_pack_entry_packed_bytes(entry);
	}
	if (figures.zero_bytes == figures.packed_bytes)
		figures.hole_bytes = figures.packed_bytes;
	return figures;
}

/*
 * Adds the figures of a piece that is packed now (@sign 1), or subtracts those of a piece that is
 * not packed any more (-1).
 */
static void count(struct gcr_pack_table *table, const struct gcr_pack_entry *entries, int64_t sign)
{
	struct gcr_pack_figures one = figures_of(entries);
	uint64_t factor = (uint64_t)sign;

	GCR_LOCK_SCOPE(&table->lock);
	table->figures.pieces += factor * one.pieces;
	table->figures.packed_bytes += factor * one.packed_bytes;
	table->figures.packed_to_bytes += factor * one.packed_to_bytes;
	table->figures.shared_bytes += factor * one.shared_bytes;
	table->figures.zero_bytes += factor * one.zero_bytes;
	table->figures.hole_bytes += factor * one.hole_bytes;
}

/* ---- the file ---- */

/*
 * Maps the first @bytes of the file, with memory for all of them if @populate. Uses small pages:
 * with a huge page for each small file the tables would take more than packing gains. -ENOSPC;
 * -EOPNOTSUPP: the kernel cannot populate; -errno.
 */
static int map_table(int fd, uint64_t bytes, bool populate, void **ret_map)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		return -errno;
	madvise(map, bytes, MADV_NOHUGEPAGE); /* EINVAL if there are no huge pages */
	if (populate && madvise(map, bytes, MADV_POPULATE_WRITE) < 0) {
		int result = errno == EFAULT ? -ENOSPC : errno == EINVAL ? -EOPNOTSUPP : -errno;

		munmap(map, bytes);
		return result;
	}
	*ret_map = map;
	return 0;
}

static int grow_file(struct gcr_pack_table *table, uint64_t bytes)
{
	int result;
	void *map;

	if (ftruncate(table->fd, (off_t)bytes) < 0)
		return -errno;
	result = map_table(table->fd, bytes, true, &map);
	if (result < 0)
		return ftruncate(table->fd, (off_t)table->map_bytes) < 0 ? -errno : result;
	GCR_LOCK_SCOPE(&table->lock);
	if (table->map)
		munmap(table->map, table->map_bytes);
	table->map = map;
	table->map_bytes = bytes;
	return 0;
}

/* The first byte of the magic is written last, and marks the header as complete. */
static void write_header(struct gcr_pack_table_header *header, uint64_t file_bytes, uid_t uid)
{
	static const char magic[] = GCR_PACK_TABLE_MAGIC;

	header->version = GCR_PACK_TABLE_VERSION;
	header->chunk_bytes = GCR_CHUNK_BYTES;
	header->file_bytes = file_bytes;
	header->uid = uid;
	memcpy(header->magic + 1, magic + 1, sizeof(header->magic) - 1);
	__atomic_store_n(&header->magic[0], magic[0], __ATOMIC_RELEASE);
}

/*
 * Checks the header. -ENOENT: the table was never finished; -EPROTO: damaged, or of another user.
 */
static int check_header(int fd, uid_t uid, uint64_t table_bytes)
{
	struct gcr_pack_table_header header = {0};

	if (pread(fd, &header, sizeof(header), 0) < 0)
		return -errno;
	if (!*header.magic)
		return -ENOENT;
	if (memcmp(header.magic, GCR_PACK_TABLE_MAGIC, sizeof(header.magic)) ||
	    header.version != GCR_PACK_TABLE_VERSION || header.chunk_bytes != GCR_CHUNK_BYTES ||
	    header.uid != uid || header.file_bytes > INT64_MAX / 2 ||
	    gcr_pack_table_bytes(header.file_bytes) > table_bytes)
		return -EPROTO;
	return 0;
}

/* Validates the packed pieces and adds up their figures. -EPROTO: a piece is damaged. */
static int check_pieces(struct gcr_pack_table *table)
{
	uint64_t pieces = gcr_pack_table_pieces(table);

	for (uint64_t i = 0; i < pieces; i++) {
		const struct gcr_pack_entry *entries = piece_of(table, i)->entries;

		if (!gcr_pack_table_is_packed(table, i))
			continue;
		if (!are_entries(entries, gcr_pack_table_piece_bytes(table, i)))
			return -EPROTO;
		count(table, entries, 1);
	}
	return 0;
}

/* Maps the existing table. Errors as of check_header(), and -errno of the mapping. */
static int map_left(struct gcr_pack_table *table, uid_t uid)
{
	struct stat stat;
	void *map;
	int result;

	if (fstat(table->fd, &stat) < 0)
		return -errno;
	if (!S_ISREG(stat.st_mode))
		return -EPROTO;
	result = check_header(table->fd, uid, (uint64_t)stat.st_size);
	if (!result)
		result = map_table(table->fd, (uint64_t)stat.st_size, false, &map);
	if (result < 0)
		return result;
	table->map = map;
	table->map_bytes = (uint64_t)stat.st_size;
	return 0;
}

static int load(struct gcr_pack_table *table, uid_t uid)
{
	int result = map_left(table, uid);

	return result < 0 ? result : check_pieces(table);
}

static int create_or_load(struct gcr_pack_table *table, uint64_t file_bytes, uid_t uid, bool create)
{
	int result = load(table, uid);

	if (result == -ENOENT && create) {
		result = grow_file(table, gcr_pack_table_bytes(file_bytes));
		if (!result)
			write_header(table->map, file_bytes, uid);
	} else if (!result && table->map->file_bytes != file_bytes) {
		result = gcr_pack_table_resize(table, file_bytes);
	}
	return result == -EINVAL ? -EPROTO : result;
}

/* Opens the file of this name without mapping it. -ENOMEM, ... */
static int open_file(int directory_fd, const char *name, int flags,
		     struct gcr_pack_table **ret_table)
{
	_cleanup_(gcr_pack_table_unref_cleanup) struct gcr_pack_table *table =
		calloc(1, sizeof(*table));

	if (!table)
		return -ENOMEM;
	atomic_init(&table->references, 1);
	pthread_mutex_init(&table->lock, NULL);
	table->fd = openat(directory_fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
	if (table->fd < 0)
		return -errno;
	*ret_table = TAKE_PTR(table);
	return 0;
}

int gcr_pack_table_open(int directory_fd, const char *name, uint64_t file_bytes, uid_t uid,
			bool create, struct gcr_pack_table **ret_table, struct gcr_error *error)
{
	_cleanup_(gcr_pack_table_unref_cleanup) struct gcr_pack_table *table = NULL;
	int result = open_file(directory_fd, name, create ? O_CREAT : 0, &table);

	if (!result)
		result = create_or_load(table, file_bytes, uid, create);
	if (result < 0) {
		/* A table that was never finished has no contents. */
		if (create && table && check_header(table->fd, uid, 0) == -ENOENT)
			unlinkat(directory_fd, name, 0);
		return gcr_error_set(error, -result, "the table of packed chunks of %s: %s", name,
				     result == -EPROTO ? "it is damaged, or not of this file"
						       : strerror(-result));
	}
	*ret_table = TAKE_PTR(table);
	return 0;
}

int gcr_pack_table_open_again(int directory_fd, const char *name, uint64_t file_bytes, uid_t uid,
			      const struct gcr_pack_figures *figures,
			      struct gcr_pack_table **ret_table)
{
	_cleanup_(gcr_pack_table_unref_cleanup) struct gcr_pack_table *table = NULL;
	int result = open_file(directory_fd, name, 0, &table);

	if (!result)
		result = map_left(table, uid);
	if (!result && table->map->file_bytes != file_bytes)
		result = -EPROTO;
	if (result < 0)
		return result == -ELOOP ? -EPROTO : result;
	table->figures = *figures;
	*ret_table = TAKE_PTR(table);
	return 0;
}

/*
 * Reads the header, which is checked when the table is opened. -ENOENT: the table was never
 * finished; -EPROTO: the name is not a regular file's; -errno.
 */
static int read_header(int directory_fd, const char *name, struct gcr_pack_table_header *ret_header,
		       uint64_t *ret_table_bytes)
{
	_cleanup_close_ int fd = openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	struct stat stat;

	*ret_header = (struct gcr_pack_table_header){0};
	if (fd < 0)
		return errno == ELOOP ? -EPROTO : -errno;
	if (fstat(fd, &stat) < 0)
		return -errno;
	if (!S_ISREG(stat.st_mode))
		return -EPROTO;
	if (pread(fd, ret_header, sizeof(*ret_header), 0) < 0)
		return -errno;
	*ret_table_bytes = (uint64_t)stat.st_size;
	return *ret_header->magic ? 0 : -ENOENT;
}

int gcr_pack_table_open_left(int directory_fd, const char *name, uid_t uid,
			     struct gcr_pack_table **ret_table, uint64_t *ret_file_bytes,
			     uint64_t *ret_table_bytes)
{
	struct gcr_pack_table_header header;
	uint64_t table_bytes = 0;
	struct gcr_error error;
	int result = read_header(directory_fd, name, &header, &table_bytes);

	if (!result)
		result = gcr_pack_table_open(directory_fd, name, header.file_bytes, uid, false,
					     ret_table, &error);
	if (result < 0)
		return result;
	*ret_file_bytes = header.file_bytes;
	*ret_table_bytes = table_bytes;
	return 0;
}

struct gcr_pack_table *gcr_pack_table_ref(struct gcr_pack_table *table)
{
	atomic_fetch_add_explicit(&table->references, 1, memory_order_relaxed);
	return table;
}

void gcr_pack_table_unref(struct gcr_pack_table *table)
{
	if (!table || atomic_fetch_sub_explicit(&table->references, 1, memory_order_acq_rel) != 1)
		return;
	if (table->map)
		munmap(table->map, table->map_bytes);
	if (table->fd >= 0)
		close(table->fd);
	pthread_mutex_destroy(&table->lock);
	free(table);
}

int gcr_pack_table_resize(struct gcr_pack_table *table, uint64_t file_bytes)
{
	uint64_t before = table->map->file_bytes;
	uint64_t smaller = before < file_bytes ? before : file_bytes;
	uint64_t pieces = gcr_pack_pieces(before);
	int result = 0;

	if (before == file_bytes)
		return 0;
	/* Pieces that are whole in both sizes stay. */
	for (uint64_t i = smaller / GCR_PACK_PIECE_BYTES; i < pieces; i++)
		if (gcr_pack_table_is_packed(table, i))
			return -EINVAL;
	if (gcr_pack_table_bytes(file_bytes) > table->map_bytes)
		result = grow_file(table, gcr_pack_table_bytes(file_bytes));
	GCR_LOCK_SCOPE(&table->lock);
	if (!result)
		table->map->file_bytes = file_bytes;
	return result;
}

/* ---- pieces ---- */

bool gcr_pack_table_is_packed(const struct gcr_pack_table *table, uint64_t piece)
{
	return piece < gcr_pack_table_pieces(table) &&
	       gcr_pack_table_piece_is_packed(piece_of(table, piece));
}

void gcr_pack_table_read(const struct gcr_pack_table *table, uint64_t piece,
			 struct gcr_pack_entry ret_entries[GCR_PACK_PIECE_CHUNKS])
{
	memcpy(ret_entries, piece_of(table, piece)->entries, sizeof(struct gcr_pack_table_piece));
}

bool gcr_pack_table_is_hole(const struct gcr_pack_table *table, uint64_t piece)
{
	const struct gcr_pack_entry *entries = piece_of(table, piece)->entries;

	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++)
		if (entries[i].kind == GCR_PACK_STORED || entries[i].kind == GCR_PACK_LOST)
			return false;
	return true;
}

int gcr_pack_table_publish(struct gcr_pack_table *table, uint64_t piece,
			   const struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS])
{
	struct gcr_pack_entry *to;

	if (piece >= gcr_pack_table_pieces(table) || gcr_pack_table_is_packed(table, piece) ||
	    !are_entries(entries, gcr_pack_table_piece_bytes(table, piece)))
		return -EINVAL;
	to = piece_of(table, piece)->entries;
	memcpy(&to[1], &entries[1], sizeof(struct gcr_pack_table_piece) - sizeof(entries[0]));
	to[0].digest = entries[0].digest;
	to[0].segment = entries[0].segment;
	to[0].offset = entries[0].offset;
	to[0].packed_bytes_less_1 = entries[0].packed_bytes_less_1;
	to[0].bytes_less_1 = entries[0].bytes_less_1;
	to[0].form = entries[0].form;
	to[0].flags = entries[0].flags;
	__atomic_store_n(&to[0].kind, entries[0].kind, __ATOMIC_RELEASE);
	count(table, entries, 1);
	return 0;
}

void gcr_pack_table_lose(struct gcr_pack_table *table, uint64_t piece, size_t first, size_t end)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];

	gcr_pack_table_read(table, piece, entries);
	count(table, entries, -1);
	for (size_t i = first; i < end; i++) {
		if (entries[i].kind != GCR_PACK_STORED)
			continue;
		__atomic_store_n(&piece_of(table, piece)->entries[i].kind, GCR_PACK_LOST,
				 __ATOMIC_RELEASE);
		entries[i].kind = GCR_PACK_LOST;
	}
	count(table, entries, 1);
}

void gcr_pack_table_clear(struct gcr_pack_table *table, uint64_t piece)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];

	if (!gcr_pack_table_is_packed(table, piece))
		return;
	gcr_pack_table_read(table, piece, entries);
	__atomic_store_n(&piece_of(table, piece)->entries[0].kind, GCR_PACK_NOTHING,
			 __ATOMIC_RELEASE);
	count(table, entries, -1);
}

/* Reads the file: a mapping could lose its end when another thread shortens the file. */
int gcr_pack_table_each(int directory_fd, const char *name, gcr_pack_table_visit *visit, void *data)
{
	struct gcr_pack_table_piece pieces[LOOKED_PIECES];
	uint64_t offset = sizeof(struct gcr_pack_table_header);
	_cleanup_close_ int fd = openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	ssize_t size;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	while ((size = gcr_pread_all(fd, pieces, sizeof(pieces), offset)) > 0) {
		size_t count = (size_t)size / sizeof(*pieces);

		for (size_t i = 0; i < count; i++)
			if (gcr_pack_table_piece_is_packed(&pieces[i]))
				visit(pieces[i].entries, data);
		if (!count)
			break;
		offset += count * sizeof(*pieces);
	}
	return size < 0 ? (int)size : 0;
}

void gcr_pack_table_figures(struct gcr_pack_table *table, struct gcr_pack_figures *ret_figures)
{
	GCR_LOCK_SCOPE(&table->lock);
	*ret_figures = table->figures;
}
