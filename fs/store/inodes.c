/* SPDX-License-Identifier: MIT */
#include "fs/store/inodes.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/base/quota.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

#define BUCKETS_MIN 64 /* a power of two */

/* A name that costs nothing, see gcr_inodes_link(). */
struct free_name {
	struct free_name *next;
	uint32_t adopter;
	bool is_pending; /* the link is being made and may exist already */
};

/*
 * A file that is passed, open, has names that cost nothing, or is older than the daemon and has
 * grown.
 */
struct entry {
	struct entry *next; /* in the same hash bucket */
	dev_t device;
	ino_t inode;
	unsigned int subtrees; /* number of subtrees that have the file open */
	unsigned int leaving;  /* of these, the subtrees that are closing the file */
	struct free_name *free_names;
	bool is_passed;
	bool is_older;	      /* made before gcr_inodes_begin() */
	bool has_grown;	      /* older, and has more than @older_bytes */
	bool may_be_mapped;   /* by readers of the previous daemon */
	uint64_t older_bytes; /* then the bytes, from the start on, that they may have mapped */
	/* Bytes that keep counting for the file, in going_bytes of @store; NULL: none. */
	struct gcr_store *store;
	uint64_t held_bytes;
	struct gcr_quota_charge charge;
};

static struct {
	pthread_mutex_t lock;
	struct entry **buckets;
	size_t buckets_count; /* a power of two, or 0 */
	size_t count;
	struct timespec began; /* see gcr_inodes_begin() */
	pthread_cond_t linked; /* a name is not pending any more */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER, .linked = PTHREAD_COND_INITIALIZER};

/* ---- the table; all functions with its lock held ---- */

static struct entry **bucket_locked(ino_t inode)
{
	return &table.buckets[(inode * 0x9e3779b97f4a7c15) >> 32 & (table.buckets_count - 1)];
}

/* The link to the file's entry, or to the end of its bucket; NULL: there is no table yet. */
static struct entry **find_locked(const struct stat *stat)
{
	struct entry **link = table.buckets_count ? bucket_locked(stat->st_ino) : NULL;

	while (link && *link && ((*link)->inode != stat->st_ino || (*link)->device != stat->st_dev))
		link = &(*link)->next;
	return link;
}

static struct entry *get_locked(const struct stat *stat)
{
	struct entry **link = find_locked(stat);

	return link ? *link : NULL;
}

/*
 * Doubles the number of buckets if the table is full. -ENOMEM only if there is no table yet: a full
 * table is only slower.
 */
static int grow_locked(void)
{
	size_t old_count = table.buckets_count;
	size_t count = old_count ? 2 * old_count : BUCKETS_MIN;
	struct entry **old = table.buckets;
	struct entry **buckets;

	if (table.count < old_count)
		return 0;
	buckets = calloc(count, sizeof(struct entry *));
	if (!buckets)
		return old_count ? 0 : -ENOMEM;
	table.buckets = buckets;
	table.buckets_count = count;
	for (size_t i = 0; i < old_count; i++) {
		while (old[i]) {
			struct entry *entry = old[i];
			struct entry **bucket = bucket_locked(entry->inode);

			old[i] = entry->next;
			entry->next = *bucket;
			*bucket = entry;
		}
	}
	free(old);
	return 0;
}

static void remove_name(struct free_name **link)
{
	struct free_name *name = *link;

	*link = name->next;
	free(name);
}

/* Finds the entry of the file, or adds one. -ENOMEM. */
static int add_locked(const struct stat *stat, bool is_older, struct entry **ret_entry)
{
	struct entry *entry = get_locked(stat);
	struct entry **bucket;

	if (!entry) {
		if (grow_locked() < 0)
			return -ENOMEM;
		entry = calloc(1, sizeof(*entry));
		if (!entry)
			return -ENOMEM;
		entry->device = stat->st_dev;
		entry->inode = stat->st_ino;
		entry->is_older = is_older;
		/* The previous daemon has passed no file with holes. */
		entry->may_be_mapped = is_older &&
				       (uint64_t)stat->st_blocks * 512 >= (uint64_t)stat->st_size;
		entry->older_bytes = entry->may_be_mapped ? (uint64_t)stat->st_size : 0;
		bucket = bucket_locked(stat->st_ino);
		entry->next = *bucket;
		*bucket = entry;
		table.count++;
	}
	*ret_entry = entry;
	return 0;
}

static void remove_entry_locked(struct entry **link)
{
	struct entry *entry = *link;

	*link = entry->next;
	table.count--;
	free(entry);
}

/* Does the entry contain nothing that is still needed? */
static bool may_drop(const struct entry *entry, bool has_names)
{
	return !entry->subtrees && !entry->free_names && !entry->is_passed &&
	       !(entry->has_grown && has_names);
}

