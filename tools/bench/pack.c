/* SPDX-License-Identifier: MIT */
/*
 * Packing and unpacking in memory, with one thread and with all: a thread takes pieces of 2 MiB, as
 * the threads of daemon and worker do. Packed data is unpacked and compared once before any timing,
 * which also touches all memory.
 */
#include "tools/bench/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/pack.h"
#include "lib/pack_file.h"

#define MIB	    (UINT64_C(1) << 20)
#define BYTES	    (256 * MIB)
#define FILE_BYTES  (1024 * MIB) /* of a file: at most its first FILE_BYTES */
#define THREADS_MAX 256

struct chunk {
	uint32_t packed_bytes; /* 0: a chunk of zeros */
	enum gcr_pack_form form;
};

/* The bytes, and a buffer of the same size for packed chunks, each at its original offset. */
struct load {
	const uint8_t *bytes;
	uint8_t *packed;
	struct chunk *chunks;
	uint64_t size;
	uint64_t mapped;
};

enum act { PACK, UNPACK, COMPARE };

struct round {
	const struct load *load;
	enum act act;
	_Atomic uint64_t next; /* the next piece to take */
	_Atomic int result;
};

static void *map(uint64_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

/* ---- a thread ---- */

static void pack_chunk(const struct load *load, struct gcr_packer *packer, uint64_t at, size_t size)
{
	struct chunk *chunk = &load->chunks[at / GCR_CHUNK_BYTES];

	*chunk = (struct chunk){0};
	if (!gcr_pack_is_zero(load->bytes + at, size))
		chunk->packed_bytes = (uint32_t)gcr_pack(packer, load->bytes + at, size,
							 load->packed + at, &chunk->form);
}

static int unpack_chunk(const struct load *load, struct gcr_packer *packer, uint64_t at,
			size_t size, uint8_t *ret_bytes)
{
	const struct chunk *chunk = &load->chunks[at / GCR_CHUNK_BYTES];

	if (!chunk->packed_bytes) {
		memset(ret_bytes, 0, size);
		return 0;
	}
	return gcr_unpack(packer, chunk->form, load->packed + at, chunk->packed_bytes, ret_bytes,
			  size);
}

static int do_piece(struct round *round, struct gcr_packer *packer, uint64_t first, uint8_t *memory)
{
	const struct load *load = round->load;
	uint64_t end = first + GCR_PACK_PIECE_BYTES;
	int result = 0;

	if (end > load->size)
		end = load->size;
	for (uint64_t at = first; at < end && !result; at += GCR_CHUNK_BYTES) {
		size_t size = end - at < GCR_CHUNK_BYTES ? end - at : GCR_CHUNK_BYTES;

		if (round->act == PACK)
			pack_chunk(load, packer, at, size);
		else
			result = unpack_chunk(load, packer, at, size, memory + (at - first));
	}
	if (!result && round->act == COMPARE && memcmp(memory, load->bytes + first, end - first))
		result = -EBADMSG;
	return result;
}

static void *run(void *data)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *packer = NULL;
	_cleanup_free_ uint8_t *memory = malloc(GCR_PACK_PIECE_BYTES);
	struct round *round = data;
	int result = memory ? gcr_packer_create(&packer) : -ENOMEM;

	while (!result && !bench_interrupted) {
		uint64_t piece = atomic_fetch_add(&round->next, 1);

		if (piece >= gcr_pack_pieces(round->load->size))
			return NULL;
		result = do_piece(round, packer, piece * GCR_PACK_PIECE_BYTES, memory);
	}
	atomic_store(&round->result, result ? result : -EINTR);
	return NULL;
}

