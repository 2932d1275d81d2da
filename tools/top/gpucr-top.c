/* SPDX-License-Identifier: MIT */
/*
 * gpucr-top: shows the processes, the GPUs and the store of a mount. The program reads only files
 * of the mount. This file has the command line, the choice of the mount, and the table without a
 * terminal.
 */
#include <errno.h>
#include <getopt.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/mount.h"
#include "tools/options.h"
#include "tools/top/top.h"

#define INTERVAL_MIN_SEC 0.1
#define INTERVAL_MAX_SEC 3600.0

static const struct option_words option_words[] = {
	{'o', "once", NULL, "print a table and end, as without a terminal"},
	{'i', "interval", "SEC", "look again after so many seconds (default: 1)"},
	{'s', "sort", "ORDER", "vram (default), held, idle, state or pid"},
	{'m', "mount", "DIR", "the mount (default: $GPUCR_MOUNT, else yours, else root's)"},
	{'h', "help", NULL, "print this"},
	{'V', "version", NULL, "print the version"},
};

static int complain(const char *words, const char *what)
{
	fprintf(stderr, "gpucr-top: %s%s%s\nTry 'gpucr-top --help'.\n", words, what ? ": " : "",
		what ? what : "");
	return 2;
}

static void usage(void)
{
	puts("Usage: gpucr-top [OPTION]...\n"
	     "Show the GPU processes of a gpucrfs mount, its GPUs and its store.\n");
	for (size_t i = 0; i < GCR_ARRAY_SIZE(option_words); i++) {
		const struct option_words *option = &option_words[i];

		printf("  --%-8s %-5s  %s\n", option->name, option->value ? option->value : "",
		       option->help);
	}
	puts("\nKeys: q ends it; v h i s p set the order; up, down select a process, f freezes "
	     "and\n"
	     "t thaws it.");
}

static int parse_interval(const char *text, int64_t *ret_usec)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= INTERVAL_MIN_SEC && seconds <= INTERVAL_MAX_SEC))
		return -EINVAL;
	*ret_usec = (int64_t)(seconds * (double)GCR_USEC_PER_SEC);
	return 0;
}

static int parse_order(const char *text, enum top_order *ret_order)
{
	for (enum top_order order = 0; order < TOP_ORDERS_COUNT; order++)
		if (!strcmp(top_order_name(order), text)) {
			*ret_order = order;
			return 0;
		}
	return -EINVAL;
}

/* Finds the mount as gpucr(1) does; the caller frees the result. NULL: a message has been printed.
 */
static char *find_mount(void)
{
	const char *given = getenv("GPUCR_MOUNT");
	struct gcr_error error;
	char *found = NULL;

	if (given && *given) {
		if (gcr_mount_given(given, &found, &error) < 0)
			fprintf(stderr, "gpucr-top: %s\n", error.words);
	} else if (gcr_mount_search(&found) < 0) {
		fputs("gpucr-top: no gpucrfs is mounted (gpucrfs MOUNTPOINT mounts one; "
		      "GPUCR_MOUNT names it)\n",
		      stderr);
	}
	return found;
}

static int print_once(const char *mount, enum top_order order)
{
	struct gcr_error error;
	char line[TOP_LINE_BYTES];
	struct top_layout layout;
	struct top_view view;

	if (top_look(mount, &view, &error) < 0) {
		fprintf(stderr, "gpucr-top: %s\n", error.words);
		return 1;
	}
	top_sort(&view, order);
	for (size_t i = 0; i < view.gpus_count; i++) {
		top_print_gpu(&view.gpus[i], line);
		printf("GPU %u: %s\n", view.gpus[i].index, line);
	}
	top_print_store(&view, line);
	printf("store: %s\n\n", line);
	top_layout_make(&view, 0, &layout);
	top_print_header(&layout, line);
	puts(line);
	for (size_t i = 0; i < view.processes_count; i++) {
		top_print_process(&layout, &view.processes[i], line);
		puts(line);
	}
	top_view_finish(&view);
	if (fflush(stdout) == EOF || ferror(stdout)) {
		fputs("gpucr-top: standard output cannot be written\n", stderr);
		return 1;
	}
	return 0;
}

static int show(const char *mount, bool is_once, int64_t interval_usec, enum top_order order)
{
	struct gcr_error error;

	if (is_once || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
		return print_once(mount, order);
	setlocale(LC_CTYPE, "");
	if (top_screen_run(mount, interval_usec, order, &error) < 0) {
		fprintf(stderr, "gpucr-top: %s\n", error.words);
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct option long_options[GCR_ARRAY_SIZE(option_words) + 1] = {{0}};
	int64_t interval_usec = GCR_USEC_PER_SEC;
	enum top_order order = TOP_BY_VRAM;
	_cleanup_free_ char *mount = NULL;
	bool is_once = false;
	int letter;

	make_long_options(option_words, GCR_ARRAY_SIZE(option_words), long_options);
	while ((letter = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (letter) {
		case 'o':
			is_once = true;
			break;
		case 'i':
			if (parse_interval(optarg, &interval_usec) < 0)
				return complain("not a number of seconds from 0.1 to 3600", optarg);
			break;
		case 's':
			if (parse_order(optarg, &order) < 0)
				return complain("not an order", optarg);
			break;
		case 'm':
			free(mount);
			mount = strdup(optarg);
			break;
		case 'h':
			usage();
			return 0;
		case 'V':
			puts("gpucr-top " GCR_VERSION);
			return 0;
		default:
			return complain("see above", NULL);
		}
	}
	if (optind < argc)
		return complain("too many arguments", argv[optind]);
	if (!mount)
		mount = find_mount();
	if (!mount)
		return 1;
	return show(mount, is_once, interval_usec, order);
}
