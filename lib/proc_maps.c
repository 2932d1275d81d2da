/* SPDX-License-Identifier: MIT */
/* Reads /proc/PID/maps; see procfs.h. */
#include <errno.h>
#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/proc_text.h"
#include "lib/procfs.h"

static int compare_strings(const void *a, const void *b)
{
	return strcmp(a, b);
}

char *gcr_proc_parse_mapping_path(char *line)
{
	for (int column = 0; column < 5; column++) {
		line += strcspn(line, " ");
		line += strspn(line, " ");
	}
	line[strcspn(line, "\n")] = '\0';
	return line;
}

bool gcr_proc_parse_span(const char *line, struct gcr_proc_span *ret_span)
{
	return sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNx64, &ret_span->start,
		      &ret_span->end, &ret_span->offset) == 3;
}

/*
 * Calls @visit for each line of /proc/PID/maps, which can have millions, until @visit returns
 * non-zero, and returns that value; else 0, or errors of gcr_proc_open_file().
 */
static int each_line_of_maps(pid_t pid, int (*visit)(char *line, void *data), void *data)
{
	_cleanup_fclose_ FILE *file = NULL;
	_cleanup_free_ char *line = NULL;
	_cleanup_close_ int fd = -1;
	size_t line_bytes = 0;
	int r = gcr_proc_open_file(pid, "maps", &fd);

	if (r < 0)
		return r;
	file = fdopen(fd, "r");
	if (!file)
		return -errno;
	fd = -1;
	for (;;) {
		errno = 0;
		if (getline(&line, &line_bytes, file) < 0)
			return feof(file) ? 0 : gcr_proc_error(errno ? errno : EIO);
		r = visit(line, data);
		if (r)
			return r;
	}
}

/*
 * Limit for the names that are remembered. Few programs have more; names beyond it are visited
 * repeatedly.
 */
#define NAMES_BYTES_MAX (1u << 20)

struct mappings {
	void *seen; /* a tree of names; few lines name a new file */
	size_t seen_bytes;
	int (*visit)(const char *path, void *data);
	void *data;
};

static int visit_new_file(char *line, void *data)
{
	struct mappings *mappings = data;
	const char *name = gcr_proc_parse_mapping_path(line);
	_cleanup_free_ char *copy = NULL;

	/* "[heap]", "[anon:...]" and the like are not files */
	if (*name == '\0' || *name == '[' || tfind(name, &mappings->seen, compare_strings))
		return 0;
	if (mappings->seen_bytes < NAMES_BYTES_MAX) {
		copy = strdup(name);
		if (!copy || !tsearch(copy, &mappings->seen, compare_strings))
			return -ENOMEM;
		mappings->seen_bytes += strlen(copy);
		copy = NULL; /* owned by the tree now */
	}
	return mappings->visit(name, mappings->data);
}

int gcr_proc_each_mapping(pid_t pid, int (*visit)(const char *path, void *data), void *data)
{
	struct mappings mappings = {.visit = visit, .data = data};
	int r = each_line_of_maps(pid, visit_new_file, &mappings);

	if (mappings.seen)
		tdestroy(mappings.seen, free);
	return r;
}

struct ranges {
	const char *path;
	int (*visit)(uintptr_t start, uintptr_t end, void *data);
	void *data;
};

static int visit_range(char *line, void *data)
{
	const struct ranges *ranges = data;
	struct gcr_proc_span span;

	if (!gcr_proc_parse_span(line, &span) ||
	    strcmp(gcr_proc_parse_mapping_path(line), ranges->path) != 0)
		return 0;
	return ranges->visit(span.start, span.end, ranges->data);
}

int gcr_proc_each_range(pid_t pid, const char *path,
			int (*visit)(uintptr_t start, uintptr_t end, void *data), void *data)
{
	struct ranges ranges = {.path = path, .visit = visit, .data = data};

	return each_line_of_maps(pid, visit_range, &ranges);
}

struct spans {
	const char *prefix;
	int (*visit)(const struct gcr_proc_span *span, void *data);
	void *data;
};

static int visit_span(char *line, void *data)
{
	const struct spans *spans = data;
	struct gcr_proc_span span;

	if (!gcr_proc_parse_span(line, &span) ||
	    strncmp(gcr_proc_parse_mapping_path(line), spans->prefix, strlen(spans->prefix)) != 0)
		return 0;
	return spans->visit(&span, spans->data);
}

int gcr_proc_each_span(pid_t pid, const char *prefix,
		       int (*visit)(const struct gcr_proc_span *span, void *data), void *data)
{
	struct spans spans = {.prefix = prefix, .visit = visit, .data = data};

	return each_line_of_maps(pid, visit_span, &spans);
}
