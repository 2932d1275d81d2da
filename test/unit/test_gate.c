/* SPDX-License-Identifier: MIT */
/*
 * The gate in a program of many kinds of threads. The preload library's sources are part of this
 * program, so that sanitizers see them: the plain names are the wrappers, as in a program linked
 * with libcuda, and the test is the agent. Every test has a process of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "backend/preload/capture.h"
#include "backend/preload/context.h"
#include "backend/preload/gate.h"
#include "backend/preload/preload.h"
#include "backend/preload/thread.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/unit/sim.h"

#define SECOND GCR_USEC_PER_SEC

static struct gcr_error failure;

#define CLOSES()                                                               \
	do {                                                                   \
		int r_ = gcr_gate_close(30 * SECOND, -1, &failure);            \
		if (r_ < 0)                                                    \
			fprintf(stderr, "close: %d: %s\n", r_, failure.words); \
		CHECK(r_ == 0);                                                \
	} while (0)

static void expect_timeout(const char *words)
{
	CHECK(gcr_gate_close(20000, -1, &failure) == -ETIMEDOUT);
	if (!strstr(failure.words, words))
		fprintf(stderr, "'%s' instead of '%s'\n", failure.words, words);
	CHECK(failure.number == ETIMEDOUT && strstr(failure.words, words));
}

static bool is_closed(void)
{
	return __atomic_load_n(&gcr_gate_closed, __ATOMIC_SEQ_CST);
}

/* As sim_context(), by the wrappers. */
static CUcontext use_gpu(void)
{
	CUcontext context;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	return context;
}

/* To wait for what another thread does. */
static void wait_until(bool (*condition)(void))
{
	while (!condition())
		sched_yield();
}

static pthread_t start(void *(*function)(void *), void *argument)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, function, argument) == 0);
	return thread;
}

static void *end(pthread_t thread)
{
	void *result;

	CHECK(pthread_join(thread, &result) == 0);
	return result;
}

/* A thread that waits at the gate does so in futex(2). */
static bool sleeps_in_futex(pid_t tid)
{
	char path[64], line[64] = "";
	_cleanup_fclose_ FILE *file = NULL;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	file = fopen(path, "re");
	return file && fgets(line, sizeof(line), file) && atoi(line) == SYS_futex &&
	       strstr(line, " 0x");
}

/* ---- a driver's function that looks whether it may be called ---- */

static _Atomic(bool) acknowledged;
static _Atomic(unsigned int) broken_in;
static _Atomic(uint64_t) calls;

static CUresult checked_query(CUstream stream)
{
	bool before = atomic_load(&acknowledged);

	for (volatile int i = 0; i < 50; i++)
		;
	if (before || atomic_load(&acknowledged))
		atomic_fetch_add(&broken_in, 1);
	atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
	return CUDA_SUCCESS;
}

/* Calls the driver again, by the plain name. */
static CUresult checked_synchronize(CUstream stream)
{
	return cuStreamQuery(stream);
}

static _Atomic(bool) stop;

static void *hammer(void *argument)
{
	uintptr_t which = (uintptr_t)argument;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		errno = 4711;
		CHECK(which % 2 ? cuStreamQuery(NULL) == CUDA_SUCCESS
				: cuStreamSynchronize(NULL) == CUDA_SUCCESS);
		CHECK(errno == 4711);
	}
	return NULL;
}

static void test_hammer(void)
{
	enum { THREADS = 8, ROUNDS = 500 };
	pthread_t threads[THREADS];
	uint64_t before;

	use_gpu();
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)checked_query);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamSynchronize], (void *)checked_synchronize);
	for (uintptr_t i = 0; i < THREADS; i++)
		threads[i] = start(hammer, (void *)i);
	for (int round = 0; round < ROUNDS; round++) {
		before = atomic_load(&calls);
		CLOSES();
		atomic_store(&acknowledged, true);
		for (int i = 0; i < round % 5; i++)
			sched_yield();
		atomic_store(&acknowledged, false);
		gcr_gate_open();
		while (round % 50 == 0 && atomic_load(&calls) == before)
			sched_yield();
	}
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++)
		end(threads[i]);
	CHECK(atomic_load(&broken_in) == 0);
	CHECK(atomic_load(&calls) > 0);
}