/* Processes all pieces once with @threads_count threads; *ret_rate in bytes per second. */
static int do_round(const struct load *load, enum act act, unsigned int threads_count,
		    double *ret_rate)
{
	struct round round = {.load = load, .act = act};
	int64_t begin_usec = gcr_clock_usec(), usec;
	pthread_t threads[THREADS_MAX];
	unsigned int count = 0;
	int result = 0;

	while (count < threads_count && !result) {
		result = -pthread_create(&threads[count], NULL, run, &round);
		count += !result;
	}
	for (unsigned int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	usec = gcr_clock_usec() - begin_usec;
	*ret_rate = (double)load->size * 1e6 / (double)(usec > 0 ? usec : 1);
	return result ? result : atomic_load(&round.result);
}

/* ---- a row ---- */

static void sum_up(const struct load *load, struct bench_packed *row)
{
	row->bytes = load->size;
	row->packed_bytes = row->zero_bytes = 0;
	for (uint64_t at = 0; at < load->size; at += GCR_CHUNK_BYTES) {
		const struct chunk *chunk = &load->chunks[at / GCR_CHUNK_BYTES];
		uint64_t left = load->size - at;

		row->packed_bytes += chunk->packed_bytes;
		if (!chunk->packed_bytes)
			row->zero_bytes += left < GCR_CHUNK_BYTES ? left : GCR_CHUNK_BYTES;
	}
}

/* Returns 0 after success or a mismatch, which is reported as a failure of the bench. */
static int measure_load(struct bench *bench, unsigned int threads, const struct load *load,
			struct bench_packed *row)
{
	const unsigned int counts[BENCH_THREADS] = {1, threads};
	double rate;
	int result = do_round(load, PACK, threads, &rate);

	if (!result)
		result = do_round(load, COMPARE, threads, &rate);
	if (result == -EBADMSG) {
		bench_fail(bench, row->name, "WRONG CONTENT after it was unpacked");
		return 0;
	}
	if (!result)
		sum_up(load, row);
	for (unsigned int i = 0; i < bench->options.runs && !bench_is_late(bench); i++)
		for (size_t j = 0; j < BENCH_THREADS && !result; j++) {
			result = do_round(load, PACK, counts[j], &rate);
			if (result)
				break;
			bench_series_add(&row->pack_rate[j], rate);
			result = do_round(load, UNPACK, counts[j], &rate);
			if (!result)
				bench_series_add(&row->unpack_rate[j], rate);
		}
	return result;
}

static void free_load(struct load *load)
{
	if (load->packed)
		munmap(load->packed, load->size);
	if (load->bytes)
		munmap((void *)(uintptr_t)load->bytes, load->size);
	free(load->chunks);
}

static int measure_content(struct bench *bench, struct bench_packing *packing, const char *name,
			   const char *words, struct load *load)
{
	struct bench_packed *row = &packing->rows[packing->rows_count];
	int result;

	bench_progress(bench, "%s", words);
	row->name = name;
	row->words = words;
	load->packed = map(load->size);
	load->chunks = calloc(gcr_digest_count(load->size), sizeof(*load->chunks));
	if (!load->packed || !load->chunks)
		return -ENOMEM;
	result = measure_load(bench, packing->threads, load, row);
	if (!result && row->bytes)
		packing->rows_count++;
	return result;
}

static int measure_made_up(struct bench *bench, struct bench_packing *packing,
			   const struct bench_content *content)
{
	struct load load = {.size = bench->options.sizes_given ? bench->options.sizes[0] : BYTES};
	uint8_t *bytes = map(load.size);
	int result = -ENOMEM;

	load.bytes = bytes;
	if (bytes) {
		content->fill(bytes, load.size);
		result = measure_content(bench, packing, content->name, content->words, &load);
	}
	free_load(&load);
	return result;
}

static int measure_file(struct bench *bench, struct bench_packing *packing, const char *path)
{
	uint64_t most = bench->options.sizes_given ? bench->options.sizes[0] : FILE_BYTES;
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct load load = {0};
	struct stat status;
	void *bytes;
	int result;

	if (fd < 0 || fstat(fd, &status) < 0)
		return -errno;
	if (!S_ISREG(status.st_mode) || !status.st_size)
		return -EINVAL;
	load.size = (uint64_t)status.st_size < most ? (uint64_t)status.st_size : most;
	bytes = mmap(NULL, load.size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (bytes == MAP_FAILED)
		return -errno;
	load.bytes = bytes;
	result = measure_content(bench, packing, "file", path, &load);
	free_load(&load);
	return result;
}

static unsigned int count_processors(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0 || CPU_COUNT(&set) < 1)
		return 1;
	return CPU_COUNT(&set) < THREADS_MAX ? (unsigned int)CPU_COUNT(&set) : THREADS_MAX;
}

int bench_measure_packing(struct bench *bench, struct bench_packing *packing,
			  struct gcr_error *error)
{
	const char *path = bench->options.pack_file;
	int result = 0;

	bench->started_usec = gcr_clock_usec();
	packing->threads = count_processors();
	if (path)
		result = measure_file(bench, packing, path);
	if (result < 0)
		return gcr_error_set(error, -result, "%s: %s", path,
				     result == -EINVAL ? "this is no file with anything in it"
						       : strerror(-result));
	for (size_t i = 0; i < BENCH_CONTENTS && !result && bench->options.pack; i++)
		result = measure_made_up(bench, packing, &bench_contents[i]);
	if (result < 0)
		return gcr_error_set(error, -result, "packing: %s", strerror(-result));
	return 0;
}
