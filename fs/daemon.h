/* SPDX-License-Identifier: MIT */
/*
 * The daemon as a whole: what every part of fs/ can reach, who owns it, and the order of locks.
 *
 * Lock order: process table, then operation, then process, then one leaf (event log, GPU table,
 * store, waiter list). No lock is held across a FUSE reply, a FUSE notification, a wait, a message
 * to a helper or a call that may block on another process.
 */
#ifndef GCR_FS_DAEMON_H
#define GCR_FS_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/backend.h"

struct fuse_session;
struct gcr_event_log;
struct gcr_gpus;
struct gcr_helpers;
struct gcr_places;
struct gcr_loop;
struct gcr_metrics;
struct gcr_processes;
struct gcr_registry;
struct gcr_sampler;
struct gcr_scan;
struct gcr_store;
struct gcr_waiters;

/* What the command line says; see gpucrfs(8). Strings live as long as the daemon. */
struct gcr_options {
	char *mountpoint; /* absolute */
	int foreground;
	int simulator;		  /* -o sim */
	char *simulator_state;	  /* -o sim=DIR: the simulator's state directory, else NULL */
	char *runtime_directory;  /* -o runtime_dir=DIR */
	unsigned int worker_idle; /* -o worker_idle=SEC */
	char *store_size;	  /* -o store_size=SIZE, as written; NULL: not given */
	char *pool;		  /* -o pool=SIZE, likewise */
	uint64_t store_bytes;	  /* what they mean */
	uint64_t pool_bytes;
	char *keep; /* -o keep=SIZE, likewise */
	uint64_t keep_bytes;
	char *criu;	    /* -o criu=PATH: the program; NULL: it is looked for */
	int swap;	    /* -o swap */
	int no_passthrough; /* -o nopassthrough */
};

struct gcr_daemon {
	struct gcr_options options;
	const struct gcr_backend *backend;
	char *device_directory;	  /* "/dev", or the simulator's state directory */
	int runtime_fd;		  /* the runtime directory: records, socket, lock */
	uid_t only_uid;		  /* the one user we serve, (uid_t)-1 when running as root */
	int64_t max_request_usec; /* the kernel's limit on one FUSE request, 0 for none */

	struct gcr_event_log *events;
	struct gcr_metrics *metrics;
	struct gcr_loop *loop;
	struct gcr_helpers *helpers;
	struct gcr_gpus *gpus;
	struct gcr_processes *processes;
	struct gcr_waiters *waiters;
	struct gcr_registry *registry;
	struct gcr_sampler *sampler;
	struct gcr_scan *scan;
	struct gcr_store *store;
	struct gcr_places *places;
	struct fuse_session *session;

	atomic_bool recovered; /* the records of earlier daemons have been read */
	atomic_bool stopping;  /* no new verbs: the daemon is going */
};

#endif
