/* SPDX-License-Identifier: MIT */
/*
 * An error that is passed up the call chain: an errno for the program and a message for the user.
 * Functions return 0 or -errno and fill in the message; the daemon shows it once, in the process's
 * `error` file and in the log.
 */
#ifndef GCR_ERROR_H
#define GCR_ERROR_H

#include <stdarg.h>
#include <stdio.h>

#define GCR_ERROR_WORDS_MAX 512

struct gcr_error {
	int number;			 /* positive errno, 0 if none */
	char words[GCR_ERROR_WORDS_MAX]; /* one line, no newline: failure, cause, what to do */
};

/*
 * Sets @error (may be NULL) and returns -@number, so that a function can end with `return
 * gcr_error_set(error, EBUSY, "...")`. Control characters in the result are replaced by '?', so
 * that a process name cannot forge a line of the log.
 */
int gcr_error_set(struct gcr_error *error, int number, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Puts a prefix in front of the message: "PREFIX: old message". No change if @error is NULL. */
void gcr_error_prefix(struct gcr_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Prints a line as in the `error` files: "NAME: message", or "ok" if there is no error. */
void gcr_error_print(const struct gcr_error *error, FILE *stream);

/* Returns the symbolic name of a positive errno ("EBUSY"); "E?" for an unknown one. */
const char *gcr_error_name(int number);

#endif
