/* SPDX-License-Identifier: MIT */
/*
 * Packed chunks: the same ones are stored once, others with the same digest are not taken for them,
 * memory goes when the last reference does, and a later daemon finds what its tables name, and no
 * more.
 */
#include "fs/pack/packs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "fs/pack/packs_private.h"
#include "test/unit/packs.h"

#define CHUNK GCR_CHUNK_BYTES

static struct gcr_packer *packer;
static struct gcr_pack_entry *left;   /* shared with a daemon that is killed */
static atomic_uint_least64_t counted; /* by the account */
static uint64_t limit = UINT64_MAX;

static int count_take(void *data, uid_t uid, uint64_t bytes, bool is_there)
{
	(void)data;
	if (!is_there && counted + bytes > limit)
		return -ENOSPC;
	counted += bytes;
	return 0;
}

static void count_give(void *data, uid_t uid, uint64_t bytes)
{
	(void)data;
	CHECK(counted >= bytes);
	counted -= bytes;
}

static struct gcr_packs *open_packs(uid_t uid)
{
	const struct gcr_packs_account account = {.take = count_take, .give = count_give};
	struct gcr_packs *packs;
	struct gcr_error error;

	CHECK(!gcr_packs_open(store_fd, uid, &account, &packs, &error));
	return packs;
}

static struct gcr_packs_figures figures(struct gcr_packs *packs)
{
	struct gcr_packs_figures figures;

	gcr_packs_figures(packs, &figures);
	return figures;
}

static int add(struct gcr_packs *packs, const void *bytes, size_t size,
	       const struct gcr_digest *digest, struct gcr_pack_entry *ret_entry)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *own = NULL;
	uint8_t packed[GCR_PACK_MAX_BYTES];
	struct gcr_digest real;
	enum gcr_pack_form form;
	size_t packed_size;

	CHECK(!gcr_packer_create(&own));
	gcr_digest_of(bytes, size, &real);
	packed_size = gcr_pack(own, bytes, size, packed, &form);
	return gcr_packs_add(packs, digest ? digest : &real, size, form, packed, packed_size,
			     ret_entry);
}

static void add_random(struct gcr_packs *packs, uint64_t seed, size_t size,
		       struct gcr_pack_entry *ret_entry)
{
	uint8_t bytes[CHUNK];

	fill_random(bytes, size, seed);
	CHECK(!add(packs, bytes, size, NULL, ret_entry));
}

static bool reads_random(struct gcr_packs *packs, const struct gcr_pack_entry *entry, uint64_t seed,
			 size_t size)
{
	uint8_t expected[CHUNK];
	uint8_t bytes[CHUNK];

	fill_random(expected, size, seed);
	return !gcr_packs_read(packs, packer, entry, bytes, size) && !memcmp(bytes, expected, size);
}

/* ---- the same and not the same ---- */

static void test_shared(void)
{
	struct gcr_packs *packs = open_packs(1000);
	struct gcr_packs *others = open_packs(1001);
	struct gcr_pack_entry first, second, third, other;
	uint8_t bytes[CHUNK];
	uint8_t read[CHUNK];

	memset(bytes, 'x', sizeof(bytes));
	memcpy(bytes + 100, "one", 3);
	CHECK(!add(packs, bytes, CHUNK, NULL, &first));
	CHECK(first.kind == GCR_PACK_STORED && !first.flags &&
	      gcr_pack_entry_packed_bytes(&first) < CHUNK / 10);
	CHECK(!add(packs, bytes, CHUNK, NULL, &second) && second.flags == GCR_PACK_FLAG_SHARED);
	CHECK(!gcr_packs_share(packs, packer, &first.digest, bytes, CHUNK, &third));
	CHECK(second.offset == first.offset && third.offset == first.offset &&
	      third.flags == GCR_PACK_FLAG_SHARED);
	CHECK(figures(packs).chunks == 1 && figures(packs).unpacked_bytes == 3 * CHUNK &&
	      figures(packs).shared_bytes == 2 * CHUNK &&
	      figures(packs).packed_bytes == gcr_pack_entry_packed_bytes(&first));
	/* Another user has one of their own. */
	CHECK(gcr_packs_share(others, packer, &first.digest, bytes, CHUNK, &other) == -ENOENT);
	CHECK(!add(others, bytes, CHUNK, NULL, &other) && !other.flags);

	gcr_packs_drop(packs, &first, 1);
	gcr_packs_drop(packs, &second, 1);
	CHECK(!gcr_packs_read(packs, packer, &third, read, CHUNK) && !memcmp(read, bytes, CHUNK));
	CHECK(figures(packs).chunks == 1 && figures(packs).shared_bytes == 0);
	gcr_packs_drop(packs, &third, 1);
	CHECK(figures(packs).chunks == 0 && figures(packs).memory_bytes == 0 &&
	      figures(packs).packed_bytes == 0 && figures(packs).unpacked_bytes == 0);
	CHECK(gcr_packs_read(packs, packer, &third, read, CHUNK) == -EIO);
	CHECK(!gcr_packs_read(others, packer, &other, read, CHUNK) && !memcmp(read, bytes, CHUNK));
	gcr_packs_drop(others, &other, 1);
	CHECK(store_used() == 0 && counted == 0);
	gcr_packs_unref(packs);
	gcr_packs_unref(others);
}

