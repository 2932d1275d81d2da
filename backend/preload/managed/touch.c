/* SPDX-License-Identifier: MIT */
/* The CPU's page table, read from the kernel. One thread at a time, the agent. */
#include "backend/preload/managed/touch.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/preload/base/descriptor.h"

#define IS_MAPPED  (1ull << 63)
#define IS_SWAPPED (1ull << 62)
#define ENTRIES	   512 /* read at a time */

static struct {
	struct gcr_descriptor pagemap;
	uint64_t entries[ENTRIES];
} touch = {.pagemap = {.fd = -1}};

void gcr_touch_begin(void)
{
	int fd;

	if (gcr_descriptor_valid(&touch.pagemap))
		return;
	touch.pagemap.fd = -1;
	/*
	 * Missing in a process that is not dumpable. /proc/self has no pagemap either once the main
	 * thread has ended.
	 */
	fd = open("/proc/thread-self/pagemap", O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		gcr_descriptor_keep_anywhere(fd, &touch.pagemap);
}

void gcr_touch_end(void)
{
	gcr_descriptor_close(&touch.pagemap);
}

static uint64_t faults_of(int who)
{
	struct rusage usage;

	return getrusage(who, &usage) == 0 ? (uint64_t)(usage.ru_minflt + usage.ru_majflt) : 0;
}

uint64_t gcr_touch_faults(void)
{
	/* In this order: this thread has no page fault between the two calls. */
	uint64_t all = faults_of(RUSAGE_SELF);

	return all - faults_of(RUSAGE_THREAD);
}

/* Reads the entries of up to ENTRIES pages from @page on. Returns their number, 0: not known. */
static size_t read_entries(uintptr_t page, size_t count)
{
	ssize_t length;

	if (count > ENTRIES)
		count = ENTRIES;
	do
		length = pread(touch.pagemap.fd, touch.entries, count * sizeof(touch.entries[0]),
			       (off_t)(page * sizeof(touch.entries[0])));
	while (length < 0 && errno == EINTR);
	return length > 0 ? (size_t)length / sizeof(touch.entries[0]) : 0;
}

bool gcr_touch_next(uintptr_t *start, uintptr_t end, size_t most, size_t *ret_bytes)
{
	uintptr_t page = *start / GCR_TOUCH_PAGE_BYTES;
	uintptr_t pages_end = (end + GCR_TOUCH_PAGE_BYTES - 1) / GCR_TOUCH_PAGE_BYTES;
	uintptr_t first = 0, last = 0; /* [first, last): mapped */
	bool is_known = gcr_descriptor_valid(&touch.pagemap);

	while (page < pages_end && (!last || last == page)) {
		size_t count = is_known ? read_entries(page, pages_end - page) : 0;

		if (!count) {
			first = last ? first : page;
			last = pages_end;
			break;
		}
		for (size_t i = 0; i < count && (!last || last == page + i); i++) {
			if (!(touch.entries[i] & (IS_MAPPED | IS_SWAPPED)))
				continue;
			first = last ? first : page + i;
			last = page + i + 1;
		}
		page += count;
	}
	if (!last)
		return false;
	first *= GCR_TOUCH_PAGE_BYTES;
	last *= GCR_TOUCH_PAGE_BYTES;
	if (first > *start)
		*start = first;
	if (last < end)
		end = last;
	*ret_bytes = end - *start < most ? end - *start : most;
	return true;
}

bool gcr_touch_is_mapped(uintptr_t start, size_t bytes)
{
	size_t mapped;

	return gcr_touch_next(&start, start + bytes, bytes, &mapped);
}
