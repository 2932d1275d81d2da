/* SPDX-License-Identifier: MIT */
/*
 * read(2), pread(2), write(2) and pwrite(2) of whole ranges. A system call that returns early, or
 * with EINTR, is continued.
 */
#ifndef GCR_FULL_IO_H
#define GCR_FULL_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Return the number of bytes read, which is less than @bytes only at the end of file; or -errno. */
ssize_t gcr_read_all(int fd, void *ret_bytes, size_t bytes);
ssize_t gcr_pread_all(int fd, void *ret_bytes, size_t bytes, uint64_t offset);

/* Return 0 if all bytes are written, else -errno; some bytes may have been written then. */
int gcr_write_all(int fd, const void *from, size_t bytes);
int gcr_pwrite_all(int fd, const void *from, size_t bytes, uint64_t offset);

#endif
