/* SPDX-License-Identifier: MIT */
/* The table of a process's memory (struct gcr_extent): its file names, and reading it. */
#ifndef GCR_EXTENT_H
#define GCR_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/error.h"
#include "lib/protocol.h"

#define GCR_EXTENT_NAME_BYTES 48 /* with its NUL */

/*
 * "gpu0-7f3a40000000" for device memory (GPU by the daemon's index, address in hexadecimal),
 * "gpu0-unmapped-17" for a handle that is mapped nowhere (its id), "managed-7f3a40000000".
 */
void gcr_extent_name(const struct gcr_extent *extent, char ret_name[GCR_EXTENT_NAME_BYTES]);

/* Would both have the same file: one of the same name and length? */
bool gcr_extent_same_file(const struct gcr_extent *left, const struct gcr_extent *right);

/* What cannot be with this one by itself, as "bytes: they are no multiple of 2 MiB"; NULL: nothing.
 */
const char *gcr_extent_fault(const struct gcr_extent *extent);

/*
 * Are any two of them at one place, or unmapped and the same? 0: none; -EEXIST: *ret_first and
 * *ret_second are; -ENOMEM.
 */
int gcr_extents_overlap(const struct gcr_extent *extents, size_t count, size_t *ret_first,
			size_t *ret_second);

/*
 * Read @count extents from the memfd @fd, which may be anybody's. Every one is checked: kind, bytes
 * (not 0, aligned, no overflow of address or sum), no two with the same name, device memory before
 * managed memory. The array is the caller's (free); NULL if @count is 0.
 * Errors, with words: -EPROTO it is no such table, -E2BIG, -ENOMEM.
 */
int gcr_extents_read(int fd, size_t count, struct gcr_extent **ret_extents,
		     struct gcr_error *error);

/* The same from @offset of any file on. */
int gcr_extents_read_at(int fd, uint64_t offset, size_t count, struct gcr_extent **ret_extents,
			struct gcr_error *error);

/* A sealed memfd with the table; -errno. */
int gcr_extents_write(const struct gcr_extent *extents, size_t count);

#endif
