/* SPDX-License-Identifier: MIT */
/*
 * A segment: a sparse file of a fixed size, in which the pages that hold chunks have memory. The
 * whole file is mapped, with small pages even where the store has huge ones (a page that is faulted
 * in has the size that the mapping requests): so each page can be freed by itself, and the memory
 * in use is known without a system call. Unused pages are filled again only in long runs
 * (gcr_pack_segment_fill_run()). Called with the lock of the packs held. Segments on a disk are not
 * mapped (pack_spill.c).
 */
#include "fs/pack/packs_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MADV_POPULATE_WRITE /* Linux 5.14, <asm-generic/mman-common.h> */
#define MADV_POPULATE_WRITE 23
#endif

#define PAGES	   GCR_PACK_PAGE_COUNT
#define PAGE_THERE GCR_PACK_PAGE_THERE
#define PAGE_USED  GCR_PACK_PAGE_USED

void gcr_pack_segment_find_pages(struct gcr_pack_segment *segment)
{
	off_t at = 0;

	while ((at = lseek(segment->fd, at, SEEK_DATA)) >= 0) {
		off_t end = lseek(segment->fd, at, SEEK_HOLE);

		at -= at % GCR_PACK_PAGE_BYTES; /* a disk's blocks may be smaller */
		for (; at < end && at < (off_t)GCR_PACK_SEGMENT_BYTES; at += GCR_PACK_PAGE_BYTES) {
			uint16_t *page = &segment->pages[at / GCR_PACK_PAGE_BYTES];

			segment->pages_there += !(*page & PAGE_THERE);
			*page |= PAGE_THERE;
			segment->end = (uint32_t)at + GCR_PACK_PAGE_BYTES;
		}
		if (end < 0 || end >= (off_t)GCR_PACK_SEGMENT_BYTES)
			break;
		at = end;
	}
}

static int open_file(int directory_fd, const char *name, bool create)
{
	int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0);
	_cleanup_close_ int fd = openat(directory_fd, name, flags, 0600);
	struct stat stat;

	if (fd < 0)
		return -errno;
	if (create && ftruncate(fd, GCR_PACK_SEGMENT_BYTES) < 0) {
		int result = -errno;

		unlinkat(directory_fd, name, 0);
		return result;
	}
	if (fstat(fd, &stat) < 0)
		return -errno;
	if (!S_ISREG(stat.st_mode) || stat.st_size != GCR_PACK_SEGMENT_BYTES) {
		unlinkat(directory_fd, name, 0);
		return -ENOENT;
	}
	return TAKE_FD(fd);
}

int gcr_pack_segment_open(const struct gcr_packs *packs, uint32_t number, bool create,
			  struct gcr_pack_segment **ret_segment)
{
	_cleanup_(gcr_pack_segment_close_cleanup) struct gcr_pack_segment *segment =
		calloc(1, sizeof(*segment));
	char name[16];
	void *map;

	if (!segment)
		return -ENOMEM;
	segment->number = number;
	segment->room_end = GCR_PACK_SEGMENT_BYTES;
	segment->fd = -1;
	segment->pages = calloc(PAGES, sizeof(*segment->pages));
	if (!segment->pages)
		return -ENOMEM;
	snprintf(name, sizeof(name), "%u", number);
	segment->fd = open_file(packs->fd, name, create);
	if (segment->fd == -ELOOP && !create) {
		int result = gcr_pack_segment_follow(packs, segment);

		if (!result)
			*ret_segment = TAKE_PTR(segment);
		return result;
	}
	if (segment->fd < 0)
		return segment->fd;
	map = mmap(NULL, GCR_PACK_SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd,
		   0);
	if (map == MAP_FAILED) {
		int result = -errno;

		if (create)
			unlinkat(packs->fd, name, 0);
		return result;
	}
	segment->map = map;
	/* Fails with EINVAL if the kernel has no huge pages. */
	madvise(map, GCR_PACK_SEGMENT_BYTES, MADV_NOHUGEPAGE);
	if (!create)
		gcr_pack_segment_find_pages(segment);
	*ret_segment = TAKE_PTR(segment);
	return 0;
}

