/* SPDX-License-Identifier: MIT */
/*
 * Reading and changing pages of preload libraries (struct gcr_page) from outside, through their
 * files only. A process's memory is never written: its addresses can belong to another program a
 * moment later. All functions go through the source (lib/proc_source.h) if one is set.
 */
#ifndef GCR_LIB_PROC_PAGE_H
#define GCR_LIB_PROC_PAGE_H

#include <stddef.h>
#include <sys/types.h>

#include "lib/error.h"
#include "lib/page.h"

/*
 * Clears is_parked in every page that @pid has open. A file that only has the name of a page is not
 * opened or changed. 0 also if @pid has no page; -ESRCH, -EACCES, ...
 */
int gcr_proc_unpark_pages(pid_t pid);

/*
 * gcr_page_read() and gcr_page_unpark() for a page whose descriptor @pid has sent; @fd stays the
 * caller's.
 */
int gcr_proc_page_facts(pid_t pid, int fd, struct gcr_page_facts *ret_facts);
int gcr_proc_unpark_page(pid_t pid, int fd);

/*
 * Reads the table of allocations that @pid has sent as the memfd @fd, which stays the caller's. The
 * caller frees *ret_extents. Errors, with a message, as gcr_extents_read(); -ETIMEDOUT, -EBUSY: the
 * file could not be read in time.
 */
int gcr_proc_extents(pid_t pid, int fd, struct gcr_extent **ret_extents, size_t *ret_count,
		     struct gcr_error *error);

#endif
