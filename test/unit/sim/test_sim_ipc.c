/* SPDX-License-Identifier: MIT */
/* Legacy inter-process memory and events, and the effects of a checkpoint on them. */
#include "test/unit/sim.h"

struct handles {
	CUipcMemHandle memory;
	CUipcEventHandle event;
};

static void exporter(int fd)
{
	struct handles handles;
	CUdeviceptr pad, data, flag;
	CUstream stream;
	CUevent event;
	CUipcMemHandle own;
	void *spin[] = {&flag};

	sim_context();
	OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
	OK(CU(cuMemAlloc_v2)(&pad, 4096));
	OK(CU(cuMemAlloc_v2)(&data, 4096));
	OK(CU(cuMemAlloc_v2)(&flag, 4));
	OK(CU(cuMemsetD32_v2)(data, 0x600d, 1024));
	OK(CU(cuMemsetD32_v2)(flag, 0, 1));
	OK(CU(cuCtxSynchronize)());
	OK(CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	OK(CU(cuIpcGetMemHandle)(&handles.memory, data));
	OK(CU(cuIpcGetEventHandle)(&handles.event, event));
	own = handles.memory;
	RESULT(CU(cuIpcOpenMemHandle_v2)(&pad, own, 1), CUDA_ERROR_INVALID_CONTEXT);
	OK(sim_launch(sim_kernel("gpucr_spin"), stream, spin));
	OK(CU(cuEventRecord)(event, stream));
	say(fd, &handles, sizeof(handles));
	hear_byte(fd);
	OK(CU(cuMemsetD32_v2)(flag, 1, 1));
	OK(CU(cuStreamSynchronize)(stream));
	say_byte(fd, 'r');
	hear_byte(fd);
}

static void importer(int fd)
{
	struct handles handles;
	CUdeviceptr data, again;
	CUevent event;

	hear(fd, &handles, sizeof(handles));
	sim_context();
	OK(CU(cuIpcOpenMemHandle_v2)(&data, handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(CU(cuIpcOpenMemHandle_v2)(&again, handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(again == data);
	CHECK(sim_word(data) == 0x600d && sim_word(data + 4092) == 0x600d);
	OK(CU(cuMemsetD32_v2)(data, 0xbeef, 1));
	RESULT(CU(cuMemFree_v2)(data), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuIpcOpenEventHandle)(&event, handles.event));
	RESULT(CU(cuEventQuery)(event), CUDA_ERROR_NOT_READY);
	say_byte(fd, 'r');
	OK(CU(cuEventSynchronize)(event));
	say_byte(fd, 'e');
	hear_byte(fd);
	OK(CU(cuEventDestroy_v2)(event));
	OK(CU(cuIpcCloseMemHandle)(data));
	OK(CU(cuIpcCloseMemHandle)(data));
	RESULT(CU(cuIpcCloseMemHandle)(data), CUDA_ERROR_INVALID_VALUE);
	say_byte(fd, 'c');
	hear_byte(fd);
}

static CUresult cycle(pid_t pid)
{
	CUcheckpointLockArgs lock = {.timeoutMs = 5000};
	CUresult result;

	OK(CU(cuCheckpointProcessLock)(pid, &lock));
	OK(CU(cuCheckpointProcessCheckpoint)(pid, NULL));
	result = CU(cuCheckpointProcessRestore)(pid, NULL);
	RESULT(CU(cuCheckpointProcessUnlock)(pid, NULL), result ? CUDA_ERROR_ILLEGAL_STATE : 0);
	return result;
}

static void test(bool close_first)
{
	struct child a = child_start(exporter), b = child_start(importer);
	struct handles handles;

	hear(a.fd, &handles, sizeof(handles));
	say(b.fd, &handles, sizeof(handles));
	CHECK(hear_byte(b.fd) == 'r');
	say_byte(a.fd, 'g');
	CHECK(hear_byte(a.fd) == 'r');
	CHECK(hear_byte(b.fd) == 'e');
	if (close_first) {
		say_byte(b.fd, 'c');
		CHECK(hear_byte(b.fd) == 'c');
	}
	/* In a child, so that more children can be forked afterwards. */
	if (fork() == 0) {
		CUresult expected = close_first ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

		OK(CU(cuInit)(0));
		RESULT(cycle(b.pid), expected);
		if (close_first)
			RESULT(cycle(a.pid), expected);
		_exit(0);
	}
	int status;

	CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	child_kill(&a);
	child_kill(&b);
}

int main(void)
{
	sim_begin("1", "64M");
	test(true);
	test(false);
	return 0;
}