static void test_same_digest(void)
{
	struct gcr_packs *packs = open_packs(1000);
	struct gcr_pack_entry entries[3];
	struct gcr_pack_entry again;
	struct gcr_digest digest;
	uint8_t bytes[3][CHUNK];
	uint8_t read[CHUNK];

	memset(&digest, 7, sizeof(digest));
	fill_random(bytes[0], CHUNK, 1);
	fill_random(bytes[1], CHUNK, 2);
	memset(bytes[2], 'y', CHUNK); /* it packs to another length */
	for (int i = 0; i < 3; i++) {
		CHECK(gcr_packs_share(packs, packer, &digest, bytes[i], CHUNK, &again) == -ENOENT);
		CHECK(!add(packs, bytes[i], CHUNK, &digest, &entries[i]) && !entries[i].flags);
	}
	CHECK(figures(packs).chunks == 3 && figures(packs).shared_bytes == 0);
	for (int i = 0; i < 3; i++) {
		CHECK(!gcr_packs_read(packs, packer, &entries[i], read, CHUNK));
		CHECK(!memcmp(read, bytes[i], CHUNK));
		CHECK(!gcr_packs_share(packs, packer, &digest, bytes[i], CHUNK, &again));
		CHECK(again.offset == entries[i].offset);
		gcr_packs_drop(packs, &again, 1);
	}
	/* One that is shorter, too. */
	CHECK(gcr_packs_share(packs, packer, &digest, bytes[0], 100, &again) == -ENOENT);
	CHECK(!add(packs, bytes[0], 100, &digest, &again) && !again.flags);
	CHECK(gcr_packs_read(packs, packer, &again, read, CHUNK) == -EBADMSG);
	CHECK(!gcr_packs_read(packs, packer, &again, read, 100) && !memcmp(read, bytes[0], 100));
	gcr_packs_drop(packs, &again, 1);
	/* The one in the middle goes, and no other. */
	gcr_packs_drop(packs, &entries[1], 1);
	CHECK(gcr_packs_read(packs, packer, &entries[1], read, CHUNK) == -EIO);
	CHECK(reads_random(packs, &entries[0], 1, CHUNK));
	gcr_packs_drop(packs, entries, 1);
	gcr_packs_drop(packs, entries + 2, 1);
	CHECK(store_used() == 0 && counted == 0);
	gcr_packs_unref(packs);
}

static void test_zeros(void)
{
	struct gcr_packs *packs = open_packs(1000);
	struct gcr_pack_entry entry;
	struct gcr_digest digest;
	uint8_t bytes[CHUNK];

	memset(bytes, 1, sizeof(bytes));
	gcr_packs_zeros(1000, &entry);
	gcr_digest_of_zeros(1000, &digest);
	CHECK(entry.kind == GCR_PACK_ZEROS && gcr_digest_equal(&digest, &entry.digest));
	CHECK(!gcr_packs_read(packs, packer, &entry, bytes, 1000));
	CHECK(gcr_pack_is_zero(bytes, 1000) && bytes[1000] == 1);
	CHECK(gcr_packs_read(packs, packer, &entry, bytes, 999) == -EBADMSG);
	gcr_packs_drop(packs, &entry, 1);
	CHECK(!gcr_packs_claim(packs, &entry) && figures(packs).chunks == 0);
	memset(&entry, 0, sizeof(entry));
	CHECK(gcr_packs_read(packs, packer, &entry, bytes, 1) == -EBADMSG);
	gcr_packs_unref(packs);
}

/* ---- memory ---- */

#define MANY 1000u /* 60 MiB */

