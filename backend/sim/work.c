/* SPDX-License-Identifier: MIT */
/*
 * Execution of one operation by a stream's thread, and the built-in kernels. Every access to device
 * memory happens under map_lock and is checked first, so that an invalid pointer fails the context,
 * as on a GPU, instead of killing the process.
 */
#include "backend/sim/sim.h"

#include <time.h>
#include <xxhash.h>

static void pause_us(long us)
{
	struct timespec time = {0, us * 1000};

	nanosleep(&time, NULL);
}

/*
 * Returns true if the memory may be accessed: device memory must be accessible throughout; any
 * other pointer is host memory.
 */
static bool span_usable(const struct accessor *by, const void *address, size_t size_bytes,
			bool write)
{
	CUdeviceptr start = (CUdeviceptr)address;

	return !size_bytes || !memory_is_device(start) ||
	       memory_accessible(by, start, size_bytes, write);
}

/*
 * Returns true for host memory that a kernel can access: allocated by or registered with the
 * driver.
 */
static bool is_pinned(CUdeviceptr start, size_t size_bytes)
{
	GCR_LOCK_SCOPE(&sim.lock);
	const struct allocation *allocation = allocation_find(start);

	return allocation &&
	       (allocation->kind == ALLOCATION_HOST || allocation->kind == ALLOCATION_REGISTERED) &&
	       start + size_bytes <= allocation->start + allocation->size_bytes;
}

/* Takes map_lock for reading and returns whether a kernel may access the memory. */
static bool kernel_begin(CUcontext context, CUdeviceptr start, size_t size_bytes, bool write)
{
	const struct accessor by = {1u << context->device, context->peers, true,
				    (int)sim.gpu_of_device[context->device]};
	bool pinned = is_pinned(start, size_bytes);

	pthread_rwlock_rdlock(&sim.map_lock);
	return pinned || !size_bytes || memory_accessible(&by, start, size_bytes, write);
}

static void kernel_end(void)
{
	pthread_rwlock_unlock(&sim.map_lock);
}

/* ThreadSanitizer is informed only about accesses to host memory. */
#ifdef __SANITIZE_THREAD__
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void __tsan_read_range(void *start, long bytes);
void __tsan_write_range(void *start, long bytes);

