/* SPDX-License-Identifier: MIT */
/*
 * Compares a program's descriptors with its descendants' by kcmp(2), and its mappings by their
 * addresses and file offsets.
 */
#include "fs/process/children.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/proc_source.h"
#include "lib/proc_tree.h"
#include "lib/procfs.h"

/*
 * The preload library keeps its descriptors at high numbers, out of select(2)'s range or near the
 * limit; the driver's own descriptors, which children may share without harm, are low.
 */
#define LOWEST_KEPT 200

#define DEPTH_MAX 100

struct kept {
	int *fds;
	size_t count;
	struct gcr_proc_span *spans;
	size_t spans_count;
};

struct search {
	pid_t pid;
	const char *const *memory_links;
	const char *memory_device; /* NULL: no memory in mappings */
	struct kept kept;
	unsigned int depth;
	int result;
	struct gcr_error *error;
};

/* Is this the link of a GPU memory descriptor? Others may be shared without harm. */
static bool is_of_memory(const struct search *search, const char *link)
{
	for (const char *const *begins = search->memory_links; *begins; begins++)
		if (!strncmp(link, *begins, strlen(*begins)))
			return true;
	return false;
}

static int note_fd(int fd, const char *target, void *data)
{
	struct search *search = data;
	int *longer;

	if (fd < LOWEST_KEPT || !is_of_memory(search, target))
		return 0;
	longer = reallocarray(search->kept.fds, search->kept.count + 1, sizeof(*longer));
	if (!longer)
		return -ENOMEM;
	search->kept.fds = longer;
	longer[search->kept.count++] = fd;
	return 0;
}

static int note_span(const struct gcr_proc_span *span, void *data)
{
	struct search *search = data;
	struct gcr_proc_span *longer;

	longer = reallocarray(search->kept.spans, search->kept.spans_count + 1, sizeof(*longer));
	if (!longer)
		return -ENOMEM;
	search->kept.spans = longer;
	longer[search->kept.spans_count++] = *span;
	return 0;
}

/*
 * Is the span inherited, that is, the same part of the file at the same address? Part of it may
 * have been unmapped since.
 */
static int is_inherited(const struct gcr_proc_span *span, void *data)
{
	const struct search *search = data;

	for (size_t i = 0; i < search->kept.spans_count; i++) {
		const struct gcr_proc_span *ours = &search->kept.spans[i];

		if (span->start < ours->end && ours->start < span->end &&
		    span->start - ours->start == span->offset - ours->offset)
			return 1;
	}
	return 0;
}

static int check_process(pid_t child, void *data);

static int check_children_of(struct search *search, pid_t pid)
{
	/* Bounds the walk, which races with changes. */
	if (search->depth == DEPTH_MAX)
		return 0;
	search->depth++;
	gcr_proc_each_child(pid, check_process, search);
	search->depth--;
	return search->result;
}

/*
 * Does the child have any of the kept descriptors, under the same numbers? 1, 0, -ETIMEDOUT,
 * -EBUSY.
 */
static int shares_kept(const struct search *search, pid_t child)
{
	bool is_same[GCR_PROC_SAME_MAX];
	size_t count;
	int r;

	for (size_t i = 0; i < search->kept.count; i += count) {
		count = search->kept.count - i;
		if (count > GCR_PROC_SAME_MAX)
			count = GCR_PROC_SAME_MAX;
		r = gcr_proc_same_files(search->pid, child, search->kept.fds + i, count, is_same);
		if (r < 0)
			return gcr_proc_is_silent(r) ? r : 0;
		if (memchr(is_same, true, count))
			return 1;
	}
	return 0;
}

static int check_process(pid_t child, void *data)
{
	struct search *search = data;
	struct gcr_proc_stat stat;
	int maps = 0, shares = 0;

	if (search->kept.spans_count)
		maps = gcr_proc_each_span(child, search->memory_device, is_inherited, search);
	if (!gcr_proc_is_silent(maps))
		shares = shares_kept(search, child);
	if (gcr_proc_is_silent(maps) || gcr_proc_is_silent(shares)) {
		search->result = gcr_error_set(search->error, ETIMEDOUT,
					       "its child %d " GCR_PROC_SILENT_WORDS, (int)child);
		return search->result;
	}
	if (maps == 1 && !gcr_proc_stat(child, &stat)) {
		search->result = gcr_error_set(
			search->error, EOPNOTSUPP,
			"its child %d (%s) has inherited mappings of its GPU memory, which would "
			"stay in use; end that process first",
			(int)child, stat.comm);
		return search->result;
	}
	if (shares == 1 && !gcr_proc_stat(child, &stat)) {
		search->result = gcr_error_set(
			search->error, EOPNOTSUPP,
			"its child %d (%s) holds descriptors of its GPU memory, which would stay "
			"in use; end that process first",
			(int)child, stat.comm);
		return search->result;
	}
	return check_children_of(search, child);
}

int gcr_children_check(pid_t pid, const char *const *memory_links, const char *memory_device,
		       struct gcr_error *error)
{
	struct search search = {.pid = pid,
				.memory_links = memory_links,
				.memory_device = memory_device,
				.error = error};
	int result;

	result = gcr_proc_each_link(pid, note_fd, &search);
	if (memory_device && result != -ENOMEM && result != -EFBIG && !gcr_proc_is_silent(result))
		result = gcr_proc_each_span(pid, memory_device, note_span, &search);
	/* An unreadable process counts as one without such descriptors. */
	if (result == -ENOMEM)
		gcr_error_set(error, ENOMEM, "out of memory");
	else if (result == -EFBIG)
		gcr_error_set(error, EFBIG,
			      "process %d has so many open files or mappings that /proc cannot be "
			      "read for descriptors of its GPU memory; close some of them first",
			      (int)pid);
	else if (gcr_proc_is_silent(result))
		result = gcr_error_set(error, ETIMEDOUT, "process %d " GCR_PROC_SILENT_WORDS,
				       (int)pid);
	else
		result = 0;
	if (!result && (search.kept.count || search.kept.spans_count))
		result = check_children_of(&search, pid);
	free(search.kept.fds);
	free(search.kept.spans);
	return result;
}
