/* SPDX-License-Identifier: MIT */
/*
 * One run of CRIU. CRIU gets its descriptors by fixed numbers (below) and opens directories through
 * /proc/self/fd, so that it needs no path of ours. Its log is its standard output, a socket: see
 * criu_keep.c. The messages of CRIU on stderr go to a memfd of fixed size.
 */
#include "criu-glue/criu_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/launch.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/program.h"

/* CRIU's descriptors: stdin, stdout, stderr, and these. */
#define WORK_FD	   4
#define INHERIT_FD GCR_CRIU_HOOK_FD /* also the hook's: a dump inherits none */

int gcr_criu_make_output(int *ret_fd)
{
	_cleanup_close_ int fd = memfd_create("criu-output", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, GCR_CRIU_OUTPUT_BYTES) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		return -errno;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

void gcr_criu_read_output(int fd, char text[static GCR_CRIU_OUTPUT_BYTES + 1])
{
	ssize_t got = pread(fd, text, GCR_CRIU_OUTPUT_BYTES, 0);

	text[got > 0 ? got : 0] = '\0';
}

/*
 * Makes the variable with the owner's rights, which the caller frees. NULL: there is no memory.
 */
static char *print_owner(const struct gcr_image_owner *owner)
{
	char *text = NULL;
	size_t bytes;
	FILE *stream = open_memstream(&text, &bytes);

	if (!stream)
		return NULL;
	fprintf(stream, GCR_CRIU_OWNER_VARIABLE "=%u:%u:%" PRIx64 ":", (unsigned int)owner->uid,
		(unsigned int)owner->gid, owner->capabilities);
	for (size_t i = 0; i < owner->groups_count; i++)
		fprintf(stream, "%s%u", i ? "," : "", (unsigned int)owner->groups[i]);
	if (!fclose(stream))
		return text;
	free(text);
	return NULL;
}

/* The same for the processes that are to be dumpable. */
static char *print_dumpable(const struct gcr_criu_options *options)
{
	char *text = NULL;
	size_t bytes;
	FILE *stream = open_memstream(&text, &bytes);

	if (!stream)
		return NULL;
	fprintf(stream, GCR_CRIU_DUMPABLE_VARIABLE "=");
	for (size_t i = 0; i < options->dumpable_count; i++)
		fprintf(stream, "%s%d", i ? "," : "", (int)options->dumpable[i]);
	if (!fclose(stream))
		return text;
	free(text);
	return NULL;
}

/*
 * Adds the variables of the environment by which the guard gets its facts; the caller frees them.
 * @gate: CRIU's descriptor of the gate; the one before it is that on which a restore asks.
 * @root_fd: that of a dumped tree's root. -ENOMEM.
 */
static int add_guard(char *variables[GCR_ENVIRONMENT_ROOM], const struct gcr_criu_options *options,
		     int gate, int root_fd)
{
	if (!options->guard)
		return 0;
	if (asprintf(&variables[0], "LD_PRELOAD=%s", options->guard) < 0) {
		variables[0] = NULL;
		return -ENOMEM;
	}
	if (asprintf(&variables[1], GCR_CRIU_GATE_VARIABLE "=%d", gate) < 0) {
		variables[1] = NULL;
		return -ENOMEM;
	}
	if (options->action == GCR_CRIU_DUMP &&
	    asprintf(&variables[2], GCR_CRIU_ROOT_VARIABLE "=%d:%d", (int)options->pid, root_fd) <
		    0) {
		variables[2] = NULL;
		return -ENOMEM;
	}
	if (options->asks &&
	    asprintf(&variables[2], GCR_CRIU_RESUME_VARIABLE "=%d", gate - 1) < 0) {
		variables[2] = NULL;
		return -ENOMEM;
	}
	if (options->action == GCR_CRIU_RESTORE && options->owner) {
		variables += options->asks;
		variables[2] = print_owner(options->owner);
		variables[3] = variables[2] ? print_dumpable(options) : NULL;
		return variables[3] ? 0 : -ENOMEM;
	}
	return 0;
}

/* ---- the gate ---- */

/* Characters of a path that the loader takes for something else in LD_PRELOAD. */
#define MEANT_IN_PRELOAD " :$"

int gcr_criu_make_gate(struct gcr_criu_job *job, const char *guard, int images_fd, int *ret_fd,
		       struct gcr_error *error)
{
	static const char byte = GCR_CRIU_GATE_BYTE;
	_cleanup_close_ int its = -1;
	int pair[2];
	int r;

	if (strpbrk(guard, MEANT_IN_PRELOAD))
		return gcr_error_set(
			error, EOPNOTSUPP,
			"CRIU cannot be made to load '%s', whose path has a blank, ':' "
			"or '$': put gpucrfs's helpers into another directory",
			guard);
	job->guard = strdup(guard);
	if (!job->guard)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return gcr_error_set(error, errno, "CRIU cannot be prepared: %s", strerror(errno));
	job->guard_fd = pair[0];
	its = pair[1];
	r = gcr_launch_send(job->guard_fd, &byte, 1, &images_fd, images_fd < 0 ? 0 : 1);
	if (r < 0)
		return gcr_error_set(error, -r, "CRIU cannot be prepared: %s", strerror(-r));
	*ret_fd = TAKE_FD(its);
	return 0;
}

bool gcr_criu_is_guarded(struct gcr_criu_job *job)
{
	char byte;

	if (job->guard && !job->is_guarded)
		job->is_guarded = recv(job->guard_fd, &byte, 1, MSG_DONTWAIT) == 1;
	return !job->guard || job->is_guarded;
}

int gcr_criu_check_guard(struct gcr_criu_job *job, struct gcr_error *error)
{
	return gcr_criu_is_guarded(job)
		       ? 0
		       : gcr_error_set(error, EIO, GCR_CRIU_UNGUARDED, "criu", job->guard);
}

int gcr_criu_start_program(const struct gcr_criu_program *criu, const char *path,
			   char *const *arguments, const int *fds, size_t count,
			   const struct gcr_criu_options *options, int gate,
			   struct gcr_criu_job *job, struct gcr_error *error)
{
	/* LD_PRELOAD may be our own; a configuration file could set any option. */
	static const char *const unwanted[] = {"LD_PRELOAD", "CRIU_CONFIG_FILE"};
	_cleanup_(gcr_environment_free_cleanup) char **environment = NULL;
	struct gcr_program program = {
		.path = path,
		.arguments = arguments,
		.fds = fds,
		.fds_count = count,
		.ignored_signal = SIGXFSZ,
		.cgroup_procs_fd = options ? options->cgroup_procs_fd : 0,
		/* Not for a dump: when its CRIU is killed, programs of the tree can die. */
		.ends_with_starter = options && options->action == GCR_CRIU_RESTORE,
		/* The restored programs keep it. */
		.has_own_keyring = options && options->action == GCR_CRIU_RESTORE,
	};
	size_t variables;
	int r;

	program.environment = environment =
		gcr_environment_copy(unwanted, GCR_ARRAY_SIZE(unwanted), &variables);
	if (!environment ||
	    (options && add_guard(environment + variables, options, gate, (int)count - 1) < 0))
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	if (criu->launcher) {
		r = gcr_launch(criu->launcher, &program, &job->pid, &job->pidfd, &job->connection,
			       error);
		job->is_launched = r == 0;
		return r;
	}
	r = gcr_program_start(&program, &job->pid, &job->pidfd);
	return r < 0 ? gcr_error_set(error, -r, "%s", strerror(-r)) : 0;
}

void gcr_criu_send_signal(int pidfd, int number)
{
	syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
}

/*
 * Has a launched CRIU ended? The launcher reports its status. If the launcher has ended too, only
 * the fact that CRIU has ended is known.
 */
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

bool gcr_criu_reap(struct gcr_criu_job *job)
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

int gcr_criu_wait(struct gcr_criu_job *job, int64_t timeout_usec, int wake_fd)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;
	char byte;

	while (!gcr_criu_reap(job)) {
		struct pollfd polls[2] = {
			{.fd = job->connection >= 0 ? job->connection : job->pidfd,
			 .events = POLLIN},
			{.fd = wake_fd, .events = POLLIN},
		};
		int64_t left_usec = until_usec - gcr_clock_usec();
		struct timespec left;

		if (timeout_usec >= 0 && left_usec < 0)
			return -ETIMEDOUT;
		left = (struct timespec){
			.tv_sec = (time_t)(left_usec / GCR_USEC_PER_SEC),
			.tv_nsec = (long)(left_usec % GCR_USEC_PER_SEC) * 1000,
		};
		if (ppoll(polls, 2, timeout_usec < 0 ? NULL : &left, NULL) < 0 && errno != EINTR)
			return -errno;
		/* CRIU's end of the hook closes before the pidfd reports that CRIU has ended. */
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
	gcr_criu_complete_log(job);
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
	if (job->guard_fd >= 0)
		close(job->guard_fd);
	free(job->guard);
	free(job->log_name);
	free(job);
}

struct gcr_criu_job *gcr_criu_new_job(void)
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
	job->log_end_fd = -1;
	job->guard_fd = -1;
	return job;
}

