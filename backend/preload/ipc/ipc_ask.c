/* SPDX-License-Identifier: MIT */
/*
 * The importer's half of legacy IPC: one connection to each exporter of which memory is open here.
 * A connection takes one descriptor, with a high number, for any amount of memory.
 *
 * Locks: `lock` guards the list and its entries; held only briefly, the innermost of all locks.
 * Only one thread at a time makes requests.
 */
#include "backend/preload/ipc/ipc.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backend/preload/base/descriptor.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/base/other_end.h"
#include "lib/cleanup.h"
#include "lib/lock.h"
#include "lib/passing.h"

/* Interval at which a thread that waits for an answer checks whether its gate is closing. */
#define SLICE_MSEC 5
/* How long a close waits for the exporter to read from a full connection. */
#define ROOM_MSEC  100

struct gcr_ipc_exporter {
	struct gcr_ipc_exporter *next;
	uint8_t process[16];
	struct gcr_descriptor connection;
	unsigned opened; /* number of open pieces, and one more during a request */
	unsigned untold; /* number of closed pieces that the exporter has not been sent */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gcr_ipc_exporter *exporters;

/* ---- the list ---- */

/* Finds or makes the exporter, and counts one more open piece. NULL: out of memory. */
static struct gcr_ipc_exporter *get(const uint8_t process[16])
{
	GCR_LOCK_SCOPE(&lock);
	struct gcr_ipc_exporter *exporter = exporters;

	while (exporter && memcmp(exporter->process, process, sizeof(exporter->process)) != 0)
		exporter = exporter->next;
	if (!exporter) {
		exporter = calloc(1, sizeof(*exporter));
		if (!exporter)
			return NULL;
		memcpy(exporter->process, process, sizeof(exporter->process));
		exporter->connection.fd = -1;
		exporter->next = exporters;
		exporters = exporter;
	}
	exporter->opened++;
	return exporter;
}

/*
 * Removes the exporter, whose last piece is closed, from the list, and ends its connection: that
 * end tells the exporter that all is closed. Lock: this file's.
 */
static void remove_locked(struct gcr_ipc_exporter *exporter)
{
	struct gcr_ipc_exporter **link = &exporters;

	gcr_descriptor_close(&exporter->connection);
	while (*link != exporter)
		link = &(*link)->next;
	*link = exporter->next;
	free(exporter);
}

/* Undoes get() after a request that opened nothing. */
static void put(struct gcr_ipc_exporter *exporter)
{
	GCR_LOCK_SCOPE(&lock);

	if (--exporter->opened == 0)
		remove_locked(exporter);
}

/* ---- requests ---- */

static int send_request(const struct gcr_ipc_exporter *exporter,
			const struct gcr_ipc_request *request)
{
	if (!gcr_descriptor_valid(&exporter->connection))
		return -EPIPE;
	return send(exporter->connection.fd, request, sizeof(*request),
		    MSG_NOSIGNAL | MSG_DONTWAIT) < 0
		       ? -errno
		       : 0;
}

void gcr_ipc_give_back(struct gcr_ipc_exporter *exporter)
{
	struct gcr_ipc_request request = {.kind = GCR_IPC_CLOSE};
	struct pollfd room = {.events = POLLOUT};

	if (!exporter)
		return;
	GCR_LOCK_SCOPE(&lock);
	if (exporter->opened == 1) {
		remove_locked(exporter);
		return;
	}
	exporter->opened--;
	request.count = ++exporter->untold;
	room.fd = exporter->connection.fd;
	/* Waits once for an exporter that does not read (is stopped); the next close adds it up. */
	if (send_request(exporter, &request) == 0 ||
	    (request.count == 1 && poll(&room, 1, ROOM_MSEC) > 0 &&
	     send_request(exporter, &request) == 0))
		exporter->untold = 0;
}

/*
 * Connects to the exporter. -EAGAIN: the listener's queue is full, and the caller retries later;
 * -EPERM: another user listens; ...
 */
static int connect_to(struct gcr_ipc_exporter *exporter)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct gcr_descriptor kept;
	struct sockaddr_un address;
	unsigned int length = gcr_ipc_address(exporter->process, &address);
	int r;

