/* SPDX-License-Identifier: MIT */
/*
 * Stack limits are made small and set back. The preload library's sources are part of this program,
 * as in test_gate.c; the test acts as the agent. Every test has a process of its own.
 */
#include <errno.h>

#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/gate_close.h"
#include "backend/preload/memory/limit.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/unit/preload/linked.h"

#define DEFAULT_LIMIT 1024
#define CONTEXT_BYTES (64 * MIB) /* with the default limit; half of it with none */

static struct gcr_error failure;

static void close_gate(void)
{
	CHECK(gcr_gate_close(30 * GCR_USEC_PER_SEC, -1, &failure) == 0);
	gcr_gate_exempt_thread();
}

static CUcontext use_gpu(int device)
{
	CUcontext context;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	CHECK(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	return context;
}

static size_t limit_of(CUcontext context)
{
	CUcontext popped;
	size_t bytes;

	CHECK(cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
	CHECK(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
	CHECK(cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS && popped == context);
	return bytes;
}

static size_t free_bytes(void)
{
	size_t bytes, total;

	CHECK(cuMemGetInfo_v2(&bytes, &total) == CUDA_SUCCESS);
	return bytes;
}

/* Two contexts of one GPU and one of another, each with its own limit. */
static CUcontext contexts[3];
static const size_t limits[3] = {DEFAULT_LIMIT, 784, 4096};

static void make_contexts(void)
{
	CUcontext popped;

	contexts[0] = use_gpu(0);
	CHECK(cuCtxCreate_v2(&contexts[1], 0, 0) == CUDA_SUCCESS);
	/* The driver rounds up. */
	CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 777) == CUDA_SUCCESS);
	CHECK(cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS);
	contexts[2] = use_gpu(1);
	CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096) == CUDA_SUCCESS);
	use_gpu(0);
}

static void expect_own_limits(void)
{
	for (int i = 0; i < 3; i++)
		CHECK(limit_of(contexts[i]) == limits[i]);
}

/* Shrinking frees the stacks' memory, and restoring takes the same amount again. */
static void test_rounds(void)
{
	CUcontext current;
	size_t before;

	make_contexts();
	before = free_bytes();
	close_gate();
	for (int round = 0; round < 100; round++) {
		gcr_limits_shrink();
		for (int i = 0; i < 3; i++)
			CHECK(limit_of(contexts[i]) == 0);
		CHECK(free_bytes() ==
		      before + CONTEXT_BYTES / 2 * (limits[0] + limits[1]) / DEFAULT_LIMIT);
		CHECK(gcr_limits_restore(&failure) == 0);
		expect_own_limits();
		CHECK(free_bytes() == before);
	}
	CHECK(CU(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == contexts[0]);
}

/* Shrinking or restoring twice does no harm. */
static void test_twice(void)
{
	make_contexts();
	close_gate();
	CHECK(gcr_limits_restore(&failure) == 0);
	gcr_limits_shrink();
	gcr_limits_shrink();
	CHECK(limit_of(contexts[1]) == 0);
	CHECK(gcr_limits_restore(&failure) == 0);
	CHECK(gcr_limits_restore(&failure) == 0);
	expect_own_limits();
}

/* A limit that the program has set to 0 stays 0. */
static void test_none(void)
{
	make_contexts();
	CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 0) == CUDA_SUCCESS);
	close_gate();
	gcr_limits_shrink();
	CHECK(gcr_limits_restore(&failure) == 0);
	CHECK(limit_of(contexts[0]) == 0 && limit_of(contexts[1]) == limits[1]);
}

static void test_no_context(void)
{
	CHECK(cuInit(0) == CUDA_SUCCESS);
	close_gate();
	gcr_limits_shrink();
	CHECK(gcr_limits_restore(&failure) == 0);
}

/* A limit that cannot be shrunk stays; the others are shrunk. */
static void test_shrink_fails(void)
{
	make_contexts();
	close_gate();
	sim_set_faults("cuCtxSetLimit nth=2 error=CUDA_ERROR_UNKNOWN");
	gcr_limits_shrink();
	CHECK(limit_of(contexts[0]) == 0 && limit_of(contexts[2]) == 0);
	CHECK(limit_of(contexts[1]) == limits[1]);
	sim_set_faults("");
	CHECK(gcr_limits_restore(&failure) == 0);
	expect_own_limits();
}

/* A context whose limit cannot be read is not shrunk. */
static void test_shrink_cannot_look(void)
{
	make_contexts();
	close_gate();
	sim_set_faults("cuCtxGetLimit error=CUDA_ERROR_UNKNOWN");
	gcr_limits_shrink();
	sim_set_faults("cuCtxPushCurrent error=CUDA_ERROR_UNKNOWN");
	gcr_limits_shrink();
	sim_set_faults("");
	expect_own_limits();
}