void unseen_begin(void)
{
	AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
	AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

void unseen_end(void)
{
	AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
	AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

/* Reporting a word at intervals is enough: no thread shares its part of a buffer with a copy. */
#define SHOWN_BYTES ((size_t)64 << 10)

static void show_copy(void *to, const void *from, size_t size_bytes)
{
	bool from_host = !memory_is_device((CUdeviceptr)from);
	bool to_host = !memory_is_device((CUdeviceptr)to);

	for (size_t at = 0; at < size_bytes; at += SHOWN_BYTES) {
		if (from_host)
			__tsan_read_range((char *)(uintptr_t)from + at, 1);
		if (to_host)
			__tsan_write_range((char *)to + at, 1);
	}
}
#else
void unseen_begin(void)
{
}

void unseen_end(void)
{
}

static void show_copy(void *to, const void *from, size_t size_bytes)
{
}
#endif

static void move(void *to, const void *from, size_t size_bytes)
{
	show_copy(to, from, size_bytes);
	unseen_begin();
	memmove(to, from, size_bytes);
	unseen_end();
}

static bool copy(const struct work *work)
{
	const struct accessor by = {.devices = work->copy.devices, .peers = ACCESSOR_COPY_PEERS};
	size_t width = work->copy.width, height = work->copy.height;

	if (!width || !height)
		return true;
	if (!span_usable(&by, work->copy.to, (height - 1) * work->copy.to_pitch + width, true) ||
	    !span_usable(&by, work->copy.from, (height - 1) * work->copy.from_pitch + width, false))
		return false;
	for (size_t y = 0; y < height; y++)
		move((char *)work->copy.to + y * work->copy.to_pitch,
		     (const char *)work->copy.from + y * work->copy.from_pitch, width);
	return true;
}

/* Fills one row of a memset by copying the part already filled, doubling each time. */
static void set_row(char *row, const void *value, size_t element_bytes, size_t size_bytes)
{
	size_t done = element_bytes;

	memcpy(row, value, element_bytes);
	while (done < size_bytes) {
		size_t more = size_bytes - done < done ? size_bytes - done : done;

		memcpy(row + done, row, more);
		done += more;
	}
}

static bool set(CUcontext context, const struct work *work)
{
	const struct accessor by = {1u << context->device, ACCESSOR_COPY_PEERS, true,
				    (int)sim.gpu_of_device[context->device]};
	size_t element = work->set.element_bytes, row = work->set.width * element;

	if (!row || !work->set.height)
		return true;
	if (!span_usable(&by, (void *)work->set.to, (work->set.height - 1) * work->set.pitch + row,
			 true))
		return false;
	unseen_begin();
	for (size_t y = 0; y < work->set.height; y++)
		set_row((char *)(work->set.to + y * work->set.pitch), &work->set.value, element,
			row);
	unseen_end();
	return true;
}

static bool wait_value(CUcontext context, const struct work *work)
{
	const struct accessor by = {.devices = 1u << context->device, .peers = context->peers};
	uint64_t wanted = work->value.value;

	for (;;) {
		uint64_t value = 0;
		bool reached, readable;

		pthread_rwlock_rdlock(&sim.map_lock);
		readable = span_usable(&by, (void *)work->value.address, work->value.bytes, false);
		/* Plain memory that is written by others without a lock. */
		unseen_begin();
		if (readable)
			memcpy(&value, (void *)work->value.address, work->value.bytes);
		unseen_end();
		pthread_rwlock_unlock(&sim.map_lock);
		if (!readable)
			return false;
		value &= work->value.mask;
		switch (work->value.flags & 3) {
		case CU_STREAM_WAIT_VALUE_GEQ:
			reached = work->value.bytes == 4 ? (int32_t)(value - wanted) >= 0
							 : (int64_t)(value - wanted) >= 0;
			break;
		case CU_STREAM_WAIT_VALUE_EQ:
			reached = value == wanted;
			break;
		case CU_STREAM_WAIT_VALUE_AND:
			reached = (value & wanted) != 0;
			break;
		default:
			reached = (~(value | wanted) &
				   (work->value.bytes == 4 ? UINT32_MAX : UINT64_MAX)) != 0;
		}
		if (reached)
			return true;
		pause_us(200);
	}
}

static void ipc_wait(const struct work *work)
{
	for (;;) {
		const struct shared_event *event = &shared->events[work->ipc.slot];
		bool reached;

		shared_lock();
		reached = event->completed >= work->ipc.number;
		shared_unlock();
		if (reached)
			return;
		pause_us(1000);
	}
}

static void ipc_record(const struct work *work)
{
	struct shared_event *event = &shared->events[work->ipc.slot];

	shared_lock();
	if (event->completed < work->ipc.number)
		event->completed = work->ipc.number;
	shared_unlock();
}

void work_fail(CUcontext context, CUresult result)
{
	int none = CUDA_SUCCESS;

	atomic_compare_exchange_strong(&context_owner(context)->failure, &none, (int)result);
}

void work_execute(CUcontext context, const struct work *work)
{
	const struct accessor by = {.devices = 1u << context->device, .peers = context->peers};
	bool good = true;

	switch (work->kind) {
	case WORK_NOTHING:
		break;
	case WORK_COPY:
		pthread_rwlock_rdlock(&sim.map_lock);
		good = copy(work);
		pthread_rwlock_unlock(&sim.map_lock);
		break;
	case WORK_SET:
		pthread_rwlock_rdlock(&sim.map_lock);
		good = set(context, work);
		pthread_rwlock_unlock(&sim.map_lock);
		break;
	case WORK_KERNEL:
		good = work->kernel.kernel->run(context, work->kernel.arguments);
		break;
	case WORK_HOST_FUNCTION:
	case WORK_CALLBACK:
		callback_run(context, work);
		break;
	case WORK_WAIT_VALUE:
		good = wait_value(context, work);
		break;
	case WORK_WRITE_VALUE:
		pthread_rwlock_rdlock(&sim.map_lock);
		good = span_usable(&by, (void *)work->value.address, work->value.bytes, true);
		if (good)
			memcpy((void *)work->value.address, &work->value.value, work->value.bytes);
		pthread_rwlock_unlock(&sim.map_lock);
		break;
	case WORK_POOL_FREE:
		pool_free_finished(work->pool_free.start);
		break;
	case WORK_GRAPH:
		for (size_t i = 0; i < work->graph.program->count; i++)
			work_execute(context, &work->graph.program->items[i]);
		break;
	case WORK_IPC_RECORD:
		ipc_record(work);
		break;
	case WORK_IPC_WAIT:
		ipc_wait(work);
		break;
	}
	if (!good)
		work_fail(context, CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* The arguments are packed as in the PTX: each aligned to its size. */

#define UNSEEN __attribute__((no_sanitize("thread", "address")))

UNSEEN static bool run_fill(CUcontext context, const void *arguments)
{
	const struct {
		uint64_t pointer, words;
		uint32_t seed;
	} *fill = arguments;
	uint32_t *words = (uint32_t *)fill->pointer;
	bool good = kernel_begin(context, fill->pointer, fill->words * 4, true);

	for (uint64_t i = 0; good && i < fill->words; i++)
		words[i] = fill->seed ^ (uint32_t)i * 2654435761u;
	kernel_end();
	return good;
}

UNSEEN static bool run_add(CUcontext context, const void *arguments)
{
	const struct {
		uint64_t pointer, first, count;
		uint32_t value;
	} *add = arguments;
	uint32_t *words = (uint32_t *)add->pointer + add->first;
	bool good = kernel_begin(context, (CUdeviceptr)words, add->count * 4, true);

	for (uint64_t i = 0; good && i < add->count; i++)
		words[i] += add->value;
	kernel_end();
	return good;
}

UNSEEN static bool run_checksum(CUcontext context, const void *arguments)
{
	const struct {
		uint64_t pointer, words, result;
	} *checksum = arguments;
	const uint32_t *words = (const uint32_t *)checksum->pointer;
	uint64_t sum = 0;
	bool good = kernel_begin(context, checksum->pointer, checksum->words * 4, false);

	for (uint64_t i = 0; good && i < checksum->words; i++)
		sum += ((uint64_t)words[i] + 1) * (2 * i + 1);
	kernel_end();
	if (!good)
		return false;
	good = kernel_begin(context, checksum->result, 8, true);
	if (good)
		__atomic_fetch_add((uint64_t *)checksum->result, sum, __ATOMIC_RELAXED);
	kernel_end();
	return good;
}

/* The kernel polls plain memory that is written by others without a lock. */
UNSEEN static bool run_spin(CUcontext context, const void *arguments)
{
	uint64_t flag;

	memcpy(&flag, arguments, sizeof(flag));
	for (;;) {
		/* Release the lock in each round: otherwise unmapping would wait for the kernel. */
		bool good = kernel_begin(context, flag, 4, false);
		uint32_t value = good ? __atomic_load_n((uint32_t *)flag, __ATOMIC_ACQUIRE) : 0;

		kernel_end();
		if (!good || value)
			return good;
		pause_us(200);
	}
}

#define DIGEST_CHUNK_BYTES ((size_t)64 << 10)

UNSEEN static bool has_data(const uint64_t *words, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (words[i])
			return true;
	return false;
}

static bool kernel_store(CUcontext context, uint64_t to, const void *from, size_t size_bytes)
{
	bool good = kernel_begin(context, to, size_bytes, true);

	if (good)
		move((void *)to, from, size_bytes);
	kernel_end();
	return good;
}

static bool run_digest(CUcontext context, const void *arguments)
{
	const struct {
		uint64_t chunks, digests, zeros, count;
	} *digest = arguments;
	bool good = true;

	for (uint64_t i = 0; good && i < digest->count; i++) {
		uint64_t chunk = digest->chunks + i * DIGEST_CHUNK_BYTES;
		XXH128_canonical_t canonical;
		uint8_t is_zeros = 0;

		good = kernel_begin(context, chunk, DIGEST_CHUNK_BYTES, false);
		if (good) {
			/* A library function: its accesses are invisible to sanitizers. */
			XXH128_canonicalFromHash(
				&canonical, XXH3_128bits((const void *)chunk, DIGEST_CHUNK_BYTES));
			is_zeros = !has_data((const uint64_t *)chunk, DIGEST_CHUNK_BYTES / 8);
		}
		kernel_end();
		good = good &&
		       kernel_store(context, digest->digests + i * sizeof(canonical), &canonical,
				    sizeof(canonical)) &&
		       kernel_store(context, digest->zeros + i, &is_zeros, sizeof(is_zeros));
	}
	return good;
}

const struct kernel sim_kernels[] = {
	{"gpucr_fill", 3, {8, 8, 4}, run_fill}, /* these four: tools/gpu/kernels.h */
	{"gpucr_add", 4, {8, 8, 8, 4}, run_add},
	{"gpucr_checksum", 3, {8, 8, 8}, run_checksum},
	{"gpucr_spin", 1, {8}, run_spin},
	{"gpucr_digest", 4, {8, 8, 8, 8}, run_digest}, /* backend/digest/digest.cl */
	{NULL, 0, {0}, NULL},
};
