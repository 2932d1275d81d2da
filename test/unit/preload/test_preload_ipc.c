/* SPDX-License-Identifier: MIT */
/*
 * Legacy CUDA IPC between programs with libgpucr-preload.so: IPC works on memory that can be handed
 * over as on the driver's own, and both sides know that they share memory.
 */
#include <sys/resource.h>

#include "backend/preload/ipc/ipc.h"
#include "test/unit/preload/preload_program.h"

#define BYTES (5 * MIB + 12)

/* ---- the importer, which takes orders from a socket ---- */

enum verb { OPEN, CLOSE, CHECK_BYTES, FILL_BYTES, SHARINGS, FORK_AND_DIE, QUIT };

struct order {
	enum verb verb;
	CUipcMemHandle handle;
	CUdeviceptr pointer;
	size_t bytes;
	unsigned seed, flags;
};

struct report {
	CUresult result;
	CUdeviceptr pointer;
	unsigned sharings;
};

static void obey(const struct order *order, struct report *report)
{
	switch (order->verb) {
	case OPEN:
		report->result =
			CU(cuIpcOpenMemHandle_v2)(&report->pointer, order->handle, order->flags);
		break;
	case CLOSE:
		report->result = CU(cuIpcCloseMemHandle)(order->pointer);
		break;
	case CHECK_BYTES:
		expect(order->pointer, order->bytes, order->seed);
		break;
	case FILL_BYTES:
		fill(order->pointer, order->bytes, order->seed);
		break;
	case SHARINGS:
		report->sharings = memory()->page()->sharings;
		break;
	case FORK_AND_DIE:
		/*
		 * The child holds none of the shared memory, and stays until its process group is
		 * killed.
		 */
		if (fork() == 0)
			for (;;)
				pause();
		_exit(0);
	case QUIT:
		_exit(0);
	}
}

static int importer_main(int socket)
{
	struct order order;

	alarm(100 * TEST_SLOW);
	use_device(0);
	while (recv(socket, &order, sizeof(order), 0) == sizeof(order)) {
		struct report report = {.result = CUDA_SUCCESS};

		obey(&order, &report);
		CHECK(send(socket, &report, sizeof(report), MSG_NOSIGNAL) == sizeof(report));
	}
	return 0;
}

static int importer_socket = -1;
static pid_t importer_pid;

static void be_apart(void)
{
	setpgid(0, 0);
}

static void be_apart_unloaded(void)
{
	setpgid(0, 0);
	unsetenv("LD_PRELOAD");
}

static void importer_start(bool preloaded)
{
	importer_pid =
		start_peer("importer", preloaded ? be_apart : be_apart_unloaded, &importer_socket);
}

static void tell(const struct order *order)
{
	CHECK(send(importer_socket, order, sizeof(*order), MSG_NOSIGNAL) == sizeof(*order));
}

static struct report hear(void)
{
	struct report report;

	CHECK(recv(importer_socket, &report, sizeof(report), 0) == sizeof(report));
	return report;
}

static struct report ask(struct order order)
{
	if (!order.flags)
		order.flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
	tell(&order);
	return hear();
}

static void importer_end(enum verb verb)
{
	tell(&(struct order){.verb = verb});
	CHECK(waitpid(importer_pid, NULL, 0) == importer_pid);
	close(TAKE_FD(importer_socket));
}

static CUdeviceptr opened(const CUipcMemHandle *handle)
{
	struct report report = ask((struct order){.verb = OPEN, .handle = *handle});

	RESULT(report.result, CUDA_SUCCESS);
	return report.pointer;
}

static void expect_refused(const CUipcMemHandle *handle, CUresult expected)
{
	RESULT(ask((struct order){.verb = OPEN, .handle = *handle}).result, expected);
}

static unsigned sharings_there(void)
{
	return ask((struct order){.verb = SHARINGS}).sharings;
}

