/* SPDX-License-Identifier: MIT */
/*
 * The files of records (see record.h; their text is in record_text.c). All files are opened below
 * the runtime directory's descriptor and never through a symbolic link. The runtime directory is a
 * tmpfs: no fsync.
 */
#include "fs/store/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/store/record_text.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/full_io.h"
#include "lib/uuid.h"

#define DIRECTORY	 "processes"
#define RECORD_BYTES_MAX 16384
#define NAME_BYTES	 48 /* "<pid>-<start_ticks>" */
#define SPARE_END	 ".new"
#define SPARE_BYTES	 (NAME_BYTES + sizeof("." SPARE_END))

static void record_name(char name[NAME_BYTES], pid_t pid, uint64_t start_ticks)
{
	snprintf(name, NAME_BYTES, "%d-%" PRIu64, (int)pid, start_ticks);
}

/* Makes the name of the spare of the record @name: see gcr_record_write(). */
static void spare_name(char spare[SPARE_BYTES], const char *name)
{
	snprintf(spare, SPARE_BYTES, ".%s" SPARE_END, name);
}

/*
 * Reads the identifier of this boot: start times count from boot, so records of an earlier boot are
 * useless.
 */
static int read_boot_id(char boot_id[GCR_BOOT_ID_BYTES])
{
	_cleanup_close_ int fd = -1;
	ssize_t got;

	fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	got = read(fd, boot_id, GCR_BOOT_ID_BYTES - 1);
	if (got < 0)
		return -errno;
	boot_id[got] = '\0';
	return gcr_uuid_parse(boot_id, NULL) == 0 ? 0 : -EPROTO;
}

/* Prints a record of this boot; the caller frees *ret_text. As gcr_record_print(), or -errno. */
static int print_record(const struct gcr_record *record, char **ret_text, size_t *ret_bytes)
{
	char boot_id[GCR_BOOT_ID_BYTES];
	int r = read_boot_id(boot_id);

	return r < 0 ? r : gcr_record_print(record, boot_id, ret_text, ret_bytes);
}

