/* SPDX-License-Identifier: MIT */
/*
 * The simulator answers as the driver 580.159 did when it was measured: pointer attributes, the
 * calls that an open capture forbids, the driver's threads, and descriptors that outlive a
 * checkpoint.
 */
#include <pthread.h>
#include <sys/syscall.h>

#include "test/unit/sim.h"

static CUcontext context;

/* ---- pointer attributes ---- */

static unsigned attribute4(CUpointer_attribute attribute, CUdeviceptr pointer)
{
	unsigned value = 0xdead;

	OK(CU(cuPointerGetAttribute)(&value, attribute, pointer));
	return value;
}

static uint64_t attribute8(CUpointer_attribute attribute, CUdeviceptr pointer)
{
	uint64_t value = 0xdead;

	OK(CU(cuPointerGetAttribute)(&value, attribute, pointer));
	return value;
}

static void check_range(CUdeviceptr pointer, CUdeviceptr base, size_t size, CUdeviceptr start,
			size_t range)
{
	CUdeviceptr found;
	size_t length;

	OK(CU(cuMemGetAddressRange_v2)(&found, &length, pointer));
	CHECK(found == base && length == size);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer) == start);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer) == range);
}

static void check_nothing(CUdeviceptr pointer)
{
	CUdeviceptr base;
	uint64_t value;

	RESULT(CU(cuMemGetAddressRange_v2)(&base, NULL, pointer), CUDA_ERROR_NOT_FOUND);
	RESULT(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer),
	       CUDA_ERROR_INVALID_VALUE);
}

static void test_allocated(void)
{
	CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
	CUmemGenericAllocationHandle handle;
	unsigned long long flags;
	CUdeviceptr pointer;
	CUipcMemHandle ipc;

	OK(CU(cuMemAlloc_v2)(&pointer, 3 * MIB + 5));
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_CONTEXT, pointer) == (uintptr_t)context);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pointer + 7) == pointer + 7);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_P2P_TOKENS, pointer) == 0);
	CHECK(attribute4(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer) == 1);
	CHECK(attribute4(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pointer) == 1);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pointer) == 0);
	CHECK(attribute4(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, pointer) == 1);
	CHECK(attribute4(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, pointer) == 3);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer) == 0);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, pointer) == 4 * MIB);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, pointer + 9) == pointer);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer) !=
	      attribute8(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, pointer));
	check_range(pointer + 3 * MIB + 4, pointer, 3 * MIB + 5, pointer, 3 * MIB + 5);
	check_nothing(pointer + 3 * MIB + 5);
	RESULT(CU(cuMemRetainAllocationHandle)(&handle, (void *)pointer), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuPointerSetAttribute)(&(int){1}, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer));
	OK(CU(cuIpcGetMemHandle)(&ipc, pointer));
	OK(CU(cuMemGetAccess)(&flags, &location, pointer));
	CHECK(flags == 0);
	OK(CU(cuMemFree_v2)(pointer));
}

static void test_mapped(void)
{
	CUmemAllocationProp prop = sim_prop();
	CUmemAccessDesc access = {.location = prop.location,
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handles[2], again;
	CUdeviceptr pointer;
	CUipcMemHandle ipc;

	prop.allocFlags.gpuDirectRDMACapable = 1;
	OK(CU(cuMemAddressReserve)(&pointer, 10 * MIB, 0, 0, 0));
	OK(CU(cuMemCreate)(&handles[0], 4 * MIB, &prop, 0));
	prop.allocFlags.gpuDirectRDMACapable = 0;
	OK(CU(cuMemCreate)(&handles[1], 2 * MIB, &prop, 0));
	OK(CU(cuMemMap)(pointer, 4 * MIB, 0, handles[0], 0));
	OK(CU(cuMemMap)(pointer + 4 * MIB, 2 * MIB, 0, handles[1], 0));
	OK(CU(cuMemSetAccess)(pointer, 6 * MIB, &access, 1));
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_CONTEXT, pointer) == 0);
	CHECK(attribute4(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer) == 1);
	CHECK(attribute4(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pointer) == 0);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pointer) == 1);
	CHECK(attribute4(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, pointer) == 1);
	CHECK(attribute4(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, pointer + 4 * MIB) == 0);
	CHECK(attribute8(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, pointer) == 4 * MIB);
	/*
	 * The range attributes describe the reservation; cuMemGetAddressRange describes the
	 * mapping.
	 */
	check_range(pointer + 100, pointer, 4 * MIB, pointer, 10 * MIB);
	check_range(pointer + 5 * MIB, pointer + 4 * MIB, 2 * MIB, pointer, 10 * MIB);
	check_nothing(pointer + 6 * MIB);
	OK(CU(cuMemRetainAllocationHandle)(&again, (void *)(pointer + 100)));
	OK(CU(cuMemRelease)(again));
	RESULT(CU(cuPointerSetAttribute)(&(int){1}, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer),
	       CUDA_ERROR_NOT_SUPPORTED);
	RESULT(CU(cuIpcGetMemHandle)(&ipc, pointer), CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemFree_v2)(pointer), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemUnmap)(pointer, 6 * MIB)); /* both mappings in one call */
	OK(CU(cuMemRelease)(handles[0]));
	OK(CU(cuMemRelease)(handles[1]));
	OK(CU(cuMemAddressFree)(pointer, 10 * MIB));
}

