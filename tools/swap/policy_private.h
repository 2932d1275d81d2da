/* SPDX-License-Identifier: MIT */
/* What the policy of `gpucr-swap watch` remembers, for its two files alone. */
#ifndef GCR_TOOLS_SWAP_POLICY_PRIVATE_H
#define GCR_TOOLS_SWAP_POLICY_PRIVATE_H

#include "tools/swap/policy.h"

struct memory {
	int pid;
	uint64_t start_ticks;
	uint64_t state_since;
	bool is_known;	    /* it has been in a situation */
	bool is_seen;	    /* in this one */
	int64_t since_usec; /* running since then, as far as we saw; before the first look: always
			     */
	int64_t mute_usec;  /* 0, or since when it is not known whether it could say */

	struct swap_action action; /* under way, if any */
	int64_t begun_usec;
	int64_t retry_usec; /* left alone until then */
	unsigned int failures;
	int told_number; /* the last errno that was told */

	/* Of one that wants its GPU. */
	bool has_room;		/* all that were frozen for it are out: its thaw is tried */
	bool was_short;		/* its last thaw failed for want of VRAM; @extra is to be learned */
	bool is_blind;		/* figures are not known on its GPUs */
	bool is_blind_short;	/* the same, where figures are not known */
	unsigned int shortages; /* since it was thawed or learned anew */
	bool is_optimistic;	/* learned figures are not believed this time */
	int64_t doubt_usec;	/* then */
	int64_t doubted_usec;	/* for so long the next time */
	uint64_t most_bytes;	/* what could have been free when it was too little */
	uint64_t extra_bytes;
	int64_t large_usec; /* since when the figures say that it does not fit; 0: they do not */

	uint64_t kept_bytes; /* stayed on its GPUs after its last freeze */
};

struct swap_policy {
	struct swap_config config;
	struct memory *memories;
	size_t count, room;
	bool is_first;
	int64_t settle_usec[SWAP_GPUS_MAX];
};

/* What is handed down while one decision is made. */
struct look {
	struct swap_policy *policy;
	const struct swap_situation *situation;
	struct swap_decision *decision;
	struct memory **memories; /* of each process */
	bool *is_victim;	  /* chosen, of each process */
	bool *is_acted;		  /* there is an action for it in this decision */
	int64_t now_usec;
	uint64_t free_bytes[SWAP_GPUS_MAX]; /* less what thaws under way need */
	uint32_t held;			    /* GPUs that are kept for one that waits */
	int holder[SWAP_GPUS_MAX];
};

/*
 * Take over what is new in the situation, forget those that are gone, and fill in
 * @look->memories. -ENOMEM: nothing is remembered of those that are new.
 */
int swap_policy_remember(struct look *look);

#endif
