/* SPDX-License-Identifier: MIT */
/*
 * Passes of the scan. Their state belongs to the thread that makes the passes, except for the list
 * of unknown processes, which pass->lock guards.
 */
#include "fs/process/scan_pass.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/process/scan_late.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

/*
 * Time limits of one pass: for one owner; for root or the daemon's own user; for all other owners
 * together.
 */
#define SHARE_USEC	   (200 * GCR_USEC_PER_MSEC)
#define SHARE_TRUSTED_USEC (2 * GCR_USEC_PER_SEC)
#define SHARE_ALL_USEC	   (800 * GCR_USEC_PER_MSEC)

#define BATCH 256 /* processes per request */

struct holders {
	struct gcr_scan_holder *list;
	size_t count;
	size_t room;
};

/* A process to look at. */
struct subject {
	pid_t pid;
	uid_t owner;
	int64_t used_usec; /* by its owner in the last pass: smaller values come first */
	bool is_done;	   /* has been looked at; else put off */
	bool is_slow;	   /* put off because the process blocks looks */
	struct gcr_scan_found found;
};

struct subjects {
	struct subject *list;
	size_t count;
	size_t room;
};

/* The time that an owner has used in a pass. */
struct use {
	uid_t owner;
	int64_t used_usec;
};

struct uses {
	struct use *list;
	size_t count;
	size_t room;
};

struct gcr_pass {
	const struct gcr_scan_config *config;
	const struct gcr_scan_wanted *wanted;
	struct gcr_late *late;
	struct holders last; /* the last report */
	struct uses uses;    /* of the current pass, or of the last one */
	int64_t all_usec;    /* used in it by all owners that are not trusted */

	pthread_mutex_t lock;
	pid_t *unknown; /* put off by the last pass */
	size_t unknown_count;
};

/* Makes room for one more element of the lists above. 0 or -ENOMEM. */
#define GROW(array)                                                                           \
	({                                                                                    \
		size_t room_ = (array)->room ? (array)->room * 2 : 64;                        \
		void *larger_ =                                                               \
			(array)->count < (array)->room                                        \
				? (array)->list                                               \
				: reallocarray((array)->list, room_, sizeof(*(array)->list)); \
		if (larger_ && (array)->count == (array)->room)                               \
			(array)->room = room_;                                                \
		if (larger_)                                                                  \
			(array)->list = larger_;                                              \
		larger_ ? 0 : -ENOMEM;                                                        \
	})

static void free_holders(struct holders *holders)
{
	free(holders->list);
}

static void free_subjects(struct subjects *subjects)
{
	free(subjects->list);
}

static int add_holder(struct holders *holders, const struct gcr_scan_holder *holder)
{
	int r = GROW(holders);

	if (r == 0)
		holders->list[holders->count++] = *holder;
	return r;
}

static int compare_holders(const void *a, const void *b)
{
	const struct gcr_scan_holder *left = a;
	const struct gcr_scan_holder *right = b;

	return left->pid < right->pid ? -1 : left->pid > right->pid;
}

static int compare_subjects(const void *a, const void *b)
{
	const struct subject *left = a;
	const struct subject *right = b;

	if (left->used_usec != right->used_usec)
		return left->used_usec < right->used_usec ? -1 : 1;
	if (left->owner != right->owner)
		return left->owner < right->owner ? -1 : 1;
	return left->pid < right->pid ? -1 : left->pid > right->pid;
}

static bool is_trusted(uid_t owner)
{
	return !owner || owner == geteuid();
}

/* Did a look fail because memory or descriptors are lacking? */
static bool is_no_room(int result)
{
	return result == -EMFILE || result == -ENFILE || result == -ENOMEM;
}

static const struct gcr_scan_holder *find_last(const struct gcr_pass *pass, pid_t pid)
{
	struct gcr_scan_holder key = {.pid = pid};

	return pass->last.count ? bsearch(&key, pass->last.list, pass->last.count, sizeof(key),
					  compare_holders)
				: NULL;
}

/* ---- shares ---- */

