/* SPDX-License-Identifier: MIT */
/*
 * The connection to the daemon. The program may close descriptors that it does not know and get the
 * same numbers for other files, so the socket is checked before each use. No error is shown to the
 * program: without a daemon the program runs as it would without the library.
 */
#include "backend/preload/agent/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "backend/preload/base/descriptor.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/managed/hold.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/base/other_end.h"
#include "backend/preload/base/preload.h"
#include "backend/preload/base/wakeup.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/passing.h"

#define SYSTEM_SOCKET "/run/gpucrfs/socket"

/* A daemon that does not read for this long is considered dead. */
#define SEND_PATIENCE_USEC (30 * GCR_USEC_PER_SEC)
/* Pause between retries when too many descriptors are in flight (unix(7), ETOOMANYREFS). */
#define SEND_PAUSE_USEC	   1000

struct place {
	struct sockaddr_un address; /* with an empty path: unused */
	bool needs_trust;	    /* the environment names it */
};

static struct {
	struct place places[2]; /* to try, in this order */
	struct gcr_descriptor socket;
	struct gcr_descriptor page; /* the gate's, which closes it */
} connection = {.socket = {.fd = -1}, .page = {.fd = -1}};

static void set_place(struct place *place, const char *directory, const char *name)
{
	struct sockaddr_un *address = &place->address;
	int length;

	address->sun_family = AF_UNIX;
	length = snprintf(address->sun_path, sizeof(address->sun_path), "%s%s", directory, name);
	if (length < 0 || (size_t)length >= sizeof(address->sun_path))
		address->sun_path[0] = '\0';
	place->needs_trust = strcmp(address->sun_path, SYSTEM_SOCKET) != 0;
}

void gcr_connection_prepare(void)
{
	const char *path = secure_getenv("GPUCR_SOCKET");
	const char *directory = secure_getenv("XDG_RUNTIME_DIR");
	struct stat status;

	set_place(&connection.places[0], path ? path : SYSTEM_SOCKET, "");
	connection.places[1].address.sun_path[0] = '\0';
	if (!path && directory)
		set_place(&connection.places[1], directory, "/gpucrfs/socket");

	connection.page.fd = gcr_gate_page_fd();
	if (fstat(connection.page.fd, &status) == 0) {
		connection.page.device = status.st_dev;
		connection.page.inode = status.st_ino;
	} else {
		connection.page.fd = -1;
	}
}

/* Makes a socket even if the program has as many descriptors as its limit allows. */
static int make_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd >= 0 || errno != EMFILE)
		return fd < 0 ? -errno : fd;
	gcr_descriptor_raise_limit();
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		fd = -errno;
	gcr_descriptor_lower_limit();
	return fd;
}

static int connect_to(const struct sockaddr_un *place)
{
	_cleanup_close_ int fd = -1;

	if (!place->sun_path[0])
		return -ENOENT;
	fd = make_socket();
	if (fd < 0)
		return fd;
	/* Descriptors of another user, who may listen there, could block their close(2). */
	gcr_passing_refuse(fd);
	if (connect(fd, (const struct sockaddr *)place, sizeof(*place)) < 0)
		return -errno;
	return TAKE_FD(fd);
}

/*
 * Connects to the daemon at @place. Returns the socket or -errno; -EPERM: another user's daemon
 * listens there, which would get all memory of the program. The variables of another user may be
 * set (in a shell of root's, for instance), and that user may listen where they point to. Below
 * /run only root makes a directory, so a place there needs no such check.
 */
static int connect_to_daemon(const struct place *place)
{
	_cleanup_close_ int fd = connect_to(&place->address);

	if (fd >= 0 && place->needs_trust && gcr_other_end_trusted(fd) < 0)
		return -EPERM;
	return TAKE_FD(fd);
}

