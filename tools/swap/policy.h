/* SPDX-License-Identifier: MIT */
/*
 * The policy of `gpucr-swap watch`: decides which programs are frozen and thawed next. The caller
 * passes in a situation (the processes and GPUs of a mount) and the time; the policy returns a
 * decision. The policy does no I/O and reads no clock. For each process it remembers how its verbs
 * ended. Everything learned in this way expires, so that a wrong guess never keeps a program
 * waiting for ever.
 */
#ifndef GCR_TOOLS_SWAP_POLICY_H
#define GCR_TOOLS_SWAP_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SWAP_GPUS_MAX 32
#define SWAP_UNKNOWN  UINT64_MAX /* as GCR_STATUS_UNKNOWN */
#define SWAP_NEVER    INT64_MAX
#define SWAP_ALL_GPUS UINT32_MAX

enum swap_state {
	SWAP_RUNNING,
	SWAP_FROZEN,
	SWAP_MOVING, /* a verb of any user is under way */
	SWAP_OTHER,
};

/* One process, as the mount shows it. */
struct swap_process {
	int pid;
	uint64_t start_ticks; /* with the pid, identifies the process */
	uint64_t state_since; /* time of the last change of state */
	uint64_t wanted; /* time since which the process wants its GPU; 0: does not; SWAP_UNKNOWN */
	enum swap_state state;
	bool can_tell;	   /* once frozen, the process would report that it wants its GPU */
	int64_t idle_usec; /* -1: unknown */
	uint32_t gpus;	   /* bit mask; SWAP_ALL_GPUS: unknown, so possibly on every GPU */
	uint64_t vram_bytes[SWAP_GPUS_MAX]; /* in use on each GPU while running */
	uint64_t unplaced_bytes;	    /* further VRAM, whose GPU is unknown */
	uint64_t need_bytes[SWAP_GPUS_MAX]; /* VRAM to be restored by a thaw */
	uint64_t kept_bytes; /* VRAM that stayed on the GPUs although the process is frozen */
};

/* The processes and GPUs of a mount at one moment. The arrays stay the caller's. */
struct swap_situation {
	uint64_t free_bytes[SWAP_GPUS_MAX];  /* SWAP_UNKNOWN: no figure available */
	uint64_t total_bytes[SWAP_GPUS_MAX]; /* 0: no figure available */
	uint32_t gpus;			     /* bit mask of the GPUs of the mount */
	const struct swap_process *processes;
	size_t count;
};

struct swap_config {
	int64_t idle_usec;  /* a program idle for this long is frozen */
	int64_t slice_usec; /* minimum time on the GPU before a program can be displaced */
	uint32_t gpus;	    /* only programs on these GPUs; SWAP_ALL_GPUS: all programs */
	bool is_full;	    /* freeze the driver's context too, so that no VRAM stays in use */
};

enum swap_verb { SWAP_NO_VERB, SWAP_FREEZE, SWAP_THAW };

enum swap_why {
	SWAP_WHY_NOTHING,  /* running, or not waiting for a GPU */
	SWAP_WHY_NOT_OURS, /* on other GPUs */
	SWAP_WHY_MUTE,	   /* left alone: could not report that it wants its GPU back */
	SWAP_WHY_GOES,	   /* a verb for this process is under way */
	SWAP_WHY_BEHIND,   /* @other has been waiting longer for the same GPU */
	SWAP_WHY_MOVING,   /* a verb for @other is under way on its GPU */
	SWAP_WHY_FIGURES,  /* waiting for figures from after the last verb */
	SWAP_WHY_SLICE,	   /* @other keeps its place until @until_usec */
	SWAP_WHY_ROOM,	   /* other programs are being frozen to make room */
	SWAP_WHY_UNABLE,   /* @other is needed but could not be frozen: retry at @until_usec */
	/*
	 * Not enough VRAM on GPU @other even with all other programs frozen: according to the
	 * figures, or to a thaw that is retried at @until_usec.
	 */
	SWAP_WHY_TOO_LARGE,
	SWAP_WHY_FAILED, /* its own verb failed: retry at @until_usec */
	SWAP_WHYS_COUNT,
};

/* Why a process waits, or does not. The meaning of the other fields depends on `why`. */
struct swap_note {
	enum swap_why why;
	int other;
	int64_t until_usec;
};

/* A verb that is to be carried out now. */
struct swap_action {
	int pid;
	enum swap_verb verb;
	int for_pid; /* freeze: pid of the program that needs room; 0: idle for @idle_usec */
	int64_t idle_usec;
};

struct swap_decision {
	struct swap_action *actions; /* one slot per process of the situation */
	size_t actions_count;
	struct swap_note *notes; /* one per process of the situation */
	int64_t next_usec;	 /* time of the next decision at the latest; SWAP_NEVER */
};

struct swap_policy;

/* Returns NULL if there is no memory. */
struct swap_policy *swap_policy_create(const struct swap_config *config);
void swap_policy_destroy(struct swap_policy *policy);

/* Forgets all processes; called after the daemon was restarted. */
void swap_policy_forget(struct swap_policy *policy);

/*
 * Decides about all processes at time @now_usec. The caller provides the arrays of @decision, with
 * one slot per process. Each action is to be carried out now: the caller reports its start with
 * swap_policy_begun() and its result with swap_policy_ended(). In between, the process counts as
 * moving. Returns 0, or -ENOMEM: no decision was made.
 */
int swap_policy_decide(struct swap_policy *policy, const struct swap_situation *situation,
		       int64_t now_usec, struct swap_decision *decision);
/* Reports that PID's verb has begun. */
void swap_policy_begun(struct swap_policy *policy, int pid, const struct swap_action *action,
		       int64_t now_usec);
/*
 * Reports the end of PID's verb. @number is 0 or a positive errno. Returns true if the failure is
 * to be reported to the user: a kind of failure not yet reported since the last success.
 */
bool swap_policy_ended(struct swap_policy *policy, int pid, int number, int64_t now_usec);

#endif