static struct use *find_use(const struct uses *uses, uid_t owner)
{
	for (size_t i = 0; i < uses->count; i++)
		if (uses->list[i].owner == owner)
			return &uses->list[i];
	return NULL;
}

/* The rest of an owner's share in the current pass. */
static int64_t share_left(const struct gcr_pass *pass, uid_t owner)
{
	const struct use *use = find_use(&pass->uses, owner);
	int64_t used_usec = use ? use->used_usec : 0;
	int64_t left_usec = (is_trusted(owner) ? SHARE_TRUSTED_USEC : SHARE_USEC) - used_usec;

	if (!is_trusted(owner) && left_usec > SHARE_ALL_USEC - pass->all_usec)
		left_usec = SHARE_ALL_USEC - pass->all_usec;
	return left_usec;
}

static void note_use(struct gcr_pass *pass, uid_t owner, int64_t usec)
{
	struct use *use = find_use(&pass->uses, owner);

	if (!is_trusted(owner))
		pass->all_usec += usec;
	if (!use && GROW(&pass->uses) == 0) {
		use = &pass->uses.list[pass->uses.count++];
		*use = (struct use){.owner = owner};
	}
	if (use)
		use->used_usec += usec;
}

/* ---- looks ---- */

static uid_t owner_of(const struct gcr_pass *pass, pid_t pid)
{
	return pass->config->owner_of ? pass->config->owner_of(pid) : 0;
}

/* Looks one by one, with the scan's configured function. */
static int look_each(const struct gcr_pass *pass, const pid_t *pids, size_t count,
		     int64_t budget_usec, struct gcr_scan_found *ret_found, size_t *ret_done)
{
	int64_t until_usec = gcr_clock_usec() + budget_usec;
	size_t done = 0;

	while (done < count && (!done || gcr_clock_usec() < until_usec)) {
		struct gcr_scan_found *found = &ret_found[done];
		int r;

		*found = (struct gcr_scan_found){0};
		r = pass->config->look(pids[done++], pass->wanted, &found->devices,
				       &found->start_ticks);
		found->error = r < 0 ? -r : 0;
	}
	*ret_done = done;
	return 0;
}

/* Looks at @count processes (at most BATCH) of one owner. */
static int look_at_batch(const struct gcr_pass *pass, struct subject *subjects, size_t count,
			 int64_t budget_usec, size_t *ret_done)
{
	struct gcr_scan_found found[BATCH];
	pid_t pids[BATCH];
	int r;

	for (size_t i = 0; i < count; i++)
		pids[i] = subjects[i].pid;
	r = pass->config->look_many
		    ? pass->config->look_many(subjects->owner, pids, count, pass->wanted,
					      budget_usec, found, ret_done)
		    : look_each(pass, pids, count, budget_usec, found, ret_done);
	if (r < 0)
		return r;
	for (size_t i = 0; i < *ret_done; i++) {
		bool is_silent = gcr_proc_is_silent(-found[i].error) || found[i].error == EIO;

		subjects[i].found = found[i];
		subjects[i].is_done = !is_silent;
		subjects[i].is_slow = is_silent;
		if (is_no_room(-found[i].error))
			return -found[i].error;
	}
	return 0;
}

/*
 * Looks at consecutive processes of one owner, within the share. -ENOMEM, -EMFILE, -ENFILE: looks
 * fail for lack of resources, whatever the process.
 */
static int look_at_owner(struct gcr_pass *pass, struct subject *subjects, size_t count)
{
	uid_t owner = subjects->owner;

	while (count) {
		int64_t budget_usec = share_left(pass, owner);
		int64_t began_usec = gcr_clock_usec();
		size_t done = 0;
		int r;

		if (budget_usec <= 0)
			return 0;
		r = look_at_batch(pass, subjects, count < BATCH ? count : BATCH, budget_usec,
				  &done);
		note_use(pass, owner, gcr_clock_usec() - began_usec);
		if (is_no_room(r))
			return r;
		/* No helper is available for this owner. */
		if (r < 0 || !done)
			return 0;
		subjects += done;
		count -= done;
	}
	return 0;
}

static size_t count_of_owner(const struct subject *subjects, size_t count)
{
	size_t of_owner = 0;

	while (of_owner < count && subjects[of_owner].owner == subjects->owner)
		of_owner++;
	return of_owner;
}

