/* SPDX-License-Identifier: MIT */
/*
 * The exporter's half of legacy IPC: a thread that gives out descriptors of the library's
 * allocations and counts the pieces that other processes have open. The thread exists only in
 * programs that call cuIpcGetMemHandle, and sleeps until a process connects. While the gate is
 * closed, it answers EAGAIN.
 */
#include "backend/preload/ipc/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/base/other_end.h"
#include "backend/preload/memory/table.h"
#include "lib/lock.h"
#include "lib/passing.h"
#include "lib/thread_name.h"

/*
 * FULL_MSEC: pause after accept(2) failed for lack of descriptors or memory. CONNECTIONS_MAX:
 * maximum number of processes that can have memory of this process open, each with any number of
 * pieces.
 */
#define FULL_MSEC	100
#define CONNECTIONS_MAX 1024

/* Guards `server`; held when the thread is started. The thread owns the rest. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	uint8_t process[16];
	uint8_t secret[12];
	bool named;
	struct gcr_descriptor listener;
} server = {.listener = {.fd = -1}};

struct connection {
	struct gcr_descriptor descriptor;
	unsigned opened; /* number of pieces that the importer has open */
};

static struct connection connections[CONNECTIONS_MAX];
static size_t connections_count;

/* ---- answering ---- */

