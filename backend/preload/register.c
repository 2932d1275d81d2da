/* SPDX-License-Identifier: MIT */
/*
 * Telling the daemon about this process. Nothing waits and nothing is reported: without a
 * daemon, or with one that does not answer, the program runs as it would have.
 */
#include "backend/preload/preload.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/message.h"

#define SYSTEM_SOCKET "/run/gpucrfs/socket"

/*
 * The connection. The program may close every descriptor it does not know and get the same
 * number again for something else, so a number alone is not ours: the socket's inode is.
 */
static struct {
	int fd;
	dev_t device;
	ino_t inode;
} connection = {.fd = -1};

/* The process that has registered, or tried to: a child of fork(2) is another one. */
static _Atomic(pid_t) registered_pid;

static void forget_in_child(void)
{
	struct stat now;

	if (connection.fd >= 0 && fstat(connection.fd, &now) == 0 &&
	    now.st_dev == connection.device && now.st_ino == connection.inode)
		close(connection.fd);
	connection.fd = -1;
	atomic_store(&registered_pid, 0);
}

/* Out of the way of programs that expect low numbers, and of select(2)'s sets at the same time. */
static int move_high(int fd)
{
	struct rlimit limit;
	rlim_t most = FD_SETSIZE;
	int high;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < most)
		most = limit.rlim_cur;
	high = fcntl(fd, F_DUPFD_CLOEXEC, (int)(most - most / 16));
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_close_ int fd = -1;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	return TAKE_FD(fd);
}

static int connect_to_daemon(void)
{
	const char *path = secure_getenv("GPUCR_SOCKET");
	const char *directory = secure_getenv("XDG_RUNTIME_DIR");
	char user_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int fd;

	if (path)
		return connect_to(path);
	fd = connect_to(SYSTEM_SOCKET);
	if (fd >= 0 || !directory)
		return fd;
	if ((size_t)snprintf(user_path, sizeof(user_path), "%s/gpucrfs/socket", directory) >=
	    sizeof(user_path))
		return -ENAMETOOLONG;
	return connect_to(user_path);
}

static int register_process(void)
{
	static atomic_flag has_handler = ATOMIC_FLAG_INIT;
	struct gcr_register message = {.preload_version = GCR_PRELOAD_VERSION};
	_cleanup_close_ int fd = -1;
	struct stat status;
	int r;

	fd = connect_to_daemon();
	if (fd < 0)
		return fd;
	fd = move_high(fd);
	if (fstat(fd, &status) < 0)
		return -errno;
	r = gcr_message_send(fd, GCR_MESSAGE_REGISTER, 1, &message, sizeof(message), NULL, 0);
	if (r < 0)
		return r;
	if (!atomic_flag_test_and_set(&has_handler))
		pthread_atfork(NULL, NULL, forget_in_child);
	connection.device = status.st_dev;
	connection.inode = status.st_ino;
	connection.fd = TAKE_FD(fd);
	return 0;
}

void gcr_preload_register(void)
{
	int saved_errno = errno;
	pid_t self = getpid();

	/* By pid as well, for children made by clone(2) without the fork handlers. */
	if (atomic_exchange(&registered_pid, self) != self)
		register_process();
	errno = saved_errno;
}
