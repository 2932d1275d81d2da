/* SPDX-License-Identifier: MIT */
/*
 * The list of processes that empty files. state.lock guards the list; while the lock is held, only
 * the quota is called.
 */
#include "fs/engine/emptying.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/base/loop.h"
#include "fs/base/quota.h"
#include "fs/daemon.h"
#include "fs/process/vendor.h"
#include "lib/cleanup.h"
#include "lib/lock.h"
#include "lib/program.h"

struct emptying {
	struct emptying *next;
	uid_t owner;
	int fd;	   /* the directory, until the process has been started; then -1 */
	pid_t pid; /* 0: not started yet */
	int pidfd;
};

static struct {
	struct gcr_daemon *daemon; /* NULL: not started, or stopped */
	char *path;		   /* of the program */
	pthread_mutex_t lock;
	struct emptying *list;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/*
 * Starts the entry's process. If that fails, the entry stays in the list for another attempt. Lock:
 * state.
 */
static void start_locked(struct emptying *emptying)
{
	_cleanup_(gcr_environment_free_cleanup) char **environment = gcr_helper_environment();
	char name[] = GCR_EMPTYING_PROGRAM;
	char *arguments[] = {name, NULL};
	const int fds[] = {-1, -1, -1, emptying->fd};
	int r = -ENOMEM;

	_Static_assert(GCR_ARRAY_SIZE(fds) == GCR_EMPTYING_DIRECTORY + 1, "the last one");
	if (environment)
		r = gcr_program_start(
			&(struct gcr_program){
				.path = state.path,
				.arguments = arguments,
				.environment = environment,
				.fds = fds,
				.fds_count = GCR_ARRAY_SIZE(fds),
			},
			&emptying->pid, &emptying->pidfd);
	if (r < 0) {
		emptying->pid = 0;
		gcr_log(LOG_WARNING, 0, "%s cannot be started: %s", state.path, strerror(-r));
		return;
	}
	close(TAKE_FD(emptying->fd));
	gcr_loop_add(state.daemon->loop, emptying->pidfd, GCR_LOOP_EMPTYING, 0);
}

static bool has_ended(const struct emptying *emptying)
{
	return emptying->pid && waitpid(emptying->pid, NULL, WNOHANG) != 0;
}

/*
 * Removes the entries whose process has ended; tries again to start those without one. Lock: state.
 */
static void look_locked(void)
{
	struct emptying **at = &state.list;

	while (*at) {
		struct emptying *emptying = *at;

		if (!emptying->pid)
			start_locked(emptying);
		if (!has_ended(emptying)) {
			at = &emptying->next;
			continue;
		}
		close(emptying->pidfd);
		*at = emptying->next;
		free(emptying);
	}
}

static void handle_end(void *context, uint32_t number)
{
	GCR_LOCK_SCOPE(&state.lock);

	if (state.daemon)
		look_locked();
}

int gcr_emptying_start(struct gcr_daemon *daemon, struct gcr_error *error)
{
	GCR_LOCK_SCOPE(&state.lock);

	state.path = gcr_vendor_program(daemon, GCR_EMPTYING_PROGRAM);
	if (!state.path)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (access(state.path, X_OK) < 0) {
		gcr_error_set(error, errno, "%s: %s", state.path, strerror(errno));
		free(TAKE_PTR(state.path));
		return -error->number;
	}
	gcr_loop_handle(daemon->loop, GCR_LOOP_EMPTYING, handle_end, NULL);
	state.daemon = daemon;
	return 0;
}

void gcr_emptying_stop(void)
{
	GCR_LOCK_SCOPE(&state.lock);

	if (!state.daemon)
		return;
	while (state.list) {
		struct emptying *emptying = state.list;

		state.list = emptying->next;
		if (emptying->pid) {
			kill(emptying->pid, SIGKILL);
			waitpid(emptying->pid, NULL, WNOHANG);
			close(emptying->pidfd);
		} else {
			close(emptying->fd);
		}
		free(emptying);
	}
	free(TAKE_PTR(state.path));
	state.daemon = NULL;
}

/*
 * Counts the entries of @owner or, with @of_all, those of all users that are limited. Lock: state.
 */
static unsigned int count_locked(uid_t owner, bool of_all)
{
	unsigned int count = 0;

	for (const struct emptying *emptying = state.list; emptying; emptying = emptying->next)
		count += of_all ? gcr_quota_is_limited(state.daemon->quota, emptying->owner)
				: emptying->owner == owner;
	return count;
}

int gcr_emptying_check(uid_t uid, struct gcr_error *error)
{
	unsigned int own, all;
	bool is_limited;
	uid_t owner;
	GCR_LOCK_SCOPE(&state.lock);

	if (!state.daemon)
		return 0;
	look_locked();
	owner = gcr_quota_owner(state.daemon->quota, uid);
	is_limited = gcr_quota_is_limited(state.daemon->quota, owner);
	own = count_locked(owner, false);
	all = is_limited ? count_locked(owner, true) : 0;
	if (own < (is_limited ? GCR_EMPTYING_USER_MAX : GCR_EMPTYING_ROOT_MAX) &&
	    all < GCR_EMPTYING_ALL_MAX)
		return 0;
	return gcr_error_set(error, EBUSY,
			     "programs of %s still hold up the files of managed memory of earlier "
			     "verbs: end them, or try again later",
			     all < GCR_EMPTYING_ALL_MAX ? "this user" : "several users");
}

void gcr_emptying_begin(int fd, uid_t uid)
{
	_cleanup_free_ struct emptying *emptying = calloc(1, sizeof(*emptying));
	_cleanup_close_ int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	GCR_LOCK_SCOPE(&state.lock);

	if (!state.daemon)
		return;
	if (!emptying || copy < 0) {
		gcr_log(LOG_WARNING, 0,
			"what managed memory had on the way stays in memory as long as its program "
			"has the files open: out of %s",
			emptying ? "descriptors" : "memory");
		return;
	}
	emptying->owner = gcr_quota_owner(state.daemon->quota, uid);
	emptying->fd = TAKE_FD(copy);
	emptying->pidfd = -1;
	start_locked(emptying);
	emptying->next = state.list;
	state.list = TAKE_PTR(emptying);
}
