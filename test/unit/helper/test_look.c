/* SPDX-License-Identifier: MIT */
/* The real gpucr-look, asked by fs/helper/looker.c. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/helper/looker.h"
#include "lib/proc_file.h"
#include "lib/proc_namespace.h"
#include "lib/proc_page.h"
#include "lib/procfs.h"
#include "lib/protocol.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

#define NOBODYS_PID (1 << 22) /* PID_MAX_LIMIT: no process has this pid */

static void start_real(void)
{
	struct gcr_error error = {0};

	if (gcr_looker_start(getenv("GPUCR_TEST_HELPERS"), true, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		CHECK(false);
	}
}

static int count_mapping(const char *path, void *data)
{
	*(unsigned int *)data += !strcmp(path, "/dev/zero");
	return 0;
}

static long read_number(const char *path)
{
	char *text;
	long number;

	CHECK(gcr_file_read(path, &text, NULL) == 0);
	number = strtol(text, NULL, 10);
	free(text);
	return number;
}

/* Make a page with @seals, whose library says that it is parked. */
static struct gcr_page *make_page(int seals, int *ret_fd)
{
	struct gcr_page *page;

	*ret_fd = memfd_create(GCR_PAGE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(*ret_fd >= 0 && ftruncate(*ret_fd, sizeof(*page)) == 0);
	CHECK(fcntl(*ret_fd, F_ADD_SEALS, seals) == 0);
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	CHECK(page != MAP_FAILED);
	page->magic = GCR_PAGE_MAGIC;
	page->version = GCR_PAGE_VERSION;
	page->is_parked = 1;
	return page;
}

static void drop_page(struct gcr_page *page, int fd)
{
	munmap(page, sizeof(*page));
	close(fd);
}

/* All pages of the process are called back, and no file that only resembles one. */
static void check_unpark(void)
{
	struct gcr_page *pages[4];
	int fds[4];

	pages[0] = make_page(F_SEAL_SHRINK | F_SEAL_GROW, &fds[0]);
	pages[1] = make_page(0, &fds[1]);
	pages[2] = make_page(F_SEAL_SHRINK | F_SEAL_GROW, &fds[2]);
	pages[2]->version++;
	pages[3] = make_page(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &fds[3]);
	CHECK(gcr_proc_unpark_pages(getpid()) == 0);
	CHECK(!pages[0]->is_parked && pages[1]->is_parked && pages[2]->is_parked &&
	      !pages[3]->is_parked);
	CHECK(gcr_proc_unpark_pages(NOBODYS_PID) == -ESRCH);
	for (int i = 0; i < 4; i++)
		drop_page(pages[i], fds[i]);
}

/* The real helper returns the same as this process reads itself, also for large texts. */
static void look_at_everything(void)
{
	struct gcr_scan_wanted wanted = {.devices[1].path = "/dev/zero"};
	int zero_fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	const int fds[] = {zero_fd, 0};
	struct gcr_proc_stat stat, ours;
	unsigned int devices = 0, mapped = 0;
	uint64_t start_ticks = 0;
	char target[4096], expected[4096] = "";
	char *text, *own_text;
	size_t bytes, own_bytes;
	bool is_same[2];
	int r, fd;
	pid_t child;

	CHECK(zero_fd >= 0);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, zero_fd, 0) != MAP_FAILED);
	/*
	 * Many lines of maps: each mapping differs from the one before, so that the kernel does not
	 * merge them.
	 */
	for (int i = 0; i < 2000; i++)
		CHECK(mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
			   -1, 0) != MAP_FAILED);
	for (int i = 0; i < 900; i++)
		CHECK((fd = dup(zero_fd)) >= 0 || errno == EMFILE);
	CHECK(gcr_proc_stat(getpid(), &ours) == 0);
	CHECK(gcr_proc_links(getpid(), &own_text, &own_bytes) == 0);
	free(own_text);
	start_real();
	CHECK(gcr_proc_stat(getpid(), &stat) == 0 && stat.start_ticks == ours.start_ticks);
	CHECK(gcr_proc_stat(NOBODYS_PID, &stat) == -ESRCH);
	CHECK(readlink("/proc/self/exe", expected, sizeof(expected) - 1) > 0);
	CHECK(gcr_proc_link(getpid(), "exe", target, sizeof(target)) == 0);
	CHECK(!strcmp(target, expected));
	CHECK(gcr_proc_open_namespace(getpid(), "pid", &fd) == 0 && close(fd) == 0);
	CHECK(gcr_proc_peek(getpid(), (uintptr_t)expected, target, sizeof(target)) == 0);
	CHECK(!memcmp(target, expected, sizeof(target)));
	CHECK(gcr_proc_peek(getpid(), 1, target, 8) == -EFAULT);
	check_unpark();
	CHECK(gcr_proc_links(getpid(), &text, &bytes) == 0 && bytes > own_bytes);
	free(text);
	CHECK(gcr_proc_read(getpid(), "maps", &text, &bytes) == 0 && bytes > 65536);
	free(text);
	CHECK(gcr_proc_each_mapping(getpid(), count_mapping, &mapped) == 0 && mapped == 1);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fd = open("/dev/full", O_RDWR);
		dup2(fd, 0);
		for (;;)
			pause();
	}
	do
		r = gcr_proc_same_files(getpid(), child, fds, 2, is_same);
	while (r == 0 && is_same[1]);
	CHECK(r == 0 && is_same[0] && !is_same[1]);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	CHECK(gcr_looker_devices(getpid(), &wanted, &devices, &start_ticks) == 0);
	CHECK(devices == 2 && start_ticks == ours.start_ticks);
	CHECK(gcr_looker_devices(NOBODYS_PID, &wanted, &devices, &start_ticks) == -ESRCH);
	gcr_looker_stop();
	/* A killed helper may need longer for its end than gcr_looker_stop() waits. */
	while (waitpid(-1, NULL, 0) > 0)
		;
	CHECK(errno == ECHILD);
}

/* A large program is no attacker: 60,000 mappings of files with long names can be searched. */
static void look_at_many_mappings(void)
{
	enum { COUNT = 60000, NAME_BYTES = 200 };
	char directory[] = "/tmp/gpucr-look.XXXXXX";
	char path[PATH_MAX];
	unsigned int mapped = 0;
	size_t bytes;
	char *text;
	int fd;

	if (read_number("/proc/sys/vm/max_map_count") < COUNT + 2000)
		return;
	CHECK(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/%0*d", directory, NAME_BYTES, 0);
	CHECK(mkdir(path, 0700) == 0);
	snprintf(path, sizeof(path), "%s/%0*d/%0*d", directory, NAME_BYTES, 0, NAME_BYTES, 0);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	/* All mappings begin at the file's start, so that the kernel does not merge them. */
	for (int i = 0; i < COUNT; i++)
		CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, open("/dev/zero", O_RDWR | O_CLOEXEC), 0) !=
	      MAP_FAILED);
	start_real();
	CHECK(gcr_proc_read(getpid(), "maps", &text, &bytes) == 0 && bytes > 16 << 20);
	free(text);
	CHECK(gcr_proc_each_mapping(getpid(), count_mapping, &mapped) == 0 && mapped == 1);
	gcr_looker_stop();
	CHECK(unlink(path) == 0);
	*strrchr(path, '/') = '\0';
	CHECK(rmdir(path) == 0 && rmdir(directory) == 0);
}

/* A looker is started once in a process, and its helpers are that process's children. */
int main(void)
{
	check_in_child(look_at_everything);
	check_in_child(look_at_many_mappings);
	return 0;
}
