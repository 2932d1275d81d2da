/* SPDX-License-Identifier: MIT */
/* Identifying a connection's process: pidfd, start time and user. */
#include "fs/helper/peer.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* asm-generic/socket.h, Linux 6.5 */
#endif

/*
 * Kernels without SO_PEERPIDFD leave a race: the process may end, and its pid be reused, between
 * its connect(2) and our accept(2). gcr_peer_check() compares the user, so only another process of
 * the same user can be mistaken for it.
 */
int gcr_peer_open_pidfd(int fd, pid_t pid)
{
	socklen_t size = sizeof(int);
	int pidfd = -1;

	if (!getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size))
		return pidfd;
	if (errno != ENOPROTOOPT)
		return -ESRCH;
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	return pidfd < 0 ? -ESRCH : pidfd;
}

int gcr_peer_identify(int fd, struct gcr_peer *ret_peer)
{
	_cleanup_close_ int pidfd = -1;
	socklen_t size = sizeof(struct ucred);
	struct gcr_proc_program program = {0};
	struct gcr_proc_stat stat;
	struct ucred credentials;
	uid_t owner;
	gid_t group;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
		return -errno;
	if (credentials.pid <= 0)
		return -ESRCH;
	pidfd = gcr_peer_open_pidfd(fd, credentials.pid);
	if (pidfd < 0)
		return pidfd;
	/* The process still exists after its start time was read: so the start time is its own. */
	gcr_proc_program(credentials.pid, &program);
	/* After the program: if that is still the same later, the owner was its own. */
	if (gcr_proc_owner(credentials.pid, &owner, &group) < 0)
		owner = (uid_t)-1;
	if (gcr_proc_stat(credentials.pid, &stat) < 0 || gcr_pidfd_has_ended(pidfd))
		return -ESRCH;
	*ret_peer = (struct gcr_peer){
		.pid = credentials.pid,
		.uid = credentials.uid,
		.start_ticks = stat.start_ticks,
		.program = program,
		.owner = owner,
		.pidfd = TAKE_FD(pidfd),
	};
	return 0;
}

bool gcr_peer_is_alive(const struct gcr_peer *peer)
{
	return !gcr_pidfd_has_ended(peer->pidfd);
}

int gcr_peer_check(const struct gcr_peer *peer)
{
	struct gcr_proc_program program;
	struct gcr_proc_status status;
	int secure = 0;

	if (gcr_proc_status(peer->pid, &status) < 0)
		return -ESRCH;
	/*
	 * The program was noted after connect(2), and may be one that the process has got in
	 * between, which has no library if it is set-group-ID, for example.
	 */
	if (peer->uid)
		secure = gcr_proc_is_secure(peer->pid);
	/* The program last: if it is the same, the rights were its own. */
	if (gcr_proc_is_silent(secure) || gcr_proc_program(peer->pid, &program) < 0 ||
	    gcr_pidfd_has_ended(peer->pidfd))
		return -ESRCH;
	if (!gcr_proc_program_is(&program, &peer->program))
		return -EACCES;
	return !peer->uid || (peer->uid == status.effective_uid && secure != 1) ? 0 : -EPERM;
}

void gcr_peer_finish(struct gcr_peer *peer)
{
	if (peer->pidfd >= 0)
		close(TAKE_FD(peer->pidfd));
}
