/* SPDX-License-Identifier: MIT */
/* One freeze and one thaw of a new program, with everything that is to be known about it. */
#ifndef GCR_TOOLS_BENCH_RUN_H
#define GCR_TOOLS_BENCH_RUN_H

#include "tools/bench/bench.h"
#include "tools/bench/mount.h"

/*
 * Have the daemon that the row needs, with its helpers running if it is a warm one. Errors with
 * words: the row cannot be measured.
 */
int bench_run_prepare(struct bench *bench, const struct bench_row *row,
		      struct bench_mount *ret_mount, struct gcr_error *error);

/*
 * Wait until the daemon knows the program, and as one of that engine. @text is room for
 * BENCH_TEXT_MAX bytes. -EOPNOTSUPP: of another one. Errors with words.
 */
int bench_run_find(const struct bench *bench, enum bench_engine wanted,
		   const struct bench_mount *mount, pid_t pid, char *text, struct gcr_error *error);

/*
 * Add one run to the row. What goes wrong is said to the bench (bench_fail, or bench_note if the
 * row cannot be had here), and returned: there is no sense in another.
 */
int bench_run(struct bench *bench, struct bench_row *row, const struct bench_mount *mount,
	      unsigned int number);

#endif
