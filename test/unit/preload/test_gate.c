/* SPDX-License-Identifier: MIT */
/*
 * Threads at the gate: threads that call all the time, wait, want the GPU, call from callbacks and
 * signal handlers, or have work under way.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "backend/preload/base/wakeup.h"
#include "test/unit/forbid.h"
#include "test/unit/preload/gate_hammer.h"

/* ---- driver's functions that check whether they may run now ---- */

/* Calls the driver again, through the wrapper. */
static CUresult checked_synchronize(CUstream stream)
{
	return cuStreamQuery(stream);
}

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
	enum { THREADS = 8 };
	int rounds = test_few(150, 500) / TEST_SLOW;
	pthread_t threads[THREADS];

	use_gpu();
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)checked_query);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamSynchronize], (void *)checked_synchronize);
	for (uintptr_t i = 0; i < THREADS; i++)
		threads[i] = start(hammer, (void *)i);
	hammer_gate(threads, THREADS, rounds);
}

/*
 * Where a sandbox forbids membarrier(2), every thread is counted, with memory barriers of its own.
 */
static void test_hammer_without_membarrier(void)
{
	forbid_call(SYS_membarrier);
	test_hammer();
	CHECK(gcr_gate_page()->slots_count == 1);
}

/* ---- one thread at the gate ---- */

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

/*
 * Threads held up at the gate are counted; threads that only query, or never had to wait, are not.
 */
static void test_wanting(void)
{
	struct gcr_page *page;
	pthread_t asks, wants[2];

	use_gpu();
	page = gcr_gate_page();
	CHECK(page->flags & GCR_PAGE_WANTING);
	for (int round = 0; round < 3; round++) {
		CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
		CHECK(__atomic_load_n(&page->wanting, __ATOMIC_SEQ_CST) == 0);
		CLOSES();
		atomic_store(&at_gate, 0);
		asks = start_to_pass();
		wait_until(waits_at_gate);
		CHECK(__atomic_load_n(&page->wanting, __ATOMIC_SEQ_CST) == 0);
		for (uint32_t i = 0; i < GCR_ARRAY_SIZE(wants); i++) {
			wants[i] = start_to_want();
			wait_until(waits_at_gate);
			CHECK(__atomic_load_n(&page->wanting, __ATOMIC_SEQ_CST) == i + 1);
		}
		gcr_gate_open();
		end(asks);
		for (size_t i = 0; i < GCR_ARRAY_SIZE(wants); i++)
			end(wants[i]);
		CHECK(__atomic_load_n(&page->wanting, __ATOMIC_SEQ_CST) == 0);
	}
}

static CUresult quick_memset(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream)
{
	return CUDA_SUCCESS;
}

static CUresult unfinished_query(CUstream stream)
{
	return CUDA_ERROR_NOT_READY;
}

/* Submits work and queries it, then queries again while the gate is closed. */
static void *work_and_poll(void *first_answer)
{
	CHECK(cuMemsetD8Async(4096, 1, 1, NULL) == CUDA_SUCCESS);
	CHECK(cuStreamQuery(NULL) == *(CUresult *)first_answer);
	atomic_store(&is_inside, true);
	while (!atomic_load(&may_return))
		sched_yield();
	atomic_store(&at_gate, gettid());
	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	return NULL;
}

/* A thread that queries work whose end it has not seen needs the GPU to make progress: counted. */
static void test_wanting_of_poller(void)
{
	static CUresult answers[] = {CUDA_SUCCESS, CUDA_ERROR_NOT_READY};
	struct gcr_page *page;
	pthread_t thread;

	use_gpu();
	page = gcr_gate_page();
	atomic_store(&gcr_reals[GCR_ENTRY_cuMemsetD8Async], (void *)quick_memset);
	for (uint32_t i = 0; i < GCR_ARRAY_SIZE(answers); i++) {
		atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery],
			     answers[i] ? (void *)unfinished_query : (void *)quick_query);
		atomic_store(&at_gate, 0);
		atomic_store(&is_inside, false);
		atomic_store(&may_return, false);
		thread = start(work_and_poll, &answers[i]);
		wait_until(inside_now);
		CLOSES();
		atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)quick_query);
		atomic_store(&may_return, true);
		wait_until(waits_at_gate);
		CHECK(__atomic_load_n(&page->wanting, __ATOMIC_SEQ_CST) == i);
		gcr_gate_open();
		end(thread);
		CHECK(__atomic_load_n(&page->wanting, __ATOMIC_SEQ_CST) == 0);
	}
}

/*
 * A call that gives the GPU no work may precede one that does, so a thread held up in it is
 * counted.
 */
static void *ask(void *argument)
{
	size_t free_bytes, total_bytes;

	atomic_store(&at_gate, gettid());
	CHECK(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_ERROR_INVALID_CONTEXT);
	return NULL;
}

static void test_wanting_of_asking(void)
{
	pthread_t thread;

	use_gpu();
	CLOSES();
	thread = start(ask, NULL);
	wait_until(waits_at_gate);
	CHECK(__atomic_load_n(&gcr_gate_page()->wanting, __ATOMIC_SEQ_CST) == 1);
	gcr_gate_open();
	end(thread);
}

/*
 * The program closes unknown descriptors, the wake-up one included: the gate works as before, and
 * no process is killed.
 */
