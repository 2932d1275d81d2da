/* SPDX-License-Identifier: MIT */
/*
 * The memory of packed chunks: it is counted, freed with the last reference, and filled again, in
 * as few segments as possible; and nothing is lost if the store is full.
 */
#include "fs/pack/packs_private.h"
#include "test/unit/pack/chunks.h"

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
	/* Drop every second chunk: all its pages are freed but those shared with a neighbour. */
	for (unsigned int i = 0; i < MANY; i += 2)
		gcr_packs_drop(packs, &entries[i], 1);
	CHECK(store_used() == figures(packs).memory_bytes && store_used() == counted);
	CHECK(store_used() < figures(packs).packed_bytes + MANY / 2 * 8 * KIB);
	for (unsigned int i = 1; i < MANY; i += 2)
		CHECK(reads_random(packs, &entries[i], i, i % 7 ? CHUNK : 1 + i * 64 % CHUNK));
	/* Dropping all chunks in one call leaves nothing. */
	for (unsigned int i = 0; i < MANY; i += 2)
		memset(&entries[i], 0, sizeof(entries[i]));
	gcr_packs_drop(packs, entries, MANY);
	CHECK(store_used() == 0 && counted == 0 && figures(packs).segments == 0);
	gcr_packs_unref(packs);
}

/* More chunks than a segment holds; the first segment is freed as a whole. */
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

/* Add an uncompressed chunk that differs from all others. */
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

/* One chunk is kept of each full segment: the rest of the segment is filled again. */
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
	/* Short runs of unused pages between chunks are not filled. */
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

/* Make many segments with one chunk each, as an earlier daemon may have left them. */
static void leave_segments(void)
{
	struct gcr_packs *packs = open_packs(1000);

	for (unsigned int i = 0; i < MANY_SEGMENTS; i++) {
		CHECK(!add_numbered(packs, i, &left[i]));
		packs->filled->is_sealed = true;
	}
	CHECK(figures(packs).segments == MANY_SEGMENTS);
}

/* The number of sparse segments is bounded by the bytes of the chunks in them. */
static void test_many_segments(void)
{
	struct gcr_packs *packs;
	struct gcr_pack_entry entry;

	in_child(leave_segments);
	packs = open_packs(1000);
	for (unsigned int i = 0; i < MANY_SEGMENTS; i++) {
		CHECK(!gcr_packs_claim(packs, &left[i]));
		packs->segments[i]->is_sealed = true; /* like segments on a disk */
	}
	gcr_packs_sweep(packs);
	/* 16 MiB of chunks permit four more segments, and no fifth. */
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

	/* The account refuses. */
	add_random(packs, 0, CHUNK, &entries[count++]);
	limit = counted + 4 * KIB;
	fill_random(bytes, CHUNK, 1);
	before = figures(packs);
	CHECK(add(packs, bytes, CHUNK, NULL, &entry) == -ENOSPC);
	CHECK(figures(packs).memory_bytes == before.memory_bytes &&
	      figures(packs).chunks == before.chunks && counted == before.memory_bytes);
	/* A chunk already stored needs no memory. */
	fill_random(bytes, CHUNK, 0);
	CHECK(!add(packs, bytes, CHUNK, NULL, &entry));
	gcr_packs_drop(packs, &entry, 1);
	limit = UINT64_MAX;
	/* The file system is full. */
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
	/* Without memory for the first chunk, no segment is made. */
	limit = 0;
	CHECK(add(packs, bytes, CHUNK, NULL, &entry) == -ENOSPC && figures(packs).segments == 0);
	limit = UINT64_MAX;
	gcr_packs_unref(packs);
}

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	begin(MANY_SEGMENTS);
	test_memory();
	test_segments();
	test_sparse();
	test_full();
	test_many_segments();
	end();
	return 0;
}