static int look_at(struct gcr_pass *pass, struct subjects *subjects)
{
	if (subjects->count)
		qsort(subjects->list, subjects->count, sizeof(*subjects->list), compare_subjects);
	for (size_t i = 0; i < subjects->count;) {
		size_t count = count_of_owner(&subjects->list[i], subjects->count - i);
		int r = look_at_owner(pass, &subjects->list[i], count);

		if (r < 0)
			return r;
		i += count;
	}
	return 0;
}

/* ---- a pass ---- */

/* Has the process this start time? If unreadable, assume so: the pidfd reports an end. */
static bool start_is(pid_t pid, uint64_t start_ticks)
{
	struct gcr_proc_stat stat;
	int r = gcr_proc_stat(pid, &stat);

	return r == 0 ? stat.start_ticks == start_ticks : gcr_proc_is_silent(r);
}

static int add_subject(const struct gcr_pass *pass, const struct uses *before, pid_t pid,
		       struct subjects *subjects)
{
	uid_t owner = owner_of(pass, pid);
	const struct use *use = find_use(before, owner);
	int r = GROW(subjects);

	if (r == 0)
		subjects->list[subjects->count++] = (struct subject){
			.pid = pid,
			.owner = owner,
			.used_usec = is_trusted(owner) ? -1
				     : use	       ? use->used_usec
						       : 0,
		};
	return r;
}

/*
 * Lists the processes to look at, of all owners. With @known, processes that were reported before
 * go to @found instead. Slow processes go to @slow.
 */
static int find_subjects(struct gcr_pass *pass, const struct uses *before, bool known,
			 struct subjects *subjects, struct subjects *slow, struct holders *found)
{
	_cleanup_closedir_ DIR *proc = opendir("/proc");

	if (!proc)
		return -errno;
	for (;;) {
		const struct gcr_scan_holder *old;
		struct dirent *entry;
		struct stat status;
		pid_t pid;
		int r;

		errno = 0;
		entry = readdir(proc);
		if (!entry)
			return -errno;
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		pid = (pid_t)strtol(entry->d_name, NULL, 10);
		old = find_last(pass, pid);
		if (pass->config->only_uid != (uid_t)-1 &&
		    (fstatat(dirfd(proc), entry->d_name, &status, 0) < 0 ||
		     status.st_uid != pass->config->only_uid))
			continue;
		if (known && old && start_is(pid, old->start_ticks))
			r = add_holder(found, old);
		else
			r = add_subject(pass, before, pid,
					gcr_late_is_slow(pass->late, pid) ? slow : subjects);
		if (r < 0)
			return r;
	}
}

/*
 * Adds a process that the pass has put off, with the devices that a late look has found, or else
 * with those of the last pass; and queues a late look.
 */
static int take_put_off(struct gcr_pass *pass, const struct subject *subject, struct holders *found)
{
	const struct gcr_scan_holder *old = find_last(pass, subject->pid);
	struct gcr_scan_found late;
	struct gcr_scan_holder holder = {.pid = subject->pid};
	int r = 0;

	if (gcr_late_ask(pass->late, subject->pid, subject->owner, subject->is_slow, &late)) {
		holder.devices = late.devices;
		holder.start_ticks = late.start_ticks;
	} else if (old) {
		holder = *old;
	}
	if (holder.devices && pass->config->ignore &&
	    pass->config->ignore(subject->pid, pass->config->data))
		holder.devices = 0;
	if (holder.devices)
		r = add_holder(found, &holder);
	gcr_late_report(pass->late, subject->pid, holder.devices);
	return r;
}

static int take_found(struct gcr_pass *pass, const struct subject *subject, struct holders *found)
{
	struct gcr_scan_holder holder = {
		.pid = subject->pid,
		.devices = subject->found.devices,
		.start_ticks = subject->found.start_ticks,
	};

	/* The process has ended, or is hidden from us: no holder. */
	if (subject->found.error || !holder.devices ||
	    (pass->config->ignore && pass->config->ignore(subject->pid, pass->config->data)))
		return 0;
	return add_holder(found, &holder);
}

