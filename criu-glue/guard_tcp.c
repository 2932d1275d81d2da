/* SPDX-License-Identifier: MIT */
/*
 * The TCP connections of a dumped program. A process outside the tree can have the same socket, and
 * use it while CRIU dumps the tree. CRIU turns the socket's repair mode on, and leaves it on until
 * all is dumped (CRIU 4.1.1: soccr/soccr.c). In that mode the kernel lets the socket be bound to a
 * port that others are bound to: that process could disconnect, listen at the port of another user
 * and get his connections. The guard turns this off at once. If the process was faster, the dump
 * fails, and the socket does not listen.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "criu-glue/guard.h"
#include "criu-glue/guard_dump.h"

/* Where a socket is bound, and in which state it is (include/net/tcp_states.h). */
struct connection {
	struct sockaddr_storage address;
	uint8_t state;
};

static int set_raw(int fd, int level, int option, const void *value, socklen_t bytes)
{
	return (int)syscall(SYS_setsockopt, fd, level, option, value, bytes);
}

static bool look(int fd, struct connection *connection)
{
	socklen_t address_bytes = sizeof(connection->address);
	struct tcp_info info = {0};
	socklen_t info_bytes = sizeof(info);

	memset(connection, 0, sizeof(*connection));
	if (getsockname(fd, (struct sockaddr *)&connection->address, &address_bytes) < 0 ||
	    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) < 0)
		return false;
	connection->state = info.tcpi_state;
	return true;
}

static bool is_connected(const struct connection *connection)
{
	return connection->state != TCP_CLOSE && connection->state != TCP_LISTEN;
}

static int refuse(void)
{
	return gcr_guard_refuse(
		"a process outside the tree has disconnected one of its connections");
}

/*
 * Turns on the repair mode of a connected socket. -1 and errno; EPERM, with a message: a process
 * outside the tree has disconnected the socket. After -1 the socket is not in the repair mode, or
 * is shut down.
 */
static int begin_repair(int fd, const void *value, socklen_t bytes)
{
	struct connection before, after;
	const int off = 0;
	int reuse = 0;
	socklen_t reuse_bytes = sizeof(reuse);

	if (!look(fd, &before) || !is_connected(&before) ||
	    getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, &reuse_bytes) < 0)
		return refuse();
	if (set_raw(fd, IPPROTO_TCP, TCP_REPAIR, value, bytes) < 0)
		return -1;
	reuse = reuse != 0;
	if (set_raw(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) == 0 && look(fd, &after) &&
	    is_connected(&after) &&
	    !memcmp(&before.address, &after.address, sizeof(before.address)))
		return 0;
	shutdown(fd, SHUT_RDWR);
	set_raw(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off));
	return refuse();
}

GCR_GUARD_EXPORT int setsockopt(int fd, int level, int option, const void *value, socklen_t bytes)
{
	if (gcr_guard_is_dump() && level == IPPROTO_TCP && option == TCP_REPAIR &&
	    bytes == sizeof(int) && *(const int *)value == 1)
		return begin_repair(fd, value, bytes);
	return set_raw(fd, level, option, value, bytes);
}
