/* SPDX-License-Identifier: MIT */
/* Whose process is at the other end of a unix socket. */
#ifndef GCR_PRELOAD_OTHER_END_H
#define GCR_PRELOAD_OTHER_END_H

/*
 * Does the process that has connected, or listens, at the other end of @socket belong to root or to
 * this process's own user? 0; -EPERM: to another user, to one of the several whose real, effective
 * and saved ids this process has, or, in a user namespace, to one whom the namespace does not know;
 * other -errno.
 */
int gcr_other_end_trusted(int socket);

#endif
