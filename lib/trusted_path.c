/* SPDX-License-Identifier: MIT */
/* See trusted_path.h. */
#include "lib/trusted_path.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/mount.h"

#define OWNERS_MAX 64
#define EVERYBODY  ((int64_t)-1)

/* Characters that separate directories here or in LD_LIBRARY_PATH, or are replaced there. */
#define MEANT_IN_LISTS ":;$"

/*
 * Finds the user who can change the last step of @path: *ret_owner is its owner, or EVERYBODY if
 * all may write to it. @keeps S_ISVTX: the sticky bit of a directory suffices against the others,
 * since the step below exists; 0: it does not. -errno of stat(2).
 */
static int owner_of(const char *path, mode_t keeps, int64_t *ret_owner)
{
	struct stat status;

	if (stat(path, &status) < 0)
		return -errno;
	/* Write access to a socket allows to connect. */
	*ret_owner = !S_ISSOCK(status.st_mode) && (status.st_mode & (S_IWOTH | keeps)) == S_IWOTH
			     ? EVERYBODY
			     : (int64_t)status.st_uid;
	return 0;
}

static bool is_directory(const char *path)
{
	struct stat status;

	return stat(path, &status) < 0 || S_ISDIR(status.st_mode);
}

/* Cuts the last step off a path without links; false: it was "/". */
static bool go_up(char *path)
{
	char *slash = strrchr(path, '/');

	if (!slash || !path[1])
		return false;
	slash[slash == path] = '\0';
	return true;
}

struct owners {
	int64_t list[OWNERS_MAX];
	size_t count;
};

static void find_owners(struct owners *owners)
{
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	owners->list[0] = 0;
	owners->list[1] = geteuid();
	owners->count = 2;
	if (length <= 0)
		return;
	/* Whoever can change this program needs no variable. */
	self[length] = '\0';
	do {
		if (owners->count < OWNERS_MAX &&
		    !owner_of(self, S_ISVTX, &owners->list[owners->count]))
			owners->count++;
	} while (go_up(self));
}

static bool is_owner(const struct owners *owners, int64_t owner)
{
	for (size_t i = 0; i < owners->count; i++)
		if (owners->list[i] == owner)
			return true;
	return false;
}

/* Does the path have a step ".."? */
static bool has_step_up(const char *path)
{
	for (const char *step = path; *step; step += strspn(step, "/")) {
		size_t length = strcspn(step, "/");

		if (length == 2 && !strncmp(step, "..", length))
			return true;
		step += length;
	}
	return false;
}

/*
 * Returns @path without links; *ret_there is the part of it that exists. The caller frees both.
 * NULL: an error, in errno; ENOENT: the missing part has a step "..".
 */
static char *resolve(const char *path, char **ret_there)
{
	_cleanup_free_ char *start = NULL;
	_cleanup_free_ char *cut = NULL;
	_cleanup_free_ char *there = NULL;
	const char *missing;
	char *whole;
	size_t length;

	if (asprintf(&start, "%s%s", *path == '/' ? "" : "./", path) < 0)
		return NULL;
	cut = strdup(start);
	if (!cut)
		return NULL;
	length = strlen(cut);
	while (!(there = realpath(cut, NULL))) {
		/* The working directory may have been removed. */
		if (errno != ENOENT || length <= 1)
			return NULL;
		while (length > 1 && cut[length - 1] == '/')
			length--;
		while (length > 1 && cut[length - 1] != '/')
			length--;
		cut[length] = '\0';
	}
	missing = start + length;
	if (has_step_up(missing)) {
		errno = ENOENT;
		return NULL;
	}
	if (asprintf(&whole, "%s%s%s", there, *missing && there[1] ? "/" : "", missing) < 0)
		return NULL;
	*ret_there = TAKE_PTR(there);
	return whole;
}

/* gcr_trusted_path(); with @all_may_add gcr_trusted_directory(). */
static int find_trusted(const char *name, const char *path, bool all_may_add, char **ret_path,
			struct gcr_error *error)
{
	_cleanup_free_ char *there = NULL;
	_cleanup_free_ char *whole = resolve(path, &there);
	struct owners owners;
	int64_t owner = EVERYBODY;
	unsigned long maker;
	mode_t keeps;
	int r;

	if (!whole)
		return gcr_error_set(error, errno, "%s: %s: %s", name, path, strerror(errno));
	/* A FUSE filesystem says of its files what its maker likes. */
	r = gcr_mount_find_maker(there, geteuid(), &maker);
	if (r < 0)
		return gcr_error_set(error, -r, "/proc/self/mountinfo: %s", strerror(-r));
	if (r > 0)
		return gcr_error_set(error, EPERM,
				     "%s: %s is not used: it is on a mount of user %lu, who is "
				     "neither root nor you",
				     name, path, maker);
	find_owners(&owners);
	keeps = strcmp(whole, there) || (is_directory(there) && !all_may_add) ? 0 : S_ISVTX;
	do {
		if (owner_of(there, keeps, &owner) < 0)
			return gcr_error_set(error, errno, "%s: %s: %s", name, there,
					     strerror(errno));
		keeps = S_ISVTX;
		if (is_owner(&owners, owner))
			continue;
		if (owner == EVERYBODY)
			return gcr_error_set(error, EPERM,
					     "%s: %s is not used: all can write to %s", name, path,
					     there);
		return gcr_error_set(error, EPERM,
				     "%s: %s is not used: %s belongs to user %u, and neither to "
				     "root nor to you",
				     name, path, there, (unsigned int)owner);
	} while (go_up(there));
	*ret_path = TAKE_PTR(whole);
	return 0;
}

int gcr_trusted_path(const char *name, const char *path, char **ret_path, struct gcr_error *error)
{
	return find_trusted(name, path, false, ret_path, error);
}

int gcr_trusted_directory(const char *name, const char *path, char **ret_path,
			  struct gcr_error *error)
{
	return find_trusted(name, path, true, ret_path, error);
}

/* As gcr_trusted_path(), for a part of a list. -EINVAL also: the result cannot be in a list. */
static int trusted_part(const char *name, const char *path, char **ret_path,
			struct gcr_error *error)
{
	_cleanup_free_ char *whole = NULL;
	int r = gcr_trusted_path(name, path, &whole, error);

	if (r < 0)
		return r;
	if (strpbrk(whole, MEANT_IN_LISTS))
		return gcr_error_set(
			error, EINVAL,
			"%s: %s is not used: '%s' has one of the characters " MEANT_IN_LISTS
			", and cannot be in a list",
			name, path, whole);
	*ret_path = TAKE_PTR(whole);
	return 0;
}

int gcr_trusted_paths(const char *name, const char *paths, char **ret_paths,
		      struct gcr_error *error)
{
	_cleanup_free_ char *rest = strdup(paths);
	_cleanup_free_ char *all = NULL;
	char *next = rest;

	if (!rest)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (!access(paths, F_OK))
		return trusted_part(name, paths, ret_paths, error);
	for (char *one; (one = strsep(&next, ":"));) {
		_cleanup_free_ char *path = NULL;
		char *longer;
		int r;

		if (!*one)
			continue;
		r = trusted_part(name, one, &path, error);
		if (r < 0)
			return r;
		if (asprintf(&longer, "%s%s%s", all ? all : "", all ? ":" : "", path) < 0)
			return gcr_error_set(error, ENOMEM, "out of memory");
		free(all);
		all = longer;
	}
	if (!all)
		return gcr_error_set(error, EINVAL, "%s names no directory", name);
	*ret_paths = TAKE_PTR(all);
	return 0;
}
