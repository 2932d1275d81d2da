/* SPDX-License-Identifier: MIT */
/*
 * What a program sees of its device memory with libgpucr-preload-hip.so by the functions that HIP
 * alone has, compared with what it sees without; and what is behind it. The functions that are like
 * CUDA's have the tests of CUDA's.
 */
#include <stdint.h>
#include <sys/mman.h>

#include "backend/rocm/hip_api.h"
#include "test/unit/preload_managed.h"
#include "test/unit/preload_program.h"

/* An entry point of HIP by its own name. */
#define HIP(name) ((__typeof__(name) *)hip_function(#name))

static void *hip_function(const char *name)
{
	void *library = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
	void *function = library ? dlsym(library, name) : NULL;

	if (!function)
		fprintf(stderr, "no symbol %s\n", name);
	CHECK(function);
	return function;
}

/* hipExtent and hipPitchedPtr. */
struct extent {
	size_t width, height, depth;
};
struct pitched {
	void *pointer;
	size_t pitch, width, height;
};
typedef hipError_t malloc_3d(struct pitched *pitched, struct extent extent);

/* Is in AMD's library; not all that stand in for it have one. */
static malloc_3d *find_malloc_3d(void)
{
	return (malloc_3d *)dlsym(dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL), "hipMalloc3D");
}

static bool owns(const void *pointer)
{
	return memory()->owns((uintptr_t)pointer);
}

/* ---- the same with and without ---- */

static void show_error(const char *what, hipError_t result)
{
	printf("%s: %d, last %d, then %d\n", what, (int)result, (int)HIP(hipGetLastError)(),
	       (int)HIP(hipGetLastError)());
}

static void show_pointer(const char *start, size_t offset)
{
	hipPointerAttribute_t attributes = {0};
	hipError_t result = HIP(hipPointerGetAttributes)(&attributes, start + offset);
	size_t bytes = 0;

	printf("  +%zx: %d: type %d device %d at +%zx host %d managed %d flags %x", offset,
	       (int)result, (int)attributes.type, attributes.device,
	       attributes.devicePointer ? (size_t)((char *)attributes.devicePointer - start) : 7,
	       attributes.hostPointer != NULL, attributes.isManaged, attributes.allocationFlags);
	result = HIP(hipMemPtrGetInfo)((void *)(uintptr_t)(start + offset), &bytes);
	printf(", info %d %zx\n", (int)result, bytes);
}

static void show_memory(void *start, size_t bytes)
{
	show_pointer(start, 0);
	show_pointer(start, bytes - 1);
	if (bytes % (2 * MIB) && bytes > 2 * MIB)
		show_pointer(start, bytes);
	fill((uintptr_t)start, bytes, 3);
	expect((uintptr_t)start, bytes, 3);
	show_error("  free", HIP(hipFree)(start));
	show_error("  free of nothing", HIP(hipFree)(NULL));
}

static void show_flags(void)
{
	static const unsigned int flags[] = {hipDeviceMallocDefault, hipDeviceMallocFinegrained,
					     hipMallocSignalMemory, 99};
	static const size_t sizes[] = {0, 8, MIB, MIB + 4, 5 * MIB + 4, 1ull << 40, 1ull << 51};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(flags); i++)
		for (size_t j = 0; j < GCR_ARRAY_SIZE(sizes); j++) {
			void *start = NULL;
			hipError_t result = HIP(hipExtMallocWithFlags)(&start, sizes[j], flags[i]);

			printf("flags %u, %zx bytes, to nowhere %d: ", flags[i], sizes[j],
			       (int)HIP(hipExtMallocWithFlags)(NULL, sizes[j], flags[i]));
			if (result == hipSuccess && sizes[j])
				show_memory(start, sizes[j]);
			else
				printf("%d\n", (int)result);
		}
	show_error("to nowhere", HIP(hipMalloc)(NULL, 4 * MIB));
}

