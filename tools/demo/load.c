/* SPDX-License-Identifier: MIT */
/*
 * gpucr-demo: activity beside the ticks: threads that submit work without pause, captures held
 * open, a kernel that does not end, forked children.
 */
#include "tools/demo/demo.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREAD_WORDS	   UINT64_C(4096)
#define THREAD_BYTES	   (UINT64_C(2) << 20)
#define THREAD_CHECK_TURNS 16 /* turns between checks; some turns allocate and free memory */
#define THREAD_ALLOC_TURNS 64

static struct submitter {
	struct demo *demo;
	const struct gpu *gpu;
	pthread_t thread;
	struct buffer buffer;
	CUdeviceptr result;
	uint64_t *sum; /* pinned */
	CUstream stream;
	CUevent event;
	uint32_t added;
} submitters[DEMO_THREADS_MAX];

static atomic_bool stopping;
static uint64_t submitters_running;
static volatile uint32_t *spin_flag; /* pinned */

static int submitter_open(struct submitter *submitter)
{
	struct buffer *buffer = &submitter->buffer;
	void *pinned;
	int error;

	buffer->words = THREAD_WORDS;
	buffer->seed = (uint32_t)(submitter - submitters + 1) * 0x85ebca6bu;
	if ((error = CU(cuCtxSetCurrent, submitter->gpu->context)) < 0 ||
	    (error = CU(cuMemAlloc_v2, &buffer->pointer, THREAD_BYTES)) < 0 ||
	    (error = CU(cuMemAlloc_v2, &submitter->result, sizeof(uint64_t))) < 0 ||
	    (error = CU(cuMemHostAlloc, &pinned, sizeof(uint64_t), 0)) < 0 ||
	    (error = CU(cuStreamCreate, &submitter->stream, CU_STREAM_NON_BLOCKING)) < 0 ||
	    (error = CU(cuEventCreate, &submitter->event, CU_EVENT_DISABLE_TIMING)) < 0)
		return error;
	submitter->sum = pinned;
	return launch(submitter->gpu->fill, submitter->stream,
		      (void *[]){&buffer->pointer, &buffer->words, &buffer->seed});
}

static int submitter_check(struct submitter *submitter)
{
	struct buffer *buffer = &submitter->buffer;
	uint64_t expected;
	CUresult result;
	int error;

	if ((error = CU(cuMemsetD32Async, submitter->result, 0, 2, submitter->stream)) < 0 ||
	    (error = launch(submitter->gpu->checksum, submitter->stream,
			    (void *[]){&buffer->pointer, &buffer->words, &submitter->result})) <
		    0 ||
	    (error = CU(cuMemcpyDtoHAsync_v2, submitter->sum, submitter->result,
			sizeof(*submitter->sum), submitter->stream)) < 0 ||
	    (error = CU(cuEventRecord, submitter->event, submitter->stream)) < 0)
		return error;
	result = driver.cuEventQuery(submitter->event);
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
		return driver_error("cuEventQuery", result);
	error = CU(cuStreamSynchronize, submitter->stream);
	if (error < 0)
		return error;
	expected = expected_sum(buffer, 0, buffer->words, submitter->added);
	if (*submitter->sum == expected)
		return 0;
	complain("thread %td: expected sum 0x%016" PRIx64 ", found 0x%016" PRIx64,
		 submitter - submitters, expected, *submitter->sum);
	return -EBADMSG;
}

static int submitter_turn(struct submitter *submitter, uint64_t turn)
{
	uint32_t value = (uint32_t)turn * GCR_DEMO_MULTIPLIER;
	struct buffer *buffer = &submitter->buffer;
	uint64_t first = 0;
	CUdeviceptr passing;
	int error;

	error = launch(submitter->gpu->add, submitter->stream,
		       (void *[]){&buffer->pointer, &first, &buffer->words, &value});
	submitter->added += value;
	if (!error && turn % THREAD_ALLOC_TURNS == 0) {
		error = CU(cuMemAlloc_v2, &passing, THREAD_BYTES);
		if (!error)
			error = CU(cuMemsetD32Async, passing, value, THREAD_WORDS,
				   submitter->stream);
		if (!error)
			error = CU(cuMemFree_v2, passing);
	}
	if (!error && turn % THREAD_CHECK_TURNS == 0)
		error = submitter_check(submitter);
	return error;
}