/* Makes a descriptor of the memory, which the caller closes. -EIO. */
static int export_memory(struct gcr_memory *memory)
{
	int fd = -1;

	/* After a thaw the handle is imported and cannot be exported: use the import's
	 * descriptor. */
	if (memory->imported)
		fd = gcr_descriptor_valid(&memory->descriptor)
			     ? fcntl(memory->descriptor.fd, F_DUPFD_CLOEXEC, 0)
			     : -1;
	else if (GCR_REAL(cuMemExportToShareableHandle)(
			 &fd, memory->real, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
		fd = -1;
	return fd < 0 ? -EIO : fd;
}

/*
 * The memory of a token that the program has given out, with a reference. NULL: there is none, or
 * the importer has made the token up.
 */
static struct gcr_memory *find(const struct gcr_ipc_token *token)
{
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping = gcr_table_find_allocation(token->address);

	if (token->magic != GCR_IPC_MAGIC ||
	    memcmp(token->secret, server.secret, sizeof(server.secret)) || !mapping ||
	    mapping->start != token->address || mapping->memory->id != token->id ||
	    !mapping->memory->is_exported)
		return NULL;
	mapping->memory->references++;
	return mapping->memory;
}

static int send_answer(int socket, const struct gcr_ipc_answer *answer, int fd)
{
	struct iovec data = {.iov_base = (void *)(uintptr_t)answer, .iov_len = sizeof(*answer)};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/*
 * Gives an importer the memory of @token: fills in @answer and *ret_fd, and counts the sharing. The
 * gate was open just now; if it closes before GCR_GATE(), the thread waits.
 */
static void open_memory(struct connection *connection, const struct gcr_ipc_token *token,
			struct gcr_ipc_answer *answer, int *ret_fd)
{
	GCR_GATE(cuMemExportToShareableHandle);
	GCR_SHARING_PENDING();
	struct gcr_memory *memory = find(token);
	int fd;

	answer->error = EIDRM;
	if (!memory)
		return;
	fd = export_memory(memory);
	answer->error = fd < 0 ? -fd : 0;
	answer->mapped_bytes = memory->bytes;
	gcr_table_put(memory);
	if (fd < 0)
		return;
	/* From here on the memory is shared, even if the importer dies without reading. */
	connection->opened++;
	gcr_sharing_add(1);
	*ret_fd = fd;
}

static int answer_open(struct connection *connection, const struct gcr_ipc_token *token)
{
	struct gcr_ipc_answer answer = {.error = EAGAIN};
	_cleanup_close_ int fd = -1;

	if (!gcr_gate_is_closing())
		open_memory(connection, token, &answer, &fd);
	return send_answer(connection->descriptor.fd, &answer, fd);
}

static void close_memory(struct connection *connection, unsigned count)
{
	if (count > connection->opened)
		count = connection->opened;
	connection->opened -= count;
	gcr_sharing_add(-(int)count);
}

/* Handles one message. Fails if the connection is closed or the message is not a request. */
static int read_request(struct connection *connection)
{
	struct gcr_ipc_request request;
	ssize_t length = recv(connection->descriptor.fd, &request, sizeof(request), MSG_DONTWAIT);

	if (length < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (length != sizeof(request))
		return -EPIPE;
	switch (request.kind) {
	case GCR_IPC_OPEN:
		return answer_open(connection, &request.token);
	case GCR_IPC_CLOSE:
		close_memory(connection, request.count);
		return 0;
	default:
		return -EPIPE;
	}
}

static void drop(struct connection *connection)
{
	gcr_descriptor_close(&connection->descriptor);
	close_memory(connection, connection->opened);
	*connection = connections[--connections_count];
}

/* Accepts a connection. False: no descriptor or memory for it; the connection keeps waiting. */
static bool welcome(void)
{
	struct connection *connection = &connections[connections_count];
	int fd;

	fd = accept4(server.listener.fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0 && errno == EMFILE) {
		gcr_descriptor_raise_limit();
		fd = accept4(server.listener.fd, NULL, NULL, SOCK_CLOEXEC);
		gcr_descriptor_lower_limit();
	}
	if (fd < 0)
		return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
	if (connections_count == CONNECTIONS_MAX || gcr_other_end_trusted(fd) < 0) {
		close(fd);
		return true;
	}
	*connection = (struct connection){0};
	if (gcr_descriptor_keep_anywhere(fd, &connection->descriptor) == 0)
		connections_count++;
	return true;
}

/* ---- the thread ---- */

/* Runs until the program has closed the listener. */
static void *serve(void *unused)
{
	static struct pollfd polled[1 + CONNECTIONS_MAX];
	bool is_full = false;

	pthread_setname_np(pthread_self(), GCR_THREAD_IPC);
	while (gcr_descriptor_valid(&server.listener)) {
		size_t count = connections_count;

		/* While connections wait for a descriptor, polling the listener would not sleep. */
		polled[0] =
			(struct pollfd){.fd = is_full ? -1 : server.listener.fd, .events = POLLIN};
		for (size_t i = 0; i < count; i++)
			polled[1 + i] = (struct pollfd){.fd = connections[i].descriptor.fd,
							.events = POLLIN};
		if (poll(polled, 1 + count, is_full ? FULL_MSEC : -1) < 0 && errno != EINTR)
			break;
		/* Backwards, since the last entry replaces a dropped one. */
		for (size_t i = count; i-- > 0;)
			if (polled[1 + i].revents && read_request(&connections[i]) < 0)
				drop(&connections[i]);
		is_full = (polled[0].revents & POLLIN) && !welcome();
	}
	while (connections_count)
		drop(&connections[0]);
	pthread_mutex_lock(&lock);
	server.listener.fd = -1;
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* Starts the thread with all signals blocked. */
static int start_thread(void)
{
	sigset_t all, before;
	pthread_t thread;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&thread, NULL, serve, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r == 0)
		pthread_detach(thread);
	return -r;
}

static int listen_now(void)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un address;
	unsigned int length = gcr_ipc_address(server.process, &address);
	int r;

	if (fd < 0)
		return -errno;
	/* Any user can connect: what he sends with a message could block the thread in close(2). */
	gcr_passing_refuse(fd);
	if (bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 128) < 0)
		return -errno;
	r = gcr_descriptor_keep_anywhere(TAKE_FD(fd), &server.listener);
	if (r == 0)
		r = start_thread();
	if (r < 0)
		gcr_descriptor_close(&server.listener);
	return r;
}

/* Makes the random parts of this process's tokens. Lock: this file's. -EAGAIN. */
static int make_names(void)
{
	if (getrandom(server.process, sizeof(server.process), 0) != sizeof(server.process) ||
	    getrandom(server.secret, sizeof(server.secret), 0) != sizeof(server.secret))
		return -EAGAIN;
	server.named = true;
	return 0;
}

int gcr_ipc_listen(struct gcr_ipc_token *token)
{
	int r = 0;

	GCR_LOCK_SCOPE(&lock);
	if (!server.named)
		r = make_names();
	if (r == 0 && server.listener.fd < 0)
		r = listen_now();
	memcpy(token->process, server.process, sizeof(server.process));
	memcpy(token->secret, server.secret, sizeof(server.secret));
	return r;
}

bool gcr_ipc_is_own(const uint8_t process[16])
{
	bool own;

	pthread_mutex_lock(&lock);
	own = server.named && memcmp(process, server.process, sizeof(server.process)) == 0;
	pthread_mutex_unlock(&lock);
	return own;
}

bool gcr_ipc_is_listening(void)
{
	bool listening;

	pthread_mutex_lock(&lock);
	listening = server.listener.fd >= 0;
	pthread_mutex_unlock(&lock);
	return listening;
}

static void forget(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	gcr_descriptor_close(&server.listener);
	/* A fork during a change leaves an entry that is in the list twice, or not yet. */
	for (size_t i = 0; i < connections_count && i < CONNECTIONS_MAX; i++)
		gcr_descriptor_close(&connections[i].descriptor);
	connections_count = 0;
	server.named = false;
}

GCR_LISTEN(fork, forget);
