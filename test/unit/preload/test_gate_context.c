/* SPDX-License-Identifier: MIT */
/* The gate's records of the program: stream captures that are open and contexts that are alive. */
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "backend/preload/gate/capture.h"
#include "backend/preload/gate/context.h"
#include "backend/preload/ipc/ipc.h"
#include "backend/preload/managed/managed.h"
#include "backend/preload/managed/managed_table.h"
#include "backend/preload/memory/memory.h"
#include "test/unit/preload/test_gate.h"

/* ---- captures ---- */

static CUstream captured;
static CUgraph graph_of_thread;

static void *hold_capture(void *argument)
{
	void **arguments = argument;
	CUdeviceptr memory = (CUdeviceptr)(uintptr_t)arguments[1];

	CHECK(cuCtxSetCurrent(arguments[0]) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
	      CUDA_SUCCESS);
	atomic_store(&is_inside, true);
	while (!atomic_load(&may_return))
		sched_yield();
	CHECK(cuMemsetD8Async(memory, 1, 4096, captured) == CUDA_SUCCESS);
	CHECK(cuStreamEndCapture(captured, &graph_of_thread) == CUDA_SUCCESS);
	return NULL;
}

static void *let_return(void *argument)
{
	struct gcr_page *page = argument;

	/*
	 * The closing thread has found the capture: it has opened the gate and waits for the
	 * capture's end.
	 */
	while (!__atomic_load_n(&page->captures, __ATOMIC_SEQ_CST))
		sched_yield();
	atomic_store(&may_return, true);
	return NULL;
}

/* While a capture is open the gate does not close; each way in which a capture ends is noticed. */
static void test_captures(void)
{
	CUcontext context = use_gpu();
	struct gcr_page *page = gcr_gate_page();
	pthread_t thread, other;
	void *arguments[2];
	CUdeviceptr memory;
	CUstream stream;
	CUgraph graph;

	CHECK(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
	CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	arguments[0] = context;
	arguments[1] = (void *)(uintptr_t)memory;
	thread = start(hold_capture, arguments);
	wait_until(inside_now);
	expect_timeout("a stream capture is open");
	CHECK(!is_closed() && page->captures == 1);
	other = start(let_return, page);
	CLOSES();
	CHECK(page->captures == 0);
	end(other);
	gcr_gate_open();
	end(thread);
	/* The gate has not invalidated the capture: it ended with a graph. */
	CHECK(cuGraphDestroy(graph_of_thread) == CUDA_SUCCESS);

	/* The program never ends a capture: it destroys the stream instead. */
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	CHECK(page->captures == 0);

	/* A capture ends by a call that the library does not see. */
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(GCR_REAL(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	CLOSES();
	CHECK(page->captures == 0);
	gcr_gate_open();

	/* A capture's context is destroyed. */
	CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
	CHECK(page->captures == 0);
}

/* The per-thread default stream: the same handle is another stream in every thread. */
extern __typeof__(cuStreamBeginCapture_v2) cuStreamBeginCapture_v2_ptsz;
extern __typeof__(cuStreamEndCapture) cuStreamEndCapture_ptsz;

static void *capture_own(void *context)
{
	CUgraph graph;

	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
	      CUDA_SUCCESS);
	atomic_store(&is_inside, true);
	while (!atomic_load(&may_return))
		sched_yield();
	CHECK(cuStreamEndCapture_ptsz(NULL, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	return NULL;
}

static void *begin_own_and_end(void *context)
{
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	return NULL;
}

/* Is no capture left? A joined thread may exist for a moment longer. */
static bool all_have_ended(void)
{
	gcr_captures_verify();
	return gcr_gate_page()->captures == 0;
}

/* Captures of per-thread default streams are counted for each thread. */
static void test_own_stream_captures(void)
{
	CUcontext context = use_gpu();
	struct gcr_page *page = gcr_gate_page();
	pthread_t thread = start(capture_own, context);
	CUgraph graph;

	wait_until(inside_now);
	CHECK(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED) ==
	      CUDA_SUCCESS);
	CHECK(page->captures == 2);
	CHECK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	expect_timeout("a stream capture is open");
	CHECK(!is_closed());
	atomic_store(&may_return, true);
	CLOSES();
	gcr_gate_open();
	end(thread);
	CHECK(page->captures == 0);

	/* A thread ends without ending its capture. */
	end(start(begin_own_and_end, context));
	CHECK(page->captures == 1);
	wait_until(all_have_ended);
}

/* A call that has passed the gate begins a capture while the gate closes behind the call. */
static CUresult slow_begin(CUstream stream, CUstreamCaptureMode mode)
{
	atomic_store(&is_inside, true);
	wait_until(is_closed);
	return CUDA_SUCCESS;
}

static void *begin_slowly(void *argument)
{
	CUgraph graph;

	CHECK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	/* This call returns only if the gate has opened again. */
	CHECK(cuStreamEndCapture(captured, &graph) != CUDA_SUCCESS);
	return NULL;
}

/* The gate closes only after that capture. */
static void test_capture_on_its_way(void)
{
	pthread_t thread;

	use_gpu();
	CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamBeginCapture_v2], (void *)slow_begin);
	thread = start(begin_slowly, NULL);
	wait_until(inside_now);
	CLOSES();
	gcr_gate_open();
	end(thread);
}

/* A stream and context that the agent queries are not destroyed before the agent has its answer. */
static CUcontext test_context;
static pthread_t ending_thread;
static _Atomic(bool) has_ended;

static void *end_and_destroy(void *argument)
{
	CUgraph graph;

	atomic_store(&at_gate, gettid());
	CHECK(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CHECK(cuStreamDestroy_v2(captured) == CUDA_SUCCESS);
	CHECK(cuCtxDestroy_v2(test_context) == CUDA_SUCCESS);
	atomic_store(&has_ended, true);
	return NULL;
}

static bool ended_or_waits(void)
{
	return atomic_load(&has_ended) || waits_at_gate();
}

static __typeof__(cuStreamIsCapturing) *real_is_capturing;

static CUresult ask_while_it_ends(CUstream stream, CUstreamCaptureStatus *status)
{
	if (!atomic_load(&at_gate)) {
		ending_thread = start(end_and_destroy, NULL);
		wait_until(ended_or_waits);
		CHECK(!atomic_load(&has_ended));
	}
	return real_is_capturing(stream, status);
}

static void test_capture_ends_meanwhile(void)
{
	use_gpu();
	CHECK(cuCtxCreate_v2(&test_context, 0, 0) == CUDA_SUCCESS);
	CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	real_is_capturing = GCR_REAL(cuStreamIsCapturing);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamIsCapturing], (void *)ask_while_it_ends);
	CLOSES();
	gcr_gate_open();
	end(ending_thread);
	CHECK(gcr_gate_page()->captures == 0);
}

