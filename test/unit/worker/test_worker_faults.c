/* SPDX-License-Identifier: MIT */
/*
 * Sessions of gpucr-worker in which a driver call fails or hangs, or the worker or its daemon ends.
 * No memory of the process is lost, no VRAM stays in use, and the next session succeeds.
 */
#include <ftw.h>

#include "test/unit/worker/whole_sessions.h"

/*
 * One driver call fails once on the way out. Afterwards the process has its memory as before, and a
 * new session succeeds.
 */
static void test_faults_out(void)
{
	static const struct {
		const char *rule;
		int number;
		int result;
	} faults[] = {
		{"cuMemAddressReserve nth=1 error=CUDA_ERROR_OUT_OF_MEMORY", ENOMEM, 2},
		{"cuMemImportFromShareableHandle nth=4 error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuMemGetAllocationPropertiesFromHandle nth=2 error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuMemMap nth=3 error=CUDA_ERROR_OUT_OF_MEMORY", ENOMEM, 2},
		{"cuMemSetAccess nth=1 error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuMemcpyDtoHAsync nth=1 error=CUDA_ERROR_ECC_UNCORRECTABLE", EIO, 214},
		{"cuMemcpyDtoHAsync nth=5 error=CUDA_ERROR_ILLEGAL_ADDRESS", EIO, 700},
		{"cuEventRecord nth=2 error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuEventSynchronize nth=3 error=CUDA_ERROR_ECC_UNCORRECTABLE", EIO, 214},
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t idle = free_of(0), before;

	process_allocate(&process);
	before = free_of(0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker =
			worker_start(&(struct worker_options){.faults = faults[i].rule});
		int r = session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0);
		bool began = !r;

		if (!r)
			r = session_import(&worker, &process);
		if (!r)
			r = worker_do(&worker, GCR_MESSAGE_COPY);
		if (r != faults[i].number || worker_result.driver_result != faults[i].result)
			fprintf(stderr, "%s: %d: %s\n", faults[i].rule, r, worker_result.words);
		CHECK(r == faults[i].number && worker_result.driver_result == faults[i].result);
		if (began)
			DONE(worker_do(&worker, GCR_MESSAGE_END));
		for (size_t at = 0; at < FEW; at++)
			CHECK(process_check_handle(&process, at, process.handles[at]));
		go_out(&worker, &process);
		DONE(worker_do(&worker, GCR_MESSAGE_END));
		CHECK(worker_leaves(&worker) == 0);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
	CHECK(free_of(0) == idle);
}

/* The ring and the digester cannot be created as long as a driver call fails. */
static void test_unprepared(void)
{
	static const struct {
		const char *rule;
		int number;
		int result;
	} faults[] = {
		{"cuMemHostRegister comm=" WORKER_COMM " error=CUDA_ERROR_OUT_OF_MEMORY", ENOMEM,
		 2},
		{"cuStreamCreate comm=" WORKER_COMM " error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuEventCreate comm=" WORKER_COMM " error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuMemHostAlloc comm=" WORKER_COMM " error=CUDA_ERROR_OUT_OF_MEMORY", ENOMEM, 2},
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t idle = free_of(0);

	process_allocate(&process);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker;

		sim_set_faults(faults[i].rule);
		worker = worker_start(&(struct worker_options){0});
		REFUSED(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0),
			faults[i].number, "cu");
		CHECK(worker_result.driver_result == faults[i].result);
		sim_set_faults(NULL);
		go_out(&worker, &process);
		DONE(worker_do(&worker, GCR_MESSAGE_END));
		CHECK(worker_leaves(&worker) == 0);
	}
	process_destroy(&process);
	CHECK(free_of(0) == idle);
}

/*
 * The driver refuses the kernel: the host computes the digests, and the answer has a flag for this.
 */
static void test_host_digests(void)
{
	struct worker_options options = {.faults = "cuModuleLoadData error=CUDA_ERROR_INVALID_PTX"};
	struct worker worker = worker_start(&options);
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	process_allocate(&process);
	go_out(&worker, &process);
	CHECK(worker_result.flags & GCR_RESULT_HOST_DIGESTS);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	come_in(&worker, &process, 2);
	process_destroy(&process);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
}

