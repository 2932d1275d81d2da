/* SPDX-License-Identifier: MIT */
/*
 * Shared by the tests of packed chunks that are spilled to a disk: a second tmpfs as the disk,
 * packs that may use the disk, and chunks in them.
 */
#ifndef GCR_TEST_SPILL_H
#define GCR_TEST_SPILL_H

#include "fs/pack/spill.h"

#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

#include "fs/pack/packs.h"
#include "test/unit/pack/packs.h"

#define CHUNK  GCR_CHUNK_BYTES
#define USER   1000
#define CHUNKS 24

/* ---- a disk, and packs that may use it ---- */

static char disk[] = "/tmp/gpucr-disk-XXXXXX";
static char directory_on_disk[64];
static int disk_fd = -1;
static struct gcr_packer *packer;
static struct gcr_spill *spill;
static atomic_uint_least64_t counted;

static inline int count_take(void *data, uid_t uid, uint64_t bytes, bool is_there)
{
	counted += bytes;
	return 0;
}

static inline void count_give(void *data, uid_t uid, uint64_t bytes)
{
	CHECK(counted >= bytes);
	counted -= bytes;
}

static inline void mount_disk(const char *options)
{
	CHECK(mkdtemp(disk));
	CHECK(!mount("test", disk, "tmpfs", 0, options));
	disk_fd = open(disk, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(disk_fd >= 0);
	snprintf(directory_on_disk, sizeof(directory_on_disk), "%s/spill", disk);
}

static inline void unmount_disk(void)
{
	close(TAKE_FD(disk_fd));
	CHECK(!umount(disk) && !rmdir(disk));
}

static inline uint64_t disk_used(void)
{
	struct statfs statfs;

	CHECK(!fstatfs(disk_fd, &statfs));
	return (uint64_t)(statfs.f_blocks - statfs.f_bfree) * (uint64_t)statfs.f_bsize;
}

static inline struct gcr_packs *open_with(const struct gcr_spill_options *options)
{
	struct gcr_packs_account account = {.take = count_take, .give = count_give};
	struct gcr_packs *packs;
	struct gcr_error error;

	/* The directory must exist: in use, the person who gives the option has made it. */
	if (options->path)
		CHECK(!mkdir(options->path, 0700) || errno == EEXIST);
	CHECK(!gcr_spill_open(store_fd, options, &spill, &error));
	account.spill = spill;
	CHECK(!gcr_packs_open(store_fd, USER, &account, &packs, &error));
	return packs;
}

static inline struct gcr_packs *open_packs(uint64_t limit_bytes)
{
	const struct gcr_spill_options options = {.path = directory_on_disk,
						  .limit_bytes = limit_bytes};

	return open_with(&options);
}

/* Closes the packs as a daemon does that exits cleanly. */
static inline void close_packs(struct gcr_packs *packs)
{
	char name[32];

	gcr_packs_unref(packs);
	snprintf(name, sizeof(name), GCR_PACKS_NAME "/%u", USER);
	unlinkat(store_fd, name, AT_REMOVEDIR);
	gcr_spill_close(TAKE_PTR(spill));
	CHECK(!counted);
}

static inline struct gcr_packs_figures figures(struct gcr_packs *packs)
{
	struct gcr_packs_figures found;

	gcr_packs_figures(packs, &found);
	return found;
}

/* The accounted bytes must be those in use, in the store and on the disk. */
static inline void check_account(struct gcr_packs *packs)
{
	struct gcr_packs_figures found;

	gcr_packs_wait_disk(packs);
	found = figures(packs);
	if (store_used() != found.memory_bytes || disk_used() != found.spilled_bytes)
		fprintf(stderr, "store %" PRIu64 ", %" PRIu64 "; disk %" PRIu64 ", %" PRIu64 "\n",
			store_used(), found.memory_bytes, disk_used(), found.spilled_bytes);
	CHECK(store_used() == found.memory_bytes && counted == found.memory_bytes);
	CHECK(disk_used() == found.spilled_bytes);
}

/* Nothing may be left in the store, on the disk or in the accounts. */
static inline void check_nothing(void)
{
	CHECK(!store_used() && !disk_used() && !counted);
	CHECK(faccessat(store_fd, GCR_PACKS_NAME, F_OK, 0) < 0 && errno == ENOENT);
	CHECK(!rmdir(directory_on_disk) || errno == ENOENT);
}

/* Packs the chunk made from @seed and adds it; returns the result of gcr_packs_add(). */
static inline int add(struct gcr_packs *packs, uint64_t seed, struct gcr_pack_entry *ret_entry)
{
	uint8_t packed[GCR_PACK_MAX_BYTES];
	uint8_t bytes[CHUNK];
	struct gcr_digest digest;
	enum gcr_pack_form form;
	size_t size;

	fill_random(bytes, CHUNK, seed);
	/* Every second chunk can be packed. */
	if (seed % 2)
		memset(bytes, (int)seed, CHUNK / 3);
	gcr_digest_of(bytes, CHUNK, &digest);
	if (!gcr_packs_share(packs, packer, &digest, bytes, CHUNK, ret_entry))
		return 0;
	size = gcr_pack(packer, bytes, CHUNK, packed, &form);
	return gcr_packs_add(packs, &digest, CHUNK, form, packed, size, ret_entry);
}

/* Reads the chunk made from @seed; -EBADMSG: its bytes are wrong. */
static inline int read_chunk(struct gcr_packs *packs, struct gcr_packer *own,
			     const struct gcr_pack_entry *entry, uint64_t seed)
{
	uint8_t expected[CHUNK];
	uint8_t bytes[CHUNK];
	int result = gcr_packs_read(packs, own, entry, bytes, CHUNK);

	if (result < 0)
		return result;
	fill_random(expected, CHUNK, seed);
	if (seed % 2)
		memset(expected, (int)seed, CHUNK / 3);
	return memcmp(bytes, expected, CHUNK) ? -EBADMSG : 0;
}

static struct gcr_pack_entry *entries; /* memory shared with children */

static inline void add_all(struct gcr_packs *packs)
{
	for (uint64_t i = 0; i < CHUNKS; i++)
		CHECK(!add(packs, i, &entries[i]));
}

static inline void check_all(struct gcr_packs *packs)
{
	for (uint64_t i = 0; i < CHUNKS; i++)
		CHECK(!read_chunk(packs, packer, &entries[i], i));
}

static inline void claim_all(struct gcr_packs *packs)
{
	for (size_t i = 0; i < CHUNKS; i++)
		CHECK(!gcr_packs_claim(packs, &entries[i]));
	gcr_packs_sweep(packs);
}

static inline int spill_segment(struct gcr_packs *packs, uint32_t segment, uint64_t *ret_bytes)
{
	struct gcr_error error = {0};
	int result = gcr_packs_spill(packs, segment, ret_bytes, &error);

	CHECK(!result || *error.words);
	return result;
}

/* The path of a segment on the disk. */
static inline void segment_path(uint32_t segment, char ret_path[PATH_MAX])
{
	char name[64];
	ssize_t length;

	snprintf(name, sizeof(name), GCR_PACKS_NAME "/%u/%" PRIu32, USER, segment);
	length = readlinkat(store_fd, name, ret_path, PATH_MAX - 1);
	CHECK(length > 0);
	ret_path[length] = '\0';
}

/*
 * For in_child(): adds all chunks and spills their segment to the disk; the "daemon" is then
 * killed.
 */
static inline void leave_spilled(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	uint64_t bytes;

	add_all(packs);
	CHECK(!spill_segment(packs, entries[0].segment, &bytes) && bytes);
}

/* For main(): mounts the store and the disk. */
static inline void begin(void)
{
	mount_store("huge=always,size=64m");
	mount_disk("size=8m");
	entries = mmap(NULL, sizeof(*entries) * CHUNKS, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(entries != MAP_FAILED && !gcr_packer_create(&packer));
}

static inline void end(void)
{
	gcr_packer_destroy(packer);
	unmount_disk();
	unmount_store();
}

#endif
