// SPDX-License-Identifier: MIT
/*
 * The keeper: a separate process that waits until CRIU has finished a dump, however the dump ends,
 * and thaws the programs that keep running. The keeper is not a child of CRIU, has none of CRIU's
 * descriptors and gets no signals of its terminal. The wait is a poll(2); only while CRIU releases
 * the programs the keeper polls at intervals, because the detaching of a tracer makes no descriptor
 * readable.
 */
#include "criu-glue/plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/procfs.h"

#define LOOK_MS	   20
#define RELEASE_MS 200	 /* a program just released may be about to be killed */
#define LET_GO_MS  60000 /* CRIU needs much less; after it the thaw reports the error */
#define BUSY_MS	   120000
#define AWAY_MS	   600000 /* until a daemon has started again */

/* Does any process trace @pid? False also if that cannot be read. */
static bool is_traced(pid_t pid)
{
	struct gcr_proc_status status;

	return !gcr_proc_status(pid, &status) && status.tracer;
}

/*
 * Does the daemon answer? While it starts again there is no mount, or one without it. The result @r
 * of a look or a verb that it has not answered is one of these.
 */
static bool is_away(const char *mount, int r)
{
	_cleanup_free_ char *ctl = NULL;

	if (r == -ENOTCONN || r == -ECONNABORTED || r == -ENODEV || r == -ECONNREFUSED)
		return true;
	return asprintf(&ctl, "%s/ctl", mount) >= 0 && access(ctl, F_OK) < 0;
}

/*
 * One attempt to thaw the process. @has_failed: its freeze has; it is thawed only if that could not
 * be rolled back.
 */
static int try_thaw(const char *mount, const struct gcr_kept *kept, bool has_failed,
		    struct gcr_error *error)
{
	struct gcr_mount_look look;
	int r = has_failed ? gcr_mount_look(mount, kept->pid, &look, error) : 0;

	if (r == 0 && has_failed && look.kind == GCR_MOUNT_NOTHING && is_away(mount, 0))
		return gcr_error_set(error, ENOTCONN, "the gpucrfs at %s does not answer", mount);
	if (r < 0 || (has_failed && !look.is_half_frozen))
		return r;
	return gcr_mount_write_to(mount, kept, "thaw\n", error);
}

/*
 * Thaws the process. CRIU may have been killed in the middle of the freeze: the freeze first ends
 * or is rolled back, and until then the verb gives EBUSY, and is tried again. So it is while a
 * daemon starts that will have the process as it is now.
 */
static int thaw(const char *mount, const struct gcr_kept *kept, bool has_failed,
		struct gcr_error *error)
{
	for (int waited_ms = 0;; waited_ms += RELEASE_MS) {
		int r = try_thaw(mount, kept, has_failed, error);
		int most_ms = 0;

		if (r == -EBUSY)
			most_ms = BUSY_MS;
		else if (r < 0 && is_away(mount, r))
			most_ms = AWAY_MS;
		if (waited_ms >= most_ms || gcr_becomes_readable(kept->pidfd, RELEASE_MS))
			return r;
	}
}

/*
 * After the dump: thaws the process if CRIU has let it run. Returns when CRIU has released the
 * process. @has_failed: its freeze has.
 */
static void thaw_released(const char *mount, const struct gcr_kept *kept, bool has_failed)
{
	struct gcr_proc_stat stat;
	struct gcr_error error = {0};
	int r;

	for (int waited_ms = 0; waited_ms < LET_GO_MS && is_traced(kept->pid); waited_ms += LOOK_MS)
		if (gcr_becomes_readable(kept->pidfd, LOOK_MS))
			return;
	if (gcr_becomes_readable(kept->pidfd, gcr_proc_has_ended(kept->pid) ? -1 : RELEASE_MS))
		return;
	if (!gcr_proc_stat(kept->pid, &stat) && stat.state == 'T') {
		syslog(LOG_NOTICE,
		       "process %d was left stopped by CRIU: it stays frozen, %s/%d/ctl "
		       "takes `thaw`",
		       (int)kept->pid, mount, (int)kept->pid);
		return;
	}
	r = thaw(mount, kept, has_failed, &error);
	if (r < 0 && !gcr_becomes_readable(kept->pidfd, 0))
		syslog(LOG_ERR, "process %d, which CRIU let go on, could not be thawed: %s",
		       (int)kept->pid, error.words);
}

