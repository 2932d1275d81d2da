/* SPDX-License-Identifier: MIT */
/*
 * For tests of the gate. The preload library's sources are compiled into the program, so that
 * sanitizers see them. The plain function names are the wrappers, as in a program linked with
 * libcuda; the test takes the agent's part. Every test runs in its own process.
 */
#ifndef GPUCR_TEST_GATE_H
#define GPUCR_TEST_GATE_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/gate_close.h"
#include "backend/preload/gate/thread.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/unit/preload/linked.h"

#define SECOND GCR_USEC_PER_SEC

static struct gcr_error failure;

#define CLOSES()                                                               \
	do {                                                                   \
		int r_ = gcr_gate_close(30 * SECOND, -1, &failure);            \
		if (r_ < 0)                                                    \
			fprintf(stderr, "close: %d: %s\n", r_, failure.words); \
		CHECK(r_ == 0);                                                \
	} while (0)

/* Closing the gate must time out, with @words in the message. */
static inline void expect_timeout(const char *words)
{
	CHECK(gcr_gate_close(20000, -1, &failure) == -ETIMEDOUT);
	if (!strstr(failure.words, words))
		fprintf(stderr, "'%s' instead of '%s'\n", failure.words, words);
	CHECK(failure.number == ETIMEDOUT && strstr(failure.words, words));
}

static inline bool is_closed(void)
{
	return __atomic_load_n(&gcr_gate_closed, __ATOMIC_SEQ_CST);
}

/* Like sim_context(), but calls the wrappers. */
static inline CUcontext use_gpu(void)
{
	CUcontext context;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	return context;
}

/* Waits until another thread makes the condition true. */
static inline void wait_until(bool (*condition)(void))
{
	while (!condition())
		sched_yield();
}

static inline pthread_t start(void *(*function)(void *), void *argument)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, function, argument) == 0);
	return thread;
}

static inline void *end(pthread_t thread)
{
	void *result;

	CHECK(pthread_join(thread, &result) == 0);
	return result;
}

/* A thread that waits at the gate sleeps in futex(2). */
static inline bool sleeps_in_futex(pid_t tid)
{
	char path[64], line[64] = "";
	_cleanup_fclose_ FILE *file = NULL;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	file = fopen(path, "re");
	return file && fgets(line, sizeof(line), file) && atoi(line) == SYS_futex &&
	       strstr(line, " 0x");
}

/* ---- one thread at the gate ---- */

static _Atomic(pid_t) at_gate;
static _Atomic(bool) passed;

/* Passes the gate with a call that only queries; errno must stay unchanged. */
static inline void *pass(void *argument)
{
	atomic_store(&at_gate, gettid());
	errno = 4711;
	CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS);
	CHECK(errno == 4711);
	atomic_store(&passed, true);
	return NULL;
}

static inline CUresult quick_query(CUstream stream)
{
	return CUDA_SUCCESS;
}

static inline pthread_t start_to_pass(void)
{
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)quick_query);
	return start(pass, NULL);
}

/* Calls a function that needs the GPU; without a context the function has no effect. */
static inline void *want_gpu(void *argument)
{
	atomic_store(&at_gate, gettid());
	CHECK(cuCtxSynchronize() == CUDA_ERROR_INVALID_CONTEXT);
	return NULL;
}

static inline pthread_t start_to_want(void)
{
	atomic_store(&at_gate, 0);
	return start(want_gpu, NULL);
}

static inline bool waits_at_gate(void)
{
	return atomic_load(&at_gate) && sleeps_in_futex(atomic_load(&at_gate));
}

/* Position of a test thread: inside the driver's function, and whether it may return. */
static _Atomic(bool) is_inside, may_return __attribute__((unused));

static inline bool inside_now(void)
{
	return atomic_load(&is_inside);
}

/* Takes all slots that are free: new threads find none. */
static inline void no_slot_left(void)
{
	struct gcr_page *page = gcr_gate_page();

	for (uint32_t i = 1; i < GCR_PAGE_SLOTS; i++)
		if (!page->slots[i].tid)
			page->slots[i].tid = (uint32_t)gettid();
	page->slots_count = GCR_PAGE_SLOTS;
}

/* Starts a kernel that ends when the returned flag is set. */
static inline uint32_t *make_flag(CUstream *ret_stream)
{
	uint32_t *flag;

	CHECK(cuMemHostAlloc((void **)&flag, 4096, 0) == CUDA_SUCCESS);
	*flag = 0;
	CHECK(cuStreamCreate(ret_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	return flag;
}

static inline void spin(uint32_t *flag, CUstream stream)
{
	void *parameters[] = {&flag};
	CUfunction function;
	CUmodule module;

	CHECK(cuModuleLoadData(&module, sim_ptx) == CUDA_SUCCESS);
	CHECK(cuModuleGetFunction(&function, module, "gpucr_spin") == CUDA_SUCCESS);
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL) ==
	      CUDA_SUCCESS);
}

/* Runs all tests, or only the one named on the command line. */
static inline int run_tests(const struct linked_test *tests, size_t count, const char *only)
{
	sim_begin("2", "256M");
	return run_linked(tests, count, only);
}

#endif
