/* SPDX-License-Identifier: MIT */
/*
 * Which programs `gpucr-swap watch` freezes and thaws next: a situation goes in, a decision comes
 * out. There is no I/O here and no clock but the time that is handed in. The policy remembers of
 * each process what became of its verbs; all that is learned so expires, so that no wrong guess
 * keeps a program waiting for ever.
 */
#ifndef GCR_TOOLS_SWAP_POLICY_H
#define GCR_TOOLS_SWAP_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SWAP_GPUS_MAX 32
#define SWAP_UNKNOWN  UINT64_MAX
#define SWAP_NEVER    INT64_MAX
#define SWAP_ALL_GPUS UINT32_MAX

enum swap_state {
	SWAP_RUNNING,
	SWAP_FROZEN,
	SWAP_MOVING, /* somebody's verb is under way */
	SWAP_OTHER,
};

/* One process, as the mount shows it. */
struct swap_process {
	int pid;
	uint64_t start_ticks; /* with the pid: which process it is */
	uint64_t state_since; /* another value: it has changed its state meanwhile */
	uint64_t wanted;      /* since when it wants its GPU; 0: it does not; SWAP_UNKNOWN */
	enum swap_state state;
	bool can_tell;	   /* frozen, it would say that it wants its GPU */
	int64_t idle_usec; /* -1: not known */
	uint32_t gpus;	   /* bits; SWAP_ALL_GPUS: not known, so it may be on each */
	uint64_t vram_bytes[SWAP_GPUS_MAX]; /* what it has there while it runs */
	uint64_t unplaced_bytes;	    /* of that, what may be on any */
	uint64_t need_bytes[SWAP_GPUS_MAX]; /* what comes back to it when it is thawed */
	uint64_t kept_bytes; /* what of it has stayed on its GPUs, while it is frozen */
};

struct swap_situation {
	uint64_t free_bytes[SWAP_GPUS_MAX]; /* SWAP_UNKNOWN: nobody tells */
	uint32_t gpus;			    /* those that there are */
	const struct swap_process *processes;
	size_t count;
};

struct swap_config {
	int64_t idle_usec;  /* idle for so long, it goes */
	int64_t slice_usec; /* what each has at least before others get its place */
	uint32_t gpus;	    /* programs on these only; SWAP_ALL_GPUS: all programs */
	bool is_full;	    /* the context goes too: nothing of a frozen one stays */
};

enum swap_verb { SWAP_NO_VERB, SWAP_FREEZE, SWAP_THAW };

enum swap_why {
	SWAP_WHY_NOTHING,   /* it runs, or wants nothing */
	SWAP_WHY_NOT_OURS,  /* on other GPUs */
	SWAP_WHY_MUTE,	    /* left alone: it could not say that it wants its GPU back */
	SWAP_WHY_GOES,	    /* a verb for it is under way */
	SWAP_WHY_BEHIND,    /* @other wants the same GPU for longer */
	SWAP_WHY_MOVING,    /* a verb for @other is under way on its GPU */
	SWAP_WHY_FIGURES,   /* figures from after the last verb are waited for */
	SWAP_WHY_SLICE,	    /* @other keeps its place until @until_usec */
	SWAP_WHY_ROOM,	    /* others are being frozen for it */
	SWAP_WHY_UNABLE,    /* @other is needed, and could not be frozen: again at @until_usec */
	SWAP_WHY_TOO_LARGE, /*
			     * freezing all others would not be enough, on GPU @other: by the
			     * figures, or by a thaw that is tried again at @until_usec
			     */
	SWAP_WHY_FAILED,    /* its own verb failed: again at @until_usec */
	SWAP_WHYS_COUNT,
};

struct swap_note {
	enum swap_why why;
	int other;
	int64_t until_usec;
};

struct swap_action {
	int pid;
	enum swap_verb verb;
	int for_pid; /* a freeze that makes room for this one; 0: it has been idle for @idle_usec */
	int64_t idle_usec;
};

struct swap_decision {
	struct swap_action *actions; /* room for the count of processes */
	size_t actions_count;
	struct swap_note *notes; /* of each process of the situation */
	int64_t next_usec;	 /* decide again then at the latest; SWAP_NEVER */
};

struct swap_policy;

/* NULL: no memory. */
struct swap_policy *swap_policy_create(const struct swap_config *config);
void swap_policy_destroy(struct swap_policy *policy);

/* Forget all processes: another daemon is there. */
void swap_policy_forget(struct swap_policy *policy);

/*
 * What to do at @now_usec. The arrays of @decision are the caller's, for as many as there are
 * processes. Each action is one to be carried out now: the caller says so with begun(), and later
 * how it ended. Until then the process counts as moving. -ENOMEM: nothing is decided.
 */
int swap_policy_decide(struct swap_policy *policy, const struct swap_situation *situation,
		       int64_t now_usec, struct swap_decision *decision);
void swap_policy_begun(struct swap_policy *policy, int pid, const struct swap_action *action,
		       int64_t now_usec);
/*
 * @number: 0 or a positive errno. Returns whether that is worth saying: a failure of a kind that
 * has not been told since its last success.
 */
bool swap_policy_ended(struct swap_policy *policy, int pid, int number, int64_t now_usec);

#endif
