/* SPDX-License-Identifier: MIT */
/*
 * gpucr-receive: receives messages with descriptors for the daemon. Closing such a descriptor, or
 * asking its filesystem, may block for ever: a user can mount a FUSE filesystem that does not
 * answer. So a descriptor is judged only by facts that the kernel itself knows. A descriptor that
 * is not acceptable is not closed explicitly: the helper reports it and exits, and the daemon
 * starts another helper.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/helper/receiver_protocol.h"
#include "lib/cleanup.h"
#include "lib/confine.h"
#include "lib/message.h"

#define FDS_MAX	    253 /* the kernel's SCM_MAX_FD: no descriptor is dropped for lack of room */
#define DMABUF	    "/dmabuf:"
#define INFO_BYTES  4096
/* The largest table of extents, plus the excess that huge pages allocate beyond its end. */
#define MEMORY_MOST (off_t)(GCR_EXTENTS_MAX * sizeof(struct gcr_extent) + (4 << 20))

static struct gcr_message request;

static struct {
	struct gcr_receiver_reply head;
	uint8_t payload[GCR_RECEIVER_PAYLOAD_MAX];
} reply;

static int fds[FDS_MAX];
static size_t fds_count;
static char *const *links; /* prefixes of links of GPUs' descriptors; ends with NULL */

/* Ignores signals that a terminal or a service manager sends to all its processes. */
static void ignore_signals(void)
{
	static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTSTP};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(signals); i++)
		signal(signals[i], SIG_IGN);
}

static void read_link(int fd, char *ret_link, size_t size)
{
	char path[64];
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	got = readlink(path, ret_link, size - 1);
	ret_link[got > 0 ? got : 0] = '\0';
}

/*
 * Is this a dma-buf? A user can give any file such a name; only the kernel's dma-bufs have this
 * line in fdinfo.
 */
static bool is_dmabuf(int fd)
{
	_cleanup_close_ int info_fd = -1;
	char path[64], info[INFO_BYTES];
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	info_fd = open(path, O_RDONLY | O_CLOEXEC);
	got = info_fd < 0 ? -1 : read(info_fd, info, sizeof(info) - 1);
	info[got > 0 ? got : 0] = '\0';
	return strstr(info, "\nexp_name:\t");
}

static bool is_same_device(const struct statx *one, const struct stat *other)
{
	return one->stx_rdev_major == major(other->st_rdev) &&
	       one->stx_rdev_minor == minor(other->st_rdev);
}

static bool is_on_device(const struct statx *one, const struct stat *other)
{
	return one->stx_dev_major == major(other->st_dev) &&
	       one->stx_dev_minor == minor(other->st_dev);
}

/*
 * Is the file of @fd, whose path @link begins with @begins, the file at that path here? The path
 * may be one in another mount namespace, where a user has mounted a filesystem of his own. So the
 * path must lead to the same file here: a device of the same number, or (for the simulator) a file
 * of the filesystem that the directory @begins is on. No filesystem is asked about @fd.
 */
static bool is_file_at(int fd, const char *link, const char *begins)
{
	struct statx ours;
	struct stat here;

	if (fcntl(fd, F_GETFL) & O_PATH ||
	    statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &ours) < 0)
		return false;
	if (S_ISCHR(ours.stx_mode))
		return !stat(link, &here) && S_ISCHR(here.st_mode) && is_same_device(&ours, &here);
	if (!S_ISREG(ours.stx_mode) || begins[strlen(begins) - 1] != '/')
		return false;
	return (!stat(begins, &here) && is_on_device(&ours, &here)) ||
	       (!stat(link, &here) && is_on_device(&ours, &here) && ours.stx_ino == here.st_ino);
}

static bool is_of_gpu(int fd)
{
	char link[4096];

	read_link(fd, link, sizeof(link));
	for (char *const *begins = links; *begins; begins++)
		if (!strncmp(link, *begins, strlen(*begins)) &&
		    (!strcmp(*begins, DMABUF) ? is_dmabuf(fd) : is_file_at(fd, link, *begins)))
			return true;
	return false;
}

/*
 * Is this a file in memory that is sealed against growing, and short? Closing the last descriptor
 * of a file in memory, possibly in the daemon, frees its memory, which takes seconds for a file as
 * large as a machine's memory.
 */
