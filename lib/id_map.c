/* SPDX-License-Identifier: MIT */
#include "lib/id_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/proc_file.h"

/* A line of a map: ids from @inside on are, in the reader's namespace, those from @outside on. */
struct range {
	uint32_t inside, outside, count;
};

/*
 * Takes the next range from the text at *text. False: there is none. A line that is none is passed
 * over.
 */
static bool take_range(const char **text, struct range *ret_range)
{
	const char *line = *text;

	while (line && *line) {
		const char *end = strchr(line, '\n');
		int fields = sscanf(line, "%" SCNu32 " %" SCNu32 " %" SCNu32, &ret_range->inside,
				    &ret_range->outside, &ret_range->count);

		line = end ? end + 1 : NULL;
		if (fields == 3) {
			*text = line;
			return true;
		}
	}
	return false;
}

/* Reads a map, which the caller frees. -ESRCH. */
static int read_map(pid_t pid, const char *name, char **ret_text)
{
	char path[GCR_PROC_PATH_BYTES];

	gcr_proc_path(path, pid, name);
	return gcr_file_read(path, ret_text, NULL);
}

int gcr_id_map_is_ours(pid_t pid)
{
	_cleanup_free_ char *ours = NULL, *its = NULL;
	int r = gcr_file_read("/proc/self/uid_map", &ours, NULL);

	if (r == 0)
		r = read_map(pid, "uid_map", &its);
	return r < 0 ? r : !strcmp(ours, its);
}

uint32_t gcr_id_map_root(pid_t pid, const char *name)
{
	_cleanup_free_ char *text = NULL;
	struct range range;

	if (read_map(pid, name, &text) < 0)
		return 0;
	for (const char *rest = text; take_range(&rest, &range);)
		if (!range.inside)
			return range.outside;
	return 0;
}

bool gcr_id_map_has(pid_t pid, const char *name, uint32_t id)
{
	_cleanup_free_ char *text = NULL;
	struct range range;

	if (read_map(pid, name, &text) < 0)
		return false;
	for (const char *rest = text; take_range(&rest, &range);)
		if (id >= range.outside && id - range.outside < range.count)
			return true;
	return false;
}
