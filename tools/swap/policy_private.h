/* SPDX-License-Identifier: MIT */
/* State of the policy of `gpucr-swap watch`, shared by policy.c and policy_memory.c only. */
#ifndef GCR_TOOLS_SWAP_POLICY_PRIVATE_H
#define GCR_TOOLS_SWAP_POLICY_PRIVATE_H

#include "tools/swap/policy.h"

struct memory {
	int pid;
	uint64_t start_ticks;
	uint64_t state_since;
	bool is_known;	    /* has been in a situation before */
	bool is_seen;	    /* is in the current situation */
	int64_t since_usec; /* last seen change of state; long ago at the first look */
	int64_t mute_usec;  /* since when can_tell is false; 0: can_tell is true */

	struct swap_action action; /* action under way, if any */
	int64_t begun_usec;
	int64_t retry_usec; /* no verb before this time */
	unsigned int failures;
	int told_number; /* the last errno reported to the user */

	/* For a process that wants its GPU. */
	bool has_room;		/* enough victims are being frozen: thaw once they are out */
	bool was_short;		/* last thaw failed with ENOMEM; extra_bytes is to be learned */
	bool is_blind;		/* some of its GPUs have no figures */
	bool is_blind_short;	/* last thaw failed with ENOMEM; for GPUs without figures */
	unsigned int shortages; /* thaws failed with ENOMEM since the last success or doubt */
	bool is_optimistic;	/* next attempt ignores the learned figures */
	int64_t doubt_usec;	/* until when the learned figures are believed */
	int64_t doubted_usec;	/* length of the current period of belief */
	uint64_t most_bytes;	/* upper bound of free VRAM when too little was found */
	/* learned VRAM needed by a thaw beyond its figures */
	uint64_t extra_bytes;
	int64_t large_usec; /* since when the figures say "does not fit"; 0: they do not */

	uint64_t kept_bytes; /* VRAM still in use after its last freeze */
};

struct swap_policy {
	struct swap_config config;
	struct memory *memories;
	size_t count, room;
	bool is_first;
	int64_t figures_usec[SWAP_GPUS_MAX];
};

/* The state of one decision in progress. */
struct look {
	struct swap_policy *policy;
	const struct swap_situation *situation;
	struct swap_decision *decision;
	struct memory **memories; /* one per process */
	bool *is_victim;	  /* one per process: chosen to be frozen */
	bool *is_acted;		  /* one per process: has an action in this decision */
	int64_t now_usec;
	uint64_t free_bytes[SWAP_GPUS_MAX]; /* free VRAM less the needs of thaws under way */
	uint32_t held;			    /* GPUs reserved for a waiting program */
	int holder[SWAP_GPUS_MAX];
};

/*
 * Copies changes from the situation into the policy's memories, forgets processes that have ended,
 * and fills in @look->memories. Returns 0, or -ENOMEM: not all new processes are remembered.
 */
int swap_policy_remember(struct look *look);

#endif