static void drop_locked(const struct stat *stat)
{
	struct entry **link = find_locked(stat);

	if (link && *link && may_drop(*link, stat->st_nlink))
		remove_entry_locked(link);
}

/* ---- files of earlier daemons ---- */

static bool is_later(const struct timespec *time, const struct timespec *other)
{
	return time->tv_sec != other->tv_sec ? time->tv_sec > other->tv_sec
					     : time->tv_nsec > other->tv_nsec;
}

static void forget_closed_locked(void)
{
	for (size_t i = 0; i < table.buckets_count; i++) {
		struct entry **link = &table.buckets[i];

		while (*link) {
			struct entry *entry = *link;

			if (entry->subtrees) {
				link = &entry->next;
				continue;
			}
			while (entry->free_names)
				remove_name(&entry->free_names);
			remove_entry_locked(link);
		}
	}
}

void gcr_inodes_begin(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	struct timespec began;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &began);
	pthread_mutex_lock(&table.lock);
	table.began = began;
	forget_closed_locked();
	pthread_mutex_unlock(&table.lock);
	/*
	 * Files get the time of the coarse clock, which advances with the timer interrupt. A coarse
	 * clock that is far behind means that the clock has been set back.
	 */
	do {
		nanosleep(&pause, NULL);
		clock_gettime(CLOCK_REALTIME_COARSE, &now);
	} while (!is_later(&now, &began) && began.tv_sec - now.tv_sec <= 1);
}

void gcr_inodes_begin_after(const struct timespec *made)
{
	pthread_mutex_lock(&table.lock);
	if (is_later(made, &table.began))
		table.began = *made;
	pthread_mutex_unlock(&table.lock);
}

/*
 * Was the file of @fd made before the daemon began? True also if the file's attributes cannot be
 * read. False if the file system does not record creation times: a tmpfs without them is that of a
 * kernel before 5.18, and no kernel before 6.9 passes files.
 */
static bool is_older_locked(int fd)
{
	struct timespec made;
	struct statx statx_of;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &statx_of) < 0)
		return true;
	if (!(statx_of.stx_mask & STATX_BTIME))
		return false;
	made.tv_sec = statx_of.stx_btime.tv_sec;
	made.tv_nsec = statx_of.stx_btime.tv_nsec;
	return !is_later(&made, &table.began);
}

/* ---- open and passed files ---- */

int gcr_inodes_open(int fd)
{
	struct entry *entry;
	struct stat stat;
	int result;

	if (fstat(fd, &stat) < 0)
		return -EIO;
	GCR_LOCK_SCOPE(&table.lock);
	result = add_locked(&stat, is_older_locked(fd), &entry);
	if (!result)
		entry->subtrees++;
	return result;
}

/* ---- names that cost nothing ---- */

static bool has_pending(const struct entry *entry)
{
	for (const struct free_name *name = entry->free_names; name; name = name->next)
		if (name->is_pending)
			return true;
	return false;
}

/* Adds @name to the entry of the file of @fd, as pending. -EINVAL: not a regular file; -ENOMEM. */
static int begin_link(int fd, struct free_name *name, struct stat *ret_stat)
{
	struct entry *entry;
	int result;

	if (fstat(fd, ret_stat) < 0)
		return -errno;
	if (!S_ISREG(ret_stat->st_mode))
		return -EINVAL;
	GCR_LOCK_SCOPE(&table.lock);
	result = add_locked(ret_stat, is_older_locked(fd), &entry);
	if (result < 0)
		return result;
	name->is_pending = true;
	name->next = entry->free_names;
	entry->free_names = name;
	return 0;
}

/*
 * Ends what begin_link() has begun: @name is kept if the link has been made (@is_there), else
 * freed. Updates *stat.
 */
static void end_link(int fd, struct stat *stat, struct free_name *name, bool is_there)
{
	struct free_name **link;

	GCR_LOCK_SCOPE(&table.lock);
	/* Update the attributes; if that fails, the old ones have the same inode number. */
	fstat(fd, stat);
	link = &get_locked(stat)->free_names;
	while (*link != name)
		link = &(*link)->next;
	name->is_pending = false;
	if (!is_there)
		remove_name(link);
	drop_locked(stat);
	pthread_cond_broadcast(&table.linked);
}

