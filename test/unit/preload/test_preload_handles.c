/* SPDX-License-Identifier: MIT */
/*
 * A program that calls the virtual memory functions itself, with libgpucr-preload.so: the program
 * does not notice that its memory is exportable, nor that other memory replaces that memory at a
 * thaw.
 */
#include <sys/mman.h>

#include "test/unit/preload/preload_program.h"

static CUmemGenericAllocationHandle create(size_t bytes)
{
	CUmemAllocationProp prop = device_prop(0);
	CUmemGenericAllocationHandle handle = 0;

	OK(CU(cuMemCreate)(&handle, bytes, &prop, 0));
	return handle;
}

static CUdeviceptr reserve(size_t bytes)
{
	CUdeviceptr pointer;

	OK(CU(cuMemAddressReserve)(&pointer, bytes, 0, 0, 0));
	return pointer;
}

static void map(CUdeviceptr pointer, size_t bytes, size_t offset,
		CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = device_access(0);

	OK(CU(cuMemMap)(pointer, bytes, offset, handle, 0));
	OK(CU(cuMemSetAccess)(pointer, bytes, &access, 1));
}

static void expect_page(uint64_t bytes, unsigned count, unsigned sharings)
{
	const struct gcr_page *page = memory()->page();

	if (page->device_bytes != bytes || page->extents != count || page->sharings != sharings)
		fprintf(stderr, "%llu MiB, %u extents, %u sharings\n",
			(unsigned long long)(page->device_bytes / MIB), page->extents,
			page->sharings);
	CHECK(page->device_bytes == bytes && page->extents == count);
	CHECK(page->sharings == sharings);
}

/* ---- the same results with and without the library ---- */

static void show_properties(CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop = {0};
	CUresult result = CU(cuMemGetAllocationPropertiesFromHandle)(&prop, handle);

	printf("  properties %d: %d %d at %d %d, nowhere %d\n", result, prop.type,
	       prop.requestedHandleTypes, prop.location.type, prop.location.id,
	       CU(cuMemGetAllocationPropertiesFromHandle)(NULL, handle));
}

static void show_pointer(CUdeviceptr start, CUdeviceptr pointer)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	unsigned long long types = 77, flags = 77;
	CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
	void *data[] = {&types};
	CUdeviceptr base = start;
	size_t bytes = 0;
	CUresult result = CU(cuMemGetAddressRange_v2)(&base, &bytes, pointer);

	printf("  +%llx: range %d %llx %zx", (unsigned long long)(pointer - start), result,
	       (unsigned long long)(base - start), bytes);
	result = CU(cuPointerGetAttribute)(&types, attribute, pointer);
	printf(", types %d %llx", result, types);
	result = CU(cuPointerGetAttributes)(1, &attribute, data, pointer);
	printf(", %d %llx", result, types);
	result = CU(cuMemGetAccess)(&flags, &location, pointer);
	printf(", access %d %llx\n", result, flags);
}

static void show_create(const CUmemAllocationProp *prop, size_t bytes, unsigned long long flags)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = CU(cuMemCreate)(&handle, bytes, prop, flags);

	printf("create %zx: %d, nowhere %d\n", bytes, result,
	       CU(cuMemCreate)(NULL, bytes, prop, flags));
	if (result)
		return;
	show_properties(handle);
	printf("  release %d %d\n", CU(cuMemRelease)(handle), CU(cuMemRelease)(handle));
}

static void show_creations(void)
{
	CUmemAllocationProp prop = device_prop(0);

	show_create(&prop, 2 * MIB, 0);
	show_create(&prop, 20 * MIB, 0);
	show_create(&prop, 20 * MIB, 1);
	show_create(&prop, 1, 0);
	show_create(&prop, 0, 0);
	show_create(&prop, 1ull << 50, 0);
	show_create(NULL, 2 * MIB, 0);
	prop.location.id = 9;
	show_create(&prop, 2 * MIB, 0);
	prop = device_prop(0);
	prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
	show_create(&prop, 2 * MIB, 0);
	prop = device_prop(0);
	prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
	show_create(&prop, 2 * MIB, 0);
	prop = device_prop(0);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	show_create(&prop, 2 * MIB, 0);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	show_create(&prop, 2 * MIB, 0);
	printf("release of nothing %d %d\n", CU(cuMemRelease)(0), CU(cuMemRelease)(12345));
}

