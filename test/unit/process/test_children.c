/* SPDX-License-Identifier: MIT */
/*
 * Child processes that have inherited mappings or descriptors that keep GPU memory in use. Ordinary
 * files stand in for those of the device.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/daemon.h"
#include "fs/process/children.h"
#include "fs/process/vendor.h"
#include "lib/procfs.h"
#include "test/unit/test.h"

#define BYTES (64 << 12)

static char directory[] = "/tmp/gpucr-children.XXXXXX";
static char device[64];	       /* stands in for a file such as /dev/dri/renderD128 */
static char device_begins[64]; /* the first part of that path */
static const char *const dma_bufs[] = {"/dmabuf:", NULL};

/* Starts a child that runs @work and lives until the test ends it. */
static pid_t child_of(void (*work)(void *data), void *data)
{
	int ready[2];
	char byte;
	pid_t pid;

	CHECK(pipe(ready) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (work)
			work(data);
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

static int check(struct gcr_error *error)
{
	*error = (struct gcr_error){0};
	return gcr_children_check(getpid(), dma_bufs, device_begins, error);
}

static void *map(off_t offset)
{
	int fd = open(device, O_RDWR | O_CLOEXEC);
	void *address;

	CHECK(fd >= 0);
	address = mmap(NULL, BYTES, PROT_NONE, MAP_SHARED, fd, offset);
	CHECK(address != MAP_FAILED);
	close(fd);
	return address;
}

static void unmap(void *address)
{
	CHECK(munmap(address, BYTES) == 0);
}

static void unmap_half(void *address)
{
	munmap(address, BYTES / 2);
}

/* Maps the device as a child does that uses the GPU itself, possibly at the parent's address. */
static void map_other(void *address)
{
	int fd = open(device, O_RDWR | O_CLOEXEC);

	if (mmap(address, BYTES, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 2 * BYTES) != address)
		_exit(1);
}

static void test_inherited(void)
{
	void *address = map(BYTES);
	struct gcr_error error;
	char name[32];
	pid_t pid;

	CHECK(check(&error) == 0);
	pid = child_of(NULL, NULL);
	CHECK(check(&error) == -EOPNOTSUPP);
	snprintf(name, sizeof(name), "child %d ", (int)pid);
	CHECK(strstr(error.words, name) && strstr(error.words, "mappings"));
	/* With the files of another vendor the check finds nothing. */
	CHECK(gcr_children_check(getpid(), dma_bufs, NULL, &error) == 0);
	end(pid);
	CHECK(check(&error) == 0);
	pid = child_of(unmap_half, address);
	CHECK(check(&error) == -EOPNOTSUPP);
	end(pid);
	unmap(address);
}

static void test_not_inherited(void)
{
	void *address = map(BYTES);
	struct gcr_error error;
	pid_t pid = child_of(map_other, address);

	CHECK(check(&error) == 0);
	end(pid);
	CHECK(madvise(address, BYTES, MADV_DONTFORK) == 0);
	pid = child_of(NULL, NULL);
	CHECK(check(&error) == 0);
	end(pid);
	unmap(address);
	/* A child that has inherited a mapping which its parent has since unmapped. */
	address = map(BYTES);
	pid = child_of(NULL, NULL);
	unmap(address);
	CHECK(check(&error) == 0);
	end(pid);
}

static void grandchild(void *data)
{
	(void)data;
	child_of(NULL, NULL);
}

static void test_below(void)
{
	void *address = map(0);
	struct gcr_error error;
	pid_t pid;

	CHECK(madvise(address, BYTES / 2, MADV_DONTFORK) == 0);
	pid = child_of(grandchild, NULL);
	CHECK(check(&error) == -EOPNOTSUPP);
	end(pid);
	unmap(address);
}

/* ---- descriptors ---- */

/*
 * Result of the check for a child made by fork(3) that has inherited a descriptor of @path, at a
 * number as high as those of the library.
 */
static int check_shared(const char *path, bool simulated, struct gcr_error *error)
{
	struct gcr_vendor vendor = {.backend = &gcr_backend_cuda};
	int fd = open(path, O_RDWR | O_CLOEXEC);
	int result;
	pid_t pid;

	CHECK(fd >= 0 && fcntl(fd, F_DUPFD_CLOEXEC, 250) == 250);
	close(fd);
	CHECK(gcr_vendor_set_links(&vendor, simulated ? directory : "/dev", simulated) == 0);
	pid = child_of(NULL, NULL);
	*error = (struct gcr_error){0};
	result =
		gcr_children_check(getpid(), (const char *const *)vendor.memory_links, NULL, error);
	end(pid);
	close(250);
	gcr_vendor_free_links(&vendor);
	return result;
}

/* Only some files below /dev are GPU memory. */
static void test_descriptors(void)
{
	struct gcr_vendor vendor = {.backend = &gcr_backend_cuda};
	char file[64];
	struct gcr_error error;
	int fd;
	pid_t pid;

	CHECK(check_shared("/dev/null", false, &error) == 0);
	CHECK(check_shared("/dev/zero", false, &error) == 0);
	CHECK(check_shared(device, false, &error) == 0);
	/* The simulator's memory consists of files in its own directory. */
	CHECK(check_shared(device, true, &error) == -EOPNOTSUPP);
	CHECK(strstr(error.words, "holds descriptors of its GPU memory"));
	CHECK(check_shared("/dev/null", true, &error) == 0);
	/* The driver's own file, by its real name in a directory that stands in for /dev. */
	CHECK(gcr_vendor_set_links(&vendor, directory, false) == 0);
	snprintf(file, sizeof(file), "%s/nvidiactl", directory);
	fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && fcntl(fd, F_DUPFD_CLOEXEC, 250) == 250);
	close(fd);
	pid = child_of(NULL, NULL);
	CHECK(gcr_children_check(getpid(), (const char *const *)vendor.memory_links, NULL,
				 &error) == -EOPNOTSUPP);
	end(pid);
	close(250);
	CHECK(unlink(file) == 0);
	gcr_vendor_free_links(&vendor);
}

/* ---- a process with very long links of its descriptors ---- */

#define DEPTH	   15
#define NAME_BYTES 250
#define LONG_FDS   (GCR_PROC_LINKS_BYTES_MAX / (DEPTH * NAME_BYTES) + 100)

/*
 * A file with a path of nearly 4 KiB is open so many times that the links exceed the limit that is
 * read.
 */
static void test_too_long(void)
{
	char name[NAME_BYTES + 1], *text;
	struct rlimit before, limit;
	struct gcr_error error;
	size_t bytes;
	int fd, here, last;

	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	if (before.rlim_max < LONG_FDS + 100) {
		fprintf(stderr, "skipped: too few open files are allowed\n");
		return;
	}
	limit = (struct rlimit){.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	memset(name, 'd', NAME_BYTES);
	name[NAME_BYTES] = '\0';
	here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(here >= 0 && chdir(directory) == 0);
	for (int i = 0; i < DEPTH; i++)
		CHECK(mkdir(name, 0700) == 0 && chdir(name) == 0);
	fd = last = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(fd >= 0 && gcr_proc_links(getpid(), &text, &bytes) == 0);
	free(text);
	for (unsigned int i = 0; i < LONG_FDS; i++)
		CHECK((last = fcntl(fd, F_DUPFD_CLOEXEC, 0)) > fd);
	CHECK(gcr_proc_links(getpid(), &text, &bytes) == -EFBIG);
	CHECK(check(&error) == -EFBIG && strstr(error.words, "so many open files"));
	for (; last >= fd; last--)
		close(last);
	CHECK(check(&error) == 0);
	for (int i = 0; i < DEPTH; i++)
		CHECK(chdir("..") == 0 && rmdir(name) == 0);
	CHECK(fchdir(here) == 0 && setrlimit(RLIMIT_NOFILE, &before) == 0);
	close(here);
}

int main(void)
{
	int fd;

	CHECK(mkdtemp(directory));
	snprintf(device, sizeof(device), "%s/renderD128", directory);
	snprintf(device_begins, sizeof(device_begins), "%s/renderD", directory);
	fd = open(device, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && ftruncate(fd, 4 * BYTES) == 0);
	close(fd);
	test_inherited();
	test_not_inherited();
	test_below();
	test_descriptors();
	test_too_long();
	unlink(device);
	rmdir(directory);
	return 0;
}
