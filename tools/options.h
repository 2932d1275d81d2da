/* SPDX-License-Identifier: MIT */
/* The long options of a program, and what its help says of them. */
#ifndef GCR_TOOLS_OPTIONS_H
#define GCR_TOOLS_OPTIONS_H

#include <getopt.h>
#include <stddef.h>

struct option_words {
	char letter;
	const char *name, *value, *help;
};

/* The words become options as getopt_long(3) takes them; the caller has an empty one behind them.
 */
static inline void make_long_options(const struct option_words *words, size_t count,
				     struct option *ret_options)
{
	for (size_t i = 0; i < count; i++)
		ret_options[i] = (struct option){
			.name = words[i].name,
			.has_arg = words[i].value ? required_argument : no_argument,
			.val = words[i].letter,
		};
}

#endif
