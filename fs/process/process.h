/* SPDX-License-Identifier: MIT */
/*
 * The processes that use a GPU, as directories of the mount: identity, state, VRAM and references.
 * A process is identified by pid and start time and held by a pidfd; its `serial` is never reused.
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
struct gcr_library;
struct gcr_packing;
struct gcr_snapshot;
struct gcr_task;

/* VRAM of one process on one GPU. */
struct gcr_share {
	uint8_t uuid[GCR_UUID_BYTES];
	uint64_t bytes;
};

/*
 * The amount that a freeze or thaw moved, and the duration of its parts, which overlap. 0: not
 * known.
 */
struct gcr_verb_timing {
	uint64_t bytes;
	uint64_t copied_bytes; /* of VRAM, between GPU and store; unchanged bytes are not copied */
	bool has_host_digests; /* a GPU could not make the digests, so the host made them */
	/* Until no thread was in a call and the GPU was idle; or to open the gate again. */
	int64_t gate_usec;
	int64_t handover_usec; /* passing descriptors to the worker, or back to the program */
	int64_t copy_usec;     /* VRAM to the store or back */
	int64_t control_usec;  /* the driver's checkpoint or restore */
	int64_t map_usec;      /* until the program had allocated and mapped VRAM again */
};

/* Reasons to keep a process in the table, whatever a pass of the scan finds. */
enum gcr_claim {
	GCR_CLAIM_LIBRARY, /* a preload library's connection */
	GCR_CLAIM_VERB,	   /* a restore that adopts the process */
	GCR_CLAIM_RECORD,  /* a record of an earlier daemon, until the recovery begins */
	GCR_CLAIMS,
};

struct gcr_process {
	/* Fixed for life. */
	struct gcr_daemon *daemon;
	atomic_int references;
	uint32_t serial; /* never used again */
	pid_t pid;
	uint64_t start_ticks;
	int pidfd;
	struct gcr_event_log *events;
	/*
	 * The user who ran the process when it was found, or GCR_QUOTA_OTHER_ROOT for root that is
	 * not, or not provably, in our namespaces: lines about the process in logs, the time of
	 * looks at it, and the files of its managed memory count for this user. A program can
	 * change the owner of its /proc/PID, but not this. Not used to check rights.
	 */
	uid_t counted;
	_Atomic uid_t last_owner; /* of /proc/PID, when last asked for (gcr_process_find_owner()) */
	bool launcher; /* uses no GPU; stands for the GPU processes below it; not listed */
	/* The vendor of the GPUs in use; meaningless for a launcher. Changed only by recovery. */
	struct gcr_vendor *_Atomic vendor;
	/* The process also uses another vendor's GPUs, or a library for these tried to register. */
	atomic_bool has_other_vendor;

	/* Guarded by the table's lock. */
	struct gcr_process *next_pid;
	struct gcr_process *next_serial;
	bool in_table;
	/* The vendor is certain from this pass of the scan on; 0: not asked for yet. */
	uint64_t vendor_sure;