static void test_memory(void)
{
	static struct gcr_pack_entry entries[MANY];
	struct gcr_packs *packs = open_packs(1000);
	uint64_t before;

	for (unsigned int i = 0; i < MANY; i++)
		add_random(packs, i, i % 7 ? CHUNK : 1 + i * 64 % CHUNK, &entries[i]);
	before = store_used();
	CHECK(before == figures(packs).memory_bytes && before == counted);
	CHECK(before >= figures(packs).packed_bytes &&
	      before < figures(packs).packed_bytes + MANY * 16 + 4 * KIB);
	/* Of every second one: all but the pages that are the other one's, too. */
	for (unsigned int i = 0; i < MANY; i += 2)
		gcr_packs_drop(packs, &entries[i], 1);
	CHECK(store_used() == figures(packs).memory_bytes && store_used() == counted);
	CHECK(store_used() < figures(packs).packed_bytes + MANY / 2 * 8 * KIB);
	for (unsigned int i = 1; i < MANY; i += 2)
		CHECK(reads_random(packs, &entries[i], i, i % 7 ? CHUNK : 1 + i * 64 % CHUNK));
	/* What goes at once leaves nothing. */
	for (unsigned int i = 0; i < MANY; i += 2)
		memset(&entries[i], 0, sizeof(entries[i]));
	gcr_packs_drop(packs, entries, MANY);
	CHECK(store_used() == 0 && counted == 0 && figures(packs).segments == 0);
	gcr_packs_unref(packs);
}

/* More than a segment holds; the first one goes as a whole. */
static void test_segments(void)
{
	static struct gcr_pack_entry entries[GCR_PACK_SEGMENT_BYTES / CHUNK + 1];
	struct gcr_packs *packs = open_packs(1000);
	unsigned int count = GCR_ARRAY_SIZE(entries);

	for (unsigned int i = 0; i < count; i++)
		add_random(packs, i, CHUNK, &entries[i]);
	CHECK(figures(packs).segments == 2 && entries[count - 1].segment != entries[0].segment);
	CHECK(figures(packs).memory_bytes == (uint64_t)count * CHUNK);
	gcr_packs_drop(packs, entries, count - 1);
	CHECK(figures(packs).segments == 1 && store_used() == CHUNK && counted == CHUNK);
	CHECK(reads_random(packs, &entries[count - 1], count - 1, CHUNK));
	gcr_packs_drop(packs, &entries[count - 1], 1);
	CHECK(store_used() == 0 && counted == 0);
	gcr_packs_unref(packs);
}

/* One that is not compressed, of which nothing else is the same. */
static int add_numbered(struct gcr_packs *packs, uint64_t number, struct gcr_pack_entry *ret_entry)
{
	static uint8_t bytes[CHUNK];
	struct gcr_digest digest = {0};

	if (!bytes[0])
		memset(bytes, 'x', sizeof(bytes));
	memcpy(bytes + 1, &number, sizeof(number));
	memcpy(&digest, &number, sizeof(number));
	return gcr_packs_add(packs, &digest, CHUNK, GCR_PACK_RAW, bytes, CHUNK, ret_entry);
}

static bool reads_numbered(struct gcr_packs *packs, const struct gcr_pack_entry *entry,
			   uint64_t number)
{
	uint8_t bytes[CHUNK];

	return !gcr_packs_read(packs, packer, entry, bytes, CHUNK) &&
	       !memcmp(bytes + 1, &number, sizeof(number)) && bytes[CHUNK - 1] == 'x';
}

#define KEPT 6u

/* One chunk is kept of each segment full of them: the rest of the segment is filled again. */
static void test_sparse(void)
{
	static struct gcr_pack_entry entries[GCR_PACK_SEGMENT_BYTES / CHUNK];
	const unsigned int count = GCR_ARRAY_SIZE(entries);
	struct gcr_packs *packs = open_packs(1000);
	struct gcr_pack_entry kept[KEPT];

	for (unsigned int i = 0; i < KEPT; i++) {
		for (unsigned int k = 0; k < count; k++)
			CHECK(!add_numbered(packs, i * count + k, &entries[k]));
		kept[i] = entries[count / 2 + i];
		memset(&entries[count / 2 + i], 0, sizeof(entries[0]));
		gcr_packs_drop(packs, entries, count);
		CHECK(figures(packs).memory_bytes == (i + 1) * CHUNK && counted == store_used());
		for (unsigned int k = 0; k <= i; k++)
			CHECK(reads_numbered(packs, &kept[k], k * count + count / 2 + k));
	}
	CHECK(figures(packs).segments <= 3);
	/* Unused pages between chunks, in short runs, are not filled. */
	for (unsigned int k = 0; k < count; k++)
		CHECK(!add_numbered(packs, KEPT * count + k, &entries[k]));
	for (unsigned int k = 0; k < count; k++)
		if (k % 4)
			gcr_packs_drop(packs, &entries[k], 1);
	for (unsigned int k = 0; k < count; k += 4)
		CHECK(reads_numbered(packs, &entries[k], KEPT * count + k));
	CHECK(figures(packs).memory_bytes == (count / 4 + KEPT) * CHUNK);
	for (unsigned int k = 0; k < count; k += 4)
		gcr_packs_drop(packs, &entries[k], 1);
	gcr_packs_drop(packs, kept, KEPT);
	CHECK(store_used() == 0 && counted == 0 && figures(packs).segments == 0);
	gcr_packs_unref(packs);
}

