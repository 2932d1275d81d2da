/* SPDX-License-Identifier: MIT */
/*
 * The list of files that must exist when the tree is restored. No file is opened here: by now
 * another one, a device for example, may have its name.
 */
#include "criu-glue/opens_private.h"

#include <fcntl.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

static int compare_paths(const void *a, const void *b)
{
	const struct gcr_open_file *left = a, *right = b;

	return strcmp(left->path, right->path);
}

/* Counts a file of the list, with its path. */
static void count_file(struct opens_scan *scan, const char *path)
{
	scan->opens->files_count++;
	scan->paths_bytes += strlen(path) + 1;
	scan->is_too_large |= scan->opens->files_count > GCR_TREE_FILES_MAX ||
			      scan->paths_bytes > GCR_OPENS_PATHS_BYTES_MAX;
}

void opens_list_file(struct opens_scan *scan, const struct opens_file *file, bool is_mapped)
{
	struct gcr_open_file *entry = calloc(1, sizeof(*entry));
	struct gcr_open_file **slot;
	long long flags = 0;

	if (entry)
		entry->path = strdup(file->link);
	slot = entry && entry->path ? tsearch(entry, &scan->files_seen, compare_paths) : NULL;
	if (!slot) {
		scan->failed = true;
		if (entry)
			free(entry->path);
		free(entry);
		return;
	}
	opens_number(file->info, "flags", 8, &flags);
	flags = (flags & O_ACCMODE) == O_WRONLY && flags & O_APPEND;
	if (*slot != entry) {
		(*slot)->is_mapped |= is_mapped;
		(*slot)->is_append_only &= flags != 0;
		free(entry->path);
		free(entry);
		return;
	}
	entry->is_mapped = is_mapped;
	entry->is_append_only = flags != 0;
	count_file(scan, entry->path);
}

static void collect(const void *node, VISIT visit, void *data)
{
	struct gcr_opens *opens = data;

	if (visit == postorder || visit == leaf)
		opens->files[opens->files_count++] = **(struct gcr_open_file *const *)node;
}

void opens_list_finish(struct opens_scan *scan)
{
	struct gcr_opens *opens = scan->opens;

	opens->files = calloc(opens->files_count + 1, sizeof(*opens->files));
	if (!opens->files) {
		scan->failed = true;
		opens->files_count = 0;
		return;
	}
	opens->files_count = 0;
	twalk_r(scan->files_seen, collect, opens);
	/* The list owns the paths now; the caller frees the tree. */
}
