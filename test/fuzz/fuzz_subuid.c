/* SPDX-License-Identifier: MIT */
/* A file of subordinate user ids and, after the first line "--", a file of users. */
#include "fs/base/subuid.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/fuzz/fuzz.h"

#define DIVIDER "\n--\n"

static char directory[64];
static char ranges_path[80];
static char users_path[80];

static void remove_directory(void)
{
	unlink(ranges_path);
	unlink(users_path);
	rmdir(directory);
}

static void prepare(void)
{
	const char *parent = getenv("TMPDIR");

	snprintf(directory, sizeof(directory), "%s/gpucrfs-fuzz-XXXXXX", parent ? parent : "/tmp");
	CHECK(mkdtemp(directory));
	snprintf(ranges_path, sizeof(ranges_path), "%s/subuid", directory);
	snprintf(users_path, sizeof(users_path), "%s/passwd", directory);
	atexit(remove_directory);
}

static void write_file(const char *path, const uint8_t *bytes, size_t size)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *divider = memmem(data, size, DIVIDER, strlen(DIVIDER));
	size_t ranges_size = divider ? (size_t)(divider - data) + 1 : size;
	size_t skipped = divider ? ranges_size + strlen(DIVIDER) - 1 : size;
	static const uid_t uids[] = {1,	     1000,   4001,   65534,	 99999,
				     100000, 100001, 165535, 0x7fffffff, 0xfffffffe};
	struct gcr_subuids *ranges;

	if (!*directory)
		prepare();
	write_file(ranges_path, data, ranges_size);
	write_file(users_path, data + skipped, size - skipped);
	CHECK(!gcr_subuids_create(ranges_path, users_path, &ranges));
	/* Only uid 0 belongs to root. */
	CHECK(!gcr_subuids_owner(ranges, 0));
	for (size_t i = 0; i < sizeof(uids) / sizeof(*uids); i++) {
		uid_t owner = gcr_subuids_owner(ranges, uids[i]);

		CHECK(owner && owner != (uid_t)-1);
	}
	gcr_subuids_destroy(ranges);
	return 0;
}
