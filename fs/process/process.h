/* SPDX-License-Identifier: MIT */
/*
 * The processes that use a GPU, as directories of the mount: identity, state, who holds what.
 * A process is known by pid and start time and held by a pidfd; `serial` names it for good.
 */
#ifndef GCR_FS_PROCESS_PROCESS_H
#define GCR_FS_PROCESS_PROCESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/base/state.h"
#include "fs/daemon.h"
#include "fs/store/record.h"
#include "lib/error.h"
#include "lib/procfs.h"
#include "lib/protocol.h"

struct gcr_event_log;
struct gcr_link;
struct gcr_packing;
struct gcr_snapshot;
struct gcr_task;

/* VRAM of one process on one GPU. */
struct gcr_share {
	uint8_t uuid[GCR_UUID_BYTES];
	uint64_t bytes;
};

/* What a freeze or thaw moved, and how long its parts took; parts overlap. 0: not known. */
struct gcr_verb_timing {
	uint64_t bytes;
	uint64_t copied_bytes; /* of VRAM, between GPU and store: what had not changed was not */
	bool has_host_digests; /* a GPU could not make the digests, so the host did */
	int64_t gate_usec;     /* until no call was inside and the GPU idle; open again */
	int64_t handover_usec; /* descriptors to the worker, or back to the program */
	int64_t copy_usec;     /* VRAM to the store or back */
	int64_t control_usec;  /* the driver's checkpoint or restore */
	int64_t map_usec;      /* VRAM taken and mapped by the program again */
};

/* Who says that a process stays in the table, whatever a pass of the scan finds. */
enum gcr_claim {
	GCR_CLAIM_LIBRARY, /* a preload library's connection */
	GCR_CLAIM_VERB,	   /* a verb, or recovery, that is making of it what it was */
	GCR_CLAIMS,
};

struct gcr_process {
	/* fixed for life */
	struct gcr_daemon *daemon;
	atomic_int references;
	uint32_t serial; /* never used again */
	pid_t pid;
	uint64_t start_ticks;
	int pidfd;
	struct gcr_event_log *events;
	uid_t owner; /* of /proc/PID when it was found: whose its events are; no judge of rights */
	bool launcher; /* uses no GPU itself; stands for the GPU processes below it; not listed */
	/* Whose GPUs it uses; of a launcher without meaning. Changed only by recovery. */
	struct gcr_vendor *_Atomic vendor;
	/* It uses another vendor's too, or a library for that wanted to register. */
	atomic_bool has_other_vendor;

	/* the table's, guarded by its lock */
	struct gcr_process *next_pid;
	struct gcr_process *next_serial;
	bool in_table;
	uint64_t vendor_sure; /* from that pass on its vendor is, 0: nobody has asked */

