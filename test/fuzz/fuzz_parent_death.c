/* SPDX-License-Identifier: MIT */
/* CRIU's images pstree.img and core-N.img from an untrusted source. */
#include "criu-glue/parent_death.h"

#include <errno.h>
#include <string.h>

#include "test/fuzz/fuzz.h"

static void check_tree(const uint8_t *image, size_t size)
{
	pid_t *threads = NULL;
	size_t count = 0;
	int result = gcr_parent_death_threads(image, size, &threads, &count);

	CHECK(!result || result == -EIO);
	CHECK(!result == (count > 0));
	for (size_t i = 0; i < count; i++)
		CHECK(threads[i] > 0);
	free(threads);
}

/* Checks that only the parent-death signal is cleared, and that a second call finds none. */
static void check_core(uint8_t *image, const uint8_t *before, size_t size)
{
	bool had, again;

	if (gcr_parent_death_clear(image, size, &had) < 0)
		return;
	CHECK(!had || memcmp(image, before, size) != 0);
	CHECK(!gcr_parent_death_clear(image, size, &again));
	CHECK(!again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* An exact-size copy, so that the sanitizer sees an overrun by one byte. */
	uint8_t *image = malloc(size ? size : 1);

	CHECK(image);
	if (size)
		memcpy(image, data, size);
	check_tree(image, size);
	check_core(image, data, size);
	free(image);
	return 0;
}
