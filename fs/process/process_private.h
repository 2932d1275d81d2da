/* SPDX-License-Identifier: MIT */
/* Declarations shared by the files that implement fs/process/process.h. */
#ifndef GCR_FS_PROCESS_PROCESS_PRIVATE_H
#define GCR_FS_PROCESS_PROCESS_PRIVATE_H

#include "fs/process/process.h"
#include "lib/cleanup.h"

#define GCR_PROCESS_BUCKETS	  1024
#define GCR_PROCESS_LISTENERS_MAX 4

struct gcr_processes {
	struct gcr_daemon *daemon;
	pthread_mutex_t lock;
	uint32_t next_serial;
	uint64_t passes; /* of the scan, completed */
	size_t count;
	const struct gcr_process_listener *listeners[GCR_PROCESS_LISTENERS_MAX];
	size_t listeners_count;
	struct gcr_process *by_pid[GCR_PROCESS_BUCKETS];
	struct gcr_process *by_serial[GCR_PROCESS_BUCKETS];
};

GCR_DEFINE_CLEANUP(struct gcr_process *, gcr_process_unref);

/* The entry with this pid, without a reference; NULL: there is none. Lock: table. */
struct gcr_process *gcr_processes_find_locked(struct gcr_processes *processes, pid_t pid);

/*
 * Creates an entry that is not in the table yet; *ret_process is a reference, the caller's.
 * @start_ticks: -ESRCH if the pid belongs to another process; 0: any. @vendor NULL: a launcher.
 * -ESRCH also if the process has ended; -ENOMEM, -EMFILE, ...
 */
int gcr_process_create(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
		       struct gcr_vendor *vendor, struct gcr_process **ret_process);

/* The same, and inserts the entry into the table; or returns the existing entry. */
int gcr_processes_insert(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
			 struct gcr_vendor *vendor, struct gcr_process **ret_process);

/*
 * Takes the process out of the table; the entry is freed with its last reference. @what: the
 * reason, for the event. @only_idle: do nothing if a verb has started or the library has
 * registered.
 */
void gcr_process_remove(struct gcr_processes *processes, struct gcr_process *process,
			const char *what, bool only_idle);

/* Calls registered() of all listeners. */
void gcr_process_tell_registered(struct gcr_process *process);

/*
 * May this daemon act on the process? Not on its helpers; a user's daemon only on that user's
 * processes.
 */
bool gcr_processes_may_act_on(struct gcr_daemon *daemon, pid_t pid);

/* The vendor of these devices (a mask): the first one of several. NULL: none. */
struct gcr_vendor *gcr_vendor_of_devices(struct gcr_daemon *daemon, unsigned int devices);

#endif
