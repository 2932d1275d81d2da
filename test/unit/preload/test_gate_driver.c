/* SPDX-License-Identifier: MIT */
/*
 * Threads that by their name may be the driver's: they pass a gate that is closing, never one that
 * is closed.
 */
#include <sys/prctl.h>

#include "test/unit/preload/gate_hammer.h"

static uint32_t level(void)
{
	return __atomic_load_n(&gcr_gate_closed, __ATOMIC_SEQ_CST);
}

static char cuda_name[] = "cuda00001400006";

/* A thread of the program with a name like those of the driver's threads. */
static void *pass_by_name(void *name)
{
	CHECK(prctl(PR_SET_NAME, name) == 0);
	atomic_store(&at_gate, gettid());
	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	atomic_store(&passed, true);
	return NULL;
}

/* A driver's thread waits at a closed gate and is counted as held. */
static void test_closed(void)
{
	pthread_t thread;

	use_gpu();
	CLOSES();
	CHECK(level() == GCR_GATE_LEVEL_DRAINED);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)quick_query);
	thread = start(pass_by_name, cuda_name);
	wait_until(waits_at_gate);
	CHECK(!atomic_load(&passed) && gcr_threads_held());
	CLOSES();
	gcr_gate_open();
	end(thread);
	CHECK(atomic_load(&passed) && !gcr_threads_held());
}

/* Give the GPU work that does not end, so that closing the gate times out. */
static uint32_t *keep_busy(void)
{
	CUstream stream;
	uint32_t *flag = make_flag(&stream);

	spin(flag, stream);
	expect_timeout("GPU 0 has not finished its work");
	CHECK(level() == GCR_GATE_LEVEL_DRAINED);
	return flag;
}

/*
 * A thread inherits the program's name, so a program with such a name must not pass the gate by it.
 */
static void test_program_of_that_name(void)
{
	pthread_t thread;
	uint32_t *flag;

	CHECK(prctl(PR_SET_NAME, "cuda-app") == 0);
	use_gpu();
	flag = keep_busy();
	thread = start_to_pass();
	wait_until(waits_at_gate);
	CHECK(!gcr_threads_held());
	expect_timeout("GPU 0 has not finished its work");
	CHECK(!atomic_load(&passed));
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
	CLOSES();
	CHECK(!atomic_load(&passed));
	gcr_gate_open();
	end(thread);
}

static CUresult slow_query(CUstream stream)
{
	atomic_store(&is_inside, true);
	while (!atomic_load(&may_return))
		sched_yield();
	return CUDA_SUCCESS;
}

/*
 * A driver's thread that was let through is counted: the gate does not close before its call
 * returns.
 */
static void test_counted(void)
{
	pthread_t thread;
	uint32_t *flag;

	use_gpu();
	flag = keep_busy();
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)slow_query);
	thread = start(pass_by_name, cuda_name);
	wait_until(gcr_threads_held);
	while (!atomic_load(&is_inside))
		CHECK(gcr_gate_close(20000, -1, &failure) == -ETIMEDOUT);
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
	expect_timeout("cuStreamQuery has not returned");
	atomic_store(&may_return, true);
	CLOSES();
	CHECK(level() == GCR_GATE_LEVEL_DRAINED);
	gcr_gate_open();
	end(thread);
}

/* ---- work that comes while the gate closes ---- */

static CUstream work_stream;
static _Atomic(int) called_back;

static void call_when_closed(void *data)
{
	size_t free_bytes, total;

	wait_until(is_closed);
	CHECK(cuMemGetInfo_v2(&free_bytes, &total) == CUDA_ERROR_NOT_PERMITTED);
	atomic_fetch_add(&called_back, 1);
}

/* A call that passed the gate before it was closed and gives the GPU work afterwards. */
static CUresult submit_late(CUstream stream)
{
	atomic_store(&is_inside, true);
	while (level() < GCR_GATE_LEVEL_CLOSED)
		sched_yield();
	return GCR_REAL(cuLaunchHostFunc)(work_stream, call_when_closed, NULL);
}

/* A host function that the driver runs is let through, and the gate closes in the end. */
static void test_late_work(void)
{
	pthread_t thread;

	use_gpu();
	CHECK(cuStreamCreate(&work_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)submit_late);
	thread = start(pass_by_name, cuda_name);
	wait_until(inside_now);
	CLOSES();
	CHECK(atomic_load(&called_back) == 1 && level() == GCR_GATE_LEVEL_DRAINED);
	gcr_gate_open();
	end(thread);
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

/* ---- many driver threads ---- */

static void *hammer(void *argument)
{
	CHECK(prctl(PR_SET_NAME, "cuda-train") == 0);
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	return NULL;
}

/* Driver threads call all the time: none is inside while the gate is closed. */
static void test_hammer(void)
{
	enum { THREADS = 4, ROUNDS = 200 };
	pthread_t threads[THREADS];

	use_gpu();
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)checked_query);
	for (int i = 0; i < THREADS; i++)
		threads[i] = start(hammer, NULL);
	hammer_gate(threads, THREADS, ROUNDS);
}

static const struct linked_test tests[] = {
	{"closed", test_closed},   {"program of that name", test_program_of_that_name},
	{"counted", test_counted}, {"late work", test_late_work},
	{"hammer", test_hammer},
};

int main(int argc, char **argv)
{
	return run_tests(tests, GCR_ARRAY_SIZE(tests), argv[1]);
}
