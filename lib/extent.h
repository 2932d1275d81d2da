/* SPDX-License-Identifier: MIT */
/*
 * The table of a process's memory (struct gcr_extent): the names of the extents' files, and
 * reading, checking and writing the table.
 */
#ifndef GCR_EXTENT_H
#define GCR_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/error.h"
#include "lib/protocol.h"

#define GCR_EXTENT_NAME_BYTES 48 /* with its NUL */

/*
 * Writes the name of the extent's file: "gpu0-7f3a40000000" for device memory (GPU by the daemon's
 * index, address in hexadecimal), "gpu0-unmapped-17" for a handle that is mapped nowhere (its id),
 * "managed-7f3a40000000" for managed memory.
 */
void gcr_extent_name(const struct gcr_extent *extent, char ret_name[GCR_EXTENT_NAME_BYTES]);

/* Would both extents have the same file: one of the same name and length? */
bool gcr_extent_same_file(const struct gcr_extent *left, const struct gcr_extent *right);

/*
 * Checks one extent by itself. Returns a message such as "bytes: they are no multiple of 2 MiB";
 * NULL: the extent is valid.
 */
const char *gcr_extent_fault(const struct gcr_extent *extent);

/*
 * Do any two extents overlap, or are any two unmapped with the same id? 0: no; -EEXIST: yes,
 * *ret_first and *ret_second are their indexes; -ENOMEM.
 */
int gcr_extents_overlap(const struct gcr_extent *extents, size_t count, size_t *ret_first,
			size_t *ret_second);

/*
 * Reads @count extents from the memfd @fd, which may have been written by any process. Every extent
 * is checked: kind, bytes (not 0, aligned, no overflow of address or sum); no two overlap or, if
 * they are not mapped, have the same id; device memory comes before managed memory. The caller
 * frees the array, which is NULL if @count is 0. Errors, with a message: -EPROTO not such a table,
 * -E2BIG, -ENOMEM.
 */
int gcr_extents_read(int fd, size_t count, struct gcr_extent **ret_extents,
		     struct gcr_error *error);

/* As gcr_extents_read(), from @offset of any file. */
int gcr_extents_read_at(int fd, uint64_t offset, size_t count, struct gcr_extent **ret_extents,
			struct gcr_error *error);

/* Returns a sealed memfd with the table, which the caller closes, or -errno. */
int gcr_extents_write(const struct gcr_extent *extents, size_t count);

#endif