#define MANY_SEGMENTS 256u

/* Each with one chunk, as an earlier daemon may have left them. */
static void leave_segments(void)
{
	struct gcr_packs *packs = open_packs(1000);

	for (unsigned int i = 0; i < MANY_SEGMENTS; i++) {
		CHECK(!add_numbered(packs, i, &left[i]));
		packs->filled->is_sealed = true;
	}
	CHECK(figures(packs).segments == MANY_SEGMENTS);
}

static void test_many_segments(void)
{
	struct gcr_packs *packs;
	struct gcr_pack_entry entry;

	in_child(leave_segments);
	packs = open_packs(1000);
	for (unsigned int i = 0; i < MANY_SEGMENTS; i++) {
		CHECK(!gcr_packs_claim(packs, &left[i]));
		packs->segments[i]->is_sealed = true; /* as those on a disk */
	}
	gcr_packs_sweep(packs);
	/* 16 MiB of chunks are worth four segments more, and no further one. */
	for (unsigned int i = 0; i < 4; i++) {
		CHECK(!add_numbered(packs, MANY_SEGMENTS + i, &entry));
		packs->filled->is_sealed = true;
	}
	CHECK(add_numbered(packs, MANY_SEGMENTS + 4, &entry) == -ENOSPC);
	CHECK(figures(packs).segments == MANY_SEGMENTS + 4 && counted == store_used());
	packs->segments[7]->is_sealed = false;
	CHECK(!add_numbered(packs, MANY_SEGMENTS + 4, &entry));
	CHECK(entry.segment == left[7].segment && reads_numbered(packs, &left[7], 7) &&
	      reads_numbered(packs, &entry, MANY_SEGMENTS + 4));
	gcr_packs_unref(packs);
	packs = open_packs(1000);
	gcr_packs_sweep(packs);
	CHECK(store_used() == 0 && counted == 0 && figures(packs).segments == 0);
	gcr_packs_unref(packs);
}

static void test_full(void)
{
	struct gcr_packs *packs = open_packs(1000);
	struct gcr_packs_figures before;
	struct gcr_pack_entry entries[300];
	struct gcr_pack_entry entry;
	uint8_t bytes[CHUNK];
	_cleanup_close_ int fd = openat(store_fd, "full", O_RDWR | O_CREAT, 0600);
	unsigned int count = 0;
	int result = 0;

	/* The account says no. */
	add_random(packs, 0, CHUNK, &entries[count++]);
	limit = counted + 4 * KIB;
	fill_random(bytes, CHUNK, 1);
	before = figures(packs);
	CHECK(add(packs, bytes, CHUNK, NULL, &entry) == -ENOSPC);
	CHECK(figures(packs).memory_bytes == before.memory_bytes &&
	      figures(packs).chunks == before.chunks && counted == before.memory_bytes);
	/* One that is there needs nothing. */
	fill_random(bytes, CHUNK, 0);
	CHECK(!add(packs, bytes, CHUNK, NULL, &entry));
	gcr_packs_drop(packs, &entry, 1);
	limit = UINT64_MAX;
	/* The file system does. */
	CHECK(fd >= 0 && !fallocate(fd, 0, 0, 328 * MIB));
	while (count < GCR_ARRAY_SIZE(entries)) {
		fill_random(bytes, CHUNK, count);
		before = figures(packs);
		result = add(packs, bytes, CHUNK, NULL, &entries[count]);
		if (result < 0)
			break;
		count++;
	}
	CHECK(result == -ENOSPC && count > 10);
	CHECK(figures(packs).memory_bytes == before.memory_bytes &&
	      counted == before.memory_bytes && figures(packs).chunks == count);
	CHECK(store_used() == before.memory_bytes + 328 * MIB);
	for (unsigned int i = 0; i < count; i++)
		CHECK(reads_random(packs, &entries[i], i, CHUNK));
	gcr_packs_drop(packs, entries, count);
	CHECK(!unlinkat(store_fd, "full", 0) && !close(TAKE_FD(fd)));
	CHECK(store_used() == 0 && counted == 0);
	/* Nor is anything made for a first chunk that there is no room for. */
	limit = 0;
	CHECK(add(packs, bytes, CHUNK, NULL, &entry) == -ENOSPC && figures(packs).segments == 0);
	limit = UINT64_MAX;
	gcr_packs_unref(packs);
}

/* ---- after a restart ---- */

#define LEFT 64u

