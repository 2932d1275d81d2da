/* SPDX-License-Identifier: MIT */
/* The vdso in CRIU's images, compared with that of this process. */
#include "criu-glue/image_vdso.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "criu-glue/image_memory.h"
#include "lib/cleanup.h"

/* The length of our own vdso, which begins there; 0: not known. */
static size_t find_length(unsigned long address)
{
	_cleanup_fclose_ FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];

	while (maps && fgets(line, sizeof(line), maps)) {
		unsigned long start, end;

		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start == address)
			return end - start;
	}
	return 0;
}

int gcr_image_is_vdso(int images_fd, pid_t pid, uint64_t start, uint64_t end,
		      struct gcr_error *error)
{
	unsigned long address = getauxval(AT_SYSINFO_EHDR);
	size_t found, size = find_length(address);
	_cleanup_free_ void *bytes = NULL;
	int result;

	if (!size || end - start != size)
		return 0;
	bytes = malloc(size);
	if (!bytes)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_image_read_memory(images_fd, pid, start, bytes, size, &found, error);
	if (result < 0)
		return result;
	return found == size && !memcmp(bytes, (const void *)address, size);
}
