/* SPDX-License-Identifier: MIT */
/* See other_end.h. No memory is allocated. */
#include "backend/preload/base/other_end.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/cleanup.h"

#define TEXT_BYTES	 128
#define OVERFLOW_DEFAULT 65534

/* Reads the beginning of a file of /proc as a string; "" if the file cannot be read. */
static void read_text(const char *path, char ret_text[TEXT_BYTES])
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, ret_text, TEXT_BYTES - 1);

	ret_text[got > 0 ? got : 0] = '\0';
}

/* The id by which the kernel calls all users whom a user namespace does not know. */
static uid_t overflow_id(void)
{
	char text[TEXT_BYTES];

	read_text("/proc/sys/kernel/overflowuid", text);
	return *text ? (uid_t)strtoul(text, NULL, 10) : OVERFLOW_DEFAULT;
}

/* Does our user namespace know all users? Its map then has one line: 0, 0 and their number. */
static bool knows_all_users(void)
{
	char text[TEXT_BYTES];
	char *rest;

	read_text("/proc/self/uid_map", text);
	strtoul(text, &rest, 10);
	strtoul(rest, &rest, 10);
	return strtoul(rest, NULL, 10) == UINT32_MAX;
}

/*
 * Is @uid the real, effective and saved id of this program? A program of root's that acts as a user
 * for a moment (seteuid(2)) remains root's.
 */
static bool is_only_ours(uid_t uid)
{
	uid_t real, effective, saved;

	return !getresuid(&real, &effective, &saved) && real == uid && effective == uid &&
	       saved == uid;
}

int gcr_other_end_trusted(int socket)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
		return -errno;
	if (peer.uid == 0)
		return 0;
	if (!is_only_ours(peer.uid))
		return -EPERM;
	/* Our own id can be that of all unknown users, too. */
	return peer.uid != overflow_id() || knows_all_users() ? 0 : -EPERM;
}
