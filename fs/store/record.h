/* SPDX-License-Identifier: MIT */
/*
 * Records: what the next daemon has to know about a process that this one froze, should this one
 * die. A record is the small file processes/<pid>-<start_ticks> in the runtime directory, flat
 * `key value` lines, replaced whole. It is written before the driver is touched and removed after
 * the process runs again, so that no frozen process is ever without one.
 */
#ifndef GCR_FS_STORE_RECORD_H
#define GCR_FS_STORE_RECORD_H

#include <stdint.h>
#include <sys/types.h>

#include "lib/procfs.h"
#include "lib/protocol.h"

enum gcr_record_state {
	GCR_RECORD_FREEZING, /* the driver may have begun: ask it for the state */
	GCR_RECORD_FROZEN,
	GCR_RECORD_THAWING, /* likewise */
	GCR_RECORD_FAILED,  /* a Restore has failed; the driver goes on calling it checkpointed */
};

#define GCR_RECORD_GENERATION_BYTES 37 /* a UUID as text, with its NUL */
#define GCR_RECORD_ENGINE_BYTES	    16

/* GPUs whose place another one takes; a GPU that is not named is where it was. */
struct gcr_moves {
	uint32_t count;
	struct gcr_gpu_pair pairs[GCR_GPUS_MAX];
};

struct gcr_record {
	pid_t pid;
	uint64_t start_ticks;
	enum gcr_record_state state;
	char generation[GCR_RECORD_GENERATION_BYTES]; /* lower case */
	char engine[GCR_RECORD_ENGINE_BYTES];	      /* letters, digits, '_', '-' */
	int64_t since_usec;			      /* CLOCK_REALTIME */
	uint32_t gpus_count;
	struct {
		uint8_t uuid[GCR_UUID_BYTES];
		uint64_t bytes; /* VRAM that must be free to thaw */
	} gpus[GCR_GPUS_MAX];
	char comm[GCR_COMM_BYTES];
	/*
	 * Of the GPUs of its freeze: where the driver has it, after a thaw to others that was
	 * undone; and, while it is being thawed, where it goes.
	 */
	struct gcr_moves moved;
	struct gcr_moves moving;
	/* It is being thawed in exchange for this process, which is frozen; 0: for none. */
	pid_t swap_pid;
	uint64_t swap_start_ticks;
	/* It was frozen in exchange for this process, and is to come back if that one fails; 0: no.
	 */
	pid_t frozen_for_pid;
	uint64_t frozen_for_start_ticks;
};

/* "freezing", "frozen", "thawing", "failed" */
const char *gcr_record_state_name(enum gcr_record_state state);

/*
 * Write or replace a record. @directory_fd is the runtime directory; `processes` in it is made if
 * it is not there. One thread at a time for one process. -EINVAL: a field is not as above.
 */
int gcr_record_write(int directory_fd, const struct gcr_record *record);

/* What a record says of an exchange is over: it is written without that. 0 also if there is none.
 */
int gcr_record_end_exchange(int directory_fd, pid_t pid, uint64_t start_ticks);

/* Remove it. 0 also if there was none. */
int gcr_record_remove(int directory_fd, pid_t pid, uint64_t start_ticks);

/*
 * Calls @visit with every record of this boot until it returns non-zero, and returns that, else 0
 * or -errno. Content is not trusted: a file that is not a record, is not ours or does not hold what
 * its name says is left where it is and told to @unreadable (may be NULL) with its name and a
 * positive errno. Records of an earlier boot are passed over, what was half written is removed:
 * for the start of the daemon. @visit may write and remove records.
 */
int gcr_record_each(int directory_fd, int (*visit)(const struct gcr_record *record, void *data),
		    void (*unreadable)(const char *name, int error, void *data), void *data);

#endif
