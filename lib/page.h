/* SPDX-License-Identifier: MIT */
/*
 * The page of a preload library (struct gcr_page), for those who look at it from outside. Its file
 * is the program's, which can hold the locks that mapping it takes, and those of its memory, for
 * seconds: all but gcr_page_check() may block, and is for helpers that can be killed
 * (lib/proc_page.h).
 */
#ifndef GCR_PAGE_H
#define GCR_PAGE_H

#include <stdbool.h>

#include "lib/protocol.h"

/* What a page says, made safe: strings end and are printable, enums are in range. */
struct gcr_page_facts {
	enum gcr_preload_phase phase;
	uint32_t flags; /* GCR_PAGE_* */
	uint64_t table_changes;
	uint64_t device_bytes;
	uint64_t imported_bytes; /* of them, made in another process */
	uint64_t managed_bytes;
	uint64_t apart_bytes; /* that stay with the driver though they could be mapped by hand */
	uint32_t extents;
	uint32_t sharings;
	uint32_t captures;
	uint64_t submissions; /* of all threads */
	uint32_t wanting;     /* threads that the gate holds up and that need the GPU */
	bool is_moving;
	char incomplete[64];
	char obstacle[128];
	char unknown[512];
};

/*
 * May this file be a page? It is one in memory, of the length of a page, and its owner can change
 * that no more. Does not block. -EPROTO.
 */
int gcr_page_check(int fd);

/*
 * The page in this file; @fd stays the caller's. -EPROTO: there is none; -ENOMEM; -errno of
 * pread(2).
 */
int gcr_page_read(int fd, struct gcr_page_facts *ret_facts);

/*
 * The facts of a page of which all but the slots has been copied to @page: submissions, which are
 * theirs, are 0. -EPROTO: it is no page.
 */
int gcr_page_parse(const struct gcr_page *page, struct gcr_page_facts *ret_facts);

/*
 * The library of this page may connect again. By memory, not by write(2): the lock that this takes
 * can be held by the owner of the file for as long as he likes. -EPROTO, as gcr_page_read();
 * -errno.
 */
int gcr_page_unpark(int fd);

#endif
