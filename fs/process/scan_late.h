/* SPDX-License-Identifier: MIT */
/*
 * Late looks: a thread looks at the processes that passes of the scan have put off, one after the
 * other, owners in turn. Each look may take the full time allowed for one process; the thread then
 * rests for as long as the look has taken. Thread-safe.
 */
#ifndef GCR_FS_PROCESS_SCAN_LATE_H
#define GCR_FS_PROCESS_SCAN_LATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/helper/scan_look.h"

struct gcr_late;

struct gcr_late_config {
	int (*look)(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		    uint64_t *ret_start_ticks);
	const struct gcr_scan_wanted *wanted; /* owned by the caller */
	/* A look has found other devices than the last pass reported. No lock is held. */
	void (*changed)(void *data);
	void *data;
};

/* Starts the thread. @config is copied. -ENOMEM, -EAGAIN. */
int gcr_late_create(const struct gcr_late_config *config, struct gcr_late **ret_late);
/* Stops the thread, after its current look. NULL is allowed. */
void gcr_late_destroy(struct gcr_late *late);

/*
 * Brackets a pass: gcr_late_end() forgets the processes for which the pass did not call
 * gcr_late_ask().
 */
void gcr_late_begin(struct gcr_late *late);
void gcr_late_end(struct gcr_late *late);

/* Has a look at the process taken long, or not completed? Then a pass skips the process. */
bool gcr_late_is_slow(struct gcr_late *late, pid_t pid);

/*
 * Queues a look at a process that a pass has put off. @is_slow: the process itself caused that.
 * Returns true if an earlier late look has a result (devices, or none), in *ret_found.
 */
bool gcr_late_ask(struct gcr_late *late, pid_t pid, uid_t owner, bool is_slow,
		  struct gcr_scan_found *ret_found);
/* Records the devices that the pass reports for the process. */
void gcr_late_report(struct gcr_late *late, pid_t pid, unsigned int devices);

/* Records that another look has just found the process to hold @devices. */
void gcr_late_note_devices(struct gcr_late *late, pid_t pid, unsigned int devices,
			   uint64_t start_ticks);

/* Have two consecutive looks found no device? */
bool gcr_late_holds_none(struct gcr_late *late, pid_t pid);

#endif
