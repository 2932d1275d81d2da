/* SPDX-License-Identifier: MIT */
/*
 * failing: preloaded into the daemon, makes calls of the C library fail. The file named by
 * GPUCR_TEST_FAILING contains the words for the calls that fail; without the file none fails:
 *   watch  no process can be watched
 *   watch=PID
 *          this process cannot be watched
 *   record=N
 *          no descriptor is left for every Nth reading of a record; after that a file with the
 *          same name and ".refused" appended exists
 *   uuid   no descriptor is left for the kernel's random UUIDs
 *   cgroup no cgroup can be made
 *   hold   a restore stops after it has verified its first process that CRIU has let go of, until
 *          the word is removed; during the wait a file with the same name and ".held" appended
 *          exists
 *   ask    as `hold`, for the first process while CRIU still holds it
 *   commit messages COMMIT are lost
 *   unkillable
 *          a restore's signals that end or stop a process are lost
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/protocol.h"

/* What follows the word in the file; NULL: the word is not there. Valid until the next call. */
static const char *find_word(const char *word)
{
	static _Thread_local char words[256];
	const char *path = getenv("GPUCR_TEST_FAILING");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	const char *found;

	if (fd < 0)
		return NULL;
	memset(words, 0, sizeof(words));
	if (read(fd, words, sizeof(words) - 1) < 0)
		words[0] = '\0';
	close(fd);
	found = strstr(words, word);
	return found ? found + strlen(word) : NULL;
}

static bool is_to_fail(const char *word)
{
	return find_word(word);
}

/* Makes a file with the name of our file and this end. */
static void mark(const char *end)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s%s", getenv("GPUCR_TEST_FAILING"), end);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static bool is_pidfd(int fd)
{
	char path[32], target[64] = "";

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "pidfd");
}

/* The number in the line of the file that begins with @name; 0: there is none. */
static int number_in(const char *path, const char *name)
{
	char text[1024] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const char *line;

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		text[0] = '\0';
	close(fd);
	line = strstr(text, name);
	return line ? atoi(line + strlen(name)) : 0;
}

static int pid_of(int pidfd)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
	return number_in(path, "\nPid:");
}

static bool is_traced(int pidfd)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/status", pid_of(pidfd));
	return number_in(path, "\nTracerPid:") > 0;
}

/* Is the process of this pidfd not to be watched? */
static bool is_unwatched(int fd)
{
	const char *rest = find_word("watch");
	int number;

	if (!rest || *rest != '=')
		return rest;
	number = atoi(rest + 1);
	return number && pid_of(fd) == number;
}

/* Is it an Nth reading of a record, PID-TICKS? */
static bool is_refused(const char *path, int flags)
{
	static atomic_uint count;
	const char *nth;

	if (flags & (O_WRONLY | O_RDWR | O_DIRECTORY | O_PATH) || !strchr(path, '-') ||
	    path[strspn(path, "0123456789-")])
		return false;
	nth = find_word("record=");
	if (!nth || (atomic_fetch_add(&count, 1) + 1) % (unsigned int)atoi(nth))
		return false;
	mark(".refused");
	return true;
}

static bool is_restore(void)
{
	char name[16] = "";

	return !prctl(PR_GET_NAME, name) && !strcmp(name, "gpucrfs-restore");
}

/* Stops a restore that has verified the process. */
static void hold(int pidfd)
{
	const char *word = is_traced(pidfd) ? "ask" : "hold";

	if (!is_to_fail(word))
		return;
	mark(".held");
	while (is_to_fail(word))
		usleep(10000);
}

static bool is_lost(int number)
{
	return (number == SIGKILL || number == SIGSTOP) && is_restore() && is_to_fail("unkillable");
}

int kill(pid_t pid, int number)
{
	static int (*next)(pid_t, int);

	if (is_lost(number))
		return 0;
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "kill");
	return next(pid, number);
}

/*
 * The daemon calls syscall(3) only with integer and pointer arguments, and never to make a process,
 * so that a wrapper is possible.
 */
long syscall(long number, ...)
{
	static long (*next)(long, ...);
	long words[6], result;
	va_list list;

	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "syscall");
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		words[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_pidfd_send_signal && is_lost((int)words[1]))
		return 0;
	result = next(number, words[0], words[1], words[2], words[3], words[4], words[5]);
	if (number == SYS_pidfd_send_signal && !(int)words[1] && !result && is_restore())
		hold((int)words[0]);
	return result;
}

int epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event)
{
	static int (*next)(int, int, int, struct epoll_event *);

	if (operation == EPOLL_CTL_ADD && is_pidfd(fd) && is_unwatched(fd)) {
		errno = ENOSPC;
		return -1;
	}
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "epoll_ctl");
	return next(epoll_fd, operation, fd, event);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	static ssize_t (*next)(int, const struct msghdr *, int);
	struct gcr_message_header header = {0};

	if (message->msg_iovlen && message->msg_iov[0].iov_len >= sizeof(header))
		memcpy(&header, message->msg_iov[0].iov_base, sizeof(header));
	if (header.magic == GCR_PROTOCOL_MAGIC && header.type == GCR_MESSAGE_COMMIT &&
	    is_to_fail("commit"))
		return (ssize_t)sizeof(header);
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "sendmsg");
	return next(fd, message, flags);
}

int openat(int directory_fd, const char *path, int flags, ...)
{
	static int (*next)(int, const char *, int, ...);
	mode_t mode;
	va_list list;

	if (is_refused(path, flags)) {
		errno = EMFILE;
		return -1;
	}
	va_start(list, flags);
	mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
	va_end(list);
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "openat");
	return next(directory_fd, path, flags | O_LARGEFILE, mode);
}

FILE *fopen(const char *path, const char *mode)
{
	static FILE *(*next)(const char *, const char *);

	if (strstr(path, "/cgroup.kill") && is_lost(SIGKILL)) {
		errno = ENOENT;
		return NULL;
	}
	if (!strcmp(path, "/proc/sys/kernel/random/uuid") && is_to_fail("uuid")) {
		errno = EMFILE;
		return NULL;
	}
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "fopen");
	return next(path, mode);
}

int mkdir(const char *path, mode_t mode)
{
	static int (*next)(const char *, mode_t);

	if (strstr(path, "/gpucrfs/gpucr-") && is_to_fail("cgroup")) {
		errno = EROFS;
		return -1;
	}
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "mkdir");
	return next(path, mode);
}
