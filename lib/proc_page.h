/* SPDX-License-Identifier: MIT */
/*
 * Pages of preload libraries (struct gcr_page), read and changed from outside by the file alone.
 * Memory of a process is never written to: what stands at an address may be another program's a
 * moment later. All of it by way of the source (lib/proc_source.h), if there is one.
 */
#ifndef GCR_LIB_PROC_PAGE_H
#define GCR_LIB_PROC_PAGE_H

#include <stddef.h>
#include <sys/types.h>

#include "lib/error.h"
#include "lib/page.h"

/*
 * Every page that @pid has open says that its library is not parked any more. A file that is only
 * called like a page is not asked, opened or changed. 0 also if @pid has none; -ESRCH, -EACCES, ...
 */
int gcr_proc_unpark_pages(pid_t pid);

/* gcr_page_read() and gcr_page_unpark() of a page that @pid has sent us; @fd stays the caller's. */
int gcr_proc_page_facts(pid_t pid, int fd, struct gcr_page_facts *ret_facts);
int gcr_proc_unpark_page(pid_t pid, int fd);

/*
 * The table of allocations that @pid has sent us as the memfd @fd, which stays the caller's.
 * *ret_extents is the caller's (free). With words, as gcr_extents_read(); -ETIMEDOUT, -EBUSY: the
 * file does not let itself be read.
 */
int gcr_proc_extents(pid_t pid, int fd, struct gcr_extent **ret_extents, size_t *ret_count,
		     struct gcr_error *error);

#endif