static void show_rows(void)
{
	static const struct extent cases[] = {
		{100, 100, 1},
		{1000, 5000, 1},
		{MIB + 4, 3, 1},
		{70000, 100, 2},
		{0, 100, 100},
		{100, 0, 100},
		{100, 100, 0},
		{1000, 100, 100},
		{SIZE_MAX, 2, 1},
		{1ull << 40, 1ull << 40, 1},
		{512, 1ull << 30, 1ull << 20},
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		struct pitched pitched = {0};
		void *start = NULL;
		size_t pitch = 0;
		hipError_t result =
			HIP(hipMallocPitch)(&start, &pitch, cases[i].width, cases[i].height);

		printf("%zx x %zx: %d %zx\n", cases[i].width, cases[i].height, (int)result, pitch);
		if (result == hipSuccess && start)
			show_memory(start, pitch * cases[i].height);
		if (!find_malloc_3d())
			continue;
		result = find_malloc_3d()(&pitched, cases[i]);
		printf("  and %zx: %d %zx %zx %zx\n", cases[i].depth, (int)result, pitched.pitch,
		       pitched.width, pitched.height);
		if (result == hipSuccess && pitched.pointer)
			show_memory(pitched.pointer,
				    pitched.pitch * cases[i].height * cases[i].depth);
	}
}

static void show_free(void)
{
	hipStream_t stream;
	char *start;

	OK(HIP(hipStreamCreateWithFlags)(&stream, hipStreamNonBlocking));
	OK(HIP(hipMalloc)((void **)&start, 6 * MIB));
	show_error("free of the middle", HIP(hipFree)(start + 4096));
	OK(HIP(hipFreeAsync)(start, stream));
	OK(HIP(hipStreamSynchronize)(stream));
	show_pointer(start, 0);
}

static void show_reset(void)
{
	void *start;
	size_t bytes, total;

	OK(HIP(hipMalloc)(&start, 6 * MIB));
	show_error("reset", HIP(hipDeviceReset)());
	show_pointer(start, 0);
	OK(HIP(hipMemGetInfo)(&bytes, &total));
	printf("all free: %d\n", total - bytes < 6 * MIB);
	show_error("free", HIP(hipFree)(start));
	OK(HIP(hipMalloc)(&start, 6 * MIB));
	show_memory(start, 6 * MIB);
}

static void show(void)
{
	show_flags();
	show_rows();
	show_free();
	show_reset();
}

/* ---- what is behind it ---- */

static void expect_page(uint64_t bytes, unsigned count)
{
	const struct gcr_page *page = memory()->page();

	if (page->device_bytes != bytes || page->extents != count)
		fprintf(stderr, "%llu bytes, %u extents, '%s'\n",
			(unsigned long long)page->device_bytes, page->extents, page->obstacle);
	CHECK(page->device_bytes == bytes && page->extents == count);
	CHECK(page->obstacle[0] == '\0' && page->incomplete[0] == '\0');
	CHECK(page->flags & GCR_PAGE_HIP);
}

/* The plain ones are made so that they can be handed over, those with flags are left to HIP. */
static void kinds(void)
{
	struct pitched pitched;
	void *plain, *fine, *rows;
	size_t pitch;

	OK(HIP(hipExtMallocWithFlags)(&plain, 3 * MIB, hipDeviceMallocDefault));
	OK(HIP(hipExtMallocWithFlags)(&fine, 3 * MIB, hipDeviceMallocFinegrained));
	CHECK(owns(plain) && !owns(fine));
	expect_page(4 * MIB, 1);
	OK(HIP(hipMallocPitch)(&rows, &pitch, 5000, 1000));
	if (find_malloc_3d())
		OK(find_malloc_3d()(&pitched, (struct extent){5000, 100, 10}));
	else
		OK(HIP(hipMallocPitch)(&pitched.pointer, &pitched.pitch, 5000, 1000));
	CHECK(owns(rows) && owns(pitched.pointer) && pitched.pitch == pitch);
	expect_page(16 * MIB, 3);
	worker_start();
	fill((uintptr_t)plain, 3 * MIB, 1);
	fill((uintptr_t)fine, 3 * MIB, 2);
	fill((uintptr_t)rows, pitch * 1000, 3);
	fill((uintptr_t)pitched.pointer, pitch * 1000, 4);
	freeze();
	CHECK(extents_count == 3);
	thaw();
	worker_stop();
	expect((uintptr_t)plain, 3 * MIB, 1);
	expect((uintptr_t)fine, 3 * MIB, 2);
	expect((uintptr_t)rows, pitch * 1000, 3);
	expect((uintptr_t)pitched.pointer, pitch * 1000, 4);
	OK(HIP(hipFree)(pitched.pointer));
	OK(HIP(hipFree)(rows));
	OK(HIP(hipFree)(fine));
	OK(HIP(hipFree)(plain));
	expect_page(0, 0);
}

