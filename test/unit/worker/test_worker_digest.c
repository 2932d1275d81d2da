/* SPDX-License-Identifier: MIT */
/*
 * The worker's digests on the simulator, by the GPU kernel and on the host, compared with
 * libxxhash. Errors of the driver are returned with its message and leave nothing behind.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <xxhash.h>

#include "backend/worker/digest.h"
#include "lib/cleanup.h"
#include "test/unit/sim.h"

#define CHUNKS	    512 /* 32 MiB */
#define CHUNK	    GCR_CHUNK_BYTES
#define BYTES	    ((size_t)CHUNKS * CHUNK)
#define IS_ZEROS(i) ((i) % 7 == 3 || ((i) >= 100 && (i) < 110) || (i) == CHUNKS - 1)

#ifdef GCR_HIP
#include "backend/digest/code_object.h"
#ifdef HAVE_DIGEST_AMDGCN
#include "backend/digest/digest_amdgcn.h"
#endif

/* Kernel for @architecture, or NULL. The simulator checks a kernel's name and target. */
static const void *find_kernel(const char *architecture)
{
#ifdef HAVE_DIGEST_AMDGCN
	for (size_t i = 0; i < GCR_ARRAY_SIZE(digest_code_objects); i++)
		if (strcmp(digest_code_objects[i].architecture, architecture) == 0)
			return digest_code_objects[i].bytes;
#endif
	return NULL;
}
#else
static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
			  ".visible .entry gpucr_digest(.param .u64 a) { ret; }\n";
#endif

static const void *kernel; /* in the driver's form; NULL: there is none */
static struct gcr_driver driver;
static CUcontext context;
static CUdeviceptr vram;
static CUmemGenericAllocationHandle handle;
static struct gcr_digest expected[CHUNKS];

/* Of the last call. */
static struct gcr_error error;
static CUresult driver_result;