	pthread_mutex_t lock; /* guards the fields below */
	enum gcr_state state;
	int64_t state_since_usec; /* real time */
	/* Last known name; remains valid after the process has ended. */
	char comm[GCR_COMM_BYTES];
	struct gcr_task *task;	     /* the verb under way, or NULL; see fs/verb/task.h */
	struct gcr_packing *packing; /* the current packing or unpacking of the files; NULL: none */
	int64_t frozen_usec;	     /* real time: start of the present freeze; 0: not frozen */
	bool was_packed;	     /* everything that can be packed has been, since frozen_usec */
	bool was_unpacked;	     /* some of it has been unpacked since then */
	int64_t pack_again_usec;     /* monotonic: -o pack_after= does not retry before this time */
	int64_t pack_wait_usec;	     /* the last delay before a retry; 0: none yet */
	struct gcr_error error;	     /* the last failure; number 0: none */
	char generation[37];	     /* UUID of the last freeze, "" if none */
	char engine[16];	     /* the engine of the last freeze, "" if none */
	pid_t frozen_for_pid;	     /* as in the record of the process */
	uint64_t frozen_for_start_ticks;
	unsigned int shares_count; /* while frozen: the VRAM that a thaw needs, per GPU */
	struct gcr_share shares[GCR_GPUS_MAX];
	bool is_restored; /* by CRIU, and not thawed yet */
	/*
	 * After a restore on a machine with other GPUs: each GPU of the dump and the GPU that takes
	 * its place here. Count 0: the GPUs are the same.
	 */
	unsigned int moves_count;
	struct gcr_gpu_pair moves[GCR_GPUS_MAX];
	/* While frozen, as `moved` of the record: the GPUs on which the driver has the process. */
	struct gcr_moves moved;
	/* An earlier daemon may have moved the process as `moving` (of the record) says. */
	bool may_have_moved;
	struct gcr_moves moving;
	/* VRAM still in use after the last freeze; 0: none, or not known. */
	uint64_t kept_vram_bytes;
	/*
	 * VRAM that the last freeze should have freed and that the GPU still counts as in use; 0:
	 * none.
	 */
	uint64_t unreturned_vram_bytes;
	uint64_t held_bytes;	  /* VRAM contents held while frozen */
	int64_t last_freeze_usec; /* duration of the last successful freeze; 0: none */
	int64_t last_thaw_usec;
	struct gcr_verb_timing last_freeze; /* of the same freeze */
	struct gcr_verb_timing last_thaw;
	struct gcr_history *history;   /* contents of the last snapshots; NULL: none yet */
	struct gcr_snapshot *snapshot; /* the files in the store, with a reference; NULL: none */
	unsigned int claims[GCR_CLAIMS];
	bool was_refused; /* the driver has refused to checkpoint the process */
	/* A thaw by the vmm engine has left imported handles in the process. */
	bool was_handed_over;
	/*
	 * Device memory that its last thaw by the vmm engine has given it, at most this many bytes
	 * of which are imported now; 0: none, or not known.
	 */
	uint64_t given_bytes;
	struct gcr_library *library;	 /* the connected preload library; NULL: none */
	struct gcr_proc_program program; /* of the last library that registered; 0: none has */
	/*
	 * Descriptor of the page of a parked preload library; -1: the library is not parked. See
	 * fs/engine/park.h.
	 */
	int parked_page_fd;
	/* Real time: since when the process has wanted its GPU; 0: not at present. */
	int64_t wanted_usec;
	uint64_t submissions;	     /* number of submissions to the GPU, as last sampled */
	int64_t active_usec;	     /* monotonic: when `submissions` last changed; 0: not known */
	uint64_t table_changes;	     /* changes of the allocation table, as last sampled */
	unsigned int steady_samples; /* number of samples since `table_changes` last changed */
	bool has_steady_pool;	     /* the store knows the present need of the pool */
	uint8_t pool_gpu[GCR_UUID_BYTES]; /* the only GPU that the pool is for, if has_pool_gpu */
	bool has_pool_gpu;
	/* Used by the sampler only: retries of a request that the library has not answered. */
	int64_t ask_again_usec; /* monotonic: time of the next retry */
	int64_t ask_wait_usec;	/* delay before the retry; 0: the library has answered */
	/* Monotonic: no automatic recovery before this time; 0: at any time. */
	int64_t recover_again_usec;
	/*
	 * The workers that have registered the files of the snapshot or pool, as the sum of their
	 * pids; 0: none.
	 */
	pid_t pinned_by;
	bool is_pinning; /* the workers are being told of the files */
};

struct gcr_processes;

int gcr_processes_create(struct gcr_daemon *daemon, struct gcr_processes **ret_processes);
void gcr_processes_destroy(struct gcr_processes *processes);

/* Callbacks for events of all processes; a function may be NULL. Called without a lock. */
struct gcr_process_listener {
	/*
	 * The process has ended, or uses no GPU any more, and is out of the table. On any thread.
	 */
	void (*ended)(struct gcr_process *process);
	/* The preload library has registered. On the loop's thread. */
	void (*registered)(struct gcr_process *process);
};
/* Adds a listener; @listener must stay valid. At the start, before there are processes. */
void gcr_processes_listen(struct gcr_processes *processes,
			  const struct gcr_process_listener *listener);

struct gcr_process *gcr_process_ref(struct gcr_process *process);
void gcr_process_unref(struct gcr_process *process);

/*
 * Adds @pid to the table if it is missing (@start_ticks 0: whatever its start time), as a process
 * that uses @vendor's GPUs (NULL: determine the vendor from the devices in use). Returns a
 * reference in *ret_process; a new entry is announced by an event. An existing entry keeps its
 * vendor, unless the process no longer uses that vendor's GPUs. -ENOENT: this daemon may not act on
 * the process; -ESRCH: the process has ended; -ENOMEM, -EMFILE.
 */
int gcr_processes_add(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
		      struct gcr_vendor *vendor, struct gcr_process **ret_process);

/*
 * The same, and claims the process: the entry stays in the table until gcr_process_unclaim(),
 * unless the process ends. The caller has to check the vendor, which may differ from @vendor.
 */
int gcr_processes_claim(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
			struct gcr_vendor *vendor, enum gcr_claim claim,
			struct gcr_process **ret_process);

/*
 * The same for a library, on a thread that must not look at processes. -EAGAIN: the process is
 * listed with another vendor, and the scan has been asked to confirm that: retry shortly.
 */
int gcr_processes_claim_library(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
				struct gcr_vendor *vendor, struct gcr_process **ret_process);

/* Releases one claim; does nothing if there is none. The caller keeps its reference. */
void gcr_process_unclaim(struct gcr_process *process, enum gcr_claim claim);

/*
 * The process with this pid, a reference: from the table, or looked at now (so that a process that
 * has just opened a GPU is found at once, and so is a process with GPU processes below it).
 * -ENOENT: no GPU process, or this daemon may not act on the process; -ETIMEDOUT: a process could
 * not be looked at in time; -ENOMEM, ...
 */
