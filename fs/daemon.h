/* SPDX-License-Identifier: MIT */
/*
 * The daemon as a whole: the state that every part of fs/ can reach, its owners, and the lock
 * order.
 *
 * Lock order: process table, then operation, then process, then one leaf (event log, pollers, GPU
 * table, store, waiter list). No lock is held across a FUSE reply, a FUSE notification, a wait, a
 * message to a helper or a call that may block on another process.
 */
#ifndef GCR_FS_DAEMON_H
#define GCR_FS_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "fs/base/quota.h"

struct fuse_session;
struct gcr_admission;
struct gcr_event_log;
struct gcr_gpus;
struct gcr_helpers;
struct gcr_places;
struct gcr_loop;
struct gcr_counters;
struct gcr_pack_after;
struct gcr_processes;
struct gcr_registry;
struct gcr_refusals;
struct gcr_sampler;
struct gcr_scan;
struct gcr_store;
struct gcr_waiters;

/* The command line's options; see gpucrfs(8). Strings live as long as the daemon. */
struct gcr_options {
	char *mountpoint; /* absolute */
	int foreground;
	int simulator;		  /* -o sim */
	char *simulator_state;	  /* -o sim=DIR: the simulator's state directory, else NULL */
	char *runtime_directory;  /* -o runtime_dir=DIR */
	unsigned int worker_idle; /* -o worker_idle=SEC */
	char *store_size;	  /* -o store_size=SIZE, as written; NULL: not given */
	char *pool;		  /* -o pool=SIZE, likewise */
	uint64_t store_bytes;	  /* store_size and pool in bytes */
	uint64_t pool_bytes;
	char *keep; /* -o keep=SIZE, likewise */
	uint64_t keep_bytes;
	unsigned int pack_after; /* -o pack_after=SEC; 0: no automatic packing */
	/* -o spill=DIR: absolute; NULL: no segments go to a disk. */
	char *spill;
	char *spill_size;	    /* -o spill_size=SIZE, as written; NULL: not given */
	uint64_t spill_bytes;	    /* spill_size in bytes; 0: no limit */
	unsigned int spill_percent; /* percentage of the disk, if spill_size is one; else 0 */
	/* one user's percentage of the room on the disk; 0: user_limits decides */
	unsigned int user_spill_percent;
	/* -o criu=PATH: the program; NULL: the daemon searches for criu. */
	char *criu;
	int allow_swap;				/* -o allow_swap */
	int allow_user_dumps;			/* -o allow_user_dumps */
	char *user_most[GCR_QUOTA_KINDS_COUNT]; /* -o user_KIND=, as written; NULL: not given */
	char *user_timeout;			/* -o user_timeout=SEC, likewise */
	char *user_subuids;			/* -o user_subuids=FILE */
	struct gcr_quota_limits user_limits;	/* user_most and user_timeout, parsed */
	int no_passthrough;			/* -o nopassthrough */
};

/* One vendor of GPUs. Does not change once the daemon serves requests. */
struct gcr_vendor {
	const struct gcr_backend *backend;
	unsigned int index; /* in the daemon's table and in gcr_backends */
	/* Prefixes of the /proc/PID/fd links of GPU memory descriptors; the list ends with NULL. */
	char *memory_links[GCR_MEMORY_LINKS_MAX + 1];
	/* Path prefix of the device files whose mappings are GPU memory, or NULL. */
	char *memory_device;
	struct gcr_helpers *helpers;
	bool is_here; /* this machine has GPUs of the vendor */
};

/*
 * The daemon. The parts are created in the order of start_parts() in main.c, and do not change
 * then.
 */
struct gcr_daemon {
	struct gcr_options options;
	struct gcr_vendor vendors[GCR_BACKENDS_COUNT]; /* in the order of gcr_backends */
	char *device_directory;	   /* "/dev", or the simulator's state directory */
	char *helper_directory;	   /* where the helper programs are; several, separated by ':' */
	char *simulator_libraries; /* directory of the simulated drivers; NULL without -o sim */
	int runtime_fd;		   /* the runtime directory: records, socket, lock */
	uid_t only_uid;		   /* the only user served; (uid_t)-1 when running as root */
	int64_t max_request_usec;  /* the kernel's limit on one FUSE request, 0 for none */

	struct gcr_event_log *events;
	struct gcr_refusals *refusals;
	struct gcr_counters *counters;
	struct gcr_quota *quota;
	struct gcr_loop *loop;
	struct gcr_gpus *gpus;
	struct gcr_admission *admission;
	struct gcr_processes *processes;
	struct gcr_waiters *waiters;
	struct gcr_render_turns *render_turns;
	struct gcr_registry *registry;
	struct gcr_sampler *sampler;
	struct gcr_scan *scan;
	struct gcr_store *store;
	struct gcr_pack_after *pack_after; /* NULL without the option */
	struct gcr_places *places;
	struct fuse_session *session;

	atomic_bool recovered; /* the records of earlier daemons have been read */
	atomic_bool stopping;  /* no new verbs: the daemon is shutting down */
};

#endif
