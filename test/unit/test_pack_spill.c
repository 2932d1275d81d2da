/* SPDX-License-Identifier: MIT */
/*
 * Segments on a disk: bytes are the same wherever they stand, a daemon that is killed at any step
 * or a disk that fails at any step loses nothing, the limit holds, and what nobody needs goes from
 * the disk. Another tmpfs is the disk; calls that change it can be made to fail, or to be the last.
 */
#include "fs/packs.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "fs/spill.h"
#include "test/unit/packs.h"

#define CHUNK  GCR_CHUNK_BYTES
#define USER   1000
#define CHUNKS 24

/* ---- calls that fail ---- */

/* Shared with children. */
struct plan {
	unsigned int at; /* the call with this number; 0: none */
	int error;	 /* fails with this; 0: the process ends there */
	unsigned int calls;
	bool reached;
	bool dropping; /* what follows takes chunks away */
};
static struct plan *plan;

/* In @real or not: 0 it is to be called. */
static int step(void)
{
	if (!plan || !plan->at || ++plan->calls != plan->at)
		return 0;
	plan->reached = true;
	if (!plan->error)
		_exit(0);
	errno = plan->error;
	return -1;
}

int fsync(int fd)
{
	return step() ? -1 : (int)syscall(SYS_fsync, fd);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at)
{
	return step() ? -1 : syscall(SYS_pwrite64, fd, bytes, size, at);
}

int ftruncate(int fd, off_t size)
{
	return step() ? -1 : (int)syscall(SYS_ftruncate, fd, size);
}

