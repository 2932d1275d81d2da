/* SPDX-License-Identifier: MIT */
/*
 * The critical section in which the library takes managed memory. managed_hold.h lists the calls
 * and accesses that are forbidden in this section.
 */
#include "backend/preload/managed/managed_hold.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/preload/managed/hold.h"
#include "backend/preload/managed/touch.h"
#include "lib/cleanup.h"

/* Number of bytes compared at a time. */
#define COMPARED_BYTES (1ull << 20)

/* ---- before the critical section ---- */

size_t gcr_saved_ranges(const struct gcr_place *places, size_t place_count,
			struct gcr_saved_range *ret_ranges)
{
	size_t count = 0;

	for (size_t i = 0; i < place_count; i++) {
		uintptr_t start = gcr_block_of(places[i].start), end = gcr_blocks_end(&places[i]);
		struct gcr_saved_range *last = count ? &ret_ranges[count - 1] : NULL;

		if (last && start <= last->start + last->bytes) {
			if (end > last->start + last->bytes)
				last->bytes = end - last->start;
			continue;
		}
		ret_ranges[count++] =
			(struct gcr_saved_range){.start = start, .bytes = end - start};
	}
	return count;
}

int gcr_saved_prepare(struct gcr_saved_all *saved, struct gcr_error *error)
{
	int r = gcr_watch_begin(&saved->watch, error);

	if (r < 0)
		return r;
	saved->memory = malloc(COMPARED_BYTES);
	if (!saved->memory || gcr_hold_expect(saved->range_count) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	/* The first use of new memory is a page fault: cause it now. */
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
	gcr_watch_end(&saved->watch);
	free(saved->memory);
	free(saved->ranges);
	free(saved->parts);
	*saved = (struct gcr_saved_all){.watch = GCR_WATCH_NONE};
}

/* ---- in the critical section ---- */

/* Sets an error in the critical section. Used instead of gcr_error_set(), which formats. */
static int fail(struct gcr_error *error, int number, const char *words)
{
	if (!error)
		return -number;
	error->number = number;
	memccpy(error->words, words, '\0', sizeof(error->words) - 1);
	error->words[sizeof(error->words) - 1] = '\0';
	return -number;
}

/* Writes the bytes that differ from those of the file; @bytes is at most COMPARED_BYTES. */
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
 * Holds all ranges. Checks before and after that the threads are still stopped: a thread that was
 * released early (the helper was killed) may have written bytes that are lost.
 */
static int hold_all(struct gcr_saved_all *saved, bool *ret_held, struct gcr_error *error)
{
	if (!gcr_watch_stopped(&saved->watch))
		return fail(error, EIO, "threads of the program were let go too early");
	for (size_t i = 0; i < saved->range_count; i++) {
		struct gcr_saved_range *range = &saved->ranges[i];
		int r = gcr_hold_place(range->memory, range->start, range->bytes);

		if (r < 0)
			return fail(error, -r, "addresses of managed memory cannot be held");
		range->memory = NULL;
		*ret_held = true;
	}
	if (gcr_watch_stopped(&saved->watch))
		return 0;
	return fail(error, ENOTRECOVERABLE,
		    "threads of the program were let go while its managed memory was being taken: "
		    "what they wrote in that moment may be lost");
}

int gcr_saved_hold(struct gcr_saved_all *saved, bool *ret_held, struct gcr_error *error)
{
	int r = 0;

	if (!gcr_watch_stopped(&saved->watch))
		return fail(error, EIO, "threads of the program run that were to be stopped");
	for (size_t i = 0; i < saved->part_count && r == 0; i++)
		r = update_part(saved, &saved->parts[i], error);
	return r < 0 ? r : hold_all(saved, ret_held, error);
}
