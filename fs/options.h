/* SPDX-License-Identifier: MIT */
/* The daemon's command line: gpucrfs [-f] [-o opt[,opt]...] MOUNTPOINT. */
#ifndef GCR_FS_OPTIONS_H
#define GCR_FS_OPTIONS_H

#include <stdio.h>

#include "fs/daemon.h"

#define GCR_WORKER_IDLE_DEFAULT_SEC 60

/*
 * Fill @options. 0, or -errno with one line on stderr. Help and version are printed and end it.
 * The mountpoint must be an empty directory on which nothing is mounted; a mount of ours that a
 * crash left behind is taken away first.
 */
int gcr_options_parse(int argc, char **argv, struct gcr_options *options);
void gcr_options_finish(struct gcr_options *options);

/* Every -o option with its value's name ("SEC", NULL for none): for help and the manual's test. */
struct gcr_option_words {
	const char *name;
	const char *value;
	const char *words;
};
extern const struct gcr_option_words gcr_options_table[];

#endif