int symlinkat(const char *target, int fd, const char *name)
{
	return step() ? -1 : (int)syscall(SYS_symlinkat, target, fd, name);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	return step() ? -1 : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int mkdir(const char *path, mode_t mode)
{
	return step() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlink(const char *path)
{
	return step() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int fd, const char *path, int flags)
{
	return step() ? -1 : (int)syscall(SYS_unlinkat, fd, path, flags);
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
	return step() ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, size);
}

static void fail_at(unsigned int at, int error)
{
	*plan = (struct plan){.at = at, .error = error};
}

/* ---- a disk, and packs that may use it ---- */

static char disk[] = "/tmp/gpucr-disk-XXXXXX";
static char directory_on_disk[64];
static int disk_fd = -1;
static struct gcr_packer *packer;
static struct gcr_spill *spill;
static atomic_uint_least64_t counted;

static int count_take(void *data, uint64_t bytes, bool is_there)
{
	counted += bytes;
	return 0;
}

static void count_give(void *data, uint64_t bytes)
{
	CHECK(counted >= bytes);
	counted -= bytes;
}

static void mount_disk(const char *options)
{
	CHECK(mkdtemp(disk));
	CHECK(!mount("test", disk, "tmpfs", 0, options));
	disk_fd = open(disk, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(disk_fd >= 0);
	snprintf(directory_on_disk, sizeof(directory_on_disk), "%s/spill", disk);
}

static void unmount_disk(void)
{
	close(TAKE_FD(disk_fd));
	CHECK(!umount(disk) && !rmdir(disk));
}

static uint64_t disk_used(void)
{
	struct statfs statfs;

	CHECK(!fstatfs(disk_fd, &statfs));
	return (uint64_t)(statfs.f_blocks - statfs.f_bfree) * (uint64_t)statfs.f_bsize;
}

static struct gcr_packs *open_with(const struct gcr_spill_options *options)
{
	struct gcr_packs_account account = {.take = count_take, .give = count_give};
	struct gcr_packs *packs;
	struct gcr_error error;

	CHECK(!gcr_spill_open(store_fd, options, &spill, &error));
	account.spill = spill;
	CHECK(!gcr_packs_open(store_fd, USER, &account, &packs, &error));
	return packs;
}

static struct gcr_packs *open_packs(uint64_t limit_bytes)
{
	const struct gcr_spill_options options = {.path = directory_on_disk,
						  .limit_bytes = limit_bytes};

	return open_with(&options);
}

/* As a daemon that ends. */
static void close_packs(struct gcr_packs *packs)
{
	char name[32];

	gcr_packs_unref(packs);
	snprintf(name, sizeof(name), GCR_PACKS_NAME "/%u", USER);
	unlinkat(store_fd, name, AT_REMOVEDIR);
	gcr_spill_close(TAKE_PTR(spill));
	CHECK(!counted);
}

static struct gcr_packs_figures figures(struct gcr_packs *packs)
{
	struct gcr_packs_figures found;

	gcr_packs_figures(packs, &found);
	return found;
}

/* What is counted is what is there, in both places. */
static void check_account(struct gcr_packs *packs)
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

/* Nothing is left of anything. */
static void check_nothing(void)
{
	CHECK(!store_used() && !disk_used() && !counted);
	CHECK(faccessat(store_fd, GCR_PACKS_NAME, F_OK, 0) < 0 && errno == ENOENT);
	CHECK(!rmdir(directory_on_disk));
}

static int add(struct gcr_packs *packs, uint64_t seed, struct gcr_pack_entry *ret_entry)
{
	uint8_t packed[GCR_PACK_MAX_BYTES];
	uint8_t bytes[CHUNK];
	struct gcr_digest digest;
	enum gcr_pack_form form;
	size_t size;

	fill_random(bytes, CHUNK, seed);
	/* Every other one can be packed. */
	if (seed % 2)
		memset(bytes, (int)seed, CHUNK / 3);
	gcr_digest_of(bytes, CHUNK, &digest);
	if (!gcr_packs_share(packs, packer, &digest, bytes, CHUNK, ret_entry))
		return 0;
	size = gcr_pack(packer, bytes, CHUNK, packed, &form);
	return gcr_packs_add(packs, &digest, CHUNK, form, packed, size, ret_entry);
}

static int read_chunk(struct gcr_packs *packs, struct gcr_packer *own,
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

static struct gcr_pack_entry *entries; /* shared with children */

static void add_all(struct gcr_packs *packs)
{
	for (uint64_t i = 0; i < CHUNKS; i++)
		CHECK(!add(packs, i, &entries[i]));
}

static void check_all(struct gcr_packs *packs)
{
	for (uint64_t i = 0; i < CHUNKS; i++)
		CHECK(!read_chunk(packs, packer, &entries[i], i));
}

static void claim_all(struct gcr_packs *packs)
{
	for (size_t i = 0; i < CHUNKS; i++)
		CHECK(!gcr_packs_claim(packs, &entries[i]));
	gcr_packs_sweep(packs);
}

static int spill_segment(struct gcr_packs *packs, uint32_t segment, uint64_t *ret_bytes)
{
	struct gcr_error error = {0};
	int result = gcr_packs_spill(packs, segment, ret_bytes, &error);

	CHECK(!result || *error.words);
	return result;
}

/* Of a segment on the disk. */
static void segment_path(uint32_t segment, char ret_path[PATH_MAX])
{
	char name[64];
	ssize_t length;

	snprintf(name, sizeof(name), GCR_PACKS_NAME "/%u/%" PRIu32, USER, segment);
	length = readlinkat(store_fd, name, ret_path, PATH_MAX - 1);
	CHECK(length > 0);
	ret_path[length] = '\0';
}

/* ---- there and back ---- */

static void test_spill(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	struct gcr_packs_figures before;
	struct gcr_pack_entry shared, other;
	char path[PATH_MAX];
	struct stat stat;
	uint64_t bytes;

	add_all(packs);
	before = figures(packs);
	CHECK(!spill_segment(packs, entries[0].segment, &bytes));
	CHECK(bytes == before.memory_bytes && !figures(packs).memory_bytes);
	CHECK(figures(packs).spilled_bytes == bytes && figures(packs).spilled_segments == 1);
	check_account(packs);
	segment_path(entries[0].segment, path);
	CHECK(!lstat(path, &stat) && S_ISREG(stat.st_mode) && (stat.st_mode & 07777) == 0600);
	CHECK(stat.st_size == GCR_PACK_SEGMENT_BYTES);
	check_all(packs);
	/* It is there already; and there is no such segment. */
	CHECK(!spill_segment(packs, entries[0].segment, &bytes) && !bytes);
	CHECK(!spill_segment(packs, 99, &bytes) && !bytes);
	/* What is there is shared, and what is new is not put there. */
	CHECK(!add(packs, 7, &shared) && shared.flags == GCR_PACK_FLAG_SHARED &&
	      shared.offset == entries[7].offset && shared.segment == entries[7].segment);
	CHECK(!add(packs, CHUNKS, &other) && other.segment != entries[0].segment);
	check_account(packs);
	/* Pages that nobody uses go from the disk, too. */
	gcr_packs_drop(packs, &entries[4], 12);
	check_account(packs);
	CHECK(disk_used() < bytes + before.memory_bytes * 2 / 3);
	CHECK(!read_chunk(packs, packer, &shared, 7) && !read_chunk(packs, packer, &entries[3], 3));
	CHECK(!read_chunk(packs, packer, &entries[16], 16));
	gcr_packs_drop(packs, &entries[0], 4);
	gcr_packs_drop(packs, &entries[16], CHUNKS - 16);
	CHECK(!read_chunk(packs, packer, &shared, 7));
	gcr_packs_drop(packs, &shared, 1);
	gcr_packs_wait_disk(packs);
	CHECK(!disk_used() && !figures(packs).spilled_segments);
	CHECK(access(path, F_OK) < 0 && errno == ENOENT);
	gcr_packs_drop(packs, &other, 1);
	close_packs(packs);
	check_nothing();
}

static void test_off(void)
{
	const struct gcr_spill_options none = {0};
	struct gcr_packs *packs = open_with(&none);
	uint64_t bytes;

	add_all(packs);
	CHECK(!gcr_spill_is_on(spill));
	CHECK(spill_segment(packs, entries[0].segment, &bytes) == -EOPNOTSUPP);
	check_all(packs);
	gcr_packs_drop(packs, entries, CHUNKS);
	close_packs(packs);
	CHECK(!store_used());
}

/* A later daemon finds it, whether it may spill or not. */
static void leave_spilled(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	uint64_t bytes;

	add_all(packs);
	CHECK(!spill_segment(packs, entries[0].segment, &bytes) && bytes);
}

static void test_restart(void)
{
	const struct gcr_spill_options none = {0};
	struct gcr_packs *packs;

	in_child(leave_spilled);
	packs = open_packs(UINT64_MAX);
	claim_all(packs);
	check_account(packs);
	check_all(packs);
	CHECK(figures(packs).spilled_bytes && !figures(packs).memory_bytes);
	close_packs(packs);
	packs = open_with(&none);
	/* What nobody claims goes. */
	for (size_t i = 0; i < CHUNKS / 2; i++)
		CHECK(!gcr_packs_claim(packs, &entries[i]));
	gcr_packs_sweep(packs);
	check_account(packs);
	for (uint64_t i = 0; i < CHUNKS / 2; i++)
		CHECK(!read_chunk(packs, packer, &entries[i], i));
	gcr_packs_drop(packs, entries, CHUNKS / 2);
	close_packs(packs);
	check_nothing();
}

/* The disk is not mounted for a while: it is known, and cannot be read. */
static void test_absent(void)
{
	const struct gcr_spill_options none = {0};
	struct gcr_packs *packs;
	char away[80];

	in_child(leave_spilled);
	snprintf(away, sizeof(away), "%s-away", directory_on_disk);
	CHECK(!rename(directory_on_disk, away));
	packs = open_with(&none);
	claim_all(packs);
	CHECK(figures(packs).chunks == CHUNKS && figures(packs).segments == 1);
	for (uint64_t i = 0; i < CHUNKS; i++)
		CHECK(read_chunk(packs, packer, &entries[i], i) == -EIO);
	gcr_packs_drop(packs, &entries[CHUNKS - 1], 1);
	/* What is new is elsewhere. */
	CHECK(!add(packs, CHUNKS - 1, &entries[CHUNKS - 1]));
	CHECK(entries[CHUNKS - 1].segment != entries[0].segment);
	close_packs(packs);
	packs = open_packs(UINT64_MAX); /* and it makes a directory of the same name */
	claim_all(packs);
	CHECK(read_chunk(packs, packer, &entries[0], 0) == -EIO);
	close_packs(packs);
	CHECK(!rmdir(directory_on_disk) && !rename(away, directory_on_disk));
	packs = open_packs(UINT64_MAX);
	claim_all(packs);
	check_all(packs);
	check_account(packs);
	/* Dropped while it is away: the next start removes the file. */
	CHECK(!rename(directory_on_disk, away));
	gcr_packs_drop(packs, entries, CHUNKS - 1);
	close_packs(packs);
	CHECK(disk_used());
	CHECK(!rename(away, directory_on_disk));
	packs = open_packs(UINT64_MAX);
	CHECK(!disk_used() && !gcr_packs_claim(packs, &entries[CHUNKS - 1]));
	gcr_packs_sweep(packs);
	CHECK(!read_chunk(packs, packer, &entries[CHUNKS - 1], CHUNKS - 1));
	gcr_packs_drop(packs, &entries[CHUNKS - 1], 1);
	close_packs(packs);
	check_nothing();
}

/* The disk is mounted elsewhere: what is there is not taken for what nobody names. */
static void test_elsewhere(void)
{
	struct gcr_spill_options options = {.limit_bytes = UINT64_MAX};
	struct gcr_packs *packs;
	char elsewhere[80];
	uint64_t used;

	in_child(leave_spilled);
	used = disk_used();
	snprintf(elsewhere, sizeof(elsewhere), "%s-elsewhere", directory_on_disk);
	CHECK(!rename(directory_on_disk, elsewhere));
	options.path = elsewhere;
	packs = open_with(&options);
	claim_all(packs);
	CHECK(read_chunk(packs, packer, &entries[0], 0) == -EIO && disk_used() == used);
	close_packs(packs);
	CHECK(disk_used() == used && !rename(elsewhere, directory_on_disk));
	packs = open_packs(UINT64_MAX);
	claim_all(packs);
	check_all(packs);
	check_account(packs);
	gcr_packs_drop(packs, entries, CHUNKS);
	close_packs(packs);
	check_nothing();
}

/* A daemon that may open no more files has no disk that is away: it does not start, or has all. */
static void test_no_descriptors(void)
{
	struct gcr_packs_account account = {.take = count_take, .give = count_give};
	const struct gcr_spill_options options = {.path = directory_on_disk,
						  .limit_bytes = UINT64_MAX};
	struct gcr_packs *packs = NULL;
	struct gcr_error error;
	unsigned int failed = 0;
	struct rlimit before;
	struct rlimit few;

	in_child(leave_spilled);
	CHECK(!gcr_spill_open(store_fd, &options, &spill, &error));
	account.spill = spill;
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	few = before;
	for (few.rlim_cur = 4; !packs; few.rlim_cur++) {
		CHECK(few.rlim_cur < 100 && !setrlimit(RLIMIT_NOFILE, &few));
		failed += gcr_packs_open(store_fd, USER, &account, &packs, &error) < 0;
	}
	CHECK(failed > 2 && !setrlimit(RLIMIT_NOFILE, &before));
	claim_all(packs);
	check_all(packs);
	check_account(packs);
	gcr_packs_drop(packs, entries, CHUNKS);
	close_packs(packs);
	check_nothing();
}

/* ---- killed, and failing, at every step ---- */

static void be_killed(void)
{
	unsigned int at = plan->at;
	struct gcr_packs *packs;
	uint64_t bytes;

	plan->at = 0;
	packs = open_packs(UINT64_MAX);
	add_all(packs);
	plan->at = at;
	plan->calls = 0;
	spill_segment(packs, entries[0].segment, &bytes);
	plan->dropping = true;
	gcr_packs_drop(packs, &entries[CHUNKS / 2], CHUNKS / 2);
	gcr_packs_wait_disk(packs);
	gcr_packs_drop(packs, entries, CHUNKS / 2);
	gcr_packs_wait_disk(packs);
}

/* From nothing done to all dropped again: the chunks that tables name are there. */
static void test_killed(void)
{
	unsigned int at = 1;
	unsigned int spilled = 0;
	unsigned int gone = 0;

	for (;; at++) {
		struct gcr_packs *packs;
		bool is_reached;
		bool is_dropping;
		size_t claimed = 0;

		fail_at(at, 0);
		in_child(be_killed);
		is_reached = plan->reached;
		is_dropping = plan->dropping;
		fail_at(0, 0);
		packs = open_packs(UINT64_MAX);
		/* A table is gone before its chunks are dropped: those before are still there. */
		while (claimed < CHUNKS && !gcr_packs_claim(packs, &entries[claimed]))
			claimed++;
		CHECK(claimed == CHUNKS || is_dropping);
		gcr_packs_sweep(packs);
		if (!is_dropping)
			check_all(packs);
		for (uint64_t i = 0; i < claimed && i < CHUNKS / 2; i++)
			CHECK(!read_chunk(packs, packer, &entries[i], i));
		check_account(packs);
		spilled += figures(packs).spilled_segments;
		gone += !claimed;
		gcr_packs_drop(packs, entries, claimed);
		close_packs(packs);
		check_nothing();
		if (!is_reached)
			break;
	}
	CHECK(at > 10 && spilled > 1 && gone);
}

static void test_failing(int error)
{
	for (unsigned int at = 1;; at++) {
		struct gcr_packs *packs = open_packs(UINT64_MAX);
		struct gcr_packs_figures before;
		uint64_t bytes = 0;
		int result;

		add_all(packs);
		before = figures(packs);
		fail_at(at, error);
		result = spill_segment(packs, entries[0].segment, &bytes);
		plan->at = 0;
		CHECK(plan->reached || !result);
		CHECK(result <= 0 && (result ? result == -error && !bytes : bytes));
		if (result < 0)
			CHECK(figures(packs).memory_bytes == before.memory_bytes);
		check_all(packs);
		check_account(packs);
		/* It goes when the disk does. */
		if (result < 0)
			CHECK(!spill_segment(packs, entries[0].segment, &bytes) && bytes);
		check_all(packs);
		check_account(packs);
		gcr_packs_drop(packs, entries, CHUNKS);
		close_packs(packs);
		check_nothing();
		if (!plan->reached)
			break;
		CHECK(at < 100);
	}
}

/* A disk that makes no holes has the file until all of it is dropped. */
static void test_no_holes(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	uint64_t bytes;

	add_all(packs);
	CHECK(!spill_segment(packs, entries[0].segment, &bytes));
	fail_at(1, EOPNOTSUPP);
	gcr_packs_drop(packs, entries, CHUNKS / 2);
	gcr_packs_wait_disk(packs);
	CHECK(plan->reached && disk_used() == bytes && figures(packs).spilled_bytes == bytes);
	fail_at(0, 0);
	for (uint64_t i = CHUNKS / 2; i < CHUNKS; i++)
		CHECK(!read_chunk(packs, packer, &entries[i], i));
	gcr_packs_drop(packs, &entries[CHUNKS / 2], CHUNKS / 2);
	close_packs(packs);
	check_nothing();
}

/* ---- limits ---- */

static void test_limit(void)
{
	struct gcr_spill_options options = {.path = directory_on_disk, .limit_percent = 1};
	struct gcr_packs *packs = open_packs(64 * KIB);
	struct gcr_packs_figures before;
	uint64_t bytes = 1;

	add_all(packs);
	before = figures(packs);
	CHECK(spill_segment(packs, entries[0].segment, &bytes) == -ENOSPC);
	CHECK(!disk_used() && figures(packs).memory_bytes == before.memory_bytes);
	check_all(packs);
	gcr_packs_drop(packs, entries, CHUNKS);
	close_packs(packs);
	/* Of 8 MiB, 80 KiB. */
	packs = open_with(&options);
	add_all(packs);
	CHECK(spill_segment(packs, entries[0].segment, &bytes) == -ENOSPC);
	gcr_packs_drop(packs, entries, 23);
	CHECK(!spill_segment(packs, entries[0].segment, &bytes) && bytes <= 80 * KIB);
	CHECK(!read_chunk(packs, packer, &entries[23], 23));
	gcr_packs_drop(packs, &entries[23], 1);
	close_packs(packs);
	check_nothing();
}

/* The disk itself. */
static void test_full(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	int fd = openat(disk_fd, "others", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	uint64_t bytes;

	CHECK(fd >= 0 && !posix_fallocate(fd, 0, 7 * MIB));
	add_all(packs);
	CHECK(spill_segment(packs, entries[0].segment, &bytes) == -ENOSPC);
	CHECK(disk_used() == 7 * MIB);
	check_all(packs);
	CHECK(!close(fd) && !unlinkat(disk_fd, "others", 0));
	CHECK(!spill_segment(packs, entries[0].segment, &bytes));
	check_all(packs);
	gcr_packs_drop(packs, entries, CHUNKS);
	close_packs(packs);
	check_nothing();
}

#define RANDOM_CHUNKS 64
#define RANDOM_STEPS  (3000u / TEST_SLOW)
#define RANDOM_LIMIT  (2 * MIB)

/* Whatever is done: bytes are the same, and the limit is kept. */
static void test_random(void)
{
	struct gcr_packs *packs = open_packs(RANDOM_LIMIT);
	static struct gcr_pack_entry some[RANDOM_CHUNKS];
	static bool is_there[RANDOM_CHUNKS];
	static uint64_t seeds[RANDOM_CHUNKS];
	unsigned int spilled = 0;
	unsigned int full = 0;
	uint64_t bytes;

	srandom(1);
	for (unsigned int i = 0; i < RANDOM_STEPS; i++) {
		size_t at = (size_t)random() % RANDOM_CHUNKS;
		int result = 0;

		if (random() % 8 == 0 && is_there[at]) {
			result = spill_segment(packs, some[at].segment, &bytes);
			CHECK(!result || result == -ENOSPC);
			full += result < 0;
			spilled += !result && bytes;
		} else if (is_there[at]) {
			CHECK(!read_chunk(packs, packer, &some[at], seeds[at]));
			gcr_packs_drop(packs, &some[at], 1);
			is_there[at] = false;
		} else {
			seeds[at] = (uint64_t)random() % (2u * RANDOM_CHUNKS);
			CHECK(!add(packs, seeds[at], &some[at]));
			is_there[at] = true;
		}
		CHECK(disk_used() <= RANDOM_LIMIT);
		check_account(packs);
	}
	CHECK(spilled && full);
	for (size_t i = 0; i < RANDOM_CHUNKS; i++)
		if (is_there[i]) {
			CHECK(!read_chunk(packs, packer, &some[i], seeds[i]));
			gcr_packs_drop(packs, &some[i], 1);
		}
	close_packs(packs);
	check_nothing();
}

/* ---- several threads ---- */

static atomic_bool is_over;

static void *read_always(void *data)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *own = NULL;
	struct gcr_packs *packs = data;

	CHECK(!gcr_packer_create(&own));
	for (uint64_t i = 0; !is_over; i = (i + 1) % (CHUNKS / 2))
		CHECK(!read_chunk(packs, own, &entries[i], i));
	return NULL;
}

/* The other half is dropped and added meanwhile. */
static void *change_always(void *data)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *own = NULL;
	struct gcr_packs *packs = data;
	uint8_t packed[GCR_PACK_MAX_BYTES];
	uint8_t bytes[CHUNK];

	CHECK(!gcr_packer_create(&own));
	for (uint64_t i = CHUNKS; !is_over; i++) {
		struct gcr_pack_entry entry;
		struct gcr_digest digest;
		enum gcr_pack_form form;
		size_t size;

		fill_random(bytes, CHUNK, i * 2);
		gcr_digest_of(bytes, CHUNK, &digest);
		size = gcr_pack(own, bytes, CHUNK, packed, &form);
		CHECK(!gcr_packs_add(packs, &digest, CHUNK, form, packed, size, &entry));
		CHECK(!read_chunk(packs, own, &entry, i * 2));
		gcr_packs_drop(packs, &entry, 1);
	}
	return NULL;
}

static void test_threads(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	void *(*const acts[])(void *) = {read_always, read_always, change_always};
	pthread_t threads[GCR_ARRAY_SIZE(acts)];

	for (unsigned int round = 0; round < 30 / TEST_SLOW; round++) {
		uint64_t bytes;

		add_all(packs);
		is_over = false;
		for (size_t i = 0; i < GCR_ARRAY_SIZE(acts); i++)
			CHECK(!pthread_create(&threads[i], NULL, acts[i], packs));
		for (size_t i = 0; i < CHUNKS; i++)
			CHECK(!spill_segment(packs, entries[i].segment, &bytes));
		gcr_packs_drop(packs, &entries[CHUNKS / 2], CHUNKS / 2);
		is_over = true;
		for (size_t i = 0; i < GCR_ARRAY_SIZE(acts); i++)
			CHECK(!pthread_join(threads[i], NULL));
		gcr_packs_drop(packs, entries, CHUNKS / 2);
		check_account(packs);
		CHECK(!figures(packs).chunks);
	}
	close_packs(packs);
	check_nothing();
}

/* ---- whose directories ---- */

static void make(const char *name, const char *file)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory_on_disk, name);
	CHECK(!mkdir(path, 0700) || errno == EEXIST);
	if (!file)
		return;
	snprintf(path, sizeof(path), "%s/%s/1000", directory_on_disk, name);
	CHECK(!mkdir(path, 0700) || errno == EEXIST);
	snprintf(path, sizeof(path), "%s/%s/1000/%s", directory_on_disk, name, file);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && !close(fd));
}

