/* SPDX-License-Identifier: MIT */
/* Starting programs by posix_spawn(3): safe in a process with threads, and nothing leaks into them.
 */
#include "lib/program.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void gcr_environment_free(char **environment)
{
	if (!environment)
		return;
	for (char **entry = environment; *entry; entry++)
		free(*entry);
	free(environment);
}

static bool is_variable(const char *entry, const char *name)
{
	size_t length = strlen(name);

	return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

char **gcr_environment_copy(const char *const *unwanted, size_t unwanted_count, size_t *ret_count)
{
	_cleanup_(gcr_environment_free_cleanup) char **environment = NULL;
	size_t count = 0, used = 0;

	while (environ[count])
		count++;
	environment = calloc(count + 2, sizeof(*environment));
	if (!environment)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		bool skip = false;

		for (size_t j = 0; j < unwanted_count; j++)
			skip = skip || is_variable(environ[i], unwanted[j]);
		if (skip)
			continue;
		environment[used] = strdup(environ[i]);
		if (!environment[used++])
			return NULL;
	}
	if (ret_count)
		*ret_count = used;
	return TAKE_PTR(environment);
}

static int set_attributes(posix_spawnattr_t *attributes, int ignored_signal)
{
	sigset_t defaults, none;
	int r;

	sigfillset(&defaults);
	if (ignored_signal)
		sigdelset(&defaults, ignored_signal);
	sigemptyset(&none);
	r = posix_spawnattr_setsigdefault(attributes, &defaults);
	if (r == 0)
		r = posix_spawnattr_setsigmask(attributes, &none);
	if (r == 0)
		r = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF |
								 POSIX_SPAWN_SETSIGMASK |
								 POSIX_SPAWN_SETSID);
	return r;
}

/* @sources are above all targets, so no dup2 overwrites what a later one needs. */
static int set_file_actions(posix_spawn_file_actions_t *actions, const int *sources, size_t count)
{
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++) {
		if (sources[i] >= 0)
			r = posix_spawn_file_actions_adddup2(actions, sources[i], (int)i);
		else
			r = posix_spawn_file_actions_addopen(actions, (int)i, "/dev/null",
							     i == 0 ? O_RDONLY : O_WRONLY, 0);
	}
	if (r == 0)
		r = posix_spawn_file_actions_addclosefrom_np(actions, (int)count);
	return r;
}

static int spawn_with(const struct gcr_program *program, const int *sources, pid_t *ret_pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int r;

	r = posix_spawn_file_actions_init(&actions);
	if (r != 0)
		return -r;
	r = posix_spawnattr_init(&attributes);
	if (r != 0)
		goto destroy_actions;
	r = set_attributes(&attributes, program->ignored_signal);
	if (r == 0)
		r = set_file_actions(&actions, sources, program->fds_count);
	if (r == 0)
		r = posix_spawn(ret_pid, program->path, &actions, &attributes, program->arguments,
				program->environment);
	posix_spawnattr_destroy(&attributes);
destroy_actions:
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

/*
 * posix_spawn(3) makes signals the default, never ignored: the program inherits that of ours. Only
 * for signals that this process can do without for a moment; SIGXFSZ is one (its default action
 * would kill us where a limit of file sizes is set, ignored gives EFBIG).
 */
static int ignore_signal(int number)
{
	struct sigaction action;

	if (sigaction(number, NULL, &action) < 0)
		return -errno;
	if (action.sa_handler == SIG_IGN)
		return 0;
	action = (struct sigaction){.sa_handler = SIG_IGN};
	return sigaction(number, &action, NULL) < 0 ? -errno : 0;
}

int gcr_program_start(const struct gcr_program *program, pid_t *ret_pid, int *ret_pidfd)
{
	_cleanup_free_ int *sources = NULL;
	size_t copied;
	pid_t pid;
	int pidfd;
	int r = 0;

	if (program->ignored_signal) {
		r = ignore_signal(program->ignored_signal);
		if (r < 0)
			return r;
	}
	sources = calloc(program->fds_count + 1, sizeof(*sources));
	if (!sources)
		return -ENOMEM;
	for (copied = 0; copied < program->fds_count; copied++) {
		int fd = program->fds[copied];

		sources[copied] = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, (int)program->fds_count);
		if (fd >= 0 && sources[copied] < 0) {
			r = -errno;
			break;
		}
	}
	if (r == 0)
		r = spawn_with(program, sources, &pid);
	while (copied > 0) {
		copied--;
		if (sources[copied] >= 0)
			close(sources[copied]);
	}
	if (r < 0)
		return r;

	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0) {
		r = -errno;
		/* It has only just begun, so it ends at once. */
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return r;
	}
	*ret_pid = pid;
	*ret_pidfd = pidfd;
	return 0;
}
