/* SPDX-License-Identifier: MIT */
/*
 * Reading packed pieces. Segments are read by read(2): touching a page of a mapping that has been
 * freed would allocate it again, or raise SIGBUS; and data that is read once is unpacked from the
 * cache.
 */
#include "backend/worker/packed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/digest.h"
#include "lib/full_io.h"
#include "lib/pack.h"
#include "lib/pack_file.h"

/* Maximum number of open segments: chunks that were packed in sequence are in one segment. */
#define SEGMENTS 16

struct segment {
	uint32_t number;
	int fd;		 /* -1: none */
	bool is_spilled; /* on a disk */
};

struct gcr_packed {
	int tables_fd;
	int segments_fd;
	int table; /* of the file, -1: it has none */
	struct segment segments[SEGMENTS];
	struct gcr_packer *packer;
	uint8_t bytes[GCR_PACK_MAX_BYTES]; /* a packed chunk */
};

int gcr_packed_create(int tables_fd, int segments_fd, struct gcr_packed **ret_packed)
{
	_cleanup_(gcr_packed_destroy_cleanup) struct gcr_packed *packed = malloc(sizeof(*packed));
	int result;

	if (!packed)
		return -ENOMEM;
	packed->tables_fd = tables_fd;
	packed->segments_fd = segments_fd;
	packed->table = -1;
	packed->packer = NULL;
	for (size_t i = 0; i < SEGMENTS; i++)
		packed->segments[i].fd = -1;
	result = gcr_packer_create(&packed->packer);
	if (result < 0)
		return result;
	*ret_packed = TAKE_PTR(packed);
	return 0;
}

void gcr_packed_destroy(struct gcr_packed *packed)
{
	if (!packed)
		return;
	if (packed->table >= 0)
		close(packed->table);
	for (size_t i = 0; i < SEGMENTS; i++)
		if (packed->segments[i].fd >= 0)
			close(packed->segments[i].fd);
	gcr_packer_destroy(packed->packer);
	free(packed);
}

/* Reads all @bytes; -EBADMSG if the file is too short. */
static int read_all(int fd, void *ret_bytes, size_t bytes, uint64_t at)
{
	ssize_t got = gcr_pread_all(fd, ret_bytes, bytes, at);

	if (got < 0)
		return (int)got;
	return (size_t)got == bytes ? 0 : -EBADMSG;
}

int gcr_packed_open(struct gcr_packed *packed, ino_t ino, uint64_t file_bytes)
{
	char name[GCR_PACK_TABLE_NAME_BYTES];
	struct gcr_pack_table_header header = {0};
	_cleanup_close_ int fd = -1;
	int result;

	if (packed->table >= 0)
		close(TAKE_FD(packed->table));
	gcr_pack_table_name(ino, name);
	fd = openat(packed->tables_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	result = read_all(fd, &header, sizeof(header), 0);
	/* A table without its magic is not complete yet; nothing of the file is packed then. */
	if ((!result || result == -EBADMSG) && !header.magic[0])
		return 0;
	if (result < 0)
		return result;
	if (memcmp(header.magic, GCR_PACK_TABLE_MAGIC, sizeof(header.magic)) != 0 ||
	    header.version != GCR_PACK_TABLE_VERSION || header.chunk_bytes != GCR_CHUNK_BYTES ||
	    header.file_bytes != file_bytes)
		return -EBADMSG;
	packed->table = TAKE_FD(fd);
	return 0;
}

/*
 * Opens segment @name. A segment that was spilled to a disk (*ret_is_spilled) is a symbolic link in
 * the store; only the daemon can create links there. Returns a descriptor or -errno.
 */
static int open_segment(int segments_fd, const char *name, bool *ret_is_spilled)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
	_cleanup_close_ int fd = openat(segments_fd, name, flags);
	char target[PATH_MAX];
	struct stat directory;
	struct stat stat;
	ssize_t length;

	*ret_is_spilled = fd < 0 && errno == ELOOP;
	if (*ret_is_spilled) {
		length = readlinkat(segments_fd, name, target, sizeof(target) - 1);
		if (length < 0)
			return -errno;
		target[length] = '\0';
		fd = open(target, flags);
	}
	if (fd < 0 || fstat(fd, &stat) < 0 || fstat(segments_fd, &directory) < 0)
		return -errno;
	return S_ISREG(stat.st_mode) && stat.st_uid == directory.st_uid ? TAKE_FD(fd) : -EBADMSG;
}

