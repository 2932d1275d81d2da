/* SPDX-License-Identifier: MIT */
/*
 * Finding the processes that use a GPU, without their cooperation: those that hold a device file
 * open and have it mapped (measured: a CUDA context does both; NVML's users, and children that
 * inherited the descriptor, do not map it), or others of the same device. The files are watched, so
 * that a new one is seen a moment after it opened one.
 */
#ifndef GCR_FS_PROCESS_SCAN_H
#define GCR_FS_PROCESS_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/helper/scan_look.h"

struct gcr_scan;

struct gcr_scan_holder {
	pid_t pid;
	unsigned int devices; /* bit N: those of config.devices[N] */
	uint64_t start_ticks;
};

/* Strings are copied. */
struct gcr_scan_device {
	const char *path; /* "/dev/nvidia-uvm"; it need not exist yet. NULL: there is none such */
	/*
	 * Files in the same directory, or below it, that count as mapped: names with a number
	 * behind them or not; the list ends with NULL, and is not copied. NULL: that file alone.
	 */
	const char *const *mapped;
	/* Files beside it, with a number behind this name, that are watched too. NULL: none. */
	const char *sibling;
};

struct gcr_scan_config {
	struct gcr_scan_device devices[GCR_SCAN_DEVICES_MAX];
	uid_t only_uid; /* see no processes but this user's; (uid_t)-1: everybody's */

	/* Not a GPU process although it holds the device (our own helpers). May be NULL. */
	bool (*ignore)(pid_t pid, void *data);

	/*
	 * Looks at one process, as gcr_scan_look() does. It may say -ETIMEDOUT or -EBUSY of one
	 * that does not let itself be looked at: a pass takes over what the last one knew of it.
	 * NULL: gcr_scan_look() itself, which waits.
	 */
	int (*look)(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		    uint64_t *ret_start_ticks);

	/* The same at many, as gcr_looker_devices_of_many(). NULL: one by one. */
	int (*look_many)(uid_t owner, const pid_t *pids, size_t count,
			 const struct gcr_scan_wanted *wanted, int64_t budget_usec,
			 struct gcr_scan_found *ret_found, size_t *ret_done);

	/* Whose a process is: each owner has a share of a pass. NULL: all are root's. */
	uid_t (*owner_of)(pid_t pid);

	/*
	 * A pass over /proc is complete: all holders, in order of pid; whoever is missing did not
	 * hold the device when it was looked at. (A process that the driver has checkpointed holds
	 * no device file, and is missing.) One that was put off (gcr_scan_put_off()) is reported as
	 * it was known before. Calls follow one another, from the thread of the scan; no lock of
	 * the scan's is held, but calling gcr_scan_now() from here would wait for itself. The first
	 * may come before gcr_scan_create() returns, but after it has set *ret_scan. A pass that
	 * failed is not reported.
	 */
	void (*pass)(const struct gcr_scan_holder *holders, size_t count, void *data);

	void *data; /* of both */
};

/*
 * Starts a thread, which makes a first pass at once. It sleeps but for: a change of the device
 * file's holders (a pass after 50 ms, no more than one every 250 ms, and one 300 ms after the last
 * change), and once in 30 s a pass that looks only at processes which the last did not report,
 * for what cannot be watched (the same device under another node, in a container).
 */
int gcr_scan_create(const struct gcr_scan_config *config, struct gcr_scan **ret_scan);

/* Ends the thread. No other thread may be in a call. NULL is allowed. */
void gcr_scan_destroy(struct gcr_scan *scan);

/*
 * Have every process looked at now: on return a pass that began after the call has been reported.
 * Threads that call at the same time share one. -ETIMEDOUT: it has not ended in time. -errno: /proc
 * could not be read, or -ENOMEM.
 */
int gcr_scan_now(struct gcr_scan *scan, int64_t timeout_usec);

/* A pass soon, but not more often than others. Does not wait. */
void gcr_scan_wake(struct gcr_scan *scan);

/*
 * The processes that the last pass has put off, and did not look at: its owner's share of time was
 * used up, or it does not let itself be looked at. Each is looked at later, owners in turn, and
 * what has been seen then is in the passes from there on. The list is for the caller to free.
 */
int gcr_scan_unknown(struct gcr_scan *scan, pid_t **ret_pids, size_t *ret_count);
size_t gcr_scan_put_off(struct gcr_scan *scan); /* how many they are */

/*
 * For config.pass, and only there: is it certain that each of these holds no device now? Within
 * what is left of the owners' shares; one that is put off is certain only if two looks at it have
 * found none.
 */
void gcr_scan_look_again(struct gcr_scan *scan, const pid_t *pids, size_t count,
			 bool *ret_holds_none);

/*
 * Is this a GPU process by the rules above? 1 (then *@ret_holder is filled, if not NULL), 0, or
 * -ESRCH, -EACCES, ... A thread's id is none.
 */
int gcr_scan_probe(struct gcr_scan *scan, pid_t pid, struct gcr_scan_holder *ret_holder);

/*
 * The same of many processes, all within @budget_usec and a moment: *@ret_results has for each what
 * gcr_scan_probe() returns, -ETIMEDOUT of those for which the time did not suffice. -ENOMEM.
 */
int gcr_scan_probe_many(struct gcr_scan *scan, const pid_t *pids, size_t count, int64_t budget_usec,
			struct gcr_scan_holder *ret_holders, int *ret_results);

#endif
