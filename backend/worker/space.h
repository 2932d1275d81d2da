/* SPDX-License-Identifier: MIT */
/*
 * The memory of a session as one linear space: its extents back to back in the order of the table,
 * each with its file. All offsets are offsets in that space. The files are read and written through
 * cursors, one for each thread.
 */
#ifndef GCR_BACKEND_WORKER_SPACE_H
#define GCR_BACKEND_WORKER_SPACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/error.h"
#include "lib/protocol.h"

/* Every extent is a multiple of this, a huge page: no piece of the space belongs to two files. */
#define GCR_SPACE_PIECE_BYTES (2ull << 20)

/* The extents of a session and their files. */
struct gcr_space {
	struct gcr_extent *extents;
	uint64_t *starts;     /* of each extent, and the end: count + 1 */
	atomic_flag *writers; /* of each extent: a thread is in write(2) */
	char **pinned;	      /* of each extent: its file registered with the driver; NULL: none */
	size_t count;
	int directory;
	int tables; /* directory with the tables of packed files (packed.h); -1: none */
	int segments;
};

/*
 * Reads a table of @count extents of device memory from @table_fd. @directory_fd is taken on
 * success. Errors, with a message: as gcr_extents_read(); -EPROTO also for managed memory.
 */
int gcr_space_create(int table_fd, size_t count, int directory_fd, struct gcr_space **ret_space,
		     struct gcr_error *error);
void gcr_space_destroy(struct gcr_space *space); /* NULL is allowed */

struct gcr_pins;

/* Look up which files are registered: those are not copied through the ring. */
void gcr_space_find_pinned(struct gcr_space *space, struct gcr_pins *pins);

/* Are all files registered? */
bool gcr_space_all_pinned(const struct gcr_space *space);

/*
 * The address of @offset in a registered file, or NULL if its file is not registered. *bytes is
 * reduced to the bytes that the file has from there.
 */
char *gcr_space_pinned(const struct gcr_space *space, uint64_t offset, size_t *bytes);

/* The number of @bytes from @offset on that are in the same extent. */
size_t gcr_space_within(const struct gcr_space *space, uint64_t offset, size_t bytes);

static inline uint64_t gcr_space_bytes(const struct gcr_space *space)
{
	return space->starts[space->count];
}

/* The file that one thread has open; changes with the offset. */
struct gcr_space_cursor {
	const struct gcr_space *space;
	size_t index;		   /* of the extent */
	int fd;			   /* -1: none */
	char *map;		   /* the whole file, NULL: not mapped */
	bool dense;		   /* the file had no holes when it was opened */
	struct gcr_packed *packed; /* NULL: no file is packed, or nothing was read yet */
};

/* Makes a cursor that has no file open. */
void gcr_space_cursor_init(struct gcr_space_cursor *cursor, const struct gcr_space *space);
void gcr_space_cursor_finish(struct gcr_space_cursor *cursor);

/*
 * Writes @bytes to the files at @offset. Errors, with a message: -ENOSPC the store is full; -EIO a
 * file is missing, has another size, or cannot be written.
 */
int gcr_space_write(struct gcr_space_cursor *cursor, uint64_t offset, const void *from,
		    size_t bytes, struct gcr_error *error);

/* Makes holes of whole pieces. Errors as for writing. */
int gcr_space_punch(struct gcr_space_cursor *cursor, uint64_t offset, uint64_t bytes,
		    struct gcr_error *error);

/*
 * Reads at most 64 pieces. A piece that is a hole in its file is not read: its bit in *ret_holes is
 * set and its part of @to is not touched, not even to allocate pages. A packed piece is unpacked to
 * @to. -EIO, -ENOMEM.
 */
int gcr_space_read(struct gcr_space_cursor *cursor, uint64_t offset, void *to, size_t bytes,
		   uint64_t *ret_holes, struct gcr_error *error);

/*
 * Turns SIGBUS into an error of reading or writing; a truncated file or a page with a memory error
 * raises that signal on access. Call once in a process.
 */
void gcr_space_catch_bus_errors(void);

#endif
