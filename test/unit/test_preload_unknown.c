/* SPDX-License-Identifier: MIT */
/*
 * Functions that libgpucr-preload.so does not know, as those of a newer driver
 * (backend/sim/later.c): they get the driver's handles, before a freeze and after it, and only
 * those that may do more than tell something stand in the way of the next one.
 */
#include "backend/preload/unknown.h"
#include "test/unit/preload_program.h"

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
	/* It passes the gate. */
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

/* In a register and behind all of them. */
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
	/* What nobody translates. */
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
 * The driver gives its handles to memory that is another one's than before, and to memory that is
 * new, as its addresses are used again: the program's go on meaning what they did.
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
		/* New ones, while the old ones are there: all differ, all work. */
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
		/* One goes and comes again. */
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

/* Memory that stays mapped is ours to release: the program cannot do so with a handle it gave back.
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