/* Another allocation takes the memory; after it is freed, all limits are set back. */
static void test_no_room(void)
{
	CUdeviceptr thief;

	make_contexts();
	close_gate();
	gcr_limits_shrink();
	CHECK(cuMemAlloc_v2(&thief, free_bytes() - 40 * MIB) == CUDA_SUCCESS);
	for (int i = 0; i < 2; i++) {
		failure = (struct gcr_error){0};
		CHECK(gcr_limits_restore(&failure) == -ENOMEM && failure.number == ENOMEM);
		CHECK(strstr(failure.words, "GPU 0 of the program has too little free memory"));
	}
	CHECK(cuMemFree_v2(thief) == CUDA_SUCCESS);
	CHECK(gcr_limits_restore(&failure) == 0);
	expect_own_limits();
}

/* Each of the three contexts fails, in each of the calls. */
static void test_restore_fails(void)
{
	static const char *const calls[] = {"cuCtxSetLimit", "cuCtxPushCurrent"};

	make_contexts();
	close_gate();
	for (int i = 0; i < 6; i++) {
		char rule[96];

		gcr_limits_shrink();
		snprintf(rule, sizeof(rule), "%s nth=%d error=CUDA_ERROR_UNKNOWN", calls[i % 2],
			 i / 2 + 1);
		sim_set_faults(rule);
		CHECK(gcr_limits_restore(&failure) == -EIO);
		CHECK(strstr(failure.words, "CUDA_ERROR_UNKNOWN (999)"));
		sim_set_faults("");
		CHECK(gcr_limits_restore(&failure) == 0);
		expect_own_limits();
	}
}

static __typeof__(cuCtxSetLimit) *driver_set;

static void replace_set(__typeof__(cuCtxSetLimit) *set)
{
	driver_set = (__typeof__(cuCtxSetLimit) *)sim_symbol("cuCtxSetLimit");
	atomic_store(&gcr_reals[GCR_ENTRY_cuCtxSetLimit], (void *)(set ? set : driver_set));
}

static CUresult set_half(CUlimit limit, size_t value)
{
	return driver_set(limit, value / 2);
}

static CUresult set_but_fail(CUlimit limit, size_t value)
{
	CHECK(driver_set(limit, value) == CUDA_SUCCESS);
	return CUDA_ERROR_UNKNOWN;
}

/* A driver whose results do not match its actions. */
static void test_not_as_said(void)
{
	make_contexts();
	close_gate();
	replace_set(set_but_fail);
	gcr_limits_shrink();
	CHECK(limit_of(contexts[0]) == 0);
	replace_set(set_half);
	CHECK(gcr_limits_restore(&failure) == -EIO);
	CHECK(strstr(failure.words, "a stack limit was set back to"));
	replace_set(NULL);
	CHECK(gcr_limits_restore(&failure) == 0);
	expect_own_limits();
}

/* Contexts that ended in between are skipped when limits are restored. */
static void test_context_gone(void)
{
	make_contexts();
	close_gate();
	gcr_limits_shrink();
	CHECK(cuCtxDestroy_v2(contexts[1]) == CUDA_SUCCESS);
	CHECK(gcr_limits_restore(&failure) == 0);
	CHECK(limit_of(contexts[0]) == limits[0] && limit_of(contexts[2]) == limits[2]);
	gcr_limits_shrink();
	CHECK(cuDevicePrimaryCtxReset_v2(1) == CUDA_SUCCESS);
	CHECK(gcr_limits_restore(&failure) == 0);
	CHECK(limit_of(contexts[0]) == limits[0]);
}

/* A child has no driver: restoring does nothing and succeeds. */
static void test_fork(void)
{
	int status;
	pid_t pid;

	make_contexts();
	close_gate();
	gcr_limits_shrink();
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(gcr_limits_restore(&failure) == 0 ? 0 : 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(limit_of(contexts[2]) == 0);
	CHECK(gcr_limits_restore(&failure) == 0);
	expect_own_limits();
}

static const struct linked_test tests[] = {
	{"rounds", test_rounds},
	{"twice", test_twice},
	{"none", test_none},
	{"no context", test_no_context},
	{"shrink fails", test_shrink_fails},
	{"shrink cannot look", test_shrink_cannot_look},
	{"no room", test_no_room},
	{"restore fails", test_restore_fails},
	{"not as said", test_not_as_said},
	{"context gone", test_context_gone},
	{"fork", test_fork},
};

int main(int argc, char **argv)
{
	sim_begin("2", "1G");
	setenv("GPUCR_SIM_CONTEXT_BYTES", "64M", 1);
	return run_linked(tests, GCR_ARRAY_SIZE(tests), argv[1]);
}
