/* SPDX-License-Identifier: MIT */
/*
 * The results that a program with libgpucr-preload-hip.so gets for its device memory from the
 * functions that only HIP has, compared with the results without the library; and the library's own
 * record of that memory. The tests for CUDA cover the functions that are like CUDA's.
 */
#include <stdint.h>
#include <sys/mman.h>

#include "test/unit/preload/hip_program.h"
#include "test/unit/preload/preload_managed.h"

/* HIP's hipExtent and hipPitchedPtr. */
struct extent {
	size_t width, height, depth;
};
struct pitched {
	void *pointer;
	size_t pitch, width, height;
};
typedef hipError_t malloc_3d(struct pitched *pitched, struct extent extent);

/* AMD's library has hipMalloc3D; not every stand-in has it. Returns NULL if it is missing. */
static malloc_3d *find_malloc_3d(void)
{
	return (malloc_3d *)dlsym(dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL), "hipMalloc3D");
}

/* ---- the same results with and without the library ---- */

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

/* ---- the library's record ---- */

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

/* Plain allocations are made exportable; allocations with flags are left to HIP. */
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

/* A failure inside the library, of which the program does not know, is not its last error. */
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

/* The program's handles are the library's own handles, and stay the same over a freeze. */
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
	/* Only the library can export this memory. */
	RESULT(HIP(hipMemExportToShareableHandle)(&fd, handle, hipMemHandleTypePosixFileDescriptor,
						  0),
	       hipErrorInvalidValue);
	OK(HIP(hipMemRetainAllocationHandle)(&again, start));
	/* Up to ROCm 6 the call adds no reference. */
	CHECK(again == handle);
	OK(HIP(hipMemUnmap)(start, 4 * MIB));
	OK(HIP(hipMemAddressFree)(start, 4 * MIB));
	OK(HIP(hipMemRelease)(handle));
	expect_page(0, 0);
}

/* hipDeviceEnablePeerAccess gives access to the current GPU alone. */
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
	/* A reset frees the memory of one GPU. */
	OK(HIP(hipDeviceReset)());
	CHECK(!owns(here) && owns(there));
	expect_page(4 * MIB, 1);
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

/* Managed memory is not moved out: the library reports the reason, and nothing has changed. */
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

/*
 * With a version that cannot hand memory over the program gets HIP's own memory, and the page
 * states the obstacle.
 */
static void old_version(void)
{
	void *start;

	OK(HIP(hipMalloc)(&start, 4 * MIB));
	CHECK(!owns(start) && memory()->page()->extents == 0);
	CHECK(strstr(memory()->page()->obstacle, "ROCm 6.3.2, 6.4.2 and newer"));
	fill((uintptr_t)start, 4 * MIB, 1);
	expect((uintptr_t)start, 4 * MIB, 1);
	OK(HIP(hipFree)(start));
}

/* ---- differences between versions ---- */

static size_t used(void)
{
	size_t free_bytes, total;

	OK(HIP(hipMemGetInfo)(&free_bytes, &total));
	return total - free_bytes;
}

/* A freeze frees the VRAM, a thaw allocates the same amount, and a free returns all of it. */
static void is_freed_by_freeze(void)
{
	size_t before, with;
	void *start;

	worker_start();
	OK(HIP(hipMalloc)(&start, 4 * MIB));
	fill((uintptr_t)start, 4 * MIB, 1);
	/* From the first freeze on the worker has VRAM of its own. */
	freeze();
	thaw();
	with = used();
	for (int round = 0; round < 2; round++) {
		freeze();
		CHECK(used() == with - 4 * MIB);
		thaw();
		CHECK(used() == with);
		expect((uintptr_t)start, 4 * MIB, 1);
	}
	before = with - 4 * MIB;
	CHECK(owns(start));
	OK(HIP(hipFree)(start));
	CHECK(used() <= before);
	worker_stop();
}

#define UNEQUAL 3
static const size_t unequal_bytes[UNEQUAL] = {2 * MIB, 6 * MIB, 4 * MIB};
static hipMemGenericAllocationHandle_t unequal_handles[UNEQUAL];
static const hipMemAccessDesc may_write = {
	.location = {.type = hipMemLocationTypeDevice, .id = 0},
	.flags = hipMemAccessFlagsProtReadWrite,
};

