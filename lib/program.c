/* SPDX-License-Identifier: MIT */
/*
 * Starting programs by vfork(2), as posix_spawn(3) does, which cannot enter a cgroup. Safe in a
 * process with threads, fast in a large one, and no descriptor leaks into the program.
 */
#include "lib/program.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* Is @entry ("NAME=VALUE") the variable @name, or one that begins so if @name ends with a '*'? */
static bool is_variable(const char *entry, const char *name)
{
	size_t length = strcspn(name, "*");

	return strncmp(entry, name, length) == 0 && (name[length] || entry[length] == '=');
}

static bool is_one_of(const char *entry, const char *const *names, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (is_variable(entry, names[i]))
			return true;
	return false;
}

/*
 * May programs that we start get this variable of ours? Never GPUCR_CRIU_..., which CRIU's guard
 * believes: only we set these. Of root's only those of the list.
 */
static bool is_passed_on(const char *entry)
{
	static const char *const roots[] = {
		"PATH",
		"HOME",
		"LANG",
		"LC_*",
		"LD_LIBRARY_PATH",
		"GPUCR_*",
		"CRIU_FAULT",
		/*
		 * ROCm: a GPU that it does not know is used as this one; and what CRIU's plugin
		 * compares of two machines. They name no file.
		 */
		"HSA_OVERRIDE_GFX_VERSION*",
		"KFD_*",
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
		"ASAN_OPTIONS",
		"LSAN_OPTIONS",
		"TSAN_OPTIONS",
		"UBSAN_OPTIONS",
#endif
	};

	return !is_variable(entry, "GPUCR_CRIU_*") &&
	       (geteuid() != 0 || is_one_of(entry, roots, GCR_ARRAY_SIZE(roots)));
}

char **gcr_environment_copy(const char *const *unwanted, size_t unwanted_count, size_t *ret_count)
{
	_cleanup_(gcr_environment_free_cleanup) char **environment = NULL;
	size_t count = 0, used = 0;

	while (environ[count])
		count++;
	environment = calloc(count + GCR_ENVIRONMENT_ROOM + 1, sizeof(*environment));
	if (!environment)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		if (!is_passed_on(environ[i]) || is_one_of(environ[i], unwanted, unwanted_count))
			continue;
		environment[used] = strdup(environ[i]);
		if (!environment[used++])
			return NULL;
	}
	if (ret_count)
		*ret_count = used;
	return TAKE_PTR(environment);
}

/*
 * Data for the child, prepared before vfork(2). The child shares our memory and must neither change
 * data that we use nor allocate memory.
 */
struct start {
	const struct gcr_program *program;
	/* Above all targets: no dup2 overwrites a source that is needed later. */
	const int *sources;
	int report_fd; /* also above all targets; gets -errno, or is closed by exec */
};

static int set_signals(int ignored_signal)
{
	/* The C library's own signals keep their handlers; exec resets them to the default. */
	for (int number = 1; number < NSIG; number++) {
		const struct sigaction action = {
			.sa_handler = number == ignored_signal ? SIG_IGN : SIG_DFL,
		};

		if (sigaction(number, &action, NULL) < 0 && errno != EINVAL)
			return -errno;
	}
	return 0;
}

/*
 * Gives the calling process a new session keyring. 0 also where the kernel has none or forbids it:
 * the launcher's unit has none of our keys, and containers have keyrings of their own. -errno.
 */
static int leave_keyring(void)
{
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) >= 0)
		return 0;
	return errno == ENOSYS || errno == EPERM ? 0 : -errno;
}

/* Moves the calling process into the cgroup of @procs_fd, by writing "0". -errno. */
static int enter_cgroup(int procs_fd)
{
	return procs_fd > 0 && write(procs_fd, "0", 1) != 1 ? -errno : 0;
}

static int set_fds(const struct start *start)
{
	unsigned int count = (unsigned int)start->program->fds_count;
	unsigned int report = (unsigned int)start->report_fd;

	for (unsigned int i = 0; i < count; i++) {
		int fd = start->sources[i];
		bool is_ours = fd < 0;

		if (is_ours)
			fd = open("/dev/null", i == 0 ? O_RDONLY : O_WRONLY);
		if (fd < 0 || (fd != (int)i && dup2(fd, (int)i) < 0))
			return -errno;
		if (is_ours && fd != (int)i)
			close(fd);
	}
	if (report > count && close_range(count, report - 1, 0) < 0)
		return -errno;
	return close_range(report + 1, ~0u, 0) < 0 ? -errno : 0;
}