/* Collects the results of all subjects. Those put off are also added to @put_off. */
static int take_all(struct gcr_pass *pass, const struct subjects *subjects, struct holders *found,
		    pid_t *put_off, size_t *count)
{
	int r = 0;

	for (size_t i = 0; i < subjects->count && r == 0; i++) {
		const struct subject *subject = &subjects->list[i];

		if (subject->is_done) {
			r = take_found(pass, subject, found);
			continue;
		}
		put_off[(*count)++] = subject->pid;
		r = take_put_off(pass, subject, found);
	}
	return r;
}

/*
 * Makes the looks of a pass. @found: the holders to report; *ret_put_off: the processes that were
 * put off, which the caller frees. -errno: see gcr_pass_run().
 */
static int walk(struct gcr_pass *pass, bool known, struct holders *found, pid_t **ret_put_off,
		size_t *ret_count)
{
	_cleanup_(free_subjects) struct subjects subjects = {};
	_cleanup_(free_subjects) struct subjects slow = {};
	_cleanup_free_ pid_t *put_off = NULL;
	struct uses before = pass->uses;
	size_t count = 0;
	int r;

	pass->uses = (struct uses){};
	pass->all_usec = 0;
	r = find_subjects(pass, &before, known, &subjects, &slow, found);
	free(before.list);
	if (r < 0)
		return r;
	r = look_at(pass, &subjects);
	if (r < 0)
		return r;
	put_off = calloc(subjects.count + slow.count + 1, sizeof(*put_off));
	if (!put_off)
		return -ENOMEM;
	gcr_late_begin(pass->late);
	r = take_all(pass, &subjects, found, put_off, &count);
	if (r == 0)
		r = take_all(pass, &slow, found, put_off, &count);
	if (r < 0)
		return r;
	gcr_late_end(pass->late);
	if (found->count)
		qsort(found->list, found->count, sizeof(*found->list), compare_holders);
	*ret_put_off = TAKE_PTR(put_off);
	*ret_count = count;
	return 0;
}

int gcr_pass_run(struct gcr_pass *pass, bool known)
{
	_cleanup_(free_holders) struct holders found = {};
	pid_t *put_off = NULL;
	size_t count = 0;
	int r = walk(pass, known, &found, &put_off, &count);

	if (r < 0)
		return r;
	free_holders(&pass->last);
	pass->last = found;
	found = (struct holders){};
	pass->config->pass(pass->last.list, pass->last.count, pass->config->data);
	/* After the report: a process missing from this list has been covered by it. */
	GCR_LOCK_SCOPE(&pass->lock);
	free(pass->unknown);
	pass->unknown = put_off;
	pass->unknown_count = count;
	return 0;
}

void gcr_pass_look_again(struct gcr_pass *pass, const pid_t *pids, size_t count,
			 bool *ret_holds_none)
{
	_cleanup_(free_subjects) struct subjects subjects = {};

	for (size_t i = 0; i < count; i++) {
		ret_holds_none[i] = gcr_late_holds_none(pass->late, pids[i]);
		if (!gcr_late_is_slow(pass->late, pids[i]))
			add_subject(pass, &pass->uses, pids[i], &subjects);
	}
	look_at(pass, &subjects);
	for (size_t i = 0; i < subjects.count; i++)
		for (size_t j = 0; j < count; j++)
			if (subjects.list[i].is_done && pids[j] == subjects.list[i].pid)
				ret_holds_none[j] = !subjects.list[i].found.error &&
						    !subjects.list[i].found.devices;
}

/* ---- from any thread ---- */

int gcr_pass_holds_device(struct gcr_pass *pass, int process_fd, pid_t pid,
			  struct gcr_scan_holder *ret_holder)
{
	const struct gcr_scan_config *config = pass->config;
	struct gcr_scan_holder holder = {.pid = pid};
	struct stat status;
	int r;

