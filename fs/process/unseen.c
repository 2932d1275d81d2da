/* SPDX-License-Identifier: MIT */
/*
 * Detection of unobserved sharing. The driver checkpoints a process that shares GPU memory and can
 * never restore it (measured). Where sharing cannot be observed, its signs count: both processes
 * have mapped a library that shares memory.
 */
#include "fs/process/unseen.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/daemon.h"
#include "fs/process/library.h"
#include "fs/process/scan.h"
#include "fs/process/vendor.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/printable.h"
#include "lib/proc_lineage.h"
#include "lib/procfs.h"
#include "lib/sharing_sign.h"

#define FILE_BYTES   64 /* of a displayed file name */
#define PASS_USEC    (10 * GCR_USEC_PER_SEC)
/* For looks at processes that the pass has put off. */
#define UNKNOWN_USEC (10 * GCR_USEC_PER_SEC)

/* For each sharing library, the first mapped file's name; "" if none is mapped. */
struct signs {
	bool any;
	char files[GCR_SHARERS][FILE_BYTES];
};

static int note_sign(const char *path, void *data)
{
	struct signs *signs = data;
	enum gcr_sharer sharer = gcr_sharing_sign(path);
	char *file = signs->files[sharer];

	if (sharer == GCR_SHARER_NONE || *file)
		return 0;
	signs->any = true;
	snprintf(file, FILE_BYTES, "%s", strrchr(path, '/') + 1);
	gcr_make_printable(file);
	return 0;
}

/* Reads a process's mappings; the only place that does. -ESRCH, -EACCES, -ENOMEM. */
static int look(pid_t pid, struct signs *ret_signs)
{
	*ret_signs = (struct signs){0};
	return gcr_proc_each_mapping(pid, note_sign, ret_signs);
}

/*
 * Is one of the two processes the ancestor of the other? True also if the ancestors cannot be read.
 * Siblings count only if they belong to one user (is_of_one_user()): they may be ranks of one
 * launcher, but also orphans of several users adopted by init (or a container's).
 */
static bool is_of_one_line(pid_t one, pid_t other)
{
	_cleanup_(gcr_proc_lineage_finish) struct gcr_proc_lineage lineage = {
		.until_usec = INT64_MAX,
	};

	return gcr_proc_is_below(&lineage, other, one) != 0 ||
	       gcr_proc_is_below(&lineage, one, other) != 0;
}

static bool is_of_one_user(pid_t one, pid_t other)
{
	struct gcr_proc_status status, other_status;

	return gcr_proc_status(one, &status) == 0 && gcr_proc_status(other, &other_status) == 0 &&
	       status.effective_uid == other_status.effective_uid;
}

/*
 * Does the preload library report that the process shares nothing? Both sides of a sharing have
 * called the driver for it, and the library has observed such calls.
 */
static bool shares_nothing(struct gcr_process *process)
{
	struct gcr_page_facts facts;

	return gcr_library_facts(process, &facts) == 0 && !*facts.incomplete && !*facts.obstacle &&
	       !facts.sharings && gcr_vendor_has_library(process->vendor, facts.flags);
}

static int refuse(enum gcr_sharer sharer, const char *file, struct gcr_process *other,
		  struct gcr_error *error)
{
	char comm[GCR_COMM_BYTES];

	pthread_mutex_lock(&other->lock);
	memcpy(comm, other->comm, sizeof(comm));
	pthread_mutex_unlock(&other->lock);
	return gcr_error_set(error, EOPNOTSUPP,
			     "it may share GPU memory with process %d (%s): both have mapped %s "
			     "(%s), whose sharing cannot be seen without the preload library, and "
			     "what shares cannot come back; start both with gpucr-run, or, if they "
			     "share none, say unseen (freeze unseen)",
			     (int)other->pid, comm, file, gcr_sharer_name(sharer));
}

/*
 * Checks a listed process: refuses if it has mapped a sharing library that @signs has too.
 * -EOPNOTSUPP, -ENOMEM, with a message.
 */
static int check_other(struct gcr_process *process, const struct signs *signs,
		       struct gcr_process *other, struct gcr_error *error)
{
	struct signs there;
	int r;

	if (other == process || shares_nothing(other) ||
	    (!is_of_one_user(process->pid, other->pid) &&
	     !is_of_one_line(process->pid, other->pid)))
		return 0;
	r = look(other->pid, &there);
	if (r == -ESRCH)
		return 0;
	if (r == -ENOMEM)
		return gcr_error_set(error, ENOMEM, "out of memory");
	/* A process that must not be looked at may have mapped any of them. */
	for (int i = GCR_SHARER_NONE + 1; i < GCR_SHARERS; i++)
		if (*signs->files[i] && (r < 0 || *there.files[i]))
			return refuse((enum gcr_sharer)i, signs->files[i], other, error);
	return 0;
}

