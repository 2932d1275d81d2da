/* SPDX-License-Identifier: MIT */
/* Shared by the parts of gpucr-verify: checking one snapshot, and reporting errors. */
#ifndef GCR_TOOLS_VERIFY_VERIFY_H
#define GCR_TOOLS_VERIFY_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/digest.h"
#include "lib/error.h"
#include "lib/extent.h"

#define VERIFY_THREADS_MAX 256 /* upper limit of -j */
#define VERIFY_LINES_MAX   100 /* per file */

struct verify_options {
	unsigned int threads;
	bool quiet;
	bool progress;
	bool progress_in_place; /* on a terminal: one line that is updated */
};

/* One snapshot and the results of its check. */
struct verify {
	const struct verify_options *options;
	const char *path; /* printable, begins every line; NULL if there is only one snapshot */
	const char *part; /* follows @path: "", or "processes/PID/" */
	uint64_t wrong;	  /* lines about wrong data */
	uint64_t unread;  /* lines about unreadable data */
	size_t files;
	uint64_t bytes;
};

/* Reports wrong data: one line on standard output, in which control characters become '?'. */
void verify_wrong(struct verify *verify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Reports data that cannot be read, or an unknown format: one line on standard error. */
void verify_unread(struct verify *verify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* snapshot.c: checks one snapshot and fills in the counts of @verify. */
void verify_snapshot(struct verify *verify, int directory_fd);

/* A file whose contents are checked. */
struct verify_file {
	char name[GCR_EXTENT_NAME_BYTES];
	uint64_t bytes;	       /* bytes to check from the start of the file; 0: none */
	uint64_t first_digest; /* index of the first chunk's digest */
	int error;	       /* output: positive errno if not all could be read */
};

/*
 * contents.c: compares the chunks of @files in the directory @files_fd with @digests. ret_differs[]
 * has one byte per digest, set to 1 if the chunk differs. Shows progress.
 */
void verify_contents(const struct verify *verify, int files_fd, struct verify_file *files,
		     size_t count, const struct gcr_digest *digests, uint8_t *ret_differs);

#endif
