/* SPDX-License-Identifier: MIT */
/*
 * One run of CRIU. It gets descriptors by fixed numbers (below) and opens directories through
 * /proc/self/fd, so that no path of ours has to exist for it. What it prints goes to a memfd that
 * cannot grow; its log is where the caller wants it.
 */
#include "criu-glue/criu.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/launch.h"
#include "lib/beneath.h"
#include "lib/clock.h"
#include "lib/proc_file.h"
#include "lib/proc_tree.h"
#include "lib/procfs.h"
#include "lib/program.h"

/* What CRIU has open: stdin, stdout, stderr, and these. */
#define IMAGES_FD  3
#define WORK_FD	   4
#define INHERIT_FD GCR_CRIU_HOOK_FD /* a dump inherits none */

#define OUTPUT_BYTES	     (64u << 10) /* of what it prints that is kept */
#define LOG_BYTES_MAX	     (8u << 20)	 /* of its log that are kept: the last ones */
#define TRIM_USEC	     (200 * GCR_USEC_PER_MSEC)
#define VERSION_TIMEOUT_USEC (10 * GCR_USEC_PER_SEC)
#define PID_FILE	     "criu.pid"
#define STOP_TIMEOUT_USEC    GCR_USEC_PER_SEC /* one that does not stop hangs in the kernel */
#define STOP_POLL_USEC	     1000
#define END_TIMEOUT_USEC     (10 * GCR_USEC_PER_SEC)
#define NESTED_MAX	     64 /* levels of processes that a restore has made */

struct gcr_criu_job {
	enum gcr_criu_action action;
	pid_t pid;
	int pidfd;
	int connection; /* to what has started it and will tell its end; -1: it is our child */
	bool is_launched;
	int work_fd;
	int output_fd;
	int hook_fd; /* -1: no hook, or it has its answer */
	char *log_name;
	bool stopped_by_us;
	bool reaped;
	int wait_status;
	int report_fd; /* gpucr-pidns tells its init's pid there; -1: it is not used */
	int32_t init;  /* then, of one that succeeded */
};

