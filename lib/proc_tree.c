/* SPDX-License-Identifier: MIT */
/* Walking from a process down to its descendants. Blocks only on /proc, keeps no state. */
#include "lib/proc_tree.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "lib/proc_text.h"

#define WALKS_MAX 50

int gcr_proc_parse_children(const char *text, int (*visit)(pid_t child, void *data), void *data)
{
	for (;;) {
		char *end;
		pid_t child = (pid_t)strtol(text, &end, 10);
		int r;

		if (end == text)
			return 0;
		text = end;
		/* 0: a child that is not visible in our pid namespace */
		r = child > 0 ? visit(child, data) : 0;
		if (r)
			return r;
	}
}

/* Visits the children that one thread has made, or that were reparented to it. */
static int each_child_of_thread(pid_t pid, int thread, int (*visit)(pid_t child, void *data),
				void *data)
{
	_cleanup_free_ char *children = NULL;
	char name[sizeof("task//children") + 3 * sizeof(thread)];
	char path[GCR_PROC_PATH_BYTES];
	int r;

	snprintf(name, sizeof(name), "task/%d/children", thread);
	r = gcr_proc_read(pid, name, &children, NULL);
	if (r == -ESRCH) {
		/* The thread has ended, or the kernel has no such file. */
		snprintf(name, sizeof(name), "task/%d/stat", thread);
		gcr_proc_path(path, pid, name);
		return access(path, F_OK) == 0 ? -EOPNOTSUPP : 0;
	}
	return r < 0 ? r : gcr_proc_parse_children(children, visit, data);
}

static int each_child_until(pid_t pid, int64_t until_usec, int (*visit)(pid_t child, void *data),
			    void *data)
{
	_cleanup_closedir_ DIR *tasks = NULL;
	char path[GCR_PROC_PATH_BYTES];
	struct dirent *task;
	int r = 0;

	if (pid <= 0)
		return -ESRCH;
	gcr_proc_path(path, pid, "task");
	tasks = opendir(path);
	if (!tasks)
		return gcr_proc_error(errno);
	while (r == 0 && (task = readdir(tasks))) {
		int thread = atoi(task->d_name);

		if (thread <= 0)
			continue;
		if (gcr_clock_usec() >= until_usec)
			return -ETIME;
		r = each_child_of_thread(pid, thread, visit, data);
	}
	return r;
}

int gcr_proc_each_child(pid_t pid, int (*visit)(pid_t child, void *data), void *data)
{
	return each_child_until(pid, INT64_MAX, visit, data);
}

struct walk {
	const struct gcr_proc_tree_limits *limits;
	struct gcr_proc_member *members;
	size_t count, room;
	pid_t parent; /* the process whose children are visited */
};

static void free_walk(struct walk *walk)
{
	free(walk->members);
}

static int add_member(struct walk *walk, pid_t pid, const struct gcr_proc_stat *stat)
{
	struct gcr_proc_member *member;

	if (walk->count == walk->room) {
		size_t room = walk->room ? walk->room * 2 : 16;
		void *longer = reallocarray(walk->members, room, sizeof(*walk->members));

		if (!longer)
			return -ENOMEM;
		walk->members = longer;
		walk->room = room;
	}
	member = &walk->members[walk->count++];
	*member = (struct gcr_proc_member){
		.pid = pid,
		.parent = stat->parent,
		.start_ticks = stat->start_ticks,
		.state = stat->state,
	};
	memcpy(member->comm, stat->comm, sizeof(member->comm));
	return 0;
}

static int add_child(pid_t child, void *data)
{
	struct walk *walk = data;
	struct gcr_proc_stat stat;
	int r;

	if (gcr_clock_usec() >= walk->limits->until_usec)
		return -ETIME;
	r = gcr_proc_stat(child, &stat);
	/*
	 * The child has ended or was reparented: the next walk does not find it here, so this walk
	 * is not the last one.
	 */
	if (r == -ESRCH || (r == 0 && stat.parent != walk->parent))
		return 0;
	if (r < 0)
		return gcr_proc_is_silent(r) ? -ETIMEDOUT : r;
	if (walk->count == walk->limits->members_max)
		return -E2BIG;
	/* listed twice: reparented to another thread or within the tree during the walk */
	for (size_t i = 0; i < walk->count; i++)
		if (walk->members[i].pid == child)
			return 0;
	return add_member(walk, child, &stat);
}

