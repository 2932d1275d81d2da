/* SPDX-License-Identifier: MIT */
/*
 * The program that the bench freezes: fills VRAM in pieces, as a model does, and knows its
 * contents. The GPU computes checksums before and after; for the small pieces the CPU computes them
 * too, which checks the GPU's checksums.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "tools/bench/role.h"
#include "tools/gpu/kernels.h"

#define GRID_BLOCKS  1024
#define GRID_THREADS 256

/* Small allocations beside the large ones, as in every program: they stay with the driver. */
#define SMALL_CHUNKS 8
#define SMALL_BYTES  65536

/* `change` works on whole blocks: the unit of a digest. */
#define BLOCK_WORDS (UINT64_C(65536) / sizeof(uint32_t))

#define PIECE_BYTES   (UINT64_C(2) << 20)
#define BUSY_WORDS    (UINT64_C(1) << 18)
#define EXPLAIN_BYTES (UINT64_C(4) << 20)

struct chunk {
	CUdeviceptr pointer;
	uint64_t words;
	uint32_t seed;
	uint32_t added;	      /* total added to each word since the fill */
	uint32_t changed;     /* added to each word of the blocks selected by `change` */
	uint64_t first_block; /* index of its first block among those of all large pieces */
	uint64_t sum;
};

struct target {
	struct chunk *chunks;
	size_t count;
	unsigned int percent; /* share of the blocks that `change` changes */
	CUdeviceptr sums;     /* one checksum per piece */
	CUdeviceptr busy;     /* buffer of the kernels of a busy program */
	CUfunction fill, add, checksum;
};

static int launch(CUfunction function, void **arguments)
{
	return BENCH_CU(cuLaunchKernel, function, GRID_BLOCKS, 1, 1, GRID_THREADS, 1, 1, 0, NULL,
			arguments, NULL);
}

/* Selects evenly @percent of the blocks of all large pieces. */
static bool is_changed(const struct target *target, const struct chunk *chunk, uint64_t word)
{
	uint64_t block = chunk->first_block + word / BLOCK_WORDS;

	return (block + 1) * target->percent / 100 > block * target->percent / 100;
}

static uint32_t expected_word(const struct target *target, const struct chunk *chunk, uint64_t word)
{
	return (chunk->seed ^ (uint32_t)word * GCR_DEMO_MULTIPLIER) + chunk->added +
	       (chunk->changed && is_changed(target, chunk, word) ? chunk->changed : 0);
}

static uint64_t expected_sum(const struct target *target, const struct chunk *chunk)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < chunk->words; i++)
		sum += ((uint64_t)expected_word(target, chunk, i) + 1) * (2 * i + 1);
	return sum;
}

/* Computes all checksums on the GPU; the caller frees *ret_sums. */
static int read_sums(struct target *target, uint64_t **ret_sums)
{
	_cleanup_free_ uint64_t *sums = calloc(target->count, sizeof(*sums));
	int result;

	if (!sums)
		return bench_role_fail("out of memory");
	result = BENCH_CU(cuMemsetD32_v2, target->sums, 0, 2 * target->count);
	for (size_t i = 0; i < target->count && !result; i++) {
		CUdeviceptr where = target->sums + i * sizeof(*sums);

		result = launch(target->checksum, (void *[]){&target->chunks[i].pointer,
							     &target->chunks[i].words, &where});
	}
	if (!result)
		result = BENCH_CU(cuMemcpyDtoH_v2, sums, target->sums,
				  target->count * sizeof(*sums));
	if (!result)
		*ret_sums = TAKE_PTR(sums);
	return result;
}

/* Stores the current checksums; those of the small pieces are compared with the CPU's. */
static int keep_sums(struct target *target)
{
	_cleanup_free_ uint64_t *sums = NULL;
	int result = read_sums(target, &sums);

	for (size_t i = 0; i < target->count && !result; i++) {
		struct chunk *chunk = &target->chunks[i];

		chunk->sum = sums[i];
		if (chunk->words * sizeof(uint32_t) <= SMALL_BYTES &&
		    expected_sum(target, chunk) != chunk->sum)
			result = bench_role_fail("content piece %zu is not what was put there", i);
	}
	return result;
}

/* Reports the first wrong word of a piece. */
static int explain(const struct target *target, size_t index)
{
	const struct chunk *chunk = &target->chunks[index];
	_cleanup_free_ uint32_t *words = malloc(EXPLAIN_BYTES);

	for (uint64_t first = 0; words && first < chunk->words;) {
		uint64_t count = chunk->words - first;

		if (count > EXPLAIN_BYTES / sizeof(*words))
			count = EXPLAIN_BYTES / sizeof(*words);
		if (BENCH_CU(cuMemcpyDtoH_v2, words, chunk->pointer + first * sizeof(*words),
			     count * sizeof(*words)) < 0)
			return -EIO;
		for (uint64_t i = 0; i < count; i++)
			if (words[i] != expected_word(target, chunk, first + i))
				return bench_role_fail(
					"content piece %zu (%" PRIu64
					" bytes at 0x%llx) has changed, first at byte "
					"%" PRIu64 ": expected 0x%08" PRIx32 ", found 0x%08" PRIx32,
					index, chunk->words * sizeof(*words), chunk->pointer,
					(first + i) * sizeof(*words),
					expected_word(target, chunk, first + i), words[i]);
		first += count;
	}
	return bench_role_fail("content the sum of piece %zu has changed, its bytes have not",
			       index);
}

