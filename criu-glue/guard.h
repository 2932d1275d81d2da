/* SPDX-License-Identifier: MIT */
/* What the files of libgpucr-criu-guard.so share. */
#ifndef GCR_CRIU_GLUE_GUARD_H
#define GCR_CRIU_GLUE_GUARD_H

#include <sys/socket.h>

#define GCR_GUARD_EXPORT __attribute__((visibility("default")))

/* As bind(2) and listen(2); in a process of the tree, a unix socket with the owner's rights. */
int gcr_guard_bind(int fd, const struct sockaddr *address, socklen_t bytes);
int gcr_guard_listen(int fd, int backlog);

#endif
