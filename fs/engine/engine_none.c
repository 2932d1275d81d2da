/* SPDX-License-Identifier: MIT */
/*
 * No engine: for a process whose vendor's driver has no checkpoint, and whose memory no preload
 * library can hand over. All verbs fail with the reason, and nothing is touched.
 */
#include "fs/engine/engine.h"

#include <errno.h>

#include "fs/process/library.h"
#include "fs/process/process.h"

static int explain(struct gcr_process *process, struct gcr_error *error)
{
	const char *reason;

	/* An ending process loses its library first. */
	if (gcr_process_is_going(process))
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
	if (gcr_library_is_due(process))
		return gcr_error_set(error, EOPNOTSUPP,
				     "%s's driver cannot freeze it, and its preload library has "
				     "not connected to this daemon",
				     process->vendor->backend->vendor);
	gcr_engine_choose(process, &reason);
	return gcr_error_set(error, EOPNOTSUPP,
			     "%s's driver cannot freeze it, and %s: start it with gpucr-run",
			     process->vendor->backend->vendor, reason);
}

static int refuse(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	*ret_state = gcr_state_is_transition(task->from) ? GCR_STATE_FAILED : task->from;
	return explain(task->process, error);
}

int gcr_engine_check(struct gcr_process *process, struct gcr_error *error)
{
	const char *unused;

	if (gcr_process_state(process) == GCR_STATE_FROZEN || gcr_library_is_due(process) ||
	    gcr_engine_choose(process, &unused) != &gcr_engine_none)
		return 0;
	return explain(process, error);
}

const struct gcr_engine gcr_engine_none = {
	.name = "none",
	.freeze = refuse,
	.thaw = refuse,
	.recover = refuse,
};
