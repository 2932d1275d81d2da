/* SPDX-License-Identifier: MIT */
/* The moment in which managed memory is taken; see managed_hold.h for what must not be done. */
#include "backend/preload/managed_hold.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/preload/hold.h"
#include "backend/preload/touch.h"
#include "lib/cleanup.h"
#include "lib/thread_name.h"

/* Compared at once. */
#define COMPARED_BYTES (1ull << 20)

/* As linux/dirent.h has it; no library has a header for it. */
struct entry {
	uint64_t inode;
	int64_t offset;
	uint16_t bytes;
	uint8_t type;
	char name[];
};

/* ---- before ---- */

/* The name of the process; "" if it is not to be had. */
static void read_program(char program[GCR_COMM_ROOM])
{
	_cleanup_close_ int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, program, GCR_COMM_ROOM - 1);

	program[length > 0 ? length : 0] = '\0';
	program[strcspn(program, "\n")] = '\0';
}

int gcr_saved_prepare(struct gcr_saved_all *saved, struct gcr_error *error)
{
	saved->tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (saved->tasks < 0)
		return gcr_error_set(error, errno, "/proc/self/task: %s", strerror(errno));
	read_program(saved->program);
	saved->memory = malloc(COMPARED_BYTES);
	if (!saved->memory || gcr_hold_expect(saved->range_count) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	/* Where memory is not yet in use, the first use of it is a page fault: have it now. */
	memset(saved->memory, 0, COMPARED_BYTES);
	for (size_t i = 0; i < saved->range_count; i++) {
		saved->ranges[i].memory = gcr_hold_make(saved->ranges[i].bytes);
		if (!saved->ranges[i].memory)
			return gcr_error_set(error, ENOMEM,
					     "no address space to hold %zu bytes with",
					     saved->ranges[i].bytes);
	}
	return 0;
}

void gcr_saved_finish(struct gcr_saved_all *saved)
{
	for (size_t i = 0; i < saved->range_count; i++)
		if (saved->ranges[i].memory)
			munmap(saved->ranges[i].memory, saved->ranges[i].bytes);
	if (saved->tasks >= 0)
		close(saved->tasks);
	free(saved->memory);
	free(saved->ranges);
	free(saved->parts);
	*saved = (struct gcr_saved_all){.tasks = -1};
}

/* ---- in the moment ---- */

/* Without gcr_error_set(), which formats. */
static int fail(struct gcr_error *error, int number, const char *words)
{
	if (!error)
		return -number;
	error->number = number;
	memccpy(error->words, words, '\0', sizeof(error->words) - 1);
	error->words[sizeof(error->words) - 1] = '\0';
	return -number;
}

/*
 * Stopped, dead, or where no stop reaches it, in a system call that does not end before we are done
 * (the daemon has looked at which).
 */
static bool is_stopped(const struct gcr_saved_all *saved, const char *name)
{
	char path[32], text[512], *comm;
	char *state;
	ssize_t length;
	int fd;

	memset(path, 0, sizeof(path));
	memcpy(path, name, strnlen(name, 16));
	memcpy(path + strlen(path), "/stat", 5);
	fd = openat(saved->tasks, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return errno == ESRCH;
	text[length] = '\0';
	comm = strchr(text, '(');
	state = strrchr(text, ')');
	if (!comm || !state || state[1] != ' ')
		return false;
	if (strchr("tDZX", state[2]) || strtol(name, NULL, 10) == gettid())
		return true;
	*state = '\0';
	return gcr_thread_name_is_ours(comm + 1) ||
	       gcr_thread_name_is_drivers(comm + 1, saved->program);
}

/* By what the kernel says: a daemon that is killed lets go of them without a word. */
static bool all_stopped(const struct gcr_saved_all *saved)
{
	char buffer[4096] __attribute__((aligned(8)));
	long length;

	if (lseek(saved->tasks, 0, SEEK_SET) < 0)
		return false;
	while ((length = syscall(SYS_getdents64, saved->tasks, buffer, sizeof(buffer))) > 0)
		for (long at = 0; at < length;) {
			const struct entry *entry = (const struct entry *)(buffer + at);

			if (entry->name[0] != '.' && !is_stopped(saved, entry->name))
				return false;
			at += entry->bytes;
		}
	return length == 0;
}

/* One stretch of COMPARED_BYTES at most. */
static int update(const struct gcr_saved_all *saved, const struct gcr_saved *part, uintptr_t start,
		  size_t bytes, struct gcr_error *error)
{
	off_t offset = part->offset + (off_t)(start - part->start);

	while (bytes > 0) {
		ssize_t length = pread(part->file->fd, saved->memory, bytes, offset);

		if (length < 0 && errno == EINTR)
			continue;
		if (length <= 0)
			return fail(error, EIO, "reading managed memory from the store");
		if (memcmp(saved->memory, (const void *)start, (size_t)length) != 0) {
			length =
				pwrite(part->file->fd, (const void *)start, (size_t)length, offset);
			if (length < 0 && errno == EINTR)
				continue;
			if (length <= 0)
				return fail(error, length ? errno : EIO,
					    "writing managed memory to the store, once more");
		}
		start += (size_t)length;
		offset += length;
		bytes -= (size_t)length;
	}
	return 0;
}

static int update_part(const struct gcr_saved_all *saved, const struct gcr_saved *part,
		       struct gcr_error *error)
{
	uintptr_t at = part->start, end = part->start + part->bytes;
	int r = 0;

	if (!gcr_descriptor_valid(part->file))
		return fail(error, EIO, "the program has closed a file of its managed memory");
	while (at < end && r == 0) {
		size_t bytes = end - at < COMPARED_BYTES ? end - at : COMPARED_BYTES;

		if (part->is_certain && !gcr_touch_next(&at, end, COMPARED_BYTES, &bytes))
			break;
		r = update(saved, part, at, bytes, error);
		at += bytes;
	}
	return r;
}

/*
 * Each range is held in one step, and looked after both before and behind it, so that whoever is
 * let go early (the daemon has been killed) most likely does no harm.
 */
static int hold_all(struct gcr_saved_all *saved, bool *ret_held, struct gcr_error *error)
{
	if (!all_stopped(saved))
		return fail(error, EIO, "threads of the program were let go too early");
	for (size_t i = 0; i < saved->range_count; i++) {
		struct gcr_saved_range *range = &saved->ranges[i];
		int r = gcr_hold_place(range->memory, range->start, range->bytes);

		if (r < 0)
			return fail(error, -r, "addresses of managed memory cannot be held");
		range->memory = NULL;
		*ret_held = true;
		if (!all_stopped(saved))
			return fail(error, ENOTRECOVERABLE,
				    "threads of the program were let go while its managed memory "
				    "was being taken: what they wrote in that moment may be lost");
	}
	return 0;
}

int gcr_saved_hold(struct gcr_saved_all *saved, bool *ret_held, struct gcr_error *error)
{
	int r = 0;

	if (!all_stopped(saved))
		return fail(error, EIO, "threads of the program run that were to be stopped");
	for (size_t i = 0; i < saved->part_count && r == 0; i++)
		r = update_part(saved, &saved->parts[i], error);
	return r < 0 ? r : hold_all(saved, ret_held, error);
}