/* Waits until the server's thread has seen that a connection has ended. */
static void expect_sharings(unsigned count)
{
	for (unsigned i = 0; i < 100000000 && memory()->page()->sharings != count; i++)
		sched_yield();
	CHECK(memory()->page()->sharings == count);
}

/* ---- the exporter ---- */

static CUdeviceptr large, small;
static CUipcMemHandle large_handle, small_handle;

static void export_both(void)
{
	CUipcMemHandle again;

	use_device(0);
	OK(CU(cuMemAlloc_v2)(&large, BYTES));
	OK(CU(cuMemAlloc_v2)(&small, 4096));
	CHECK(memory()->owns(large) && !memory()->owns(small));
	fill(large, BYTES, 1);
	fill(small, 4096, 2);
	OK(CU(cuIpcGetMemHandle)(&large_handle, large));
	OK(CU(cuIpcGetMemHandle)(&again, large + MIB));
	CHECK(memcmp(&again, &large_handle, sizeof(again)) == 0);
	RESULT(CU(cuIpcGetMemHandle)(NULL, large), CUDA_ERROR_INVALID_VALUE);
	CHECK(memory()->page()->sharings == 0);
	OK(CU(cuIpcGetMemHandle)(&small_handle, small));
	/*
	 * The small memory comes from the driver: its importers are unknown, so it counts as
	 * shared.
	 */
	CHECK(memory()->page()->sharings == 1);
}

static void exchange(void)
{
	CUdeviceptr there, again, small_there;

	export_both();
	importer_start(true);
	there = opened(&large_handle);
	CHECK(sharings_there() == 1);
	expect_sharings(2);
	ask((struct order){.verb = CHECK_BYTES, .pointer = there, .bytes = BYTES, .seed = 1});
	ask((struct order){.verb = FILL_BYTES, .pointer = there, .bytes = BYTES, .seed = 3});
	expect(large, BYTES, 3);
	small_there = opened(&small_handle);
	CHECK(sharings_there() == 2);
	ask((struct order){.verb = CHECK_BYTES, .pointer = small_there, .bytes = 4096, .seed = 2});

	/* Memory has to be closed as often as it was opened. */
	again = opened(&large_handle);
	CHECK(again == there && sharings_there() == 2);
	RESULT(ask((struct order){.verb = CLOSE, .pointer = there}).result, CUDA_SUCCESS);
	CHECK(sharings_there() == 2 && memory()->page()->sharings == 2);
	RESULT(ask((struct order){.verb = CLOSE, .pointer = there}).result, CUDA_SUCCESS);
	CHECK(sharings_there() == 1);
	expect_sharings(1);
	RESULT(ask((struct order){.verb = CLOSE, .pointer = there}).result,
	       CUDA_ERROR_INVALID_VALUE);
	RESULT(ask((struct order){.verb = CLOSE, .pointer = small_there}).result, CUDA_SUCCESS);
	CHECK(sharings_there() == 0);
	RESULT(ask((struct order){.verb = OPEN, .handle = large_handle, .flags = 8}).result,
	       CUDA_ERROR_INVALID_VALUE);
	expect(large, BYTES, 3);

	OK(CU(cuMemFree_v2)(small));
	CHECK(memory()->page()->sharings == 0);
	OK(CU(cuMemFree_v2)(large));
	expect_refused(&large_handle, CUDA_ERROR_INVALID_VALUE);
	importer_end(QUIT);
}

/* The sharing ends with the death of a process. */
static void deaths(void)
{
	export_both();
	OK(CU(cuMemFree_v2)(small));
	importer_start(true);
	opened(&large_handle);
	expect_sharings(1);
	kill(importer_pid, SIGKILL);
	CHECK(waitpid(importer_pid, NULL, 0) == importer_pid);
	expect_sharings(0);
	/* A forked child of the importer does not keep the sharing. */
	importer_start(true);
	opened(&large_handle);
	expect_sharings(1);
	importer_end(FORK_AND_DIE);
	expect_sharings(0);
	kill(-importer_pid, SIGKILL);
	/* Nor does a forked child of the exporter. */
	importer_start(true);
	opened(&large_handle);
	expect_sharings(1);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0)
		for (;;)
			pause();
	importer_end(QUIT);
	expect_sharings(0);
	kill(child, SIGKILL);
	CHECK(waitpid(child, NULL, 0) == child);
	OK(CU(cuMemFree_v2)(large));
}

