/* SPDX-License-Identifier: MIT */
/* Pidfds of all processes of a restored tree, by which exactly these are ended. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/image/restore_private.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_tree.h"
#include "lib/procfs.h"

int gcr_restore_hold_all(struct gcr_restore *restore, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_proc_member *tree = NULL;
	size_t count;
	int result = gcr_proc_tree(restore->root, &tree, &count, error);

	if (result < 0)
		return result;
	/* The first process of the list is the root. */
	if (tree[0].start_ticks != restore->root_ticks)
		return gcr_error_set(error, EIO, "process %d, which CRIU has restored, has ended",
				     (int)restore->root);
	restore->held = calloc(count, sizeof(*restore->held));
	if (!restore->held)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		struct gcr_restore_held *held = &restore->held[restore->held_count++];

		*held = (struct gcr_restore_held){tree[i].pid, tree[i].start_ticks, -1};
		result = gcr_proc_open(held->pid, held->start_ticks, &held->pidfd);
		if (result < 0 && result != -ESRCH)
			return gcr_error_set(error, -result, "process %d: %s", (int)tree[i].pid,
					     strerror(-result));
	}
	return 0;
}

void gcr_restore_kill_held(const struct gcr_restore *restore)
{
	for (size_t i = 0; i < restore->held_count; i++)
		if (restore->held[i].pidfd >= 0)
			syscall(SYS_pidfd_send_signal, restore->held[i].pidfd, SIGKILL, NULL, 0);
}

int gcr_restore_end_held(const struct gcr_restore *restore, int64_t timeout_usec)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;
	int result = 0;

	gcr_restore_kill_held(restore);
	for (size_t i = 0; i < restore->held_count; i++) {
		struct pollfd end = {.fd = restore->held[i].pidfd, .events = POLLIN};
		int64_t left_usec = until_usec - gcr_clock_usec();

		if (end.fd >= 0 &&
		    poll(&end, 1, left_usec > 0 ? (int)(left_usec / GCR_USEC_PER_MSEC) : 0) != 1)
			result = -ETIMEDOUT;
	}
	return result;
}