/* Where a sandbox forbids membarrier(2) all threads are counted, with barriers of their own. */
static void test_hammer_without_membarrier(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {GCR_ARRAY_SIZE(filter), filter};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	test_hammer();
	CHECK(gcr_gate_page()->slots_count == 1);
}

/* ---- one thread at the gate ---- */

static _Atomic(pid_t) at_gate;
static _Atomic(bool) passed;

static void *pass(void *argument)
{
	atomic_store(&at_gate, gettid());
	errno = 4711;
	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	CHECK(errno == 4711);
	atomic_store(&passed, true);
	return NULL;
}

static CUresult quick_query(CUstream stream)
{
	return CUDA_SUCCESS;
}

static pthread_t start_to_pass(void)
{
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)quick_query);
	return start(pass, NULL);
}

static bool waits_at_gate(void)
{
	return atomic_load(&at_gate) && sleeps_in_futex(atomic_load(&at_gate));
}

static void test_wait(void)
{
	pthread_t thread;

	use_gpu();
	CLOSES();
	CLOSES();
	thread = start_to_pass();
	wait_until(waits_at_gate);
	CHECK(!atomic_load(&passed));
	gcr_gate_open();
	end(thread);
	CHECK(atomic_load(&passed));
	gcr_gate_open();
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

static void test_page(void)
{
	CUcontext context = use_gpu();
	struct gcr_page *page = gcr_gate_page(), *seen;
	uint64_t before, sum = 0;
	CUdeviceptr memory;

	CHECK(page && page->magic == GCR_PAGE_MAGIC && page->version == GCR_PAGE_VERSION);
	CHECK(page->phase == GCR_PRELOAD_RUNNING && context);
	CHECK(gcr_gate_page_fd() >= 0 && fcntl(gcr_gate_page_fd(), F_GETFD) == FD_CLOEXEC);
	CHECK((fcntl(gcr_gate_page_fd(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) ==
	      (F_SEAL_SHRINK | F_SEAL_GROW));
	seen = mmap(NULL, sizeof(*seen), PROT_READ, MAP_SHARED, gcr_gate_page_fd(), 0);
	CHECK(seen != MAP_FAILED);
	CHECK(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
	before = gcr_thread.slot->submissions;
	CHECK(cuMemsetD8_v2(memory, 1, 4096) == CUDA_SUCCESS);
	CHECK(cuMemsetD8Async(memory, 1, 4096, NULL) == CUDA_SUCCESS);
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
	CHECK(gcr_thread.slot->submissions == before + 2);
	for (uint32_t i = 0; i < seen->slots_count; i++)
		sum += seen->slots[i].submissions;
	CHECK(sum == before + 2);
	CHECK(!seen->incomplete[0] && !seen->captures && gcr_thread.slot->inside == 0);
	CHECK(munmap(seen, sizeof(*seen)) == 0);
}

/* ---- callbacks ---- */

static _Atomic(int) callbacks;

static void call_in_callback(void *data)
{
	size_t free_bytes, total;

	/* Graph nodes come here as they are: the driver's threads are known by name. */
	if (data)
		CHECK(prctl(PR_SET_NAME, "cuda-EvtHandlr") == 0);
	wait_until(is_closed);
	CHECK(cuMemGetInfo_v2(&free_bytes, &total) == CUDA_ERROR_NOT_PERMITTED);
	atomic_fetch_add(&callbacks, 1);
}

static void call_in_stream_callback(CUstream stream, CUresult status, void *data)
{
	call_in_callback(NULL);
}

static void test_callbacks(void)
{
	CUgraphExec executable;
	CUstream stream;
	CUgraph graph;

	use_gpu();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuLaunchHostFunc(stream, call_in_callback, NULL) == CUDA_SUCCESS);
	CLOSES();
	CHECK(atomic_load(&callbacks) == 1);
	gcr_gate_open();
	CHECK(cuStreamAddCallback(stream, call_in_stream_callback, NULL, 0) == CUDA_SUCCESS);
	CLOSES();
	CHECK(atomic_load(&callbacks) == 2);
	gcr_gate_open();
	CHECK(cuLaunchHostFunc(stream, NULL, NULL) != CUDA_SUCCESS);

	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(cuLaunchHostFunc(stream, call_in_callback, stream) == CUDA_SUCCESS);
	CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS);
	for (int i = 0; i < 2; i++) {
		CHECK(cuGraphLaunch(executable, stream) == CUDA_SUCCESS);
		CLOSES();
		CHECK(atomic_load(&callbacks) == 3 + i);
		gcr_gate_open();
	}
	CHECK(cuGraphExecDestroy(executable) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

/* ---- threads that end ---- */

/* ThreadSanitizer has left the thread when the last round of destructors begins. */
#ifdef __SANITIZE_THREAD__
#define ROUNDS_OF_DESTRUCTORS 3
#else
#define ROUNDS_OF_DESTRUCTORS PTHREAD_DESTRUCTOR_ITERATIONS
#endif

static pthread_key_t late_key;
static _Atomic(int) late_calls;

/* Runs again and again, before and after our own destructor. */
static void call_late(void *value)
{
	uintptr_t left = (uintptr_t)value;

	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	atomic_fetch_add(&late_calls, 1);
	if (left > 1)
		pthread_setspecific(late_key, (void *)(left - 1));
}

static void *come_and_go(void *context)
{
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	pthread_setspecific(late_key, (void *)ROUNDS_OF_DESTRUCTORS);
	return NULL;
}

static void test_destructors(void)
{
	CUcontext context = use_gpu();

	CHECK(pthread_key_create(&late_key, call_late) == 0);
	for (int i = 0; i < 100; i++)
		end(start(come_and_go, context));
	CHECK(atomic_load(&late_calls) == 100 * ROUNDS_OF_DESTRUCTORS);
	/* Those in the last round of destructors leave a slot behind: found again in time. */
	CHECK(gcr_gate_page()->slots_count <= 110);
	CLOSES();
	gcr_gate_open();
}

static void *come(void *context)
{
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	return NULL;
}

static void test_short_lives(void)
{
	enum { AT_ONCE = 10, ROUNDS = 1000 };
	CUcontext context = use_gpu();
	pthread_t threads[AT_ONCE];

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < AT_ONCE; i++)
			threads[i] = start(come, context);
		if (round % 100 == 0) {
			CLOSES();
			gcr_gate_open();
		}
		for (int i = 0; i < AT_ONCE; i++)
			end(threads[i]);
	}
	CHECK(gcr_gate_page()->slots_count <= 1 + 1 + AT_ONCE);
}

/* ---- more threads than slots ---- */

static _Atomic(bool) may_return, is_inside;

static CUresult slow_query(CUstream stream)
{
	atomic_store(&is_inside, true);
	while (!atomic_load(&may_return))
		sched_yield();
	return CUDA_SUCCESS;
}

static bool inside_now(void)
{
	return atomic_load(&is_inside);
}

static void *query(void *argument)
{
	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	CHECK(argument || !gcr_thread.slot);
	return NULL;
}

static void test_no_slot_left(void)
{
	struct gcr_page *page;
	pid_t self = gettid(), dead;
	pthread_t thread;

	use_gpu();
	page = gcr_gate_page();
	for (uint32_t i = page->slots_count; i < GCR_PAGE_SLOTS; i++)
		page->slots[i].tid = (uint32_t)self;
	page->slots_count = GCR_PAGE_SLOTS;
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)slow_query);
	thread = start(query, NULL);
	wait_until(inside_now);
	expect_timeout("cuStreamQuery has not returned");
	atomic_store(&may_return, true);
	CLOSES();
	gcr_gate_open();
	end(thread);
	CHECK(page->slots[0].tid == 0);

	/* That of a dead thread is taken. (No thread has the number of this process's parent.) */
	dead = getppid();
	page->slots[4711].tid = (uint32_t)dead;
	page->slots[4711].inside = 1;
	CLOSES();
	gcr_gate_open();
	end(start(query, page));
	CHECK(page->slots[4711].tid != (uint32_t)dead && page->slots[4711].inside == 0);
}