	pthread_mutex_t lock; /* guards what follows */
	enum gcr_state state;
	int64_t state_since_usec;    /* real time */
	char comm[GCR_COMM_BYTES];   /* as last seen: it outlives the process */
	struct gcr_task *task;	     /* the verb under way, NULL if none; see fs/verb/task.h */
	struct gcr_packing *packing; /* what packs or unpacks its files now, NULL: nothing does */
	int64_t frozen_usec;	     /* real time: since when it has been frozen; 0: it is not */
	bool was_packed;	     /* since then: all that could be */
	bool was_unpacked;	     /* and after that not so any more */
	int64_t pack_again_usec;     /* monotonic: -o pack_after= does not try it before this */
	int64_t pack_wait_usec;	     /* it waited so long the last time; 0: it has not yet */
	struct gcr_error error;	     /* the last failure; number 0: none */
	char generation[37];	     /* UUID of the last freeze, "" if none */
	char engine[16];	     /* the engine of the last freeze, "" if none */
	pid_t frozen_for_pid;	     /* as in its record */
	uint64_t frozen_for_start_ticks;
	unsigned int shares_count; /* while frozen: VRAM that a thaw will need */
	struct gcr_share shares[GCR_GPUS_MAX];
	bool is_restored; /* by CRIU, and not thawed yet */
	/* Restored where the GPUs are others: theirs, and what they are here. 0: they are the same.
	 */
	unsigned int moves_count;
	struct gcr_gpu_pair moves[GCR_GPUS_MAX];
	/* Frozen: as in its record, where the driver has it. */
	struct gcr_moves moved;
	/* An earlier daemon may have got it there: `moving` of the record. */
	bool may_have_moved;
	struct gcr_moves moving;
	uint64_t kept_vram_bytes; /* what the last freeze has left in VRAM, 0: not known, or none */
	/* What a freeze should have given back of VRAM and the GPU has still in use, 0: nothing. */
	uint64_t unreturned_vram_bytes;
	uint64_t held_bytes;	  /* VRAM contents held while frozen */
	int64_t last_freeze_usec; /* durations of the last that succeeded, 0 if none */
	int64_t last_thaw_usec;
	struct gcr_verb_timing last_freeze; /* of the same */
	struct gcr_verb_timing last_thaw;
	struct gcr_history *history;   /* of its snapshots' contents, NULL: none yet */
	struct gcr_snapshot *snapshot; /* its files in the store, a reference; NULL if none */
	unsigned int claims[GCR_CLAIMS];
	bool was_refused;	     /* the driver would not checkpoint it */
	bool was_handed_over;	     /* it has imported handles since a thaw by the vmm engine */
	struct gcr_link *link;	     /* the preload library's, NULL if there is none */
	int parked_page_fd;	     /* of its library's page, which is parked; -1: it is not. See
				      * fs/engine/park.h
				      */
	int64_t wanted_usec;	     /* real time: since when it wants its GPU, 0: not */
	uint64_t submissions;	     /* as last sampled */
	int64_t active_usec;	     /* monotonic: when they last changed, 0 if not known */
	uint64_t table_changes;	     /* likewise, of its allocations */
	unsigned int steady_samples; /* how often they were the same since */
	bool has_steady_pool;	     /* the store knows what it would need now */
	uint8_t pool_gpu[GCR_UUID_BYTES]; /* the one GPU that its pool is for, if has_pool_gpu */
	bool has_pool_gpu;
	/* The sampler's alone: when it asks the library again that has not answered, and after
	 * what. */
	int64_t ask_again_usec;	    /* monotonic */
	int64_t ask_wait_usec;	    /* 0: it has answered */
	int64_t recover_again_usec; /* monotonic: not before this by itself; 0: at any time */
	/* The worker that has registered the files, its snapshot's or its pool's; 0: none has. */
	pid_t pinned_by;
	bool is_pinning; /* just now they are told of them */
};

struct gcr_processes;

int gcr_processes_create(struct gcr_daemon *daemon, struct gcr_processes **ret_processes);
void gcr_processes_destroy(struct gcr_processes *processes);

/* Who is to be told of every process; a function may be NULL. No lock is held. */
struct gcr_process_listener {
	/* It has ended, or uses no GPU any more, and is out of the table. On any thread. */
	void (*ended)(struct gcr_process *process);
	/* Its preload library has registered. On the loop's thread. */
	void (*registered)(struct gcr_process *process);
};
/* @listener stays where it is. At the start, before there are processes. */
void gcr_processes_listen(struct gcr_processes *processes,
			  const struct gcr_process_listener *listener);

struct gcr_process *gcr_process_ref(struct gcr_process *process);
void gcr_process_unref(struct gcr_process *process);

/*
 * Take @pid into the table if it is not there (@start_ticks 0: whatever it is now), as one that
 * uses
 * @vendor's GPUs (NULL: those that it is found to use now). A reference is returned; an event tells
 * of a new one. One that is there keeps its vendor, unless it does not use that one's GPUs any
 * more. -ESRCH it has ended; -ENOMEM, -EMFILE.
 */
int gcr_processes_add(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
		      struct gcr_vendor *vendor, struct gcr_process **ret_process);

/*
 * The same, and claimed: it stays in the table until gcr_process_unclaim(), unless it ends. The
 * vendor is to be looked at by the caller: it may be another.
 */