/* ---- captures ---- */

static CUstream other;
static CUevent old_event;
static CUdeviceptr some;
static char page[8192] __attribute__((aligned(4096)));

static CUresult op_free(void)
{
	CUdeviceptr pointer = some;
	CUresult result = CU(cuMemFree_v2)(pointer);

	if (!result)
		OK(CU(cuMemAlloc_v2)(&some, 4096));
	return result;
}

static CUresult op_alloc(void)
{
	CUdeviceptr pointer;
	CUresult result = CU(cuMemAlloc_v2)(&pointer, 4096);

	if (!result)
		OK(CU(cuMemFree_v2)(pointer));
	return result;
}

static CUresult op_register(void)
{
	CUresult result = CU(cuMemHostRegister_v2)(page, sizeof(page), 0);

	if (!result)
		OK(CU(cuMemHostUnregister)(page));
	return result;
}

static CUresult op_managed(void)
{
	CUdeviceptr pointer;
	CUresult result = CU(cuMemAllocManaged)(&pointer, 4096, CU_MEM_ATTACH_GLOBAL);

	if (!result)
		OK(CU(cuMemFree_v2)(pointer));
	return result;
}

static CUresult op_async(void)
{
	CUdeviceptr pointer;
	CUresult result = CU(cuMemAllocAsync)(&pointer, 4096, other);

	if (!result)
		OK(CU(cuMemFreeAsync)(pointer, other));
	return result;
}

static CUresult op_wait(void)
{
	return CU(cuStreamSynchronize)(other);
}

static CUresult op_query(void)
{
	return CU(cuEventQuery)(old_event);
}

static CUresult op_limit(void)
{
	return CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 1024);
}

static CUresult op_synchronize(void)
{
	return CU(cuCtxSynchronize)();
}

static CUresult op_record(void)
{
	return CU(cuCtxRecordEvent)(context, old_event);
}

static CUresult op_copy(void)
{
	unsigned word;

	return CU(cuMemcpyDtoH_v2)(&word, some, sizeof(word));
}

static CUresult op_map(void)
{
	CUmemAllocationProp prop = sim_prop();
	CUmemGenericAllocationHandle handle, imported;
	CUdeviceptr pointer;
	int fd;

	OK(CU(cuMemCreate)(&handle, 2 * MIB, &prop, 0));
	pointer = sim_map(handle, 2 * MIB);
	OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    0));
	OK(CU(cuMemImportFromShareableHandle)(&imported, (void *)(intptr_t)fd,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	OK(CU(cuMemRelease)(imported));
	OK(CU(cuMemUnmap)(pointer, 2 * MIB));
	OK(CU(cuMemRelease)(handle));
	return CU(cuMemAddressFree)(pointer, 2 * MIB);
}

enum rule { ALLOWED, BY_MODE, ALWAYS };

static const struct {
	CUresult (*op)(void);
	enum rule rule;
} ops[] = {
	{op_free, BY_MODE},    {op_alloc, BY_MODE}, {op_register, BY_MODE},
	{op_managed, BY_MODE}, {op_async, BY_MODE}, {op_wait, BY_MODE},
	{op_query, BY_MODE},   {op_limit, BY_MODE}, {op_synchronize, ALWAYS},
	{op_record, ALWAYS},   {op_copy, ALLOWED},  {op_map, ALLOWED},
};

struct call {
	CUresult (*op)(void);
	bool relaxed;
	CUresult result;
};

static void *call_run(void *argument)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct call *call = argument;

	OK(CU(cuCtxSetCurrent)(context));
	if (call->relaxed)
		OK(CU(cuThreadExchangeStreamCaptureMode)(&mode));
	call->result = call->op();
	if (call->relaxed)
		OK(CU(cuThreadExchangeStreamCaptureMode)(&mode));
	return NULL;
}

