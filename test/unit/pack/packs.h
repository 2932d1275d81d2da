/* SPDX-License-Identifier: MIT */
/* Shared by the tests of packed chunks: a tmpfs as the store, and bytes that pack well or badly. */
#ifndef GCR_TEST_PACKS_H
#define GCR_TEST_PACKS_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/unit/test.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)

static char directory[] = "/tmp/gpucr-packs-XXXXXX";
static int store_fd = -1;

/* Mounts the store; its files use huge pages where the kernel has them. */
static inline void mount_store(const char *options)
{
	if (unshare(CLONE_NEWNS) < 0)
		SKIP("no privilege to mount a tmpfs");
	CHECK(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	CHECK(mkdtemp(directory));
	if (mount("test", directory, "tmpfs", 0, options) < 0) {
		CHECK(errno == EINVAL); /* a kernel without the option huge= */
		CHECK(!mount("test", directory, "tmpfs", 0, strchr(options, ',') + 1));
	}
	store_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(store_fd >= 0);
}

static inline void unmount_store(void)
{
	close(TAKE_FD(store_fd));
	CHECK(!umount(directory) && !rmdir(directory));
}

static inline uint64_t store_used(void)
{
	struct statfs statfs;

	CHECK(!fstatfs(store_fd, &statfs));
	return (uint64_t)(statfs.f_blocks - statfs.f_bfree) * (uint64_t)statfs.f_bsize;
}

/* Fills memory with incompressible bytes, which differ for each @seed. */
static inline void fill_random(void *bytes, size_t size, uint64_t seed)
{
	uint64_t value = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);

	for (size_t i = 0; i < size; i += sizeof(value)) {
		size_t left = size - i;

		value ^= value << 13;
		value ^= value >> 7;
		value ^= value << 17;
		memcpy((uint8_t *)bytes + i, &value, left < sizeof(value) ? left : sizeof(value));
	}
}

/* Runs act() in a child that exits at once without cleaning up, like a killed daemon. */
static inline void in_child(void (*act)(void))
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		act();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
}

#endif
