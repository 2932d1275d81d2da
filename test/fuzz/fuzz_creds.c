/* SPDX-License-Identifier: MIT */
/* CRIU's image core-N.img of this process, whose credentials are compared with the kernel's. */
#include "criu-glue/creds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/fuzz/fuzz.h"

static char directory[] = "/dev/shm/gcr-fuzz-creds-XXXXXX";
static int directory_fd;

static void remove_directory(void)
{
	char name[32];

	snprintf(name, sizeof(name), "core-%d.img", (int)getpid());
	unlinkat(directory_fd, name, 0);
	unlinkat(directory_fd, "pstree.img", 0);
	rmdir(directory);
}

static void write_image(const char *name, const void *bytes, size_t size)
{
	int fd = openat(directory_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
	close(fd);
}

/* pstree.img with a tree of this process alone. */
static void write_tree(void)
{
	uint8_t image[32] = {0x19, 0x43, 0x56, 0x54, 0x30, 0x30, 0x27, 0x50};
	size_t size = 12;
	uint32_t pid = (uint32_t)getpid();

	image[size++] = 0x08;
	for (; pid > 0x7f; pid >>= 7)
		image[size++] = (uint8_t)(pid | 0x80);
	image[size++] = (uint8_t)pid;
	image[8] = (uint8_t)(size - 12);
	write_image("pstree.img", image, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	pid_t pid = getpid();
	struct gcr_error error = {0};
	char name[32];
	int result;

	if (!directory_fd) {
		CHECK(mkdtemp(directory));
		directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		CHECK(directory_fd > 0);
		atexit(remove_directory);
		write_tree();
	}
	snprintf(name, sizeof(name), "core-%d.img", (int)pid);
	write_image(name, data, size);
	result = gcr_criu_check_creds(directory_fd, &pid, 1, false, &error);
	CHECK(!result || result == -EIO || result == -EPERM);
	CHECK(!result == !error.number);
	return 0;
}
