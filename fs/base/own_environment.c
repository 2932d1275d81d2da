/* SPDX-License-Identifier: MIT */
/*
 * Variables that name what programs of root's run or load: of PATH, CRIU; of LD_LIBRARY_PATH, the
 * driver's libraries; below HOME, the driver keeps code for the GPU that it has compiled before.
 * The programs that the daemon starts get these variables as checked here: see
 * gcr_environment_copy().
 */
#include "fs/base/own_environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "lib/cleanup.h"
#include "lib/error.h"
#include "lib/trusted_path.h"

#define PATH_OTHERWISE "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* Sets the variable to @value; NULL: removes it. 0 or -ENOMEM. */
static int replace(const char *name, const char *value)
{
	return (value ? setenv(name, value, 1) : unsetenv(name)) < 0 ? -ENOMEM : 0;
}

/*
 * Replaces the variable's value by the one that @check returns, a path without links; removes the
 * variable, and logs why, if @check fails. 0 or -ENOMEM.
 */
static int check_whole(const char *name, int (*check)(const char *name, const char *value,
						      char **ret_value, struct gcr_error *error))
{
	const char *value = getenv(name);
	_cleanup_free_ char *checked = NULL;
	struct gcr_error error = {0};

	if (value && *value && check(name, value, &checked, &error) < 0)
		gcr_log(LOG_WARNING, 0, "%s", error.words);
	return replace(name, checked);
}

/*
 * Appends a directory of PATH to the list *all, which the caller frees, if no other user can change
 * the directory; logs why not. A relative path is left out. 0 or -ENOMEM.
 */
static int append_trusted(char **all, const char *directory)
{
	_cleanup_free_ char *path = NULL;
	struct gcr_error error = {0};
	char *longer;

	/* A relative one would be below whatever directory we were started in. */
	if (*directory != '/')
		return 0;
	if (gcr_trusted_paths("PATH", directory, &path, &error) < 0) {
		gcr_log(LOG_WARNING, 0, "%s", error.words);
		return 0;
	}
	if (asprintf(&longer, "%s%s%s", *all ? *all : "", *all ? ":" : "", path) < 0)
		return -ENOMEM;
	free(*all);
	*all = longer;
	return 0;
}

static int check_path(void)
{
	const char *value = getenv("PATH");
	_cleanup_free_ char *given = strdup(value ? value : "");
	_cleanup_free_ char *all = NULL;
	char *next = given;
	int r = given ? 0 : -ENOMEM;

	for (char *one; r == 0 && (one = strsep(&next, ":"));)
		r = append_trusted(&all, one);
	return r < 0 ? r : replace("PATH", all ? all : PATH_OTHERWISE);
}

int gcr_own_environment_check(void)
{
	int r;

	if (geteuid() != 0)
		return 0;
	r = check_path();
	if (r == 0)
		r = check_whole("HOME", gcr_trusted_path);
	if (r == 0)
		r = check_whole("LD_LIBRARY_PATH", gcr_trusted_paths);
	return r;
}
