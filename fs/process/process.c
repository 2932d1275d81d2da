/* SPDX-License-Identifier: MIT */
/*
 * The life of a process's entry in the table. table->lock guards the two hash chains and
 * `in_table`; process->lock guards the mutable state of one process. Pollers of the events are
 * woken with neither lock held.
 */
#include "fs/process/process.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/credentials.h"
#include "fs/base/event.h"
#include "fs/base/log.h"
#include "fs/base/loop.h"
#include "fs/base/quota.h"
#include "fs/process/gpus.h"
#include "fs/process/process_private.h"
#include "fs/process/scan.h"
#include "fs/process/vendor.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/proc_source.h"

/* Adds the process to the table, which takes a reference. Lock: table. */
static void link_locked(struct gcr_processes *processes, struct gcr_process *process)
{
	struct gcr_process **by_pid =
		&processes->by_pid[(uint32_t)process->pid % GCR_PROCESS_BUCKETS];
	struct gcr_process **by_serial =
		&processes->by_serial[process->serial % GCR_PROCESS_BUCKETS];

	process->next_pid = *by_pid;
	*by_pid = process;
	process->next_serial = *by_serial;
	*by_serial = process;
	process->in_table = true;
	processes->count++;
	gcr_process_ref(process);
}

/* Takes the process out of the table; the caller takes over the table's reference. Lock: table. */
static void unlink_locked(struct gcr_processes *processes, struct gcr_process *process)
{
	struct gcr_process **link;

	for (link = &processes->by_pid[(uint32_t)process->pid % GCR_PROCESS_BUCKETS];
	     *link != process; link = &(*link)->next_pid)
		;
	*link = process->next_pid;
	for (link = &processes->by_serial[process->serial % GCR_PROCESS_BUCKETS]; *link != process;
	     link = &(*link)->next_serial)
		;
	*link = process->next_serial;
	process->in_table = false;
	processes->count--;
}

/*
 * May the process be removed as one that no longer uses the GPU? Not if a verb has taken the GPU
 * from it, nor if it is claimed. Lock: process.
 */
static bool is_idle_locked(const struct gcr_process *process)
{
	for (size_t i = 0; i < GCR_CLAIMS; i++)
		if (process->claims[i])
			return false;
	return process->state == GCR_STATE_RUNNING && !process->task;
}

void gcr_processes_listen(struct gcr_processes *processes,
			  const struct gcr_process_listener *listener)
{
	GCR_LOCK_SCOPE(&processes->lock);
	assert(processes->listeners_count < GCR_PROCESS_LISTENERS_MAX);
	processes->listeners[processes->listeners_count++] = listener;
}

/* The number of listeners. No listener is added once there are processes. */
static size_t count_listeners(struct gcr_processes *processes)
{
	GCR_LOCK_SCOPE(&processes->lock);
	return processes->listeners_count;
}

static void tell_ended(struct gcr_processes *processes, struct gcr_process *process)
{
	size_t count = count_listeners(processes);

	for (size_t i = 0; i < count; i++)
		if (processes->listeners[i]->ended)
			processes->listeners[i]->ended(process);
}

void gcr_process_tell_registered(struct gcr_process *process)
{
	struct gcr_processes *processes = process->daemon->processes;
	size_t count = count_listeners(processes);

	for (size_t i = 0; i < count; i++)
		if (processes->listeners[i]->registered)
			processes->listeners[i]->registered(process);
}

void gcr_process_drop_kept(struct gcr_process *process)
{
	struct gcr_store *store = process->daemon->store;

	if (!store)
		return;
	gcr_store_pool_drop(store, process->pid, process->start_ticks);
	gcr_store_drop_kept(store, process->pid, process->start_ticks);
}