/* A failure of ours that the program does not know of is not its last error. */
static void falls_back(void)
{
	void *start;

	OK(HIP(hipExtMallocWithFlags)(&start, 3 * MIB, hipDeviceMallocDefault));
	CHECK(!owns(start));
	CHECK(HIP(hipGetLastError)() == hipSuccess);
	OK(HIP(hipFree)(start));
	OK(HIP(hipMalloc)(&start, 3 * MIB));
	CHECK(!owns(start) && HIP(hipGetLastError)() == hipSuccess);
	OK(HIP(hipFree)(start));
	OK(HIP(hipMalloc)(&start, 3 * MIB));
	CHECK(owns(start));
	OK(HIP(hipFree)(start));
	expect_page(0, 0);
}

/* The handles of the program's own: theirs are ours, and stay the same over a freeze. */
static void handles(void)
{
	hipMemAllocationProp prop = {
		.type = hipMemAllocationTypePinned,
		.location = {.type = hipMemLocationTypeDevice, .id = 0},
	};
	hipMemAccessDesc access = {
		.location = {.type = hipMemLocationTypeDevice, .id = 0},
		.flags = hipMemAccessFlagsProtReadWrite,
	};
	hipMemAllocationProp got = {0};
	hipMemGenericAllocationHandle_t handle, again;
	void *start;
	int fd;

	OK(HIP(hipMemCreate)(&handle, 4 * MIB, &prop, 0));
	expect_page(4 * MIB, 1);
	OK(HIP(hipMemAddressReserve)(&start, 4 * MIB, 0, NULL, 0));
	OK(HIP(hipMemMap)(start, 4 * MIB, 0, handle, 0));
	OK(HIP(hipMemSetAccess)(start, 4 * MIB, &access, 1));
	fill((uintptr_t)start, 4 * MIB, 5);
	worker_start();
	for (int round = 0; round < 2; round++) {
		freeze();
		CHECK(extents_count == 1 && extents[0].address == (uintptr_t)start);
		CHECK(extents[0].flags == GCR_EXTENT_PROGRAM_HANDLE);
		thaw();
		expect((uintptr_t)start, 4 * MIB, 5);
	}
	worker_stop();
	OK(HIP(hipMemGetAllocationPropertiesFromHandle)(&got, handle));
	CHECK(got.requestedHandleType == hipMemHandleTypeNone);
	/* Exportable to us only. */
	RESULT(HIP(hipMemExportToShareableHandle)(&fd, handle, hipMemHandleTypePosixFileDescriptor,
						  0),
	       hipErrorInvalidValue);
	OK(HIP(hipMemRetainAllocationHandle)(&again, start));
	/* Up to ROCm 6 it is not one more. */
	CHECK(again == handle);
	OK(HIP(hipMemUnmap)(start, 4 * MIB));
	OK(HIP(hipMemAddressFree)(start, 4 * MIB));
	OK(HIP(hipMemRelease)(handle));
	expect_page(0, 0);
}

/* Access by hipDeviceEnablePeerAccess, which only the current GPU is given. */
static void peers(void)
{
	void *there, *here;

	OK(HIP(hipSetDevice)(1));
	OK(HIP(hipMalloc)(&there, 4 * MIB));
	fill((uintptr_t)there, 4 * MIB, 6);
	OK(HIP(hipSetDevice)(0));
	OK(HIP(hipMalloc)(&here, 4 * MIB));
	OK(HIP(hipDeviceEnablePeerAccess)(1, 0));
	RESULT(HIP(hipDeviceEnablePeerAccess)(1, 0), hipErrorPeerAccessAlreadyEnabled);
	OK(HIP(hipMemcpyDtoDAsync)(here, there, 4 * MIB, NULL));
	OK(HIP(hipStreamSynchronize)(NULL));
	expect((uintptr_t)here, 4 * MIB, 6);
	worker_start();
	freeze();
	CHECK(extents_count == 2 && device_of(&extents[0]) == 0 && device_of(&extents[1]) == 1);
	thaw();
	worker_stop();
	OK(HIP(hipSetDevice)(0));
	fill((uintptr_t)here, 4 * MIB, 7);
	OK(HIP(hipMemcpyDtoDAsync)(here, there, 4 * MIB, NULL));
	OK(HIP(hipStreamSynchronize)(NULL));
	expect((uintptr_t)here, 4 * MIB, 6);
	OK(HIP(hipDeviceDisablePeerAccess)(1));
	RESULT(HIP(hipDeviceDisablePeerAccess)(1), hipErrorPeerAccessNotEnabled);
	/* A reset takes what is on one GPU. */
	OK(HIP(hipDeviceReset)());
	CHECK(!owns(here) && owns(there));
	expect_page(4 * MIB, 1);
}

/* ---- the gate ---- */

