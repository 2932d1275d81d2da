/* SPDX-License-Identifier: MIT */
/*
 * gpucr-trusted: whether a script of ours may use what a variable of the environment names, which
 * can be that of another user (su, sudo -E).
 *
 *     gpucr-trusted file NAME PATH        a file or directory, which the variable NAME contains
 *     gpucr-trusted directory NAME PATH   a directory to which all may add files
 *     gpucr-trusted mount                 the mount of GPUCR_MOUNT, else the first one of
 *                                         this user's or root's
 *
 * Prints the path without links, or nothing if there is none, and exits with 0; or prints why it is
 * not used, and exits with 1. 2: the arguments are wrong.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/error.h"
#include "lib/mount.h"
#include "lib/trusted_path.h"

/*
 * Finds the path of a mount. This function and the next two return 0 and *ret_path, which the
 * caller frees (unchanged: there is no such path), or -errno with a message.
 */
static int find_mount(char **ret_path, struct gcr_error *error)
{
	const char *given = getenv("GPUCR_MOUNT");
	int r;

	if (given && *given)
		return gcr_mount_given(given, ret_path, error);
	r = gcr_mount_search(ret_path);
	return r && r != -ENOENT
		       ? gcr_error_set(error, -r, "/proc/self/mountinfo: %s", strerror(-r))
		       : 0;
}

static int find_file(const char *name, const char *path, char **ret_path, struct gcr_error *error)
{
	return access(path, F_OK) ? 0 : gcr_trusted_path(name, path, ret_path, error);
}

static int find(char **arguments, char **ret_path, struct gcr_error *error)
{
	const char *kind = arguments[0];

	if (!strcmp(kind, "mount"))
		return find_mount(ret_path, error);
	if (!strcmp(kind, "directory"))
		return gcr_trusted_directory(arguments[1], arguments[2], ret_path, error);
	return find_file(arguments[1], arguments[2], ret_path, error);
}

static bool is_right(int count, char **arguments)
{
	if (count == 1)
		return !strcmp(arguments[0], "mount");
	return count == 3 && (!strcmp(arguments[0], "file") || !strcmp(arguments[0], "directory"));
}

int main(int argc, char **argv)
{
	_cleanup_free_ char *path = NULL;
	struct gcr_error error = {0};

	if (!is_right(argc - 1, argv + 1)) {
		fprintf(stderr,
			"usage: gpucr-trusted mount | file NAME PATH | directory NAME PATH\n");
		return 2;
	}
	if (find(argv + 1, &path, &error) < 0) {
		puts(error.words);
		return EXIT_FAILURE;
	}
	/* A shell leaves out the last ones. */
	if (path && strchr(path, '\n')) {
		puts("its path has a line break");
		return EXIT_FAILURE;
	}
	if (path)
		puts(path);
	return EXIT_SUCCESS;
}
