/* SPDX-License-Identifier: MIT */
/* lib/page.c: which files are accepted as pages, and the facts read from a page. */
#include "lib/page.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/unit/test.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static int make_file(size_t bytes, int seals)
{
	int fd = memfd_create(GCR_PAGE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	CHECK(!seals || fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static struct gcr_page *map_file(int fd)
{
	struct gcr_page *page =
		mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	CHECK(page != MAP_FAILED);
	page->magic = GCR_PAGE_MAGIC;
	page->version = GCR_PAGE_VERSION;
	page->phase = GCR_PRELOAD_HANDED;
	return page;
}

static void test_what_it_says(void)
{
	int fd = make_file(sizeof(struct gcr_page), SEALS);
	struct gcr_page *page = map_file(fd);
	struct gcr_page_facts facts;

	page->device_bytes = 7;
	page->is_moving = 1;
	page->slots[0].submissions = 1;
	page->slots[2].submissions = 5;
	page->slots[3].submissions = 100;
	page->slots_count = 3;
	strcpy(page->unknown, "cuOne");
	CHECK(gcr_page_read(fd, &facts) == 0);
	CHECK(facts.phase == GCR_PRELOAD_HANDED && facts.device_bytes == 7 && facts.is_moving);
	CHECK(facts.submissions == 6 && !strcmp(facts.unknown, "cuOne"));

	/* Values out of range are not passed on. */
	page->phase = GCR_PRELOAD_LAST + 1;
	page->slots_count = UINT32_MAX;
	memset(page->unknown, 'x', sizeof(page->unknown));
	memset(page->obstacle, '\n', sizeof(page->obstacle));
	CHECK(gcr_page_read(fd, &facts) == 0);
	CHECK(facts.phase == GCR_PRELOAD_RUNNING && facts.submissions == 106);
	CHECK(strlen(facts.unknown) == sizeof(facts.unknown) - 1);
	CHECK(strlen(facts.obstacle) == sizeof(facts.obstacle) - 1);
	CHECK(!strchr(facts.obstacle, '\n'));

	page->is_parked = 1;
	CHECK(gcr_page_unpark(fd) == 0 && page->is_parked == 0);
	page->version = GCR_PAGE_VERSION + 1;
	CHECK(gcr_page_read(fd, &facts) == -EPROTO && gcr_page_unpark(fd) == -EPROTO);
	munmap(page, sizeof(*page));
	close(fd);
}

/* Fields beyond the end of an older library's page read as 0. */
static void test_of_an_older_library(void)
{
	int fd = make_file(GCR_PAGE_BYTES_LEAST, SEALS);
	struct gcr_page *page = map_file(fd);
	struct gcr_page_facts facts;

	page->device_bytes = 7;
	CHECK(gcr_page_read(fd, &facts) == 0 && facts.device_bytes == 7 && !*facts.unknown);
	munmap(page, sizeof(*page));
	close(fd);
}

static void check_refused(int fd)
{
	struct gcr_page_facts facts;

	CHECK(gcr_page_check(fd) == -EPROTO && gcr_page_read(fd, &facts) == -EPROTO);
	CHECK(gcr_page_unpark(fd) == -EPROTO);
	close(fd);
}

/* Files of other lengths, or of a length that the owner can still change. */
static void test_lengths(void)
{
	int fd;

	check_refused(make_file(GCR_PAGE_BYTES_LEAST - 1, SEALS));
	check_refused(make_file(4 * sizeof(struct gcr_page), SEALS));
	check_refused(make_file(sizeof(struct gcr_page), F_SEAL_SHRINK));
	check_refused(make_file(sizeof(struct gcr_page), F_SEAL_GROW));
	/*
	 * Allocated memory beyond the end: the process that closes the file last would have to free
	 * the memory.
	 */
	fd = make_file(sizeof(struct gcr_page), 0);
	CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 16 << 20) == 0);
	CHECK(fcntl(fd, F_ADD_SEALS, SEALS) == 0);
	check_refused(fd);
	fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	check_refused(fd);
}

/*
 * Files of huge pages are refused: despite all seals the owner can punch holes, and a process that
 * maps the file would be killed.
 */
static void test_huge_pages(void)
{
	int fd = memfd_create(GCR_PAGE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	struct gcr_page *own;
	struct stat status;

	if (fd < 0) /* kernel without huge pages */
		return;
	CHECK(fstat(fd, &status) == 0 && ftruncate(fd, status.st_blksize) == 0);
	/* Everything else is valid, if the machine has a huge page free. */
	own = mmap(NULL, (size_t)status.st_blksize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (own != MAP_FAILED) {
		own->magic = GCR_PAGE_MAGIC;
		own->version = GCR_PAGE_VERSION;
		munmap(own, (size_t)status.st_blksize);
	}
	CHECK(fcntl(fd, F_ADD_SEALS, SEALS) == 0);
	check_refused(fd);
}

int main(void)
{
	test_what_it_says();
	test_of_an_older_library();
	test_lengths();
	test_huge_pages();
	return 0;
}
