/* SPDX-License-Identifier: MIT */
/* Descriptors of a process that lead to pages of preload libraries. Nothing here keeps state. */
#include "lib/proc_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/cleanup.h"
#include "lib/page.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

/*
 * Files in memory are on one filesystem of the kernel's, which nobody can mount. A user's own
 * filesystem would be asked nothing here, and what it does not answer keeps nobody waiting.
 */
static bool is_memfd(int fd)
{
	_cleanup_close_ int own_fd = memfd_create("gpucr-own", MFD_CLOEXEC);
	struct statx own, its;

	return own_fd >= 0 &&
	       statx(own_fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &own) == 0 &&
	       statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &its) == 0 &&
	       S_ISREG(its.stx_mode) && own.stx_dev_major == its.stx_dev_major &&
	       own.stx_dev_minor == its.stx_dev_minor;
}

static int unpark_file(int number, const char *target, void *data)
{
	_cleanup_close_ int path_fd = -1, fd = -1;
	char path[GCR_PROC_PATH_BYTES];
	const pid_t *pid = data;

	if (strcmp(target, GCR_PAGE_FILE_NAME) != 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)*pid, number);
	path_fd = open(path, O_PATH | O_CLOEXEC);
	if (path_fd < 0 || !is_memfd(path_fd))
		return 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		gcr_page_unpark(fd);
	return 0;
}

int gcr_proc_unpark_pages(pid_t pid)
{
	if (pid <= 0)
		return -ESRCH;
	if (gcr_proc_source())
		return gcr_proc_source()->unpark_pages(pid);
	return gcr_proc_each_link(pid, unpark_file, &pid);
}
