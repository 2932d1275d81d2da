/* SPDX-License-Identifier: MIT */
/* Whose process is at the other end of a unix socket. */
#ifndef GCR_PRELOAD_OTHER_END_H
#define GCR_PRELOAD_OTHER_END_H

/*
 * Does the process that has connected, or listens, at the other end of @socket belong to root or to
 * this process's own user? 0; -EPERM: no. -EPERM also if this process has ids of several users and
 * the other end is one of these, or if the user namespace does not know the user of the other end.
 * Other -errno: not known.
 */
int gcr_other_end_trusted(int socket);

#endif
