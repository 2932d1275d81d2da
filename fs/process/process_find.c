/* SPDX-License-Identifier: MIT */
/* Finds a process by pid: in the table, or by looking at the process and those below it. */
#include <errno.h>
#include <pthread.h>

#include "fs/process/process_private.h"
#include "fs/process/scan.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/proc_source.h"
#include "lib/proc_tree.h"

/* Larger trees are left to the scan: any user may trigger such a search. */
#define LOOKED_MAX 256
#define WALKS_MAX  3
#define TREE_USEC  (500 * GCR_USEC_PER_MSEC) /* for the list of a whole tree */
#define BELOW_USEC (500 * GCR_USEC_PER_MSEC) /* for the looks at its processes */

/* The table's entry, unless its process has ended (the entry is removed then). */
static struct gcr_process *find_alive(struct gcr_processes *processes, pid_t pid)
{
	struct gcr_process *process;

	pthread_mutex_lock(&processes->lock);
	process = gcr_processes_find_locked(processes, pid);
	if (process)
		gcr_process_ref(process);
	pthread_mutex_unlock(&processes->lock);
	if (process && gcr_process_pidfd_tells(process)) {
		gcr_process_remove(processes, process, "ended", false);
		gcr_process_unref(process);
		process = NULL;
	}
	return process;
}

/*
 * Lists the GPU processes below @pid that the scan has not found yet; the next pass would find them
 * a little later. False: some could not be looked at in time.
 */
static bool look_below(struct gcr_processes *processes, pid_t pid)
{
	_cleanup_free_ struct gcr_proc_member *members = NULL;
	struct gcr_scan_holder holders[LOOKED_MAX];
	const struct gcr_proc_tree_limits limits = {
		.members_max = LOOKED_MAX,
		.walks_max = WALKS_MAX,
		.until_usec = gcr_clock_usec() + TREE_USEC,
		.takes_changing = true,
	};
	struct gcr_daemon *daemon = processes->daemon;
	int results[LOOKED_MAX];
	pid_t pids[LOOKED_MAX];
	struct gcr_error unused;
	bool is_complete = true;
	size_t count = 0;
	int result;

	result = gcr_proc_tree_within(pid, &limits, &members, &count, &unused);
	if (result < 0)
		return result != -ETIMEDOUT && result != -ENOMEM;
	for (size_t i = 0; i < count; i++)
		pids[i] = members[i].pid;
	if (gcr_scan_probe_many(daemon->scan, pids, count, BELOW_USEC, holders, results) < 0)
		return false;
	for (size_t i = 1; i < count; i++) {
		_cleanup_(gcr_process_unref_cleanup) struct gcr_process *process = NULL;

		is_complete &= !gcr_proc_is_silent(results[i]);
		if (results[i] == 1 && gcr_processes_may_act_on(daemon, members[i].pid))
			gcr_processes_insert(processes, members[i].pid, members[i].start_ticks,
					     gcr_vendor_of_devices(daemon, holders[i].devices),
					     &process);
	}
	return is_complete;
}

/*
 * Finds or makes the entry of a launcher, which is one only while there are GPU processes below it.
 * -ENOENT: there are none; -ETIMEDOUT: some could not be looked at in time; -ENOMEM, ...
 */
static int find_launcher(struct gcr_processes *processes, pid_t pid,
			 struct gcr_process **ret_process)
{
	_cleanup_(gcr_process_unref_cleanup) struct gcr_process *process = NULL;
	bool is_complete = true;
	int result;

	process = find_alive(processes, pid);
	if (process && !process->launcher) {
		/* The process has begun to use a GPU since the first look. */
		*ret_process = TAKE_PTR(process);
		return 0;
	}
	if (!process) {
		result = gcr_process_create(processes, pid, 0, NULL, &process);
		if (result < 0)
			return -ENOENT;
		is_complete = look_below(processes, pid);
	}
	result = gcr_process_has_members(process);
	if (result < 0)
		return result;
	if (!result) {
		gcr_process_remove(processes, process, "alone", false);
		return is_complete ? -ENOENT : -ETIMEDOUT;
	}
	return gcr_processes_insert(processes, pid, process->start_ticks, NULL, ret_process);
}

int gcr_processes_find_listed(struct gcr_processes *processes, pid_t pid,
			      struct gcr_process **ret_process)
{
	struct gcr_process *process = find_alive(processes, pid);

	if (process && !process->launcher) {
		*ret_process = process;
		return 0;
	}
	gcr_process_unref(process);
	return -ENOENT;
}

int gcr_processes_find_exactly(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
			       struct gcr_process **ret_process)
{
	struct gcr_process *process;
	GCR_LOCK_SCOPE(&processes->lock);

	process = gcr_processes_find_locked(processes, pid);
	if (!process || process->start_ticks != start_ticks || process->launcher)
		return -ENOENT;
	*ret_process = gcr_process_ref(process);
	return 0;
}

int gcr_processes_find(struct gcr_processes *processes, pid_t pid, struct gcr_process **ret_process)
{
	struct gcr_daemon *daemon = processes->daemon;
	struct gcr_scan_holder holder;
	struct gcr_proc_status status;
	int result;

	if (!gcr_processes_find_listed(processes, pid, ret_process))
		return 0;
	if (gcr_proc_status(pid, &status) < 0 || status.thread_group != pid ||
	    !gcr_processes_may_act_on(daemon, pid))
		return -ENOENT;
	result = gcr_scan_probe(daemon->scan, pid, &holder);
	/* The process exists, but whether it uses a GPU is not known. */
	if (gcr_proc_is_silent(result))
		return -ETIMEDOUT;
	if (result == 1)
		result = gcr_processes_insert(processes, pid, 0,
					      gcr_vendor_of_devices(daemon, holder.devices),
					      ret_process);
	else
		result = find_launcher(processes, pid, ret_process);
	return result == -ESRCH ? -ENOENT : result;
}
