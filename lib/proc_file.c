/* SPDX-License-Identifier: MIT */
/* Reading small files of the kernel as a whole. */
#include "lib/proc_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/proc_source.h"

/* environ may be as large as a quarter of the stack; more than this is no program's environment. */
#define FILE_BYTES_MAX (64u << 20)

static const struct gcr_proc_source *source; /* set before there are other threads */

void gcr_proc_set_source(const struct gcr_proc_source *new_source)
{
	source = new_source;
}

const struct gcr_proc_source *gcr_proc_source(void)
{
	return source;
}

void gcr_proc_path(char path[GCR_PROC_PATH_BYTES], pid_t pid, const char *name)
{
	snprintf(path, GCR_PROC_PATH_BYTES, "/proc/%d/%s", (int)pid, name);
}

int gcr_proc_error(int number)
{
	switch (number) {
	case ENOENT:
		return -ESRCH;
	case EPERM:
		return -EACCES;
	default:
		return -number;
	}
}

int gcr_file_read(const char *path, char **ret_text, size_t *ret_bytes)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int fd = -1;
	size_t size = 4096;
	size_t used = 0;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return -errno;
	text = malloc(size);
	if (!text)
		return -ENOMEM;
	for (;;) {
		ssize_t got;

		if (used + 1 == size) {
			char *larger;

			if (size >= FILE_BYTES_MAX)
				return -EFBIG;
			larger = realloc(text, size * 2);
			if (!larger)
				return -ENOMEM;
			text = larger;
			size *= 2;
		}
		got = read(fd, text + used, size - used - 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		used += (size_t)got;
	}
	text[used] = '\0';
	*ret_text = TAKE_PTR(text);
	if (ret_bytes)
		*ret_bytes = used;
	return 0;
}

/* Can reading this file block? Only the files listed never do; any other is assumed to block. */
static bool can_wait(const char *name)
{
	static const char *const others[] = {"status",	 "comm",    "cgroup",  "mountinfo",
					     "net/unix", "net/tcp", "net/tcp6"};
	const char *slash = strrchr(name, '/');

	for (size_t i = 0; i < GCR_ARRAY_SIZE(others); i++)
		if (!strcmp(name, others[i]))
			return false;
	if (!strncmp(name, "fdinfo/", 7))
		return false;
	return strncmp(name, "task/", 5) != 0 || !slash ||
	       (strcmp(slash, "/children") != 0 && strcmp(slash, "/status") != 0);
}

int gcr_proc_read(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes)
{
	char path[GCR_PROC_PATH_BYTES];
	int r;

	if (pid <= 0)
		return -ESRCH;
	if (source && can_wait(name))
		return source->read(pid, name, ret_text, ret_bytes);
	gcr_proc_path(path, pid, name);
	r = gcr_file_read(path, ret_text, ret_bytes);
	return r < 0 ? gcr_proc_error(-r) : 0;
}

int gcr_proc_open_file(pid_t pid, const char *name, int *ret_fd)
{
	char path[GCR_PROC_PATH_BYTES];
	int fd;

	if (pid <= 0)
		return -ESRCH;
	if (source)
		return source->open(pid, name, ret_fd);
	gcr_proc_path(path, pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return gcr_proc_error(errno);
	*ret_fd = fd;
	return 0;
}

int gcr_parse_u64(const char *text, uint64_t *ret_value)
{
	char *end;
	unsigned long long value;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno)
		return -errno;
	while (isspace((unsigned char)*end))
		end++;
	if (*end)
		return -EINVAL;
	*ret_value = value;
	return 0;
}
