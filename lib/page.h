/* SPDX-License-Identifier: MIT */
/* The page of a preload library (struct gcr_page), for those who look at it from outside. */
#ifndef GCR_PAGE_H
#define GCR_PAGE_H

#include "lib/protocol.h"

/*
 * For reading; @fd stays the caller's. Its owner cannot cut it off, which would be our SIGBUS.
 * -EPROTO: it is no such page, or could be cut off.
 */
int gcr_page_map(int fd, const struct gcr_page **ret_page);

/*
 * The library of this page may connect again. By memory, not by write(2): the lock that this takes
 * can be held by the owner of the file for as long as he likes. -EPROTO as above; -errno.
 */
int gcr_page_unpark(int fd);

/* NULL: nothing to do. */
void gcr_page_unmap(const struct gcr_page *page);

#endif
