/* SPDX-License-Identifier: MIT */
/*
 * States, verbs and which leads where: the tables that the parser, the printers, the manual's
 * test and shell completion all read.
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
	GCR_STATE_DUMPED,    /* of a place: a process tree that has ended can be made of it */
	GCR_STATE_RESTORING, /* of a place */
	GCR_STATE_FAILED,
	GCR_STATE_GONE,
	GCR_STATE_INCOMING, /* of no process: a place for a snapshot from elsewhere */
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

/* One verb's way from a settled state to another. */
struct gcr_transition {
	enum gcr_verb verb;
	enum gcr_state from;
	enum gcr_state via;
	enum gcr_state to;
};

const char *gcr_state_name(enum gcr_state state);
const char *gcr_verb_name(enum gcr_verb verb);

/* -EINVAL if @name (of @length bytes) is none. */
int gcr_verb_parse(const char *name, size_t length, enum gcr_verb *ret_verb);
int gcr_state_parse(const char *name, enum gcr_state *ret_state);

/* The transition that @verb makes from @from, NULL if it does not apply there. */
const struct gcr_transition *gcr_transition_find(enum gcr_verb verb, enum gcr_state from);

/* A verb is under way in this state. */
bool gcr_state_is_transition(enum gcr_state state);

/* It changes no state, but what its process holds. */
bool gcr_verb_is_packing(enum gcr_verb verb);

/* Settled states of a place: what is in it can be dropped. */
bool gcr_state_is_of_place(enum gcr_state state);

/* The state that @verb leads to; writing the verb there succeeds without doing anything. */
enum gcr_state gcr_verb_goal(enum gcr_verb verb);

/* Write the verbs that apply in @state into @buffer, separated by blanks; returns the length. */
size_t gcr_state_verbs(enum gcr_state state, char *buffer, size_t size);

#endif
