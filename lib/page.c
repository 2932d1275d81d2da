/* SPDX-License-Identifier: MIT */
#include "lib/page.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/full_io.h"
#include "lib/printable.h"

/* The page of a later library may be longer. */
#define BYTES_MOST (2 * sizeof(struct gcr_page))

/* The most memory that the kernel allocates for a short file, with huge pages for all files. */
#define ROOM_MOST (4 << 20)

int gcr_page_check(int fd)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat status;
	struct statfs place;

	/*
	 * Closing the last descriptor of a file frees its memory, which takes long if there is much
	 * of it, also beyond the file's end.
	 */
	if (seals < 0 || (seals & wanted) != wanted || fstat(fd, &status) < 0 ||
	    status.st_size < (off_t)GCR_PAGE_BYTES_LEAST || status.st_size > (off_t)BYTES_MOST ||
	    status.st_blocks > ROOM_MOST / 512)
		return -EPROTO;
	/*
	 * The seals do not forbid holes. On hugetlbfs a hole is filled from a pool that can be
	 * empty, and we would get SIGBUS.
	 */
	if (fstatfs(fd, &place) < 0 || place.f_type != TMPFS_MAGIC)
		return -EPROTO;
	return 0;
}

/* Copies text of the program for display: one line, printable. */
static void copy_words(char *to, const char *from, size_t size)
{
	memcpy(to, from, size);
	to[size - 1] = '\0';
	gcr_make_printable(to);
}

static bool is_page(const struct gcr_page *page)
{
	return page->magic == GCR_PAGE_MAGIC && page->version == GCR_PAGE_VERSION;
}

int gcr_page_parse(const struct gcr_page *page, struct gcr_page_facts *ret_facts)
{
	if (!is_page(page))
		return -EPROTO;
	*ret_facts = (struct gcr_page_facts){
		.phase = GCR_PRELOAD_RUNNING,
		.flags = page->flags,
		.table_changes = page->table_changes,
		.device_bytes = page->device_bytes,
		.imported_bytes = page->imported_bytes,
		.managed_bytes = page->managed_bytes,
		.apart_bytes = page->apart_bytes,
		.extents = page->extents,
		.sharings = page->sharings,
		.captures = page->captures,
		.wanting = page->wanting,
		.is_moving = page->is_moving,
	};
	if (page->phase >= GCR_PRELOAD_RUNNING && page->phase <= GCR_PRELOAD_LAST)
		ret_facts->phase = (enum gcr_preload_phase)page->phase;
	copy_words(ret_facts->incomplete, page->incomplete, sizeof(ret_facts->incomplete));
	copy_words(ret_facts->obstacle, page->obstacle, sizeof(ret_facts->obstacle));
	copy_words(ret_facts->unknown, page->unknown, sizeof(ret_facts->unknown));
	return 0;
}

/*
 * Reads @bytes at @offset; bytes beyond the end of the file become 0, which includes fields that an
 * older library's page lacks.
 */
static int read_part(int fd, void *to, size_t bytes, size_t offset)
{
	ssize_t got = gcr_pread_all(fd, to, bytes, offset);

	if (got < 0)
		return (int)got;
	memset((char *)to + got, 0, bytes - (size_t)got);
	return 0;
}

int gcr_page_read(int fd, struct gcr_page_facts *ret_facts)
{
	_cleanup_free_ struct gcr_page *page = NULL;
	uint32_t slots;
	int r = gcr_page_check(fd);

	if (r < 0)
		return r;
	page = malloc(sizeof(*page));
	if (!page)
		return -ENOMEM;
	r = read_part(fd, page, offsetof(struct gcr_page, slots), 0);
	if (r == 0)
		r = read_part(fd, page->unknown, sizeof(page->unknown),
			      offsetof(struct gcr_page, unknown));
	if (r == 0)
		r = gcr_page_parse(page, ret_facts);
	if (r < 0)
		return r;
	slots = page->slots_count < GCR_PAGE_SLOTS ? page->slots_count : GCR_PAGE_SLOTS;
	r = read_part(fd, page->slots, slots * sizeof(page->slots[0]),
		      offsetof(struct gcr_page, slots));
	for (uint32_t i = 0; r == 0 && i < slots; i++)
		ret_facts->submissions += page->slots[i].submissions;
	return r;
}

int gcr_page_unpark(int fd)
{
	struct gcr_page *page;
	int r = gcr_page_check(fd);

	if (r < 0)
		return r;
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return -errno;
	if (is_page(page))
		__atomic_store_n(&page->is_parked, 0, __ATOMIC_SEQ_CST);
	else
		r = -EPROTO;
	munmap(page, sizeof(*page));
	return r;
}
