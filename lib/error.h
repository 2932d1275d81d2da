/* SPDX-License-Identifier: MIT */
/*
 * An error as it travels up: a number for the program, words for the person. Functions return
 * 0 or -errno and fill the words; the daemon shows them once, in the process's `error` file and
 * in the log.
 */
#ifndef GCR_ERROR_H
#define GCR_ERROR_H

#include <stdarg.h>
#include <stdio.h>

#define GCR_ERROR_WORDS_MAX 512

struct gcr_error {
	int number;			 /* positive errno, 0 if none */
	char words[GCR_ERROR_WORDS_MAX]; /* one line without newline: what, why, what to do */
};

/*
 * Set @error (may be NULL) and return -@number, so that a function can end with
 * `return gcr_error_set(error, EBUSY, "...")`. Control characters in the result are replaced
 * by '?', so that a process name cannot forge a line of the log.
 */
int gcr_error_set(struct gcr_error *error, int number, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Put words in front of those that are there: "PREFIX: old words". No change if @error is NULL. */
void gcr_error_prefix(struct gcr_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* A line as in the files `error`: "NAME: words", or "ok" where there is none. */
void gcr_error_print(const struct gcr_error *error, FILE *stream);

/* The symbolic name of a positive errno ("EBUSY"); "E?" for an unknown one. */
const char *gcr_error_name(int number);

#endif
