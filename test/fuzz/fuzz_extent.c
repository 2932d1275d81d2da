/* SPDX-License-Identifier: MIT */
/*
 * A table of allocations from a lying program. First byte: the lowest 3 bits give the kind of the
 * file, bit 3 that the table begins at byte 100 of the file, bit 4 that numbers are rounded so that
 * more of them pass the checks. Second byte: how many more extents the program claims than there
 * are (from 128 on: fewer). The rest is the table.
 */
#include "lib/extent.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/fuzz/fuzz.h"

#define EXTENTS_MAX 600
#define BEFORE	    100

enum kind { MEMORY, SEALED, UNSEALED, HUGE_HOLE, PIPE, SOCKET, DIRECTORY, DEVICE, KINDS };

static struct gcr_extent table[EXTENTS_MAX];

static int make_memory(size_t bytes, size_t before, unsigned int flags)
{
	int fd = memfd_create("gpucr-fuzz", MFD_CLOEXEC | flags);

	CHECK(fd >= 0);
	CHECK(pwrite(fd, table, bytes, (off_t)before) == (ssize_t)bytes);
	return fd;
}

static int make_file(enum kind kind, size_t bytes, size_t before)
{
	int fds[2], fd;

	switch (kind) {
	case SEALED:
		fd = make_memory(bytes, before, MFD_ALLOW_SEALING);
		CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
		return fd;
	case UNSEALED:
		return make_memory(bytes, before, MFD_ALLOW_SEALING);
	case HUGE_HOLE:
		fd = make_memory(bytes, before, 0);
		CHECK(!ftruncate(fd, INT64_MAX));
		return fd;
	case PIPE:
		CHECK(!pipe2(fds, O_CLOEXEC));
		close(fds[1]);
		return fds[0];
	case SOCKET:
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
		close(fds[1]);
		return fds[0];
	case DIRECTORY:
		return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	case DEVICE:
		return open("/dev/zero", O_RDONLY | O_CLOEXEC);
	default:
		return make_memory(bytes, before, 0);
	}
}

static void make_round(size_t count)
{
	for (size_t i = 0; i < count; i++) {
		table[i].kind = table[i].kind % 2 + 1;
		table[i].bytes = (table[i].bytes % 8 + 1) << 21;
		table[i].address &= ~(uint64_t)0xfff & INT64_MAX / 2;
	}
}

/* Checks that an accepted table satisfies every assumption of its users. */
static void check_extents(const struct gcr_extent *extents, size_t count)
{
	uint64_t sum = 0;
	size_t first, second;
	int fd;

	for (size_t i = 0; i < count; i++) {
		char name[GCR_EXTENT_NAME_BYTES];

		CHECK(!gcr_extent_fault(&extents[i]));
		CHECK(!i || extents[i].kind >= extents[i - 1].kind);
		sum += extents[i].bytes;
		CHECK(sum <= INT64_MAX);
		gcr_extent_name(&extents[i], name);
		CHECK(*name && strlen(name) < GCR_EXTENT_NAME_BYTES - 1 && !strchr(name, '/'));
		for (size_t j = 0; j < i && i < 40; j++)
			CHECK(!gcr_extent_same_file(&extents[i], &extents[j]) ||
			      extents[i].gpu_index != extents[j].gpu_index || !extents[i].address);
	}
	CHECK(!gcr_extents_overlap(extents, count, &first, &second));
	fd = gcr_extents_write(extents, count);
	CHECK(fd >= 0);
	if (count) {
		struct gcr_extent *again;
		struct gcr_error error;

		CHECK(!gcr_extents_read(fd, count, &again, &error));
		CHECK(!memcmp(again, extents, count * sizeof(*again)));
		CHECK(pwrite(fd, &sum, 1, 0) < 0);
		free(again);
	}
	close(fd);
}

static size_t told_count(size_t count, int8_t more)
{
	if (more < 0 && (size_t)-more > count)
		return 0;
	return more == INT8_MAX ? GCR_EXTENTS_MAX + 1 : count + (size_t)more;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gcr_extent *extents = NULL;
	struct gcr_error error = {0};
	size_t bytes, count, told, before;
	int fd, result;

	if (size < 2 || size - 2 > sizeof(table))
		return 0;
	bytes = size - 2;
	memcpy(table, data + 2, bytes);
	count = bytes / sizeof(*table);
	told = told_count(count, (int8_t)data[1]);
	before = data[0] & 8 ? BEFORE : 0;
	if (data[0] & 16)
		make_round(count);
	fd = make_file(data[0] % KINDS, bytes, before);
	CHECK(fd >= 0);
	result = before ? gcr_extents_read_at(fd, before, told, &extents, &error)
			: gcr_extents_read(fd, told, &extents, &error);
	if (result) {
		CHECK(result == -EPROTO || result == -E2BIG);
		CHECK(error.number == -result && *error.words);
		CHECK(!extents);
	} else if (told) {
		check_extents(extents, told);
	}
	free(extents);
	close(fd);
	return 0;
}