/* The digest kernel fails, on the way out and in. */
static void test_faults_digests(void)
{
	static const struct {
		const char *rule;
		bool is_in;
	} faults[] = {
		{"cuLaunchKernel nth=1 error=CUDA_ERROR_LAUNCH_FAILED", false},
		{"cuEventRecord nth=1 error=CUDA_ERROR_LAUNCH_FAILED", false},
		{"cuEventSynchronize nth=1 error=CUDA_ERROR_LAUNCH_FAILED", false},
		{"cuLaunchKernel nth=2 error=CUDA_ERROR_LAUNCH_FAILED", true},
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker =
			worker_start(&(struct worker_options){.faults = faults[i].rule});

		process_allocate(&process);
		if (!faults[i].is_in) {
			DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
			DONE(session_import(&worker, &process));
			if (!worker_do(&worker, GCR_MESSAGE_COPY)) {
				fprintf(stderr, "not done: there is no kernel\n");
				worker_leaves(&worker);
				process_release(&process, true);
				break;
			}
			REFUSED(worker_result.error, EIO, "digests: cu");
			CHECK(worker_result.driver_result == 719);
			REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "7 of 7");
			DONE(worker_do(&worker, GCR_MESSAGE_END));
		}
		go_out(&worker, &process);
		process_release(&process, true);
		DONE(worker_do(&worker, GCR_MESSAGE_END));
		if (faults[i].is_in) {
			DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 0));
			DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
			REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EIO, "digests: cu");
			CHECK(worker_result.driver_result == 719);
			CHECK(session_export(&worker, &process) == EINVAL);
			DONE(worker_do(&worker, GCR_MESSAGE_END));
		}
		come_in(&worker, &process, 0);
		process_release(&process, true);
		CHECK(worker_leaves(&worker) == 0);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