int gcr_inodes_link(int from_fd, const char *name, int to_fd, uint32_t adopter,
		    struct stat *ret_stat)
{
	_cleanup_close_ int fd = openat(from_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	char path[sizeof("/proc/self/fd/") + 16];
	struct free_name *free_name;
	int result;

	if (fd < 0)
		return -errno;
	free_name = calloc(1, sizeof(*free_name));
	if (!free_name)
		return -ENOMEM;
	free_name->adopter = adopter;
	result = begin_link(fd, free_name, ret_stat);
	if (result < 0) {
		free(free_name);
		return result;
	}
	/* Without the lock: linkat() waits for a change of the file's length that is under way. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (linkat(AT_FDCWD, path, to_fd, name, AT_SYMLINK_FOLLOW) < 0)
		result = -errno;
	end_link(fd, ret_stat, free_name, !result);
	return result;
}

int gcr_inodes_pass(const struct stat *stat, bool *ret_was_passed)
{
	struct entry *entry;

	GCR_LOCK_SCOPE(&table.lock);
	entry = get_locked(stat);
	if (!entry || entry->subtrees - entry->leaving != 1)
		return -EBUSY;
	*ret_was_passed = entry->is_passed;
	entry->is_passed = true;
	return 0;
}

void gcr_inodes_unpass(const struct stat *stat)
{
	struct entry *entry;

	GCR_LOCK_SCOPE(&table.lock);
	entry = get_locked(stat);
	if (entry)
		entry->is_passed = false;
	drop_locked(stat);
}

void gcr_inodes_unmapped(const struct stat *stat)
{
	struct entry *entry;

	GCR_LOCK_SCOPE(&table.lock);
	entry = get_locked(stat);
	if (entry) {
		entry->is_passed = false;
		entry->may_be_mapped = false;
		entry->older_bytes = 0;
	}
	drop_locked(stat);
}

bool gcr_inodes_is_passed(const struct stat *stat)
{
	const struct entry *entry;

	GCR_LOCK_SCOPE(&table.lock);
	entry = get_locked(stat);
	return entry && (entry->is_passed || entry->may_be_mapped);
}

bool gcr_inodes_is_known(const struct stat *stat)
{
	GCR_LOCK_SCOPE(&table.lock);
	return get_locked(stat);
}

/* Number of subtrees that have the file open; with @with_leaving also those that are closing it. */
static unsigned int count_subtrees(const struct stat *stat, bool with_leaving)
{
	const struct entry *entry;

	GCR_LOCK_SCOPE(&table.lock);
	entry = get_locked(stat);
	if (!entry)
		return 0;
	return with_leaving ? entry->subtrees : entry->subtrees - entry->leaving;
}

unsigned int gcr_inodes_subtrees(const struct stat *stat)
{
	return count_subtrees(stat, false);
}

unsigned int gcr_inodes_holders(const struct stat *stat)
{
	return count_subtrees(stat, true);
}

void gcr_inodes_leave(int fd)
{
	struct entry *entry;
	struct stat stat;

	if (fstat(fd, &stat) < 0)
		return;
	GCR_LOCK_SCOPE(&table.lock);
	entry = get_locked(&stat);
	if (entry)
		entry->leaving++;
}

/* ---- the end of a file ---- */

/*
 * Free the memory of a file without names and descriptors, except for the first @older_bytes.
 * Memory beyond the end of the file (FALLOC_FL_KEEP_SIZE) is freed, too, even if the length does
 * not change.
 */
static void free_memory(int fd, uint64_t older_bytes)
{
	char path[sizeof("/proc/self/fd/") + 16];
	struct stat stat;
	off_t bytes = (off_t)older_bytes;

	if (!fstat(fd, &stat) && stat.st_size < bytes)
		bytes = stat.st_size;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (truncate(path, bytes) < 0)
		gcr_log(LOG_WARNING, 0,
			"the memory of a removed file stays as long as somebody has it mapped: %s",
			strerror(errno));
}

static bool get_stat(int fd, struct stat *ret_stat)
{
	if (fstat(fd, ret_stat) < 0) {
		gcr_log(LOG_WARNING, 0, "a removed file cannot be looked at: %s", strerror(errno));
		return false;
	}
	return S_ISREG(ret_stat->st_mode);
}

/* Work to be done after the lock has been released. */
struct ending {
	bool frees; /* free all memory of the file except the first @older_bytes */
	uint64_t older_bytes;
	struct gcr_store *store; /* in which @bytes no longer count; NULL: none */
	uint64_t bytes;
	struct gcr_quota_charge charge;
};

/* Does the work of @ending, without the lock. */
static void carry_out(struct ending *ending, int fd)
{
	/* The memory is freed before the bytes stop counting. */
	if (ending->frees)
		free_memory(fd, ending->older_bytes);
	gcr_quota_release(&ending->charge);
	if (ending->store)
		gcr_store_let_go(ending->store, ending->bytes);
}

/*
 * Is the file still in use, but counted by no user of it? True if each remaining name was made by
 * gcr_inodes_link(), or if no name remains and a subtree has the file open.
 */
static bool is_uncounted(const struct entry *entry, const struct stat *stat)
{
	nlink_t count = 0;

	for (const struct free_name *name = entry->free_names; name; name = name->next)
		count++;
	return stat->st_nlink ? count >= stat->st_nlink : entry->subtrees;
}

static bool remove_name_of(struct entry *entry, uint32_t adopter)
{
	struct free_name **link = &entry->free_names;

	while (*link && (*link)->adopter != adopter)
		link = &(*link)->next;
	if (!*link)
		return false;
	remove_name(link);
	return true;
}

/*
 * Removes a name from the entry's names that cost nothing; all of them if the file has no name
 * left.
 */
static void lose_name_locked(struct entry *entry, const struct stat *stat, uint32_t adopter)
{
	if (adopter)
		remove_name_of(entry, adopter);
	/* The last names were removed without their number. */
	while (!stat->st_nlink && entry->free_names)
		remove_name(&entry->free_names);
}

/*
 * The file has lost a name, or a subtree that had it open. Returns true if the entry takes @bytes
 * over.
 */
static bool lose_locked(const struct stat *stat, const struct gcr_inodes_bytes *bytes,
			struct ending *ret_ending)
{
	struct entry *entry = get_locked(stat);

	if (!entry)
		return false;
	lose_name_locked(entry, stat, bytes->adopter);
	if (is_uncounted(entry, stat)) {
		if (!bytes->store || !bytes->bytes || entry->store)
			return false;
		entry->store = bytes->store;
		entry->held_bytes = bytes->bytes;
		gcr_quota_count(gcr_store_quota(bytes->store), GCR_QUOTA_STORE, bytes->uid,
				bytes->bytes, &entry->charge);
		return true;
	}
	/* The file is unused, or its remaining users have counted the file. */
	ret_ending->store = TAKE_PTR(entry->store);
	ret_ending->bytes = entry->held_bytes;
	ret_ending->charge = entry->charge;
	entry->charge = (struct gcr_quota_charge){0};
	if (stat->st_nlink || entry->subtrees)
		return false;
	ret_ending->frees = entry->is_passed || entry->is_older;
	ret_ending->older_bytes = entry->older_bytes;
	entry->is_passed = false;
	drop_locked(stat);
	return false;
}

/*
 * Returns the attributes of the file and its entry, if there is one, once no name of the file is
 * pending any more. Returns false if the file is not a regular file, or cannot be examined.
 */
static bool get_after_pending_locked(int fd, struct stat *ret_stat, struct entry **ret_entry)
{
	while (get_stat(fd, ret_stat)) {
		*ret_entry = get_locked(ret_stat);
		if (!*ret_entry || !has_pending(*ret_entry))
			return true;
		pthread_cond_wait(&table.linked, &table.lock);
	}
	return false;
}

/* As gcr_inodes_close() if @closes, else as gcr_inodes_removed(). */
static bool lose(int fd, bool closes, const struct gcr_inodes_bytes *bytes)
{
	struct ending ending = {0};
	struct entry *entry;
	bool is_held = false;
	struct stat stat;

	/*
	 * Of two threads that are here at the same time, the second one sees the changes of both.
	 */
	pthread_mutex_lock(&table.lock);
	if (get_after_pending_locked(fd, &stat, &entry)) {
		if (entry && closes) {
			entry->subtrees--;
			if (entry->leaving)
				entry->leaving--;
			entry->has_grown = entry->is_older &&
					   (entry->older_bytes < (uint64_t)stat.st_size ||
					    entry->older_bytes < (uint64_t)stat.st_blocks * 512);
		}
		is_held = lose_locked(&stat, bytes, &ending);
		drop_locked(&stat);
	}
	pthread_mutex_unlock(&table.lock);
	carry_out(&ending, fd);
	return is_held;
}

bool gcr_inodes_removed(int fd, const struct gcr_inodes_bytes *bytes)
{
	return lose(fd, false, bytes);
}

bool gcr_inodes_close(int fd, const struct gcr_inodes_bytes *bytes)
{
	return lose(fd, true, bytes);
}

void gcr_inodes_count_names(struct gcr_store *store, uint32_t adopter)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&table.lock);
	for (size_t i = 0; i < table.buckets_count; i++) {
		struct entry **link = &table.buckets[i];

		while (*link) {
			struct entry *entry = *link;
			bool has_lost = false;

			while (remove_name_of(entry, adopter))
				has_lost = true;
			if (has_lost && entry->store == store) {
				entry->store = NULL;
				bytes += entry->held_bytes;
				gcr_quota_release(&entry->charge);
			}
			if (has_lost && may_drop(entry, true))
				remove_entry_locked(link);
			else
				link = &entry->next;
		}
	}
	pthread_mutex_unlock(&table.lock);
	if (bytes)
		gcr_store_let_go(store, bytes);
}