void gcr_pack_segment_close(struct gcr_pack_segment *segment)
{
	if (!segment)
		return;
	if (segment->map)
		munmap(segment->map, GCR_PACK_SEGMENT_BYTES);
	if (segment->fd >= 0)
		close(segment->fd);
	free(segment->pages);
	free(segment->path);
	free(segment);
}

static uint32_t first_page(uint32_t offset)
{
	return offset / GCR_PACK_PAGE_BYTES;
}

/* The page behind the last one. */
static uint32_t end_page(uint32_t offset, size_t size)
{
	return (uint32_t)((offset + size - 1) / GCR_PACK_PAGE_BYTES) + 1;
}

/* Number of bytes of a chunk that are in a page. */
static uint16_t part_in(uint32_t page, uint32_t offset, size_t size)
{
	uint64_t begin = (uint64_t)page * GCR_PACK_PAGE_BYTES;
	uint64_t end = begin + GCR_PACK_PAGE_BYTES;

	if (begin < offset)
		begin = offset;
	if (end > offset + size)
		end = offset + size;
	return (uint16_t)(end - begin);
}

bool gcr_pack_segment_has_room(const struct gcr_pack_segment *segment, size_t bytes)
{
	return !segment->is_sealed && segment->room_end - segment->end >= bytes;
}

bool gcr_pack_segment_fill_run(struct gcr_pack_segment *segment)
{
	uint32_t best_first = 0;
	uint32_t best_count = 0;

	for (uint32_t page = 0; page < PAGES; page++) {
		uint32_t first = page;

		while (page < PAGES && !(segment->pages[page] & PAGE_USED))
			page++;
		if (page - first > best_count) {
			best_first = first;
			best_count = page - first;
		}
	}
	if (best_count < GCR_PACK_RUN_PAGES)
		return false;
	segment->end = best_first * GCR_PACK_PAGE_BYTES;
	segment->room_end = (best_first + best_count) * GCR_PACK_PAGE_BYTES;
	return true;
}

uint64_t gcr_pack_segment_cost(const struct gcr_pack_segment *segment, size_t bytes)
{
	uint64_t cost = 0;

	for (uint32_t i = first_page(segment->end); i < end_page(segment->end, bytes); i++)
		if (!(segment->pages[i] & PAGE_THERE))
			cost += GCR_PACK_PAGE_BYTES;
	return cost;
}

int gcr_pack_segment_punch(const struct gcr_pack_segment *segment, uint32_t page, uint32_t end)
{
	int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

	return fallocate(segment->fd, mode, (off_t)page * GCR_PACK_PAGE_BYTES,
			 (off_t)(end - page) * GCR_PACK_PAGE_BYTES) < 0
		       ? -errno
		       : 0;
}

/* After a failure: frees the pages that had no memory before, some of which may have got memory. */
static void take_back(const struct gcr_pack_segment *segment, uint32_t page, uint32_t end)
{
	for (; page < end; page++)
		if (!(segment->pages[page] & PAGE_THERE))
			gcr_pack_segment_punch(segment, page, page + 1);
}

/*
 * Allocates memory for the pages from @page to before @end, before the mapping is accessed: access
 * to a page without memory would raise SIGBUS. -ENOSPC (here the kernel reports EFAULT);
 * -EOPNOTSUPP: the kernel cannot populate; -errno. On errors nothing has changed.
 */
