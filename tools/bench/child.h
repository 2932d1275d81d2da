/* SPDX-License-Identifier: MIT */
/*
 * Programs that gpucr-bench starts: itself in another role, or a command. What they print on
 * stdout is read line by line, stderr goes to a file. They end with the bench.
 */
#ifndef GCR_TOOLS_BENCH_CHILD_H
#define GCR_TOOLS_BENCH_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

#define BENCH_LINE_MAX 4096

/* Where everything is; made once. */
struct bench_paths {
	char *self;		   /* this program */
	char *daemon;		   /* gpucrfs */
	char *run;		   /* gpucr-run */
	char *work;		   /* a directory of our own */
	char *helpers, *simulator; /* in the build tree; NULL: where they were installed */
	char *simulator_state;	   /* NULL: the real driver */
};

struct bench_child {
	pid_t pid; /* 0: none */
	int pidfd;
	int input, output; /* ours: what it reads, what it prints */
	char log[64];	   /* its stderr, below the work directory */
	size_t held;	   /* bytes in buffer that have been read and not taken */
	bool discarding;   /* what comes is the rest of a line that was too long */
	char buffer[BENCH_LINE_MAX];
};

/* Set by SIGINT, SIGTERM, SIGHUP: everything that waits then returns -EINTR. */
extern volatile int bench_interrupted;

/*
 * Start @arguments[0], by PATH. @environment: "NAME=VALUE", and "NAME" to take it away; NULL ends
 * it. @name names the log. Errors with words.
 */
int bench_child_start(const struct bench_paths *paths, const char *name, char *const *arguments,
		      const char *const *environment, struct bench_child *ret_child,
		      struct gcr_error *error);

/*
 * The next line, without its end. -ETIMEDOUT, -EINTR, or -EPIPE it has ended (then the words have
 * what it said last); @timeout_usec 0: only what is there.
 */
int bench_child_line(const struct bench_paths *paths, struct bench_child *child,
		     int64_t timeout_usec, char ret_line[BENCH_LINE_MAX], struct gcr_error *error);

/*
 * One line there, one line back: "ok[ KEY VALUE]..." returns 0; "error WORDS" is -EBADMSG if the
 * words begin with "content ", else -EIO.
 */
int bench_child_ask(const struct bench_paths *paths, struct bench_child *child,
		    int64_t timeout_usec, const char *question, char ret_line[BENCH_LINE_MAX],
		    struct gcr_error *error);

/* The answer to what it was started with. */
int bench_child_answer(const struct bench_paths *paths, struct bench_child *child,
		       int64_t timeout_usec, char ret_line[BENCH_LINE_MAX],
		       struct gcr_error *error);

/* The value of a key in such an answer: a number, or false. */
bool bench_answer_number(const char *line, const char *key, double *ret_number);

/* Has it ended? */
bool bench_child_ended(const struct bench_child *child);

/* Send it a signal; wait for its end up to @timeout_usec. -ETIMEDOUT. */
int bench_child_signal(struct bench_child *child, int number, int64_t timeout_usec);

/* Kill it and wait, for a while: a large process takes seconds. NULL-safe for one not started. */
void bench_child_end(struct bench_child *child);

/* The last line of its stderr, "" if there is none. */
void bench_child_last_words(const struct bench_paths *paths, const struct bench_child *child,
			    char *ret_words, size_t room);

/* Wait @usec, or until a signal: -EINTR. */
int bench_pause(int64_t usec);

/*
 * Wait until @fd can be read, or @until_usec (monotonic): 0, -ETIMEDOUT, -EINTR. Looks once if that
 * has passed.
 */
int bench_wait(int fd, int64_t until_usec);

#endif
