/* SPDX-License-Identifier: MIT */
/* What the files of libgpucr-criu-guard.so share. */
#ifndef GCR_CRIU_GLUE_GUARD_H
#define GCR_CRIU_GLUE_GUARD_H

#include <sys/socket.h>

#define GCR_GUARD_EXPORT __attribute__((visibility("default")))

/*
 * As bind(2), for the kernel's own addresses and those of the program. A unix socket gets its name
 * in the file system with the rights of the tree's owner.
 */
int gcr_guard_bind(int fd, const struct sockaddr *address, socklen_t bytes);

#endif