/* ---- a stream's handle that is used again ---- */

static CUdeviceptr managed_memory;

static void *begin_again(void *context)
{
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(cuStreamAttachMemAsync(captured, managed_memory, 0, CU_MEM_ATTACH_SINGLE) ==
	      CUDA_SUCCESS);
	return NULL;
}

/*
 * Before the destroying call returns, another thread gets a stream with the same handle and uses
 * it.
 */
static CUresult destroy_and_use_again(CUstream stream)
{
	CUcontext context;

	CHECK(GCR_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS);
	end(start(begin_again, context));
	return CUDA_SUCCESS;
}

static CUresult attach(CUstream stream, CUdeviceptr memory, size_t bytes, unsigned int flags)
{
	return CUDA_SUCCESS;
}

static bool is_attached(void)
{
	struct gcr_managed *const *allocations;
	struct gcr_managed_piece *pieces;
	size_t count, piece_count;

	CHECK(gcr_managed_table(&allocations, &count, &pieces, &piece_count) == 0 && count == 1);
	return allocations[0]->attached == CU_MEM_ATTACH_SINGLE &&
	       allocations[0]->stream == captured;
}

/* Records of the destroyed stream are not mixed with those of the new one. */
static void test_stream_handle_again(void)
{
	struct gcr_page *page;
	CUgraph graph;

	use_gpu();
	page = gcr_gate_page();
	CHECK(cuMemAllocManaged(&managed_memory, 4096, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
	CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamAttachMemAsync], (void *)attach);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamDestroy_v2], (void *)destroy_and_use_again);
	CHECK(cuStreamDestroy_v2(captured) == CUDA_SUCCESS);
	CHECK(page->captures == 1 && is_attached());
	expect_timeout("a stream capture is open");
	/* The new stream's capture is not invalidated. */
	CHECK(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CHECK(page->captures == 0);
}

static CUresult refuse_to_destroy(CUstream stream)
{
	return CUDA_ERROR_INVALID_HANDLE;
}

/* A stream whose destruction fails keeps its open capture. */
static void test_stream_not_destroyed(void)
{
	CUgraph graph;

	use_gpu();
	CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamDestroy_v2], (void *)refuse_to_destroy);
	CHECK(cuStreamDestroy_v2(captured) == CUDA_ERROR_INVALID_HANDLE);
	expect_timeout("a stream capture is open");
	CHECK(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CLOSES();
	gcr_gate_open();
}