/* ---- command line ---- */

struct arguments {
	char **list; /* ends with a NULL entry */
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

/* Adds the argument DEVICES, in the form that gpucr-pidns expects. */
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
			  const struct gcr_criu_options *options, int gate)
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
	add(arguments, "--log-file=-");
	add(arguments, "--images-dir=/proc/self/fd/%d", options->guard ? gate : GCR_CRIU_IMAGES_FD);
	add(arguments, "--work-dir=/proc/self/fd/%d", WORK_FD);
	add(arguments, "--libdir=%s", options->libdir);
	/*
	 * Otherwise a restored tree would leave the cgroup that it was given and move to its old
	 * one, which CRIU creates again.
	 */
	add(arguments, "--manage-cgroups=ignore");
	if (dump) {
		add(arguments, "--tree=%d", (int)options->pid);
		if (options->after == GCR_CRIU_AFTER_RUNNING)
			add(arguments, "--leave-running");
		if (options->hook_program)
			add(arguments, "--action-script=%s", options->hook_program);
	} else {
		add(arguments, "--restore-detached");
		add(arguments, "--pidfile=%s", GCR_CRIU_PID_FILE);
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
	    strcmp(options->log_name, GCR_CRIU_PID_FILE) == 0)
		return gcr_error_set(error, EINVAL, "the log has to have a name of its own");
	if (!options->log_program)
		return gcr_error_set(error, EINVAL, "no program is given that keeps the log");
	if (options->hook_program && !dump)
		return gcr_error_set(error, EINVAL, "only a dump has a hook");
	if (options->asks && (dump || !options->guard))
		return gcr_error_set(error, EINVAL, "only a restore with a guard asks");
	if (dump ? options->pid <= 0 || (options->guard && options->pidfd < 0) ||
			    options->inherits_count || options->pidns_program
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
	_cleanup_close_ int log_fd = -1;
	_cleanup_close_ int gate_fd = -1;
	int gate = (int)fds_count + !!options->pidns_program +
		   (options->hook_program || options->asks);
	int work_fd = options->work_fd < 0 ? options->images_fd : options->work_fd;
	int r;

	r = check_options(options, error);
	if (r < 0)
		return r;
	job = gcr_criu_new_job();
	fds = calloc(fds_count + 4, sizeof(*fds));
	add_arguments(&arguments, program->path, options, gate);
	if (!job || !fds || arguments.failed)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	job->action = options->action;
	job->log_name = strdup(options->log_name);
	if (!job->log_name)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	job->work_fd = fcntl(work_fd, F_DUPFD_CLOEXEC, 0);
	r = job->work_fd < 0 ? -errno : gcr_criu_make_output(&job->output_fd);

	if (r == 0 && options->pidns_program)
		r = make_report(&job->report_fd, &report_fd);
	if (r == 0 && (options->hook_program || options->asks))
		r = make_hook(&job->hook_fd, &hook_fd);
	/*
	 * Old files must not be mistaken for new ones, and CRIU creates the pid file only if none
	 * exists.
	 */
	if (r == 0 && ((unlinkat(work_fd, options->log_name, 0) < 0 && errno != ENOENT) ||
		       (unlinkat(work_fd, GCR_CRIU_PID_FILE, 0) < 0 && errno != ENOENT)))
		r = -errno;
	if (r < 0)
		return gcr_error_set(error, -r, "CRIU cannot be prepared: %s", strerror(-r));
	if (options->guard)
		r = gcr_criu_make_gate(job, options->guard, options->images_fd, &gate_fd, error);
	if (r == 0)
		r = gcr_criu_keep_log(program, options, job, &log_fd, error);
	if (r < 0)
		return r;

	fds[0] = -1;
	fds[1] = log_fd;
	fds[2] = job->output_fd;
	fds[GCR_CRIU_IMAGES_FD] = options->images_fd;
	fds[WORK_FD] = work_fd;
	for (size_t i = 0; i < options->inherits_count; i++)
		fds[INHERIT_FD + i] = options->inherits[i].fd;
	if (report_fd >= 0)
		fds[fds_count++] = report_fd;
	if (hook_fd >= 0)
		fds[fds_count++] = hook_fd;
	if (gate_fd >= 0)
		fds[fds_count++] = gate_fd;
	/* The last one: see add_guard(). */
	if (options->action == GCR_CRIU_DUMP && options->guard)
		fds[fds_count++] = options->pidfd;
	r = gcr_criu_start_program(program, path, arguments.list, fds, fds_count, options, gate,
				   job, error);
	if (r == -ECONNREFUSED || r == -EPROTO)
		return -EIO; /* the message has been set */
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
	/* If the answer is not delivered, CRIU sees the end of the socket, which means no. */
	if (fd >= 0 && send(fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
		shutdown(fd, SHUT_RDWR);
	if (fd >= 0)
		close(fd);
}

int gcr_criu_fd(const struct gcr_criu_job *job)
{
	return job->pidfd;
}
