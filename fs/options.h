/* SPDX-License-Identifier: MIT */
/* The daemon's command line: gpucrfs [-f] [-o opt[,opt]...] MOUNTPOINT. */
#ifndef GCR_FS_OPTIONS_H
#define GCR_FS_OPTIONS_H

#include <stdio.h>

#include "fs/daemon.h"

#define GCR_WORKER_IDLE_DEFAULT_SEC 60

/*
 * Parses the command line into @options. Returns 0, or -errno after printing one line to stderr.
 * --help and --version print their text and exit the process. The mountpoint must be an empty
 * directory on which nothing is mounted; a mount that a crashed daemon left behind is removed
 * first. gcr_options_finish() frees the strings.
 */
int gcr_options_parse(int argc, char **argv, struct gcr_options *options);
void gcr_options_finish(struct gcr_options *options);

/*
 * A -o option with the name of its value ("SEC"; NULL: none) and its help text. The table is for
 * --help and for the manual's test.
 */
struct gcr_option_words {
	const char *name;
	const char *value;
	const char *words;
};
extern const struct gcr_option_words gcr_options_table[];

#endif
