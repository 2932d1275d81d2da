/* SPDX-License-Identifier: MIT */
/*
 * Segments on a disk: chunks read the same from memory and disk, also while other threads read and
 * change them. The limit holds, and unused chunks are removed from the disk.
 */
#include <pthread.h>
#include <sys/resource.h>

#include "test/unit/pack/spill.h"

/* All chunks that an earlier daemon left are there; nothing is when they have been dropped. */
static void claim_and_drop(struct gcr_packs *packs)
{
	claim_all(packs);
	check_all(packs);
	check_account(packs);
	gcr_packs_drop(packs, entries, CHUNKS);
	close_packs(packs);
	check_nothing();
}

/* ---- to the disk and back ---- */

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
	/* The segment is already on the disk; and no segment has this number. */
	CHECK(!spill_segment(packs, entries[0].segment, &bytes) && !bytes);
	CHECK(!spill_segment(packs, 99, &bytes) && !bytes);
	/* A chunk that is on the disk is shared; a new chunk is stored elsewhere. */
	CHECK(!add(packs, 7, &shared) && shared.flags == GCR_PACK_FLAG_SHARED &&
	      shared.offset == entries[7].offset && shared.segment == entries[7].segment);
	CHECK(!add(packs, CHUNKS, &other) && other.segment != entries[0].segment);
	check_account(packs);
	/* Unused pages are freed on the disk, too. */
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

/* Change a byte of a file on the disk; a second call restores the byte. */
static void damage(const char *path, uint32_t offset)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	CHECK(fd >= 0 && pread(fd, &byte, 1, offset) == 1);
	byte ^= 1;
	CHECK(pwrite(fd, &byte, 1, offset) == 1);
}

/* Damaged chunks, compressed or raw, are refused when read. */
static void test_damaged(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	struct gcr_pack_entry again;
	char path[PATH_MAX];
	uint64_t bytes;

	add_all(packs);
	CHECK(entries[4].form == GCR_PACK_RAW && entries[5].form != GCR_PACK_RAW);
	CHECK(!spill_segment(packs, entries[0].segment, &bytes) && bytes);
	segment_path(entries[0].segment, path);
	for (size_t i = 4; i < 6; i++)
		damage(path, entries[i].offset + gcr_pack_entry_packed_bytes(&entries[i]) / 2);
	for (size_t i = 0; i < CHUNKS; i++) {
		uint8_t read[CHUNK];

		CHECK(gcr_packs_read(packs, packer, &entries[i], read, CHUNK) ==
		      (i == 4 || i == 5 ? -EBADMSG : 0));
	}
	/* A damaged chunk is not shared with a new one either. */
	CHECK(!add(packs, 4, &again) && !again.flags && again.segment != entries[4].segment);
	CHECK(!read_chunk(packs, packer, &again, 4));
	for (size_t i = 4; i < 6; i++)
		damage(path, entries[i].offset + gcr_pack_entry_packed_bytes(&entries[i]) / 2);
	check_all(packs);
	gcr_packs_drop(packs, &again, 1);
	gcr_packs_drop(packs, entries, CHUNKS);
	gcr_packs_wait_disk(packs);
	close_packs(packs);
	check_nothing();
}

static struct gcr_packs *asking;
static struct gcr_pack_entry grown[3];
static unsigned int asked;
static uint64_t on_disk;

/*
 * An account that adds chunks while the limit is asked, at the first and the third time, and
 * refuses at the third.
 */
static int take_and_add(void *data, uid_t uid, uint64_t bytes, struct gcr_error *error)
{
	if (asked < 1 || asked == 2)
		CHECK(!add(asking, CHUNKS + asked, &grown[asked]) &&
		      grown[asked].segment == entries[0].segment);
	if (asked++ == 2)
		return gcr_error_set(error, EDQUOT, "no more");
	on_disk += bytes;
	return 0;
}

static void count_disk(void *data, uid_t uid, uint64_t more, uint64_t less)
{
	on_disk += more - less;
}