static void show_mappings(void)
{
	CUmemGenericAllocationHandle first = create(8 * MIB), second = create(4 * MIB), again = 0;
	CUdeviceptr start = reserve(32 * MIB);
	CUmemAccessDesc access = device_access(0), wrong = device_access(7);

	printf("map %d\n", CU(cuMemMap)(start, 8 * MIB, 0, first, 0));
	printf("map again %d\n", CU(cuMemMap)(start, 8 * MIB, 0, first, 0));
	printf("map beyond %d\n", CU(cuMemMap)(start + 16 * MIB, 8 * MIB, 2 * MIB, first, 0));
	printf("map odd %d\n", CU(cuMemMap)(start + 16 * MIB, 1, 0, first, 0));
	printf("map nothing %d\n", CU(cuMemMap)(start + 16 * MIB, 2 * MIB, 0, 4711, 0));
	printf("map at offset %d\n", CU(cuMemMap)(start + 8 * MIB, 2 * MIB, 2 * MIB, second, 0));
	show_pointer(start, start);
	printf("access %d, wrong %d, none %d, too far %d\n",
	       CU(cuMemSetAccess)(start, 10 * MIB, &access, 1),
	       CU(cuMemSetAccess)(start, 10 * MIB, &wrong, 1),
	       CU(cuMemSetAccess)(start, 10 * MIB, NULL, 1),
	       CU(cuMemSetAccess)(start, 12 * MIB, &access, 1));
	show_pointer(start, start + 3 * MIB);
	show_pointer(start, start + 9 * MIB);
	show_pointer(start, start + 11 * MIB);
	printf("retain %d", CU(cuMemRetainAllocationHandle)(&again, (void *)(start + 3 * MIB)));
	printf(", nowhere %d", CU(cuMemRetainAllocationHandle)(NULL, (void *)start));
	printf(", nothing %d\n",
	       CU(cuMemRetainAllocationHandle)(&again, (void *)(start + 11 * MIB)));
	printf("release %d %d\n", CU(cuMemRelease)(first), CU(cuMemRelease)(again));
	fill(start, 10 * MIB, 4);
	expect(start, 10 * MIB, 4);
	printf("unmap a part %d, of nothing %d\n", CU(cuMemUnmap)(start, 2 * MIB),
	       CU(cuMemUnmap)(start + 12 * MIB, 2 * MIB));
	printf("free the addresses %d\n", CU(cuMemAddressFree)(start, 32 * MIB));
	printf("unmap both %d, again %d\n", CU(cuMemUnmap)(start, 10 * MIB),
	       CU(cuMemUnmap)(start, 10 * MIB));
	printf("release %d\n", CU(cuMemRelease)(second));
	printf("free the addresses %d\n", CU(cuMemAddressFree)(start, 32 * MIB));
}

