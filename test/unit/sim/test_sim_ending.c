/* SPDX-License-Identifier: MIT */
/*
 * The driver's exit handler: the results that the program and other processes get from the driver
 * from then on.
 */
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "test/unit/sim.h"

static int parent; /* the child's socket */

static void *call_in_thread(void *nothing)
{
	RESULT(CU(cuCtxSynchronize)(), CUDA_ERROR_DEINITIALIZED);
	return nothing;
}

/* Registered before the driver's handler, so it runs after it. */
static void check_gone(void)
{
	const char *name = "";
	CUdeviceptr pointer;
	pthread_t thread;
	int version;

	RESULT(CU(cuInit)(0), CUDA_ERROR_DEINITIALIZED);
	RESULT(CU(cuDriverGetVersion)(&version), CUDA_ERROR_DEINITIALIZED);
	RESULT(CU(cuMemAlloc_v2)(&pointer, MIB), CUDA_ERROR_DEINITIALIZED);
	RESULT(CU(cuGetErrorName)(CUDA_ERROR_DEINITIALIZED, &name), CUDA_ERROR_DEINITIALIZED);
	CHECK(!name);
	CHECK(pthread_create(&thread, NULL, call_in_thread, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	say_byte(parent, 'g');
	hear_byte(parent);
	_exit(0);
}

/* Registered after the driver's handler, so it runs before it. */
static void check_there(void)
{
	OK(CU(cuCtxSynchronize)());
}

int main(void)
{
	CUcheckpointLockArgs lock = {.timeoutMs = 100};
	CUprocessState state;
	int sockets[2], status;
	pid_t pid;

	sim_begin("1", "64M");
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		parent = sockets[1];
		atexit(check_gone);
		sim_context();
		atexit(check_there);
		say_byte(parent, 'r');
		hear_byte(parent);
		exit(1);
	}
	CHECK(hear_byte(sockets[0]) == 'r');
	sim_context();
	OK(CU(cuCheckpointProcessLock)(pid, &lock));
	OK(CU(cuCheckpointProcessGetState)(pid, &state));
	CHECK(state == CU_PROCESS_STATE_LOCKED);
	OK(CU(cuCheckpointProcessUnlock)(pid, NULL));
	say_byte(sockets[0], 'x');
	CHECK(hear_byte(sockets[0]) == 'g');
	RESULT(CU(cuCheckpointProcessGetState)(pid, &state), CUDA_ERROR_NOT_INITIALIZED);
	RESULT(CU(cuCheckpointProcessLock)(pid, &lock), CUDA_ERROR_NOT_INITIALIZED);
	say_byte(sockets[0], 'x');
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return 0;
}