/* ---- contexts ---- */

static bool is_alive(CUcontext context)
{
	CUcontext contexts[16];
	size_t count = gcr_contexts_alive(contexts, GCR_ARRAY_SIZE(contexts));

	for (size_t i = 0; i < count && i < GCR_ARRAY_SIZE(contexts); i++)
		if (contexts[i] == context)
			return true;
	return false;
}

static void test_contexts(void)
{
	CUcontext one, two, primary, again;
	uint32_t *flag;
	CUstream stream;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 0);
	CLOSES();
	gcr_gate_open();
	CHECK(cuCtxCreate_v2(&one, 0, 0) == CUDA_SUCCESS);
	CHECK(cuCtxCreate_v3(&two, NULL, 0, 0, 1) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 2 && is_alive(one) && is_alive(two));
	CHECK(cuCtxDestroy_v2(NULL) != CUDA_SUCCESS);
	CHECK(cuCtxDestroy_v2(one) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 1 && is_alive(two));
	CHECK(cuCtxCreate_v4(&one, NULL, 0, 0) == CUDA_SUCCESS);

	/* The gate waits for the work of every context, whichever is current. */
	flag = make_flag(&stream);
	spin(flag, stream);
	CHECK(cuCtxSetCurrent(two) == CUDA_SUCCESS);
	expect_timeout("GPU 0 has not finished");
	gcr_gate_open();
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
	CLOSES();
	gcr_gate_open();

	CHECK(cuDevicePrimaryCtxRetain(&primary, 1) == CUDA_SUCCESS);
	CHECK(cuDevicePrimaryCtxRetain(&again, 1) == CUDA_SUCCESS && again == primary);
	CHECK(gcr_contexts_alive(NULL, 0) == 3 && is_alive(primary));
	CHECK(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS && is_alive(primary));
	CHECK(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 2);
	CHECK(cuDevicePrimaryCtxRetain(&primary, 1) == CUDA_SUCCESS && is_alive(primary));
	CHECK(cuDevicePrimaryCtxReset_v2(1) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 2);

	/* A context is retained and released by calls that the library does not see. */
	CHECK(GCR_REAL(cuDevicePrimaryCtxRetain)(&primary, 0) == CUDA_SUCCESS);
	CHECK(is_alive(primary));
	CHECK(GCR_REAL(cuDevicePrimaryCtxRelease_v2)(0) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 2);

	CHECK(cuCtxDestroy_v2(one) == CUDA_SUCCESS && cuCtxDestroy_v2(two) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 0);
}

/* ---- primary contexts ---- */

static __typeof__(cuDevicePrimaryCtxRetain) *real_retain;
static int depth;

/*
 * Retain again inside the call, as a CUPTI callback does, which the driver calls within the
 * function.
 */
static CUresult retain_again(CUcontext *context, CUdevice device)
{
	CUcontext again;

	if (depth++ == 0) {
		CHECK(cuDevicePrimaryCtxRetain(&again, device) == CUDA_SUCCESS);
		CHECK(cuDevicePrimaryCtxRelease_v2(device) == CUDA_SUCCESS);
	}
	return real_retain(context, device);
}

/* A nested retain does not deadlock and records the context once. */
static void test_primary_nested(void)
{
	CUcontext context;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	real_retain = GCR_REAL(cuDevicePrimaryCtxRetain);
	atomic_store(&gcr_reals[GCR_ENTRY_cuDevicePrimaryCtxRetain], (void *)retain_again);
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && depth == 2);
	CHECK(gcr_contexts_alive(NULL, 0) == 1 && is_alive(context));
}

/* A retain in which the thread can be cancelled. */
static CUresult retain_slowly(CUcontext *context, CUdevice device)
{
	atomic_store(&is_inside, true);
	while (!atomic_load(&may_return)) {
		pthread_testcancel();
		sched_yield();
	}
	return real_retain(context, device);
}

static void *retain(void *argument)
{
	CUcontext context;

	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	pthread_testcancel();
	return NULL;
}

/*
 * The cancelled thread ends only after its call has returned, and everything that the call holds is
 * released.
 */