void gcr_process_remove(struct gcr_processes *processes, struct gcr_process *process,
			const char *what, bool only_idle)
{
	struct gcr_daemon *daemon = processes->daemon;
	struct gcr_snapshot *snapshot = NULL;
	bool removed;

	pthread_mutex_lock(&processes->lock);
	pthread_mutex_lock(&process->lock);
	removed = process->in_table && !(only_idle && !is_idle_locked(process));
	if (removed) {
		unlink_locked(processes, process);
		process->state = GCR_STATE_GONE;
		process->state_since_usec = gcr_clock_real_usec();
		process->held_bytes = 0;
		snapshot = TAKE_PTR(process->snapshot);
	}
	pthread_mutex_unlock(&process->lock);
	pthread_mutex_unlock(&processes->lock);
	if (!removed)
		return;

	gcr_process_drop_kept(process);
	/*
	 * Only the bytes of an ended process are discarded. A living process that is removed is not
	 * frozen and needs none; drop our reference only, since the snapshot may have other
	 * holders.
	 */
	if (gcr_process_pidfd_tells(process)) {
		gcr_snapshot_discard(snapshot);
		if (daemon->store)
			gcr_store_drop_left(daemon->store, process->pid, process->start_ticks);
		gcr_record_remove(daemon->runtime_fd, process->pid, process->start_ticks);
	} else {
		gcr_snapshot_unref(snapshot);
	}
	gcr_loop_remove(daemon->loop, process->pidfd);
	if (!process->launcher) {
		gcr_gpus_expire(daemon->gpus);
		gcr_event_log_append(process->events, "%d - gone %s", (int)process->pid, what);
		gcr_event_log_append_of(daemon->events, gcr_process_event_owner(process),
					"%d - gone %s", (int)process->pid, what);
	}
	tell_ended(processes, process);
	gcr_vendor_keep_spares(daemon);
	gcr_process_unref(process);
}

/* Handler of the loop: the pidfd of a process is readable. */
static void process_ended(void *context, uint32_t serial)
{
	_cleanup_(gcr_process_unref_cleanup) struct gcr_process *process = NULL;

	if (!gcr_processes_find_serial(context, serial, &process))
		gcr_process_remove(context, process, "ended", false);
}

int gcr_processes_create(struct gcr_daemon *daemon, struct gcr_processes **ret_processes)
{
	struct gcr_processes *processes = calloc(1, sizeof(*processes));

	if (!processes)
		return -ENOMEM;
	processes->daemon = daemon;
	processes->next_serial = 1;
	pthread_mutex_init(&processes->lock, NULL);
	gcr_loop_handle(daemon->loop, GCR_LOOP_PROCESS, process_ended, processes);
	*ret_processes = processes;
	return 0;
}

void gcr_processes_destroy(struct gcr_processes *processes)
{
	if (!processes)
		return;
	for (size_t i = 0; i < GCR_PROCESS_BUCKETS; i++) {
		while (processes->by_pid[i]) {
			struct gcr_process *process = processes->by_pid[i];

			unlink_locked(processes, process);
			gcr_process_unref(process);
		}
	}
	pthread_mutex_destroy(&processes->lock);
	free(processes);
}

void gcr_process_forget_program_locked(struct gcr_process *process)
{
	process->generation[0] = '\0';
	process->was_refused = false;
	process->was_handed_over = false;
	process->given_bytes = 0;
}

bool gcr_process_has_ended(struct gcr_process *process)
{
	if (gcr_process_state(process) == GCR_STATE_GONE)
		return true;
	if (!gcr_process_pidfd_tells(process))
		return false;
	gcr_process_remove(process->daemon->processes, process, "ended", false);
	return true;
}

bool gcr_process_is_going(struct gcr_process *process)
{
	return gcr_process_has_ended(process) || gcr_proc_has_ended(process->pid);
}

int gcr_process_create(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
		       struct gcr_vendor *vendor, struct gcr_process **ret_process)
{
	_cleanup_(gcr_process_unref_cleanup) struct gcr_process *process = NULL;
	struct gcr_proc_status status;
	struct gcr_proc_stat stat;
	uid_t owner = 0;
	gid_t unused;
	int result;

	result = gcr_proc_stat(pid, &stat);
	if (result < 0)
		return result;
	if (start_ticks && stat.start_ticks != start_ticks)
		return -ESRCH;
	process = calloc(1, sizeof(*process));
	if (!process)
		return -ENOMEM;
	atomic_init(&process->references, 1);
	process->pidfd = -1;
	process->parked_page_fd = -1;
	pthread_mutex_init(&process->lock, NULL);
	process->daemon = processes->daemon;
	process->pid = pid;
	process->start_ticks = stat.start_ticks;
	process->launcher = !vendor;
	atomic_init(&process->vendor, vendor ? vendor : &processes->daemon->vendors[0]);
	atomic_init(&process->has_other_vendor, false);
	process->state = GCR_STATE_RUNNING;
	process->state_since_usec = gcr_clock_real_usec();
	memcpy(process->comm, stat.comm, sizeof(process->comm));
	gcr_proc_owner(pid, &owner, &unused);
	atomic_init(&process->last_owner, owner);
	result = gcr_proc_status(pid, &status);
	if (result < 0)
		return result;
	process->counted = gcr_credentials_seem_counted(pid, status.real_uid);
	result = gcr_event_log_create_of(gcr_process_event_owner(process), &process->events);
	if (result < 0)
		return result;
	result = gcr_proc_open(pid, stat.start_ticks, &process->pidfd);
	if (result < 0)
		return result;
	/* A zombie: the scan saw the process while it was still alive. */
	if (gcr_process_pidfd_tells(process))
		return -ESRCH;
	*ret_process = TAKE_PTR(process);
	return 0;
}