static void leave_chunks(void)
{
	struct gcr_packs *packs = open_packs(1000);

	for (unsigned int i = 0; i < LEFT; i++)
		add_random(packs, i, i == 5 ? 777 : CHUNK, &left[i]);
	add_random(packs, 3, CHUNK, &left[LEFT]); /* the fourth once more */
}

static void test_restart(void)
{
	struct gcr_packs *packs;
	struct gcr_pack_entry entry;
	uint64_t there;

	in_child(leave_chunks);
	there = store_used();
	packs = open_packs(1000);
	CHECK(figures(packs).memory_bytes == there && counted == there && there >= 63 * CHUNK);
	CHECK(figures(packs).chunks == 0);
	/* What is added and dropped before all is claimed takes nothing of the rest with it. */
	CHECK(!gcr_packs_claim(packs, &left[0]));
	gcr_packs_drop(packs, &left[0], 1);
	add_random(packs, LEFT + 1, CHUNK, &entry);
	CHECK(entry.segment != left[0].segment || entry.offset > left[LEFT - 1].offset);
	/* The second half, and one twice. */
	for (unsigned int i = LEFT / 2; i < LEFT; i++)
		CHECK(!gcr_packs_claim(packs, &left[i]));
	CHECK(!gcr_packs_claim(packs, &left[LEFT]) && !gcr_packs_claim(packs, &left[3]));
	CHECK(!gcr_packs_claim(packs, &left[5]));
	CHECK(figures(packs).chunks == LEFT / 2 + 3 && figures(packs).shared_bytes == CHUNK);
	gcr_packs_sweep(packs);
	CHECK(store_used() == figures(packs).memory_bytes && store_used() == counted);
	CHECK(store_used() <= (LEFT / 2 + 3) * (CHUNK + 8 * KIB));
	for (unsigned int i = LEFT / 2; i < LEFT; i++)
		CHECK(reads_random(packs, &left[i], i, CHUNK));
	CHECK(reads_random(packs, &left[3], 3, CHUNK) && reads_random(packs, &left[5], 5, 777));
	CHECK(reads_random(packs, &entry, LEFT + 1, CHUNK));
	/* It is shared as before. */
	add_random(packs, 40, CHUNK, &entry);
	CHECK(entry.flags == GCR_PACK_FLAG_SHARED && entry.offset == left[40].offset);
	gcr_packs_drop(packs, &left[3], 1);
	CHECK(reads_random(packs, &left[LEFT], 3, CHUNK));
	gcr_packs_unref(packs);
	/* Nobody claims anything. */
	packs = open_packs(1000);
	gcr_packs_sweep(packs);
	CHECK(store_used() == 0 && counted == 0 && figures(packs).segments == 0);
	gcr_packs_unref(packs);
}

/* What no table of ours can say. */
static void test_claims_refused(void)
{
	struct gcr_packs *packs;
	struct gcr_pack_entry entry;
	struct gcr_packs_figures before;

	in_child(leave_chunks);
	packs = open_packs(1000);
	CHECK(!gcr_packs_claim(packs, &left[1]));
	before = figures(packs);
	entry = left[1];
	entry.packed_bytes_less_1--; /* the same place, another length */
	CHECK(gcr_packs_claim(packs, &entry) == -EBADMSG);
	entry = left[2];
	entry.segment = 99;
	CHECK(gcr_packs_claim(packs, &entry) == -EBADMSG);
	entry = left[2];
	entry.offset += 1;
	CHECK(gcr_packs_claim(packs, &entry) == -EBADMSG);
	entry.offset = GCR_PACK_SEGMENT_BYTES - GCR_PACK_ALIGN_BYTES;
	CHECK(gcr_packs_claim(packs, &entry) == -EBADMSG);
	entry.offset = GCR_PACK_SEGMENT_BYTES / 2; /* a hole */
	CHECK(gcr_packs_claim(packs, &entry) == -EBADMSG);
	entry.offset = left[1].offset + GCR_PACK_ALIGN_BYTES; /* over another one */
	CHECK(gcr_packs_claim(packs, &entry) == -EBADMSG);
	CHECK(figures(packs).chunks == before.chunks &&
	      figures(packs).packed_bytes == before.packed_bytes);
	CHECK(!gcr_packs_claim(packs, &left[2]));
	gcr_packs_sweep(packs);
	CHECK(reads_random(packs, &left[1], 1, CHUNK) && reads_random(packs, &left[2], 2, CHUNK));
	gcr_packs_drop(packs, &left[1], 2);
	CHECK(store_used() == 0 && counted == 0);
	gcr_packs_unref(packs);
}