#define DONE(call)                                                                    \
	do {                                                                          \
		if ((call) != 0) {                                                    \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
				error.words);                                         \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

/*
 * Requires that the call fails with -@number and the driver's @code, and with @text in the message.
 */
#define FAILED(call, number, code, text)                                                      \
	do {                                                                                  \
		int number_;                                                                  \
		driver_result = CUDA_SUCCESS;                                                 \
		number_ = (call);                                                             \
		if (number_ != -(number) || driver_result != (code) ||                        \
		    !strstr(error.words, sim_words(text))) {                                  \
			fprintf(stderr, "%s:%d: %s: %d, %d, %s\n", __FILE__, __LINE__, #call, \
				number_, (int)driver_result, error.words);                    \
			exit(1);                                                              \
		}                                                                             \
	} while (0)

UNSEEN static void fill(uint64_t *words)
{
	uint64_t state = 1;

	for (size_t i = 0; i < BYTES / 8; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		words[i] = IS_ZEROS(i / (CHUNK / 8)) ? 0 : state ^ state >> 31;
	}
}

static void make_vram(void)
{
	CUmemAllocationProp properties = sim_prop();
	_cleanup_free_ uint64_t *words = malloc(BYTES);

	CHECK(words);
	fill(words);
	for (size_t i = 0; i < CHUNKS; i++) {
		XXH128_canonical_t canonical;

		XXH128_canonicalFromHash(&canonical,
					 XXH3_128bits((char *)words + i * CHUNK, CHUNK));
		memcpy(&expected[i], &canonical, sizeof(canonical));
	}
	OK(CU(cuMemCreate)(&handle, BYTES, &properties, 0));
	vram = sim_map(handle, BYTES);
	OK(CU(cuMemcpyHtoD_v2)(vram, words, BYTES));
}

static struct gcr_digester *create(const void *its_kernel, unsigned int threads)
{
	struct gcr_digester_config config = {
		.kernel = its_kernel, .chunks = CHUNKS, .threads = threads};
	struct gcr_digester *digester;

	DONE(gcr_digester_create(&driver, context, &config, &digester, &driver_result, &error));
	return digester;
}

static uint64_t begin(struct gcr_digester *digester, uint64_t first, uint64_t count)
{
	uint64_t ticket;

	DONE(gcr_digester_begin(digester, vram, first, count, &ticket, &driver_result, &error));
	return ticket;
}

static void wait_for(struct gcr_digester *digester, uint64_t ticket)
{
	DONE(gcr_digester_wait(digester, ticket, &driver_result, &error));
}

static void check(const struct gcr_digester *digester, size_t first, size_t count)
{
	const struct gcr_digest *digests = gcr_digester_digests(digester);
	const bool *zeros = gcr_digester_zeros(digester);

	for (size_t i = first; i < first + count; i++) {
		CHECK(!memcmp(&digests[i], &expected[i], sizeof(*digests)));
		CHECK(zeros[i] == IS_ZEROS(i));
	}
}

static void check_all(struct gcr_digester *digester)
{
	wait_for(digester, begin(digester, 0, CHUNKS));
	check(digester, 0, CHUNKS);
}

/* Digests of all chunks at once, of parts of any size and order, and of single chunks. */
static void test_digests(const void *its_kernel, unsigned int threads)
{
	struct gcr_digester *digester = create(its_kernel, threads);
	uint64_t tickets[CHUNKS];

	CHECK(gcr_digester_is_on_gpu(digester) == (its_kernel != NULL));
	wait_for(digester, begin(digester, 0, 0));
	check_all(digester);
	gcr_digester_destroy(digester);

	digester = create(its_kernel, threads);
	tickets[0] = begin(digester, 300, 33);
	tickets[1] = begin(digester, 1, 99);
	tickets[2] = begin(digester, 100, 0);
	tickets[3] = begin(digester, 511, 1);
	wait_for(digester, tickets[0]);
	check(digester, 300, 33);
	wait_for(digester, tickets[2]);
	check(digester, 1, 99);
	wait_for(digester, tickets[3]);
	check(digester, 511, 1);

	/* More parts than the GPU digester has events for. */
	for (size_t i = 0; i < CHUNKS; i++)
		tickets[i] = begin(digester, CHUNKS - 1 - i, 1);
	for (size_t i = 0; i < CHUNKS; i++) {
		wait_for(digester, tickets[i]);
		check(digester, CHUNKS - 1 - i, 1);
	}
	gcr_digester_destroy(digester);
}

static void test_limits(const void *its_kernel)
{
	struct gcr_digester_config config = {
		.kernel = its_kernel, .chunks = CHUNKS - 1, .threads = 1};
	struct gcr_digester *digester;
	uint64_t ticket;

	DONE(gcr_digester_create(&driver, context, &config, &digester, &driver_result, &error));
	FAILED(gcr_digester_begin(digester, vram, 0, CHUNKS, &ticket, &driver_result, &error),
	       EINVAL, CUDA_SUCCESS, "512 chunks");
	FAILED(gcr_digester_begin(digester, vram, CHUNKS, 0, &ticket, &driver_result, &error),
	       EINVAL, CUDA_SUCCESS, "512 chunks");
	FAILED(gcr_digester_begin(digester, vram, 2, UINT64_MAX - 1, &ticket, &driver_result,
				  &error),
	       EINVAL, CUDA_SUCCESS, "no room");
	wait_for(digester, begin(digester, 0, CHUNKS - 1));
	check(digester, 0, CHUNKS - 1);
	gcr_digester_destroy(digester);
}

/* If the driver refuses the kernel, the host computes the digests. */
static void test_other_way(void)
{
	const void *const kernels[] = {
#ifdef GCR_HIP
		"this is no code object",
		find_kernel("gfx900"),
#else
		"no PTX",
		".version 6.0\n.target sm_50\n.visible .entry gpucr_digests(.param .u64 a) {}\n",
#endif
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(kernels); i++) {
		struct gcr_digester *digester = create(kernels[i], 2);

		CHECK(!gcr_digester_is_on_gpu(digester));
		check_all(digester);
		gcr_digester_destroy(digester);
	}
}

/* The worker's default: no VRAM in use, and the kernel if there is one. */
static void test_default(void)
{
	size_t before = sim_free_bytes();
	struct gcr_digester_config config;
	struct gcr_digester *digester;

	gcr_digester_config_default(&driver, 0, &config);
	CHECK(config.chunks == 64 * MIB / CHUNK && config.threads > 0);
	DONE(gcr_digester_create(&driver, context, &config, &digester, &driver_result, &error));
#if defined(HAVE_DIGEST_PTX) || defined(HAVE_DIGEST_AMDGCN)
	CHECK(gcr_digester_is_on_gpu(digester));
#else
	CHECK(!gcr_digester_is_on_gpu(digester));
#endif
	CHECK(sim_free_bytes() == before);
	check_all(digester);
	gcr_digester_destroy(digester);
	CHECK(sim_free_bytes() == before);
	gcr_digester_destroy(NULL);
}

#ifdef GCR_HIP
/*
 * Does the worker select the kernel for @architecture? The worker has its own copy, so the ELF
 * headers are compared: they identify the architecture.
 */
static bool takes_kernel(const char *architecture)
{
	const void *its_kernel = find_kernel(architecture);
	struct gcr_digester_config config;

	gcr_digester_config_default(&driver, 0, &config);
	if (!its_kernel || !config.kernel)
		return config.kernel == its_kernel;
	return memcmp(config.kernel, its_kernel, sizeof(Elf64_Ehdr)) == 0;
}

/* Without a kernel for the GPU, the host computes the digests. */
static void test_architectures(void)
{
	struct gcr_digester_config config;
	char name[GCR_DRIVER_ARCHITECTURE_BYTES];

	CHECK(gcr_driver_architecture(&driver, 0, name) == 0 && strcmp(name, "gfx90a") == 0);
	CHECK(takes_kernel("gfx90a"));
	CHECK(setenv("GPUCR_SIM_HIP_ARCH", "gfx1030", 1) == 0);
	CHECK(takes_kernel("gfx1030") && takes_kernel("gfx90a") == !find_kernel("gfx90a"));
	CHECK(setenv("GPUCR_SIM_HIP_ARCH", "gfx90", 1) == 0);
	gcr_digester_config_default(&driver, 0, &config);
	CHECK(!config.kernel && config.chunks && config.threads);
	CHECK(setenv("GPUCR_SIM_HIP_ARCH", SIM_ARCHITECTURE, 1) == 0);
}
#endif

static void test_create_errors(void)
{
	const struct {
		const char *rule;
		const void *kernel;
		const char *words;
	} cases[] = {
		{"cuMemHostAlloc error=2", kernel, "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY"},
		{"cuStreamCreate error=2", kernel, "cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY"},
		{"cuEventCreate nth=5 error=2", kernel, "cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY"},
		{"cuMemHostAlloc error=2", NULL, "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY"},
		{"cuStreamCreate error=2", NULL, "cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY"},
	};
	struct gcr_digester *digester = NULL;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		struct gcr_digester_config config = {cases[i].kernel, CHUNKS, 2};

		sim_set_faults(cases[i].rule);
		FAILED(gcr_digester_create(&driver, context, &config, &digester, &driver_result,
					   &error),
		       ENOMEM, CUDA_ERROR_OUT_OF_MEMORY, cases[i].words);
		CHECK(!digester);
	}
	/* One working thread is enough. */
	sim_set_faults("cuStreamCreate nth=2 error=2");
	digester = create(NULL, 3);
	sim_set_faults(NULL);
	check_all(digester);
	gcr_digester_destroy(digester);
}

