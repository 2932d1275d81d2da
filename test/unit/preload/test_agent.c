/* SPDX-License-Identifier: MIT */
/*
 * The agent (the preload library's thread that serves the daemon) when its driver calls fail. The
 * library's sources are compiled in, as in test_gate.c; the test plays the daemon and the program.
 */
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/message.h"
#include "test/unit/preload/test_gate.h"

/* As large as the agent's minimum stack: some systems keep thread-local storage in the stack. */
static _Thread_local char large[1 << 20];

static struct gcr_message message;
static int listener, daemon_fd;

static void listen_for_agent(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket-%d", sim_state_directory,
		 getpid());
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(listener >= 0);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(listen(listener, 4) == 0);
	setenv("GPUCR_SOCKET", address.sun_path, 1);
}

/* Accepts the agent's connection; returns the phase that the agent reports. */
static enum gcr_preload_phase meet_agent(void)
{
	struct gcr_register hello;

	daemon_fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(daemon_fd >= 0);
	CHECK(gcr_message_receive(daemon_fd, 60 * SECOND, -1, &message) == 0);
	CHECK(message.header.type == GCR_MESSAGE_REGISTER);
	gcr_message_payload(&message, &hello, sizeof(hello));
	gcr_message_close_fds(&message);
	return (enum gcr_preload_phase)hello.phase;
}

/*
 * Sends a request; returns the errno of the answer and checks the agent's phase after the request.
 */
static int ask(uint16_t type, const void *payload, size_t bytes, enum gcr_preload_phase phase)
{
	struct gcr_result result;

	CHECK(gcr_message_send(daemon_fd, type, 1, payload, bytes, NULL, 0) == 0);
	do {
		CHECK(gcr_message_receive(daemon_fd, 60 * SECOND, -1, &message) == 0);
		gcr_message_close_fds(&message);
	} while (message.header.type != GCR_MESSAGE_RESULT);
	gcr_message_payload(&message, &result, sizeof(result));
	if (result.state != phase)
		fprintf(stderr, "request %u: error %d, phase %u: %s\n", type, result.error,
			result.state, result.words);
	CHECK(result.state == phase);
	return result.error;
}

/* ---- a hand-over that fails, and whose roll-back fails ---- */

static const char pattern[] = "what the program has in its memory";
static CUdeviceptr memory;
static void *real_release, *real_map;

static CUresult refuse_release(CUmemGenericAllocationHandle handle)
{
	return CUDA_ERROR_UNKNOWN;
}

