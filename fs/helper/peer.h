/* SPDX-License-Identifier: MIT */
/*
 * The process at the other end of a connection. A connection outlives the process that made it
 * (a forked child may hold the socket), and then that process's number can be given to another
 * user's program. So the identity is taken once, when the connection is accepted, and holds a
 * pidfd.
 */
#ifndef GCR_FS_HELPER_PEER_H
#define GCR_FS_HELPER_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct gcr_peer {
	pid_t pid;
	uid_t uid;	      /* effective user at connect(2) */
	uint64_t start_ticks; /* field 22 of /proc/PID/stat */
	int pidfd;
};

/*
 * Identify the process that has connected the socket @fd. *ret_peer is the caller's, for
 * gcr_peer_finish(). -ESRCH: that process has ended, or is in no pid namespace that we see.
 */
int gcr_peer_identify(int fd, struct gcr_peer *ret_peer);

/*
 * A pidfd of it alone, the caller's; @pid is as the socket says. -ESRCH: it has ended, or cannot be
 * told.
 */
int gcr_peer_open_pidfd(int fd, pid_t pid);

/* The process has not ended. */
bool gcr_peer_is_alive(const struct gcr_peer *peer);

/*
 * May the connection speak for the process? 0; -ESRCH the process has ended; -EPERM another user's
 * rights have come to it since it connected (a set-user-ID program), which its old connections,
 * maybe shared with other processes, must not have. A process that connected as root may have
 * dropped its rights.
 */
int gcr_peer_check(const struct gcr_peer *peer);

/* Close the pidfd. */
void gcr_peer_finish(struct gcr_peer *peer);

#endif