static hipStream_t busy_stream;
static _Atomic(int) is_let_go;

static void block(void *data)
{
	while (!is_let_go)
		sched_yield();
}

/* Work in a stream that waits for nobody holds the gate up, until it ends; the wait can be left. */
static void gate(void)
{
	struct gcr_error error;

	OK(HIP(hipStreamCreateWithFlags)(&busy_stream, hipStreamNonBlocking));
	OK(HIP(hipLaunchHostFunc)(busy_stream, block, NULL));
	memory()->exempt();
	for (int i = 0; i < 2; i++) {
		CHECK(memory()->gate_close(20000, -1, &error) == -ETIMEDOUT);
		CHECK(strstr(error.words, "GPU 0 has not finished its work"));
		memory()->gate_open();
	}
	is_let_go = 1;
	CHECK(memory()->gate_close(20000000, -1, &error) == 0);
	RESULT(HIP(hipStreamQuery)(busy_stream), hipSuccess);
	memory()->gate_open();
	CHECK(memory()->gate_close(20000000, -1, &error) == 0);
	memory()->gate_open();
}

/* hipFree waits for work of all streams that was given before. */
static void *freed;
static _Atomic(int) is_freed;

static void *free_it(void *nothing)
{
	OK(HIP(hipFree)(freed));
	is_freed = 1;
	return NULL;
}

static void free_waits(void)
{
	pthread_t thread;

	OK(HIP(hipMalloc)(&freed, 4 * MIB));
	OK(HIP(hipStreamCreateWithFlags)(&busy_stream, hipStreamNonBlocking));
	OK(HIP(hipLaunchHostFunc)(busy_stream, block, NULL));
	OK(HIP(hipMemsetD8Async)(freed, 1, 4 * MIB, busy_stream));
	CHECK(pthread_create(&thread, NULL, free_it, NULL) == 0);
	for (int i = 0; i < 1000 && !is_freed; i++)
		sched_yield();
	CHECK(!is_freed && owns(freed));
	is_let_go = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(is_freed && !owns(freed));
}

/* ---- managed memory ---- */

static const struct preload_managed *managed(void)
{
	__typeof__(gcr_test_managed) *door =
		(__typeof__(door))dlsym(RTLD_DEFAULT, "gcr_test_managed");

	CHECK(door);
	return door();
}

static int make_file(size_t bytes)
{
	int fd = memfd_create("managed", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	return fd;
}

/* It is not taken out: the reason is told, and nothing has happened. */
static void managed_memory(void)
{
	struct gcr_extent extent;
	unsigned char *start;
	void *plain;
	int fd;

	OK(HIP(hipMallocManaged)((void **)&start, 4 * MIB, hipMemAttachGlobal));
	OK(HIP(hipMalloc)(&plain, 4 * MIB));
	memset(start, 7, 4 * MIB);
	expect_page(4 * MIB, 1);
	CHECK(memory()->page()->managed_bytes == 4 * MIB);
	CHECK(managed()->describe(&extent, 1) == 1 && extent.kind == GCR_MEMORY_MANAGED);
	CHECK(extent.address == (uintptr_t)start && extent.bytes == 4 * MIB);
	managed()->exempt_thread();
	fd = make_file(4 * MIB);
	DONE(managed()->files(0, 1, &fd, &failure));
	CHECK(managed()->save(&failure) == -EOPNOTSUPP);
	CHECK(strstr(failure.words, "uses managed memory, 1 allocations"));
	CHECK(!managed()->is_held());
	managed()->cancel();
	managed()->close_files();
	for (size_t i = 0; i < 4 * MIB; i++)
		CHECK(start[i] == 7);
	OK(HIP(hipFree)(start));
	CHECK(memory()->page()->managed_bytes == 0);
	OK(HIP(hipFree)(plain));
}

static const struct subject subjects[] = {
	{.name = "show", .run = show},
	{.name = "kinds", .run = kinds},
	{.name = "falls back",
	 .run = falls_back,
	 .faults = "cuMemCreate times=2 error=CUDA_ERROR_NOT_SUPPORTED"},
	{.name = "handles", .run = handles},
	{.name = "peers", .run = peers, .gpus = "2"},
	{.name = "gate", .run = gate},
	{.name = "free waits", .run = free_waits},
	{.name = "managed", .run = managed_memory},
};

int main(int argc, char **argv)
{
	if (run_one(argc, argv, subjects, GCR_ARRAY_SIZE(subjects)))
		return 0;
	test_same();
	run_all(subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}