/* ---- what it waits for ---- */

static uint32_t *make_flag(CUstream *ret_stream)
{
	uint32_t *flag;

	CHECK(cuMemHostAlloc((void **)&flag, 4096, 0) == CUDA_SUCCESS);
	*flag = 0;
	CHECK(cuStreamCreate(ret_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	return flag;
}

static void spin(uint32_t *flag, CUstream stream)
{
	void *parameters[] = {&flag};
	CUfunction function;
	CUmodule module;

	CHECK(cuModuleLoadData(&module, sim_ptx) == CUDA_SUCCESS);
	CHECK(cuModuleGetFunction(&function, module, "gpucr_spin") == CUDA_SUCCESS);
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL) ==
	      CUDA_SUCCESS);
}

static void test_work(void)
{
	pthread_t thread;
	CUstream stream;
	uint32_t *flag;
	int wake[2];

	use_gpu();
	flag = make_flag(&stream);
	spin(flag, stream);
	expect_timeout("GPU 0 has not finished its work");
	CHECK(is_closed());
	thread = start_to_pass();
	wait_until(waits_at_gate);

	/* Called away. */
	CHECK(pipe2(wake, O_CLOEXEC) == 0 && write(wake[1], "", 1) == 1);
	CHECK(gcr_gate_close(30 * SECOND, wake[0], &failure) == -EINTR);
	CHECK(is_closed() && !atomic_load(&passed));
	expect_timeout("GPU 0 has not finished its work");
	gcr_gate_open();
	end(thread);
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
	CLOSES();
	gcr_gate_open();
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

static void *synchronize(void *argument)
{
	void **arguments = argument;

	CHECK(cuCtxSetCurrent(arguments[0]) == CUDA_SUCCESS);
	CHECK(cuStreamSynchronize(arguments[1]) == CUDA_SUCCESS);
	return NULL;
}

static bool somebody_inside(void)
{
	uint32_t inside, tid;

	return gcr_threads_inside(&inside, &tid) && inside == 1 + GCR_ENTRY_cuStreamSynchronize;
}

static void test_waiting_call(void)
{
	CUcontext context = use_gpu();
	CUstream stream;
	uint32_t *flag = make_flag(&stream);
	void *arguments[] = {context, stream};
	pthread_t thread;

	spin(flag, stream);
	thread = start(synchronize, arguments);
	wait_until(somebody_inside);
	expect_timeout("cuStreamSynchronize has not returned");
	CHECK(strstr(failure.words, "the GPU has not finished its work"));
	CHECK(is_closed());
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
	CLOSES();
	gcr_gate_open();
	end(thread);
}

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

	/* The closer has been here: it opens the gate for the capture, and waits. */
	while (!__atomic_load_n(&page->captures, __ATOMIC_SEQ_CST))
		sched_yield();
	atomic_store(&may_return, true);
	return NULL;
}

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
	/* Nothing of ours has broken it. */
	CHECK(cuGraphDestroy(graph_of_thread) == CUDA_SUCCESS);

	/* One that is ended by nobody: its stream is destroyed. */
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	CHECK(page->captures == 0);

	/* ... or ends without our knowledge. */
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(GCR_REAL(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	CLOSES();
	CHECK(page->captures == 0);
	gcr_gate_open();

	/* ... or its context goes. */
	CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
	CHECK(page->captures == 0);
}

/* The thread's own default stream: a name that means another stream in every thread. */
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

	/* A thread that ends without ending it. */
	end(start(begin_own_and_end, context));
	CHECK(page->captures == 1);
	gcr_captures_verify();
	CHECK(page->captures == 0);
}

