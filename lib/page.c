/* SPDX-License-Identifier: MIT */
#include "lib/page.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

static int map(int fd, int protection, struct gcr_page **ret_page)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);
	struct gcr_page *page;
	struct stat status;
	struct statfs place;
	void *memory;

	if (seals < 0 || (seals & wanted) != wanted || fstat(fd, &status) < 0 ||
	    status.st_size < (off_t)GCR_PAGE_BYTES_LEAST)
		return -EPROTO;
	/* Those seals forbid no holes. In huge pages (hugetlbfs) a hole is filled from a pool that
	 * can be empty, and then it is our SIGBUS.
	 */
	if (fstatfs(fd, &place) < 0 || place.f_type != TMPFS_MAGIC)
		return -EPROTO;
	memory = mmap(NULL, sizeof(*page), protection, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return -errno;
	page = memory;
	if (page->magic != GCR_PAGE_MAGIC || page->version != GCR_PAGE_VERSION) {
		gcr_page_unmap(page);
		return -EPROTO;
	}
	*ret_page = page;
	return 0;
}

int gcr_page_map(int fd, const struct gcr_page **ret_page)
{
	struct gcr_page *page;
	int result = map(fd, PROT_READ, &page);

	if (!result)
		*ret_page = page;
	return result;
}

int gcr_page_unpark(int fd)
{
	struct gcr_page *page;
	int result = map(fd, PROT_READ | PROT_WRITE, &page);

	if (result < 0)
		return result;
	__atomic_store_n(&page->is_parked, 0, __ATOMIC_SEQ_CST);
	gcr_page_unmap(page);
	return 0;
}

void gcr_page_unmap(const struct gcr_page *page)
{
	if (page)
		munmap((void *)(uintptr_t)page, sizeof(*page));
}
