/* SPDX-License-Identifier: MIT */
#include "lib/proc_lineage.h"

#include <errno.h>
#include <search.h>
#include <stdbool.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/procfs.h"

struct parent {
	pid_t pid;
	pid_t parent; /* 0: the process has ended or may not be read */
};

static int compare(const void *left, const void *right)
{
	const struct parent *a = left;
	const struct parent *b = right;

	return (a->pid > b->pid) - (a->pid < b->pid);
}

/*
 * Did a look fail because the daemon lacks memory or descriptors? Then nothing is known about the
 * process.
 */
static bool is_shortage(int result)
{
	return result == -ENOMEM || result == -EMFILE || result == -ENFILE;
}

static int parent_of(struct gcr_proc_lineage *lineage, pid_t pid, pid_t *ret_parent)
{
	_cleanup_free_ struct parent *entry = NULL;
	const struct parent key = {.pid = pid};
	struct gcr_proc_status status;
	struct parent *const *found;
	int r;

	found = tfind(&key, &lineage->parents, compare);
	if (found) {
		*ret_parent = (*found)->parent;
		return 0;
	}
	if (gcr_clock_usec() >= lineage->until_usec)
		return -ETIMEDOUT;
	entry = malloc(sizeof(*entry));
	if (!entry)
		return -ENOMEM;
	r = gcr_proc_status(pid, &status);
	if (is_shortage(r))
		return r;
	lineage->reads++;
	*entry = (struct parent){.pid = pid, .parent = r < 0 ? 0 : status.parent};
	*ret_parent = entry->parent;
	if (!tsearch(entry, &lineage->parents, compare))
		return -ENOMEM;
	TAKE_PTR(entry); /* the tree has it now */
	return 0;
}

int gcr_proc_is_below(struct gcr_proc_lineage *lineage, pid_t pid, pid_t ancestor)
{
	if (gcr_clock_usec() >= lineage->until_usec)
		return -ETIMEDOUT;
	for (int i = 0; i < GCR_PROC_GENERATIONS_MAX && pid > 1; i++) {
		int r = parent_of(lineage, pid, &pid);

		if (r < 0)
			return r;
		if (pid == ancestor)
			return 1;
	}
	return 0;
}

void gcr_proc_lineage_finish(struct gcr_proc_lineage *lineage)
{
	tdestroy(lineage->parents, free);
	lineage->parents = NULL;
}