static int populate(struct gcr_pack_segment *segment, uint32_t page, uint32_t end)
{
	int result = 0;

	if (madvise(segment->map + (size_t)page * GCR_PACK_PAGE_BYTES,
		    (size_t)(end - page) * GCR_PACK_PAGE_BYTES, MADV_POPULATE_WRITE) < 0)
		result = errno == EFAULT ? -ENOSPC : errno == EINVAL ? -EOPNOTSUPP : -errno;
	if (result < 0) {
		take_back(segment, page, end);
		return result;
	}
	for (; page < end; page++) {
		segment->pages_there += !(segment->pages[page] & PAGE_THERE);
		segment->pages[page] |= PAGE_THERE;
	}
	return 0;
}

int gcr_pack_segment_append(struct gcr_pack_segment *segment, const void *bytes, size_t size,
			    uint32_t *ret_offset)
{
	uint32_t offset = segment->end;
	uint32_t end = end_page(offset, size);
	int result = populate(segment, first_page(offset), end);

	if (result < 0)
		return result;
	memcpy(segment->map + offset, bytes, size);
	for (uint32_t i = first_page(offset); i < end; i++)
		segment->pages[i] = (uint16_t)(segment->pages[i] + part_in(i, offset, size));
	segment->live_bytes += size;
	segment->end = (uint32_t)((offset + size + GCR_PACK_ALIGN_BYTES - 1) /
				  GCR_PACK_ALIGN_BYTES * GCR_PACK_ALIGN_BYTES);
	*ret_offset = offset;
	return 0;
}

int gcr_pack_segment_claim(struct gcr_pack_segment *segment, uint32_t offset, size_t size)
{
	if (offset % GCR_PACK_ALIGN_BYTES || offset > GCR_PACK_SEGMENT_BYTES ||
	    size > GCR_PACK_SEGMENT_BYTES - offset)
		return -EBADMSG;
	for (uint32_t i = first_page(offset); i < end_page(offset, size); i++) {
		unsigned int used = segment->pages[i] & PAGE_USED;

		/*
		 * On a disk the blocks in use prove nothing: some file systems store zeros as
		 * holes.
		 */
		if ((!segment->path && !(segment->pages[i] & PAGE_THERE)) ||
		    used + part_in(i, offset, size) > GCR_PACK_PAGE_BYTES)
			return -EBADMSG;
	}
	for (uint32_t i = first_page(offset); i < end_page(offset, size); i++)
		segment->pages[i] = (uint16_t)(segment->pages[i] + part_in(i, offset, size));
	segment->live_bytes += size;
	return 0;
}

void gcr_pack_segment_release(struct gcr_pack_segment *segment, uint32_t offset, size_t size)
{
	uint32_t first = first_page(offset);
	uint32_t end = end_page(offset, size);

	for (uint32_t i = first; i < end; i++)
		segment->pages[i] = (uint16_t)(segment->pages[i] - part_in(i, offset, size));
	segment->live_bytes -= size;
	if (segment->loose_first == segment->loose_end) {
		segment->loose_first = first;
		segment->loose_end = end;
	}
	if (first < segment->loose_first)
		segment->loose_first = first;
	if (end > segment->loose_end)
		segment->loose_end = end;
}

void gcr_pack_segment_loosen(struct gcr_pack_segment *segment)
{
	segment->loose_first = 0;
	segment->loose_end = PAGES;
}

uint64_t gcr_pack_segment_trim(struct gcr_pack_segment *segment)
{
	uint32_t page = segment->loose_first;
	uint64_t bytes = 0;

	while (page < segment->loose_end) {
		uint32_t end = page;

		while (end < segment->loose_end && segment->pages[end] == PAGE_THERE)
			end++;
		if (end > page && !gcr_pack_segment_punch(segment, page, end)) {
			memset(&segment->pages[page], 0, (end - page) * sizeof(*segment->pages));
			segment->pages_there -= end - page;
			bytes += (uint64_t)(end - page) * GCR_PACK_PAGE_BYTES;
		}
		page = end > page ? end : page + 1;
	}
	segment->loose_first = segment->loose_end = 0;
	return bytes;
}
