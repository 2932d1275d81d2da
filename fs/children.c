/* SPDX-License-Identifier: MIT */
/*
 * Comparing a program's descriptors with its descendants', by kcmp(2), and its mappings, by where
 * in the file they are. Blocks only on /proc.
 */
#include "fs/children.h"

#include <dirent.h>
#include <errno.h>
#include <linux/kcmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/proc_tree.h"
#include "lib/procfs.h"

/*
 * The preload library keeps its descriptors at high numbers, out of select(2)'s way or near the
 * limit; the driver's own, which children may share without harm, are low.
 */
#define LOWEST_KEPT 200

#define DEPTH_MAX 100

struct kept {
	int *fds;
	size_t count;
	struct gcr_proc_span *spans;
	size_t spans_count;
};

/* Numbers in the names of a directory of /proc. */
static int each_number(const char *path, int (*visit)(int number, void *data), void *data)
{
	_cleanup_closedir_ DIR *directory = opendir(path);
	struct dirent *entry;
	int result = 0;

	while (directory && !result && (entry = readdir(directory))) {
		char *end;
		long number = strtol(entry->d_name, &end, 10);

		if (end != entry->d_name && !*end && number >= 0)
			result = visit((int)number, data);
	}
	return result;
}

struct search {
	pid_t pid;
	const char *const *memory_links;
	const char *memory_device; /* NULL: nothing is mapped */
	struct kept kept;
	unsigned int depth;
	int result;
	struct gcr_error *error;
};

/* Is that the link of a descriptor of GPU memory? Others may be shared without harm. */
static bool is_of_memory(const struct search *search, const char *link)
{
	for (const char *const *begins = search->memory_links; *begins; begins++)
		if (!strncmp(link, *begins, strlen(*begins)))
			return true;
	return false;
}

static int note_fd(int fd, void *data)
{
	struct search *search = data;
	char path[64];
	char target[256];
	ssize_t length;
	int *longer;

	if (fd < LOWEST_KEPT)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)search->pid, fd);
	length = readlink(path, target, sizeof(target) - 1);
	target[length > 0 ? length : 0] = '\0';
	if (!is_of_memory(search, target))
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

/* Inherited: the same part of the file at the same address. It may have lost some of it since. */
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
	/* A bound for what changes while we look. */
	if (search->depth == DEPTH_MAX)
		return 0;
	search->depth++;
	gcr_proc_each_child(pid, check_process, search);
	search->depth--;
	return search->result;
}

/* A forked child has its parent's numbers. */
static int check_process(pid_t child, void *data)
{
	struct search *search = data;
	struct gcr_proc_stat stat;

	if (search->kept.spans_count &&
	    gcr_proc_each_span(child, search->memory_device, is_inherited, search) == 1 &&
	    !gcr_proc_stat(child, &stat)) {
		search->result = gcr_error_set(
			search->error, EOPNOTSUPP,
			"its child %d (%s) has inherited mappings of its GPU memory, which would "
			"stay in use; end that process first",
			(int)child, stat.comm);
		return search->result;
	}
	for (size_t i = 0; i < search->kept.count; i++) {
		unsigned long fd = (unsigned long)search->kept.fds[i];

		if (syscall(SYS_kcmp, search->pid, child, KCMP_FILE, fd, fd) != 0 ||
		    gcr_proc_stat(child, &stat) < 0)
			continue;
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
	char path[32];
	int result;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	result = each_number(path, note_fd, &search);
	/* What cannot be seen is as good as none. */
	if (!result && memory_device &&
	    gcr_proc_each_span(pid, memory_device, note_span, &search) == -ENOMEM)
		result = -ENOMEM;
	if (result < 0)
		gcr_error_set(error, -result, "out of memory");
	else if (search.kept.count || search.kept.spans_count)
		result = check_children_of(&search, pid);
	free(search.kept.fds);
	free(search.kept.spans);
	return result;
}
