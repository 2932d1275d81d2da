/* SPDX-License-Identifier: MIT */
/*
 * Prints the tables of the parser and the printers, one row per line: the table's name, then the
 * words of the row. test_man.py compares the manual pages with this output.
 */
#include <stdio.h>

#include "fs/base/counters.h"
#include "fs/base/state.h"
#include "fs/image/place.h"
#include "fs/mount/metrics.h"
#include "fs/mount/render.h"
#include "fs/options.h"
#include "fs/verb/ctl.h"

static void print_transitions(enum gcr_verb verb)
{
	for (size_t state = 0; state < GCR_STATES_COUNT; state++) {
		const struct gcr_transition *transition =
			gcr_transition_find(verb, (enum gcr_state)state);

		if (transition)
			printf("transition %s %s %s %s\n", gcr_verb_name(verb),
			       gcr_state_name(transition->from), gcr_state_name(transition->via),
			       gcr_state_name(transition->to));
	}
}

static void print_metrics(void)
{
	const char *labels;
	const char *name;
	bool is_counter;

	for (size_t i = 0; (name = gcr_metrics_family(i, &labels, &is_counter)); i++)
		printf("metric %s%s {%s} %s\n", name, is_counter ? "_total" : "", labels,
		       is_counter ? "counter" : "gauge");
	for (size_t i = 0; (name = gcr_counters_result(i)); i++)
		printf("metric-result %s\n", name);
}

int main(void)
{
	const struct gcr_command_option *options;
	const char *key;
	size_t count;

	for (size_t state = 0; state < GCR_STATES_COUNT; state++)
		printf("state %s\n", gcr_state_name((enum gcr_state)state));
	for (size_t verb = 0; verb < GCR_VERBS_COUNT; verb++) {
		printf("verb %s\n", gcr_verb_name((enum gcr_verb)verb));
		print_transitions((enum gcr_verb)verb);
	}
	options = gcr_command_options(&count);
	for (size_t i = 0; i < count; i++)
		printf("verb-option %s %s %s\n", gcr_verb_name(options[i].verb), options[i].key,
		       options[i].value_words ? options[i].value_words : "-");
	for (size_t i = 0; (key = gcr_render_status_key(i)); i++)
		printf("status-key %s\n", key);
	for (size_t i = 0; (key = gcr_place_status_key(i)); i++)
		printf("place-key %s\n", key);
	for (size_t i = 0; (key = gcr_render_root_keys[i]); i++)
		printf("root-key %s\n", key);
	for (size_t i = 0; (key = gcr_render_gpu_keys[i]); i++)
		printf("gpu-key %s\n", key);
	print_metrics();
	for (const struct gcr_option_words *option = gcr_options_table; option->name; option++)
		printf("mount-option %s %s\n", option->name, option->value ? option->value : "-");
	return 0;
}
