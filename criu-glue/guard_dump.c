/* SPDX-License-Identifier: MIT */
/*
 * The files of a dumped program, in CRIU. A process outside the tree can share the descriptors of
 * one inside, and go on while CRIU dumps the tree: so a descriptor's number can lead to another
 * file than a moment before, even to one that the program's user may not open (O_PATH). CRIU opens
 * descriptors again, as root, through their links in /proc, and makes names for files:
 *  - its own memory in a process of the tree, a memfd that it has the process make, for writing
 *    (CRIU 4.2: compel/src/lib/infect.c). Any file would be cut off, and overwritten. The guard
 *    opens nothing but a file in memory that is empty and has no name;
 *  - the name of a file that has lost it ("link_remap"). The guard makes it only where no user can
 *    have put something else into the path.
 */
#include "criu-glue/guard_dump.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "criu-glue/criu.h"
#include "criu-glue/guard.h"
#include "criu-glue/guard_memory.h"
#include "criu-glue/guard_rights.h"

/* The root of the tree that is dumped; pid 0: none is. */
static struct {
	pid_t pid;
	int pidfd;
} root;

/*
 * Reads the root from the environment at the start of the program, which ends if the root is not
 * valid. The variable stays, since this may be a program that starts CRIU.
 */
__attribute__((constructor)) static void learn(void)
{
	const char *text = getenv(GCR_CRIU_ROOT_VARIABLE);
	int length = 0;

	if (!text)
		return;
	if (sscanf(text, "%d:%d%n", &root.pid, &root.pidfd, &length) != 2 || text[length] ||
	    root.pid <= 0) {
		fprintf(stderr, "gpucr-criu-guard: the root of the tree is not known: %s\n", text);
		_exit(1);
	}
}

bool gcr_guard_is_dump(void)
{
	return root.pid && !gcr_guard_has_owner();
}

bool gcr_guard_is_dump_root(pid_t pid, int *ret_pidfd)
{
	*ret_pidfd = root.pidfd;
	return gcr_guard_is_dump() && root.pid == pid;
}

int gcr_guard_open(int fd, const char *name, int flags, mode_t mode)
{
	return (int)syscall(SYS_openat, fd, name, flags, mode);
}

int gcr_guard_refuse(const char *words)
{
	fprintf(stderr, "gpucr-criu-guard: %s\n", words);
	errno = EPERM;
	return -1;
}

/* Opens the file of @path_fd, which has O_PATH, with other flags. */
static int open_again(int path_fd, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
	return gcr_guard_open(AT_FDCWD, path, flags, 0);
}

/* Is the file in memory, empty and without a name, like one that memfd_create(2) has just made? */
static bool is_new_memory(int fd)
{
	struct statfs filesystem;
	struct stat stat;

	return fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_nlink == 0 &&
	       stat.st_size == 0 && fstatfs(fd, &filesystem) == 0 &&
	       filesystem.f_type == TMPFS_MAGIC;
}

/*
 * Opens, for writing, the memory that CRIU has had a process make. -1 and errno; EPERM, with a
 * message: the descriptor is another file.
 */
static int open_memory(int fd, const char *name, int flags)
{
	int result, number, path_fd = gcr_guard_open(fd, name, O_PATH | O_CLOEXEC, 0);

	if (path_fd < 0)
		return -1;
	result = is_new_memory(path_fd)
			 ? open_again(path_fd, flags)
			 : gcr_guard_refuse("a descriptor of CRIU's in a process of the tree is "
					    "another file: "
					    "a process outside the tree shares its descriptors");
	number = errno;
	close(path_fd);
	errno = number;
	if (result >= 0)
		gcr_guard_note_memory(result);
	return result;
}

/* Is @name the name of a mapping in the directory map_files of a process? */
static bool is_mapping(const char *name)
{
	unsigned long start, end;
	int length = 0;

	return sscanf(name, "%lx-%lx%n", &start, &end, &length) == 2 && !name[length];
}

/*
 * As openat(2), but reports EACCES instead of EPERM for a mapping. After EPERM CRIU would open the
 * path that the mapping had, as root, where a user can have put anything; another number stops CRIU
 * (CRIU 4.2: criu/proc_parse.c). A user's own file system can refuse the mapping.
 */
static int open_other(int fd, const char *name, int flags)
{
	int result = gcr_guard_open(fd, name, flags, 0);

	if (result < 0 && errno == EPERM && is_mapping(name))
		errno = EACCES;
	return result;
}

int gcr_guard_dump_open(int fd, const char *name, int flags)
{
	bool is_descriptor = !strncmp(name, "fd/", 3);

	if ((flags & O_ACCMODE) != O_RDONLY && !strncmp(name, "map_files/", 10))
		return gcr_guard_refuse("CRIU opens a mapping of the tree for writing");
	if (!is_descriptor)
		return open_other(fd, name, flags);
	if ((flags & O_ACCMODE) != O_RDONLY)
		return open_memory(fd, name, flags);
	return gcr_guard_open(fd, name, flags, 0);
}

/* ---- names of files that have lost them ---- */

/*
 * Is the directory root's, so that no other user can make entries in it, or change those of root?
 */
static bool is_roots(int fd)
{
	struct stat stat;

	return fstat(fd, &stat) == 0 && S_ISDIR(stat.st_mode) && !stat.st_uid &&
	       (!(stat.st_mode & 022) || stat.st_mode & S_ISVTX);
}

/*
 * Opens the directory of @path, a path below @fd, if this directory and all above it are root's
 * alone. *ret_name is the last component, in @path, which is changed. -1 and errno; EPERM, with a
 * message: a directory is not root's.
 */
static int open_roots_directory(int fd, char *path, char **ret_name)
{
	char *name, *rest = path;
	int at = gcr_guard_open(fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);

	while ((name = strsep(&rest, "/")) && rest && at >= 0) {
		int next;

		if (!*name || !strcmp(name, "."))
			continue;
		next = is_roots(at) && strcmp(name, "..") != 0
			       ? gcr_guard_open(at, name,
						O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0)
			       : gcr_guard_refuse("CRIU would make a name in a directory that is "
						  "not root's");
		close(at);
		at = next;
	}
	*ret_name = name;
	if (at < 0 || (name && *name && is_roots(at)))
		return at;
	close(at);
	return gcr_guard_refuse("CRIU would make a name in a directory that is not root's");
}

int gcr_guard_dump_link(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
	char path[PATH_MAX], *name;
	int directory, result, number;

	if (to_fd == AT_FDCWD || strlen(to) >= sizeof(path))
		return gcr_guard_refuse("CRIU would make a name");
	strcpy(path, to);
	directory = open_roots_directory(to_fd, path, &name);
	if (directory < 0)
		return -1;
	result = (int)syscall(SYS_linkat, from_fd, from, directory, name, flags);
	number = errno;
	close(directory);
	errno = number;
	return result;
}
