/* SPDX-License-Identifier: MIT */
/*
 * The directories of files that are to be emptied: those that have a process, and those that wait
 * for one. state.lock guards both lists; while the lock is held, only the quota is called.
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
	bool is_limited; /* the owner is */
	int fd;		 /* the directory, until the process has been started; then -1 */
	pid_t pid;	 /* 0: not started yet */
	int pidfd;
};

static struct {
	struct gcr_daemon *daemon; /* NULL: not started, or stopped */
	char *path;		   /* of the program */
	pthread_mutex_t lock;
	struct emptying *running; /* those with a process */
	struct emptying *waiting; /* the others, the oldest first */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Starts the entry's process, or returns false. Lock: state. */
static bool start_locked(struct emptying *emptying)
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
		return false;
	}
	close(TAKE_FD(emptying->fd));
	gcr_loop_add(state.daemon->loop, emptying->pidfd, GCR_LOOP_EMPTYING, 0);
	return true;
}

static unsigned int most_of(bool is_limited)
{
	return is_limited ? GCR_EMPTYING_USER_MAX : GCR_EMPTYING_ROOT_MAX;
}

static unsigned int count_of(const struct emptying *list, uid_t owner)
{
	unsigned int count = 0;

	for (; list; list = list->next)
		count += list->owner == owner;
	return count;
}

/* May the entry have a process now? Lock: state. */
static bool has_turn_locked(const struct emptying *emptying)
{
	unsigned int limited = 0;

	for (const struct emptying *other = state.running; other; other = other->next)
		limited += other->is_limited;
	return count_of(state.running, emptying->owner) < most_of(emptying->is_limited) &&
	       (!emptying->is_limited || limited < GCR_EMPTYING_ALL_MAX);
}

/*
 * Removes the entries whose process has ended, and starts processes for those whose turn it is. An
 * entry whose process cannot be started waits for another attempt. Lock: state.
 */
static void look_locked(void)
{
	struct emptying **at = &state.running;

	while (*at) {
		struct emptying *emptying = *at;

		if (waitpid(emptying->pid, NULL, WNOHANG) == 0) {
			at = &emptying->next;
			continue;
		}
		close(emptying->pidfd);
		*at = emptying->next;
		free(emptying);
	}
	at = &state.waiting;
	while (*at) {
		struct emptying *emptying = *at;

		if (!has_turn_locked(emptying)) {
			at = &emptying->next;
			continue;
		}
		if (!start_locked(emptying))
			return;
		*at = emptying->next;
		emptying->next = state.running;
		state.running = emptying;
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

	int r = gcr_vendor_program(daemon, GCR_EMPTYING_PROGRAM, &state.path, error);

	if (r < 0)
		return r;
	gcr_loop_handle(daemon->loop, GCR_LOOP_EMPTYING, handle_end, NULL);
	state.daemon = daemon;
	return 0;
}

void gcr_emptying_stop(void)
{
	GCR_LOCK_SCOPE(&state.lock);

	if (!state.daemon)
		return;
	while (state.running) {
		struct emptying *emptying = state.running;

		state.running = emptying->next;
		kill(emptying->pid, SIGKILL);
		waitpid(emptying->pid, NULL, WNOHANG);
		close(emptying->pidfd);
		free(emptying);
	}
	while (state.waiting) {
		struct emptying *emptying = state.waiting;

		state.waiting = emptying->next;
		close(emptying->fd);
		free(emptying);
	}
	free(TAKE_PTR(state.path));
	state.daemon = NULL;
}

int gcr_emptying_check(uid_t uid, struct gcr_error *error)
{
	unsigned int count;
	uid_t owner;
	GCR_LOCK_SCOPE(&state.lock);

	if (!state.daemon)
		return 0;
	look_locked();
	owner = gcr_quota_owner(state.daemon->quota, uid);
	count = count_of(state.running, owner) + count_of(state.waiting, owner);
	if (count < most_of(gcr_quota_is_limited(state.daemon->quota, owner)))
		return 0;
	return gcr_error_set(error, EBUSY,
			     "programs of this user still hold up the files of managed memory of "
			     "earlier verbs: end them, or try again later");
}

void gcr_emptying_begin(int fd, uid_t uid)
{
	_cleanup_free_ struct emptying *emptying = calloc(1, sizeof(*emptying));
	_cleanup_close_ int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	struct emptying **last = &state.waiting;
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
	emptying->is_limited = gcr_quota_is_limited(state.daemon->quota, emptying->owner);
	emptying->fd = TAKE_FD(copy);
	emptying->pidfd = -1;
	while (*last)
		last = &(*last)->next;
	*last = TAKE_PTR(emptying);
	look_locked();
}
