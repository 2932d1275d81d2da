/* SPDX-License-Identifier: MIT */
/*
 * Packed chunks: equal chunks are stored once, and different chunks with the same digest are told
 * apart. A later daemon finds the chunks that its tables name, and no others. No user can make work
 * without bounds, or learn what others have stored.
 */
#include <pthread.h>

#include "fs/pack/packs_private.h"
#include "test/unit/descriptors.h"
#include "test/unit/pack/chunks.h"

/* ---- equal and different chunks ---- */

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
	/* Another user gets a separate copy. */
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

/* Different chunks with one digest are stored and read separately. */
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
	memset(bytes[2], 'y', CHUNK); /* packs to another length */
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
	/* A shorter chunk is not equal either. */
	CHECK(gcr_packs_share(packs, packer, &digest, bytes[0], 100, &again) == -ENOENT);
	CHECK(!add(packs, bytes[0], 100, &digest, &again) && !again.flags);
	CHECK(gcr_packs_read(packs, packer, &again, read, CHUNK) == -EBADMSG);
	CHECK(!gcr_packs_read(packs, packer, &again, read, 100) && !memcmp(read, bytes[0], 100));
	gcr_packs_drop(packs, &again, 1);
	/* Only the chunk in the middle is removed. */
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

/* ---- after a restart ---- */

#define LEFT 64u

static void leave_chunks(void)
{
	struct gcr_packs *packs = open_packs(1000);

	for (unsigned int i = 0; i < LEFT; i++)
		add_random(packs, i, i == 5 ? 777 : CHUNK, &left[i]);
	add_random(packs, 3, CHUNK, &left[LEFT]); /* the fourth chunk again */
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
	/* Adding and dropping a chunk before all are claimed does not free the unclaimed ones. */
	CHECK(!gcr_packs_claim(packs, &left[0]));
	gcr_packs_drop(packs, &left[0], 1);
	add_random(packs, LEFT + 1, CHUNK, &entry);
	CHECK(entry.segment != left[0].segment || entry.offset > left[LEFT - 1].offset);
	/* Claim the second half, one chunk twice. */
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
	/* A claimed chunk is shared as before. */
	add_random(packs, 40, CHUNK, &entry);
	CHECK(entry.flags == GCR_PACK_FLAG_SHARED && entry.offset == left[40].offset);
	gcr_packs_drop(packs, &left[3], 1);
	CHECK(reads_random(packs, &left[LEFT], 3, CHUNK));
	gcr_packs_unref(packs);
	/* Without any claim all chunks are removed. */
	packs = open_packs(1000);
	gcr_packs_sweep(packs);
	CHECK(store_used() == 0 && counted == 0 && figures(packs).segments == 0);
	gcr_packs_unref(packs);
}

/* Entries that no table written by the daemon contains. */
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
	entry.packed_bytes_less_1--; /* same offset, another length */
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
	entry.offset = left[1].offset + GCR_PACK_ALIGN_BYTES; /* overlaps another chunk */
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

/* A segment left unfinished by a killed daemon is removed. */
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

/* Each user's packed chunks are separate; a user's last reference frees all memory. */
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
	gcr_packs_users_sweep(users); /* finds the other user's, without a table */
	gcr_packs_users_figures(users, &sum);
	CHECK(sum.chunks == 1 && sum.memory_bytes == CHUNK && store_used() == CHUNK);
	gcr_packs_drop(packs, left, 1);
	gcr_packs_unref(packs);
	gcr_packs_unref(same);
	gcr_packs_users_destroy(users);
	CHECK(faccessat(store_fd, GCR_PACKS_NAME, F_OK, 0) < 0 && errno == ENOENT && !counted);
}

static bool has_directory(uid_t uid)
{
	char name[sizeof(GCR_PACKS_NAME "/") + 10];

	snprintf(name, sizeof(name), GCR_PACKS_NAME "/%u", uid);
	return !faccessat(store_fd, name, F_OK, 0);
}

#define USERS 50

/* Packs without chunks and without a user are closed, and their directories are removed. */
static void test_many_users(void)
{
	const struct gcr_packs_account account = {.take = count_take, .give = count_give};
	size_t descriptors = count_descriptors();
	struct gcr_packs_users *users;
	struct gcr_packs *packs, *same;
	struct gcr_pack_entry entry;
	struct gcr_error error;
	uint8_t read[CHUNK];

	CHECK(!gcr_packs_users_create(store_fd, &account, &users));
	for (uid_t uid = 2000; uid < 2000 + USERS; uid++) {
		CHECK(!gcr_packs_users_get(users, uid, &packs, &error));
		add_random(packs, uid, CHUNK, &entry);
		gcr_packs_drop(packs, &entry, 1);
		CHECK(has_directory(uid));
		/* A packing under way keeps them. */
		CHECK(!gcr_packs_users_get(users, uid, &same, &error) && same == packs);
		gcr_packs_unref(same);
		add_random(packs, uid, CHUNK, &entry);
		gcr_packs_drop(packs, &entry, 1);
		gcr_packs_unref(packs);
		CHECK(!has_directory(uid));
	}
	CHECK(count_descriptors() == descriptors);
	/* Packs with chunks stay without a user. */
	CHECK(!gcr_packs_users_get(users, 2000, &packs, &error));
	add_random(packs, 1, CHUNK, &entry);
	gcr_packs_unref(packs);
	CHECK(has_directory(2000));
	CHECK(!gcr_packs_users_get(users, 2000, &packs, &error));
	CHECK(!gcr_packs_read(packs, packer, &entry, read, CHUNK));
	gcr_packs_drop(packs, &entry, 1);
	gcr_packs_unref(packs);
	CHECK(count_descriptors() == descriptors && !counted);
	gcr_packs_users_destroy(users);
}