/* Compares all checksums with the stored ones. */
static int compare(struct target *target)
{
	_cleanup_free_ uint64_t *sums = NULL;
	int result = read_sums(target, &sums);

	for (size_t i = 0; i < target->count && !result; i++)
		if (sums[i] != target->chunks[i].sum)
			return explain(target, i);
	return result;
}

/* Compares, then changes all words, so that old bytes would be detected the next time. */
static int verify(struct target *target)
{
	uint64_t first = 0;
	int result = compare(target);

	for (size_t i = 0; i < target->count && !result; i++) {
		struct chunk *chunk = &target->chunks[i];
		uint32_t value = GCR_DEMO_MULTIPLIER + (uint32_t)i;

		result = launch(target->add,
				(void *[]){&chunk->pointer, &first, &chunk->words, &value});
		chunk->added += value;
	}
	if (!result)
		result = keep_sums(target);
	return result;
}

/* Compares, then changes some blocks of the large pieces, one by one as programs do. */
static int change(struct target *target)
{
	int result = compare(target);

	for (size_t i = SMALL_CHUNKS; i < target->count && !result; i++) {
		struct chunk *chunk = &target->chunks[i];
		uint32_t value = GCR_DEMO_MULTIPLIER + (uint32_t)i;
		uint64_t words = BLOCK_WORDS;

		for (uint64_t first = 0; first < chunk->words && !result; first += words)
			if (is_changed(target, chunk, first))
				result = launch(target->add, (void *[]){&chunk->pointer, &first,
									&words, &value});
		chunk->changed += value;
	}
	if (!result)
		result = keep_sums(target);
	return result;
}

/* Creates large pieces in units of 2 MiB; the last one has the rest. */
static int create(struct target *target, uint64_t bytes, uint64_t pieces, uint32_t seed)
{
	uint64_t piece = (bytes / pieces + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
	size_t large = bytes ? (bytes + piece - 1) / piece : 0;
	uint64_t blocks = 0;
	int result;

	target->count = SMALL_CHUNKS + large;
	target->chunks = calloc(target->count, sizeof(*target->chunks));
	if (!target->chunks)
		return bench_role_fail("out of memory");
	if ((result = bench_driver_kernel("gpucr_fill", &target->fill)) < 0 ||
	    (result = bench_driver_kernel("gpucr_add", &target->add)) < 0 ||
	    (result = bench_driver_kernel("gpucr_checksum", &target->checksum)) < 0 ||
	    (result = BENCH_CU(cuMemAlloc_v2, &target->sums, target->count * sizeof(uint64_t))) <
		    0 ||
	    (result = BENCH_CU(cuMemAlloc_v2, &target->busy, BUSY_WORDS * sizeof(uint32_t))) < 0)
		return result;
	for (size_t i = 0; i < target->count; i++) {
		struct chunk *chunk = &target->chunks[i];
		uint64_t left = i < SMALL_CHUNKS ? SMALL_BYTES : bytes - (i - SMALL_CHUNKS) * piece;

		chunk->words = (left < piece || i < SMALL_CHUNKS ? left : piece) / sizeof(uint32_t);
		chunk->seed = seed + (uint32_t)i * 0x9e3779b9u;
		chunk->first_block = blocks;
		blocks += i < SMALL_CHUNKS ? 0 : chunk->words / BLOCK_WORDS;
		result = BENCH_CU(cuMemAlloc_v2, &chunk->pointer, chunk->words * sizeof(uint32_t));
		if (!result)
			result = launch(target->fill,
					(void *[]){&chunk->pointer, &chunk->words, &chunk->seed});
		if (result < 0)
			return result;
	}
	return keep_sums(target);
}

/* Keeps the GPU busy until a line arrives on stdin. */
static int be_busy(struct target *target)
{
	struct pollfd poll_fd = {.fd = STDIN_FILENO, .events = POLLIN};
	uint64_t first = 0, words = BUSY_WORDS;
	uint32_t value = 1;

	while (!poll(&poll_fd, 1, 0)) {
		for (int i = 0; i < 16; i++)
			if (launch(target->add, (void *[]){&target->busy, &first, &words, &value}) <
			    0)
				return -EIO;
		if (BENCH_CU(cuCtxSynchronize) < 0)
			return -EIO;
	}
	return 0;
}

int bench_role_target(int argc, char **argv)
{
	struct target target = {0};
	bool busy;
	char line[64];

	if (argc < 5)
		return 2;
	busy = atoi(argv[4]);
	target.percent = argc > 5 ? (unsigned int)atoi(argv[5]) : 0;
	if (bench_driver_open(atoi(argv[0])) < 0 ||
	    create(&target, strtoull(argv[1], NULL, 10), strtoul(argv[2], NULL, 10),
		   (uint32_t)strtoul(argv[3], NULL, 10)) < 0) {
		free(target.chunks);
		return EXIT_FAILURE;
	}
	puts("ok");
	while ((!busy || !be_busy(&target)) && fgets(line, sizeof(line), stdin))
		if (!(strcmp(line, "change\n") ? verify(&target) : change(&target)))
			puts("ok");
	free(target.chunks);
	return EXIT_SUCCESS;
}
