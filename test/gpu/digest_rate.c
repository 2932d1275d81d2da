/* SPDX-License-Identifier: MIT */
/*
 * digest_rate: compares the worker's digests of VRAM with those of libxxhash, bit for bit, and
 * measures how fast they are made. Other kernels with the same arguments can be measured too.
 *
 *   cc -O2 -D_GNU_SOURCE -DHAVE_DIGEST_PTX -I. -I BUILD -o digest_rate test/gpu/digest_rate.c \
 *      lib/{beneath,digest,error,full_io,printable,uuid}.c \
 *      backend/{cuda/driver,worker/digest,worker/numa}.c -ldl -lpthread -lxxhash
 *   digest_rate GIB [PTX:CHUNKS]...      a file, and how many chunks a group of its kernel takes
 *
 * TB are 10^12 bytes. The exit status is 1 if a digest is wrong.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "backend/worker/digest.h"
#include "lib/clock.h"
#include "test/gpu/check.h"

#define MIB	     (1ull << 20)
#define GIB	     (1ull << 30)
#define CHUNK	     ((uint64_t)GCR_CHUNK_BYTES)
#define PIECE	     (64 * MIB)
#define PIECE_CHUNKS (PIECE / CHUNK)
#define ZEROS_EVERY  97 /* chunks */
#define ROUNDS	     10
#define HOST_BYTES   (2 * GIB)

static struct gcr_driver driver;
static CUdevice device;
static CUcontext context;
static CUstream stream;
static uint64_t total_bytes, chunks;
static CUdeviceptr vram;
static struct gcr_digest *expected;
static void *pinned; /* has the size of a piece */

static CUdeviceptr allocate(uint64_t bytes)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
	CUmemAccessDesc access = {.location = properties.location,
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;

	bytes = (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
	OK(driver.cuMemCreate(&handle, bytes, &properties, 0));
	OK(driver.cuMemAddressReserve(&address, bytes, 0, 0, 0));
	OK(driver.cuMemMap(address, bytes, 0, handle, 0));
	OK(driver.cuMemSetAccess(address, bytes, &access, 1));
	return address;
}

static void digest_of(const void *chunk, struct gcr_digest *ret_digest)
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits(chunk, CHUNK));
	memcpy(ret_digest, &canonical, sizeof(canonical));
}

/*
 * Fills VRAM with random contents, in which only the chunks of zeros are alike, and makes the
 * expected digests.
 */
static void fill(void)
{
	static const char zero_chunk[CHUNK];
	uint64_t *words_of_piece = pinned, state = 1;

	for (uint64_t i = 0; i < PIECE / 8; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		words_of_piece[i] = state ^ state >> 29;
	}
	for (uint64_t chunk = 0; chunk < chunks; chunk++) {
		uint64_t *own = words_of_piece + chunk % PIECE_CHUNKS * (CHUNK / 8);

		own[chunk * 31 % (CHUNK / 8)] += chunk + 1;
		digest_of(chunk % ZEROS_EVERY ? (const void *)own : zero_chunk, &expected[chunk]);
		if (chunk % PIECE_CHUNKS != PIECE_CHUNKS - 1)
			continue;
		OK(driver.cuMemcpyHtoDAsync_v2(vram + chunk / PIECE_CHUNKS * PIECE, pinned, PIECE,
					       stream));
		OK(driver.cuStreamSynchronize(stream));
	}
	for (uint64_t chunk = 0; chunk < chunks; chunk += ZEROS_EVERY)
		OK(driver.cuMemsetD8Async(vram + chunk * CHUNK, 0, CHUNK, stream));
	OK(driver.cuStreamSynchronize(stream));
}

static void check(const struct gcr_digest *digests, const bool *zeros, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		if (memcmp(&digests[i], &expected[i], sizeof(*digests)))
			die("wrong digest of chunk %llu", (unsigned long long)i);
		if (zeros[i] != (i % ZEROS_EVERY == 0))
			die("chunk %llu is%s zeros", (unsigned long long)i, zeros[i] ? " not" : "");
	}
}

static void print_times(const char *what, const int64_t *usec, unsigned int rounds, uint64_t bytes)
{
	int64_t best = usec[0], worst = usec[0], sum = 0;

	for (unsigned int i = 0; i < rounds; i++) {
		best = usec[i] < best ? usec[i] : best;
		worst = usec[i] > worst ? usec[i] : worst;
		sum += usec[i];
	}
	printf("%s: %.2f GiB in %.2f ms (%.2f to %.2f), %.3f TB/s\n", what,
	       (double)bytes / (double)GIB, (double)sum / rounds / 1e3, (double)best / 1e3,
	       (double)worst / 1e3, (double)bytes / 1e6 * rounds / (double)sum);
}

/*
 * Times the worker's digester, @part bytes at a time, with or without copies to the host at the
 * same time.
 */
static void time_digester(struct gcr_digester *digester, const char *what, uint64_t bytes,
			  uint64_t part, unsigned int rounds, bool beside_copies)
{
	int64_t usec[ROUNDS];

	for (unsigned int round = 0; round <= rounds; round++) {
		int64_t start;
		uint64_t ticket = 0;

		for (uint64_t at = 0; beside_copies && at < bytes; at += PIECE)
			OK(driver.cuMemcpyDtoHAsync_v2(pinned, vram + at, PIECE, stream));
		start = gcr_clock_usec();
		for (uint64_t at = 0; at < bytes; at += part)
			DO(gcr_digester_begin(digester, vram, at / CHUNK,
					      (bytes - at < part ? bytes - at : part) / CHUNK,
					      &ticket, &code, &words));
		DO(gcr_digester_wait(digester, ticket, &code, &words));
		if (round > 0) /* the first round differs from the others */
			usec[round - 1] = gcr_clock_usec() - start;
		OK(driver.cuStreamSynchronize(stream));
	}
	check(gcr_digester_digests(digester), gcr_digester_zeros(digester), bytes / CHUNK);
	print_times(what, usec, rounds, bytes);
}

