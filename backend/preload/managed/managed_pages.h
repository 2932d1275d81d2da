/* SPDX-License-Identifier: MIT */
/*
 * The pages of held managed memory that threads got while they were being stopped for the memory to
 * come back (gcr_hold_serve() of hold.h). The threads are stopped when these functions are called.
 */
#ifndef GCR_PRELOAD_MANAGED_PAGES_H
#define GCR_PRELOAD_MANAGED_PAGES_H

#include <stddef.h>

#include "backend/preload/managed/managed_table.h"
#include "backend/preload/managed/watch.h"
#include "lib/error.h"

/*
 * Writes the pages that threads got, and may have written to, into the files of the pieces, and
 * their hashes into `newer` of the pieces. -EIO, -ENOSPC and so on, with a message; -ENOMEM.
 */
int gcr_pages_write_back(struct gcr_managed_piece *pieces, size_t count, struct gcr_error *error);

/*
 * Takes the pages away that threads got. They are in the files by now, but a thread that is let go
 * would write to its page all the same, without a page fault, and the file would lack that.
 * @watch tells whether the threads are stopped. -ENOTRECOVERABLE, without a message: the threads
 * were let go before all of these pages were away. Other errors, with a message: some of the pages
 * may be away, and no write is lost.
 */
int gcr_pages_take(const struct gcr_managed_piece *pieces, size_t count,
		   const struct gcr_watch *watch, struct gcr_error *error);

/* Sets the message for a file that the program has closed; @start: its piece. Returns -EIO. */
int gcr_pages_closed_file(CUdeviceptr start, struct gcr_error *error);

#endif
