/* SPDX-License-Identifier: MIT */
/*
 * Extents: their file names, and tables of them in memfds. A table may come from a malicious
 * program.
 */
#include "lib/extent.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/full_io.h"

#define DEVICE_ALIGNMENT  (2ull << 20)
#define MANAGED_ALIGNMENT 4096ull

void gcr_extent_name(const struct gcr_extent *extent, char ret_name[GCR_EXTENT_NAME_BYTES])
{
	if (extent->kind == GCR_MEMORY_MANAGED)
		snprintf(ret_name, GCR_EXTENT_NAME_BYTES, "managed-%" PRIx64, extent->address);
	else if (extent->address)
		snprintf(ret_name, GCR_EXTENT_NAME_BYTES, "gpu%" PRIu32 "-%" PRIx64,
			 extent->gpu_index, extent->address);
	else
		snprintf(ret_name, GCR_EXTENT_NAME_BYTES, "gpu%" PRIu32 "-unmapped-%" PRIu64,
			 extent->gpu_index, extent->id);
}

bool gcr_extent_same_file(const struct gcr_extent *left, const struct gcr_extent *right)
{
	char left_name[GCR_EXTENT_NAME_BYTES];
	char right_name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(left, left_name);
	gcr_extent_name(right, right_name);
	return !strcmp(left_name, right_name) && left->bytes == right->bytes;
}

static int compare_places(const void *left, const void *right)
{
	const struct gcr_extent *a = *(const struct gcr_extent *const *)left;
	const struct gcr_extent *b = *(const struct gcr_extent *const *)right;

	if (a->address != b->address)
		return (a->address > b->address) - (a->address < b->address);
	return (a->id > b->id) - (a->id < b->id);
}

int gcr_extents_overlap(const struct gcr_extent *extents, size_t count, size_t *ret_first,
			size_t *ret_second)
{
	_cleanup_free_ const struct gcr_extent **sorted = calloc(count + 1, sizeof(*sorted));

	if (!sorted)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		sorted[i] = &extents[i];
	qsort(sorted, count, sizeof(*sorted), compare_places);
	for (size_t i = 1; i < count; i++) {
		const struct gcr_extent *before = sorted[i - 1];

		if (before->address ? sorted[i]->address - before->address < before->bytes
				    : !sorted[i]->address && sorted[i]->id == before->id) {
			*ret_first = (size_t)(before - extents);
			*ret_second = (size_t)(sorted[i] - extents);
			return -EEXIST;
		}
	}
	return 0;
}

const char *gcr_extent_fault(const struct gcr_extent *extent)
{
	bool managed = extent->kind == GCR_MEMORY_MANAGED;
	uint64_t end;

	if (extent->kind != GCR_MEMORY_DEVICE && !managed)
		return "kind: there is none such";
	if (!extent->bytes)
		return "bytes: there are none";
	if (!managed && extent->bytes % DEVICE_ALIGNMENT)
		return "bytes: they are no multiple of 2 MiB";
	if (managed && extent->bytes % MANAGED_ALIGNMENT)
		return "bytes: they are no multiple of 4 KiB";
	if (extent->address % MANAGED_ALIGNMENT)
		return "address: it is no multiple of 4 KiB";
	if (managed && !extent->address)
		return "address: managed memory has one";
	if (__builtin_add_overflow(extent->address, extent->bytes, &end) || end > INT64_MAX)
		return "address: the end is beyond all addresses";
	return NULL;
}

int gcr_extents_read(int fd, size_t count, struct gcr_extent **ret_extents, struct gcr_error *error)
{
	/* Only files in memory can be read without waiting, and only they have seals. */
	if (count && count <= GCR_EXTENTS_MAX && fcntl(fd, F_GET_SEALS) < 0)
		return gcr_error_set(error, EPROTO,
				     "the table of allocations is short, or no memory file");
	return gcr_extents_read_at(fd, 0, count, ret_extents, error);
}

int gcr_extents_read_at(int fd, uint64_t offset, size_t count, struct gcr_extent **ret_extents,
			struct gcr_error *error)
{
	_cleanup_free_ struct gcr_extent *extents = NULL;
	size_t bytes, first, second;
	uint64_t sum = 0;
	int result = 0;

	if (count > GCR_EXTENTS_MAX)
		return gcr_error_set(error, E2BIG, "there are more than %d allocations",
				     GCR_EXTENTS_MAX);
	if (!count) {
		*ret_extents = NULL;
		return 0;
	}
	bytes = count * sizeof(*extents);
	extents = malloc(bytes);
	if (!extents)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (gcr_pread_all(fd, extents, bytes, offset) != (ssize_t)bytes)
		return gcr_error_set(error, EPROTO, "the table of allocations is short");
	for (size_t i = 0; i < count && !result; i++) {
		if (gcr_extent_fault(&extents[i]))
			result = gcr_error_set(error, EPROTO,
					       "the table of allocations makes no sense");
		if (!result && i && extents[i].kind < extents[i - 1].kind)
			result = gcr_error_set(error, EPROTO,
					       "the table of allocations is in disorder");
		if (!result &&
		    (__builtin_add_overflow(sum, extents[i].bytes, &sum) || sum > INT64_MAX))
			result = gcr_error_set(error, EPROTO,
					       "the table of allocations makes no sense");
	}
	if (!result)
		result = gcr_extents_overlap(extents, count, &first, &second);
	if (result == -EEXIST)
		return gcr_error_set(error, EPROTO, "two allocations are at one place");
	if (result == -ENOMEM)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (result < 0)
		return result;
	*ret_extents = TAKE_PTR(extents);
	return 0;
}

int gcr_extents_write(const struct gcr_extent *extents, size_t count)
{
	_cleanup_close_ int fd = memfd_create("gpucr-extents", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t bytes = count * sizeof(*extents);
	int result;

	if (fd < 0)
		return -errno;
	result = gcr_pwrite_all(fd, extents, bytes, 0);
	if (result < 0)
		return result;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
		return -errno;
	return TAKE_FD(fd);
}