static void test_primary_cancelled(void)
{
	CUcontext context;
	pthread_t thread;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	real_retain = GCR_REAL(cuDevicePrimaryCtxRetain);
	atomic_store(&gcr_reals[GCR_ENTRY_cuDevicePrimaryCtxRetain], (void *)retain_slowly);
	thread = start(retain, NULL);
	wait_until(inside_now);
	CHECK(pthread_cancel(thread) == 0);
	expect_timeout("cuDevicePrimaryCtxRetain has not returned");
	gcr_gate_open();
	atomic_store(&may_return, true);
	CHECK(end(thread) == PTHREAD_CANCELED);
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && is_alive(context));
	CLOSES();
	gcr_gate_open();
}

/* ---- a thread that is cancelled while it waits for another process ---- */

static void *open_shared(void *handle)
{
	CUdeviceptr opened;

	CHECK(cuCtxSetCurrent(test_context) == CUDA_SUCCESS);
	CHECK(cuIpcOpenMemHandle_v2(&opened, *(CUipcMemHandle *)handle,
				    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
	      CUDA_ERROR_INVALID_VALUE);
	pthread_testcancel();
	return NULL;
}

/* A thread cancelled while it waits for the exporting process leaves no lock held. */
static void test_open_cancelled(void)
{
	struct gcr_ipc_token token = {.magic = GCR_IPC_MAGIC};
	_cleanup_close_ int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;
	CUipcMemHandle handle;
	pthread_t thread;
	unsigned int length;
	int fd;

	test_context = use_gpu();
	CHECK(getrandom(token.process, sizeof(token.process), 0) == sizeof(token.process));
	memcpy(&handle, &token, sizeof(handle));
	length = gcr_ipc_address(token.process, &address);
	CHECK(bind(listener, (struct sockaddr *)&address, length) == 0);
	CHECK(listen(listener, 1) == 0);
	thread = start(open_shared, &handle);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(fd >= 0 && pthread_cancel(thread) == 0);
	CHECK(close(fd) == 0 && end(thread) == PTHREAD_CANCELED);
	/* A second import does not block on the cancelled thread. */
	CHECK(close(TAKE_FD(listener)) == 0);
	CHECK(end(start(open_shared, &handle)) == NULL);
}

/* ---- contexts that share with graphics ---- */

/* Functions that cuda_api.h does not declare. */
extern __typeof__(cuCtxCreate_v2) cuGLCtxCreate, cuGLCtxCreate_v2;
CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device,
			  uint32_t vdp_device, void *vdp_get_proc_address);
extern __typeof__(cuVDPAUCtxCreate) cuVDPAUCtxCreate_v2;

static CUresult create_for_vdpau(CUcontext *context, unsigned int flags, CUdevice device,
				 uint32_t vdp_device, void *vdp_get_proc_address)
{
	CHECK(vdp_device == 4711 && vdp_get_proc_address == (void *)create_for_vdpau);
	return GCR_REAL(cuCtxCreate_v2)(context, flags, device);
}

static void expect_waited_for(CUcontext context)
{
	CUstream stream;
	uint32_t *flag = make_flag(&stream);

	CHECK(gcr_contexts_alive(NULL, 0) == 1 && is_alive(context));
	spin(flag, stream);
	expect_timeout("GPU 1 has not finished");
	gcr_gate_open();
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
	CLOSES();
	gcr_gate_open();
	CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
}

/* The gate waits for the work of contexts made by the graphics variants of cuCtxCreate. */
static void test_graphics_contexts(void)
{
	void *create_plain;
	CUcontext context;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	create_plain = GCR_REAL(cuCtxCreate_v2);
	atomic_store(&gcr_reals[GCR_ENTRY_cuGLCtxCreate], create_plain);
	atomic_store(&gcr_reals[GCR_ENTRY_cuGLCtxCreate_v2], create_plain);
	atomic_store(&gcr_reals[GCR_ENTRY_cuVDPAUCtxCreate], (void *)create_for_vdpau);
	atomic_store(&gcr_reals[GCR_ENTRY_cuVDPAUCtxCreate_v2], (void *)create_for_vdpau);
	CHECK(cuGLCtxCreate(&context, 0, 1) == CUDA_SUCCESS);
	expect_waited_for(context);
	CHECK(cuGLCtxCreate_v2(&context, 0, 1) == CUDA_SUCCESS);
	expect_waited_for(context);
	CHECK(cuVDPAUCtxCreate(&context, 0, 1, 4711, (void *)create_for_vdpau) == CUDA_SUCCESS);
	expect_waited_for(context);
	CHECK(cuVDPAUCtxCreate_v2(&context, 0, 1, 4711, (void *)create_for_vdpau) == CUDA_SUCCESS);
	expect_waited_for(context);
}

/* ---- memory allocated in a context ---- */