static int make_output(int *ret_fd)
{
	_cleanup_close_ int fd = memfd_create("criu-output", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, OUTPUT_BYTES) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		return -errno;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* What was printed, as a string; the rest of the file is NULs. */
static void read_output(int fd, char text[static OUTPUT_BYTES + 1])
{
	ssize_t got = pread(fd, text, OUTPUT_BYTES, 0);

	text[got > 0 ? got : 0] = '\0';
}

/* A child of ours, or the launcher's; @options: of a dump or restore. With words. */
static int start_program(const struct gcr_criu_program *criu, const char *path,
			 char *const *arguments, const int *fds, size_t count,
			 const struct gcr_criu_options *options, struct gcr_criu_job *job,
			 struct gcr_error *error)
{
	/* LD_PRELOAD may be ours; a file of options could ask for anything. */
	static const char *const unwanted[] = {"LD_PRELOAD", "CRIU_CONFIG_FILE"};
	_cleanup_(gcr_environment_free_cleanup) char **environment = NULL;
	struct gcr_program program = {
		.path = path,
		.arguments = arguments,
		.fds = fds,
		.fds_count = count,
		.ignored_signal = SIGXFSZ,
		.cgroup_procs_fd = options ? options->cgroup_procs_fd : 0,
		/* A dump that dies could take its tree with it. */
		.ends_with_starter = options && options->action == GCR_CRIU_RESTORE,
	};
	size_t variables;
	int r;

	program.environment = environment =
		gcr_environment_copy(unwanted, GCR_ARRAY_SIZE(unwanted), &variables);
	if (!environment ||
	    (options && options->guard &&
	     asprintf(&environment[variables], "LD_PRELOAD=%s", options->guard) < 0)) {
		if (environment)
			environment[variables] = NULL;
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	}
	if (criu->launcher) {
		r = gcr_launch(criu->launcher, &program, &job->pid, &job->pidfd, &job->connection,
			       error);
		job->is_launched = r == 0;
		return r;
	}
	r = gcr_program_start(&program, &job->pid, &job->pidfd);
	return r < 0 ? gcr_error_set(error, -r, "%s", strerror(-r)) : 0;
}

static void send_signal(int pidfd, int number)
{
	syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
}

/* Of a launched one: its launcher tells; when that has ended too, only that it has ended. */
static bool reap_launched(struct gcr_criu_job *job)
{
	struct pollfd end = {.fd = job->pidfd, .events = POLLIN};
	int r = -EPIPE;

	if (job->connection >= 0)
		r = gcr_launch_status(job->connection, &job->wait_status);
	if (r == -EAGAIN)
		return false;
	if (job->connection >= 0)
		close(TAKE_FD(job->connection));
	if (r < 0 && poll(&end, 1, 0) != 1)
		return false;
	if (r < 0)
		job->wait_status = -1;
	job->reaped = true;
	return true;
}

static bool reap(struct gcr_criu_job *job)
{
	pid_t pid;

	if (job->reaped)
		return true;
	if (job->is_launched)
		return reap_launched(job);
	pid = waitpid(job->pid, &job->wait_status, WNOHANG);
	if (pid == 0 || (pid < 0 && errno == EINTR))
		return false;
	if (pid < 0)
		job->wait_status = -1;
	job->reaped = true;
	return true;
}

/*
 * It writes a line for each mapping of a tree, as often as that has some: all but the end of the
 * log becomes a hole. A file system without holes keeps all of it.
 */
static void trim_log(const struct gcr_criu_job *job)
{
	_cleanup_close_ int fd = -1;
	struct stat status;

	if (!job->log_name ||
	    fstatat(job->work_fd, job->log_name, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISREG(status.st_mode) || (uint64_t)status.st_blocks * 512 < 2 * LOG_BYTES_MAX)
		return;
	fd = openat(job->work_fd, job->log_name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0)
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			  status.st_size - LOG_BYTES_MAX);
}

int gcr_criu_wait(struct gcr_criu_job *job, int64_t timeout_usec, int wake_fd)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;
	char byte;

	while (trim_log(job), !reap(job)) {
		struct pollfd polls[2] = {
			{.fd = job->connection >= 0 ? job->connection : job->pidfd,
			 .events = POLLIN},
			{.fd = wake_fd, .events = POLLIN},
		};
		int64_t left_usec = until_usec - gcr_clock_usec();
		struct timespec left;

		if (timeout_usec >= 0 && left_usec < 0)
			return -ETIMEDOUT;
		if (timeout_usec < 0 || left_usec > TRIM_USEC)
			left_usec = TRIM_USEC;
		left = (struct timespec){
			.tv_sec = (time_t)(left_usec / GCR_USEC_PER_SEC),
			.tv_nsec = (long)(left_usec % GCR_USEC_PER_SEC) * 1000,
		};
		if (ppoll(polls, 2, &left, NULL) < 0 && errno != EINTR)
			return -errno;
		/* CRIU's end of the hook closes before the pidfd tells that it has ended. */
		if (!polls[0].revents && polls[1].revents && wake_fd == job->hook_fd &&
		    recv(wake_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1)
			wake_fd = -1;
		else if (!polls[0].revents && polls[1].revents)
			return -EINTR;
	}
	return 0;
}

void gcr_criu_destroy(struct gcr_criu_job *job)
{
	if (!job)
		return;
	if (job->pidfd >= 0) {
		gcr_criu_kill(job);
		gcr_criu_wait(job, -1, -1);
		close(job->pidfd);
	}
	if (job->connection >= 0)
		close(job->connection);
	if (job->work_fd >= 0)
		close(job->work_fd);
	if (job->output_fd >= 0)
		close(job->output_fd);
	if (job->report_fd >= 0)
		close(job->report_fd);
	if (job->hook_fd >= 0)
		close(job->hook_fd);
	free(job->log_name);
	free(job);
}

static struct gcr_criu_job *new_job(void)
{
	struct gcr_criu_job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->pidfd = -1;
	job->connection = -1;
	job->work_fd = -1;
	job->output_fd = -1;
	job->report_fd = -1;
	job->hook_fd = -1;
	return job;
}

/* ---- finding it ---- */

void gcr_criu_program_clear(struct gcr_criu_program *program)
{
	free(program->path);
	free(program->launcher);
	*program = (struct gcr_criu_program){};
}

static bool is_program(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

/* In the directories of @list, which are divided by ':'. -ENOENT, -ENOMEM. */
static int search(const char *list, char **ret_path)
{
	while (list && *list) {
		size_t length = strcspn(list, ":");
		char *path;

		/* No relative ones: the directory that we are in may be anybody's. */
		if (*list == '/') {
			if (asprintf(&path, "%.*s/criu", (int)length, list) < 0)
				return -ENOMEM;
			if (is_program(path)) {
				*ret_path = path;
				return 0;
			}
			free(path);
		}
		list += length + (list[length] == ':');
	}
	return -ENOENT;
}

static unsigned int parse_version(const char *output)
{
	const char *text = strstr(output, "Version: ");
	unsigned int major, minor, sub = 0;

	if (!text || (text != output && text[-1] != '\n') ||
	    sscanf(text, "Version: %3u.%2u.%2u", &major, &minor, &sub) < 2)
		return 0;
	return major * 10000 + minor * 100 + sub;
}

#define INSTALL "install CRIU 4.0 or newer (package criu)"

static int ask_version(const struct gcr_criu_program *criu, unsigned int *ret_version,
		       struct gcr_error *error)
{
	_cleanup_(gcr_criu_destroy_cleanup) struct gcr_criu_job *job = new_job();
	_cleanup_free_ char *output = malloc(OUTPUT_BYTES + 1);
	const char *path = criu->path;
	_cleanup_free_ char *name = strdup(path);
	char option[] = "--version";
	char *arguments[] = {name, option, NULL};
	int r;

	if (!job || !output || !name)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	r = make_output(&job->output_fd);
	if (r == 0)
		r = start_program(criu, path, arguments, (const int[]){-1, job->output_fd, -1}, 3,
				  NULL, job, error);
	if (r == -ECONNREFUSED || r == -EPROTO)
		return -EIO; /* words are there */
	if (r == -ENOMEM || r == -EMFILE || r == -ENFILE || r == -EAGAIN)
		return gcr_error_set(error, ENOMEM, "%s cannot be started: %s", path, strerror(-r));
	if (r < 0)
		return gcr_error_set(error, EOPNOTSUPP, "%s cannot be started (%s): " INSTALL, path,
				     strerror(-r));
	if (gcr_criu_wait(job, VERSION_TIMEOUT_USEC, -1) < 0)
		return gcr_error_set(error, EOPNOTSUPP, "%s --version does not end: " INSTALL,
				     path);
	read_output(job->output_fd, output);
	*ret_version = parse_version(output);
	if (!WIFEXITED(job->wait_status) || WEXITSTATUS(job->wait_status) != 0 || *ret_version == 0)
		return gcr_error_set(error, EOPNOTSUPP, "%s does not run here: " INSTALL, path);
	return 0;
}

int gcr_criu_find(const char *path, const char *launcher, struct gcr_criu_program *ret_program,
		  struct gcr_error *error)
{
	_cleanup_(gcr_criu_program_clear) struct gcr_criu_program found = {};
	int r;

	if (launcher && !(found.launcher = strdup(launcher)))
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	if (path) {
		found.path = strdup(path);
		r = !found.path ? -ENOMEM : is_program(path) ? 0 : -ENOENT;
	} else {
		r = search(getenv("PATH"), &found.path);
		if (r == -ENOENT)
			r = search("/usr/local/sbin:/usr/sbin:/sbin", &found.path);
	}
	if (r == -ENOMEM)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	if (r < 0)
		return gcr_error_set(error, EOPNOTSUPP, "%s is not there: " INSTALL,
				     path ? path : "criu");
	r = ask_version(&found, &found.version, error);
	if (r < 0)
		return r;
	if (found.version < GCR_CRIU_VERSION_MIN)
		return gcr_error_set(error, EOPNOTSUPP, "%s is version %u.%u: " INSTALL, found.path,
				     found.version / 10000, found.version / 100 % 100);
	*ret_program = found;
	found = (struct gcr_criu_program){};
	return 0;
}

/* ---- what it is started with ---- */

struct arguments {
	char **list; /* ends with NULL */
	size_t used, room;
	bool failed;
};

static void free_arguments(struct arguments *arguments)
{
	for (size_t i = 0; i < arguments->used; i++)
		free(arguments->list[i]);
	free(arguments->list);
}

__attribute__((format(printf, 2, 3))) static void add(struct arguments *arguments,
						      const char *format, ...)
{
	va_list values;
	int r;

	if (arguments->used + 1 >= arguments->room) {
		size_t room = arguments->room ? arguments->room * 2 : 64;
		char **list = reallocarray(arguments->list, room, sizeof(*list));

		if (!list) {
			arguments->failed = true;
			return;
		}
		arguments->list = list;
		arguments->room = room;
	}
	va_start(values, format);
	r = vasprintf(&arguments->list[arguments->used], format, values);
	va_end(values);
	if (r < 0)
		arguments->failed = true;
	else
		arguments->used++;
	arguments->list[arguments->used] = NULL;
}

/* As gpucr-pidns takes them. */
static void add_unwanted(struct arguments *arguments, const dev_t *devices)
{
	char text[GCR_CRIU_UNWANTED_MAX * 24] = "";
	size_t used = 0;

	for (size_t i = 0; i < GCR_CRIU_UNWANTED_MAX; i++)
		if (devices[i])
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%u:%u",
						 used ? "," : "", major(devices[i]),
						 minor(devices[i]));
	add(arguments, "%s", text);
}

static void add_arguments(struct arguments *arguments, const char *path,
			  const struct gcr_criu_options *options)
{
	bool dump = options->action == GCR_CRIU_DUMP;

	if (options->pidns_program) {
		add(arguments, "%s", options->pidns_program);
		add(arguments, "%d", INHERIT_FD + (int)options->inherits_count);
		add_unwanted(arguments, options->unwanted_mounts);
	}
	add(arguments, "%s", path);
	add(arguments, "%s", dump ? "dump" : "restore");
	add(arguments, "--no-default-config");
	add(arguments, "-v4");
	add(arguments, "--log-file=%s", options->log_name);
	add(arguments, "--images-dir=/proc/self/fd/%d", IMAGES_FD);
	add(arguments, "--work-dir=/proc/self/fd/%d", WORK_FD);
	add(arguments, "--libdir=%s", options->libdir);
	/* Else a restored tree leaves the cgroup that it was given for its old one, made anew. */
	add(arguments, "--manage-cgroups=ignore");
	if (dump) {
		add(arguments, "--tree=%d", (int)options->pid);
		if (options->after == GCR_CRIU_AFTER_RUNNING)
			add(arguments, "--leave-running");
		if (options->hook_program)
			add(arguments, "--action-script=%s", options->hook_program);
	} else {
		add(arguments, "--restore-detached");
		add(arguments, "--pidfile=%s", PID_FILE);
	}
	if (options->after == GCR_CRIU_AFTER_STOPPED)
		add(arguments, "--leave-stopped");
	if (options->tcp == GCR_CRIU_TCP_KEEP)
		add(arguments, "--tcp-established");
	if (options->tcp == GCR_CRIU_TCP_CLOSE)
		add(arguments, "--tcp-close");
	if (options->shell_job)
		add(arguments, "--shell-job");
	if (options->file_locks)
		add(arguments, "--file-locks");
	if (options->ext_unix_sockets)
		add(arguments, "--ext-unix-sk");
	if (options->link_remap)
		add(arguments, "--link-remap");
	if (options->ghost_limit_bytes)
		add(arguments, "--ghost-limit=%" PRIu64, options->ghost_limit_bytes);
	for (size_t i = 0; i < options->externals_count; i++)
		add(arguments, "--external=%s", options->externals[i]);
	for (size_t i = 0; i < options->inherits_count; i++) {
		add(arguments, "--inherit-fd");
		add(arguments, "fd[%d]:%s", INHERIT_FD + (int)i, options->inherits[i].key);
	}
}

static int check_options(const struct gcr_criu_options *options, struct gcr_error *error)
{
	bool dump = options->action == GCR_CRIU_DUMP;
	struct stat status;

	if (!options->log_name || !*options->log_name || strchr(options->log_name, '/') ||
	    strcmp(options->log_name, PID_FILE) == 0)
		return gcr_error_set(error, EINVAL, "the log has to have a name of its own");
	if (options->hook_program && !dump)
		return gcr_error_set(error, EINVAL, "only a dump has a hook");
	if (dump ? options->pid <= 0 || options->inherits_count || options->pidns_program
		 : options->after == GCR_CRIU_AFTER_RUNNING)
		return gcr_error_set(error, EINVAL, "options that do not belong together");
	if (!options->libdir || stat(options->libdir, &status) < 0 || !S_ISDIR(status.st_mode))
		return gcr_error_set(error, EINVAL, "%s, for CRIU's plugins, is no directory",
				     options->libdir ? options->libdir : "what is given");
	return 0;
}

static int make_report(int *ret_reader, int *ret_writer)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	*ret_reader = fds[0];
	*ret_writer = fds[1];
	return 0;
}

