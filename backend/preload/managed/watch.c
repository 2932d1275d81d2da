/* SPDX-License-Identifier: MIT */
#include "backend/preload/managed/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/thread_name.h"

/* As linux/dirent.h has it; no library has a header for it. */
struct entry {
	uint64_t inode;
	int64_t offset;
	uint16_t bytes;
	uint8_t type;
	char name[];
};

int gcr_watch_begin(struct gcr_watch *ret_watch, struct gcr_error *error)
{
	int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = fd < 0 ? -errno : gcr_descriptor_keep_anywhere(fd, &ret_watch->tasks);

	if (r < 0)
		return gcr_error_set(error, -r, "/proc/self/task: %s", strerror(-r));
	gcr_thread_name_of_program(ret_watch->program);
	return 0;
}

void gcr_watch_end(struct gcr_watch *watch)
{
	gcr_descriptor_close(&watch->tasks);
}

/*
 * Is the thread stopped, dead, or in a system call which a stop does not reach and which does not
 * end before the move is done (the daemon has checked which)?
 */
static bool is_stopped(const struct gcr_watch *watch, const char *name)
{
	char path[32], text[512], *comm;
	char *state;
	ssize_t length;
	int fd;

	memset(path, 0, sizeof(path));
	memcpy(path, name, strnlen(name, 16));
	memcpy(path + strlen(path), "/stat", 5);
	fd = openat(watch->tasks.fd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return errno == ESRCH;
	text[length] = '\0';
	comm = strchr(text, '(');
	state = strrchr(text, ')');
	if (!comm || !state || state[1] != ' ')
		return false;
	if (strchr("tDZX", state[2]) || strtol(name, NULL, 10) == gettid())
		return true;
	*state = '\0';
	return gcr_thread_name_is_ours(comm + 1) ||
	       gcr_thread_name_is_drivers(comm + 1, watch->program);
}

bool gcr_watch_stopped(const struct gcr_watch *watch)
{
	char buffer[4096] __attribute__((aligned(8)));
	long length;

	if (!gcr_descriptor_valid(&watch->tasks) || lseek(watch->tasks.fd, 0, SEEK_SET) < 0)
		return false;
	while ((length = syscall(SYS_getdents64, watch->tasks.fd, buffer, sizeof(buffer))) > 0)
		for (long at = 0; at < length;) {
			const struct entry *entry = (const struct entry *)(buffer + at);

			if (entry->name[0] != '.' && !is_stopped(watch, entry->name))
				return false;
			at += entry->bytes;
		}
	return length == 0;
}