	if (fd < 0)
		return -errno;
	/* Another user may listen there, and send descriptors that block their close(2). */
	gcr_passing_refuse(fd);
	if (connect(fd, (struct sockaddr *)&address, length) < 0)
		return -errno;
	if (gcr_other_end_trusted(fd) < 0)
		return -EPERM;
	gcr_passing_allow(fd);
	r = gcr_descriptor_keep_anywhere(TAKE_FD(fd), &kept);
	if (r < 0)
		return r;
	GCR_LOCK_SCOPE(&lock);
	exporter->connection = kept;
	return 0;
}

/*
 * Can the request be abandoned together with the connection? True if no other piece is open here.
 */
static bool may_leave(const struct gcr_ipc_exporter *exporter)
{
	GCR_LOCK_SCOPE(&lock);

	return exporter->opened == 1;
}

static int wait_for_answer(const struct gcr_ipc_exporter *exporter)
{
	struct pollfd polled = {.fd = exporter->connection.fd, .events = POLLIN};
	int r;

	while ((r = poll(&polled, 1, SLICE_MSEC)) <= 0) {
		if (r < 0 && errno != EINTR)
			return -errno;
		if (gcr_gate_is_closing() && may_leave(exporter))
			return -EAGAIN;
		if (!gcr_descriptor_valid(&exporter->connection))
			return -EPIPE;
	}
	return 0;
}

/*
 * Receives an answer. Returns its descriptor, the caller's, or -errno: -EAGAIN and -EIDRM are
 * answers of the exporter.
 */
static int receive_answer(const struct gcr_ipc_exporter *exporter,
			  struct gcr_ipc_answer *ret_answer)
{
	struct iovec data = {.iov_base = ret_answer, .iov_len = sizeof(*ret_answer)};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = {.msg_iov = &data,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	struct cmsghdr *header;
	ssize_t length;
	int fd;

	length = recvmsg(exporter->connection.fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (length < 0)
		return errno == EAGAIN ? -EPROTO : -errno;
	header = CMSG_FIRSTHDR(&message);
	if (length != sizeof(*ret_answer))
		return -EPIPE;
	if (ret_answer->error)
		return ret_answer->error == EAGAIN ? -EAGAIN : -EIDRM;
	if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
		return -EPROTO;
	memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return fd;
}

static int ask(struct gcr_ipc_exporter *exporter, const struct gcr_ipc_token *token,
	       struct gcr_ipc_answer *ret_answer)
{
	struct gcr_ipc_request request = {.kind = GCR_IPC_OPEN, .token = *token};
	int r = 0;

	if (!gcr_descriptor_valid(&exporter->connection))
		r = connect_to(exporter);
	if (r == 0)
		r = send_request(exporter, &request);
	if (r == 0)
		r = wait_for_answer(exporter);
	return r < 0 ? r : receive_answer(exporter, ret_answer);
}

int gcr_ipc_ask(const struct gcr_ipc_token *token, struct gcr_ipc_exporter **ret_exporter,
		uint64_t *ret_mapped_bytes, int *ret_fd)
{
	struct gcr_ipc_exporter *exporter = get(token->process);
	struct gcr_ipc_answer answer = {0};
	int fd;

	if (!exporter)
		return -ENOMEM;
	fd = ask(exporter, token, &answer);
	if (fd < 0) {
		put(exporter);
		return fd;
	}
	*ret_exporter = exporter;
	*ret_mapped_bytes = answer.mapped_bytes;
	*ret_fd = fd;
	return 0;
}

static void forget(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	/* The entries are not freed: a thread of the parent may have held a lock of malloc(3). */
	for (struct gcr_ipc_exporter *exporter = exporters; exporter; exporter = exporter->next)
		gcr_descriptor_close(&exporter->connection);
	exporters = NULL;
}

GCR_LISTEN(fork, forget);