static int make_hook(int *ret_ours, int *ret_its)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	*ret_ours = ends[0];
	*ret_its = ends[1];
	return 0;
}

int gcr_criu_start(const struct gcr_criu_program *program, const struct gcr_criu_options *options,
		   struct gcr_criu_job **ret_job, struct gcr_error *error)
{
	_cleanup_(gcr_criu_destroy_cleanup) struct gcr_criu_job *job = NULL;
	_cleanup_(free_arguments) struct arguments arguments = {};
	_cleanup_free_ int *fds = NULL;
	const char *path = options->pidns_program ? options->pidns_program : program->path;
	size_t fds_count = INHERIT_FD + options->inherits_count;
	_cleanup_close_ int report_fd = -1;
	_cleanup_close_ int hook_fd = -1;
	int work_fd = options->work_fd < 0 ? options->images_fd : options->work_fd;
	int r;

	r = check_options(options, error);
	if (r < 0)
		return r;
	job = new_job();
	fds = calloc(fds_count + 2, sizeof(*fds));
	add_arguments(&arguments, program->path, options);
	if (!job || !fds || arguments.failed)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	job->action = options->action;
	job->log_name = strdup(options->log_name);
	if (!job->log_name)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	job->work_fd = fcntl(work_fd, F_DUPFD_CLOEXEC, 0);
	r = job->work_fd < 0 ? -errno : make_output(&job->output_fd);

