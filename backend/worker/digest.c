/* SPDX-License-Identifier: MIT */
/*
 * Digests of VRAM. On the GPU the kernel writes its results into pinned host memory, so that no
 * VRAM is needed, which may all be in use, and no copy, which would have to wait for those of the
 * copy path. On the host several threads copy one part at a time into buffers of their own and
 * digest it there; one lock guards the list of work, and no thread holds it across a call of the
 * driver.
 */
#include "backend/worker/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/worker/numa.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

#ifdef HAVE_DIGEST_AMDGCN
#include "backend/digest/code_object.h"
#include "backend/digest/digest_amdgcn.h"
#elif defined(HAVE_DIGEST_PTX)
#include "backend/digest/digest_ptx.h"
#endif

#define CHUNK ((uint64_t)GCR_CHUNK_BYTES)

/* Same values as in backend/digest/digest.cl. */
#define KERNEL	     "gpucr_digest"
#define GROUP_CHUNKS 4
#define GROUP_ITEMS  256

/*
 * Number of events. An event is reused after as many tickets: a wait for an older ticket then waits
 * for a later one.
 */
#define EVENTS 64

/*
 * Size of the part that a thread handles at a time: large enough to be copied at the rate of the
 * link.
 */
#define PART_CHUNKS	    32
#define DEFAULT_THREADS_MAX 8

/* A request for digests: chunks from `begun` to `end`, which the threads share. */
struct range {
	struct range *next;
	CUdeviceptr base;
	uint64_t begun; /* the first chunk that no thread has taken */
	uint64_t end;
	uint64_t left; /* chunks that have no digest yet */
	uint64_t ticket;
};

struct thread {
	struct gcr_digester *digester;
	pthread_t thread;
	CUstream stream;
	char *part; /* pinned */
};

struct gcr_digester {
	/* fixed */
	const struct gcr_driver *driver;
	CUcontext context;
	uint64_t chunks;
	void *memory; /* holds the two arrays below; the driver's if there is a module */
	struct gcr_digest *digests; /* by chunk */
	bool *zeros;		    /* by chunk */

	uint64_t ticket; /* the last ticket that was issued */

	/* on the GPU */
	CUmodule module; /* NULL: on the host */
	CUfunction kernel;
	CUstream stream;
	CUevent events[EVENTS]; /* by ticket */

	/* on the host */
	struct thread *threads;
	unsigned int threads_count;   /* number that have a stream and a part */
	unsigned int threads_running; /* number of these that were started */
	pthread_mutex_t lock;
	pthread_cond_t begun_wake;
	pthread_cond_t done_wake;
	bool leaving;
	struct range *first; /* in the order of tickets */
	struct range **end;
	uint64_t done; /* a ticket: digests up to this one are made */
	unsigned int busy;
	CUresult driver_result;
	struct gcr_error error; /* the first error; number 0: none */
};

/* gcr_driver_check() that also returns the driver's code. */
static int check(const struct gcr_digester *digester, CUresult result, const char *call,
		 CUresult *ret_driver_result, struct gcr_error *error)
{
	if (result != CUDA_SUCCESS)
		*ret_driver_result = result;
	return gcr_driver_check(digester->driver, result, call, error);
}

/* ---- on the GPU ---- */

/*
 * Returns success or the driver's error, which is not reported: digests are made on the host then.
 */
static CUresult load_kernel(struct gcr_digester *digester, const void *kernel)
{
	const struct gcr_driver *driver = digester->driver;
	CUmodule module;
	CUresult result;

	result = driver->cuModuleLoadData(&module, kernel);
	if (result != CUDA_SUCCESS)
		return result;
	result = driver->cuModuleGetFunction(&digester->kernel, module, KERNEL);
	if (result == CUDA_SUCCESS)
		digester->module = module;
	else
		driver->cuModuleUnload(module);
	return result;
}

static int create_on_gpu(struct gcr_digester *digester, CUresult *ret_driver_result,
			 struct gcr_error *error)
{
	const struct gcr_driver *driver = digester->driver;
	int r;

	r = check(digester,
		  driver->cuMemHostAlloc(&digester->memory,
					 digester->chunks *
						 (sizeof(*digester->digests) + sizeof(bool)),
					 CU_MEMHOSTALLOC_PORTABLE),
		  "cuMemHostAlloc", ret_driver_result, error);
	if (r == 0)
		r = check(digester,
			  driver->cuStreamCreate(&digester->stream, CU_STREAM_NON_BLOCKING),
			  "cuStreamCreate", ret_driver_result, error);
	for (size_t i = 0; i < EVENTS && r == 0; i++)
		r = check(digester,
			  driver->cuEventCreate(&digester->events[i], CU_EVENT_DISABLE_TIMING),
			  "cuEventCreate", ret_driver_result, error);
	return r;
}