__attribute__((noreturn, noinline)) static void become(const struct start *start)
{
	const struct gcr_program *program = start->program;
	sigset_t none;
	int r;

	sigemptyset(&none);
	r = set_signals(program->ignored_signal);
	if (r == 0 && setsid() < 0)
		r = -errno;
	if (r == 0)
		r = enter_cgroup(program->cgroup_procs_fd);
	if (r == 0 && program->has_own_keyring)
		r = leave_keyring();
	if (r == 0)
		r = set_fds(start);
	if (r == 0 && sigprocmask(SIG_SETMASK, &none, NULL) < 0)
		r = -errno;
	if (r == 0) {
		execve(program->path, program->arguments, program->environment);
		r = -errno;
	}
	(void)!write(start->report_fd, &r, sizeof(r));
	_exit(127);
}

/* The -errno that the child has reported; 0: the program is running. */
static int read_report(int fd)
{
	int r = 0;
	ssize_t got;

	do
		got = read(fd, &r, sizeof(r));
	while (got < 0 && errno == EINTR);
	return got == sizeof(r) ? r : 0;
}

static int start_with(const struct gcr_program *program, const int *sources, pid_t *ret_pid)
{
	struct start start = {.program = program, .sources = sources};
	_cleanup_close_ int report_fd = -1;
	sigset_t all, before;
	int pipe_fds[2];
	pid_t pid;
	int r;

	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return -errno;
	report_fd = pipe_fds[0];
	start.report_fd = fcntl(pipe_fds[1], F_DUPFD_CLOEXEC, (int)program->fds_count);
	r = start.report_fd < 0 ? -errno : 0;
	close(pipe_fds[1]);
	if (r < 0)
		return r;
	/* No signal handler of ours may run in the child. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = vfork();
	if (pid == 0)
		become(&start);
	r = pid < 0 ? -errno : 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	close(start.report_fd);
	if (r < 0)
		return r;
	r = read_report(report_fd);
	if (r < 0) {
		waitpid(pid, NULL, 0);
		return r;
	}
	*ret_pid = pid;
	return 0;
}

int gcr_program_start(const struct gcr_program *program, pid_t *ret_pid, int *ret_pidfd)
{
	_cleanup_free_ int *sources = NULL;
	size_t copied;
	pid_t pid;
	int pidfd;
	int r = 0;

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
		r = start_with(program, sources, &pid);
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
		/* The program has just started, so it ends at once. */
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return r;
	}
	*ret_pid = pid;
	*ret_pidfd = pidfd;
	return 0;
}

char **gcr_helper_environment(void)
{
	static const char *const unwanted[] = {"LD_PRELOAD", "LD_LIBRARY_PATH"};

	return gcr_environment_copy(unwanted, GCR_ARRAY_SIZE(unwanted), NULL);
}

int gcr_program_start_connected(const char *path, char *const *arguments, int number,
				bool keep_stderr, pid_t *ret_pid, int *ret_pidfd, int *ret_socket)
{
	_cleanup_(gcr_environment_free_cleanup) char **environment = gcr_helper_environment();
	_cleanup_free_ int *fds = calloc((size_t)number + 1, sizeof(*fds));
	_cleanup_close_ int theirs = -1;
	_cleanup_close_ int ours = -1;
	int pair[2];
	int r;

	if (!environment || !fds)
		return -ENOMEM;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	ours = pair[0];
	theirs = pair[1];
	for (int i = 0; i < number; i++)
		fds[i] = -1;
	if (keep_stderr)
		fds[STDERR_FILENO] = STDERR_FILENO;
	fds[number] = theirs;
	r = gcr_program_start(
		&(struct gcr_program){
			.path = path,
			.arguments = arguments,
			.environment = environment,
			.fds = fds,
			.fds_count = (size_t)number + 1,
		},
		ret_pid, ret_pidfd);
	if (r < 0)
		return r;
	*ret_socket = TAKE_FD(ours);
	return 0;
}
