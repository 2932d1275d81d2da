/* SPDX-License-Identifier: MIT */
/*
 * Event logs in memory. `lock` guards all fields of a log and of its readers, but for what
 * fs/base/pollers.c guards. totals.lock is a leaf.
 */
#include "fs/base/event.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/pollers.h"
#include "fs/base/user_counts.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/printable.h"

#define LINE_BYTES_MAX 1024

struct line {
	uint32_t bytes;
	uid_t uid; /* the user to whom the line counts */
};

struct gcr_event_log {
	atomic_int references;
	pthread_mutex_t lock;
	char *bytes;
	size_t size;
	size_t capacity;
	uid_t owner;	    /* for whom the memory counts; 0: not limited */
	size_t charged;	    /* the part of the capacity that counts for the owner */
	struct line *lines; /* the lines that make up `bytes` */
	size_t lines_count;
	size_t lines_capacity;
	int64_t mtime_usec; /* real time */
	struct gcr_event_reader *readers;
	struct gcr_polled polled;
};

struct gcr_event_reader {
	struct gcr_event_log *log;
	uint64_t read_end; /* the furthest byte handed out */
	struct gcr_poller poller;
	struct gcr_event_reader *previous, *next;
};

/* The bytes that the logs of each user have together. */
static struct {
	pthread_mutex_t lock;
	struct gcr_user_counts bytes;
} totals = {.lock = PTHREAD_MUTEX_INITIALIZER};

/*
 * Charges the log's new capacity to its owner. False: the logs of the owner would exceed their
 * limit.
 */
static bool charge(struct gcr_event_log *log, size_t capacity)
{
	size_t *total;

	if (!log->owner || capacity <= GCR_EVENT_LOG_BYTES_ALWAYS)
		return true;
	GCR_LOCK_SCOPE(&totals.lock);
	total = gcr_user_counts_get(&totals.bytes, log->owner);
	if (!total || *total + capacity - log->charged > GCR_EVENT_OWNER_BYTES_MAX)
		return false;
	*total += capacity - log->charged;
	log->charged = capacity;
	return true;
}

static void release_charge(const struct gcr_event_log *log)
{
	if (!log->charged)
		return;
	GCR_LOCK_SCOPE(&totals.lock);
	gcr_user_counts_release(&totals.bytes, log->owner, log->charged);
}

int gcr_event_log_create(struct gcr_event_log **ret_log)
{
	return gcr_event_log_create_of(0, ret_log);
}

int gcr_event_log_create_of(uid_t owner, struct gcr_event_log **ret_log)
{
	struct gcr_event_log *log = calloc(1, sizeof(*log));

	if (!log)
		return -ENOMEM;
	atomic_init(&log->references, 1);
	pthread_mutex_init(&log->lock, NULL);
	gcr_polled_init(&log->polled);
	log->owner = owner;
	log->mtime_usec = gcr_clock_real_usec();
	*ret_log = log;
	return 0;
}

struct gcr_event_log *gcr_event_log_ref(struct gcr_event_log *log)
{
	atomic_fetch_add(&log->references, 1);
	return log;
}

void gcr_event_log_unref(struct gcr_event_log *log)
{
	if (!log || atomic_fetch_sub(&log->references, 1) != 1)
		return;
	release_charge(log);
	gcr_polled_finish(&log->polled);
	pthread_mutex_destroy(&log->lock);
	free(log->bytes);
	free(log->lines);
	free(log);
}

/* A user's bytes in the older half. */
struct share {
	uid_t uid;
	size_t bytes;
	bool is_cut;
};

static int by_uid(const void *first, const void *second)
{
	uid_t a = ((const struct share *)first)->uid, b = ((const struct share *)second)->uid;

	return a < b ? -1 : a > b;
}

static int by_bytes(const void *first, const void *second)
{
	size_t a = ((const struct share *)first)->bytes, b = ((const struct share *)second)->bytes;

	return a > b ? -1 : a < b;
}

/* Sums up the lines by user, in order of uid; *ret_count users. NULL: no memory. */
static struct share *find_shares(const struct line *lines, size_t count, size_t *ret_count)
{
	struct share *shares = calloc(count ? count : 1, sizeof(*shares));
	size_t users = 0;

