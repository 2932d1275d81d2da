/* SPDX-License-Identifier: MIT */
/*
 * Pages of preload libraries (struct gcr_page), changed from outside by the file alone. Memory of a
 * process is never written to: what stands at an address may be another program's a moment later.
 */
#ifndef GCR_LIB_PROC_PAGE_H
#define GCR_LIB_PROC_PAGE_H

#include <sys/types.h>

/*
 * Every page that @pid has open says that its library is not parked any more. A file that is only
 * called like a page is not asked, opened or changed. By way of the source (lib/proc_source.h), if
 * there is one. 0 also if @pid has none; -ESRCH, -EACCES, ...
 */
int gcr_proc_unpark_pages(pid_t pid);

#endif