int gcr_processes_claim(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
			struct gcr_vendor *vendor, enum gcr_claim claim,
			struct gcr_process **ret_process);

/*
 * The same for a library, on a thread that must not look at processes. -EAGAIN: it is listed as
 * another vendor's, and whether it still is one has been asked of the scan: try again in a moment.
 */
int gcr_processes_claim_library(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
				struct gcr_vendor *vendor, struct gcr_process **ret_process);

/* The reference stays the caller's. Nothing happens if there is no such claim. */
void gcr_process_unclaim(struct gcr_process *process, enum gcr_claim claim);

/*
 * The process with this pid: from the table, or probed just now (a process that opened a GPU a
 * moment ago is found at once; so is one that has GPU processes below it). -ENOENT: no GPU process.
 */
int gcr_processes_find(struct gcr_processes *processes, pid_t pid,
		       struct gcr_process **ret_process);
/* The same without a look at any process: one that is listed. Does not block. */
int gcr_processes_find_listed(struct gcr_processes *processes, pid_t pid,
			      struct gcr_process **ret_process);

/*
 * Has it ended? Then it is taken out of the table now, if nobody has done so, and its operation
 * told to stop. No lock held.
 */
bool gcr_process_has_ended(struct gcr_process *process);

/* The same, or it is on its way out and does nothing any more. */
bool gcr_process_is_going(struct gcr_process *process);

/* The process with this serial, if it is still there. -ENOENT. */
int gcr_processes_find_serial(struct gcr_processes *processes, uint32_t serial,
			      struct gcr_process **ret_process);

/* All listed processes (no launchers) in order of pid; references and array are the caller's. */
int gcr_processes_list(struct gcr_processes *processes, struct gcr_process ***ret_list,
		       size_t *ret_count);
void gcr_processes_list_free(struct gcr_process **list, size_t count);

/* The GPU processes that stand below @process (a launcher) in the process tree, likewise. */
int gcr_process_members(struct gcr_process *process, struct gcr_process ***ret_list,
			size_t *ret_count);

/* A complete pass over the machine: add these holders, remove who runs and holds no GPU any more.
 */
struct gcr_scan_holder;
void gcr_processes_update(struct gcr_processes *processes, const struct gcr_scan_holder *holders,
			  size_t count);

/* Change the state, with its event. Caller holds no lock. No-op if the process is gone. */
void gcr_process_set_state(struct gcr_process *process, enum gcr_state state);
enum gcr_state gcr_process_state(struct gcr_process *process);

/* Events have been put into its log and the daemon's: wake who polls them. No lock held. */
void gcr_process_tell(struct gcr_process *process);

/*
 * @verb has ended in @state: from now on the process has no task. @duration_usec, if not 0, is how
 * long a verb that succeeded took, and @timing its parts. With @error (number 0: success) it is
 * reported like gcr_process_report() does.
 */
void gcr_process_settle(struct gcr_process *process, enum gcr_verb verb, enum gcr_state state,
			int64_t duration_usec, const struct gcr_verb_timing *timing,
			const struct gcr_error *error);

/*
 * A verb has ended: keep its error (number 0: none) for the `error` file, tell both event logs
 * `pid generation verb errno`, its own with the words, and the log if it failed.
 */
void gcr_process_report(struct gcr_process *process, const char *verb,
			const struct gcr_error *error);
/* A write of user @uid was refused: the same, but the daemon's event log hears of root's only. */
void gcr_process_report_refusal(struct gcr_process *process, uid_t uid, const char *verb,
				const struct gcr_error *error);

/*
 * Is any process of @vendor (NULL: of any) frozen, or on the way there? Then a thaw will come.
 */
bool gcr_processes_any_frozen(struct gcr_processes *processes, const struct gcr_vendor *vendor);

/* The state a launcher shows: its members' if they agree, else that of the one least frozen. */
enum gcr_state gcr_process_shown_state(struct gcr_process *process);

/* Whose its lines are in a log that has room for each user. */
uid_t gcr_process_event_owner(const struct gcr_process *process);

#endif