static void show_sharing(void)
{
	CUmemAllocationProp prop = device_prop(0);
	CUmemGenericAllocationHandle plain = create(2 * MIB), exportable, imported = 0;
	int fd = -1;

	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	OK(CU(cuMemCreate)(&exportable, 2 * MIB, &prop, 0));
	printf("export %d %d %d %d\n",
	       CU(cuMemExportToShareableHandle)(&fd, plain,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	       CU(cuMemExportToShareableHandle)(NULL, exportable,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	       CU(cuMemExportToShareableHandle)(&fd, exportable,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1),
	       CU(cuMemExportToShareableHandle)(&fd, exportable,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	printf("import %d\n",
	       CU(cuMemImportFromShareableHandle)(&imported, (void *)(intptr_t)fd,
						  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	show_properties(imported);
	close(fd);
	printf("release %d %d %d\n", CU(cuMemRelease)(plain), CU(cuMemRelease)(exportable),
	       CU(cuMemRelease)(imported));
}

static void show(void)
{
	size_t before;

	use_device(0);
	before = free_bytes();
	show_creations();
	show_mappings();
	show_sharing();
	printf("all free: %d\n", free_bytes() == before);
}

/* ---- expandable segments, as PyTorch uses them ---- */

#define SEGMENT (1024 * MIB)
#define PIECES	40

static size_t piece_bytes(unsigned i)
{
	return i % 4 ? 2 * MIB : 20 * MIB;
}

static void segments(void)
{
	static CUmemGenericAllocationHandle handles[PIECES];
	static CUdeviceptr at[PIECES];
	CUdeviceptr start, end;
	size_t before;

	use_device(0);
	worker_start();
	worker_drop(true);
	before = free_bytes();
	start = end = reserve(SEGMENT);
	for (unsigned i = 0; i < PIECES; i++) {
		handles[i] = create(piece_bytes(i));
		at[i] = end;
		map(at[i], piece_bytes(i), 0, handles[i]);
		fill(at[i], piece_bytes(i), i);
		end += piece_bytes(i);
	}
	for (unsigned round = 0; round < 3; round++) {
		freeze();
		CHECK(extents_count == memory()->page()->extents);
		for (size_t i = 0; i < extents_count; i++)
			CHECK(extents[i].flags == GCR_EXTENT_PROGRAM_HANDLE);
		thaw();
		for (unsigned i = 0; i < PIECES; i++)
			if (handles[i])
				expect(at[i], piece_bytes(i), i);
		/* The segment shrinks in the middle, and grows there again. */
		for (unsigned i = round; i < PIECES; i += 5) {
			OK(CU(cuMemUnmap)(at[i], piece_bytes(i)));
			OK(CU(cuMemRelease)(handles[i]));
			handles[i] = 0;
		}
		for (unsigned i = round; i < PIECES; i += 10) {
			handles[i] = create(piece_bytes(i));
			map(at[i], piece_bytes(i), 0, handles[i]);
			fill(at[i], piece_bytes(i), i);
		}
	}
	worker_stop();
	for (unsigned i = 0; i < PIECES; i++)
		if (handles[i]) {
			OK(CU(cuMemUnmap)(at[i], piece_bytes(i)));
			OK(CU(cuMemRelease)(handles[i]));
		}
	OK(CU(cuMemAddressFree)(start, SEGMENT));
	CHECK(free_bytes() == before && open_descriptors() == 0);
	expect_page(0, 0, 0);
}

/* ---- the life of a handle ---- */

/* Handles mapped twice, in parts, and at offsets; released while mapped; and retained. */
static void shapes(void)
{
	CUmemGenericAllocationHandle whole = create(8 * MIB), parts = create(8 * MIB),
				     unmapped = create(4 * MIB), again;
	CUdeviceptr start = reserve(64 * MIB);
	size_t before;

	map(start, 8 * MIB, 0, whole);
	map(start + 16 * MIB, 8 * MIB, 0, whole);
	map(start + 32 * MIB, 2 * MIB, 6 * MIB, parts);
	map(start + 34 * MIB, 6 * MIB, 0, parts);
	map(start + 40 * MIB, 4 * MIB, 0, unmapped);
	fill(start, 8 * MIB, 1);
	fill(start + 32 * MIB, 8 * MIB, 2);
	fill(start + 40 * MIB, 4 * MIB, 3);
	OK(CU(cuMemUnmap)(start + 40 * MIB, 4 * MIB));
	OK(CU(cuMemRelease)(whole));
	RESULT(CU(cuMemRelease)(whole), CUDA_ERROR_INVALID_VALUE);
	RESULT(CU(cuMemMap)(start + 50 * MIB, 8 * MIB, 0, whole, 0), CUDA_ERROR_INVALID_VALUE);
	look();
	CHECK(extents_count == 3);
	/*
	 * Memory that is not mapped in one piece has no address in the list, but its bytes are
	 * kept.
	 */
	CHECK(extents[0].address == 0 && extents[1].address == 0);
	CHECK(extents[2].address == start && extents[2].bytes == 8 * MIB);
	worker_start();
	worker_drop(true);
	for (int round = 0; round < 2; round++) {
		freeze();
		thaw();
		expect(start, 8 * MIB, 1);
		expect(start + 16 * MIB, 8 * MIB, 1);
		expect(start + 32 * MIB, 8 * MIB, 2);
		/* Both addresses still show the same memory. */
		OK(CU(cuMemsetD32_v2)(start, 0x55, 1));
		unsigned word = 0;

		OK(CU(cuMemcpyDtoH_v2)(&word, start + 16 * MIB, 4));
		CHECK(word == 0x55);
		fill(start, 8 * MIB, 1);
	}
	OK(CU(cuMemRetainAllocationHandle)(&again, (void *)(start + 17 * MIB)));
	OK(CU(cuMemUnmap)(start, 8 * MIB));
	OK(CU(cuMemUnmap)(start + 16 * MIB, 8 * MIB));
	map(start + 44 * MIB, 8 * MIB, 0, again);
	expect(start + 44 * MIB, 8 * MIB, 1);
	OK(CU(cuMemUnmap)(start + 44 * MIB, 8 * MIB));
	before = free_bytes();
	OK(CU(cuMemRelease)(again));
	CHECK(free_bytes() == before + 8 * MIB);
	map(start + 40 * MIB, 4 * MIB, 0, unmapped);
	expect(start + 40 * MIB, 4 * MIB, 3);
	OK(CU(cuMemUnmap)(start + 32 * MIB, 12 * MIB));
	OK(CU(cuMemRelease)(parts));
	OK(CU(cuMemRelease)(unmapped));
	expect_page(0, 0, 0);
	CHECK(free_bytes() == before + 20 * MIB && open_descriptors() == 0);
	worker_stop();
}

static void run_shapes(void)
{
	use_device(0);
	shapes();
}

/* The access rights of several GPUs, set in any order and withdrawn, are the same after a thaw. */
static void rights(void)
{
	CUmemAccessDesc both[2] = {device_access(0), device_access(1)};
	CUmemLocation there = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr start, own;
	unsigned long long flags;

	use_device(1);
	use_device(0);
	handle = create(4 * MIB);
	start = reserve(16 * MIB);
	OK(CU(cuMemMap)(start, 4 * MIB, 0, handle, 0));
	OK(CU(cuMemMap)(start + 4 * MIB, 4 * MIB, 0, handle, 0));
	OK(CU(cuMemMap)(start + 8 * MIB, 4 * MIB, 0, handle, 0));
	OK(CU(cuMemSetAccess)(start, 8 * MIB, both, 2));
	both[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	OK(CU(cuMemSetAccess)(start, 4 * MIB, &both[1], 1));
	OK(CU(cuMemSetAccess)(start + 8 * MIB, 4 * MIB, both, 1));
	fill(start, 4 * MIB, 8);
	worker_start();
	freeze();
	thaw();
	OK(CU(cuMemGetAccess)(&flags, &there, start));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
	OK(CU(cuMemGetAccess)(&flags, &there, start + 4 * MIB));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(CU(cuMemGetAccess)(&flags, &there, start + 8 * MIB));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
	use_device(1);
	OK(CU(cuMemAlloc_v2)(&own, 4 * MIB));
	OK(CU(cuMemcpyDtoDAsync_v2)(own, start + 4 * MIB, 4 * MIB, NULL));
	OK(CU(cuStreamSynchronize)(NULL));
	expect(own, 4 * MIB, 8);
	use_device(0);
	expect(start + 8 * MIB, 4 * MIB, 8);
	worker_stop();
}

/* ---- memory that the program shares forbids a freeze ---- */

static void sharing(void)
{
	CUmemAllocationProp prop = device_prop(0);
	CUmemGenericAllocationHandle handle, imported, plain = 0;
	CUdeviceptr start;
	int fd, again;

	use_device(0);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	OK(CU(cuMemCreate)(&handle, 4 * MIB, &prop, 0));
	plain = create(2 * MIB);
	start = reserve(16 * MIB);
	map(start, 4 * MIB, 0, handle);
	fill(start, 4 * MIB, 6);
	expect_page(6 * MIB, 2, 0);
	RESULT(CU(cuMemExportToShareableHandle)(&fd, plain,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	       CUDA_ERROR_INVALID_VALUE);
	expect_page(6 * MIB, 2, 0);
	/* The memory is exportable but not exported: the freeze includes it. */
	worker_start();
	freeze();
	thaw();
	worker_stop();
	/* Memory that was imported at the thaw can still be exported. */
	OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    0));
	OK(CU(cuMemExportToShareableHandle)(&again, handle,
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	expect_page(6 * MIB, 2, 1);
	OK(CU(cuMemImportFromShareableHandle)(&imported, (void *)(intptr_t)fd,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	expect_page(6 * MIB, 2, 2);
	close(fd);
	close(again);
	map(start + 8 * MIB, 4 * MIB, 0, imported);
	expect(start + 8 * MIB, 4 * MIB, 6);
	OK(CU(cuMemRelease)(imported));
	expect_page(6 * MIB, 2, 2);
	OK(CU(cuMemRetainAllocationHandle)(&imported, (void *)(start + 9 * MIB)));
	OK(CU(cuMemUnmap)(start + 8 * MIB, 4 * MIB));
	expect_page(6 * MIB, 2, 2);
	OK(CU(cuMemRelease)(imported));
	expect_page(6 * MIB, 2, 1);
	OK(CU(cuMemUnmap)(start, 4 * MIB));
	OK(CU(cuMemRelease)(handle));
	expect_page(2 * MIB, 1, 0);
	OK(CU(cuMemRelease)(plain));
	expect_page(0, 0, 0);
}

/* With the engine off the library does not move memory: the page counts only shared memory. */
static void off(void)
{
	CUmemAllocationProp prop = device_prop(0);
	CUmemGenericAllocationHandle handle, imported;
	int fd;

	use_device(0);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	OK(CU(cuMemCreate)(&handle, 4 * MIB, &prop, 0));
	expect_page(0, 0, 0);
	OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    0));
	expect_page(0, 0, 1);
	OK(CU(cuMemImportFromShareableHandle)(&imported, (void *)(intptr_t)fd,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	expect_page(0, 0, 2);
	OK(CU(cuMemRelease)(imported));
	OK(CU(cuMemRelease)(handle));
	expect_page(0, 0, 0);
	close(fd);
}

/* If exportable memory cannot be allocated, the program gets the memory that it asked for. */
static void falls_back(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr start;

	use_device(0);
	handle = create(4 * MIB);
	expect_page(0, 0, 0);
	start = reserve(4 * MIB);
	map(start, 4 * MIB, 0, handle);
	fill(start, 4 * MIB, 1);
	OK(CU(cuMemRelease)(handle));
	expect(start, 4 * MIB, 1);
	OK(CU(cuMemUnmap)(start, 4 * MIB));
	handle = create(4 * MIB);
	expect_page(4 * MIB, 1, 0);
	OK(CU(cuMemRelease)(handle));
}

/* ---- memory that cannot be created again with the same properties ---- */

static void obstacles(void)
{
	CUmemAllocationProp prop = device_prop(0);
	CUmemGenericAllocationHandle special, compressible, again;
	const char *words = memory()->page()->obstacle;
	CUdeviceptr start;

	use_device(0);
	CHECK(words[0] == '\0');
	prop.allocFlags.usage = 2;
	OK(CU(cuMemCreate)(&special, 2 * MIB, &prop, 0));
	CHECK(strstr(words, "special use"));
	prop.allocFlags.usage = 0;
	prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
	OK(CU(cuMemCreate)(&compressible, 2 * MIB, &prop, 0));
	CHECK(words[0]);
	OK(CU(cuMemRelease)(special));
	CHECK(strstr(words, "compressible"));
	/* The memory lives as long as it is mapped. */
	start = reserve(2 * MIB);
	map(start, 2 * MIB, 0, compressible);
	fill(start, 2 * MIB, 1);
	OK(CU(cuMemRetainAllocationHandle)(&again, (void *)start));
	OK(CU(cuMemRelease)(compressible));
	OK(CU(cuMemRelease)(again));
	CHECK(strstr(words, "compressible"));
	expect_page(0, 0, 0);
	OK(CU(cuMemUnmap)(start, 2 * MIB));
	CHECK(words[0] == '\0');
}

/* ---- many threads, each with its own part of one reservation ---- */

#define PART (8 * MIB)

static CUdeviceptr hammered;

static void *hammer(void *part)
{
	CUdeviceptr start = hammered + PART * (uintptr_t)part;

	use_device(0);
	for (unsigned round = 0; round < 40; round++) {
		CUmemGenericAllocationHandle handle = create(4 * MIB);
		unsigned word = 0;

		map(start, 2 * MIB, 2 * MIB, handle);
		map(start + 4 * MIB, 4 * MIB, 0, handle);
		OK(CU(cuMemRelease)(handle));
		OK(CU(cuMemsetD32_v2)(start, round, 1));
		OK(CU(cuMemcpyDtoH_v2)(&word, start + 6 * MIB, 4));
		CHECK(word == round);
		OK(CU(cuMemUnmap)(start, 2 * MIB));
		OK(CU(cuMemUnmap)(start + 4 * MIB, 4 * MIB));
	}
	return NULL;
}

static void threads(void)
{
	pthread_t thread[4];

	use_device(0);
	hammered = reserve(4 * PART);
	for (uintptr_t i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, hammer, (void *)i) == 0);
	for (int i = 0; i < 2000; i++)
		CHECK(memory()->describe(extents, GCR_ARRAY_SIZE(extents)) <= 4);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	expect_page(0, 0, 0);
}

static const struct subject subjects[] = {
	{.name = "show", .run = show},
	{.name = "segments", .run = segments, .vram = "1G"},
	{.name = "shapes", .run = run_shapes},
	{.name = "rights", .run = rights, .gpus = "2"},
	{.name = "sharing", .run = sharing},
	{.name = "off", .run = off, .environment = "GPUCR_PRELOAD_VMM=0"},
	{.name = "falls back",
	 .run = falls_back,
	 .faults = "cuMemCreate nth=1 error=CUDA_ERROR_NOT_SUPPORTED"},
	{.name = "obstacles", .run = obstacles},
	{.name = "threads", .run = threads},
};

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	if (run_one(argc, argv, subjects, GCR_ARRAY_SIZE(subjects)))
		return 0;
	test_same();
	run_all(subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}