/*
 * Is @known (NULL: no entry) the entry of the process that began at @start_ticks? @launcher: any
 * entry of the process will do; else the entry must not be a launcher's.
 */
static bool is_same(const struct gcr_process *known, uint64_t start_ticks, bool launcher)
{
	return known && known->start_ticks == start_ticks && (launcher || !known->launcher);
}

/* The table's entry of that process, with a reference; NULL: none, or the process has ended. */
static struct gcr_process *find_same(struct gcr_processes *processes, pid_t pid,
				     uint64_t start_ticks, bool launcher)
{
	_cleanup_(gcr_process_unref_cleanup) struct gcr_process *process = NULL;
	struct gcr_process *known;

	pthread_mutex_lock(&processes->lock);
	known = gcr_processes_find_locked(processes, pid);
	if (is_same(known, start_ticks, launcher))
		process = gcr_process_ref(known);
	pthread_mutex_unlock(&processes->lock);
	return process && !gcr_process_pidfd_tells(process) ? TAKE_PTR(process) : NULL;
}

int gcr_processes_insert(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
			 struct gcr_vendor *vendor, struct gcr_process **ret_process)
{
	_cleanup_(gcr_process_unref_cleanup) struct gcr_process *process = NULL;
	_cleanup_(gcr_process_unref_cleanup) struct gcr_process *stale = NULL;
	struct gcr_loop *loop = processes->daemon->loop;
	bool launcher = !vendor;
	bool is_watched = false;
	struct gcr_process *known;
	int result;

	/* The loop's thread asks for each registration: a known process is not looked at again. */
	*ret_process = start_ticks ? find_same(processes, pid, start_ticks, launcher) : NULL;
	if (*ret_process)
		return 0;
	result = gcr_process_create(processes, pid, start_ticks, vendor, &process);
	if (result < 0)
		return result;
	for (;;) {
		pthread_mutex_lock(&processes->lock);
		known = gcr_processes_find_locked(processes, pid);
		/*
		 * Another thread may have inserted the process, a launcher possibly as a GPU
		 * process.
		 */
		if (is_same(known, process->start_ticks, launcher)) {
			*ret_process = gcr_process_ref(known);
			pthread_mutex_unlock(&processes->lock);
			if (is_watched)
				gcr_loop_remove(loop, process->pidfd);
			return 0;
		}
		if (!known && is_watched)
			break;
		if (!known) {
			process->serial = processes->next_serial++;
			pthread_mutex_unlock(&processes->lock);
			/*
			 * The loop is level-triggered: an end is reported until the entry is in the
			 * table.
			 */
			result = gcr_loop_add(loop, process->pidfd, GCR_LOOP_PROCESS,
					      process->serial);
			if (result < 0)
				return result;
			is_watched = true;
			continue;
		}
		/*
		 * The entry belongs to the pid's former process, whose end has not been reported
		 * yet, or to a launcher that has begun to use a GPU.
		 */
		stale = gcr_process_ref(known);
		pthread_mutex_unlock(&processes->lock);
		gcr_process_remove(processes, stale, "ended", false);
		gcr_process_unref(TAKE_PTR(stale));
	}
	if (!launcher) {
		gcr_event_log_put(process->events, "%d - found %s", (int)pid, process->comm);
		gcr_event_log_put_of(processes->daemon->events, gcr_process_event_owner(process),
				     "%d - found %s", (int)pid, process->comm);
	}
	link_locked(processes, process);
	pthread_mutex_unlock(&processes->lock);
	if (!launcher) {
		gcr_gpus_expire(processes->daemon->gpus);
		gcr_process_tell(process);
	}
	*ret_process = TAKE_PTR(process);
	return 0;
}

bool gcr_processes_may_act_on(struct gcr_daemon *daemon, pid_t pid)
{
	uid_t uid;
	gid_t gid;

	if (gcr_vendor_owns_helper(daemon, pid))
		return false;
	return daemon->only_uid == (uid_t)-1 ||
	       (!gcr_proc_owner(pid, &uid, &gid) && uid == daemon->only_uid);
}

struct gcr_vendor *gcr_vendor_of_devices(struct gcr_daemon *daemon, unsigned int devices)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (devices & 1u << i)
			return &daemon->vendors[i];
	return NULL;
}

