/* SPDX-License-Identifier: MIT */
/*
 * backend/digest/digest.cl, compiled for the host, with one thread for each work item of a group,
 * compared with libxxhash.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <xxhash.h>

#include "test/unit/test.h"

#define CHUNK	     65536
#define CHUNKS	     17 /* the last group has one chunk */
#define GROUP_CHUNKS 4
#define GROUPS	     ((CHUNKS + GROUP_CHUNKS - 1) / GROUP_CHUNKS)
#define ITEMS	     256

unsigned int gcr_test_local_id(void);
unsigned int gcr_test_group_id(void);
void gcr_test_barrier(void);
/* A weak symbol: absent if there was no clang to compile the kernel. */
__attribute__((weak)) void gpucr_digest(const void *chunks, void *digests, uint8_t *zeros,
					uint64_t count);

static __thread unsigned int local_id, group_id;
static pthread_barrier_t barrier;
static struct {
	uint8_t chunks[CHUNKS + 1][CHUNK];
	XXH128_canonical_t digests[CHUNKS + 1];
	uint8_t zeros[CHUNKS + 1];
} memory __attribute__((aligned(64)));

unsigned int gcr_test_local_id(void)
{
	return local_id;
}

unsigned int gcr_test_group_id(void)
{
	return group_id;
}

void gcr_test_barrier(void)
{
	pthread_barrier_wait(&barrier);
}

/* Runs one work item of each group in turn. */
static void *run_item(void *data)
{
	local_id = (unsigned int)(uintptr_t)data;
	for (group_id = 0; group_id < GROUPS; group_id++) {
		gpucr_digest(memory.chunks, memory.digests, memory.zeros, CHUNKS);
		/* The groups share the local memory, so each must end before the next begins. */
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

static void run_kernel(void)
{
	pthread_t threads[ITEMS];

	CHECK(!pthread_barrier_init(&barrier, NULL, ITEMS));
	for (uintptr_t i = 0; i < ITEMS; i++)
		CHECK(!pthread_create(&threads[i], NULL, run_item, (void *)i));
	for (uintptr_t i = 0; i < ITEMS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&barrier);
}

static void fill_random(uint8_t *bytes, size_t size, unsigned int seed)
{
	srandom(seed);
	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)(random() >> 7);
}

/* Checks the digests against libxxhash, and that nothing is written beyond the last. */
static void check(void)
{
	static const uint8_t zero_chunk[CHUNK];

	memset(memory.digests, 0xa5, sizeof(memory.digests));
	memset(memory.zeros, 0xa5, sizeof(memory.zeros));
	run_kernel();
	for (size_t i = 0; i < CHUNKS; i++) {
		bool is_zeros = !memcmp(memory.chunks[i], zero_chunk, CHUNK);
		XXH128_canonical_t expected;

		XXH128_canonicalFromHash(&expected, XXH3_128bits(memory.chunks[i], CHUNK));
		CHECK(!memcmp(&memory.digests[i], &expected, sizeof(expected)));
		CHECK(memory.zeros[i] == is_zeros);
	}
	for (size_t i = 0; i < sizeof(*memory.digests); i++)
		CHECK(memory.digests[CHUNKS].digest[i] == 0xa5);
	CHECK(memory.zeros[CHUNKS] == 0xa5);
}

static void test_random(void)
{
	for (unsigned int seed = 1; seed <= 4; seed++) {
		fill_random(memory.chunks[0], sizeof(memory.chunks), seed);
		check();
	}
}

static void test_zeros_and_ones(void)
{
	memset(memory.chunks, 0, sizeof(memory.chunks));
	check();
	memset(memory.chunks, 0xff, sizeof(memory.chunks));
	check();
}

/* A single bit set at either end of a chunk, block, stripe or word. */
static void test_single_bits(void)
{
	static const size_t bits[] = {
		0,	1,	63,	64,	511,	512,	8191,	8192,
		516095, 516096, 523775, 523776, 524223, 524224, 524280, 524287,
	};

	memset(memory.chunks, 0, sizeof(memory.chunks));
	/* The second chunk stays zero: an all-zero chunk between chunks with data. */
	for (size_t i = 0; i < sizeof(bits) / sizeof(*bits); i++)
		memory.chunks[i ? i + 1 : 0][bits[i] / 8] |= (uint8_t)(1u << bits[i] % 8);
	check();
}

int main(void)
{
	if (!gpucr_digest)
		SKIP("no clang has compiled the kernel");
	test_random();
	test_zeros_and_ones();
	test_single_bits();
	return 0;
}
