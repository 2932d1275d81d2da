/* SPDX-License-Identifier: MIT */
/*
 * The gate of libgpucr-preload-hip.so: its closing waits for work in every stream, as hipFree does,
 * and a wait that has been abandoned does not end a capture that begins afterwards.
 */
#include <dirent.h>

#include "test/unit/preload/hip_program.h"

static hipStream_t busy_stream;
static _Atomic(int) is_let_go;

static void block(void *data)
{
	while (!is_let_go)
		sched_yield();
}

/*
 * Work in a non-blocking stream delays the closing of the gate until it ends; the wait can be
 * abandoned.
 */
static void gate(void)
{
	struct gcr_error error;

	OK(HIP(hipStreamCreateWithFlags)(&busy_stream, hipStreamNonBlocking));
	OK(HIP(hipLaunchHostFunc)(busy_stream, block, NULL));
	memory()->exempt();
	for (int i = 0; i < 2; i++) {
		CHECK(memory()->gate_close(20000, -1, &error) == -ETIMEDOUT);
		CHECK(strstr(error.words, "GPU 0 has not finished its work"));
		memory()->gate_open();
	}
	is_let_go = 1;
	CHECK(memory()->gate_close(20000000, -1, &error) == 0);
	RESULT(HIP(hipStreamQuery)(busy_stream), hipSuccess);
	memory()->gate_open();
	CHECK(memory()->gate_close(20000000, -1, &error) == 0);
	memory()->gate_open();
}

/* hipFree waits for all work that was submitted before it, in every stream. */
static void *freed;
static _Atomic(int) is_freed;

static void *free_it(void *nothing)
{
	OK(HIP(hipFree)(freed));
	is_freed = 1;
	return NULL;
}

static void free_waits(void)
{
	pthread_t thread;

	OK(HIP(hipMalloc)(&freed, 4 * MIB));
	OK(HIP(hipStreamCreateWithFlags)(&busy_stream, hipStreamNonBlocking));
	OK(HIP(hipLaunchHostFunc)(busy_stream, block, NULL));
	OK(HIP(hipMemsetD8Async)(freed, 1, 4 * MIB, busy_stream));
	CHECK(pthread_create(&thread, NULL, free_it, NULL) == 0);
	for (int i = 0; i < 1000 && !is_freed; i++)
		sched_yield();
	CHECK(!is_freed && owns(freed));
	is_let_go = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(is_freed && !owns(freed));
}

static bool is_waiting(void)
{
	struct dirent *entry;
	char path[300], name[16] = "";
	DIR *tasks = opendir("/proc/self/task");
	bool found = false;

	CHECK(tasks);
	while ((entry = readdir(tasks))) {
		FILE *comm;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		comm = fopen(path, "re");
		if (comm && fgets(name, sizeof(name), comm) &&
		    strncmp(name, "gpucr-idle", strlen("gpucr-idle")) == 0)
			found = true;
		if (comm)
			fclose(comm);
	}
	closedir(tasks);
	return found;
}

/* Waits until the thread that waits for the GPUs has returned and ended. */
static void expect_no_wait(void)
{
	while (is_waiting())
		sched_yield();
}

static hipStream_t begin_capture(void)
{
	hipStream_t stream;

	OK(HIP(hipStreamCreateWithFlags)(&stream, hipStreamNonBlocking));
	OK(HIP(hipStreamBeginCapture)(stream, hipStreamCaptureModeGlobal));
	return stream;
}

static void end_capture(hipStream_t stream)
{
	hipGraph_t graph = NULL;

	OK(HIP(hipStreamEndCapture)(stream, &graph));
	CHECK(graph);
	OK(HIP(hipGraphDestroy)(graph));
}

/*
 * A wait for two GPUs is abandoned at the first GPU. When the first GPU has finished, the waiting
 * thread must not continue with the second: that would end the capture which has begun since.
 */
static void capture_after_wait(void)
{
	struct gcr_error error;
	hipStream_t stream;
	void *start;

	OK(HIP(hipSetDevice)(1));
	OK(HIP(hipMalloc)(&start, 4 * MIB)); /* the GPU is in use */
	OK(HIP(hipSetDevice)(0));
	OK(HIP(hipStreamCreateWithFlags)(&busy_stream, hipStreamNonBlocking));
	OK(HIP(hipLaunchHostFunc)(busy_stream, block, NULL));
	memory()->exempt();
	CHECK(memory()->gate_close(20000, -1, &error) == -ETIMEDOUT);
	memory()->gate_open();
	stream = begin_capture();
	is_let_go = 1;
	expect_no_wait();
	end_capture(stream);
	CHECK(memory()->gate_close(20000000, -1, &error) == 0);
	memory()->gate_open();
}

/* The wait is abandoned before it has begun: the capture begins after that. */
static void capture_in_wait(void)
{
	struct gcr_error error;

	hipStream_t stream;

	OK(HIP(hipStreamCreateWithFlags)(&busy_stream, hipStreamNonBlocking));
	memory()->exempt();
	for (int i = 0; i < 30; i++) {
		is_let_go = 0;
		OK(HIP(hipLaunchHostFunc)(busy_stream, block, NULL));
		/* The waiting thread may or may not reach its call within this time. */
		CHECK(memory()->gate_close(10 * i, -1, &error) == -ETIMEDOUT);
		memory()->gate_open();
		stream = begin_capture();
		is_let_go = 1;
		expect_no_wait();
		end_capture(stream);
	}
}

static const struct subject subjects[] = {
	{.name = "capture after a wait", .run = capture_after_wait, .gpus = "2"},
	{.name = "capture in a wait", .run = capture_in_wait},
	{.name = "gate", .run = gate},
	{.name = "free waits", .run = free_waits},
};

int main(int argc, char **argv)
{
	if (run_one(argc, argv, subjects, GCR_ARRAY_SIZE(subjects)))
		return 0;
	run_all(subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}
