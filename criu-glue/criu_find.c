/* SPDX-License-Identifier: MIT */
/* Finding CRIU and its version. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/criu_private.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

#define VERSION_TIMEOUT_USEC (10 * GCR_USEC_PER_SEC)
#define VERSION_GATE_FD	     3

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

/*
 * Searches the directories of @list, which are separated by ':', for criu. The caller frees
 * *ret_path. -ENOENT, -ENOMEM.
 */
static int search(const char *list, char **ret_path)
{
	while (list && *list) {
		size_t length = strcspn(list, ":");
		char *path;

		/* No relative directories: the current directory may belong to any user. */
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

/* @guard: may be NULL. *ret_is_guarded: CRIU has loaded it. */
static int ask_version(const struct gcr_criu_program *criu, const char *guard,
		       unsigned int *ret_version, bool *ret_is_guarded, struct gcr_error *error)
{
	const struct gcr_criu_options options = {.action = GCR_CRIU_VERSION, .guard = guard};
	_cleanup_(gcr_criu_destroy_cleanup) struct gcr_criu_job *job = gcr_criu_new_job();
	_cleanup_free_ char *output = malloc(GCR_CRIU_OUTPUT_BYTES + 1);
	const char *path = criu->path;
	_cleanup_free_ char *name = strdup(path);
	char option[] = "--version";
	char *arguments[] = {name, option, NULL};
	_cleanup_close_ int gate_fd = -1;
	int r;

	if (!job || !output || !name)
		return gcr_error_set(error, ENOMEM, "out of memory for CRIU");
	r = guard ? gcr_criu_make_gate(job, guard, -1, &gate_fd, error) : 0;
	if (r < 0)
		return r;
	r = gcr_criu_make_output(&job->output_fd);
	if (r == 0)
		r = gcr_criu_start_program(
			criu, path, arguments,
			(const int[]){-1, job->output_fd, -1, [VERSION_GATE_FD] = gate_fd},
			guard ? VERSION_GATE_FD + 1 : VERSION_GATE_FD, &options, VERSION_GATE_FD,
			job, error);
	if (r == -ECONNREFUSED || r == -EPROTO)
		return -EIO; /* the message has been set */
	if (r == -ENOMEM || r == -EMFILE || r == -ENFILE || r == -EAGAIN)
		return gcr_error_set(error, ENOMEM, "%s cannot be started: %s", path, strerror(-r));
	if (r < 0)
		return gcr_error_set(error, EOPNOTSUPP, "%s cannot be started (%s): " INSTALL, path,
				     strerror(-r));
	if (gcr_criu_wait(job, VERSION_TIMEOUT_USEC, -1) < 0)
		return gcr_error_set(error, EOPNOTSUPP, "%s --version does not end: " INSTALL,
				     path);
	gcr_criu_read_output(job->output_fd, output);
	*ret_version = parse_version(output);
	if (!WIFEXITED(job->wait_status) || WEXITSTATUS(job->wait_status) != 0 || *ret_version == 0)
		return gcr_error_set(error, EOPNOTSUPP, "%s does not run here: " INSTALL, path);
	*ret_is_guarded = gcr_criu_is_guarded(job);
	return 0;
}

int gcr_criu_find(const char *path, const char *launcher, const char *guard,
		  struct gcr_criu_program *ret_program, struct gcr_error *error)
{
	_cleanup_(gcr_criu_program_clear) struct gcr_criu_program found = {};
	bool is_guarded = false;
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
	r = ask_version(&found, guard, &found.version, &is_guarded, error);
	if (r < 0)
		return r;
	if (found.version < GCR_CRIU_VERSION_MIN)
		return gcr_error_set(error, EOPNOTSUPP, "%s is version %u.%u: " INSTALL, found.path,
				     found.version / 10000, found.version / 100 % 100);
	if (!is_guarded)
		return gcr_error_set(error, EOPNOTSUPP, GCR_CRIU_UNGUARDED, found.path, guard);
	*ret_program = found;
	found = (struct gcr_criu_program){};
	return 0;
}