static int open_records(int directory_fd, bool create)
{
	int fd;

	if (create && mkdirat(directory_fd, DIRECTORY, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = openat(directory_fd, DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Is there certainly no file of this name? */
static bool is_absent(int records_fd, const char *name)
{
	struct stat status;

	return fstatat(records_fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

/*
 * Opens the file at the spare's name for writing, and makes one if there is none. A file that the
 * daemon has not made there is removed. Returns a descriptor, which the caller closes, or -errno.
 */
static int open_spare(int records_fd, const char *spare)
{
	int fd = openat(records_fd, spare,
			O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat status;

	/* ELOOP, ENXIO: a symbolic link, or a pipe or socket. */
	if (fd < 0 && errno != ENOENT && errno != ELOOP && errno != ENXIO)
		return -errno;
	if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
	    status.st_uid == geteuid() && status.st_nlink == 1 && !(status.st_mode & 077))
		return fd;
	if (fd >= 0)
		close(fd);
	if (unlinkat(records_fd, spare, 0) < 0 && errno != ENOENT)
		return -errno;
	fd = openat(records_fd, spare, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

/* Overwrites the spare with @text, which takes no room if the spare is as long already. -errno. */
static int write_spare(int records_fd, const char *spare, const char *text, size_t bytes)
{
	_cleanup_close_ int fd = open_spare(records_fd, spare);
	int r = fd < 0 ? fd : gcr_write_all(fd, text, bytes);

	/* Longer, if it comes from a version whose records had more. */
	return r == 0 && ftruncate(fd, (off_t)bytes) < 0 ? -errno : r;
}

/*
 * Makes a spare if there is none, and brings it to the length of a record, so that a later write
 * finds the room. -errno.
 */
static int provide_spare(int records_fd, const char *spare, const char *text, size_t bytes)
{
	struct stat status;

	if (fstatat(records_fd, spare, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
	    S_ISREG(status.st_mode) && (size_t)status.st_size == bytes)
		return 0;
	return write_spare(records_fd, spare, text, bytes);
}

/* Gives the spare the name of the record, and an older record the name of the spare. -errno. */
static int put_in_place(int records_fd, const char *spare, const char *name)
{
	if (renameat2(records_fd, spare, records_fd, name, RENAME_EXCHANGE) == 0)
		return 0;
	/* There is no older record, or the filesystem cannot exchange names. */
	return renameat(records_fd, spare, records_fd, name) < 0 ? -errno : 0;
}

int gcr_record_write(int directory_fd, const struct gcr_record *record)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int records_fd = -1;
	char spare[SPARE_BYTES];
	char name[NAME_BYTES];
	size_t bytes = 0;
	bool is_first;
	int kept = 0;
	int r;

	r = print_record(record, &text, &bytes);
	if (r < 0)
		return r;
	records_fd = open_records(directory_fd, true);
	if (records_fd < 0)
		return records_fd;
	record_name(name, record->pid, record->start_ticks);
	spare_name(spare, name);
	is_first = is_absent(records_fd, name);
	r = write_spare(records_fd, spare, text, bytes);
	if (r == 0)
		r = put_in_place(records_fd, spare, name);
	if (r == 0)
		kept = provide_spare(records_fd, spare, text, bytes);
	if (is_first && (r < 0 || kept < 0)) {
		/* Without a spare a thaw might find no room: it is better not to freeze. */
		unlinkat(records_fd, name, 0);
		unlinkat(records_fd, spare, 0);
		return r < 0 ? r : kept;
	}
	return r;
}

int gcr_record_remove(int directory_fd, pid_t pid, uint64_t start_ticks)
{
	_cleanup_close_ int records_fd = -1;
	char spare[SPARE_BYTES];
	char name[NAME_BYTES];

	records_fd = open_records(directory_fd, false);
	if (records_fd < 0)
		return records_fd == -ENOENT ? 0 : records_fd;
	record_name(name, pid, start_ticks);
	spare_name(spare, name);
	if (unlinkat(records_fd, name, 0) < 0 && errno != ENOENT)
		return -errno;
	unlinkat(records_fd, spare, 0);
	return 0;
}

/*
 * Reads the record @name. -ENOENT: there is none, or it is of another boot than @boot_id. Other
 * errors: see gcr_record_read(). @ret_record is written only on success.
 */
static int read_record(int records_fd, const char *name, const char *boot_id,
		       struct gcr_record *ret_record)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int fd = -1;
	char boot_of_record[GCR_BOOT_ID_BYTES];
	struct gcr_record record;
	char expected[NAME_BYTES];
	struct stat status;
	ssize_t got;

	fd = openat(records_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &status) < 0)
		return -errno;
	if (!S_ISREG(status.st_mode))
		return -EBADMSG;
	if (status.st_uid != geteuid() || status.st_mode & 022)
		return -EPERM;
	if (status.st_size > RECORD_BYTES_MAX)
		return -EFBIG;
	text = malloc(RECORD_BYTES_MAX + 1);
	if (!text)
		return -ENOMEM;
	got = gcr_read_all(fd, text, RECORD_BYTES_MAX);
	if (got < 0)
		return (int)got;
	text[got] = '\0';
	if (strlen(text) != (size_t)got || gcr_record_parse(text, &record, boot_of_record) < 0)
		return -EBADMSG;
	record_name(expected, record.pid, record.start_ticks);
	if (strcmp(expected, name) != 0)
		return -EBADMSG;
	if (strcmp(boot_of_record, boot_id) != 0)
		return -ENOENT;
	*ret_record = record;
	return 0;
}

int gcr_record_read(int directory_fd, pid_t pid, uint64_t start_ticks,
		    struct gcr_record *ret_record)
{
	_cleanup_close_ int records_fd = -1;
	char boot_id[GCR_BOOT_ID_BYTES];
	char name[NAME_BYTES];
	int r;

	r = read_boot_id(boot_id);
	if (r < 0)
		return r;
	records_fd = open_records(directory_fd, false);
	if (records_fd < 0)
		return records_fd;
	record_name(name, pid, start_ticks);
	return read_record(records_fd, name, boot_id, ret_record);
}

int gcr_record_end_swap(int directory_fd, pid_t pid, uint64_t start_ticks)
{
	_cleanup_close_ int records_fd = -1;
	char boot_id[GCR_BOOT_ID_BYTES];
	struct gcr_record record;
	char name[NAME_BYTES];
	int r;

	r = read_boot_id(boot_id);
	if (r < 0)
		return r;
	records_fd = open_records(directory_fd, false);
	if (records_fd < 0)
		return records_fd == -ENOENT ? 0 : records_fd;
	record_name(name, pid, start_ticks);
	r = read_record(records_fd, name, boot_id, &record);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (!record.swap_pid && !record.frozen_for_pid)
		return 0;
	record.swap_pid = record.frozen_for_pid = 0;
	return gcr_record_write(directory_fd, &record);
}

struct names {
	char (*list)[NAME_BYTES];
	size_t count;
};

static void free_names(struct names *names)
{
	free(names->list);
}

/*
 * Lists the names of the records. All are read first, so that writes and removals by the visitor do
 * not disturb the walk.
 */
static int list_names(int records_fd, struct names *names,
		      void (*unreadable)(const char *name, int error, void *data), void *data)
{
	_cleanup_closedir_ DIR *directory = NULL;
	size_t room = 0;
	int r = gcr_beneath_list(records_fd, ".", &directory);

	if (r < 0)
		return r;
	for (;;) {
		struct dirent *entry;

		errno = 0;
		entry = readdir(directory);
		if (!entry)
			return -errno;
		/* "." and "..", and records that are being written. */
		if (entry->d_name[0] == '.')
			continue;
		if (strlen(entry->d_name) >= NAME_BYTES) {
			if (unreadable)
				unreadable(entry->d_name, EBADMSG, data);
			continue;
		}
		if (names->count == room) {
			void *larger;

			room = room ? room * 2 : 16;
			larger = reallocarray(names->list, room, NAME_BYTES);
			if (!larger)
				return -ENOMEM;
			names->list = larger;
		}
		memcpy(names->list[names->count++], entry->d_name, strlen(entry->d_name) + 1);
	}
}

int gcr_record_each(int directory_fd, int (*visit)(const struct gcr_record *record, void *data),
		    void (*unreadable)(const char *name, int error, void *data), void *data)
{
	_cleanup_(free_names) struct names names = {};
	_cleanup_close_ int records_fd = -1;
	char boot_id[GCR_BOOT_ID_BYTES];
	int r;

	records_fd = open_records(directory_fd, false);
	if (records_fd < 0)
		return records_fd == -ENOENT ? 0 : records_fd;
	r = read_boot_id(boot_id);
	if (r < 0)
		return r;
	r = list_names(records_fd, &names, unreadable, data);
	if (r < 0)
		return r;
	for (size_t i = 0; i < names.count; i++) {
		struct gcr_record record;

		r = read_record(records_fd, names.list[i], boot_id, &record);
		if (r == -ENOENT) /* removed since, or of an earlier boot */
			continue;
		if (r < 0) {
			if (unreadable)
				unreadable(names.list[i], -r, data);
			continue;
		}
		r = visit(&record, data);
		if (r)
			return r;
	}
	return 0;
}

/* Removes the files of @records_fd that are no records, except for spares of records. -errno. */
static int remove_unfinished(int records_fd)
{
	_cleanup_closedir_ DIR *directory = NULL;
	const struct dirent *entry;
	int r = gcr_beneath_list(records_fd, ".", &directory);

	if (r < 0)
		return r;
	while ((entry = readdir(directory))) {
		size_t length = strlen(entry->d_name);
		char name[NAME_BYTES];
		bool is_spare = entry->d_name[0] == '.' && length > strlen(SPARE_END) + 1 &&
				length < SPARE_BYTES &&
				!strcmp(entry->d_name + length - strlen(SPARE_END), SPARE_END);

		if (entry->d_name[0] != '.')
			continue;
		snprintf(name, sizeof(name), "%.*s",
			 is_spare ? (int)(length - strlen(SPARE_END) - 1) : 0, entry->d_name + 1);
		/* Unlinking "." and ".." fails. */
		if (!is_spare || is_absent(records_fd, name))
			unlinkat(records_fd, entry->d_name, 0);
	}
	return 0;
}

/*
 * Gives a record of an earlier version, or of a daemon that died before it had made one, its spare.
 * @data: the directory of the records. If there is no room, a later write says so. Returns 0.
 */
static int give_spare(const struct gcr_record *record, void *data)
{
	_cleanup_free_ char *text = NULL;
	const int *records_fd = data;
	char spare[SPARE_BYTES];
	char name[NAME_BYTES];
	size_t bytes = 0;

	if (print_record(record, &text, &bytes) < 0)
		return 0;
	record_name(name, record->pid, record->start_ticks);
	spare_name(spare, name);
	provide_spare(*records_fd, spare, text, bytes);
	return 0;
}

int gcr_record_prepare(int directory_fd)
{
	_cleanup_close_ int records_fd = open_records(directory_fd, false);
	int r;

	if (records_fd < 0)
		return records_fd == -ENOENT ? 0 : records_fd;
	r = remove_unfinished(records_fd);
	if (r == 0)
		gcr_record_each(directory_fd, give_spare, NULL, &records_fd);
	return r;
}