	if (!shares)
		return NULL;
	for (size_t i = 0; i < count; i++)
		shares[i] = (struct share){.uid = lines[i].uid, .bytes = lines[i].bytes};
	qsort(shares, count, sizeof(*shares), by_uid);
	for (size_t i = 0; i < count; i++) {
		if (users && shares[users - 1].uid == shares[i].uid)
			shares[users - 1].bytes += shares[i].bytes;
		else
			shares[users++] = shares[i];
	}
	*ret_count = users;
	return shares;
}

/*
 * Selects the users whose lines are dropped, by is_cut: those with the most bytes first, until
 * @wanted_bytes are free. Returns the shares of all users, in order of uid, which the caller frees.
 * NULL: no memory.
 */
static struct share *choose(const struct line *lines, size_t count, size_t wanted_bytes,
			    size_t *ret_count)
{
	struct share *shares = find_shares(lines, count, ret_count);
	size_t cut_bytes = 0;

	if (!shares)
		return NULL;
	qsort(shares, *ret_count, sizeof(*shares), by_bytes);
	for (size_t i = 0; i < *ret_count && cut_bytes < wanted_bytes; i++) {
		shares[i].is_cut = true;
		cut_bytes += shares[i].bytes;
	}
	qsort(shares, *ret_count, sizeof(*shares), by_uid);
	return shares;
}

static bool is_cut(const struct share *shares, size_t count, uid_t uid)
{
	const struct share key = {.uid = uid};
	const struct share *share = bsearch(&key, shares, count, sizeof(key), by_uid);

	return share && share->is_cut;
}

/*
 * Removes lines from the older half of the log: those of the users with the most bytes there, or
 * all lines without memory. Readers in that half start again from the beginning.
 */
static void rotate(struct gcr_event_log *log)
{
	_cleanup_free_ struct share *shares = NULL;
	size_t older = 0, kept = 0, users = 0, from = 0, to = 0, cut;

	for (size_t bytes = 0; older < log->lines_count && bytes < log->size / 2; older++)
		bytes += log->lines[older].bytes;
	shares = choose(log->lines, older, log->size / 4, &users);
	for (size_t i = 0; i < older; i++) {
		struct line line = log->lines[i];

		if (shares && !is_cut(shares, users, line.uid)) {
			memmove(log->bytes + to, log->bytes + from, line.bytes);
			to += line.bytes;
			log->lines[kept++] = line;
		}
		from += line.bytes;
	}
	cut = from - to;
	memmove(log->bytes + to, log->bytes + from, log->size - from);
	memmove(log->lines + kept, log->lines + older,
		(log->lines_count - older) * sizeof(*log->lines));
	log->size -= cut;
	log->lines_count -= older - kept;
	for (struct gcr_event_reader *reader = log->readers; reader; reader = reader->next)
		reader->read_end = reader->read_end > from ? reader->read_end - cut : 0;
}

/* The capacity that the log needs for @more bytes. */
static size_t capacity_for(const struct gcr_event_log *log, size_t more)
{
	size_t capacity = log->capacity ? log->capacity : 1024;

	while (capacity < log->size + more)
		capacity *= 2;
	return capacity;
}

/* Makes room for a line of @more bytes, if need be by dropping older lines. -ENOMEM. Lock: log. */
static int reserve(struct gcr_event_log *log, size_t more)
{
	size_t capacity;
	char *bytes;

	if (log->size + more > GCR_EVENT_LOG_BYTES_MAX || !charge(log, capacity_for(log, more)))
		rotate(log);
	capacity = capacity_for(log, more);
	if (log->lines_count == log->lines_capacity) {
		size_t lines_capacity = log->lines_capacity ? 2 * log->lines_capacity : 16;
		struct line *lines = reallocarray(log->lines, lines_capacity, sizeof(*lines));

		if (!lines)
			return -ENOMEM;
		log->lines = lines;
		log->lines_capacity = lines_capacity;
	}
	if (capacity == log->capacity)
		return 0;
	bytes = realloc(log->bytes, capacity);
	if (!bytes)
		return -ENOMEM;
	log->bytes = bytes;
	log->capacity = capacity;
	return 0;
}