/* The exporter, a second process, dies; the importer can then no longer reach it. */
static void exporter_dies(void)
{
	struct order order = {.verb = OPEN, .flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS};
	CUdeviceptr pointer;
	int pipes[2];
	pid_t pid;

	CHECK(pipe(pipes) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		export_both();
		CHECK(write(pipes[1], &large_handle, sizeof(large_handle)) == sizeof(large_handle));
		for (;;)
			pause();
	}
	CHECK(read(pipes[0], &order.handle, sizeof(order.handle)) == sizeof(order.handle));
	use_device(0);
	OK(CU(cuIpcOpenMemHandle_v2)(&pointer, order.handle, order.flags));
	expect(pointer, BYTES, 1);
	CHECK(memory()->page()->sharings == 1);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
	/* The memory exists as long as it is mapped. */
	expect(pointer, BYTES, 1);
	OK(CU(cuIpcCloseMemHandle)(pointer));
	CHECK(memory()->page()->sharings == 0);
	RESULT(CU(cuIpcOpenMemHandle_v2)(&pointer, order.handle, order.flags),
	       CUDA_ERROR_INVALID_VALUE);
}

/* Memory that was thawed can be shared like memory that was allocated here. */
static void thawed(void)
{
	CUdeviceptr there;

	export_both();
	OK(CU(cuMemFree_v2)(small));
	worker_start();
	freeze();
	thaw();
	worker_stop();
	importer_start(true);
	there = opened(&large_handle);
	ask((struct order){.verb = CHECK_BYTES, .pointer = there, .bytes = BYTES, .seed = 1});
	expect_sharings(1);
	importer_end(QUIT);
	expect_sharings(0);
	expect(large, BYTES, 1);
}

/* While the exporter's gate is closed, new importers wait. */
static void gated(void)
{
	struct order order = {.verb = OPEN, .flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS};
	struct report report;

	export_both();
	OK(CU(cuMemFree_v2)(small));
	importer_start(true);
	CHECK(sharings_there() == 0);
	memory()->exempt();
	DONE(memory()->gate_close(30000000, -1, &failure));
	order.handle = large_handle;
	tell(&order);
	for (int i = 0; i < 10000; i++)
		sched_yield();
	CHECK(recv(importer_socket, &report, sizeof(report), MSG_DONTWAIT) < 0);
	CHECK(memory()->page()->sharings == 0);
	memory()->gate_open();
	report = hear();
	RESULT(report.result, CUDA_SUCCESS);
	CHECK(memory()->page()->sharings == 1);
	importer_end(QUIT);
}

#ifdef GCR_HIP
#define DRIVER_KNOWS_NO_SUCH 17 /* hipErrorInvalidDevicePointer */
#else
#define DRIVER_KNOWS_NO_SUCH CUDA_ERROR_INVALID_VALUE
#endif

/*
 * A handle of the library is invalid in a process without it; and a process's own handle is refused
 * as the driver does.
 */