static CUresult refuse_map(CUdeviceptr start, size_t bytes, size_t offset,
			   CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static void fail_hand_over(void)
{
	struct gcr_gate_request gate = {.timeout_ms = 30000};
	struct gcr_hand_over request = {.generation = "a generation"};

	large[0] = 1;
	listen_for_agent();
	use_gpu();
	CHECK(cuMemAlloc_v2(&memory, 16 * MIB) == CUDA_SUCCESS);
	CHECK(cuMemcpyHtoD_v2(memory, pattern, sizeof(pattern)) == CUDA_SUCCESS);
	CHECK(meet_agent() == GCR_PRELOAD_RUNNING);
	CHECK(ask(GCR_MESSAGE_GATE_CLOSE, &gate, sizeof(gate), GCR_PRELOAD_GATED) == 0);
	real_release = GCR_REAL(cuMemRelease);
	real_map = GCR_REAL(cuMemMap);
	atomic_store(&gcr_reals[GCR_ENTRY_cuMemRelease], (void *)refuse_release);
	atomic_store(&gcr_reals[GCR_ENTRY_cuMemMap], (void *)refuse_map);
	CHECK(ask(GCR_MESSAGE_HAND_OVER, &request, sizeof(request), GCR_PRELOAD_HANDED) ==
	      ENOTRECOVERABLE);
	CHECK(is_closed());
}

/*
 * While the memory is not mapped the gate stays closed; once mapping works again, the gate can
 * open.
 */
static void come_back(void)
{
	char seen[sizeof(pattern)];

	CHECK(ask(GCR_MESSAGE_GATE_OPEN, NULL, 0, GCR_PRELOAD_HANDED) == EBUSY);
	CHECK(ask(GCR_MESSAGE_TAKE_BACK, NULL, 0, GCR_PRELOAD_HANDED) == EIO);
	CHECK(is_closed());
	atomic_store(&gcr_reals[GCR_ENTRY_cuMemRelease], real_release);
	atomic_store(&gcr_reals[GCR_ENTRY_cuMemMap], real_map);
	CHECK(ask(GCR_MESSAGE_TAKE_BACK, NULL, 0, GCR_PRELOAD_GATED) == 0);
	CHECK(ask(GCR_MESSAGE_GATE_OPEN, NULL, 0, GCR_PRELOAD_RUNNING) == 0);
	CHECK(cuMemcpyDtoH_v2(seen, memory, sizeof(seen)) == CUDA_SUCCESS);
	CHECK(memcmp(seen, pattern, sizeof(seen)) == 0);
	CHECK(cuMemFree_v2(memory) == CUDA_SUCCESS);
}

static void test_not_recoverable(void)
{
	fail_hand_over();
	come_back();
}

static void test_not_recoverable_and_daemon_dies(void)
{
	fail_hand_over();
	CHECK(close(daemon_fd) == 0);
	CHECK(meet_agent() == GCR_PRELOAD_HANDED);
	CHECK(is_closed());
	come_back();
}

/* ---- the driver has deinitialized ---- */

static CUresult say_gone(void)
{
	return CUDA_ERROR_DEINITIALIZED;
}

static void end_driver(void)
{
	static const enum gcr_entry entries[] = {
		GCR_ENTRY_cuMemMap,
		GCR_ENTRY_cuMemImportFromShareableHandle,
		GCR_ENTRY_cuMemUnmap,
		GCR_ENTRY_cuDevicePrimaryCtxGetState,
		GCR_ENTRY_cuCtxPushCurrent_v2,
		GCR_ENTRY_cuCtxGetDevice,
		GCR_ENTRY_cuGetErrorName,
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(entries); i++)
		atomic_store(&gcr_reals[entries[i]], (void *)say_gone);
}

/* Freezes up to the hand-over; returns a thread that waits at the closed gate. */
static pthread_t freeze_thread(uint32_t flags)
{
	struct gcr_gate_request gate = {.timeout_ms = 30000};
	struct gcr_hand_over request = {.generation = "a generation", .flags = flags};
	pthread_t thread;

	listen_for_agent();
	use_gpu();
	CHECK(cuMemAlloc_v2(&memory, 16 * MIB) == CUDA_SUCCESS);
	CHECK(meet_agent() == GCR_PRELOAD_RUNNING);
	CHECK(ask(GCR_MESSAGE_GATE_CLOSE, &gate, sizeof(gate), GCR_PRELOAD_GATED) == 0);
	CHECK(ask(GCR_MESSAGE_HAND_OVER, &request, sizeof(request), GCR_PRELOAD_HANDED) == 0);
	thread = start_to_pass();
	wait_until(waits_at_gate);
	return thread;
}

/* After the driver's end, the program's threads run on and the program cannot be frozen again. */
static void check_let_go(pthread_t thread)
{
	struct gcr_gate_request gate = {.timeout_ms = 30000};

	end(thread);
	CHECK(!is_closed());
	CHECK(gcr_gate_page()->flags & GCR_PAGE_ENDING);
	CHECK(ask(GCR_MESSAGE_GATE_CLOSE, &gate, sizeof(gate), GCR_PRELOAD_RUNNING) == ESRCH);
	CHECK(!is_closed());
	CHECK(ask(GCR_MESSAGE_GATE_OPEN, NULL, 0, GCR_PRELOAD_RUNNING) == 0);
}

static void deinitialize_in(uint32_t flags)
{
	pthread_t thread = freeze_thread(flags);
	struct gcr_result result;

	end_driver();
	CHECK(ask(GCR_MESSAGE_TAKE_BACK, NULL, 0, GCR_PRELOAD_RUNNING) == ESRCH);
	gcr_message_payload(&message, &result, sizeof(result));
	CHECK(strstr(result.words, "CUDA_ERROR_DEINITIALIZED (4)") && !strstr(result.words, "-2"));
	check_let_go(thread);
}

static void test_deinitialized(void)
{
	deinitialize_in(0);
}

/* With shrunk limits: restoring the limits is the first step that fails. */
static void test_deinitialized_with_limits(void)
{
	deinitialize_in(GCR_HAND_OVER_SHRINK);
}

/* The daemon has learned from the driver that the driver in the program is gone. */
static void test_driver_gone(void)
{
	pthread_t thread = freeze_thread(0);

	CHECK(ask(GCR_MESSAGE_COMMIT, NULL, 0, GCR_PRELOAD_OUT) == 0);
	CHECK(ask(GCR_MESSAGE_DRIVER_GONE, NULL, 0, GCR_PRELOAD_RUNNING) == ESRCH);
	check_let_go(thread);
}

/* ---- threads that want the GPU ---- */

static void listing(void)
{
	CHECK(gcr_message_send(daemon_fd, GCR_MESSAGE_LIST, 7, NULL, 0, NULL, 0) == 0);
	CHECK(gcr_message_receive(daemon_fd, 60 * SECOND, -1, &message) == 0);
	CHECK(message.header.type == GCR_MESSAGE_RESULT && message.header.sequence == 7);
	gcr_message_close_fds(&message);
}

/*
 * The agent notifies the daemon of the first thread that wants the GPU; threads that only query,
 * and later ones that want the GPU, cause no message.
 */
static void test_wanted(void)
{
	struct gcr_gate_request gate = {.timeout_ms = 30000};
	pthread_t asks, wants[2];

	listen_for_agent();
	use_gpu();
	CHECK(meet_agent() == GCR_PRELOAD_RUNNING);
	for (int round = 0; round < 2; round++) {
		CHECK(ask(GCR_MESSAGE_GATE_CLOSE, &gate, sizeof(gate), GCR_PRELOAD_GATED) == 0);
		atomic_store(&at_gate, 0);
		asks = start_to_pass();
		wait_until(waits_at_gate);
		listing();
		wants[0] = start_to_want();
		CHECK(gcr_message_receive(daemon_fd, 60 * SECOND, -1, &message) == 0);
		CHECK(message.header.type == GCR_MESSAGE_WANTED && message.header.sequence == 0);
		wait_until(waits_at_gate);
		wants[1] = start_to_want();
		wait_until(waits_at_gate);
		listing();
		CHECK(ask(GCR_MESSAGE_GATE_OPEN, NULL, 0, GCR_PRELOAD_RUNNING) == 0);
		end(asks);
		end(wants[0]);
		end(wants[1]);
	}
}

static const struct linked_test tests[] = {
	{"wanted", test_wanted},
	{"deinitialized", test_deinitialized},
	{"deinitialized with limits", test_deinitialized_with_limits},
	{"driver gone", test_driver_gone},
	{"not recoverable", test_not_recoverable},
	{"not recoverable and daemon dies", test_not_recoverable_and_daemon_dies},
};

int main(int argc, char **argv)
{
	return run_tests(tests, GCR_ARRAY_SIZE(tests), argv[1]);
}