static bool is_there(const char *name, const char *file)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s/%s", directory_on_disk, name, file);
	return !access(path, F_OK);
}

static void test_orphans(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	char home[PATH_MAX];
	char earlier[128], foreign[128], beside[128], wrong[128], mixed[128];
	bool has_machine;
	ssize_t length;

	length = readlinkat(store_fd, GCR_PACKS_NAME "/" GCR_SPILL_NAME, home, sizeof(home) - 1);
	CHECK(length > 0);
	home[length] = '\0';
	memmove(home, strrchr(home, '/') + 1, strlen(strrchr(home, '/')));
	/* gpucrfs-<machine>-<boot>-<random> */
	CHECK(strlen(home) == 8 + 17 + 17 + 16 && home[24] == '-' && home[41] == '-');
	has_machine = strspn(home + 8, "0") < 16;
	snprintf(beside, sizeof(beside), "%s", home);
	memset(beside + 42, 'a', 16);
	snprintf(earlier, sizeof(earlier), "%s", beside);
	memset(earlier + 25, 'b', 16);
	snprintf(mixed, sizeof(mixed), "%s", earlier);
	mixed[50] = 'f';
	snprintf(foreign, sizeof(foreign), "%s", earlier);
	memset(foreign + 8, 'c', 16);
	snprintf(wrong, sizeof(wrong), "%s", earlier);
	wrong[50] = 'G';
	make(beside, "1");
	make(earlier, "1");
	make(earlier, "17");
	make(mixed, "1");
	make(mixed, "01");
	make(mixed, "letter");
	make(foreign, "1");
	make(wrong, "1");
	make("of somebody else", "1");
	/* Of its own: a copy that no link names. */
	make(home, "5");
	close_packs(packs);
	CHECK(!is_there(home, "") && is_there(earlier, "1000/1"));
	packs = open_packs(UINT64_MAX);
	CHECK(is_there(beside, "1000/1") && is_there(foreign, "1000/1") &&
	      is_there(wrong, "1000/1"));
	CHECK(is_there("of somebody else", "1000/1"));
	CHECK(is_there(earlier, "") == !has_machine && is_there(mixed, "1000/1") == !has_machine);
	CHECK(is_there(mixed, "1000/01") && is_there(mixed, "1000/letter"));
	close_packs(packs);
	CHECK(!is_there(home, ""));
	snprintf(home, sizeof(home), "rm -r %s", directory_on_disk);
	CHECK(!system(home));
}