	if (r == 0 && options->pidns_program)
		r = make_report(&job->report_fd, &report_fd);
	if (r == 0 && options->hook_program)
		r = make_hook(&job->hook_fd, &hook_fd);
	/* The old ones must not be taken for its; and it makes the pid file only if there is none.
	 */
	if (r == 0 && ((unlinkat(work_fd, options->log_name, 0) < 0 && errno != ENOENT) ||
		       (unlinkat(work_fd, PID_FILE, 0) < 0 && errno != ENOENT)))
		r = -errno;
	if (r < 0)
		return gcr_error_set(error, -r, "CRIU cannot be prepared: %s", strerror(-r));

	fds[0] = -1;
	fds[1] = fds[2] = job->output_fd;
	fds[IMAGES_FD] = options->images_fd;
	fds[WORK_FD] = work_fd;
	for (size_t i = 0; i < options->inherits_count; i++)
		fds[INHERIT_FD + i] = options->inherits[i].fd;
	if (report_fd >= 0)
		fds[fds_count++] = report_fd;
	if (hook_fd >= 0)
		fds[fds_count++] = hook_fd;
	r = start_program(program, path, arguments.list, fds, fds_count, options, job, error);
	if (r == -ECONNREFUSED || r == -EPROTO)
		return -EIO; /* words are there */
	if (r < 0)
		return gcr_error_set(error, r == -ENOMEM || r == -EAGAIN ? ENOMEM : EIO,
				     "%s cannot be started%s: %s", path,
				     options->cgroup_procs_fd > 0 ? " in a cgroup of its own" : "",
				     strerror(-r));
	*ret_job = TAKE_PTR(job);
	return 0;
}

