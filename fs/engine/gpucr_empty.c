/* SPDX-License-Identifier: MIT */
/*
 * gpucr-empty: truncates all files of the directory that is its descriptor 3, which frees their
 * memory. A program that has such a file open can hold the file's lock for ever (with a write(2)
 * whose bytes are in a filesystem of its own user that does not answer), and the truncation waits
 * for that lock. Therefore this is a separate process, whose end is not awaited.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/engine/emptying.h"
#include "lib/cleanup.h"
#include "lib/confine.h"

static int empty(int directory_fd, const char *name)
{
	_cleanup_close_ int fd = openat(directory_fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, 0) == 0)
		return 0;
	fprintf(stderr, "gpucr-empty: %s: %s\n", name, strerror(errno));
	return -errno;
}

int main(void)
{
	struct gcr_error error = {0};
	const struct dirent *entry;
	int status = 0;
	DIR *directory;

	if (gcr_confine(GCR_CONFINE_EMPTY, &error) < 0) {
		fprintf(stderr, "gpucr-empty: %s\n", error.words);
		return 1;
	}
	directory = fdopendir(GCR_EMPTYING_DIRECTORY);
	if (!directory) {
		fprintf(stderr, "gpucr-empty: descriptor %d: %s\n", GCR_EMPTYING_DIRECTORY,
			strerror(errno));
		return 1;
	}
	while ((entry = readdir(directory)))
		if (*entry->d_name != '.' && empty(dirfd(directory), entry->d_name) < 0)
			status = 1;
	closedir(directory);
	return status;
}
