/* SPDX-License-Identifier: MIT */
/*
 * Silent processes: those whose look timed out. Each is paused (not looked at) for a while, longer
 * each time, until it answers or ends. Not thread-safe; never waits.
 */
#ifndef GCR_FS_HELPER_LOOKER_SILENT_H
#define GCR_FS_HELPER_LOOKER_SILENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GCR_SILENT_MAX	    256
#define GCR_SILENT_MIN_USEC (1 * INT64_C(1000000))
#define GCR_SILENT_TOP_USEC (16 * INT64_C(1000000))

/*
 * The kind of access that blocked the look. A process that is silent for the first kind is silent
 * for the second and the last too.
 */
enum gcr_silent_kind {
	GCR_SILENT_ALL,	   /* in execve(2): most files of /proc/PID */
	GCR_SILENT_MEMORY, /* its address space only */
	GCR_SILENT_SENT,   /* a file that it has sent us */
	/* The comparison of its descriptors with another process's, which may be at fault. */
	GCR_SILENT_COMPARED,
};

struct gcr_silent {
	struct gcr_silent_entry {
		pid_t pid;
		/* A pidfd of that process; -1: pid is a thread's id, or no descriptor was free. */
		int pidfd;
		enum gcr_silent_kind kind;
		uid_t uid;
		int64_t until_usec; /* paused until then */
		int64_t pause_usec; /* length of that pause */
	} entries[GCR_SILENT_MAX];
	unsigned int count;
};

/* Is the process paused now? */
bool gcr_silent_pauses(struct gcr_silent *silent, pid_t pid, enum gcr_silent_kind kind,
		       int64_t now_usec);

/*
 * Records that the process was silent again. If the table is full, the entry whose pause ends first
 * is replaced.
 */
void gcr_silent_note(struct gcr_silent *silent, pid_t pid, enum gcr_silent_kind kind, uid_t uid,
		     int64_t now_usec);

/* Records that the process has answered a look of @kind. */
void gcr_silent_forget(struct gcr_silent *silent, pid_t pid, enum gcr_silent_kind kind);

/* Has it been silent, not just compared, without having answered since? */
bool gcr_silent_has(const struct gcr_silent *silent, pid_t pid);

/* The number of a user's silent processes, including those whose pause is over. */
unsigned int gcr_silent_count(const struct gcr_silent *silent, uid_t uid);

void gcr_silent_finish(struct gcr_silent *silent);

#endif
