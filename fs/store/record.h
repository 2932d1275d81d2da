/* SPDX-License-Identifier: MIT */
/*
 * Records: the data from which the next daemon recovers the processes that this daemon has frozen,
 * should this one die. A record is the small file processes/<pid>-<start_ticks> in the runtime
 * directory, flat `key value` lines, replaced whole, which needs no room. The record is written
 * before the driver is touched and removed after the process runs again, so that no frozen process
 * is ever without one.
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
	GCR_RECORD_THAWING, /* the driver may have begun */
	GCR_RECORD_FAILED,  /* a Restore has failed; the driver still reports "checkpointed" */
};

#define GCR_RECORD_GENERATION_BYTES 37 /* a UUID as text, with its NUL */
#define GCR_RECORD_ENGINE_BYTES	    16

/* GPUs that are replaced by another one; a GPU that is not listed is not replaced. */
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
	 * Replacements for the GPUs of the freeze. moved: where the driver's state is, after a thaw
	 * to other GPUs that was rolled back; moving: during a thaw, the GPUs that it is thawed to.
	 */
	struct gcr_moves moved;
	struct gcr_moves moving;
	/*
	 * The process is being thawed in a swap with this process, which is frozen for it; 0: no
	 * swap.
	 */
	pid_t swap_pid;
	uint64_t swap_start_ticks;
	/*
	 * The process was frozen in a swap for this process, and is thawed again if that thaw
	 * fails; 0: no swap.
	 */
	pid_t frozen_for_pid;
	uint64_t frozen_for_start_ticks;
};

/* "freezing", "frozen", "thawing", "failed" */
const char *gcr_record_state_name(enum gcr_record_state state);

/*
 * Write or replace a record. @directory_fd is the runtime directory; `processes` in it is made if
 * missing. One thread at a time for one process. -EINVAL: a field is not as described above;
 * -ENOSPC: only for a process that has no record yet. Such a process gets two files, the record and
 * a spare (`.NAME.new`) of the same length. A later write overwrites the spare and exchanges the
 * two names: that needs no room, and whenever the daemon dies, one of the two is under the name of
 * the record as a whole. So a thaw needs no room in the runtime directory.
 */
int gcr_record_write(int directory_fd, const struct gcr_record *record);

/*
 * A swap is over: rewrite the record without swap_pid and frozen_for_pid. Returns 0 also if there
 * is no record.
 */
int gcr_record_end_swap(int directory_fd, pid_t pid, uint64_t start_ticks);

/*
 * Read the record of one process. -ENOENT: there is no record of this boot; other errors: the file
 * is no record, does not belong to the daemon, contradicts its name or cannot be read. @ret_record
 * is written only on success.
 */
int gcr_record_read(int directory_fd, pid_t pid, uint64_t start_ticks,
		    struct gcr_record *ret_record);

/*
 * Removes the spares of records that no longer exist, or that an earlier daemon had not written to
 * their end, and makes the spares that are missing, as far as there is room. Only for the start of
 * the daemon, since a record that is being written looks the same. -errno; 0 also if there were no
 * records.
 */
int gcr_record_prepare(int directory_fd);

/* Remove the record. Returns 0 also if there was none. */
int gcr_record_remove(int directory_fd, pid_t pid, uint64_t start_ticks);

/*
 * Calls @visit with every record of this boot until it returns non-zero, and returns that, else 0
 * or -errno. The content is not trusted: a file that is no record, does not belong to the daemon or
 * contradicts its name stays where it is and is reported to @unreadable (may be NULL) with its name
 * and a positive errno. Records of an earlier boot and half-written ones are skipped. @visit may
 * write and remove records.
 */
int gcr_record_each(int directory_fd, int (*visit)(const struct gcr_record *record, void *data),
		    void (*unreadable)(const char *name, int error, void *data), void *data);

#endif