static void allocate(void)
{
	CUdeviceptr memory, managed;

	CHECK(cuMemAlloc_v2(&memory, 8 * MIB) == CUDA_SUCCESS);
	CHECK(cuMemAllocManaged(&managed, 8 * MIB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
	CHECK(gcr_memory_describe(NULL, 0) == 1 && gcr_managed_describe(NULL, 0) == 1);
}

static void expect_nothing(void)
{
	CHECK(gcr_memory_describe(NULL, 0) == 0 && gcr_managed_describe(NULL, 0) == 0);
}

/*
 * Memory allocated in a context is removed from the records with the context, however the context
 * ends.
 */
static void test_memory_of_contexts(void)
{
	CUcontext context;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
	allocate();
	CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
	expect_nothing();

	use_gpu();
	allocate();
	CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
	expect_nothing();

	context = use_gpu();
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	allocate();
	CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	CHECK(gcr_memory_describe(NULL, 0) == 1);
	CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	expect_nothing();
}

static atomic_bool has_no_memory;

/* The linker redirects all calls in this program and the library here: see --wrap in ld(1). */
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes)
{
	return atomic_load(&has_no_memory) ? NULL : __real_realloc(memory, bytes);
}

/*
 * A list of allocations for which there is no memory is reported as an error, not as an empty list.
 */
static void test_allocations_without_memory(void)
{
	ssize_t device = 0, managed = 0;
	CUdeviceptr memory;

	use_gpu();
	for (int i = 0; i < 64 && (device >= 0 || managed >= 0); i++) {
		CHECK(cuMemAlloc_v2(&memory, 8 * MIB) == CUDA_SUCCESS);
		CHECK(cuMemAllocManaged(&memory, 8 * MIB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
		atomic_store(&has_no_memory, true);
		if (device >= 0)
			device = gcr_memory_describe(NULL, 0);
		if (managed >= 0)
			managed = gcr_managed_describe(NULL, 0);
		atomic_store(&has_no_memory, false);
	}
	CHECK(device == -ENOMEM && managed == -ENOMEM);
	CHECK(gcr_memory_describe(NULL, 0) > 0 && gcr_managed_describe(NULL, 0) > 0);
}

static _Atomic(CUcontext) dying;

static CUresult slow_destroy(CUcontext context)
{
	atomic_store(&dying, context);
	while (!atomic_load(&may_return))
		sched_yield();
	return CUDA_SUCCESS;
}

static CUresult create_same(CUcontext *context, unsigned int flags, CUdevice device)
{
	*context = atomic_load(&dying);
	return CUDA_SUCCESS;
}

static void *destroy(void *context)
{
	CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
	return NULL;
}

static void *create(void *argument)
{
	CUcontext context;

	atomic_store(&at_gate, gettid());
	CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
	atomic_store(&passed, true);
	return NULL;
}

/*
 * No thread gets a new context with the handle of a context whose tables are still being cleared.
 */
static void test_context_handle_again(void)
{
	CUcontext context;
	pthread_t one, other;

	CHECK(cuInit(0) == CUDA_SUCCESS && cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
	atomic_store(&gcr_reals[GCR_ENTRY_cuCtxDestroy_v2], (void *)slow_destroy);
	atomic_store(&gcr_reals[GCR_ENTRY_cuCtxCreate_v2], (void *)create_same);
	one = start(destroy, context);
	while (!atomic_load(&dying))
		sched_yield();
	other = start(create, NULL);
	wait_until(waits_at_gate);
	CHECK(!atomic_load(&passed));
	atomic_store(&may_return, true);
	end(one);
	end(other);
	CHECK(is_alive(context));
	atomic_store(&gcr_reals[GCR_ENTRY_cuCtxDestroy_v2], NULL);
}

static const struct linked_test tests[] = {
	{"captures", test_captures},
	{"own stream captures", test_own_stream_captures},
	{"capture on its way", test_capture_on_its_way},
	{"capture ends meanwhile", test_capture_ends_meanwhile},
	{"stream handle again", test_stream_handle_again},
	{"stream not destroyed", test_stream_not_destroyed},
	{"contexts", test_contexts},
	{"primary nested", test_primary_nested},
	{"primary cancelled", test_primary_cancelled},
	{"open cancelled", test_open_cancelled},
	{"graphics contexts", test_graphics_contexts},
	{"memory of contexts", test_memory_of_contexts},
	{"allocations without memory", test_allocations_without_memory},
	{"context handle again", test_context_handle_again},
};

int main(int argc, char **argv)
{
	return run_tests(tests, GCR_ARRAY_SIZE(tests), argv[1]);
}
