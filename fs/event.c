/* SPDX-License-Identifier: MIT */
/*
 * Event logs in memory and those who wait for them. `lock` guards all fields of a log and of its
 * readers; poll notifications are sent after it is released.
 */
#include "fs/event.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/clock.h"

#define LINE_BYTES_MAX 1024

struct gcr_event_log {
	atomic_int references;
	pthread_mutex_t lock;
	char *bytes;
	size_t size;
	size_t capacity;
	int64_t mtime_usec; /* real time */
	struct gcr_event_reader *readers;
};

struct gcr_event_reader {
	struct gcr_event_log *log;
	uint64_t read_end; /* the furthest byte handed out */
	struct fuse_pollhandle *poller;
	struct gcr_event_reader *next;
};

int gcr_event_log_create(struct gcr_event_log **ret_log)
{
	struct gcr_event_log *log = calloc(1, sizeof(*log));

	if (!log)
		return -ENOMEM;
	atomic_init(&log->references, 1);
	pthread_mutex_init(&log->lock, NULL);
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
	pthread_mutex_destroy(&log->lock);
	free(log->bytes);
	free(log);
}

/* Cut off the older half, up to the end of a line. Readers start again at what is left. */
static void rotate(struct gcr_event_log *log)
{
	char *middle = log->bytes + log->size / 2;
	char *newline = memchr(middle, '\n', log->size - log->size / 2);
	size_t cut = newline ? (size_t)(newline + 1 - log->bytes) : log->size;

	memmove(log->bytes, log->bytes + cut, log->size - cut);
	log->size -= cut;
	for (struct gcr_event_reader *reader = log->readers; reader; reader = reader->next)
		reader->read_end = reader->read_end > cut ? reader->read_end - cut : 0;
}

static int reserve(struct gcr_event_log *log, size_t more)
{
	size_t capacity = log->capacity ? log->capacity : 1024;
	char *bytes;

	if (log->size + more > GCR_EVENT_LOG_BYTES_MAX)
		rotate(log);
	while (capacity < log->size + more)
		capacity *= 2;
	if (capacity == log->capacity)
		return 0;
	bytes = realloc(log->bytes, capacity);
	if (!bytes)
		return -ENOMEM;
	log->bytes = bytes;
	log->capacity = capacity;
	return 0;
}

/* "TIME WORDS\n", never longer than LINE_BYTES_MAX, never more than one line. */
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
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	line[length++] = '\n';
	return length;
}

/* Take one reader's poll handle, NULL when there is none left. The caller notifies it unlocked. */
static struct fuse_pollhandle *take_poller(struct gcr_event_log *log)
{
	struct fuse_pollhandle *poller = NULL;

	pthread_mutex_lock(&log->lock);
	for (struct gcr_event_reader *reader = log->readers; reader && !poller;
	     reader = reader->next)
		poller = TAKE_PTR(reader->poller);
	pthread_mutex_unlock(&log->lock);
	return poller;
}

static void put(struct gcr_event_log *log, const char *format, va_list arguments)
{
	int64_t now_usec = gcr_clock_real_usec();
	char line[LINE_BYTES_MAX];
	size_t length;

	length = format_line(line, now_usec, format, arguments);
	pthread_mutex_lock(&log->lock);
	if (!reserve(log, length)) {
		memcpy(log->bytes + log->size, line, length);
		log->size += length;
		log->mtime_usec = now_usec;
	}
	pthread_mutex_unlock(&log->lock);
}

void gcr_event_log_put(struct gcr_event_log *log, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	put(log, format, arguments);
	va_end(arguments);
}

void gcr_event_log_notify(struct gcr_event_log *log)
{
	struct fuse_pollhandle *poller;

	while ((poller = take_poller(log))) {
		fuse_lowlevel_notify_poll(poller);
		fuse_pollhandle_destroy(poller);
	}
}

void gcr_event_log_append(struct gcr_event_log *log, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	put(log, format, arguments);
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

int gcr_event_reader_create(struct gcr_event_log *log, struct gcr_event_reader **ret_reader)
{
	struct gcr_event_reader *reader = calloc(1, sizeof(*reader));

	if (!reader)
		return -ENOMEM;
	reader->log = gcr_event_log_ref(log);
	pthread_mutex_lock(&log->lock);
	reader->next = log->readers;
	log->readers = reader;
	pthread_mutex_unlock(&log->lock);
	*ret_reader = reader;
	return 0;
}

void gcr_event_reader_destroy(struct gcr_event_reader *reader)
{
	struct gcr_event_reader **link;

	if (!reader)
		return;
	pthread_mutex_lock(&reader->log->lock);
	for (link = &reader->log->readers; *link != reader; link = &(*link)->next)
		;
	*link = reader->next;
	pthread_mutex_unlock(&reader->log->lock);
	if (reader->poller)
		fuse_pollhandle_destroy(reader->poller);
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
	struct fuse_pollhandle *old = NULL;
	bool readable;

	pthread_mutex_lock(&reader->log->lock);
	readable = reader->read_end < reader->log->size;
	if (handle) {
		old = reader->poller;
		reader->poller = handle;
	}
	pthread_mutex_unlock(&reader->log->lock);
	if (old)
		fuse_pollhandle_destroy(old);
	return readable;
}
