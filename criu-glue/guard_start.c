/* SPDX-License-Identifier: MIT */
/*
 * The gate: CRIU has its images from the guard, so that a CRIU without the guard can do nothing.
 * The loader starts CRIU also if it cannot load the guard (a static program, a script that clears
 * the environment, a file that is missing). Such a CRIU finds a socket where --images-dir says that
 * its images are, and ends before it touches any process. The same directory is at another of its
 * descriptors, GCR_CRIU_IMAGES_FD: by that our other programs know it, and it does not.
 *
 * The daemon has put the directory into this socket. The guard takes it out, puts it into the
 * socket's place, and answers, by which the daemon knows that the guard is there. The directory's
 * descriptor is closed by execve(2): a program that CRIU becomes does not have it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "criu-glue/criu.h"
#include "criu-glue/guard_rights.h"

/* Takes the daemon's message; *ret_fd: its descriptor, -1: it has none. -1 and errno. */
static int take(int gate, int *ret_fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} rights;
	char byte;
	struct iovec vector = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = rights.room,
		.msg_controllen = sizeof(rights.room),
	};
	const struct cmsghdr *header;
	ssize_t got = recvmsg(gate, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (got == 0 || (got == 1 && byte != GCR_CRIU_GATE_BYTE))
		errno = EPROTO;
	if (got != 1 || byte != GCR_CRIU_GATE_BYTE)
		return -1;
	header = CMSG_FIRSTHDR(&message);
	*ret_fd = -1;
	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fd, CMSG_DATA(header), sizeof(*ret_fd));
	return 0;
}

/* In CRIU alone. Ends CRIU if it cannot have its images. */
__attribute__((constructor)) static void open_gate(void)
{
	static const char byte = GCR_CRIU_GATE_BYTE;
	const char *text = getenv(GCR_CRIU_GATE_VARIABLE);
	int gate, fd;

	if (!text || !gcr_guard_is_in_criu())
		return;
	gate = atoi(text);
	unsetenv(GCR_CRIU_GATE_VARIABLE);
	if (take(gate, &fd) < 0) {
		fprintf(stderr, "gpucr-criu-guard: CRIU gets no images: %s\n", strerror(errno));
		_exit(1);
	}
	/* This fails only if the daemon, which waits for the answer, has ended. */
	send(gate, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (fd < 0)
		return;
	if (dup3(fd, gate, O_CLOEXEC) < 0) {
		fprintf(stderr, "gpucr-criu-guard: CRIU gets no images: %s\n", strerror(errno));
		_exit(1);
	}
	close(fd);
}