/* The devices that the process holds now, as a mask; 0 if it cannot be looked at. */
static unsigned int devices_of(struct gcr_daemon *daemon, pid_t pid)
{
	struct gcr_scan_holder holder;

	return daemon->scan && gcr_scan_probe(daemon->scan, pid, &holder) == 1 ? holder.devices : 0;
}

/*
 * The entry of @pid if it is listed with another vendor than @vendor, else NULL. The caller owns
 * the reference.
 */
static struct gcr_process *find_of_other_vendor(struct gcr_processes *processes, pid_t pid,
						const struct gcr_vendor *vendor)
{
	struct gcr_process *known;

	pthread_mutex_lock(&processes->lock);
	known = gcr_processes_find_locked(processes, pid);
	if (known && !known->launcher && known->vendor != vendor)
		gcr_process_ref(known);
	else
		known = NULL;
	pthread_mutex_unlock(&processes->lock);
	return known;
}

/*
 * Removes an entry with another vendor whose GPUs the process has released. @devices: the devices
 * that it holds now.
 */
static void forget_other_vendor(struct gcr_processes *processes, pid_t pid,
				const struct gcr_vendor *vendor, unsigned int devices)
{
	_cleanup_(gcr_process_unref_cleanup) struct gcr_process *known =
		find_of_other_vendor(processes, pid, vendor);

	if (known && !(devices & 1u << known->vendor->index))
		gcr_process_remove(processes, known, "released the GPU", true);
}

/*
 * Is the entry's vendor certain? Yes, after two more passes: at least one of them has begun after
 * the first call, and has removed entries that hold no device of their vendor. A connected library
 * of the vendor proves the vendor, too. If unsure, wakes the scan.
 */
static bool is_vendor_sure(struct gcr_processes *processes, struct gcr_process *process)
{
	bool is_sure;

	pthread_mutex_lock(&processes->lock);
	if (!process->vendor_sure)
		process->vendor_sure = processes->passes + 2;
	is_sure = processes->passes >= process->vendor_sure;
	pthread_mutex_unlock(&processes->lock);
	pthread_mutex_lock(&process->lock);
	is_sure |= process->claims[GCR_CLAIM_LIBRARY] > 0;
	pthread_mutex_unlock(&process->lock);
	if (!is_sure && processes->daemon->scan)
		gcr_scan_wake(processes->daemon->scan);
	return is_sure || !processes->daemon->scan;
}

/* The vendor for a process that shows no device: the first one with GPUs here. */
static struct gcr_vendor *first_vendor(struct gcr_daemon *daemon)
{
	size_t i = 0;

	while (i + 1 < GCR_BACKENDS_COUNT && !daemon->vendors[i].is_here)
		i++;
	return &daemon->vendors[i];
}

int gcr_processes_add(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
		      struct gcr_vendor *vendor, struct gcr_process **ret_process)
{
	struct gcr_daemon *daemon = processes->daemon;

	if (!gcr_processes_may_act_on(daemon, pid))
		return -ENOENT;
	if (vendor) {
		_cleanup_(gcr_process_unref_cleanup) struct gcr_process *other =
			find_of_other_vendor(processes, pid, vendor);

		if (other)
			forget_other_vendor(processes, pid, vendor, devices_of(daemon, pid));
	} else {
		vendor = gcr_vendor_of_devices(daemon, devices_of(daemon, pid));
	}
	return gcr_processes_insert(processes, pid, start_ticks,
				    vendor ? vendor : first_vendor(daemon), ret_process);
}

/*
 * Adds a claim to the process. False: a pass of the scan has removed the process as one that
 * released the GPU.
 */
static bool claim_process(struct gcr_process *process, enum gcr_claim claim)
{
	bool is_there;

	pthread_mutex_lock(&process->lock);
	is_there = process->state != GCR_STATE_GONE;
	process->claims[claim] += is_there;
	pthread_mutex_unlock(&process->lock);
	return is_there;
}

int gcr_processes_claim(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
			struct gcr_vendor *vendor, enum gcr_claim claim,
			struct gcr_process **ret_process)
{
	for (;;) {
		_cleanup_(gcr_process_unref_cleanup) struct gcr_process *process = NULL;
		int result = gcr_processes_add(processes, pid, start_ticks, vendor, &process);

		if (result < 0)
			return result;
		if (claim_process(process, claim)) {
			*ret_process = TAKE_PTR(process);
			return 0;
		}
	}
}