static void refusals(void)
{
	CUdeviceptr pointer;

	export_both();
	RESULT(CU(cuIpcOpenMemHandle_v2)(&pointer, large_handle,
					 CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
	       CUDA_ERROR_INVALID_CONTEXT);
	RESULT(CU(cuIpcOpenMemHandle_v2)(&pointer, small_handle,
					 CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
	       CUDA_ERROR_INVALID_CONTEXT);
	RESULT(CU(cuIpcCloseMemHandle)(large), CUDA_ERROR_INVALID_VALUE);
	importer_start(false);
	expect_refused(&large_handle, DRIVER_KNOWS_NO_SUCH);
	RESULT(ask((struct order){.verb = OPEN, .handle = small_handle}).result, CUDA_SUCCESS);
	importer_end(QUIT);
#ifndef GCR_HIP /* in HIP some GPU is always current */
	OK(CU(cuCtxSetCurrent)(NULL));
	RESULT(CU(cuIpcGetMemHandle)(&large_handle, large), CUDA_ERROR_INVALID_CONTEXT);
#endif
}

/* The importer's current GPU is not the GPU that has the memory. */
static void other_gpu(void)
{
	CUipcMemHandle handle;
	CUdeviceptr pointer;
	int pipes[2], status;
	pid_t pid;

	CHECK(pipe(pipes) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CUdeviceptr own;

		CHECK(read(pipes[0], &handle, sizeof(handle)) == sizeof(handle));
		use_device(0);
		use_device(1);
		OK(CU(cuIpcOpenMemHandle_v2)(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		OK(CU(cuMemAlloc_v2)(&own, BYTES));
		OK(CU(cuMemcpyDtoDAsync_v2)(own, pointer, BYTES, NULL));
		OK(CU(cuStreamSynchronize)(NULL));
		expect(own, BYTES, 1);
		/* The sharing ends with the context that opened the memory. */
		CHECK(memory()->page()->sharings == 1);
		reset_device(1);
		CHECK(memory()->page()->sharings == 0);
		_exit(0);
	}
	export_both();
	CHECK(write(pipes[1], &large_handle, sizeof(large_handle)) == sizeof(large_handle));
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	expect_sharings(1);
}

static void import_fails(void)
{
	CUipcMemHandle handle;
	CUdeviceptr pointer;
	int pipes[2], back[2];
	pid_t pid;

	CHECK(pipe(pipes) == 0 && pipe(back) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		unsetenv("GPUCR_SIM_FAULTS");
		export_both();
		OK(CU(cuMemFree_v2)(small));
		CHECK(write(pipes[1], &large_handle, sizeof(large_handle)) == sizeof(large_handle));
		CHECK(read(back[0], &handle, 1) == 1);
		expect_sharings(0);
		_exit(0);
	}
	CHECK(read(pipes[0], &handle, sizeof(handle)) == sizeof(handle));
	use_device(0);
	RESULT(CU(cuIpcOpenMemHandle_v2)(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
	       CUDA_ERROR_MAP_FAILED);
	CHECK(memory()->page()->sharings == 0 && open_descriptors() == 0);
	CHECK(write(back[1], "x", 1) == 1);
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int64_t processor_usec(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/*
 * An exporter has reached the hard limit of its descriptors: importers wait, without using the CPU.
 */
static void no_descriptors(void)
{
	struct order order = {.verb = OPEN, .flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS};
	const struct rlimit limit = {64, 64};
	int fds[64], count = 0;
	struct report report;
	int64_t began_usec;

	export_both();
	importer_start(true);
	CHECK(sharings_there() == 0);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while ((fds[count] = dup(importer_socket)) >= 0)
		count++;
	CHECK(count > 0 && errno == EMFILE);
	order.handle = large_handle;
	tell(&order);
	began_usec = processor_usec();
	usleep(500000);
	CHECK(processor_usec() - began_usec < 250000);
	CHECK(recv(importer_socket, &report, sizeof(report), MSG_DONTWAIT) < 0);
	while (count > 0)
		close(fds[--count]);
	report = hear();
	RESULT(report.result, CUDA_SUCCESS);
	importer_end(QUIT);
}

static void *free_small(void *unused)
{
	use_device(0);
	OK(CU(cuMemFree_v2)(small));
	return NULL;
}

/*
 * Another thread gets the freed address and exports it before the call that freed the address has
 * returned.
 */
static void address_used_again(void)
{
	CUipcMemHandle handle;
	CUdeviceptr again = 0;
	pthread_t thread;

	export_both();
	CHECK(pthread_create(&thread, NULL, free_small, NULL) == 0);
	while (again != small)
		OK(CU(cuMemAlloc_v2)(&again, 4096));
	OK(CU(cuIpcGetMemHandle)(&handle, again));
	CHECK(memory()->page()->sharings == 2);
	pthread_join(thread, NULL);
	CHECK(memory()->page()->sharings == 1);
	OK(CU(cuMemFree_v2)(again));
	CHECK(memory()->page()->sharings == 0);
}

/* After a failed free the memory is still exported. */
static void free_fails(void)
{
	export_both();
	RESULT(CU(cuMemFree_v2)(small), CUDA_ERROR_UNKNOWN);
	CHECK(memory()->page()->sharings == 1);
	OK(CU(cuMemFree_v2)(small));
	CHECK(memory()->page()->sharings == 0);
}

static void events(void)
{
	CUipcEventHandle handle;
	CUevent event;

	use_device(0);
	OK(CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CHECK(memory()->page()->obstacle[0] == '\0');
	OK(CU(cuIpcGetEventHandle)(&handle, event));
	CHECK(strstr(memory()->page()->obstacle, "event"));
}

/*
 * All users can see the name of the exporter's socket. Who knows that and an address gets neither
 * memory that the program has not exported, nor, without its handle, memory that it has.
 */
static void made_up(void)
{
	struct gcr_ipc_token token, other;
	CUipcMemHandle handle;
	CUdeviceptr exported, kept;

	use_device(0);
	OK(CU(cuMemAlloc_v2)(&exported, BYTES));
	OK(CU(cuMemAlloc_v2)(&kept, BYTES));
	OK(CU(cuIpcGetMemHandle)(&handle, exported));
	memcpy(&token, &handle, sizeof(token));
	importer_start(true);
	for (uint64_t id = 1; id < token.id + 16; id++) {
		other = token;
		other.id = id;
		other.address = kept;
		memcpy(&handle, &other, sizeof(handle));
		expect_refused(&handle, CUDA_ERROR_INVALID_VALUE);
	}
	other = token;
	memset(other.secret, 0, sizeof(other.secret));
	memcpy(&handle, &other, sizeof(handle));
	expect_refused(&handle, CUDA_ERROR_INVALID_VALUE);
	CHECK(memory()->page()->sharings == 0);
	memcpy(&handle, &token, sizeof(handle));
	opened(&handle);
	importer_end(QUIT);
}

static const struct subject subjects[] = {
	{.name = "made up", .run = made_up},
	{.name = "exchange", .run = exchange},
	{.name = "deaths", .run = deaths},
	{.name = "exporter dies", .run = exporter_dies},
	{.name = "thawed", .run = thawed},
	{.name = "gated", .run = gated},
	{.name = "refusals", .run = refusals},
	{.name = "other gpu", .run = other_gpu, .gpus = "2"},
	{.name = "import fails",
	 .run = import_fails,
	 .faults = "cuMemImportFromShareableHandle nth=1 error=CUDA_ERROR_UNKNOWN"},
	{.name = "map fails",
	 .run = import_fails,
	 .faults = "cuMemMap nth=1 error=CUDA_ERROR_UNKNOWN"},
	{.name = "access fails",
	 .run = import_fails,
	 .faults = "cuMemSetAccess nth=1 error=CUDA_ERROR_UNKNOWN"},
	{.name = "no descriptors", .run = no_descriptors},
	{.name = "address used again",
	 .run = address_used_again,
	 .faults = "cuMemFree nth=1 when=after delay_ms=500"},
	{.name = "free fails",
	 .run = free_fails,
	 .faults = "cuMemFree nth=1 error=CUDA_ERROR_UNKNOWN"},
	{.name = "events", .run = events},
};

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "importer") == 0)
		return importer_main(atoi(argv[2]));
	if (run_one(argc, argv, subjects, GCR_ARRAY_SIZE(subjects)))
		return 0;
	run_all(subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}
