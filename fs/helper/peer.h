/* SPDX-License-Identifier: MIT */
/*
 * The process at the other end of a connection. A connection can outlive the process that made it
 * (a forked child may hold the socket), and that process's pid can then be given to another user's
 * program. So the peer is identified once, when the connection is accepted, and is kept with a
 * pidfd.
 */
#ifndef GCR_FS_HELPER_PEER_H
#define GCR_FS_HELPER_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/procfs.h"

struct gcr_peer {
	pid_t pid;
	uid_t uid;			 /* effective user at the time of connect(2) */
	uint64_t start_ticks;		 /* field 22 of /proc/PID/stat */
	struct gcr_proc_program program; /* when the connection was accepted; 0: unknown */
	uid_t owner;			 /* of /proc/PID, just after that; (uid_t)-1: unknown */
	int pidfd;
};

/*
 * Identifies the process that has connected the socket @fd. The caller releases *ret_peer with
 * gcr_peer_finish(). -ESRCH: that process has ended, or is in no pid namespace that we see.
 */
int gcr_peer_identify(int fd, struct gcr_peer *ret_peer);

/*
 * Opens only a pidfd of the peer, the caller's; @pid is the pid from the socket. -ESRCH: the peer
 * has ended, or cannot be identified.
 */
int gcr_peer_open_pidfd(int fd, pid_t pid);

/* Has the process not ended yet? */
bool gcr_peer_is_alive(const struct gcr_peer *peer);

/*
 * May the connection still speak for the process? Other processes may share the connection, so it
 * must not get rights that the process gets later. 0; -ESRCH the process has ended, or cannot be
 * looked at; -EPERM the process has got another user's rights since it connected (not if it was
 * root); -EACCES the process has got another program (execve(2)).
 */
int gcr_peer_check(const struct gcr_peer *peer);

/* Closes the pidfd. */
void gcr_peer_finish(struct gcr_peer *peer);

#endif
