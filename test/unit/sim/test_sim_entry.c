/* SPDX-License-Identifier: MIT */
/* Lookups of the simulator's entry points, device queries, and injected faults. */
#include <pthread.h>

#include "test/unit/sim.h"

#include <time.h>

static void *address(const char *name, int version, cuuint64_t flags,
		     CUdriverProcAddressQueryResult expected)
{
	CUdriverProcAddressQueryResult status;
	void *function = &status;

	OK(CU(cuGetProcAddress_v2)(name, &function, version, flags, &status));
	CHECK(status == expected);
	CHECK((function != NULL) == (expected == CU_GET_PROC_ADDRESS_SUCCESS));
	return function;
}

static void test_proc_address(void)
{
	const cuuint64_t legacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM,
			 own = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	const CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
	void *function;

	CHECK(address("cuMemAlloc", 13000, 0, found) == sim_symbol("cuMemAlloc_v2"));
	address("cuMemAlloc", 3010, 0, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	address("cuMemAlloc_v2", 13000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	address("cuNoSuchThing", 13000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	CHECK(address("cuCtxCreate", 11040, 0, found) == sim_symbol("cuCtxCreate_v3"));
	CHECK(address("cuCtxCreate", 13000, 0, found) == sim_symbol("cuCtxCreate_v4"));
	CHECK(address("cuStreamQuery", 13000, legacy, found) == sim_symbol("cuStreamQuery"));
	CHECK(address("cuStreamQuery", 13000, own, found) == sim_symbol("cuStreamQuery_ptsz"));
	CHECK(address("cuMemcpyHtoD", 13000, own, found) == sim_symbol("cuMemcpyHtoD_v2_ptds"));
	CHECK(address("cuMemcpyHtoD", 13000, 0, found) == sim_symbol("cuMemcpyHtoD_v2"));
	CHECK(address("cuMemFree", 13000, own, found) == sim_symbol("cuMemFree_v2"));
	CHECK(address("cuGetProcAddress", 11030, 0, found) == sim_symbol("cuGetProcAddress"));
	CHECK(address("cuGetProcAddress", 12000, 0, found) == sim_symbol("cuGetProcAddress_v2"));
	address("cuCheckpointProcessLock", 12080, 0, found);
	address("cuCheckpointProcessLock", 12070, 0, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	RESULT(CU(cuGetProcAddress_v2)("cuInit", &function, 99000, 0, NULL),
	       CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuGetProcAddress)("cuInit", &function, 12000, 0));
	CHECK(function == sim_symbol("cuInit"));
	sim_symbol("cuCtxDestroy");
	sim_symbol("cuStreamDestroy");
	sim_symbol("cuEventDestroy");
	sim_symbol("cuIpcOpenMemHandle");
}

static void test_before_init(void)
{
	int count, version;
	const char *name;

	RESULT(CU(cuDeviceGetCount)(&count), CUDA_ERROR_NOT_INITIALIZED);
	OK(CU(cuDriverGetVersion)(&version));
	CHECK(version == 13000);
	RESULT(CU(cuInit)(1), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuGetErrorName)(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, &name));
	CHECK(!strcmp(name, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"));
	RESULT(CU(cuGetErrorName)((CUresult)12345, &name), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuGetErrorString)(CUDA_ERROR_OUT_OF_MEMORY, &name));
}

/* The list of visible devices has another order than the machine's, and names devices by number. */
static void test_devices(void)
{
	CUuuid first, second;
	size_t bytes;
	int count, value;
	char text[64];

	OK(CU(cuInit)(0));
	OK(CU(cuInit)(0));
	OK(CU(cuDeviceGetCount)(&count));
	CHECK(count == 2);
	OK(CU(cuDeviceGetPCIBusId)(text, sizeof(text), 0));
	CHECK(!strcmp(text, "0000:03:00.0"));
	OK(CU(cuDeviceGetName)(text, sizeof(text), 1));
	CHECK(!strcmp(text, "Simulated GPU"));
	OK(CU(cuDeviceGetUuid_v2)(&first, 0));
	OK(CU(cuDeviceGetUuid_v2)(&second, 1));
	CHECK(memcmp(&first, &second, sizeof(first)));
	OK(CU(cuDeviceTotalMem_v2)(&bytes, 0));
	CHECK(bytes == 64 * MIB);
	OK(CU(cuDeviceGetAttribute)(
		&value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
	CHECK(value == 1);
	RESULT(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 2),
	       CUDA_ERROR_INVALID_DEVICE);
}

static void test_contexts(void)
{
	CUcontext primary, created, current;
	CUdevice device;
	unsigned flags;
	size_t limit, with_stack, without;
	int active;

	OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
	CHECK(!active);
	OK(CU(cuCtxGetCurrent)(&current));
	CHECK(!current);
	RESULT(CU(cuCtxSynchronize)(), CUDA_ERROR_INVALID_CONTEXT);
	OK(CU(cuDevicePrimaryCtxRetain)(&primary, 0));
	OK(CU(cuDevicePrimaryCtxRetain)(&current, 0));
	CHECK(current == primary);
	OK(CU(cuCtxSetCurrent)(primary));
	OK(CU(cuCtxCreate_v2)(&created, 0, 1));
	OK(CU(cuCtxGetDevice)(&device));
	CHECK(device == 1);
	OK(CU(cuCtxPopCurrent_v2)(&current));
	CHECK(current == created);
	OK(CU(cuCtxDestroy_v2)(created));
	RESULT(CU(cuCtxSetCurrent)(created), CUDA_ERROR_INVALID_CONTEXT);
	OK(CU(cuCtxGetLimit)(&limit, CU_LIMIT_STACK_SIZE));
	CHECK(limit == 1024);
	with_stack = sim_free_bytes();
	OK(CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 0));
	without = sim_free_bytes();
	CHECK(without == with_stack + 2 * MIB);
	RESULT(CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 1 << 20), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(sim_free_bytes() == without);
	OK(CU(cuDevicePrimaryCtxRelease_v2)(0));
	OK(CU(cuDevicePrimaryCtxRelease_v2)(0));
	RESULT(CU(cuDevicePrimaryCtxRelease_v2)(0), CUDA_ERROR_INVALID_CONTEXT);
	RESULT(CU(cuCtxSynchronize)(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(CU(cuCtxSetCurrent)(NULL));
}

static void test_faults(void)
{
	char path[128], comm[64];
	struct timespec before, after;
	CUdeviceptr pointer;
	FILE *file;

	sim_context();
	snprintf(path, sizeof(path), "%s/faults", sim_state_directory);
	snprintf(comm, sizeof(comm), "cuMemFree_v2 pid=%d times=1 delay_ms=30 error=2", getpid());
	file = fopen(path, "w");
	CHECK(file);
	fprintf(file,
		"# a comment\n"
		"cuMemAlloc nth=2 error=CUDA_ERROR_UNKNOWN; cuMemGetInfo comm=nobody error=1\n"
		"%s\n",
		comm);
	fclose(file);
	OK(CU(cuMemAlloc_v2)(&pointer, 16));
	RESULT(CU(cuMemAlloc_v2)(&pointer, 16), CUDA_ERROR_UNKNOWN);
	clock_gettime(CLOCK_MONOTONIC, &before);
	RESULT(CU(cuMemFree_v2)(pointer), CUDA_ERROR_OUT_OF_MEMORY);
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >=
	      29);
	OK(CU(cuMemFree_v2)(pointer));
	OK(CU(cuMemAlloc_v2)(&pointer, 16));
	sim_free_bytes();
	unlink(path);
}

static void write_file(const char *name, const char *text)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", sim_state_directory, name);
	file = fopen(path, "w");
	CHECK(file);
	fputs(text, file);
	fclose(file);
}

static void *named_thread(void *context)
{
	CUdeviceptr pointer;

	CHECK(!pthread_setname_np(pthread_self(), "agent"));
	OK(CU(cuCtxSetCurrent)(context));
	RESULT(CU(cuMemAlloc_v2)(&pointer, 16), CUDA_ERROR_OUT_OF_MEMORY);
	return NULL;
}

/* Fault rules for a thread, and for the end of a call; and the log of faults. */
static void test_faults_more(void)
{
	char path[128], line[128] = "";
	struct timespec before, after;
	pthread_t thread;
	CUcontext context;
	CUdeviceptr pointer;
	FILE *log;

	write_file("faults.log", "");
	write_file("faults", "cuMemAlloc thread=agent error=2\n"
			     "cuMemFree when=after delay_ms=30 error=2\n");
	OK(CU(cuCtxGetCurrent)(&context));
	CHECK(!pthread_create(&thread, NULL, named_thread, context));
	CHECK(!pthread_join(thread, NULL));
	OK(CU(cuMemAlloc_v2)(&pointer, 16));
	clock_gettime(CLOCK_MONOTONIC, &before);
	OK(CU(cuMemFree_v2)(pointer));
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >=
	      29);
	snprintf(path, sizeof(path), "%s/faults.log", sim_state_directory);
	log = fopen(path, "r");
	CHECK(log);
	CHECK(fgets(line, sizeof(line), log) && strstr(line, " test_sim_entry cuMemAlloc_v2\n"));
	CHECK(atoi(line) == getpid());
	CHECK(fgets(line, sizeof(line), log) && strstr(line, " test_sim_entry cuMemFree_v2\n"));
	CHECK(!fgets(line, sizeof(line), log));
	fclose(log);
	write_file("faults", "");
}

int main(void)
{
	sim_begin("3", "64M");
	setenv("CUDA_VISIBLE_DEVICES", "2,0,7,1", 1);
	test_before_init();
	test_devices();
	test_contexts();
	test_proc_address();
	test_faults();
	test_faults_more();
	return 0;
}
