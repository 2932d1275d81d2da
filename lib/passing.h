/* SPDX-License-Identifier: MIT */
/*
 * Whether a unix socket takes descriptors (SCM_RIGHTS). Who has received a message, or closes the
 * socket with one in its queue, also closes the descriptors in it, and that can wait for ever: for
 * a FUSE filesystem, or for a network socket with SO_LINGER. So a socket that strangers can reach
 * takes none. The connections to a listening socket inherit this from it.
 */
#ifndef GCR_PASSING_H
#define GCR_PASSING_H

#include <sys/socket.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* asm-generic/socket.h, Linux 6.16 */
#endif

/*
 * From here on a message with descriptors fails for its sender with EPERM. Kernels before 6.16 do
 * not know this, and take the descriptors all the same.
 */
static inline void gcr_passing_refuse(int socket)
{
	const int takes = 0;

	setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &takes, sizeof(takes));
}

/* Undoes gcr_passing_refuse(), for a connection whose other end is known. */
static inline void gcr_passing_allow(int socket)
{
	const int takes = 1;

	setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &takes, sizeof(takes));
}

#endif