/* After a call has failed once, the digester works again. */
static void test_errors_on_gpu(void)
{
	struct gcr_digester *digester = create(kernel, 1);
	uint64_t ticket;

	sim_set_faults("cuLaunchKernel nth=2 error=701");
	begin(digester, 0, 64);
	FAILED(gcr_digester_begin(digester, vram, 64, 64, &ticket, &driver_result, &error), EIO,
	       CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "cuLaunchKernel: ");
	gcr_digester_stop(digester);
	check_all(digester);

	sim_set_faults("cuEventRecord nth=1 error=2");
	FAILED(gcr_digester_begin(digester, vram, 0, 64, &ticket, &driver_result, &error), ENOMEM,
	       CUDA_ERROR_OUT_OF_MEMORY, "cuEventRecord: ");
	gcr_digester_stop(digester);
	check_all(digester);

	sim_set_faults("cuEventSynchronize nth=1 error=719");
	ticket = begin(digester, 0, 64);
	FAILED(gcr_digester_wait(digester, ticket, &driver_result, &error), EIO,
	       CUDA_ERROR_LAUNCH_FAILED, "cuEventSynchronize: CUDA_ERROR_LAUNCH_FAILED");
	gcr_digester_stop(digester);
	sim_set_faults(NULL);
	check_all(digester);
	gcr_digester_destroy(digester);
}