/* A capture that a call on its way in begins, with the gate closing behind it. */
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
	/* Passes only if the gate has opened again. */
	CHECK(cuStreamEndCapture(captured, &graph) != CUDA_SUCCESS);
	return NULL;
}

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

	/* Every one of them is waited for, whichever is current. */
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

	/* One that came and one that went without our knowledge. */
	CHECK(GCR_REAL(cuDevicePrimaryCtxRetain)(&primary, 0) == CUDA_SUCCESS);
	CHECK(is_alive(primary));
	CHECK(GCR_REAL(cuDevicePrimaryCtxRelease_v2)(0) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 2);

	CHECK(cuCtxDestroy_v2(one) == CUDA_SUCCESS && cuCtxDestroy_v2(two) == CUDA_SUCCESS);
	CHECK(gcr_contexts_alive(NULL, 0) == 0);
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

/* Nobody gets a new context with the handle of one whose tables are still being cleared. */
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

/* ---- children ---- */

/* @forked: the driver has noticed. */
static void call_in_child(int page_fd, bool forked)
{
	CUresult result;

	alarm(20);
	result = cuStreamQuery(NULL);
	CHECK(result == CUDA_ERROR_NOT_INITIALIZED || !forked);
	CHECK(!is_closed() && gcr_gate_page()->captures == 0);
	CHECK(gcr_thread.slot == &gcr_gate_page()->slots[1]);
	CHECK(fcntl(page_fd, F_GETFD) < 0 || gcr_gate_page_fd() == page_fd);
	_exit(0);
}

