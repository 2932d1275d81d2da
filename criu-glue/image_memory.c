/* SPDX-License-Identifier: MIT */
/*
 * pagemap-N.img has messages of images/pagemap.proto of CRIU 4: the number of an image pages-N.img,
 * then ranges of pages, whose contents are there one after the other, without magic numbers.
 */
#include "criu-glue/image_memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "criu-glue/image.h"
#include "criu-glue/protobuf.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"

/* Field numbers of pagemap_head and pagemap_entry; CRIU 4.2 has the last one too. */
enum {
	FIELD_PAGES = 1,

	FIELD_ADDRESS = 1,
	FIELD_COUNT = 2,
	FIELD_IN_PARENT = 3,
	FIELD_FLAGS = 4,
	FIELD_LONG_COUNT = 5,
};

#define IS_PRESENT (1u << 2) /* a flag */

/* Pages of a process; they are at @offset in the image of pages, if they are there. */
struct range {
	uint64_t address, bytes, offset;
	bool is_present;
};

/* The memory that is read. */
struct memory {
	uint64_t start;
	size_t bytes;
	uint8_t *contents;
	size_t found; /* bytes read so far */
};

/* Parses a range. False: the message is damaged. */
static bool parse_range(const uint8_t *at, const uint8_t *end, struct range *range)
{
	struct gcr_protobuf_field address = {0}, count = {0}, parent = {0}, flags = {0};
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	if (!gcr_protobuf_find(at, end, FIELD_LONG_COUNT, GCR_PROTOBUF_VARINT, &count) ||
	    (!count.number &&
	     !gcr_protobuf_find(at, end, FIELD_COUNT, GCR_PROTOBUF_VARINT, &count)) ||
	    !gcr_protobuf_find(at, end, FIELD_ADDRESS, GCR_PROTOBUF_VARINT, &address) ||
	    !gcr_protobuf_find(at, end, FIELD_IN_PARENT, GCR_PROTOBUF_VARINT, &parent) ||
	    !gcr_protobuf_find(at, end, FIELD_FLAGS, GCR_PROTOBUF_VARINT, &flags) ||
	    count.value > (UINT64_MAX - address.value) / page)
		return false;
	range->address = address.value;
	range->bytes = count.value * page;
	range->is_present = flags.number ? flags.value & IS_PRESENT : !parent.value;
	return true;
}

/* Reads what the range has of the memory. -EIO. */
static int read_range(int pages_fd, const struct range *range, struct memory *memory)
{
	uint64_t start = range->address > memory->start ? range->address : memory->start;
	uint64_t end = range->address + range->bytes;
	size_t length;

	if (end > memory->start + memory->bytes)
		end = memory->start + memory->bytes;
	if (start >= end || !range->is_present)
		return 0;
	length = end - start;
	if (pread(pages_fd, memory->contents + (start - memory->start), length,
		  (off_t)(range->offset + (start - range->address))) != (ssize_t)length)
		return -EIO;
	memory->found += length;
	return 0;
}

/* Reads the memory from all ranges, which are in the order of their addresses. -EIO. */
static int read_all(int pages_fd, const uint8_t *at, const uint8_t *end, struct memory *memory)
{
	uint64_t offset = 0, last = 0;
	int result = 0;

	while (!result && at < end) {
		const uint8_t *message;
		struct range range;

		result = gcr_criu_image_next(&at, end, &message);
		if (result < 0 || !parse_range(message, at, &range) || range.address < last)
			return -EIO;
		last = range.address + range.bytes;
		range.offset = offset;
		if (range.is_present)
			offset += range.bytes;
		result = read_range(pages_fd, &range, memory);
	}
	return result;
}

int gcr_image_read_memory(int images_fd, pid_t pid, uint64_t start, void *bytes, size_t size,
			  size_t *ret_found, struct gcr_error *error)
{
	struct memory memory = {.start = start, .bytes = size, .contents = bytes};
	struct gcr_protobuf_field pages = {0};
	_cleanup_free_ void *map = NULL;
	_cleanup_close_ int pages_fd = -1;
	const uint8_t *at, *end, *message;
	char map_name[32], name[32];
	size_t map_bytes;
	int result;

	snprintf(map_name, sizeof(map_name), "pagemap-%d.img", (int)pid);
	result = gcr_criu_image_read(images_fd, map_name, &map, &map_bytes, error);
	if (result < 0)
		return result;
	end = (const uint8_t *)map + map_bytes;
	result = gcr_criu_image_begin(map, map_bytes, GCR_CRIU_PAGEMAP, &at);
	if (!result)
		result = gcr_criu_image_next(&at, end, &message);
	if (result < 0 || size > UINT64_MAX - start ||
	    !gcr_protobuf_find(message, at, FIELD_PAGES, GCR_PROTOBUF_VARINT, &pages))
		return gcr_criu_image_fail(error, -EIO, map_name);
	snprintf(name, sizeof(name), "pages-%u.img", (unsigned int)pages.value);
	pages_fd = gcr_beneath_open_file(images_fd, name, NULL);
	memset(bytes, 0, size);
	result = pages_fd < 0 ? -EIO : read_all(pages_fd, at, end, &memory);
	if (result < 0)
		return gcr_criu_image_fail(error, result, map_name);
	*ret_found = memory.found;
	return 0;
}
