/* SPDX-License-Identifier: MIT */
/* The table of silent processes: small, and empty on most machines. */
#include "fs/helper/looker_silent.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

static void remove_entry(struct gcr_silent *silent, unsigned int index)
{
	if (silent->entries[index].pidfd >= 0)
		close(silent->entries[index].pidfd);
	silent->entries[index] = silent->entries[--silent->count];
}

/*
 * Has the process ended, so that its pid may be reused? Without a pidfd the entry expires after one
 * more pause. So does a comparison's entry: only a verb compares, and the other process may have
 * been at fault.
 */
static bool is_over(const struct gcr_silent_entry *entry, int64_t now_usec)
{
	struct pollfd end = {.fd = entry->pidfd, .events = POLLIN};

	if ((entry->pidfd < 0 || entry->kind == GCR_SILENT_COMPARED) &&
	    now_usec >= entry->until_usec + entry->pause_usec)
		return true;
	return entry->pidfd >= 0 && poll(&end, 1, 0) == 1;
}

static void drop_ended(struct gcr_silent *silent, int64_t now_usec)
{
	for (unsigned int i = silent->count; i-- > 0;)
		if (is_over(&silent->entries[i], now_usec))
			remove_entry(silent, i);
}

/* Does a process that is silent for kind @silent not answer a look of @kind either? */
static bool includes(enum gcr_silent_kind silent, enum gcr_silent_kind kind)
{
	return silent == kind || (silent == GCR_SILENT_ALL && kind != GCR_SILENT_SENT);
}

bool gcr_silent_pauses(struct gcr_silent *silent, pid_t pid, enum gcr_silent_kind kind,
		       int64_t now_usec)
{
	if (!silent->count)
		return false;
	drop_ended(silent, now_usec);
	for (unsigned int i = 0; i < silent->count; i++) {
		const struct gcr_silent_entry *entry = &silent->entries[i];

		if (entry->pid == pid && now_usec < entry->until_usec &&
		    includes(entry->kind, kind))
			return true;
	}
	return false;
}

static struct gcr_silent_entry *find(struct gcr_silent *silent, pid_t pid,
				     enum gcr_silent_kind kind)
{
	for (unsigned int i = 0; i < silent->count; i++)
		if (silent->entries[i].pid == pid && silent->entries[i].kind == kind)
			return &silent->entries[i];
	return NULL;
}

static struct gcr_silent_entry *add(struct gcr_silent *silent, pid_t pid)
{
	if (silent->count == GCR_SILENT_MAX) {
		unsigned int first = 0;

		for (unsigned int i = 1; i < silent->count; i++)
			if (silent->entries[i].until_usec < silent->entries[first].until_usec)
				first = i;
		remove_entry(silent, first);
	}
	silent->entries[silent->count] = (struct gcr_silent_entry){
		.pid = pid,
		.pidfd = (int)syscall(SYS_pidfd_open, pid, 0),
	};
	return &silent->entries[silent->count++];
}

void gcr_silent_note(struct gcr_silent *silent, pid_t pid, enum gcr_silent_kind kind, uid_t uid,
		     int64_t now_usec)
{
	struct gcr_silent_entry *entry = find(silent, pid, kind);

	if (!entry)
		entry = add(silent, pid);
	entry->kind = kind;
	entry->uid = uid;
	entry->pause_usec *= 2;
	if (entry->pause_usec < GCR_SILENT_MIN_USEC)
		entry->pause_usec = GCR_SILENT_MIN_USEC;
	if (entry->pause_usec > GCR_SILENT_TOP_USEC)
		entry->pause_usec = GCR_SILENT_TOP_USEC;
	entry->until_usec = now_usec + entry->pause_usec;
}

void gcr_silent_forget(struct gcr_silent *silent, pid_t pid, enum gcr_silent_kind kind)
{
	for (unsigned int i = silent->count; i-- > 0;)
		if (silent->entries[i].pid == pid && includes(silent->entries[i].kind, kind))
			remove_entry(silent, i);
}

bool gcr_silent_has(const struct gcr_silent *silent, pid_t pid)
{
	for (unsigned int i = 0; i < silent->count; i++)
		if (silent->entries[i].pid == pid && silent->entries[i].kind != GCR_SILENT_COMPARED)
			return true;
	return false;
}

unsigned int gcr_silent_count(const struct gcr_silent *silent, uid_t uid)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < silent->count; i++)
		count += silent->entries[i].uid == uid;
	return count;
}

void gcr_silent_finish(struct gcr_silent *silent)
{
	while (silent->count)
		remove_entry(silent, 0);
}
