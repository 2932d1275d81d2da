/* SPDX-License-Identifier: MIT */
/* One freeze and one thaw of a new program, with all measurements of the run. */
#ifndef GCR_TOOLS_BENCH_RUN_H
#define GCR_TOOLS_BENCH_RUN_H

#include "tools/bench/bench.h"
#include "tools/bench/mount.h"

/*
 * Provides the daemon that the row needs, with running helpers for a warm row. Errors come with a
 * message: the row cannot be measured.
 */
int bench_run_prepare(struct bench *bench, const struct bench_row *row,
		      struct bench_mount *ret_mount, struct gcr_error *error);

/*
 * Waits until the daemon knows the program, with the wanted engine. @text: a buffer of
 * BENCH_TEXT_MAX bytes. Returns -EOPNOTSUPP if the program has another engine. Errors come with a
 * message.
 */
int bench_run_find(const struct bench *bench, enum bench_engine wanted,
		   const struct bench_mount *mount, pid_t pid, char *text, struct gcr_error *error);

/*
 * Adds one run to the row. A failure is reported to the bench (bench_fail, or bench_note if the row
 * cannot be measured here) and returned: then no further run is useful.
 */
int bench_run(struct bench *bench, struct bench_row *row, const struct bench_mount *mount,
	      unsigned int number);

#endif