int gcr_connection_open(enum gcr_preload_phase phase, const char *generation)
{
	struct gcr_register message = {.preload_version = GCR_PRELOAD_VERSION, .phase = phase};
	bool has_page = gcr_descriptor_valid(&connection.page);
	int fd, r;

	gcr_connection_close();
	snprintf(message.generation, sizeof(message.generation), "%s", generation);
	fd = connect_to_daemon(&connection.places[0]);
	if (fd < 0)
		fd = connect_to_daemon(&connection.places[1]);
	r = fd < 0 ? fd : gcr_descriptor_keep_anywhere(fd, &connection.socket);
	if (r < 0)
		return r;
	gcr_passing_allow(connection.socket.fd);
	r = gcr_message_send(connection.socket.fd, GCR_MESSAGE_REGISTER, 1, &message,
			     sizeof(message), &connection.page.fd, has_page ? 1 : 0);
	if (r < 0)
		gcr_connection_close();
	return r;
}

bool gcr_connection_is_open(void)
{
	return connection.socket.fd >= 0;
}

void gcr_connection_close(void)
{
	gcr_descriptor_close(&connection.socket);
}

int gcr_connection_fd(void)
{
	return gcr_descriptor_valid(&connection.socket) ? connection.socket.fd : -1;
}

bool gcr_connection_is_alive(void)
{
	struct pollfd socket = {.fd = gcr_connection_fd()};
	struct timespec at_once = {0};

	return socket.fd >= 0 && ppoll(&socket, 1, &at_once, NULL) == 0;
}

static int receive(struct gcr_message *ret_message)
{
	struct gcr_message_header unused_header;
	bool has_fds = false;
	int r = gcr_message_peek(connection.socket.fd, 0, -1, &unused_header, &has_fds);

	if (r < 0)
		return r;
	/*
	 * Make room for the descriptors, however many the program has open. A program that is
	 * started at this moment (posix_spawn(3), vfork(2)) inherits the raised limit, so messages
	 * without descriptors do not raise it.
	 */
	if (has_fds)
		gcr_descriptor_raise_limit();
	r = gcr_message_receive(connection.socket.fd, 0, -1, ret_message);
	if (has_fds)
		gcr_descriptor_lower_limit();
	return r;
}

int gcr_connection_receive(struct gcr_message *ret_message)
{
	int r;

	do {
		struct pollfd coming[] = {
			{.fd = connection.socket.fd, .events = POLLIN},
			{.fd = gcr_wakeup_fd(), .events = POLLIN},
			{.fd = gcr_hold_touch_fd(), .events = POLLIN},
		};

		if (!gcr_descriptor_valid(&connection.socket))
			return -EPIPE;
		if (ppoll(coming, GCR_ARRAY_SIZE(coming), NULL, NULL) < 0 && errno != EINTR)
			return -errno;
		/* While ppoll() waited, the program may have closed the socket. */
		if (!gcr_descriptor_valid(&connection.socket))
			return -EPIPE;
		if (!coming[0].revents && (coming[1].revents || coming[2].revents))
			return -EINTR;
		r = receive(ret_message);
	} while (r == -ETIMEDOUT);
	return r;
}

void gcr_connection_tell(uint16_t type)
{
	int fd = gcr_connection_fd();

	if (fd >= 0)
		gcr_message_send(fd, type, 0, NULL, 0, NULL, 0);
}

int gcr_connection_send(uint16_t type, uint32_t sequence, const void *payload, size_t payload_bytes,
			const int *fds, size_t fds_count)
{
	int64_t deadline_usec = gcr_clock_usec() + SEND_PATIENCE_USEC;

	for (;;) {
		struct timespec pause = {.tv_nsec = SEND_PAUSE_USEC * 1000};
		struct timespec patience = {.tv_sec = SEND_PATIENCE_USEC / GCR_USEC_PER_SEC};
		struct pollfd room = {.fd = connection.socket.fd, .events = POLLOUT};
		int r;

		if (!gcr_descriptor_valid(&connection.socket))
			return -EPIPE;
		r = gcr_message_send(connection.socket.fd, type, sequence, payload, payload_bytes,
				     fds, fds_count);
		if (r != -EAGAIN && r != -ETOOMANYREFS)
			return r;
		if (gcr_clock_usec() >= deadline_usec)
			return -ETIMEDOUT;
		if (r == -EAGAIN)
			ppoll(&room, 1, &patience, NULL);
		else
			nanosleep(&pause, NULL);
	}
}

static void forget(void)
{
	gcr_connection_close();
	connection.page.fd = -1;
}

GCR_LISTEN(fork, forget);