static struct gcr_digester *make(const void *kernel)
{
	struct gcr_digester_config config;
	struct gcr_digester *digester;
	int64_t start = gcr_clock_usec();

	gcr_digester_config_default(&driver, device, &config);
	if (!kernel)
		config.kernel = NULL;
	DO(gcr_digester_create(&driver, context, &config, &digester, &code, &words));
	printf("digests are made on the %s; made in %.1f ms\n",
	       gcr_digester_is_on_gpu(digester) ? "GPU" : "host",
	       (double)(gcr_clock_usec() - start) / 1e3);
	return digester;
}

static char *read_file(const char *path)
{
	char *text = calloc(1, MIB);
	FILE *file = fopen(path, "re");

	if (!text || !file || !fread(text, 1, MIB - 1, file))
		die("%s cannot be read", path);
	fclose(file);
	return text;
}

/* Times one kernel alone, with its results in VRAM and in host memory. */
static void time_kernel(const char *name, const char *ptx, unsigned int group_chunks)
{
	uint64_t bytes = chunks * (sizeof(struct gcr_digest) + 1);
	void *host;
	CUdeviceptr results[2] = {allocate(bytes)};
	CUfunction kernel;
	CUmodule module;

	OK(driver.cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE));
	results[1] = (CUdeviceptr)host;
	OK(driver.cuModuleLoadData(&module, ptx));
	OK(driver.cuModuleGetFunction(&kernel, module, "gpucr_digest"));
	for (int where = 0; where < 2; where++) {
		CUdeviceptr zeros = results[where] + chunks * sizeof(struct gcr_digest);
		void *arguments[] = {&vram, &results[where], &zeros, &chunks};
		int64_t usec[ROUNDS];
		char what[256];

		for (int round = 0; round <= ROUNDS; round++) {
			int64_t start = gcr_clock_usec();

			OK(driver.cuLaunchKernel(
				kernel, (unsigned int)((chunks + group_chunks - 1) / group_chunks),
				1, 1, 256, 1, 1, 0, stream, arguments, NULL));
			OK(driver.cuStreamSynchronize(stream));
			if (round > 0)
				usec[round - 1] = gcr_clock_usec() - start;
		}
		if (where == 0) {
			OK(driver.cuMemcpyDtoHAsync_v2(host, results[0], bytes, stream));
			OK(driver.cuStreamSynchronize(stream));
		}
		check(host, (bool *)((struct gcr_digest *)host + chunks), chunks);
		memset(host, 0xa5, bytes);
		snprintf(what, sizeof(what), "kernel %s, results in %s", name,
			 where ? "memory of the host" : "VRAM");
		print_times(what, usec, ROUNDS, total_bytes);
	}
	OK(driver.cuModuleUnload(module));
	OK(driver.cuMemFreeHost(host));
}

int main(int argc, char **argv)
{
	struct gcr_digester_config config;
	struct gcr_digester *digester;

	if (argc < 2)
		die("usage: digest_rate GIB [PTX:CHUNKS]...");
	setvbuf(stdout, NULL, _IOLBF, 0);
	total_bytes = (uint64_t)(atof(argv[1]) * (double)GIB) / PIECE * PIECE;
	chunks = total_bytes / CHUNK;
	DO(gcr_driver_open(&driver, &words));
	OK(driver.cuDeviceGet(&device, 0));
	OK(driver.cuDevicePrimaryCtxRetain(&context, device));
	OK(driver.cuCtxSetCurrent(context));
	OK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(driver.cuMemHostAlloc(&pinned, PIECE, CU_MEMHOSTALLOC_PORTABLE));
	expected = calloc(chunks, sizeof(*expected));
	if (!chunks || !expected)
		die("so much is not possible");
	vram = allocate(total_bytes);
	fill();

	gcr_digester_config_default(&driver, device, &config);
	digester = make(config.kernel);
	if (gcr_digester_is_on_gpu(digester)) {
		time_digester(digester, "all at once", total_bytes, total_bytes, ROUNDS, false);
		time_digester(digester, "64 MiB at a time", total_bytes, PIECE, ROUNDS, false);
		time_digester(digester, "2 MiB at a time", total_bytes, 2 * MIB, ROUNDS, false);
		time_digester(digester, "beside copies to the host", total_bytes, total_bytes, 3,
			      true);
		time_kernel("built in", config.kernel, 4);
	}
	gcr_digester_destroy(digester);
	digester = make(NULL);
	time_digester(digester, "on the host", total_bytes < HOST_BYTES ? total_bytes : HOST_BYTES,
		      PIECE, 2, false);
	gcr_digester_destroy(digester);
	for (int i = 2; i < argc; i++) {
		char *colon = strrchr(argv[i], ':');

		if (!colon || atoi(colon + 1) < 1)
			die("usage: digest_rate GIB [PTX:CHUNKS]...");
		*colon = '\0';
		time_kernel(argv[i], read_file(argv[i]), (unsigned int)atoi(colon + 1));
	}
	printf("equal: all digests of %llu chunks are those of libxxhash\n",
	       (unsigned long long)chunks);
	return 0;
}