	if (fstat(process_fd, &status) < 0)
		return -errno;
	if (config->only_uid != (uid_t)-1 && status.st_uid != config->only_uid)
		return 0;
	r = config->look(pid, pass->wanted, &holder.devices, &holder.start_ticks);
	if (r < 0)
		return r;
	if (!holder.devices || (config->ignore && config->ignore(pid, config->data)))
		return 0;
	if (faccessat(process_fd, "stat", F_OK, 0) < 0)
		return -ESRCH;
	gcr_late_note_devices(pass->late, pid, holder.devices, holder.start_ticks);
	*ret_holder = holder;
	return 1;
}

/* May the process be reported (config->only_uid)? */
static bool is_shown(const struct gcr_pass *pass, pid_t pid)
{
	uid_t uid;
	gid_t gid;

	return pass->config->only_uid == (uid_t)-1 ||
	       (!gcr_proc_owner(pid, &uid, &gid) && uid == pass->config->only_uid);
}

int gcr_pass_probe_many(struct gcr_pass *pass, const pid_t *pids, size_t count, int64_t budget_usec,
			struct gcr_scan_holder *ret_holders, int *ret_results)
{
	_cleanup_free_ struct subject *subjects = calloc(count + 1, sizeof(*subjects));
	int64_t until_usec = gcr_clock_usec() + budget_usec;

	if (!subjects)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		subjects[i] = (struct subject){.pid = pids[i], .owner = owner_of(pass, pids[i])};
	for (size_t i = 0; i < count;) {
		size_t of_owner = count_of_owner(&subjects[i], count - i);
		int64_t left_usec = until_usec - gcr_clock_usec();
		size_t done = 0;

		if (left_usec <= 0 ||
		    look_at_batch(pass, &subjects[i], of_owner < BATCH ? of_owner : BATCH,
				  left_usec, &done) < 0 ||
		    !done)
			break;
		i += done;
	}
	for (size_t i = 0; i < count; i++) {
		const struct gcr_scan_found *found = &subjects[i].found;

		if (subjects[i].is_done && !found->error && found->devices)
			gcr_late_note_devices(pass->late, pids[i], found->devices,
					      found->start_ticks);
		ret_results[i] = !subjects[i].is_done ? -ETIMEDOUT
				 : found->error	      ? -found->error
						      : found->devices && is_shown(pass, pids[i]);
		ret_holders[i] = (struct gcr_scan_holder){.pid = pids[i],
							  .devices = found->devices,
							  .start_ticks = found->start_ticks};
	}
	return 0;
}

int gcr_pass_unknown(struct gcr_pass *pass, pid_t **ret_pids, size_t *ret_count)
{
	pid_t *pids;

	GCR_LOCK_SCOPE(&pass->lock);
	pids = calloc(pass->unknown_count + 1, sizeof(*pids));
	if (!pids)
		return -ENOMEM;
	if (pass->unknown_count)
		memcpy(pids, pass->unknown, pass->unknown_count * sizeof(*pids));
	*ret_pids = pids;
	*ret_count = pass->unknown_count;
	return 0;
}

size_t gcr_pass_put_off(struct gcr_pass *pass)
{
	GCR_LOCK_SCOPE(&pass->lock);
	return pass->unknown_count;
}

int gcr_pass_create(const struct gcr_scan_config *config, const struct gcr_scan_wanted *wanted,
		    void (*changed)(void *data), void *data, struct gcr_pass **ret_pass)
{
	struct gcr_pass *pass = calloc(1, sizeof(*pass));
	int r;

	if (!pass)
		return -ENOMEM;
	pass->config = config;
	pass->wanted = wanted;
	pthread_mutex_init(&pass->lock, NULL);
	r = gcr_late_create(
		&(struct gcr_late_config){
			.look = config->look,
			.wanted = wanted,
			.changed = changed,
			.data = data,
		},
		&pass->late);
	if (r < 0) {
		gcr_pass_destroy(pass);
		return r;
	}
	*ret_pass = pass;
	return 0;
}

void gcr_pass_destroy(struct gcr_pass *pass)
{
	if (!pass)
		return;
	gcr_late_destroy(pass->late);
	free_holders(&pass->last);
	free(pass->uses.list);
	free(pass->unknown);
	pthread_mutex_destroy(&pass->lock);
	free(pass);
}
