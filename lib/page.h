/* SPDX-License-Identifier: MIT */
/*
 * The page of a preload library (struct gcr_page), as read from outside the program. The page's
 * file belongs to the program, which can hold, for seconds, the locks that mapping the file and
 * accessing its memory take. So all functions but gcr_page_check() may block, and are for helpers
 * that can be killed (lib/proc_page.h).
 */
#ifndef GCR_PAGE_H
#define GCR_PAGE_H

#include <stdbool.h>

#include "lib/protocol.h"

/* The contents of a page, sanitized: strings are terminated and printable, enums are in range. */
struct gcr_page_facts {
	enum gcr_preload_phase phase;
	uint32_t flags; /* GCR_PAGE_* */
	uint64_t table_changes;
	uint64_t device_bytes;
	uint64_t imported_bytes; /* of device_bytes, memory made in another process */
	uint64_t managed_bytes;
	uint64_t apart_bytes; /* made by cuMemCreate, but cannot be handed over */
	uint32_t extents;
	uint32_t sharings;
	uint32_t captures;
	uint64_t submissions; /* sum over all threads */
	uint32_t wanting;     /* threads that wait at the gate and need the GPU */
	bool is_moving;
	char incomplete[64];
	char obstacle[128];
	char unknown[512];
};

/*
 * Can this file be a page: a file in memory, of the length of a page, whose size is sealed? Does
 * not block. 0; -EPROTO: no.
 */
int gcr_page_check(int fd);

/*
 * Reads the page in this file; @fd stays the caller's. -EPROTO: not a page; -ENOMEM; -errno of
 * pread(2).
 */
int gcr_page_read(int fd, struct gcr_page_facts *ret_facts);

/*
 * Parses a page that has been copied to @page without its slots; submissions, the sum over the
 * slots, is 0. -EPROTO: not a page.
 */
int gcr_page_parse(const struct gcr_page *page, struct gcr_page_facts *ret_facts);

/*
 * Clears is_parked in this page, so that its library may connect again. The page is mapped for
 * that: write(2) takes a lock that the file's owner can hold for as long as he likes. -EPROTO, as
 * gcr_page_read(); -errno.
 */
int gcr_page_unpark(int fd);

#endif
