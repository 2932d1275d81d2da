/* SPDX-License-Identifier: MIT */
/*
 * Functions that libgpucr-preload.so does not know, as a newer driver has them
 * (backend/sim/later.c): these functions get the driver's handles, before a freeze and after it,
 * and only a function that may do more than query is an obstacle to the next freeze.
 */
#include "backend/preload/hook/unknown.h"
#include "test/unit/preload/preload_program.h"

#define COUNT 8

typedef CUresult get_device(int *device, CUmemGenericAllocationHandle handle);
typedef CUresult get_device_last(int *device, long a, long b, long c, long d, long e, long f,
				 long g, CUmemGenericAllocationHandle handle,
				 CUmemGenericAllocationHandle other);
typedef CUresult get_devices(int *devices, const CUmemGenericAllocationHandle *handles,
			     size_t count);
typedef CUresult bind_memory(CUmemGenericAllocationHandle handle);

static void *find(const char *name)
{
	CUdriverProcAddressQueryResult status;
	void *function = NULL;
	Dl_info info;

	OK(CU(cuGetProcAddress_v2)(name, &function, CUDA_VERSION, 0, &status));
	/* The function passes the gate. */
	CHECK(function && dladdr(function, &info) && strstr(info.dli_fname, "gpucr-preload"));
	return function;
}

static CUmemGenericAllocationHandle create(size_t bytes)
{
	CUmemAllocationProp prop = device_prop(0);
	CUmemGenericAllocationHandle handle = 0;

	OK(CU(cuMemCreate)(&handle, bytes, &prop, 0));
	return handle;
}

static void map(CUdeviceptr pointer, size_t bytes, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = device_access(0);

	OK(CU(cuMemMap)(pointer, bytes, 0, handle, 0));
	OK(CU(cuMemSetAccess)(pointer, bytes, &access, 1));
}

/* The handle as an argument in a register, and on the stack, after the arguments in registers. */
static void expect_arguments(CUmemGenericAllocationHandle handle)
{
	get_device *get = (get_device *)find("cuSimMemGetDevice");
	get_device_last *get_last = (get_device_last *)find("cuSimMemGetDeviceLast");
	int device = 7;

	OK(get(&device, handle));
	CHECK(device == 0);
	device = 7;
	OK(get_last(&device, 1, 2, 3, 4, 5, 6, 7, handle, handle));
	CHECK(device == 0);
}

static void expect_page(const char *unknown, const char *incomplete)
{
	const struct gcr_page *page = memory()->page();

	if (strcmp(page->unknown, unknown) != 0 || strcmp(page->incomplete, incomplete) != 0)
		fprintf(stderr, "unknown '%s', incomplete '%s'\n", page->unknown, page->incomplete);
	CHECK(strcmp(page->unknown, unknown) == 0);
	CHECK(strcmp(page->incomplete, incomplete) == 0);
}

static void unfrozen(void)
{
	CUmemGenericAllocationHandle handles[3];
	int devices[3] = {7, 7, 7};

	use_device(0);
	for (int i = 0; i < 3; i++)
		handles[i] = create(2 * MIB);
	expect_page("", "");
	expect_arguments(handles[1]);
	/* Handles in an array: the library does not translate these. */
	OK(((get_devices *)find("cuSimMemGetDevices"))(devices, handles, 3));
	CHECK(!devices[0] && !devices[1] && !devices[2]);
	RESULT(((get_device *)find("cuSimMemGetDevice"))(devices, 12345), CUDA_ERROR_INVALID_VALUE);
	expect_page("cuSimMemGetDevice cuSimMemGetDeviceLast cuSimMemGetDevices", "");
	OK(((bind_memory *)find("cuSimMemBind"))(handles[2]));
	expect_page("cuSimMemGetDevice cuSimMemGetDeviceLast cuSimMemGetDevices cuSimMemBind",
		    "cuSimMemBind");
	for (int i = 0; i < 3; i++)
		OK(CU(cuMemRelease)(handles[i]));
}

/*
 * After a thaw the driver may use the old handle values for other memory and for new memory, as it
 * reuses addresses: the program's handles keep their meaning.
 */