/* The limit is asked before anything is copied, and asked again for growth in between. */
static void test_asked_first(void)
{
	const struct gcr_spill_options options = {.path = directory_on_disk,
						  .limit_bytes = UINT64_MAX};
	struct gcr_packs_account account = {.take = count_take,
					    .give = count_give,
					    .take_disk = take_and_add,
					    .count_disk = count_disk};
	struct gcr_error error;
	uint64_t bytes = 0;

	CHECK(!mkdir(options.path, 0700) || errno == EEXIST);
	CHECK(!gcr_spill_open(store_fd, &options, &spill, &error));
	account.spill = spill;
	CHECK(!gcr_packs_open(store_fd, USER, &account, &asking, &error));
	add_all(asking);
	asked = 2;
	CHECK(gcr_packs_spill(asking, entries[0].segment, &bytes, &error) == -EDQUOT && !on_disk);
	CHECK(figures(asking).spilled_segments == 0);
	asked = 0;
	CHECK(!gcr_packs_spill(asking, entries[0].segment, &bytes, &error) && asked == 2);
	CHECK(bytes == figures(asking).spilled_bytes && on_disk == bytes);
	check_account(asking);
	check_all(asking);
	gcr_packs_drop(asking, entries, CHUNKS);
	gcr_packs_drop(asking, &grown[0], 1);
	gcr_packs_drop(asking, &grown[2], 1);
	gcr_packs_wait_disk(asking);
	CHECK(!on_disk);
	close_packs(asking);
	check_nothing();
}

/* Without a spill directory segments stay in memory. */
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

/* A later daemon finds the segment, with spilling on or off. */
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
	/* Unclaimed chunks are removed. */
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

/* While the disk is not mounted, its segment is known, and reading it fails with EIO. */
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
	/* A new chunk is stored elsewhere. */
	CHECK(!add(packs, CHUNKS - 1, &entries[CHUNKS - 1]));
	CHECK(entries[CHUNKS - 1].segment != entries[0].segment);
	close_packs(packs);
	packs = open_packs(UINT64_MAX); /* the directory where the disk would be mounted */
	CHECK(!gcr_spill_is_on(spill));
	claim_all(packs);
	CHECK(read_chunk(packs, packer, &entries[0], 0) == -EIO);
	close_packs(packs);
	CHECK(!rmdir(directory_on_disk) && !rename(away, directory_on_disk));
	packs = open_packs(UINT64_MAX);
	claim_all(packs);
	check_all(packs);
	check_account(packs);
	/* Chunks dropped while the disk is absent: the next start removes the file. */
	close_packs(packs);
	CHECK(!rename(directory_on_disk, away));
	packs = open_with(&none);
	claim_all(packs);
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

/* The disk is mounted elsewhere: its segment is found, and counts against the limit. */
static void test_elsewhere(void)
{
	const struct gcr_spill_options none = {0};
	struct gcr_spill_options options = {0};
	struct gcr_pack_entry others[CHUNKS];
	struct gcr_packs *packs;
	char elsewhere[80];
	char path[PATH_MAX];
	uint64_t bytes;

	in_child(leave_spilled);
	snprintf(elsewhere, sizeof(elsewhere), "%s-elsewhere", directory_on_disk);
	CHECK(!rename(directory_on_disk, elsewhere));
	options.path = elsewhere;
	options.limit_bytes = disk_used() + MIB;
	packs = open_with(&options);
	claim_all(packs);
	check_all(packs);
	check_account(packs);
	segment_path(entries[0].segment, path);
	CHECK(!strncmp(path, elsewhere, strlen(elsewhere)) && !access(path, F_OK));
	for (uint64_t i = 0; i < CHUNKS; i++)
		CHECK(!add(packs, CHUNKS + i, &others[i]));
	CHECK(spill_segment(packs, others[0].segment, &bytes) == -ENOSPC);
	gcr_packs_drop(packs, others, CHUNKS);
	close_packs(packs);
	/* From then on the segment is found there also by a daemon without a spill directory. */
	packs = open_with(&none);
	claim_all(packs);
	check_all(packs);
	close_packs(packs);
	CHECK(!rename(elsewhere, directory_on_disk));
	packs = open_packs(UINT64_MAX);
	claim_and_drop(packs);
}

