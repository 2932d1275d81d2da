/* SPDX-License-Identifier: MIT */
/*
 * libgpucr-criu-guard.so: preloaded into CRIU, which has unix sockets with names in the network
 * namespace of the machine, and believes whoever connects or sends first (CRIU 4.1.1:
 * compel/src/lib/infect.c, criu/files.c). Any user could pose as a process of the tree there.
 *  - "/crtools-pr-...", at a dump: CRIU's code in a process of the tree connects. Here only a
 *    process that this CRIU traces gets through.
 *  - "/crtools-fd-...", at a restore: processes that are being restored send descriptors to each
 *    other. Here only what root's CRIU program has sent gets through.
 * Whoever else comes is dropped, and the next is waited for. All other sockets are as they were.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

#define DUMP_PREFIX    "/crtools-pr-"
#define RESTORE_PREFIX "/crtools-fd-"

/* Of a message: CRIU sends up to 252 descriptors at once (CR_SCM_MAX_FD). */
#define CONTROL_BYTES 4096

#define REAL(name)                                         \
	static typeof(name) *real;                         \
	if (!real)                                         \
		*(void **)&real = dlsym(RTLD_NEXT, #name); \
	if (!real) {                                       \
		errno = ENOSYS;                            \
		return -1;                                 \
	}

/* An abstract name has a NUL first, and none at its end. */
static bool begins_with(const struct sockaddr *address, socklen_t bytes, const char *prefix)
{
	const struct sockaddr_un *name = (const struct sockaddr_un *)address;
	size_t start = offsetof(struct sockaddr_un, sun_path);
	size_t length = strlen(prefix);

	return bytes >= start + 1 + length && name->sun_family == AF_UNIX && !name->sun_path[0] &&
	       !memcmp(name->sun_path + 1, prefix, length);
}

static bool is_named(int fd, const char *prefix)
{
	struct sockaddr_un name;
	socklen_t bytes = sizeof(name);

	return getsockname(fd, (struct sockaddr *)&name, &bytes) == 0 &&
	       begins_with((struct sockaddr *)&name, bytes, prefix);
}

/* Its tracer, as /proc tells; 0: none, or it has ended. */
static pid_t tracer_of(pid_t pid)
{
	char line[256], path[64];
	int tracer = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "TracerPid: %d", &tracer) == 1)
			break;
	if (file)
		fclose(file);
	return tracer;
}

static bool is_traced(int fd)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid > 0 &&
	       tracer_of(peer.pid) == getpid();
}

/* Is it a process of the same program as we, of root's? */
static bool is_criu(const struct ucred *sender)
{
	struct stat its, ours;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/exe", (int)sender->pid);
	return sender->uid == geteuid() && sender->pid > 0 && stat(path, &its) == 0 &&
	       stat("/proc/self/exe", &ours) == 0 && its.st_dev == ours.st_dev &&
	       its.st_ino == ours.st_ino;
}

static void drop(const char *what, pid_t pid, uid_t uid)
{
	fprintf(stderr, "gpucr-criu-guard: process %d of user %u %s, and is none of the tree\n",
		(int)pid, (unsigned int)uid, what);
}

/* Strangers who only fill the queue are dropped one after the other. */
EXPORT int listen(int fd, int backlog)
{
	REAL(listen)
	return real(fd, is_named(fd, DUMP_PREFIX) ? SOMAXCONN : backlog);
}

EXPORT int accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
	bool is_guarded = is_named(fd, DUMP_PREFIX);
	bool was_told = false;

	REAL(accept)
	for (;;) {
		struct ucred peer = {0};
		socklen_t peer_bytes = sizeof(peer);
		int peer_fd = real(fd, address, bytes);

		if (peer_fd < 0 || !is_guarded || is_traced(peer_fd))
			return peer_fd;
		getsockopt(peer_fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes);
		close(peer_fd);
		if (!was_told)
			drop("has connected", peer.pid, peer.uid);
		was_told = true;
	}
}

/* From its first message on the kernel tells who has sent it. */
EXPORT int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	const int on = 1;

	REAL(bind)
	if (begins_with(address, bytes, RESTORE_PREFIX) &&
	    setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		return -1;
	return real(fd, address, bytes);
}

static void close_all(const struct cmsghdr *part)
{
	size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);

	for (size_t i = 0; i < count; i++) {
		int fd;

		memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
		close(fd);
	}
}

/* All but the credentials, for a caller who expects none. What does not fit is closed. */
static void pass_on(struct msghdr *guarded, struct msghdr *message)
{
	size_t used = 0;

	for (struct cmsghdr *part = CMSG_FIRSTHDR(guarded); part;
	     part = CMSG_NXTHDR(guarded, part)) {
		bool is_descriptors = part->cmsg_level == SOL_SOCKET &&
				      part->cmsg_type == SCM_RIGHTS;
		size_t bytes = CMSG_ALIGN(part->cmsg_len);

		if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_CREDENTIALS)
			continue;
		if (!message->msg_control || used + part->cmsg_len > message->msg_controllen) {
			message->msg_flags |= MSG_CTRUNC;
			if (is_descriptors)
				close_all(part);
			continue;
		}
		memcpy((char *)message->msg_control + used, part, part->cmsg_len);
		used += bytes < message->msg_controllen - used ? bytes : part->cmsg_len;
	}
	message->msg_controllen = used;
}

static bool is_from_criu(struct msghdr *guarded, struct ucred *ret_sender)
{
	*ret_sender = (struct ucred){0};
	for (struct cmsghdr *part = CMSG_FIRSTHDR(guarded); part; part = CMSG_NXTHDR(guarded, part))
		if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_CREDENTIALS)
			memcpy(ret_sender, CMSG_DATA(part), sizeof(*ret_sender));
	return is_criu(ret_sender);
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	union {
		struct cmsghdr header;
		char bytes[CONTROL_BYTES];
	} control;
	bool was_told = false;

	REAL(recvmsg)
	if (!is_named(fd, RESTORE_PREFIX))
		return real(fd, message, flags);
	for (;;) {
		struct msghdr guarded = *message;
		struct ucred sender;
		ssize_t got;

		guarded.msg_control = &control;
		guarded.msg_controllen = sizeof(control);
		got = real(fd, &guarded, flags);
		if (got < 0)
			return got;
		if (is_from_criu(&guarded, &sender)) {
			message->msg_flags = guarded.msg_flags;
			message->msg_namelen = guarded.msg_namelen;
			pass_on(&guarded, message);
			return got;
		}
		for (struct cmsghdr *part = CMSG_FIRSTHDR(&guarded); part;
		     part = CMSG_NXTHDR(&guarded, part))
			if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
				close_all(part);
		if (!was_told)
			drop("has sent something", sender.pid, sender.uid);
		was_told = true;
	}
}