static void destroy_on_gpu(struct gcr_digester *digester)
{
	const struct gcr_driver *driver = digester->driver;

	for (size_t i = 0; i < EVENTS; i++)
		if (digester->events[i])
			driver->cuEventDestroy_v2(digester->events[i]);
	if (digester->stream)
		driver->cuStreamDestroy_v2(digester->stream);
	if (digester->memory)
		driver->cuMemFreeHost(digester->memory);
	driver->cuModuleUnload(digester->module);
}

static int begin_on_gpu(struct gcr_digester *digester, CUdeviceptr base, uint64_t first,
			uint64_t count, CUresult *ret_driver_result, struct gcr_error *error)
{
	const struct gcr_driver *driver = digester->driver;
	CUdeviceptr chunks = base + first * CHUNK;
	struct gcr_digest *digests = digester->digests + first;
	bool *zeros = digester->zeros + first;
	void *arguments[] = {&chunks, &digests, &zeros, &count};
	unsigned int groups = (unsigned int)((count + GROUP_CHUNKS - 1) / GROUP_CHUNKS);
	int r;

	r = check(digester,
		  driver->cuLaunchKernel(digester->kernel, groups, 1, 1, GROUP_ITEMS, 1, 1, 0,
					 digester->stream, arguments, NULL),
		  "cuLaunchKernel", ret_driver_result, error);
	if (r == 0)
		r = check(digester,
			  driver->cuEventRecord(digester->events[(digester->ticket + 1) % EVENTS],
						digester->stream),
			  "cuEventRecord", ret_driver_result, error);
	return r;
}

/* ---- on the host: under the lock ---- */

static void fail(struct gcr_digester *digester, CUresult driver_result,
		 const struct gcr_error *error)
{
	if (digester->error.number)
		return;
	digester->driver_result = driver_result;
	digester->error = *error;
}

static struct range *next_range(const struct gcr_digester *digester)
{
	struct range *range = digester->first;

	while (range && range->begun == range->end)
		range = range->next;
	return range;
}

static void forget_first(struct gcr_digester *digester)
{
	struct range *range = digester->first;

	digester->first = range->next;
	if (!digester->first)
		digester->end = &digester->first;
	free(range);
}

/* Called when a thread has finished a part: ends the requests that have all their digests. */
static void part_done(struct gcr_digester *digester)
{
	while (digester->first && !digester->first->left) {
		digester->done = digester->first->ticket;
		forget_first(digester);
	}
	pthread_cond_signal(&digester->done_wake);
}

/* ---- on the host: the threads ---- */

static int digest_part(const struct thread *thread, CUdeviceptr base, uint64_t first,
		       uint64_t count, CUresult *ret_driver_result, struct gcr_error *error)
{
	const struct gcr_digester *digester = thread->digester;
	const struct gcr_driver *driver = digester->driver;
	int r;

	r = check(digester,
		  driver->cuMemcpyDtoHAsync_v2(thread->part, base + first * CHUNK, count * CHUNK,
					       thread->stream),
		  "cuMemcpyDtoHAsync", ret_driver_result, error);
	if (r == 0)
		r = check(digester, driver->cuStreamSynchronize(thread->stream),
			  "cuStreamSynchronize", ret_driver_result, error);
	for (uint64_t i = 0; i < count && r == 0; i++) {
		const char *chunk = thread->part + i * CHUNK;

		gcr_digest_of(chunk, CHUNK, &digester->digests[first + i]);
		digester->zeros[first + i] = !chunk[0] && !memcmp(chunk, chunk + 1, CHUNK - 1);
	}
	return r;
}

static void *run_thread(void *data)
{
	const struct thread *thread = data;
	struct gcr_digester *digester = thread->digester;

	digester->driver->cuCtxSetCurrent(digester->context);
	pthread_mutex_lock(&digester->lock);
	while (!digester->leaving) {
		struct range *range = digester->error.number ? NULL : next_range(digester);
		CUresult driver_result = CUDA_SUCCESS;
		struct gcr_error error;
		uint64_t first, count;
		int r;

		if (!range) {
			pthread_cond_wait(&digester->begun_wake, &digester->lock);
			continue;
		}
		first = range->begun;
		/*
		 * A copy in HIP must stay within one mapping; mappings are multiples of this size.
		 */
		count = PART_CHUNKS - first % PART_CHUNKS;
		if (count > range->end - first)
			count = range->end - first;
		range->begun += count;
		digester->busy++;
		pthread_mutex_unlock(&digester->lock);
		r = digest_part(thread, range->base, first, count, &driver_result, &error);
		pthread_mutex_lock(&digester->lock);
		digester->busy--;
		if (r < 0)
			fail(digester, driver_result, &error);
		else
			range->left -= count;
		part_done(digester);
	}
	pthread_mutex_unlock(&digester->lock);
	return NULL;
}