static void test_faults_in(void)
{
	static const struct {
		const char *rule;
		uint16_t at; /* the request that fails */
		int number;
	} faults[] = {
		{"cuMemAddressReserve nth=2 error=CUDA_ERROR_OUT_OF_MEMORY", GCR_MESSAGE_SESSION_IN,
		 ENOMEM},
		{"cuMemCreate nth=3 error=CUDA_ERROR_OUT_OF_MEMORY", GCR_MESSAGE_CREATE, ENOMEM},
		{"cuMemCreate nth=1 error=CUDA_ERROR_UNKNOWN", GCR_MESSAGE_CREATE, EIO},
		{"cuMemMap nth=10 error=CUDA_ERROR_UNKNOWN", GCR_MESSAGE_CREATE, EIO},
		{"cuMemSetAccess nth=2 error=CUDA_ERROR_OUT_OF_MEMORY", GCR_MESSAGE_CREATE, ENOMEM},
		{"cuMemcpyHtoDAsync nth=4 error=CUDA_ERROR_ECC_UNCORRECTABLE", GCR_MESSAGE_COPY,
		 EIO},
		{"cuMemcpyHtoDAsync nth=1 error=CUDA_ERROR_UNKNOWN", GCR_MESSAGE_COPY, EIO},
		{"cuMemExportToShareableHandle nth=5 error=CUDA_ERROR_UNKNOWN", GCR_MESSAGE_EXPORT,
		 EIO},
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker =
			worker_start(&(struct worker_options){.faults = faults[i].rule});
		int r;

		process_allocate(&process);
		go_out(&worker, &process);
		DONE(worker_do(&worker, GCR_MESSAGE_END));
		process_release(&process, true);

		r = session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 1);
		CHECK(r == (faults[i].at == GCR_MESSAGE_SESSION_IN ? faults[i].number : 0));
		if (!r) {
			r = worker_do(&worker, GCR_MESSAGE_CREATE);
			CHECK(r == (faults[i].at == GCR_MESSAGE_CREATE ? faults[i].number : 0));
		}
		if (!r) {
			r = worker_do(&worker, GCR_MESSAGE_COPY);
			CHECK(r == (faults[i].at == GCR_MESSAGE_COPY ? faults[i].number : 0));
		}
		if (!r)
			CHECK(session_export(&worker, &process) == faults[i].number);
		if (faults[i].at != GCR_MESSAGE_SESSION_IN)
			DONE(worker_do(&worker, GCR_MESSAGE_END));
		come_in(&worker, &process, 1);
		process_release(&process, true);
		CHECK(worker_leaves(&worker) == 0);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

/* If the driver fails to release memory, the worker exits, which releases it. */
static void test_stuck_memory(void)
{
	static const char *const faults[] = {
		"cuMemUnmap nth=1 error=CUDA_ERROR_UNKNOWN",
		"cuMemRelease nth=2 error=CUDA_ERROR_UNKNOWN",
		"cuMemAddressFree nth=1 error=CUDA_ERROR_UNKNOWN",
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker = worker_start(&(struct worker_options){.faults = faults[i]});
		struct gcr_message message;

		DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 1));
		DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
		REFUSED(worker_do(&worker, GCR_MESSAGE_END), EIO, "cuMem");
		CHECK(gcr_message_receive(worker.socket, PATIENCE_USEC, -1, &message) == -EPIPE);
		CHECK(worker_leaves(&worker) == 0);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

/* The worker is killed while it copies: the memory belongs to the owner of the descriptors. */
static void test_killed(void)
{
	struct worker_options options = {.faults = "cuEventRecord nth=3 action=hang"};
	size_t before = free_of(0); /* without the worker's context */
	struct worker worker = worker_start(&options);
	struct process process = process_create(store, 1, 0, small, FEW);
	struct gcr_message message;

	process_allocate(&process);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
	DONE(session_import(&worker, &process));
	process_release(&process, false);
	worker_ask(&worker, GCR_MESSAGE_COPY, NULL, 0, NULL, 0);
	CHECK(!kill(worker.pid, SIGKILL));
	CHECK(waitpid(worker.pid, NULL, 0) == worker.pid);
	CHECK(gcr_message_receive(worker.socket, PATIENCE_USEC, -1, &message) == -EPIPE);
	close(worker.socket);
	process_receive(&process);
	process_release(&process, true);
	CHECK(free_of(0) == before);

	/* The next worker succeeds. */
	worker = worker_start(&(struct worker_options){0});
	process_allocate(&process);
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	come_in(&worker, &process, 1);
	CHECK(worker_leaves(&worker) == 0);
	process_destroy(&process);
}

/* The daemon exits while the worker copies, with a driver call that hangs: the worker exits too. */
static void test_daemon_gone(void)
{
	static const char *const faults[] = {
		"cuEventRecord nth=3 action=hang",
		"cuEventSynchronize nth=3 action=hang",
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker = worker_start(&(struct worker_options){.faults = faults[i]});

		process_allocate(&process);
		DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
		DONE(session_import(&worker, &process));
		worker_ask(&worker, GCR_MESSAGE_COPY, NULL, 0, NULL, 0);
		worker_leaves(&worker);
		process_release(&process, true);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

/* The worker also exits if the daemon exits between two requests, and leaves no memory in use. */
static void test_daemon_gone_between(void)
{
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	for (int step = 0; step < 4; step++) {
		struct worker worker = worker_start(&(struct worker_options){0});

		process_allocate(&process);
		if (step > 0)
			DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
		if (step > 1)
			DONE(session_import(&worker, &process));
		if (step > 2)
			DONE(worker_do(&worker, GCR_MESSAGE_COPY));
		CHECK(worker_leaves(&worker) == 0);
		process_release(&process, true);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

static const struct worker_test tests[] = {
	{"faults_out", test_faults_out},
	{"unprepared", test_unprepared},
	{"host_digests", test_host_digests},
	{"faults_digests", test_faults_digests},
	{"faults_in", test_faults_in},
	{"stuck_memory", test_stuck_memory},
	{"killed", test_killed},
	{"daemon_gone", test_daemon_gone},
	{"daemon_gone_between", test_daemon_gone_between},
};

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	return worker_tests_run(argc, argv, 1, tests, GCR_ARRAY_SIZE(tests));
}
