/* SPDX-License-Identifier: MIT */
/* Walking from processes up to their ancestors, without reading a process twice. */
#ifndef GCR_LIB_PROC_LINEAGE_H
#define GCR_LIB_PROC_LINEAGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GCR_PROC_GENERATIONS_MAX 64 /* bounds a walk, which races with changes */

/* The parents of all processes that were walked over. Initialized by its first field alone. */
struct gcr_proc_lineage {
	int64_t until_usec; /* the deadline of all walks (gcr_clock_usec()); INT64_MAX: none */
	size_t reads;	    /* processes read so far */
	void *parents;	    /* of tsearch(3) */
};

/*
 * Is @ancestor among the ancestors of @pid, at most GCR_PROC_GENERATIONS_MAX above it? 1, 0 (also:
 * one of them has ended or may not be read), -ETIMEDOUT: the deadline has passed; -ENOMEM, -EMFILE,
 * -ENFILE. Reads only `status`, which no process can make unreadable.
 */
int gcr_proc_is_below(struct gcr_proc_lineage *lineage, pid_t pid, pid_t ancestor);

/* Frees what @lineage remembers. */
void gcr_proc_lineage_finish(struct gcr_proc_lineage *lineage);

#endif
