/* SPDX-License-Identifier: MIT */
/*
 * CRIU's plugins for vendors whose GPU processes CRIU cannot dump without a plugin. CRIU loads
 * every plugin in the directory that is given to it; so the daemon makes a directory with links to
 * the needed plugins and nothing else.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/image/criu_run.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/trusted_path.h"

#define DIRECTORY "plugins"

/* Directories into which CRIU's `make install` and distributions install plugins. */
static const char *const directories[] = {
	"/usr/lib/criu",
	"/usr/local/lib/criu",
	"/usr/lib64/criu",
	"/usr/local/lib64/criu",
	"/usr/lib/x86_64-linux-gnu/criu",
	"/usr/local/lib/x86_64-linux-gnu/criu",
};

static bool is_file(const char *path)
{
	struct stat status;

	return path[0] == '/' && !stat(path, &status) && S_ISREG(status.st_mode);
}

/* Looks for @name in @directory. 0 and *ret_path, which the caller frees; -ENOENT; -ENOMEM. */
static int try_directory(const char *directory, const char *name, char **ret_path)
{
	char *path;

	if (!directory || !*directory)
		return -ENOENT;
	if (asprintf(&path, "%s/%s", directory, name) < 0)
		return -ENOMEM;
	if (is_file(path)) {
		*ret_path = path;
		return 0;
	}
	free(path);
	return -ENOENT;
}

int gcr_criu_plugin_find(const struct gcr_daemon *daemon, const struct gcr_backend *backend,
			 char **ret_path, struct gcr_error *error)
{
	const char *name = backend->criu_plugin;
	const char *named = getenv("GPUCR_AMDGPU_PLUGIN");
	const char *libraries = getenv("CRIU_LIBS_DIR");
	_cleanup_free_ char *trusted = NULL;
	int result;

	if (named && *named) {
		if (!is_file(named))
			return gcr_error_set(error, EOPNOTSUPP,
					     "%s, which GPUCR_AMDGPU_PLUGIN names, is not there",
					     named);
		return gcr_trusted_path("GPUCR_AMDGPU_PLUGIN", named, ret_path, error);
	}
	/* A plugin for real GPUs would find none with the simulator. */
	if (daemon->simulator_libraries) {
		result = try_directory(daemon->simulator_libraries, name, ret_path);
		return result ? gcr_error_set(error, -result == ENOENT ? EOPNOTSUPP : ENOMEM,
					      "%s is not in %s", name, daemon->simulator_libraries)
			      : 0;
	}
	/* The environment variable that CRIU itself reads (criu/plugin.c). */
	if (libraries && *libraries) {
		result = gcr_trusted_path("CRIU_LIBS_DIR", libraries, &trusted, error);
		if (result < 0)
			return result;
	}
	result = try_directory(trusted, name, ret_path);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(directories) && result == -ENOENT; i++)
		result = try_directory(directories[i], name, ret_path);
	if (result == -ENOENT)
		return gcr_error_set(error, EOPNOTSUPP,
				     "CRIU's plugin for %s's GPUs, %s, is not in %s or where else "
				     "CRIU is installed: install it (it comes with CRIU), or name "
				     "it in GPUCR_AMDGPU_PLUGIN",
				     backend->vendor, name, directories[0]);
	return result ? gcr_error_set(error, ENOMEM, "out of memory") : 0;
}

/*
 * Makes the link @name to @path in the directory @fd, or replaces it atomically, since other dumps
 * and restores may be using it. 0 or -errno.
 */
static int link_plugin(int fd, const char *name, const char *path)
{
	char now[PATH_MAX];
	ssize_t length = readlinkat(fd, name, now, sizeof(now) - 1);
	char new[64];

	if (length > 0) {
		now[length] = '\0';
		if (!strcmp(now, path))
			return 0;
	}
	/* A name that CRIU does not load, and no other thread uses. */
	snprintf(new, sizeof(new), "%.40s.%d.new", name, (int)gettid());
	unlinkat(fd, new, 0);
	if (symlinkat(path, fd, new) < 0 || renameat(fd, new, fd, name) < 0)
		return -errno;
	return 0;
}

int gcr_criu_plugins(struct gcr_daemon *daemon, unsigned int vendors, char **ret_path,
		     struct gcr_error *error)
{
	char name[64] = DIRECTORY;
	_cleanup_close_ int fd = -1;

	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (vendors & 1u << i && gcr_backends[i]->criu_plugin)
			snprintf(name + strlen(name), sizeof(name) - strlen(name), "-%s",
				 gcr_backends[i]->name);
	fd = gcr_criu_directory(daemon, name, error);
	if (fd < 0)
		return fd;
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		_cleanup_free_ char *path = NULL;
		int result;

		if (!(vendors & 1u << i) || !gcr_backends[i]->criu_plugin)
			continue;
		result = gcr_criu_plugin_find(daemon, gcr_backends[i], &path, error);
		if (result < 0)
			return result;
		result = link_plugin(fd, gcr_backends[i]->criu_plugin, path);
		if (result < 0)
			return gcr_error_set(error, -result,
					     "%s cannot be put into a directory for CRIU: %s", path,
					     strerror(-result));
	}
	if (asprintf(ret_path, "%s/" GCR_CRIU_DIRECTORY "/%s", daemon->options.runtime_directory,
		     name) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	return 0;
}
