/* SPDX-License-Identifier: MIT */
/* For tests that count this process's descriptors. */
#ifndef GCR_TEST_DESCRIPTORS_H
#define GCR_TEST_DESCRIPTORS_H

#include <dirent.h>

#include "test/unit/test.h"

/* Returns how many descriptors this process has open. */
static inline size_t count_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	size_t count = 0;

	CHECK(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count - 3; /* "." and "..", and this one */
}

#endif
