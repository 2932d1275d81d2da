/* SPDX-License-Identifier: MIT */
/* Managed memory: the CPU and kernels reach it, and its advice and attributes can be queried. */
#include "test/unit/sim.h"

#define PAGE 4096ull

static int number(CUmem_range_attribute attribute, CUdeviceptr pointer, size_t size)
{
	int value;

	OK(CU(cuMemRangeGetAttribute)(&value, sizeof(value), attribute, pointer, size));
	return value;
}

static void test_bytes(CUdeviceptr pointer, size_t size)
{
	uint64_t words = size / 4;
	uint32_t seed = 7;
	void *fill[] = {&pointer, &words, &seed};
	unsigned managed, type;

	OK(sim_launch(sim_kernel("gpucr_fill"), NULL, fill));
	OK(CU(cuCtxSynchronize)());
	CHECK(((unsigned *)pointer)[0] == 7);
	((unsigned *)pointer)[1] = 0x55;
	CHECK(sim_word(pointer + 4) == 0x55);
	OK(CU(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer));
	OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer));
	CHECK(managed && type == CU_MEMORYTYPE_DEVICE);
}

static void test_advice(CUdeviceptr pointer, size_t size)
{
	CUmem_range_attribute attributes[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
					      CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY};
	CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
	int read_mostly, devices[3];
	void *data[] = {&read_mostly, devices};
	size_t sizes[] = {sizeof(read_mostly), sizeof(devices)};

	CHECK(number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, pointer, size) ==
	      CU_DEVICE_INVALID);
	/* Ranges are made of whole pages. */
	OK(CU(cuMemAdvise)(pointer + PAGE + 1, 1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
	CHECK(number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, pointer + PAGE, PAGE) == 0);
	CHECK(number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, pointer + PAGE, PAGE + 1) ==
	      CU_DEVICE_INVALID);
	CHECK(number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, pointer, 1) == CU_DEVICE_INVALID);
	OK(CU(cuMemAdvise_v2)(pointer, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
	CHECK(number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, pointer, size) == CU_DEVICE_CPU);
	CHECK(number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, pointer, size) ==
	      CU_MEM_LOCATION_TYPE_HOST);

	OK(CU(cuMemAdvise)(pointer, size, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
	OK(CU(cuMemAdvise)(pointer, size, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
	OK(CU(cuMemAdvise)(pointer, size, CU_MEM_ADVISE_SET_ACCESSED_BY, 0));
	OK(CU(cuMemRangeGetAttributes)(data, sizes, attributes, 2, pointer, size));
	CHECK(read_mostly == 1);
	CHECK(devices[0] == CU_DEVICE_CPU && devices[1] == 0 && devices[2] == CU_DEVICE_INVALID);
	OK(CU(cuMemAdvise)(pointer, PAGE, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0));
	CHECK(!number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, pointer, size));
	CHECK(number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, pointer + PAGE, size - PAGE));

	OK(CU(cuMemPrefetchAsync)(pointer, size, 0, NULL));
	CHECK(number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, pointer, size) == 0);
	OK(CU(cuMemPrefetchAsync)(pointer, PAGE, CU_DEVICE_CPU, NULL));
	CHECK(number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, pointer, size) ==
	      CU_DEVICE_INVALID);

	RESULT(CU(cuMemAdvise)(pointer, size + 1, CU_MEM_ADVISE_SET_READ_MOSTLY, 0),
	       CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemAdvise)(pointer, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 9),
	       CUDA_ERROR_INVALID_DEVICE);
	RESULT(CU(cuMemRangeGetAttribute)(devices, 1, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, pointer,
					  size),
	       CUDA_ERROR_INVALID_VALUE);
}

static void test_attach(CUdeviceptr pointer, size_t size)
{
	CUdeviceptr device;
	CUstream stream;

	OK(CU(cuStreamCreate)(&stream, 0));
	OK(CU(cuStreamAttachMemAsync)(stream, pointer, 0, CU_MEM_ATTACH_SINGLE));
	OK(CU(cuStreamAttachMemAsync)(NULL, pointer, size, CU_MEM_ATTACH_HOST));
	OK(CU(cuStreamAttachMemAsync)(NULL, pointer, 0, CU_MEM_ATTACH_GLOBAL));
	RESULT(CU(cuStreamAttachMemAsync)(stream, pointer, PAGE, CU_MEM_ATTACH_SINGLE),
	       CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuStreamAttachMemAsync)(stream, pointer, 0, 0), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemAlloc_v2)(&device, PAGE));
	RESULT(CU(cuStreamAttachMemAsync)(stream, device, 0, CU_MEM_ATTACH_GLOBAL),
	       CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemAdvise)(device, PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0),
	       CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemFree_v2)(device));
	OK(CU(cuStreamDestroy_v2)(stream));
}

/*
 * Chunks have 32 MiB, allocations start at multiples of 2 MiB, and small allocations are cut from a
 * block of that size.
 */
static void test_addresses(void)
{
	static const size_t sizes[] = {3 << 20, 4096, 40 << 20, 200000};
	CUdeviceptr pointers[4], again[4];

	for (int i = 0; i < 4; i++)
		OK(CU(cuMemAllocManaged)(&pointers[i], sizes[i], CU_MEM_ATTACH_GLOBAL));
	CHECK(pointers[0] % (32 * MIB) == 0 && pointers[2] % (32 * MIB) == 0);
	CHECK(pointers[1] == pointers[0] + 4 * MIB && pointers[3] == pointers[1] + 4096);
	for (int i = 0; i < 4; i++)
		OK(CU(cuMemFree_v2)(pointers[i]));
	for (int i = 0; i < 4; i++) {
		OK(CU(cuMemAllocManaged)(&again[i], sizes[i], CU_MEM_ATTACH_GLOBAL));
		CHECK(again[i] == pointers[i]);
	}
	for (int i = 0; i < 4; i++)
		OK(CU(cuMemFree_v2)(again[i]));
}

/* Managed memory takes GPU memory only while it is on the GPU. */
static void test_accounting(void)
{
	size_t all = sim_free_bytes();
	CUdeviceptr pointer;

	OK(CU(cuMemAllocManaged)(&pointer, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
	memset((void *)pointer, 1, 8 * MIB);
	CHECK(sim_free_bytes() == all);
	OK(CU(cuMemsetD8_v2)(pointer, 2, 16));
	OK(CU(cuCtxSynchronize)());
	CHECK(sim_free_bytes() == all - 8 * MIB);
	OK(CU(cuMemPrefetchAsync)(pointer, 8 * MIB, CU_DEVICE_CPU, NULL));
	CHECK(sim_free_bytes() == all);
	OK(CU(cuMemPrefetchAsync)(pointer, 8 * MIB, 0, NULL));
	CHECK(sim_free_bytes() == all - 8 * MIB);
	OK(CU(cuMemFree_v2)(pointer));
	CHECK(sim_free_bytes() == all);
}

int main(void)
{
	const size_t size = 3 * PAGE;
	CUdeviceptr pointer;

	sim_begin("1", "64M");
	sim_context();
	RESULT(CU(cuMemAllocManaged)(&pointer, size, CU_MEM_ATTACH_SINGLE),
	       CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemAllocManaged)(&pointer, size, CU_MEM_ATTACH_GLOBAL));
	test_bytes(pointer, size);
	test_advice(pointer, size);
	test_attach(pointer, size);
	OK(CU(cuMemFree_v2)(pointer));
	test_addresses();
	test_accounting();
	return 0;
}