int gcr_processes_find(struct gcr_processes *processes, pid_t pid,
		       struct gcr_process **ret_process);
/* The same for listed processes only, without looking at any process. Does not block. */
int gcr_processes_find_listed(struct gcr_processes *processes, pid_t pid,
			      struct gcr_process **ret_process);

/*
 * The listed process with this pid and start time, a reference. Looks at no process, and takes none
 * out of the table: one that has ended can be found until that is done. -ENOENT.
 */
int gcr_processes_find_exactly(struct gcr_processes *processes, pid_t pid, uint64_t start_ticks,
			       struct gcr_process **ret_process);

/*
 * The process has another program (execve(2)): forgets what is known of the earlier one only. Lock:
 * process.
 */
void gcr_process_forget_program_locked(struct gcr_process *process);
/*
 * Drops what the store has ready for the next freeze of the process: the kept snapshot of the last
 * one, and files of the pool. No lock held.
 */
void gcr_process_drop_kept(struct gcr_process *process);

/*
 * Has the process ended? If so, takes it out of the table now (unless that has been done) and stops
 * its operation. No lock held.
 */
bool gcr_process_has_ended(struct gcr_process *process);

/*
 * Does the pidfd report that the process has ended? Does not change the table. After false, all
 * that was read of the pid before was about this process.
 */
bool gcr_process_pidfd_tells(const struct gcr_process *process);

/* The same, or the process is exiting and does no more work. */
bool gcr_process_is_going(struct gcr_process *process);

/* The process with this serial, if it is still in the table; -ENOENT. */
int gcr_processes_find_serial(struct gcr_processes *processes, uint32_t serial,
			      struct gcr_process **ret_process);

/*
 * All listed processes (no launchers) in order of pid; the caller owns the references and the
 * array, and frees both by gcr_processes_list_free(). -ENOMEM.
 */
int gcr_processes_list(struct gcr_processes *processes, struct gcr_process ***ret_list,
		       size_t *ret_count);
void gcr_processes_list_free(struct gcr_process **list, size_t count);

/*
 * The GPU processes below @process (a launcher) in the process tree, likewise, but at most
 * GCR_PROC_GENERATIONS_MAX below it. -ETIMEDOUT: they could not be found in half a second; -ENOMEM,
 * -EMFILE, -ENFILE.
 */
int gcr_process_members(struct gcr_process *process, struct gcr_process ***ret_list,
			size_t *ret_count);
/* Is there any? 1, 0, or an error as above. */
int gcr_process_has_members(struct gcr_process *process);

/*
 * After a complete pass of the scan: adds these holders, and removes running processes that hold no
 * GPU any more.
 */
struct gcr_scan_holder;
void gcr_processes_update(struct gcr_processes *processes, const struct gcr_scan_holder *holders,
			  size_t count);

/* Changes the state and appends its event. No lock held. Does nothing if the process is gone. */
void gcr_process_set_state(struct gcr_process *process, enum gcr_state state);
enum gcr_state gcr_process_state(struct gcr_process *process);

/*
 * Wakes the pollers of the process's and the daemon's event logs after events were put. No lock
 * held.
 */
void gcr_process_tell(struct gcr_process *process);

/*
 * Ends @verb in @state: the process has no task from now on. @duration_usec, if not 0, is the
 * duration of a verb that succeeded, and @timing its parts. @error (number 0: success; NULL: no
 * report) is reported as by gcr_process_report().
 */
void gcr_process_end_verb(struct gcr_process *process, enum gcr_verb verb, enum gcr_state state,
			  int64_t duration_usec, const struct gcr_verb_timing *timing,
			  const struct gcr_error *error);

/*
 * Reports the end of a verb: keeps its error (number 0: none) for the `error` file, appends `pid
 * generation verb errno` to both event logs (with the message in the process's own), and writes the
 * result to the log.
 */
void gcr_process_report(struct gcr_process *process, const char *verb,
			const struct gcr_error *error);
/*
 * As gcr_process_report(), for a refused write of user @uid; the daemon's event log gets only those
 * of the daemon's own user.
 */
void gcr_process_report_refusal(struct gcr_process *process, uid_t uid, const char *verb,
				const struct gcr_error *error);

/*
 * Is any process of @vendor (NULL: of any vendor) frozen, being frozen or being dumped? Then a thaw
 * will follow. False also without memory for the list.
 */
bool gcr_processes_any_frozen(struct gcr_processes *processes, const struct gcr_vendor *vendor);

/*
 * The user to whom the process's lines count in an event log, which limits the space of each user.
 */
uid_t gcr_process_event_owner(const struct gcr_process *process);

/*
 * The owner of /proc/PID now, as gcr_proc_owner(), which is remembered unless the process has
 * ended. -ESRCH.
 */
int gcr_process_find_owner(struct gcr_process *process, uid_t *ret_uid, gid_t *ret_gid);

/*
 * May @uid, who was the owner when he opened the process's events, go on reading them? Not while
 * another user owns the process, nor after its end if another one owned it last.
 */
bool gcr_process_is_still_of(struct gcr_process *process, uid_t uid);

#endif
