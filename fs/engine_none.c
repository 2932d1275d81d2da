/* SPDX-License-Identifier: MIT */
/*
 * No engine: a process whose vendor's driver freezes nothing by itself, and whose memory no preload
 * library can hand over. All verbs say why, and nothing is touched.
 */
#include "fs/engine.h"

#include <errno.h>

#include "fs/process.h"

static int refuse(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	const char *reason;

	*ret_state = gcr_state_is_transition(task->from) ? GCR_STATE_FAILED : task->from;
	gcr_engine_choose(task->process, &reason);
	return gcr_error_set(error, EOPNOTSUPP,
			     "%s's driver cannot freeze it, and %s: start it with gpucr-run",
			     task->process->vendor->backend->vendor, reason);
}

const struct gcr_engine gcr_engine_none = {
	.name = "none",
	.freeze = refuse,
	.thaw = refuse,
	.recover = refuse,
};
