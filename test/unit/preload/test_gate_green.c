/* SPDX-License-Identifier: MIT */
/*
 * Green contexts at the gate: the gate closes when their work is done, in any of their streams and
 * also after the green context was destroyed. Objects made in a green context belong to the primary
 * context.
 */
#include "backend/preload/gate/capture.h"
#include "backend/preload/gate/green.h"
#include "backend/preload/memory/allocation.h"
#include "backend/preload/memory/limit.h"
#include "backend/preload/memory/table.h"
#include "test/unit/preload/test_gate.h"

#define NOT_FINISHED "a green context of GPU 0 has not finished its work"

/* Functions that cuda_api.h does not declare. */
CUresult cuDeviceGetDevResource(CUdevice device, void *resource, unsigned type);
CUresult cuDevResourceGenerateDesc(void **description, void *resources, unsigned count);
CUresult cuGreenCtxCreate(void **green, void *description, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(void *green);
CUresult cuGreenCtxRecordEvent(void *green, CUevent event);
CUresult cuGreenCtxStreamCreate(CUstream *stream, void *green, unsigned flags, int priority);
CUresult cuCtxFromGreenCtx(CUcontext *context, void *green);
CUresult cuStreamGetGreenCtx(CUstream stream, void **green);

static void *describe(void)
{
	static unsigned char resource[1024];
	void *description;

	CHECK(cuDeviceGetDevResource(0, resource, 1) == CUDA_SUCCESS);
	CHECK(cuDevResourceGenerateDesc(&description, resource, 1) == CUDA_SUCCESS);
	return description;
}

static void *make_green(void)
{
	void *green;

	CHECK(cuGreenCtxCreate(&green, describe(), 0, 1) == CUDA_SUCCESS);
	return green;
}

static CUstream make_stream(void *green)
{
	CUstream stream;

	CHECK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
	return stream;
}

static CUcontext context_of(void *green)
{
	CUcontext context;

	CHECK(cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS);
	return context;
}

static uint32_t *make_word(void)
{
	uint32_t *word;

	CHECK(cuMemHostAlloc((void **)&word, 4096, 0) == CUDA_SUCCESS);
	*word = 0;
	return word;
}

static void finish(uint32_t *flag)
{
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
}

/*
 * The simulator implements the harder case: an event of the primary context does not cover a green
 * context's work.
 */
static void test_event_of_primary(void)
{
	CUcontext primary = use_gpu();
	void *green = make_green(), *found;
	CUstream stream = make_stream(green);
	uint32_t *flag = make_word();
	CUevent event;

	CHECK(cuStreamGetGreenCtx(stream, &found) == CUDA_SUCCESS && found == green);
	CHECK(cuStreamGetGreenCtx(NULL, &found) == CUDA_SUCCESS && !found);
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
	spin(flag, stream);
	CHECK(cuCtxRecordEvent(primary, event) == CUDA_SUCCESS);
	CHECK(cuEventQuery(event) == CUDA_SUCCESS);
	CHECK(cuGreenCtxRecordEvent(green, event) == CUDA_SUCCESS);
	CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
	finish(flag);
	CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
	CHECK(cuGreenCtxDestroy(green) != CUDA_SUCCESS);
}

static void busy(CUstream stream)
{
	uint32_t *flag = make_word();

	spin(flag, stream);
	expect_timeout(NOT_FINISHED);
	expect_timeout(NOT_FINISHED);
	CHECK(is_closed());
	finish(flag);
	CLOSES();
	gcr_gate_open();
}

/* Work in the second of two green contexts, and in each kind of stream. */
static void test_streams(void)
{
	CUcontext popped;
	CUstream stream;
	void *green[2];

	use_gpu();
	green[0] = make_green();
	green[1] = make_green();
	CLOSES();
	gcr_gate_open();
	busy(make_stream(green[0]));
	busy(make_stream(green[1]));
	CHECK(cuCtxPushCurrent_v2(context_of(green[1])) == CUDA_SUCCESS);
	CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
	busy(stream);
	busy(CU_STREAM_LEGACY);
	busy(CU_STREAM_PER_THREAD);
	CHECK(cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS && popped == context_of(green[1]));
	busy(make_stream(green[0]));
}

/* A kernel keeps running when its green context and its stream are destroyed. */
static void test_destroyed(void)
{
	void *green, *other;
	uint32_t *flag = NULL, *second;
	CUstream stream;

	use_gpu();
	flag = make_word();
	second = make_word();
	other = make_green();
	green = make_green();
	stream = make_stream(green);
	spin(flag, stream);
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
	CHECK(cuStreamQuery(stream) != CUDA_SUCCESS);
	CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	expect_timeout(NOT_FINISHED);
	gcr_gate_open();
	/* Other green contexts come and go while the kernel runs. */
	for (int i = 0; i < 40; i++)
		CHECK(cuGreenCtxDestroy(make_green()) == CUDA_SUCCESS);
	spin(second, make_stream(other));
	CHECK(cuGreenCtxDestroy(other) == CUDA_SUCCESS);
	expect_timeout(NOT_FINISHED);
	finish(second);
	expect_timeout(NOT_FINISHED);
	finish(flag);
	CLOSES();
	gcr_gate_open();
	CHECK(!*gcr_gate_page()->incomplete);
}

/* A green context is destroyed while another thread has a capture open that forbids queries. */
static void test_destroyed_in_capture(void)
{
	void *green, *later;
	uint32_t *flag;
	CUstream stream, captured;
	CUgraph graph;

	use_gpu();
	flag = make_word();
	green = make_green();
	later = make_green();
	stream = make_stream(green);
	CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	spin(flag, stream);
	CHECK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
	CHECK(cuGreenCtxDestroy(later) == CUDA_SUCCESS);
	CHECK(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	expect_timeout(NOT_FINISHED);
	finish(flag);
	CLOSES();
	gcr_gate_open();
}

/* Captures in a green context's stream keep the gate open like others. */
static void test_capture(void)
{
	struct gcr_page *page = gcr_gate_page();
	void *green;
	CUstream stream;
	CUgraph graph;

	use_gpu();
	page = gcr_gate_page();
	green = make_green();
	stream = make_stream(green);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	expect_timeout("a stream capture is open");
	CHECK(!is_closed() && page->captures == 1);
	CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CLOSES();
	gcr_gate_open();
	/* A capture ended by a call that the library does not see. */
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(GCR_REAL(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	CLOSES();
	CHECK(page->captures == 0);
	gcr_gate_open();
	/* A green context is destroyed during a capture: its remaining work cannot be queried. */
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
	CHECK(page->captures == 0);
	CHECK(strcmp(page->incomplete, "work left by a green context") == 0);
}

/* Whether a green context outlives a reset is not known, so `vmm` is given up. */
static void test_reset(void)
{
	void *green, *ended;

	use_gpu();
	green = make_green();
	ended = make_green();
	CHECK(cuGreenCtxDestroy(ended) == CUDA_SUCCESS);
	CHECK(!*gcr_gate_page()->incomplete);
	CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
	CHECK(strstr(gcr_gate_page()->incomplete, "green context"));
	CLOSES();
	gcr_gate_open();
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
}

/* A green context that holds the last reference to the primary context ends the primary context. */
static void test_holds_primary(void)
{
	CUcontext primary = use_gpu();
	void *green = make_green();
	unsigned flags;
	int active;

	CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 1 && gcr_green_is_owner(primary));
	busy(make_stream(green));
	CHECK(cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
	CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS && !active);
	CHECK(gcr_contexts_alive(NULL, 0) == 0 && !gcr_green_is_owner(primary));
	CHECK(!*gcr_gate_page()->incomplete);
	CLOSES();
	gcr_gate_open();
}

/* Functions of the driver fail: the gate does not close, and the error names the function. */
static CUresult fail_to_record(void *green, CUevent event)
{
	return CUDA_ERROR_UNKNOWN;
}

static void test_record_fails(void)
{
	void *real, *green;

	use_gpu();
	green = make_green();
	real = gcr_entry_real(GCR_ENTRY_cuGreenCtxRecordEvent);
	atomic_store(&gcr_reals[GCR_ENTRY_cuGreenCtxRecordEvent], (void *)fail_to_record);
	CHECK(gcr_gate_close(30 * SECOND, -1, &failure) == -EIO);
	CHECK(strstr(failure.words, "cuGreenCtxRecordEvent"));
	gcr_gate_open();
	CHECK(!*gcr_gate_page()->incomplete);
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
	CHECK(strcmp(gcr_gate_page()->incomplete, "work left by a green context") == 0);
	atomic_store(&gcr_reals[GCR_ENTRY_cuGreenCtxRecordEvent], real);
	CLOSES();
	gcr_gate_open();
}

static CUresult fail_to_destroy(void *green)
{
	return CUDA_ERROR_UNKNOWN;
}

/* A green context whose destruction fails is still waited for. */
static void test_destroy_fails(void)
{
	void *real, *green;

	use_gpu();
	green = make_green();
	real = gcr_entry_real(GCR_ENTRY_cuGreenCtxDestroy);
	atomic_store(&gcr_reals[GCR_ENTRY_cuGreenCtxDestroy], (void *)fail_to_destroy);
	CHECK(cuGreenCtxDestroy(green) == CUDA_ERROR_UNKNOWN);
	atomic_store(&gcr_reals[GCR_ENTRY_cuGreenCtxDestroy], real);
	busy(make_stream(green));
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
}

/* ---- objects made in a green context ---- */

static const struct gcr_mapping *mapping_of(CUdeviceptr memory)
{
	GCR_TABLE_LOCK();

	return gcr_table_find_allocation(memory);
}

/* Memory allocated in a green context belongs to the primary context and outlives the green one. */
static void test_memory(void)
{
	CUcontext primary = use_gpu(), context, popped;
	CUdeviceptr memory;
	uint32_t words[1024];
	CUstream stream;
	void *green = make_green();

	context = context_of(green);
	CHECK(context != primary && gcr_green_owner(context) == primary);
	CHECK(gcr_green_owner(primary) == primary && !gcr_green_owner(NULL));
	stream = make_stream(green);
	CHECK(cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
	CHECK(cuMemAlloc_v2(&memory, 8 << 20) == CUDA_SUCCESS);
	CHECK(cuMemsetD32Async(memory, 7, 1024, stream) == CUDA_SUCCESS);
	CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
	CHECK(cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS && popped == context);
	CHECK(mapping_of(memory) && mapping_of(memory)->allocation->context == primary);
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
	CHECK(mapping_of(memory));
	CHECK(cuMemcpyDtoH_v2(words, memory, sizeof(words)) == CUDA_SUCCESS);
	CHECK(words[0] == 7 && words[1023] == 7);
	CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
	CHECK(!mapping_of(memory));
}

static size_t stack_limit(void)
{
	size_t bytes;

	CHECK(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
	return bytes;
}

/* The stack limit is not changed while a green context exists. */
static void test_limits(void)
{
	void *green;
	size_t bytes;

	use_gpu();
	green = make_green();
	bytes = stack_limit();
	CHECK(bytes > 0);
	gcr_limits_shrink();
	CHECK(stack_limit() == bytes);
	CHECK(gcr_limits_restore(&failure) == 0);
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
	gcr_limits_shrink();
	CHECK(stack_limit() == 0);
	CHECK(gcr_limits_restore(&failure) == 0);
	CHECK(stack_limit() == bytes);
}

/* ---- threads, and children ---- */

static _Atomic(bool) may_end;

static void *come_and_go(void *description)
{
	CUstream stream;
	void *green;

	while (!atomic_load(&may_end)) {
		CHECK(cuGreenCtxCreate(&green, description, 0, 1) == CUDA_SUCCESS);
		CHECK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0) ==
		      CUDA_SUCCESS);
		CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
		CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	}
	return NULL;
}

/* Threads make and destroy green contexts while the gate closes and opens. */
static void test_threads(void)
{
	pthread_t threads[4];
	void *description, *green;

	use_gpu();
	description = describe();
	green = make_green();
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		threads[i] = start(come_and_go, description);
	for (int round = 0; round < 30; round++) {
		CLOSES();
		gcr_gate_open();
	}
	atomic_store(&may_end, true);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		end(threads[i]);
	busy(make_stream(green));
	CHECK(!*gcr_gate_page()->incomplete);
}

/* A child has no green contexts in its records. */
static void test_fork(void)
{
	CUcontext primary = use_gpu(), context;
	void *green = make_green();
	pid_t pid;
	int status;

	context = context_of(green);
	CHECK(gcr_green_owner(context) == primary);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(gcr_green_owner(context) == context && !gcr_green_is_owner(primary) ? 0 : 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	busy(make_stream(green));
}

static __typeof__(cuGreenCtxDestroy) *real_destroy;
static CUcontext reused;
static CUdeviceptr other_memory;

static CUstream other_stream;

static CUresult say_reused(CUstream stream, CUcontext *ret_context)
{
	(void)stream;
	*ret_context = reused;
	return CUDA_SUCCESS;
}

/*
 * Right after the driver's call another thread gets the handle for a context, allocates, and begins
 * a capture.
 */
static CUresult destroy_and_reuse(void *green)
{
	CUresult result = real_destroy(green);
	struct gcr_mapping *mapping;

	CHECK(cuMemAlloc_v2(&other_memory, 8u << 20) == CUDA_SUCCESS);
	gcr_table_lock();
	mapping = gcr_table_find_allocation(other_memory);
	CHECK(mapping);
	mapping->allocation->context = reused;
	gcr_table_unlock();
	gcr_reals[GCR_ENTRY_cuStreamGetCtx] = (void *)say_reused;
	CHECK(cuStreamBeginCapture_v2(other_stream, CU_STREAM_CAPTURE_MODE_RELAXED) ==
	      CUDA_SUCCESS);
	return result;
}

/*
 * The end of a green context frees no memory, and ends no capture but its own, whatever context has
 * its handle.
 */
static void test_handle_is_reused(void)
{
	__typeof__(cuStreamGetCtx) *real_get_context;
	CUgraph graph;
	void *green;

	use_gpu();
	CHECK(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	real_get_context = GCR_REAL(cuStreamGetCtx);
	green = make_green();
	reused = context_of(green);
	real_destroy = GCR_REAL(cuGreenCtxDestroy);
	gcr_reals[GCR_ENTRY_cuGreenCtxDestroy] = (void *)destroy_and_reuse;
	CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
	gcr_reals[GCR_ENTRY_cuGreenCtxDestroy] = (void *)real_destroy;
	gcr_reals[GCR_ENTRY_cuStreamGetCtx] = (void *)real_get_context;
	CHECK(gcr_allocation_owns(other_memory));
	CHECK(gcr_captures_open());
	CHECK(cuStreamEndCapture(other_stream, &graph) == CUDA_SUCCESS);
	CHECK(!gcr_captures_open());
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

static const struct linked_test tests[] = {
	{"event of primary", test_event_of_primary},
	{"handle is reused", test_handle_is_reused},
	{"streams", test_streams},
	{"destroyed", test_destroyed},
	{"destroyed in capture", test_destroyed_in_capture},
	{"capture", test_capture},
	{"reset", test_reset},
	{"holds primary", test_holds_primary},
	{"record fails", test_record_fails},
	{"destroy fails", test_destroy_fails},
	{"memory", test_memory},
	{"limits", test_limits},
	{"threads", test_threads},
	{"fork", test_fork},
};

int main(int argc, char **argv)
{
	return run_tests(tests, GCR_ARRAY_SIZE(tests), argv[1]);
}
