/* SPDX-License-Identifier: MIT */
/*
 * Event logs: append-only text with a true size and mtime, which poll(2) and `tail -f` follow. The
 * daemon has one, and each process has one.
 */
#ifndef GCR_FS_BASE_EVENT_H
#define GCR_FS_BASE_EVENT_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Size limit. A log that would exceed the limit drops lines of its older half: those of the users
 * with the most bytes there, until a quarter is free. So no user can displace the history of
 * others. Readers see a log rotation by truncation.
 */
#define GCR_EVENT_LOG_BYTES_MAX (1024 * 1024)

/*
 * Size limit of all logs of one user together; each of them may have some KiB in any case. A log
 * that would exceed it drops lines in the same way.
 */
#define GCR_EVENT_OWNER_BYTES_MAX  (32 * 1024 * 1024)
#define GCR_EVENT_LOG_BYTES_ALWAYS (4 * 1024)

struct gcr_event_log;	 /* reference-counted */
struct gcr_event_reader; /* one open file: its read position and its poller */

/* Creates a log that counts for no user. -ENOMEM. */
int gcr_event_log_create(struct gcr_event_log **ret_log);
/* The same for a log that counts for the user @owner (gcr_quota_owner()); root: for no user. */
int gcr_event_log_create_of(uid_t owner, struct gcr_event_log **ret_log);
struct gcr_event_log *gcr_event_log_ref(struct gcr_event_log *log);
void gcr_event_log_unref(struct gcr_event_log *log);

/*
 * Appends one line "TIME WORDS\n", with TIME in UTC as 2026-01-31T23:59:59.000000Z, and wakes the
 * pollers (fs/base/pollers.h). May be called under any lock.
 */
void gcr_event_log_append(struct gcr_event_log *log, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* The two halves of gcr_event_log_append(): appending the line, and waking the pollers. */
void gcr_event_log_put(struct gcr_event_log *log, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void gcr_event_log_notify(struct gcr_event_log *log);

/* The same for a line that counts to user @uid; lines of the functions above count to root. */
void gcr_event_log_append_of(struct gcr_event_log *log, uid_t uid, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void gcr_event_log_put_of(struct gcr_event_log *log, uid_t uid, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The log's size in bytes, and the real time of its last change. */
void gcr_event_log_stat(struct gcr_event_log *log, uint64_t *ret_bytes, int64_t *ret_mtime_usec);

/*
 * Creates a reader of the user @owner (gcr_quota_owner()) that has read nothing yet; the reader
 * holds a reference to the log. -ENOMEM.
 */
int gcr_event_reader_create(struct gcr_event_log *log, uid_t owner,
			    struct gcr_event_reader **ret_reader);
void gcr_event_reader_destroy(struct gcr_event_reader *reader);

/* Copies up to @size bytes from @offset; returns their number (0 at the end). */
size_t gcr_event_reader_read(struct gcr_event_reader *reader, uint64_t offset, char *buffer,
			     size_t size);

/*
 * Are there unread bytes? Takes ownership of @handle (may be NULL), which is notified once at the
 * next append.
 */
bool gcr_event_reader_poll(struct gcr_event_reader *reader, struct fuse_pollhandle *handle);

#endif
