/* SPDX-License-Identifier: MIT */
/*
 * What the tree had open outside of it is supplied again: by the file that the writer names, else
 * by a log. What wants somebody at its other end, a terminal or a socket, gets a small program that
 * writes into that log what it is told, for as long as the tree lives.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/criu.h"
#include "fs/helper.h"
#include "fs/log.h"
#include "fs/restore_private.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/program.h"

#define STDIO_DIRECTORY "stdio"
#define DRAIN_PROGRAM	"gpucr-drain"

void gcr_supplies_finish(struct gcr_supplies *supplies)
{
	for (size_t i = 0; i < supplies->fds_count; i++)
		close(supplies->fds[i]);
	free(supplies->fds);
	free(supplies->inherits);
	*supplies = (struct gcr_supplies){0};
}

/* The log's, of which the user can be told. */
static int open_log(struct gcr_restore *restore, struct gcr_error *error)
{
	struct gcr_daemon *daemon = restore->daemon;
	char name[GCR_PLACE_NAME_BYTES + sizeof(".log")];
	_cleanup_close_ int fd = -1;
	struct stat stat;
	int log_fd;

	if (mkdirat(daemon->runtime_fd, STDIO_DIRECTORY, 0711) < 0 && errno != EEXIST)
		return gcr_error_set(error, errno, "no log can be made: %s", strerror(errno));
	fd = gcr_beneath_open(daemon->runtime_fd, STDIO_DIRECTORY, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return gcr_error_set(error, -fd, "no log can be made: %s", strerror(-fd));
	snprintf(name, sizeof(name), "%s.log", restore->place->name);
	/* What was another user's is not this one's. */
	if (!fstatat(fd, name, &stat, AT_SYMLINK_NOFOLLOW) &&
	    stat.st_uid != restore->place->stat.st_uid && unlinkat(fd, name, 0) < 0)
		return gcr_error_set(error, errno, "no log can be made: %s", strerror(errno));
	log_fd = openat(fd, name, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (log_fd < 0)
		return gcr_error_set(error, errno, "no log can be made: %s", strerror(errno));
	if (fchown(log_fd, restore->place->stat.st_uid, restore->place->stat.st_gid) < 0)
		gcr_log(LOG_WARNING, 0, "%s: %s", name, strerror(errno));
	gcr_log(LOG_NOTICE, 0, "%s: its output goes to %s/" STDIO_DIRECTORY "/%s",
		restore->place->name, daemon->options.runtime_directory, name);
	return log_fd;
}

/* It goes on by itself, and ends when nobody has the other end of @from_fd any more. */
static int start_drain(struct gcr_restore *restore, int cgroup_procs_fd, int from_fd, int to_fd,
		       struct gcr_error *error)
{
	struct gcr_daemon *daemon = restore->daemon;
	_cleanup_free_ char *path = gcr_vendor_program(daemon, DRAIN_PROGRAM);
	_cleanup_(gcr_environment_free_cleanup) char **environment =
		gcr_environment_copy(NULL, 0, NULL);
	char name[] = DRAIN_PROGRAM;
	char *arguments[] = {name, NULL};
	const int fds[] = {from_fd, to_fd, -1};
	int status, pidfd, result;
	pid_t pid;

	if (!path || !environment)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_program_start(
		&(struct gcr_program){
			.path = path,
			.arguments = arguments,
			.environment = environment,
			.fds = fds,
			.fds_count = GCR_ARRAY_SIZE(fds),
			.cgroup_procs_fd = cgroup_procs_fd,
		},
		&pid, &pidfd);
	if (result < 0)
		return gcr_error_set(error, -result, "%s cannot be started: %s", path,
				     strerror(-result));
	/* What it has made goes on. */
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	close(pidfd);
	return 0;
}

/* A terminal of its own. */
static int open_terminal(struct gcr_restore *restore, int cgroup_procs_fd, int log_fd,
			 struct gcr_error *error)
{
	_cleanup_close_ int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	_cleanup_close_ int slave = -1;
	char path[64];
	int result;

	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0 ||
	    ptsname_r(master, path, sizeof(path)))
		return gcr_error_set(error, errno, "no terminal can be made: %s", strerror(errno));
	slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	result = start_drain(restore, cgroup_procs_fd, master, log_fd, error);
	return result < 0 ? result : TAKE_FD(slave);
}

static int open_socket(struct gcr_restore *restore, int cgroup_procs_fd, int log_fd,
		       struct gcr_error *error)
{
	int ends[2];
	int result;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return gcr_error_set(error, errno, "no socket can be made: %s", strerror(errno));
	result = start_drain(restore, cgroup_procs_fd, ends[0], log_fd, error);
	close(ends[0]);
	if (result < 0)
		close(ends[1]);
	return result < 0 ? result : ends[1];
}

/* What root names; opened with the rights of those who have done so, however few these are. */
static int open_named(const struct gcr_command *command, const char *key, struct gcr_error *error)
{
	const char *path = command->stdio;
	int fd;

	if (!strncmp(key, "socket:", 7))
		return gcr_error_set(error, EOPNOTSUPP,
				     "%s is a socket, and stdio= can only name a file or terminal",
				     key);
	fd = gcr_rights_open(&command->rights, path, O_RDWR | O_CREAT | O_APPEND | O_NOCTTY, 0600);
	if (fd < 0)
		return gcr_error_set(error, -fd, "stdio=%s: %s", path, strerror(-fd));
	if (!strncmp(key, "tty", 3) && !isatty(fd)) {
		close(fd);
		return gcr_error_set(error, EINVAL, "stdio=%s is no terminal, and %s was one", path,
				     key);
	}
	return fd;
}

static int supply(struct gcr_restore *restore, const struct gcr_tree_supply *wanted,
		  int cgroup_procs_fd, int log_fd, struct gcr_error *error)
{
	int fd;

	if (*restore->command.stdio && wanted->is_stdio)
		return open_named(&restore->command, wanted->key, error);
	if (!strncmp(wanted->key, "tty", 3))
		return open_terminal(restore, cgroup_procs_fd, log_fd, error);
	if (!strncmp(wanted->key, "socket:", 7))
		return open_socket(restore, cgroup_procs_fd, log_fd, error);
	fd = wanted->is_writer ? fcntl(log_fd, F_DUPFD_CLOEXEC, 0)
			       : open("/dev/null", O_RDONLY | O_CLOEXEC);
	return fd < 0 ? gcr_error_set(error, errno, "%s: %s", wanted->key, strerror(errno)) : fd;
}

int gcr_restore_supply(struct gcr_restore *restore, int cgroup_procs_fd,
		       struct gcr_supplies *ret_supplies, struct gcr_error *error)
{
	const struct gcr_manifest_tree *tree = restore->manifest->tree;
	_cleanup_close_ int log_fd = -1;

	if (!tree->supplies_count)
		return 0;
	log_fd = open_log(restore, error);
	if (log_fd < 0)
		return log_fd;
	ret_supplies->inherits = calloc(tree->supplies_count, sizeof(*ret_supplies->inherits));
	ret_supplies->fds = calloc(tree->supplies_count, sizeof(*ret_supplies->fds));
	if (!ret_supplies->inherits || !ret_supplies->fds)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < tree->supplies_count; i++) {
		int fd = supply(restore, &tree->supplies[i], cgroup_procs_fd, log_fd, error);

		if (fd < 0)
			return fd;
		ret_supplies->fds[ret_supplies->fds_count++] = fd;
		ret_supplies->inherits[ret_supplies->count++] =
			(struct gcr_criu_inherit){.fd = fd, .key = tree->supplies[i].key};
	}
	return 0;
}