static int start_thread(struct gcr_digester *digester, struct thread *thread,
			CUresult *ret_driver_result, struct gcr_error *error)
{
	const struct gcr_driver *driver = digester->driver;
	void *part;
	int r;

	thread->digester = digester;
	r = check(digester, driver->cuStreamCreate(&thread->stream, CU_STREAM_NON_BLOCKING),
		  "cuStreamCreate", ret_driver_result, error);
	if (r < 0)
		return r;
	r = check(digester,
		  driver->cuMemHostAlloc(&part, PART_CHUNKS * CHUNK, CU_MEMHOSTALLOC_PORTABLE),
		  "cuMemHostAlloc", ret_driver_result, error);
	if (r < 0) {
		driver->cuStreamDestroy_v2(thread->stream);
		return r;
	}
	thread->part = part;
	digester->threads_count++;
	r = pthread_create(&thread->thread, NULL, run_thread, thread);
	if (r != 0)
		return gcr_error_set(error, ENOMEM, "no thread: %s", strerror(r));
	digester->threads_running++;
	return 0;
}

static int create_on_host(struct gcr_digester *digester, unsigned int threads,
			  CUresult *ret_driver_result, struct gcr_error *error)
{
	int r = 0;

	digester->memory =
		calloc(digester->chunks, sizeof(*digester->digests) + sizeof(*digester->zeros));
	digester->threads = calloc(threads, sizeof(*digester->threads));
	if (!digester->memory || !digester->threads)
		return gcr_error_set(error, ENOMEM, "out of memory for digests");
	for (unsigned int i = 0; i < threads && r == 0; i++)
		r = start_thread(digester, &digester->threads[i], ret_driver_result, error);
	/* With fewer threads the digester is slower, but works. */
	return digester->threads_running > 0 ? 0 : r;
}

static void destroy_on_host(struct gcr_digester *digester)
{
	pthread_mutex_lock(&digester->lock);
	digester->leaving = true;
	pthread_cond_broadcast(&digester->begun_wake);
	pthread_mutex_unlock(&digester->lock);
	for (unsigned int i = 0; i < digester->threads_running; i++)
		pthread_join(digester->threads[i].thread, NULL);
	for (unsigned int i = 0; i < digester->threads_count; i++) {
		digester->driver->cuMemFreeHost(digester->threads[i].part);
		digester->driver->cuStreamDestroy_v2(digester->threads[i].stream);
	}
	free(digester->threads);
	free(digester->memory);
}

static int begin_on_host(struct gcr_digester *digester, CUdeviceptr base, uint64_t first,
			 uint64_t count, struct gcr_error *error)
{
	struct range *range = malloc(sizeof(*range));
	GCR_LOCK_SCOPE(&digester->lock);

	if (!range)
		return gcr_error_set(error, ENOMEM, "out of memory for digests");
	*range = (struct range){
		.base = base,
		.begun = first,
		.end = first + count,
		.left = count,
		.ticket = digester->ticket + 1,
	};
	*digester->end = range;
	digester->end = &range->next;
	pthread_cond_broadcast(&digester->begun_wake);
	return 0;
}

static int wait_on_host(struct gcr_digester *digester, uint64_t ticket, CUresult *ret_driver_result,
			struct gcr_error *error)
{
	GCR_LOCK_SCOPE(&digester->lock);

	while (digester->done < ticket && !digester->error.number)
		pthread_cond_wait(&digester->done_wake, &digester->lock);
	if (!digester->error.number)
		return 0;
	*ret_driver_result = digester->driver_result;
	return gcr_error_set(error, digester->error.number, "%s", digester->error.words);
}

static void stop_on_host(struct gcr_digester *digester)
{
	GCR_LOCK_SCOPE(&digester->lock);

	for (struct range *range = digester->first; range; range = range->next)
		range->begun = range->end;
	while (digester->busy)
		pthread_cond_wait(&digester->done_wake, &digester->lock);
	while (digester->first)
		forget_first(digester);
	digester->done = digester->ticket;
	digester->error.number = 0;
}

/* ---- both ---- */

/*
 * Returns the kernel that this program was built with, in the form that the driver takes; NULL:
 * there is none for this GPU.
 */
