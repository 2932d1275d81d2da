/* SPDX-License-Identifier: MIT */
/*
 * racing: preloaded into the daemon, makes a process (test/e2e/changing.c) run as root just when a
 * verb reads its status. GPUCR_TEST_RACING names a file with three numbers: the process, the number
 * of the verb's read of its status at which this happens (from 1), and a number that differs from
 * the one of the previous request. Reads by other threads of the daemon, which look at processes
 * all the time, do not count.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define TRIES	   1000
#define PAUSE_USEC 5000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long order;
static long reads;

static int next_open(const char *path, int flags, mode_t mode)
{
	static int (*next)(const char *, int, ...);

	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "open64");
	return next(path, flags, mode);
}

static size_t read_text(const char *path, char *text, size_t size)
{
	int fd = next_open(path, O_RDONLY | O_CLOEXEC, 0);
	ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[got > 0 ? got : 0] = '\0';
	return got > 0 ? (size_t)got : 0;
}

/*
 * Read the status into @text until its effective user is root or, with @is_root false, another one.
 * Returns the text's length.
 */
static size_t await(const char *path, bool is_root, char *text, size_t size)
{
	size_t bytes = 0;

	for (int i = 0; i < TRIES; i++) {
		const char *line;
		unsigned int uid = 1;

		bytes = read_text(path, text, size);
		line = strstr(text, "\nUid:");
		if (line && sscanf(line, "\nUid: %*u %u", &uid) == 1 && !uid == is_root)
			break;
		usleep(PAUSE_USEC);
	}
	return bytes;
}

static bool is_verbs_thread(void)
{
	char name[16] = "";

	return !prctl(PR_GET_NAME, name) && !strcmp(name, "gpucrfs-task");
}

static bool is_meant(const char *path, pid_t *ret_pid)
{
	const char *name = getenv("GPUCR_TEST_RACING");
	long pid, nth, number;
	char text[64];
	bool is_it;

	if (!name || !is_verbs_thread() || strncmp(path, "/proc/", 6) != 0 ||
	    !strstr(path, "/status") || !read_text(name, text, sizeof(text)) ||
	    sscanf(text, "%ld %ld %ld", &pid, &nth, &number) != 3)
		return false;
	snprintf(text, sizeof(text), "/proc/%ld/status", pid);
	if (strcmp(text, path) != 0)
		return false;
	pthread_mutex_lock(&lock);
	if (number != order)
		reads = 0;
	order = number;
	is_it = ++reads == nth;
	pthread_mutex_unlock(&lock);
	*ret_pid = (pid_t)pid;
	return is_it;
}

int open64(const char *path, int flags, ...)
{
	char text[8192], unused[8192];
	va_list arguments;
	size_t bytes;
	mode_t mode;
	pid_t pid;
	int fd;

	va_start(arguments, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
	va_end(arguments);
	if (!is_meant(path, &pid))
		return next_open(path, flags, mode);
	kill(pid, SIGUSR1);
	bytes = await(path, true, text, sizeof(text));
	kill(pid, SIGUSR2);
	await(path, false, unused, sizeof(unused));
	fd = memfd_create("racing", MFD_CLOEXEC);
	if (fd >= 0 && (write(fd, text, bytes) < 0 || lseek(fd, 0, SEEK_SET) < 0))
		_exit(3);
	return fd;
}