/*
 * Lists @root and its descendants in @walk. -ESRCH: the root does not exist; -ETIME: the deadline
 * has passed; -ETIMEDOUT: a process could not be looked at in time; -E2BIG, -EACCES, -ENOMEM, ...
 */
static int walk_down(struct walk *walk, pid_t root)
{
	struct gcr_proc_stat stat;
	int r = gcr_proc_stat(root, &stat);

	walk->count = 0;
	if (gcr_proc_is_silent(r))
		r = -ETIMEDOUT;
	if (r == 0)
		r = add_member(walk, root, &stat);
	/* The list grows during the loop. */
	for (size_t i = 0; i < walk->count && r == 0; i++) {
		walk->parent = walk->members[i].pid;
		r = each_child_until(walk->parent, walk->limits->until_usec, add_child, walk);
		if (r == -ESRCH && i > 0)
			r = 0;
	}
	return r;
}

static bool are_same(const struct walk *a, const struct walk *b)
{
	if (a->count != b->count)
		return false;
	for (size_t i = 0; i < a->count; i++)
		if (a->members[i].pid != b->members[i].pid ||
		    a->members[i].parent != b->members[i].parent ||
		    a->members[i].start_ticks != b->members[i].start_ticks)
			return false;
	return true;
}

static int set_words(int r, pid_t root, const struct gcr_proc_tree_limits *limits,
		     struct gcr_error *error)
{
	switch (r) {
	case -ESRCH:
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)root);
	case -EBUSY:
		return gcr_error_set(error, EBUSY,
				     "the processes below process %d change all the time",
				     (int)root);
	case -ETIMEDOUT:
		return gcr_error_set(error, ETIMEDOUT,
				     "process %d, or one below it, " GCR_PROC_SILENT_WORDS,
				     (int)root);
	case -ETIME:
		return gcr_error_set(error, ETIMEDOUT,
				     "the processes below process %d cannot be listed in time",
				     (int)root);
	case -E2BIG:
		return gcr_error_set(error, E2BIG, "process %d has more than %u processes below it",
				     (int)root, limits->members_max - 1);
	case -EOPNOTSUPP:
		return gcr_error_set(error, EOPNOTSUPP,
				     "this kernel does not tell a process's children "
				     "(CONFIG_PROC_CHILDREN)");
	case -ENOMEM:
		return gcr_error_set(error, ENOMEM, "out of memory");
	default:
		return gcr_error_set(error, -r, "the processes below process %d cannot be read: %s",
				     (int)root, strerror(-r));
	}
}

int gcr_proc_tree_within(pid_t root, const struct gcr_proc_tree_limits *limits,
			 struct gcr_proc_member **ret_members, size_t *ret_count,
			 struct gcr_error *error)
{
	_cleanup_(free_walk) struct walk before = {.limits = limits};
	_cleanup_(free_walk) struct walk now = {.limits = limits};
	bool is_exact = false;
	int r = walk_down(&now, root);

	for (unsigned int i = 1; r == 0 && !is_exact && i < limits->walks_max; i++) {
		struct walk older = before;

		before = now;
		now = older;
		r = walk_down(&now, root);
		is_exact = r == 0 && are_same(&before, &now);
	}
	if (r == 0 && !is_exact && !limits->takes_changing)
		r = -EBUSY;
	if (r == -ETIME && before.count && limits->takes_changing) {
		*ret_count = before.count;
		*ret_members = TAKE_PTR(before.members);
		return 0;
	}
	if (r < 0)
		return set_words(r, root, limits, error);
	*ret_count = now.count;
	*ret_members = TAKE_PTR(now.members);
	return 0;
}

int gcr_proc_tree(pid_t root, struct gcr_proc_member **ret_members, size_t *ret_count,
		  struct gcr_error *error)
{
	static const struct gcr_proc_tree_limits limits = {
		.members_max = GCR_PROC_TREE_MAX,
		.walks_max = WALKS_MAX,
		.until_usec = INT64_MAX,
	};

	return gcr_proc_tree_within(root, &limits, ret_members, ret_count, error);
}