static void expect_exit(pid_t pid)
{
	int status;

	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_fork(void)
{
	struct gcr_page *page;
	uint32_t count;
	CUstream stream;
	int page_fd;
	pid_t pid;

	use_gpu();
	page = gcr_gate_page();
	page_fd = gcr_gate_page_fd();
	count = page->slots_count;
	CHECK(page_fd >= 0);
	CHECK(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	pid = fork();
	if (pid == 0)
		call_in_child(page_fd, true);
	expect_exit(pid);
	CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);

	CLOSES();
	pid = fork();
	if (pid == 0)
		call_in_child(page_fd, true);
	expect_exit(pid);
	/* By clone(2): no handler of fork(2) is called. */
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0)
		call_in_child(page_fd, false);
	expect_exit(pid);
	CHECK(is_closed() && page->slots_count == count && gcr_gate_page_fd() == page_fd);
	gcr_gate_open();
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

static void test_exempt(void)
{
	use_gpu();
	CLOSES();
	gcr_gate_exempt_thread();
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	gcr_gate_open();
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{"page", test_page},
	{"wait", test_wait},
	{"hammer", test_hammer},
	{"hammer without membarrier", test_hammer_without_membarrier},
	{"callbacks", test_callbacks},
	{"destructors", test_destructors},
	{"short lives", test_short_lives},
	{"no slot left", test_no_slot_left},
	{"work", test_work},
	{"waiting call", test_waiting_call},
	{"captures", test_captures},
	{"own stream captures", test_own_stream_captures},
	{"capture on its way", test_capture_on_its_way},
	{"contexts", test_contexts},
	{"context handle again", test_context_handle_again},
	{"fork", test_fork},
	{"exempt", test_exempt},
};

int main(int argc, char **argv)
{
	int failed = 0, status;

	sim_begin("2", "256M");
	alarm(0);
	setenv("GPUCR_SOCKET", "", 1);
	/* Loaded as by a program that is linked with it. */
	CHECK(dlopen(getenv("GPUCR_SIM_LIB"), RTLD_NOW | RTLD_GLOBAL));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(tests); i++) {
		pid_t pid;

		if (argc > 1 && strcmp(argv[1], tests[i].name) != 0)
			continue;
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			alarm(120);
			tests[i].run();
			exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			fprintf(stderr, "%s: status 0x%x\n", tests[i].name, status);
			failed = 1;
		}
	}
	return failed;
}