static void test_wanting_without_wakeup(void)
{
	pthread_t thread;

	use_gpu();
	CHECK(gcr_wakeup_fd() >= 0);
	for (int fd = 3; fd < 65536; fd++)
		if (fd != gcr_gate_page_fd())
			close(fd);
	CHECK(gcr_wakeup_fd() == -1);
	CLOSES();
	thread = start_to_want();
	wait_until(waits_at_gate);
	CHECK(__atomic_load_n(&gcr_gate_page()->wanting, __ATOMIC_SEQ_CST) == 1);
	gcr_gate_open();
	end(thread);
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

/* ---- an unknown function is noted while the page is being made ---- */

static void *name_it(void *argument)
{
	gcr_gate_incomplete("cuFutureCall");
	return NULL;
}

static bool names_it;

/* Replaces the C library's function, by which the page is made; notes a function at that moment. */
int memfd_create(const char *name, unsigned int flags)
{
	if (names_it)
		end(start(name_it, NULL));
	return (int)syscall(SYS_memfd_create, name, flags);
}

static void test_named_early(void)
{
	names_it = true;
	CHECK(gcr_gate_page());
	names_it = false;
	CHECK(strcmp(gcr_gate_page()->incomplete, "cuFutureCall") == 0);
	gcr_gate_incomplete("cuLaterCall");
	CHECK(strcmp(gcr_gate_page()->incomplete, "cuFutureCall") == 0);
}

/* ---- callbacks ---- */

static _Atomic(int) callbacks;

static void call_in_callback(void *data)
{
	size_t free_bytes, total;

	/*
	 * In a graph the driver's thread calls the function without a wrapper; the gate then
	 * recognises the thread by its name.
	 */
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

/* ---- signals ---- */

static void call_in_handler(int number)
{
	int saved_errno = errno;

	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	errno = saved_errno;
}

/* A signal handler that calls the driver may interrupt a thread anywhere on its way in or out. */
static void hammer_with_signals(void)
{
	enum { THREADS = 3 };
	int rounds = test_few(100, 300) / TEST_SLOW;
	struct sigaction action = {.sa_handler = call_in_handler, .sa_flags = SA_RESTART};
	pthread_t threads[THREADS];

	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)checked_query);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamSynchronize], (void *)checked_synchronize);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		threads[i] = start(hammer, (void *)i);
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < THREADS; i++)
			CHECK(pthread_kill(threads[i], SIGUSR1) == 0);
		/*
		 * The closing may fail: a thread may be on its way in while its signal handler
		 * waits at the gate.
		 */
		if (gcr_gate_close(20000, -1, &failure) == 0) {
			atomic_store(&acknowledged, true);
			sched_yield();
			atomic_store(&acknowledged, false);
		}
		gcr_gate_open();
	}
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++)
		end(threads[i]);
	CHECK(atomic_load(&broken_in) == 0);
	CLOSES();
	gcr_gate_open();
}

static void set_inside(uint32_t inside)
{
	__atomic_store_n(&gcr_thread.slot->inside, inside, __ATOMIC_RELEASE);
}

/* Passes the gate like a signal handler that interrupts a thread on its way into a call. */
static void *pass_on_way_in(void *argument)
{
	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	set_inside(1 + GCR_ENTRY_cuStreamQuery);
	atomic_store(&is_inside, true);
	while (!is_closed())
		sched_yield();
	pass(NULL);
	set_inside(0);
	return NULL;
}

static _Atomic(bool) is_drained;

static void *pass_when_drained(void *argument)
{
	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	atomic_store(&is_inside, true);
	/*
	 * The closed level alone is not enough: the gate sets it before the last check for threads
	 * inside.
	 */
	while (!atomic_load(&is_drained))
		sched_yield();
	set_inside(1 + GCR_ENTRY_cuStreamQuery);
	pass(NULL);
	set_inside(0);
	return NULL;
}

static void test_signal_on_way_in(void)
{
	pthread_t thread;

	use_gpu();
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)quick_query);
	/* A thread that the closing has not seen inside waits at the gate. */
	thread = start(pass_when_drained, NULL);
	wait_until(inside_now);
	CLOSES();
	atomic_store(&is_drained, true);
	wait_until(waits_at_gate);
	CHECK(!atomic_load(&passed));
	gcr_gate_open();
	end(thread);
	/* A thread that the closing has seen inside passes, and the closing waits for it. */
	atomic_store(&passed, false);
	atomic_store(&is_inside, false);
	thread = start(pass_on_way_in, NULL);
	wait_until(inside_now);
	CLOSES();
	CHECK(atomic_load(&passed));
	gcr_gate_open();
	end(thread);
}

static void test_signals(void)
{
	use_gpu();
	hammer_with_signals();
}

static void test_signals_without_slot(void)
{
	use_gpu();
	no_slot_left();
	hammer_with_signals();
}

/* ---- work that the closing waits for ---- */

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

	/* The wake-up descriptor interrupts the closing. */
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

static const struct linked_test tests[] = {
	{"page", test_page},
	{"named early", test_named_early},
	{"wait", test_wait},
	{"wanting", test_wanting},
	{"wanting of poller", test_wanting_of_poller},
	{"wanting of asking", test_wanting_of_asking},
	{"wanting without wakeup", test_wanting_without_wakeup},
	{"hammer", test_hammer},
	{"hammer without membarrier", test_hammer_without_membarrier},
	{"callbacks", test_callbacks},
	{"signal on way in", test_signal_on_way_in},
	{"signals", test_signals},
	{"signals without slot", test_signals_without_slot},
	{"work", test_work},
	{"waiting call", test_waiting_call},
	{"exempt", test_exempt},
};

int main(int argc, char **argv)
{
	return run_tests(tests, GCR_ARRAY_SIZE(tests), argv[1]);
}
