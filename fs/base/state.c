/* SPDX-License-Identifier: MIT */
/* The state machine of a process, as tables and look-ups. */
#include "fs/base/state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"

static const char *const state_names[GCR_STATES_COUNT] = {
	[GCR_STATE_RUNNING] = "running",     [GCR_STATE_FREEZING] = "freezing",
	[GCR_STATE_FROZEN] = "frozen",	     [GCR_STATE_THAWING] = "thawing",
	[GCR_STATE_DUMPING] = "dumping",     [GCR_STATE_DUMPED] = "dumped",
	[GCR_STATE_RESTORING] = "restoring", [GCR_STATE_FAILED] = "failed",
	[GCR_STATE_GONE] = "gone",	     [GCR_STATE_INCOMING] = "incoming",
};

static const char *const verb_names[GCR_VERBS_COUNT] = {
	[GCR_VERB_FREEZE] = "freeze", [GCR_VERB_THAW] = "thaw", [GCR_VERB_DUMP] = "dump",
	[GCR_VERB_CANCEL] = "cancel", [GCR_VERB_DROP] = "drop", [GCR_VERB_PACK] = "pack",
	[GCR_VERB_UNPACK] = "unpack",
};

/*
 * `cancel` is missing because it stops another verb and has no transition of its own; `drop`,
 * because no state follows it; `pack` and `unpack`, because they leave the state unchanged.
 */
static const struct gcr_transition transitions[] = {
	{GCR_VERB_FREEZE, GCR_STATE_RUNNING, GCR_STATE_FREEZING, GCR_STATE_FROZEN},
	{GCR_VERB_THAW, GCR_STATE_FROZEN, GCR_STATE_THAWING, GCR_STATE_RUNNING},
	{GCR_VERB_THAW, GCR_STATE_FAILED, GCR_STATE_THAWING, GCR_STATE_RUNNING},
	{GCR_VERB_THAW, GCR_STATE_DUMPED, GCR_STATE_RESTORING, GCR_STATE_RUNNING},
	{GCR_VERB_THAW, GCR_STATE_INCOMING, GCR_STATE_RESTORING, GCR_STATE_RUNNING},
	{GCR_VERB_DUMP, GCR_STATE_RUNNING, GCR_STATE_DUMPING, GCR_STATE_DUMPED},
	{GCR_VERB_DUMP, GCR_STATE_FROZEN, GCR_STATE_DUMPING, GCR_STATE_DUMPED},
};

const char *gcr_state_name(enum gcr_state state)
{
	return state_names[state];
}

const char *gcr_verb_name(enum gcr_verb verb)
{
	return verb_names[verb];
}

int gcr_verb_parse(const char *name, size_t length, enum gcr_verb *ret_verb)
{
	for (size_t verb = 0; verb < GCR_VERBS_COUNT; verb++) {
		if (strlen(verb_names[verb]) == length && !memcmp(verb_names[verb], name, length)) {
			*ret_verb = (enum gcr_verb)verb;
			return 0;
		}
	}
	return -EINVAL;
}

int gcr_state_parse(const char *name, enum gcr_state *ret_state)
{
	for (size_t state = 0; state < GCR_STATES_COUNT; state++) {
		if (!strcmp(state_names[state], name)) {
			*ret_state = (enum gcr_state)state;
			return 0;
		}
	}
	return -EINVAL;
}

const struct gcr_transition *gcr_transition_find(enum gcr_verb verb, enum gcr_state from)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(transitions); i++)
		if (transitions[i].verb == verb && transitions[i].from == from)
			return &transitions[i];
	return NULL;
}

bool gcr_state_is_transition(enum gcr_state state)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(transitions); i++)
		if (transitions[i].via == state)
			return true;
	return false;
}

bool gcr_verb_is_packing(enum gcr_verb verb)
{
	return verb == GCR_VERB_PACK || verb == GCR_VERB_UNPACK;
}

bool gcr_state_is_of_place(enum gcr_state state)
{
	return state == GCR_STATE_INCOMING || state == GCR_STATE_DUMPED;
}

enum gcr_state gcr_verb_goal(enum gcr_verb verb)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(transitions); i++)
		if (transitions[i].verb == verb)
			return transitions[i].to;
	return GCR_STATE_GONE;
}

size_t gcr_state_verbs(enum gcr_state state, bool is_packing, char *buffer, size_t size)
{
	size_t length = 0;

	buffer[0] = '\0';
	for (size_t verb = 0; verb < GCR_VERBS_COUNT; verb++) {
		bool applies =
			gcr_transition_find((enum gcr_verb)verb, state) ||
			(verb == GCR_VERB_CANCEL &&
			 (is_packing || gcr_state_is_transition(state))) ||
			(verb == GCR_VERB_DROP && gcr_state_is_of_place(state)) ||
			(gcr_verb_is_packing((enum gcr_verb)verb) && state == GCR_STATE_FROZEN);
		int written;

		if (!applies)
			continue;
		written = snprintf(buffer + length, size - length, "%s%s", length ? " " : "",
				   verb_names[verb]);
		if (written < 0 || (size_t)written >= size - length)
			break;
		length += (size_t)written;
	}
	return length;
}
