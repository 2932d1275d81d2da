/* SPDX-License-Identifier: MIT */
/*
 * This build reads the files that earlier builds have left: those in upgrade-1, which 0.1.0
 * (9afe8cf) wrote for a program with one buffer of 2 MiB. These files never change; a new format
 * gets a folder of its own beside this one. usage: test_upgrade FOLDER
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/pack/pack_table.h"
#include "fs/store/record.h"
#include "lib/cleanup.h"
#include "lib/manifest.h"
#include "lib/pack.h"
#include "test/unit/test.h"

#define PID	    22792
#define START_TICKS 728040
#define GENERATION  "ef6b5702-75c2-477c-a106-55a103b3e28c"
#define BUFFER	    (2u << 20)
#define CHUNK_INDEX 10

static char directory[] = "/tmp/gcr-upgrade-XXXXXX";
static int directory_fd;

static size_t read_fixture(int folder_fd, const char *name, char *bytes, size_t size)
{
	_cleanup_close_ int fd = openat(folder_fd, name, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, bytes, size);

	CHECK(got > 0 && (size_t)got < size);
	return (size_t)got;
}

static void write_file(const char *name, const char *bytes, size_t size)
{
	_cleanup_close_ int fd =
		openat(directory_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
}

static int see(const struct gcr_record *record, void *data)
{
	*(struct gcr_record *)data = *record;
	return 0;
}

static void see_unreadable(const char *name, int error, void *data)
{
	fprintf(stderr, "%s: %s\n", name, strerror(error));
	exit(1);
}

/* The record gets the id of this boot: a record of another boot is ignored. */
static void test_record(int folder_fd)
{
	char text[4096], boot[64];
	struct gcr_record record = {0};
	size_t bytes = read_fixture(folder_fd, "record", text, sizeof(text));
	char *place;

	CHECK(read_fixture(AT_FDCWD, "/proc/sys/kernel/random/boot_id", boot, sizeof(boot)) == 37);
	text[bytes] = '\0';
	place = strstr(text, "\nboot ");
	CHECK(place);
	memcpy(place + strlen("\nboot "), boot, 36);
	CHECK(!mkdirat(directory_fd, "processes", 0700));
	write_file("processes/22792-728040", text, bytes);
	CHECK(!gcr_record_each(directory_fd, see, see_unreadable, &record));
	CHECK(record.pid == PID && record.start_ticks == START_TICKS);
	CHECK(record.state == GCR_RECORD_FROZEN && record.gpus_count == 1);
	CHECK(!strcmp(record.generation, GENERATION) && !strcmp(record.engine, "vmm"));
	CHECK(!strcmp(record.comm, "gpucr-demo") && record.gpus[0].bytes == 18874368);
	CHECK(record.gpus[0].uuid[0] == 0x24 && record.gpus[0].uuid[15] == 0x87);
	CHECK(!record.swap_pid && !record.frozen_for_pid);
	CHECK(!gcr_record_remove(directory_fd, PID, START_TICKS));
}

static struct gcr_digest *test_metadata(int folder_fd)
{
	struct gcr_manifest *manifest;
	struct gcr_digest *digests;
	struct gcr_error error = {0};
	char bytes[4096];

	write_file("manifest", bytes, read_fixture(folder_fd, "manifest", bytes, sizeof(bytes)));
	write_file("digests", bytes, read_fixture(folder_fd, "digests", bytes, sizeof(bytes)));
	if (gcr_manifest_read(directory_fd, &manifest, &error) < 0 ||
	    gcr_digests_read(directory_fd, manifest->generation,
			     gcr_manifest_digests_count(manifest), &manifest->digests, &digests,
			     &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	CHECK(!strcmp(manifest->generation, GENERATION) && manifest->pid == PID);
	CHECK(manifest->allocations_count == 1 && manifest->allocations[0].bytes == BUFFER);
	CHECK(manifest->gpus_count == 1 && gcr_manifest_digests_count(manifest) == 32);
	gcr_manifest_free(manifest);
	return digests;
}

/*
 * The table of the one file, and one of its chunks, which unpacks to bytes with the digest in its
 * entry.
 */
static void test_packed(int folder_fd, const struct gcr_digest *digests)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	char packed[GCR_PACK_MAX_BYTES + 1], bytes[GCR_PACK_CHUNK_BYTES];
	const struct gcr_pack_entry *entry = &entries[CHUNK_INDEX];
	uint64_t file_bytes, table_bytes;
	struct gcr_pack_table *table;
	struct gcr_packer *packer;
	struct gcr_digest digest;
	size_t size = read_fixture(folder_fd, "packed", packed, sizeof(packed));

	write_file("packed", packed, size);
	CHECK(!gcr_pack_table_open_left(directory_fd, "packed", 0, &table, &file_bytes,
					&table_bytes));
	CHECK(file_bytes == BUFFER && gcr_pack_table_is_packed(table, 0));
	gcr_pack_table_read(table, 0, entries);
	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++)
		CHECK(entries[i].kind == GCR_PACK_STORED &&
		      gcr_digest_equal(&entries[i].digest, &digests[i]));
	gcr_pack_table_unref(table);
	size = read_fixture(folder_fd, "chunk", packed, sizeof(packed));
	CHECK(size == gcr_pack_entry_packed_bytes(entry));
	CHECK(gcr_pack_entry_bytes(entry) == sizeof(bytes));
	CHECK(!gcr_packer_create(&packer));
	CHECK(!gcr_unpack(packer, (enum gcr_pack_form)entry->form, packed, size, bytes,
			  sizeof(bytes)));
	gcr_packer_destroy(packer);
	gcr_digest_of(bytes, sizeof(bytes), &digest);
	CHECK(gcr_digest_equal(&digest, &entry->digest));
}

int main(int argc, char **argv)
{
	_cleanup_free_ struct gcr_digest *digests = NULL;
	_cleanup_close_ int folder_fd = -1;

	CHECK(argc == 2);
	folder_fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(folder_fd >= 0 && mkdtemp(directory));
	directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(directory_fd >= 0);
	test_record(folder_fd);
	digests = test_metadata(folder_fd);
	test_packed(folder_fd, digests);
	for (size_t i = 0; i < 3; i++)
		CHECK(!unlinkat(directory_fd, (const char *[]){"manifest", "digests", "packed"}[i],
				0));
	CHECK(!unlinkat(directory_fd, "processes", AT_REMOVEDIR) && !rmdir(directory));
	return 0;
}