static void test_errors_on_host(unsigned int threads)
{
	static const char *const rules[] = {
		"cuMemcpyDtoHAsync nth=4 error=719",
		"cuStreamSynchronize nth=4 error=719",
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(rules); i++) {
		struct gcr_digester *digester = create(NULL, threads);
		uint64_t ticket;

		sim_set_faults(rules[i]);
		begin(digester, 0, 100);
		ticket = begin(digester, 100, CHUNKS - 100);
		FAILED(gcr_digester_wait(digester, ticket, &driver_result, &error), EIO,
		       CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED");
		/* The same error again, until gcr_digester_stop(). */
		FAILED(gcr_digester_wait(digester, ticket, &driver_result, &error), EIO,
		       CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED");
		gcr_digester_stop(digester);
		sim_set_faults(NULL);
		check_all(digester);
		gcr_digester_destroy(digester);
	}
}

/* After a stop no thread or kernel reads the memory: it can be unmapped. */
static void test_stop(const void *its_kernel)
{
	struct gcr_digester *digester = create(its_kernel, 2);

	for (int round = 0; round < 3; round++) {
		begin(digester, 0, CHUNKS);
		begin(digester, 0, CHUNKS);
		gcr_digester_stop(digester);
		OK(CU(cuMemUnmap)(vram, BYTES));
		OK(CU(cuMemAddressFree)(vram, BYTES));
		vram = sim_map(handle, BYTES);
		check_all(digester);
	}
	begin(digester, 0, CHUNKS);
	gcr_digester_destroy(digester);
	OK(CU(cuCtxSynchronize)());
}

static int make_all(struct gcr_digester *digester)
{
	uint64_t ticket;
	int r = gcr_digester_begin(digester, vram, 0, CHUNKS, &ticket, &driver_result, &error);

	return r < 0 ? r : gcr_digester_wait(digester, ticket, &driver_result, &error);
}

/* The kernel accesses unmapped memory. This is the last test, as the context is lost. */
static void test_wild(void)
{
	struct gcr_digester *digester = create(kernel, 1);

	OK(CU(cuMemUnmap)(vram, BYTES));
	/* The kernel may have failed before the wait, so either call can return the error. */
	FAILED(make_all(digester), EIO, CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS");
	gcr_digester_destroy(digester);
}

int main(void)
{
	sim_begin("1", "64M");
	context = sim_context();
	DONE(gcr_driver_open(&driver, &error));
	make_vram();
#ifdef GCR_HIP
	kernel = find_kernel("gfx90a");
	test_architectures();
#else
	kernel = ptx;
#endif
	test_digests(NULL, 1);
	test_digests(NULL, 3);
	test_limits(NULL);
	test_default();
	test_errors_on_host(1);
	test_errors_on_host(4);
	test_stop(NULL);
	if (!kernel)
		SKIP("no clang with its lld was there to compile for AMD's GPUs");
	test_digests(kernel, 1);
	test_limits(kernel);
	test_other_way();
	test_create_errors();
	test_errors_on_gpu();
	test_stop(kernel);
	test_wild();
	return 0;
}
