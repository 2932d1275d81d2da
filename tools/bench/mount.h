/* SPDX-License-Identifier: MIT */
/*
 * A gpucrfs of the bench's own, or one that is there, as a user has it: files of a mount. Whatever
 * touches the mount is done in a forked child with a time limit, for a daemon that hangs would
 * hang it.
 */
#ifndef GCR_TOOLS_BENCH_MOUNT_H
#define GCR_TOOLS_BENCH_MOUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"
#include "tools/bench/child.h"

#define BENCH_TEXT_MAX 65536

struct bench_mount {
	struct bench_child daemon; /* pid 0: not ours */
	char *directory;
	char *runtime; /* NULL: not ours */
	char *socket;  /* "GPUCR_SOCKET=..." for programs; NULL: not ours */
};

/*
 * Start one with these options besides its directories ("worker_idle=1"); @number makes their
 * names. Returns when the mount answers. Errors with words: what the daemon said.
 */
int bench_mount_start(const struct bench_paths *paths, unsigned int number, const char *options,
		      struct bench_mount *ret_mount, struct gcr_error *error);

/* The one that is mounted there: -ENOENT if there is none. */
int bench_mount_find(const char *directory, struct bench_mount *ret_mount, struct gcr_error *error);

/* Stop it if it is ours, and leave nothing mounted. */
void bench_mount_stop(const struct bench_paths *paths, struct bench_mount *mount);

/*
 * The text of a file: @pid's, or with pid 0 the root's. -ENOENT, -ETIMEDOUT and what reading
 * says, with words.
 */
int bench_mount_read(const struct bench_mount *mount, pid_t pid, const char *file,
		     char ret_text[BENCH_TEXT_MAX], struct gcr_error *error);

/*
 * Write a verb: what write(2) says, with the words of `error`, and the time that it took.
 * After @timeout_usec the writer is ended, so that the daemon rolls back, then the daemon:
 * -ETIMEDOUT.
 */
int bench_mount_verb(const struct bench_mount *mount, pid_t pid, const char *verb,
		     int64_t timeout_usec, double *ret_usec, struct gcr_error *error);

/* The value of a key of a status, up to the end of the line; false if there is none. */
bool bench_text_value(const char *text, const char *key, char *ret_value, size_t room);
bool bench_text_number(const char *text, const char *key, double *ret_number);

#define BENCH_HELPERS_MAX 64

/*
 * The daemon's helper programs that run, those whose names begin with @name: how many, which. NULL:
 * those that have to do with GPUs.
 */
size_t bench_mount_helpers(const struct bench_mount *mount, const char *name,
			   pid_t ret_pids[BENCH_HELPERS_MAX]);

/* Host memory of the daemon and its helpers. */
uint64_t bench_mount_host_bytes(const struct bench_mount *mount);

#endif
