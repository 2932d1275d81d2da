/* SPDX-License-Identifier: MIT */
/*
 * Two things change when CRIU restores a process: the inode numbers of anonymous files, which
 * identify the library's descriptors, and the start time of the process, which reveals a restore.
 * Time is measured by counting naps, not by a clock: CRIU may stop the program for long, and a
 * restored one may find another clock.
 */
#include "backend/preload/agent/park.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/preload/agent/connection.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/ipc/ipc.h"
#include "backend/preload/managed/managed.h"
#include "backend/preload/base/wakeup.h"
#include "lib/procfs.h"

#define NAP_MSEC 50

/*
 * Start time of this process when parking began. It is read before the socket is closed: from then
 * on CRIU may dump the process at any moment.
 */
static uint64_t start_ticks;

/* The start time of this process, in clock ticks; 0: not known, for want of a descriptor, say. */
static uint64_t find_start_ticks(void)
{
	struct gcr_proc_stat stat;

	return gcr_proc_stat(getpid(), &stat) == 0 ? stat.start_ticks : 0;
}

int gcr_park_begin(struct gcr_error *error)
{
	struct gcr_page *page = gcr_gate_page();

	if (gcr_managed_is_held())
		return gcr_error_set(error, EOPNOTSUPP,
				     "it uses managed memory, and CRIU cannot dump the userfaultfd "
				     "that holds up who touches it");
	if (gcr_ipc_is_listening())
		return gcr_error_set(error, EOPNOTSUPP,
				     "it has given out CUDA IPC handles, and the socket by which "
				     "others get them cannot be restored elsewhere");
	start_ticks = find_start_ticks();
	if (!start_ticks)
		return gcr_error_set(error, EAGAIN,
				     "its start time cannot be read, for want of a descriptor");
	if (page)
		__atomic_store_n(&page->is_parked, 1, __ATOMIC_SEQ_CST);
	return 0;
}

/* Has CRIU restored this process since parking began? */
static bool is_restored(void)
{
	uint64_t now = find_start_ticks();

	return now && now != start_ticks;
}

void gcr_park_wait(uint32_t limit_ms)
{
	static const struct timespec nap = {.tv_nsec = NAP_MSEC * 1000000};
	struct gcr_page *page = gcr_gate_page();
	bool was_restored = false;

	for (uint32_t waited_ms = 0; waited_ms < limit_ms; waited_ms += NAP_MSEC) {
		was_restored |= is_restored();
		if (was_restored)
			break;
		if (page && !__atomic_load_n(&page->is_parked, __ATOMIC_SEQ_CST))
			break;
		nanosleep(&nap, NULL);
	}
	/*
	 * Check again: CRIU may have stopped the process during the last check, and a daemon may
	 * have ended the parking since.
	 */
	if (was_restored || is_restored()) {
		gcr_gate_restored();
		gcr_wakeup_restored();
		gcr_connection_prepare();
	}
	if (page)
		__atomic_store_n(&page->is_parked, 0, __ATOMIC_SEQ_CST);
}
