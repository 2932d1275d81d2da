/* SPDX-License-Identifier: MIT */
/*
 * Reads a process's page. Only a frozen process is reported: a freeze that is under way may still
 * fail, and a waiting thread would then continue. process->lock guards wanted_usec, which a thaw
 * resets (fs/process/process_state.c).
 */
#include "fs/process/wanted.h"

#include "fs/base/event.h"
#include "fs/process/library.h"
#include "lib/clock.h"

/* Appends the event `wanted` to both event logs. Lock: process. */
static void put_event_locked(struct gcr_process *process)
{
	const char *generation = *process->generation ? process->generation : "-";

	gcr_event_log_put(process->events, "%d %s wanted", (int)process->pid, generation);
	gcr_event_log_put_of(process->daemon->events, gcr_process_event_owner(process),
			     "%d %s wanted", (int)process->pid, generation);
}

/* Would the event `wanted` be news now? Lock: process. */
static bool is_news_locked(const struct gcr_process *process)
{
	return process->state == GCR_STATE_FROZEN && !process->wanted_usec;
}

void gcr_wanted_look(struct gcr_process *process)
{
	struct gcr_page_facts facts;
	bool is_new;

	pthread_mutex_lock(&process->lock);
	is_new = is_news_locked(process);
	pthread_mutex_unlock(&process->lock);
	if (!is_new || gcr_library_facts(process, &facts) < 0 || !facts.wanting)
		return;
	pthread_mutex_lock(&process->lock);
	is_new = is_news_locked(process);
	if (is_new) {
		process->wanted_usec = gcr_clock_real_usec();
		put_event_locked(process);
	}
	pthread_mutex_unlock(&process->lock);
	if (!is_new)
		return;
	gcr_event_log_notify(process->events);
	gcr_event_log_notify(process->daemon->events);
}
