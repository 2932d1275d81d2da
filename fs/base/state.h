/* SPDX-License-Identifier: MIT */
/*
 * States, verbs and transitions: tables used by the parser, the printers, the manual's test and
 * shell completion.
 */
#ifndef GCR_FS_BASE_STATE_H
#define GCR_FS_BASE_STATE_H

#include <stdbool.h>
#include <stddef.h>

enum gcr_state {
	GCR_STATE_RUNNING,
	GCR_STATE_FREEZING,
	GCR_STATE_FROZEN,
	GCR_STATE_THAWING,
	GCR_STATE_DUMPING,
	/* Of a place (the directory of a dumped process tree): the tree can be restored from it. */
	GCR_STATE_DUMPED,
	GCR_STATE_RESTORING, /* of a place */
	GCR_STATE_FAILED,
	GCR_STATE_GONE,
	/* Of a place that receives a snapshot from elsewhere; never of a process. */
	GCR_STATE_INCOMING,
	GCR_STATES_COUNT,
};

enum gcr_verb {
	GCR_VERB_FREEZE,
	GCR_VERB_THAW,
	GCR_VERB_DUMP,
	GCR_VERB_CANCEL,
	GCR_VERB_DROP,
	GCR_VERB_PACK, /* the process stays frozen: see fs/verb/packing.h */
	GCR_VERB_UNPACK,
	GCR_VERBS_COUNT,
};

/* The transition made by a verb: the state before, during and after it. */
struct gcr_transition {
	enum gcr_verb verb;
	enum gcr_state from;
	enum gcr_state via;
	enum gcr_state to;
};

const char *gcr_state_name(enum gcr_state state);
const char *gcr_verb_name(enum gcr_verb verb);

/* -EINVAL if @name (of @length bytes) is not a verb. */
int gcr_verb_parse(const char *name, size_t length, enum gcr_verb *ret_verb);
/* -EINVAL if @name is not a state. */
int gcr_state_parse(const char *name, enum gcr_state *ret_state);

/* The transition that @verb makes from @from; NULL if the verb does not apply there. */
const struct gcr_transition *gcr_transition_find(enum gcr_verb verb, enum gcr_state from);

/* Is this a state in which a verb is under way? */
bool gcr_state_is_transition(enum gcr_state state);

/* Does the verb change only the storage of the held data, and no state? */
bool gcr_verb_is_packing(enum gcr_verb verb);

/* Is this a final state of a place, whose contents can be dropped? */
bool gcr_state_is_of_place(enum gcr_state state);

/* The state that @verb leads to; writing the verb in that state succeeds without effect. */
enum gcr_state gcr_verb_goal(enum gcr_verb verb);

/*
 * Writes the verbs that apply in @state into @buffer, separated by blanks; returns the length.
 * @is_packing: a packing, which has no state of its own, is under way.
 */
size_t gcr_state_verbs(enum gcr_state state, bool is_packing, char *buffer, size_t size);

#endif