int gcr_processes_claim_library(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
				struct gcr_vendor *vendor, struct gcr_process **ret_process)
{
	if (!gcr_processes_may_act_on(processes->daemon, pid))
		return -ENOENT;
	for (;;) {
		_cleanup_(gcr_process_unref_cleanup) struct gcr_process *process = NULL;
		int result = gcr_processes_insert(processes, pid, start_ticks, vendor, &process);

		if (result < 0)
			return result;
		if (process->vendor != vendor && !is_vendor_sure(processes, process))
			return -EAGAIN;
		if (claim_process(process, GCR_CLAIM_LIBRARY)) {
			*ret_process = TAKE_PTR(process);
			return 0;
		}
	}
}

void gcr_process_unclaim(struct gcr_process *process, enum gcr_claim claim)
{
	pthread_mutex_lock(&process->lock);
	process->claims[claim] -= process->claims[claim] > 0;
	pthread_mutex_unlock(&process->lock);
}

/* The holder with this pid, or NULL. */
static const struct gcr_scan_holder *find_holder(const struct gcr_scan_holder *holders,
						 size_t count, pid_t pid)
{
	size_t low = 0;

	while (low < count) {
		size_t middle = low + (count - low) / 2;

		if (holders[middle].pid == pid)
			return &holders[middle];
		if (holders[middle].pid < pid)
			low = middle + 1;
		else
			count = middle;
	}
	return NULL;
}

/*
 * The entry of a holder that is listed with the same start time and vendor, or NULL: then there is
 * no need to look at the process.
 */
static struct gcr_process *find_known(struct gcr_processes *processes,
				      const struct gcr_scan_holder *holder)
{
	struct gcr_process *known;

	pthread_mutex_lock(&processes->lock);
	known = gcr_processes_find_locked(processes, holder->pid);
	if (known && !known->launcher && known->start_ticks == holder->start_ticks &&
	    holder->devices & 1u << known->vendor->index)
		gcr_process_ref(known);
	else
		known = NULL;
	pthread_mutex_unlock(&processes->lock);
	return known;
}

/*
 * Removes the processes that have released the GPU: the pass did not find them, and a second look
 * finds no device either. The second look is needed because a process may have opened the GPU after
 * the pass had looked at it.
 */
static void remove_idle(struct gcr_processes *processes, struct gcr_process **list, size_t count)
{
	_cleanup_free_ pid_t *pids = calloc(count + 1, sizeof(*pids));
	_cleanup_free_ bool *holds_none = calloc(count + 1, sizeof(*holds_none));

	if (!pids || !holds_none || !count)
		return;
	for (size_t i = 0; i < count; i++)
		pids[i] = list[i]->pid;
	gcr_scan_look_again(processes->daemon->scan, pids, count, holds_none);
	for (size_t i = 0; i < count; i++)
		if (holds_none[i])
			gcr_process_remove(processes, list[i], "released the GPU", true);
}

void gcr_processes_update(struct gcr_processes *processes, const struct gcr_scan_holder *holders,
			  size_t count)
{
	struct gcr_process **list = NULL;
	size_t known = 0;
	size_t idle_count = 0;

	for (size_t i = 0; i < count; i++) {
		_cleanup_(gcr_process_unref_cleanup) struct gcr_process *process = NULL;
		unsigned int devices = holders[i].devices;
		int result = 0;

		process = find_known(processes, &holders[i]);
		if (!process && gcr_processes_may_act_on(processes->daemon, holders[i].pid)) {
			struct gcr_vendor *vendor =
				gcr_vendor_of_devices(processes->daemon, devices);

			forget_other_vendor(processes, holders[i].pid, vendor, devices);
			result = gcr_processes_insert(processes, holders[i].pid,
						      holders[i].start_ticks, vendor, &process);
		}
		if (process && !process->launcher && devices & (devices - 1))
			atomic_store(&process->has_other_vendor, true);
		if (result < 0 && result != -ESRCH && result != -ENOENT &&
		    !gcr_proc_is_silent(result))
			gcr_log(LOG_WARNING, holders[i].pid, "cannot be listed: %s",
				strerror(-result));
	}
	if (gcr_processes_list(processes, &list, &known) < 0)
		return;
	for (size_t i = 0; i < known; i++) {
		struct gcr_process *process = list[i];
		bool idle;

		if (find_holder(holders, count, process->pid))
			continue;
		/*
		 * Frozen processes hold no device. Registered processes are GPU processes anyway.
		 */
		pthread_mutex_lock(&process->lock);
		idle = is_idle_locked(process);
		pthread_mutex_unlock(&process->lock);
		if (idle) {
			list[i] = list[idle_count];
			list[idle_count++] = process;
		}
	}
	remove_idle(processes, list, idle_count);
	pthread_mutex_lock(&processes->lock);
	processes->passes++;
	pthread_mutex_unlock(&processes->lock);
	gcr_processes_list_free(list, known);
}
