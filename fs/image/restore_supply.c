/* SPDX-License-Identifier: MIT */
/*
 * Replaces files that the tree shared with processes outside: by the file that the writer names,
 * else by a terminal, socket or pipe of the same kind. For each tree a small program, gpucr-drain,
 * holds the other ends as long as the tree lives, and writes all output into a log of limited size.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "criu-glue/criu.h"
#include "fs/base/log.h"
#include "fs/helper/helper.h"
#include "fs/image/restore_private.h"
#include "fs/process/vendor.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/program.h"

#define STDIO_DIRECTORY "stdio"

void gcr_supplies_finish(struct gcr_supplies *supplies)
{
	for (size_t i = 0; i < supplies->fds_count; i++)
		close(supplies->fds[i]);
	free(supplies->fds);
	free(supplies->inherits);
	*supplies = (struct gcr_supplies){0};
}

/* ---- the log ---- */

/*
 * The attribute with the access list of a file (acl(5), linux/posix_acl_xattr.h). The log is owned
 * by root, so that the user can neither fill, truncate nor lock it. The user may read the log by an
 * access list, because the user's group may have other members.
 */
#define ACL_NAME "system.posix_acl_access"

struct access_list {
	uint32_t version;
	struct {
		uint16_t tag;
		uint16_t rights;
		uint32_t id;
	} entries[5];
};

static struct access_list readable_by(uid_t uid)
{
	enum { USER_OBJECT = 1, USER = 2, GROUP_OBJECT = 4, MASK = 16, OTHER = 32 };
	const uint32_t none = htole32(UINT32_MAX);

	return (struct access_list){
		.version = htole32(2),
		.entries =
			{
				{htole16(USER_OBJECT), htole16(R_OK | W_OK), none},
				{htole16(USER), htole16(R_OK), htole32(uid)},
				{htole16(GROUP_OBJECT), 0, none},
				{htole16(MASK), htole16(R_OK), none},
				{htole16(OTHER), 0, none},
			},
	};
}

/* Is the existing log one that the daemon has made for this user? */
static bool is_log_of(int directory_fd, const char *name, uid_t uid)
{
	_cleanup_close_ int fd =
		openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct access_list expected = readable_by(uid), found;
	struct stat stat;

	if (fd < 0 || fstat(fd, &stat) < 0 || !S_ISREG(stat.st_mode) || stat.st_uid != geteuid() ||
	    stat.st_nlink != 1)
		return false;
	if (uid == geteuid())
		return (stat.st_mode & 077) == 0;
	return fgetxattr(fd, ACL_NAME, &found, sizeof(found)) == (ssize_t)sizeof(found) &&
	       !memcmp(&found, &expected, sizeof(found));
}

static int open_log(struct gcr_restore *restore, struct gcr_error *error)
{
	struct gcr_daemon *daemon = restore->job.daemon;
	uid_t uid = restore->place->stat.st_uid;
	struct access_list list = readable_by(uid);
	char name[GCR_PLACE_NAME_BYTES + sizeof(".log")];
	_cleanup_close_ int fd = -1;
	int log_fd;

	if (mkdirat(daemon->runtime_fd, STDIO_DIRECTORY, 0711) < 0 && errno != EEXIST)
		return gcr_error_set(error, errno, "no log can be made: %s", strerror(errno));
	fd = gcr_beneath_open(daemon->runtime_fd, STDIO_DIRECTORY, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return gcr_error_set(error, -fd, "no log can be made: %s", strerror(-fd));
	snprintf(name, sizeof(name), "%s.log", restore->place->name);
	/* A log of another user is removed. */
	if (!is_log_of(fd, name, uid) && unlinkat(fd, name, 0) < 0 && errno != ENOENT)
		return gcr_error_set(error, errno, "no log can be made: %s", strerror(errno));
	log_fd = openat(fd, name, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (log_fd < 0)
		return gcr_error_set(error, errno, "no log can be made: %s", strerror(errno));
	if (uid != geteuid() && fsetxattr(log_fd, ACL_NAME, &list, sizeof(list), 0) < 0)
		gcr_log(LOG_WARNING, 0, "%s: only root can read it: no access list: %s", name,
			strerror(errno));
	gcr_log(LOG_NOTICE, 0, "%s: its output goes to %s/" STDIO_DIRECTORY "/%s",
		restore->place->name, daemon->options.runtime_directory, name);
	return log_fd;
}

/* ---- the program that writes the log ---- */

/* Our ends of terminals, sockets and pipes; fds[0] is the log. All are passed to gpucr-drain. */
struct drain {
	int *fds;
	size_t count;
};

static void finish_drain(struct drain *drain)
{
	for (size_t i = 0; i < drain->count; i++)
		close(drain->fds[i]);
	free(drain->fds);
}

/* Starts gpucr-drain, which runs by itself and ends when no program has the other ends open. */
static int start_drain(struct gcr_restore *restore, int cgroup_procs_fd, const struct drain *drain,
		       struct gcr_error *error)
{
	struct gcr_daemon *daemon = restore->job.daemon;
	_cleanup_free_ char *path = NULL;
	_cleanup_(gcr_environment_free_cleanup) char **environment =
		gcr_environment_copy(NULL, 0, NULL);
	char name[] = GCR_DRAIN_PROGRAM;
	char *arguments[] = {name, NULL};
	int status = 0, pidfd, result;
	pid_t pid;

	if (!environment)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_vendor_program(daemon, GCR_DRAIN_PROGRAM, &path, error);
	if (result < 0)
		return result;
	result = gcr_program_start(
		&(struct gcr_program){
			.path = path,
			.arguments = arguments,
			.environment = environment,
			.fds = drain->fds,
			.fds_count = drain->count,
			.cgroup_procs_fd = cgroup_procs_fd,
		},
		&pid, &pidfd);
	if (result < 0)
		return gcr_error_set(error, -result, "%s cannot be started: %s", path,
				     strerror(-result));
	/* The started process exits; its children keep running. */
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	close(pidfd);
	if (status)
		return gcr_error_set(error, EIO,
				     "%s ended at its start, perhaps for want of memory or of "
				     "processes: nothing would read the program's output",
				     path);
	return 0;
}

/* Makes a terminal. Returns its slave; *ret_ours is the master. */
static int open_terminal(int *ret_ours, struct gcr_error *error)
{
	_cleanup_close_ int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	char path[64];
	int slave;

	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0 ||
	    ptsname_r(master, path, sizeof(path)))
		return gcr_error_set(error, errno, "no terminal can be made: %s", strerror(errno));
	slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	*ret_ours = TAKE_FD(master);
	return slave;
}

static int open_socket(int *ret_ours, struct gcr_error *error)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return gcr_error_set(error, errno, "no socket can be made: %s", strerror(errno));
	*ret_ours = ends[0];
	return ends[1];
}

