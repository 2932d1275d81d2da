/* SPDX-License-Identifier: MIT */
/*
 * Looks that passes of the scan have put off: a thread makes them one after the other, each with
 * all the time that a look at one process may take, owners in turn. Between two it rests for as
 * long as the look has taken. Thread-safe.
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
	const struct gcr_scan_wanted *wanted; /* stays the caller's */
	/* A look has found something else than the last pass reported. No lock is held. */
	void (*changed)(void *data);
	void *data;
};

/* Starts the thread. */
int gcr_late_create(const struct gcr_late_config *config, struct gcr_late **ret_late);
/* Ends it, after the look that it makes. NULL is allowed. */
void gcr_late_destroy(struct gcr_late *late);

/* A pass begins; those for which it does not ask are forgotten at its end. */
void gcr_late_begin(struct gcr_late *late);
void gcr_late_end(struct gcr_late *late);

/* Has a look at it taken long, or not come to an end? Then a pass does not even try. */
bool gcr_late_is_slow(struct gcr_late *late, pid_t pid);

/*
 * A pass has put this process off: it is to be looked at. @is_slow: because of itself. True: it has
 * been looked at before, and this is what was found: no device, or some.
 */
bool gcr_late_ask(struct gcr_late *late, pid_t pid, uid_t owner, bool is_slow,
		  struct gcr_scan_found *ret_found);
/* What the pass reports of it. */
void gcr_late_report(struct gcr_late *late, pid_t pid, unsigned int devices);

/* Another look has just found that it holds @devices. */
void gcr_late_note_devices(struct gcr_late *late, pid_t pid, unsigned int devices,
			   uint64_t start_ticks);

/* Have two looks one after the other found no device? */
bool gcr_late_holds_none(struct gcr_late *late, pid_t pid);

#endif