/* A daemon that was killed as it made a segment. */
static void test_unfinished_segment(void)
{
	struct gcr_packs *packs = open_packs(1000);
	int fd = openat(gcr_packs_directory(packs), "7", O_RDWR | O_CREAT | O_EXCL, 0600);

	CHECK(fd >= 0 && !close(fd));
	gcr_packs_unref(packs);
	packs = open_packs(1000);
	CHECK(figures(packs).segments == 0);
	CHECK(faccessat(gcr_packs_directory(packs), "7", F_OK, 0) < 0 && errno == ENOENT);
	gcr_packs_unref(packs);
}

static void test_users(void)
{
	const struct gcr_packs_account account = {.take = count_take, .give = count_give};
	struct gcr_packs_users *users;
	struct gcr_packs *packs, *same;
	struct gcr_packs_figures sum;
	struct gcr_error error;

	in_child(leave_chunks);
	CHECK(!gcr_packs_users_create(store_fd, &account, &users));
	CHECK(!gcr_packs_users_get(users, 1001, &packs, &error));
	CHECK(!gcr_packs_users_get(users, 1001, &same, &error) && same == packs);
	add_random(packs, 1, CHUNK, &left[0]);
	gcr_packs_users_figures(users, &sum);
	CHECK(sum.chunks == 1 && sum.memory_bytes == CHUNK);
	gcr_packs_users_sweep(users); /* the other one's is found and has no table */
	gcr_packs_users_figures(users, &sum);
	CHECK(sum.chunks == 1 && sum.memory_bytes == CHUNK && store_used() == CHUNK);
	gcr_packs_drop(packs, left, 1);
	gcr_packs_unref(packs);
	gcr_packs_unref(same);
	gcr_packs_users_destroy(users);
	CHECK(faccessat(store_fd, GCR_PACKS_NAME, F_OK, 0) < 0 && errno == ENOENT && !counted);
}

/* ---- several threads ---- */

#define THREADS 4
#define ROUNDS	(40u / TEST_SLOW)

static void *add_and_drop(void *data)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *own = NULL;
	struct gcr_packs *packs = data;
	struct gcr_pack_entry entries[16];
	uint8_t bytes[CHUNK];
	uint8_t read[CHUNK];

	CHECK(!gcr_packer_create(&own));
	for (unsigned int round = 0; round < ROUNDS; round++) {
		/* The same ones for all threads, now and then. */
		for (unsigned int i = 0; i < GCR_ARRAY_SIZE(entries); i++) {
			struct gcr_digest digest;

			fill_random(bytes, CHUNK, round * 8 + i);
			gcr_digest_of(bytes, CHUNK, &digest);
			if (gcr_packs_share(packs, own, &digest, bytes, CHUNK, &entries[i]) < 0)
				CHECK(!add(packs, bytes, CHUNK, NULL, &entries[i]));
			CHECK(!gcr_packs_read(packs, own, &entries[i], read, CHUNK));
			CHECK(!memcmp(read, bytes, CHUNK));
		}
		gcr_packs_drop(packs, entries, GCR_ARRAY_SIZE(entries));
	}
	return NULL;
}

static void test_threads(void)
{
	struct gcr_packs *packs = open_packs(1000);
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, add_and_drop, packs));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(figures(packs).chunks == 0 && figures(packs).unpacked_bytes == 0 &&
	      figures(packs).shared_bytes == 0);
	CHECK(store_used() == 0 && counted == 0);
	gcr_packs_unref(packs);
}

/* What root of a container has cannot be guessed, nor can he guess what others have. */
static void test_alone(void)
{
	struct gcr_packs *packs = open_packs(0);
	struct gcr_pack_entry entries[4], shared;
	uint8_t packed[GCR_PACK_MAX_BYTES];
	uint8_t bytes[CHUNK], read[CHUNK];
	struct gcr_digest digest;
	enum gcr_pack_form form;
	size_t size;

	memset(bytes, 's', sizeof(bytes));
	memcpy(bytes + 100, "secret", 6);
	gcr_digest_of(bytes, CHUNK, &digest);
	size = gcr_pack(packer, bytes, CHUNK, packed, &form);
	/* First a contained one, then one that is not, then a guess, and then another one. */
	CHECK(!gcr_packs_add_alone(packs, &digest, CHUNK, form, packed, size, &entries[0]));
	CHECK(gcr_packs_share(packs, packer, &digest, bytes, CHUNK, &shared) == -ENOENT);
	CHECK(!gcr_packs_add(packs, &digest, CHUNK, form, packed, size, &entries[1]));
	CHECK(!gcr_packs_add_alone(packs, &digest, CHUNK, form, packed, size, &entries[2]));
	CHECK(!gcr_packs_add_alone(packs, &digest, CHUNK, form, packed, size, &entries[3]));
	CHECK(figures(packs).chunks == 4 && !figures(packs).shared_bytes);
	for (int i = 0; i < 4; i++) {
		CHECK(!(entries[i].flags & GCR_PACK_FLAG_SHARED));
		CHECK(!gcr_packs_read(packs, packer, &entries[i], read, CHUNK) &&
		      !memcmp(read, bytes, CHUNK));
	}
	/* A later daemon knows it by the tables. */
	gcr_packs_unref(packs);
	packs = open_packs(0);
	for (int i = 0; i < 4; i++)
		CHECK(!gcr_packs_claim(packs, &entries[i]));
	gcr_packs_sweep(packs);
	CHECK(!gcr_packs_share(packs, packer, &digest, bytes, CHUNK, &shared));
	CHECK(shared.offset == entries[1].offset && shared.segment == entries[1].segment);
	gcr_packs_drop(packs, &shared, 1);
	gcr_packs_drop(packs, entries, 2);
	CHECK(gcr_packs_share(packs, packer, &digest, bytes, CHUNK, &shared) == -ENOENT);
	gcr_packs_drop(packs, &entries[2], 2);
	CHECK(figures(packs).chunks == 0);
	gcr_packs_unref(packs);
}