static void thawed(void)
{
	CUmemGenericAllocationHandle handles[COUNT], again[COUNT];
	CUdeviceptr start, at[COUNT];

	use_device(0);
	OK(CU(cuMemAddressReserve)(&start, 4 * COUNT * MIB, 0, 0, 0));
	worker_start();
	for (unsigned i = 0; i < COUNT; i++) {
		handles[i] = create(2 * MIB);
		at[i] = start + 2 * i * MIB;
		map(at[i], 2 * MIB, handles[i]);
		fill(at[i], 2 * MIB, i);
	}
	for (unsigned round = 0; round < 3; round++) {
		freeze();
		thaw();
		for (unsigned i = 0; i < COUNT; i++) {
			expect(at[i], 2 * MIB, i);
			expect_arguments(handles[i]);
		}
		/* New handles beside the old ones: all differ, all work. */
		for (unsigned i = 0; i < COUNT; i++) {
			again[i] = create(2 * MIB);
			for (unsigned j = 0; j < COUNT; j++)
				CHECK(again[i] != handles[j] && (j >= i || again[i] != again[j]));
			map(start + 2 * (COUNT + i) * MIB, 2 * MIB, again[i]);
			fill(start + 2 * (COUNT + i) * MIB, 2 * MIB, 100 + i);
			expect_arguments(again[i]);
		}
		for (unsigned i = 0; i < COUNT; i++) {
			expect(at[i], 2 * MIB, i);
			expect(start + 2 * (COUNT + i) * MIB, 2 * MIB, 100 + i);
			OK(CU(cuMemUnmap)(start + 2 * (COUNT + i) * MIB, 2 * MIB));
			OK(CU(cuMemRelease)(again[i]));
			RESULT(CU(cuMemRelease)(again[i]), CUDA_ERROR_INVALID_VALUE);
		}
		/* One handle is released and created again. */
		OK(CU(cuMemUnmap)(at[round], 2 * MIB));
		OK(CU(cuMemRelease)(handles[round]));
		handles[round] = create(2 * MIB);
		map(at[round], 2 * MIB, handles[round]);
		fill(at[round], 2 * MIB, round);
	}
	worker_stop();
	for (unsigned i = 0; i < COUNT; i++) {
		OK(CU(cuMemUnmap)(at[i], 2 * MIB));
		OK(CU(cuMemRelease)(handles[i]));
	}
	CHECK(memory()->page()->extents == 0 && open_descriptors() == 0);
}

/*
 * The library releases memory that stays mapped: the program can no longer release it with a handle
 * that it has given back.
 */
static void given_back(void)
{
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr start;

	use_device(0);
	OK(CU(cuMemAddressReserve)(&start, 4 * MIB, 0, 0, 0));
	handle = create(2 * MIB);
	map(start, 2 * MIB, handle);
	fill(start, 2 * MIB, 1);
	OK(CU(cuMemRelease)(handle));
	RESULT(CU(cuMemRelease)(handle), CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemMap)(start + 2 * MIB, 2 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	expect(start, 2 * MIB, 1);
	worker_start();
	freeze();
	thaw();
	worker_stop();
	expect(start, 2 * MIB, 1);
	OK(CU(cuMemRetainAllocationHandle)(&again, (void *)(uintptr_t)start));
	expect_arguments(again);
	OK(CU(cuMemRelease)(again));
	OK(CU(cuMemUnmap)(start, 2 * MIB));
	CHECK(memory()->page()->extents == 0);
}

static void names(void)
{
	static const char *const harmless[] = {
		"cuMemGetLocationInfo",	      "cuGraphGetId",
		"cuGraphNodeGetToolsId",      "cuStreamGetDevResource",
		"cuFuncGetParamCount",	      "cuDeviceGetSomething_v3",
		"cuStreamQuery_ptsz",	      "hipDeviceGetTexture1D",
		"cuLogicalEndpointGetLimits", "cuLogicalEndpointQuery",
		"cuGraphKernelNodeGetName",   "cuDeviceCanAccessPeer",
	};
	static const char *const others[] = {
		"cuMulticastBindMem_v3",
		"cuMemcpyWithAttributesAsync",
		"cuMemsetD64",
		"cuLaunchKernelEx2",
		"cuMemAllocSomewhere",
		"cuStreamBeginRecaptureToGraph",
		"cuLogicalEndpointExport",
		"cuLogicalEndpointImport",
		"cuMemGetHandleForAddressRange",
		"cuGetExportTable2",
		"cuGetProcAddress_v3",
		"cuIpcGetMemHandle",
		"cuGraphSomething",
		"cuFrobnicate",
		"cuLibraryGetManaged2",
		"cuDevSmResourceSplit",
		"cuTogether",
		"cuGetter",
		"hipMemSetAccess2",
		"cuStreamQueryAsync",
		"cu",
		"",
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(harmless); i++)
		CHECK(gcr_unknown_is_harmless(harmless[i]));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(others); i++)
		CHECK(!gcr_unknown_is_harmless(others[i]));
}

static const struct subject subjects[] = {
	{.name = "unfrozen", .run = unfrozen},
	{.name = "thawed", .run = thawed},
	{.name = "given back", .run = given_back},
};

int main(int argc, char **argv)
{
	if (run_one(argc, argv, subjects, GCR_ARRAY_SIZE(subjects)))
		return 0;
	names();
	run_all(subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}
