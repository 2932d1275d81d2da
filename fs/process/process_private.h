/* SPDX-License-Identifier: MIT */
/* What the files of fs/process/process.h share. */
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
	uint64_t passes; /* of the scan that have come to an end */
	size_t count;
	const struct gcr_process_listener *listeners[GCR_PROCESS_LISTENERS_MAX];
	size_t listeners_count;
	struct gcr_process *by_pid[GCR_PROCESS_BUCKETS];
	struct gcr_process *by_serial[GCR_PROCESS_BUCKETS];
};

GCR_DEFINE_CLEANUP(struct gcr_process *, gcr_process_unref);

/* Lock: table. NULL; no reference is taken. */
struct gcr_process *gcr_processes_find_locked(struct gcr_processes *processes, pid_t pid);

/*
 * An entry that is not in the table yet. @start_ticks: -ESRCH if it is another process; 0: any.
 * @vendor NULL: a launcher.
 */
int gcr_process_create(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
		       struct gcr_vendor *vendor, struct gcr_process **ret_process);

/* The same, put into the table, or the entry that is there. */
int gcr_processes_insert(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
			 struct gcr_vendor *vendor, struct gcr_process **ret_process);

/*
 * Take it out of the table; all that is left of it is what others hold. @what: for the event.
 * @only_idle: not if a verb was started, or its library registered, meanwhile.
 */
void gcr_process_remove(struct gcr_processes *processes, struct gcr_process *process,
			const char *what, bool only_idle);

/* Has it ended? The table is left as it is. */
bool gcr_process_pidfd_tells(const struct gcr_process *process);

/* For all listeners. */
void gcr_process_tell_registered(struct gcr_process *process);

/* May this daemon act on the process at all? */
bool gcr_processes_may_act_on(struct gcr_daemon *daemon, pid_t pid);

/* Whose GPUs these devices are: the first vendor's of several. NULL: none. */
struct gcr_vendor *gcr_vendor_of_devices(struct gcr_daemon *daemon, unsigned int devices);

#endif