/*
 * Makes a pipe. Returns the end for CRIU; *ret_ours is the other end. The pipe is owned by the
 * user, who can open it again by /proc/PID/fd and /dev/stdout, as before the dump.
 */
static int open_pipe(const struct gcr_restore *restore, int *ret_ours, struct gcr_error *error)
{
	const struct stat *stat = &restore->place->stat;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return gcr_error_set(error, errno, "no pipe can be made: %s", strerror(errno));
	if (fchown(ends[1], stat->st_uid, stat->st_gid) < 0)
		gcr_log(LOG_WARNING, 0, "%s: its pipe stays root's: %s", restore->place->name,
			strerror(errno));
	*ret_ours = ends[0];
	return ends[1];
}

/*
 * Opens the file that root names by stdio=, with the rights of the opener and the writer, however
 * few these are. Returns a descriptor or -errno.
 */
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

/*
 * Makes the replacement for one file of the tree. Returns the descriptor for CRIU. *ret_ours: our
 * end, for gpucr-drain; -1: there is none.
 */
static int supply(struct gcr_restore *restore, const struct gcr_tree_supply *wanted, int *ret_ours,
		  struct gcr_error *error)
{
	int fd;

	*ret_ours = -1;
	if (*restore->job.command.stdio && wanted->is_stdio)
		return open_named(&restore->job.command, wanted->key, error);
	if (!strncmp(wanted->key, "tty", 3))
		return open_terminal(ret_ours, error);
	if (!strncmp(wanted->key, "socket:", 7))
		return open_socket(ret_ours, error);
	if (wanted->is_writer)
		return open_pipe(restore, ret_ours, error);
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return fd < 0 ? gcr_error_set(error, errno, "%s: %s", wanted->key, strerror(errno)) : fd;
}

static int supply_all(struct gcr_restore *restore, struct drain *drain,
		      struct gcr_supplies *ret_supplies, struct gcr_error *error)
{
	const struct gcr_manifest_tree *tree = restore->manifest->tree;

	for (size_t i = 0; i < tree->supplies_count; i++) {
		int ours;
		int fd = supply(restore, &tree->supplies[i], &ours, error);

		if (fd < 0)
			return fd;
		/*
		 * Nonblocking: if another reader empties one source, gpucr-drain must still serve
		 * the others.
		 */
		if (ours >= 0) {
			fcntl(ours, F_SETFL, fcntl(ours, F_GETFL) | O_NONBLOCK);
			drain->fds[drain->count++] = ours;
		}
		ret_supplies->fds[ret_supplies->fds_count++] = fd;
		ret_supplies->inherits[ret_supplies->count++] =
			(struct gcr_criu_inherit){.fd = fd, .key = tree->supplies[i].key};
	}
	return 0;
}

int gcr_restore_supply(struct gcr_restore *restore, int cgroup_procs_fd,
		       struct gcr_supplies *ret_supplies, struct gcr_error *error)
{
	size_t count = restore->manifest->tree->supplies_count;
	struct drain drain = {0};
	int result;

	if (!count)
		return 0;
	ret_supplies->inherits = calloc(count, sizeof(*ret_supplies->inherits));
	ret_supplies->fds = calloc(count, sizeof(*ret_supplies->fds));
	drain.fds = calloc(count + 1, sizeof(*drain.fds));
	if (!ret_supplies->inherits || !ret_supplies->fds || !drain.fds) {
		free(drain.fds);
		return gcr_error_set(error, ENOMEM, "out of memory");
	}
	result = open_log(restore, error);
	if (result >= 0) {
		drain.fds[drain.count++] = result;
		result = supply_all(restore, &drain, ret_supplies, error);
	}
	if (result >= 0 && drain.count > 1)
		result = start_drain(restore, cgroup_procs_fd, &drain, error);
	finish_drain(&drain);
	return result < 0 ? result : 0;
}