static bool forbidden(enum rule rule, CUstreamCaptureMode mode, bool same, bool relaxed)
{
	if (rule != BY_MODE)
		return rule == ALWAYS;
	if (relaxed || mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	return same || mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

static void test_captures(void)
{
	CUstream stream;
	CUgraph graph;

	OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
	OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
	OK(CU(cuEventCreate)(&old_event, 0));
	OK(CU(cuMemAlloc_v2)(&some, 4096));
	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
		for (unsigned cell = 0; cell < 12; cell++) {
			CUstreamCaptureMode mode = (CUstreamCaptureMode)(cell / 4);
			bool same = cell % 2 == 0;
			struct call call = {.op = ops[i].op, .relaxed = cell % 4 >= 2};
			bool expected = forbidden(ops[i].rule, mode, same, call.relaxed);
			pthread_t thread;

			OK(CU(cuStreamBeginCapture_v2)(stream, mode));
			if (same) {
				call_run(&call);
			} else {
				CHECK(!pthread_create(&thread, NULL, call_run, &call));
				CHECK(!pthread_join(thread, NULL));
			}
			if (call.result != (expected ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : 0)) {
				fprintf(stderr, "call %zu, cell %u: %d\n", i, cell, call.result);
				exit(1);
			}
			RESULT(CU(cuStreamEndCapture)(stream, &graph),
			       expected ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : 0);
			if (!expected)
				OK(CU(cuGraphDestroy)(graph));
		}
	OK(CU(cuMemFree_v2)(some));
	OK(CU(cuStreamDestroy_v2)(stream));
	OK(CU(cuStreamDestroy_v2)(other));
}

/* ---- threads ---- */

static pid_t function_thread;
static char function_comm[32];

static void host_function(void *data)
{
	pid_t tid = (pid_t)syscall(SYS_gettid);

	CHECK(!function_thread || function_thread == tid);
	function_thread = tid;
	CHECK(!pthread_getname_np(pthread_self(), function_comm, sizeof(function_comm)));
	++*(unsigned *)data;
}

/* One thread of the driver runs all host functions of a context, and has the program's name. */
static void test_threads(void)
{
	CUstream streams[3];
	unsigned count = 0;
	char comm[32];

	for (int i = 0; i < 3; i++)
		OK(CU(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 30; i++)
		OK(CU(cuLaunchHostFunc)(streams[i % 3], host_function, &count));
	OK(CU(cuCtxSynchronize)());
	CHECK(!pthread_getname_np(pthread_self(), comm, sizeof(comm)));
	CHECK(count == 30 && !strcmp(comm, function_comm));
	CHECK(function_thread != (pid_t)syscall(SYS_gettid));
	for (int i = 0; i < 3; i++)
		OK(CU(cuStreamDestroy_v2)(streams[i]));
}

/* ---- descriptors ---- */

static void controller(int fd)
{
	CUcheckpointLockArgs lock = {.timeoutMs = 5000};
	pid_t parent = getppid();

	hear_byte(fd);
	OK(CU(cuInit)(0));
	for (int i = 0; i < 2; i++) {
		OK(CU(cuCheckpointProcessLock)(parent, &lock));
		OK(CU(cuCheckpointProcessCheckpoint)(parent, NULL));
		OK(CU(cuCheckpointProcessRestore)(parent, NULL));
		OK(CU(cuCheckpointProcessUnlock)(parent, NULL));
		say_byte(fd, 'd');
		hear_byte(fd);
	}
}

/*
 * Descriptors that are kept while nothing is mapped keep the memory and its contents through
 * checkpoint and restore, also when the handle had been imported.
 */
static void test_descriptors(struct child *child)
{
	CUmemAllocationProp prop = sim_prop();
	CUmemGenericAllocationHandle handle;
	size_t before = sim_free_bytes();
	CUdeviceptr pointer;
	int fd;

	OK(CU(cuMemCreate)(&handle, 4 * MIB, &prop, 0));
	OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    0));
	pointer = sim_map(handle, 4 * MIB);
	OK(CU(cuMemsetD32_v2)(pointer, 0x1234567, MIB));
	OK(CU(cuCtxSynchronize)());
	for (int i = 0; i < 2; i++) {
		OK(CU(cuMemUnmap)(pointer, 4 * MIB));
		OK(CU(cuMemRelease)(handle));
		CHECK(sim_free_bytes() == before - 4 * MIB);
		say_byte(child->fd, 'g');
		CHECK(hear_byte(child->fd) == 'd');
		OK(CU(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
						      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		OK(CU(cuMemMap)(pointer, 4 * MIB, 0, handle, 0));
		OK(CU(cuMemSetAccess)(
			pointer, 4 * MIB,
			&(CUmemAccessDesc){prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}, 1));
		CHECK(sim_word(pointer) == 0x1234567 &&
		      sim_word(pointer + 4 * MIB - 4) == 0x1234567);
	}
	say_byte(child->fd, 'g');
	child_finish(child);
	OK(CU(cuMemUnmap)(pointer, 4 * MIB));
	OK(CU(cuMemRelease)(handle));
	CHECK(sim_free_bytes() == before - 4 * MIB);
	close(fd);
	CHECK(sim_free_bytes() == before);
}

int main(void)
{
	struct child child;

	sim_begin("1", "64M");
	child = child_start(controller);
	context = sim_context();
	test_allocated();
	test_mapped();
	test_captures();
	test_threads();
	test_descriptors(&child);
	return 0;
}
