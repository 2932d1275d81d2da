/* SPDX-License-Identifier: MIT */
/*
 * Checks that images reveal nothing to their reader. CRIU, as root, opens files that a program has
 * open, even those that the program itself can only name (O_PATH) or write, and puts contents of
 * files without a name into images: the reader of the images must not learn more from them than he
 * could from the files.
 */
#include "criu-glue/opens_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Does the process have the file open for reading? Then it has read the file, or can: the kernel
 * checked its rights when the file was opened.
 */
static bool is_open_for_reading(const struct opens_file *file)
{
	long long flags;

	return file->fd >= 0 && opens_number(file->info, "flags", 8, &flags) && !(flags & O_PATH) &&
	       (flags & O_ACCMODE) != O_WRONLY;
}

/*
 * Refuses the file (true). If the images may be private, sets is_private instead and returns false.
 */
static bool note(struct opens_scan *scan, const struct opens_file *file, const char *words)
{
	if (scan->options->may_be_private) {
		scan->opens->is_private = true;
		return false;
	}
	opens_refuse(scan, file->pid, file->fd, EPERM, "%s (%s)", words, file->link);
	return true;
}

/*
 * May the reader read the file, by its mode? 1, 0. The file is opened through the link in /proc,
 * which does not resolve the path.
 */
static int can_read(const struct opens_scan *scan, const struct opens_file *file)
{
	_cleanup_close_ int fd = open(file->proc_path, O_PATH | O_CLOEXEC);
	struct statx now;

	if (fd < 0 ||
	    statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &now) < 0 ||
	    now.stx_ino != file->status.stx_ino ||
	    now.stx_dev_major != file->status.stx_dev_major ||
	    now.stx_dev_minor != file->status.stx_dev_minor)
		return 0;
	return gcr_file_rights_read_fd(scan->options->reader, fd) == 1;
}

bool opens_judge_rights(struct opens_scan *scan, const struct opens_file *file, bool is_open)
{
	bool has_name = file->status.stx_nlink > 0 && file->link[0] == '/';

	if (!scan->options->reader)
		return false;
	if (!(is_open && is_open_for_reading(file)) && !can_read(scan, file))
		return note(scan, file,
			    "is a file that the owner of the process may not read, and what is in "
			    "it would be in images that the owner may read: close it, or let root "
			    "dump");
	/* Digests are made by the file's name. */
	if (has_name && S_ISREG(file->status.stx_mode) &&
	    gcr_file_rights_find(scan->options->reader, file->link) == 0)
		return note(scan, file,
			    "is a file in a directory that the owner of the process may not enter, "
			    "and its digest would be in the manifest: close it, or let root dump");
	return false;
}

/*
 * Does the directory belong to root, and can no other user create or rename root's entries in it?
 */
static bool is_roots_directory(int fd)
{
	struct stat stat;

	return !fstat(fd, &stat) && S_ISDIR(stat.st_mode) && !stat.st_uid &&
	       (!(stat.st_mode & 022) || stat.st_mode & S_ISVTX);
}

bool opens_is_in_roots_directory(const struct opens_file *file)
{
	_cleanup_free_ char *path = strdup(file->link);
	_cleanup_close_ int fd = -1;
	char *name, *end, *rest = NULL;
	char root[32];

	end = path ? strrchr(path, '/') : NULL;
	if (!end)
		return false;
	*end = '\0';
	snprintf(root, sizeof(root), "/proc/%d/root", (int)file->pid);
	fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	/* The link's text has no symbolic links: one that is found now was put there later. */
	for (name = strtok_r(path, "/", &rest); name && fd >= 0 && is_roots_directory(fd);
	     name = strtok_r(NULL, "/", &rest)) {
		int next = openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		close(fd);
		fd = next;
	}
	return !name && fd >= 0 && is_roots_directory(fd);
}

bool opens_judge_on_its_way(struct opens_scan *scan, const struct opens_file *file)
{
	_cleanup_free_ char *info = NULL;
	char name[64];
	long long count;

	snprintf(name, sizeof(name), "fdinfo/%d", file->fd);
	if (!scan->options->reader || file->fd < 0 ||
	    gcr_proc_read(file->pid, name, &info, NULL) < 0 ||
	    !opens_number(info, "scm_fds", 10, &count) || count == 0)
		return false;
	return note(scan, file,
		    "is a socket in which descriptors wait to be received, and what they lead to "
		    "cannot be seen: receive them, or let root dump");
}
