/* SPDX-License-Identifier: MIT */
/* Two GPUs: access to memory on the other GPU, by kernels and by copies. */
#include "test/unit/sim.h"

static CUcontext second;

/*
 * Runs a kernel of GPU 0 that writes to @pointer, in a context of its own, since a failed context
 * is lost.
 */
static CUresult touch(CUdeviceptr pointer, bool peer)
{
	uint64_t words = 1;
	uint32_t seed = 0x77;
	void *fill[] = {&pointer, &words, &seed};
	CUcontext context;
	CUresult result;

	OK(CU(cuCtxCreate_v4)(&context, NULL, 0, 0));
	if (peer)
		OK(CU(cuCtxEnablePeerAccess)(second, 0));
	OK(sim_launch(sim_kernel("gpucr_fill"), NULL, fill));
	result = CU(cuCtxSynchronize)();
	OK(CU(cuCtxDestroy_v2)(context));
	return result;
}

static void test_allocated(CUcontext first)
{
	CUdeviceptr there, here;

	OK(CU(cuCtxSetCurrent)(second));
	OK(CU(cuMemAlloc_v2)(&there, 4096));
	OK(CU(cuCtxSetCurrent)(first));
	OK(CU(cuMemAlloc_v2)(&here, 4096));
	OK(CU(cuMemsetD32_v2)(here, 0x1234, 1));
	RESULT(touch(there, false), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(touch(there, true));
	OK(CU(cuCtxSetCurrent)(first));
	/* Copies need no peer access. */
	CHECK(sim_word(there) == 0x77);
	OK(CU(cuMemcpyDtoD_v2)(there, here, 4));
	CHECK(sim_word(there) == 0x1234);
	OK(CU(cuMemFree_v2)(there));
	OK(CU(cuMemFree_v2)(here));
}

static void test_mapped(CUcontext first)
{
	CUmemAllocationProp prop = sim_prop();
	CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr there, here;
	unsigned word;

	prop.location.id = 1;
	access.location = prop.location;
	OK(CU(cuMemCreate)(&handle, 2 * MIB, &prop, 0));
	OK(CU(cuMemAddressReserve)(&there, 2 * MIB, 0, 0, 0));
	OK(CU(cuMemMap)(there, 2 * MIB, 0, handle, 0));
	OK(CU(cuMemSetAccess)(there, 2 * MIB, &access, 1));
	OK(CU(cuMemAlloc_v2)(&here, 4096));
	/* Peer access between contexts only covers memory of cuMemAlloc. */
	RESULT(touch(there, true), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(CU(cuCtxSetCurrent)(first));
	RESULT(CU(cuMemcpyDtoH_v2)(&word, there, 4), CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemcpyDtoD_v2)(here, there, 4), CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemsetD32_v2)(there, 5, 1), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemcpyPeer)(here, first, there, second, 4));
	access.location.id = 0;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	OK(CU(cuMemSetAccess)(there, 2 * MIB, &access, 1));
	OK(CU(cuMemcpyDtoH_v2)(&word, there, 4));
	RESULT(touch(there, false), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(CU(cuCtxSetCurrent)(first));
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	OK(CU(cuMemSetAccess)(there, 2 * MIB, &access, 1));
	OK(touch(there, false));
	OK(CU(cuCtxSetCurrent)(first));
	CHECK(sim_word(there) == 0x77);
	OK(CU(cuMemUnmap)(there, 2 * MIB));
	OK(CU(cuMemRelease)(handle));
	OK(CU(cuMemFree_v2)(here));
}

static void test_pool(CUcontext first)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemAccess_flags flags;
	CUmemoryPool pool;
	CUdeviceptr there;

	OK(CU(cuCtxSetCurrent)(second));
	OK(CU(cuMemAllocAsync)(&there, 4096, NULL));
	OK(CU(cuCtxSynchronize)());
	OK(CU(cuDeviceGetDefaultMemPool)(&pool, 1));
	RESULT(touch(there, true), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(CU(cuMemPoolSetAccess)(pool, &access, 1));
	OK(CU(cuMemPoolGetAccess)(&flags, pool, &access.location));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(touch(there, false));
	OK(CU(cuCtxSetCurrent)(second));
	OK(CU(cuMemFreeAsync)(there, NULL));
	OK(CU(cuCtxSetCurrent)(first));
}

int main(void)
{
	CUcontext first;

	sim_begin("2", "64M");
	first = sim_context();
	OK(CU(cuDevicePrimaryCtxRetain)(&second, 1));
	test_allocated(first);
	test_mapped(first);
	test_pool(first);
	return 0;
}