int gcr_criu_hook_fd(const struct gcr_criu_job *job)
{
	return job->hook_fd;
}

void gcr_criu_answer(struct gcr_criu_job *job, bool is_yes)
{
	char byte = is_yes ? GCR_CRIU_HOOK_YES : GCR_CRIU_HOOK_NO;
	int fd = job->hook_fd;

	job->hook_fd = -1;
	/* Whom it does not reach sees the end of the socket, which is a no. */
	if (fd >= 0 && send(fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
		shutdown(fd, SHUT_RDWR);
	if (fd >= 0)
		close(fd);
}

int gcr_criu_fd(const struct gcr_criu_job *job)
{
	return job->pidfd;
}

/* ---- its end ---- */

/* A signal is not obeyed at once: until then it could still start something. */
static void await_stop(pid_t pid)
{
	int64_t until_usec = gcr_clock_usec() + STOP_TIMEOUT_USEC;
	struct gcr_proc_stat stat;

	while (gcr_proc_stat(pid, &stat) == 0 && !strchr("TtZX", stat.state) &&
	       gcr_clock_usec() < until_usec)
		usleep(STOP_POLL_USEC);
}

struct killing {
	pid_t parent;
	int levels;
};

static int kill_child(pid_t child, void *data);

/* Everything that @parent, which has been told to stop, has started; @parent itself not. */
static void kill_below(pid_t parent, int levels)
{
	struct killing killing = {.parent = parent, .levels = levels};

	await_stop(parent);
	gcr_proc_each_child(parent, kill_child, &killing);
}

static int kill_child(pid_t child, void *data)
{
	const struct killing *killing = data;
	_cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
	struct gcr_proc_stat stat;

	/* the pidfd's process is its child: it did not end since it was listed */
	if (pidfd < 0 || gcr_proc_stat(child, &stat) < 0 || stat.parent != killing->parent)
		return 0;
	send_signal(pidfd, SIGSTOP);
	if (killing->levels > 0)
		kill_below(child, killing->levels - 1);
	send_signal(pidfd, SIGKILL);
	return 0;
}

void gcr_criu_kill(struct gcr_criu_job *job)
{
	if (reap(job))
		return;
	job->stopped_by_us = true;
	if (job->action == GCR_CRIU_RESTORE) {
		send_signal(job->pidfd, SIGSTOP);
		kill_below(job->pid, NESTED_MAX);
	}
	send_signal(job->pidfd, SIGKILL);
}

void gcr_criu_cancel(struct gcr_criu_job *job)
{
	const struct rlimit none = {0, 0};

	if (job->action == GCR_CRIU_RESTORE) {
		gcr_criu_kill(job);
		return;
	}
	if (reap(job))
		return;
	job->stopped_by_us = true;
	gcr_criu_answer(job, false);
	prlimit(job->pid, RLIMIT_FSIZE, &none, NULL);
}

int gcr_criu_stop(struct gcr_criu_job *job, int64_t grace_usec)
{
	gcr_criu_cancel(job);
	if (gcr_criu_wait(job, grace_usec, -1) == 0)
		return 0;
	gcr_criu_kill(job);
	return gcr_criu_wait(job, job->action == GCR_CRIU_RESTORE ? END_TIMEOUT_USEC : -1, -1);
}

pid_t gcr_criu_pid(const struct gcr_criu_job *job)
{
	return job->pid;
}

/* A job that was left, and what its end is told to. */
struct left {
	struct gcr_criu_job *job;
	void (*ended)(void *data);
	void *data;
};

static void *await_left(void *data)
{
	struct left *left = data;

	gcr_criu_wait(left->job, -1, -1);
	left->ended(left->data);
	gcr_criu_destroy(left->job);
	free(left);
	return NULL;
}

void gcr_criu_leave(struct gcr_criu_job *job, void (*ended)(void *data), void *data)
{
	struct left *left = malloc(sizeof(*left));
	sigset_t all, old;
	pthread_t thread;

	if (!left)
		return;
	*left = (struct left){job, ended, data};
	/* Signals are for other threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, await_left, left) == 0)
		pthread_detach(thread);
	else
		free(left);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static int read_log(const struct gcr_criu_job *job, char **ret_text, size_t *ret_bytes)
{
	_cleanup_close_ int fd = gcr_beneath_open_file(job->work_fd, job->log_name, NULL);
	_cleanup_free_ char *text = NULL;
	struct stat status;
	size_t used = 0;

	if (fd < 0 || fstat(fd, &status) < 0)
		return -EIO;
	if (status.st_size > LOG_BYTES_MAX) {
		lseek(fd, status.st_size - LOG_BYTES_MAX, SEEK_SET);
		status.st_size = LOG_BYTES_MAX;
	}
	text = malloc((size_t)status.st_size + 1);
	if (!text)
		return -ENOMEM;
	while (used < (size_t)status.st_size) {
		ssize_t got = read(fd, text + used, (size_t)status.st_size - used);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	*ret_text = TAKE_PTR(text);
	*ret_bytes = used;
	return 0;
}

/* The words of a run that failed by itself. */
static int explain(struct gcr_criu_job *job, struct gcr_error *error)
{
	_cleanup_free_ char *output = NULL;
	_cleanup_free_ char *log = NULL;
	size_t bytes;
	int r;

	if (read_log(job, &log, &bytes) == 0) {
		r = gcr_criu_log_error(log, bytes, error);
		if (r != -ENOENT)
			return r;
	}
	/* Before it has a log, and where its loader fails. */
	output = malloc(OUTPUT_BYTES + 1);
	if (output) {
		read_output(job->output_fd, output);
		r = gcr_criu_log_error(output, strlen(output), error);
		if (r != -ENOENT)
			return r;
		/* what gcr_criu_log_error() has looked at is in lines now */
		if (*output) {
			output[strcspn(output, "\n")] = '\0';
			return gcr_error_set(error, EIO, "criu: %s", output);
		}
	}
	if (job->wait_status != -1 && WIFSIGNALED(job->wait_status))
		return gcr_error_set(error, EIO, "criu was killed by signal %d",
				     WTERMSIG(job->wait_status));
	if (job->wait_status != -1 && WIFEXITED(job->wait_status))
		return gcr_error_set(error, EIO, "criu failed with exit status %d and said nothing",
				     WEXITSTATUS(job->wait_status));
	return gcr_error_set(error, EIO, "criu ended, nobody knows how");
}

static int read_pid(const struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error)
{
	_cleanup_free_ char *text = NULL;
	void *bytes;
	size_t size;
	uint64_t pid;
	int r;

	r = gcr_beneath_read(job->work_fd, PID_FILE, 32, &bytes, &size, error);
	if (r < 0) {
		gcr_error_prefix(error, "criu has not told the pid");
		return r;
	}
	text = strndup(bytes, size);
	free(bytes);
	if (!text)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	if (gcr_parse_u64(text, &pid) < 0 || pid == 0 || pid > INT32_MAX)
		return gcr_error_set(error, EIO, "criu has not told the pid");
	*ret_pid = (pid_t)pid;
	return 0;
}

struct inner {
	pid_t pid;	    /* in the new namespace */
	unsigned int level; /* of that, as ns_pids counts */
	pid_t found;	    /* in ours */
};

static int is_inner(pid_t child, void *data)
{
	struct inner *inner = data;
	struct gcr_proc_status status;

	if (gcr_proc_status(child, &status) < 0 || status.ns_pids_count != inner->level ||
	    status.ns_pids[inner->level - 1] != inner->pid)
		return 0;
	inner->found = child;
	return 1;
}

/* Whatever goes wrong from here on: by it all that was restored can be ended. */
static int read_init(struct gcr_criu_job *job, struct gcr_error *error)
{
	int32_t init;

	if (job->init)
		return 0;
	if (read(job->report_fd, &init, sizeof(init)) != sizeof(init))
		return gcr_error_set(error, EIO, GCR_PIDNS_PROGRAM " has not told its pid");
	job->init = init;
	return 0;
}

/* The root is the init's child since CRIU has ended. */
static int find_outer_pid(struct gcr_criu_job *job, pid_t *pid, struct gcr_error *error)
{
	struct inner inner = {.pid = *pid};
	struct gcr_proc_status status;

	if (gcr_proc_status(job->init, &status) == 0) {
		inner.level = status.ns_pids_count;
		gcr_proc_each_child(job->init, is_inner, &inner);
	}
	if (!inner.found)
		return gcr_error_set(error, ESRCH,
				     "the restored process (%d in its pid namespace) has ended",
				     (int)*pid);
	*pid = inner.found;
	return 0;
}

static int find_restored(struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error)
{
	pid_t pid = 0;
	int r = 0;

	if (!ret_pid && job->report_fd < 0)
		return 0;
	if (job->report_fd >= 0)
		r = read_init(job, error);
	if (r == 0)
		r = read_pid(job, &pid, error);
	if (r == 0 && job->report_fd >= 0)
		r = find_outer_pid(job, &pid, error);
	if (r == 0 && ret_pid)
		*ret_pid = pid;
	return r;
}

pid_t gcr_criu_namespace_init(const struct gcr_criu_job *job)
{
	return job->init;
}

int gcr_criu_finish(struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error)
{
	int r = gcr_criu_wait(job, -1, -1);

	if (r < 0)
		return gcr_error_set(error, -r, "criu cannot be waited for: %s", strerror(-r));
	if (job->wait_status != -1 && WIFEXITED(job->wait_status) &&
	    WEXITSTATUS(job->wait_status) == 0)
		return job->action == GCR_CRIU_RESTORE ? find_restored(job, ret_pid, error) : 0;
	if (job->stopped_by_us)
		return gcr_error_set(error, ECANCELED, "criu was stopped");
	return explain(job, error);
}
