/* SPDX-License-Identifier: MIT */
/*
 * One pass over the machine's processes, for fs/process/scan.c. Each owner has a share of a pass's
 * time, so that one owner's processes do not delay the looks at others'. Owners whose looks took
 * the least time in the last pass come first. When a share is used up, the rest of that owner's
 * processes are put off (fs/process/scan_late.h) and keep their last known state.
 */
#ifndef GCR_FS_PROCESS_SCAN_PASS_H
#define GCR_FS_PROCESS_SCAN_PASS_H

#include "fs/process/scan.h"

struct gcr_pass;

/*
 * Creates what passes need, and the thread of late looks. The caller owns @config and @wanted,
 * which outlive *ret_pass. @changed: a late look has found a difference, and another pass is due;
 * called on any thread, with no lock held. -ENOMEM, -EAGAIN.
 */
int gcr_pass_create(const struct gcr_scan_config *config, const struct gcr_scan_wanted *wanted,
		    void (*changed)(void *data), void *data, struct gcr_pass **ret_pass);
void gcr_pass_destroy(struct gcr_pass *pass); /* NULL is allowed */

/*
 * Makes and reports a pass over all processes. With @known the processes that the last pass has
 * reported are reported again without a look. One thread at a time. -errno: /proc could not be
 * read, or -ENOMEM; then nothing is reported.
 */
int gcr_pass_run(struct gcr_pass *pass, bool known);

/* On the same thread, while a pass is being reported: as gcr_scan_look_again(). */
void gcr_pass_look_again(struct gcr_pass *pass, const pid_t *pids, size_t count,
			 bool *ret_holds_none);

/* From any thread: as gcr_scan_probe_many(), gcr_scan_unknown(), gcr_scan_put_off(). */
int gcr_pass_probe_many(struct gcr_pass *pass, const pid_t *pids, size_t count, int64_t budget_usec,
			struct gcr_scan_holder *ret_holders, int *ret_results);
int gcr_pass_unknown(struct gcr_pass *pass, pid_t **ret_pids, size_t *ret_count);
size_t gcr_pass_put_off(struct gcr_pass *pass);

/*
 * Does the process with the directory @process_fd (/proc/PID) hold and map a device? As
 * gcr_scan_probe().
 */
int gcr_pass_holds_device(struct gcr_pass *pass, int process_fd, pid_t pid,
			  struct gcr_scan_holder *ret_holder);

#endif