/* Finds or opens the segment @number, which stays owned by @packed. 0 or -errno. */
static int find_segment(struct gcr_packed *packed, uint32_t number,
			const struct segment **ret_segment)
{
	struct segment *segment = &packed->segments[number % SEGMENTS];
	char name[16];

	*ret_segment = segment;
	if (segment->fd >= 0 && segment->number == number)
		return 0;
	if (segment->fd >= 0)
		close(TAKE_FD(segment->fd));
	snprintf(name, sizeof(name), "%u", number);
	segment->number = number;
	segment->fd = open_segment(packed->segments_fd, name, &segment->is_spilled);
	return segment->fd < 0 ? segment->fd : 0;
}

static int read_stored(struct gcr_packed *packed, int fd, const struct gcr_pack_entry *entry,
		       void *ret_bytes)
{
	uint32_t size = gcr_pack_entry_packed_bytes(entry);
	int result;

	/* Raw data needs no unpacking and is read directly into the result. */
	if (entry->form == GCR_PACK_RAW)
		return size == GCR_CHUNK_BYTES ? read_all(fd, ret_bytes, size, entry->offset)
					       : -EBADMSG;
	result = read_all(fd, packed->bytes, size, entry->offset);
	if (result < 0)
		return result;
	return gcr_unpack(packed->packer, (enum gcr_pack_form)entry->form, packed->bytes, size,
			  ret_bytes, GCR_CHUNK_BYTES);
}

static int read_chunk(struct gcr_packed *packed, const struct gcr_pack_entry *entry,
		      void *ret_bytes)
{
	const struct segment *segment;
	int result;

	if (gcr_pack_entry_bytes(entry) != GCR_CHUNK_BYTES)
		return -EBADMSG;
	if (entry->kind == GCR_PACK_ZEROS) {
		memset(ret_bytes, 0, GCR_CHUNK_BYTES);
		return 0;
	}
	if (entry->kind != GCR_PACK_STORED)
		return -EBADMSG;
	result = find_segment(packed, entry->segment, &segment);
	if (!result)
		result = read_stored(packed, segment->fd, entry, ret_bytes);
	/* A disk may return other bytes than were written. */
	if (!result && segment->is_spilled &&
	    !gcr_digest_is_of(&entry->digest, ret_bytes, GCR_CHUNK_BYTES))
		result = -EBADMSG;
	return result;
}

static bool is_zeros(const struct gcr_pack_table_piece *piece)
{
	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++)
		if (piece->entries[i].kind != GCR_PACK_ZEROS)
			return false;
	return true;
}

int gcr_packed_read(struct gcr_packed *packed, uint64_t piece, void *ret_bytes,
		    enum gcr_packed_what *ret_what)
{
	struct gcr_pack_table_piece entries;
	int result;

	*ret_what = GCR_PACKED_NOT;
	if (packed->table < 0)
		return 0;
	result = read_all(packed->table, &entries, sizeof(entries),
			  sizeof(struct gcr_pack_table_header) + piece * sizeof(entries));
	if (result < 0 || !gcr_pack_table_piece_is_packed(&entries))
		return result;
	*ret_what = GCR_PACKED_ZEROS;
	if (is_zeros(&entries))
		return 0;
	*ret_what = GCR_PACKED_BYTES;
	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS && !result; i++)
		result = read_chunk(packed, &entries.entries[i],
				    (char *)ret_bytes + i * GCR_CHUNK_BYTES);
	return result;
}