/* Formats "TIME WORDS\n": at most LINE_BYTES_MAX, always a single line. */
static size_t format_line(char *line, int64_t now_usec, const char *format, va_list arguments)
{
	time_t seconds = now_usec / GCR_USEC_PER_SEC;
	struct tm utc;
	size_t length;
	int written;

	gmtime_r(&seconds, &utc);
	length = strftime(line, LINE_BYTES_MAX, "%Y-%m-%dT%H:%M:%S", &utc);
	length += (size_t)snprintf(line + length, LINE_BYTES_MAX - length, ".%06dZ ",
				   (int)(now_usec % GCR_USEC_PER_SEC));
	written = vsnprintf(line + length, LINE_BYTES_MAX - length - 1, format, arguments);
	if (written > 0)
		length += (size_t)written < LINE_BYTES_MAX - length - 1
				  ? (size_t)written
				  : LINE_BYTES_MAX - length - 2;
	line[length] = '\0';
	gcr_make_printable(line);
	line[length++] = '\n';
	return length;
}

static void put(struct gcr_event_log *log, uid_t uid, const char *format, va_list arguments)
{
	int64_t now_usec = gcr_clock_real_usec();
	char line[LINE_BYTES_MAX];
	size_t length;

	length = format_line(line, now_usec, format, arguments);
	pthread_mutex_lock(&log->lock);
	if (!reserve(log, length)) {
		memcpy(log->bytes + log->size, line, length);
		log->size += length;
		log->lines[log->lines_count++] = (struct line){(uint32_t)length, uid};
		log->mtime_usec = now_usec;
	}
	pthread_mutex_unlock(&log->lock);
}

void gcr_event_log_put(struct gcr_event_log *log, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	put(log, 0, format, arguments);
	va_end(arguments);
}

void gcr_event_log_put_of(struct gcr_event_log *log, uid_t uid, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	put(log, uid, format, arguments);
	va_end(arguments);
}

void gcr_event_log_notify(struct gcr_event_log *log)
{
	gcr_polled_notify(&log->polled);
}

void gcr_event_log_append(struct gcr_event_log *log, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	put(log, 0, format, arguments);
	va_end(arguments);
	gcr_event_log_notify(log);
}

void gcr_event_log_append_of(struct gcr_event_log *log, uid_t uid, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	put(log, uid, format, arguments);
	va_end(arguments);
	gcr_event_log_notify(log);
}

void gcr_event_log_stat(struct gcr_event_log *log, uint64_t *ret_bytes, int64_t *ret_mtime_usec)
{
	pthread_mutex_lock(&log->lock);
	*ret_bytes = log->size;
	*ret_mtime_usec = log->mtime_usec;
	pthread_mutex_unlock(&log->lock);
}

int gcr_event_reader_create(struct gcr_event_log *log, uid_t owner,
			    struct gcr_event_reader **ret_reader)
{
	_cleanup_free_ struct gcr_event_reader *reader = calloc(1, sizeof(*reader));

	if (!reader || gcr_poller_init(&reader->poller, &log->polled, owner) < 0)
		return -ENOMEM;
	reader->log = gcr_event_log_ref(log);
	pthread_mutex_lock(&log->lock);
	reader->next = log->readers;
	if (log->readers)
		log->readers->previous = reader;
	log->readers = reader;
	pthread_mutex_unlock(&log->lock);
	*ret_reader = TAKE_PTR(reader);
	return 0;
}

void gcr_event_reader_destroy(struct gcr_event_reader *reader)
{
	if (!reader)
		return;
	pthread_mutex_lock(&reader->log->lock);
	if (reader->previous)
		reader->previous->next = reader->next;
	else
		reader->log->readers = reader->next;
	if (reader->next)
		reader->next->previous = reader->previous;
	pthread_mutex_unlock(&reader->log->lock);
	gcr_poller_finish(&reader->poller);
	gcr_event_log_unref(reader->log);
	free(reader);
}

size_t gcr_event_reader_read(struct gcr_event_reader *reader, uint64_t offset, char *buffer,
			     size_t size)
{
	struct gcr_event_log *log = reader->log;
	size_t length = 0;

	pthread_mutex_lock(&log->lock);
	if (offset < log->size) {
		length = log->size - (size_t)offset < size ? log->size - (size_t)offset : size;
		memcpy(buffer, log->bytes + offset, length);
	}
	if (offset + length > reader->read_end)
		reader->read_end = offset + length;
	pthread_mutex_unlock(&log->lock);
	return length;
}

bool gcr_event_reader_poll(struct gcr_event_reader *reader, struct fuse_pollhandle *handle)
{
	/* Before the look: a line that is appended after that is notified. */
	if (handle)
		gcr_poller_arm(&reader->poller, handle);
	GCR_LOCK_SCOPE(&reader->log->lock);
	return reader->read_end < reader->log->size;
}
