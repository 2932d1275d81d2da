/* SPDX-License-Identifier: MIT */
/*
 * A gpucrfs started by the bench, or an existing mount, used as any user would: through the files
 * of the mount. A forked child with a time limit does every access to the mount, because a hanging
 * daemon would block the caller.
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
	struct bench_child daemon; /* pid 0: not started by the bench */
	char *directory;
	char *runtime; /* NULL: not started by the bench */
	char *socket;  /* "GPUCR_SOCKET=..." for programs; NULL: not ours */
};

/*
 * Starts a daemon with @options ("worker_idle=1") in addition to its directories, which are named
 * after @number. Returns when the mount answers. Errors come with the daemon's message.
 */
int bench_mount_start(const struct bench_paths *paths, unsigned int number, const char *options,
		      struct bench_mount *ret_mount, struct gcr_error *error);

/* Uses the existing mount at @directory. Returns -ENOENT if there is none. */
int bench_mount_find(const char *directory, struct bench_mount *ret_mount, struct gcr_error *error);

/* Stops the daemon if the bench started it, and unmounts. */
void bench_mount_stop(const struct bench_paths *paths, struct bench_mount *mount);

/*
 * Reads a file of process @pid, or of the root with pid 0. Errors, with a message: -ENOENT,
 * -ETIMEDOUT and those of read(2).
 */
int bench_mount_read(const struct bench_mount *mount, pid_t pid, const char *file,
		     char ret_text[BENCH_TEXT_MAX], struct gcr_error *error);

/*
 * Writes a verb. Returns the result of write(2), with the message of `error`, and the duration. On
 * timeout (-ETIMEDOUT) the writer is killed, so that the daemon rolls back; if the writer does not
 * end, a daemon started by the bench is killed too.
 */
int bench_mount_verb(const struct bench_mount *mount, pid_t pid, const char *verb,
		     int64_t timeout_usec, double *ret_usec, struct gcr_error *error);

/* Returns the value of a key of a status, up to the end of the line; false if there is none. */
bool bench_text_value(const char *text, const char *key, char *ret_value, size_t room);
bool bench_text_number(const char *text, const char *key, double *ret_number);

#define BENCH_HELPERS_MAX 64

/*
 * Finds the daemon's running helper programs whose names begin with @name; NULL: those that use
 * GPUs. Returns their number, and their pids in ret_pids.
 */
size_t bench_mount_helpers(const struct bench_mount *mount, const char *name,
			   pid_t ret_pids[BENCH_HELPERS_MAX]);

/* Returns the host memory of the daemon and its helpers, in bytes; 0 if the daemon is not ours. */
uint64_t bench_mount_host_bytes(const struct bench_mount *mount);

#endif
