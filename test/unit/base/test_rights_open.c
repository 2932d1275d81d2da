/* SPDX-License-Identifier: MIT */
/* fs/base/credentials.c: a file that a user names may be in a filesystem of his own. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/credentials.h"
#include "lib/clock.h"
#include "test/unit/hold_opening.h"
#include "test/unit/test.h"

int main(void)
{
	struct gcr_rights rights = {.uid = geteuid(), .gid = getegid(), .capabilities = ~0ull};
	char path[] = "/tmp/gcr-rights-open-XXXXXX";
	int64_t since_usec;
	int fd = mkstemp(path);
	int held;

	CHECK(fd >= 0 && write(fd, "words", 5) == 5);
	close(fd);
	/* Only root can take another user's rights. */
	if (geteuid()) {
		CHECK(unlink(path) == 0);
		return 77;
	}
	fd = gcr_rights_open(&rights, path, O_RDONLY, 0);
	CHECK(fd >= 0);
	close(fd);
	CHECK(gcr_rights_open(&rights, "/nowhere/at/all", O_RDONLY, 0) == -ENOENT);
	held = hold_opening(path);
	if (held < 0) {
		CHECK(unlink(path) == 0);
		return 77;
	}
	since_usec = gcr_clock_usec();
	CHECK(gcr_rights_open(&rights, path, O_RDONLY, 0) == -ETIMEDOUT);
	CHECK(gcr_clock_usec() >= since_usec + GCR_USEC_PER_SEC);
	allow_opening(held);
	fd = gcr_rights_open(&rights, path, O_RDONLY, 0);
	CHECK(fd >= 0);
	close(fd);
	CHECK(unlink(path) == 0);
	return 0;
}