/* Memory of several sizes in one reservation, with access to all of it set by one call. */
static char *make_unequal(void)
{
	hipMemAllocationProp prop = {
		.type = hipMemAllocationTypePinned,
		.location = {.type = hipMemLocationTypeDevice, .id = 0},
	};
	char *range, *at;

	OK(HIP(hipMemAddressReserve)((void **)&range, 12 * MIB, 0, NULL, 0));
	at = range;
	for (size_t i = 0; i < UNEQUAL; at += unequal_bytes[i++]) {
		OK(HIP(hipMemCreate)(&unequal_handles[i], unequal_bytes[i], &prop, 0));
		OK(HIP(hipMemMap)(at, unequal_bytes[i], 0, unequal_handles[i], 0));
	}
	OK(HIP(hipMemSetAccess)(range, 12 * MIB, &may_write, 1));
	at = range;
	for (size_t i = 0; i < UNEQUAL; at += unequal_bytes[i++])
		fill((uintptr_t)at, unequal_bytes[i], (unsigned)i);
	return range;
}

static void expect_unequal(const char *at)
{
	for (size_t i = 0; i < UNEQUAL; at += unequal_bytes[i++])
		expect((uintptr_t)at, unequal_bytes[i], (unsigned)i);
}

static void unmake_unequal(char *range)
{
	char *at = range;

	for (size_t i = 0; i < UNEQUAL; at += unequal_bytes[i++]) {
		OK(HIP(hipMemUnmap)(at, unequal_bytes[i]));
		OK(HIP(hipMemRelease)(unequal_handles[i]));
	}
	OK(HIP(hipMemAddressFree)(range, 12 * MIB));
	expect_page(0, 0);
}

static void unequal(void)
{
	char *range = make_unequal();

	worker_start();
	for (int round = 0; round < 2; round++) {
		freeze();
		CHECK(extents_count == UNEQUAL);
		thaw();
		expect_unequal(range);
	}
	worker_stop();
	unmake_unequal(range);
}

/* The freeze fails: all memory is as it was before. */
static void taken_back(void)
{
	char *range = make_unequal();
	int fds[UNEQUAL];

	look();
	CHECK(extents_count == UNEQUAL);
	DONE(memory()->export(0, UNEQUAL, fds, &failure));
	CHECK(memory()->unmap(&failure) == -EIO);
	CHECK(memory()->complete(&failure));
	expect_unequal(range);
	unmake_unequal(range);
}

/*
 * Memory that could not be mapped again with the same access is not exported, and nothing has
 * changed.
 */
static void not_again(void)
{
	const hipMemAccessDesc may_read = {.location = may_write.location,
					   .flags = hipMemAccessFlagsProtRead};
	char *range = make_unequal();
	int fds[UNEQUAL];

	OK(HIP(hipMemSetAccess)(range, 2 * MIB, &may_read, 1));
	look();
	CHECK(memory()->export(0, UNEQUAL, fds, &failure) == -EOPNOTSUPP);
	CHECK(strstr(failure.words, "would not give access"));
	CHECK(memory()->complete(&failure));
	expect_unequal(range);
	OK(HIP(hipMemSetAccess)(range, 12 * MIB, &may_write, 1));
	DONE(memory()->export(0, UNEQUAL, fds, &failure));
	DONE(memory()->take_back(&failure));
	expect_unequal(range);
	unmake_unequal(range);
}

/* HIP reports a mapping as done though it is not: the program gets memory of HIP's own. */
static void quiet_map(void)
{
	void *start;

	OK(HIP(hipMalloc)(&start, 4 * MIB));
	CHECK(!owns(start) && HIP(hipGetLastError)() == hipSuccess);
	fill((uintptr_t)start, 4 * MIB, 1);
	expect((uintptr_t)start, 4 * MIB, 1);
	OK(HIP(hipFree)(start));
}

/* HIP reports an unmapping as done though it is not: the freeze fails, and nothing is lost. */
static void quiet_unmap(void)
{
	void *start;
	int fd;

	OK(HIP(hipMalloc)(&start, 4 * MIB));
	CHECK(owns(start));
	fill((uintptr_t)start, 4 * MIB, 1);
	look();
	DONE(memory()->export(0, 1, &fd, &failure));
	CHECK(memory()->unmap(&failure) == -EIO);
	CHECK(strstr(failure.words, "hipMemUnmap"));
	CHECK(memory()->complete(&failure));
	expect((uintptr_t)start, 4 * MIB, 1);
	OK(HIP(hipFree)(start));
	expect_page(0, 0);
}

static size_t ask_granularity(void)
{
	hipMemAllocationProp prop = {
		.type = hipMemAllocationTypePinned,
		.location = {.type = hipMemLocationTypeDevice, .id = 0},
	};
	size_t bytes = 1;

	OK(HIP(hipMemGetAllocationGranularity)(&bytes, &prop, hipMemAllocationGranularityMinimum));
	prop.location.id = 99;
	RESULT(HIP(hipMemGetAllocationGranularity)(&bytes, &prop,
						   hipMemAllocationGranularityMinimum),
	       hipErrorInvalidValue);
	return bytes;
}