static void thaw_all(const char *mount, const struct gcr_kept *kept, size_t count, bool has_failed)
{
	/* Each in a process of its own, so that one that hangs does not delay the others. */
	for (size_t i = 0; i < count; i++) {
		pid_t child = i + 1 < count ? fork() : 0;

		if (child > 0)
			continue;
		thaw_released(mount, &kept[i], has_failed);
		if (!child)
			_exit(0);
	}
	_exit(0);
}

/* Closes all descriptors but these, which get other numbers. */
static int keep_only(int *socket_fd, struct gcr_kept *kept, size_t count)
{
	int highest = *socket_fd;
	int last;

	for (size_t i = 0; i < count; i++)
		highest = kept[i].pidfd > highest ? kept[i].pidfd : highest;
	/* Each copy gets a number above all previous ones; the numbers in between are closed. */
	last = highest < 2 ? 2 : highest;
	for (size_t i = 0; i <= count; i++) {
		int *fd = i < count ? &kept[i].pidfd : socket_fd;
		int copy = fcntl(*fd, F_DUPFD_CLOEXEC, last + 1);

		if (copy < 0)
			return -errno;
		if (copy > last + 1 &&
		    close_range((unsigned int)last + 1, (unsigned int)copy - 1, 0) < 0)
			return -errno;
		*fd = copy;
		last = copy;
	}
	if (close_range((unsigned int)last + 1, ~0u, 0) < 0)
		return -errno;
	/* The copies begin right after `highest`; if they begin later, the gap was closed above. */
	highest = highest < 2 ? 2 : highest;
	return close_range(0, (unsigned int)highest, 0) < 0 ? -errno : 0;
}

static __attribute__((noreturn)) void keep(const char *mount, struct gcr_kept *kept, size_t count,
					   int socket_fd)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;
	bool has_failed = false;
	char byte;
	ssize_t r;

	for (int number = 1; number < NSIG; number++)
		sigaction(number, &action, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (setsid() < 0 || chdir("/") < 0)
		_exit(1);
	if (keep_only(&socket_fd, kept, count) < 0)
		_exit(1);
	for (int fd = 0; fd < 3; fd++) {
		if (open("/dev/null", O_RDWR) != fd)
			_exit(1);
	}
	openlog(GCR_PLUGIN_NAME, LOG_PID, LOG_DAEMON);
	if (send(socket_fd, "r", 1, MSG_NOSIGNAL) != 1)
		_exit(1);
	do {
		r = read(socket_fd, &byte, 1);
		has_failed |= r > 0;
	} while (r > 0 || (r < 0 && errno == EINTR));
	thaw_all(mount, kept, count, has_failed);
	_exit(0);
}

int gcr_keeper_start(const char *mount, const struct gcr_kept *kept, size_t count, int *ret_fd,
		     struct gcr_error *error)
{
	_cleanup_free_ struct gcr_kept *copy = malloc(count * sizeof(*copy));
	_cleanup_close_ int ours = -1;
	_cleanup_close_ int theirs = -1;
	int fds[2];
	pid_t child;
	char byte;
	ssize_t r;

	if (!copy)
		return gcr_error_set(error, ENOMEM, "no memory");
	memcpy(copy, kept, count * sizeof(*copy));
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return gcr_error_set(error, errno, "socketpair: %s", strerror(errno));
	ours = fds[0];
	theirs = fds[1];
	child = fork();
	if (child < 0)
		return gcr_error_set(error, errno, "fork: %s", strerror(errno));
	if (!child) {
		pid_t keeper = fork();

		if (!keeper)
			keep(mount, copy, count, theirs);
		_exit(0);
	}
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	close(TAKE_FD(theirs));
	do {
		r = read(ours, &byte, 1);
	} while (r < 0 && errno == EINTR);
	if (r != 1) /* the keeper has ended, for lack of some resource */
		return gcr_error_set(error, EAGAIN, "no process could be started to stand by");
	*ret_fd = TAKE_FD(ours);
	return 0;
}

void gcr_keeper_tell_failure(int fd)
{
	/* A keeper that does not get the message thaws running programs, which does nothing. */
	(void)!send(fd, "x", 1, MSG_NOSIGNAL);
}
