/* SPDX-License-Identifier: MIT */
/*
 * Programs started by gpucr-bench: the bench itself in another role, or a command. The bench reads
 * their stdout line by line; their stderr goes to a file. They end with the bench.
 */
#ifndef GCR_TOOLS_BENCH_CHILD_H
#define GCR_TOOLS_BENCH_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

#define BENCH_LINE_MAX 4096

/* Paths of programs and directories; set once. */
struct bench_paths {
	char *self;		   /* this program */
	char *daemon;		   /* gpucrfs */
	char *run;		   /* gpucr-run */
	char *work;		   /* a directory of the bench */
	char *helpers, *simulator; /* in the build tree; NULL: installed */
	char *simulator_state;	   /* NULL: the real driver */
};

struct bench_child {
	pid_t pid; /* 0: none */
	int pidfd;
	int input, output; /* our ends of the child's stdin and stdout */
	char log[64];	   /* file of its stderr, below the work directory */
	size_t held;	   /* bytes in buffer that are read but not yet consumed */
	bool discarding;   /* the rest of an overlong line is being skipped */
	char buffer[BENCH_LINE_MAX];
};

/* Set by SIGINT, SIGTERM, SIGHUP: all waiting functions then return -EINTR. */
extern volatile int bench_interrupted;

/*
 * Starts @arguments[0], found by PATH. @environment: "NAME=VALUE" sets, "NAME" removes a variable;
 * a NULL ends the array. @name names the log. Errors come with a message.
 */
int bench_child_start(const struct bench_paths *paths, const char *name, char *const *arguments,
		      const char *const *environment, struct bench_child *ret_child,
		      struct gcr_error *error);

/*
 * Reads the next line without its newline. Returns 0, -ETIMEDOUT, -EINTR, or -EPIPE if the child
 * has ended (the message then has its last line of stderr). @timeout_usec 0: only lines already
 * available.
 */
int bench_child_line(const struct bench_paths *paths, struct bench_child *child,
		     int64_t timeout_usec, char ret_line[BENCH_LINE_MAX], struct gcr_error *error);

/*
 * Sends one line and reads one line: "ok[ KEY VALUE]..." returns 0; "error WORDS" returns -EBADMSG
 * if WORDS begins with "content ", else -EIO. Other errors as of bench_child_line().
 */
int bench_child_ask(const struct bench_paths *paths, struct bench_child *child,
		    int64_t timeout_usec, const char *question, char ret_line[BENCH_LINE_MAX],
		    struct gcr_error *error);

/*
 * Reads the answer to the arguments that the child was started with. Results as of
 * bench_child_ask().
 */
int bench_child_answer(const struct bench_paths *paths, struct bench_child *child,
		       int64_t timeout_usec, char ret_line[BENCH_LINE_MAX],
		       struct gcr_error *error);

/* Returns in @ret_number the value of a key of such an answer; false if there is none. */
bool bench_answer_number(const char *line, const char *key, double *ret_number);

/* Returns true if the child has ended. */
bool bench_child_ended(const struct bench_child *child);

/*
 * Sends a signal to the child's process group and waits for the child's end. Returns 0 or
 * -ETIMEDOUT.
 */
int bench_child_signal(struct bench_child *child, int number, int64_t timeout_usec);

/*
 * Kills the child and waits for its end, for a limited time: a large process takes seconds. Does
 * nothing for a child that was not started.
 */
void bench_child_end(struct bench_child *child);

/* Returns the last line of the child's stderr; "" if there is none. */
void bench_child_last_words(const struct bench_paths *paths, const struct bench_child *child,
			    char *ret_words, size_t room);

/* Waits for @usec. Returns 0, or -EINTR after a signal. */
int bench_pause(int64_t usec);

/*
 * Waits until @fd is readable or until @until_usec (monotonic). Returns 0, -ETIMEDOUT or -EINTR.
 * After @until_usec the descriptor is still checked once.
 */
int bench_wait(int fd, int64_t until_usec);

#endif