static bool is_short_memory(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat status;

	return seals >= 0 && seals & F_SEAL_GROW && !fstat(fd, &status) &&
	       status.st_size <= MEMORY_MOST && status.st_blocks <= MEMORY_MOST / 512;
}

/* Can the descriptor be closed and inspected without blocking? */
static bool is_harmless(int fd, uint32_t kind)
{
	return is_short_memory(fd) || (kind == GCR_RECEIVER_GPU && is_of_gpu(fd));
}

static void collect_fds(struct msghdr *packet)
{
	for (struct cmsghdr *part = CMSG_FIRSTHDR(packet); part; part = CMSG_NXTHDR(packet, part)) {
		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		fds_count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(part), fds_count * sizeof(int));
	}
}

/* Receives a message. Returns 0, or the errno for the reply. @ret_bytes: length of the payload. */
static int receive(int connection, size_t *ret_bytes)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
	} control;
	struct iovec parts[2] = {
		{.iov_base = &reply.head.header, .iov_len = sizeof(reply.head.header)},
		{.iov_base = reply.payload, .iov_len = sizeof(reply.payload)},
	};
	struct msghdr packet = {
		.msg_iov = parts,
		.msg_iovlen = 2,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	const struct gcr_message_header *header = &reply.head.header;
	ssize_t bytes;

	fds_count = 0;
	do
		bytes = recvmsg(connection, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (bytes < 0 && errno == EINTR);
	if (bytes < 0)
		return errno == EAGAIN ? EAGAIN : EPIPE;
	collect_fds(&packet);
	*ret_bytes = (size_t)bytes - sizeof(*header);
	if (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || bytes < (ssize_t)sizeof(*header) ||
	    header->magic != GCR_PROTOCOL_MAGIC || header->version < 1 ||
	    header->version > GCR_PROTOCOL_VERSION || header->length != *ret_bytes)
		return EPROTO;
	return 0;
}

/* Checks all descriptors; puts the link of the first bad one into the reply. */
static bool are_harmless(uint32_t kind)
{
	for (size_t i = 0; i < fds_count; i++)
		if (!is_harmless(fds[i], kind)) {
			read_link(fds[i], reply.head.link, sizeof(reply.head.link));
			return false;
		}
	return true;
}

static int answer(void)
{
	struct gcr_receiver_request asked;
	size_t bytes = 0;
	bool is_good;
	int error;
	int r;

	gcr_message_payload(&request, &asked, sizeof(asked));
	memset(&reply.head, 0, sizeof(reply.head));
	error = receive(request.fds[0], &bytes);
	/* The daemon has a descriptor of the connection too. */
	gcr_message_close_fds(&request);
	is_good = are_harmless(asked.kind);
	if (!is_good)
		error = EBADF;
	else if (!error && (fds_count > asked.fds_most || fds_count > GCR_MESSAGE_FDS_MAX))
		error = EPROTO;
	reply.head.error = error;
	r = gcr_message_send(GCR_RECEIVER_SOCKET, GCR_RECEIVER_REPLY, request.header.sequence,
			     &reply, sizeof(reply.head) + (error ? 0 : bytes), fds,
			     error ? 0 : fds_count);
	if (!is_good)
		_exit(0);
	for (size_t i = 0; i < fds_count; i++)
		close(fds[i]);
	return r;
}

int main(int argc, char **argv)
{
	struct gcr_error error = {0};
	int r;

	ignore_signals();
	if (gcr_confine(GCR_CONFINE_RECEIVE, &error) < 0) {
		fprintf(stderr, "gpucr-receive: %s\n", error.words);
		return 2;
	}
	links = argv + 1;
	for (;;) {
		r = gcr_message_receive(GCR_RECEIVER_SOCKET, -1, -1, &request);
		if (r == -EPIPE)
			return 0;
		/*
		 * CLOSE: exiting at the end of the socket closes the connection. The daemon closes
		 * its own descriptor of it before it closes the socket; otherwise the daemon's
		 * could be the last one, and its close(2) would block.
		 */
		if (r == 0 && request.fds_count == 1 && request.header.type == GCR_RECEIVER_CLOSE)
			continue;
		if (r < 0 || request.header.type != GCR_RECEIVER_REQUEST ||
		    request.fds_count != 1) {
			fprintf(stderr, "gpucr-receive: only gpucrfs starts this program\n");
			return 2;
		}
		if (answer() < 0)
			return 0;
	}
}
