/* SPDX-License-Identifier: MIT */
/*
 * A file in the runtime directory that may be no valid record. The first line of the input is the
 * file's name, the rest its contents; BOOT-ID stands for the id of the current boot.
 */
#include "fs/store/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/fuzz/fuzz.h"

#define PLACEHOLDER "BOOT-ID"
#define UUID_LENGTH 36

static char directory[64];
static int directory_fd = -1;
static int records_fd = -1;
static char boot_id[UUID_LENGTH];

static void remove_directory(void)
{
	unlinkat(directory_fd, "processes", AT_REMOVEDIR);
	rmdir(directory);
}

static void prepare(void)
{
	const char *parent = getenv("TMPDIR");
	_cleanup_close_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	CHECK(read(fd, boot_id, sizeof(boot_id)) == sizeof(boot_id));
	snprintf(directory, sizeof(directory), "%s/gpucrfs-fuzz-XXXXXX", parent ? parent : "/tmp");
	CHECK(mkdtemp(directory));
	directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(directory_fd >= 0 && !mkdirat(directory_fd, "processes", 0700));
	records_fd = openat(directory_fd, "processes", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(records_fd >= 0);
	atexit(remove_directory);
}

static void write_file(const char *name, const uint8_t *bytes, size_t size)
{
	const uint8_t *place = memmem(bytes, size, PLACEHOLDER, strlen(PLACEHOLDER));
	size_t before = place ? (size_t)(place - bytes) : size;
	size_t skipped = place ? before + strlen(PLACEHOLDER) : size;
	_cleanup_close_ int fd = openat(records_fd, name, O_WRONLY | O_CREAT | O_EXCL, 0600);

	CHECK(fd >= 0);
	CHECK(write(fd, bytes, before) == (ssize_t)before);
	if (place)
		CHECK(write(fd, boot_id, sizeof(boot_id)) == sizeof(boot_id));
	CHECK(write(fd, bytes + skipped, size - skipped) == (ssize_t)(size - skipped));
}

struct found {
	struct gcr_record record;
	unsigned int records;
	unsigned int unreadable;
};

static int visit(const struct gcr_record *record, void *data)
{
	struct found *found = data;

	found->record = *record;
	found->records++;
	return 0;
}

static void unreadable(const char *name, int error, void *data)
{
	struct found *found = data;

	CHECK(*name && error > 0);
	found->unreadable++;
}

static struct found look(void)
{
	struct found found = {0};

	CHECK(!gcr_record_each(directory_fd, visit, unreadable, &found));
	return found;
}

/* Checks that an accepted record is in range, and unchanged after writing and reading. */
static void check_record(const struct gcr_record *record, const char *name)
{
	char expected[64];
	struct found again;

	CHECK(record->pid > 0);
	CHECK(record->since_usec >= 0);
	CHECK(record->gpus_count <= GCR_GPUS_MAX);
	CHECK(gcr_record_state_name(record->state));
	CHECK(strlen(record->generation) == UUID_LENGTH);
	CHECK(memchr(record->engine, '\0', sizeof(record->engine)));
	CHECK(memchr(record->comm, '\0', sizeof(record->comm)));
	snprintf(expected, sizeof(expected), "%d-%" PRIu64, (int)record->pid, record->start_ticks);
	CHECK(!strcmp(name, expected));

	CHECK(!gcr_record_write(directory_fd, record));
	again = look();
	CHECK(again.records == 1 && !again.unreadable);
	CHECK(!memcmp(&again.record, record, sizeof(*record)));
	memset(&again.record, 0, sizeof(again.record));
	CHECK(!gcr_record_read(directory_fd, record->pid, record->start_ticks, &again.record));
	CHECK(!memcmp(&again.record, record, sizeof(*record)));
	CHECK(!gcr_record_remove(directory_fd, record->pid, record->start_ticks));
	again = look();
	CHECK(!again.records && !again.unreadable);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *line_end = memchr(data, '\n', size);
	char name[256] = "";
	struct found found;
	size_t length;

	if (directory_fd < 0)
		prepare();
	length = line_end ? (size_t)(line_end - data) : size;
	if (!length || length >= sizeof(name) || memchr(data, '\0', length) ||
	    memchr(data, '/', length))
		return 0;
	memcpy(name, data, length);
	if (!strcmp(name, ".") || !strcmp(name, ".."))
		return 0;
	if (line_end)
		length++;
	write_file(name, data + length, size - length);
	found = look();
	CHECK(found.records + found.unreadable <= 1);
	if (found.records)
		check_record(&found.record, name);
	unlinkat(records_fd, name, 0);
	return 0;
}
