/* SPDX-License-Identifier: MIT */
/* References to processes, and finding and listing those of the table. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "fs/base/event.h"
#include "fs/base/quota.h"
#include "fs/process/history.h"
#include "fs/process/process_private.h"
#include "fs/store/store.h"
#include "lib/clock.h"
#include "lib/proc_lineage.h"
#include "lib/procfs.h"

#define MEMBERS_USEC (500 * GCR_USEC_PER_MSEC) /* for one listing of members: FUSE threads wait */

bool gcr_process_pidfd_tells(const struct gcr_process *process)
{
	struct pollfd pidfd = {.fd = process->pidfd, .events = POLLIN};

	return poll(&pidfd, 1, 0) == 1;
}

struct gcr_process *gcr_process_ref(struct gcr_process *process)
{
	atomic_fetch_add(&process->references, 1);
	return process;
}

void gcr_process_unref(struct gcr_process *process)
{
	if (!process || atomic_fetch_sub(&process->references, 1) != 1)
		return;
	if (process->pidfd >= 0)
		close(process->pidfd);
	if (process->parked_page_fd >= 0)
		close(process->parked_page_fd);
	gcr_event_log_unref(process->events);
	gcr_snapshot_unref(process->snapshot);
	gcr_history_free(process->history);
	pthread_mutex_destroy(&process->lock);
	free(process);
}

uid_t gcr_process_event_owner(const struct gcr_process *process)
{
	return gcr_quota_owner(process->daemon->quota, process->counted);
}

int gcr_process_find_owner(struct gcr_process *process, uid_t *ret_uid, gid_t *ret_gid)
{
	int result = gcr_proc_owner(process->pid, ret_uid, ret_gid);

	/* Otherwise the number may be another process's by now. */
	if (!result && !gcr_process_pidfd_tells(process))
		atomic_store(&process->last_owner, *ret_uid);
	return result;
}

bool gcr_process_is_still_of(struct gcr_process *process, uid_t uid)
{
	uid_t owner;
	gid_t unused;

	if (gcr_process_find_owner(process, &owner, &unused) < 0 ||
	    gcr_process_pidfd_tells(process))
		owner = atomic_load(&process->last_owner);
	return owner == uid;
}

struct gcr_process *gcr_processes_find_locked(struct gcr_processes *processes, pid_t pid)
{
	struct gcr_process *process = processes->by_pid[(uint32_t)pid % GCR_PROCESS_BUCKETS];

	while (process && process->pid != pid)
		process = process->next_pid;
	return process;
}

int gcr_processes_find_serial(struct gcr_processes *processes, uint32_t serial,
			      struct gcr_process **ret_process)
{
	struct gcr_process *process;

	pthread_mutex_lock(&processes->lock);
	process = processes->by_serial[serial % GCR_PROCESS_BUCKETS];
	while (process && process->serial != serial)
		process = process->next_serial;
	if (process)
		gcr_process_ref(process);
	pthread_mutex_unlock(&processes->lock);
	if (!process)
		return -ENOENT;
	*ret_process = process;
	return 0;
}

static int compare_pids(const void *left, const void *right)
{
	const struct gcr_process *const *a = left;
	const struct gcr_process *const *b = right;

	return ((*a)->pid > (*b)->pid) - ((*a)->pid < (*b)->pid);
}

int gcr_processes_list(struct gcr_processes *processes, struct gcr_process ***ret_list,
		       size_t *ret_count)
{
	struct gcr_process **list;
	size_t count = 0;

	pthread_mutex_lock(&processes->lock);
	list = calloc(processes->count + 1, sizeof(*list));
	for (size_t i = 0; list && i < GCR_PROCESS_BUCKETS; i++)
		for (struct gcr_process *process = processes->by_pid[i]; process;
		     process = process->next_pid)
			if (!process->launcher)
				list[count++] = gcr_process_ref(process);
	pthread_mutex_unlock(&processes->lock);
	if (!list)
		return -ENOMEM;
	qsort(list, count, sizeof(*list), compare_pids);
	*ret_list = list;
	*ret_count = count;
	return 0;
}

void gcr_processes_list_free(struct gcr_process **list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		gcr_process_unref(list[i]);
	free(list);
}

/* Moves the members to the front of the list, in their order. Returns their number, or -errno. */
static ssize_t move_members(const struct gcr_process *process, struct gcr_process **list,
			    size_t count)
{
	_cleanup_(gcr_proc_lineage_finish) struct gcr_proc_lineage lineage = {
		.until_usec = gcr_clock_usec() + MEMBERS_USEC,
	};
	size_t kept = 0;

	for (size_t i = 0; i < count; i++) {
		struct gcr_process *one = list[i];
		int result = gcr_proc_is_below(&lineage, one->pid, process->pid);

		if (result < 0)
			return result;
		if (!result)
			continue;
		list[i] = list[kept];
		list[kept++] = one;
	}
	return (ssize_t)kept;
}

int gcr_process_members(struct gcr_process *process, struct gcr_process ***ret_list,
			size_t *ret_count)
{
	struct gcr_process **list = NULL;
	size_t count = 0;
	ssize_t kept;
	int result;

	result = gcr_processes_list(process->daemon->processes, &list, &count);
	if (result < 0)
		return result;
	kept = move_members(process, list, count);
	if (kept < 0) {
		gcr_processes_list_free(list, count);
		return (int)kept;
	}
	for (size_t i = (size_t)kept; i < count; i++)
		gcr_process_unref(list[i]);
	*ret_list = list;
	*ret_count = (size_t)kept;
	return 0;
}

int gcr_process_has_members(struct gcr_process *process)
{
	_cleanup_(gcr_proc_lineage_finish) struct gcr_proc_lineage lineage = {
		.until_usec = gcr_clock_usec() + MEMBERS_USEC,
	};
	struct gcr_process **list = NULL;
	size_t count = 0;
	int result;

	result = gcr_processes_list(process->daemon->processes, &list, &count);
	for (size_t i = 0; i < count && !result; i++)
		result = gcr_proc_is_below(&lineage, list[i]->pid, process->pid);
	gcr_processes_list_free(list, count);
	return result;
}

bool gcr_processes_any_frozen(struct gcr_processes *processes, const struct gcr_vendor *vendor)
{
	struct gcr_process **list = NULL;
	size_t count = 0;
	bool any = false;

	if (gcr_processes_list(processes, &list, &count) < 0)
		return false;
	for (size_t i = 0; i < count && !any; i++) {
		enum gcr_state state;

		if (vendor && list[i]->vendor != vendor)
			continue;
		pthread_mutex_lock(&list[i]->lock);
		state = list[i]->state;
		pthread_mutex_unlock(&list[i]->lock);
		any = state == GCR_STATE_FROZEN || state == GCR_STATE_FREEZING ||
		      state == GCR_STATE_DUMPING;
	}
	gcr_processes_list_free(list, count);
	return any;
}
