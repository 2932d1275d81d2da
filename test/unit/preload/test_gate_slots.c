/* SPDX-License-Identifier: MIT */
/*
 * The slots in which threads at the gate are counted: threads that end or are cancelled leave none
 * behind, threads without a slot are counted too, and a child has its own.
 */
#include <fcntl.h>

#include "backend/preload/gate/context.h"
#include "backend/preload/memory/memory.h"
#include "test/unit/preload/test_gate.h"

/* ---- threads that end ---- */

/* ThreadSanitizer drops its state of a thread when the last round of destructors begins. */
#ifdef __SANITIZE_THREAD__
#define ROUNDS_OF_DESTRUCTORS 3
#else
#define ROUNDS_OF_DESTRUCTORS PTHREAD_DESTRUCTOR_ITERATIONS
#endif

static pthread_key_t late_key;
static _Atomic(int) late_calls;

/* A destructor that re-arms itself, so that it runs before and after the library's destructor. */
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
	/*
	 * Calls in the last round of destructors leave a slot in use; the gate reclaims such slots
	 * in time.
	 */
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
	enum { AT_ONCE = 10 };
	int rounds = test_few(300, 1000) / TEST_SLOW;
	CUcontext context = use_gpu();
	pthread_t threads[AT_ONCE];

	for (int round = 0; round < rounds; round++) {
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

static CUresult slow_query(CUstream stream)
{
	atomic_store(&is_inside, true);
	while (!atomic_load(&may_return))
		sched_yield();
	return CUDA_SUCCESS;
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
	pid_t dead;
	pthread_t thread;

	use_gpu();
	page = gcr_gate_page();
	no_slot_left();
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)slow_query);
	thread = start(query, NULL);
	wait_until(inside_now);
	expect_timeout("cuStreamQuery has not returned");
	atomic_store(&may_return, true);
	CLOSES();
	gcr_gate_open();
	end(thread);
	CHECK(page->slots[0].tid == 0);

	/*
	 * The slot of a dead thread is reused. (The parent's pid stands in: it is no thread of this
	 * process.)
	 */
	dead = getppid();
	page->slots[4711].tid = (uint32_t)dead;
	page->slots[4711].inside = 1;
	CLOSES();
	gcr_gate_open();
	end(start(query, page));
	CHECK(page->slots[4711].tid != (uint32_t)dead && page->slots[4711].inside == 0);
}

static CUresult query_until_cancelled(CUstream stream)
{
	atomic_store(&is_inside, true);
	while (!atomic_load(&may_return))
		pause();
	return CUDA_SUCCESS;
}

/* A thread that is cancelled during a call no longer counts as inside, with a slot or without. */
static void test_cancelled(void)
{
	pthread_t thread;

	use_gpu();
	atomic_store(&gcr_reals[GCR_ENTRY_cuStreamQuery], (void *)query_until_cancelled);
	for (int round = 0; round < 2; round++) {
		atomic_store(&is_inside, false);
		thread = start(query, &thread);
		wait_until(inside_now);
		expect_timeout("cuStreamQuery has not returned");
		gcr_gate_open();
		CHECK(pthread_cancel(thread) == 0 && end(thread) == PTHREAD_CANCELED);
		CLOSES();
		gcr_gate_open();
		no_slot_left();
	}
}

static void *want_cancelled(void *type)
{
	CHECK(pthread_setcanceltype(*(int *)type, NULL) == 0);
	if (*(int *)type == PTHREAD_CANCEL_DEFERRED)
		CHECK(pthread_cancel(pthread_self()) == 0);
	want_gpu(NULL);
	pthread_testcancel();
	return NULL;
}

/*
 * A cancelled thread does not count as wanting either: cancelled before the gate, and at the gate.
 */
static void test_cancelled_wanting(void)
{
	static int types[] = {PTHREAD_CANCEL_DEFERRED, PTHREAD_CANCEL_ASYNCHRONOUS};
	struct gcr_page *page;
	pthread_t thread;

	use_gpu();
	page = gcr_gate_page();
	for (size_t i = 0; i < GCR_ARRAY_SIZE(types); i++) {
		CLOSES();
		atomic_store(&at_gate, 0);
		thread = start(want_cancelled, &types[i]);
		wait_until(waits_at_gate);
		CHECK(__atomic_load_n(&page->wanting, __ATOMIC_SEQ_CST) == 1);
		if (types[i] == PTHREAD_CANCEL_DEFERRED)
			gcr_gate_open();
		else
			CHECK(pthread_cancel(thread) == 0);
		CHECK(end(thread) == PTHREAD_CANCELED);
		CHECK(__atomic_load_n(&page->wanting, __ATOMIC_SEQ_CST) == 0);
		gcr_gate_open();
		no_slot_left();
	}
}

/* ---- children ---- */

/* Calls the driver in a child. @forked: the driver detects the fork and refuses the call. */
static void call_in_child(int page_fd, bool forked)
{
	CUresult result;

	alarm(20 * TEST_SLOW);
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
	/*
	 * A child of clone(2) runs no fork handlers. (ThreadSanitizer takes the child for a thread
	 * of this process.)
	 */
#ifndef __SANITIZE_THREAD__
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0)
		call_in_child(page_fd, false);
	expect_exit(pid);
#endif
	CHECK(is_closed() && page->slots_count == count && gcr_gate_page_fd() == page_fd);
	gcr_gate_open();
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

static void *call_in_vfork(void *argument)
{
	pid_t pid = vfork();

	if (pid == 0) {
		cuStreamQuery(NULL);
		cuInit(0);
		_exit(0);
	}
	expect_exit(pid);
	return NULL;
}

/* A vfork() child, which shares the memory, changes none of the parent's state. */
static void test_vfork(void)
{
	struct gcr_page *page;
	CUdeviceptr memory;

	use_gpu();
	page = gcr_gate_page();
	CHECK(cuMemAlloc_v2(&memory, 16 * MIB) == CUDA_SUCCESS);
	call_in_vfork(NULL);
	/* From a thread without a slot, which cannot take the quick path. */
	end(start(call_in_vfork, NULL));
	CHECK(gcr_gate_page() == page && page->extents == 1);
	CHECK(gcr_memory_describe(NULL, 0) == 1 && gcr_contexts_alive(NULL, 0) == 1);
	CHECK(cuMemFree_v2(memory) == CUDA_SUCCESS);
	CLOSES();
	gcr_gate_open();
}

static const struct linked_test tests[] = {
	{"destructors", test_destructors},
	{"short lives", test_short_lives},
	{"no slot left", test_no_slot_left},
	{"cancelled", test_cancelled},
	{"cancelled wanting", test_cancelled_wanting},
	{"fork", test_fork},
	{"vfork", test_vfork},
};

int main(int argc, char **argv)
{
	return run_tests(tests, GCR_ARRAY_SIZE(tests), argv[1]);
}
