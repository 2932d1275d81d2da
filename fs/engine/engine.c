/* SPDX-License-Identifier: MIT */
/* The choice of the engine for a process. */
#include "fs/engine/engine.h"

#include <string.h>
#include <unistd.h>

#include "fs/engine/driver_session.h"
#include "fs/process/library.h"
#include "fs/process/vendor.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/*
 * How long to wait for a library that is not connected yet: it looks for a daemon every two seconds
 * (backend/preload/agent/agent.c).
 */
#define CONNECT_USEC	  (3 * GCR_USEC_PER_SEC)
#define CONNECT_LOOK_USEC (20 * GCR_USEC_PER_MSEC)

static const struct gcr_engine *const engines[] = {&gcr_engine_driver, &gcr_engine_vmm,
						   &gcr_engine_hip, &gcr_engine_none};

bool gcr_engine_has_files(const char *name)
{
	return !strcmp(name, gcr_engine_vmm.name) || !strcmp(name, gcr_engine_hip.name);
}

/* The engine for a process that has no library which can hand its memory over. */
static const struct gcr_engine *fallback(const struct gcr_process *process)
{
	return process->vendor->backend->has_control ? &gcr_engine_driver : &gcr_engine_none;
}

/* The preferred engine for a process that has such a library. */
static const struct gcr_engine *best(const struct gcr_process *process)
{
	return process->vendor->backend->has_control ? &gcr_engine_vmm : &gcr_engine_hip;
}

const struct gcr_engine *gcr_engine_of(struct gcr_process *process)
{
	char name[sizeof(process->engine)];

	pthread_mutex_lock(&process->lock);
	memcpy(name, process->engine, sizeof(name));
	pthread_mutex_unlock(&process->lock);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(engines); i++)
		if (!strcmp(engines[i]->name, name))
			return engines[i];
	return fallback(process);
}

/* The engine for a running process, from the facts of its preload library. */
static const struct gcr_engine *choose(struct gcr_process *process,
				       const struct gcr_page_facts *facts, const char **ret_reason)
{
	bool is_registered;

	if (!facts) {
		pthread_mutex_lock(&process->lock);
		is_registered = process->claims[GCR_CLAIM_LIBRARY] > 0;
		pthread_mutex_unlock(&process->lock);
		*ret_reason = is_registered ? "its preload library is of another version"
					    : "it runs without the preload library (gpucr-run)";
		return fallback(process);
	}
	if (!gcr_vendor_has_library(process->vendor, facts->flags)) {
		*ret_reason = "its preload library is that for another vendor's GPUs";
		return fallback(process);
	}
	if (!(facts->flags & GCR_PAGE_VMM)) {
		*ret_reason = "its memory is not made so that it can be handed over (--no-vmm)";
		return fallback(process);
	}
	if (*facts->incomplete) {
		*ret_reason = "the gate is incomplete: something in it calls the driver past it";
		return fallback(process);
	}
	*ret_reason = "-";
	return best(process);
}

const struct gcr_engine *gcr_engine_choose_by(struct gcr_process *process,
					      const struct gcr_page_facts *facts,
					      const char **ret_reason)
{
	enum gcr_state state = gcr_process_state(process);

	if (state == GCR_STATE_RUNNING || state == GCR_STATE_FREEZING || state == GCR_STATE_DUMPING)
		return choose(process, facts, ret_reason);
	*ret_reason = "it was frozen by it";
	return gcr_engine_of(process);
}

const struct gcr_engine *gcr_engine_choose(struct gcr_process *process, const char **ret_reason)
{
	struct gcr_page_facts facts;
	int r = gcr_library_last_facts(process, &facts);

	return gcr_engine_choose_by(process, r < 0 ? NULL : &facts, ret_reason);
}

int gcr_engine_freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	int64_t deadline_usec = gcr_clock_usec() + CONNECT_USEC;
	const char *unused;

	while (gcr_library_is_due(task->process) && !gcr_task_stopped(task) &&
	       gcr_clock_usec() < deadline_usec)
		usleep(CONNECT_LOOK_USEC);
	/*
	 * The wait was cut short: another engine could wrongly refuse a process whose library may
	 * still connect.
	 */
	if (gcr_task_stopped(task)) {
		*ret_state = task->from;
		return gcr_driver_session_stopped(error);
	}
	return gcr_engine_choose(task->process, &unused)->freeze(task, ret_state, error);
}
