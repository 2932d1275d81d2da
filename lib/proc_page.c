/* SPDX-License-Identifier: MIT */
/* Pages of preload libraries, see proc_page.h. No state. */
#include "lib/proc_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/cleanup.h"
#include "lib/extent.h"
#include "lib/page.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

/*
 * Files in memory are on a filesystem inside the kernel, which no user can mount.
 * AT_STATX_DONT_SYNC: a user's own filesystem is not asked, so it cannot block us.
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

int gcr_proc_page_facts(pid_t pid, int fd, struct gcr_page_facts *ret_facts)
{
	if (gcr_proc_source())
		return gcr_proc_source()->page_facts(pid, fd, ret_facts);
	return gcr_page_read(fd, ret_facts);
}

int gcr_proc_unpark_page(pid_t pid, int fd)
{
	if (gcr_proc_source())
		return gcr_proc_source()->unpark_page(pid, fd);
	return gcr_page_unpark(fd);
}

/*
 * Opens the table to read as *ret_fd, the caller's: a copy made by the source, since reading @fd
 * can block; without a source, @fd itself, duplicated.
 */
static int copy_table(pid_t pid, int fd, int *ret_fd)
{
	if (gcr_proc_source())
		return gcr_proc_source()->copy_file(pid, fd, ret_fd);
	*ret_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return *ret_fd < 0 ? -errno : 0;
}

int gcr_proc_extents(pid_t pid, int fd, struct gcr_extent **ret_extents, size_t *ret_count,
		     struct gcr_error *error)
{
	_cleanup_close_ int own_fd = -1;
	struct stat status;
	int r = copy_table(pid, fd, &own_fd);

	if (gcr_proc_is_silent(r))
		return gcr_error_set(error, -r, "its table of allocations cannot be read in time");
	if (r < 0 || fstat(own_fd, &status) < 0 || status.st_size < 0 ||
	    (uint64_t)status.st_size > GCR_EXTENTS_MAX * sizeof(**ret_extents))
		return gcr_error_set(error, EPROTO, "its table of allocations cannot be read");
	*ret_count = (size_t)status.st_size / sizeof(**ret_extents);
	return gcr_extents_read(own_fd, *ret_count, ret_extents, error);
}