/* ---- work that is bounded ---- */

static size_t longest_chain(const struct gcr_packs *packs)
{
	const struct gcr_pack_index *index = &packs->index;
	size_t longest = 0;

	for (size_t i = 0; i < index->buckets_count; i++) {
		size_t length = 0;

		for (uint32_t at = index->buckets[i]; at != UINT32_MAX; at = index->chunks[at].next)
			length++;
		longest = length > longest ? length : longest;
	}
	return longest;
}

static size_t count_shareable(struct gcr_packs *packs, const struct gcr_digest *digest)
{
	const struct gcr_pack_chunk *chunk = NULL;
	size_t count = 0;

	while ((chunk = gcr_pack_index_find(&packs->index, digest, chunk)))
		count++;
	return count;
}

#define EQUAL 5000u
#define CHAIN 24 /* with a random hash, and no more chunks than buckets */

static struct gcr_pack_entry equal[EQUAL];

static void add_equal(struct gcr_packs *packs)
{
	uint8_t packed[GCR_PACK_MAX_BYTES];
	uint8_t bytes[CHUNK];
	struct gcr_digest digest;
	enum gcr_pack_form form;
	size_t size;

	memset(bytes, 1, sizeof(bytes));
	gcr_digest_of(bytes, CHUNK, &digest);
	size = gcr_pack(packer, bytes, CHUNK, packed, &form);
	for (size_t i = 0; i < EQUAL; i++)
		CHECK(!gcr_packs_add_alone(packs, &digest, CHUNK, form, packed, size, &equal[i]));
}

/* Chunks that are never shared may all be the same. */
static void test_many_alone(void)
{
	struct gcr_packs *packs = open_packs(1000);

	add_equal(packs);
	CHECK(figures(packs).chunks == EQUAL && longest_chain(packs) <= CHAIN);
	gcr_packs_unref(packs);
	packs = open_packs(1000);
	for (size_t i = 0; i < EQUAL; i++)
		CHECK(!gcr_packs_claim(packs, &equal[i]));
	CHECK(figures(packs).chunks == EQUAL && longest_chain(packs) <= CHAIN);
	gcr_packs_sweep(packs);
	gcr_packs_drop(packs, equal, EQUAL / 2);
	CHECK(figures(packs).chunks == EQUAL / 2);
	gcr_packs_drop(packs, equal + EQUAL / 2, EQUAL / 2);
	CHECK(figures(packs).chunks == 0 && store_used() == 0 && counted == 0);
	gcr_packs_unref(packs);
}

/* Digests that begin alike have no bucket in common. */
static void test_chosen_digests(void)
{
	struct gcr_packs *packs = open_packs(1000);
	uint8_t bytes[100];

	for (unsigned int i = 0; i < EQUAL; i++) {
		struct gcr_digest digest = {.bytes = {0}};

		memcpy(digest.bytes + 8, &i, sizeof(i));
		fill_random(bytes, sizeof(bytes), i);
		CHECK(!add(packs, bytes, sizeof(bytes), &digest, &equal[i]));
	}
	CHECK(figures(packs).chunks == EQUAL && longest_chain(packs) <= CHAIN);
	gcr_packs_drop(packs, equal, EQUAL);
	CHECK(figures(packs).chunks == 0);
	gcr_packs_unref(packs);
}