/* Is the pid in the list? Then check_other() has judged the process. */
static bool is_listed(struct gcr_process **list, size_t count, pid_t pid)
{
	for (size_t i = 0; i < count; i++)
		if (list[i]->pid == pid)
			return true;
	return false;
}

static int refuse_unknown(enum gcr_sharer sharer, const char *file, pid_t other,
			  struct gcr_error *error)
{
	return gcr_error_set(
		error, ETIMEDOUT,
		"it has mapped %s (%s), and whether process %d, with which it may "
		"share GPU memory by that, uses a GPU is not known: that process could "
		"not be looked at in time; try again, or, if they share none, say "
		"unseen (freeze unseen)",
		file, gcr_sharer_name(sharer), (int)other);
}

/*
 * Checks a process that passes have put off, which may use a GPU. If it would count as a GPU
 * process, and has mapped the same sharing library, it is looked at alone, with more time.
 */
static int check_unknown(struct gcr_process *process, const struct signs *signs, pid_t other,
			 struct gcr_error *error)
{
	enum gcr_sharer sharer = GCR_SHARER_NONE;
	struct gcr_process *found;
	struct signs there;
	int r;

	if (!is_of_one_user(process->pid, other) && !is_of_one_line(process->pid, other))
		return 0;
	r = look(other, &there);
	if (r == -ESRCH)
		return 0;
	if (r == -ENOMEM)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (int i = GCR_SHARER_NONE + 1; i < GCR_SHARERS && sharer == GCR_SHARER_NONE; i++)
		if (*signs->files[i] && (r < 0 || *there.files[i]))
			sharer = (enum gcr_sharer)i;
	if (sharer == GCR_SHARER_NONE)
		return 0;
	r = gcr_scan_probe(process->daemon->scan, other, NULL);
	if (r == 0 || r == -ESRCH)
		return 0;
	if (r < 0 || gcr_processes_find(process->daemon->processes, other, &found) < 0)
		return refuse_unknown(sharer, signs->files[sharer], other, error);
	r = check_other(process, signs, found, error);
	gcr_process_unref(found);
	return r;
}

/* Checks the processes that a pass has put off and that are not in the list. */
static int check_all_unknown(struct gcr_process *process, const struct signs *signs,
			     const pid_t *unknown, size_t unknown_count, struct gcr_process **list,
			     size_t count, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + UNKNOWN_USEC;
	int r = 0;

	for (size_t i = 0; i < unknown_count && !r; i++) {
		if (is_listed(list, count, unknown[i]) || unknown[i] == process->pid)
			continue;
		if (gcr_clock_usec() >= until_usec)
			return gcr_error_set(error, ETIMEDOUT,
					     "whether it shares GPU memory is not known: %zu "
					     "processes could not be looked at in time; try again, "
					     "or, if it shares none, say unseen (freeze unseen)",
					     unknown_count - i);
		r = check_unknown(process, signs, unknown[i], error);
	}
	return r;
}

/* Waits for a pass that begins now, so that a process that has just started is included. */
static int look_at_all(struct gcr_process *process, struct gcr_error *error)
{
	struct gcr_scan *scan = process->daemon->scan;
	int r = scan ? gcr_scan_now(scan, PASS_USEC) : 0;

	if (r == -ETIMEDOUT)
		return gcr_error_set(
			error, ETIMEDOUT,
			"whether it shares GPU memory is not known: the other "
			"processes could not be looked at in time; try again, or, if it "
			"shares none, say unseen (freeze unseen)");
	if (r < 0)
		return gcr_error_set(error, -r, "the GPU processes cannot be listed: %s",
				     strerror(-r));
	return 0;
}

int gcr_unseen_check(struct gcr_process *process, struct gcr_error *error)
{
	_cleanup_free_ pid_t *unknown = NULL;
	struct gcr_process **list;
	struct signs signs;
	size_t unknown_count = 0;
	size_t count;
	int r;

	r = look(process->pid, &signs);
	if (r == -ESRCH)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
	if (r < 0)
		return gcr_error_set(error, r == -ENOMEM ? ENOMEM : EOPNOTSUPP,
				     "whether it shares GPU memory cannot be seen, nor what it has "
				     "mapped: %s; if it shares none, say unseen (freeze unseen)",
				     strerror(-r));
	if (!signs.any)
		return 0;
	r = look_at_all(process, error);
	if (r < 0)
		return r;
	/* In this order: a process found by a pass in between is in one of the two lists. */
	r = process->daemon->scan
		    ? gcr_scan_unknown(process->daemon->scan, &unknown, &unknown_count)
		    : 0;
	if (r == 0)
		r = gcr_processes_list(process->daemon->processes, &list, &count);
	if (r < 0)
		return gcr_error_set(error, -r, "out of memory");
	for (size_t i = 0; i < count && !r; i++)
		r = check_other(process, &signs, list[i], error);
	if (!r)
		r = check_all_unknown(process, &signs, unknown, unknown_count, list, count, error);
	gcr_processes_list_free(list, count);
	return r;
}
