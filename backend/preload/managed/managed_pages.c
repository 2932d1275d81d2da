/* SPDX-License-Identifier: MIT */
#include "backend/preload/managed/managed_pages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend/preload/managed/hold.h"
#include "backend/preload/managed/managed_file.h"
#include "backend/preload/managed/touch.h"

#define WRITE_BYTES (8ull << 20) /* at most, at once */

int gcr_pages_closed_file(CUdeviceptr start, struct gcr_error *error)
{
	return gcr_error_set(error, EIO,
			     "the program has closed the file of its managed memory at 0x%llx",
			     start);
}

/* Writes the pages of @piece that the CPU has mapped into its file, and notes their hashes. */
static int write_piece(struct gcr_managed_piece *piece, struct gcr_error *error)
{
	uintptr_t at = piece->start, end = piece->start + piece->bytes;
	size_t bytes;
	int r = 0;

	while (r == 0 && at < end && gcr_touch_next(&at, end, WRITE_BYTES, &bytes)) {
		if (!gcr_descriptor_valid(&piece->file))
			return gcr_pages_closed_file(piece->start, error);
		if (!piece->newer)
			piece->newer = calloc(piece->bytes / GCR_MANAGED_PAGE_BYTES,
					      sizeof(*piece->newer));
		if (!piece->newer)
			return gcr_error_set(error, ENOMEM, "out of memory");
		r = gcr_managed_file_write(piece->file.fd, (const char *)at, bytes,
					   (off_t)(at - piece->start), error);
		for (size_t i = 0; r == 0 && i < bytes; i += GCR_MANAGED_PAGE_BYTES)
			piece->newer[(at + i - piece->start) / GCR_MANAGED_PAGE_BYTES] =
				gcr_managed_page_hash((const char *)at + i);
		at += bytes;
	}
	return r;
}

int gcr_pages_write_back(struct gcr_managed_piece *pieces, size_t count, struct gcr_error *error)
{
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++)
		if (gcr_hold_covers(pieces[i].start, pieces[i].bytes))
			r = write_piece(&pieces[i], error);
	return r;
}

int gcr_pages_take(const struct gcr_managed_piece *pieces, size_t count,
		   const struct gcr_watch *watch, struct gcr_error *error)
{
	bool may_have_taken = false;
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++) {
		const struct gcr_managed_piece *piece = &pieces[i];

		if (!gcr_hold_covers(piece->start, piece->bytes) ||
		    !gcr_touch_is_mapped(piece->start, piece->bytes))
			continue;
		may_have_taken = true;
		r = gcr_hold_empty(piece->start, piece->bytes);
	}
	/* Also after a failure: the pages of other pieces are away. */
	if (may_have_taken && !gcr_watch_stopped(watch))
		return -ENOTRECOVERABLE;
	if (r < 0)
		return gcr_error_set(error, -r,
				     "pages of managed memory cannot be taken away again: %s",
				     strerror(-r));
	return 0;
}
