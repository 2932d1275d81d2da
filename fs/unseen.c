/* SPDX-License-Identifier: MIT */
/*
 * The driver checkpoints a process that shares GPU memory and can never restore it (measured), so
 * where sharing cannot be seen its signs count: libraries that share are mapped in both processes.
 */
#include "fs/unseen.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/daemon.h"
#include "fs/link.h"
#include "fs/scan.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/procfs.h"
#include "lib/sharing_sign.h"

#define FILE_BYTES	64 /* of a file's name that is shown */
#define GENERATIONS_MAX 64 /* a bound for what changes while we look */

/* The files of each library that a process has mapped: the first one's name, "" if there is none.
 */
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
	for (char *byte = file; *byte; byte++)
		if ((unsigned char)*byte < 0x20 || (unsigned char)*byte >= 0x7f)
			*byte = '?';
	return 0;
}

/* The one place that looks at a process's mappings. -ESRCH, -EACCES, -ENOMEM. */
static int look(pid_t pid, struct signs *ret_signs)
{
	*ret_signs = (struct signs){0};
	return gcr_proc_each_mapping(pid, note_sign, ret_signs);
}

static bool is_ancestor(pid_t ancestor, pid_t pid)
{
	struct gcr_proc_stat stat;

	for (int i = 0; i < GENERATIONS_MAX && pid > 1; i++) {
		if (gcr_proc_stat(pid, &stat) < 0)
			return false;
		if (stat.parent == ancestor)
			return true;
		pid = stat.parent;
	}
	return false;
}

/*
 * Siblings count only as processes of one user: they may be the ranks of one launcher, but also
 * orphans of several users, whose init, a container's too, has adopted them.
 */
static bool is_of_one_line(pid_t one, pid_t other)
{
	return is_ancestor(one, other) || is_ancestor(other, one);
}

static bool is_of_one_user(pid_t one, pid_t other)
{
	struct gcr_proc_status status, other_status;

	return gcr_proc_status(one, &status) == 0 && gcr_proc_status(other, &other_status) == 0 &&
	       status.effective_uid == other_status.effective_uid;
}

/* Two that share have both called the driver for it, and its library has seen that. */
static bool shares_nothing(struct gcr_process *process)
{
	struct gcr_link_facts facts;

	return gcr_link_facts(process, &facts) == 0 && !*facts.incomplete && !*facts.obstacle &&
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
	/* One that must not be looked at may have any of them. */
	for (int i = GCR_SHARER_NONE + 1; i < GCR_SHARERS; i++)
		if (*signs->files[i] && (r < 0 || *there.files[i]))
			return refuse((enum gcr_sharer)i, signs->files[i], other, error);
	return 0;
}

int gcr_unseen_check(struct gcr_process *process, struct gcr_error *error)
{
	struct gcr_process **list;
	struct signs signs;
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
	/* The other one may have begun to use its GPU a moment ago. */
	r = process->daemon->scan ? gcr_scan_now(process->daemon->scan, 10 * GCR_USEC_PER_SEC) : 0;
	if (r < 0)
		return gcr_error_set(error, -r, "the GPU processes cannot be listed: %s",
				     strerror(-r));
	r = gcr_processes_list(process->daemon->processes, &list, &count);
	if (r < 0)
		return gcr_error_set(error, -r, "out of memory");
	for (size_t i = 0; i < count && !r; i++)
		r = check_other(process, &signs, list[i], error);
	gcr_processes_list_free(list, count);
	return r;
}