/* The same for those that an earlier daemon has left. */
static void test_many_left(void)
{
	const struct gcr_packs_account account = {.take = count_take, .give = count_give};
	size_t descriptors = count_descriptors();
	struct gcr_packs_users *users;

	in_child(leave_chunks);
	for (uid_t uid = 2000; uid < 2000 + USERS; uid++)
		gcr_packs_unref(open_packs(uid));
	CHECK(has_directory(1000) && has_directory(2000));
	CHECK(!gcr_packs_users_create(store_fd, &account, &users));
	gcr_packs_users_sweep(users);
	CHECK(count_descriptors() == descriptors && !counted);
	for (uid_t uid = 2000; uid < 2000 + USERS; uid++)
		CHECK(!has_directory(uid));
	CHECK(!has_directory(1000) && !store_used());
	gcr_packs_users_destroy(users);
}

static void *come_and_go(void *data)
{
	struct gcr_packs_users *users = data;
	struct gcr_packs_figures sum;
	struct gcr_pack_entry entry;
	uint8_t bytes[CHUNK];
	uint8_t read[CHUNK];

	fill_random(bytes, CHUNK, 7);
	for (unsigned int i = 0; i < 500 / TEST_SLOW; i++) {
		_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *own = NULL;
		struct gcr_packs *packs;
		struct gcr_error error;

		CHECK(!gcr_packer_create(&own));
		CHECK(!gcr_packs_users_get(users, 2000 + i % 3, &packs, &error));
		CHECK(!add(packs, bytes, CHUNK, NULL, &entry));
		gcr_packs_users_figures(users, &sum);
		CHECK(sum.chunks);
		CHECK(!gcr_packs_read(packs, own, &entry, read, CHUNK));
		CHECK(!memcmp(read, bytes, CHUNK));
		gcr_packs_drop(packs, &entry, 1);
		gcr_packs_unref(packs);
	}
	return NULL;
}

/* Packs are closed while others ask for them. */
static void test_users_at_once(void)
{
	const struct gcr_packs_account account = {.take = count_take, .give = count_give};
	struct gcr_packs_users *users;
	pthread_t threads[4];

	CHECK(!gcr_packs_users_create(store_fd, &account, &users));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		CHECK(!pthread_create(&threads[i], NULL, come_and_go, users));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		CHECK(!pthread_join(threads[i], NULL));
	for (uid_t uid = 2000; uid < 2003; uid++)
		CHECK(!has_directory(uid));
	CHECK(!counted && !store_used());
	gcr_packs_users_destroy(users);
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
		/* From time to time all threads use the same chunks. */
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

/*
 * Chunks of a container's root are not shared: neither can others test by a guess whether he has a
 * chunk, nor can he for theirs.
 */
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
	/*
	 * A contained chunk, then one that is not contained, then a guess, then another contained
	 * chunk.
	 */
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
	/* A later daemon takes this from the tables. */
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
#define CHAIN 24 /* bound for a random hash, chunks <= buckets */

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

/* Any number of equal chunks may be stored unshared. */
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

/* Digests with equal first bytes do not share a bucket. */
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

/*
 * Of different chunks with the same digest only the first four are compared with new chunks; the
 * others are stored unshared.
 */
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
	/* A dropped chunk makes room for another. */
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

/* Count the readings of the figures between the start value and zero. */
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

/*
 * Drop very many references in one call; return how often another thread read the figures during
 * the call.
 */
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

/* A drop of very many references lets other threads take the lock in between. */
static void test_turns(void)
{
	_cleanup_free_ struct gcr_pack_entry *entries = calloc(REFERENCES, sizeof(*entries));
	struct gcr_packs *packs = open_packs(1000);
	size_t seen = 0;

	CHECK(entries);
	/* The other thread may not have been scheduled: try again. */
	for (int i = 0; i < ATTEMPTS && !seen; i++)
		seen = drop_and_ask(packs, entries);
	CHECK(seen);
	gcr_packs_unref(packs);
}

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	begin(LEFT + 1);
	test_shared();
	test_same_digest();
	test_zeros();
	test_restart();
	test_alone();
	test_claims_refused();
	test_unfinished_segment();
	test_users();
	test_many_users();
	test_many_left();
	test_users_at_once();
	test_threads();
	test_many_alone();
	test_chosen_digests();
	test_many_of_a_digest();
	test_turns();
	end();
	return 0;
}