static void *submitter_run(void *argument)
{
	struct submitter *submitter = argument;
	int error = submitter_open(submitter);

	for (uint64_t turn = 1; !error && !atomic_load(&stopping); turn++)
		error = submitter_turn(submitter, turn);
	/* The main thread may be in a long driver call. */
	if (error < 0)
		_exit(EXIT_FAILURE);
	return NULL;
}

int threads_start(struct demo *demo)
{
	for (uint64_t i = 0; i < demo->thread_count; i++) {
		submitters[i].demo = demo;
		submitters[i].gpu = &demo->gpus[i % demo->gpu_count];
		if (pthread_create(&submitters[i].thread, NULL, submitter_run, &submitters[i])) {
			complain("no thread");
			return -EAGAIN;
		}
		submitters_running++;
	}
	return 0;
}

int threads_stop(struct demo *demo)
{
	int error = 0;

	atomic_store(&stopping, true);
	for (uint64_t i = 0; i < submitters_running; i++)
		pthread_join(submitters[i].thread, NULL);
	for (uint64_t i = 0; i < submitters_running && !error; i++) {
		error = gpu_use(demo, submitters[i].gpu);
		if (!error)
			error = CU(cuMemFree_v2, submitters[i].buffer.pointer);
		if (!error)
			error = CU(cuMemFree_v2, submitters[i].result);
	}
	return error;
}

int captured_add(struct demo *demo, struct buffer *buffer, uint64_t first, uint64_t words,
		 uint32_t value)
{
	struct timespec pause = {.tv_sec = (time_t)(demo->capture_msec / 1000),
				 .tv_nsec = (long)(demo->capture_msec % 1000) * 1000000};
	CUgraphExec exec;
	CUgraph graph;
	int error;

	/* Thread-local mode: calls of other threads do not affect the capture. */
	if ((error = gpu_use(demo, &demo->gpus[buffer->gpu])) < 0 ||
	    (error = CU(cuStreamBeginCapture_v2, demo->stream,
			CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)) < 0 ||
	    (error = launch(demo->gpus[buffer->gpu].add, demo->stream,
			    (void *[]){&buffer->pointer, &first, &words, &value})) < 0)
		return error;
	while (nanosleep(&pause, &pause) < 0 && errno == EINTR)
		;
	if ((error = CU(cuStreamEndCapture, demo->stream, &graph)) < 0 ||
	    (error = CU(cuGraphInstantiateWithFlags, &exec, graph, 0)) < 0 ||
	    (error = CU(cuGraphLaunch, exec, demo->stream)) < 0 ||
	    (error = CU(cuStreamSynchronize, demo->stream)) < 0 ||
	    (error = CU(cuGraphExecDestroy, exec)) < 0)
		return error;
	return CU(cuGraphDestroy, graph);
}

static void spin_end(int signal_number)
{
	(void)signal_number;
	*spin_flag = 1;
}

int spin_start(struct demo *demo)
{
	struct sigaction action = {.sa_handler = spin_end, .sa_flags = SA_RESTART};
	const struct gpu *gpu = &demo->gpus[0];
	CUdeviceptr flag;
	CUstream stream;
	void *pinned;
	int error;

	if ((error = gpu_use(demo, gpu)) < 0 ||
	    (error = CU(cuMemHostAlloc, &pinned, sizeof(uint64_t), CU_MEMHOSTALLOC_DEVICEMAP)) <
		    0 ||
	    (error = CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING)) < 0)
		return error;
	memset(pinned, 0, sizeof(uint64_t));
	spin_flag = pinned;
	sigaction(SIGUSR1, &action, NULL);
	/* With unified addressing the GPU uses the same address. */
	flag = (CUdeviceptr)pinned;
	return CU(cuLaunchKernel, gpu->spin, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&flag}, NULL);
}

void spin_stop(void)
{
	if (spin_flag)
		*spin_flag = 1;
}

static void child_run(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* A reader of our output waits until all writers have closed it. */
	close(STDOUT_FILENO);
	while (getppid() == parent)
		pause();
	_exit(EXIT_SUCCESS);
}

int children_start(const struct demo *demo)
{
	pid_t parent = getpid();

	for (uint64_t i = 0; i < demo->child_count; i++) {
		/* A direct clone(2): no library's fork handler runs in this child. */
		long pid = demo->clone ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();

		if (!pid)
			child_run(parent);
		if (pid < 0) {
			complain("no child: %s", strerror(errno));
			return -errno;
		}
	}
	return 0;
}