/* Of chunks that have one digest and are not the same only a few are compared with others. */
static void test_many_of_a_digest(void)
{
	const struct gcr_digest digest = {.bytes = {7}};
	struct gcr_packs *packs = open_packs(1000);
	struct gcr_pack_entry entries[40], again;
	uint8_t bytes[CHUNK];

	for (unsigned int i = 0; i < GCR_ARRAY_SIZE(entries); i++) {
		fill_random(bytes, CHUNK, i);
		CHECK(gcr_packs_share(packs, packer, &digest, bytes, CHUNK, &again) == -ENOENT);
		CHECK(!add(packs, bytes, CHUNK, &digest, &entries[i]));
		CHECK(entries[i].flags == (i < 4 ? 0 : GCR_PACK_FLAG_ALONE));
	}
	CHECK(figures(packs).chunks == GCR_ARRAY_SIZE(entries));
	CHECK(count_shareable(packs, &digest) == 4 && longest_chain(packs) <= 4 + CHAIN);
	for (unsigned int i = 0; i < GCR_ARRAY_SIZE(entries); i++) {
		int result;

		fill_random(bytes, CHUNK, i);
		CHECK(reads_random(packs, &entries[i], i, CHUNK));
		result = gcr_packs_share(packs, packer, &digest, bytes, CHUNK, &again);
		CHECK(result == (i < 4 ? 0 : -ENOENT));
		CHECK(result || again.offset == entries[i].offset);
		if (!result)
			gcr_packs_drop(packs, &again, 1);
	}
	gcr_packs_unref(packs);
	packs = open_packs(1000);
	for (unsigned int i = 0; i < GCR_ARRAY_SIZE(entries); i++)
		CHECK(!gcr_packs_claim(packs, &entries[i]));
	gcr_packs_sweep(packs);
	CHECK(count_shareable(packs, &digest) == 4);
	/* Where one has gone, another may come. */
	gcr_packs_drop(packs, &entries[1], 1);
	CHECK(count_shareable(packs, &digest) == 3);
	fill_random(bytes, CHUNK, 1);
	CHECK(!add(packs, bytes, CHUNK, &digest, &entries[1]) && !entries[1].flags);
	gcr_packs_drop(packs, entries, GCR_ARRAY_SIZE(entries));
	CHECK(figures(packs).chunks == 0 && store_used() == 0 && counted == 0);
	gcr_packs_unref(packs);
}

#define REFERENCES (1u << 18)
#define ATTEMPTS   200

static atomic_bool is_asking;

/* How often the figures are between all and nothing. */
static void *ask(void *data)
{
	uint64_t before = figures(data).unpacked_bytes;
	uintptr_t seen = 0;

	is_asking = true;
	while (before) {
		uint64_t now = figures(data).unpacked_bytes;

		seen += now < before && now;
		before = now;
	}
	return (void *)seen;
}

/* Drop very many references with one call; how often another thread had the figures meanwhile. */
static size_t drop_and_ask(struct gcr_packs *packs, struct gcr_pack_entry *entries)
{
	const struct gcr_digest digest = {.bytes = {1}};
	const uint8_t bytes[64] = {1};
	pthread_t thread;
	void *seen;

	for (size_t i = 0; i < REFERENCES; i++)
		CHECK(!gcr_packs_add(packs, &digest, sizeof(bytes), GCR_PACK_RAW, bytes,
				     sizeof(bytes), &entries[i]));
	is_asking = false;
	CHECK(!pthread_create(&thread, NULL, ask, packs));
	while (!is_asking)
		sched_yield();
	gcr_packs_drop(packs, entries, REFERENCES);
	CHECK(!pthread_join(thread, &seen));
	return (uintptr_t)seen;
}

static void test_turns(void)
{
	_cleanup_free_ struct gcr_pack_entry *entries = calloc(REFERENCES, sizeof(*entries));
	struct gcr_packs *packs = open_packs(1000);
	size_t seen = 0;

	CHECK(entries);
	/* The processor may have been somebody else's. */
	for (int i = 0; i < ATTEMPTS && !seen; i++)
		seen = drop_and_ask(packs, entries);
	CHECK(seen);
	gcr_packs_unref(packs);
}

int main(void)
{
	mount_store("huge=always,size=330m");
	left = mmap(NULL, sizeof(*left) * MANY_SEGMENTS, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(left != MAP_FAILED);
	CHECK(!gcr_packer_create(&packer));
	test_shared();
	test_same_digest();
	test_zeros();
	test_memory();
	test_segments();
	test_sparse();
	test_full();
	test_restart();
	test_alone();
	test_claims_refused();
	test_unfinished_segment();
	test_many_segments();
	test_users();
	test_threads();
	test_many_alone();
	test_chosen_digests();
	test_many_of_a_digest();
	test_turns();
	gcr_packer_destroy(packer);
	unmount_store();
	return 0;
}
