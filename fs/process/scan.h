/* SPDX-License-Identifier: MIT */
/*
 * Finds the processes that use a GPU, without their cooperation: those that hold a device file open
 * and have that file, or other files of the same device, mapped (measured: a CUDA context does
 * both; users of NVML, and children that inherited the descriptor, do not map the file). The scan
 * watches the files, and finds a new process a moment after the process has opened one.
 */
#ifndef GCR_FS_PROCESS_SCAN_H
#define GCR_FS_PROCESS_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/helper/scan_look.h"

struct gcr_scan;

/* A process that uses a GPU. */
struct gcr_scan_holder {
	pid_t pid;
	unsigned int devices; /* bit N: device files of config.devices[N] */
	uint64_t start_ticks;
};

/* One device. Strings are copied. */
struct gcr_scan_device {
	const char *path; /* "/dev/nvidia-uvm"; need not exist yet. NULL: no such device */
	/*
	 * Files in the same directory, or below it, that count as mapped: names that may be
	 * followed by a number; the list ends with NULL, and is not copied. NULL: only @path
	 * counts.
	 */
	const char *const *mapped;
	/* Files beside @path that are watched too: this name followed by a number. NULL: none. */
	const char *sibling;
};

struct gcr_scan_config {
	struct gcr_scan_device devices[GCR_SCAN_DEVICES_MAX];
	uid_t only_uid; /* report only this user's processes; (uid_t)-1: all users' */

	/*
	 * True for a process to be ignored although it holds the device (our own helpers). May be
	 * NULL.
	 */
	bool (*ignore)(pid_t pid, void *data);

	/*
	 * Looks at one process, as gcr_scan_look() does. May return -ETIMEDOUT or -EBUSY for a
	 * process that blocks the look: the pass then keeps the process's last known state. NULL:
	 * gcr_scan_look(), which waits.
	 */
	int (*look)(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		    uint64_t *ret_start_ticks);

	/* The same for many processes, as gcr_looker_devices_of_many(). NULL: one by one. */
	int (*look_many)(uid_t owner, const pid_t *pids, size_t count,
			 const struct gcr_scan_wanted *wanted, int64_t budget_usec,
			 struct gcr_scan_found *ret_found, size_t *ret_done);

	/* The owner of a process: each owner has a share of a pass's time. NULL: root owns all. */
	uid_t (*owner_of)(pid_t pid);

	/*
	 * Reports a complete pass over /proc: all holders, in order of pid; a process that is
	 * missing did not hold the device when the pass looked. (A process that the driver has
	 * checkpointed holds no device file, and is missing.) A process that was put off
	 * (gcr_scan_put_off()) is reported in its last known state. Calls are sequential, on the
	 * scan's thread, with no lock of the scan held; gcr_scan_now() must not be called from
	 * here: it would wait for itself. The first call may come before gcr_scan_create() returns,
	 * but after *ret_scan is set. A failed pass is not reported.
	 */
	void (*pass)(const struct gcr_scan_holder *holders, size_t count, void *data);

	void *data; /* for ignore() and pass() */
};

/*
 * Starts a thread, which makes a first pass at once. @config is copied. Further passes: after a
 * change of the device file's holders (50 ms later, at most one every 250 ms, and one 300 ms after
 * the last change), and every 30 s a pass that looks only at processes the last pass did not
 * report, for changes that cannot be watched (the same device under another node, in a container).
 * -EINVAL: a device's path is not absolute; -ENAMETOOLONG; -ENOMEM, ...
 */
int gcr_scan_create(const struct gcr_scan_config *config, struct gcr_scan **ret_scan);

/* Stops the thread. No other thread may be in a call. NULL is allowed. */
void gcr_scan_destroy(struct gcr_scan *scan);

/*
 * Runs a full pass: on return, a pass that began after the call has been reported. Concurrent
 * callers share one pass. -ETIMEDOUT: the pass has not ended in time. -errno: /proc could not be
 * read, or -ENOMEM.
 */
int gcr_scan_now(struct gcr_scan *scan, int64_t timeout_usec);

/* Requests a pass soon, within the usual rate limit. Does not wait. */
void gcr_scan_wake(struct gcr_scan *scan);

/*
 * Lists the processes that the last pass has put off without a look: the owner's share of time was
 * used up, or the process blocks looks. Each is looked at later, owners in turn; later passes
 * include the result. The caller frees the list.
 */
int gcr_scan_unknown(struct gcr_scan *scan, pid_t **ret_pids, size_t *ret_count);
size_t gcr_scan_put_off(struct gcr_scan *scan); /* number of processes put off */

/*
 * For config.pass, and only there: sets for each process whether it certainly holds no device now.
 * Uses the rest of the owners' shares; a process that is put off is certain only after two looks
 * that found no device.
 */
void gcr_scan_look_again(struct gcr_scan *scan, const pid_t *pids, size_t count,
			 bool *ret_holds_none);

/*
 * Is @pid a GPU process by the rules above? Returns 1 (and fills *@ret_holder, if not NULL), 0, or
 * -ESRCH, -EACCES, ...; -ETIMEDOUT, -EBUSY: the process could not be looked at in time. 0 also for
 * the id of a thread.
 */
int gcr_scan_probe(struct gcr_scan *scan, pid_t pid, struct gcr_scan_holder *ret_holder);

/*
 * The same for many processes, all within about @budget_usec: *@ret_results has for each the result
 * of gcr_scan_probe(), or -ETIMEDOUT if the time did not suffice. -ENOMEM.
 */
int gcr_scan_probe_many(struct gcr_scan *scan, const pid_t *pids, size_t count, int64_t budget_usec,
			struct gcr_scan_holder *ret_holders, int *ret_results);

#endif