static void granularity(void)
{
	CHECK(ask_granularity() == 2 * MIB);
}

/* If no memory is handed over, the library passes on HIP's own answer. */
static void granularity_of_old(void)
{
	CHECK(setenv("GPUCR_SIM_HIP_VERSION", "6.1", 1) == 0);
	CHECK(ask_granularity() == 4096);
}

/*
 * Memory of an odd size is not handed over, and its size is counted, for a dump needs the figure.
 */
static void apart(void)
{
	hipMemAllocationProp prop = {
		.type = hipMemAllocationTypePinned,
		.location = {.type = hipMemLocationTypeDevice, .id = 0},
	};
	hipMemGenericAllocationHandle_t whole, odd[2];

	OK(HIP(hipMemCreate)(&whole, 4 * MIB, &prop, 0));
	CHECK(memory()->page()->apart_bytes == 0);
	OK(HIP(hipMemCreate)(&odd[0], 4096, &prop, 0));
	OK(HIP(hipMemCreate)(&odd[1], 2 * MIB + 8192, &prop, 0));
	CHECK(memory()->page()->apart_bytes == 2 * MIB + 12288);
	OK(HIP(hipMemRelease)(odd[0]));
	CHECK(memory()->page()->apart_bytes == 2 * MIB + 8192);
	OK(HIP(hipMemRelease)(odd[1]));
	OK(HIP(hipMemRelease)(whole));
	CHECK(memory()->page()->apart_bytes == 0);
}

/* HIP writes four bytes, and so does the library. */
static void range_size(void)
{
	struct {
		uint32_t bytes, behind;
	} got = {.behind = 0x12345678};
	void *start;

	OK(HIP(hipMalloc)(&start, 5 * MIB));
	CHECK(owns(start));
	OK(HIP(hipPointerGetAttribute)(&got, HIP_POINTER_ATTRIBUTE_RANGE_SIZE, start));
	CHECK(got.bytes == 5 * MIB && got.behind == 0x12345678);
	OK(HIP(hipFree)(start));
}

static const struct subject subjects[] = {
	{.name = "show", .run = show},
	{.name = "kinds", .run = kinds},
	{.name = "falls back",
	 .run = falls_back,
	 .faults = "cuMemCreate times=2 error=CUDA_ERROR_NOT_SUPPORTED"},
	{.name = "old version", .run = old_version, .environment = "GPUCR_SIM_HIP_VERSION=6.1"},
	{.name = "does not free",
	 .run = old_version,
	 .environment = "GPUCR_SIM_HIP_VERSION=6.4.43483"},
	{.name = "is freed, 6.3.2",
	 .run = is_freed_by_freeze,
	 .environment = "GPUCR_SIM_HIP_VERSION=6.3.42134"},
	{.name = "is freed", .run = is_freed_by_freeze},
	{.name = "is freed, 7.2",
	 .run = is_freed_by_freeze,
	 .environment = "GPUCR_SIM_HIP_VERSION=7.2"},
	{.name = "unequal", .run = unequal},
	{.name = "unequal, 7.0", .run = unequal, .environment = "GPUCR_SIM_HIP_VERSION=7.0"},
	{.name = "unequal, 7.2", .run = unequal, .environment = "GPUCR_SIM_HIP_VERSION=7.2"},
	{.name = "unequal, taken back",
	 .run = taken_back,
	 .environment = "GPUCR_SIM_HIP_VERSION=7.0",
	 .faults = "cuMemUnmap nth=3 error=CUDA_ERROR_UNKNOWN"},
	{.name = "not again", .run = not_again, .environment = "GPUCR_SIM_HIP_VERSION=7.0"},
	{.name = "quiet map",
	 .run = quiet_map,
	 .environment = "GPUCR_SIM_HIP_QUIET=1",
	 .faults = "cuMemMap nth=1 error=CUDA_ERROR_OUT_OF_MEMORY"},
	{.name = "quiet unmap",
	 .run = quiet_unmap,
	 .environment = "GPUCR_SIM_HIP_QUIET=1",
	 .faults = "cuMemUnmap nth=1 error=CUDA_ERROR_UNKNOWN"},
	{.name = "granularity", .run = granularity, .environment = "GPUCR_SIM_HIP_GRANULARITY=4K"},
	{.name = "granularity, old",
	 .run = granularity_of_old,
	 .environment = "GPUCR_SIM_HIP_GRANULARITY=4K"},
	{.name = "apart", .run = apart, .environment = "GPUCR_SIM_HIP_GRANULARITY=4K"},
	{.name = "range size", .run = range_size},
	{.name = "handles", .run = handles},
	{.name = "peers", .run = peers, .gpus = "2"},
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
