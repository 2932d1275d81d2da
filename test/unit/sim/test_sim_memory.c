/* SPDX-License-Identifier: MIT */
/*
 * All processes share the capacity of device memory, and a process's memory is freed when it dies.
 */
#include "test/unit/sim.h"

static void holder(int fd)
{
	CUdeviceptr pointer;

	sim_context();
	OK(CU(cuMemAlloc_v2)(&pointer, 40 * MIB));
	say_byte(fd, 'r');
	hear_byte(fd);
}

static void exporter(int fd)
{
	CUmemAllocationProp prop = sim_prop();
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;
	int shareable;

	sim_context();
	OK(CU(cuMemCreate)(&handle, 16 * MIB, &prop, 0));
	pointer = sim_map(handle, 16 * MIB);
	OK(CU(cuMemsetD32_v2)(pointer, 0xabcd1234, 4 * MIB));
	OK(CU(cuCtxSynchronize)());
	OK(CU(cuMemExportToShareableHandle)(&shareable, handle,
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	say_descriptor(fd, shareable);
	hear_byte(fd);
}

static void forker(int fd)
{
	CUdeviceptr pointer;
	size_t bytes, total;
	CUcontext context = sim_context();
	int version;

	OK(CU(cuMemAlloc_v2)(&pointer, 20 * MIB));
	if (fork() == 0) {
		RESULT(CU(cuInit)(0), CUDA_ERROR_NOT_INITIALIZED);
		RESULT(CU(cuMemGetInfo_v2)(&bytes, &total), CUDA_ERROR_NOT_INITIALIZED);
		RESULT(CU(cuCtxSetCurrent)(context), CUDA_ERROR_NOT_INITIALIZED);
		RESULT(CU(cuDriverGetVersion)(&version), CUDA_ERROR_NOT_INITIALIZED);
		say_byte(fd, 'r');
		hear_byte(fd);
		_exit(0);
	}
	pause();
}

static void test_capacity(struct child *a, struct child *b)
{
	CUdeviceptr pointer;
	size_t before, total;

	CHECK(hear_byte(a->fd) == 'r' && hear_byte(b->fd) == 'r');
	OK(CU(cuMemGetInfo_v2)(&before, &total));
	CHECK(total == 128 * MIB);
	CHECK(before == (128 - 2 * 44 - 4) * MIB);
	RESULT(CU(cuMemAlloc_v2)(&pointer, before + 1), CUDA_ERROR_OUT_OF_MEMORY);
	child_kill(a);
	CHECK(sim_free_bytes() == before + 44 * MIB);
	OK(CU(cuMemAlloc_v2)(&pointer, before + 44 * MIB));
	OK(CU(cuMemFree_v2)(pointer));
	child_kill(b);
}

static void test_export(struct child *a)
{
	int fd = hear_descriptor(a->fd);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;
	size_t all = 124 * MIB;
	int again;

	child_kill(a);
	CHECK(sim_free_bytes() == all - 16 * MIB);
	OK(CU(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	CHECK(sim_free_bytes() == all - 16 * MIB);
	pointer = sim_map(handle, 16 * MIB);
	CHECK(sim_word(pointer + 16 * MIB - 4) == 0xabcd1234);
	RESULT(CU(cuMemExportToShareableHandle)(&again, handle,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	       CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemRelease)(handle));
	CHECK(sim_word(pointer) == 0xabcd1234);
	OK(CU(cuMemUnmap)(pointer, 16 * MIB));
	CHECK(sim_free_bytes() == all);
	OK(CU(cuMemAddressFree)(pointer, 16 * MIB));
}

static void test_fork(struct child *a)
{
	CHECK(hear_byte(a->fd) == 'r');
	kill(a->pid, SIGKILL);
	CHECK(waitpid(a->pid, NULL, 0) == a->pid);
	CHECK(sim_free_bytes() == (124 - 24) * MIB);
	say_byte(a->fd, 'q');
	/* The closed end of the child's socket shows that the child has ended. */
	CHECK(read(a->fd, &(char){0}, 1) == 0);
	for (int i = 0; sim_free_bytes() != 124 * MIB; i++) {
		CHECK(i < 1000);
		usleep(1000);
	}
	close(a->fd);
}

static void test_addresses(void)
{
	CUdeviceptr small[2], large, base, fixed;
	size_t size;
	unsigned type, managed;
	int ordinal;

	OK(CU(cuMemAlloc_v2)(&small[0], 1000));
	OK(CU(cuMemAlloc_v2)(&small[1], 1000));
	CHECK(small[1] - small[0] == 1024);
	OK(CU(cuMemAlloc_v2)(&large, 3 * MIB));
	CHECK(large % (2 * MIB) == 0);
	CHECK(sim_free_bytes() == (124 - 6) * MIB);
	OK(CU(cuMemGetAddressRange_v2)(&base, &size, small[1] + 999));
	CHECK(base == small[1] && size == 1000);
	OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, large + 5));
	CHECK(type == CU_MEMORYTYPE_DEVICE);
	OK(CU(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, large));
	OK(CU(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, large));
	CHECK(!managed && ordinal == 0);
	RESULT(CU(cuMemFree_v2)(large + 512), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemFree_v2)(large));
	OK(CU(cuMemAddressReserve)(&fixed, 4 * MIB, 0, large, 0));
	CHECK(fixed == large);
	OK(CU(cuMemAddressReserve)(&base, 4 * MIB, 0, large, 0));
	CHECK(base != large);
	OK(CU(cuMemAddressFree)(fixed, 4 * MIB));
	OK(CU(cuMemAddressFree)(base, 4 * MIB));
	OK(CU(cuMemFree_v2)(small[0]));
	OK(CU(cuMemFree_v2)(small[1]));
	RESULT(CU(cuMemFree_v2)(small[1]), CUDA_ERROR_INVALID_VALUE);
	CHECK(sim_free_bytes() == 124 * MIB);
}

static void test_vmm(void)
{
	CUmemAllocationProp prop = sim_prop();
	CUmemGenericAllocationHandle handle, retained;
	CUmemLocation location = prop.location;
	unsigned long long flags;
	CUdeviceptr pointer;

	RESULT(CU(cuMemCreate)(&handle, 3 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemCreate)(&handle, 256 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	OK(CU(cuMemCreate)(&handle, 4 * MIB, &prop, 0));
	OK(CU(cuMemAddressReserve)(&pointer, 8 * MIB, 0, 0, 0));
	OK(CU(cuMemMap)(pointer + 4 * MIB, 4 * MIB, 0, handle, 0));
	RESULT(CU(cuMemMap)(pointer + 6 * MIB, 2 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemGetAccess)(&flags, &location, pointer + 4 * MIB));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
	/* Mapped, but without access for any device yet. */
	RESULT(CU(cuMemsetD8_v2)(pointer + 4 * MIB, 1, 1), CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemAddressFree)(pointer, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
	OK(CU(cuMemRetainAllocationHandle)(&retained, (void *)(pointer + 5 * MIB)));
	OK(CU(cuMemRelease)(handle));
	OK(CU(cuMemUnmap)(pointer + 4 * MIB, 4 * MIB));
	CHECK(sim_free_bytes() == 120 * MIB);
	OK(CU(cuMemRelease)(retained));
	CHECK(sim_free_bytes() == 124 * MIB);
	OK(CU(cuMemAddressFree)(pointer, 8 * MIB));
}

static void test_host(void)
{
	static char buffer[8192];
	unsigned flags;
	CUdeviceptr mapped;
	void *pinned;

	OK(CU(cuMemHostRegister_v2)(buffer, sizeof(buffer), CU_MEMHOSTREGISTER_PORTABLE));
	RESULT(CU(cuMemHostRegister_v2)(buffer + 4096, 4096, 0),
	       CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	OK(CU(cuMemHostGetDevicePointer_v2)(&mapped, buffer + 1, 0));
	CHECK(mapped == (CUdeviceptr)(buffer + 1));
	OK(CU(cuMemHostUnregister)(buffer));
	RESULT(CU(cuMemHostRegister_v2)((void *)4096, 4096, 0), CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemHostUnregister)(buffer), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	OK(CU(cuMemHostAlloc)(&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	OK(CU(cuMemHostGetFlags)(&flags, pinned));
	CHECK(flags == CU_MEMHOSTALLOC_DEVICEMAP);
	OK(CU(cuMemFreeHost)(pinned));
}

/* Children wait for 's' before they use the driver, so that their tests run one after another. */
static void (*later_body)(int fd);

static void later(int fd)
{
	if (read(fd, &(char){0}, 1) == 1)
		later_body(fd);
}

static struct child start_later(void (*body)(int fd))
{
	later_body = body;
	return child_start(later);
}

int main(void)
{
	struct child holders[2], export_child, fork_child;

	sim_begin("1", "128M");
	holders[0] = start_later(holder);
	holders[1] = start_later(holder);
	export_child = start_later(exporter);
	fork_child = start_later(forker);
	sim_context();

	test_addresses();
	test_vmm();
	test_host();
	say_byte(holders[0].fd, 's');
	say_byte(holders[1].fd, 's');
	test_capacity(&holders[0], &holders[1]);
	say_byte(export_child.fd, 's');
	test_export(&export_child);
	say_byte(fork_child.fd, 's');
	test_fork(&fork_child);
	return 0;
}
