/* SPDX-License-Identifier: MIT */
/*
 * Whether a unix socket takes descriptors (SCM_RIGHTS). A process that receives a message, or
 * closes a socket with messages in its queue, has to close the descriptors in them, and that close
 * can wait for ever: for a FUSE filesystem, or for a network socket with SO_LINGER. So a socket
 * that strangers can reach takes none. The connections to a listening socket inherit this from it.
 */
#ifndef GCR_PASSING_H
#define GCR_PASSING_H

#include <sys/socket.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* asm-generic/socket.h, Linux 6.16 */
#endif

/*
 * Makes @socket refuse descriptors: a message that has some fails for its sender with EPERM. Has no
 * effect on kernels before 6.16.
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
