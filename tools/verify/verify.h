/* SPDX-License-Identifier: MIT */
/* What the parts of gpucr-verify share: checking one snapshot, and how what is wrong is told. */
#ifndef GCR_TOOLS_VERIFY_VERIFY_H
#define GCR_TOOLS_VERIFY_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/digest.h"
#include "lib/error.h"
#include "lib/extent.h"

#define VERIFY_THREADS_MAX 256 /* with -j */
#define VERIFY_LINES_MAX   100 /* about one file */

struct verify_options {
	unsigned int threads;
	bool quiet;
	bool progress;
	bool progress_in_place; /* on a terminal: one line that changes */
};

/* One snapshot, and what has been found. */
struct verify {
	const struct verify_options *options;
	const char *path; /* begins every line; NULL if there is only one snapshot */
	const char *part; /* follows it: "", or "processes/PID/" */
	uint64_t wrong;	  /* lines about what is wrong */
	uint64_t unread;  /* and about what could not be read */
	size_t files;
	uint64_t bytes;
};

/* Something is wrong. One line on standard output; control characters become '?'. */
void verify_wrong(struct verify *verify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Something cannot be read, or is not known here: a line on standard error. */
void verify_unread(struct verify *verify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* snapshot.c: fills the counts of @verify. */
void verify_snapshot(struct verify *verify, int directory_fd);

/* A file whose contents are checked. */
struct verify_file {
	char name[GCR_EXTENT_NAME_BYTES];
	uint64_t bytes;	       /* so many from the beginning on; 0: nothing */
	uint64_t first_digest; /* of its chunks, in the array of digests */
	int error;	       /* filled in: why not all of it could be read, a positive errno */
};

/*
 * contents.c: compare the chunks of @files in the directory @files_fd with @digests;
 * ret_differs[] has one byte for each digest, and becomes 1 where a chunk differs. With progress.
 */
void verify_contents(const struct verify *verify, int files_fd, struct verify_file *files,
		     size_t count, const struct gcr_digest *digests, uint8_t *ret_differs);

#endif
