/* SPDX-License-Identifier: MIT */
/*
 * pagemap-N.img has messages of images/pagemap.proto of CRIU 4: the number of an image pages-N.img,
 * then ranges of pages, whose contents are there one after the other, without magic numbers.
 */
#include "criu-glue/image_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Memory that is read, or cleared in the images. */
struct memory {
	uint64_t start;
	size_t bytes;
	uint8_t *contents; /* NULL: it is cleared */
	size_t found;	   /* bytes read or cleared so far */
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

static ssize_t clear(int fd, size_t bytes, off_t offset)
{
	static const uint8_t zeros[64];
	size_t done = 0;

	while (done < bytes) {
		size_t more = bytes - done < sizeof(zeros) ? bytes - done : sizeof(zeros);

		if (pwrite(fd, zeros, more, offset + (off_t)done) != (ssize_t)more)
			return -1;
		done += more;
	}
	return (ssize_t)done;
}

/* Reads or clears what the range has of the memory. -EIO. */
static int use_range(int pages_fd, const struct range *range, struct memory *memory)
{
	uint64_t start = range->address > memory->start ? range->address : memory->start;
	uint64_t end = range->address + range->bytes;
	off_t offset = (off_t)(range->offset + (start - range->address));
	ssize_t done;
	size_t length;

	if (end > memory->start + memory->bytes)
		end = memory->start + memory->bytes;
	if (start >= end || !range->is_present)
		return 0;
	length = end - start;
	done = memory->contents
		       ? pread(pages_fd, memory->contents + (start - memory->start), length, offset)
		       : clear(pages_fd, length, offset);
	if (done != (ssize_t)length)
		return -EIO;
	memory->found += length;
	return 0;
}

/* Reads or clears the memory in all ranges, which are in the order of their addresses. -EIO. */
static int use_all(int pages_fd, const uint8_t *at, const uint8_t *end, struct memory *memory)
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
		result = use_range(pages_fd, &range, memory);
	}
	return result;
}

int gcr_image_open_memory(int images_fd, pid_t pid, bool is_for_writing,
			  struct gcr_image_memory *ret_memory, struct gcr_error *error)
{
	_cleanup_(gcr_image_close_memory) struct gcr_image_memory memory = {.pages_fd = -1};
	struct gcr_protobuf_field pages = {0};
	const uint8_t *end, *message;
	char name[32];
	size_t bytes;
	int result;

	snprintf(memory.name, sizeof(memory.name), "pagemap-%d.img", (int)pid);
	result = gcr_criu_image_read(images_fd, memory.name, &memory.image, &bytes, error);
	if (result < 0)
		return result;
	end = (const uint8_t *)memory.image + bytes;
	result = gcr_criu_image_begin(memory.image, bytes, GCR_CRIU_PAGEMAP, &memory.ranges);
	if (!result)
		result = gcr_criu_image_next(&memory.ranges, end, &message);
	if (result < 0 ||
	    !gcr_protobuf_find(message, memory.ranges, FIELD_PAGES, GCR_PROTOBUF_VARINT, &pages))
		return gcr_criu_image_fail(error, -EIO, memory.name);
	memory.end = end;
	snprintf(name, sizeof(name), "pages-%u.img", (unsigned int)pages.value);
	memory.pages_fd = is_for_writing ? gcr_beneath_open(images_fd, name, O_RDWR)
					 : gcr_beneath_open_file(images_fd, name, NULL);
	if (memory.pages_fd < 0)
		return gcr_criu_image_fail(error, -EIO, memory.name);
	*ret_memory = memory;
	memory = (struct gcr_image_memory){.pages_fd = -1};
	return 0;
}

void gcr_image_close_memory(struct gcr_image_memory *memory)
{
	free(memory->image);
	if (memory->pages_fd >= 0)
		close(memory->pages_fd);
	*memory = (struct gcr_image_memory){.pages_fd = -1};
}

static int use(const struct gcr_image_memory *image, struct memory *memory, struct gcr_error *error)
{
	int result = memory->bytes > UINT64_MAX - memory->start
			     ? -EIO
			     : use_all(image->pages_fd, image->ranges, image->end, memory);

	return result < 0 ? gcr_criu_image_fail(error, result, image->name) : 0;
}

int gcr_image_read_memory(const struct gcr_image_memory *image, uint64_t start, void *bytes,
			  size_t size, size_t *ret_found, struct gcr_error *error)
{
	struct memory memory = {.start = start, .bytes = size, .contents = bytes};
	int result;

	memset(bytes, 0, size);
	result = use(image, &memory, error);
	*ret_found = memory.found;
	return result;
}

int gcr_image_clear_memory(const struct gcr_image_memory *image, uint64_t start, size_t size,
			   struct gcr_error *error)
{
	struct memory memory = {.start = start, .bytes = size};

	return use(image, &memory, error);
}