static void test_refused(void)
{
	struct gcr_spill_options options = {.path = directory_on_disk};
	struct gcr_error error;
	int fd;

	CHECK(!mkdir(directory_on_disk, 0700) && !chmod(directory_on_disk, 0770));
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -EPERM && *error.words);
	CHECK(!chmod(directory_on_disk, 0755) && !chown(directory_on_disk, 1000, 1000));
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -EPERM);
	CHECK(!rmdir(directory_on_disk));
	fd = open(directory_on_disk, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && !close(fd));
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -ENOTDIR);
	CHECK(!unlink(directory_on_disk));
	options.path = "/nowhere/at/all";
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -ENOENT && *error.words);
	CHECK(faccessat(store_fd, GCR_PACKS_NAME, F_OK, 0) < 0);
}

/* Links that are not ours are never followed, nor is what they name removed. */
static void test_links(void)
{
	static const char *const targets[] = {"/etc/passwd", "relative", "/", ""};
	char name[64];

	for (size_t i = 0; i < GCR_ARRAY_SIZE(targets); i++) {
		struct gcr_packs *packs = open_packs(UINT64_MAX);

		if (!*targets[i]) {
			close_packs(packs);
			continue;
		}
		snprintf(name, sizeof(name), GCR_PACKS_NAME "/%u/7", USER);
		CHECK(!symlinkat(targets[i], store_fd, name));
		gcr_packs_unref(packs);
		gcr_spill_close(TAKE_PTR(spill));
		packs = open_packs(UINT64_MAX);
		CHECK(figures(packs).segments == 1);
		gcr_packs_sweep(packs);
		CHECK(figures(packs).segments == 0);
		close_packs(packs);
		CHECK(!access("/etc/passwd", F_OK));
	}
	check_nothing();
}

int main(void)
{
	mount_store("huge=always,size=64m");
	mount_disk("size=8m");
	entries = mmap(NULL, sizeof(*entries) * CHUNKS, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	plan = mmap(NULL, sizeof(*plan), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(entries != MAP_FAILED && plan != MAP_FAILED);
	CHECK(!gcr_packer_create(&packer));
	test_spill();
	test_off();
	test_restart();
	test_absent();
	test_elsewhere();
	test_no_descriptors();
	test_killed();
	test_failing(EIO);
	test_failing(ENOSPC);
	test_no_holes();
	test_limit();
	test_full();
	test_random();
	test_threads();
	test_orphans();
	test_refused();
	test_links();
	gcr_packer_destroy(packer);
	unmount_disk();
	unmount_store();
	return 0;
}
