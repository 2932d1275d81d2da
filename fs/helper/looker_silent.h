/* SPDX-License-Identifier: MIT */
/*
 * Processes that did not let themselves be looked at: each is left alone for a while, which is
 * longer every time, until it answers or ends. Not thread-safe; never waits.
 */
#ifndef GCR_FS_HELPER_LOOKER_SILENT_H
#define GCR_FS_HELPER_LOOKER_SILENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GCR_SILENT_MAX	    256
#define GCR_SILENT_MIN_USEC (1 * INT64_C(1000000))
#define GCR_SILENT_TOP_USEC (16 * INT64_C(1000000))

/* What kept the look waiting; a process that is silent to the first is so to the second. */
enum gcr_silent_kind {
	GCR_SILENT_ALL,	   /* in execve(2): all that /proc tells */
	GCR_SILENT_MEMORY, /* its address space alone */
	GCR_SILENT_SENT,   /* a file that it has sent us */
};

struct gcr_silent {
	struct gcr_silent_entry {
		pid_t pid;
		int pidfd; /* of that process; -1: a thread's number, or no descriptor was left */
		enum gcr_silent_kind kind;
		uid_t uid;
		int64_t until_usec; /* left alone until then */
		int64_t pause_usec; /* how long that was */
	} entries[GCR_SILENT_MAX];
	unsigned int count;
};

/* Is it to be left alone now? */
bool gcr_silent_pauses(struct gcr_silent *silent, pid_t pid, enum gcr_silent_kind kind,
		       int64_t now_usec);

/* It was silent once more. Where there is no room the entry that is due first gives way. */
void gcr_silent_note(struct gcr_silent *silent, pid_t pid, enum gcr_silent_kind kind, uid_t uid,
		     int64_t now_usec);

/* It has answered a look of @kind. */
void gcr_silent_forget(struct gcr_silent *silent, pid_t pid, enum gcr_silent_kind kind);

/* Has it been silent, and not answered since? */
bool gcr_silent_has(const struct gcr_silent *silent, pid_t pid);

/* How many silent processes that user has, those whose pause is over too. */
unsigned int gcr_silent_count(const struct gcr_silent *silent, uid_t uid);

void gcr_silent_finish(struct gcr_silent *silent);

#endif
