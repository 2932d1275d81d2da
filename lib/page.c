/* SPDX-License-Identifier: MIT */
#include "lib/page.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

int gcr_page_map(int fd, const struct gcr_page **ret_page)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);
	const struct gcr_page *page;
	struct statfs system;
	struct stat status;
	void *memory;

	/* A page of hugetlbfs that its owner gives back is a SIGBUS where none is left. */
	if (fstatfs(fd, &system) < 0 || system.f_type != TMPFS_MAGIC)
		return -EPROTO;
	if (seals < 0 || (seals & wanted) != wanted || fstat(fd, &status) < 0 ||
	    status.st_size < (off_t)sizeof(*page))
		return -EPROTO;
	memory = mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, fd, 0);
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

void gcr_page_unmap(const struct gcr_page *page)
{
	if (page)
		munmap((void *)(uintptr_t)page, sizeof(*page));
}