static const void *find_kernel(const struct gcr_driver *driver, CUdevice device)
{
#ifdef HAVE_DIGEST_AMDGCN
	char architecture[GCR_DRIVER_ARCHITECTURE_BYTES];

	if (gcr_driver_architecture(driver, device, architecture) < 0)
		return NULL;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(digest_code_objects); i++)
		if (strcmp(digest_code_objects[i].architecture, architecture) == 0)
			return digest_code_objects[i].bytes;
	return NULL;
#elif defined(HAVE_DIGEST_PTX)
	return digest_ptx;
#else
	return NULL;
#endif
}

void gcr_digester_config_default(const struct gcr_driver *driver, CUdevice device,
				 struct gcr_digester_config *ret_config)
{
	unsigned int cpus = gcr_numa_cpus();
	size_t bytes = 0;

	driver->cuDeviceTotalMem_v2(&bytes, device);
	*ret_config = (struct gcr_digester_config){
		.kernel = find_kernel(driver, device),
		.chunks = bytes / CHUNK,
		.threads = cpus < DEFAULT_THREADS_MAX ? cpus : DEFAULT_THREADS_MAX,
	};
}

GCR_DEFINE_CLEANUP(struct gcr_digester *, gcr_digester_destroy);

int gcr_digester_create(const struct gcr_driver *driver, CUcontext context,
			const struct gcr_digester_config *config,
			struct gcr_digester **ret_digester, CUresult *ret_driver_result,
			struct gcr_error *error)
{
	_cleanup_(gcr_digester_destroy_cleanup) struct gcr_digester *digester = NULL;
	int r;

	if (!config->chunks || !config->threads)
		return gcr_error_set(error, EINVAL, "no such digests");
	digester = calloc(1, sizeof(*digester));
	if (!digester)
		return gcr_error_set(error, ENOMEM, "out of memory");
	digester->driver = driver;
	digester->context = context;
	digester->chunks = config->chunks;
	digester->end = &digester->first;
	pthread_mutex_init(&digester->lock, NULL);
	pthread_cond_init(&digester->begun_wake, NULL);
	pthread_cond_init(&digester->done_wake, NULL);

	if (config->kernel && load_kernel(digester, config->kernel) == CUDA_SUCCESS)
		r = create_on_gpu(digester, ret_driver_result, error);
	else
		r = create_on_host(digester, config->threads, ret_driver_result, error);
	if (r < 0)
		return r;
	digester->digests = digester->memory;
	digester->zeros = (bool *)(digester->digests + digester->chunks);
	*ret_digester = TAKE_PTR(digester);
	return 0;
}

void gcr_digester_destroy(struct gcr_digester *digester)
{
	if (!digester)
		return;
	gcr_digester_stop(digester);
	if (digester->module)
		destroy_on_gpu(digester);
	else
		destroy_on_host(digester);
	pthread_cond_destroy(&digester->done_wake);
	pthread_cond_destroy(&digester->begun_wake);
	pthread_mutex_destroy(&digester->lock);
	free(digester);
}

bool gcr_digester_is_on_gpu(const struct gcr_digester *digester)
{
	return digester->module;
}

int gcr_digester_begin(struct gcr_digester *digester, CUdeviceptr base, uint64_t first,
		       uint64_t count, uint64_t *ret_ticket, CUresult *ret_driver_result,
		       struct gcr_error *error)
{
	int r = 0;

	if (first > digester->chunks || count > digester->chunks - first)
		return gcr_error_set(error, EINVAL,
				     "there is no room for the digests of %" PRIu64 " chunks",
				     first + count);
	if (count > 0) {
		r = digester->module
			    ? begin_on_gpu(digester, base, first, count, ret_driver_result, error)
			    : begin_on_host(digester, base, first, count, error);
		if (r < 0)
			return r;
		digester->ticket++;
	}
	*ret_ticket = digester->ticket;
	return 0;
}

int gcr_digester_wait(struct gcr_digester *digester, uint64_t ticket, CUresult *ret_driver_result,
		      struct gcr_error *error)
{
	if (!digester->module)
		return wait_on_host(digester, ticket, ret_driver_result, error);
	if (!ticket)
		return 0;
	return check(digester,
		     digester->driver->cuEventSynchronize(digester->events[ticket % EVENTS]),
		     "cuEventSynchronize", ret_driver_result, error);
}

void gcr_digester_stop(struct gcr_digester *digester)
{
	if (!digester->module)
		stop_on_host(digester);
	else if (digester->stream)
		digester->driver->cuStreamSynchronize(digester->stream);
}

const struct gcr_digest *gcr_digester_digests(const struct gcr_digester *digester)
{
	return digester->digests;
}

const bool *gcr_digester_zeros(const struct gcr_digester *digester)
{
	return digester->zeros;
}