/*
 * Another directory, on the same disk or another: the segment in the first one stays usable, and is
 * removed when unused.
 */
static void test_another(void)
{
	struct gcr_spill_options options = {.limit_bytes = UINT64_MAX};
	struct gcr_pack_entry other;
	struct gcr_packs *packs;
	char another[80];
	char path[PATH_MAX];
	uint64_t bytes;

	in_child(leave_spilled);
	snprintf(another, sizeof(another), "%s-another", directory_on_disk);
	options.path = another;
	packs = open_with(&options);
	claim_all(packs);
	check_all(packs);
	CHECK(!add(packs, CHUNKS, &other) && !spill_segment(packs, other.segment, &bytes) && bytes);
	segment_path(entries[0].segment, path);
	CHECK(!strncmp(path, directory_on_disk, strlen(directory_on_disk)));
	CHECK(path[strlen(directory_on_disk)] == '/');
	segment_path(other.segment, path);
	CHECK(!strncmp(path, another, strlen(another)));
	check_account(packs);
	close_packs(packs);
	packs = open_packs(UINT64_MAX);
	CHECK(!gcr_packs_claim(packs, &other));
	claim_all(packs);
	check_all(packs);
	CHECK(!read_chunk(packs, packer, &other, CHUNKS));
	check_account(packs);
	gcr_packs_drop(packs, entries, CHUNKS);
	gcr_packs_drop(packs, &other, 1);
	close_packs(packs);
	check_nothing();
	CHECK(!rmdir(another));
}

static void leave_highest(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	uint64_t bytes;

	CHECK(!add(packs, 0, &entries[0]) && !spill_segment(packs, entries[0].segment, &bytes));
	CHECK(!add(packs, 1, &entries[1]) && !spill_segment(packs, entries[1].segment, &bytes));
}

/*
 * The number of a segment that was removed while its disk was absent is used again, but not its
 * path.
 */
static void test_again(void)
{
	const struct gcr_spill_options none = {0};
	struct gcr_packs *packs;
	char before[PATH_MAX];
	char after[PATH_MAX];
	char away[80];
	uint64_t bytes;

	in_child(leave_highest);
	segment_path(entries[1].segment, before);
	snprintf(away, sizeof(away), "%s-away", directory_on_disk);
	CHECK(!rename(directory_on_disk, away));
	packs = open_with(&none);
	CHECK(!gcr_packs_claim(packs, &entries[0]));
	gcr_packs_sweep(packs);
	close_packs(packs);
	CHECK(!rename(away, directory_on_disk));
	packs = open_packs(UINT64_MAX);
	CHECK(!gcr_packs_claim(packs, &entries[0]));
	gcr_packs_sweep(packs);
	CHECK(!add(packs, 2, &entries[2]) && entries[2].segment == entries[1].segment);
	CHECK(!spill_segment(packs, entries[2].segment, &bytes) && bytes);
	segment_path(entries[2].segment, after);
	CHECK(strcmp(before, after) != 0 && access(before, F_OK) < 0);
	CHECK(!read_chunk(packs, packer, &entries[0], 0) &&
	      !read_chunk(packs, packer, &entries[2], 2));
	check_account(packs);
	gcr_packs_drop(packs, &entries[0], 1);
	gcr_packs_drop(packs, &entries[2], 1);
	close_packs(packs);
	check_nothing();
}

/*
 * A daemon out of descriptors does not take a disk for absent: the daemon fails to start, or has
 * all segments.
 */
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
	claim_and_drop(packs);
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
	/* 80 KiB of the 8 MiB. */
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

/* The disk itself is full. */
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

/* After any operations the chunks are unchanged and the limit is kept. */
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

/* Drop and add chunks of the other half all the time. */
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

int main(void)
{
	begin();
	test_spill();
	test_damaged();
	test_asked_first();
	test_off();
	test_restart();
	test_absent();
	test_elsewhere();
	test_another();
	test_again();
	test_no_descriptors();
	test_limit();
	test_full();
	test_random();
	test_threads();
	end();
	return 0;
}
