/* SPDX-License-Identifier: MIT */
/*
 * A command line for criu-glue, used by test_criu_*.py: `find [PATH [GUARD]]`, `dump` or `restore`
 * with NAME=VALUE arguments, and `opens` with the same and pids. The first line of output is "0
 * WORDS" on success and "ERRNO WORDS" on failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "criu-glue/criu.h"
#include "criu-glue/opens.h"

static int answer(int r, const struct gcr_error *error, const char *words)
{
	printf("%s %s\n", r < 0 ? gcr_error_name(-r) : "0", r < 0 ? error->words : words);
	return 0;
}

static const char *value_of(const char *argument, const char *name)
{
	size_t length = strlen(name);

	return strncmp(argument, name, length) == 0 && argument[length] == '='
		       ? argument + length + 1
		       : NULL;
}

/* Parses "MAJOR:MINOR". */
static dev_t device_of(const char *text)
{
	unsigned int major = 0, minor = 0;

	sscanf(text, "%u:%u", &major, &minor);
	return makedev(major, minor);
}

static int run(int count, char **arguments)
{
	_cleanup_(gcr_criu_program_clear) struct gcr_criu_program program = {};
	_cleanup_(gcr_criu_destroy_cleanup) struct gcr_criu_job *job = NULL;
	struct gcr_criu_inherit inherits[8];
	const char *externals[8];
	struct gcr_criu_options options = {
		.action = strcmp(arguments[0], "dump") == 0 ? GCR_CRIU_DUMP : GCR_CRIU_RESTORE,
		.images_fd = -1,
		.work_fd = -1,
		.log_name = "criu.log",
		.externals = externals,
		.inherits = inherits,
	};
	size_t unwanted_count = 0;
	long cancel_usec = -1, kill_usec = -1, grace_usec = 5000000;
	_cleanup_free_ char *drain = NULL;
	_cleanup_close_ int pidfd = -1;
	const char *build = getenv("GPUCR_TEST_BUILD");
	const char *criu = NULL;
	struct gcr_error error = {};
	char words[32] = "done";
	pid_t pid = 0;
	int r;

	for (int i = 1; i < count; i++) {
		const char *argument = arguments[i];
		const char *value;

		if ((value = value_of(argument, "criu")))
			criu = value;
		else if ((value = value_of(argument, "images")))
			options.images_fd = open(value, O_DIRECTORY | O_CLOEXEC);
		else if ((value = value_of(argument, "work")))
			options.work_fd = open(value, O_DIRECTORY | O_CLOEXEC);
		else if ((value = value_of(argument, "log")))
			options.log_name = value;
		else if ((value = value_of(argument, "log_program")))
			options.log_program = value;
		else if ((value = value_of(argument, "libdir")))
			options.libdir = value;
		else if ((value = value_of(argument, "pid")))
			options.pid = atoi(value);
		else if ((value = value_of(argument, "guard")))
			options.guard = value;
		else if ((value = value_of(argument, "ghost")))
			options.ghost_limit_bytes = strtoull(value, NULL, 10);
		else if ((value = value_of(argument, "external")))
			externals[options.externals_count++] = value;
		else if ((value = value_of(argument, "cgroup")))
			options.cgroup_procs_fd = atoi(value);
		else if ((value = value_of(argument, "pidns")))
			options.pidns_program = value;
		else if ((value = value_of(argument, "unwanted")))
			options.unwanted_mounts[unwanted_count++] = device_of(value);
		else if ((value = value_of(argument, "inherit")))
			inherits[options.inherits_count++] = (struct gcr_criu_inherit){
				.fd = atoi(value),
				.key = strchr(value, ':') + 1,
			};
		else if ((value = value_of(argument, "cancel_usec")))
			cancel_usec = atol(value);
		else if ((value = value_of(argument, "kill_usec")))
			kill_usec = atol(value);
		else if ((value = value_of(argument, "grace_usec")))
			grace_usec = atol(value);
		else if (strcmp(argument, "running") == 0)
			options.after = GCR_CRIU_AFTER_RUNNING;
		else if (strcmp(argument, "stopped") == 0)
			options.after = GCR_CRIU_AFTER_STOPPED;
		else if (strcmp(argument, "tcp=keep") == 0)
			options.tcp = GCR_CRIU_TCP_KEEP;
		else if (strcmp(argument, "tcp=close") == 0)
			options.tcp = GCR_CRIU_TCP_CLOSE;
		else if (strcmp(argument, "shell_job") == 0)
			options.shell_job = true;
		else if (strcmp(argument, "file_locks") == 0)
			options.file_locks = true;
		else if (strcmp(argument, "ext_unix_sockets") == 0)
			options.ext_unix_sockets = true;
		else if (strcmp(argument, "link_remap") == 0)
			options.link_remap = true;
		else
			return 2;
	}
	if (options.guard && options.pid)
		options.pidfd = pidfd = (int)syscall(SYS_pidfd_open, options.pid, 0);
	if (!build || asprintf(&drain, "%s/backend/cuda/" GCR_DRAIN_PROGRAM, build) < 0)
		return 2;
	if (!options.log_program)
		options.log_program = drain;
	/* A guard at the run alone: what CRIU says of its version is another's word. */
	r = gcr_criu_find(criu, getenv("GPUCR_CRIU_SOCKET"), NULL, &program, &error);
	if (r == 0)
		r = gcr_criu_start(&program, &options, &job, &error);
	if (r < 0)
		return answer(r, &error, NULL);
	if (cancel_usec >= 0 && gcr_criu_wait(job, cancel_usec, -1) == -ETIMEDOUT)
		gcr_criu_stop(job, grace_usec);
	if (kill_usec >= 0 && gcr_criu_wait(job, kill_usec, -1) == -ETIMEDOUT)
		gcr_criu_kill(job);
	r = gcr_criu_finish(job, &pid, &error);
	if (pid)
		snprintf(words, sizeof(words), gcr_criu_namespace_init(job) ? "%d %d" : "%d",
			 (int)pid, (int)gcr_criu_namespace_init(job));
	return answer(r, &error, words);
}

static void print_opens(const struct gcr_opens *opens)
{
	printf("shell_job %d\nfile_locks %d\nlink_remap %d\next_unix_sockets %d\nghost %llu\n"
	       "contents %llu\nlost %zu\n",
	       opens->shell_job, opens->file_locks, opens->link_remap, opens->ext_unix_sockets,
	       (unsigned long long)opens->ghost_limit_bytes,
	       (unsigned long long)opens->contents_bytes, opens->findings_lost);
	for (size_t i = 0; i < opens->findings_count; i++) {
		const struct gcr_open_finding *finding = &opens->findings[i];

		if (finding->verdict == GCR_OPEN_REFUSED)
			printf("refused %s %s\n", gcr_error_name(finding->error.number),
			       finding->error.words);
		else
			printf("external %d %d %s %s stdio=%d writer=%d\n", (int)finding->pid,
			       finding->fd, finding->key,
			       finding->has_option ? finding->option : "-", finding->is_stdio,
			       finding->is_writer);
	}
	for (size_t i = 0; i < opens->files_count; i++) {
		const struct gcr_open_file *file = &opens->files[i];

		printf("file mapped=%d append=%d %s\n", file->is_mapped, file->is_append_only,
		       file->path);
	}
}

static int scan(int count, char **arguments)
{
	_cleanup_(gcr_opens_destroy_cleanup) struct gcr_opens *opens = NULL;
	struct gcr_opens_options options = {.ghost_limit_max_bytes = 64 << 20};
	struct gcr_error error = {};
	size_t pids_count = 0;
	pid_t pids[64];
	int r;

	for (int i = 1; i < count; i++) {
		const char *argument = arguments[i];
		const char *value;

		if ((value = value_of(argument, "ghost")))
			options.ghost_limit_max_bytes = strtoull(value, NULL, 10);
		else if ((value = value_of(argument, "mount")))
			options.mount_device = strtoull(value, NULL, 10);
		else if ((value = value_of(argument, "version")))
			options.criu_version = (unsigned int)atoi(value);
		else if (strcmp(argument, "tcp=keep") == 0)
			options.tcp = GCR_CRIU_TCP_KEEP;
		else if (strcmp(argument, "may_link") == 0)
			options.may_link = true;
		else if (pids_count < GCR_ARRAY_SIZE(pids))
			pids[pids_count++] = atoi(argument);
	}
	r = gcr_opens_scan(pids, pids_count, &options, &opens, &error);
	if (r == 0)
		r = gcr_opens_refusal(opens, &error);
	answer(r, &error, "scanned");
	if (opens)
		print_opens(opens);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 2 && strcmp(argv[1], "find") == 0) {
		_cleanup_(gcr_criu_program_clear) struct gcr_criu_program program = {};
		struct gcr_error error = {};
		int r = gcr_criu_find(argv[2], getenv("GPUCR_CRIU_SOCKET"),
				      argc > 3 ? argv[3] : NULL, &program, &error);

		answer(r, &error, r == 0 ? program.path : NULL);
		printf("%u\n", program.version);
		return 0;
	}
	if (argc >= 2 && strcmp(argv[1], "opens") == 0)
		return scan(argc - 1, argv + 1);
	return argc >= 2 ? run(argc - 1, argv + 1) : 2;
}
